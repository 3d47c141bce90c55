//! Power cuts under buffered, direct and syncing handles of files that share blocks, by two threads, with names that move; with
//! small writes gathered, and while a cut is recovered. Beside them, files are made and removed while what is in them is dirty,
//! on a device that was full of other bytes, with so little room that others take their blocks soon. The kernel recovers
//! some of the images as well, and both must find the same.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, Means, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::{Random, image_of, new_file};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use uxfs::{
    Changes, ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Rename, Result,
    Syncing, Timestamp, Volume, check_device, mkfs_device,
};

const BYTES: u64 = 64 << 20;
const BLOCKS: u64 = 32;
const SECTOR: usize = 512;
const STEPS: usize = 120;
const THREADS: usize = 2;
/// What the device has before the volume is made: no file has it.
const FILLER: u8 = 0xee;
/// Files of a thread that come and go.
const BRIEF: usize = 6;
/// What is left for all files that are changed.
const ROOM: u64 = 4 << 20;
/// Images of a run that are looked at.
const LOOKS: usize = 80;

/// The two files of a thread behind a step, and when that began.
struct State {
    began: u64,
    content: [Vec<u8>; 2],
}

/// What was durable when a call returned.
struct Durable {
    at: u64,
    step: usize,
    of: usize,
    range: Range<u64>,
}

/// Whether some version has these bytes of a sector, with zeroes past its end.
fn was<'a>(mut versions: impl Iterator<Item = &'a Vec<u8>>, at: usize, bytes: &[u8]) -> bool {
    versions.any(|old| (0..bytes.len()).all(|byte| old.get(at + byte).copied().unwrap_or(0) == bytes[byte]))
}

/// A file that comes and goes, and is never synced on purpose but now and then.
struct Brief {
    file: Option<File>,
    /// What it had behind a step, and when that began.
    versions: Vec<(usize, u64, Vec<u8>)>,
    /// When a version was durable.
    durable: Vec<(u64, usize)>,
}

impl Brief {
    /// What is wrong with what was found at a cut, if all that was done up to step `first` is there.
    fn misfit(&self, found: &[u8], cut: u64, first: usize) -> Option<String> {
        let last = self.versions.iter().rposition(|(_, began, _)| *began <= cut);
        let Some(last) = last else { return Some("it is not made yet".to_owned()) };
        let synced = self.versions.iter().rposition(|(step, ..)| *step <= first).unwrap_or(0);
        let durable = self.durable.iter().filter(|(at, _)| *at <= cut).map(|(_, version)| *version);
        let floor = durable.chain([synced]).max().unwrap_or(0).min(last);
        let may = |from: usize| self.versions[from..=last].iter().map(|(.., content)| content);
        let lens = || may(floor).map(Vec::len);
        if lens().min() > Some(found.len()) || lens().max() < Some(found.len()) {
            return Some(format!("{} bytes, of {:?}", found.len(), lens().collect::<Vec<_>>()));
        }
        let grown = floor + lens().position(|len| len >= found.len()).unwrap_or(0);
        found.chunks(SECTOR).enumerate().find_map(|(sector, bytes)| {
            let at = sector * SECTOR;
            let from = if at + SECTOR >= found.len() { grown } else { floor };
            let begin = &bytes[..4.min(bytes.len())];
            (!was(may(from), at, bytes)).then(|| format!("sector {sector} of {}: {begin:?}", found.len()))
        })
    }
}

/// Which file has a name from some time on.
struct Named {
    step: usize,
    began: u64,
    brief: Option<usize>,
}

/// The files of a thread that come and go.
struct Briefs {
    thread: usize,
    all: Vec<Brief>,
    names: BTreeMap<String, Vec<Named>>,
    there: Vec<(String, usize)>,
}

impl Briefs {
    fn new(thread: usize) -> Self {
        Self { thread, all: Vec::new(), names: BTreeMap::new(), there: Vec::new() }
    }

