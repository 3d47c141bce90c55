//! Searches for an order of concurrent calls, one after the other, in which they would have had their results.
//!
//! Invariants:
//! - a call that ended before another began comes before it. Apart from that, all orders are tried: if none is found,
//!   there is none;
//! - a call that changes nothing and has the right result is taken as soon as possible. Later it would enable nothing
//!   more, so no order is missed;
//! - a dead end (calls done and content) is not tried again.

use super::event::{Event, EventOutcome, Op, WORD, Words};
use std::collections::HashMap;

/// A search among the calls of a round, at most 64.
struct Search<'a> {
    events: &'a [Event],
    /// Dead ends of the search, by finished calls and contents.
    vain: HashMap<u64, Vec<Words>>,
}

/// The file's content after all calls in an order that explains them, if there is one. All such orders end with the
/// same content if the last call begins after all others have ended and reads the whole file.
pub(super) fn explained(start: &Words, events: &[Event]) -> Option<Words> {
    assert!(events.len() <= 64, "a round is short");
    Search { events, vain: HashMap::new() }.from(0, start.clone())
}

impl Search<'_> {
    /// The content after all calls, if those that are not `done` can follow.
    fn from(&mut self, mut done: u64, content: Words) -> Option<Words> {
        while let Some(nth) = self.next(done).find(|nth| changes_nothing(&self.events[*nth], &content)) {
            done |= 1 << nth;
        }
        if done.count_ones() as usize == self.events.len() {
            return Some(content);
        }
        if self.vain.get(&done).is_some_and(|contents| contents.contains(&content)) {
            return None;
        }
        for nth in self.next(done).collect::<Vec<_>>() {
            let changed = change(&self.events[nth], &content);
            if let Some(last) = changed.and_then(|changed| self.from(done | 1 << nth, changed)) {
                return Some(last);
            }
        }
        self.vain.entry(done).or_default().push(content);
        None
    }

    /// Calls that may come next: no other remaining call had ended when they began.
    fn next(&self, done: u64) -> impl Iterator<Item = usize> + use<'_> {
        let left = move |nth: &usize| done & 1 << nth == 0;
        let first_end = (0..self.events.len()).filter(left).map(|nth| self.events[nth].ended).min();
        let may_be_next = move |nth: &usize| first_end.is_some_and(|end| self.events[*nth].begun <= end);
        (0..self.events.len()).filter(left).filter(may_be_next)
    }
}

/// Whether a call changes nothing and has the right result for this content.
fn changes_nothing(event: &Event, content: &Words) -> bool {
    let size = content.len() as u64;
    match (&event.op, &event.outcome) {
        (Op::Read { at, len }, EventOutcome::Read(words)) => {
            let end = (at + len).min(size);
            words[..] == content[(*at).min(end) as usize..end as usize]
        }
        (Op::Size | Op::Stat, EventOutcome::Bytes(bytes)) => *bytes == size * WORD,
        (Op::Overwrite { at, len, .. }, EventOutcome::PastEnd) => at + len > size,
        (Op::Overwrite { .. }, EventOutcome::NotAllocated) => true,
        (Op::Sync | Op::Seek | Op::Evict, _) => true,
        _ => false,
    }
}

/// The file's content after a call that changes it. `None` if the call cannot come here.
fn change(event: &Event, content: &Words) -> Option<Words> {
    let size = content.len() as u64;
    let mut words = content.clone();
    match (&event.op, &event.outcome) {
        (Op::Write { at, len, stamp }, EventOutcome::Done) => put(&mut words, *at, *len, *stamp),
        (Op::Overwrite { at, len, stamp }, EventOutcome::Done) if at + len <= size => {
            put(&mut words, *at, *len, *stamp);
        }
        (Op::Append { len, stamp }, EventOutcome::Bytes(bytes)) if *bytes == size * WORD => {
            put(&mut words, size, *len, *stamp);
        }
        (Op::SetLen { size }, EventOutcome::Done) => words.resize(*size as usize, 0),
        (Op::Punch { at, len }, EventOutcome::Done) => {
            let end = (at + len).min(size);
            words[(*at).min(end) as usize..end as usize].fill(0);
        }
        (Op::Zero { at, len }, EventOutcome::Done) => put(&mut words, *at, *len, 0),
        _ => return None,
    }
    Some(words)
}

fn put(words: &mut Words, at: u64, len: u64, stamp: u64) {
    let end = (at + len) as usize;
    words.resize(words.len().max(end), 0);
    words[at as usize..end].fill(stamp);
}

#[cfg(test)]
mod tests {
    use super::super::event::By;
    use super::*;

    /// Calls of separate threads at these times.
    fn events(calls: &[(u64, u64, Op, EventOutcome)]) -> Vec<Event> {
        let event = |(thread, (begun, ended, op, outcome)): (usize, &(u64, u64, Op, EventOutcome))| Event {
            thread,
            by: By::Buffered,
            begun: *begun,
            ended: *ended,
            op: *op,
            outcome: outcome.clone(),
        };
        calls.iter().enumerate().map(event).collect()
    }

    fn write(begun: u64, ended: u64, at: u64, len: u64, stamp: u64) -> (u64, u64, Op, EventOutcome) {
        (begun, ended, Op::Write { at, len, stamp }, EventOutcome::Done)
    }

    fn append(begun: u64, ended: u64, len: u64, stamp: u64, words: u64) -> (u64, u64, Op, EventOutcome) {
        (begun, ended, Op::Append { len, stamp }, EventOutcome::Bytes(words * WORD))
    }

