//! Setting and removing attributes, in every form, growing and shrinking.
//!
//! Each call is one step of one transaction. A replacement removes the old value and adds the new one while nobody can
//! look, so no attribute is ever marked as incomplete. After an error the transaction can only be dropped.
//! [`EditError::Exists`], [`EditError::Missing`] and the two about lengths come before anything was changed.
//!
//! The form depends on the content: in the inode as long as everything fits there, then one leaf, then a tree; and back
//! when a removal makes it possible. A fork whose last attribute is removed is removed as well, except on volumes with
//! parent pointers, where the next one will come.

mod convert;
mod intent;
mod leaf;
mod remote;
mod short;
mod tree;

pub(crate) use intent::{new, put_new, take_old};

use super::{Key, Namespace, ParentRecord};
use crate::da::edit::Block;
use crate::error::Error;
use crate::fork::ForkMut;
use xfs_format::attr::{NAME_MAX, VALUE_MAX, is_local, is_valid_name, remote_payload_len};
use xfs_format::geometry::Geometry;
use xfs_format::types::FileBlock;

/// Whether an attribute may or must exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// It may.
    #[default]
    Either,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

/// Why an attribute was not set or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// It exists and must not.
    #[error("the attribute exists")]
    Exists,
    /// There is no such attribute.
    #[error("no such attribute")]
    Missing,
    /// The name is empty, longer than 255 bytes, or has a NUL.
    #[error("not a name of an attribute: 1 to {NAME_MAX} bytes without NUL")]
    Name,
    /// The value is too long for an attribute.
    #[error("a value of {0} bytes: an attribute has {VALUE_MAX} at most")]
    ValueTooLong(usize),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// Maximum number of blocks that setting an attribute maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReservation {
    /// Index blocks. Each is mapped separately, and logged.
    pub index_blocks: u32,
    /// Blocks of a remote value. They are mapped together, and not logged.
    pub value_blocks: u32,
}

/// What setting an attribute needs, whatever the fork has. (Removing maps nothing.)
///
/// The index grows by two leaves if a large attribute splits a full one into three, by one node per level, and by the
/// block that a root's content moves to.
pub fn set_needs(geometry: &Geometry, name_len: usize, value_len: usize) -> AttrReservation {
    let index_blocks = 2 + u32::from(xfs_format::da::NODE_MAX_LEVEL) + 1;
    let value_blocks = if is_local(geometry.block_size as usize, name_len, value_len) {
        0
    } else {
        let room = remote_payload_len(geometry.block_size, geometry.v5).max(1);
        u32::try_from(value_len).unwrap_or(u32::MAX).div_ceil(room)
    };
    AttrReservation { index_blocks, value_blocks }
}

/// An attribute to set.
#[derive(Clone, Copy)]
struct NewAttr<'a> {
    namespace: Namespace,
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> NewAttr<'a> {
    /// Its key.
    fn key(&self) -> Key<'a> {
        let Self { namespace, name, value } = *self;
        Key { namespace, name, value, half_set: false }
    }
}

/// Sets an attribute.
pub fn set(
    fork: &mut dyn ForkMut,
    namespace: Namespace,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<(), EditError> {
    check_volume(fork)?;
    check_namespace(namespace)?;
    if !is_valid_name(name) {
        return Err(EditError::Name);
    }
    if value.len() > VALUE_MAX as usize {
        return Err(EditError::ValueTooLong(value.len()));
    }
    put(fork, &NewAttr { namespace, name, value }, how)
}

/// Adds a parent pointer. It must not exist yet.
pub fn add_parent(fork: &mut dyn ForkMut, name: &[u8], parent: ParentRecord) -> Result<(), EditError> {
    check_volume(fork)?;
    if !is_valid_name(name) {
        return Err(EditError::Name);
    }
    let value = &parent.to_bytes();
    put(fork, &NewAttr { namespace: Namespace::Parent, name, value }, SetXattr::Create)
}

/// Removes a parent pointer.
pub fn remove_parent(fork: &mut dyn ForkMut, name: &[u8], parent: ParentRecord) -> Result<(), EditError> {
    check_volume(fork)?;
    take(fork, &Key { namespace: Namespace::Parent, name, value: &parent.to_bytes(), half_set: false })
}

fn put(fork: &mut dyn ForkMut, attr: &NewAttr<'_>, how: SetXattr) -> Result<(), EditError> {
    match form(fork)? {
        AttrForm::Tree => tree::set(fork, attr, how),
        AttrForm::Short => short::set(fork, attr, how),
    }
}

fn take(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    match form(fork)? {
        AttrForm::Tree => tree::remove(fork, key),
        AttrForm::Short => short::remove(fork, key),
    }
}

/// Replaces the root by an empty leaf. Nobody looks up what was below it any more, so its blocks can be freed in any
/// number of steps. Only for an inode that is about to be freed.
pub fn clear_root(fork: &mut dyn ForkMut) -> crate::error::Result<()> {
    let index = super::index();
    let root = FileBlock(index.root);
    if fork.next_mapped(root)? != Some(root) {
        return Ok(());
    }
    let root = Block::anew(fork, root, index.blocks, index.verifier)?;
    leaf::format(fork, root, &[])?.write(fork)
}

/// Removes an attribute.
pub fn remove(fork: &mut dyn ForkMut, namespace: Namespace, name: &[u8]) -> Result<(), EditError> {
    check_volume(fork)?;
    check_namespace(namespace)?;
    take(fork, &Key { namespace, name, value: &[], half_set: false })
}

enum AttrForm {
    /// In the inode, or empty.
    Short,
    /// One leaf, or a tree of them.
    Tree,
}

fn form(fork: &dyn ForkMut) -> Result<AttrForm, Error> {
    let empty = fork.local().is_some() || fork.next_mapped(FileBlock(0))?.is_none();
    Ok(if empty { AttrForm::Short } else { AttrForm::Tree })
}

fn check_volume(fork: &dyn ForkMut) -> Result<(), Error> {
    if fork.geometry().v5 { Ok(()) } else { Err(Error::ReadOnly("volumes of version 4 are not written")) }
}

fn check_namespace(namespace: Namespace) -> Result<(), Error> {
    if namespace == Namespace::Parent {
        return Err(Error::ReadOnly("parent pointers are not changed by name"));
    }
    Ok(())
}

/// Fails if `how` contradicts whether the attribute exists.
fn check_how(how: SetXattr, exists: bool) -> Result<(), EditError> {
    match (how, exists) {
        (SetXattr::Create, true) => Err(EditError::Exists),
        (SetXattr::Replace, false) => Err(EditError::Missing),
        _ => Ok(()),
    }
}