    /// Makes, changes, syncs, removes or replaces a file.
    fn step(
        &mut self,
        random: &mut Random,
        volume: &Volume,
        now: &Recorder,
        nth: usize,
        block: u64,
    ) -> Result<()> {
        if self.there.len() < 2 {
            return self.make(random, volume, now, nth, block);
        }
        let which = random.below(self.there.len() as u64) as usize;
        match random.below(10) {
            0..=2 if self.there.len() < BRIEF => self.make(random, volume, now, nth, block),
            0..=4 => self.write(random, now, nth, self.there[which].1, block),
            5 => {
                let brief = &mut self.all[self.there[which].1];
                brief.file.as_ref().expect("it is there").sync_data()?;
                brief.durable.push((now.moment(), brief.versions.len() - 1));
                Ok(())
            }
            6 => {
                // Its name goes to another, which is removed so.
                let (from, to) = (which, (which + 1) % self.there.len());
                let (old, name) = (self.there[from].0.clone(), self.there[to].0.clone());
                let began = now.moment();
                let root = volume.root()?.as_dir()?;
                root.rename(old.as_bytes(), &root, name.as_bytes(), Rename::Replace)?;
                self.all[self.there[to].1].file = None;
                self.there[to].1 = self.there[from].1;
                self.named(&old, Named { step: nth, began, brief: None });
                self.named(&name, Named { step: nth, began, brief: Some(self.there[to].1) });
                self.there.remove(from);
                Ok(())
            }
            _ => {
                let (name, brief) = self.there.swap_remove(which);
                let began = now.moment();
                volume.root()?.as_dir()?.remove_file(name.as_bytes())?;
                self.named(&name, Named { step: nth, began, brief: None });
                // What is dirty goes with it, and its blocks to whoever asks next.
                self.all[brief].file = None;
                self.make(random, volume, now, nth, block)
            }
        }
    }

    fn named(&mut self, name: &str, named: Named) {
        self.names.entry(name.to_owned()).or_default().push(named);
    }

    fn make(
        &mut self,
        random: &mut Random,
        volume: &Volume,
        now: &Recorder,
        nth: usize,
        block: u64,
    ) -> Result<()> {
        let name = format!("brief {} {nth}", self.thread);
        let began = now.moment();
        let plain = new_file(volume, &name);
        let file = if random.below(2) == 0 { plain.buffered() } else { plain };
        let brief = self.all.len();
        self.all.push(Brief {
            file: Some(file),
            versions: vec![(nth, began, Vec::new())],
            durable: Vec::new(),
        });
        self.named(&name, Named { step: nth, began, brief: Some(brief) });
        self.there.push((name, brief));
        self.write(random, now, nth, brief, block)
    }

    /// Writes over it, behind it or into it, or moves its end.
    fn write(
        &mut self,
        random: &mut Random,
        now: &Recorder,
        nth: usize,
        brief: usize,
        block: u64,
    ) -> Result<()> {
        let brief = &mut self.all[brief];
        let file = brief.file.as_ref().expect("it is there");
        let began = now.moment();
        // No other file has this.
        let mark = [nth as u8, 240 + self.thread as u8];
        let data: Vec<u8> = mark.into_iter().cycle().take(1 + random.below(6 * block) as usize).collect();
        let size = file.size();
        match random.below(7) {
            0 | 1 if size < BLOCKS * block => drop(file.append(&data)?),
            2 if size < BLOCKS * block => file.write_at(&data, size + random.below(2 * block))?,
            3 if size > 0 => file.set_len(random.below(size))?,
            // What is written next goes into a hole, mostly.
            4 if size < BLOCKS * block => file.set_len(size + random.below(6 * block))?,
            _ => file.write_at(&data, random.below(size + 1).min(BLOCKS * block))?,
        }
        brief.versions.push((nth, began, content(file)));
        Ok(())
    }

    /// Judges what there is at a cut, if all that was done up to step `first` is there; gives that.
    fn judge(&self, volume: &Volume, cut: u64, first: usize, what: &str) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        for (name, history) in &self.names {
            let begun = &history[..history.partition_point(|named| named.began <= cut)];
            let certain = begun.iter().rposition(|named| named.step <= first);
            let may: BTreeSet<Option<usize>> = begun[certain.unwrap_or(0)..]
                .iter()
                .map(|named| named.brief)
                .chain(certain.is_none().then_some(None))
                .collect();
            let found = match volume.open_file(name) {
                Ok(file) => content(&file),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {name}: {error}");
                    assert!(may.contains(&None), "{what}: {name} is not there, first {first}");
                    continue;
                }
            };
            let misfits: Vec<Option<String>> =
                may.iter().flatten().map(|&brief| self.all[brief].misfit(&found, cut, first)).collect();
            assert!(misfits.iter().any(Option::is_none), "{what}: {name}, first {first}: {misfits:?}");
            all.push((name.clone(), found));
        }
        all
    }
}

