//! Writing a POSIX (PAX) archive; [`read`] reads them.
//!
//! What does not fit into the old header goes into an extended header before it: long names, large numbers,
//! nanoseconds, attributes, and the map of a sparse file (GNU's format 1.0, which GNU tar, bsdtar and Python
//! unpack). Invariant: after an entry with content is begun, exactly as many bytes follow as its header says,
//! whatever happens.

pub mod extra;
pub mod names;
pub mod pax;
pub mod read;

use crate::exit::{Exit, Failure, Result};
use pax::Records;
use std::io::Write;
use tar::{EntryType, Header};
use uxfs::{Metadata, Timestamp};

const BLOCK: u64 = 512;
/// Archives are made of records of this many bytes.
const RECORD: u64 = 20 * BLOCK;
const OCTAL_7: u64 = 0o7_777_777;
const OCTAL_11: u64 = 0o77_777_777_777;

/// The type of an entry.
pub enum Kind<'a> {
    /// A regular file with this many bytes of content, which are written next.
    File(u64),
    /// A regular file with holes.
    Sparse(&'a SparseMap),
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// Another name of the entry with this name.
    HardLink(&'a [u8]),
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
}

/// Where a sparse file has data: runs of offset and length, in order, and the size of the file.
pub struct SparseMap {
    /// The runs. All but the last are whole blocks of 512 bytes.
    pub runs: Vec<(u64, u64)>,
    /// The size of the file.
    pub size: u64,
}

impl SparseMap {
    /// The map as the archive has it: decimal numbers, a line each, filled up to whole blocks.
    fn text(&self) -> Vec<u8> {
        // If the file ends with a hole, an empty run at the end gives its length.
        let ends_in_data = self.runs.last().is_some_and(|(offset, len)| offset + len == self.size);
        let last = (!ends_in_data).then_some((self.size, 0));
        let mut text = format!("{}\n", self.runs.len() + usize::from(last.is_some())).into_bytes();
        for (offset, len) in self.runs.iter().copied().chain(last) {
            text.extend(format!("{offset}\n{len}\n").into_bytes());
        }
        text.resize(text.len().next_multiple_of(BLOCK as usize), 0);
        text
    }

    /// Bytes of data.
    pub fn data_len(&self) -> u64 {
        self.runs.iter().map(|(_, len)| len).sum()
    }
}

/// An archive that is being written.
pub struct Archive<W: Write> {
    out: W,
    written: u64,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(out: W) -> Self {
        Self { out, written: 0 }
    }

    /// Writes the headers of an entry. After a file's or a sparse file's, its content is written with
    /// [`content`](Self::content), and ended with [`pad`](Self::pad).
    pub fn entry(&mut self, name: &[u8], of: &Metadata, kind: &Kind<'_>, mut records: Records) -> Result<()> {
        let map = if let Kind::Sparse(map) = kind { map.text() } else { Vec::new() };
        let size = match kind {
            Kind::File(size) => *size,
            Kind::Sparse(sparse) => map.len() as u64 + sparse.data_len(),
            _ => 0,
        };
        let mut header = Header::new_ustar();
        header.set_entry_type(entry_type(kind));
        header.set_mode(of.permissions().into());
        header.set_size(number(&mut records, "size", size, OCTAL_11));
        header.set_uid(number(&mut records, "uid", of.uid.into(), OCTAL_7));
        header.set_gid(number(&mut records, "gid", of.gid.into(), OCTAL_7));
        header.set_mtime(moment(&mut records, "mtime", of.mtime));
        if let Kind::Sparse(sparse) = kind {
            // The real name comes after the other one: for some readers, the last counts.
            text(&mut records, "path", &sparse_name(name), name_field(&mut header));
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", name);
            records.add(b"GNU.sparse.realsize", sparse.size.to_string().as_bytes());
        } else {
            text(&mut records, "path", name, name_field(&mut header));
        }
        if let Kind::Symlink(target) | Kind::HardLink(target) = kind {
            text(&mut records, "linkpath", target, &mut header.as_old_mut().linkname);
        }
        if let (Kind::CharDevice | Kind::BlockDevice, Some(rdev)) = (kind, of.rdev) {
            header.set_device_major(rdev.major).map_err(Failure::from)?;
            header.set_device_minor(rdev.minor).map_err(Failure::from)?;
        }
        header.set_cksum();
        self.extended(name, &records)?;
        self.write(header.as_bytes())?;
        self.write(&map)
    }

    /// Writes bytes of the content of the entry that was begun.
    pub fn content(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes)
    }

    /// Fills up the last block of an entry's content.
    pub fn pad(&mut self) -> Result<()> {
        self.fill(BLOCK)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Result<()> {
        self.write(&[0; 2 * BLOCK as usize])?;
        self.fill(RECORD)?;
        Ok(self.out.flush()?)
    }

    /// The extended header, if there is anything in it.
    fn extended(&mut self, name: &[u8], records: &Records) -> Result<()> {
        let bytes = records.as_bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let last = name.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty()).unwrap_or(b".");
        put(name_field(&mut header), &[b"PaxHeaders/", last].concat());
        header.set_cksum();
        self.write(header.as_bytes())?;
        self.write(bytes)?;
        self.pad()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn fill(&mut self, unit: u64) -> Result<()> {
        const ZEROES: [u8; RECORD as usize] = [0; RECORD as usize];
        let missing = usize::try_from(self.written.next_multiple_of(unit) - self.written);
        let zeroes = missing.ok().and_then(|missing| ZEROES.get(..missing));
        self.write(zeroes.ok_or_else(|| Failure::new(Exit::Io, "the archive has a unit of odd size"))?)
    }
}

fn entry_type(kind: &Kind<'_>) -> EntryType {
    match kind {
        Kind::File(_) | Kind::Sparse(_) => EntryType::Regular,
        Kind::Directory => EntryType::Directory,
        Kind::Symlink(_) => EntryType::Symlink,
        Kind::HardLink(_) => EntryType::Link,
        Kind::CharDevice => EntryType::Char,
        Kind::BlockDevice => EntryType::Block,
        Kind::Fifo => EntryType::Fifo,
    }
}

fn name_field(header: &mut Header) -> &mut [u8] {
    &mut header.as_old_mut().name
}

/// Puts text into a field, or in full into a record if the field is too short.
fn text(records: &mut Records, key: &str, text: &[u8], field: &mut [u8]) {
    if text.len() > field.len() {
        records.add(key.as_bytes(), text);
    }
    put(field, text);
}

/// Puts as much of `text` into a field as fits.
fn put(field: &mut [u8], text: &[u8]) {
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text[..len]);
}

