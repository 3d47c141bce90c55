//! Models of the journal, run under the schedules of a random scheduler: `RUSTFLAGS="--cfg shuttle" cargo test -p
//! uxfs-xfs --lib models`. Failing schedules are printed and can be replayed (`shuttle::replay`).

use super::designs::{CilLocks, HandleCounts, Reservations, Vectors};
use super::gate::Gate;
use super::grant::{Grant, GrantHead, LogSpace};
use super::handles::Handles;
use super::item::{AfterCommit, ItemState, LogItem, Push, WriteJob};
use super::layout::{LogLayout, Pos};
use super::open::LogStart;
use super::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering, ThreadId, lock, thread, wait};
use super::vector::{LogVector, VecSize};
use super::{CheckpointOutcome, CommitSeq, Designs, Journal, Pace, ShutdownReason, Ticket};
use blockdev::{
    AlignedBuf, BlockDevice, DeviceError, Durability, Fault, FaultDevice, Layer, Means, MemoryDevice, Op,
    Repeat,
};
use shuttle::rand::Rng;
use std::sync::{Arc, Weak};
use xfs_format::types::{DiskAddr, Lsn};

fn check(iterations: usize, model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = Arc::clone(&model);
    shuttle::check_random(move || model(), iterations);
    shuttle::check_pct(move || again(), iterations, 3);
}

/// A gate whose handles are counted in this design.
fn gate(design: HandleCounts) -> Gate {
    Gate::new(Arc::new(Handles::new(design)))
}

/// The space of a small log, with a limit for what each slot may keep.
fn grant(bytes: u64, designs: Designs, keeps: u64) -> Grant {
    let handles = Arc::new(Handles::new(designs.handles));
    Grant::new(bytes, bytes, handles, designs.reservation).keeping(keeps)
}

/// Journals of today's design and of older ones.
const DESIGNS: [Designs; 3] =
    [TODAY, Designs { cil: CilLocks::SingleLock, vectors: Vectors::AtCommit, ..TODAY }, Designs::OLDEST];

const TODAY: Designs = Designs {
    handles: HandleCounts::Atomic,
    reservation: Reservations::Atomic,
    cil: CilLocks::Sharded,
    vectors: Vectors::AtClose,
};

/// How a journal is made.
#[derive(Clone, Copy)]
struct Setup {
    designs: Designs,
    means: Means,
    /// Maximum bytes of a record.
    record_size: u32,
}

/// One record size that holds all that a model commits at once, and one that needs several records, which are written
/// together.
const RECORD_SIZES: [u32; 2] = [32 << 10, 8 << 10];

/// Runs a model of these designs on devices of all kinds. With a write cache, the journal's threads write the log;
/// without one, the thread that forces it does.
fn check_journals(
    designs: &[Designs],
    iterations: usize,
    model: impl Fn(Setup) + Copy + Send + Sync + 'static,
) {
    check_journals_on(&Means::ALL, designs, iterations, model);
}

/// Like [`check_journals`], only on devices with a write cache. On others, the thread that commits a checkpoint also
/// lands it.
fn check_journals_with_caches(
    designs: &[Designs],
    iterations: usize,
    model: impl Fn(Setup) + Copy + Send + Sync + 'static,
) {
    let with_caches: Vec<Means> = Means::ALL.into_iter().filter(|means| means.write_cache).collect();
    check_journals_on(&with_caches, designs, iterations, model);
}

fn check_journals_on(
    all_means: &[Means],
    designs: &[Designs],
    iterations: usize,
    model: impl Fn(Setup) + Copy + Send + Sync + 'static,
) {
    for &designs in designs {
        for &means in all_means {
            for record_size in RECORD_SIZES {
                check(iterations / 2, move || model(Setup { designs, means, record_size }));
            }
        }
    }
}

#[test]
fn models_reservation_serves_everybody_and_never_too_much() {
    DESIGNS.into_iter().for_each(reservation_serves_everybody);
}

fn reservation_serves_everybody(designs: Designs) {
    check(2000, move || {
        let grant = Arc::new(grant(10, designs, 0));
        let inside = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = [
            (4, GrantHead::Reserve),
            (7, GrantHead::Reserve),
            (5, GrantHead::Write),
            (10, GrantHead::Reserve),
        ]
        .into_iter()
        .map(|(bytes, turn)| {
            let (grant, inside) = (Arc::clone(&grant), Arc::clone(&inside));
            thread::spawn(move || {
                for _ in 0..2 {
                    let promised = if turn == GrantHead::Reserve { bytes } else { 0 };
                    let claim = LogSpace { used: bytes, promised };
                    grant.take(claim, turn, || ()).unwrap();
                    let sum = inside.fetch_add(bytes, Ordering::SeqCst) + bytes;
                    assert!(sum <= 10, "{sum} bytes of 10 are taken");
                    inside.fetch_sub(bytes, Ordering::SeqCst);
                    grant.give(claim);
                }
            })
        })
        .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((grant.used(), grant.wanted()), (0, 0));
    });
}

