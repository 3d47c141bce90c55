//! POSIX ACLs: as XFS keeps them in two attributes of the root namespace, and as Linux shows them to users.
//!
//! On disk: a count, then entries of tag, ID and permissions, big-endian. To users: the `system.posix_acl_*`
//! attribute, version 2: entries of tag, permissions and ID, little-endian.

use crate::error::FormatError;
use std::mem::size_of;
use zerocopy::byteorder::{big_endian, little_endian};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The attribute of the root namespace that holds the ACL of an object.
pub const ACCESS_NAME: &[u8] = b"SGI_ACL_FILE";
/// The attribute of the root namespace that holds the ACL which a directory's new children get.
pub const DEFAULT_NAME: &[u8] = b"SGI_ACL_DEFAULT";
/// Most entries on v4.
pub const ENTRIES_MAX_V4: u32 = 25;
/// Most entries on v5: what fits in the largest value.
pub const ENTRIES_MAX_V5: u32 = (crate::attr::VALUE_MAX - 4) / size_of::<DiskEntry>() as u32;

const NAME: &str = "ACL";
const LINUX_VERSION: u32 = 2;
/// Linux's ID of entries that have none.
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    tag: big_endian::U32,
    id: big_endian::U32,
    permissions: big_endian::U16,
    pad: [u8; 2],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LinuxEntry {
    tag: little_endian::U16,
    permissions: little_endian::U16,
    id: little_endian::U32,
}

const _: () = {
    assert!(size_of::<DiskEntry>() == 12);
    assert!(size_of::<LinuxEntry>() == 8);
};

/// Whom an entry is for. Disk and Linux use the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclTag {
    /// The owner.
    UserObj,
    /// A user, by ID.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A group, by ID.
    Group(u32),
    /// The most that named users and groups get.
    Mask,
    /// Everyone else.
    Other,
}

/// One entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// Whom it is for.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
}

/// Reads an ACL as it is on disk.
pub fn parse(bytes: &[u8], v5: bool) -> Result<Vec<AclEntry>, FormatError> {
    let size = || FormatError::value(NAME, "size", bytes.len() as u64);
    let (count, rest) = big_endian::U32::ref_from_prefix(bytes).map_err(|_| size())?;
    let most = if v5 { ENTRIES_MAX_V5 } else { ENTRIES_MAX_V4 };
    if count.get() > most {
        return Err(FormatError::mismatch(NAME, "entry count", count.get().into(), most.into()));
    }
    let entries = <[DiskEntry]>::ref_from_bytes(rest).map_err(|_| size())?;
    if entries.len() as u64 != u64::from(count.get()) {
        return Err(FormatError::mismatch(NAME, "entry count", count.get().into(), entries.len() as u64));
    }
    entries.iter().map(DiskEntry::read).collect()
}

impl DiskEntry {
    fn read(&self) -> Result<AclEntry, FormatError> {
        let id = self.id.get();
        let tag = match self.tag.get() {
            0x01 => AclTag::UserObj,
            0x02 => AclTag::User(id),
            0x04 => AclTag::GroupObj,
            0x08 => AclTag::Group(id),
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            tag => return Err(FormatError::value(NAME, "tag", tag.into())),
        };
        Ok(AclEntry { tag, permissions: self.permissions.get() })
    }
}

/// An ACL as the attributes `system.posix_acl_access` and `system.posix_acl_default` show it.
pub fn to_linux(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = LINUX_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, id) = match entry.tag {
            AclTag::UserObj => (0x01, NO_ID),
            AclTag::User(id) => (0x02, id),
            AclTag::GroupObj => (0x04, NO_ID),
            AclTag::Group(id) => (0x08, id),
            AclTag::Mask => (0x10, NO_ID),
            AclTag::Other => (0x20, NO_ID),
        };
        let entry = LinuxEntry {
            tag: little_endian::U16::new(tag),
            permissions: little_endian::U16::new(entry.permissions),
            id: little_endian::U32::new(id),
        };
        bytes.extend_from_slice(entry.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        for (tag, id, permissions) in [(1u32, 9u32, 7u16), (2, 1000, 5), (0x20, 9, 4)] {
            bytes.extend(tag.to_be_bytes());
            bytes.extend(id.to_be_bytes());
            bytes.extend(permissions.to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes
    }

    #[test]
    fn the_linux_form_has_no_ids_where_none_are_due() {
        let acl = parse(&sample(), true).unwrap();
        assert_eq!(acl[1], AclEntry { tag: AclTag::User(1000), permissions: 5 });
        let linux = to_linux(&acl);
        assert_eq!(linux[..4], [2, 0, 0, 0]);
        assert_eq!(linux[4..12], [1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(linux[12..20], [2, 0, 5, 0, 0xe8, 3, 0, 0]);
        assert_eq!(linux[20..], [0x20, 0, 4, 0, 255, 255, 255, 255]);
    }

    #[test]
    fn lies_are_found() {
        let bytes = sample();
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len], true).is_err(), "length {len}");
        }
        let mut wrong_tag = bytes.clone();
        wrong_tag[7] = 3;
        assert_eq!(parse(&wrong_tag, true).unwrap_err().check, "tag");
        let mut many = 26u32.to_be_bytes().to_vec();
        many.extend([0; 26 * 12]);
        assert_eq!(parse(&many, false).unwrap_err().check, "entry count");
        assert_eq!(parse(&many, true).unwrap_err().check, "tag");
        assert_eq!(ENTRIES_MAX_V5, 5461);
    }
}
