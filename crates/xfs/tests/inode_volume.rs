//! Inodes made and freed on real volumes, against a set of numbers, and `xfs_repair` and the kernel as witnesses.
//! Needs root and xfsprogs.
#![forbid(unsafe_code)]

mod common;

use blockdev::FileOptions;
use common::{Image, try_run};
use std::collections::BTreeSet;
use std::sync::Arc;
use xfs::Error;
use xfs::agf;
use xfs::alloc::{Purpose, Request, Target};
use xfs::btree::Cursor;
use xfs::defer;
use xfs::ialloc;
use xfs::namespace::{self, NewInode, Removal};
use xfs::trans::Trans;
use xfs::trans::reservation::{Reservation, ReservationBuilder};
use xfs::volume::{OpenOptions, Volume};
use xfs_format::btree::{Finobt, Inobt};
use xfs_format::records::InodeChunk;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, FsBlock, InodeNumber};

fn open(image: &Image) -> Arc<Volume> {
    let device = FileOptions::new().sector_size(512).write(true).open(image.path()).unwrap();
    let options = OpenOptions {
        writable: true,
        repeatable: Some(Timestamp { seconds: 1, nanoseconds: 0 }),
        ..OpenOptions::default()
    };
    Volume::open(Arc::new(device), &options).unwrap()
}

/// Chunks of a group; checks the tree of free inodes and the AGI against them.
fn chunks(volume: &Volume, ag: AgNumber) -> Vec<InodeChunk> {
    let geometry = volume.geometry();
    let roots = volume.group_inodes(ag).unwrap();
    let mut all = Vec::new();
    let mut cursor = Cursor::<Inobt>::seek(volume.bufs(), geometry, ag, roots.inobt, None).unwrap();
    while let Some(record) = cursor.next_record().unwrap() {
        all.push(record.chunk(geometry.sparse_inodes).unwrap());
    }
    if let Some(finobt) = roots.finobt {
        let mut free = Vec::new();
        let mut cursor = Cursor::<Finobt>::seek(volume.bufs(), geometry, ag, finobt, None).unwrap();
        while let Some(record) = cursor.next_record().unwrap() {
            free.push(record.chunk(geometry.sparse_inodes).unwrap());
        }
        let with_free: Vec<_> = all.iter().filter(|chunk| chunk.free_places() > 0).copied().collect();
        assert_eq!(with_free, free, "group {ag}");
    }
    assert_eq!(roots.count, all.iter().map(|chunk| chunk.places()).sum::<u32>());
    assert_eq!(roots.free, all.iter().map(|chunk| chunk.free_places()).sum::<u32>());
    all
}

struct Churn {
    volume: Arc<Volume>,
    rng: fastrand::Rng,
    root: InodeNumber,
    before: BTreeSet<InodeNumber>,
    held: BTreeSet<InodeNumber>,
    /// Those of them that are on a list.
    unlinked: BTreeSet<InodeNumber>,
    sparse_seen: bool,
}

impl Churn {
    fn new(volume: &Arc<Volume>, seed: u64) -> Self {
        let mut churn = Self {
            volume: Arc::clone(volume),
            rng: fastrand::Rng::with_seed(seed),
            root: volume.geometry().root,
            before: BTreeSet::new(),
            held: BTreeSet::new(),
            unlinked: BTreeSet::new(),
            sparse_seen: false,
        };
        churn.before = churn.in_use();
        churn
    }

    fn reservation(&self, grow: bool) -> Reservation {
        let need = ReservationBuilder::new(self.volume.geometry()).inode_chunk().unlinked().extents(4);
        let reservation = need.build();
        Reservation { blocks: if grow { reservation.blocks } else { 0 }, ..reservation }
    }

    fn in_use(&mut self) -> BTreeSet<InodeNumber> {
        let geometry = self.volume.geometry();
        let mut used = BTreeSet::new();
        for ag in (0..geometry.ag_count()).map(AgNumber) {
            for chunk in chunks(&self.volume, ag) {
                self.sparse_seen |= chunk.holes != 0;
                used.extend(chunk.inodes_in_use().map(|inode| geometry.join_inode(ag, inode)));
            }
        }
        used
    }