/// Leaves little room on a volume.
fn fill_up(volume: &Volume) -> Result<()> {
    let ballast = new_file(volume, "ballast");
    let mut end = 0;
    loop {
        match ballast.allocate(end..end + (1 << 20), false) {
            Ok(()) => end += 1 << 20,
            Err(error) if error.kind() == ErrorKind::NoSpace => break,
            Err(error) => return Err(error),
        }
    }
    assert!(end > ROOM, "there was room");
    ballast.punch_hole(0..ROOM)
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

fn harmless(error: &uxfs::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotAllocated | ErrorKind::InvalidInput)
}

/// Gives what of which file is durable now.
fn step(
    random: &mut Random,
    block: u64,
    golden: &File,
    files: &[File; 2],
    stamp: u8,
) -> Result<Option<(usize, Range<u64>)>> {
    let which = random.below(2) as usize;
    let other = &files[1 - which];
    let mut file = if random.below(3) > 0 { files[which].buffered() } else { files[which].clone() };
    let syncing = random.below(4) == 0;
    if syncing {
        file = file.syncing(if random.below(2) == 0 { Syncing::Data } else { Syncing::All });
    }
    let (at, len) = (random.below(BLOCKS), 1 + random.below(8));
    let end = (at + len).min(BLOCKS);
    let whole = at * block..end * block;
    let part = at * block + random.below(block)..end * block - random.below(block / 2);
    let sector = |at: u64| at & !511;
    let range = match random.below(3) {
        0 => whole.clone(),
        1 if sector(part.end) > sector(part.start) => sector(part.start)..sector(part.end),
        _ if part.is_empty() => whole.clone(),
        _ => part,
    };
    let data = vec![stamp; (range.end - range.start) as usize];
    let all = 0..u64::MAX;
    let durable = |range: Range<u64>| syncing.then_some((which, range));
    Ok(match random.below(20) {
        0..=3 => {
            file.write_at(&data, range.start)?;
            durable(range)
        }
        4 if file.size() < BLOCKS * block => {
            let at = file.append(&data)?;
            durable(at..at + data.len() as u64)
        }
        5 | 6 => match file.overwrite_at(&data, range.start) {
            Err(error) if harmless(&error) => None,
            done => {
                done?;
                durable(range)
            }
        },
        7 => {
            file.punch_hole(range)?;
            durable(all)
        }
        8 => {
            file.zero_range(range, random.below(2) == 0)?;
            durable(all)
        }
        9 => {
            file.set_len(range.start)?;
            durable(all)
        }
        10 if other.size() >= whole.end => {
            other.clone_range(whole.start, &file, whole.start, whole.end - whole.start)?;
            durable(all)
        }
        11 if file.size() >= whole.end => {
            golden.dedupe_range(whole.start, &file, whole.start, whole.end - whole.start)?;
            None
        }
        12 => {
            file.exchange_range(0, other, 0, None, ExchangeOptions::new())?;
            None
        }
        13 => {
            file.allocate(range, random.below(2) == 0)?;
            durable(all)
        }
        14 => {
            file.sync_data()?;
            Some((which, all))
        }
        15 => {
            file.sync_range(range.clone())?;
            Some((which, range))
        }
        16 => {
            let end = file.size().next_multiple_of(block);
            if end >= BLOCKS * block {
                return Ok(None);
            }
            file.append_at(&data[..data.len().min(4 * block as usize)], end)?;
            durable(end..end + data.len().min(4 * block as usize) as u64)
        }
        _ => {
            golden.clone_range(whole.start, &file, whole.start, whole.end - whole.start)?;
            durable(all)
        }
    })
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let new = || Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let device: Arc<dyn BlockDevice> = new();
    device.write(0, &vec![FILLER; BYTES as usize], Durability::Volatile).expect("written");
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    let block = if seed.is_multiple_of(3) { 1024 } else { 4096 };
    mkfs_device(
        Arc::clone(&device),
        &MkfsOptions::new().small(true).block_size(block as u32).features(features),
        false,
    )
    .expect("made");
    let gold: Vec<u8> = (0..BLOCKS * block).map(|at| (at / block) as u8 + 200).collect();
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
    let golden = new_file(&volume, "golden");
    golden.write_at(&gold, 0).expect("written");
    for thread in 0..THREADS {
        for nth in 0..2 {
            golden
                .clone_range(0, &new_file(&volume, &format!("file {thread} {nth}")), 0, 0)
                .expect("a clone");
        }
    }
    if !seed.is_multiple_of(4) {
        fill_up(&volume).expect("filled");
    }
    volume.close().expect("closed");
    drop((golden, volume));
    let base = new();
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).expect("read");
    base.write(0, &bytes, Durability::Volatile).expect("written");
    drop(bytes);

    let fua = seed.is_multiple_of(2);
    let gathers = seed / 2 % 2 == 1;
    let recorder = Arc::new(Recorder::new(Means { fua, write_cache: true }.of(device)));
    let cache = if seed % 5 < 3 { 256 << 10 } else { 64 << 20 };
    let options = OpenOptions::new().writable(true).gather_writes(gathers).cache_size(cache);
    let volume = Volume::open_device(recorder.clone(), &options).expect("opens");
    let golden = volume.open_file("golden").expect("opened");
    let done: Vec<AtomicUsize> = (0..THREADS).map(|_| AtomicUsize::new(0)).collect();
    let over = AtomicUsize::new(0);
    let synced = Mutex::new(vec![(0, vec![0; THREADS])]);
    let mut all: Vec<(Vec<State>, Vec<Durable>, Briefs)> = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let beside = new_file(&volume, "beside");
            let mut nth = 0;
            while over.load(Ordering::SeqCst) < THREADS {
                let steps: Vec<usize> = done.iter().map(|done| done.load(Ordering::SeqCst)).collect();
                let before = steps.iter().sum::<usize>();
                nth += 1;
                if nth % 4 == 0 {
                    volume.sync().expect("synced");
                    synced.lock().unwrap().push((recorder.moment(), steps));
                } else {
                    // Only the log: what is in its open checkpoint goes there with a change that somebody syncs.
                    let mtime = Some(Timestamp { seconds: nth as i64, nanoseconds: 0 });
                    beside.node().change(&Changes { mtime, ..Changes::default() }).expect("changed");
                    beside.sync().expect("synced");
                }
                // Some steps stay without the log for a while: what one of them frees, the next may want.
                let until = before + nth * 7 % 11;
                let so_far = || done.iter().map(|done| done.load(Ordering::SeqCst)).sum::<usize>();
                while so_far() < until && over.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (volume, golden, recorder, gold) = (&volume, &golden, &recorder, &gold);
                let (done, over) = (&done, &over);
                let mut random = Random(random.below(u64::MAX) | 1);
                scope.spawn(move || {
                    let files =
                        [0, 1].map(|nth| volume.open_file(format!("file {thread} {nth}")).expect("opened"));
                    let root = volume.root().expect("root").as_dir().expect("dir");
                    let mut states = vec![State { began: 0, content: [gold.clone(), gold.clone()] }];
                    let mut durable = Vec::new();
                    let mut briefs = Briefs::new(thread);
                    for nth in 1..=STEPS {
                        let began = recorder.moment();
                        let stamp = (nth % 95 + 1 + thread * 100) as u8;
                        let came = step(&mut random, block, golden, &files, stamp);
                        let ended = recorder.moment();
                        let brief = briefs.step(&mut random, volume, recorder, nth, block);
                        let came = came.and_then(|came| brief.map(|()| came));
                        if came.is_err() {
                            over.fetch_add(THREADS, Ordering::SeqCst);
                        }
                        let came = came.unwrap_or_else(|error| panic!("seed {seed}, step {nth}: {error}"));
                        states.push(State { began, content: files.each_ref().map(content) });
                        if let Some((of, range)) = came {
                            durable.push(Durable { at: ended, step: nth, of, range });
                        }
                        done[thread].store(nth, Ordering::SeqCst);
                        // Names beside, with parent pointers.
                        let name = format!("other {thread} {}", random.below(5)).into_bytes();
                        let to = format!("other {thread} {}", random.below(5)).into_bytes();
                        let _ = match random.below(4) {
                            0 => root.link(&name, files[0].node()),
                            1 => root.rename(&name, &root, &to, Rename::Replace),
                            2 => root.remove_file(&name),
                            _ => root.rename(&name, &root, &to, Rename::Exchange),
                        };
                    }
                    over.fetch_add(1, Ordering::SeqCst);
                    briefs.all.iter_mut().for_each(|brief| brief.file = None);
                    (states, durable, briefs)
                })
            })
            .collect();
        all = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
    });
    assert!(content(&golden) == gold);
    drop((golden, volume));

    let synced = synced.into_inner().unwrap();
    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(base));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let mut cuts = recording.cuts();
    // And at any other time.
    for _ in 0..LOOKS / 2 {
        cuts.push(1 + random.below(recording.end() - 1));
    }
    cuts.sort_unstable();
    let every = (cuts.len() / LOOKS).max(1);
    for (nth, cut) in cuts.into_iter().enumerate().skip(random.below(every as u64) as usize).step_by(every) {
        power.advance(cut).expect("written");
        let kept = random.below(6);
        power
            .make(|write| match kept {
                0 => Fate::Dropped,
                1 => Fate::Applied,
                2 | 3 => {
                    if random.below(2) == 0 {
                        Fate::Dropped
                    } else {
                        Fate::Applied
                    }
                }
                _ => match random.below(3) {
                    0 => Fate::Dropped,
                    1 => Fate::Applied,
                    _ => Fate::Torn((0..write.data.len() / 512).map(|_| random.below(2) == 0).collect()),
                },
            })
            .expect("written");
        let what = format!("seed {seed}, cut {nth} at {cut}, kept {kept}");
        let kernel = (kept <= 3 && random.below(5) == 0).then(|| image_of(&*stage));
        let left = (kept <= 3 && random.below(4) == 0).then(|| [copy(&*stage), copy(&*stage)]);
        let found_all = {
            let volume = Volume::open_device(stage.clone(), &OpenOptions::new().writable(true))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let golden = volume.open_file("golden").expect("opened");
            assert!(content(&golden) == gold, "{what}: what nobody wrote to has changed");
            drop(golden);
            let mut found_all = Vec::new();
            for (thread, (states, durable, briefs)) in all.iter().enumerate() {
                let of_sync = synced.iter().filter(|(at, _)| *at <= cut).map(|(_, steps)| steps[thread]);
                let first = of_sync.max().unwrap_or(0);
                let last = states.iter().rposition(|state| state.began <= cut).unwrap_or(0);
                for of in 0..2 {
                    let name = format!("file {thread} {of}");
                    let found = content(&volume.open_file(&name).expect("opened"));
                    let what = format!("{what}, {name}, steps {first} to {last}");
                    let may = |from: usize| (from..=last).map(|step| &states[step].content[of]);
                    let mut floor_all = first;
                    for durable in durable.iter().filter(|durable| durable.at <= cut && durable.of == of) {
                        if durable.range == (0..u64::MAX) {
                            floor_all = floor_all.max(durable.step);
                        }
                    }
                    let lens: Vec<usize> = may(floor_all).map(Vec::len).collect();
                    let between =
                        lens.iter().min() <= Some(&found.len()) && lens.iter().max() >= Some(&found.len());
                    assert!(between, "{what}: {} bytes, of {lens:?}, floor {floor_all}", found.len());
                    // The size does not come ahead of the data.
                    let grown = lens.iter().position(|len| *len >= found.len()).unwrap_or(0) + floor_all;
                    for (sector, bytes) in found.chunks(SECTOR).enumerate() {
                        let at = sector * SECTOR;
                        let mut floor = if at + SECTOR >= found.len() { grown } else { floor_all };
                        for durable in durable.iter().filter(|durable| durable.at <= cut && durable.of == of)
                        {
                            if durable.range.start <= at as u64
                                && durable.range.end >= (at + bytes.len()) as u64
                            {
                                floor = floor.max(durable.step);
                            }
                        }
                        assert!(
                            was(may(floor), at, bytes),
                            "{what}: sector {sector} of {}: {:?}, floor {floor}",
                            found.len() / SECTOR,
                            &bytes[..4.min(bytes.len())]
                        );
                    }
                    found_all.push((name, found));
                }
                found_all.extend(briefs.judge(&volume, cut, first, &what));
            }
            volume.close().expect("closed");
            found_all
        };
        let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        if let Some(left) = left {
            recovery_cut(&mut random, left, &found_all, &what);
        }
        if let Some((_folder, image)) = kernel {
            common::mounted(&image, |at| {
                for (name, found) in &found_all {
                    let seen = std::fs::read(at.join(name)).expect("read");
                    if seen != *found {
                        let differ =
                            (0..seen.len().max(found.len())).find(|&byte| seen.get(byte) != found.get(byte));
                        panic!(
                            "{what}: the kernel has {name} otherwise: {} bytes and {}, from {differ:?} on",
                            seen.len(),
                            found.len()
                        );
                    }
                }
            });
            common::repair_finds_nothing(&image);
        }
        stage.rewind().expect("taken back");
    }
}

