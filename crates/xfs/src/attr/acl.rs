//! ACLs and permission bits. As on Linux, each follows the other.
//!
//! An ACL is not stored if the permission bits can express it. If one is stored, the bits of the owner and of others
//! are its entries for them, and the bits of the group are its mask.
//!
//! Permission bits are the lower nine of a mode. Everything above them stays as it is.

use super::edit::{EditError, SetXattr, remove, set};
use super::{Namespace, get};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::acl::{ACCESS_NAME, AclEntry, AclTag, DEFAULT_NAME, encode, parse};
use xfs_format::error::FormatError;

/// Which of an inode's ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The one that controls access to the inode.
    Access,
    /// The one that new children of a directory inherit.
    Default,
}

/// What a new inode inherits from its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Its mode.
    pub mode: u16,
    /// Its ACL. `None` if the mode says everything.
    pub access: Option<Vec<AclEntry>>,
    /// Its default ACL, if it is a directory.
    pub default: Option<Vec<AclEntry>>,
}

impl AclKind {
    /// The name of its attribute in the trusted namespace.
    pub const fn attr_name(self) -> &'static [u8] {
        match self {
            Self::Access => ACCESS_NAME,
            Self::Default => DEFAULT_NAME,
        }
    }
}

/// The ACL of an inode, from its attribute fork.
pub fn read(fork: &dyn Fork, kind: AclKind) -> Result<Option<Vec<AclEntry>>> {
    let Some(value) = get(fork, Namespace::Root, kind.attr_name())? else { return Ok(None) };
    let acl = parse(&value, fork.geometry().v5);
    acl.map(Some).map_err(|problem| Error::corrupt_inode(fork.inode(), problem))
}

/// Sets or removes an ACL of an inode. [`equivalent_mode`] gives the new mode.
pub fn write(fork: &mut dyn ForkMut, kind: AclKind, acl: Option<&[AclEntry]>) -> Result<(), EditError> {
    match acl {
        None => match remove(fork, Namespace::Root, kind.attr_name()) {
            Err(EditError::Missing) => Ok(()),
            result => result,
        },
        Some(acl) => {
            let value = encode(acl, true).ok_or(EditError::ValueTooLong(acl.len().saturating_mul(12)))?;
            set(fork, Namespace::Root, kind.attr_name(), &value, SetXattr::Either)
        }
    }
}

/// The mode of an inode with mode `mode` that gets this access ACL, and whether the mode alone [is
/// equivalent](is_equivalent).
pub fn equivalent_mode(acl: &[AclEntry], mode: u16) -> (u16, bool) {
    let of = |tag| find(acl, tag).map_or(0, |entry| entry.permissions & 7);
    let mask = find(acl, AclTag::Mask).map(|entry| entry.permissions & 7);
    let group = mask.unwrap_or_else(|| of(AclTag::GroupObj));
    let bits = of(AclTag::UserObj) << 6 | group << 3 | of(AclTag::Other);
    (mode & !0o777 | bits, is_equivalent(acl))
}

/// Whether a mode alone is equivalent to this access ACL, so that the ACL need not be stored.
pub fn is_equivalent(acl: &[AclEntry]) -> bool {
    !acl.iter().any(|entry| entry.tag == AclTag::Mask || is_named(entry.tag))
}

/// What a new inode inherits that is made with `mode` in a directory with this default ACL. With one, the umask is
/// ignored, and every class gets at most what `mode` asks for. Without one, the umask applies as usual. A symbolic link
/// inherits nothing and keeps its mode.
pub fn inherit(default: Option<&[AclEntry]>, mode: u16, umask: u16) -> Result<Inherited> {
    const KIND: u16 = 0o170_000;
    const LINK: u16 = 0o120_000;
    const DIRECTORY: u16 = 0o040_000;
    let plain = |mode| Ok(Inherited { mode, access: None, default: None });
    if mode & KIND == LINK {
        return plain(mode);
    }
    let Some(default) = default else { return plain(mode & !(umask & 0o777)) };
    let mut access = default.to_vec();
    limit(&mut access, |entry, class| entry & class, mode)?;
    let (mode, equivalent) = equivalent_mode(&access, mode);
    Ok(Inherited {
        mode,
        access: (!equivalent).then_some(access),
        default: (mode & KIND == DIRECTORY).then(|| default.to_vec()),
    })
}

/// Updates an access ACL after a change of the mode. [`equivalent_mode`] says whether it still needs to be stored.
pub fn follow_mode(acl: &mut [AclEntry], mode: u16) -> Result<()> {
    limit(acl, |_, class| class, mode)
}

