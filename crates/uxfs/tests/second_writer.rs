//! One device is open for writing once within a process, through whatever wrappers and handles it is reached.
#![forbid(unsafe_code)]

use blockdev::{
    BlockDevice, Claim, Counter, Deferred, DeviceError, Durability, Fault, FaultDevice, HoldDevice, Layer,
    MemoryDevice, Op, Window,
};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use uxfs::{ErrorKind, MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};

const SIZE: u64 = 64 << 20;

fn made(device: &Arc<dyn BlockDevice>, options: &MkfsOptions) {
    mkfs_device(Arc::clone(device), &options.clone().small(true), true).expect("made");
}

fn writable() -> OpenOptions {
    OpenOptions::new().writable(true)
}

fn refused(device: Arc<dyn BlockDevice>, options: &OpenOptions) {
    let error = Volume::open_device(device, options).map(drop).expect_err("it has a writer");
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.to_string().contains("this process has it open for writing already"), "{error}");
}

fn add(volume: &Volume, name: &str) {
    let root = volume.open_dir("/").expect("the root");
    root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
}

#[test]
fn a_device_has_one_writer() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    made(&device, &MkfsOptions::new());
    let first = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
    add(&first, "one");
    refused(Arc::clone(&device), &writable());
    refused(Arc::new(Counter::new(Arc::clone(&device))), &writable());
    refused(Arc::new(Deferred::new(Arc::clone(&device))), &writable());
    refused(Arc::new(Window::new(Arc::clone(&device), 0, None).expect("a window")), &writable());
    refused(Arc::clone(&device), &writable().length(Some(SIZE)));
    refused(Arc::clone(&device), &writable().durable_at_close(true));
    let error = mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).overwrite(true), false);
    assert_eq!(error.expect_err("it has a writer").kind(), ErrorKind::Locked);
    // Readers see what is on the device.
    Volume::open_device(Arc::clone(&device), &OpenOptions::new()).expect("reading");
    add(&first, "two");
    first.close().expect("closed");
    // Closed is enough: a handle may live on.
    let second = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
    add(&second, "three");
    refused(Arc::clone(&device), &writable());
    // So is dropped.
    drop(second);
    let third = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
    assert!(third.lookup("one").is_ok() && third.lookup("two").is_ok());
    third.close().expect("closed");
}

#[test]
fn two_parts_of_a_device_have_a_writer_each() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(3 * SIZE).expect("memory"));
    let part = |start: u64| writable().offset(start).length(Some(SIZE));
    for start in [SIZE, 2 * SIZE] {
        made(&device, &MkfsOptions::new().offset(start).length(Some(SIZE)));
    }
    let first = Volume::open_device(Arc::clone(&device), &part(SIZE)).expect("open");
    let second = Volume::open_device(Arc::clone(&device), &part(2 * SIZE)).expect("open");
    refused(Arc::clone(&device), &writable().offset(SIZE));
    refused(Arc::clone(&device), &part(SIZE));
    first.close().expect("closed");
    second.close().expect("closed");
}

/// A device that tries, whenever it is written or flushed, whether a second writer would get in.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn BlockDevice>,
    /// Whose requests are looked at; `None`: everybody's.
    whose: Mutex<Option<ThreadId>>,
    /// What was asked for, and whether a second writer was kept out.
    seen: Mutex<Vec<(&'static str, bool)>>,
}

impl Watched {
    fn look(&self, what: &'static str) {
        if self.whose.lock().expect("whole").is_none_or(|whose| whose == thread::current().id()) {
            let is_kept_out = matches!(Claim::new(&*self.inner), Err(DeviceError::Claimed));
            self.seen.lock().expect("whole").push((what, is_kept_out));
        }
    }

    fn seen(&self) -> Vec<(&'static str, bool)> {
        std::mem::take(&mut self.seen.lock().expect("whole"))
    }
}

impl Layer for Watched {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        self.look("write");
        self.inner.write(offset, buf, durability)
    }

    fn pass_flush(&self) -> Result<(), DeviceError> {
        self.look("flush");
        self.inner.flush()
    }
}

/// Not even what is written last of all comes when a second writer could be there.
#[test]
fn nobody_writes_before_a_volume_is_closed() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    made(&device, &MkfsOptions::new());
    let watched =
        Arc::new(Watched { inner: Arc::clone(&device), whose: Mutex::default(), seen: Mutex::default() });
    let volume = Volume::open_device(Arc::clone(&watched) as Arc<dyn BlockDevice>, &writable());
    let volume = volume.expect("open");
    add(&volume, "one");
    volume.close().expect("closed");
    let seen = watched.seen();
    assert!(seen.iter().any(|(what, _)| *what == "write"), "nothing was written: {seen:?}");
    assert!(seen.iter().all(|(_, is_kept_out)| *is_kept_out), "{seen:?}");
}

