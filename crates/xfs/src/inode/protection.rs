//! Inodes that are protected: immutable ones, and those that only grow.
//!
//! The kernel asks before each change, of root as well, and so do we: who wants to change such an inode takes the flag
//! off first. What is asked is what the kernel's `may_create`, `may_delete`, `vfs_link` and `notify_change` ask.

use super::Inode;
use crate::error::{Error, Result};
use xfs_format::inode::InodeFlags;

/// How an inode is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing about it may change.
    Immutable,
    /// Bytes or names may be added, and nothing else may change.
    AppendOnly,
}

impl Protection {
    /// How the words of an error name it.
    const fn name(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::AppendOnly => "append-only",
        }
    }
}

impl Inode {
    /// How it is protected, if it is. An immutable one may have the other flag, too.
    pub fn protection(&self) -> Option<Protection> {
        let flags = self.core().flags;
        if flags.contains(InodeFlags::IMMUTABLE) {
            Some(Protection::Immutable)
        } else if flags.contains(InodeFlags::APPEND) {
            Some(Protection::AppendOnly)
        } else {
            None
        }
    }

    /// Fails for any protection.
    pub fn check_unprotected(&self) -> Result<()> {
        self.protection().map_or(Ok(()), |how| Err(self.protected(how)))
    }

    /// Fails where nothing may be added.
    pub fn check_may_grow(&self) -> Result<()> {
        match self.protection() {
            Some(how @ Protection::Immutable) => Err(self.protected(how)),
            _ => Ok(()),
        }
    }

    fn protected(&self, how: Protection) -> Error {
        Error::Protected { inode: self.ino(), how: how.name() }
    }
}
