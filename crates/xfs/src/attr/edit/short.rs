//! Attributes inside the inode: all of them are written anew with each change, as there are few.

use super::{EditError, NewAttr, Put, check_how, convert};
use crate::attr::Key;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::attr::{ShortAttr, ShortAttrs, encode_short};

/// Sets an attribute of a fork that is in the inode or empty; makes a tree of it if it does not fit there.
pub(super) fn set(fork: &mut dyn ForkMut, attr: &NewAttr<'_>, how: Put) -> Result<(), EditError> {
    let local = fork.local().map(<[u8]>::to_vec);
    let mut attrs = parse(fork, local.as_deref())?;
    let old = position(&attrs, &attr.key());
    check_how(how, old.is_some())?;
    if let Some(old) = old {
        attrs.remove(old);
    }
    let kept = attrs.len();
    let new = ShortAttr { flags: attr.namespace.flags(), name: attr.name, value: attr.value };
    attrs.push(new);
    let short = if new.is_short() { encode_short(attrs.iter().copied()) } else { None };
    match short.filter(|bytes| bytes.len() <= fork.local_capacity()) {
        Some(bytes) => Ok(fork.set_local(&bytes)?),
        None => {
            convert::to_tree(fork, attrs.get(..kept).unwrap_or_default())?;
            super::tree::set(fork, attr, Put::Create)
        }
    }
}

/// Removes an attribute of a fork that is in the inode or empty.
pub(super) fn remove(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    let local = fork.local().map(<[u8]>::to_vec);
    let mut attrs = parse(fork, local.as_deref())?;
    attrs.remove(position(&attrs, key).ok_or(EditError::Missing)?);
    // Fewer than there were always fit.
    let bytes = encode_short(attrs.iter().copied()).unwrap_or_default();
    fork.set_local(&bytes)?;
    if attrs.is_empty() {
        fork.remove_fork()?;
    }
    Ok(())
}

fn parse<'a>(fork: &dyn ForkMut, local: Option<&'a [u8]>) -> Result<Vec<ShortAttr<'a>>> {
    let Some(local) = local else { return Ok(Vec::new()) };
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    ShortAttrs::parse(local).map_err(corrupt)?.entries().map(|attr| attr.map_err(corrupt)).collect()
}

fn position(attrs: &[ShortAttr<'_>], key: &Key<'_>) -> Option<usize> {
    attrs.iter().position(|attr| key.is(attr.flags, attr.name, Some(attr.value)))
}
