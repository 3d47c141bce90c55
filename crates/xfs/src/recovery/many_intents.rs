//! Logs full of intents: as many as a transaction may have, in the smallest log, and more; and the longest that a
//! kernel makes, on volumes with large blocks and a small log.
//!
//! Invariant: whatever is promised, recovery ends, for a writer and for a reader.

use crate::agf;
use crate::alloc::{Purpose, Request, Target};
use crate::check::{CheckOptions, check};
use crate::defer;
use crate::error::{Error, Result};
use crate::mkfs::{Before, Features, Options, format, plan};
use crate::trans::reservation::{Reservation, ReservationBuilder};
use crate::trans::{IntentWork, Trans};
use crate::volume::{OpenOptions, Volume};
use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use parking_lot::RwLock;
use smallvec::smallvec;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use xfs_format::bmbt::Extent;
use xfs_format::log::{Extent as XExtent, RefcountOp, RefcountUpdate, RmapOp, RmapUpdate};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, FileBlock, FsBlock, Uuid};

const BYTES: u64 = 256 << 20;
/// Blocks of a run in which every other block is shared.
const RUN: u32 = 8;

/// A device that stands still while it is copied. A volume writes back all the time, and a copy with one part from
/// before a write and another from after belongs to no moment.
#[derive(Debug)]
struct Device {
    below: Arc<dyn BlockDevice>,
    writes: RwLock<()>,
}

impl Layer for Device {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_write(
        &self,
        offset: u64,
        buf: &[u8],
        durability: Durability,
    ) -> std::result::Result<(), DeviceError> {
        let _writes = self.writes.read();
        self.below.write(offset, buf, durability)
    }
}

impl Device {
    fn copy(&self) -> Arc<dyn BlockDevice> {
        let _still = self.writes.write();
        let to = memory(self.below.size());
        let mut piece = vec![0; 1 << 20];
        for at in (0..to.size()).step_by(piece.len()) {
            self.below.read(at, &mut piece).unwrap();
            if piece.iter().any(|&byte| byte != 0) {
                to.write(at, &piece, Durability::Volatile).unwrap();
            }
        }
        to
    }
}

fn memory(bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(bytes).unwrap())
}

/// A volume with the smallest possible log.
fn made(block_size: u32, features: Features, bytes: u64) -> Arc<Device> {
    let device = memory(bytes);
    let new = Options::new(Uuid([7; 16]), Timestamp { seconds: 1, nanoseconds: 0 });
    let new = Options { small: true, block_size, features, ..new };
    let block = u64::from(block_size);
    let log = (512..)
        .map(|blocks| blocks * block)
        .find_map(|log_size| plan(&Options { log_size: Some(log_size), ..new.clone() }, bytes).ok());
    format(&*device, &log.unwrap(), Before::Zeroes).unwrap();
    Arc::new(Device { below: device, writes: RwLock::new(()) })
}

fn open(device: &Arc<Device>) -> Arc<Volume> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    Volume::open(Arc::clone(device) as Arc<dyn BlockDevice>, &options).unwrap()
}

/// This many blocks without an owner, in runs.
fn taken(volume: &Arc<Volume>, mut blocks: u32) -> Vec<(FsBlock, u32)> {
    let mut runs = Vec::new();
    while blocks > 0 {
        let ag = AgNumber(runs.len() as u32 % volume.geometry().ag_count());
        let most = blocks.min(volume.geometry().ag_blocks / 8) / RUN * RUN;
        let need = ReservationBuilder::new(volume.geometry()).extents(1).blocks(most.into());
        let mut trans = Trans::start(volume, need.build()).unwrap();
        let got = agf::allocate(&mut trans, Target::In(ag), Request::new(most, most, Purpose::Data)).unwrap();
        trans.commit().unwrap();
        runs.push((got.start(volume.geometry()), most));
        blocks -= most;
    }
    runs
}

fn extent(startblock: FsBlock, blockcount: u32) -> Extent {
    Extent { startoff: FileBlock(0), startblock, blockcount, unwritten: false }
}

/// How long a recovery may take that does not deadlock.
const PATIENCE: Duration = Duration::from_secs(300);

