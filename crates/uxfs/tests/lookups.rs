//! Paths are looked up without locks once their names are in memory, and what is found is true nevertheless: each answer
//! was so at a moment between the beginning of the lookup and its end, and nobody is told the old behind the new.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::Random;
use fileio::testing::at;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uxfs::{Dir, ErrorKind, MkfsOptions, NewNode, OpenOptions, Rename, Volume, mkfs_device};

/// Locks are counted for the whole process.
static COUNTING: Mutex<()> = Mutex::new(());

fn volume(cache_size: u64) -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(512 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new(), true).expect("a volume");
    let options = OpenOptions::new().writable(true).cache_size(cache_size);
    Volume::open_device(device, &options).expect("it opens")
}

fn random(seed: u64) -> Random {
    Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

fn make_dir(parent: &Dir, name: &str) -> Dir {
    let made = parent.create_dir(name.as_bytes(), &NewNode::default());
    made.and_then(|node| node.as_dir()).expect("a directory")
}

fn make(dir: &Dir, name: &str) -> Id {
    let made = dir.create_file(name.as_bytes(), &NewNode::default()).expect("a file");
    let metadata = made.metadata().expect("metadata");
    (metadata.ino, metadata.generation)
}

/// Inode number and generation.
type Id = (u64, u32);

fn look(volume: &Volume, path: &str) -> Option<Id> {
    match volume.metadata(path) {
        Ok(metadata) => Some((metadata.ino, metadata.generation)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// Acquisitions of locks of all classes so far, shared ones and exclusive ones.
fn acquisitions() -> BTreeMap<&'static str, u64> {
    lockstat::report().into_iter().map(|(class, counts)| (class, counts.shared + counts.exclusive)).collect()
}

#[test]
fn a_path_that_is_known_is_looked_up_without_a_lock() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let volume = volume(64 << 20);
    let mut dir = volume.open_dir("/").expect("a root");
    for _ in 0..4 {
        dir = make_dir(&dir, "0");
    }
    let id = make(&dir, "0");
    volume.sync().expect("a sync");
    let path = "/0/0/0/0/0";
    for _ in 0..2 {
        assert_eq!(look(&volume, path), Some(id));
    }
    lockstat::enable();
    let mut before = acquisitions();
    for round in 1.. {
        for _ in 0..100 {
            assert_eq!(look(&volume, path), Some(id));
            assert_eq!(volume.symlink_metadata(path).expect("metadata").ino, id.0);
            assert_eq!(volume.lookup(path).expect("a node").ino(), id.0);
            assert!(dir.lookup(b"0").expect("a lookup").is_some());
        }
        let after = acquisitions();
        if after == before {
            break;
        }
        // The volume's own threads may still be at work on what was synced, but not for ever.
        assert!(round < 50, "locks are taken each time: {before:?}, then {after:?}");
        std::thread::sleep(Duration::from_millis(20));
        before = acquisitions();
    }
    // That locks count at all.
    assert!(volume.read_link(path).is_err() && look(&volume, "/1").is_none());
    assert_ne!(acquisitions(), before);
    volume.close().expect("a clean close");
}

#[test]
fn what_a_path_says_of_its_end_is_asked_for_beside_names_in_memory() {
    let volume = volume(64 << 20);
    let root = volume.open_dir("/").expect("a root");
    let dir = make_dir(&root, "d");
    let id = make(&dir, "f");
    root.create_symlink(b"to-d", b"d", &NewNode::default()).expect("a link");
    root.create_symlink(b"to-f", b"d/f", &NewNode::default()).expect("a link");
    // What was found once is in memory the second time.
    for _ in 0..2 {
        for path in ["d/f", "/d/f", "//d//f", "d/./f", "d/../d/f", "to-d/f", "to-f", "../d/f"] {
            assert_eq!(look(&volume, path), Some(id), "{path}");
        }
        assert_ne!(volume.symlink_metadata("to-f").expect("the link").ino, id.0);
        assert!(volume.symlink_metadata("to-d/").expect("the directory").file_type.is_dir());
        assert!(volume.metadata("d/").expect("the directory").file_type.is_dir());
        for path in ["d/f/", "d/f/f", "to-f/"] {
            let error = volume.metadata(path).expect_err("no directory");
            assert_eq!(error.kind(), ErrorKind::NotADirectory, "{path}");
        }
        assert_eq!(volume.metadata("d/f\0").expect_err("no path").kind(), ErrorKind::InvalidPath);
        assert_eq!(volume.metadata("f").expect_err("no name").kind(), ErrorKind::NotFound);
        for path in ["", "/", "."] {
            assert_eq!(volume.metadata(path).expect("the root").ino, root.node().ino(), "{path}");
        }
    }
}

/// Its number is used again between the look at the name and the look at what that stands for.
#[test]
fn a_name_that_was_found_leads_to_no_other_file_of_that_number() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let volume = volume(64 << 20);
    let root = volume.open_dir("/").expect("a root");
    let id = make(&root, "a");
    assert_eq!(look(&volume, "/a"), Some(id));
    at("a name in memory is found", move || {
        root.remove_file(b"a").expect("it goes");
        assert_eq!(make(&root, "b").0, id.0, "the number is free");
    });
    assert_eq!(look(&volume, "/a"), None);
    assert!(look(&volume, "/b").is_some_and(|other| other.0 == id.0 && other != id));
}

/// What a path stood for, change by change: when that began, when it was over, and what it was then.
type History = Vec<(u64, u64, Option<Id>)>;
/// A lookup: when it began, when it was over, which path, and what was found.
type Lookup = (u64, u64, usize, Option<Id>);

/// Time, as all threads see it.
static NOW: AtomicU64 = AtomicU64::new(1);

fn tick() -> u64 {
    NOW.fetch_add(1, Ordering::SeqCst)
}

/// Paths of one thread that changes them.
struct Changer {
    volume: Volume,
    shared: Dir,
    own: Dir,
    random: Random,
    names: [String; 5],
    histories: [History; 5],
}

/// In `names`: two in a directory that all use, one in a directory that comes and goes, two in directories that change places.
const X: usize = 0;
const Y: usize = 1;
const GOING: usize = 2;
const A: usize = 3;
const B: usize = 4;

impl Changer {
    fn new(volume: &Volume, nth: u64, seed: u64) -> Self {
        let root = volume.open_dir("/").expect("a root");
        let own = make_dir(&root, &format!("own{nth}"));
        let shared = volume.open_dir("/shared").expect("there");
        let [a, b] = ["a", "b"].map(|name| make(&make_dir(&own, name), "f"));
        let histories = [None, None, None, Some(a), Some(b)].map(|state| vec![(0, 0, state)]);
        let own_path = |name: &str| format!("/own{nth}/{name}/f");
        let names = [
            format!("/shared/x{nth}"),
            format!("/shared/y{nth}"),
            own_path("going"),
            own_path("a"),
            own_path("b"),
        ];
        let (volume, random) = (volume.clone(), random(seed + nth));
        Self { volume, shared, own, random, names, histories }
    }

    fn now(&self, path: usize) -> Option<Id> {
        self.histories[path].last().expect("a beginning").2
    }

    /// Does a change, and notes what these paths stand for from then on.
    fn change(&mut self, work: impl FnOnce(&Self), becomes: &[(usize, Option<Id>)]) {
        let begin = tick();
        work(self);
        let end = tick();
        for &(path, state) in becomes {
            self.histories[path].push((begin, end, state));
        }
    }

    fn create(&mut self, dir: &Dir, name: &str, path: usize) {
        let begin = tick();
        let id = make(dir, name);
        self.histories[path].push((begin, tick(), Some(id)));
    }

    fn step(&mut self, nth: u64) {
        let [x, y] = ["x", "y"].map(|name| format!("{name}{nth}"));
        let (shared, own) = (self.shared.clone(), self.own.clone());
        let rename = |how| {
            let (x, y) = (x.clone(), y.clone());
            move |this: &Self| {
                this.shared.rename(x.as_bytes(), &this.shared, y.as_bytes(), how).expect("a rename");
            }
        };
        match self.random.below(5) {
            0 if self.now(X).is_none() => self.create(&shared, &x, X),
            0 => self.change(|_| shared.remove_file(x.as_bytes()).expect("it goes"), &[(X, None)]),
            1 if self.now(X).is_some() => {
                self.change(rename(Rename::Replace), &[(X, None), (Y, self.now(X))]);
            }
            2 if self.now(X).is_some() && self.now(Y).is_some() => {
                self.change(rename(Rename::Exchange), &[(X, self.now(Y)), (Y, self.now(X))]);
            }
            3 if self.now(GOING).is_none() => {
                let going = make_dir(&own, "going");
                self.create(&going, "f", GOING);
            }
            3 => {
                let going = self.volume.open_dir(&self.names[GOING][..self.names[GOING].len() - 2]);
                let going = going.expect("there");
                self.change(|_| going.remove_file(b"f").expect("it goes"), &[(GOING, None)]);
                own.remove_dir(b"going").expect("it goes");
            }
            4 => self.change(
                |_| own.rename(b"a", &own, b"b", Rename::Exchange).expect("they change places"),
                &[(A, self.now(B)), (B, self.now(A))],
            ),
            _ => {}
        }
    }
}

/// Looks at any of these paths until it is over, and at files that stay as they are.
fn read(volume: &Volume, paths: &[String], still: &[Id], seed: u64, over: &AtomicBool) -> Vec<Lookup> {
    let mut random = random(seed);
    let mut lookups = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let path = random.below(paths.len() as u64) as usize;
        let begin = tick();
        let found = look(volume, &paths[path]);
        lookups.push((begin, tick(), path, found));
        let nth = random.below(still.len() as u64) as usize;
        assert_eq!(look(volume, &format!("/still/{nth}")), Some(still[nth]), "seed {seed}");
    }
    lookups
}

