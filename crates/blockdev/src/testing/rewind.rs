//! A device that goes back to what it held before.
//!
//! Many images that differ little are made on one device, one after the other: each is tried, and then taken back.
//! Invariants: what the device below holds is always the newest state, so that other programs can be shown it; going
//! back restores exactly the bytes that were written since the mark, whoever wrote them through this device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BlockDevice, DeviceError, Durability, Layer};

/// Bytes that are kept and restored together.
const PAGE: u64 = 4096;

/// What pages held when they were first written after a mark.
type Pages = HashMap<u64, Box<[u8]>>;

/// A device with marks to go back to.
#[derive(Debug)]
pub struct Rewind {
    inner: Arc<dyn BlockDevice>,
    marks: Mutex<Vec<Pages>>,
}

impl Rewind {
    /// What is written to `inner` from the first mark on can be taken back.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, marks: Mutex::default() }
    }

    /// Sets a mark.
    pub fn mark(&self) {
        self.marks().push(Pages::new());
    }

    /// Goes back to the newest mark, and removes it. Without a mark, nothing happens.
    pub fn rewind(&self) -> Result<(), DeviceError> {
        let mut marks = self.marks();
        for (page, bytes) in marks.pop().into_iter().flatten() {
            self.inner.write(page * PAGE, &bytes, Durability::Volatile)?;
        }
        Ok(())
    }

    fn marks(&self) -> MutexGuard<'_, Vec<Pages>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what pages hold that are about to be written.
    fn keep(&self, pages: &mut Pages, offset: u64, len: usize) -> Result<(), DeviceError> {
        for page in offset / PAGE..(offset + len as u64).div_ceil(PAGE) {
            if let std::collections::hash_map::Entry::Vacant(entry) = pages.entry(page) {
                let bytes = (self.inner.size() - page * PAGE).min(PAGE) as usize;
                let mut kept = vec![0; bytes].into_boxed_slice();
                self.inner.read(page * PAGE, &mut kept)?;
                entry.insert(kept);
            }
        }
        Ok(())
    }
}

impl Layer for Rewind {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let verb = crate::blocking::Verb::Write(durability);
        crate::blocking::check_push(&*self.inner, verb, offset, buf.len())?;
        let mut marks = self.marks();
        if let Some(pages) = marks.last_mut() {
            self.keep(pages, offset, buf.len())?;
        }
        // Under the lock, so that no page is kept half written.
        self.inner.write(offset, buf, durability)
    }
}