/// Handles take what earlier ones gave back, and others find nothing but that: it is never lost, nobody waits while it
/// is there, and no two handles get it.
#[test]
fn models_what_handles_give_back_serves_everybody() {
    for handles in HandleCounts::ALL {
        check(3000, move || {
            let handles = Arc::new(Handles::new(handles));
            let grant = Grant::new(10, 10, Arc::clone(&handles), Reservations::Atomic).keeping(10);
            let (grant, gate) = (Arc::new(grant), Arc::new(Gate::new(handles)));
            let inside = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = [(4, 1), (7, 0), (3, 4), (10, 0)]
                .into_iter()
                .map(|(bytes, more)| {
                    let (grant, gate, inside) = (Arc::clone(&grant), Arc::clone(&gate), Arc::clone(&inside));
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let mut claim = LogSpace { used: bytes, promised: bytes };
                            let (slot, paid) = gate.enter(grant.claim_of_kept(claim)).unwrap();
                            if !paid {
                                grant.take(claim, GrantHead::Reserve, || ()).unwrap();
                            }
                            let sum = inside.fetch_add(bytes, Ordering::SeqCst) + bytes;
                            assert!(sum <= 10, "{sum} bytes of 10 are taken");
                            let longer = LogSpace { used: more, promised: more };
                            if grant.try_take_at(slot, longer, GrantHead::Reserve) {
                                let sum = inside.fetch_add(more, Ordering::SeqCst) + more;
                                assert!(sum <= 10, "{sum} bytes of 10 are taken");
                                claim = claim.plus(longer);
                            }
                            inside.fetch_sub(claim.used, Ordering::SeqCst);
                            grant.give_at(slot, claim, || ());
                            gate.leave(slot);
                        }
                    })
                })
                .collect();
            assert!(gate.close());
            assert_eq!((inside.load(Ordering::SeqCst), grant.used(), grant.promised()), (0, 0, 0));
            gate.open();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((grant.used(), grant.promised(), grant.wanted()), (0, 0, 0));
            assert!(
                grant.try_take(LogSpace { used: 10, promised: 10 }, GrantHead::Reserve),
                "all of it is to be had"
            );
        });
    }
}

/// Whoever collects what slots keep serves those who began to wait in between, before it takes a part of it.
#[test]
fn models_who_collects_kept_space_serves_those_who_wait() {
    check(20000, || {
        // All 10 bytes are kept in a slot and belong to nobody.
        let handles = Arc::new(Handles::new(HandleCounts::Atomic));
        let grant = Grant::new(10, 10, Arc::clone(&handles), Reservations::Atomic).keeping(10);
        let grant = Arc::new(grant);
        let all = LogSpace { used: 10, promised: 10 };
        grant.take(all, GrantHead::Reserve, || ()).unwrap();
        grant.give_at(0, all, || ());
        // A transaction that begins, with its space, waits for what one that rolls has locked.
        let (rolled, told) = (Arc::new(Mutex::new(false)), Arc::new(Condvar::new()));
        let begins = {
            let (grant, rolled, told) = (Arc::clone(&grant), Arc::clone(&rolled), Arc::clone(&told));
            thread::spawn(move || {
                let claim = LogSpace { used: 4, promised: 4 };
                grant.take(claim, GrantHead::Reserve, || ()).unwrap();
                let mut ilock = lock(&rolled);
                while !*ilock {
                    ilock = wait(&told, ilock);
                }
                drop(ilock);
                grant.give(claim);
            })
        };
        let rolls = thread::spawn(move || {
            let claim = LogSpace { used: 4, promised: 0 };
            grant.take(claim, GrantHead::Write, || ()).unwrap();
            *lock(&rolled) = true;
            told.notify_all();
            grant.give(claim);
        });
        begins.join().unwrap();
        rolls.join().unwrap();
    });
}

