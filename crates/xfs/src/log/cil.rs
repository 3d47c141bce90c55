//! The committed items list (CIL): what was committed and is not in the log yet.
//!
//! It has shards. A commit takes only the lock of its thread's shard. Closing the checkpoint takes all of them. So the
//! shard locks are the striped gate that decides which checkpoint a commit joins: if one commit builds on another, it
//! never joins an earlier checkpoint. While all locks are held, lists are only swapped; vectors are collected
//! afterwards.
//!
//! The older design has a single shard, which a commit locks after its items are formatted, pinned and published. A
//! separate lock, which commits hold shared, keeps their checkpoint open ([`CilLocks::SingleLock`]).
//!
//! Invariants: in each checkpoint an item is in the list of at most one shard. The bytes that shards count are what
//! tickets paid, which is at least what the checkpoint will take in the log.

use super::designs::{CilLocks, Designs, Vectors};
use super::item::{Entered, LogItem};
use super::layout::LogLayout;
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, RwLock, lock, lock_by, read_by, write};
use super::vector::LogVector;
use super::{CommitCallback, thread_slot};
use lockstat::{LockClass, Mode, Users};
use std::sync::Arc;

static SHARD: LockClass = LockClass::new("cil shard");
/// Only in the older design.
static CONTEXT: LockClass = LockClass::new("cil context");
static CLOSE: LockClass = LockClass::new("cil close");

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };

/// One item of a checkpoint.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) item: Arc<dyn LogItem>,
    /// The number of the commit that brought it into the checkpoint.
    pub(super) order: u64,
}

#[derive(Default)]
struct Shard {
    /// The checkpoint that is open.
    seq: u64,
    items: Vec<Entry>,
    callbacks: Vec<CommitCallback>,
    /// Bytes paid through this shard. Negative if vectors shrank that others had paid for.
    paid: i64,
    /// The part that [`Cil::paid`] does not include yet.
    uncounted: i64,
    /// Something other than the covering of the log was committed.
    more: bool,
    /// Commits are no longer possible.
    dead: bool,
}

/// A shard behind its lock, and the users of the lock.
struct Counting {
    shard: Mutex<Shard>,
    users: Users,
}

/// A closed checkpoint: nothing joins it any more.
pub(super) struct ClosedCheckpoint {
    pub(super) seq: u64,
    /// In commit order, once [`gather`](Self::gather) has been called.
    pub(super) items: Vec<Entry>,
    pub(super) callbacks: Vec<CommitCallback>,
    /// Bytes that its transactions paid.
    pub(super) paid: u64,
    /// It only covers the log.
    pub(super) covering: bool,
    parts: Vec<Vec<Entry>>,
}

#[cfg(all(test, not(shuttle)))]
impl ClosedCheckpoint {
    /// An empty checkpoint.
    pub(super) fn empty(seq: u64) -> Self {
        let (items, landed, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { seq, items, callbacks: landed, paid: 0, covering: false, parts }
    }
}

impl std::fmt::Debug for ClosedCheckpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closed").field("seq", &self.seq).field("paid", &self.paid).finish_non_exhaustive()
    }
}

/// The result of a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inserted {
    pub(super) seq: u64,
    /// Log bytes that moved from the ticket to the checkpoint. Negative if some came back.
    pub(super) cost: i64,
    /// Bytes of all vectors of this commit, regardless of earlier vectors of the same items.
    pub(super) logged: u64,
    /// Whether there is enough for a checkpoint now.
    pub(super) full: bool,
}

/// A commit that is joining the open checkpoint, which stays open meanwhile. Items are pinned and published through it.
#[derive(Debug)]
pub struct Joining<'a> {
    seq: u64,
    order: u64,
    is_formatted: bool,
    /// Bytes by which the checkpoint has grown.
    grown: i64,
    /// Bytes of all vectors.
    logged: u64,
    to: &'a mut Vec<Entry>,
}

impl Joining<'_> {
    /// The checkpoint.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// Bytes of all vectors so far.
    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    /// Whether items must be formatted now, as in the older design.
    pub(crate) fn is_formatted(&self) -> bool {
        self.is_formatted
    }

    /// Adds the vector of an item, and pins the item if it is new in this checkpoint.
    pub fn vector(&mut self, item: Arc<dyn LogItem>, vector: LogVector) {
        let entered = item.state().enter(self.seq, vector);
        if entered.before.is_none() {
            item.pin();
        }
        self.entered(entered, || item);
    }

    /// Counts an item that has entered the checkpoint. If it is new there, it has been pinned.
    pub(crate) fn entered(&mut self, entered: Entered, item: impl FnOnce() -> Arc<dyn LogItem>) {
        let Entered { bytes, before } = entered;
        self.logged += u64::from(bytes);
        self.grown += i64::from(bytes) - i64::from(before.unwrap_or(0));
        if before.is_none() {
            self.to.push(Entry { item: item(), order: self.order });
        }
    }
}

