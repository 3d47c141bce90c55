//! Files that are removed while others use them. Each interleaving is forced.

use super::create;
use super::link;
use super::remove;
use super::rename;
use super::*;
use crate::attr::Namespace;
use crate::attr::acl::AclKind;
use crate::attr::edit::SetXattr;
use crate::check::{CheckOptions, check};
use crate::file;
use crate::inactive;
use crate::iomap;
use crate::log::ShutdownReason;
use crate::mkfs::{Before, Features, Options, format, plan};
use crate::setattr;
use crate::volume::{InodeHandle, OpenOptions, Volume};
use blockdev::{BlockDevice, Durability, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use fileio::FileMapping;
use fileio::testing::at;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use xfs_format::acl::{AclEntry, AclTag};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, Uuid};

const BYTES: u64 = 48 << 20;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
/// More than a file's inode has room for.
const EXTENTS: u64 = 100;

struct Fixture {
    device: Arc<dyn BlockDevice>,
    volume: Arc<Volume>,
    root: InodeHandle,
}

fn new_file() -> NewInode {
    new(0o100_644)
}

fn new(mode: u16) -> NewInode {
    NewInode::for_tests(mode, NOW)
}

impl Fixture {
    fn new() -> Self {
        Self::with(Features::default())
    }

    fn with(features: Features) -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
        let options = Options { small: true, features, ..Options::new(Uuid([7; 16]), NOW) };
        format(&*device, &plan(&options, BYTES).unwrap(), Before::Zeroes).unwrap();
        Self::open(device)
    }

    fn open(device: Arc<dyn BlockDevice>) -> Self {
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let volume = Volume::open(Arc::clone(&device), &options).unwrap();
        let root = volume.handle(volume.geometry().root).unwrap();
        Self { device, volume, root }
    }

    fn create(&self, name: &[u8]) -> InodeHandle {
        create::create(&self.volume, &self.root, name, &new_file()).unwrap()
    }

    fn mkdir(&self, dir: &InodeHandle, name: &[u8]) -> InodeHandle {
        create::create(&self.volume, dir, name, &new(0o040_755)).unwrap()
    }

    /// A file in so many pieces that freeing it takes many transactions.
    fn fragmented(&self, name: &[u8]) -> InodeHandle {
        let file = self.create(name);
        for block in (0..EXTENTS).map(|nth| FileBlock(2 * nth)) {
            let blocks = block..FileBlock(block.0 + 1);
            let _given = file::allocate_blocks(&self.volume, file.entry(), blocks.clone()).unwrap();
            file::convert_unwritten(&self.volume, file.entry(), blocks, Some((block.0 + 1) << 12), NOW)
                .unwrap();
        }
        file
    }

    fn remove(&self, name: &[u8]) {
        remove::remove(&self.volume, &self.root, name, Removal::File, NOW).unwrap();
    }

    /// Looks up a name.
    fn lookup(&self, dir: &InodeHandle, name: &[u8]) -> Option<InodeNumber> {
        let (_shared, inode) = dir.ilock_shared().unwrap();
        let fork = self.volume.fork(&inode, ForkKind::Data)?;
        crate::dir::lookup(&*fork, name).unwrap().map(|(ino, _)| ino)
    }

    /// Closes the volume, which must be sound and have no inodes without names.
    fn ends_well(self) {
        self.volume.close().unwrap();
        drop((self.root, self.volume));
        let report = check(Arc::clone(&self.device), &CheckOptions::default()).unwrap();
        assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
    }
}

/// Tries everything that uses a handle: all must fail as stale.
fn all_say_stale(imap: &Fixture, file: &InodeHandle) {
    fn stale<T: std::fmt::Debug>(what: &str, got: Result<T>) {
        let got = got.map(|_| ());
        assert!(matches!(got, Err(Error::Stale(_))), "{what}: {got:?}");
    }
    let volume = &imap.volume;
    stale("current", file.current());
    stale("share", file.ilock_shared().map(|_| ()));
    stale("open", iomap::open_file(volume, file));
    stale("link", link::link(volume, &imap.root, b"again", file, NOW));
    let change = Changes { permissions: Some(0o600), ..Changes::default() };
    stale("change", setattr::change(volume, file, &change, NOW));
    let set = XattrChange::Set(b"value", SetXattr::Either);
    stale("set an attribute", setattr::change_xattr(volume, file, Namespace::User, b"name", set, NOW));
    stale(
        "remove one",
        setattr::change_xattr(volume, file, Namespace::User, b"name", XattrChange::Remove, NOW),
    );
    stale("set a list", setattr::set_acl(volume, file, AclKind::Access, None, NOW));
    stale("make", create::create(volume, file, b"name", &new_file()));
    stale("make a link", create::symlink(volume, file, b"name", b"target", &new_file()));
    stale("make a nameless file", create::create_unnamed(volume, file, &new_file()));
    stale("remove", remove::remove(volume, file, b"name", Removal::File, NOW));
    stale("rename from", rename::rename(volume, (file, b"a"), (&imap.root, b"b"), Rename::Replace, NOW));
    stale("link into", link::link(volume, file, b"name", &imap.root, NOW));
}

/// Regression: a file was opened and written after its removal had begun to free it, and the writes landed in other
/// files that had got its blocks. A link revived it half freed.
#[test]
fn what_is_being_freed_is_gone_for_everybody() {
    let imap = Rc::new(Fixture::new());
    let file = imap.fragmented(b"a");
    let came = Rc::new(Cell::new(false));
    let (inside, known, seen) = (Rc::clone(&imap), file.clone(), Rc::clone(&came));
    at("some blocks are freed", move || {
        assert!(known.entry().snapshot().extent_count(ForkKind::Data) > 1, "it is half freed");
        all_say_stale(&inside, &known);
        assert!(matches!(inside.volume.handle(known.ino()), Err(Error::NoSuchInode(_))), "by its number");
        seen.set(true);
    });
    imap.remove(b"a");
    assert!(came.get());
    all_say_stale(&imap, &file);
    drop(file);
    Rc::into_inner(imap).unwrap().ends_well();
}

