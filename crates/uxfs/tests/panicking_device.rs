//! A device, made by whoever uses the library, that panics in a thread of the journal's, or amid a change: the volume is shut
//! down, as if the request had failed, and nobody waits for what that thread would have done.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;
use uxfs::{ErrorKind, File, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

const BLOCK: u64 = 4096;

/// Panics at writes of a kind while it is armed.
#[derive(Debug)]
struct Panics {
    kind: Durability,
    armed: AtomicBool,
    inner: Arc<dyn BlockDevice>,
}

impl Layer for Panics {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let panics = durability == self.kind && self.armed.load(Ordering::SeqCst);
        assert!(!panics, "a device that panics");
        self.inner.write(offset, buf, durability)
    }
}

fn open(device: &Arc<impl BlockDevice + 'static>) -> Volume {
    Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).expect("it opens")
}

fn create(volume: &Volume, name: &str) -> uxfs::Result<()> {
    let root = volume.root()?.as_dir()?;
    root.create_file(name.as_bytes(), &NewNode::default()).map(drop)
}

/// More than a record of the log holds.
fn many_and_sync(volume: &Volume) -> uxfs::Result<()> {
    (0..800).try_for_each(|nth| create(volume, &format!("{nth:0200}")))?;
    volume.sync()
}

type Step = fn(&Volume) -> uxfs::Result<()>;