/// Keeps a checkpoint open during a commit, where the shard's lock does not.
#[derive(Default)]
struct Context {
    /// Whether commits are no longer possible.
    dead: RwLock<bool>,
    users: Users,
}

pub(super) struct Cil {
    context: Option<Box<Padded<Context>>>,
    shards: Box<[Padded<Counting>]>,
    /// The youngest checkpoint that has items or is about to. Its base has been paid for.
    opened: Padded<AtomicU64>,
    /// Commits so far.
    order: Padded<AtomicU64>,
    /// Approximate size of the open checkpoint in bytes.
    paid: Padded<AtomicU64>,
    /// The checkpoint that is open.
    seq: Padded<AtomicU64>,
    layout: LogLayout,
    vectors: Vectors,
    limit: u64,
    /// Maximum that a shard counts by itself.
    uncounted_most: u64,
}

impl std::fmt::Debug for Cil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cil").field("seq", &self.seq()).field("paid", &self.paid()).finish_non_exhaustive()
    }
}

impl Cil {
    pub(super) fn new(layout: LogLayout, designs: Designs) -> Self {
        let shard = || {
            Padded(Counting { shard: Mutex::new(Shard { seq: 1, ..Shard::default() }), users: Users::new() })
        };
        let (context, shards) = match designs.cil {
            CilLocks::Sharded => (None, SHARDS),
            CilLocks::SingleLock => (Some(Box::default()), 1),
        };
        let limit = layout.checkpoint_limit();
        Self {
            context,
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            opened: Padded::default(),
            order: Padded::default(),
            paid: Padded::default(),
            seq: Padded(AtomicU64::new(1)),
            layout,
            vectors: designs.vectors,
            limit,
            uncounted_most: (limit / (4 * shards as u64)).max(1),
        }
    }

    /// The checkpoint that is open.
    pub(super) fn seq(&self) -> u64 {
        self.seq.0.load(Ordering::SeqCst)
    }

    /// The youngest checkpoint with items, open or closed. 0 if there has been none.
    pub(super) fn opened(&self) -> u64 {
        self.opened.0.load(Ordering::SeqCst)
    }

    /// Whether the open checkpoint has items.
    pub(super) fn is_open(&self) -> bool {
        self.opened() >= self.seq()
    }

    /// Approximate size of the open checkpoint in bytes.
    pub(super) fn paid(&self) -> u64 {
        self.paid.0.load(Ordering::Relaxed)
    }

    /// Bytes that a checkpoint should gather.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Puts the items of a commit into the open checkpoint. `covering` says that it covers the log. `None` if the
    /// journal is dead; then nothing was done.
    pub(super) fn insert(
        &self,
        covering: bool,
        landed: Option<CommitCallback>,
        enter: impl FnOnce(&mut Joining<'_>),
    ) -> Option<Inserted> {
        // Keep these apart: the shards of two threads, and what one commit counts and another reads.
        let order = self.order.0.fetch_add(1, Ordering::Relaxed);
        if let Some(context) = &self.context {
            return self.insert_single_lock(&context.0, covering, landed, enter, order);
        }
        let Padded(Counting { shard, users }) = self.shards.get(thread_slot::current() % SHARDS)?;
        let mut shard = lock_by(shard, &SHARD, users);
        if shard.dead {
            return None;
        }
        let shard = &mut **shard;
        let base = self.open(shard.seq);
        let mut joining = self.joining(shard.seq, order, &mut shard.items);
        enter(&mut joining);
        let (grown, logged) = (joining.grown, joining.logged);
        Some(self.count(shard, self.cost(base, grown), logged, covering, landed))
    }

    /// Like [`insert`](Self::insert), for the older design.
    #[cold]
    fn insert_single_lock(
        &self,
        context: &Context,
        covering: bool,
        landed: Option<CommitCallback>,
        enter: impl FnOnce(&mut Joining<'_>),
        order: u64,
    ) -> Option<Inserted> {
        let dead = read_by(&context.dead, &CONTEXT, &context.users);
        if **dead {
            return None;
        }
        let mut entered = Vec::new();
        let seq = self.seq();
        let base = self.open(seq);
        let mut joining = self.joining(seq, order, &mut entered);
        enter(&mut joining);
        let (grown, logged) = (joining.grown, joining.logged);
        let Padded(Counting { shard, users }) = self.shards.first()?;
        let mut shard = lock_by(shard, &SHARD, users);
        shard.items.append(&mut entered);
        Some(self.count(&mut shard, self.cost(base, grown), logged, covering, landed))
    }

    /// Announces that checkpoint `seq` will have items, before anybody can see them: whoever has seen them forces this
    /// checkpoint. The caller keeps it open. Returns its base cost, if that has not been paid yet.
    fn open(&self, seq: u64) -> u64 {
        // Read first: a cache line that nobody writes can be shared.
        let opened = &self.opened.0;
        let first = opened.load(Ordering::SeqCst) < seq && opened.fetch_max(seq, Ordering::SeqCst) < seq;
        if first { self.layout.base() } else { 0 }
    }

    fn joining<'a>(&self, seq: u64, order: u64, to: &'a mut Vec<Entry>) -> Joining<'a> {
        Joining { seq, order, is_formatted: self.vectors == Vectors::AtCommit, grown: 0, logged: 0, to }
    }

