//! Deep trees of directories and attributes that grow and shrink from anywhere, on small blocks, with the power cut at
//! any time; judged by uxfs, the kernel and xfs_repair.
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
use uxfs::{
    MkfsFeatures, MkfsOptions, NewNode, Node, OpenOptions, Rename, SetXattr, Volume, check_device,
    mkfs_device,
};

const BYTES: u64 = 96 << 20;

type Names = BTreeMap<Vec<u8>, u64>;
type Attrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Names with inode numbers of each directory, link counts, attributes of each file.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    dirs: BTreeMap<String, Names>,
    links: BTreeMap<String, u64>,
    attrs: BTreeMap<String, Attrs>,
}

const THREADS: usize = 2;

fn files() -> impl Iterator<Item = String> {
    (0..THREADS).flat_map(|thread| (0..4).map(move |nth| format!("t{thread}f{nth}")))
}

fn seen(volume: &Volume) -> Seen {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let mut seen = Seen::default();
    for thread in 0..THREADS {
        for which in 0..2 {
            let name = format!("d{thread}{which}");
            let dir = root
                .lookup(name.as_bytes())
                .expect("looked up")
                .expect("there")
                .as_dir()
                .expect("a directory");
            let mut names = Names::new();
            for entry in dir.entries() {
                let entry = entry.expect("an entry");
                let found = dir.lookup(&entry.name).expect("looked up").expect("found by its hash");
                assert_eq!(found.ino(), entry.ino);
                assert!(names.insert(entry.name, entry.ino).is_none(), "twice");
            }
            seen.dirs.insert(name, names);
        }
    }
    for name in files() {
        let node = root.lookup(name.as_bytes()).expect("looked up").expect("there");
        seen.links.insert(name.clone(), node.metadata().expect("metadata").nlink.into());
        let mut attrs = Attrs::new();
        for attr in node.xattr_names().expect("listed") {
            let value = node.xattr(&attr).expect("read").expect("there");
            attrs.insert(attr, value);
        }
        seen.attrs.insert(name, attrs);
    }
    seen
}

fn seen_at(at: &Path) -> Seen {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{DirEntryExt, MetadataExt};
    let mut seen = Seen::default();
    for thread in 0..THREADS {
        for which in 0..2 {
            let name = format!("d{thread}{which}");
            let mut names = Names::new();
            for entry in std::fs::read_dir(at.join(&name)).expect("a directory") {
                let entry = entry.expect("an entry");
                let found = entry.path().symlink_metadata().expect("found by its hash");
                assert_eq!(found.ino(), entry.ino());
                names.insert(entry.file_name().as_bytes().to_vec(), entry.ino());
            }
            seen.dirs.insert(name, names);
        }
    }
    for name in files() {
        let path = at.join(&name);
        seen.links.insert(name.clone(), path.symlink_metadata().expect("there").nlink());
        let mut attrs = Attrs::new();
        let mut list = vec![0_u8; 1 << 16];
        let len = rustix::fs::listxattr(&path, &mut list[..]).expect("listed");
        for attr in list[..len].split(|byte| *byte == 0).filter(|attr| !attr.is_empty()) {
            let mut value = vec![0_u8; 1 << 16];
            let len = rustix::fs::getxattr(&path, attr, &mut value[..]).expect("read");
            attrs.insert(attr.to_vec(), value[..len].to_vec());
        }
        seen.attrs.insert(name, attrs);
    }
    seen
}

/// What an attribute had, and since when.
type Values = Vec<(u64, Option<Vec<u8>>)>;

#[derive(Default)]
struct Log {
    /// The number of steps that had begun at a moment: (moment, step).
    syncs: Vec<(u64, u64)>,
    names: BTreeMap<(String, String), Vec<(u64, bool)>>,
    attrs: BTreeMap<(String, Vec<u8>), Values>,
}

impl Log {
    fn judge(&self, seen: &Seen, cut: u64, what: &str) {
        let began =
            self.syncs.iter().rev().find(|(returned, _)| *returned <= cut).map_or(0, |(_, began)| *began);
        for ((dir, name), history) in &self.names {
            if history.iter().any(|(at, _)| *at >= began && *at <= cut) {
                continue;
            }
            let before = history.iter().rev().find(|(at, _)| *at < began).is_some_and(|(_, there)| *there);
            assert_eq!(
                seen.dirs[dir].contains_key(name.as_bytes()),
                before,
                "{what}: {dir}/{name}, synced {began}"
            );
        }
        for ((file, attr), history) in &self.attrs {
            let before = history.iter().rev().find(|(at, _)| *at < began).map(|(_, value)| value.clone());
            let mut may: Vec<_> = history
                .iter()
                .filter(|(at, _)| *at >= began && *at <= cut)
                .map(|(_, value)| value.clone())
                .collect();
            may.push(before.unwrap_or(None));
            let found = seen.attrs[file].get(attr).cloned();
            assert!(may.contains(&found), "{what}: {file}: {}", String::from_utf8_lossy(attr));
        }
    }
}