    fn read(begun: u64, ended: u64, words: &[u64]) -> (u64, u64, Op, EventOutcome) {
        (begun, ended, Op::Read { at: 0, len: 100 }, EventOutcome::Read(words.to_vec()))
    }

    fn after(start: &[u64], calls: &[(u64, u64, Op, EventOutcome)]) -> Option<Words> {
        explained(&start.to_vec(), &events(calls))
    }

    #[test]
    fn what_ran_at_once_may_have_come_in_any_order() {
        for last in [[1, 1, 2, 2], [1, 1, 1, 2]] {
            let calls = [write(1, 10, 0, 3, 1), write(2, 9, 2, 2, 2), read(20, 21, &last)];
            assert_eq!(after(&[0; 4], &calls), Some(last.to_vec()));
        }
        // A concurrent reader that saw only one of them.
        let calls = [
            write(1, 10, 0, 2, 1),
            write(2, 9, 2, 2, 2),
            read(3, 8, &[0, 0, 2, 2]),
            read(20, 21, &[1, 1, 2, 2]),
        ];
        assert!(after(&[0; 4], &calls).is_some());
    }

    #[test]
    fn half_a_write_is_found() {
        let calls = [write(1, 10, 0, 2, 1), read(2, 9, &[1, 0]), read(20, 21, &[1, 1])];
        assert_eq!(after(&[0; 2], &calls), None, "a reader saw half of it");
        let calls = [write(1, 10, 0, 2, 1), write(2, 9, 0, 2, 2), read(20, 21, &[1, 2])];
        assert_eq!(after(&[0; 2], &calls), None, "half of each is left");
    }

    #[test]
    fn two_readers_that_saw_two_writes_in_two_orders_are_found() {
        let calls = [
            write(1, 10, 0, 1, 1),
            write(2, 9, 1, 1, 2),
            read(3, 8, &[1, 0]),
            read(4, 7, &[0, 2]),
            read(20, 21, &[1, 2]),
        ];
        assert_eq!(after(&[0; 2], &calls), None);
    }

    #[test]
    fn a_lost_append_is_found() {
        let calls = [append(1, 10, 1, 1, 1), append(2, 9, 1, 2, 1), read(20, 21, &[5, 2])];
        assert_eq!(after(&[5], &calls), None, "both were put at the same place");
        let calls = [append(1, 10, 1, 1, 1), append(2, 9, 1, 2, 2), read(20, 21, &[5, 1])];
        assert_eq!(after(&[5], &calls), None, "one is not there");
        let calls = [append(1, 10, 1, 1, 2), append(2, 9, 1, 2, 1), read(20, 21, &[5, 2, 1])];
        assert_eq!(after(&[5], &calls), Some(vec![5, 2, 1]));
    }

    #[test]
    fn a_stale_read_is_found() {
        let calls = [write(1, 2, 0, 1, 1), read(3, 4, &[0]), read(20, 21, &[1])];
        assert_eq!(after(&[0], &calls), None, "the write was over");
        let calls = [write(1, 3, 0, 1, 1), read(2, 4, &[0]), read(20, 21, &[1])];
        assert!(after(&[0], &calls).is_some(), "it was not");
        // New, and then old again.
        let calls = [write(1, 10, 0, 1, 1), read(2, 3, &[1]), read(4, 5, &[0]), read(20, 21, &[1])];
        assert_eq!(after(&[0], &calls), None);
    }

    #[test]
    fn sizes_and_refusals_have_to_be_explained() {
        let size = |begun, ended, words: u64| (begun, ended, Op::Size, EventOutcome::Bytes(words * WORD));
        let cut = |begun, ended, size| (begun, ended, Op::SetLen { size }, EventOutcome::Done);
        let calls = [cut(1, 10, 1), size(2, 3, 1), size(4, 5, 3)];
        assert_eq!(after(&[7, 7, 7], &calls), None, "short, and then long again");
        let calls = [cut(1, 10, 1), size(2, 3, 3), size(4, 5, 1), read(20, 21, &[7])];
        assert_eq!(after(&[7, 7, 7], &calls), Some(vec![7]));
        // What was cut off does not come back.
        let calls = [cut(1, 2, 1), cut(3, 4, 3), read(5, 6, &[7, 7, 7])];
        assert_eq!(after(&[7, 7, 7], &calls), None);
        let over = |outcome| (1, 2, Op::Overwrite { at: 1, len: 2, stamp: 1 }, outcome);
        assert!(after(&[7, 7, 7], &[over(EventOutcome::PastEnd)]).is_none());
        assert!(after(&[7, 7], &[over(EventOutcome::PastEnd)]).is_some());
        assert!(after(&[7, 7], &[over(EventOutcome::Done)]).is_none());
    }

    /// Every order of some writes is found, and nothing else.
    #[test]
    fn all_orders_are_tried() {
        let many: Vec<_> = (0..6).map(|nth| write(nth, 100 + nth, nth, 2, nth + 1)).collect();
        for first in 0..6 {
            let mut order: Vec<u64> = (0..6).collect();
            order.rotate_left(first);
            let mut words = vec![0; 7];
            order.iter().for_each(|nth| put(&mut words, *nth, 2, nth + 1));
            let calls = [&many[..], &[read(200, 201, &words)]].concat();
            assert_eq!(after(&[0; 7], &calls), Some(words));
        }
        let calls = [&many[..], &[read(200, 201, &[1, 1, 2, 2, 4, 5, 6])]].concat();
        assert_eq!(after(&[0; 7], &calls), None, "2 was never written there");
    }
}
