//! The active item list: items that are in the log and not yet in their places, by the LSN of the checkpoint that
//! holds their latest changes. The oldest of them is where the log's tail is.
//!
//! All items of one checkpoint have one LSN, so that the list is a map of buckets. Invariants: an item's LSN and
//! place say where it is; no bucket is empty; the tail never goes back (but for what is adopted at first); and space behind the tail is handed out
//! (as the return value of whatever moved the tail) exactly once.

use super::item::LogItem;
use super::layout::{Layout, Pos};
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
    /// Of these, intents.
    intents: usize,
}

impl Bucket {
    /// Takes an item in, and gives its place.
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
    /// Behind the youngest checkpoint that has landed: the tail when nothing is left.
    landed: Pos,
    tail: Pos,
    dead: bool,
}

#[derive(Debug)]
pub(super) struct Ail {
    list: Mutex<List>,
    users: Users,
    /// The tail has moved, or nothing is left.
    moved: Condvar,
    layout: Layout,
}

/// A place in the list: an LSN, and a number among its items.
pub(super) type Cursor = (Lsn, u32);

impl Ail {
    /// An empty list of a log that goes on at `head`.
    pub(super) fn new(layout: Layout, head: Pos) -> Self {
        let list = List { buckets: BTreeMap::new(), landed: head, tail: head, dead: false };
        Self { list: Mutex::new(list), users: Users::new(), moved: Condvar::new(), layout }
    }

    /// Takes in the items of the checkpoint that begins at `lsn` and ends at `end`; takes out `gone`. Gives the
    /// bytes by which the tail has moved.
    pub(super) fn land(
        &self,
        lsn: Lsn,
        end: Pos,
        items: impl ExactSizeIterator<Item = Arc<dyn LogItem>>,
        gone: &[Arc<dyn LogItem>],
    ) -> u64 {
        // Dropped with no lock held.
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
        list.landed = list.landed.max(end);
        self.settle(&mut list)
    }

    /// Takes in an item of before this journal was opened. Gives the bytes by which the tail goes back to it.
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

    /// Takes out those of `items` that are still at the LSN given. Gives the bytes by which the tail has moved.
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

    /// Moves the tail to where it belongs.
    fn settle(&self, list: &mut List) -> u64 {
        let tail = list.buckets.keys().next().map_or(list.landed, |&lsn| self.layout.pos(lsn));
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

    /// Up to where the log's checkpoints have landed.
    pub(super) fn landed(&self) -> Lsn {
        self.layout.lsn(self.list().landed)
    }

    /// Whether nothing is in the list.
    pub(super) fn is_empty(&self) -> bool {
        self.list().buckets.is_empty()
    }

    /// Whether nothing waits to be written back. There may be intents, which their transactions end.
    pub(super) fn is_written(&self) -> bool {
        self.list().is_written()
    }

    /// All intents, if the tail is where one of them is.
    pub(super) fn intents_at_the_tail(&self) -> Option<Vec<Arc<dyn LogItem>>> {
        let list = self.list();
        list.buckets.first_key_value().filter(|(_, first)| first.intents > 0)?;
        let of = |bucket: &Bucket| -> Vec<_> {
            bucket.items.iter().flatten().filter(|item| item.is_intent()).cloned().collect()
        };
        Some(list.buckets.values().filter(|bucket| bucket.intents > 0).flat_map(of).collect())
    }

    /// Puts up to `most` items, from `from` on and not beyond `upto`, at the end of `into`. Gives where to go on.
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

    /// Waits until nothing waits to be written back but intents. `false`: it never will.
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

    /// Waits until all items up to `upto` are written back, or have moved on, but no longer than `most`.
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

    /// Wakes who waits.
    pub(super) fn kill(&self) {
        lock(&self.list).dead = true;
        self.moved.notify_all();
    }

    /// Lets go of all items. The tail stays where it was.
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

    /// Takes an item out of its bucket, if it is in one.
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
    use super::super::item::{ItemState, Landing, Push};
    use super::*;

    #[derive(Debug, Default)]
    struct Plain(ItemState);

    impl LogItem for Plain {
        fn state(&self) -> &ItemState {
            &self.0
        }
        fn pin(&self) {}
        fn unpin(&self) {}
        fn landed(&self, _lsn: Lsn) -> Landing {
            Landing::Ail
        }
        fn push(self: Arc<Self>) -> Push {
            Push::Gone
        }
    }

    const LAYOUT: fn() -> Layout = || Layout::for_tests(1000, 512, 32 << 10);

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
            ail.land(lsn(at), Pos(1000 + end), list.into_iter(), &[])
        };
        assert_eq!(land(0, 10, &[0, 1, 2]), 0);
        assert_eq!(land(10, 25, &[3, 4]), 0);
        // Moved on: all of the first checkpoint's but one.
        assert_eq!(land(25, 30, &[0, 2, 5]), 0);
        assert_eq!(ail.tail(), Pos(1000));
        // Too late: it has moved on.
        assert_eq!(ail.remove([(&items[0], lsn(0))].into_iter()), 0);
        assert_eq!(ail.remove([(&items[1], lsn(0))].into_iter()), 10 * 512);
        assert!(!items[1].state().in_ail() && items[0].state().in_ail());
        let all: Vec<_> = items.iter().map(|item| (item, item.state().lsn())).collect();
        assert_eq!(ail.remove(all.into_iter()), 20 * 512);
        assert!(ail.is_empty());
        assert_eq!(ail.tail(), Pos(1030));
        // An empty list follows what lands.
        assert_eq!(land(30, 40, &[]), 10 * 512);
    }

    #[test]
    fn an_intent_that_lands_with_its_done_item_does_not_stay() {
        let ail = Ail::new(LAYOUT(), Pos(1000));
        let items = items(2);
        let freed = ail.land(lsn(0), Pos(1010), items.clone().into_iter(), &items[..1]);
        assert_eq!(freed, 0);
        assert!(!items[0].state().in_ail());
        assert_eq!(ail.land(lsn(10), Pos(1020), Vec::new().into_iter(), &items[1..]), 20 * 512);
    }

    #[test]
    fn batches_go_through_all_in_order() {
        let ail = Ail::new(LAYOUT(), Pos(1000));
        let all = items(100);
        for (nth, part) in all.chunks(7).enumerate() {
            ail.land(lsn(nth as u64), Pos(1001 + nth as u64), part.iter().cloned(), &[]);
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