/// Puts a number into its field, or into a record if the field is too short.
fn number(records: &mut Records, key: &str, value: u64, most: u64) -> u64 {
    if value > most {
        records.add(key.as_bytes(), value.to_string().as_bytes());
        return 0;
    }
    value
}

/// Puts seconds into their field, or into a record if there are nanoseconds, or if they don't fit.
fn moment(records: &mut Records, key: &str, time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).ok().filter(|&seconds| seconds <= OCTAL_11);
    if time.nanoseconds != 0 || seconds.is_none() {
        records.add(key.as_bytes(), decimal(time).as_bytes());
    }
    seconds.unwrap_or(0)
}

/// A time as a decimal number. Nanoseconds count forward even before 1970; the digits of a decimal don't.
fn decimal(time: Timestamp) -> String {
    if time.seconds < 0 && time.nanoseconds != 0 {
        let seconds = (time.seconds + 1).unsigned_abs();
        return format!("-{seconds}.{:09}", 1_000_000_000 - time.nanoseconds.min(1_000_000_000));
    }
    if time.nanoseconds == 0 {
        return time.seconds.to_string();
    }
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

/// The name for unpackers that do not know sparse files.
fn sparse_name(name: &[u8]) -> Vec<u8> {
    let split = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, last) = name.split_at(split);
    [dir, b"GNUSparseFile.0/", last].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_1970_are_one_decimal_number() {
        let text = |seconds, nanoseconds| decimal(Timestamp { seconds, nanoseconds });
        assert_eq!(text(0, 0), "0");
        assert_eq!(text(5, 1), "5.000000001");
        assert_eq!(text(-1, 250_000_000), "-0.750000000");
        assert_eq!(text(-2, 999_999_999), "-1.000000001");
        assert_eq!(text(-7, 0), "-7");
    }

    #[test]
    fn a_map_says_where_the_file_ends() {
        let map = SparseMap { runs: vec![(4096, 512)], size: 10_000 };
        let text = map.text();
        assert!(text.starts_with(b"2\n4096\n512\n10000\n0\n\0"));
        assert_eq!(text.len(), 512);
        let map = SparseMap { runs: vec![(4096, 10)], size: 4106 };
        assert!(map.text().starts_with(b"1\n4096\n10\n\0"));
    }

    #[test]
    fn sparse_names_stay_beside_their_file() {
        assert_eq!(sparse_name(b"./a/b"), b"./a/GNUSparseFile.0/b");
        assert_eq!(sparse_name(b"b"), b"GNUSparseFile.0/b");
    }
}