#[test]
fn models_a_shutdown_wakes_who_waits_for_space() {
    check(2000, || {
        let grant = Arc::new(grant(10, TODAY, 0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let grant = Arc::clone(&grant);
                thread::spawn(move || {
                    // What is taken is not given back.
                    let _ = grant.take(LogSpace { used: 6, promised: 6 }, GrantHead::Reserve, || ());
                })
            })
            .collect();
        grant.kill();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn models_a_closed_gate_is_empty() {
    HandleCounts::ALL.into_iter().for_each(a_closed_gate_is_empty);
}

fn a_closed_gate_is_empty(design: HandleCounts) {
    check(2000, move || {
        let gate = Arc::new(gate(design));
        let inside = Arc::new(AtomicU64::new(0));
        let walkers: Vec<_> = (0..3)
            .map(|_| {
                let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..2 {
                        let (slot, _) = gate.enter(None).unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        gate.leave(slot);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            assert!(gate.close());
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            gate.open();
        }
        walkers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Closing a journal kills its gate and then opens it. A thread outside may see that only after both.
#[test]
fn models_who_waits_for_a_gate_that_is_killed_turns_back() {
    check(2000, || {
        let gate = Arc::new(gate(HandleCounts::Atomic));
        assert!(gate.close());
        let waits = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || gate.enter(None))
        };
        gate.kill();
        gate.open();
        assert_eq!(waits.join().unwrap(), None);
    });
}

/// A number that transactions change and that is written back to a block of its own.
#[derive(Debug)]
struct Number {
    state: ItemState,
    me: Weak<Number>,
    daddr: u64,
    inner: Mutex<Inner>,
    owner: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    value: u64,
    pins: u32,
    /// The value that is permanently in the log.
    landed: u64,
    /// Values of checkpoints that are not, oldest first.
    waiting: Vec<u64>,
}

impl Number {
    fn new(daddr: u64) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            state: ItemState::new(),
            me: me.clone(),
            daddr,
            inner: Mutex::new(Inner::default()),
            owner: Mutex::new(()),
        })
    }
}

impl Number {
    /// After the end of a journal, what is permanently in the log may be written back, and nothing else.
    fn is_pinned_unless_landed(&self) {
        let inner = lock(&self.inner);
        let Inner { value, landed, .. } = *inner;
        assert_eq!(inner.pins > 0, value != landed, "{landed} of {value} is in the log");
        assert!(inner.waiting.iter().all(|&waiting| waiting > landed), "{inner:?}");
    }
}

impl LogItem for Number {
    fn state(&self) -> &ItemState {
        &self.state
    }

    fn pin(&self) {
        let mut inner = lock(&self.inner);
        inner.pins += 1;
        let value = inner.value;
        inner.waiting.push(value);
    }

    fn unpin(&self) {
        let mut inner = lock(&self.inner);
        inner.pins -= 1;
        inner.landed = inner.waiting.remove(0);
    }

    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Ail
    }

    fn push(self: Arc<Self>) -> Push {
        let lsn = self.state.lsn();
        let inner = lock(&self.inner);
        if inner.pins > 0 {
            return Push::Pinned;
        }
        // Write-ahead: nothing is written in place before it is in the log.
        assert_eq!(inner.value, inner.landed, "a value is written back that is not in the log");
        let me = self.me.upgrade().unwrap();
        let mut bytes = AlignedBuf::zeroed(512);
        bytes[..8].copy_from_slice(&inner.value.to_le_bytes());
        let done = move |journal: &Journal, result: Result<(), blockdev::DeviceError>| {
            result.unwrap();
            let item: Arc<dyn LogItem> = me;
            journal.ail_remove(&item, lsn);
        };
        Push::Write(WriteJob { daddr: DiskAddr(self.daddr), bytes, done: Box::new(done) })
    }
}

const LOG_BLOCKS: u32 = 600;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(1 << 20).unwrap())
}

/// A journal with a log for a few dozen transactions, and room for items behind it.
fn journal(setup: Setup) -> (Arc<dyn BlockDevice>, Arc<Journal>) {
    let device = setup.means.of(memory());
    let journal = journal_on(Arc::clone(&device), setup);
    (device, journal)
}

fn journal_on(device: Arc<dyn BlockDevice>, setup: Setup) -> Arc<Journal> {
    let layout = LogLayout::for_tests(LOG_BLOCKS, 512, setup.record_size);
    let head = Pos(LOG_BLOCKS.into());
    let start = LogStart { head, tail: head, previous: u32::MAX, had_traces: false };
    Journal::start(device, layout, start, Pace::Background, setup.designs).unwrap()
}

/// Adds one to all of `numbers` in one transaction. Returns whether it was committed.
fn add_one(journal: &Journal, numbers: &[Arc<Number>], bytes: usize, force: bool) -> bool {
    let size = VecSize::default().region(bytes);
    let Ok(ticket) = journal.reserve(size.log_bytes() * numbers.len() as u32, 1, 0) else { return false };
    commit_one(journal, ticket, numbers, bytes, force).is_some()
}

/// Returns the checkpoint into which it was committed.
fn commit_one(
    journal: &Journal,
    ticket: Ticket,
    numbers: &[Arc<Number>],
    bytes: usize,
    force: bool,
) -> Option<CommitSeq> {
    commit_told(journal, ticket, numbers, &vec![1; bytes], force)
}

/// The same, with the region that is logged for each.
fn commit_told(
    journal: &Journal,
    mut ticket: Ticket,
    numbers: &[Arc<Number>],
    region: &[u8],
    force: bool,
) -> Option<CommitSeq> {
    let size = VecSize::default().region(region.len());
    let held: Vec<_> = numbers.iter().map(|number| lock(&number.owner)).collect();
    let mut items: Vec<(Arc<dyn LogItem>, LogVector)> = Vec::new();
    for number in numbers {
        let mut vector = LogVector::of_spare(size.log_bytes() as usize);
        vector.region(region);
        items.push((number.clone(), vector));
    }
    let publish = || {
        for number in numbers {
            let mut inner = lock(&number.inner);
            inner.value += 1;
            let value = inner.value;
            assert!(inner.pins > 0, "published before it was pinned");
            *inner.waiting.last_mut().unwrap() = value;
        }
    };
    let committed = journal.commit(&mut ticket, &mut items, None, publish);
    let values: Vec<u64> = numbers.iter().map(|number| lock(&number.inner).value).collect();
    drop(held);
    journal.release(ticket);
    let seq = committed.ok()?;
    if force && journal.force(seq).is_ok() {
        for (number, value) in numbers.iter().zip(values) {
            assert!(lock(&number.inner).landed >= value, "forced, and not landed");
        }
    }
    Some(seq)
}

