//! Writing directories inside the inode: small enough to be written whole each time.
//!
//! Invariants of what [`ShortImage::encode`] gives: places ascend; inode numbers are wide if, and only if, one of
//! them (the parent's counts) needs it; the header counts both. Places of entries are what the entries would have in
//! a data block, so that a position in the directory stays valid when it grows out of the inode.

use super::short::{ShortDir, is_wide};
use super::{DirFileType, data_entry_len};
use crate::error::FormatError;
use crate::types::InodeNumber;

const NAME: &str = "short directory";
/// Room in a block for the index of the dots, and for the count of index entries.
const BLOCK_TAIL: usize = 8;
const INDEX_ENTRY: usize = 8;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortRow {
    /// Where the entry would lie in a data block, in bytes.
    pub offset: u16,
    /// The name.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub inode: InodeNumber,
    /// Its type.
    pub file_type: DirFileType,
}

/// A directory inside the inode, taken apart to be changed.
#[derive(Clone, Debug)]
pub struct ShortImage {
    /// The parent directory.
    pub parent: InodeNumber,
    rows: Vec<ShortRow>,
    v5: bool,
    ftype: bool,
}

impl ShortImage {
    /// An empty directory.
    pub const fn new(parent: InodeNumber, v5: bool, ftype: bool) -> Self {
        Self { parent, rows: Vec::new(), v5, ftype }
    }

    /// Takes a directory apart.
    pub fn parse(bytes: &[u8], v5: bool, ftype: bool) -> Result<Self, FormatError> {
        let dir = ShortDir::parse(bytes, v5, ftype)?;
        let rows = dir.entries().map(|entry| {
            let entry = entry?;
            Ok(ShortRow {
                offset: entry.offset,
                name: entry.name.to_vec(),
                inode: entry.inode,
                file_type: entry.file_type,
            })
        });
        Ok(Self { parent: dir.parent, rows: rows.collect::<Result<_, FormatError>>()?, v5, ftype })
    }

    /// The entries, in order.
    pub fn rows(&self) -> &[ShortRow] {
        &self.rows
    }

    /// The entry of this name.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.rows.iter().position(|row| row.name == name)
    }

    /// An entry, to change its inode.
    pub fn row_mut(&mut self, at: usize) -> Option<(&mut InodeNumber, &mut DirFileType)> {
        self.rows.get_mut(at).map(|row| (&mut row.inode, &mut row.file_type))
    }

    /// Takes an entry out.
    pub fn remove(&mut self, at: usize) -> Option<ShortRow> {
        (at < self.rows.len()).then(|| self.rows.remove(at))
    }

    /// Adds an entry: after the others, or in the first gap if a block of `block_size` bytes would be too small.
    /// `false` if such a block has no room at all.
    pub fn add(
        &mut self,
        name: &[u8],
        inode: InodeNumber,
        file_type: DirFileType,
        block_size: usize,
    ) -> Result<bool, FormatError> {
        let bad_name = || FormatError::value(NAME, "entry name", name.len() as u64);
        let name_len = u8::try_from(name.len()).ok().filter(|&len| len > 0).ok_or_else(bad_name)?;
        let len = data_entry_len(name_len, self.ftype);
        let index = (self.rows.len() + 3) * INDEX_ENTRY + BLOCK_TAIL;
        let (mut end, mut gap) = (ShortDir::first_offset(self.v5, self.ftype), None);
        for (nth, row) in self.rows.iter().enumerate() {
            if gap.is_none() && end + len <= row.offset.into() {
                gap = Some((nth, end));
            }
            end = usize::from(row.offset) + data_entry_len(row.name.len() as u8, self.ftype);
        }
        let (nth, offset) = match gap {
            _ if end + len + index <= block_size => (self.rows.len(), end),
            Some(gap) if end + index <= block_size => gap,
            _ => return Ok(false),
        };
        let offset =
            u16::try_from(offset).map_err(|_| FormatError::value(NAME, "entry offset", offset as u64))?;
        self.rows.insert(nth, ShortRow { offset, name: name.to_vec(), inode, file_type });
        Ok(true)
    }

    /// Appends an entry whose place is known and behind all others.
    pub fn push(&mut self, row: ShortRow) {
        debug_assert!(self.rows.last().is_none_or(|last| last.offset < row.offset), "places ascend");
        self.rows.push(row);
    }

    /// The directory as it lies in the inode; `None` if it has more entries than the form can count.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let count = u8::try_from(self.rows.len()).ok()?;
        let numbers = self.rows.iter().map(|row| row.inode).chain([self.parent]);
        let wide_count = u8::try_from(numbers.filter(|&number| is_wide(number)).count()).ok()?;
        let mut bytes = vec![count, wide_count];
        let put_inode = |bytes: &mut Vec<u8>, inode: InodeNumber| match wide_count {
            0 => bytes.extend((inode.0 as u32).to_be_bytes()),
            _ => bytes.extend(inode.0.to_be_bytes()),
        };
        put_inode(&mut bytes, self.parent);
        for row in &self.rows {
            bytes.push(u8::try_from(row.name.len()).ok()?);
            bytes.extend(row.offset.to_be_bytes());
            bytes.extend(&row.name);
            if self.ftype {
                bytes.push(row.file_type.to_disk());
            }
            put_inode(&mut bytes, row.inode);
        }
        Some(bytes)
    }

    /// The fewest bytes that a directory of `count` entries can take.
    pub const fn least_len(count: usize) -> usize {
        6 + count * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (v5, ftype) in [(false, false), (false, true), (true, true)] {
            let mut dir = ShortImage::new(InodeNumber(128), v5, ftype);
            assert!(dir.add(b"a", InodeNumber(131), DirFileType::Regular, 4096).unwrap());
            assert!(dir.add(b"wide", InodeNumber(1 << 40), DirFileType::Symlink, 4096).unwrap());
            assert!(dir.add(b"c", InodeNumber(133), DirFileType::Fifo, 4096).unwrap());
            let bytes = dir.encode().unwrap();
            assert_eq!(&bytes[..2], [3, 1]);
            let mut again = ShortImage::parse(&bytes, v5, ftype).unwrap();
            assert_eq!(again.encode().unwrap(), bytes);
            assert_eq!(again.position(b"wide"), Some(1));
            again.remove(1).unwrap();
            let narrow = again.encode().unwrap();
            assert_eq!(&narrow[..2], [2, 0]);
            assert_eq!(narrow.len(), 6 + 2 * (3 + 1 + usize::from(ftype) + 4));
            assert_eq!(ShortImage::parse(&narrow, v5, ftype).unwrap().rows().len(), 2);
        }
    }

    #[test]
    fn gaps_are_used_once_the_block_would_be_full() {
        let mut dir = ShortImage::new(InodeNumber(128), true, true);
        let name = [b'x'; 40];
        let mut count = 0;
        while dir.add(&name, InodeNumber(131), DirFileType::Regular, 1024).unwrap() {
            count += 1;
        }
        assert_eq!(count, (1024 - 64 - 32 - 24) / (56 + 8));
        let gone = dir.remove(3).unwrap();
        assert!(!dir.add(&[b'y'; 60], InodeNumber(131), DirFileType::Regular, 1024).unwrap());
        assert!(dir.add(&[b'y'; 39], InodeNumber(131), DirFileType::Regular, 1024).unwrap());
        assert_eq!(dir.rows()[3].offset, gone.offset);
        let bytes = dir.encode().unwrap();
        assert_eq!(ShortImage::parse(&bytes, true, true).unwrap().rows().len(), count);
    }
}
