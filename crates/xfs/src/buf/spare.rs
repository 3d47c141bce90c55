//! Reuses the memory of old buffer versions for new ones.
//!
//! A commit replaces a buffer's bytes by a changed copy. The replaced version has the size of the next copy, and mostly
//! nobody else uses it. So each thread keeps a few, which saves calls of the allocator.

use std::cell::RefCell;
use std::sync::Arc;

/// How many versions a thread keeps, and the maximum size of each.
const MOST: usize = 16;
const BYTES_MAX: usize = 16 << 10;
/// Maximum length of the zeroes that it keeps.
const ZEROES_MAX: usize = 64 << 10;

thread_local! {
    static SPARES: RefCell<Vec<Arc<[u8]>>> = const { RefCell::new(Vec::new()) };
    /// The zeroes that were used last.
    static ZEROES: RefCell<Arc<[u8]>> = RefCell::new(new_zeroes(0));
}

/// A private copy.
pub(crate) fn copy_of(bytes: &[u8]) -> Arc<[u8]> {
    let spare = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        let place = spares.iter().rposition(|spare| spare.len() == bytes.len())?;
        Some(spares.swap_remove(place))
    });
    if let Ok(Some(mut spare)) = spare
        && let Some(room) = Arc::get_mut(&mut spare)
    {
        room.copy_from_slice(bytes);
        return spare;
    }
    Arc::from(bytes)
}

/// Zeroes, perhaps shared.
pub(crate) fn zeroes(len: usize) -> Arc<[u8]> {
    if len > ZEROES_MAX {
        return new_zeroes(len);
    }
    let known = ZEROES.try_with(|known| {
        let mut known = known.borrow_mut();
        if known.len() != len {
            *known = new_zeroes(len);
        }
        Arc::clone(&known)
    });
    known.unwrap_or_else(|_| new_zeroes(len))
}

/// Zeroes that nobody else has.
pub(crate) fn new_zeroes(len: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, len).collect()
}

/// Keeps the memory of a replaced version, unless somebody still uses it.
pub(crate) fn keep(mut old: Arc<[u8]>) {
    if old.len() > BYTES_MAX || Arc::get_mut(&mut old).is_none() {
        return;
    }
    // During thread teardown it is simply freed.
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < MOST {
            spares.push(old);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_become_new_ones_unless_somebody_looks() {
        let (first, second) = (copy_of(&[1; 512]), copy_of(&[2; 512]));
        let looked_at = Arc::clone(&second);
        let place = first.as_ptr();
        keep(first);
        keep(second);
        let third = copy_of(&[3; 512]);
        assert_eq!((third.as_ptr(), third[511]), (place, 3));
        assert_eq!(*looked_at, [2; 512], "who looks sees what was there");
        assert_ne!(copy_of(&[4; 512]).as_ptr(), looked_at.as_ptr());
        keep(third);
        assert_eq!(copy_of(&[5; 1024]).len(), 1024);
    }
}