/// Has the device panic at a kind of writes while `work` is done, which is told so in one of these ways.
fn panics_at(kind: Durability, before: Step, work: Step, told: &[ErrorKind]) {
    let memory = Arc::new(MemoryDevice::anonymous(40 << 20).expect("memory"));
    mkfs_device(memory.clone(), &MkfsOptions::new().small(true), true).expect("a volume");
    let device = Arc::new(Panics { kind, armed: AtomicBool::new(false), inner: memory.clone() });
    let volume = open(&device);
    create(&volume, "durable").expect("made");
    volume.sync().expect("synced");
    before(&volume).expect("all is well");
    device.armed.store(true, Ordering::SeqCst);
    let kind = work(&volume).expect_err("the device panics").kind();
    assert!(told.contains(&kind), "{kind:?}");
    device.armed.store(false, Ordering::SeqCst);
    let down = |what: uxfs::Result<()>| {
        assert_eq!(what.map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
    };
    down(create(&volume, "new"));
    down(volume.sync());
    down(volume.close());
    drop(volume);
    let volume = open(&memory);
    volume.lookup("/durable").expect("it was synced");
    volume.lookup("/new").expect_err("it was refused");
    volume.close().expect("closed");
    drop(volume);
    let report = check_device(memory, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings);
}

/// Whoever synced waited for ever, and everybody else could go on changing what would never be in the log.
#[test]
fn a_device_that_panics_in_a_thread_of_the_journal_shuts_the_volume_down() {
    // Whoever waits for the log is told of the failure, who comes later is refused; so is who waits for a thread that
    // panicked.
    const FAILS: ErrorKind = ErrorKind::Io;
    const REFUSED: ErrorKind = ErrorKind::ShutDown;
    let cases: [(&str, Durability, Step, Step, &'static [ErrorKind]); 3] = [
        ("the first record of several", Durability::Volatile, |_| Ok(()), many_and_sync, &[FAILS, REFUSED]),
        ("the last one", Durability::Fua, |volume| create(volume, "one"), Volume::sync, &[FAILS]),
        ("what is written back", Durability::Volatile, |_| Ok(()), Volume::pass_idle_time, &[REFUSED]),
    ];
    for (what, kind, before, work, told) in cases {
        let (ends, ended) = mpsc::channel();
        thread::spawn(move || {
            panics_at(kind, before, work, told);
            ends.send(()).expect("somebody waits");
        });
        ended.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// Panics at the read of one thread that comes behind so many others of it.
#[derive(Debug)]
struct PanicsAtRead {
    behind: AtomicI64,
    of: ThreadId,
    inner: Arc<dyn BlockDevice>,
}

impl PanicsAtRead {
    /// Over a copy of a device, and not armed yet.
    fn over_copy(of: &dyn BlockDevice) -> Arc<Self> {
        let (behind, inner) = (AtomicI64::new(i64::MAX), copied(of));
        Arc::new(Self { behind, of: thread::current().id(), inner })
    }
}

impl Layer for PanicsAtRead {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let panics = thread::current().id() == self.of && self.behind.fetch_sub(1, Ordering::SeqCst) == 0;
        assert!(!panics, "a device that panics");
        self.inner.read(offset, buf)
    }
}

fn copied(device: &dyn BlockDevice) -> Arc<MemoryDevice> {
    let copy = Arc::new(MemoryDevice::anonymous(device.size()).expect("memory"));
    let mut all = vec![0; device.size() as usize];
    device.read(0, &mut all).expect("read");
    copy.write(0, &all, Durability::Volatile).expect("written");
    copy
}

/// A volume on which `one` has pieces of this many blocks with others between them, all of them shared. The reverse map
/// has several leaves, so that the one that tells of an old block is read when a copy of it is made.
fn shared_in_pieces(blocks: u64) -> Arc<MemoryDevice> {
    const PIECES: u64 = 250;
    let device = Arc::new(MemoryDevice::anonymous(40 << 20).expect("memory"));
    mkfs_device(device.clone(), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&device);
    for name in ["one", "between", "other"] {
        create(&volume, name).expect("made");
    }
    let [one, between, other] =
        ["/one", "/between", "/other"].map(|path| volume.open_file(path).expect("there"));
    for nth in 0..PIECES {
        one.write_at(&vec![1; (blocks * BLOCK) as usize], nth * blocks * BLOCK).expect("written");
        between.write_at(&[1; BLOCK as usize], nth * BLOCK).expect("written");
    }
    one.clone_range(0, &other, 0, 0).expect("a clone");
    drop((one, between, other));
    volume.close().expect("closed");
    device
}

/// The copy of a shared block was the file's, and what was owed for it was not done: who went on with the volume gave the
/// block back as one that is staged still, and the log could not be recovered.
#[test]
fn a_panic_amid_what_is_owed_leaves_the_rest_to_recovery() {
    let first = shared_in_pieces(1);
    let mut is_down = false;
    for nth in 0.. {
        let device = PanicsAtRead::over_copy(&*first);
        let memory = Arc::clone(device.below());
        let volume = open(&device);
        let one = volume.open_file("/one").expect("there");
        device.behind.store(nth, Ordering::SeqCst);
        let done = one.overwrite_at(&[3; BLOCK as usize], 0);
        device.behind.store(i64::MAX, Ordering::SeqCst);
        drop(one);
        is_down |= create(&volume, "new").is_err();
        let closed = volume.close();
        drop(volume);
        if closed.is_err() {
            let volume = Volume::open_device(memory.clone(), &OpenOptions::new().writable(true));
            let volume = volume.unwrap_or_else(|error| panic!("read {nth}: {error}"));
            volume.close().expect("closed");
        }
        let report = check_device(memory.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean() && report.log_clean, "read {nth}: {:?}", report.findings);
        let volume = Volume::open_device(memory, &OpenOptions::new()).expect("read");
        let mut found = [0; BLOCK as usize];
        volume.open_file("/one").expect("there").read_at(&mut found, 0).expect("read");
        assert!(found == [1; BLOCK as usize] || found == [3; BLOCK as usize], "read {nth}: {}", found[0]);
        if done.is_ok() {
            break;
        }
    }
    assert!(is_down, "it never panicked amid what is owed");
}

type Change = fn(&File) -> uxfs::Result<()>;

/// What had been claimed for copies stayed claimed, and took the place of what was written there next: blocks that nobody had
/// ever written.
#[test]
fn a_panic_amid_a_copy_gives_its_claim_up() {
    /// The middle of the file; a change begins there, or this many bytes behind.
    const AT: u64 = 100 * BLOCK;
    const PART: u64 = 100;
    const END: u64 = AT + 2 * BLOCK;
    const SIZE: u64 = 1000 * BLOCK;
    let changes: [(&str, Change); 11] = [
        ("overwrite", |one| one.overwrite_at(&[3; 2 * BLOCK as usize], AT)),
        ("zero_range", |one| one.zero_range(AT..END, true)),
        ("zero_range of parts", |one| one.zero_range(AT + PART..END + PART, true)),
        ("punch_hole", |one| one.punch_hole(AT + PART..END + PART)),
        ("pages", |one| one.buffered().write_at(&[3; 2 * BLOCK as usize], AT).map(drop)),
        ("pages, synced", |one| {
            let pages = one.buffered();
            pages.write_at(&[3; 2 * BLOCK as usize], AT)?;
            pages.sync_range(AT..END)
        }),
        ("parts", |one| one.write_at(&[3; 2 * BLOCK as usize], AT + PART)),
        ("pages, parts", |one| one.buffered().write_at(&[3; 2 * BLOCK as usize], AT + PART)),
        ("over the end", |one| one.write_at(&[3; 3 * BLOCK as usize], SIZE - PART)),
        ("pages, over the end", |one| {
            one.buffered().write_at(&[3; 3 * BLOCK as usize], SIZE - 2 * BLOCK - PART)
        }),
        ("a cut", |one| one.set_len(AT + PART)),
    ];
    let first = shared_in_pieces(4);
    let mut panics = 0;
    // Small caches, so that leaves are read at one time or another.
    for cache in [40_000, 50_000, 57_000, 65_536, 75_000, 90_000] {
        for (what, change) in changes {
            panics += (0..).take_while(|&nth| panics_amid(&*first, cache, (what, change), nth)).count();
        }
    }
    assert!(panics > 200, "{panics}");

    /// Has the read behind `nth` others panic amid a change; whether the change failed by that.
    fn panics_amid(first: &dyn BlockDevice, cache: u64, (what, change): (&str, Change), nth: i64) -> bool {
        let what = format!("{what}, a cache of {cache}, read {nth}");
        let device = PanicsAtRead::over_copy(first);
        let memory = Arc::clone(device.below());
        let options = OpenOptions::new().writable(true).cache_size(cache);
        let volume = Volume::open_device(device.clone(), &options).expect("it opens");
        let one = volume.open_file("/one").expect("there");
        device.behind.store(nth, Ordering::SeqCst);
        let done = change(&one);
        device.behind.store(i64::MAX, Ordering::SeqCst);
        if create(&volume, "new").is_ok() {
            let around = AT - 8 * BLOCK..AT + 8 * BLOCK;
            let all = [7; 16 * BLOCK as usize];
            one.punch_hole(around.clone()).expect(&what);
            one.write_at(&all, around.start).expect(&what);
            let mut seen = [0; 16 * BLOCK as usize];
            one.read_at(&mut seen, around.start).expect(&what);
            assert!(seen == all, "{what}: what was written is not there");
        }
        drop(one);
        let free = volume.info().expect("info").free_blocks;
        let closed = volume.close();
        drop(volume);
        if closed.is_ok() {
            let volume = Volume::open_device(memory.clone(), &OpenOptions::new()).expect("read");
            assert_eq!(volume.info().expect("info").free_blocks, free, "{what}: blocks that stayed reserved");
            drop(volume);
            let report = check_device(memory, &OpenOptions::new()).expect("checked");
            assert!(report.is_clean() && report.log_clean, "{what}: {:?}", report.findings);
        }
        done.is_err()
    }
}

/// Whoever panics for another reason closes files on the way, with changes that end well: the volume goes on.
#[test]
fn a_panic_that_closes_a_file_harms_no_volume() {
    let memory = Arc::new(MemoryDevice::anonymous(40 << 20).expect("memory"));
    mkfs_device(memory.clone(), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&memory);
    for name in ["one", "other", "gone"] {
        create(&volume, name).expect("made");
    }
    let [one, other, gone] = ["/one", "/other", "/gone"].map(|path| volume.open_file(path).expect("there"));
    one.write_at(&[1; 1 << 16], 0).expect("written");
    for to in [&other, &gone] {
        one.clone_range(0, to, 0, 0).expect("a clone");
    }
    one.write_at(&[2; 10], 0).expect("more is staged than that");
    volume.root().expect("root").as_dir().expect("a directory").remove_file(b"gone").expect("removed");
    let open = (one, other, gone);
    catch_unwind(AssertUnwindSafe(move || {
        let _closed = open;
        panic!("of its own");
    }))
    .expect_err("it panics");
    create(&volume, "new").expect("the volume goes on");
    volume.close().expect("closed");
    drop(volume);
    let report = check_device(memory, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings);
}