/// Sets the entries of the three classes from their old permissions and the mode's bits for their class. If there is a
/// mask, it is the entry of the group class.
fn limit(acl: &mut [AclEntry], becomes: impl Fn(u16, u16) -> u16, mode: u16) -> Result<()> {
    let group = if find(acl, AclTag::Mask).is_some() { AclTag::Mask } else { AclTag::GroupObj };
    for (tag, shift) in [(AclTag::UserObj, 6), (group, 3), (AclTag::Other, 0)] {
        let entry = acl.iter_mut().find(|entry| entry.tag == tag);
        // An ACL that lacks one can only come from disk.
        let entry = entry.ok_or(Error::Corrupt {
            daddr: None,
            inode: None,
            problem: FormatError::new("ACL", "owner, group and others"),
        })?;
        entry.permissions = becomes(entry.permissions, mode >> shift & 7);
    }
    Ok(())
}

fn find(acl: &[AclEntry], tag: AclTag) -> Option<&AclEntry> {
    acl.iter().find(|entry| entry.tag == tag)
}

const fn is_named(tag: AclTag) -> bool {
    matches!(tag, AclTag::User(_) | AclTag::Group(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use AclTag::{Group, GroupObj, Mask, Other, User, UserObj};

    fn acl(entries: &[(AclTag, u16)]) -> Vec<AclEntry> {
        entries.iter().map(|&(tag, permissions)| AclEntry { tag, permissions }).collect()
    }

    #[test]
    fn modes_say_what_acls_of_three_entries_say() {
        let three = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 1)]);
        assert_eq!(equivalent_mode(&three, 0o104_600), (0o104_751, true));
        let masked = acl(&[(UserObj, 7), (GroupObj, 5), (Mask, 4), (Other, 1)]);
        assert_eq!(equivalent_mode(&masked, 0), (0o741, false));
        let named = acl(&[(UserObj, 6), (User(1), 7), (GroupObj, 5), (Group(1), 1), (Mask, 7), (Other, 0)]);
        assert_eq!(equivalent_mode(&named, 0), (0o670, false));
    }

    #[test]
    fn without_a_default_acl_the_umask_counts() {
        let none = inherit(None, 0o100_666, 0o022).unwrap();
        assert_eq!(none, Inherited { mode: 0o100_644, access: None, default: None });
        assert_eq!(inherit(None, 0o042_777, 0o7027).unwrap().mode, 0o042_750);
        let link = inherit(Some(&[]), 0o120_777, 0o022).unwrap();
        assert_eq!(link, Inherited { mode: 0o120_777, access: None, default: None });
    }

    #[test]
    fn a_default_acl_is_limited_by_the_mode() {
        let default = acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 7), (Mask, 7), (Other, 5)]);
        let file = inherit(Some(&default), 0o100_640, 0o777).unwrap();
        assert_eq!(file.mode, 0o100_640);
        let expected = acl(&[(UserObj, 6), (User(5), 6), (GroupObj, 7), (Mask, 4), (Other, 0)]);
        assert_eq!(file.access, Some(expected));
        assert_eq!(file.default, None);
        let dir = inherit(Some(&default), 0o042_777, 0o777).unwrap();
        assert_eq!(
            (dir.mode, dir.access.as_ref(), dir.default.as_ref()),
            (0o042_775, Some(&default), Some(&default))
        );
        let small = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 0)]);
        let file = inherit(Some(&small), 0o100_666, 0o022).unwrap();
        assert_eq!((file.mode, file.access), (0o100_640, None));
    }

    #[test]
    fn a_new_mode_moves_the_mask() {
        let mut masked = acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 5), (Mask, 7), (Other, 5)]);
        follow_mode(&mut masked, 0o100_421).unwrap();
        assert_eq!(masked, acl(&[(UserObj, 4), (User(5), 6), (GroupObj, 5), (Mask, 2), (Other, 1)]));
        let mut small = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 5)]);
        follow_mode(&mut small, 0o630).unwrap();
        assert_eq!(small, acl(&[(UserObj, 6), (GroupObj, 3), (Other, 0)]));
    }

    #[test]
    fn an_acl_that_lacks_a_class_is_damage() {
        assert!(follow_mode(&mut acl(&[(UserObj, 7), (Other, 5)]), 0o777).is_err());
        assert!(inherit(Some(&acl(&[(UserObj, 7), (GroupObj, 5)])), 0o100_777, 0).is_err());
    }
}
