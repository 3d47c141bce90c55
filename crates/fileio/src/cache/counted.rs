//! The locks of the page cache, which are counted like all others.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::parking;
use lockstat::{Counted, LockClass, Mode};

/// The folios of all files, in eviction order.
pub(super) static CLOCK: LockClass = LockClass::new("page clock");
/// The files that wait for write-back.
pub(super) static LINE: LockClass = LockClass::new("write-back line");
/// The folios of a file.
pub(super) static FOLIOS: LockClass = LockClass::new("file folios");
/// Extending a file.
pub(super) static ENDS: LockClass = LockClass::new("file end");
/// Where a file ends on the device.
pub(super) static TELLING: LockClass = LockClass::new("file end on device");
/// Whether a file is cached.
pub(super) static PASSERS: LockClass = LockClass::new("file caching");

/// A lock of a class.
#[derive(Debug)]
pub(super) struct Mutex<T> {
    class: &'static LockClass,
    inner: parking::Mutex<T>,
}

/// The held lock with the value that it protects.
#[derive(Debug)]
pub(super) struct Guard<'a, T>(Counted<parking::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(super) fn new(class: &'static LockClass, value: T) -> Self {
        Self { class, inner: parking::Mutex::new(value) }
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard(self.class.lock(Mode::Exclusive, || self.inner.try_lock(), || self.inner.lock()))
    }
}

impl<'a, T> Guard<'a, T> {
    /// Releases it until `changed` is notified, or for some time. Afterwards it is not counted as held.
    pub(super) fn wait_for(self, changed: &parking::Condvar, time: Duration) -> parking::MutexGuard<'a, T> {
        let mut guard = self.0.into_uncounted();
        changed.wait_for(&mut guard, time);
        guard
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