/// Fails unless each lookup found what was there at a moment of its own, no earlier than what those found that were over.
fn judge(path: &str, history: &History, lookups: &mut [Lookup], seed: u64) {
    lookups.sort_unstable();
    // What was found, at the least, by those that were over by then.
    let mut over: Vec<(u64, usize)> = Vec::new();
    for &(begin, end, _, found) in lookups.iter() {
        let floor = over.iter().filter(|(ended, _)| *ended < begin).map(|(_, at)| *at).max().unwrap_or(0);
        let possible = (floor..history.len()).find(|&at| {
            let ends = history.get(at + 1).map_or(u64::MAX, |next| next.1);
            history[at].2 == found && history[at].0 <= end && ends >= begin
        });
        let Some(at) = possible else {
            let around = |change: &&(u64, u64, _)| change.1 + 50 >= begin && change.0 <= end + 50;
            let around: Vec<_> = history.iter().filter(around).collect();
            panic!("seed {seed}: {path} was {found:?} from {begin} to {end}, behind {floor}: {around:?}");
        };
        // One that says the most of those that are over is enough.
        let highest = over.iter().filter(|(ended, _)| *ended < begin).max_by_key(|(_, at)| *at).copied();
        over.retain(|entry| entry.0 >= begin || Some(*entry) == highest);
        over.push((end, at));
    }
}

