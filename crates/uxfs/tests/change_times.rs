//! Times of changes beside each other: no time goes back that somebody has seen, unless it is set by hand; who sees a
//! change sees all of it, and what is done behind it counts; a close loses no time.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, HoldDevice, MemoryDevice, Op};
use common::devices::copy;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{Changes, File, MkfsOptions, NewNode, OpenOptions, Timestamp, Volume, mkfs_device};

/// For how long threads run that nothing holds.
const STORM: Duration = Duration::from_secs(4);
const FUTURE: Timestamp = Timestamp { seconds: 4_000_000_000, nanoseconds: 0 };
const PAST: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };

fn device(bytes: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(bytes).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("it opens")
}

fn new_file(volume: &Volume, name: &str) -> File {
    let root = volume.open_dir("/").expect("a root");
    root.create_file(name.as_bytes(), &NewNode::default()).and_then(|node| node.open()).expect("a file")
}

fn permissions(mode: u16) -> Changes {
    Changes { permissions: Some(mode), ..Changes::default() }
}

/// Makes the root so large that its blocks are read one by one.
fn fill_the_root(volume: &Volume) {
    let root = volume.open_dir("/").expect("a root");
    for nth in 0..3000 {
        let name = format!("a rather long name of a file, number {nth}");
        root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
    }
}

/// A link takes its time, and then waits for the directory.
#[test]
fn a_time_of_change_does_not_go_back_beside_a_link() {
    let device = device(64 << 20);
    let volume = open(&device);
    fill_the_root(&volume);
    new_file(&volume, "f").write_at(&[1; 8192], 0).expect("written");
    volume.close().expect("closed");
    drop(volume);
    let hold = Arc::new(HoldDevice::new(device));
    let volume = Volume::open_device(hold.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.open_dir("/").expect("a root");
    let file = volume.open_file("/f").expect("there");
    file.read_at(&mut [0; 4096], 0).expect("read");
    hold.hold_next(|op, _| op == Op::Read);
    let changed = thread::scope(|scope| {
        let makes = scope.spawn(|| root.create_file(b"another one in the directory", &NewNode::default()));
        hold.wait_until_waiting();
        let links = scope.spawn(|| root.link(b"a second name of the file", file.node()));
        thread::sleep(Duration::from_millis(200));
        assert!(!links.is_finished());
        file.node().change(&permissions(0o640)).expect("changed");
        let changed = file.metadata().ctime;
        hold.release();
        makes.join().expect("no panic").expect("made");
        links.join().expect("no panic").expect("linked");
        changed
    });
    let now = file.metadata().ctime;
    assert!(now >= changed, "ctime {changed:?} was seen, then the file got a second name, and it is {now:?}");
}

/// One write converts unwritten extents in two transactions. Between them another thread overwrites the first block, and
/// syncs.
#[test]
fn a_file_is_not_older_than_an_overwrite_beside_a_long_write() {
    const PIECES: u64 = 5;
    let device = device(64 << 20);
    let volume = open(&device);
    let file = new_file(&volume, "a");
    file.write_at(&[1; 8192], 0).expect("written");
    file.allocate(8192..8192 + PIECES * 8192, false).expect("allocated");
    for nth in 0..PIECES {
        file.write_at(&[1; 4096], 8192 + nth * 8192).expect("written");
    }
    file.sync().expect("synced");
    let synced = Arc::new(Mutex::new(None));
    let (to, other) = (Arc::clone(&synced), volume.clone());
    fileio::testing::at(fileio::testing::COMMITTED, move || {
        let overwrites = thread::spawn(move || {
            let file = other.open_file("/a").expect("a file");
            thread::sleep(Duration::from_millis(100));
            file.overwrite_at(&[2; 4096], 0).expect("overwritten");
            file.sync().expect("synced");
            file.metadata().mtime
        });
        *to.lock().unwrap() = Some(overwrites.join().expect("no panic"));
    });
    file.write_at(&vec![5; (PIECES * 8192) as usize], 8192).expect("written");
    let synced = synced.lock().unwrap().take().expect("the point was reached");
    let now = volume.metadata("/a").expect("metadata").mtime;
    drop((file, volume));
    let left = open(&device).metadata("/a").expect("metadata").mtime;
    assert!(now >= synced && left >= synced, "synced and seen {synced:?}, now {now:?}, left {left:?}");
}

/// What threads do to a file over and over; the number is that of the turn.
type Thing<'a> = Box<dyn Fn(&File, u64) + Send + 'a>;

/// Looks at the times of a file beside those who do these things.
fn never_goes_back(volume: &Volume, things: Vec<Thing<'_>>) {
    let file = new_file(volume, "a");
    file.write_at(&[1; 4096], 0).expect("written");
    let ends = AtomicBool::new(false);
    let until = Instant::now() + STORM;
    let found = thread::scope(|scope| {
        for thing in things {
            let (file, ends) = (&file, &ends);
            scope.spawn(move || {
                (0..).take_while(|_| !ends.load(Ordering::Relaxed)).for_each(|turn| thing(file, turn));
            });
        }
        let mut last = volume.metadata("/a").expect("metadata");
        let mut found = None;
        while found.is_none() && Instant::now() < until {
            let now = volume.metadata("/a").expect("metadata");
            if now.mtime < last.mtime || now.ctime < last.ctime {
                found = Some([(last.mtime, last.ctime), (now.mtime, now.ctime)]);
            }
            last = now;
        }
        ends.store(true, Ordering::Relaxed);
        found
    });
    assert!(found.is_none(), "(mtime, ctime) before and after: {found:?}");
}

#[test]
fn times_do_not_go_back_beside_two_who_write_into_holes() {
    const PIECES: u64 = 500;
    let into = |first: u64| -> Thing<'_> {
        Box::new(move |file, turn| {
            let at = |turn: u64| (first + 2 * (turn % PIECES)) * 8192;
            file.write_at(&[1; 4096], at(turn)).expect("written");
            if turn % PIECES == PIECES - 1 {
                for turn in 0..PIECES {
                    file.punch_hole(at(turn)..at(turn) + 4096).expect("punched");
                }
            }
        })
    };
    never_goes_back(&open(&device(96 << 20)), vec![into(1), into(2)]);
}

