//! Protected inodes: immutable and append-only.
//!
//! The kernel checks this before each change, for root as well, and so do we: to change such an inode, clear its flag
//! first. The rules are those of the kernel's `may_create`, `may_delete`, `vfs_link` and `notify_change`.

use super::Inode;
use crate::error::{Error, Result};
use xfs_format::inode::InodeFlags;

/// How an inode is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing about it may change.
    Immutable,
    /// Bytes or names may be added; nothing else may change.
    AppendOnly,
}

impl Protection {
    /// Its name in error messages.
    const fn name(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::AppendOnly => "append-only",
        }
    }
}

impl Inode {
    /// The protection, if any. An immutable inode may have the other flag as well.
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

    /// Fails if it is protected in any way.
    pub fn check_unprotected(&self) -> Result<()> {
        self.protection().map_or(Ok(()), |how| Err(self.protected(how)))
    }

    /// Fails if nothing may be added.
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
