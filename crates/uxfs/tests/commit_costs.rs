//! What threads that make and remove files in directories of their own have to share: one exclusive lock for each
//! transaction, at most.
//!
//! Each directory lies in a group of its own, so that nothing on the volume is wanted by two threads. What is counted
//! is every exclusive acquisition of a lock that more than one of the threads uses, of every class of locks that the
//! process knows.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, MemoryOptions};
use lockstat::ClassCounts;
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use uxfs::{Dir, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Volume};

/// Counters are the process's, so that one test counts at a time.
static COUNTING: Mutex<()> = Mutex::new(());

const THREADS: u32 = 4;
const FILES: usize = 2000;
/// Locks that a create and a removal take, those of the journal's threads on their behalf included.
const CREATE_MOST: f64 = 39.0;
const REMOVAL_MOST: f64 = 42.0;

/// What every class has counted so far.
fn counts() -> BTreeMap<&'static str, ClassCounts> {
    lockstat::report().into_iter().collect()
}

/// What one phase cost: for each class, how often a lock that several threads use was taken exclusively; and how many
/// transactions were committed.
type Costs = (BTreeMap<&'static str, u64>, u64);

fn costs(before: &BTreeMap<&'static str, ClassCounts>, after: &BTreeMap<&'static str, ClassCounts>) -> Costs {
    let earlier = |class: &str| before.get(class).copied().unwrap_or_default();
    let commits = after[lockstat::COMMIT_CLASS].shared - earlier(lockstat::COMMIT_CLASS).shared;
    let between = after.iter().map(|(class, now)| (*class, now.between - earlier(class).between));
    (between.filter(|(_, count)| *count > 0).collect(), commits)
}

/// What a thread does in its directory with one name.
type Work<'a> = &'a (dyn Fn(&Dir, &[u8]) + Sync);

/// Has a thread for each directory go through `phases`, each begun by all at once, and in each through a run of names
/// of its own. Gives what each phase cost.
fn in_all(dirs: &[Dir], phases: &[(Work<'_>, std::ops::Range<usize>)]) -> Vec<Costs> {
    let turn = Barrier::new(dirs.len() + 1);
    lockstat::enable();
    lockstat::forget_users();
    std::thread::scope(|scope| {
        for (thread, dir) in dirs.iter().enumerate() {
            let turn = &turn;
            scope.spawn(move || {
                for (work, names) in phases {
                    turn.wait();
                    names.clone().for_each(|nth| work(dir, format!("file-{thread}-{nth}").as_bytes()));
                    turn.wait();
                }
            });
        }
        let one = |_: &(Work<'_>, std::ops::Range<usize>)| {
            let before = counts();
            turn.wait();
            turn.wait();
            costs(&before, &counts())
        };
        phases.iter().map(one).collect()
    })
}

#[test]
fn commits_share_one_exclusive_lock_at_most() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryOptions::new().anonymous(1 << 30).expect("a device in memory"));
    let options = MkfsOptions::new().group_count(THREADS);
    uxfs::mkfs_device(Arc::clone(&device), &options, true).expect("a new volume");
    let options = OpenOptions::new().writable(true).cache_size(256 << 20);
    let volume = Volume::open_device(device, &options).expect("it opens");
    let root = volume.open_dir("/").expect("a root");
    let make = |nth: u32| root.create_dir(format!("dir-{nth}").as_bytes(), &NewNode::default());
    let dirs: Vec<Dir> =
        (0..THREADS).map(|nth| make(nth).and_then(|node| node.as_dir()).expect("a directory")).collect();
    let create = |dir: &Dir, name: &[u8]| drop(dir.create_file(name, &NewNode::default()).expect("a file"));
    let remove = |dir: &Dir, name: &[u8]| dir.remove_file(name).expect("it goes");

    // After the first phase every lock that several of them use is known as such.
    let (first, then) = (0..FILES, FILES..2 * FILES);
    let phases = in_all(&dirs, &[(&create, first), (&create, then.clone()), (&remove, then)]);
    let [_, (made, commits), (removed, more)] = &phases[..] else { panic!("three phases: {phases:?}") };

    let files = u64::from(THREADS) * FILES as u64;
    assert!(*commits >= files && *more >= files, "each file is a transaction: {commits}, {more}");
    // A new inode goes into the cache, whose shards are everybody's. All else is rare: a new block of a directory, a
    // new chunk of inodes, a checkpoint.
    assert_eq!(made.get("inode cache").copied().unwrap_or_default().div_ceil(files), 1, "{made:?}");
    let rare = |shared: &BTreeMap<&'static str, u64>| {
        shared.iter().filter(|(class, _)| **class != "inode cache").map(|(_, count)| count).sum::<u64>()
    };
    assert!(rare(made) * 10 <= *commits, "{commits} commits: {made:?}");
    assert!(removed.values().sum::<u64>() * 10 <= *more, "{more} commits: {removed:?}");
    let all: u64 = made.values().chain(removed.values()).sum();
    assert!(all <= commits + more, "{all} exclusive acquisitions for {} commits", commits + more);
    volume.close().expect("a clean close");
}