    /// Counts what a commit brought into a shard.
    fn count(
        &self,
        shard: &mut Shard,
        cost: i64,
        logged: u64,
        covering: bool,
        landed: Option<CommitCallback>,
    ) -> Inserted {
        shard.more |= !covering;
        shard.callbacks.extend(landed);
        let seq = shard.seq;
        shard.paid += cost;
        shard.uncounted += cost;
        let mut full = false;
        if shard.uncounted.unsigned_abs() >= self.uncounted_most {
            let uncounted = std::mem::take(&mut shard.uncounted);
            let sum = |paid: u64| Some(paid.saturating_add_signed(uncounted));
            let before = self.paid.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).unwrap_or(0);
            full = before.saturating_add_signed(uncounted) >= self.limit;
        }
        Inserted { seq, cost, logged, full }
    }

    /// The price of a commit that adds `grown` bytes of vectors.
    fn cost(&self, base: u64, grown: i64) -> i64 {
        // If vectors shrank, their bytes come back, but not their share of headers.
        let own = if grown > 0 { self.layout.charge(grown.unsigned_abs()).cast_signed() } else { grown };
        base.cast_signed() + own
    }

    /// Closes the open checkpoint, if it has items, and opens the next. The shards' lists are swapped for `spares`.
    pub(super) fn close(&self, spares: &mut Vec<Vec<Entry>>) -> Option<ClosedCheckpoint> {
        self.take_all(spares, false)
    }

    /// Like [`close`](Self::close), but no commit succeeds afterwards.
    pub(super) fn kill(&self) -> Option<ClosedCheckpoint> {
        self.take_all(&mut Vec::new(), true)
    }

    fn take_all(&self, spares: &mut Vec<Vec<Entry>>, kill: bool) -> Option<ClosedCheckpoint> {
        let mut context = self.context.as_ref().map(|context| write(&context.0.dead));
        let mut shards: Vec<MutexGuard<'_, Shard>> = Vec::with_capacity(self.shards.len());
        let seq = self.seq();
        spares.resize_with(self.shards.len(), Vec::new);
        let mut closed = ClosedCheckpoint {
            seq,
            items: Vec::new(),
            callbacks: Vec::new(),
            paid: 0,
            covering: true,
            parts: Vec::with_capacity(self.shards.len()),
        };
        CLOSE.count(Mode::Exclusive, None);
        shards.extend(self.shards.iter().map(|shard| lock(&shard.0.shard)));
        for shard in &mut shards {
            shard.dead |= kill;
        }
        if let Some(dead) = &mut context {
            **dead |= kill;
        }
        if !self.is_open() {
            return None;
        }
        let mut paid = 0;
        for shard in &mut shards {
            shard.seq = seq + 1;
            shard.uncounted = 0;
            closed.covering &= !std::mem::take(&mut shard.more);
            paid += std::mem::take(&mut shard.paid);
            closed.parts.push(std::mem::replace(&mut shard.items, spares.pop().unwrap_or_default()));
            closed.callbacks.append(&mut shard.callbacks);
        }
        self.seq.0.store(seq + 1, Ordering::SeqCst);
        self.paid.0.store(0, Ordering::Relaxed);
        drop((shards, context));
        debug_assert!(paid >= 0, "a checkpoint was paid {paid} bytes for");
        closed.paid = u64::try_from(paid).unwrap_or(0);
        Some(closed)
    }
}

