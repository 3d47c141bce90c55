//! Setting and removing attributes, in every form, growing and shrinking.
//!
//! Each call is one step of one transaction: a replacement takes the old value out and puts the new one in where
//! nobody can look between, so that no attribute is ever marked as incomplete. An error leaves the transaction fit
//! for nothing but to be dropped; [`EditError::Exists`], [`EditError::Missing`] and the two about lengths are found
//! before anything was changed.
//!
//! The form follows from the content: in the inode as long as all fits there, then one leaf, then a tree of them;
//! and back, when what is removed lets it. A fork whose last attribute goes is removed, but on volumes with parent pointers,
//! where the next one is to come.

mod convert;
mod leaf;
mod promised;
mod remote;
mod short;
mod tree;

pub(crate) use promised::{new, put_new, take_old};

use super::{Key, Namespace, ParentRecord};
use crate::error::Error;
use crate::fork::ForkMut;
use xfs_format::attr::{NAME_MAX, VALUE_MAX, is_local, is_valid_name, remote_payload_len};
use xfs_format::geometry::Geometry;
use xfs_format::types::FileBlock;

/// What is expected of an attribute that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It does not exist yet.
    Create,
    /// It exists.
    Replace,
    /// Either.
    Either,
}

/// Why an attribute was not set or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// It exists, and should not.
    #[error("the attribute exists")]
    Exists,
    /// There is no such attribute.
    #[error("no such attribute")]
    Missing,
    /// The name has no bytes, more than 255, or a NUL.
    #[error("not a name of an attribute: 1 to {NAME_MAX} bytes without NUL")]
    Name,
    /// The value is longer than an attribute's may be.
    #[error("a value of {0} bytes: an attribute has {VALUE_MAX} at most")]
    ValueTooLong(usize),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// How many blocks setting an attribute may map, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Blocks of the index, each mapped on its own, and logged.
    pub index_blocks: u32,
    /// Blocks of a value that lies outside the index, mapped together, and not logged.
    pub value_blocks: u32,
}

/// What setting an attribute needs, whatever the fork holds. (Removing maps nothing.)
///
/// The index grows by two leaves where a large attribute parts a full one in three, by a node a level, and by the
/// block that a root moves to.
pub fn set_needs(geometry: &Geometry, name_len: usize, value_len: usize) -> Needs {
    let index_blocks = 2 + u32::from(xfs_format::da::NODE_MAX_LEVEL) + 1;
    let value_blocks = if is_local(geometry.block_size as usize, name_len, value_len) {
        0
    } else {
        let room = remote_payload_len(geometry.block_size, geometry.v5).max(1);
        u32::try_from(value_len).unwrap_or(u32::MAX).div_ceil(room)
    };
    Needs { index_blocks, value_blocks }
}

/// An attribute to be set.
#[derive(Clone, Copy)]
struct NewAttr<'a> {
    namespace: Namespace,
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> NewAttr<'a> {
    /// What it is found by.
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
    how: Put,
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

/// Adds a parent pointer. It must not be there.
pub fn add_parent(fork: &mut dyn ForkMut, name: &[u8], parent: ParentRecord) -> Result<(), EditError> {
    check_volume(fork)?;
    if !is_valid_name(name) {
        return Err(EditError::Name);
    }
    let value = &parent.to_bytes();
    put(fork, &NewAttr { namespace: Namespace::Parent, name, value }, Put::Create)
}

/// Removes a parent pointer.
pub fn remove_parent(fork: &mut dyn ForkMut, name: &[u8], parent: ParentRecord) -> Result<(), EditError> {
    check_volume(fork)?;
    take(fork, &Key { namespace: Namespace::Parent, name, value: &parent.to_bytes(), half_set: false })
}

fn put(fork: &mut dyn ForkMut, attr: &NewAttr<'_>, how: Put) -> Result<(), EditError> {
    match form(fork)? {
        Form::Tree => tree::set(fork, attr, how),
        Form::Short => short::set(fork, attr, how),
    }
}

fn take(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    match form(fork)? {
        Form::Tree => tree::remove(fork, key),
        Form::Short => short::remove(fork, key),
    }
}

/// Puts an empty leaf in the root's place. Nobody looks for what was below it any more, and so its blocks can be freed
/// in any number of steps: only for an inode that is about to go.
pub fn clear_root(fork: &mut dyn ForkMut) -> crate::error::Result<()> {
    let root = FileBlock(super::index().root);
    if fork.next_mapped(root)? == Some(root) { leaf::create(fork, root, &[]) } else { Ok(()) }
}

/// Removes an attribute.
pub fn remove(fork: &mut dyn ForkMut, namespace: Namespace, name: &[u8]) -> Result<(), EditError> {
    check_volume(fork)?;
    check_namespace(namespace)?;
    take(fork, &Key { namespace, name, value: &[], half_set: false })
}

enum Form {
    /// In the inode, or nothing at all.
    Short,
    /// A leaf, or a tree of them.
    Tree,
}

fn form(fork: &dyn ForkMut) -> Result<Form, Error> {
    let empty = fork.local().is_some() || fork.next_mapped(FileBlock(0))?.is_none();
    Ok(if empty { Form::Short } else { Form::Tree })
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

/// Fails where `how` does not go with whether the attribute exists.
fn check_how(how: Put, exists: bool) -> Result<(), EditError> {
    match (how, exists) {
        (Put::Create, true) => Err(EditError::Exists),
        (Put::Replace, false) => Err(EditError::Missing),
        _ => Ok(()),
    }
}