fn long(rng: &mut fastrand::Rng, nth: u64) -> String {
    let pad = [0, 3, 20, 100, 200][rng.usize(..5)];
    format!("{nth:08x}{}", "x".repeat(pad))
}

fn work(volume: &Volume, recorder: &Recorder, thread: usize, seed: u64, steps: usize) -> Log {
    let mut rng = fastrand::Rng::with_seed(seed * 77 + thread as u64);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let mut log = Log::default();
    let dirs: Vec<_> = (0..2)
        .map(|which| {
            let name = format!("d{thread}{which}");
            (
                name.clone(),
                root.lookup(name.as_bytes())
                    .expect("looked up")
                    .expect("there")
                    .as_dir()
                    .expect("a directory"),
            )
        })
        .collect();
    let nodes: Vec<(String, Node)> = (0..4)
        .map(|nth| {
            let name = format!("t{thread}f{nth}");
            (name.clone(), root.lookup(name.as_bytes()).expect("looked up").expect("there"))
        })
        .collect();
    let mut there: [Vec<String>; 2] = Default::default();
    let mut attrs: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 4];
    let mut next = 0_u64;
    let mut grows = true;
    for _ in 0..steps {
        let all = there[0].len() + there[1].len();
        if all > 1500 {
            grows = false;
        } else if all < 60 {
            grows = true;
        }
        let which = rng.usize(..2);
        let (dir_name, dir) = &dirs[which];
        let file = rng.usize(..4);
        let began = recorder.moment();
        match rng.u32(..100) {
            0..=34 if grows => {
                for _ in 0..rng.usize(1..12) {
                    next += 1;
                    let name = long(&mut rng, next.wrapping_mul(0x9e37_79b1) % (1 << 32));
                    let began = recorder.moment();
                    if dir.link(name.as_bytes(), &nodes[file].1).is_ok() {
                        log.names.entry((dir_name.clone(), name.clone())).or_default().push((began, true));
                        there[which].push(name);
                    }
                }
            }
            0..=34 if !there[which].is_empty() => {
                // A run of neighbours by hash, or of whatever.
                let from = rng.usize(..there[which].len());
                for _ in 0..rng.usize(1..14) {
                    if from >= there[which].len() {
                        break;
                    }
                    let name = there[which].swap_remove(from);
                    let began = recorder.moment();
                    log.names.entry((dir_name.clone(), name.clone())).or_default().push((began, false));
                    dir.remove_file(name.as_bytes()).expect("removed");
                }
            }
            35..=52 if !there[which].is_empty() => {
                let from = there[which].swap_remove(rng.usize(..there[which].len()));
                let to_which = rng.usize(..2);
                let to = if rng.bool() && !there[to_which].is_empty() {
                    let at = rng.usize(..there[to_which].len());
                    there[to_which].swap_remove(at)
                } else {
                    next += 1;
                    long(&mut rng, next.wrapping_mul(0x9e37_79b1) % (1 << 32))
                };
                log.names.entry((dir_name.clone(), from.clone())).or_default().push((began, false));
                let to_dir = &dirs[to_which];
                log.names.entry((to_dir.0.clone(), to.clone())).or_default().push((began, true));
                let same = {
                    let one = dir.lookup(from.as_bytes()).expect("looked up").map(|node| node.ino());
                    let other = to_dir.1.lookup(to.as_bytes()).expect("looked up").map(|node| node.ino());
                    one == other
                };
                dir.rename(from.as_bytes(), &to_dir.1, to.as_bytes(), Rename::Replace).expect("renamed");
                there[to_which].push(to);
                if same {
                    // Nothing happens then.
                    log.names.entry((dir_name.clone(), from.clone())).or_default().push((began, true));
                    there[which].push(from);
                }
            }
            53..=80 => {
                for _ in 0..rng.usize(1..6) {
                    let began = recorder.moment();
                    let (name, node) = &nodes[file];
                    if rng.u8(..5) < 3 && attrs[file].len() < 160 || attrs[file].is_empty() {
                        let attr = match rng.u8(..3) {
                            0 if !attrs[file].is_empty() => {
                                attrs[file][rng.usize(..attrs[file].len())].clone()
                            }
                            _ => {
                                next += 1;
                                format!("user.{}", long(&mut rng, next)).into_bytes()
                            }
                        };
                        let len = [0, 5, 60, 200, 250, 800, 1500, 5000, 20000][rng.usize(..9)];
                        let value = vec![rng.u8(..); len];
                        if node.set_xattr(&attr, &value, SetXattr::Either).is_ok() {
                            log.attrs
                                .entry((name.clone(), attr.clone()))
                                .or_default()
                                .push((began, Some(value)));
                            if !attrs[file].contains(&attr) {
                                attrs[file].push(attr);
                            }
                        }
                    } else {
                        let at = rng.usize(..attrs[file].len());
                        let attr = attrs[file].swap_remove(at);
                        node.remove_xattr(&attr).expect("removed");
                        log.attrs.entry((name.clone(), attr)).or_default().push((began, None));
                    }
                }
            }
            81..=83 => {
                volume.sync().expect("synced");
                log.syncs.push((recorder.moment(), began));
            }
            84 => volume.pass_idle_time().expect("idle"),
            _ => {}
        }
    }
    log
}

