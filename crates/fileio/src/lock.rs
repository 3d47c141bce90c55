//! One file's lock, of the chosen design, and the hold of a request in flight.
//!
//! Invariants: a hold that is taken is given back by [`FileLock::release`] or by dropping its [`Held`]; nothing is
//! allocated for a hold of the range lock that did not have to wait.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

#[cfg(feature = "designs")]
use rangelock::{
    BTreeLock, BTreeToken, ByteRangeLock, IntervalTreeLock, IntervalTreeToken, WholeFileLock, WholeFileToken,
};
use rangelock::{LockStats, Mode, Pending, RangeLock, RangeToken, StatsSnapshot};

use crate::Locking;

/// The lock of one file.
#[derive(Debug)]
pub(crate) enum FileLock {
    Range(Arc<RangeLock>),
    #[cfg(feature = "designs")]
    Whole(WholeFileLock),
    #[cfg(feature = "designs")]
    IntervalTree(IntervalTreeLock),
    #[cfg(feature = "designs")]
    BTree(BTreeLock),
}

/// A hold, of the same design as its lock.
#[derive(Debug)]
pub(crate) enum Token {
    Range(RangeToken),
    #[cfg(feature = "designs")]
    Whole(WholeFileToken),
    #[cfg(feature = "designs")]
    IntervalTree(IntervalTreeToken),
    #[cfg(feature = "designs")]
    BTree(BTreeToken),
}

/// How an attempt went that must not block.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Token),
    /// In line for the range; the waker is called when its turn may have come.
    InLine(Pending<Arc<RangeLock>>),
    /// Taken by somebody, and this design has no line to stand in.
    #[cfg_attr(not(feature = "designs"), expect(dead_code, reason = "the range lock has a line"))]
    Busy,
}

impl FileLock {
    /// A lock for a file of `size` bytes, which may grow.
    pub(crate) fn new(locking: Locking, size: u64, stats: Option<Arc<LockStats>>) -> Self {
        match locking {
            Locking::Range => {
                let lock = RangeLock::for_size(size);
                Self::Range(Arc::new(match stats {
                    Some(stats) => lock.with_stats(stats),
                    None => lock,
                }))
            }
            #[cfg(feature = "designs")]
            Locking::Exclusive | Locking::Shared => {
                let lock = WholeFileLock::new();
                Self::Whole(match stats {
                    Some(stats) => lock.with_stats(stats),
                    None => lock,
                })
            }
            #[cfg(feature = "designs")]
            Locking::IntervalTree => {
                let lock = IntervalTreeLock::new();
                Self::IntervalTree(match stats {
                    Some(stats) => lock.with_stats(stats),
                    None => lock,
                })
            }
            #[cfg(feature = "designs")]
            Locking::BTree => {
                let lock = BTreeLock::new();
                Self::BTree(match stats {
                    Some(stats) => lock.with_stats(stats),
                    None => lock,
                })
            }
        }
    }

    /// Waits until the range is held, until the guard is dropped.
    #[inline]
    pub(crate) fn hold(&self, range: Range<u64>, mode: Mode) -> Held<'_> {
        Held { token: Some(self.acquire(range, mode)), lock: self }
    }

    /// Waits until the range is held.
    #[inline]
    pub(crate) fn acquire(&self, range: Range<u64>, mode: Mode) -> Token {
        match self {
            Self::Range(lock) => Token::Range(lock.acquire(range, mode)),
            #[cfg(feature = "designs")]
            Self::Whole(lock) => Token::Whole(lock.acquire(range, mode)),
            #[cfg(feature = "designs")]
            Self::IntervalTree(lock) => Token::IntervalTree(lock.acquire(range, mode)),
            #[cfg(feature = "designs")]
            Self::BTree(lock) => Token::BTree(lock.acquire(range, mode)),
        }
    }

    /// Takes the range if nobody has to be waited for.
    #[inline]
    pub(crate) fn try_acquire(&self, range: Range<u64>, mode: Mode) -> Option<Token> {
        match self {
            Self::Range(lock) => lock.try_acquire(range, mode).map(Token::Range),
            #[cfg(feature = "designs")]
            Self::Whole(lock) => lock.try_acquire(range, mode).map(Token::Whole),
            #[cfg(feature = "designs")]
            Self::IntervalTree(lock) => lock.try_acquire(range, mode).map(Token::IntervalTree),
            #[cfg(feature = "designs")]
            Self::BTree(lock) => lock.try_acquire(range, mode).map(Token::BTree),
        }
    }

    /// For a range that was found taken: gets in line for it where the design has a line (and may find it free by
    /// now).
    pub(crate) fn attempt(&self, range: Range<u64>, mode: Mode, waker: &Waker) -> Attempt {
        match self {
            Self::Range(lock) => match lock.acquire_or_notify_owned(range, mode, waker) {
                Ok(token) => Attempt::Held(Token::Range(token)),
                Err(pending) => Attempt::InLine(pending),
            },
            #[cfg(feature = "designs")]
            _ => Attempt::Busy,
        }
    }

    #[inline]
    pub(crate) fn release(&self, token: Token) {
        match (self, token) {
            (Self::Range(lock), Token::Range(token)) => lock.release(token),
            #[cfg(feature = "designs")]
            (Self::Whole(lock), Token::Whole(token)) => lock.release(token),
            #[cfg(feature = "designs")]
            (Self::IntervalTree(lock), Token::IntervalTree(token)) => lock.release(token),
            #[cfg(feature = "designs")]
            (Self::BTree(lock), Token::BTree(token)) => lock.release(token),
            #[cfg(feature = "designs")]
            (_, token) => debug_assert!(false, "a token of another lock: {token:?}"),
        }
    }

    /// Whether any two exclusive requests are in each other's way, so that what one of them is refused, all are.
    pub(crate) fn is_whole_file(&self) -> bool {
        match self {
            #[cfg(feature = "designs")]
            Self::Whole(_) => true,
            _ => false,
        }
    }

    pub(crate) fn stats(&self) -> Option<StatsSnapshot> {
        match self {
            Self::Range(lock) => lock.stats(),
            #[cfg(feature = "designs")]
            Self::Whole(lock) => lock.stats(),
            #[cfg(feature = "designs")]
            Self::IntervalTree(lock) => lock.stats(),
            #[cfg(feature = "designs")]
            Self::BTree(lock) => lock.stats(),
        }
    }
}

/// A held range; dropping it releases the range, also when a device panics.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a FileLock,
    token: Option<Token>,
}

impl<'a> Held<'a> {
    /// A range that was taken.
    pub(crate) fn new(lock: &'a FileLock, token: Token) -> Self {
        Self { lock, token: Some(token) }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.lock.release(token);
        }
    }
}