/// What is deferred is written when the volume below is closed, or gone.
#[test]
fn nobody_writes_before_what_was_deferred_is_there() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    made(&device, &MkfsOptions::new());
    for is_closed in [true, false] {
        let whose = Mutex::new(is_closed.then(|| thread::current().id()));
        let watched = Arc::new(Watched { inner: Arc::clone(&device), whose, seen: Mutex::default() });
        let options = writable().durable_at_close(true);
        let volume = Volume::open_device(Arc::clone(&watched) as Arc<dyn BlockDevice>, &options);
        let volume = volume.expect("open");
        add(&volume, if is_closed { "one" } else { "two" });
        volume.sync().expect("a hint");
        watched.seen();
        if is_closed {
            volume.close().expect("closed");
            // This thread itself flushes last of all; all else is done by others.
            assert_eq!(watched.seen(), [("flush", true)]);
        } else {
            drop(volume);
            let seen = watched.seen();
            assert!(seen.iter().any(|(what, _)| *what == "write"), "nothing was left: {seen:?}");
            assert!(seen.iter().all(|(_, is_kept_out)| *is_kept_out), "{seen:?}");
        }
        // From then on the device is free.
        let next = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
        assert!(next.lookup("one").is_ok() && (is_closed || next.lookup("two").is_ok()));
        next.close().expect("closed");
    }
}

/// A device that looks, when it is dropped, whether it is still claimed.
#[derive(Debug)]
struct Dropped {
    inner: Arc<dyn BlockDevice>,
    was_claimed: Arc<Mutex<Option<bool>>>,
}

impl Layer for Dropped {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.was_claimed.lock().expect("whole") = Some(Claim::new(&*self.inner).is_err());
    }
}

/// Regression: a volume that nobody had closed kept the claim for a moment longer than the device. Another device whose
/// memory had the same address, or whose file the same number, was said to have a writer.
#[test]
fn the_claim_ends_before_the_device_does() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    made(&memory, &MkfsOptions::new());
    let ways = [writable(), writable().durable_at_close(true), writable().gather_writes(true)];
    let all = ways.iter().flat_map(|way| [(way, false), (way, true)]);
    for ((way, is_changed), name) in all.zip(["a", "b", "c", "d", "e", "f"]) {
        let was_claimed = Arc::new(Mutex::new(None));
        let device = Dropped { inner: Arc::clone(&memory), was_claimed: Arc::clone(&was_claimed) };
        let volume = Volume::open_device(Arc::new(device), way).expect("open");
        if is_changed {
            add(&volume, name);
        }
        drop(volume);
        assert_eq!(was_claimed.lock().expect("whole").take(), Some(false), "{way:?}");
    }
}

/// What is read at its first byte comes late, so that who does not wait for it is through before.
#[derive(Debug)]
struct Late(Arc<dyn BlockDevice>);

impl Layer for Late {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.0
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let read = self.0.read(offset, buf);
        if offset == 0 {
            thread::sleep(std::time::Duration::from_millis(50));
        }
        read
    }
}

/// The thread that covers the log of an idle volume had it for that time. Where the last handle was dropped meanwhile, the
/// volume ended when that thread was done: whoever opened it just behind the drop was refused.
#[test]
fn a_volume_has_no_writer_when_its_last_handle_is_dropped() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    made(&memory, &MkfsOptions::new());
    let holds = Arc::new(HoldDevice::new(Arc::clone(&memory)));
    let faulty = Arc::new(FaultDevice::new(Arc::new(Late(holds.clone())), Vec::new()));
    let volume = Volume::open_device(faulty.clone(), &writable()).expect("open");
    add(&volume, "one");
    volume.sync().expect("synced");
    // The superblock, which covers the log.
    holds.hold(|op, offset| op == Op::Read && offset == 0);
    let idle = {
        let volume = volume.clone();
        thread::spawn(move || while volume.pass_idle_time().is_ok() {})
    };
    holds.wait_until_waiting();
    // Nobody who waits for the covering keeps the volume.
    faulty.add(Fault::fail(Op::Flush, faulty.seen(Op::Flush)));
    assert_eq!(volume.sync().map_err(|error| error.kind()), Err(ErrorKind::Io));
    idle.join().expect("no panic");
    assert_eq!(holds.waiting(), 1, "it is still being covered");
    fileio::testing::at("a volume is let go", move || holds.release());
    drop(volume);
    let volume = Volume::open_device(memory, &writable()).expect("nobody has it");
    volume.lookup("/one").expect("it was synced");
}

/// Makes a volume in a file as often as another writer is in the way, with this many inodes' bytes as tell it from
/// others.
fn made_in(image: &Path, inode_size: u32, place: (u64, u64)) -> uxfs::Result<()> {
    let (offset, end) = place;
    let options = MkfsOptions::new().small(true).inode_size(inode_size).offset(offset).size(end - offset);
    loop {
        match uxfs::mkfs(image, &options) {
            Err(error) if error.kind() == ErrorKind::Locked => {}
            made => break made,
        }
    }
}

fn is_sound(image: &Path, offset: u64) -> u16 {
    let how = OpenOptions::new().offset(offset).length(Some(SIZE));
    let report = uxfs::check(image, &how).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    Volume::open(image, &how).expect("opens").info().expect("info").inode_size
}