fn run(seed: u64, looks: usize, kernel_looks: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let block = [1024, 1024, 2048, 4096][rng.usize(..4)];
    let dir_block = (block << rng.u32(..7)).min(65536);
    let inode = [512, 512, 1024, 2048][rng.usize(..4)].min(block / 2);
    let kernel = ["6.1", "6.18", "6.18"][rng.usize(..3)];
    let means = Means::ALL[rng.usize(..4)];
    let cache = [1 << 20, 2 << 20, 64 << 20][rng.usize(..3)];
    println!("seed {seed}: {kernel}, blocks {block}, of directories {dir_block}, {means:?}, cache {cache}");
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    device.write(0, &vec![0xee; BYTES as usize], Durability::Volatile).expect("written");
    let features = MkfsFeatures::of_kernel(kernel).expect("known");
    let options = MkfsOptions::new()
        .features(features)
        .small(true)
        .block_size(block)
        .dir_block_size(dir_block)
        .inode_size(inode);
    mkfs_device(Arc::clone(&device), &options, false).expect("a volume");
    let how = OpenOptions::new().writable(true).cache_size(cache);
    let volume = Volume::open_device(Arc::clone(&device), &how).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for thread in 0..THREADS {
        for which in 0..2 {
            root.create_dir(format!("d{thread}{which}").as_bytes(), &NewNode::default()).expect("made");
        }
    }
    for name in files() {
        root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
    }
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    let stage = Arc::new(Rewind::new(copy(&*device)));
    let recorder = Arc::new(Recorder::new(device));
    let volume = Volume::open_device(means.of(recorder.clone()), &how).expect("clean");
    let steps = number("UXFS_STEPS").unwrap_or(1500) as usize;
    let logs: Vec<Log> = std::thread::scope(|scope| {
        let (volume, recorder) = (&volume, &recorder);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(volume, recorder, thread, seed, steps)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    drop(volume);
    let recording = recorder.recording();
    let mut cuts: Vec<u64> = recording.cuts();
    cuts.extend((0..looks / 2).map(|_| rng.u64(..recording.end())));
    rng.shuffle(&mut cuts);
    cuts.truncate(looks);
    cuts.sort_unstable();
    println!("{} writes, {} flushes", recording.writes().len(), recording.flushes().len());
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let mut most = 0;
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
        let to_kernel = nth % (looks / kernel_looks).max(1) == 1;
        let image = to_kernel.then(|| image_of(&*stage));
        let volume = Volume::open_device(stage.clone(), &OpenOptions::new().writable(true))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let ours = seen(&volume);
        most = most.max(ours.dirs.values().map(BTreeMap::len).max().unwrap_or(0));
        logs.iter().for_each(|log| log.judge(&ours, cut, &what));
        volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(volume);
        let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        if let Some((_dir, image)) = image {
            let theirs = mounted(&image, seen_at);
            assert!(theirs == ours, "{what}: the kernel finds another tree");
            repair_finds_nothing(&image);
        }
        stage.rewind().expect("taken back");
    }
    println!("seed {seed}: {} cuts, most names {most}", cuts.len());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn trees_grow_and_shrink() {
    for seed in seeds(1) {
        run(seed, 50, 5);
    }
}