    fn check(&mut self) {
        let used = self.in_use();
        let expected: BTreeSet<_> = self.before.union(&self.held).copied().collect();
        assert_eq!(used, expected);
        let geometry = self.volume.geometry();
        let mut listed = BTreeSet::new();
        for ag in (0..geometry.ag_count()).map(AgNumber) {
            let mut trans = Trans::start(&self.volume, self.reservation(false)).unwrap();
            let mut each = |ino| assert!(listed.insert(ino), "on a list twice");
            ialloc::for_each_unlinked(&mut trans, ag, &mut each).unwrap();
        }
        assert_eq!(listed, self.unlinked);
    }

    fn pick(&mut self) -> Option<InodeNumber> {
        let nth = self.rng.usize(..self.held.len().max(1));
        self.held.iter().nth(nth).copied()
    }

    fn step(&mut self, fill: bool) {
        let volume = Arc::clone(&self.volume);
        let mut trans = match Trans::start(&volume, self.reservation(fill)) {
            Ok(trans) => trans,
            Err(Error::NoSpace) => return,
            Err(error) => panic!("{error}"),
        };
        let commit = self.rng.u32(..8) > 0;
        if fill {
            let parent = self.held.iter().next_back().copied().unwrap_or(self.root);
            let parent = if self.rng.bool() { self.root } else { parent };
            match ialloc::allocate_inode(&mut trans, parent, self.rng.u32(..10) == 0) {
                Ok(ino) => {
                    assert!(!self.held.contains(&ino) && !self.before.contains(&ino), "{ino} twice");
                    let list = self.rng.u32(..4) == 0;
                    if list {
                        ialloc::add_unlinked(&mut trans, ino).unwrap();
                    }
                    if commit {
                        trans.commit().unwrap();
                        self.held.insert(ino);
                        if list {
                            self.unlinked.insert(ino);
                        }
                    }
                }
                Err(Error::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
        } else if let Some(ino) = self.pick() {
            let listed = self.unlinked.contains(&ino);
            if !listed && self.rng.u32(..4) == 0 {
                ialloc::add_unlinked(&mut trans, ino).unwrap();
                if commit {
                    trans.commit().unwrap();
                    self.unlinked.insert(ino);
                }
                return;
            }
            if listed {
                ialloc::remove_unlinked(&mut trans, ino).unwrap();
            }
            ialloc::free_inode(&mut trans, ino).unwrap();
            if commit {
                trans.commit().unwrap();
                self.held.remove(&ino);
                self.unlinked.remove(&ino);
            }
        }
    }

    fn run(&mut self, steps: u32, phase: u32) {
        for step in 0..steps {
            let odds = if (step / phase).is_multiple_of(2) { 8 } else { 1 };
            let fill = self.rng.u32(..10) < odds;
            self.step(fill);
            if step % 200 == 199 {
                self.check();
            }
        }
        while !self.held.is_empty() {
            self.step(false);
        }
        self.check();
    }
}

fn seed() -> u64 {
    let seed = std::env::var("UXFS_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed: UXFS_SEED={seed}");
    seed
}

/// `xfs_repair` finds nothing, and the kernel mounts and uses what is there.
fn witnesses(image: &Image) {
    let path = image.path();
    let repair = |when: &str| {
        let output = try_run("xfs_repair", &["-n", path.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{when}: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    repair("at the end");
    let mount = image.mount("");
    for nth in 0..200 {
        std::fs::write(mount.join(format!("file{nth}")), "by the kernel").unwrap();
    }
    mount.unmount();
    repair("after the kernel");
}

fn churn(bytes: u64, args: &[&str], steps: u32) {
    let image = Image::mkfs(bytes, args);
    let volume = open(&image);
    let mut churn = Churn::new(&volume, seed());
    churn.run(steps, 600);
    volume.close().unwrap();
    drop((churn, volume));
    witnesses(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn inodes_of_512_bytes_with_a_tree_of_free_ones() {
    churn(300 << 20, &["-m", "rmapbt=0,reflink=1,finobt=1", "-i", "sparse=1"], 3000);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn inodes_of_2048_bytes_without() {
    let args =
        ["-b", "size=1024", "-i", "size=2048,sparse=0", "-m", "rmapbt=0,reflink=0,finobt=0,inobtcount=0"];
    let args = ["-b", "size=4096", "-i", args[3], "-m", args[5]];
    churn(300 << 20, &args, 3000);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_of_one_kib() {
    churn(300 << 20, &["-b", "size=1024", "-m", "rmapbt=0,reflink=1,finobt=1", "-i", "sparse=1"], 3000);
}

/// A volume with so little room in one run that chunks come in pieces.
#[test]
#[ignore = "needs root and xfsprogs"]
fn sparse_chunks_where_whole_ones_do_not_fit() {
    let image =
        Image::mkfs(64 << 20, &["--unsupported", "-m", "rmapbt=0,reflink=0,finobt=1", "-i", "sparse=1"]);
    let volume = open(&image);
    let geometry = volume.geometry();
    let take = |blocks| ReservationBuilder::new(geometry).extents(1).frees(1).blocks(blocks).build();
    // All blocks singly, then runs of four are freed again.
    let mut held: Vec<FsBlock> = Vec::new();
    let mut request = Request::new(4, 4, Purpose::Data);
    request.align = 4;
    loop {
        let Ok(mut trans) = Trans::start(&volume, take(4)) else { break };
        let Ok(got) = agf::allocate(&mut trans, Target::In(AgNumber(0)), request) else { break };
        trans.commit().unwrap();
        held.push(got.start(geometry));
    }
    assert!(held.len() > 1000);
    held.sort();
    let (keep, free): (Vec<_>, Vec<_>) = held.into_iter().partition(|block| block.0 / 4 % 2 == 0);
    for start in free {
        let mut trans = Trans::start(&volume, take(0)).unwrap();
        defer::defer_free(&mut trans, InodeNumber(0), start, 4, None).unwrap();
        trans.commit().unwrap();
    }
    volume.sync().unwrap();
    let mut churn = Churn::new(&volume, seed());
    churn.run(2000, 500);
    assert!(churn.sparse_seen, "no chunk was sparse");
    for start in keep {
        let mut trans = Trans::start(&volume, take(0)).unwrap();
        defer::defer_free(&mut trans, InodeNumber(0), start, 4, None).unwrap();
        trans.commit().unwrap();
    }
    volume.close().unwrap();
    drop((churn, volume));
    witnesses(&image);
}

/// Nothing is closed: the kernel replays what the log holds, the making of chunks included, and both see the same
/// inodes afterwards.
fn replayed(args: &[&str]) {
    let image = Image::mkfs(300 << 20, args);
    let volume = open(&image);
    let mut churn = Churn::new(&volume, seed());
    for step in 0..1500 {
        let odds = if (step / 500_u32).is_multiple_of(2) { 8 } else { 2 };
        let fill = churn.rng.u32(..10) < odds;
        churn.step(fill);
    }
    churn.check();
    // The kernel frees what is on a list when it mounts the volume.
    while let Some(&ino) = churn.unlinked.first() {
        let mut trans = Trans::start(&volume, churn.reservation(false)).unwrap();
        ialloc::remove_unlinked(&mut trans, ino).unwrap();
        trans.commit().unwrap();
        churn.unlinked.remove(&ino);
    }
    volume.sync().unwrap();
    let groups = volume.geometry().ag_count();
    let expected: Vec<_> = (0..groups).map(|ag| chunks(&volume, AgNumber(ag))).collect();
    let (held, before) = (std::mem::take(&mut churn.held), std::mem::take(&mut churn.before));
    drop((churn, volume));
    image.mount("").unmount();
    let volume = open(&image);
    let found: Vec<_> = (0..groups).map(|ag| chunks(&volume, AgNumber(ag))).collect();
    assert_eq!(found, expected);
    let mut churn = Churn::new(&volume, 1);
    (churn.held, churn.before) = (held, before);
    churn.run(0, 1);
    volume.close().unwrap();
    drop((churn, volume));
    witnesses(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_replays_the_making_of_inodes() {
    replayed(&["-m", "rmapbt=0", "-i", "sparse=1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_replays_the_making_of_inodes_in_small_blocks() {
    replayed(&["-b", "size=1024", "-m", "rmapbt=0,finobt=0,inobtcount=0,reflink=0"]);
}

/// Threads that make and free inodes, each in directories of its own.
#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_share_a_volume() {
    let image = Image::mkfs(300 << 20, &["-m", "rmapbt=0", "-d", "agcount=4"]);
    let volume = open(&image);
    let mut all = Churn::new(&volume, seed());
    let seed = all.rng.u64(..);
    let parts: Vec<_> = std::thread::scope(|scope| {
        let run = |nth: u64| {
            let mut churn = Churn::new(&volume, seed.wrapping_add(nth));
            move || {
                for step in 0..1200 {
                    let odds = if (step / 400_u32).is_multiple_of(2) { 8 } else { 2 };
                    let fill = churn.rng.u32(..10) < odds;
                    churn.step(fill);
                }
                (churn.held, churn.unlinked)
            }
        };
        let runs: Vec<_> = (0..4).map(run).collect();
        let threads: Vec<_> = runs.into_iter().map(|run| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let count: usize = parts.iter().map(|(held, _)| held.len()).sum();
    for (held, unlinked) in parts {
        all.held.extend(held);
        all.unlinked.extend(unlinked);
    }
    assert_eq!(all.held.len(), count, "an inode was given out twice");
    all.check();
    all.run(0, 1);
    volume.close().unwrap();
    drop((all, volume));
    witnesses(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn directories_spread_and_files_stay() {
    let image = Image::mkfs(300 << 20, &["-m", "rmapbt=0", "-d", "agcount=4"]);
    let volume = open(&image);
    let geometry = volume.geometry();
    let reservation = ReservationBuilder::new(geometry).inode_chunk().build();
    let make = |parent, directory| {
        let mut trans = Trans::start(&volume, reservation).unwrap();
        let ino = ialloc::allocate_inode(&mut trans, parent, directory).unwrap();
        trans.commit().unwrap();
        (ino, geometry.split_inode(ino).unwrap().0.0)
    };
    let dirs: Vec<_> = (0..8).map(|_| make(geometry.root, true)).collect();
    let groups: Vec<_> = dirs.iter().map(|(_, ag)| *ag).collect();
    assert_eq!(groups, [0, 1, 2, 3, 0, 1, 2, 3]);
    for (dir, ag) in dirs {
        let (file, file_ag) = make(dir, false);
        assert_eq!(file_ag, ag);
        assert!(file.0.abs_diff(dir.0) < 64);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn no_more_inodes_than_allowed() {
    let image = Image::mkfs(300 << 20, &["-m", "rmapbt=0", "-i", "maxpct=1"]);
    let volume = open(&image);
    let reservation = ReservationBuilder::new(volume.geometry()).inode_chunk().build();
    let mut count = 0;
    let error = loop {
        let mut trans = Trans::start(&volume, reservation).unwrap();
        match ialloc::allocate_inode(&mut trans, volume.geometry().root, count % 7 == 0) {
            Ok(_) => trans.commit().unwrap(),
            Err(error) => break error,
        };
        count += 1;
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    // One percent of 76,800 blocks of eight inodes, in whole chunks, less those that mkfs uses.
    assert_eq!(count, 768 / 8 * 64 - 3);
}

/// A history of eight threads got "no space" from a volume with plenty: the one free inode was still locked by who had
/// freed it, for longer than 64 looks take.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_new_file_waits_for_an_inode_that_is_still_locked() {
    let image = Image::mkfs(300 << 20, &["-m", "rmapbt=0"]);
    let volume = open(&image);
    let root = volume.handle(volume.geometry().root).unwrap();
    let time = Timestamp { seconds: 1, nanoseconds: 0 };
    let new = NewInode {
        mode: 0o100_644,
        umask: 0,
        uid: 0,
        gid: 0,
        device: (0, 0),
        time,
        content_times: (time, time),
        inherit: true,
    };
    let first = namespace::create(&volume, &root, b"first", &new).unwrap();
    namespace::remove(&volume, &root, b"first", Removal::File, time).unwrap();
    let locked = first.entry().ilock();
    let made = std::thread::scope(|scope| {
        let made =
            scope.spawn(|| namespace::create(&volume, &root, b"second", &new).map(|entry| entry.ino()));
        // Time enough for many looks.
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(locked);
        made.join().unwrap()
    });
    assert_eq!(made.unwrap(), first.ino(), "the free inode is the first that is looked at");
    drop((first, root));
    volume.close().unwrap();
    drop(volume);
    witnesses(&image);
}