#[test]
fn times_do_not_go_back_beside_those_who_change_permissions() {
    let to = |mode: u16| -> Thing<'_> {
        Box::new(move |file, _| file.node().change(&permissions(mode)).expect("changed"))
    };
    never_goes_back(&open(&device(64 << 20)), vec![to(0o600), to(0o640), to(0o644)]);
}

/// A change has permissions and a time of the past. Who sees the permissions overwrites the file: that is later.
#[test]
fn an_overwrite_behind_a_change_of_times_that_was_seen_counts() {
    let volume = open(&device(64 << 20));
    let file = new_file(&volume, "a");
    file.write_at(&[1; 4096], 0).expect("written");
    file.sync().expect("synced");
    let (turn, done, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let mode_of = |turn: u64| if turn.is_multiple_of(2) { 0o600 } else { 0o644 };
    let until = Instant::now() + STORM;
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            for next in 1.. {
                while volume.metadata("/a").expect("metadata").permissions() != mode_of(next)
                    || turn.load(Ordering::Acquire) != next
                {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                }
                file.overwrite_at(&[3; 512], 0).expect("overwritten");
                done.store(next, Ordering::Release);
            }
        });
        let mut lost = false;
        while !lost && Instant::now() < until {
            file.overwrite_at(&[2; 512], 512).expect("overwritten");
            let now = turn.fetch_add(1, Ordering::AcqRel) + 1;
            let change = Changes { mtime: Some(PAST), ..permissions(mode_of(now)) };
            file.node().change(&change).expect("changed");
            while done.load(Ordering::Acquire) != now {
                std::hint::spin_loop();
            }
            lost = volume.metadata("/a").expect("metadata").mtime == PAST;
        }
        ends.store(true, Ordering::Relaxed);
        lost
    });
    assert!(!lost, "turn {}: the file is as old as before the overwrite", turn.load(Ordering::Relaxed));
}