/// The value on disk.
fn stored(device: &dyn BlockDevice, number: &Number) -> u64 {
    let mut sector = [0; 512];
    device.read(number.daddr * 512, &mut sector).unwrap();
    u64::from_le_bytes(sector[..8].try_into().unwrap())
}

#[test]
fn models_commits_join_checkpoints_in_their_order_and_all_land() {
    check_journals(&DESIGNS, 75, |setup| {
        let (device, journal) = journal(setup);
        let numbers: Vec<_> = (0..3).map(|nth| Number::new(1000 + nth)).collect();
        let threads: Vec<_> = [(0, 2, true), (1, 3, false), (0, 3, false)]
            .into_iter()
            .map(|(from, to, force)| {
                let (journal, numbers) = (Arc::clone(&journal), numbers[from..to].to_vec());
                thread::spawn(move || {
                    for _ in 0..2 {
                        assert!(add_one(&journal, &numbers, 40, force));
                    }
                })
            })
            .collect();
        journal.push_cil();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        journal.quiesce().unwrap();
        let values: Vec<_> = numbers.iter().map(|number| stored(&*device, number)).collect();
        assert_eq!(values, [4, 6, 4]);
        journal.close().unwrap();
        assert_eq!(journal.space().0, 0, "all log space came back");
    });
}

/// A checkpoint with more items than are completed where it is closed is handed over. One that does not fit into a
/// record is not kept open until the one before is committed.
#[test]
fn models_large_checkpoints_land_in_their_order() {
    check_journals(&[TODAY], 200, |setup| {
        let (_, journal) = journal(setup);
        let numbers: Vec<_> = (0..3).map(|nth| Number::new(1000 + nth)).collect();
        let large = setup.record_size as usize + 1000;
        let threads: Vec<_> = [(3, 40), (1, large)]
            .into_iter()
            .map(|(count, bytes)| {
                let (journal, numbers) = (Arc::clone(&journal), numbers[..count].to_vec());
                thread::spawn(move || (0..3).all(|_| add_one(&journal, &numbers, bytes, true)))
            })
            .collect();
        for thread in threads {
            assert!(thread.join().unwrap());
        }
        journal.close().unwrap();
    });
}

/// A device with a word for each thread; a flush makes the words that the threads have written stable. If the device
/// has no durable writes, a write that replaces one flushes it too. No record may tell of a word that is not stable
/// ([`tells_of`]).
#[derive(Debug)]
struct Flushed {
    written: [AtomicU64; THREADS],
    stable: [AtomicU64; THREADS],
    means: Means,
    inner: Arc<dyn BlockDevice>,
}

const THREADS: usize = 3;

impl Flushed {
    fn new(means: Means) -> Arc<Self> {
        Arc::new(Self { written: Default::default(), stable: Default::default(), means, inner: memory() })
    }

    fn write(&self, nth: usize, word: u64) {
        self.written[nth].store(word, Ordering::SeqCst);
    }

    fn is_stable(&self, nth: usize, word: u64) -> bool {
        self.stable[nth].load(Ordering::SeqCst) >= word
    }
}

/// What the log contains for a thread's word, repeated.
fn tells_of(nth: usize, word: u64) -> [u8; 4] {
    [0xda, nth as u8, word as u8, 0xad]
}

/// The words that bytes of the log tell of. The log's cycle number may overwrite part of one, but not of two in a row.
fn told_by(bytes: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    bytes.chunks_exact(4).filter_map(|word| match *word {
        [0xda, nth, word, 0xad] => Some((usize::from(nth), u64::from(word))),
        _ => None,
    })
}

impl Layer for Flushed {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_flush(&self) -> std::result::Result<(), DeviceError> {
        let seen: Vec<_> = self.written.iter().map(|word| word.load(Ordering::SeqCst)).collect();
        thread::yield_now();
        for (stable, seen) in self.stable.iter().zip(seen) {
            stable.fetch_max(seen, Ordering::SeqCst);
        }
        Ok(())
    }

    fn pass_write(
        &self,
        offset: u64,
        buf: &[u8],
        durability: Durability,
    ) -> std::result::Result<(), DeviceError> {
        for (nth, word) in told_by(buf) {
            assert!(self.is_stable(nth, word), "a record tells of word {word} of thread {nth}");
        }
        thread::yield_now();
        self.inner.write(offset, buf, durability)?;
        if durability == Durability::Fua && !self.means.fua { self.pass_flush() } else { Ok(()) }
    }

