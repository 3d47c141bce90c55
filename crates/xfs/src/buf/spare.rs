//! Memory of old versions of buffers, for new ones.
//!
//! A commit replaces a buffer's bytes by a changed copy. What it replaced is as large as the next copy will be, and
//! mostly nobody else's: each thread keeps a few, and asks the allocator for none.

use std::cell::RefCell;
use std::sync::Arc;

/// How many a thread keeps, and how large each may be.
const MOST: usize = 16;
const BYTES_MAX: usize = 16 << 10;
/// How many zeroes it keeps.
const ZEROES_MAX: usize = 64 << 10;

thread_local! {
    static SPARES: RefCell<Vec<Arc<[u8]>>> = const { RefCell::new(Vec::new()) };
    /// Those that were asked for last.
    static ZEROES: RefCell<Arc<[u8]>> = RefCell::new(new_zeroes(0));
}

/// A copy that nobody else has.
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

/// Zeroes, which others may have, too.
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

fn new_zeroes(len: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, len).collect()
}

/// Takes in a version that is replaced, unless somebody still looks at it.
pub(crate) fn keep(mut old: Arc<[u8]>) {
    if old.len() > BYTES_MAX || Arc::get_mut(&mut old).is_none() {
        return;
    }
    // While a thread is being torn down it is just freed.
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
