//! Carrying out an attribute intent from the log, whatever state the crash left the attribute in.
//!
//! A kernel changes an attribute in several transactions, and marks it as incomplete while its value is being written
//! or removed. A crash may come at any point: what is to be removed may be there, complete or not, or be gone; what is
//! to be set may be there already, complete or not.

use super::{EditError, NewAttr, SetXattr, check_volume, put, take};
use crate::attr::{Key, Namespace};
use crate::fork::ForkMut;
use xfs_format::log::{AttrChange, AttrOp};

/// Removes what the intent removes or replaces, and what is left of an earlier attempt to set the new value.
pub(crate) fn take_old(fork: &mut dyn ForkMut, change: &AttrChange<'_>) -> Result<(), EditError> {
    check_volume(fork)?;
    let namespace = Namespace::of(change.filter);
    take_all(fork, &Key { namespace, name: change.name, value: change.value, half_set: true })?;
    match change.op {
        AttrOp::ParentReplace => {
            let (name, value) = (change.new_name, change.new_value);
            take_all(fork, &Key { namespace, name, value, half_set: true })
        }
        _ => Ok(()),
    }
}

/// Sets what the intent sets, after [`take_old`].
pub(crate) fn put_new(fork: &mut dyn ForkMut, change: &AttrChange<'_>) -> Result<(), EditError> {
    let Some((name, value)) = new(change) else { return Ok(()) };
    check_volume(fork)?;
    put(fork, &NewAttr { namespace: Namespace::of(change.filter), name, value }, SetXattr::Create)
}

/// The name and value that the intent sets.
pub(crate) fn new<'a>(change: &AttrChange<'a>) -> Option<(&'a [u8], &'a [u8])> {
    match change.op {
        AttrOp::Set | AttrOp::Replace | AttrOp::ParentSet => Some((change.name, change.value)),
        AttrOp::ParentReplace => Some((change.new_name, change.new_value)),
        AttrOp::Remove | AttrOp::ParentRemove => None,
    }
}

/// Removes an attribute, and what is left of it if it was set or removed only in part.
fn take_all(fork: &mut dyn ForkMut, key: &Key<'_>) -> Result<(), EditError> {
    loop {
        match take(fork, key) {
            Ok(()) => {}
            Err(EditError::Missing) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
