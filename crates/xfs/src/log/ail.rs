//! The active item list (AIL): items that are in the log and not yet written back, sorted by the LSN of the checkpoint
//! that has their latest changes. The oldest item determines the log's tail.
//!
//! All items of one checkpoint have the same LSN, so the list is a map of buckets. Invariants: an item's LSN and index
//! say where it is; no bucket is empty; the tail never moves back (except for items adopted at the start); and the
//! space freed by a tail move is returned exactly once, by the call that moved the tail.

use super::item::LogItem;
use super::layout::{LogLayout, Pos};
use super::sync::{Condvar, Mutex, MutexGuard, lock, lock_by, wait, wait_for};
use lockstat::{Counted, LockClass, Users};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use xfs_format::types::Lsn;

static LIST: LockClass = LockClass::new("ail");

#[derive(Debug, Default)]
struct Bucket {
    items: Vec<Option<Arc<dyn LogItem>>>,
    living: usize,
    /// How many of the items are intents.
    intents: usize,
}

impl Bucket {
    /// Adds an item and returns its index.
    fn add(&mut self, item: Arc<dyn LogItem>) -> u32 {
        self.living += 1;
        self.intents += usize::from(item.is_intent());
        self.items.push(Some(item));
        self.items.len() as u32 - 1
    }
}

#[derive(Debug)]
struct List {
    buckets: BTreeMap<Lsn, Bucket>,
    /// The end of the youngest committed checkpoint: the tail if the list is empty.
    committed_to: Pos,
    tail: Pos,
    dead: bool,
}

#[derive(Debug)]
pub(super) struct Ail {
    list: Mutex<List>,
    users: Users,
    /// Signalled when the tail has moved or the list is empty.
    moved: Condvar,
    layout: LogLayout,
}

/// A position in the list: an LSN and an index among its items.
pub(super) type Cursor = (Lsn, u32);

impl Ail {
    /// An empty list for a log that continues at `head`.
    pub(super) fn new(layout: LogLayout, head: Pos) -> Self {
        let list = List { buckets: BTreeMap::new(), committed_to: head, tail: head, dead: false };
        Self { list: Mutex::new(list), users: Users::new(), moved: Condvar::new(), layout }
    }

    /// Inserts the items of the checkpoint from `lsn` to `end`, and removes `gone`. Returns the bytes by which the tail
    /// has moved.
    pub(super) fn insert_checkpoint(
        &self,
        lsn: Lsn,
        end: Pos,
        items: impl ExactSizeIterator<Item = Arc<dyn LogItem>>,
        gone: &[Arc<dyn LogItem>],
    ) -> u64 {
        // To be dropped with no lock held.
        let mut dropped = Vec::new();
        let mut list = self.list();
        let mut bucket = Bucket { items: Vec::with_capacity(items.len()), ..Bucket::default() };
        for item in items {
            list.take(&*item).into_iter().for_each(|old| dropped.push(old));
            let place = bucket.add(Arc::clone(&item));
            item.state().set_place(lsn, place);
        }
        if bucket.living != 0 {
            list.buckets.insert(lsn, bucket);
        }
        for item in gone {
            list.take(&**item).into_iter().for_each(|old| dropped.push(old));
        }
        list.committed_to = list.committed_to.max(end);
        self.settle(&mut list)
    }

    /// Inserts an item from before this journal was opened. Returns the bytes by which the tail moves back to it.
    pub(super) fn adopt(&self, lsn: Lsn, item: Arc<dyn LogItem>) -> u64 {
        let mut list = self.list();
        let bucket = list.buckets.entry(lsn).or_default();
        let place = bucket.add(Arc::clone(&item));
        item.state().set_place(lsn, place);
        let at = self.layout.pos(lsn).min(list.tail);
        let bytes = list.tail.bytes_since(at);
        list.tail = at;
        bytes
    }