/// Acquisitions of locks of every class, in any mode, that one file made and one removed cost, each over many: what is not
/// to become more.
#[test]
fn a_create_and_a_removal_take_no_more_locks_than_they_did() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryOptions::new().anonymous(1 << 30).expect("a device in memory"));
    let options = MkfsOptions::new().features(MkfsFeatures::of_kernel("6.1").expect("its set"));
    uxfs::mkfs_device(Arc::clone(&device), &options, true).expect("a new volume");
    let volume = Volume::open_device(device, &OpenOptions::new().writable(true).cache_size(256 << 20))
        .expect("it opens");
    let dirs = [volume.open_dir("/").expect("a root")];
    let create = |dir: &Dir, name: &[u8]| drop(dir.create_file(name, &NewNode::default()).expect("a file"));
    let remove = |dir: &Dir, name: &[u8]| dir.remove_file(name).expect("it goes");
    let taken = |work: Work<'_>, names: std::ops::Range<usize>| {
        lockstat::enable();
        let before = counts();
        names.clone().for_each(|nth| work(&dirs[0], format!("file-{nth}").as_bytes()));
        let after = counts();
        let of = |counts: &BTreeMap<&'static str, ClassCounts>, class: &str| {
            counts.get(class).map_or(0, |counts| counts.shared + counts.exclusive)
        };
        let classes = after.keys().filter(|class| **class != lockstat::COMMIT_CLASS);
        let each = classes.map(|class| (*class, of(&after, class) - of(&before, class)));
        let each: Vec<_> = each.filter(|(_, count)| *count > 0).collect();
        let all: u64 = each.iter().map(|(_, count)| count).sum();
        (all as f64 / names.len() as f64, each)
    };
    taken(&create, 0..FILES);
    let (made, made_of) = taken(&create, FILES..3 * FILES);
    let (removed, removed_of) = taken(&remove, FILES..3 * FILES);
    println!("{made:.1} a create: {made_of:?}; {removed:.1} a removal: {removed_of:?}");
    assert!(made <= CREATE_MOST, "{made:.1} a create: {made_of:?}");
    assert!(removed <= REMOVAL_MOST, "{removed:.1} a removal: {removed_of:?}");
    volume.close().expect("a clean close");
}

#[test]
fn a_lock_that_is_shared_is_seen() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    // The same with one directory for all: had nothing been counted above, nothing would be here.
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryOptions::new().anonymous(1 << 30).expect("a device in memory"));
    // Parent pointers would be commits of their own.
    let options = MkfsOptions::new().features(MkfsFeatures::of_kernel("6.1").expect("its set"));
    uxfs::mkfs_device(Arc::clone(&device), &options, true).expect("a new volume");
    let volume = Volume::open_device(device, &OpenOptions::new().writable(true)).expect("it opens");
    let root = volume.open_dir("/").expect("a root");
    let dirs = [root.clone(), root];
    let create = |dir: &Dir, name: &[u8]| drop(dir.create_file(name, &NewNode::default()).expect("a file"));
    let phases = in_all(&dirs, &[(&create, 0..FILES), (&create, FILES..2 * FILES)]);
    let [_, (shared, commits)] = &phases[..] else { panic!("two phases: {phases:?}") };
    for class in ["inode", "group header", "buffer"] {
        assert!(shared.get(class).copied().unwrap_or_default() >= *commits, "{class}: {commits}, {shared:?}");
    }
}
