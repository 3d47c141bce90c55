//! The end of a file and what lies behind it: nothing that was cut off, or never acknowledged, comes back when the file
//! grows, whoever else changes it, and wherever the power fails.
//!
//! Threads meet where the test wants them to: `fileio::testing` calls it between a look at the size and the hold that was
//! decided by it, and behind each transaction; and a `HoldDevice` keeps a write until it is told to let it go.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "only the mount of it")]
mod common;

use blockdev::{
    AlignedBuf, BlockDevice, Durability, Fate, FileOptions, HoldDevice, MemoryDevice, Op, PowerCuts,
    Recorder, Rewind,
};
use fileio::testing::{before_next_hold, behind_commits};
use oracles::xfsprogs::Release;
use std::path::Path;
use std::sync::{Arc, Mutex};
use uxfs::{ErrorKind, File, MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;
const VOLUME_BYTES: u64 = 24 << 20;
const OLD: u8 = 0xAA;

fn made(device: &Arc<dyn BlockDevice>) {
    mkfs_device(Arc::clone(device), &MkfsOptions::new().small(true), true).expect("a volume");
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("a volume")
}

fn fresh() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(VOLUME_BYTES).expect("memory"));
    made(&device);
    (Arc::clone(&device), open(device))
}

fn create(volume: &Volume, name: &[u8]) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(name, &NewNode::default()).expect("made").open().expect("opened")
}

fn whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0x55; usize::try_from(file.size()).expect("a small file")];
    let got = file.read_at(&mut bytes, 0).expect("read");
    assert_eq!(got, bytes.len());
    bytes
}

/// Whether the bytes that a read of one sector at `offset` needs are held by somebody who keeps readers off.
fn is_held(file: &File, offset: u64) -> bool {
    let mut queue = file.queue(1).expect("a queue");
    queue.push_read(offset, AlignedBuf::zeroed(512), 0).expect("pushed");
    queue.wait(0, |_| {}).expect("asked") == 0
}

/// Ways to let a file end further behind; each gives the byte from which on it wrote.
type Growth = (&'static str, fn(&File, u64) -> u64);

const GROWTHS: [Growth; 6] = [
    ("set_len", |file, end| {
        file.set_len(end).expect("longer");
        end
    }),
    ("write_at", |file, end| {
        file.write_at(b"x", end - 1).expect("written");
        end - 1
    }),
    ("append_at", |file, end| {
        file.append_at(b"x", (end - 1).next_multiple_of(BLOCK)).expect("written");
        (end - 1).next_multiple_of(BLOCK)
    }),
    ("allocate", |file, end| {
        file.allocate(end - 5000..end, false).expect("allocated");
        end
    }),
    ("zero_range", |file, end| {
        file.zero_range(end - 5000..end, false).expect("zeroed");
        end
    }),
    ("small writes", |file, end| {
        while file.size() < end {
            file.write_at(b"y", file.size() + 5000).expect("written");
        }
        end
    }),
];

/// What a run of uxfs wrote to a volume, and the volume as it was before.
struct Recorded {
    dir: tempfile::TempDir,
    recorder: Arc<Recorder>,
}

impl Recorded {
    /// `prepare` makes the file `f`; then `change` changes it, durably after each transaction.
    fn of(prepare: impl FnOnce(&Volume), change: impl FnOnce(&File)) -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(VOLUME_BYTES).expect("memory"));
        made(&device);
        let volume = open(Arc::clone(&device));
        prepare(&volume);
        volume.close().expect("closed");
        drop(volume);
        let dir = tempfile::tempdir().expect("a place");
        let mut bytes = vec![0; VOLUME_BYTES as usize];
        device.read(0, &mut bytes).expect("read");
        std::fs::write(dir.path().join("image"), &bytes).expect("kept");
        let recorder = Arc::new(Recorder::new(device));
        let volume = open(recorder.clone());
        let file = volume.open_file("/f").expect("opened");
        let syncing = volume.clone();
        behind_commits(move || syncing.sync().expect("synced"), || change(&file));
        drop(file);
        volume.close().expect("closed");
        Self { dir, recorder }
    }

    /// Shows `look` what a power cut at each flush leaves.
    fn cuts(&self, mut look: impl FnMut(&Path, &Arc<Rewind>)) {
        let image = self.dir.path().join("image");
        let stage = Arc::new(Rewind::new(Arc::new(
            FileOptions::in_memory().write(true).open(&image).expect("opened"),
        )));
        let recording = self.recorder.recording();
        let mut cuts = PowerCuts::new(&recording, Arc::clone(&stage));
        for cut in recording.cuts() {
            cuts.advance(cut).expect("written");
            for fate in [Fate::Dropped, Fate::Applied] {
                cuts.make(|_| fate.clone()).expect("written");
                look(&image, &stage);
                stage.rewind().expect("taken back");
            }
        }
    }
}