    /// Removes those of `items` that are still at the given LSN. Returns the bytes by which the tail has moved.
    pub(super) fn remove<'a>(&self, items: impl Iterator<Item = (&'a Arc<dyn LogItem>, Lsn)>) -> u64 {
        let mut dropped = Vec::new();
        let mut list = self.list();
        for (item, lsn) in items {
            if lsn.0 != 0 && item.state().lsn() == lsn {
                dropped.extend(list.take(&**item));
            }
        }
        self.settle(&mut list)
    }

    /// Moves the tail to the oldest item.
    fn settle(&self, list: &mut List) -> u64 {
        let tail = list.buckets.keys().next().map_or(list.committed_to, |&lsn| self.layout.pos(lsn));
        let moved = tail.bytes_since(list.tail);
        if moved != 0 || list.is_written() {
            self.moved.notify_all();
        }
        list.tail = list.tail.max(tail);
        moved
    }

    /// The tail of the log.
    pub(super) fn tail(&self) -> Pos {
        self.list().tail
    }

    /// The LSN up to which checkpoints have been committed.
    pub(super) fn committed_to(&self) -> Lsn {
        self.layout.lsn(self.list().committed_to)
    }

    /// Whether the list is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.list().buckets.is_empty()
    }

    /// Whether nothing is left to be written back. There may be intents, which end with their transactions.
    pub(super) fn is_written(&self) -> bool {
        self.list().is_written()
    }

    /// All intents, if one of them is at the tail.
    pub(super) fn intents_at_the_tail(&self) -> Option<Vec<Arc<dyn LogItem>>> {
        let list = self.list();
        list.buckets.first_key_value().filter(|(_, first)| first.intents > 0)?;
        let of = |bucket: &Bucket| -> Vec<_> {
            bucket.items.iter().flatten().filter(|item| item.is_intent()).cloned().collect()
        };
        Some(list.buckets.values().filter(|bucket| bucket.intents > 0).flat_map(of).collect())
    }

    /// Appends up to `most` items to `into`, beginning at `from` and not beyond `upto`. Returns where to continue.
    pub(super) fn batch(
        &self,
        from: Cursor,
        upto: Lsn,
        most: usize,
        into: &mut Vec<Arc<dyn LogItem>>,
    ) -> Option<Cursor> {
        let list = self.list();
        let mut first = from.1 as usize;
        for (&lsn, bucket) in list.buckets.range((Bound::Included(from.0), Bound::Included(upto.max(from.0))))
        {
            if lsn > upto {
                return None;
            }
            if lsn != from.0 {
                first = 0;
            }
            for (place, item) in bucket.items.iter().enumerate().skip(first) {
                let Some(item) = item else { continue };
                if into.len() >= most {
                    return Some((lsn, place as u32));
                }
                into.push(Arc::clone(item));
            }
        }
        None
    }

    /// Waits until only intents are left. Returns `false` if that will never be.
    pub(super) fn wait_until_written(&self) -> bool {
        let mut list = lock(&self.list);
        while !list.is_written() {
            if list.dead {
                return false;
            }
            list = wait(&self.moved, list);
        }
        !list.dead
    }

    /// Waits until all items up to `upto` are written back or have moved on, but no longer than `most`.
    pub(super) fn wait_until_behind(&self, upto: Lsn, most: Duration) {
        let mut list = lock(&self.list);
        while !list.dead && list.buckets.keys().next().is_some_and(|&lsn| lsn < upto) {
            let (guard, timed_out) = wait_for(&self.moved, list, most);
            list = guard;
            if timed_out {
                return;
            }
        }
    }

    /// Wakes all waiters.
    pub(super) fn kill(&self) {
        lock(&self.list).dead = true;
        self.moved.notify_all();
    }

    /// Drops all items. The tail stays where it was.
    pub(super) fn clear(&self) {
        let buckets = std::mem::take(&mut self.list().buckets);
        for item in buckets.into_values().flat_map(|bucket| bucket.items).flatten() {
            item.state().set_place(Lsn(0), 0);
        }
    }

    fn list(&self) -> Counted<MutexGuard<'_, List>> {
        lock_by(&self.list, &LIST, &self.users)
    }
}

impl List {
    fn is_written(&self) -> bool {
        self.buckets.values().all(|bucket| bucket.living == bucket.intents)
    }