    fn pass_fua(&self) -> bool {
        self.means.fua
    }

    fn pass_write_cache(&self) -> bool {
        self.means.write_cache
    }
}

/// Data that were written before a commit that tells of them are stable before the log tells of them, and at the latest
/// when the log is forced. So nobody needs an extra flush, however many checkpoints share one.
#[test]
fn models_no_record_tells_of_data_that_are_not_stable() {
    check_journals(&[TODAY], 500, |setup| {
        let device = Flushed::new(setup.means);
        let journal = journal_on(device.clone(), setup);
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| {
                let (journal, device) = (Arc::clone(&journal), Arc::clone(&device));
                thread::spawn(move || {
                    let number = Number::new(1000 + nth as u64);
                    for word in 1..4 {
                        device.write(nth, word);
                        let region = tells_of(nth, word).repeat(800);
                        assert!(add_told(&journal, &number, &region, word != 2));
                        assert!(word == 2 || device.is_stable(nth, word));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        journal.close().unwrap();
    });
}

/// Adds one to a number and logs `region` for it.
fn add_told(journal: &Journal, number: &Arc<Number>, region: &[u8], force: bool) -> bool {
    let ticket = journal.reserve(VecSize::default().region(region.len()).log_bytes(), 1, 0).unwrap();
    commit_told(journal, ticket, std::slice::from_ref(number), region, force).is_some()
}

/// If a thread writes data for a checkpoint that may be under way already, and relies on its flush, the data are
/// stable.
#[test]
fn models_a_flush_that_is_to_come_makes_data_stable() {
    check_journals(&[TODAY], 500, |setup| {
        let device = Flushed::new(setup.means);
        let journal = journal_on(device.clone(), setup);
        let threads: Vec<_> = (0..2)
            .map(|nth| {
                let (journal, device) = (Arc::clone(&journal), Arc::clone(&device));
                thread::spawn(move || {
                    let numbers = [Number::new(1000 + nth as u64)];
                    for data in 1..3 {
                        let ticket =
                            journal.reserve(VecSize::default().region(40).log_bytes(), 1, 0).unwrap();
                        let seq = commit_one(&journal, ticket, &numbers, 40, false).expect("committed");
                        device.write(nth, data);
                        if journal.will_flush(seq) {
                            journal.force(seq).unwrap();
                            assert!(device.is_stable(nth, data));
                        }
                    }
                })
            })
            .collect();
        journal.push_cil();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        journal.close().unwrap();
    });
}

/// A journal covers its log beside commits: what counts as covered has been written back.
#[test]
fn models_a_covered_log_has_nothing_to_replay() {
    check_journals(&[TODAY], 75, |setup| {
        let (device, journal) = journal(setup);
        let superblock = Number::new(1099);
        journal.set_cover({
            let (journal, superblock) = (Arc::downgrade(&journal), Arc::clone(&superblock));
            move || {
                let Some(journal) = journal.upgrade() else { return };
                let size = VecSize::default().region(40);
                let Some(ticket) = journal.reserve_to_cover(size.log_bytes()) else { return };
                assert!(commit_one(&journal, ticket, &[Arc::clone(&superblock)], 40, false).is_some());
            }
        });
        let number = Number::new(1000);
        let works = {
            let (journal, number) = (Arc::clone(&journal), Arc::clone(&number));
            thread::spawn(move || {
                assert!(add_one(&journal, &[Arc::clone(&number)], 40, false));
                assert!(add_one(&journal, &[number], 40, true));
            })
        };
        for _ in 0..3 {
            journal.pass_idle_time().unwrap();
        }
        works.join().unwrap();
        for _ in 0..4 {
            journal.pass_idle_time().unwrap();
        }
        assert!(journal.is_covered(), "nothing happens any more");
        assert_eq!(stored(&*device, &number), 2);
        let covered = lock(&superblock.inner).landed;
        assert!((1..=3).contains(&covered), "{covered} times");
        journal.close().unwrap();
    });
}

#[test]
fn models_a_full_log_empties_itself() {
    check_journals(&DESIGNS, 10, |setup| {
        let (_, journal) = journal(setup);
        let threads: Vec<_> = (0..2)
            .map(|nth| {
                let journal = Arc::clone(&journal);
                thread::spawn(move || {
                    for step in 0..8 {
                        // New numbers, so that relogging absorbs nothing.
                        let number = Number::new(1000 + nth * 10 + step);
                        assert!(add_one(&journal, &[number], 60_000, false));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        journal.close().unwrap();
    });
}

#[test]
fn models_a_shutdown_ends_every_wait() {
    check_journals(&DESIGNS, 100, |setup| {
        let (_, journal) = journal(setup);
        let numbers: Vec<_> = (0..2).map(|nth| Number::new(1000 + nth)).collect();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (journal, numbers) = (Arc::clone(&journal), numbers.clone());
                thread::spawn(move || (0..4).all(|_| add_one(&journal, &numbers, 40, true)))
            })
            .collect();
        journal.shutdown(ShutdownReason::Asked);
        for thread in threads {
            // Whether it ended before the shutdown is chance.
            let _all: bool = thread.join().unwrap();
        }
        drop(journal);
        for number in numbers {
            number.is_pinned_unless_landed();
        }
    });
}

/// A flush finds that the device has failed, and ends the journal.
#[test]
fn models_a_flush_that_fails_ends_every_wait() {
    check_journals(&[TODAY], 100, |setup| {
        let nth = shuttle::rand::thread_rng().gen_range(0..6);
        let fault = Fault::fail(Op::Flush, nth).then(Repeat::Sticky);
        let journal = journal_on(setup.means.of(Arc::new(FaultDevice::new(memory(), vec![fault]))), setup);
        let numbers: Vec<_> = (0..2).map(|nth| Number::new(1000 + nth)).collect();
        let threads: Vec<_> = (0..2)
            .map(|nth| {
                let (journal, numbers) = (Arc::clone(&journal), numbers[nth..].to_vec());
                thread::spawn(move || while add_one(&journal, &numbers, 40, true) {})
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(journal.is_shut_down(), Some(ShutdownReason::Flush));
        journal.halt(ShutdownReason::Asked);
        for number in numbers {
            number.is_pinned_unless_landed();
        }
    });
}

/// A device that records who writes the log, and when.
#[derive(Debug)]
struct Watched {
    is_down: AtomicBool,
    /// Threads whose flush ended after the journal was shut down.
    late: Mutex<Vec<ThreadId>>,
    /// Which thread wrote each record.
    writers: Mutex<Vec<ThreadId>>,
    inner: Arc<dyn BlockDevice>,
}

impl Watched {
    fn new() -> Arc<Self> {
        let (late, writers) = Default::default();
        Arc::new(Self { is_down: AtomicBool::new(false), late, writers, inner: memory() })
    }
}

impl Layer for Watched {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_flush(&self) -> std::result::Result<(), DeviceError> {
        thread::yield_now();
        if self.is_down.load(Ordering::SeqCst) {
            lock(&self.late).push(thread::current().id());
        }
        Ok(())
    }

    fn pass_write(
        &self,
        offset: u64,
        buf: &[u8],
        durability: Durability,
    ) -> std::result::Result<(), DeviceError> {
        if offset < u64::from(LOG_BLOCKS) * 512 {
            let me = thread::current().id();
            assert!(!lock(&self.late).contains(&me), "a record is written behind a shutdown");
            lock(&self.writers).push(me);
        }
        self.inner.write(offset, buf, durability)
    }
}

/// What is not in the log at shutdown never gets there, even if its flush succeeds long after that.
#[test]
fn models_no_record_is_written_behind_a_shutdown() {
    check_journals(&[TODAY], 250, |setup| {
        let device = Watched::new();
        let journal = journal_on(setup.means.of(device.clone()), setup);
        let numbers = [Number::new(1000)];
        let forces = {
            let (journal, numbers) = (Arc::clone(&journal), numbers.clone());
            thread::spawn(move || (0..2).all(|_| add_one(&journal, &numbers, 40, true)))
        };
        journal.shutdown(ShutdownReason::Asked);
        device.is_down.store(true, Ordering::SeqCst);
        let _whether_before: bool = forces.join().unwrap();
        journal.halt(ShutdownReason::Asked);
    });
}

/// A device that counts the writes to its log and fails one of them.
#[derive(Debug)]
struct Written {
    count: Mutex<u64>,
    more: Condvar,
    fails_at: u64,
    inner: Arc<dyn BlockDevice>,
}

impl Written {
    fn new(fails_at: u64) -> Arc<Self> {
        Arc::new(Self { count: Mutex::default(), more: Condvar::new(), fails_at, inner: memory() })
    }

    fn wait_for(&self, count: u64) {
        let mut written = lock(&self.count);
        while *written < count {
            written = wait(&self.more, written);
        }
    }
}

impl Layer for Written {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(
        &self,
        offset: u64,
        buf: &[u8],
        durability: Durability,
    ) -> std::result::Result<(), DeviceError> {
        if offset >= u64::from(LOG_BLOCKS) * 512 {
            return self.inner.write(offset, buf, durability);
        }
        let mut count = lock(&self.count);
        *count += 1;
        self.more.notify_all();
        match *count == self.fails_at {
            true => Err(DeviceError::Failed("as asked for".to_owned())),
            false => self.inner.write(offset, buf, durability),
        }
    }
}

/// The checkpoints that have ended, and how.
type Ends = Arc<Mutex<Vec<(u64, CheckpointOutcome)>>>;

/// Closes a checkpoint of one commit; `then` is called when it has ended.
fn close_one(journal: &Journal, nth: u64, ends: &Ends, then: impl FnOnce() + Send + 'static) -> CommitSeq {
    let size = VecSize::default().region(40);
    let mut ticket = journal.reserve(size.log_bytes(), 1, 0).unwrap();
    let mut vector = LogVector::of_spare(size.log_bytes() as usize);
    vector.region(&[1; 40]);
    let mut items: Vec<(Arc<dyn LogItem>, LogVector)> = vec![(Number::new(1000 + nth), vector)];
    let ends = Arc::clone(ends);
    let note = move |outcome| {
        then();
        lock(&ends).push((nth, outcome));
    };
    let seq = journal.commit(&mut ticket, &mut items, Some(Box::new(note)), || ()).unwrap();
    journal.release(ticket);
    journal.push_cil();
    assert!(journal.core.worker.wait_until(|| journal.core.cil.seq() > seq.0));
    seq
}

/// The callbacks of a landing checkpoint do not keep the next one from being written, and checkpoints still land in
/// order.
#[test]
fn models_the_next_checkpoint_is_committed_while_one_lands() {
    check_journals_with_caches(&[TODAY], 400, |setup| {
        let device = Written::new(u64::MAX);
        let journal = journal_on(setup.means.of(device.clone()), setup);
        let ends = Ends::default();
        let of_next = Arc::clone(&device);
        close_one(&journal, 0, &ends, move || of_next.wait_for(2));
        close_one(&journal, 1, &ends, || ());
        journal.force_all().unwrap();
        assert_eq!(*lock(&ends), [(0, CheckpointOutcome::Committed), (1, CheckpointOutcome::Committed)]);
        journal.close().unwrap();
    });
}

/// A checkpoint that is in the log lands, and its waiters are told so, even if the next one fails meanwhile.
#[test]
fn models_what_is_in_the_log_lands_before_the_next_one_fails() {
    check_journals_with_caches(&[TODAY], 400, |setup| {
        let device = Written::new(2);
        let journal = journal_on(setup.means.of(device.clone()), setup);
        let ends = Ends::default();
        let of_next = Arc::clone(&device);
        let first = close_one(&journal, 0, &ends, move || of_next.wait_for(2));
        let second = close_one(&journal, 1, &ends, || ());
        journal.force(first).unwrap();
        assert!(journal.force(second).is_err());
        journal.halt(ShutdownReason::Asked);
        assert_eq!(*lock(&ends), [(0, CheckpointOutcome::Committed), (1, CheckpointOutcome::Aborted)]);
    });
}

/// A thread that is alone with the journal writes the log itself if that saves a switch to another thread, and does so
/// each time.
#[test]
fn models_who_forces_the_log_alone_writes_it_where_a_flush_costs_nothing() {
    check_journals(&[TODAY], 25, |setup| {
        let device = Watched::new();
        let journal = journal_on(setup.means.of(device.clone()), setup);
        let number = Number::new(1000);
        for _ in 0..3 {
            assert!(add_one(&journal, std::slice::from_ref(&number), 40, true));
        }
        let (me, writers) = (thread::current().id(), lock(&device.writers).clone());
        assert_eq!(writers.len(), 3);
        assert!(
            writers.iter().all(|writer| (*writer == me) != setup.means.write_cache),
            "{writers:?}, not {me:?}"
        );
        journal.close().unwrap();
    });
}

/// A journal that is given up has everything in its log that was committed, whoever is about to force it.
#[test]
fn models_what_was_committed_is_in_a_log_that_is_given_up() {
    check_journals(&[TODAY], 100, |setup| {
        let (_, journal) = journal(setup);
        let numbers: Vec<_> = (0..2).map(|nth| Number::new(1000 + nth)).collect();
        let threads: Vec<_> = [(0, true), (1, false)]
            .into_iter()
            .map(|(from, force)| {
                let (journal, numbers) = (Arc::clone(&journal), numbers[from..].to_vec());
                thread::spawn(move || (0..3).all(|_| add_one(&journal, &numbers, 40, force)))
            })
            .collect();
        journal.freeze().unwrap().give_up();
        for thread in threads {
            // Whether it ended before is chance.
            let _all: bool = thread.join().unwrap();
        }
        for number in numbers {
            let inner = lock(&number.inner);
            assert_eq!((inner.landed, inner.pins), (inner.value, 0));
        }
    });
}

/// The deferred work of a transaction. It holds the tail until it is done, unless it is relogged.
#[derive(Debug)]
struct Promise {
    state: ItemState,
    /// Whether its done item may be logged, and whether it is being relogged.
    words: Mutex<(bool, bool)>,
    settled: super::sync::Condvar,
}

impl Promise {
    fn new() -> Arc<Self> {
        let (words, settled) = (Mutex::new((false, false)), super::sync::Condvar::new());
        Arc::new(Self { state: ItemState::new(), words, settled })
    }

    fn end(self: &Arc<Self>) -> Arc<dyn LogItem> {
        let mut words = lock(&self.words);
        while words.1 {
            words = super::sync::wait(&self.settled, words);
        }
        words.0 = true;
        Arc::new(Kept { state: ItemState::new(), promise: Arc::clone(self) })
    }
}

impl LogItem for Promise {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn pin(&self) {}
    fn unpin(&self) {}
    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Ail
    }
    fn push(self: Arc<Self>) -> Push {
        if lock(&self.words).0 { Push::Pinned } else { Push::Owed }
    }
    fn is_intent(&self) -> bool {
        true
    }
    fn relog(&self) -> Option<LogVector> {
        let mut words = lock(&self.words);
        if words.0 || words.1 {
            return None;
        }
        words.1 = true;
        Some(vector(64))
    }
    fn relogged(&self, _logged: bool) {
        lock(&self.words).1 = false;
        self.settled.notify_all();
    }
}

#[derive(Debug)]
struct Kept {
    state: ItemState,
    promise: Arc<Promise>,
}

impl LogItem for Kept {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn pin(&self) {}
    fn unpin(&self) {}
    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Retire(Arc::clone(&self.promise) as Arc<dyn LogItem>)
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

/// One transaction rolls over and over, and has locked what most others reserve log space for and then wait for.
/// Together they want more than there is. Another thread fills the log behind its intent.
#[test]
fn models_who_goes_on_waits_for_nobody_who_waits_for_it() {
    const BYTES: usize = 30_000;
    const WAITERS: u64 = 7;
    check_journals(&[TODAY], 50, |setup| {
        let (_, journal) = journal(setup);
        let file = Arc::new(Mutex::new(()));
        let unit = VecSize::default().region(BYTES).log_bytes();
        let commit = |journal: &Journal, ticket: &mut _, items: &[(Arc<dyn LogItem>, usize)]| {
            let mut items = items.iter().map(|(item, bytes)| (Arc::clone(item), vector(*bytes))).collect();
            journal.commit(ticket, &mut items, None, || ()).unwrap();
        };
        let mut threads = Vec::new();
        let (mine, locked) = (Arc::clone(&journal), Arc::clone(&file));
        threads.push(thread::spawn(move || {
            let mut ticket = mine.reserve(unit + 400, 2, 200).unwrap();
            let _held = lock(&locked);
            for step in 0..4 {
                let promise = Promise::new();
                commit(&mine, &mut ticket, &[(promise.clone(), 32), (Number::new(1000 + step), BYTES)]);
                mine.roll(&mut ticket).unwrap();
                commit(&mine, &mut ticket, &[(promise.end(), 32)]);
                mine.roll(&mut ticket).unwrap();
            }
            mine.release(ticket);
        }));
        for nth in 0..WAITERS {
            let (mine, locked) = (Arc::clone(&journal), Arc::clone(&file));
            threads.push(thread::spawn(move || {
                let mut ticket = mine.reserve(unit, 1, 0).unwrap();
                let held = lock(&locked);
                commit(&mine, &mut ticket, &[(Number::new(1100 + nth), BYTES)]);
                drop(held);
                mine.release(ticket);
            }));
        }
        let mine = Arc::clone(&journal);
        threads.push(thread::spawn(move || {
            for nth in 0..12 {
                let mut ticket = mine.reserve(unit, 1, 0).unwrap();
                commit(&mine, &mut ticket, &[(Number::new(1200 + nth), 2 * BYTES / 3)]);
                mine.release(ticket);
            }
        }));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        journal.close().unwrap();
        assert_eq!(journal.space().0, 0, "all log space came back");
    });
}

/// A thread that forces the log closes a checkpoint that nobody was asked to write.
#[test]
fn models_idle_time_waits_for_who_forces_the_log() {
    check_journals(&[TODAY], 100, |setup| {
        let (_, journal) = journal(setup);
        let number = Number::new(1000);
        let size = VecSize::default().region(40);
        let ticket = journal.reserve(size.log_bytes(), 1, 0).unwrap();
        let seq = commit_one(&journal, ticket, &[Arc::clone(&number)], 40, false).unwrap();
        let forces = {
            let journal = Arc::clone(&journal);
            thread::spawn(move || journal.force(seq).unwrap())
        };
        journal.pass_idle_time().unwrap();
        assert!(journal.is_forced(seq), "idle time has passed, and what was committed is not in the log");
        forces.join().unwrap();
        journal.close().unwrap();
    });
}

/// Regression: a request for write-back was dropped by a thread that had seen an empty list before the item was
/// committed.
#[test]
fn models_what_is_asked_for_is_written_back() {
    check_journals(&[TODAY], 250, |setup| {
        let (device, journal) = journal(setup);
        let kicker = {
            let journal = Arc::clone(&journal);
            thread::spawn(move || (0..3).for_each(|_| journal.core.ail_push.push()))
        };
        let number = Number::new(1000);
        for value in 1..3 {
            assert!(add_one(&journal, std::slice::from_ref(&number), 40, false));
            journal.quiesce().unwrap();
            assert_eq!(stored(&*device, &number), value);
        }
        kicker.join().unwrap();
    });
}