/// Size and extents of the file, once recovered.
fn state(stage: &Arc<Rewind>) -> (u64, Vec<uxfs::Extent>) {
    stage.mark();
    let volume = open(stage.clone());
    let file = volume.open_file("/f").expect("opened");
    let state = (file.size(), file.extents().collect::<uxfs::Result<_>>().expect("opened"));
    drop((file, volume));
    stage.rewind().expect("taken back");
    state
}

/// Whichever way the file grows behind each cut, what lies past the end that it had is zeroes. Gives how often blocks
/// with data lay there.
fn grows_by_zeroes(recorded: &Recorded, end: u64) -> u32 {
    let mut with_data = 0;
    let mut last = None;
    recorded.cuts(|_, stage| {
        let state = state(stage);
        if last.replace(state.clone()) == Some(state) {
            return;
        }
        for (name, grow) in GROWTHS {
            stage.mark();
            let volume = open(stage.clone());
            let file = volume.open_file("/f").expect("opened");
            let size = file.size();
            if size < end {
                let behind = |extent: &uxfs::Extent| !extent.unwritten && extent.logical >= size;
                let found =
                    file.extents().map(|extent| extent.expect("opened")).any(|extent| behind(&extent));
                with_data += u32::from(found);
                let wrote = grow(&file, end);
                let bytes = whole(&file);
                let shown = bytes[size as usize..wrote.min(bytes.len() as u64) as usize].iter();
                let old = shown.filter(|&&byte| byte != 0 && byte != b'y').count();
                assert_eq!(old, 0, "{name} from {size} to {end}: {old} bytes of before");
            }
            drop(file);
            volume.close().expect("closed");
            drop(volume);
            let report = uxfs::check_device(stage.clone(), &OpenOptions::new()).expect("checked");
            assert!(report.is_clean(), "{name}: {:?}", report.findings);
            stage.rewind().expect("taken back");
        }
    });
    with_data
}

/// A file whose blocks lie apart.
fn fragmented(volume: &Volume, blocks: u64) {
    let file = create(volume, b"f");
    for nth in 0..blocks {
        file.write_at(&[OLD; BLOCK as usize], 2 * nth * BLOCK).expect("written");
    }
}

/// A truncation sets the end first and then frees extents, two at a time. What a crash in between left past the end
/// showed again when the file grew: only the rest of its last block was zeroed.
#[test]
fn what_was_cut_off_does_not_come_back_after_a_crash() {
    for to in [10, BLOCK] {
        let recorded = Recorded::of(|volume| fragmented(volume, 7), |file| file.set_len(to).expect("cut"));
        let with_data = grows_by_zeroes(&recorded, 14 * BLOCK - 100);
        assert!(with_data > 10, "no cut was between the steps of the truncation ({with_data})");
    }
}

/// Extents that were written are converted two at a time, and the end comes last.
#[test]
fn a_write_that_was_cut_short_does_not_come_back_after_a_crash() {
    let recorded = Recorded::of(
        |volume| {
            let (file, other) = (create(volume, b"f"), create(volume, b"other"));
            file.write_at(&[1; 10], 0).expect("written");
            for block in 1..12 {
                file.allocate(block * BLOCK..(block + 1) * BLOCK, true).expect("space");
                other.allocate(block * BLOCK..(block + 1) * BLOCK, true).expect("space");
            }
            assert!(file.extents().count() > 10, "one piece of space");
        },
        |file| file.write_at(&[OLD; 9 * BLOCK as usize], 2 * BLOCK + 100).expect("written"),
    );
    let with_data = grows_by_zeroes(&recorded, 11 * BLOCK - 100);
    assert!(with_data > 10, "no cut was between the steps of the conversion ({with_data})");
}

