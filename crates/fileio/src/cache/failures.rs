//! Write-back failures without a caller to return them to: everybody who has the file open is told once, at their next
//! sync.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::parking::Mutex;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Why something could not be written back.
#[derive(Clone)]
pub struct Failure(Arc<dyn Error + Send + Sync>);

impl Failure {
    pub(super) fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// The reason was not recorded.
    pub(super) fn unknown() -> Self {
        Self::new(std::io::Error::other("it is not known why"))
    }

    /// The error, of the type with which the file's operations fail.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writing back what was written before: {}", self.0)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// The last failure that somebody was told of.
#[derive(Debug, Default)]
pub struct SyncCursor(AtomicU64);

/// The failures of one file, or of all.
///
/// The first unreported one gives the reason: it may have shut the volume down, and then the others only say that.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: AtomicU64,
    last: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    failure: Option<Failure>,
    was_told: bool,
}

impl Failures {
    pub(super) fn note(&self, failure: Failure) {
        let mut last = self.last.lock();
        if last.was_told || last.failure.is_none() {
            *last = Noted { failure: Some(failure), was_told: false };
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    /// The last failure, or the first of the last ones that nobody was told of.
    pub(super) fn last(&self) -> Option<Failure> {
        self.last.lock().failure.clone()
    }

    /// A cursor for somebody who begins now.
    pub(super) fn cursor(&self) -> SyncCursor {
        SyncCursor(AtomicU64::new(self.count.load(Ordering::Acquire)))
    }

    /// Like [`last`](Self::last), if there was one since the cursor was last used.
    pub(super) fn tell(&self, cursor: &SyncCursor) -> Option<Failure> {
        let count = self.count.load(Ordering::Acquire);
        if cursor.0.swap(count, Ordering::AcqRel) == count {
            return None;
        }
        let mut last = self.last.lock();
        last.was_told = true;
        last.failure.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once() {
        let failures = Failures::default();
        let (one, other) = (failures.cursor(), failures.cursor());
        assert!(failures.tell(&one).is_none());
        failures.note(Failure::new(std::io::Error::other("no disk")));
        let late = failures.cursor();
        assert!(failures.tell(&one).is_some() && failures.tell(&other).is_some());
        assert!(failures.tell(&one).is_none() && failures.tell(&other).is_none());
        assert!(failures.tell(&late).is_none());
        assert!(failures.last().is_some_and(|last| last.to_string().contains("no disk")));
    }

    /// Regression: after a failure that shut the volume down, a sync was only told that it was shut down.
    #[test]
    fn the_first_that_nobody_was_told_of_says_why() {
        let failures = Failures::default();
        let cursor = failures.cursor();
        let note = |what: &str| failures.note(Failure::new(std::io::Error::other(what.to_owned())));
        let told = || failures.tell(&cursor).map(|failure| failure.error().to_string());
        note("no disk");
        note("shut down");
        assert_eq!(told().as_deref(), Some("no disk"));
        note("shut down");
        assert_eq!((told().as_deref(), told()), (Some("shut down"), None));
    }
}