/// Regression: a removal between two of its transactions was told that the volume was shut down, although its file was
/// gone. Or, if it passed the gate again, it went on to free what was no longer its own.
#[test]
fn a_removal_that_a_close_cuts_in_two_comes_to_its_end() {
    let imap = Fixture::new();
    imap.fragmented(b"a");
    let volume = Arc::clone(&imap.volume);
    at("some blocks are freed", move || volume.close().unwrap());
    remove::remove(&imap.volume, &imap.root, b"a", Removal::File, NOW).expect("it is removed");
    let device = Arc::clone(&imap.device);
    drop(imap);
    let report = check(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
}

/// The same, but the close fails and the journal goes on: the inode may belong to another file by then.
#[test]
fn a_removal_leaves_alone_what_a_close_that_failed_has_freed() {
    for taken in [false, true] {
        let imap = Rc::new(Fixture::new());
        let ino = imap.fragmented(b"a").ino();
        let inside = Rc::clone(&imap);
        at("some blocks are freed", move || {
            let frozen = inside.volume.write_side().unwrap().journal.freeze().unwrap();
            inactive::inactivate_all(&inside.volume).unwrap();
            drop(frozen);
            if taken {
                assert_eq!(inside.fragmented(b"b").ino(), ino, "or nothing is tested");
            }
        });
        imap.remove(b"a");
        if taken {
            let b = imap.volume.handle(ino).unwrap();
            assert_eq!(b.current().unwrap().extent_count(ForkKind::Data), EXTENTS);
        }
        Rc::into_inner(imap).unwrap().ends_well();
    }
}

/// Regression: a file without names that was opened while the volume was being closed was freed with a count of opens
/// above 0.
#[test]
fn the_end_of_what_is_open_begins_at_once_when_a_volume_is_closed() {
    let imap = Fixture::new();
    let file = imap.fragmented(b"a");
    let map = iomap::open_file(&imap.volume, &file).unwrap();
    imap.remove(b"a");
    let life = file.entry().take_inactivation();
    assert_eq!(life, file.life());
    assert!(!file.entry().is_open());
    assert!(matches!(iomap::open_file(&imap.volume, &file), Err(Error::Stale(_))));
    drop((map, file));
    imap.ends_well();
}

/// Regression: a failed close had freed a file that somebody had open and closed later. The file that had got its
/// number was then taken for one that nobody has open, and was freed while in use.
#[test]
fn who_had_open_what_a_close_has_freed_closes_nothing_else() {
    let imap = Fixture::new();
    let old = imap.create(b"a");
    let map = iomap::open_file(&imap.volume, &old).unwrap();
    imap.remove(b"a");
    let frozen = imap.volume.write_side().unwrap().journal.freeze().unwrap();
    inactive::inactivate_all(&imap.volume).unwrap();
    drop(frozen);
    let new = imap.fragmented(b"b");
    assert_eq!(new.ino(), old.ino(), "or nothing is tested");
    let open = iomap::open_file(&imap.volume, &new).unwrap();
    map.overwritten();
    drop(map);
    assert_eq!(new.entry().overwritten().get(&new.entry().snapshot()), None);
    imap.remove(b"b");
    assert_eq!((open.inode().is_free(), open.inode().extent_count(ForkKind::Data)), (false, EXTENTS));
    drop((open, old, new));
    imap.ends_well();
}

/// Regression: a thread that had checked that the volume was open and then looked for capabilities for the first time
/// was told that its handle was stale.
#[test]
fn who_changes_the_content_of_what_a_close_has_ended_is_told_of_the_close() {
    let imap = Fixture::new();
    let file = imap.create(b"a");
    let map = iomap::open_file(&imap.volume, &file).unwrap();
    imap.remove(b"a");
    imap.volume.stop_writes();
    imap.volume.close().unwrap();
    let closed = |done: Result<()>| assert!(matches!(done, Err(Error::Shutdown(_))), "{done:?}");
    closed(map.content_changes());
    closed(map.check_read());
    closed(map.lookup_to_read(0).map(drop));
}

/// Regression: one thread was about to log the time, had taken it, and waited. Another thread, which closed the volume,
/// found none.
#[test]
fn the_time_of_an_overwrite_is_not_lost_between_two_who_log_it() {
    let imap = Fixture::new();
    let file = imap.create(b"a");
    imap.volume.sync().unwrap();
    let old = file.entry().snapshot().mtime();
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(&file.entry().snapshot()).unwrap();
    assert!(time > old);
    let journal = &imap.volume.write_side().unwrap().journal;
    std::thread::scope(|scope| {
        let frozen = journal.freeze().unwrap();
        let logs = scope.spawn(|| file::log_times(&imap.volume, file.entry()));
        while journal.at_gate().1 == 0 {
            std::thread::yield_now();
        }
        file::log_all_times(&imap.volume).unwrap();
        crate::trans::superblock::write_counters(&imap.volume, &frozen).unwrap();
        frozen.close().unwrap();
        assert!(logs.join().unwrap().is_err(), "the journal is closed");
    });
    let (device, ino) = (Arc::clone(&imap.device), file.ino());
    drop((file, imap));
    let seen = Fixture::open(device);
    assert_eq!(seen.volume.inode(ino).unwrap().mtime(), time);
}

/// Regression: each sync after an overwrite committed, although a coarse clock gives the same time for thousands of
/// them.
#[test]
fn the_time_of_an_overwrite_is_told_once() {
    let imap = Fixture::new();
    let file = imap.create(b"a");
    let journal = &imap.volume.write_side().unwrap().journal;
    let overwritten = file.entry().overwritten();
    let is_told = || {
        imap.volume.sync().unwrap();
        let before = journal.newest();
        file::log_times(&imap.volume, file.entry()).unwrap();
        imap.volume.sync().unwrap();
        journal.newest() != before
    };
    overwritten.note(file.life());
    let earlier = overwritten.read();
    let first = overwritten.get(&file.entry().snapshot()).unwrap();
    overwritten.note(file.life());
    assert!(is_told());
    let time = file.current().unwrap().mtime();
    assert!(!is_told(), "nothing is noted");
    assert!(first <= time);
    // Another time that is noted by now stays.
    std::thread::sleep(std::time::Duration::from_millis(20));
    overwritten.note(file.life());
    let later = overwritten.get(&file.entry().snapshot()).unwrap();
    assert!(later > time);
    overwritten.tell(earlier);
    overwritten.told(earlier);
    assert_eq!(overwritten.get(&file.entry().snapshot()), Some(later));
    assert!(is_told());
    assert_eq!(file.current().unwrap().mtime(), later);
    // What was known no longer holds: another time was set by hand, and the file was overwritten after that.
    let change = Changes { mtime: Some(NOW), ..Changes::default() };
    setattr::change(&imap.volume, &file, &change, NOW).unwrap();
    overwritten.note(file.life());
    let last = overwritten.get(&file.entry().snapshot()).unwrap();
    assert!(is_told());
    assert_eq!(file.current().unwrap().mtime(), last);
    drop(file);
    imap.ends_well();
}

/// Regression: an error left the inode with neither the new time nor the one that was only in memory.
#[test]
fn a_change_that_fails_leaves_the_time_of_an_overwrite() {
    let imap = Fixture::new();
    let file = imap.create(b"a");
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(&file.entry().snapshot());
    let change = Changes { mtime: Some(NOW), extent_size: Some(4097), ..Changes::default() };
    setattr::change(&imap.volume, &file, &change, NOW).expect_err("no whole blocks");
    assert!(time.is_some());
    assert_eq!(file.entry().overwritten().get(&file.entry().snapshot()), time);
    let change = Changes { mtime: Some(NOW), ..Changes::default() };
    setattr::change(&imap.volume, &file, &change, NOW).unwrap();
    assert_eq!(file.entry().overwritten().get(&file.entry().snapshot()), None);
    imap.volume.write_side().unwrap().journal.shutdown(crate::log::ShutdownReason::Flush);
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(&file.entry().snapshot());
    file::log_times(&imap.volume, file.entry()).expect_err("shut down");
    assert_eq!(file.entry().overwritten().get(&file.entry().snapshot()), time);
}

/// Regression: a removed file left the time of an overwrite behind, and the next file with its number got it.
#[test]
fn the_time_of_an_overwrite_goes_with_its_file() {
    let imap = Fixture::new();
    for file in [imap.create(b"at once"), imap.fragmented(b"in steps")] {
        let name: &[u8] =
            if file.entry().snapshot().extent_count(ForkKind::Data) == 0 { b"at once" } else { b"in steps" };
        file.entry().overwritten().note(file.life());
        imap.remove(name);
        let next = imap.create(b"next");
        assert_eq!(next.ino(), file.ino(), "or nothing is tested");
        file::log_all_times(&imap.volume).unwrap();
        assert_eq!(next.current().unwrap().mtime(), NOW);
        rename::rename(&imap.volume, (&imap.root, b"next"), (&imap.root, name), Rename::NoReplace, NOW)
            .unwrap();
    }
    imap.ends_well();
}

/// Regression: a thread that was about to log the time left it when another file had the number, perhaps one that is
/// never overwritten.
#[test]
fn the_time_of_an_overwrite_is_of_one_file() {
    for mode in [0o100_644, 0o120_777, 0o040_755] {
        let imap = Fixture::new();
        let old = imap.create(b"a");
        old.entry().overwritten().note(old.life());
        let noted = old.entry().overwritten().read();
        assert!(noted.since(&old.entry().snapshot()).is_some());
        imap.remove(b"a");
        let new = match mode {
            0o120_777 => create::symlink(&imap.volume, &imap.root, b"b", b"target", &new(mode)).unwrap(),
            _ => create::create(&imap.volume, &imap.root, b"b", &new(mode)).unwrap(),
        };
        assert_eq!(new.ino(), old.ino(), "or nothing is tested");
        let shown = || new.entry().with_version().0.times(&new.current().unwrap(), None);
        assert_eq!(shown(), (NOW, NOW));
        // Nor does it come when somebody says that it is logged, or who has the old file open overwrites it.
        old.entry().overwritten().tell(noted);
        old.entry().overwritten().told(noted);
        old.entry().overwritten().note(old.life());
        assert_eq!(shown(), (NOW, NOW));
        file::log_times(&imap.volume, new.entry()).unwrap();
        file::log_all_times(&imap.volume).unwrap();
        assert_eq!(new.current().unwrap().mtime(), NOW);
        drop((old, new));
        imap.ends_well();
    }
}

/// Regression: when a removal failed late, its changes in memory stayed. The file kept its name but lost its time.
#[test]
fn a_removal_that_fails_leaves_the_time_of_an_overwrite() {
    let imap = Fixture::new();
    let file = imap.create(b"a");
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(&file.entry().snapshot());
    let mut trans = Trans::start(&imap.volume, remove::reservation_to_remove(&imap.volume)).unwrap();
    trans.join_inode(Arc::clone(file.entry()), file.entry().ilock()).unwrap();
    crate::inactive::free(&mut trans, file.ino()).unwrap();
    drop(trans);
    assert!(time.is_some());
    assert_eq!(file.entry().overwritten().get(&file.entry().snapshot()), time);
}

/// Opening a file also reads it before it is locked. What counts is its state under the lock.
#[test]
fn who_looked_before_a_removal_opens_nothing_behind_it() {
    for taken in [false, true] {
        let imap = Rc::new(Fixture::new());
        let file = imap.create(b"a");
        let (inside, ino) = (Rc::clone(&imap), file.ino());
        at("a file is about to be opened", move || {
            inside.remove(b"a");
            if taken {
                assert_eq!(inside.create(b"b").ino(), ino, "or nothing is tested");
            }
        });
        let opened = iomap::open_file(&imap.volume, &file).map(drop);
        assert!(matches!(opened, Err(Error::Stale(_))), "{opened:?}");
        drop(file);
        Rc::into_inner(imap).unwrap().ends_well();
    }
    // Its end has begun, and it is not free yet.
    let imap = Fixture::new();
    let file = imap.fragmented(b"a");
    let (begins, begun) = mpsc::channel();
    let (opens, opened) = mpsc::channel::<()>();
    let (volume, root) = (Arc::clone(&imap.volume), imap.root.clone());
    let (handed, removal) = mpsc::channel();
    at("a file is about to be opened", move || {
        let removal = std::thread::spawn(move || {
            at("some blocks are freed", move || {
                begins.send(()).unwrap();
                opened.recv().unwrap_err();
            });
            remove::remove(&volume, &root, b"a", Removal::File, NOW)
        });
        begun.recv().unwrap();
        handed.send(removal).unwrap();
    });
    let attempt = iomap::open_file(&imap.volume, &file).map(drop);
    drop(opens);
    removal.recv().unwrap().join().unwrap().unwrap();
    assert!(matches!(attempt, Err(Error::Stale(_))), "{attempt:?}");
    drop(file);
    imap.ends_well();
}

/// A file that is opened after its last name is gone, and before its end has begun, stays until it is closed.
#[test]
fn who_opens_it_before_its_end_keeps_it() {
    let imap = Rc::new(Fixture::new());
    let file = imap.fragmented(b"a");
    let open = Rc::new(Cell::new(None));
    let (volume, known, opened) = (Arc::clone(&imap.volume), file.clone(), Rc::clone(&open));
    at("a name is gone", move || opened.set(Some(iomap::open_file(&volume, &known).unwrap())));
    imap.remove(b"a");
    let map = open.take().expect("it was opened");
    assert_eq!((map.inode().nlink(), map.inode().extent_count(ForkKind::Data)), (0, EXTENTS));
    let link = link::link(&imap.volume, &imap.root, b"again", &file, NOW);
    assert!(matches!(link, Err(Error::Name(NameProblem::Missing))), "it lost its last name: {link:?}");
    drop(map);
    all_say_stale(&imap, &file);
    drop(file);
    Rc::into_inner(imap).unwrap().ends_well();
}

/// A removed name takes its pointer along, except for the last name: nobody looks up the pointers of an inode that is
/// being freed, so nothing is done for them.
#[test]
fn the_pointer_of_the_last_name_goes_with_the_inode() {
    let imap = Fixture::with(Features::of_kernel("6.18").expect("a set"));
    let file = imap.create(b"a");
    link::link(&imap.volume, &imap.root, b"b", &file, NOW).unwrap();
    let map = iomap::open_file(&imap.volume, &file).unwrap();
    let pointers = || map.inode().fork_bytes().1.to_vec();
    let of_both = pointers();
    imap.remove(b"b");
    let of_one = pointers();
    assert_ne!(of_one, of_both);
    imap.remove(b"a");
    assert_eq!(map.inode().nlink(), 0);
    assert_eq!(pointers(), of_one, "work for a pointer that goes");
    drop((map, file));
    imap.ends_well();
}

/// If one thread closes a file and another removes it, each may take the other for the last user. Exactly one frees it.
#[test]
fn a_close_beside_a_removal_frees_it_once() {
    // The removal comes while the file is being closed.
    let imap = Rc::new(Fixture::new());
    let map = iomap::open_file(&imap.volume, &imap.fragmented(b"a")).unwrap();
    let inside = Rc::clone(&imap);
    at("a file is closed", move || inside.remove(b"a"));
    drop(map);
    Rc::into_inner(imap).unwrap().ends_well();

    // The file is closed before the removal has checked.
    let imap = Rc::new(Fixture::new());
    let map = iomap::open_file(&imap.volume, &imap.fragmented(b"a")).unwrap();
    at("a name is gone", move || drop(map));
    imap.remove(b"a");
    Rc::into_inner(imap).unwrap().ends_well();

    // Another thread opens and closes it in between.
    let imap = Rc::new(Fixture::new());
    let file = imap.fragmented(b"a");
    let map = iomap::open_file(&imap.volume, &file).unwrap();
    imap.remove(b"a");
    let inside = Rc::clone(&imap);
    at("a file is closed", move || drop(iomap::open_file(&inside.volume, &file).unwrap()));
    drop(map);
    Rc::into_inner(imap).unwrap().ends_well();
}

/// Regression: the number went to another file at once, and a use of the old lookup changed that one.
#[test]
fn a_handle_is_of_one_file() {
    let imap = Fixture::new();
    let old = imap.create(b"a");
    imap.remove(b"a");
    let new = imap.create(b"b");
    assert_eq!(old.ino(), new.ino(), "or nothing is tested");
    all_say_stale(&imap, &old);
    assert_eq!(new.current().unwrap().nlink(), 1);
    let map = iomap::open_file(&imap.volume, &new).unwrap();
    assert!(map.is_of(&new) && !map.is_of(&old));
    drop((map, old, new));
    imap.ends_well();
}

/// A name is removed and made anew after a removal has looked it up: the new file is removed.
#[test]
fn a_removal_takes_what_has_the_name_by_then() {
    let imap = Rc::new(Fixture::new());
    let old = imap.create(b"a");
    let inside = Rc::clone(&imap);
    at("a child is found", move || {
        inside.remove(b"a");
        inside.create(b"a");
    });
    imap.remove(b"a");
    assert_eq!(imap.lookup(&imap.root, b"a"), None);
    drop(old);
    Rc::into_inner(imap).unwrap().ends_well();
}

/// A file without a name can get one, once. A file that has lost its last name cannot.
#[test]
fn only_a_file_that_never_had_a_name_gets_its_first() {
    let imap = Fixture::new();
    let (file, map) = create::create_unnamed(&imap.volume, &imap.root, &new_file()).unwrap();
    link::link(&imap.volume, &imap.root, b"a", &file, NOW).unwrap();
    imap.remove(b"a");
    let link = link::link(&imap.volume, &imap.root, b"b", &file, NOW);
    assert!(matches!(link, Err(Error::Name(NameProblem::Missing))), "{link:?}");
    drop(map);
    drop(file);
    imap.ends_well();
}

/// Regression: a rename of a file found a directory with the same name and number in its place, and moved that without
/// checking whether it would end up below itself.
#[test]
fn a_rename_looks_again_at_what_became_a_directory() {
    let imap = Rc::new(Fixture::new());
    let (outer, x) = (imap.mkdir(&imap.root, b"outer"), imap.create(b"x"));
    let inner = imap.mkdir(&outer, b"inner");
    let (inside, from) = (Rc::clone(&imap), outer.clone());
    at("a rename has looked", move || {
        inside.remove(b"x");
        let dir = inside.mkdir(&inside.root, b"x");
        assert_eq!(dir.ino(), x.ino(), "or nothing is tested");
        rename::rename(&inside.volume, (&from, b"inner"), (&dir, b"inner"), Rename::Replace, NOW).unwrap();
    });
    let moved = rename::rename(&imap.volume, (&imap.root, b"x"), (&inner, b"x"), Rename::Replace, NOW);
    assert!(matches!(moved, Err(Error::Name(NameProblem::IntoItself))), "{moved:?}");
    drop((outer, inner));
    Rc::into_inner(imap).unwrap().ends_well();
}

/// Regression: the check whether a file would replace one of its ancestors ran while directories above moved and
/// vanished. A directory that nobody had named was reported as stale.
#[test]
fn who_looks_at_what_lies_above_a_directory_keeps_it_there() {
    let imap = Rc::new(Fixture::new());
    let (above, there) = (imap.mkdir(&imap.root, b"above"), imap.mkdir(&imap.root, b"there"));
    let dir = imap.mkdir(&above, b"dir");
    create::create(&imap.volume, &dir, b"file", &new_file()).unwrap();
    let came = Rc::new(Cell::new(false));
    let (inside, seen) = (Rc::clone(&imap), Rc::clone(&came));
    at("a parent is found", move || {
        seen.set(true);
        let Fixture { volume, root, .. } = &*inside;
        if volume.write_side().unwrap().moves.try_lock().is_some() {
            rename::rename(volume, (&above, b"dir"), (root, b"dir"), Rename::Replace, NOW).unwrap();
            remove::remove(volume, root, b"above", Removal::Directory, NOW).unwrap();
        }
    });
    let how = Rename::Replace;
    let renamed = rename::rename(&imap.volume, (&dir, b"file"), (&imap.root, b"there"), how, NOW);
    assert!(came.get());
    assert!(matches!(renamed, Err(Error::Name(NameProblem::IsDirectory))), "{renamed:?}");
    drop((dir, there));
    Rc::into_inner(imap).unwrap().ends_well();
}

/// Regression: a map was loaded without a lock while a transaction changed its blocks, and the file was reported as
/// damaged.
#[test]
fn a_map_is_loaded_while_nobody_changes_it() {
    let imap = Fixture::new();
    imap.fragmented(b"a");
    imap.volume.close().unwrap();
    let Fixture { device, volume, root } = imap;
    drop((volume, root));
    let imap = Fixture::open(device);
    let file = imap.volume.handle(imap.lookup(&imap.root, b"a").unwrap()).unwrap();
    let (known, seen) = (file.clone(), Rc::new(Cell::new(false)));
    let came = Rc::clone(&seen);
    at("a block of a map is read", move || came.set(known.entry().try_ilock().is_none()));
    drop(iomap::open_file(&imap.volume, &file).unwrap());
    assert!(seen.get(), "the inode is locked meanwhile");
    drop(file);
    imap.ends_well();
}

/// The inode tree is read while it changes, so an inode may be missed. That it is missing is only believed while nobody
/// changes the tree.
#[test]
fn that_an_inode_is_missing_is_found_out_of_a_still_tree() {
    let imap = Rc::new(Fixture::new());
    let ino = imap.create(b"a").ino();
    imap.remove(b"a");
    imap.volume.forget_inode(ino);
    let inside = Rc::clone(&imap);
    at("an inode is read", move || assert_eq!(inside.create(b"b").ino(), ino, "or nothing is tested"));
    let found = imap.volume.handle(ino).unwrap();
    assert_eq!(found.current().unwrap().nlink(), 1);
    assert!(matches!(imap.volume.handle(InodeNumber(ino.0 + 1)), Err(Error::NoSuchInode(_))));
    drop(found);
    Rc::into_inner(imap).unwrap().ends_well();
}

/// Regression: an inode was read, then removed with its whole chunk and evicted. What had been read entered the cache
/// as an existing file with free blocks.
#[test]
fn an_inode_that_was_freed_while_it_was_read_is_not_there() {
    let imap = Rc::new(Fixture::new());
    let chunk = |ino: InodeNumber| ino.0 / 64;
    let mut names = (0..).map(|nth| format!("f{nth}"));
    let (name, ino) = names
        .by_ref()
        .map(|name| (imap.create(name.as_bytes()).ino(), name))
        .find_map(|(ino, name)| (chunk(ino) != chunk(imap.root.ino())).then_some((name, ino)))
        .unwrap();
    imap.volume.sync().unwrap();
    imap.volume.write_side().unwrap().journal.quiesce().unwrap();
    imap.volume.forget_inode(ino);
    let inside = Rc::clone(&imap);
    at("an inode is read", move || {
        inside.remove(name.as_bytes());
        inside.volume.sync().unwrap();
        inside.volume.forget_inode(ino);
    });
    let found = imap.volume.handle(ino).map(|found| found.current());
    assert!(matches!(found, Err(Error::NoSuchInode(_))), "{:?}", found.map(|found| found.map(|_| ())));
    Rc::into_inner(imap).unwrap().ends_well();
}

/// A volume from which a file with many attributes is removed. Reads fail from the moment its content is freed, so its
/// attributes are not freed, and the inode is evicted.
fn half_removed() -> (Arc<FaultDevice>, Fixture, InodeNumber) {
    let imap = Fixture::new();
    let file = imap.create(b"a");
    let blocks = FileBlock(0)..FileBlock(1);
    let _given = file::allocate_blocks(&imap.volume, file.entry(), blocks.clone()).unwrap();
    file::convert_unwritten(&imap.volume, file.entry(), blocks, Some(4096), NOW).unwrap();
    for nth in 0..300 {
        let set = XattrChange::Set(&[1; 2500], SetXattr::Create);
        setattr::change_xattr(&imap.volume, &file, Namespace::User, format!("{nth}").as_bytes(), set, NOW)
            .unwrap();
    }
    drop(file);
    imap.volume.close().unwrap();
    let Fixture { device, volume, root } = imap;
    drop((volume, root));
    let faulty = Arc::new(FaultDevice::new(device, Vec::new()));
    let imap = Fixture::open(Arc::clone(&faulty) as Arc<dyn BlockDevice>);
    let ino = imap.lookup(&imap.root, b"a").unwrap();
    let fails = Arc::clone(&faulty);
    at("some blocks are freed", move || {
        fails.add(Fault::fail(Op::Read, fails.seen(Op::Read)).then(Repeat::Sticky));
    });
    let removed = remove::remove(&imap.volume, &imap.root, b"a", Removal::File, NOW);
    assert!(matches!(removed, Ok(None)), "its name is gone: {removed:?}");
    // What has been written may be evicted.
    (0..3).for_each(|_| imap.volume.pass_idle_time().unwrap());
    imap.volume.forget_inode(ino);
    (faulty, imap, ino)
}

fn is_sound(device: Arc<dyn BlockDevice>) {
    let report = check(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
}

/// Regression: an inode that could not be freed and was no longer in memory stayed on its unlinked list when the volume
/// was closed. The log was clean, and then nobody looks for such an inode.
#[test]
fn what_could_not_be_freed_is_freed_when_the_volume_is_closed() {
    let (faulty, imap, ino) = half_removed();
    faulty.heal();
    imap.volume.close().unwrap();
    let Fixture { device, volume, root } = imap;
    drop((volume, root));
    is_sound(Arc::clone(&device));
    let imap = Fixture::open(device);
    assert!(matches!(imap.volume.handle(ino), Err(Error::NoSuchInode(_))));
    imap.ends_well();
}

/// If it still cannot be freed, the log says that there is something to do.
#[test]
fn what_cannot_be_freed_is_left_to_recovery() {
    let (faulty, imap, _) = half_removed();
    let change = Changes { permissions: Some(0o711), ..Changes::default() };
    setattr::change(&imap.volume, &imap.root, &change, NOW).unwrap();
    let closed = imap.volume.close();
    assert!(matches!(closed, Err(Error::Device(_))), "{closed:?}");
    // Not half closed: the journal is idle.
    let again = imap.volume.close();
    assert!(matches!(again, Err(Error::Shutdown(ShutdownReason::NotClosed))), "{again:?}");
    let created = create::create(&imap.volume, &imap.root, b"c", &new_file());
    assert!(matches!(created, Err(Error::Shutdown(ShutdownReason::NotClosed))), "{created:?}");
    let Fixture { device, volume, root } = imap;
    drop((volume, root));
    faulty.heal();
    let imap = Fixture::open(device);
    let report = imap.volume.recovery().expect("the log is dirty");
    assert_eq!(report.inodes_freed, 1);
    assert_eq!(imap.root.current().unwrap().core().mode & 0o7777, 0o711);
    imap.ends_well();
}

/// Regression: `xfs_repair` reports this volume, but our check found it clean.
#[test]
fn the_check_reports_an_unlinked_inode_behind_a_clean_log() {
    let imap = Fixture::new();
    let (file, map) = create::create_unnamed(&imap.volume, &imap.root, &new_file()).unwrap();
    let journal = &imap.volume.write_side().unwrap().journal;
    let frozen = journal.freeze().unwrap();
    crate::trans::superblock::write_counters(&imap.volume, &frozen).unwrap();
    frozen.close().unwrap();
    let report = check(Arc::clone(&imap.device), &CheckOptions::default()).unwrap();
    let found: Vec<_> = report.findings().iter().map(|finding| format!("{finding:?}")).collect();
    assert!(report.log_clean && found.len() == 1, "{found:?}");
    assert!(found[0].contains("list of unlinked inodes"), "{found:?}");
    drop((file, map));
}

/// Space for an inherited default ACL is reserved, although the parent got its ACL only after the creation had reserved
/// its space.
#[test]
fn a_list_that_comes_in_front_of_a_creation_is_handed_down() {
    // With parent pointers, every directory has attributes, and the space is reserved from the start.
    let imap = Fixture::with(Features::of_kernel("6.1").unwrap());
    let dir = imap.mkdir(&imap.root, b"dir");
    let entry = |tag| AclEntry { tag, permissions: 7 };
    let mut list = vec![entry(AclTag::UserObj)];
    list.extend((0..1000).map(|uid| entry(AclTag::User(uid))));
    list.extend([entry(AclTag::GroupObj), entry(AclTag::Mask), entry(AclTag::Other)]);
    let (volume, parent) = (Arc::clone(&imap.volume), dir.clone());
    let reserved = Rc::new(Cell::new(1));
    let again = Rc::clone(&reserved);
    at("a creation has its space", move || {
        setattr::set_acl(&volume, &parent, AclKind::Default, Some(&list), NOW).unwrap();
        at("a creation has its space", move || again.set(2));
    });
    let made = imap.mkdir(&dir, b"below");
    assert!(made.current().unwrap().has_attrs());
    assert_eq!(reserved.get(), 2, "space for the list was reserved");
    drop((dir, made));
    imap.ends_well();
}

/// A volume with a file in the first group, a directory in another, and damage in the inode trees of the first: no
/// inode can be freed or made there.
fn damaged_in_the_first_group() -> (Fixture, InodeHandle) {
    let imap = Fixture::new();
    for name in [&b"a"[..], b"b"] {
        let file = imap.create(name);
        let blocks = FileBlock(0)..FileBlock(1);
        let _given = file::allocate_blocks(&imap.volume, file.entry(), blocks.clone()).unwrap();
        file::convert_unwritten(&imap.volume, file.entry(), blocks, Some(4096), NOW).unwrap();
    }
    // Directories go to each group in turn.
    let group = |dir: &InodeHandle| imap.volume.geometry().split_inode(dir.ino()).unwrap().0;
    let mut made = (0..9).map(|nth| imap.mkdir(&imap.root, format!("dir-{nth}").as_bytes()));
    let name = made.position(|dir| group(&dir) != group(&imap.root)).expect("more groups than one");
    imap.volume.close().unwrap();
    let Fixture { device, volume, root } = imap;
    drop((volume, root));
    let mut agi = [0; 512];
    device.read(2 * 512, &mut agi).unwrap();
    let finobt = u32::from_be_bytes(agi[328..332].try_into().unwrap());
    device.write(u64::from(finobt) * 4096 + 3072, &[0x55; 512], Durability::Volatile).unwrap();
    let imap = Fixture::open(device);
    let ino = imap.lookup(&imap.root, format!("dir-{name}").as_bytes()).unwrap();
    let dir = imap.volume.handle(ino).unwrap();
    (imap, dir)
}

/// Only the one inode that cannot be freed is lost: the volume is closed with a clean log and can still be written.
#[test]
fn what_damage_keeps_from_being_freed_holds_up_nothing_else() {
    let (imap, dir) = damaged_in_the_first_group();
    let removed = remove::remove(&imap.volume, &imap.root, b"a", Removal::File, NOW);
    assert!(matches!(removed, Err(Error::Corrupt { .. })), "{removed:?}");
    create::create(&imap.volume, &dir, b"new", &new_file()).unwrap();
    let closed = imap.volume.close();
    assert!(matches!(closed, Err(Error::Corrupt { .. })), "{closed:?}");
    let Fixture { device, volume, root } = imap;
    let dir_ino = dir.ino();
    drop((volume, root, dir));
    let imap = Fixture::open(Arc::clone(&device));
    assert!(imap.volume.recovery().is_none(), "the log is clean");
    let dir = imap.volume.handle(dir_ino).unwrap();
    assert!(imap.lookup(&dir, b"new").is_some());
    create::create(&imap.volume, &dir, b"newer", &new_file()).unwrap();
    imap.volume.close().unwrap();
}

/// It does not hold up a recovery either, which frees the others.
#[test]
fn what_damage_keeps_from_being_freed_holds_up_no_recovery() {
    let (imap, dir) = damaged_in_the_first_group();
    let (unnamed, map) = create::create_unnamed(&imap.volume, &dir, &new_file()).unwrap();
    for name in [&b"a"[..], b"b"] {
        let removed = remove::remove(&imap.volume, &imap.root, name, Removal::File, NOW);
        assert!(matches!(removed, Err(Error::Corrupt { .. })), "{removed:?}");
    }
    imap.volume.sync().unwrap();
    // Without a close, as after a crash.
    let Fixture { device, volume, root } = imap;
    drop((volume, root, dir, unnamed, map));
    let imap = Fixture::open(device);
    assert_eq!(imap.volume.recovery().expect("the log is dirty").inodes_freed, 1);
    let change = Changes { permissions: Some(0o711), ..Changes::default() };
    setattr::change(&imap.volume, &imap.root, &change, NOW).unwrap();
    let closed = imap.volume.close();
    assert!(matches!(closed, Err(Error::Corrupt { .. })), "{closed:?}");
}

/// Regression: tables beside the caches were not counted in what pages may have, and came on top of the bound.
#[test]
fn pages_have_what_caches_and_their_tables_leave() {
    let imap = Fixture::new();
    let tables = imap.volume.dcache.bytes() + imap.volume.recent.bytes();
    let all = OpenOptions::default().cache_size;
    assert!(tables > 0 && imap.volume.share_memory(0) <= all - tables);
    assert!(imap.volume.share_memory(u64::MAX) >= all / 2, "half of it in any case");
    imap.ends_well();
}

/// Regression: reservations were computed for the volume's size before it grew, but the maps of files may be higher
/// trees since.
#[test]
fn reservations_follow_growth() {
    const GROUP: u64 = 20 << 20;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(256 << 20).unwrap());
    let groups = crate::mkfs::Groups::Bytes(GROUP);
    let options =
        Options { small: true, size: Some(GROUP + (17 << 20)), groups, ..Options::new(Uuid([7; 16]), NOW) };
    format(&*device, &plan(&options, device.size()).unwrap(), Before::Zeroes).unwrap();
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device), &options).unwrap();
    let known = || {
        let reservations = &volume.write_side().unwrap().reservations;
        (
            create::reservation_to_make(&volume, false, None).unwrap(),
            reservations.remove.get(volume.geometry(), || remove::reservation_to_remove(&volume)),
        )
    };
    let small = known();
    crate::alter::grow(&volume, device.size()).unwrap();
    let grown = known();
    assert!(
        grown.0.log_bytes > small.0.log_bytes && grown.1.log_bytes > small.1.log_bytes,
        "{small:?} {grown:?}"
    );
    volume.close().unwrap();
}