/// Opens a volume, which must end in some way.
fn opened(device: &Arc<dyn BlockDevice>, writable: bool) -> Result<Arc<Volume>> {
    let (device, (tell, told)) = (Arc::clone(device), mpsc::channel());
    std::thread::spawn(move || {
        let options = OpenOptions { writable, ..OpenOptions::default() };
        // A receiver that no longer waits does not get it.
        let _ = tell.send(Volume::open(device, &options));
    });
    told.recv_timeout(PATIENCE).expect("the recovery waits for itself")
}

/// Opens it for reading and then for writing, which finishes the intents.
fn recovered(crashed: &Arc<dyn BlockDevice>, kind: &str) -> Arc<Volume> {
    let read = opened(crashed, false).unwrap();
    assert_eq!(read.recovery().expect("the log was dirty").obstacle, None, "for a reader");
    drop(read);
    let volume = opened(crashed, true).unwrap();
    let report = volume.recovery().expect("the log was dirty");
    assert!(report.unfinished.iter().any(|what| what.contains(kind)), "{report:?}");
    volume
}

fn is_right(volume: Arc<Volume>, device: Arc<dyn BlockDevice>) {
    volume.close().unwrap();
    drop(volume);
    let report = check(device, &CheckOptions::default()).unwrap();
    let findings: Vec<_> = report.findings().iter().take(3).collect();
    assert!(report.is_clean() && report.log_clean, "{findings:?}");
}

fn reservation(volume: &Volume, count: u64) -> Reservation {
    ReservationBuilder::new(volume.geometry()).counts(count).build()
}

/// How many refcount updates one transaction may defer.
fn most_counts(volume: &Arc<Volume>) -> u64 {
    let fits = |count: u64| Trans::check_log(volume, reservation(volume, count)).is_ok();
    (0..20).rev().fold(0, |most, bit| if fits(most | 1 << bit) { most | 1 << bit } else { most })
}

/// The blocks of a run that have another owner.
fn shared(run: &FsBlock) -> impl Iterator<Item = FsBlock> + use<> {
    let first = run.0;
    (0..RUN / 2).map(move |nth| FsBlock(first + u64::from(2 * nth)))
}

/// This many runs, with every other block shared.
fn shared_runs(volume: &Arc<Volume>, count: u32) -> Vec<FsBlock> {
    let runs: Vec<FsBlock> = taken(volume, count * RUN)
        .into_iter()
        .flat_map(|(start, len)| (0..len / RUN).map(move |nth| FsBlock(start.0 + u64::from(nth * RUN))))
        .collect();
    for runs in runs.chunks(100) {
        let mut trans = Trans::start(volume, reservation(volume, 100 * u64::from(RUN / 2))).unwrap();
        runs.iter().flat_map(shared).for_each(|block| defer::defer_share(&mut trans, block, 1));
        trans.commit().unwrap();
    }
    runs
}

