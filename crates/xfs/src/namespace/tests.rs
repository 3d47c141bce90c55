//! Files that are removed while others have to do with them: each interleaving is made to happen.

use super::create;
use super::link;
use super::remove;
use super::rename;
use super::*;
use crate::attr::Namespace;
use crate::attr::acl::AclKind;
use crate::attr::edit::Put;
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
const NOW: Timestamp = Timestamp { secs: 1, nanos: 0 };
/// More than a file's inode holds.
const EXTENTS: u64 = 100;

struct Site {
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

impl Site {
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
            file::data_written(&self.volume, file.entry(), blocks, Some((block.0 + 1) << 12), NOW).unwrap();
        }
        file
    }

    fn remove(&self, name: &[u8]) {
        remove::remove(&self.volume, &self.root, name, Removal::File, NOW).unwrap();
    }

    /// What the name stands for.
    fn lookup(&self, dir: &InodeHandle, name: &[u8]) -> Option<InodeNumber> {
        let (_shared, inode) = dir.share().unwrap();
        let fork = self.volume.fork(&inode, ForkKind::Data)?;
        crate::dir::lookup(&*fork, name).unwrap().map(|(ino, _)| ino)
    }

    /// Closes the volume, which must be sound, with nothing in it that has no name.
    fn ends_well(self) {
        self.volume.close().unwrap();
        drop((self.root, self.volume));
        let report = check(Arc::clone(&self.device), &CheckOptions::default()).unwrap();
        assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
    }
}

/// Everything that goes by a handle.
fn all_say_stale(site: &Site, file: &InodeHandle) {
    fn stale<T: std::fmt::Debug>(what: &str, got: Result<T>) {
        let got = got.map(|_| ());
        assert!(matches!(got, Err(Error::Stale(_))), "{what}: {got:?}");
    }
    let volume = &site.volume;
    stale("current", file.current());
    stale("share", file.share().map(|_| ()));
    stale("open", iomap::open_file(volume, file));
    stale("link", link::link(volume, &site.root, b"again", file, NOW));
    let change = Change { permissions: Some(0o600), ..Change::default() };
    stale("change", setattr::change(volume, file, &change, NOW));
    let set = XattrChange::Set(b"value", Put::Either);
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
    stale("rename from", rename::rename(volume, (file, b"a"), (&site.root, b"b"), RenameFlags::Replace, NOW));
    stale("link into", link::link(volume, file, b"name", &site.root, NOW));
}

/// A file was opened after its removal had begun to free it, and written: the writes landed in whatever file had got its
/// blocks by then. A link brought it back half freed.
#[test]
fn what_is_being_freed_is_gone_for_everybody() {
    let site = Rc::new(Site::new());
    let file = site.fragmented(b"a");
    let came = Rc::new(Cell::new(false));
    let (inside, known, seen) = (Rc::clone(&site), file.clone(), Rc::clone(&came));
    at("some blocks are freed", move || {
        assert!(known.entry().peek().extent_count(ForkKind::Data) > 1, "it is half freed");
        all_say_stale(&inside, &known);
        assert!(matches!(inside.volume.handle(known.ino()), Err(Error::NoSuchInode(_))), "by its number");
        seen.set(true);
    });
    site.remove(b"a");
    assert!(came.get());
    all_say_stale(&site, &file);
    drop(file);
    Rc::into_inner(site).unwrap().ends_well();
}

