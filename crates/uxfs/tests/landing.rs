//! A checkpoint that is in the log for good, and lands while the next one fails: whoever forces it is told that it is there.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use uxfs::{MkfsOptions, mkfs_device};
use xfs::log::{
    AfterCommit, CommitCallback, CommitSeq, Designs, ItemState, Journal, LogItem, LogVector, Pace, Push,
    VecSize,
};
use xfs::recovery::log_ends;
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

#[derive(Debug, Default)]
struct Item(ItemState);

impl LogItem for Item {
    fn state(&self) -> &ItemState {
        &self.0
    }
    fn pin(&self) {}
    fn unpin(&self) {}
    fn committed(&self, _lsn: Lsn) -> AfterCommit {
        AfterCommit::Drop
    }
    fn push(self: Arc<Self>) -> Push {
        Push::Gone
    }
}

fn commit(journal: &Journal, bytes: usize, callback: Option<CommitCallback>) -> CommitSeq {
    let size = VecSize::default().region(bytes);
    let mut ticket = journal.reserve(size.log_bytes(), 1, 0).expect("there is room");
    let mut vector = LogVector::of_spare(size.log_bytes() as usize);
    vector.region(&vec![1; bytes]);
    let item: Arc<dyn LogItem> = Arc::new(Item::default());
    let seq = journal.commit(&mut ticket, &mut vec![(item, vector)], callback, || ()).expect("committed");
    journal.release(ticket);
    seq
}

fn volume() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(400 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new(), true).expect("a volume");
    device
}

fn journal_on(device: Arc<dyn BlockDevice>) -> Arc<Journal> {
    let mut sector = [0; 512];
    device.read(0, &mut sector).expect("read");
    let superblock = Superblock::parse(&sector).expect("a superblock");
    let ends = log_ends::log_ends(&*device, &superblock).expect("a log");
    Journal::open(device, &superblock, ends, Pace::Background, Designs::default()).expect("open")
}

#[test]
fn what_lands_beside_a_failed_write_of_the_next_checkpoint_is_told_to_be_there() {
    let memory = volume();
    // A layer that says that there is a cache: the committer and the lander are threads of their own.
    let faulty = Arc::new(FaultDevice::new(memory, Vec::new()));
    let journal = journal_on(faulty.clone());

    let (lands, has_landed) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let callback: CommitCallback = Box::new(move |outcome| {
        lands.send(outcome).expect("somebody waits");
        let _ = goes_on.recv_timeout(Duration::from_secs(20));
    });
    let first = commit(&journal, 100, Some(callback));
    thread::scope(|scope| {
        let forces = scope.spawn(|| journal.force(first).map_err(|error| error.to_string()));
        let outcome = has_landed.recv_timeout(Duration::from_secs(20)).expect("it is in the log");
        assert!(matches!(outcome, xfs::log::CheckpointOutcome::Committed));
        // The next one is too large for one run: its first records are written by the thread that closes it.
        let failing = faulty.seen(Op::Write);
        faulty.add(Fault::fail(Op::Write, failing).then(Repeat::Sticky));
        commit(&journal, 600 << 10, None);
        journal.push_cil();
        for _ in 0..2000 {
            if faulty.seen(Op::Write) > failing {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // However long it takes to land.
        thread::sleep(Duration::from_millis(50));
        go_on.send(()).expect("it still lands");
        assert_eq!(forces.join().expect("no panic"), Ok(()), "it was in the log before the next one failed");
    });
}

/// What others can see, as it is published, a force covers: else they sync the volume, and a crash takes what they have seen.
#[test]
fn whoever_has_seen_a_commit_forces_it() {
    let device = volume();
    let journal = journal_on(device);
    let (publishes, is_published) = mpsc::channel::<()>();
    let (forces, is_forced) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let commits = scope.spawn(|| {
            let size = VecSize::default().region(100);
            let mut ticket = journal.reserve(size.log_bytes(), 1, 0).expect("there is room");
            let mut vector = LogVector::of_spare(size.log_bytes() as usize);
            vector.region(&[1; 100]);
            let mut items: Vec<(Arc<dyn LogItem>, LogVector)> = vec![(Arc::new(Item::default()), vector)];
            let publish = move || {
                publishes.send(()).expect("somebody looks");
                // A force that waits for this commit waits here, too.
                let _ = is_forced.recv_timeout(Duration::from_secs(2));
            };
            let seq = journal.commit(&mut ticket, &mut items, None, publish).expect("committed");
            journal.release(ticket);
            seq
        });
        is_published.recv().expect("published");
        journal.force_all().expect("forced");
        let _ = forces.send(());
        let seq = commits.join().expect("no panic");
        assert!(journal.is_forced(seq), "it could be seen, the log was forced, and it is not there");
    });
}
