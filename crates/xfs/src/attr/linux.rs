//! Attributes as Linux shows them: full names, ACLs as `system.posix_acl_*`, no parent pointers.
//!
//! This is the view of a privileged caller: the attributes that have ACLs appear under both names, the `system.` one
//! first.

use super::{Namespace, get as get_attr, walk};
use crate::error::{Error, Result};
use crate::fork::Fork;
use std::ops::ControlFlow;
use xfs_format::acl;

/// The full name of an access ACL.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The full name of a default ACL, which new children of a directory inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

const PREFIXES: [(Namespace, &[u8]); 3] =
    [(Namespace::User, b"user."), (Namespace::Root, b"trusted."), (Namespace::Secure, b"security.")];

/// The full names of all attributes, in the order of the fork.
pub fn list(fork: &dyn Fork) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    walk(fork, &mut |entry| {
        if let Some(acl) = acl_name(entry.namespace, entry.name) {
            names.push(acl.to_vec());
        }
        if let Some((_, prefix)) = PREFIXES.iter().find(|(namespace, _)| *namespace == entry.namespace) {
            names.push([prefix, entry.name].concat());
        }
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// The value of the attribute with this full name.
pub fn get(fork: &dyn Fork, full_name: &[u8]) -> Result<Option<Vec<u8>>> {
    let on_disk = match full_name {
        ACL_ACCESS => acl::ACCESS_NAME,
        ACL_DEFAULT => acl::DEFAULT_NAME,
        _ => return get_plain(fork, full_name),
    };
    let Some(value) = get_attr(fork, Namespace::Root, on_disk)? else {
        return Ok(None);
    };
    let entries = acl::parse(&value, fork.geometry().v5)
        .map_err(|problem| Error::corrupt_inode(fork.inode(), problem))?;
    Ok(Some(acl::to_linux(&entries)))
}

/// Namespace and short name of a full name. `None` if its prefix is unknown.
pub fn split(full_name: &[u8]) -> Option<(Namespace, &[u8])> {
    match full_name {
        ACL_ACCESS => Some((Namespace::Root, acl::ACCESS_NAME)),
        ACL_DEFAULT => Some((Namespace::Root, acl::DEFAULT_NAME)),
        _ => PREFIXES.iter().find_map(|(namespace, prefix)| {
            full_name.strip_prefix(*prefix).filter(|name| !name.is_empty()).map(|name| (*namespace, name))
        }),
    }
}

fn get_plain(fork: &dyn Fork, full_name: &[u8]) -> Result<Option<Vec<u8>>> {
    for (namespace, prefix) in PREFIXES {
        if let Some(name) = full_name.strip_prefix(prefix) {
            return get_attr(fork, namespace, name);
        }
    }
    Ok(None)
}

/// The name under which Linux shows an attribute that has an ACL.
fn acl_name(namespace: Namespace, name: &[u8]) -> Option<&'static [u8]> {
    match (namespace, name) {
        (Namespace::Root, acl::ACCESS_NAME) => Some(ACL_ACCESS),
        (Namespace::Root, acl::DEFAULT_NAME) => Some(ACL_DEFAULT),
        _ => None,
    }
}
