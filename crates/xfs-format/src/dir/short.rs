//! Directories inside the inode (short form): a header, then entries packed without alignment.
//!
//! Invariants of a [`ShortDir`]: the header is complete, all inode numbers have the width that it says. Each entry
//! that [`ShortDir::entries`] yields lies within the bytes; the places of entries ascend, so that they serve as
//! positions to go on from.

use super::{DATA_ALIGN_LOG, DirFileType, data_entry_len, is_valid_name};
use crate::error::FormatError;
use crate::types::InodeNumber;

const NAME: &str = "short directory";

/// A directory inside the inode.
#[derive(Clone, Copy, Debug)]
pub struct ShortDir<'a> {
    /// Entries that the header counts; `.` and `..` are not among them.
    pub count: u8,
    /// Whether inode numbers take 8 bytes instead of 4.
    pub wide: bool,
    /// How many inode numbers need 8 bytes.
    pub wide_count: u8,
    /// The parent directory.
    pub parent: InodeNumber,
    entries: &'a [u8],
    v5: bool,
    ftype: bool,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortEntry<'a> {
    /// Where the entry would lie in a data block, in bytes.
    pub offset: u16,
    /// The name.
    pub name: &'a [u8],
    /// The inode that it names.
    pub inode: InodeNumber,
    /// Its type.
    pub file_type: DirFileType,
}

impl<'a> ShortDir<'a> {
    /// Reads the header.
    pub fn parse(bytes: &'a [u8], v5: bool, ftype: bool) -> Result<Self, FormatError> {
        let short = || FormatError::value(NAME, "size", bytes.len() as u64);
        let (&[count, wide_count], rest) = bytes.split_first_chunk::<2>().ok_or_else(short)?;
        let wide = wide_count != 0;
        let (parent, entries) = take_inode(rest, wide).ok_or_else(short)?;
        Ok(Self { count, wide, wide_count, parent, entries, v5, ftype })
    }

    /// The entries in order; the iterator ends behind the first error.
    pub fn entries(&self) -> ShortEntries<'a> {
        ShortEntries {
            dir: *self,
            rest: self.entries,
            left: self.count,
            wide_seen: u8::from(is_wide(self.parent)),
            least_offset: Self::first_offset(self.v5, self.ftype),
            done: false,
        }
    }

    /// Where `.` would lie in a data block.
    pub const fn dot_offset(v5: bool) -> usize {
        if v5 { 64 } else { 16 }
    }

    /// Where `..` would lie in a data block.
    pub const fn dotdot_offset(v5: bool, ftype: bool) -> usize {
        Self::dot_offset(v5) + data_entry_len(1, ftype)
    }

    /// Where the first other entry may lie.
    pub(super) const fn first_offset(v5: bool, ftype: bool) -> usize {
        Self::dotdot_offset(v5, ftype) + data_entry_len(2, ftype)
    }
}

/// Entries of a short directory.
#[derive(Debug)]
pub struct ShortEntries<'a> {
    dir: ShortDir<'a>,
    rest: &'a [u8],
    left: u8,
    wide_seen: u8,
    least_offset: usize,
    done: bool,
}

impl<'a> ShortEntries<'a> {
    fn take(&mut self) -> Result<ShortEntry<'a>, FormatError> {
        let outside = || FormatError::new(NAME, "entry outside the inode");
        let (&[name_len, high, low], rest) = self.rest.split_first_chunk::<3>().ok_or_else(outside)?;
        let (name, rest) = rest.split_at_checked(name_len.into()).ok_or_else(outside)?;
        let (file_type, rest) = if self.dir.ftype {
            let (&byte, rest) = rest.split_first().ok_or_else(outside)?;
            let kind = DirFileType::from_disk(byte).ok_or(FormatError::value(
                NAME,
                "entry file type",
                byte.into(),
            ))?;
            (kind, rest)
        } else {
            (DirFileType::Unknown, rest)
        };
        let (inode, rest) = take_inode(rest, self.dir.wide).ok_or_else(outside)?;
        if !is_valid_name(name) {
            return Err(FormatError::new(NAME, "entry name"));
        }
        let offset = u16::from_be_bytes([high, low]);
        if usize::from(offset) < self.least_offset || !offset.is_multiple_of(1 << DATA_ALIGN_LOG) {
            let least = self.least_offset as u64;
            return Err(FormatError::mismatch(NAME, "entry offset", offset.into(), least));
        }
        self.least_offset = usize::from(offset) + data_entry_len(name_len, self.dir.ftype);
        self.wide_seen = self.wide_seen.saturating_add(u8::from(is_wide(inode)));
        self.rest = rest;
        Ok(ShortEntry { offset, name, inode, file_type })
    }

    /// What must hold when all entries were read.
    fn check_end(&self) -> Result<(), FormatError> {
        if !self.rest.is_empty() {
            return Err(FormatError::value(NAME, "bytes behind the last entry", self.rest.len() as u64));
        }
        if self.wide_seen != self.dir.wide_count {
            let (found, expected) = (self.dir.wide_count.into(), self.wide_seen.into());
            return Err(FormatError::mismatch(NAME, "count of 8-byte inode numbers", found, expected));
        }
        Ok(())
    }
}

