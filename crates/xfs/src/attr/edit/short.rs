//! Attributes inside the inode. There are few, so each change rewrites all of them.

use super::{EditError, NewAttr, SetXattr, check_how, convert};
use crate::attr::Key;
use crate::error::{Error, Result};
use crate::fork::ForkMut;
use xfs_format::attr::{SHORT_ATTRS, ShortAttr, ShortAttrs, encode_short};
use xfs_format::error::FormatError;

/// Sets an attribute of a fork that is in the inode or empty. Converts it to a tree if it does not fit.
pub(super) fn set(fork: &mut dyn ForkMut, attr: &NewAttr<'_>, how: SetXattr) -> Result<(), EditError> {
    let local = fork.local().map(<[u8]>::to_vec);
    let mut attrs = parse(fork, local.as_deref())?;
    let existed = take_out(fork, &mut attrs, &attr.key())?;
    check_how(how, existed)?;
    let kept = attrs.len();
    let new = ShortAttr { flags: attr.namespace.flags(), name: attr.name, value: attr.value };
    attrs.push(new);
    let short = if new.is_short() { encode_short(attrs.iter().copied()) } else { None };
    match short.filter(|bytes| bytes.len() <= fork.local_capacity()) {
        Some(bytes) => Ok(fork.set_local(&bytes)?),
        None => {
            convert::to_tree(fork, attrs.get(..kept).unwrap_or_default())?;
            super::tree::set(fork, attr, SetXattr::Create)
        }
    }
}

/// Removes an attribute of a fork that is in the inode or empty.
pub(super) fn remove(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    let local = fork.local().map(<[u8]>::to_vec);
    let mut attrs = parse(fork, local.as_deref())?;
    if !take_out(fork, &mut attrs, key)? {
        return Err(EditError::Missing);
    }
    // Fewer attributes than before always fit.
    let bytes = encode_short(attrs.iter().copied()).unwrap_or_default();
    fork.set_local(&bytes)?;
    if attrs.is_empty() {
        fork.remove_fork()?;
    }
    Ok(())
}

/// The attributes of a fork in the inode. There they cannot be incomplete or have remote values.
fn parse<'a>(fork: &dyn ForkMut, local: Option<&'a [u8]>) -> Result<Vec<ShortAttr<'a>>> {
    let Some(local) = local else { return Ok(Vec::new()) };
    let corrupt = |problem| Error::corrupt_inode(fork.inode(), problem);
    let checked = |attr: ShortAttr<'a>| attr.check_flags().map(|()| attr);
    let attrs = ShortAttrs::parse(local).map_err(corrupt)?.entries();
    attrs.map(|attr| attr.and_then(checked).map_err(corrupt)).collect()
}

/// Removes an attribute, if it exists. A second one with the same key is corruption.
fn take_out(fork: &dyn ForkMut, attrs: &mut Vec<ShortAttr<'_>>, key: &Key<'_>) -> Result<bool> {
    let before = attrs.len();
    attrs.retain(|attr| !key.is(attr.flags, attr.name, Some(attr.value)));
    if before - attrs.len() > 1 {
        return Err(Error::corrupt_inode(
            fork.inode(),
            FormatError::new(SHORT_ATTRS, "name that comes twice"),
        ));
    }
    Ok(before > attrs.len())
}
