//! Whatever a sync promised is there when the power goes at the very moment at which it returns, whoever else syncs,
//! opens, closes and meddles with the same files.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, Means, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::seeds;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{
    Changes, ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename,
    SetXattr, Syncing, Timestamp, Volume, mkfs_device,
};

const BYTES: u64 = 96 << 20;
const BLOCK: u64 = 4096;
const THREADS: usize = 3;

#[derive(Clone, Debug, PartialEq)]
struct State {
    content: Vec<u8>,
    mtime: Timestamp,
    mode: u16,
    nlink: u32,
    attr: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    Data,
    All,
}

struct Record {
    moment: u64,
    name: String,
    what: String,
    promise: Promise,
    state: State,
    /// What of the content was promised.
    range: std::ops::Range<usize>,
}

fn state_of(file: &File) -> State {
    let metadata = file.metadata();
    let mut content = vec![0; file.size() as usize];
    file.read_at(&mut content, 0).expect("read");
    let attr = file.node().xattr(b"user.a").expect("read");
    State { content, mtime: metadata.mtime, mode: metadata.mode, nlink: metadata.nlink, attr }
}

fn work(volume: &Volume, recorder: &Recorder, thread: usize, seed: u64, steps: usize) -> Vec<Record> {
    let mut rng = fastrand::Rng::with_seed(seed * 1000 + thread as u64);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let dir = root
        .lookup(format!("d{thread}").as_bytes())
        .expect("looked up")
        .expect("there")
        .as_dir()
        .expect("a directory");
    let mut records = Vec::new();
    let mut names: Vec<String> = vec!["a".into(), "b".into(), "c".into()];
    for name in &names {
        dir.create_file(name.as_bytes(), &NewNode::default()).expect("made");
    }
    let mut next = 0;
    for step in 0..steps {
        let nth = rng.usize(..names.len());
        let name = names[nth].clone();
        let node = dir.lookup(name.as_bytes()).expect("looked up").expect("there");
        let file = node.open().expect("opens");
        let file = if rng.bool() { file.buffered() } else { file };
        let syncing = [Syncing::Later, Syncing::Later, Syncing::Data, Syncing::All][rng.usize(..4)];
        let file = file.syncing(syncing);
        let tag = rng.u8(1..);
        let size = file.size();
        let mut is_promised = false;
        let mut range = 0..usize::MAX;
        let op = rng.u32(..20);
        let done = match op {
            0..=3 => {
                is_promised = true;
                let at = rng.u64(..size + 1).min(48 * 1024);
                let len = rng.usize(1..9000);
                range = at as usize..at as usize + len;
                file.write_at(&vec![tag; len], at)
            }
            4 | 5 if size >= 512 => {
                is_promised = true;
                let at = rng.u64(..size / 512) * 512;
                range = at as usize..at as usize + 512;
                file.overwrite_at(&[tag; 512], at)
            }
            6 | 7 if size < 64 * 1024 => {
                is_promised = true;
                let len = rng.usize(1..6000);
                file.append(&vec![tag; len]).map(|at| range = at as usize..at as usize + len)
            }
            8 => {
                is_promised = true;
                file.set_len(rng.u64(..size + 5000).min(80_000))
            }
            9 if size > 0 => {
                is_promised = true;
                let from = rng.u64(..size);
                file.punch_hole(from..from + rng.u64(1..10_000))
            }
            10 => {
                is_promised = true;
                let from = rng.u64(..size + 1);
                file.zero_range(from..from + rng.u64(1..10_000), rng.bool())
            }
            11 => {
                is_promised = true;
                let from = rng.u64(..size + 1);
                file.allocate(from..from + rng.u64(1..10_000), rng.bool())
            }
            12 => file.node().set_xattr(
                b"user.a",
                &vec![tag; [5, 400, 3000, 9000][rng.usize(..4)]],
                SetXattr::Either,
            ),
            13 => {
                let mut changes = Changes { permissions: Some(0o400 + u16::from(tag)), ..Changes::default() };
                if rng.bool() {
                    changes.mtime = Some(Timestamp { seconds: 1_000_000_000 + step as i64, nanoseconds: 5 });
                }
                file.node().change(&changes)
            }
            14 => {
                next += 1;
                let new = format!("n{next}");
                let done = dir.rename(name.as_bytes(), &dir, new.as_bytes(), Rename::Replace);
                names[nth] = new;
                done
            }
            15 => {
                next += 1;
                let new = format!("n{next}");
                let done = dir.link(new.as_bytes(), file.node());
                dir.remove_file(name.as_bytes()).expect("removed");
                names[nth] = new;
                done
            }
            16 => {
                next += 1;
                let new = format!("n{next}");
                let made = dir.create_unnamed(&NewNode::default()).expect("made");
                made.write_at(&vec![tag; 5000], 0).expect("written");
                made.overwrite_at(&[tag ^ 1; 512], 512).expect("written");
                dir.link(new.as_bytes(), made.node()).expect("linked");
                dir.remove_file(name.as_bytes()).expect("removed");
                names[nth] = new;
                Ok(())
            }
            17 => {
                is_promised = true;
                let other = dir
                    .lookup(names[(nth + 1) % 3].as_bytes())
                    .expect("looked up")
                    .expect("there")
                    .open()
                    .expect("opens");
                other.clone_range(0, &file, 0, 0)
            }
            18 if size > 2 * BLOCK => {
                is_promised = true;
                if rng.bool() { file.collapse_range(0..BLOCK) } else { file.insert_range(BLOCK..2 * BLOCK) }
            }
            19 => {
                let other = dir
                    .lookup(names[(nth + 1) % 3].as_bytes())
                    .expect("looked up")
                    .expect("there")
                    .open()
                    .expect("opens");
                other.exchange_range(0, &file, 0, None, ExchangeOptions::new())
            }
            _ => continue,
        };
        if let Err(error) = done {
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::NotAllocated | ErrorKind::Unsupported
                ),
                "{op}: {error}"
            );
            continue;
        }
        let mut note = |moment: u64, name: &str, promise, how: &str, state, range| {
            let what = format!("thread {thread}, step {step}, operation {op}, {how}");
            records.push(Record { moment, name: format!("d{thread}/{name}"), what, promise, state, range });
        };
        if is_promised && syncing != Syncing::Later {
            let moment = recorder.moment();
            let promise = if syncing == Syncing::All { Promise::All } else { Promise::Data };
            note(moment, &names[nth], promise, &format!("{syncing:?}"), state_of(&file), range);
        }
        let file =
            dir.lookup(names[nth].as_bytes()).expect("looked up").expect("there").open().expect("opens");
        match rng.u8(..8) {
            0 | 1 => {
                let state = state_of(&file);
                file.sync().expect("synced");
                note(recorder.moment(), &names[nth], Promise::All, "fsync", state, 0..usize::MAX);
            }
            2 => {
                let state = state_of(&file);
                file.sync_data().expect("synced");
                note(recorder.moment(), &names[nth], Promise::Data, "fdatasync", state, 0..usize::MAX);
            }
            3 => {
                let states: Vec<_> = names
                    .iter()
                    .map(|name| {
                        let file = dir
                            .lookup(name.as_bytes())
                            .expect("looked up")
                            .expect("there")
                            .open()
                            .expect("opens");
                        (name.clone(), state_of(&file))
                    })
                    .collect();
                volume.sync().expect("synced");
                let moment = recorder.moment();
                for (name, state) in states {
                    note(moment, &name, Promise::All, "sync", state, 0..usize::MAX);
                }
            }
            _ => {}
        }
    }
    records
}

