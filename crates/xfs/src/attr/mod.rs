//! Extended attributes in every form: short, leaf, node, with remote values.
//!
//! Invariants: incomplete attributes are not returned. Values have at most 64 KiB, and their length is checked before
//! anything is allocated. Every block belongs to the fork's inode.

pub mod acl;
pub mod edit;
pub mod linux;
mod remote;

pub use xfs_format::attr::ParentRecord;

use crate::da::{DaIndex, LeafBlock, check_owner, descend, next_leaf};
use crate::error::{Error, Result};
use crate::fork::Fork;
use std::ops::ControlFlow;
use xfs_format::attr::{AttrFlags, AttrLeaf, AttrValue, INDEX, LeafAttr, ShortAttrs, attr_hash};
use xfs_format::da::name_hash;
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

/// The namespace of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// `user.`
    User,
    /// `trusted.`
    Root,
    /// `security.`
    Secure,
    /// A parent pointer. Users do not see it.
    Parent,
}

/// One attribute, without its value.
#[derive(Clone, Copy, Debug)]
pub struct AttrEntry<'a> {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name without the namespace's prefix.
    pub name: &'a [u8],
    /// Length of the value in bytes.
    pub value_len: u32,
    /// The value, if it is stored beside the name.
    pub inline: Option<&'a [u8]>,
}

impl Namespace {
    fn of(flags: AttrFlags) -> Self {
        let namespace = flags.namespace();
        if namespace == AttrFlags::ROOT {
            Self::Root
        } else if namespace == AttrFlags::SECURE {
            Self::Secure
        } else if namespace == AttrFlags::PARENT {
            Self::Parent
        } else {
            Self::User
        }
    }

    fn flags(self) -> AttrFlags {
        match self {
            Self::User => AttrFlags::empty(),
            Self::Root => AttrFlags::ROOT,
            Self::Secure => AttrFlags::SECURE,
            Self::Parent => AttrFlags::PARENT,
        }
    }
}

/// The key of an attribute: its name, and for a parent pointer also its value, because several directories may have the
/// same name for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key<'a> {
    namespace: Namespace,
    name: &'a [u8],
    /// The value of a parent pointer.
    value: &'a [u8],
    /// Whether to include an incomplete attribute.
    half_set: bool,
}

impl Key<'_> {
    fn hash(&self) -> u32 {
        attr_hash(self.namespace.flags(), self.name, self.value)
    }

    /// Whether it matches an attribute. `value` is the value of a parent pointer, which is stored beside the name.
    fn is(&self, flags: AttrFlags, name: &[u8], value: Option<&[u8]>) -> bool {
        let value_counts = self.namespace == Namespace::Parent;
        (self.half_set || !flags.contains(AttrFlags::INCOMPLETE))
            && name == self.name
            && Namespace::of(flags) == self.namespace
            && (!value_counts || value == Some(self.value))
    }
}