impl ClosedCheckpoint {
    /// Puts the items in order and collects their changes in one vector. The emptied lists become spares.
    pub(super) fn gather(&mut self, spares: &mut Vec<Vec<Entry>>, vector: &mut LogVector) {
        for mut part in self.parts.drain(..) {
            self.items.append(&mut part);
            spares.push(part);
        }
        self.items.sort_by_key(|entry| entry.order);
        for entry in &self.items {
            let is_there = entry.item.collect(self.seq, vector);
            debug_assert!(is_there, "an item of a checkpoint that has nothing of it");
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::item::{AfterCommit, ItemState, Push};
    use super::super::vector::VecSize;
    use super::*;
    use std::sync::atomic::AtomicU32;
    use xfs_format::types::Lsn;

    #[derive(Debug, Default)]
    struct Plain {
        state: ItemState,
        pins: AtomicU32,
    }

    impl LogItem for Plain {
        fn state(&self) -> &ItemState {
            &self.state
        }
        fn pin(&self) {
            self.pins.fetch_add(1, Ordering::SeqCst);
        }
        fn unpin(&self) {}
        fn committed(&self, _lsn: Lsn) -> AfterCommit {
            AfterCommit::Drop
        }
        fn push(self: Arc<Self>) -> Push {
            Push::Gone
        }
    }

    fn vector(bytes: usize) -> LogVector {
        let mut vector = LogVector::begin(None, VecSize::default().region(bytes));
        vector.region(&vec![1; bytes]);
        vector
    }

    type Items = Vec<(Arc<dyn LogItem>, LogVector)>;

    fn join(cil: &Cil, items: &mut Items) -> Option<Inserted> {
        cil.insert(false, None, |joining| {
            items.drain(..).for_each(|(item, vector)| joining.vector(item, vector))
        })
    }

    fn cil() -> (Cil, LogLayout) {
        let layout = LogLayout::for_tests(100_000, 512, 32 << 10);
        (Cil::new(layout, Designs::default()), layout)
    }

    #[test]
    fn relogging_counts_the_difference() {
        let (cil, layout) = cil();
        let item = Arc::new(Plain::default());
        let mut list: Items = vec![(item.clone(), vector(100))];
        let first = join(&cil, &mut list).unwrap();
        assert!(list.is_empty());
        assert_eq!(first.cost, (layout.base() + layout.charge(112)) as i64);
        list.push((item.clone(), vector(160)));
        assert_eq!(join(&cil, &mut list).unwrap().cost, layout.charge(60) as i64);
        list.push((item.clone(), vector(40)));
        assert_eq!(join(&cil, &mut list).unwrap().cost, -120);
        assert_eq!(item.pins.load(Ordering::SeqCst), 1);
        let (mut spares, mut all) = (Vec::new(), LogVector::default());
        let mut closed = cil.close(&mut spares).unwrap();
        closed.gather(&mut spares, &mut all);
        assert_eq!((closed.seq, closed.items.len(), all.regions()), (1, 1, 1));
        assert_eq!(closed.paid, layout.base() + layout.charge(112) + layout.charge(60) - 120);
        assert!(cil.close(&mut spares).is_none());
    }

    #[test]
    fn items_come_in_the_order_of_commits_whatever_the_thread() {
        let (cil, _) = cil();
        let items: Vec<_> = (0..40).map(|_| Arc::new(Plain::default())).collect();
        for item in &items {
            // One thread per commit, so that the shards have nothing to do with the order.
            std::thread::scope(|scope| {
                scope.spawn(|| join(&cil, &mut vec![(item.clone() as _, vector(8))]).unwrap());
            });
        }
        let (mut spares, mut all) = (Vec::new(), LogVector::default());
        let mut closed = cil.close(&mut spares).unwrap();
        closed.gather(&mut spares, &mut all);
        for (entry, item) in closed.items.iter().zip(&items) {
            assert!(std::ptr::eq(entry.item.state(), item.state()));
        }
    }

    #[test]
    fn nothing_joins_a_dead_list() {
        let (cil, _) = cil();
        let item = Arc::new(Plain::default());
        let list: Items = vec![(item.clone(), vector(100))];
        assert!(cil.kill().is_none());
        assert!(cil.insert(false, None, |_| panic!("published")).is_none());
        assert_eq!((list.len(), item.pins.load(Ordering::SeqCst)), (1, 0));
    }
}
