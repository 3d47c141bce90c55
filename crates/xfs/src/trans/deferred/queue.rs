//! The order of deferred work.
//!
//! Invariant: first in, first out, with one exception. What an item adds while it is being finished comes before what
//! waited already, and the rest of that item comes right after it. So related chains are done one after the other, in
//! the kernel's order, and at most one of them is ever half done.

use std::collections::VecDeque;

/// Deferred work, in the order in which it will be done.
#[derive(Debug)]
pub(super) struct DeferQueue<T> {
    waiting: VecDeque<T>,
    /// While an item is being finished: how many items it has added. They are at the front.
    added: Option<usize>,
}

impl<T> Default for DeferQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), added: None }
    }
}

impl<T> DeferQueue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an item at the end; while one is being finished, after what that one has added so far.
    pub(super) fn add(&mut self, owed: T) {
        match &mut self.added {
            None => self.waiting.push_back(owed),
            Some(arisen) => {
                self.waiting.insert(*arisen, owed);
                *arisen += 1;
            }
        }
    }

    /// Removes the first item in order to finish it.
    pub(super) fn begin(&mut self) -> Option<T> {
        let first = self.waiting.pop_front()?;
        self.added = Some(0);
        Some(first)
    }

    /// Ends the item. `rest` is what is left of it.
    pub(super) fn end(&mut self, rest: Option<T>) {
        rest.into_iter().for_each(|rest| self.add(rest));
        self.added = None;
    }

    /// All items, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// All items, in order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arises_comes_before_what_waited() {
        let mut queue = DeferQueue::default();
        ["cut", "free", "count"].into_iter().for_each(|work| queue.add(work));
        let mut done = Vec::new();
        while let Some(work) = queue.begin() {
            let (arisen, rest): (&[&str], _) = match work {
                "cut" => (&["uncount", "unmap"], Some("cut the rest")),
                "uncount" => (&["free what was shared"], None),
                _ => (&[], None),
            };
            arisen.iter().for_each(|work| queue.add(*work));
            queue.end(rest);
            done.push(work);
        }
        let expected = ["cut", "uncount", "free what was shared", "unmap", "cut the rest", "free", "count"];
        assert_eq!(done, expected);
        assert!(queue.is_empty());
    }
}
