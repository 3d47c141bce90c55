//! Waiting without blocking the thread.
//!
//! Invariants:
//! - a pending request holds its claims in every bucket below `at` and stands in the queue of bucket `at`,
//!   or has been granted there;
//! - dropping it takes it out of the queue or gives up what it was granted, and lets those behind it in;
//! - its waker is called when it can go on; that may not yet be the end of it, if the range touches
//!   further buckets.

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

use super::request::Request;
use super::{RangeLock, RangeToken};

/// A request that waits for its turn without blocking a thread; dropping it cancels the request.
///
/// `R` is how it reaches the lock: `&RangeLock` or `Arc<RangeLock>`.
#[must_use = "the request is cancelled if it is not kept"]
pub struct Pending<R: Deref<Target = RangeLock>> {
    lock: R,
    claim: Claim,
    began: u64,
    /// The bucket that it waits in, and as what; none once it is finished.
    waiting: Option<(usize, Arc<Waiter>)>,
    /// What to call in this and all further buckets; set when it first waits.
    waker: Option<Waker>,
}

impl RangeLock {
    /// Takes `range` in `mode`, or leaves a request in the queue that calls `waker` when
    /// [`Pending::try_finish`] is worth a try.
    ///
    /// ```
    /// use rangelock::{ByteRangeLock, Mode, RangeLock};
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
        if let Some(token) = self.try_single(&claim) {
            return Ok(token);
        }
        Self::start(self.clone(), claim, waker)
    }

    /// A future that holds `range` in `mode` when it is ready.
    pub fn lock_async(&self, range: Range<u64>, mode: Mode) -> LockFuture<'_> {
        LockFuture { lock: self, state: State::New(Claim::new(range, mode)) }
    }

    #[inline]
    fn start<R: Deref<Target = RangeLock>>(
        lock: R,
        claim: Claim,
        waker: &Waker,
    ) -> Result<RangeToken, Pending<R>> {
        if let Some(token) = lock.try_single(&claim) {
            return Ok(token);
        }
        let mut pending = Pending { lock, claim, began: 0, waiting: None, waker: None };
        match pending.go_on(0, waker) {
            true => Ok(pending.finish()),
            false => Err(pending),
        }
    }
}

impl<R: Deref<Target = RangeLock>> Pending<R> {
    /// Goes on if its turn has come: the token, or none as long as it has to wait.
    ///
    /// The waker that it was made with stays in place. After the token has been handed out there is
    /// nothing more to come: none for ever.
    pub fn try_finish(&mut self) -> Option<RangeToken> {
        let (_, waiter) = self.waiting.as_ref()?;
        if !waiter.is_granted() {
            return None;
        }
        let waker = self.waker.take()?;
        self.advance(&waker)
    }

    /// As [`try_finish`](Self::try_finish), and puts `waker` in place of the one that it has.
    pub fn poll_finish(&mut self, waker: &Waker) -> Option<RangeToken> {
        let (_, waiter) = self.waiting.as_ref()?;
        if !waiter.watch(waker) {
            self.waker = Some(waker.clone());
            return None;
        }
        self.advance(waker)
    }

    /// From a bucket where it was granted to the next where it has to wait, or to the end.
    fn advance(&mut self, waker: &Waker) -> Option<RangeToken> {
        let (at, _) = self.waiting.take()?;
        self.go_on(at + 1, waker).then(|| self.finish())
    }

    /// Enters the buckets from `from` on; false if it waits now.
    fn go_on(&mut self, from: usize, waker: &Waker) -> bool {
        let request = self.request();
        let mut next = request.next_at(from);
        while let Some(at) = next {
            let bucket = &self.lock.table()[at];
            if !bucket.try_enter_all([self.claim].iter()) {
                if self.began == 0 {
                    self.began = self.lock.meter.clock().max(1);
                }
                let waiter = Waiter::task(vec![self.claim], waker.clone());
                if !bucket.enter_or_queue(&waiter) {
                    self.waiting = Some((at, waiter));
                    self.waker = Some(waker.clone());
                    return false;
                }
            }
            next = request.next_at(at + 1);
        }
        true
    }

    fn request(&self) -> Request<1> {
        Request::new(self.lock.geometry, [self.claim])
    }

    fn finish(&mut self) -> RangeToken {
        let meter = &self.lock.meter;
        let since = match self.began {
            0 => meter.acquired(self.claim.mode),
            began => meter.acquired_after_wait(self.claim.mode, began),
        };
        RangeToken::loose(self.claim, since)
    }
}

impl<R: Deref<Target = RangeLock>> Drop for Pending<R> {
    fn drop(&mut self) {
        if let Some((at, waiter)) = self.waiting.take() {
            self.lock.settle(self.lock.table()[at].cancel(&waiter));
            self.lock.leave_below(&self.request(), at);
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