/// Nobody writes behind a change of permissions and times.
#[test]
fn a_stat_has_all_of_a_change_or_nothing() {
    let volume = open(&device(64 << 20));
    let file = new_file(&volume, "a");
    file.write_at(&[1; 4096], 0).expect("written");
    let until = Instant::now() + STORM;
    let ends = AtomicBool::new(false);
    let torn = thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let seen = volume.metadata("/a").expect("metadata");
                if seen.permissions() == 0o600 && (seen.mtime, seen.ctime) != (PAST, PAST) {
                    ends.store(true, Ordering::Relaxed);
                    return Some((seen.mtime, seen.ctime));
                }
            }
            None
        });
        while Instant::now() < until && !ends.load(Ordering::Relaxed) {
            file.node().change(&permissions(0o644)).expect("changed");
            file.overwrite_at(&[2; 512], 512).expect("overwritten");
            let set = Changes { mtime: Some(PAST), ctime: Some(PAST), ..permissions(0o600) };
            file.node().change(&set).expect("changed");
        }
        ends.store(true, Ordering::Relaxed);
        looks.join().expect("no panic")
    });
    assert!(torn.is_none(), "(mtime, ctime) {torn:?} with permissions that came with {PAST:?}");
}

/// A number that goes from file to file: those with permissions 600 are never written to.
#[test]
fn a_stat_by_number_is_of_one_file() {
    let volume = open(&device(64 << 20));
    let root = volume.open_dir("/").expect("a root");
    let ino = root.create_file(b"a", &NewNode::default()).expect("made").ino();
    root.remove_file(b"a").expect("removed");
    let ends = AtomicBool::new(false);
    let until = Instant::now() + 2 * STORM;
    let mut reused = 0_u64;
    let found = thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let seen = volume.metadata_of(ino).ok();
                let seen =
                    seen.filter(|seen| seen.permissions() == 0o600 && (seen.size, seen.blocks) != (0, 0));
                if let Some(seen) = seen {
                    ends.store(true, Ordering::Relaxed);
                    return Some((seen.generation, seen.size, seen.blocks));
                }
            }
            None
        });
        while Instant::now() < until && !ends.load(Ordering::Relaxed) {
            for mode in [0o644, 0o600] {
                let new = NewNode { permissions: mode, ..NewNode::default() };
                let node = root.create_file(b"a", &new).expect("made");
                reused += u64::from(node.ino() == ino);
                if mode == 0o644 {
                    let file = node.open().expect("a file").buffered();
                    file.write_at(&[1; 65536], 0).expect("written");
                }
                drop(node);
                root.remove_file(b"a").expect("removed");
            }
        }
        ends.store(true, Ordering::Relaxed);
        looks.join().expect("no panic")
    });
    assert!(reused > 100, "or nothing is tested");
    assert!(found.is_none(), "a file that was never written has (generation, size, blocks) {found:?}");
}

/// A file without a name is overwritten and closed while another thread gives it a name and waits for a block of the
/// directory. Neither may leave its time to the other.
#[test]
fn a_close_beside_a_first_name_logs_the_time() {
    at_each_read_of_a_link(closed_beside_a_link);
}

/// Who syncs the volume beside that includes the time, whoever makes the link durable later.
#[test]
fn a_sync_beside_a_first_name_logs_the_time() {
    at_each_read_of_a_link(synced_beside_a_link);
}

/// Tries with each read of a link held, until it reads no more.
fn at_each_read_of_a_link(is_held: impl Fn(&Arc<dyn BlockDevice>, usize) -> bool) {
    let base = device(96 << 20);
    let volume = open(&base);
    fill_the_root(&volume);
    volume.close().expect("closed");
    drop(volume);
    let held = (0..14).take_while(|&read| is_held(&copy(&*base), read)).count();
    assert!(held > 0, "or nothing is tested");
}

fn synced_beside_a_link(device: &Arc<dyn BlockDevice>, read: usize) -> bool {
    let syncs = |volume: &Volume, _file: File| volume.sync().expect("synced");
    beside_a_link(device, read, syncs, |volume| {
        let other = volume.open_file("/a rather long name of a file, number 1").expect("there");
        other.node().change(&permissions(0o600)).expect("changed");
        other.sync().expect("synced");
    })
}

fn closed_beside_a_link(device: &Arc<dyn BlockDevice>, read: usize) -> bool {
    beside_a_link(
        device,
        read,
        |_, file| drop(file),
        |volume| {
            volume.pass_idle_time().expect("written back");
        },
    )
}