fn storm(cache_size: u64, seed: u64) {
    const CHANGERS: u64 = 2;
    const READERS: u64 = 3;
    const STILL: u64 = 3000;
    let volume = volume(cache_size);
    let root = volume.open_dir("/").expect("a root");
    make_dir(&root, "shared");
    let still = make_dir(&root, "still");
    let still: Vec<Id> = (0..STILL).map(|nth| make(&still, &nth.to_string())).collect();
    let changers: Vec<Changer> = (0..CHANGERS).map(|nth| Changer::new(&volume, nth, seed)).collect();
    let paths: Vec<String> = changers.iter().flat_map(|changer| changer.names.clone()).collect();
    let (over, until) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(3));
    let (changers, mut lookups) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|nth| {
                let (volume, paths, still, over) = (&volume, &paths, &still, &over);
                scope.spawn(move || read(volume, paths, still, seed + 100 + nth, over))
            })
            .collect();
        let changers: Vec<_> = changers
            .into_iter()
            .enumerate()
            .map(|(nth, mut changer)| {
                scope.spawn(move || {
                    while Instant::now() < until {
                        changer.step(nth as u64);
                    }
                    changer
                })
            })
            .collect();
        let changers: Vec<_> = changers.into_iter().map(|changer| changer.join()).collect();
        over.store(true, Ordering::Relaxed);
        let lookups: Vec<Lookup> =
            readers.into_iter().flat_map(|reader| reader.join().expect("a reader")).collect();
        let changers: Vec<Changer> =
            changers.into_iter().map(|changer| changer.expect("a changer")).collect();
        (changers, lookups)
    });
    let histories = changers.iter().flat_map(|changer| &changer.histories);
    for (path, history) in histories.enumerate() {
        let mut of_path: Vec<Lookup> = lookups.extract_if(.., |lookup| lookup.2 == path).collect();
        assert!(history.len() > 10 && of_path.len() > 10, "seed {seed}: too little was done");
        judge(&paths[path], history, &mut of_path, seed);
    }
    volume.close().expect("a clean close");
}

fn seed() -> u64 {
    std::env::var("UXFS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..1 << 32))
}

#[test]
fn every_lookup_beside_changes_finds_what_was_there() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    storm(64 << 20, seed());
}

/// Inodes go from memory and come back all the time, and their names stay.
#[test]
fn every_lookup_with_small_caches_finds_what_was_there() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    storm(1 << 20, seed());
}