/// The device of a volume whose power fails when a transaction has logged intents and done nothing.
fn crashed(
    device: &Arc<Device>,
    volume: Arc<Volume>,
    most: u64,
    promise: impl FnOnce(&mut Trans<'_>),
) -> Arc<dyn BlockDevice> {
    let mut trans = Trans::start(&volume, reservation(&volume, most)).unwrap();
    promise(&mut trans);
    trans.roll().unwrap();
    volume.sync().unwrap();
    let crashed = device.copy();
    drop(trans);
    drop(volume);
    crashed
}

/// Each intent that recovery finds causes another one, and one or two that free blocks.
#[test]
fn as_many_promises_as_a_transaction_may_owe_are_kept() {
    let device = made(1024, Features::of_kernel("6.1").unwrap(), BYTES);
    let volume = open(&device);
    let most = most_counts(&volume);
    // A run that loses an owner, and then each of its blocks that still has another.
    let runs = shared_runs(&volume, most as u32 / (1 + RUN / 2));
    let crashed = crashed(&device, volume, most, |trans| {
        runs.iter().for_each(|&run| defer::defer_unshare(trans, &extent(run, RUN)));
        runs.iter().flat_map(shared).for_each(|block| defer::defer_unshare(trans, &extent(block, 1)));
    });
    is_right(recovered(&crashed, "CUI"), crashed);
}

/// Regression: each intent that recovery found caused another one and two that free blocks. It kept log space for these
/// until everything that it had found was done, and waited for itself.
#[test]
fn promises_that_leave_three_each_are_kept() {
    let device = made(1024, Features::of_kernel("6.18").unwrap(), BYTES);
    let volume = open(&device);
    let most = most_counts(&volume);
    // More would work as well, but take time.
    let runs = shared_runs(&volume, most as u32 / 3 * 2);
    let crashed = crashed(&device, volume, most, |trans| {
        runs.iter().for_each(|&run| defer::defer_unshare(trans, &extent(run, RUN)));
    });
    let volume = recovered(&crashed, "CUI");
    // The other owners still have their blocks.
    for runs in runs.chunks(100) {
        let mut trans = Trans::start(&volume, reservation(&volume, 100 * u64::from(RUN / 2))).unwrap();
        runs.iter().flat_map(shared).for_each(|block| defer::defer_unshare(&mut trans, &extent(block, 1)));
        trans.commit().unwrap();
    }
    is_right(volume, crashed);
}

/// Intents for which nobody reserved space fill more of the log than can be relogged. Neither a writer nor a reader
/// waits for that; both get an error.
#[test]
fn what_the_log_has_no_room_for_is_told() {
    let device = made(1024, Features::of_kernel("6.1").unwrap(), BYTES);
    let volume = open(&device);
    let most = most_counts(&volume);
    let (block, _) = taken(&volume, RUN)[0];
    for _ in 0..5 {
        let mut trans = Trans::start(&volume, reservation(&volume, most / 2)).unwrap();
        (0..most / 2).for_each(|_| defer::defer_share(&mut trans, block, 1));
        trans.roll().unwrap();
        trans.keep_intents_in_place();
    }
    volume.sync().unwrap();
    let crashed = device.copy();
    drop(volume);
    // Trying it does no harm.
    for _ in 0..2 {
        let refused = opened(&crashed, true).map(|_| ());
        assert!(matches!(refused, Err(Error::CannotFinish { .. })), "{refused:?}");
        let read = opened(&crashed, false).unwrap();
        let obstacle = read.recovery().and_then(|report| report.obstacle.clone());
        assert!(obstacle.is_some_and(|what| what.contains("to its end")));
    }
}

/// Maximum that a kernel puts into one intent.
const OF_KERNEL: usize = 16;

/// Regression: the longest intents of a kernel did not fit into the log of a volume with large blocks, and the volume
/// was refused.
#[test]
fn the_longest_promises_of_a_kernel_fit_the_smallest_log() {
    let mut refused = Vec::new();
    for (block_size, bytes) in [(1024, 256 << 20), (4096, 512 << 20), (16384, 2 << 30), (65536, 8 << 30)] {
        for kernel in ["6.1", "6.6", "6.18"] {
            let device = made(block_size, Features::of_kernel(kernel).unwrap(), bytes);
            let volume = open(&device);
            let (start, len) = (FsBlock(8), 1);
            let frees = IntentWork::Free(smallvec![XExtent { start, len }; OF_KERNEL]);
            let rmap = RmapUpdate {
                op: RmapOp::Unmap,
                owner: 128,
                start,
                offset: FileBlock(0),
                len,
                attr_fork: false,
                bmbt_block: false,
                unwritten: false,
            };
            let rmaps = IntentWork::Rmap(smallvec![rmap; OF_KERNEL]);
            let counts = IntentWork::Count(
                smallvec![RefcountUpdate { op: RefcountOp::Decrease, start, len }; OF_KERNEL],
            );
            for promise in [frees, rmaps, counts] {
                let pieces = if promise.is_count() { 1 } else { OF_KERNEL };
                let need = promise.reservation_at_once(ReservationBuilder::new(volume.geometry()), pieces);
                let fits = Trans::check_log(&volume, need.build());
                eprintln!(
                    "{block_size} {kernel}: log {} KiB: {:?} {fits:?}",
                    u64::from(volume.geometry().log.1) * u64::from(block_size) / 1024,
                    need.build()
                );
                if fits.is_err() {
                    refused.push((block_size, kernel));
                }
            }
            volume.close().unwrap();
        }
    }
    assert!(refused.is_empty(), "{refused:?}");
}
