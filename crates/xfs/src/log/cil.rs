//! The committed items list: what was committed and is not in the log yet.
//!
//! It is cut into shards. A commit takes the lock of its own thread's shard, and nothing else; who closes the
//! checkpoint takes all of them, so that the locks of the shards are the striped gate that decides which
//! checkpoint a commit joins: of two commits where one builds on the other, the later one is never in the earlier
//! checkpoint. While all are held, only lists are swapped; vectors are collected afterwards.
//!
//! The older design has one shard for all, which commits lock when their items are formatted, pinned and published; what
//! keeps their checkpoint open is a lock of its own, which they hold shared ([`CilLocks::SingleLock`]).
//!
//! Invariants: an item is in the list of at most one shard for each checkpoint; the bytes that shards count are
//! what tickets paid, which is at least what the checkpoint will take of the log.

use super::designs::{CilLocks, Designs, Vectors};
use super::item::{Entered, LogItem};
use super::layout::Layout;
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, RwLock, lock, lock_by, read_by, write};
use super::vector::LogVector;
use super::{OnLanded, thread_slot};
use lockstat::{LockClass, Mode, Users};
use std::sync::Arc;

static SHARD: LockClass = LockClass::new("cil shard");
/// Of the older design.
static CONTEXT: LockClass = LockClass::new("cil context");
static CLOSE: LockClass = LockClass::new("cil close");

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };

/// One item of a checkpoint.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) item: Arc<dyn LogItem>,
    /// Which commit brought it into the checkpoint.
    pub(super) order: u64,
}

#[derive(Default)]
struct Shard {
    /// The checkpoint that is open.
    seq: u64,
    items: Vec<Entry>,
    landed: Vec<OnLanded>,
    /// Bytes paid through this shard: less than nothing where vectors became smaller that others paid for.
    paid: i64,
    /// Of these, what [`Cil::paid`] does not count yet.
    uncounted: i64,
    /// Something was committed that does more than cover the log.
    more: bool,
    /// Nothing is committed any more.
    dead: bool,
}

/// A shard behind its lock, and who uses that.
struct Counting {
    shard: Mutex<Shard>,
    users: Users,
}

/// A checkpoint that is closed: nothing joins it any more.
pub(super) struct Closed {
    pub(super) seq: u64,
    /// In the order of their commits, as soon as [`gather`](Self::gather) was called.
    pub(super) items: Vec<Entry>,
    pub(super) landed: Vec<OnLanded>,
    /// Bytes that its transactions paid for it.
    pub(super) paid: u64,
    /// Nothing is in it but what covers the log.
    pub(super) covering: bool,
    parts: Vec<Vec<Entry>>,
}

#[cfg(all(test, not(shuttle)))]
impl Closed {
    /// One that has nothing in it.
    pub(super) fn empty(seq: u64) -> Self {
        let (items, landed, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { seq, items, landed, paid: 0, covering: false, parts }
    }
}

impl std::fmt::Debug for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closed").field("seq", &self.seq).field("paid", &self.paid).finish_non_exhaustive()
    }
}

/// What a commit came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) seq: u64,
    /// Bytes of log space that went from the ticket to the checkpoint; less than nothing if some came back.
    pub(super) cost: i64,
    /// Whether there is enough for a checkpoint now.
    pub(super) full: bool,
}

/// What keeps a checkpoint open for those who join it, where that is not the lock of their shard.
#[derive(Default)]
struct Context {
    /// Whether nothing is committed any more.
    dead: RwLock<bool>,
    users: Users,
}

pub(super) struct Cil {
    context: Option<Box<Padded<Context>>>,
    shards: Box<[Padded<Counting>]>,
    /// The youngest checkpoint that has something in it: its base is paid for.
    opened: Padded<AtomicU64>,
    /// Commits so far.
    order: Padded<AtomicU64>,
    /// About how many bytes the open checkpoint has.
    paid: Padded<AtomicU64>,
    /// The checkpoint that is open.
    seq: Padded<AtomicU64>,
    layout: Layout,
    vectors: Vectors,
    limit: u64,
    /// What a shard counts by itself, at most.
    uncounted_most: u64,
}

impl std::fmt::Debug for Cil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cil").field("seq", &self.seq()).field("paid", &self.paid()).finish_non_exhaustive()
    }
}

