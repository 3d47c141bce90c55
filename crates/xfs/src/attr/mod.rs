//! Extended attributes in every form: short, leaf, node, with remote values; and symlink targets in blocks.

use crate::error::Result;
use crate::fork::Fork;
use std::ops::ControlFlow;

/// The space of names that an attribute is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// `user.`
    User,
    /// `trusted.`
    Root,
    /// `security.`
    Secure,
    /// A parent pointer: not shown to users.
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
}

/// Calls `each` for every attribute that is complete (not one being replaced), until it breaks.
pub fn walk(fork: &dyn Fork, each: &mut dyn FnMut(AttrEntry<'_>) -> ControlFlow<()>) -> Result<()> {
    let _ = (fork, each);
    unimplemented!()
}

/// The value of one attribute, found by its hash.
pub fn get(fork: &dyn Fork, namespace: Namespace, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let _ = (fork, namespace, name);
    unimplemented!()
}