/// All parent pointers of an inode in fork order: names, and the directories that have them.
pub fn parents(fork: &dyn Fork) -> Result<Vec<(Vec<u8>, ParentRecord)>> {
    let mut parents = Vec::new();
    let mut damage = None;
    walk(fork, &mut |entry| {
        if entry.namespace != Namespace::Parent {
            return ControlFlow::Continue(());
        }
        match entry.inline.and_then(ParentRecord::parse) {
            Some(record) => parents.push((entry.name.to_vec(), record)),
            None => {
                damage = Some(FormatError::value("parent pointer", "value length", entry.value_len.into()));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    damage.map_or(Ok(parents), |problem| Err(Error::corrupt_inode(fork.inode(), problem)))
}

/// Calls `each` for every complete attribute (not one that is being replaced), until it breaks.
pub fn walk(fork: &dyn Fork, each: &mut dyn FnMut(AttrEntry<'_>) -> ControlFlow<()>) -> Result<()> {
    if let Some(local) = fork.local() {
        return walk_short(fork, local, each);
    }
    let Some(mut at) = first_leaf(fork, None)? else {
        return Ok(());
    };
    let first = at.at;
    let mut last_hash = 0;
    loop {
        let leaf = parse_leaf(fork, &at)?;
        let corrupt = |problem| Error::corrupt_block(at.buf.daddr(), Some(fork.inode()), problem);
        for entry in leaf.entries {
            let hash = entry.hash.get();
            if hash < last_hash {
                let problem = FormatError::mismatch(INDEX.name, "hash order", hash.into(), last_hash.into());
                return Err(corrupt(problem));
            }
            last_hash = hash;
            let LeafAttr { flags, name, value } = leaf.attr(entry).map_err(corrupt)?;
            if flags.contains(AttrFlags::INCOMPLETE) {
                continue;
            }
            let inline = if let AttrValue::Inline(bytes) = value { Some(bytes) } else { None };
            let entry = AttrEntry { namespace: Namespace::of(flags), name, value_len: value.len(), inline };
            if each(entry).is_break() {
                return Ok(());
            }
        }
        match next_leaf(fork, &index(), first, &at, &leaf.header)? {
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
}

/// The value of one attribute, found by its hash. Parent pointers are not found by name, because several directories
/// may have the same name for an inode.
pub fn get(fork: &dyn Fork, namespace: Namespace, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if namespace == Namespace::Parent {
        return Ok(None);
    }
    if let Some(local) = fork.local() {
        return get_short(fork, local, namespace, name);
    }
    let hash = name_hash(name);
    let Some(mut at) = first_leaf(fork, Some(hash))? else {
        return Ok(None);
    };
    let first = at.at;
    loop {
        let leaf = parse_leaf(fork, &at)?;
        for entry in leaf.from_hash(hash) {
            if entry.hash.get() != hash {
                return Ok(None);
            }
            let attr = leaf
                .attr(entry)
                .map_err(|problem| Error::corrupt_block(at.buf.daddr(), Some(fork.inode()), problem))?;
            let complete = !attr.flags.contains(AttrFlags::INCOMPLETE);
            if complete && attr.name == name && Namespace::of(attr.flags) == namespace {
                return match attr.value {
                    AttrValue::Inline(value) => Ok(Some(value.to_vec())),
                    AttrValue::Remote { block, len } => remote::read(fork, block, len).map(Some),
                };
            }
        }
        if leaf.entries.last().is_none_or(|last| last.hash.get() != hash) {
            return Ok(None);
        }
        match next_leaf(fork, &index(), first, &at, &leaf.header)? {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
}

/// The index of an attribute fork. It begins at block 0, and pointers in it have 32 bits.
const fn index() -> DaIndex {
    DaIndex { root: 0, end: 1 << 32, blocks: 1, verifier: &INDEX }
}

/// The first leaf that may have `hash` (`None`: the first leaf). `None` if there is none, or no block at all.
fn first_leaf(fork: &dyn Fork, hash: Option<u32>) -> Result<Option<LeafBlock>> {
    if fork.next_mapped(FileBlock(0))?.is_none() {
        return Ok(None);
    }
    descend(fork, &index(), hash)
}

fn parse_leaf<'a>(fork: &dyn Fork, at: &'a LeafBlock) -> Result<AttrLeaf<'a>> {
    let leaf = AttrLeaf::parse(&at.buf, fork.geometry().v5)
        .map_err(|problem| Error::corrupt_block(at.buf.daddr(), Some(fork.inode()), problem))?;
    check_owner(fork, at.buf.daddr(), INDEX.name, leaf.header.owner)?;
    Ok(leaf)
}

fn walk_short(
    fork: &dyn Fork,
    local: &[u8],
    each: &mut dyn FnMut(AttrEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    for attr in ShortAttrs::parse(local).map_err(corrupt)?.entries() {
        let attr = attr.map_err(corrupt)?;
        if attr.flags.contains(AttrFlags::INCOMPLETE) {
            continue;
        }
        let value_len = attr.value.len() as u32; // its length on disk is one byte
        let (namespace, inline) = (Namespace::of(attr.flags), Some(attr.value));
        let entry = AttrEntry { namespace, name: attr.name, value_len, inline };
        if each(entry).is_break() {
            break;
        }
    }
    Ok(())
}

fn get_short(fork: &dyn Fork, local: &[u8], namespace: Namespace, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    for attr in ShortAttrs::parse(local).map_err(corrupt)?.entries() {
        let attr = attr.map_err(corrupt)?;
        let complete = !attr.flags.contains(AttrFlags::INCOMPLETE);
        if complete && attr.name == name && Namespace::of(attr.flags) == namespace {
            return Ok(Some(attr.value.to_vec()));
        }
    }
    Ok(None)
}