    /// Removes an item from its bucket, if it is in one.
    fn take(&mut self, item: &dyn LogItem) -> Option<Arc<dyn LogItem>> {
        let (lsn, place) = item.state().place();
        if lsn.0 == 0 {
            return None;
        }
        item.state().set_place(Lsn(0), 0);
        let bucket = self.buckets.get_mut(&lsn)?;
        let taken = bucket.items.get_mut(place as usize)?.take();
        bucket.living -= usize::from(taken.is_some());
        bucket.intents -= usize::from(taken.as_ref().is_some_and(|item| item.is_intent()));
        if bucket.living == 0 {
            self.buckets.remove(&lsn);
        }
        taken
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::item::{AfterCommit, ItemState, Push};
    use super::*;

    #[derive(Debug, Default)]
    struct Plain(ItemState);

    impl LogItem for Plain {
        fn state(&self) -> &ItemState {
            &self.0
        }
        fn pin(&self) {}
        fn unpin(&self) {}
        fn committed(&self, _lsn: Lsn) -> AfterCommit {
            AfterCommit::Ail
        }
        fn push(self: Arc<Self>) -> Push {
            Push::Gone
        }
    }

    const LAYOUT: fn() -> LogLayout = || LogLayout::for_tests(1000, 512, 32 << 10);

    fn items(count: usize) -> Vec<Arc<dyn LogItem>> {
        (0..count).map(|_| Arc::new(Plain::default()) as _).collect()
    }

    fn lsn(block: u64) -> Lsn {
        LAYOUT().lsn(Pos(1000 + block))
    }

    #[test]
    fn the_tail_follows_the_oldest_item() {
        let ail = Ail::new(LAYOUT(), Pos(1000));
        let items = items(6);
        let land = |at: u64, end: u64, which: &[usize]| {
            let list: Vec<_> = which.iter().map(|&nth| Arc::clone(&items[nth])).collect();
            ail.insert_checkpoint(lsn(at), Pos(1000 + end), list.into_iter(), &[])
        };
        assert_eq!(land(0, 10, &[0, 1, 2]), 0);
        assert_eq!(land(10, 25, &[3, 4]), 0);
        // All items of the first checkpoint except one have moved on.
        assert_eq!(land(25, 30, &[0, 2, 5]), 0);
        assert_eq!(ail.tail(), Pos(1000));
        // Too late: the item has moved on.
        assert_eq!(ail.remove([(&items[0], lsn(0))].into_iter()), 0);
        assert_eq!(ail.remove([(&items[1], lsn(0))].into_iter()), 10 * 512);
        assert!(!items[1].state().in_ail() && items[0].state().in_ail());
        let all: Vec<_> = items.iter().map(|item| (item, item.state().lsn())).collect();
        assert_eq!(ail.remove(all.into_iter()), 20 * 512);
        assert!(ail.is_empty());
        assert_eq!(ail.tail(), Pos(1030));
        // The tail of an empty list follows the commits.
        assert_eq!(land(30, 40, &[]), 10 * 512);
    }

    #[test]
    fn an_intent_that_lands_with_its_done_item_does_not_stay() {
        let ail = Ail::new(LAYOUT(), Pos(1000));
        let items = items(2);
        let freed = ail.insert_checkpoint(lsn(0), Pos(1010), items.clone().into_iter(), &items[..1]);
        assert_eq!(freed, 0);
        assert!(!items[0].state().in_ail());
        assert_eq!(ail.insert_checkpoint(lsn(10), Pos(1020), Vec::new().into_iter(), &items[1..]), 20 * 512);
    }

    #[test]
    fn batches_go_through_all_in_order() {
        let ail = Ail::new(LAYOUT(), Pos(1000));
        let all = items(100);
        for (nth, part) in all.chunks(7).enumerate() {
            ail.insert_checkpoint(lsn(nth as u64), Pos(1001 + nth as u64), part.iter().cloned(), &[]);
        }
        ail.remove(all.iter().step_by(3).map(|item| (item, item.state().lsn())));
        let upto = lsn(9);
        let (mut cursor, mut seen) = (Some((Lsn(0), 0)), 0);
        let mut last = Lsn(0);
        while let Some(from) = cursor {
            let mut batch = Vec::new();
            cursor = ail.batch(from, upto, 5, &mut batch);
            assert!(batch.len() <= 5);
            for item in &batch {
                assert!(item.state().lsn() >= last && item.state().lsn() <= upto);
                last = item.state().lsn();
            }
            seen += batch.len();
        }
        assert_eq!(seen, 70 - 24);
        ail.clear();
        assert!(ail.is_empty() && all.iter().all(|item| !item.state().in_ail()));
    }
}