impl Cil {
    pub(super) fn new(layout: Layout, designs: Designs) -> Self {
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

    /// The youngest checkpoint that has something in it, open or closed; 0: there was none yet.
    pub(super) fn opened(&self) -> u64 {
        self.opened.0.load(Ordering::SeqCst)
    }

    /// Whether something is in the checkpoint that is open.
    pub(super) fn is_open(&self) -> bool {
        self.opened() >= self.seq()
    }

    /// About how many bytes the open checkpoint has.
    pub(super) fn paid(&self) -> u64 {
        self.paid.0.load(Ordering::Relaxed)
    }

    /// Bytes that a checkpoint should gather.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Puts the items of a commit, which may be one that covers the log, into the open checkpoint. `None`: there is none
    /// any more, and nothing was done.
    pub(super) fn join(
        &self,
        covering: bool,
        items: &mut Vec<(Arc<dyn LogItem>, LogVector)>,
        landed: Option<OnLanded>,
        publish: impl FnOnce(),
    ) -> Option<Joined> {
        // Far apart: the shards of two threads, and what one commit counts and another reads.
        let order = self.order.0.fetch_add(1, Ordering::Relaxed);
        if let Some(context) = &self.context {
            return self.join_single(&context.0, covering, items, landed, publish, order);
        }
        let Padded(Counting { shard, users }) = self.shards.get(thread_slot::current() % SHARDS)?;
        let mut shard = lock_by(shard, &SHARD, users);
        if shard.dead {
            return None;
        }
        let seq = shard.seq;
        let grown = self.enter(seq, order, items, &mut shard.items);
        publish();
        Some(self.count(&mut shard, seq, grown, covering, landed))
    }

    /// As [`join`](Self::join), of the older design.
    #[cold]
    fn join_single(
        &self,
        context: &Context,
        covering: bool,
        items: &mut Vec<(Arc<dyn LogItem>, LogVector)>,
        landed: Option<OnLanded>,
        publish: impl FnOnce(),
        order: u64,
    ) -> Option<Joined> {
        let dead = read_by(&context.dead, &CONTEXT, &context.users);
        if **dead {
            return None;
        }
        let (seq, mut entered) = (self.seq(), Vec::new());
        let grown = self.enter(seq, order, items, &mut entered);
        publish();
        let Padded(Counting { shard, users }) = self.shards.first()?;
        let mut shard = lock_by(shard, &SHARD, users);
        shard.items.append(&mut entered);
        Some(self.count(&mut shard, seq, grown, covering, landed))
    }

    /// Has items hold their vectors for checkpoint `seq`, and pins those that are new in it. Gives by how many bytes the
    /// checkpoint has grown.
    fn enter(
        &self,
        seq: u64,
        order: u64,
        items: &mut Vec<(Arc<dyn LogItem>, LogVector)>,
        to: &mut Vec<Entry>,
    ) -> i64 {
        let (mut grown, one_pass) = (0, self.keeps_vectors());
        for (item, vector) in items.drain(..) {
            grown += i64::from(vector.log_bytes());
            let vector = if one_pass { vector } else { vector.in_two_passes() };
            match item.state().enter(seq, vector, one_pass) {
                Entered::Replaced { bytes } => grown -= i64::from(bytes),
                Entered::New => {
                    item.pin();
                    to.push(Entry { item, order });
                }
            }
        }
        grown
    }

    /// Whether items keep the memory of their vectors for the next ones.
    pub(super) fn keeps_vectors(&self) -> bool {
        self.vectors == Vectors::OnePass
    }

    /// Puts down what a commit brought into a shard.
    fn count(
        &self,
        shard: &mut Shard,
        seq: u64,
        grown: i64,
        covering: bool,
        landed: Option<OnLanded>,
    ) -> Joined {
        shard.more |= !covering;
        shard.landed.extend(landed);
        let cost = self.cost(seq, grown);
        shard.paid += cost;
        shard.uncounted += cost;
        let mut full = false;
        if shard.uncounted.unsigned_abs() >= self.uncounted_most {
            let uncounted = std::mem::take(&mut shard.uncounted);
            let sum = |paid: u64| Some(paid.saturating_add_signed(uncounted));
            let before = self.paid.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).unwrap_or(0);
            full = before.saturating_add_signed(uncounted) >= self.limit;
        }
        Joined { seq, cost, full }
    }

    /// What a commit that adds `grown` bytes of vectors pays.
    fn cost(&self, seq: u64, grown: i64) -> i64 {
        // What became smaller comes back without its share of headers.
        let own = if grown > 0 { self.layout.charge(grown.unsigned_abs()).cast_signed() } else { grown };
        // The lock of the shard, or of the context, keeps `seq` open. Read first: a line that nobody writes is shared.
        let opened = &self.opened.0;
        let first = opened.load(Ordering::SeqCst) < seq && opened.fetch_max(seq, Ordering::SeqCst) < seq;
        own + if first { self.layout.base().cast_signed() } else { 0 }
    }

    /// Closes the open checkpoint, if something is in it, and opens the next. The lists that it was gathered in
    /// are swapped for `spares`.
    pub(super) fn close(&self, spares: &mut Vec<Vec<Entry>>) -> Option<Closed> {
        self.take_all(spares, false)
    }

