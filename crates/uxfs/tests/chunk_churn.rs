//! Chunks of inodes that come and go, with and without names, by several threads, on small logs, with the power
//! cut at any time; judged by uxfs, the kernel and xfs_repair.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, Means, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::{image_of, number, seeds};
use common::{mounted, repair_finds_nothing};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{
    Dir, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, SetXattr, Volume, check_device,
    mkfs_device,
};

const BYTES: u64 = 96 << 20;
const FILLER: u8 = 0xee;

#[derive(Clone, Debug)]
struct Config {
    kernel: &'static str,
    block: u32,
    inode: u32,
    means: Means,
    cache: u64,
    gather: bool,
}

fn config(seed: u64) -> Config {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xabcdef);
    let block = [1024, 4096, 4096, 2048][rng.usize(..4)];
    Config {
        kernel: ["6.1", "6.18", "6.12"][rng.usize(..3)],
        block,
        inode: [512, 512, 1024, 2048][rng.usize(..4)].min(block / 2),
        means: Means::ALL[rng.usize(..4)],
        cache: [1 << 20, 4 << 20, 64 << 20][rng.usize(..3)],
        gather: rng.u8(..4) == 0,
    }
}

type Tree = BTreeMap<String, (u64, u64, Vec<u8>)>;

/// What one file may have: its tag all over, or zeroes.
fn sound(name: &str, content: &[u8]) -> Result<(), String> {
    let mut tags = content.iter().filter(|byte| **byte != 0);
    let Some(first) = tags.next() else { return Ok(()) };
    if *first == FILLER || tags.any(|byte| byte != first) {
        return Err(format!("{name}: {:?} of {}", &content[..16.min(content.len())], content.len()));
    }
    Ok(())
}

fn tree_of(volume: &Volume) -> Tree {
    fn walk(dir: &Dir, at: &str, tree: &mut Tree) {
        for entry in dir.entries() {
            let entry = entry.expect("an entry");
            let name = String::from_utf8(entry.name.clone()).expect("ascii");
            let path = format!("{at}/{name}");
            let node = dir.lookup(&entry.name).expect("looked up").expect("it is there");
            let metadata = node.metadata().expect("metadata");
            if metadata.is_dir() {
                tree.insert(path.clone(), (metadata.nlink.into(), 0, Vec::new()));
                walk(&node.as_dir().expect("a directory"), &path, tree);
            } else if metadata.is_file() {
                let file = node.open().expect("opens");
                let mut bytes = vec![0; file.size() as usize];
                file.read_at(&mut bytes, 0).expect("read");
                tree.insert(path, (metadata.nlink.into(), metadata.size, bytes));
            } else {
                let target = node.read_link().expect("a link");
                tree.insert(path, (metadata.nlink.into(), metadata.size, target));
            }
        }
    }
    let mut tree = Tree::new();
    walk(&volume.root().expect("root").as_dir().expect("a directory"), "", &mut tree);
    tree
}

fn tree_at(at: &Path) -> Tree {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    fn walk(dir: &Path, at: &str, tree: &mut Tree) {
        for entry in std::fs::read_dir(dir).expect("a directory") {
            let entry = entry.expect("an entry");
            let path = format!("{at}/{}", entry.file_name().to_str().expect("ascii"));
            let metadata = entry.path().symlink_metadata().expect("metadata");
            if metadata.is_dir() {
                tree.insert(path.clone(), (metadata.nlink(), 0, Vec::new()));
                walk(&entry.path(), &path, tree);
            } else if metadata.is_file() {
                let bytes = std::fs::read(entry.path()).expect("read");
                tree.insert(path, (metadata.nlink(), metadata.len(), bytes));
            } else {
                let target = std::fs::read_link(entry.path()).expect("a link");
                tree.insert(path, (metadata.nlink(), metadata.len(), target.as_os_str().as_bytes().to_vec()));
            }
        }
    }
    let mut tree = Tree::new();
    walk(at, "", &mut tree);
    tree
}

/// What a thread did to a name of its own directory: the moment when it began, and the state behind it.
#[derive(Default)]
struct Log {
    dir: String,
    names: BTreeMap<String, Vec<(u64, bool)>>,
    /// Moments when a sync returned, and when it began.
    syncs: Vec<(u64, u64)>,
}

impl Log {
    fn note(&mut self, name: &str, began: u64, there: bool) {
        self.names.entry(name.to_owned()).or_default().push((began, there));
    }

