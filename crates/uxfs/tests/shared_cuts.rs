//! The power goes while a file that shares its blocks is written to, zeroed, punched, cut off and cloned anew: each of its
//! sectors is then as it was at some moment since the last sync, and whoever shares them has lost nothing.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::files::{Random, new_file};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use uxfs::{
    ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Result, Volume, check_device,
    mkfs_device,
};

const BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 32;
/// What is written in place may be torn between two of them.
const SECTOR: usize = 512;
const NAMES: [&str; 2] = ["one", "two"];
const STEPS: usize = 160;
/// How many of the flushes are looked behind.
const LOOKS: usize = 120;

/// What both files hold at a time, and when the step began that made it so.
struct State {
    began: u64,
    content: [Vec<u8>; 2],
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("opens")
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// Does something to one of the files, through the page cache if `buffered`, mostly.
fn step(random: &mut Random, golden: &File, files: &[File; 2], stamp: u8, buffered: bool) -> Result<()> {
    let which = random.below(2) as usize;
    let (file, other) = (&files[which], &files[1 - which]);
    let file = &match buffered && random.below(4) > 0 {
        true => file.buffered(),
        false => file.clone(),
    };
    let (at, len) = (random.below(BLOCKS), 1 + random.below(8));
    let end = (at + len).min(BLOCKS);
    let whole = at * BLOCK..end * BLOCK;
    let part = at * BLOCK + random.below(BLOCK)..end * BLOCK - random.below(BLOCK / 2);
    let range = if random.below(2) == 0 || part.is_empty() { whole.clone() } else { part };
    let data = vec![stamp; (range.end - range.start) as usize];
    match random.below(14) {
        0..=2 => file.write_at(&data, range.start),
        3 if buffered && file.size() < BLOCKS * BLOCK => file.append(&data).map(drop),
        3 => file.write_at(&data, range.start),
        4 => match file.overwrite_at(&data, range.start) {
            // A hole is in the way, or the end.
            Err(error) if matches!(error.kind(), ErrorKind::NotAllocated | ErrorKind::InvalidInput) => Ok(()),
            done => done,
        },
        5 => file.punch_hole(range),
        6 | 7 => file.zero_range(range, false),
        8 => file.set_len(range.start),
        9 if other.size() >= whole.end => {
            other.clone_range(whole.start, file, whole.start, whole.end - whole.start)
        }
        10 if file.size() >= whole.end => {
            golden.dedupe_range(whole.start, file, whole.start, whole.end - whole.start).map(drop)
        }
        11 => file.exchange_range(0, other, 0, None, ExchangeOptions::new()),
        _ => golden.clone_range(whole.start, file, whole.start, whole.end - whole.start),
    }
}

#[test]
fn whoever_shares_blocks_loses_nothing_when_the_power_goes() {
    cut_the_power(false);
}

#[test]
fn nor_does_who_writes_through_the_page_cache() {
    cut_the_power(true);
}

fn cut_the_power(buffered: bool) {
    let mut random = Random::seeded();
    let new = || Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let device: Arc<dyn BlockDevice> = new();
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).features(features), true).expect("made");
    let gold: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK) as u8 + 150).collect();
    let volume = open(&device);
    let golden = new_file(&volume, "golden");
    golden.write_at(&gold, 0).expect("written");
    for name in NAMES {
        golden.clone_range(0, &new_file(&volume, name), 0, 0).expect("a clone");
    }
    volume.close().expect("closed");
    drop((golden, volume));
    let base = new();
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).expect("read");
    base.write(0, &bytes, Durability::Volatile).expect("written");
    drop(bytes);

    let recorder = Arc::new(Recorder::new(device));
    let recorded: Arc<dyn BlockDevice> = recorder.clone();
    let volume = open(&recorded);
    let golden = volume.open_file("golden").expect("opened");
    let files = NAMES.map(|name| volume.open_file(name).expect("opened"));
    let mut states = vec![State { began: 0, content: [gold.clone(), gold.clone()] }];
    let (done, is_over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // How many steps were over when a sync began that was over at that moment.
    let synced = Mutex::new(vec![(0, 0)]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) == 0 {
                let steps = done.load(Ordering::SeqCst);
                volume.sync().expect("synced");
                synced.lock().unwrap().push((recorder.moment(), steps));
            }
        });
        for nth in 1..=STEPS {
            let began = recorder.moment();
            let came = step(&mut random, &golden, &files, (nth % 140 + 1) as u8, buffered);
            if let Err(error) = came {
                is_over.store(1, Ordering::SeqCst);
                panic!("step {nth}: {error}");
            }
            states.push(State { began, content: files.each_ref().map(content) });
            done.store(nth, Ordering::SeqCst);
        }
        is_over.store(1, Ordering::SeqCst);
    });
    assert!(content(&golden) == gold);
    drop((golden, files, volume));

    let synced = synced.into_inner().unwrap();
    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(base));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let cuts = recording.cuts();
    assert!(cuts.len() > STEPS / 8, "only {} flushes", cuts.len());
    let every = (cuts.len() / LOOKS).max(1);
    for (nth, cut) in cuts.into_iter().enumerate().step_by(every) {
        power.advance(cut).expect("written");
        let kept = random.below(4);
        power
            .make(|_| match kept {
                0 => Fate::Dropped,
                1 => Fate::Applied,
                _ if random.below(2) == 0 => Fate::Dropped,
                _ => Fate::Applied,
            })
            .expect("written");
        let staged: Arc<dyn BlockDevice> = stage.clone();
        let volume = open(&staged);
        let first = synced.iter().filter(|(at, _)| *at <= cut).map(|(_, steps)| *steps).max().unwrap_or(0);
        let last = states.iter().rposition(|state| state.began <= cut).unwrap_or(0);
        let what = format!("cut {nth}, behind step {first} and before the end of step {last}");
        let golden = volume.open_file("golden").expect("opened");
        assert!(content(&golden) == gold, "{what}: what nobody wrote to has changed");
        for (of, name) in NAMES.into_iter().enumerate() {
            let found = content(&volume.open_file(name).expect("opened"));
            let may: Vec<&Vec<u8>> = states[first..=last].iter().map(|state| &state.content[of]).collect();
            let lens = may.iter().map(|old| old.len());
            // A clone past the end has the file grow piece by piece, as a kernel's does.
            let grows = found.len().is_multiple_of(BLOCK as usize)
                && lens.clone().min() < Some(found.len())
                && lens.clone().max() > Some(found.len());
            let is_one = lens.clone().any(|len| len == found.len());
            assert!(is_one || grows, "{what}: {name}: {} bytes", found.len());
            for (sector, bytes) in found.chunks(SECTOR).enumerate() {
                let at = sector * SECTOR;
                let is_old = |old: &&&Vec<u8>| {
                    (0..bytes.len()).all(|byte| old.get(at + byte).copied().unwrap_or(0) == bytes[byte])
                };
                let begins = &bytes[..8.min(bytes.len())];
                assert!(may.iter().any(|old| is_old(&old)), "{what}: sector {sector} of {name}: {begins:?}");
            }
        }
        drop(golden);
        volume.close().expect("closed");
        drop(volume);
        let report = check_device(staged, &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        stage.rewind().expect("taken back");
    }
}