/// As the others have it, for a volume of one group.
fn repair_finds_nothing(image: &Path) {
    let mut repair = Release::Unstable.tool("xfs_repair").expect("installed");
    let run = repair.args(["-n", "-o", "force_geometry"]).arg(image).output();
    let run = run.expect("xfs_repair is installed");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// The kernel finds what uxfs left in the middle of a truncation, and lets the file grow; and uxfs gives it back after it
/// has: both show zeroes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_shows_zeroes_too() {
    let recorded = Recorded::of(|volume| fragmented(volume, 7), |file| file.set_len(10).expect("cut"));
    let mut tried = 0;
    let mut last = None;
    recorded.cuts(|image, stage| {
        let state = state(stage);
        if state.0 != 10 || state.1.len() < 2 || last.replace(state.clone()) == Some(state) {
            return;
        }
        tried += 1;
        stage.mark();
        let zeroes = |bytes: &[u8]| bytes[10..].iter().all(|&byte| byte == 0);
        // The kernel writes past the stage: a copy for it.
        let copy = image.with_extension("kernel");
        std::fs::copy(image, &copy).expect("a copy");
        common::mounted(&copy, |at| {
            let file = std::fs::File::options().write(true).open(at.join("f")).expect("opened");
            file.set_len(13 * BLOCK).expect("longer");
            assert!(zeroes(&std::fs::read(at.join("f")).expect("read")), "by the kernel");
        });
        repair_finds_nothing(&copy);
        let volume = open(stage.clone());
        volume.open_file("/f").expect("opened").set_len(13 * BLOCK).expect("longer");
        volume.close().expect("closed");
        drop(volume);
        std::fs::copy(image, &copy).expect("a copy");
        common::mounted(&copy, |at| {
            assert!(zeroes(&std::fs::read(at.join("f")).expect("read")), "what uxfs made longer");
        });
        repair_finds_nothing(&copy);
        stage.rewind().expect("taken back");
    });
    assert!(tried > 1, "{tried} cuts were in the middle");
}

/// A range cut out or put in moves what lies past the end, and sets the end in a step of its own.
#[test]
fn what_lies_behind_the_end_does_not_move_before_it() {
    let halves =
        Recorded::of(|volume| fragmented(volume, 9), |file| file.set_len(3 * BLOCK + 10).expect("cut"));
    let mut tried = 0;
    halves.cuts(|_, stage| {
        for insert in [false, true] {
            stage.mark();
            let volume = open(stage.clone());
            let file = volume.open_file("/f").expect("opened");
            if file.size() == 3 * BLOCK + 10 {
                let pieces = file.extents().count();
                tried += usize::from(pieces > 4);
                let seen = file.clone();
                behind_commits(
                    move || {
                        // As after a crash here.
                        let at_end = seen.extents().map(|extent| extent.expect("opened"));
                        let shown = at_end.filter(|extent| !extent.unwritten && extent.logical < seen.size());
                        assert!(shown.count() <= 2, "of a file of two blocks with data");
                    },
                    || match insert {
                        true => file.insert_range(0..4 * BLOCK).expect("put in"),
                        false => file.collapse_range(BLOCK..2 * BLOCK).expect("cut out"),
                    },
                );
                let data = whole(&file).iter().filter(|&&byte| byte == OLD).count();
                assert_eq!(data as u64, 2 * BLOCK, "what the file had");
            }
            stage.rewind().expect("taken back");
        }
    });
    assert!(tried > 2, "no cut was in the middle");
}

