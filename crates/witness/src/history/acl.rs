//! POSIX access control lists: what a new object inherits from its directory, and the effect of a change of mode.
//!
//! Invariant: a list is complete, in the order that Linux wants (owner, users by number, group, groups by number,
//! mask, others), with a mask if it names a user or a group.

use serde::{Deserialize, Serialize};

/// Whom an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A user by number.
    User(u32),
    /// The group.
    GroupObj,
    /// A group by number.
    Group(u32),
    /// The most that users, the group and groups get.
    Mask,
    /// Everyone else.
    Other,
}

/// A list: whom, and three bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl(pub Vec<(Tag, u16)>);

const VERSION: u32 = 2;
/// The number in entries that name nobody.
const NOBODY: u32 = u32::MAX;

impl Acl {
    /// The value of `system.posix_acl_…`.
    pub fn to_linux(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for &(tag, perm) in &self.0 {
            let (tag, id) = match tag {
                Tag::UserObj => (0x01u16, NOBODY),
                Tag::User(id) => (0x02, id),
                Tag::GroupObj => (0x04, NOBODY),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, NOBODY),
                Tag::Other => (0x20, NOBODY),
            };
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// Whether the three classes of a mode say all of it, so that there is nothing to store.
    pub fn is_minimal(&self) -> bool {
        self.0.iter().all(|(tag, _)| matches!(tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
    }

    /// The nine bits of a mode that agree with the list.
    pub fn mode(&self) -> u16 {
        let mut list = self.clone();
        let mut bits = 0;
        for (perm, shift) in list.classes() {
            bits |= *perm << shift;
        }
        bits
    }

    /// The entries that the mode's bits stand for, with their place in it.
    fn classes(&mut self) -> Vec<(&mut u16, u32)> {
        let group = if self.0.iter().any(|(tag, _)| *tag == Tag::Mask) { Tag::Mask } else { Tag::GroupObj };
        let entries = self.0.iter_mut();
        entries
            .filter_map(|(tag, perm)| match tag {
                Tag::UserObj => Some((perm, 6)),
                Tag::Other => Some((perm, 0)),
                tag if *tag == group => Some((perm, 3)),
                _ => None,
            })
            .collect()
    }

    /// The list after `chmod`.
    pub fn set_mode(&mut self, mode: u16) {
        for (perm, shift) in self.classes() {
            *perm = (mode >> shift) & 7;
        }
    }

    /// What an object made with `mode` in a directory with this default list gets: its mode, and its list unless
    /// the mode says it all.
    pub fn inherit(&self, mode: u16) -> (u16, Option<Self>) {
        let mut list = self.clone();
        for (perm, shift) in list.classes() {
            *perm &= (mode >> shift) & 7;
        }
        let mode = (mode & !0o777) | list.mode();
        (mode, (!list.is_minimal()).then_some(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Acl {
        Acl(vec![(Tag::UserObj, 7), (Tag::User(5), 6), (Tag::GroupObj, 5), (Tag::Mask, 6), (Tag::Other, 1)])
    }

    #[test]
    fn the_mask_stands_for_the_group() {
        let (mode, list) = sample().inherit(0o2644);
        assert_eq!(mode, 0o2640);
        let list = list.unwrap();
        assert_eq!(list.0[0], (Tag::UserObj, 6));
        assert_eq!(list.0[2], (Tag::GroupObj, 5));
        assert_eq!(list.0[3], (Tag::Mask, 4));
        assert_eq!(list.0[4], (Tag::Other, 0));
        assert_eq!(sample().mode(), 0o761);
        let mut changed = sample();
        changed.set_mode(0o123);
        assert_eq!(changed.mode(), 0o123);
        assert_eq!(changed.0[2], (Tag::GroupObj, 5));
    }

    #[test]
    fn a_minimal_list_is_only_a_mode() {
        let list = Acl(vec![(Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 1)]);
        assert_eq!(list.inherit(0o777), (0o751, None));
        assert!(list.is_minimal() && !sample().is_minimal());
        assert_eq!(list.to_linux().len(), 4 + 3 * 8);
    }
}