/// Regression: a reader of a freed block marked the buffer there as displaced, and then gave up before another one was
/// in its place. Whoever got the block next waited for that for ever, with a directory and a group locked.
#[test]
fn who_gets_a_block_does_not_wait_for_a_late_reader() {
    use crate::buf::BufMap;
    use std::cell::RefCell;
    use std::time::Duration;
    use xfs_format::attr::RAW;
    let imap = Fixture::new();
    let (volume, dir) = (&imap.volume, imap.mkdir(&imap.root, b"dir"));
    let names: Vec<_> = (0..60).map(|nth| format!("a name of some length {nth}")).collect();
    for name in &names {
        create::create(volume, &dir, name.as_bytes(), &new_file()).unwrap();
    }
    let extents = volume.extents(&dir.current().unwrap(), ForkKind::Data).unwrap();
    let block = extents.at(FileBlock(0)).unwrap().startblock;
    let map = BufMap { daddr: volume.geometry().extent_daddr(block, 1).unwrap(), len: 4096 };
    let freed = volume.bufs().cached_handle(&[map]).unwrap();
    for name in &names {
        remove::remove(volume, &dir, name.as_bytes(), Removal::File, NOW).unwrap();
    }
    remove::remove(volume, &imap.root, b"dir", Removal::Directory, NOW).unwrap();
    volume.journal().unwrap().force_all().unwrap();
    assert!(freed.is_stale() && !freed.is_stale_and_pinned() && freed.is_cached());
    let other = Arc::clone(volume);
    at("an old buffer is found", move || {
        // Another thread writes something past the cache, or writes it back.
        let (writes, writer) = (other.bufs().writes().of(&[map]), Arc::clone(&other));
        std::thread::spawn(move || writer.bufs().forget(BufMap { len: 512, ..map }));
        while other.bufs().writes().of(&[map]) == writes {
            std::thread::yield_now();
        }
    });
    let (held, transaction) = (Rc::new(RefCell::new(None)), Arc::clone(&freed));
    at("an old buffer is found", {
        let held = Rc::clone(&held);
        // At the next look a transaction has its lock for a moment.
        move || *held.borrow_mut() = Some(transaction.lock())
    });
    volume.bufs().read_handle(&[map], &RAW).unwrap();
    drop(held.take());
    let (tells, told) = mpsc::channel();
    let writer = Arc::clone(volume);
    std::thread::spawn(move || {
        let mut trans = Trans::start(&writer, remove::reservation_to_remove(&writer)).unwrap();
        trans.buf_get(&[map], &RAW).unwrap();
        tells.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(20)).expect("whoever gets the block has its buffer");
}

/// Regression: a thread that kept a group's inode trees from changing held the lock of its AGI, but not the AGI itself.
/// The AGI was evicted, and another thread read, locked and changed a new one.
#[test]
fn who_keeps_a_group_still_keeps_its_header() {
    use crate::buf::BufMap;
    use xfs_format::ag::{AGI, AgHeader};
    use xfs_format::attr::RAW;
    use xfs_format::types::{AgNumber, DiskAddr};
    let imap = Fixture::new();
    let (volume, ag) = (&imap.volume, AgNumber(0));
    let daddr = AgHeader::Agi.daddr(volume.geometry(), ag);
    let map = BufMap { daddr, len: volume.geometry().sector_size.into() };
    let still = volume.imap_source().keep_still(ag).unwrap();
    // Others read more than fits into the cache.
    for _ in 0..2 {
        for block in 1..BYTES >> 12 {
            volume.bufs().read(DiskAddr(block << 3), 4096, &RAW).unwrap();
        }
    }
    let agi = volume.bufs().read_handle(&[map], &AGI).unwrap();
    assert!(agi.try_lock().is_none(), "a transaction locks the AGI meanwhile");
    drop(still);
}