/// Syncs, opens and closes what others change, and has the log idle.
fn meddle(volume: &Volume, seed: u64, ends: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    while !ends.load(Ordering::Relaxed) {
        let dir =
            root.lookup(format!("d{}", rng.usize(..THREADS)).as_bytes()).expect("looked up").expect("there");
        let dir = dir.as_dir().expect("a directory");
        let names: Vec<_> = dir.entries().filter_map(|entry| entry.ok()).map(|entry| entry.name).collect();
        let file = match names.is_empty() {
            true => None,
            false => {
                dir.lookup(&names[rng.usize(..names.len())]).ok().flatten().and_then(|node| node.open().ok())
            }
        };
        match (rng.u8(..10), file) {
            (0, _) => volume.sync().expect("synced"),
            (1, _) if rng.u8(..10) == 0 => volume.pass_idle_time().expect("idle"),
            (2..=4, Some(file)) => drop(file.sync()),
            (5, Some(file)) => drop(file.sync_data()),
            (6, Some(file)) => {
                let mut bytes = [0; 3000];
                let _read = file.buffered().read_at(&mut bytes, 0);
            }
            (7, Some(file)) => drop(file.node().set_xattr(b"user.meddled", &[1; 20], SetXattr::Either)),
            (8, Some(file)) => {
                // Refused.
                let changes = Changes { extent_size: Some(13), ..Changes::default() };
                let _refused = file.node().change(&changes);
            }
            (_, file) => drop(file),
        }
    }
}

