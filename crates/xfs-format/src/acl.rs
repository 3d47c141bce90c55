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
/// The most entries on v4.
pub const ENTRIES_MAX_V4: u32 = 25;
/// The most entries on v5: what fits in the largest value.
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

impl AclTag {
    /// Tag and ID as disk and Linux write them.
    const fn numbers(self) -> (u16, u32) {
        match self {
            Self::UserObj => (0x01, NO_ID),
            Self::User(id) => (0x02, id),
            Self::GroupObj => (0x04, NO_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NO_ID),
            Self::Other => (0x20, NO_ID),
        }
    }

    const fn from_numbers(tag: u32, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::UserObj,
            0x02 => Self::User(id),
            0x04 => Self::GroupObj,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }
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

/// An ACL as it is on disk; `None` if the volume cannot hold this many entries.
pub fn encode(entries: &[AclEntry], v5: bool) -> Option<Vec<u8>> {
    let most = if v5 { ENTRIES_MAX_V5 } else { ENTRIES_MAX_V4 };
    let count = u32::try_from(entries.len()).ok().filter(|count| *count <= most)?;
    let mut bytes = count.to_be_bytes().to_vec();
    for entry in entries {
        let (tag, id) = entry.tag.numbers();
        let entry = DiskEntry {
            tag: big_endian::U32::new(tag.into()),
            id: big_endian::U32::new(id),
            permissions: big_endian::U16::new(entry.permissions),
            pad: [0; 2],
        };
        bytes.extend_from_slice(entry.as_bytes());
    }
    Some(bytes)
}

impl DiskEntry {
    fn read(&self) -> Result<AclEntry, FormatError> {
        let id = self.id.get();
        let tag = AclTag::from_numbers(self.tag.get(), id).ok_or(FormatError::value(
            NAME,
            "tag",
            self.tag.get().into(),
        ))?;
        Ok(AclEntry { tag, permissions: self.permissions.get() })
    }
}

/// An ACL as the attributes `system.posix_acl_access` and `system.posix_acl_default` show it.
pub fn to_linux(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = LINUX_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, id) = entry.tag.numbers();
        let entry = LinuxEntry {
            tag: little_endian::U16::new(tag),
            permissions: little_endian::U16::new(entry.permissions),
            id: little_endian::U32::new(id),
        };
        bytes.extend_from_slice(entry.as_bytes());
    }
    bytes
}

/// Why the bytes of a `system.posix_acl_*` attribute are no ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// Not of version 2.
    #[error("an ACL of another version than 2")]
    Version,
    /// The bytes are no list of entries, or these are not what an ACL needs, in its order.
    #[error("not a valid ACL")]
    Invalid,
}

/// Reads and checks an ACL as users give it. No entries: the ACL is to be removed.
pub fn from_linux(bytes: &[u8]) -> Result<Vec<AclEntry>, AclError> {
    let (version, rest) = little_endian::U32::ref_from_prefix(bytes).map_err(|_| AclError::Invalid)?;
    if version.get() != LINUX_VERSION {
        return Err(AclError::Version);
    }
    let entries = <[LinuxEntry]>::ref_from_bytes(rest).map_err(|_| AclError::Invalid)?;
    let read = |entry: &LinuxEntry| {
        let tag = AclTag::from_numbers(entry.tag.get().into(), entry.id.get())?;
        Some(AclEntry { tag, permissions: entry.permissions.get() })
    };
    let entries: Option<Vec<_>> = entries.iter().map(read).collect();
    let entries = entries.ok_or(AclError::Invalid)?;
    if entries.is_empty() || is_valid(&entries) { Ok(entries) } else { Err(AclError::Invalid) }
}

/// Whether an ACL is complete and in order: owner, users, group, groups, mask, others. The mask is needed with named
/// users or groups, and one entry of each other unnamed kind always.
pub fn is_valid(entries: &[AclEntry]) -> bool {
    let rank = |entry: &AclEntry| match entry.tag {
        AclTag::UserObj => 0,
        AclTag::User(_) => 1,
        AclTag::GroupObj => 2,
        AclTag::Group(_) => 3,
        AclTag::Mask => 4,
        AclTag::Other => 5,
    };
    let count = |wanted: u8| entries.iter().filter(|entry| rank(entry) == wanted).count();
    let named = count(1) + count(3) > 0;
    entries.iter().all(|entry| entry.permissions <= 7 && !entry.tag.is_nobody())
        && entries.is_sorted_by_key(rank)
        && [0, 2, 5].into_iter().all(|kind| count(kind) == 1)
        && (count(4) == 1 || count(4) == 0 && !named)
}

impl AclTag {
    /// Whether it names a user or group that cannot exist.
    const fn is_nobody(self) -> bool {
        matches!(self, Self::User(NO_ID) | Self::Group(NO_ID))
    }
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
    fn both_forms_are_read_back() {
        let entry = |tag, permissions| AclEntry { tag, permissions };
        let acl = [
            entry(AclTag::UserObj, 7),
            entry(AclTag::User(1000), 5),
            entry(AclTag::User(7), 0),
            entry(AclTag::GroupObj, 4),
            entry(AclTag::Group(3), 6),
            entry(AclTag::Mask, 7),
            entry(AclTag::Other, 1),
        ];
        assert_eq!(from_linux(&to_linux(&acl)), Ok(acl.to_vec()));
        let disk = encode(&acl, true).unwrap();
        assert_eq!(disk.len(), 4 + 7 * 12);
        assert_eq!(disk[4..16], [0, 0, 0, 1, 255, 255, 255, 255, 0, 7, 0, 0]);
        assert_eq!(parse(&disk, true).unwrap(), acl);
        assert_eq!(from_linux(&[2, 0, 0, 0]), Ok(Vec::new()));
        let many = vec![acl[0]; 26];
        assert!(encode(&many, false).is_none() && encode(&many, true).is_some());
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        let entry = |tag, permissions| AclEntry { tag, permissions };
        let (user, group, other) =
            (entry(AclTag::UserObj, 7), entry(AclTag::GroupObj, 5), entry(AclTag::Other, 0));
        let (named, mask) = (entry(AclTag::User(5), 7), entry(AclTag::Mask, 7));
        assert!(is_valid(&[user, group, other]) && is_valid(&[user, group, mask, other]));
        assert!(is_valid(&[user, named, named, group, mask, other]));
        for wrong in [
            &[user, group][..],
            &[group, other],
            &[user, other],
            &[user, named, group, other],
            &[user, group, named, mask, other],
            &[user, user, group, other],
            &[user, group, other, mask],
            &[user, group, mask, mask, other],
            &[user, group, entry(AclTag::Other, 8)],
            &[user, entry(AclTag::User(u32::MAX), 7), group, mask, other],
        ] {
            assert!(!is_valid(wrong), "{wrong:?}");
            assert_eq!(from_linux(&to_linux(wrong)), Err(AclError::Invalid));
        }
        assert_eq!(from_linux(&[1, 0, 0, 0]), Err(AclError::Version));
        assert_eq!(from_linux(&[2, 0, 0]), Err(AclError::Invalid));
        assert_eq!(from_linux(&[2, 0, 0, 0, 1]), Err(AclError::Invalid));
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
