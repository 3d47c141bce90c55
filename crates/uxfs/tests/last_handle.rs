//! The last handle of the journal may be dropped by a callback, which runs in one of the journal's own threads.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, FaultDevice, MemoryDevice};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{MkfsOptions, mkfs_device};
use xfs::log::{
    AfterCommit, CommitCallback, Designs, ItemState, Journal, LogItem, LogVector, Pace, Push, VecSize,
};
use xfs::recovery::log_ends;
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).expect("memory"));
    let options = MkfsOptions::new().small(true);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    device
}

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

/// Where a flush costs nothing, the thread that closes checkpoints runs callbacks too; otherwise the lander does.
#[test]
fn a_callback_that_drops_the_last_handle_ends_the_journal() {
    for cached in [true, false] {
        let memory = device();
        let device: Arc<dyn BlockDevice> = match cached {
            // This layer says that there is a write cache.
            true => Arc::new(FaultDevice::new(memory, Vec::new())),
            false => memory,
        };
        let mut sector = [0; 512];
        device.read(0, &mut sector).expect("read");
        let superblock = Superblock::parse(&sector).expect("a superblock");
        let ends = log_ends::log_ends(&*device, &superblock).expect("a log");
        let journal =
            Journal::open(Arc::clone(&device), &superblock, ends, Pace::Background, Designs::default())
                .expect("open");
        let (go_on, goes_on) = mpsc::channel::<()>();
        let last = Arc::clone(&journal);
        let callback: CommitCallback = Box::new(move |_| {
            goes_on.recv().expect("the other handle is gone");
            drop(last);
        });
        let size = VecSize::default().region(100);
        let mut ticket = journal.reserve(size.log_bytes(), 1, 0).expect("there is room");
        let mut vector = LogVector::of_spare(size.log_bytes() as usize);
        vector.region(&[1; 100]);
        let item: Arc<dyn LogItem> = Arc::new(Item::default());
        journal.commit(&mut ticket, &mut vec![(item, vector)], Some(callback), || ()).expect("committed");
        journal.release(ticket);
        journal.push_cil();
        drop(journal);
        go_on.send(()).expect("somebody waits");
        let until = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&device) > 1 && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        let left = Arc::strong_count(&device) - 1;
        assert_eq!(left, 0, "write cache: {cached}: threads of the journal wait for each other for ever");
    }
}
