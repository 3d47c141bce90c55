//! Parent pointers: attributes that say which directories have names for an inode, and which names.
//!
//! The attribute's name is the entry's, its value the directory's number and generation. Entries of one name in several
//! directories are told apart by the value, which is therefore part of the hash.

use super::AttrFlags;
use crate::da::name_hash;
use crate::types::InodeNumber;

/// The directory that a parent pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParentRecord {
    /// The directory.
    pub dir: InodeNumber,
    /// Its generation.
    pub generation: u32,
}

impl ParentRecord {
    /// Bytes of a pointer's value.
    pub const BYTES: usize = 12;

    /// Reads a pointer's value; `None` if it has another length.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (dir, rest) = value.split_first_chunk()?;
        let generation = u32::from_be_bytes(rest.try_into().ok()?);
        Some(Self { dir: InodeNumber(u64::from_be_bytes(*dir)), generation })
    }

    /// The pointer's value.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (dir, generation) = bytes.split_at_mut(8);
        dir.copy_from_slice(&self.dir.0.to_be_bytes());
        generation.copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }
}

/// The hash that an attribute is filed under. `value`: the value of a parent pointer.
pub fn attr_hash(flags: AttrFlags, name: &[u8], value: &[u8]) -> u32 {
    let hash = name_hash(name);
    match ParentRecord::parse(value).filter(|_| flags.contains(AttrFlags::PARENT)) {
        Some(ParentRecord { dir: InodeNumber(dir), .. }) => hash ^ (dir >> 32) as u32 ^ dir as u32,
        None => hash,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_read_back() {
        let record = ParentRecord { dir: InodeNumber(0x1_0000_0085), generation: 0x4bed_a91e };
        assert_eq!(ParentRecord::parse(&record.to_bytes()), Some(record));
        assert_eq!(ParentRecord::parse(&record.to_bytes()[..11]), None);
        assert_eq!(ParentRecord::parse(&[0; 13]), None);
    }

    /// Entries of a leaf that Linux 6.18 wrote: `f` in directory 128, `link1` in directory 133.
    #[test]
    fn hashes_are_the_kernels() {
        let hash = |name: &[u8], dir| {
            let value = ParentRecord { dir: InodeNumber(dir), generation: 7 }.to_bytes();
            attr_hash(AttrFlags::PARENT, name, &value)
        };
        assert_eq!(hash(b"f", 128), 0xe6);
        assert_eq!(hash(b"link1", 133), 0xcd3b_b532);
        assert_eq!(hash(b"f", 1 << 32), 0x67);
        assert_eq!(attr_hash(AttrFlags::ROOT, b"f", &[0xff; 12]), 0x66);
    }
}