impl<'a> Iterator for ShortEntries<'a> {
    type Item = Result<ShortEntry<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = if self.left == 0 {
            self.done = true;
            return self.check_end().err().map(Err);
        } else {
            self.left -= 1;
            self.take()
        };
        self.done = item.is_err();
        Some(item)
    }
}

pub(super) const fn is_wide(inode: InodeNumber) -> bool {
    inode.0 > u32::MAX as u64
}

fn take_inode(bytes: &[u8], wide: bool) -> Option<(InodeNumber, &[u8])> {
    if wide {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        Some((InodeNumber(u64::from_be_bytes(*number)), rest))
    } else {
        let (number, rest) = bytes.split_first_chunk::<4>()?;
        Some((InodeNumber(u32::from_be_bytes(*number).into()), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 128];
        for (name, offset, inode) in [(&b"a"[..], 0x60u16, 131u32), (b"long name", 0x70, 132)] {
            bytes.push(name.len() as u8);
            bytes.extend(offset.to_be_bytes());
            bytes.extend(name);
            bytes.push(1);
            bytes.extend(inode.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn entries_come_in_order() {
        let bytes = sample();
        let dir = ShortDir::parse(&bytes, true, true).unwrap();
        assert_eq!(dir.parent, InodeNumber(128));
        let entries: Vec<_> = dir.entries().collect::<Result<_, _>>().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].name, b"long name");
        assert_eq!(entries[1].inode, InodeNumber(132));
        assert_eq!(entries[0].file_type, DirFileType::Regular);
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = sample();
        for len in 0..bytes.len() {
            let result = ShortDir::parse(&bytes[..len], true, true)
                .and_then(|dir| dir.entries().collect::<Result<Vec<_>, _>>());
            assert!(result.is_err(), "length {len}");
        }
    }

    #[test]
    fn each_lie_has_its_name() {
        let check = |at: usize, byte: u8| {
            let mut bytes = sample();
            bytes[at] = byte;
            let dir = ShortDir::parse(&bytes, true, true).unwrap();
            dir.entries().find_map(Result::err).expect("a lie is found").check
        };
        assert_eq!(check(0, 1), "bytes behind the last entry");
        assert_eq!(check(0, 3), "entry outside the inode");
        assert_eq!(check(8, 0x58), "entry offset");
        assert_eq!(check(8, 0x64), "entry offset");
        assert_eq!(check(9, b'/'), "entry name");
        assert_eq!(check(10, 9), "entry file type");
    }

    #[test]
    fn wide_numbers_are_counted() {
        let mut bytes = vec![1, 1];
        bytes.extend(0x1_0000_0080u64.to_be_bytes());
        bytes.extend([1, 0, 0x60, b'x', 1]);
        bytes.extend(131u64.to_be_bytes());
        let all = |bytes: &[u8]| {
            ShortDir::parse(bytes, true, true)
                .unwrap()
                .entries()
                .collect::<Result<Vec<_>, _>>()
                .map(|e| e.len())
        };
        assert_eq!(all(&bytes), Ok(1));
        bytes[1] = 2;
        assert_eq!(all(&bytes).unwrap_err().check, "count of 8-byte inode numbers");
    }
}