    /// As [`close`](Self::close); no commit succeeds from then on.
    pub(super) fn kill(&self) -> Option<Closed> {
        self.take_all(&mut Vec::new(), true)
    }

    fn take_all(&self, spares: &mut Vec<Vec<Entry>>, kill: bool) -> Option<Closed> {
        let mut context = self.context.as_ref().map(|context| write(&context.0.dead));
        let mut shards: Vec<MutexGuard<'_, Shard>> = Vec::with_capacity(self.shards.len());
        let seq = self.seq();
        spares.resize_with(self.shards.len(), Vec::new);
        let mut closed = Closed {
            seq,
            items: Vec::new(),
            landed: Vec::new(),
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
            closed.landed.append(&mut shard.landed);
        }
        self.seq.0.store(seq + 1, Ordering::SeqCst);
        self.paid.0.store(0, Ordering::Relaxed);
        drop((shards, context));
        debug_assert!(paid >= 0, "a checkpoint was paid {paid} bytes for");
        closed.paid = u64::try_from(paid).unwrap_or(0);
        Some(closed)
    }
}

impl Closed {
    /// Puts the items in order and collects their vectors; the emptied lists become spares again.
    pub(super) fn gather(&mut self, spares: &mut Vec<Vec<Entry>>, vectors: &mut Vec<LogVector>) {
        for mut part in self.parts.drain(..) {
            self.items.append(&mut part);
            spares.push(part);
        }
        self.items.sort_by_key(|entry| entry.order);
        vectors.clear();
        vectors.extend(self.items.iter().map(|entry| {
            let vector = entry.item.state().collect(self.seq);
            debug_assert!(vector.is_some(), "an item of a checkpoint without its vector");
            vector.unwrap_or_default()
        }));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::item::{ItemState, Landing, Push};
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
        fn landed(&self, _lsn: Lsn) -> Landing {
            Landing::Drop
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

    fn cil() -> (Cil, Layout) {
        let layout = Layout::for_tests(100_000, 512, 32 << 10);
        (Cil::new(layout, Designs::default()), layout)
    }

    #[test]
    fn relogging_counts_the_difference() {
        let (cil, layout) = cil();
        let item = Arc::new(Plain::default());
        let mut list: Vec<(Arc<dyn LogItem>, LogVector)> = vec![(item.clone(), vector(100))];
        let first = cil.join(false, &mut list, None, || ()).unwrap();
        assert!(list.is_empty());
        assert_eq!(first.cost, (layout.base() + layout.charge(112)) as i64);
        list.push((item.clone(), vector(160)));
        assert_eq!(cil.join(false, &mut list, None, || ()).unwrap().cost, layout.charge(60) as i64);
        list.push((item.clone(), vector(40)));
        assert_eq!(cil.join(false, &mut list, None, || ()).unwrap().cost, -120);
        assert_eq!(item.pins.load(Ordering::SeqCst), 1);
        let (mut spares, mut vectors) = (Vec::new(), Vec::new());
        let mut closed = cil.close(&mut spares).unwrap();
        closed.gather(&mut spares, &mut vectors);
        assert_eq!((closed.seq, closed.items.len(), vectors.len()), (1, 1, 1));
        assert_eq!(closed.paid, layout.base() + layout.charge(112) + layout.charge(60) - 120);
        assert!(cil.close(&mut spares).is_none());
    }

    #[test]
    fn items_come_in_the_order_of_commits_whatever_the_thread() {
        let (cil, _) = cil();
        let items: Vec<_> = (0..40).map(|_| Arc::new(Plain::default())).collect();
        for item in &items {
            // A thread each, hence shards that have nothing to do with the order.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    cil.join(false, &mut vec![(item.clone() as _, vector(8))], None, || ()).unwrap()
                });
            });
        }
        let (mut spares, mut vectors) = (Vec::new(), Vec::new());
        let mut closed = cil.close(&mut spares).unwrap();
        closed.gather(&mut spares, &mut vectors);
        for (entry, item) in closed.items.iter().zip(&items) {
            assert!(std::ptr::eq(entry.item.state(), item.state()));
        }
    }

    #[test]
    fn nothing_joins_a_dead_list() {
        let (cil, _) = cil();
        let item = Arc::new(Plain::default());
        let mut list: Vec<(Arc<dyn LogItem>, LogVector)> = vec![(item.clone(), vector(100))];
        assert!(cil.kill().is_none());
        assert!(cil.join(false, &mut list, None, || panic!("published")).is_none());
        assert_eq!((list.len(), item.pins.load(Ordering::SeqCst)), (1, 0));
    }
}