/// `set_len` asked for the size, waited for a range that followed from it, and asked again: the file was cut meanwhile,
/// and the rest of another block was zeroed than it held. An overwrite there that was acknowledged was gone.
#[test]
fn an_overwrite_beside_a_growth_is_not_lost() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(VOLUME_BYTES).expect("memory"));
    made(&memory);
    let device = Arc::new(HoldDevice::new(memory));
    let volume = open(device.clone());
    let file = create(&volume, b"f");
    file.write_at(&[1; 300_000], 0).expect("written");
    let first = file.extents().next().expect("one").expect("opened").physical;
    let mut queue = file.queue(1).expect("a queue");
    std::thread::scope(|scope| {
        let growth = scope.spawn(|| {
            // The cut itself zeroes the rest of the same sector: the growth is the next to do so.
            let (cut, device) = (file.clone(), Arc::clone(&device));
            before_next_hold(move || {
                cut.set_len(10).expect("cut");
                device.hold_next(move |op, offset| op == Op::Write && offset == first);
            });
            file.set_len(1_000_000).expect("longer");
        });
        device.wait_until_waiting();
        let mut new = AlignedBuf::zeroed(10);
        new.fill(7);
        queue.push_overwrite(0, new, 0).expect("pushed");
        let over = queue.wait(0, |over| assert_eq!(over.result.expect("written"), 10)).expect("asked");
        device.release();
        growth.join().expect("no panic");
        if over == 0 {
            queue.wait(1, |over| assert_eq!(over.result.expect("written"), 10)).expect("asked");
        }
    });
    assert_eq!(whole(&file)[..10], [7; 10], "an acknowledged overwrite is gone");
    assert_eq!(file.size(), 1_000_000);
}

/// What decides by the size of a file decides again when it holds it: here the file is cut in between.
#[test]
fn whoever_lets_a_file_grow_decides_by_the_size_that_it_holds() {
    for (name, grow) in GROWTHS {
        let (_device, volume) = fresh();
        let file = create(&volume, b"f");
        file.write_at(&[OLD; 200_000], 0).expect("written");
        let cutting = file.clone();
        before_next_hold(move || cutting.set_len(10).expect("cut"));
        let (held, at_commit) = (Arc::new(Mutex::new(Vec::new())), file.clone());
        let seen = Arc::clone(&held);
        let step = move || seen.lock().expect("sound").push((at_commit.size(), is_held(&at_commit, 0)));
        let end = 210_000;
        let wrote = behind_commits(step, || grow(&file, end));
        assert!(file.size() >= end, "{name}: the file ends at {}", file.size());
        let bytes = whole(&file);
        assert_eq!(bytes[..10], [OLD; 10], "{name}");
        let shown = &bytes[10..bytes.len().min(wrote as usize)];
        assert!(
            shown.iter().all(|&byte| byte == 0 || byte == b'y'),
            "{name}: what was cut off is there again"
        );
        // The block that the end lies in was kept from the first step of the growth to its last.
        let held = held.lock().expect("sound");
        let growing = held.iter().filter(|(size, _)| *size == 10);
        assert!(growing.clone().all(|(_, held)| *held), "{name}: the end was not held: {held:?}");
    }
}

/// Two allocations in one block, of which the first gives up and takes back what it was given: the second must not have
/// relied on that.
#[test]
fn space_is_set_aside_in_whole_blocks() {
    let (_device, volume) = fresh();
    let file = create(&volume, b"f");
    let held = Arc::new(Mutex::new(Vec::new()));
    for keep_size in [true, false] {
        let (seen, beside) = (Arc::clone(&held), file.clone());
        let step = move || seen.lock().expect("sound").push(is_held(&beside, 2048));
        let from = if keep_size { 0 } else { 10 };
        behind_commits(step, || file.allocate(from..from + 100, keep_size).expect("allocated"));
    }
    let held = held.lock().expect("sound");
    assert!(held.len() > 1 && held.iter().all(|held| *held), "{held:?}");
}

