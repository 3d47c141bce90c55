//! One queue of those who wait, in the order in which they came.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::claim::Claim;
use crate::waiter::Waiter;

/// Waiters in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct WaitQueue(VecDeque<Arc<Waiter>>);

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn conflicts(&self, claim: &Claim) -> bool {
        self.0.iter().any(|waiter| waiter.conflicts(claim))
    }

    pub(super) fn push(&mut self, waiter: Arc<Waiter>) {
        self.0.push_back(waiter);
    }

    /// Takes out the first waiter at or after `from` that `fits` and conflicts with none before it.
    pub(super) fn next_grantable(
        &mut self,
        from: &mut usize,
        mut fits: impl FnMut(&[Claim]) -> bool,
    ) -> Option<Arc<Waiter>> {
        while let Some(waiter) = self.0.get(*from) {
            let blocked = !fits(waiter.claims())
                || self
                    .0
                    .iter()
                    .take(*from)
                    .any(|earlier| waiter.claims().iter().any(|claim| earlier.conflicts(claim)));
            if !blocked {
                return self.0.remove(*from);
            }
            *from += 1;
        }
        None
    }
}