    /// Judges a tree at a cut.
    fn judge(&self, tree: &Tree, cut: u64, what: &str) {
        let Some(&(_, began)) = self.syncs.iter().rev().find(|(returned, _)| *returned <= cut) else {
            return;
        };
        for (name, history) in &self.names {
            let before = history.iter().rev().find(|(at, _)| *at < began).map(|(_, there)| *there);
            let changes = history.iter().any(|(at, _)| *at >= began && *at <= cut);
            if changes {
                continue;
            }
            let found = tree.contains_key(&format!("/{}/{name}", self.dir));
            assert_eq!(found, before.unwrap_or(false), "{what}: {}/{name}: synced at {began}", self.dir);
        }
    }
}

fn work(volume: &Volume, recorder: &Recorder, thread: usize, seed: u64, steps: usize, block: usize) -> Log {
    let mut rng = fastrand::Rng::with_seed(seed * 31 + thread as u64);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let mut log = Log { dir: format!("d{thread}"), ..Log::default() };
    let dir =
        root.lookup(log.dir.as_bytes()).expect("looked up").expect("made").as_dir().expect("a directory");
    let mut open: Vec<File> = Vec::new();
    let mut there: Vec<String> = Vec::new();
    let mut dirs: Vec<String> = Vec::new();
    let mut next = 0;
    let mut grows = true;
    for _ in 0..steps {
        if there.len() > 260 {
            grows = false;
        } else if there.len() < 10 {
            grows = true;
        }
        let tag = 1 + rng.u8(..200);
        let began = recorder.moment();
        match rng.u32(..100) {
            0..=24 if grows => {
                next += 1;
                let name = format!("f{next}");
                let node = dir.create_file(name.as_bytes(), &NewNode::default()).expect("made");
                log.note(&name, began, true);
                there.push(name);
                if rng.u8(..3) == 0 {
                    let file = node.open().expect("opens");
                    file.write_at(&vec![tag; rng.usize(1..3 * block)], 0).expect("written");
                    if rng.bool() {
                        open.push(file);
                    }
                }
                if rng.u8(..6) == 0 {
                    let len = [30, 300, 900, 3000, 9000][rng.usize(..5)];
                    node.set_xattr(b"user.x", &vec![tag; len], SetXattr::Either).expect("set");
                }
            }
            25..=39 => {
                let file = dir.create_unnamed(&NewNode::default()).expect("made");
                if rng.u8(..4) == 0 {
                    file.write_at(&vec![tag; block + 5], 0).expect("written");
                }
                open.push(file);
            }
            40..=47 if !open.is_empty() => {
                let nth = rng.usize(..open.len());
                if open[nth].metadata().nlink == 0 {
                    next += 1;
                    let name = format!("f{next}");
                    if dir.link(name.as_bytes(), open[nth].node()).is_ok() {
                        log.note(&name, began, true);
                        there.push(name);
                    }
                }
                drop(open.swap_remove(nth));
            }
            48..=56 if !open.is_empty() => {
                let most = if open.len() > 150 { 100 } else { 8 };
                for _ in 0..rng.usize(..most).min(open.len()) {
                    drop(open.swap_remove(rng.usize(..open.len())));
                }
            }
            57..=66 if there.len() > 1 => {
                // Over another one.
                let from = there.swap_remove(rng.usize(..there.len()));
                let to = there[rng.usize(..there.len())].clone();
                log.note(&from, began, false);
                log.note(&to, began, true);
                dir.rename(from.as_bytes(), &dir, to.as_bytes(), Rename::Replace).expect("renamed");
            }
            67..=70 => {
                next += 1;
                let name = format!("s{next}");
                let target = vec![b'a' + tag % 20; [20, 400, 1000][rng.usize(..3)]];
                dir.create_symlink(name.as_bytes(), &target, &NewNode::default()).expect("made");
                log.note(&name, began, true);
                there.push(name);
            }
            71..=74 => {
                if dirs.len() < 6 {
                    next += 1;
                    let name = format!("e{next}");
                    let made = dir.create_dir(name.as_bytes(), &NewNode::default()).expect("made");
                    log.note(&name, began, true);
                    let made = made.as_dir().expect("a directory");
                    for nth in 0..rng.usize(..90) {
                        made.create_file(
                            format!("long name of a file {nth}").as_bytes(),
                            &NewNode::default(),
                        )
                        .expect("made");
                    }
                    dirs.push(name);
                } else {
                    let name = dirs.swap_remove(rng.usize(..dirs.len()));
                    let gone = dir.lookup(name.as_bytes()).expect("looked up").expect("there");
                    let gone = gone.as_dir().expect("a directory");
                    let names: Vec<_> = gone.entries().map(|entry| entry.expect("an entry").name).collect();
                    names.iter().for_each(|name| gone.remove_file(name).expect("removed"));
                    log.note(&name, recorder.moment(), false);
                    dir.remove_dir(name.as_bytes()).expect("removed");
                }
            }
            75..=76 => {
                volume.sync().expect("synced");
                log.syncs.push((recorder.moment(), began));
            }
            77 => volume.pass_idle_time().expect("idle"),
            78..=80 if !open.is_empty() => {
                let file = &open[rng.usize(..open.len())];
                match rng.u8(..3) {
                    0 => file.set_len(0).expect("cut"),
                    1 => file.write_at(&vec![0; rng.usize(1..block)], 0).expect("written"),
                    _ => file.sync().expect("synced"),
                }
            }
            _ if !grows && !there.is_empty() => {
                let name = there.swap_remove(rng.usize(..there.len()));
                log.note(&name, began, false);
                dir.remove_file(name.as_bytes()).expect("removed");
            }
            _ => {}
        }
    }
    log
}

