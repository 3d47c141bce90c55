//! Waiting without blocking the thread.
//!
//! Invariants:
//! - a pending request stands in line, or has been granted, or is finished;
//! - dropping it takes it out of all lines or gives up what it was granted, and lets those behind it in;
//! - its waker is called when it has been granted.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::Mode;
use crate::claim::Claim;
use crate::guard::RangeGuard;
use crate::waiter::Waiter;

use super::enter::{Outcome, Wait};
use super::{RangeLock, RangeToken};

/// A request that waits for its turn without blocking a thread; dropping it cancels the request.
///
/// `R` is how it reaches the lock: `&RangeLock` or `Arc<RangeLock>`.
#[must_use = "the request is cancelled if it is not kept"]
pub struct Pending<R: Deref<Target = RangeLock>> {
    lock: R,
    claim: Claim,
    began: u64,
    /// None once it is finished.
    waiter: Option<Arc<Waiter>>,
}

impl RangeLock {
    /// Takes `range` in `mode`, or leaves a request in the queue that calls `waker` when
    /// [`Pending::try_finish`] is worth a try.
    ///
    /// ```
    /// use rangelock::{Mode, RangeLock};
    /// use std::task::Waker;
    ///
    /// let lock = RangeLock::new();
    /// let held = lock.acquire_or_notify(0..4096, Mode::Exclusive, Waker::noop()).expect("nobody is there");
    /// let Err(mut pending) = lock.acquire_or_notify(0..8192, Mode::Shared, Waker::noop()) else { unreachable!() };
    /// assert!(pending.try_finish().is_none());
    /// lock.release(held);
    /// let token = pending.try_finish().expect("its turn");
    /// lock.release(token);
    /// ```
    ///
    /// # Errors
    /// The request that now waits.
    #[inline]
    pub fn acquire_or_notify(
        &self,
        range: Range<u64>,
        mode: Mode,
        waker: &Waker,
    ) -> Result<RangeToken, Pending<&RangeLock>> {
        Self::start(self, Claim::new(range, mode), waker)
    }

    /// As [`acquire_or_notify`](Self::acquire_or_notify); a request that has to wait keeps the lock alive.
    ///
    /// # Errors
    /// The request that now waits.
    pub fn acquire_or_notify_owned(
        self: &Arc<Self>,
        range: Range<u64>,
        mode: Mode,
        waker: &Waker,
    ) -> Result<RangeToken, Pending<Arc<RangeLock>>> {
        let claim = Claim::new(range, mode);
        match self.try_at_once(&claim) {
            Some(token) => Ok(token),
            None => Self::start(self.clone(), claim, waker),
        }
    }

    /// A future that holds `range` in `mode` when it is ready.
    pub fn lock_async(&self, range: Range<u64>, mode: Mode) -> LockFuture<'_> {
        LockFuture { lock: self, state: State::New(Claim::new(range, mode)) }
    }

    /// Without asking at the gate.
    #[inline]
    fn try_at_once(&self, claim: &Claim) -> Option<RangeToken> {
        self.try_single(claim).or_else(|| {
            let entered = self.try_enter_buckets(&[*claim]);
            entered.then(|| RangeToken::loose(*claim, self.meter.acquired(claim.mode)))
        })
    }

    #[inline]
    fn start<R: Deref<Target = RangeLock>>(
        lock: R,
        claim: Claim,
        waker: &Waker,
    ) -> Result<RangeToken, Pending<R>> {
        if let Some(token) = lock.try_at_once(&claim) {
            return Ok(token);
        }
        let began = lock.meter.clock();
        match lock.enter_at_gate(&[claim], Wait::Task(waker)) {
            Outcome::Entered | Outcome::Refused => {
                let since = lock.meter.acquired(claim.mode);
                Ok(RangeToken::loose(claim, since))
            }
            Outcome::Waits(waiter) => Err(Pending { lock, claim, began, waiter: Some(waiter) }),
        }
    }
}

impl<R: Deref<Target = RangeLock>> Pending<R> {
    /// The token if its turn has come, or none as long as it has to wait.
    ///
    /// The waker that it was made with stays in place. After the token has been handed out there is
    /// nothing more to come: none for ever.
    pub fn try_finish(&mut self) -> Option<RangeToken> {
        let granted = self.waiter.as_ref()?.is_granted();
        granted.then(|| self.finish())
    }

    /// As [`try_finish`](Self::try_finish), and puts `waker` in place of the one that it has.
    pub fn poll_finish(&mut self, waker: &Waker) -> Option<RangeToken> {
        let granted = self.waiter.as_ref()?.watch(waker);
        granted.then(|| self.finish())
    }

    /// Whether it would finish now.
    #[cfg(test)]
    pub(super) fn is_granted(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| waiter.is_granted())
    }

    fn finish(&mut self) -> RangeToken {
        self.let_waiter_go();
        let since = self.lock.meter.acquired_after_wait(self.claim.mode, self.began);
        RangeToken::loose(self.claim, since)
    }

    /// Without its waker, as the lock may be the last to have it.
    fn let_waiter_go(&mut self) {
        drop(self.waiter.take().and_then(|waiter| waiter.take_waker()));
    }
}

impl<R: Deref<Target = RangeLock>> Drop for Pending<R> {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            self.lock.cancel(waiter);
            self.let_waiter_go();
        }
    }
}

impl<R: Deref<Target = RangeLock>> fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// Waits for a range; made by [`RangeLock::lock_async`]. Dropping it cancels the request.
#[derive(Debug)]
pub struct LockFuture<'a> {
    lock: &'a RangeLock,
    state: State<'a>,
}

#[derive(Debug)]
enum State<'a> {
    New(Claim),
    Waiting(Pending<&'a RangeLock>),
    Done,
}

impl<'a> Future for LockFuture<'a> {
    type Output = RangeGuard<'a, RangeLock>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.lock;
        let token = match &mut self.state {
            State::New(claim) => match RangeLock::start(lock, *claim, context.waker()) {
                Ok(token) => Some(token),
                Err(pending) => {
                    self.state = State::Waiting(pending);
                    None
                }
            },
            State::Waiting(pending) => pending.poll_finish(context.waker()),
            State::Done => panic!("polled after it was ready"),
        };
        match token {
            Some(token) => {
                self.state = State::Done;
                Poll::Ready(RangeGuard::new(lock, token))
            }
            None => Poll::Pending,
        }
    }
}