fn at_least(found: Timestamp, known: Timestamp) -> bool {
    (found.seconds, found.nanoseconds) >= (known.seconds, known.nanoseconds)
}

fn run(seed: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let kernel = ["6.1", "6.18", "6.18"][rng.usize(..3)];
    let means = Means::ALL[rng.usize(..4)];
    let cache = [1 << 20, 64 << 20][rng.usize(..2)];
    let gather = rng.u8(..4) == 0;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    device.write(0, &vec![0xee; BYTES as usize], Durability::Volatile).expect("written");
    let features = MkfsFeatures::of_kernel(kernel).expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features).small(true), false)
        .expect("a volume");
    let how = OpenOptions::new().writable(true).cache_size(cache).gather_writes(gather);
    let volume = Volume::open_device(Arc::clone(&device), &how).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for thread in 0..THREADS {
        root.create_dir(format!("d{thread}").as_bytes(), &NewNode::default()).expect("made");
    }
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    let stage = Arc::new(Rewind::new(copy(&*device)));
    let recorder = Arc::new(Recorder::new(device));
    let volume = Volume::open_device(means.of(recorder.clone()), &how).expect("clean");
    let ends = AtomicBool::new(false);
    let mut records: Vec<Record> = std::thread::scope(|scope| {
        let (volume, recorder, ends) = (&volume, &recorder, &ends);
        let meddlers: Vec<_> =
            (0..2).map(|nth| scope.spawn(move || meddle(volume, seed * 10 + nth, ends))).collect();
        // Threads lose their processors at any place.
        for _ in 0..if seed.is_multiple_of(2) { 4 } else { 0 } {
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(volume, recorder, thread, seed, 250)))
            .collect();
        let records = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        ends.store(true, Ordering::Relaxed);
        meddlers.into_iter().for_each(|thread| thread.join().expect("no panic"));
        records
    });
    drop(volume);
    let recording = recorder.recording();
    records.sort_by_key(|record| record.moment);
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let mut wrong = BTreeMap::<String, usize>::new();
    let mut said = 0;
    let mut at = 0;
    while at < records.len() {
        let moment = records[at].moment;
        power.advance(moment).expect("written");
        power.make(|_| Fate::Dropped).expect("written");
        let seen = Volume::open_device(stage.clone(), &OpenOptions::new()).expect("it is replayed");
        while at < records.len() && records[at].moment == moment {
            let Record { name, what, promise, state, range, .. } = &records[at];
            at += 1;
            let found = seen.open_file(format!("/{name}")).map(|file| state_of(&file));
            let problem = match found {
                Err(error) => {
                    Some(if *promise == Promise::All { format!("gone: {error}") } else { String::new() })
                        .filter(|what| !what.is_empty())
                }
                Ok(found)
                    if (range.end == usize::MAX && found.content != state.content)
                        || (range.end != usize::MAX
                            && found.content.get(range.clone()) != state.content.get(range.clone())) =>
                {
                    Some(format!(
                        "content: {} bytes of {}, first at {:?}",
                        found.content.len(),
                        state.content.len(),
                        found.content.iter().zip(&state.content).position(|(one, other)| one != other)
                    ))
                }
                Ok(_) if *promise == Promise::Data => None,
                Ok(found) if !at_least(found.mtime, state.mtime) => {
                    Some(format!("mtime {:?} of {:?}", found.mtime, state.mtime))
                }
                Ok(found) if found.mode != state.mode => Some("mode".to_owned()),
                Ok(found) if found.attr != state.attr => Some("attribute".to_owned()),
                Ok(found) if found.nlink != state.nlink => Some("nlink".to_owned()),
                Ok(_) => None,
            };
            if let Some(problem) = problem {
                *wrong.entry(problem.split([':', ' ']).next().unwrap_or("").to_owned()).or_default() += 1;
                said += 1;
                if said < 6 {
                    println!("seed {seed}, moment {moment}: {name}, {what}: {problem}");
                }
            }
        }
        drop(seen);
        stage.rewind().expect("taken back");
    }
    println!(
        "seed {seed}: {kernel}, {means:?}, cache {cache}, gather {gather}: {} promises, wrong {wrong:?}",
        records.len()
    );
    wrong.values().sum()
}

#[test]
fn what_was_promised_is_there() {
    let wrong: usize = seeds(3).map(run).sum();
    assert_eq!(wrong, 0);
}
