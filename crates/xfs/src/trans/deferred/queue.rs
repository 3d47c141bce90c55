//! The order in which what is owed is carried out.
//!
//! Invariant: first in, first out; but what arises while something is carried out comes before what waited already, and
//! what is left of that something comes right behind it. So chains that belong together are done one after the other,
//! in the order in which the kernel does them, and at most one of them is ever half done.

use std::collections::VecDeque;

/// What is owed, in the order in which it will be done.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: VecDeque<T>,
    /// While something is carried out: how many have arisen from it, which are the first.
    arisen: Option<usize>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), arisen: None }
    }
}

impl<T> Queue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds one: behind all, or, while one is carried out, behind what arose from it so far.
    pub(super) fn add(&mut self, owed: T) {
        match &mut self.arisen {
            None => self.waiting.push_back(owed),
            Some(arisen) => {
                self.waiting.insert(*arisen, owed);
                *arisen += 1;
            }
        }
    }

    /// Takes the first one out, to be carried out.
    pub(super) fn begin(&mut self) -> Option<T> {
        let first = self.waiting.pop_front()?;
        self.arisen = Some(0);
        Some(first)
    }

    /// It was carried out, but for `rest`.
    pub(super) fn end(&mut self, rest: Option<T>) {
        rest.into_iter().for_each(|rest| self.add(rest));
        self.arisen = None;
    }

    /// All that is owed, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// All that is owed, in order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arises_comes_before_what_waited() {
        let mut queue = Queue::default();
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