/// Whether the link read as often. This read is held, while the file is overwritten and something is done `beside`. Then
/// the link is made durable, and the power goes.
fn beside_a_link(
    device: &Arc<dyn BlockDevice>,
    read: usize,
    beside: impl FnOnce(&Volume, File) + Send,
    make_durable: impl FnOnce(&Volume),
) -> bool {
    let hold = Arc::new(HoldDevice::new(Arc::clone(device)));
    let how = OpenOptions::new().writable(true).cache_size(64 << 10);
    let volume = Volume::open_device(hold.clone(), &how).expect("clean");
    let root = volume.open_dir("/").expect("a root");
    let file = root.create_unnamed(&NewNode::default()).expect("made");
    file.write_at(&[1; 4096], 0).expect("written");
    file.sync().expect("synced");
    thread::sleep(Duration::from_millis(20));
    let node = file.node().clone();
    let reads = AtomicUsize::new(0);
    hold.hold_next(move |op, _| op == Op::Read && reads.fetch_add(1, Ordering::SeqCst) == read);
    let seen = thread::scope(|scope| {
        let links = scope.spawn(|| root.link(b"a name", &node).is_ok());
        let until = Instant::now() + Duration::from_millis(400);
        while !links.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        if links.is_finished() {
            assert!(links.join().expect("no panic"));
            return None;
        }
        file.overwrite_at(&[2; 4096], 0).expect("overwritten");
        let seen = file.metadata().mtime;
        let volume = &volume;
        let beside = scope.spawn(move || beside(volume, file));
        thread::sleep(Duration::from_millis(200));
        hold.release();
        beside.join().expect("no panic");
        Some((seen, links.join().expect("no panic")))
    });
    drop(node);
    let Some((seen, is_linked)) = seen else { return false };
    if is_linked {
        make_durable(&volume);
        let crashed = Volume::open_device(copy(&**device), &OpenOptions::new()).expect("replayed");
        let logged = crashed.metadata("/a name").expect("there").mtime;
        assert!(logged >= seen, "read {read}: seen {seen:?}, in the log {logged:?}");
    }
    true
}

/// Appended, dated ahead, overwritten: the overwrite came last, and the coarse clock may be behind.
#[test]
fn an_overwrite_is_not_older_than_the_write_before_it() {
    let volume = open(&device(64 << 20));
    let file = new_file(&volume, "a");
    file.write_at(&[1; 4096], 0).expect("written");
    for turn in 0..100 {
        file.append(&[2; 4096]).expect("appended");
        let appended = file.metadata().mtime;
        file.node().change(&Changes { mtime: Some(FUTURE), ..Changes::default() }).expect("dated");
        file.overwrite_at(&[3; 4096], 0).expect("overwritten");
        let now = file.metadata().mtime;
        assert!(now >= appended && now < FUTURE, "turn {turn}: appended {appended:?}, overwritten {now:?}");
    }
}

/// Regression: each sync behind an overwrite was a commit, although the clock had not ticked.
#[test]
fn a_sync_of_each_overwrite_logs_one_time_a_tick() {
    let commits = || {
        let classes: BTreeMap<_, _> = lockstat::report().into_iter().collect();
        classes.get(lockstat::COMMIT_CLASS).map_or(0, |commits| commits.shared)
    };
    lockstat::enable();
    let volume = open(&device(64 << 20));
    let file = new_file(&volume, "a");
    file.write_at(&[1; 4096], 0).expect("written");
    volume.sync().expect("synced");
    // Behind the fine time of the write.
    thread::sleep(Duration::from_millis(20));
    let (before, began) = (commits(), Instant::now());
    for _ in 0..2000 {
        file.overwrite_at(&[2; 4096], 0).expect("overwritten");
        file.sync().expect("synced");
    }
    let (logged, ticks) = (commits() - before, began.elapsed().as_millis() as u64 + 2);
    assert!(logged <= ticks, "{logged} commits in {ticks} ms, of which each may have a tick");
}

#[test]
fn a_clock_that_stands_still_stands_still_for_overwrites() {
    let device = device(48 << 20);
    let options = OpenOptions::new().writable(true).repeatable(Some(PAST));
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("it opens");
    let file = new_file(&volume, "a");
    let mtime = || volume.metadata("/a").expect("there").mtime;
    file.write_at(&[1; 4096], 0).expect("written");
    file.sync().expect("synced");
    assert_eq!(mtime(), PAST, "made");
    file.overwrite_at(&[2; 4096], 0).expect("written");
    assert_eq!(mtime(), PAST, "overwritten");
    file.sync().expect("synced");
    assert_eq!(mtime(), PAST, "synced");
    drop(file);
    volume.close().expect("closed");
    drop(volume);
    assert_eq!(open(&device).metadata("/a").expect("there").mtime, PAST, "closed");
}