/// The recovery of what lies on the stage is cut, with small writes gathered or not; whoever recovers it then finds the same.
fn recovery_cut(
    random: &mut Random,
    left: [Arc<dyn BlockDevice>; 2],
    found_all: &[(String, Vec<u8>)],
    what: &str,
) {
    let [left, base] = left;
    let recorder = Arc::new(Recorder::new(left));
    let gathers = random.below(3) > 0;
    let volume =
        Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true).gather_writes(gathers))
            .expect("opens");
    // And something of its own.
    let more = new_file(&volume, "more").buffered();
    more.write_at(&[3; 300_000], 0).expect("written");
    more.sync_data().expect("synced");
    if random.below(2) == 0 {
        volume.close().expect("closed");
    }
    drop((more, volume));
    let recording = recorder.recording();
    let again = Arc::new(Rewind::new(base));
    let mut power = PowerCuts::new(&recording, Arc::clone(&again));
    let mut cuts = recording.cuts();
    (0..4).for_each(|_| cuts.push(1 + random.below(recording.end() - 1)));
    cuts.sort_unstable();
    for cut in cuts {
        power.advance(cut).expect("written");
        let torn = random.below(2) == 0;
        power
            .make(|write| match random.below(if torn { 3 } else { 2 }) {
                0 => Fate::Dropped,
                1 => Fate::Applied,
                _ => Fate::Torn((0..write.data.len() / 512).map(|_| random.below(2) == 0).collect()),
            })
            .expect("written");
        let what = format!("{what}; and its recovery at {cut} of {}, gathers {gathers}", recording.end());
        if !torn && random.below(6) == 0 {
            let (_folder, image) = image_of(&*again);
            common::mounted(&image, |at| {
                for (name, found) in found_all {
                    assert!(
                        std::fs::read(at.join(name)).expect("read") == *found,
                        "{what}: the kernel has {name} otherwise"
                    );
                }
            });
            common::repair_finds_nothing(&image);
        }
        let volume = Volume::open_device(again.clone(), &OpenOptions::new().writable(true))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        for (name, found) in found_all {
            assert!(content(&volume.open_file(name).expect("opened")) == *found, "{what}: {name} is another");
        }
        volume.close().expect("closed");
        drop(volume);
        let report = check_device(again.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        again.rewind().expect("taken back");
    }
}

/// The seed of a longer run, and how many seeds behind it: UXFS_SEED, UXFS_RUNS.
#[test]
#[ignore = "needs root and xfsprogs"]
fn whatever_is_under_way_when_the_power_fails_is_there_or_not_and_nothing_else_is() {
    let number = |name, unsaid| std::env::var(name).map_or(unsaid, |text| text.parse().expect("a number"));
    let (first, runs): (u64, u64) = (number("UXFS_SEED", 1), number("UXFS_RUNS", 2));
    let wrong: Vec<u64> =
        (first..first + runs).filter(|&seed| std::panic::catch_unwind(|| run(seed)).is_err()).collect();
    assert!(wrong.is_empty(), "replay with UXFS_SEED=N UXFS_RUNS=1: {wrong:?}");
}