fn run(seed: u64, kernel_looks: usize, looks: usize) {
    let config = config(seed);
    println!("seed {seed}: {config:?}");
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    device.write(0, &vec![FILLER; BYTES as usize], Durability::Volatile).expect("written");
    let features = MkfsFeatures::of_kernel(config.kernel).expect("known");
    let options =
        MkfsOptions::new().features(features).small(true).block_size(config.block).inode_size(config.inode);
    mkfs_device(Arc::clone(&device), &options, false).expect("a volume");
    let how = OpenOptions::new().writable(true).cache_size(config.cache).gather_writes(config.gather);
    let volume = Volume::open_device(Arc::clone(&device), &how).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for thread in 0..3 {
        root.create_dir(format!("d{thread}").as_bytes(), &NewNode::default()).expect("made");
    }
    // Free space in pieces.
    for nth in 0..60 {
        let node = root.create_file(format!("piece {nth}").as_bytes(), &NewNode::default()).expect("made");
        node.open().expect("opens").write_at(&vec![9; 3 * config.block as usize], 0).expect("written");
    }
    for nth in (0..60).step_by(2) {
        root.remove_file(format!("piece {nth}").as_bytes()).expect("removed");
    }
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    let stage = Arc::new(Rewind::new(copy(&*device)));
    let recorder = Arc::new(Recorder::new(device));
    let volume = Volume::open_device(config.means.of(recorder.clone()), &how).expect("clean");
    let steps = number("UXFS_STEPS").unwrap_or(1200) as usize;
    let logs: Vec<Log> = std::thread::scope(|scope| {
        let (volume, recorder) = (&volume, &recorder);
        let block = config.block as usize;
        let threads: Vec<_> = (0..3)
            .map(|thread| scope.spawn(move || work(volume, recorder, thread, seed, steps, block)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut rng = fastrand::Rng::with_seed(seed);
    let closes = recorder.moment();
    if seed % 2 == 1 {
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let mut files: Vec<File> = Vec::new();
        for nth in 0..rng.usize(..300) {
            let file = root.create_unnamed(&NewNode::default()).expect("made");
            if nth % 3 == 0 {
                file.write_at(&vec![7; rng.usize(1..20_000)], 0).expect("written");
            }
            if nth % 7 == 0 {
                for nth in 0..30 {
                    file.node()
                        .set_xattr(format!("user.{nth}").as_bytes(), &[7; 300], SetXattr::Either)
                        .expect("set");
                }
            }
            files.push(file);
        }
        volume.close().expect("closed");
        drop(files);
    }
    drop(volume);
    let recording = recorder.recording();
    let mut cuts: Vec<u64> = recording.cuts();
    cuts.extend((0..looks / 2).map(|_| rng.u64(..recording.end())));
    rng.shuffle(&mut cuts);
    cuts.truncate(looks);
    if seed % 2 == 1 {
        cuts.extend((0..looks).map(|_| rng.u64(closes..recording.end() + 1)));
    }
    cuts.sort_unstable();
    println!("{} writes, {} flushes", recording.writes().len(), recording.flushes().len());
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let asked = AtomicU64::new(0);
    let (mut freed, mut unnamed) = (0, 0);
    for (nth, cut) in cuts.iter().copied().enumerate() {
        power.advance(cut).expect("written");
        let part = rng.u32(..4);
        let what = format!("seed {seed}, cut {cut}, part {part}");
        power
            .make(|_| match if part > 1 { rng.u32(..2) } else { part } {
                0 => Fate::Dropped,
                _ => Fate::Applied,
            })
            .expect("written");
        let to_kernel =
            nth % (looks / kernel_looks.max(1)).max(1) == 0 && kernel_looks > 0 && config.block <= 4096;
        let image = to_kernel.then(|| image_of(&*stage));
        let again = (nth % 6 == 3).then(|| (copy(&*stage), copy(&*stage)));
        let open = OpenOptions::new().writable(true);
        let volume =
            Volume::open_device(stage.clone(), &open).unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some(recovery) = volume.recovery() {
            freed += recovery.inodes_freed;
            unnamed += u64::from(recovery.inodes_freed > 0);
        }
        let tree = tree_of(&volume);
        for (name, (_, _, content)) in &tree {
            if !name.contains("/s") {
                sound(name, content).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
            }
        }
        logs.iter().for_each(|log| log.judge(&tree, cut, &what));
        if let Some((first, base)) = again {
            cut_again(first, base, &tree, &mut rng, config.means, &what);
        }
        volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(volume);
        let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        if let Some((_dir, image)) = image {
            asked.fetch_add(1, Ordering::Relaxed);
            let theirs = mounted(&image, tree_at);
            if theirs != tree {
                for (name, (nlink, size, _)) in &theirs {
                    if tree.get(name) != theirs.get(name) {
                        let ours = tree.get(name).map(|(nlink, size, _)| (*nlink, *size));
                        println!("{name}: kernel {nlink} {size}, uxfs {ours:?}");
                    }
                }
                tree.keys()
                    .filter(|name| !theirs.contains_key(*name))
                    .for_each(|name| println!("{name}: uxfs alone"));
                panic!("{what}: the kernel finds another tree");
            }
            repair_finds_nothing(&image);
        }
        stage.rewind().expect("taken back");
    }
    println!(
        "seed {seed}: {} cuts, {freed} inodes freed in {unnamed}, kernel {}",
        cuts.len(),
        asked.into_inner()
    );
}

/// The power fails again while it is recovered, and in what comes behind.
fn cut_again(
    device: Arc<dyn BlockDevice>,
    base: Arc<dyn BlockDevice>,
    tree: &Tree,
    rng: &mut fastrand::Rng,
    means: Means,
    what: &str,
) {
    let recorder = Arc::new(Recorder::new(device));
    let open = OpenOptions::new().writable(true).cache_size(1 << 20);
    let volume = Volume::open_device(means.of(recorder.clone()), &open)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    if rng.bool() {
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let files: Vec<File> =
            (0..rng.usize(..200)).map(|_| root.create_unnamed(&NewNode::default()).expect("made")).collect();
        volume.sync().expect("synced");
        if rng.bool() {
            drop(files);
            volume.sync().expect("synced");
            volume.pass_idle_time().expect("idle");
        } else {
            volume.pass_idle_time().expect("idle");
            volume.pass_idle_time().expect("idle");
            drop(files);
        }
    }
    if rng.bool() {
        volume.close().expect("closed");
    }
    drop(volume);
    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(base));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let mut cuts: Vec<u64> = (0..6).map(|_| rng.u64(..recording.end().max(1))).collect();
    cuts.extend(recording.cuts().into_iter().filter(|_| rng.u8(..4) == 0).take(4));
    cuts.sort_unstable();
    for (nth, cut) in cuts.into_iter().enumerate() {
        power.advance(cut).expect("written");
        let part = rng.u32(..4);
        power
            .make(|_| match if part > 1 { rng.u32(..2) } else { part } {
                0 => Fate::Dropped,
                _ => Fate::Applied,
            })
            .expect("written");
        let what = format!("{what}, again at {cut} of {}, part {part}", recording.end());
        let image = (nth % 5 == 2).then(|| image_of(&*stage));
        let volume = Volume::open_device(stage.clone(), &OpenOptions::new().writable(true))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(tree_of(&volume) == *tree, "{what}: another tree");
        volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(volume);
        let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        if let Some((_dir, image)) = image {
            assert!(mounted(&image, tree_at) == *tree, "{what}: the kernel finds another tree");
            repair_finds_nothing(&image);
        }
        stage.rewind().expect("taken back");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn chunks_come_and_go() {
    for seed in seeds(1) {
        run(seed, 5, 60);
    }
}