/// Who was at it between two transactions was told that the volume was shut down, though its file was gone; or, where the
/// gate let it in again, went on to free what was no longer its own.
#[test]
fn a_removal_that_a_close_cuts_in_two_comes_to_its_end() {
    let site = Site::new();
    site.fragmented(b"a");
    let volume = Arc::clone(&site.volume);
    at("some blocks are freed", move || volume.close().unwrap());
    remove::remove(&site.volume, &site.root, b"a", Removal::File, NOW).expect("it is removed");
    let device = Arc::clone(&site.device);
    drop(site);
    let report = check(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
}

/// The same, but the close fails and the journal goes on: the inode may be that of another file by then.
#[test]
fn a_removal_leaves_alone_what_a_close_that_failed_has_freed() {
    for taken in [false, true] {
        let site = Rc::new(Site::new());
        let ino = site.fragmented(b"a").ino();
        let inside = Rc::clone(&site);
        at("some blocks are freed", move || {
            let frozen = inside.volume.write_side().unwrap().journal.freeze().unwrap();
            inactive::inactivate_all(&inside.volume).unwrap();
            drop(frozen);
            if taken {
                assert_eq!(inside.fragmented(b"b").ino(), ino, "or nothing is tested");
            }
        });
        site.remove(b"a");
        if taken {
            let b = site.volume.handle(ino).unwrap();
            assert_eq!(b.current().unwrap().extent_count(ForkKind::Data), EXTENTS);
        }
        Rc::into_inner(site).unwrap().ends_well();
    }
}

/// Who opened a file without names while the volume was being closed had it freed under an open count.
#[test]
fn the_end_of_what_is_open_begins_at_once_when_a_volume_is_closed() {
    let site = Site::new();
    let file = site.fragmented(b"a");
    let map = iomap::open_file(&site.volume, &file).unwrap();
    site.remove(b"a");
    let life = file.entry().take_inactivation();
    assert_eq!(life, file.life());
    assert!(!file.entry().is_open());
    assert!(matches!(iomap::open_file(&site.volume, &file), Err(Error::Stale(_))));
    drop((map, file));
    site.ends_well();
}

/// Who still had open what a close that failed has freed closed it later: the file that had got the number was then
/// taken for one that nobody has open, and freed under who had.
#[test]
fn who_had_open_what_a_close_has_freed_closes_nothing_else() {
    let site = Site::new();
    let old = site.create(b"a");
    let map = iomap::open_file(&site.volume, &old).unwrap();
    site.remove(b"a");
    let frozen = site.volume.write_side().unwrap().journal.freeze().unwrap();
    inactive::inactivate_all(&site.volume).unwrap();
    drop(frozen);
    let new = site.fragmented(b"b");
    assert_eq!(new.ino(), old.ino(), "or nothing is tested");
    let open = iomap::open_file(&site.volume, &new).unwrap();
    map.overwritten();
    drop(map);
    assert_eq!(new.entry().overwritten().get(new.life()), None);
    site.remove(b"b");
    assert_eq!((open.inode().is_free(), open.inode().extent_count(ForkKind::Data)), (false, EXTENTS));
    drop((open, old, new));
    site.ends_well();
}

/// Who had asked whether the volume was open, and then looked for capabilities for the first time, was told that its handle was
/// stale.
#[test]
fn who_changes_the_content_of_what_a_close_has_ended_is_told_of_the_close() {
    let site = Site::new();
    let file = site.create(b"a");
    let map = iomap::open_file(&site.volume, &file).unwrap();
    site.remove(b"a");
    site.volume.stop_writes();
    site.volume.close().unwrap();
    let closed = |done: Result<()>| assert!(matches!(done, Err(Error::Shutdown(_))), "{done:?}");
    closed(map.content_changes());
    closed(map.check_read());
    closed(map.lookup_to_read(0).map(drop));
}

/// Who was about to log it had taken the time, and waited; who closed the volume found none.
#[test]
fn the_time_of_an_overwrite_is_not_lost_between_two_who_log_it() {
    let site = Site::new();
    let file = site.create(b"a");
    site.volume.sync().unwrap();
    let old = file.entry().peek().mtime();
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(file.life()).unwrap();
    assert!(time > old);
    let journal = &site.volume.write_side().unwrap().journal;
    std::thread::scope(|scope| {
        let frozen = journal.freeze().unwrap();
        let logs = scope.spawn(|| file::log_times(&site.volume, file.entry()));
        while journal.at_gate().1 == 0 {
            std::thread::yield_now();
        }
        file::log_all_times(&site.volume).unwrap();
        crate::trans::superblock::write_counters(&site.volume, &frozen).unwrap();
        frozen.close().unwrap();
        assert!(logs.join().unwrap().is_err(), "the journal is closed");
    });
    let (device, ino) = (Arc::clone(&site.device), file.ino());
    drop((file, site));
    let seen = Site::open(device);
    assert_eq!(seen.volume.inode(ino).unwrap().mtime(), time);
}

/// Each sync behind an overwrite committed, though a coarse clock says the same for thousands of them.
#[test]
fn the_time_of_an_overwrite_is_told_once() {
    let site = Site::new();
    let file = site.create(b"a");
    let journal = &site.volume.write_side().unwrap().journal;
    let overwritten = file.entry().overwritten();
    let is_told = || {
        site.volume.sync().unwrap();
        let before = journal.newest();
        file::log_times(&site.volume, file.entry()).unwrap();
        site.volume.sync().unwrap();
        journal.newest() != before
    };
    overwritten.note(file.life());
    let earlier = overwritten.take(file.life()).unwrap();
    overwritten.note(file.life());
    assert!(is_told());
    let time = file.current().unwrap().mtime();
    assert!(!is_told(), "nothing is noted");
    let noted = earlier.time();
    drop(earlier);
    assert_eq!(overwritten.get(file.life()), Some(noted));
    assert!(noted <= time && !is_told(), "the inode knows it");
    assert_eq!(file.current().unwrap().mtime(), time);
    // What was known is known no more: another time was set by hand, and the file written over behind that.
    let change = Change { mtime: Some(NOW), ..Change::default() };
    setattr::change(&site.volume, &file, &change, NOW).unwrap();
    overwritten.note(file.life());
    let last = overwritten.get(file.life()).unwrap();
    assert!(is_told());
    assert_eq!(file.current().unwrap().mtime(), last);
    drop(file);
    site.ends_well();
}

/// An error left the inode with neither the new time nor the one that only memory knew.
#[test]
fn a_change_that_fails_leaves_the_time_of_an_overwrite() {
    let site = Site::new();
    let file = site.create(b"a");
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(file.life());
    let change = Change { mtime: Some(NOW), extent_size: Some(4097), ..Change::default() };
    setattr::change(&site.volume, &file, &change, NOW).expect_err("no whole blocks");
    assert!(time.is_some());
    assert_eq!(file.entry().overwritten().get(file.life()), time);
    let change = Change { mtime: Some(NOW), ..Change::default() };
    setattr::change(&site.volume, &file, &change, NOW).unwrap();
    assert_eq!(file.entry().overwritten().get(file.life()), None);
    site.volume.write_side().unwrap().journal.shutdown(crate::log::ShutdownReason::Flush);
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(file.life());
    file::log_times(&site.volume, file.entry()).expect_err("shut down");
    assert_eq!(file.entry().overwritten().get(file.life()), time);
}

/// The time of an overwrite was left behind by a file that went, and told the next one that had its number.
#[test]
fn the_time_of_an_overwrite_goes_with_its_file() {
    let site = Site::new();
    for file in [site.create(b"at once"), site.fragmented(b"in steps")] {
        let name: &[u8] =
            if file.entry().peek().extent_count(ForkKind::Data) == 0 { b"at once" } else { b"in steps" };
        file.entry().overwritten().note(file.life());
        site.remove(name);
        let next = site.create(b"next");
        assert_eq!(next.ino(), file.ino(), "or nothing is tested");
        file::log_all_times(&site.volume).unwrap();
        assert_eq!(next.current().unwrap().mtime(), NOW);
        rename::rename(&site.volume, (&site.root, b"next"), (&site.root, name), RenameFlags::NoReplace, NOW)
            .unwrap();
    }
    site.ends_well();
}

/// Who had taken the time gave it back when another file had the number, which may be one that nobody ever writes over.
#[test]
fn the_time_of_an_overwrite_is_of_one_file() {
    for mode in [0o100_644, 0o120_777, 0o040_755] {
        let site = Site::new();
        let old = site.create(b"a");
        old.entry().overwritten().note(old.life());
        let taken = old.entry().overwritten().take(old.life()).unwrap();
        site.remove(b"a");
        let new = match mode {
            0o120_777 => create::symlink(&site.volume, &site.root, b"b", b"target", &new(mode)).unwrap(),
            _ => create::create(&site.volume, &site.root, b"b", &new(mode)).unwrap(),
        };
        assert_eq!(new.ino(), old.ino(), "or nothing is tested");
        assert_eq!(new.entry().pending_times(&new.current().unwrap()), None);
        // Nor does it come when somebody gives back what was not told, or tells what is known.
        drop(taken);
        old.entry().overwritten().note(old.life());
        assert_eq!(new.entry().pending_times(&new.current().unwrap()), None);
        file::log_times(&site.volume, new.entry()).unwrap();
        file::log_all_times(&site.volume).unwrap();
        assert_eq!(new.current().unwrap().mtime(), NOW);
        drop((old, new));
        site.ends_well();
    }
}

/// What a removal did in memory stayed when it failed behind that: the file had its name, and not its time any more.
#[test]
fn a_removal_that_fails_leaves_the_time_of_an_overwrite() {
    let site = Site::new();
    let file = site.create(b"a");
    file.entry().overwritten().note(file.life());
    let time = file.entry().overwritten().get(file.life());
    let mut trans = Trans::start(&site.volume, remove::need_to_remove(&site.volume).reservation()).unwrap();
    trans.join_inode(Arc::clone(file.entry()), file.entry().lock()).unwrap();
    crate::inactive::free(&mut trans, file.ino()).unwrap();
    drop(trans);
    assert!(time.is_some());
    assert_eq!(file.entry().overwritten().get(file.life()), time);
}

/// Who opens a file looks at it before it is locked, too: what counts is what it is then.
#[test]
fn who_looked_before_a_removal_opens_nothing_behind_it() {
    for taken in [false, true] {
        let site = Rc::new(Site::new());
        let file = site.create(b"a");
        let (inside, ino) = (Rc::clone(&site), file.ino());
        at("a file is about to be opened", move || {
            inside.remove(b"a");
            if taken {
                assert_eq!(inside.create(b"b").ino(), ino, "or nothing is tested");
            }
        });
        let opened = iomap::open_file(&site.volume, &file).map(drop);
        assert!(matches!(opened, Err(Error::Stale(_))), "{opened:?}");
        drop(file);
        Rc::into_inner(site).unwrap().ends_well();
    }
    // Its end has begun, and it is not free yet.
    let site = Site::new();
    let file = site.fragmented(b"a");
    let (begins, begun) = mpsc::channel();
    let (opens, opened) = mpsc::channel::<()>();
    let (volume, root) = (Arc::clone(&site.volume), site.root.clone());
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
    let attempt = iomap::open_file(&site.volume, &file).map(drop);
    drop(opens);
    removal.recv().unwrap().join().unwrap().unwrap();
    assert!(matches!(attempt, Err(Error::Stale(_))), "{attempt:?}");
    drop(file);
    site.ends_well();
}

/// A file that is opened when its last name is gone, and before its end has begun, stays until it is closed.
#[test]
fn who_opens_it_before_its_end_keeps_it() {
    let site = Rc::new(Site::new());
    let file = site.fragmented(b"a");
    let open = Rc::new(Cell::new(None));
    let (volume, known, opened) = (Arc::clone(&site.volume), file.clone(), Rc::clone(&open));
    at("a name is gone", move || opened.set(Some(iomap::open_file(&volume, &known).unwrap())));
    site.remove(b"a");
    let map = open.take().expect("it was opened");
    assert_eq!((map.inode().nlink(), map.inode().extent_count(ForkKind::Data)), (0, EXTENTS));
    let link = link::link(&site.volume, &site.root, b"again", &file, NOW);
    assert!(matches!(link, Err(Error::Name(NameProblem::Missing))), "it lost its last name: {link:?}");
    drop(map);
    all_say_stale(&site, &file);
    drop(file);
    Rc::into_inner(site).unwrap().ends_well();
}

/// A name takes its pointer along, but for the last one: nobody looks for the pointers of an inode that goes, so nothing is done
/// for them.
#[test]
fn the_pointer_of_the_last_name_goes_with_the_inode() {
    let site = Site::with(Features::of_kernel("6.18").expect("a set"));
    let file = site.create(b"a");
    link::link(&site.volume, &site.root, b"b", &file, NOW).unwrap();
    let map = iomap::open_file(&site.volume, &file).unwrap();
    let pointers = || map.inode().fork_bytes().1.to_vec();
    let of_both = pointers();
    site.remove(b"b");
    let of_one = pointers();
    assert_ne!(of_one, of_both);
    site.remove(b"a");
    assert_eq!(map.inode().nlink(), 0);
    assert_eq!(pointers(), of_one, "work for a pointer that goes");
    drop((map, file));
    site.ends_well();
}

/// Of one who closes a file and one who removes it, each of whom may take the other for the last one, exactly one frees
/// it.
#[test]
fn a_close_beside_a_removal_frees_it_once() {
    // The removal comes while the file is being closed.
    let site = Rc::new(Site::new());
    let map = iomap::open_file(&site.volume, &site.fragmented(b"a")).unwrap();
    let inside = Rc::clone(&site);
    at("a file is closed", move || inside.remove(b"a"));
    drop(map);
    Rc::into_inner(site).unwrap().ends_well();

    // The file is closed before the removal has looked.
    let site = Rc::new(Site::new());
    let map = iomap::open_file(&site.volume, &site.fragmented(b"a")).unwrap();
    at("a name is gone", move || drop(map));
    site.remove(b"a");
    Rc::into_inner(site).unwrap().ends_well();

    // One who opens and closes it comes in between.
    let site = Rc::new(Site::new());
    let file = site.fragmented(b"a");
    let map = iomap::open_file(&site.volume, &file).unwrap();
    site.remove(b"a");
    let inside = Rc::clone(&site);
    at("a file is closed", move || drop(iomap::open_file(&inside.volume, &file).unwrap()));
    drop(map);
    Rc::into_inner(site).unwrap().ends_well();
}

/// The number is another file's at once; what was looked up before it stood for changed that one.
#[test]
fn a_handle_is_of_one_file() {
    let site = Site::new();
    let old = site.create(b"a");
    site.remove(b"a");
    let new = site.create(b"b");
    assert_eq!(old.ino(), new.ino(), "or nothing is tested");
    all_say_stale(&site, &old);
    assert_eq!(new.current().unwrap().nlink(), 1);
    let map = iomap::open_file(&site.volume, &new).unwrap();
    assert!(map.is_of(&new) && !map.is_of(&old));
    drop((map, old, new));
    site.ends_well();
}

/// What a name stands for is removed and made anew behind a removal that has looked it up: the new one goes.
#[test]
fn a_removal_takes_what_has_the_name_by_then() {
    let site = Rc::new(Site::new());
    let old = site.create(b"a");
    let inside = Rc::clone(&site);
    at("a child is found", move || {
        inside.remove(b"a");
        inside.create(b"a");
    });
    site.remove(b"a");
    assert_eq!(site.lookup(&site.root, b"a"), None);
    drop(old);
    Rc::into_inner(site).unwrap().ends_well();
}

/// A file without a name can get one, once; what has lost its last one cannot.
#[test]
fn only_a_file_that_never_had_a_name_gets_its_first() {
    let site = Site::new();
    let (file, map) = create::create_unnamed(&site.volume, &site.root, &new_file()).unwrap();
    link::link(&site.volume, &site.root, b"a", &file, NOW).unwrap();
    site.remove(b"a");
    let link = link::link(&site.volume, &site.root, b"b", &file, NOW);
    assert!(matches!(link, Err(Error::Name(NameProblem::Missing))), "{link:?}");
    drop(map);
    drop(file);
    site.ends_well();
}

/// A rename of a file found a directory of the same name and number in its place, and moved that without a look at
/// whether it came to lie below itself.
#[test]
fn a_rename_looks_again_at_what_became_a_directory() {
    let site = Rc::new(Site::new());
    let (outer, x) = (site.mkdir(&site.root, b"outer"), site.create(b"x"));
    let inner = site.mkdir(&outer, b"inner");
    let (inside, from) = (Rc::clone(&site), outer.clone());
    at("a rename has looked", move || {
        inside.remove(b"x");
        let dir = inside.mkdir(&inside.root, b"x");
        assert_eq!(dir.ino(), x.ino(), "or nothing is tested");
        rename::rename(&inside.volume, (&from, b"inner"), (&dir, b"inner"), RenameFlags::Replace, NOW)
            .unwrap();
    });
    let moved = rename::rename(&site.volume, (&site.root, b"x"), (&inner, b"x"), RenameFlags::Replace, NOW);
    assert!(matches!(moved, Err(Error::Name(NameProblem::IntoItself))), "{moved:?}");
    drop((outer, inner));
    Rc::into_inner(site).unwrap().ends_well();
}

/// A file that was to replace a directory was looked for below it while directories above moved and went: one of them
/// was said to be stale, which nobody had named.
#[test]
fn who_looks_at_what_lies_above_a_directory_keeps_it_there() {
    let site = Rc::new(Site::new());
    let (above, there) = (site.mkdir(&site.root, b"above"), site.mkdir(&site.root, b"there"));
    let dir = site.mkdir(&above, b"dir");
    create::create(&site.volume, &dir, b"file", &new_file()).unwrap();
    let came = Rc::new(Cell::new(false));
    let (inside, seen) = (Rc::clone(&site), Rc::clone(&came));
    at("a parent is found", move || {
        seen.set(true);
        let Site { volume, root, .. } = &*inside;
        if volume.write_side().unwrap().moves.try_lock().is_some() {
            rename::rename(volume, (&above, b"dir"), (root, b"dir"), RenameFlags::Replace, NOW).unwrap();
            remove::remove(volume, root, b"above", Removal::Directory, NOW).unwrap();
        }
    });
    let how = RenameFlags::Replace;
    let renamed = rename::rename(&site.volume, (&dir, b"file"), (&site.root, b"there"), how, NOW);
    assert!(came.get());
    assert!(matches!(renamed, Err(Error::Name(NameProblem::IsDirectory))), "{renamed:?}");
    drop((dir, there));
    Rc::into_inner(site).unwrap().ends_well();
}

/// A map was loaded with no lock, while a transaction changed the blocks that it lies in: the file was called damaged.
#[test]
fn a_map_is_loaded_while_nobody_changes_it() {
    let site = Site::new();
    site.fragmented(b"a");
    site.volume.close().unwrap();
    let Site { device, volume, root } = site;
    drop((volume, root));
    let site = Site::open(device);
    let file = site.volume.handle(site.lookup(&site.root, b"a").unwrap()).unwrap();
    let (known, seen) = (file.clone(), Rc::new(Cell::new(false)));
    let came = Rc::clone(&seen);
    at("a block of a map is read", move || came.set(known.entry().try_lock().is_none()));
    drop(iomap::open_file(&site.volume, &file).unwrap());
    assert!(seen.get(), "the inode is locked meanwhile");
    drop(file);
    site.ends_well();
}

/// The tree of inodes is read as it changes, so that an inode may be missed on the way: that it is not there is found out
/// while nobody changes the tree.
#[test]
fn that_an_inode_is_missing_is_found_out_of_a_still_tree() {
    let site = Rc::new(Site::new());
    let ino = site.create(b"a").ino();
    site.remove(b"a");
    site.volume.forget_inode(ino);
    let inside = Rc::clone(&site);
    at("an inode is read", move || assert_eq!(inside.create(b"b").ino(), ino, "or nothing is tested"));
    let found = site.volume.handle(ino).unwrap();
    assert_eq!(found.current().unwrap().nlink(), 1);
    assert!(matches!(site.volume.handle(InodeNumber(ino.0 + 1)), Err(Error::NoSuchInode(_))));
    drop(found);
    Rc::into_inner(site).unwrap().ends_well();
}

/// An inode was read, then removed with its whole chunk, and forgotten; what had been read went into the cache, as a file
/// that was there, with blocks that were free.
#[test]
fn an_inode_that_was_freed_while_it_was_read_is_not_there() {
    let site = Rc::new(Site::new());
    let chunk = |ino: InodeNumber| ino.0 / 64;
    let mut names = (0..).map(|nth| format!("f{nth}"));
    let (name, ino) = names
        .by_ref()
        .map(|name| (site.create(name.as_bytes()).ino(), name))
        .find_map(|(ino, name)| (chunk(ino) != chunk(site.root.ino())).then_some((name, ino)))
        .unwrap();
    site.volume.sync().unwrap();
    site.volume.write_side().unwrap().journal.quiesce().unwrap();
    site.volume.forget_inode(ino);
    let inside = Rc::clone(&site);
    at("an inode is read", move || {
        inside.remove(name.as_bytes());
        inside.volume.sync().unwrap();
        inside.volume.forget_inode(ino);
    });
    let found = site.volume.handle(ino).map(|found| found.current());
    assert!(matches!(found, Err(Error::NoSuchInode(_))), "{:?}", found.map(|found| found.map(|_| ())));
    Rc::into_inner(site).unwrap().ends_well();
}

/// A volume that a file with many attributes is removed from: reads fail from the moment on when its content is freed, so
/// that its attributes are not, and it is in memory no more.
fn half_removed() -> (Arc<FaultDevice>, Site, InodeNumber) {
    let site = Site::new();
    let file = site.create(b"a");
    let blocks = FileBlock(0)..FileBlock(1);
    let _given = file::allocate_blocks(&site.volume, file.entry(), blocks.clone()).unwrap();
    file::data_written(&site.volume, file.entry(), blocks, Some(4096), NOW).unwrap();
    for nth in 0..300 {
        let set = XattrChange::Set(&[1; 2500], Put::Create);
        setattr::change_xattr(&site.volume, &file, Namespace::User, format!("{nth}").as_bytes(), set, NOW)
            .unwrap();
    }
    drop(file);
    site.volume.close().unwrap();
    let Site { device, volume, root } = site;
    drop((volume, root));
    let faulty = Arc::new(FaultDevice::new(device, Vec::new()));
    let site = Site::open(Arc::clone(&faulty) as Arc<dyn BlockDevice>);
    let ino = site.lookup(&site.root, b"a").unwrap();
    let fails = Arc::clone(&faulty);
    at("some blocks are freed", move || {
        fails.add(Fault::fail(Op::Read, fails.seen(Op::Read)).then(Repeat::Sticky));
    });
    let removed = remove::remove(&site.volume, &site.root, b"a", Removal::File, NOW);
    assert!(matches!(removed, Ok(None)), "its name is gone: {removed:?}");
    // What is written may leave the caches.
    (0..3).for_each(|_| site.volume.pass_idle_time().unwrap());
    site.volume.forget_inode(ino);
    (faulty, site, ino)
}

fn is_sound(device: Arc<dyn BlockDevice>) {
    let report = check(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings().iter().collect::<Vec<_>>());
}

/// An inode that could not be freed, and was in memory no more, stayed on its list when the volume was closed: with a clean
/// log, behind which nobody looks for it.
#[test]
fn what_could_not_be_freed_is_freed_when_the_volume_is_closed() {
    let (faulty, site, ino) = half_removed();
    faulty.heal();
    site.volume.close().unwrap();
    let Site { device, volume, root } = site;
    drop((volume, root));
    is_sound(Arc::clone(&device));
    let site = Site::open(device);
    assert!(matches!(site.volume.handle(ino), Err(Error::NoSuchInode(_))));
    site.ends_well();
}

/// Where it still cannot be freed, the log says that there is something to do.
#[test]
fn what_cannot_be_freed_is_left_to_recovery() {
    let (faulty, site, _) = half_removed();
    let change = Change { permissions: Some(0o711), ..Change::default() };
    setattr::change(&site.volume, &site.root, &change, NOW).unwrap();
    let closed = site.volume.close();
    assert!(matches!(closed, Err(Error::Device(_))), "{closed:?}");
    // Not half closed: the journal is at rest.
    let again = site.volume.close();
    assert!(matches!(again, Err(Error::Shutdown(ShutdownReason::NotClosed))), "{again:?}");
    let created = create::create(&site.volume, &site.root, b"c", &new_file());
    assert!(matches!(created, Err(Error::Shutdown(ShutdownReason::NotClosed))), "{created:?}");
    let Site { device, volume, root } = site;
    drop((volume, root));
    faulty.heal();
    let site = Site::open(device);
    let report = site.volume.recovery().expect("the log is dirty");
    assert_eq!(report.inodes_freed, 1);
    assert_eq!(site.root.current().unwrap().core().mode & 0o7777, 0o711);
    site.ends_well();
}

/// `xfs_repair` says so of such a volume, and the check found it clean.
#[test]
fn the_check_reports_an_unlinked_inode_behind_a_clean_log() {
    let site = Site::new();
    let (file, map) = create::create_unnamed(&site.volume, &site.root, &new_file()).unwrap();
    let journal = &site.volume.write_side().unwrap().journal;
    let frozen = journal.freeze().unwrap();
    crate::trans::superblock::write_counters(&site.volume, &frozen).unwrap();
    frozen.close().unwrap();
    let report = check(Arc::clone(&site.device), &CheckOptions::default()).unwrap();
    let found: Vec<_> = report.findings().iter().map(|finding| format!("{finding:?}")).collect();
    assert!(report.log_clean && found.len() == 1, "{found:?}");
    assert!(found[0].contains("list of unlinked inodes"), "{found:?}");
    drop((file, map));
}

/// What a new directory needs for the list that it is handed down is reserved, although its parent got the list only when
/// the creation had its space already.
#[test]
fn a_list_that_comes_in_front_of_a_creation_is_handed_down() {
    // With parent pointers, each directory has attributes, and space is reserved at once.
    let site = Site::with(Features::of_kernel("6.1").unwrap());
    let dir = site.mkdir(&site.root, b"dir");
    let entry = |tag| AclEntry { tag, permissions: 7 };
    let mut list = vec![entry(AclTag::UserObj)];
    list.extend((0..1000).map(|uid| entry(AclTag::User(uid))));
    list.extend([entry(AclTag::GroupObj), entry(AclTag::Mask), entry(AclTag::Other)]);
    let (volume, parent) = (Arc::clone(&site.volume), dir.clone());
    let reserved = Rc::new(Cell::new(1));
    let again = Rc::clone(&reserved);
    at("a creation has its space", move || {
        setattr::set_acl(&volume, &parent, AclKind::Default, Some(&list), NOW).unwrap();
        at("a creation has its space", move || again.set(2));
    });
    let made = site.mkdir(&dir, b"below");
    assert!(made.current().unwrap().has_attrs());
    assert_eq!(reserved.get(), 2, "space for the list was reserved");
    drop((dir, made));
    site.ends_well();
}

/// A volume with a file in the first group and a directory in another one, and damage in what says which inodes of the
/// first group are free: nothing there can be freed or made.
fn damaged_in_the_first_group() -> (Site, InodeHandle) {
    let site = Site::new();
    for name in [&b"a"[..], b"b"] {
        let file = site.create(name);
        let blocks = FileBlock(0)..FileBlock(1);
        let _given = file::allocate_blocks(&site.volume, file.entry(), blocks.clone()).unwrap();
        file::data_written(&site.volume, file.entry(), blocks, Some(4096), NOW).unwrap();
    }
    // Directories go to each group in turn.
    let group = |dir: &InodeHandle| site.volume.geometry().split_inode(dir.ino()).unwrap().0;
    let mut made = (0..9).map(|nth| site.mkdir(&site.root, format!("dir-{nth}").as_bytes()));
    let name = made.position(|dir| group(&dir) != group(&site.root)).expect("more groups than one");
    site.volume.close().unwrap();
    let Site { device, volume, root } = site;
    drop((volume, root));
    let mut agi = [0; 512];
    device.read(2 * 512, &mut agi).unwrap();
    let finobt = u32::from_be_bytes(agi[328..332].try_into().unwrap());
    device.write(u64::from(finobt) * 4096 + 3072, &[0x55; 512], Durability::Volatile).unwrap();
    let site = Site::open(device);
    let ino = site.lookup(&site.root, format!("dir-{name}").as_bytes()).unwrap();
    let dir = site.volume.handle(ino).unwrap();
    (site, dir)
}

/// One inode that cannot be freed is all that is lost: the volume is closed with a clean log, and goes on to be written.
#[test]
fn what_damage_keeps_from_being_freed_holds_up_nothing_else() {
    let (site, dir) = damaged_in_the_first_group();
    let removed = remove::remove(&site.volume, &site.root, b"a", Removal::File, NOW);
    assert!(matches!(removed, Err(Error::Corrupt { .. })), "{removed:?}");
    create::create(&site.volume, &dir, b"new", &new_file()).unwrap();
    let closed = site.volume.close();
    assert!(matches!(closed, Err(Error::Corrupt { .. })), "{closed:?}");
    let Site { device, volume, root } = site;
    let dir_ino = dir.ino();
    drop((volume, root, dir));
    let site = Site::open(Arc::clone(&device));
    assert!(site.volume.recovery().is_none(), "the log is clean");
    let dir = site.volume.handle(dir_ino).unwrap();
    assert!(site.lookup(&dir, b"new").is_some());
    create::create(&site.volume, &dir, b"newer", &new_file()).unwrap();
    site.volume.close().unwrap();
}

/// Nor does it hold up a recovery, which frees the others.
#[test]
fn what_damage_keeps_from_being_freed_holds_up_no_recovery() {
    let (site, dir) = damaged_in_the_first_group();
    let (unnamed, map) = create::create_unnamed(&site.volume, &dir, &new_file()).unwrap();
    for name in [&b"a"[..], b"b"] {
        let removed = remove::remove(&site.volume, &site.root, name, Removal::File, NOW);
        assert!(matches!(removed, Err(Error::Corrupt { .. })), "{removed:?}");
    }
    site.volume.sync().unwrap();
    // Without a close, as after a crash.
    let Site { device, volume, root } = site;
    drop((volume, root, dir, unnamed, map));
    let site = Site::open(device);
    assert_eq!(site.volume.recovery().expect("the log is dirty").inodes_freed, 1);
    let change = Change { permissions: Some(0o711), ..Change::default() };
    setattr::change(&site.volume, &site.root, &change, NOW).unwrap();
    let closed = site.volume.close();
    assert!(matches!(closed, Err(Error::Corrupt { .. })), "{closed:?}");
}

/// Tables beside the caches count: they were left out of what pages may have, and stood on top of the bound.
#[test]
fn pages_have_what_caches_and_their_tables_leave() {
    let site = Site::new();
    let tables = site.volume.dcache.bytes() + site.volume.recent.bytes();
    let all = OpenOptions::default().cache_size;
    assert!(tables > 0 && site.volume.share_memory(0) <= all - tables);
    assert!(site.volume.share_memory(u64::MAX) >= all / 2, "half of it in any case");
    site.ends_well();
}

/// What is kept of reservations was worked out for the volume as it was before it grew: the maps of files may be higher trees
/// since.
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
            reservations.remove.get(volume.geometry(), || remove::need_to_remove(&volume).reservation()),
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