/// A call that found no space took back the mark that space was set aside, which another relied on that had succeeded.
#[test]
fn an_allocation_that_fails_leaves_the_mark_of_another() {
    const PREALLOC: u32 = 2;
    let (_device, volume) = fresh();
    let file = create(&volume, b"f");
    let other = create(&volume, b"filler");
    let mut end = 0;
    for len in [1 << 20, BLOCK] {
        while other.write_at(&vec![1; len as usize], end).is_ok() {
            end += len;
        }
    }
    for block in (0..end / BLOCK).step_by(2).take(600) {
        other.punch_hole(block * BLOCK..(block + 1) * BLOCK).expect("a hole");
    }
    volume.sync().expect("synced");
    let done = Arc::new(Mutex::new(false));
    let free = volume.info().expect("info").free_blocks;
    for blocks in (0..=free).rev().take_while(|_| !*done.lock().expect("sound")) {
        let (beside, is_done) = (file.clone(), Arc::clone(&done));
        let step = move || {
            let mut done = is_done.lock().expect("sound");
            if !std::mem::replace(&mut *done, true) {
                beside.allocate(1 << 30..(1 << 30) + BLOCK, true).expect("a block");
            }
        };
        // The first that are tried find so little that they do not even begin.
        let error = behind_commits(step, || file.allocate(0..blocks * BLOCK, true)).expect_err("no space");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
    assert!(*done.lock().expect("sound"), "nothing was given before it failed");
    assert_ne!(file.metadata().xflags & PREALLOC, 0, "the mark of the one that succeeded");
    assert_eq!(file.extents().count(), 1, "the block of the one that succeeded");
}

/// What lies past the end in the last block showed when `allocate` let the file grow: as after a crash between the data
/// of a write and its transaction.
#[test]
fn what_lies_behind_the_end_in_its_block_does_not_show() {
    for (name, grow) in GROWTHS {
        let (device, volume) = fresh();
        let file = create(&volume, b"f");
        file.write_at(&[1; 100], 0).expect("written");
        let place = file.extents().next().expect("one").expect("opened").physical;
        let mut block = vec![0; BLOCK as usize];
        device.read(place, &mut block).expect("read");
        block[100..].fill(OLD);
        device.write(place, &block, Durability::Volatile).expect("written");
        let wrote = grow(&file, 9000);
        let bytes = whole(&file);
        let shown = &bytes[100..bytes.len().min(wrote as usize)];
        assert!(shown.iter().all(|&byte| byte == 0 || byte == b'y'), "{name}");
        assert_eq!(bytes[..100], [1; 100], "{name}");
    }
}

/// `set_len(2^63)` made an inode that was refused as damaged when it was read next.
#[test]
fn no_file_becomes_larger_than_a_file_can_be() {
    let (device, volume) = fresh();
    let file = create(&volume, b"f");
    file.write_at(&[OLD; 10_000], 0).expect("written");
    let before = (file.metadata(), file.extents().count());
    let last = i64::MAX as u64 & !(BLOCK - 1);
    type Try = (&'static str, fn(&File, u64) -> uxfs::Result<()>);
    let tries: [Try; 7] = [
        ("set_len", |file, _| file.set_len(1 << 63)),
        ("set_len to the end", |file, _| file.set_len(u64::MAX)),
        ("write_at", |file, _| file.write_at(b"xy", i64::MAX as u64 - 1)),
        ("write_at the end", |file, _| file.write_at(b"xy", u64::MAX)),
        ("append_at", |file, last| file.append_at(&[1; BLOCK as usize], last)),
        ("allocate", |file, last| file.allocate(0..last + BLOCK, false)),
        ("insert_range", |file, last| file.insert_range(0..last)),
    ];
    for (name, attempt) in tries {
        let error = attempt(&file, last).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{name}: {error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::FileTooLarge, "{name}");
        assert_eq!((file.metadata(), file.extents().count()), before, "{name}");
    }
    // Space set aside far past the end would be moved out of what a file can have.
    file.allocate(last - BLOCK..last, true).expect("a block");
    let error = file.insert_range(0..BLOCK * 4).expect_err("moved too far");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!(file.size(), before.0.size);
    file.set_len(i64::MAX as u64).expect("the largest");
    drop(file);
    // A kernel writes to the last block, too, and so must who copies such a file.
    let far = create(&volume, b"far");
    far.append_at(&[OLD; 4095], last).expect("the last block");
    let written = create(&volume, b"written");
    written.write_at(b"far away", i64::MAX as u64 - 8).expect("the last bytes");
    written.zero_range(last..i64::MAX as u64 - 8, true).expect("set aside");
    written.punch_hole(last - BLOCK..i64::MAX as u64 - 4).expect("cleared");
    drop((far, written));
    volume.close().expect("closed");
    drop(volume);
    let volume = open(device);
    for name in ["/f", "/far", "/written"] {
        assert_eq!(volume.open_file(name).expect("sound").size(), i64::MAX as u64, "{name}");
    }
    let tail = |name: &str| {
        let mut bytes = [9; 16];
        let read = volume.open_file(name).and_then(|file| file.read_at(&mut bytes, i64::MAX as u64 - 12));
        assert_eq!(read.expect("read"), 12);
        bytes
    };
    assert_eq!(tail("/far")[..12], [OLD; 12]);
    assert_eq!(tail("/written")[..12], *b"\0\0\0\0\0\0\0\0away");
}