/// Each makes the file as long as its volume wants it, and no shorter than the other wants it.
#[test]
fn two_volumes_are_made_in_one_file_at_once() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for round in 0..60 {
        let image = dir.path().join(format!("{round}.img"));
        std::fs::File::create(&image).expect("a file");
        thread::scope(|threads| {
            threads.spawn(|| made_in(&image, 512, (SIZE, 2 * SIZE)).expect("made"));
            made_in(&image, 1024, (0, SIZE)).expect("made");
        });
        assert_eq!([0, SIZE].map(|offset| is_sound(&image, offset)), [1024, 512], "round {round}");
        std::fs::remove_file(&image).expect("gone");
    }
}

/// Of two who make a volume of one new name, one is told that there is something already.
#[test]
fn one_of_two_makes_a_volume_of_a_new_name() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for round in 0..60 {
        let image = dir.path().join(format!("{round}.img"));
        let outcomes = thread::scope(|threads| {
            let other = threads.spawn(|| made_in(&image, 512, (0, SIZE)));
            [made_in(&image, 1024, (0, SIZE)), other.join().expect("no panic")]
        });
        let winner =
            outcomes.iter().zip([1024_u16, 512]).filter(|(made, _)| made.is_ok()).map(|(_, size)| size);
        assert_eq!(winner.collect::<Vec<_>>(), [is_sound(&image, 0)], "round {round}: {outcomes:?}");
        std::fs::remove_file(&image).expect("gone");
    }
}

/// Whatever has an image's name when a change of it fails or is stopped: it is that other file no more, and is left as it is.
#[test]
fn what_took_the_name_of_an_image_meanwhile_is_left_as_it_is() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    let small = MkfsOptions::new().small(true).size(SIZE);
    let takes_its_name = || {
        std::fs::write(&other, [7; 12_345]).expect("written");
        std::fs::rename(&other, &image).expect("renamed");
    };
    let is_left = |what: &str| {
        let found = std::fs::read(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(found == [7; 12_345], "{what}: {} bytes", found.len());
        std::fs::remove_file(&image).expect("gone");
    };
    let made = uxfs::mkfs_filled(&image, &small, &OpenOptions::new(), |_| {
        takes_its_name();
        Err::<(), _>("it fails")
    });
    assert_eq!(made.expect("made").map(|_| ()), Err("it fails"));
    is_left("mkfs of a new file");
    uxfs::mkfs(&image, &small).expect("made");
    let stops = || {
        takes_its_name();
        true
    };
    let grown = uxfs::grow_unless(&image, Some(2 * SIZE), &OpenOptions::new(), &stops).expect("stopped");
    assert!(grown.stopped);
    is_left("a growth that was stopped");
}

/// Whoever takes the file away while a volume is made in it is not told that all went well.
#[test]
fn a_volume_whose_file_lost_its_name_is_not_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    for was_there in [false, true] {
        for replaced in [false, true] {
            if was_there {
                std::fs::File::create(&image).expect("a file");
            }
            let options = MkfsOptions::new().size(SIZE).small(true);
            let made = uxfs::mkfs_filled(&image, &options, &writable(), |_| {
                std::fs::remove_file(&image).expect("removed");
                if replaced {
                    std::fs::write(&other, "other").expect("written");
                    std::fs::rename(&other, &image).expect("renamed");
                }
                Ok::<(), ()>(())
            });
            let error = made.map(drop).expect_err("nobody finds it");
            assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
            assert_eq!(std::fs::read(&image).ok(), replaced.then(|| b"other".to_vec()));
            let _gone = std::fs::remove_file(&image);
        }
    }
}

/// What is changed in memory alone is seen by nobody else, and keeps no reader out.
#[test]
fn changes_in_memory_leave_the_image_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let image = dir.path().join("image");
    made_in(&image, 512, (0, SIZE)).expect("made");
    let volume = Volume::open(&image, &writable()).expect("open");
    add(&volume, "one");
    volume.sync().expect("synced");
    // It is as after a crash: the log is to be replayed.
    drop(volume);
    let before = std::fs::read(&image).expect("read");
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o444)).expect("for readers alone");
    let in_memory = || writable().changes_in_memory(true);
    for options in [in_memory(), in_memory().gather_writes(true), in_memory().durable_at_close(true)] {
        let trial = Volume::open(&image, &options).expect("open");
        assert!(trial.recovery().is_some_and(|recovery| recovery.records > 0));
        add(&trial, "two");
        trial.sync().expect("synced");
        let reader = Volume::open(&image, &OpenOptions::new()).expect("for reading");
        assert!(reader.lookup("one").is_ok() && reader.lookup("two").is_err());
        let second = Volume::open(&image, &in_memory()).expect("another trial");
        add(&second, "two");
        assert!(trial.lookup("two").is_ok());
        trial.close().expect("closed");
    }
    assert!(std::fs::read(&image).expect("read") == before, "the image was changed");
}
