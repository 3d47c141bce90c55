//! Shared blocks and unfinished work in volumes of today: clones in pieces and copies of their blocks, and logs that
//! end within chains of deferred work, with unfinished intents of every kind; and damage to those intents.

use super::bases::SIZE;
use crate::damage::mutate::apply;
use crate::damage::overlay::Overlay;
use anyhow::{Context, Result, bail};
use blockdev::{BlockDevice, Durability, Fate, MemoryDevice, PowerCuts, Recorder, Rewind};
use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{ErrorKind, ExchangeOptions, File, NewNode, OpenOptions, SetXattr, Volume};
use xfs_format::log::{BLOCK_SIZE, LogIdentity, RecordHeader, RecordOps, pack, unpack};
use xfs_format::superblock::Superblock;

/// Extents of the shared files, and rounds of chains.
const EXTENTS: u64 = 100;
const ROUNDS: usize = 10;
/// Maximum logs per volume.
const LOGS_MAX: usize = 5;
/// How many of a log's last records are damaged.
const RECORDS: usize = 24;

fn open(device: &Arc<dyn BlockDevice>) -> uxfs::Result<Volume> {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true))
}

/// Clones in pieces, if the volume supports them. Returns `false` if not.
pub fn share(device: &Arc<dyn BlockDevice>) -> Result<bool> {
    let volume = open(device)?;
    let root = volume.open_dir("/")?;
    let block = u64::from(volume.metadata("/")?.block_size);
    let file =
        |name: &str| -> uxfs::Result<File> { root.create_file(name.as_bytes(), &NewNode::default())?.open() };
    let base = file("base")?;
    (0..EXTENTS).try_for_each(|nth| base.write_at(&vec![nth as u8; block as usize], 2 * nth * block))?;
    for (nth, name) in (1..).zip(["clone", "other", "third"]) {
        let clone = file(name)?;
        match base.clone_range(0, &clone, 0, 0) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                volume.close()?;
                return Ok(false);
            }
            other => other?,
        }
        for at in (0..EXTENTS).step_by(7) {
            clone.write_at(&[nth; 100], (2 * at + u64::from(nth)) * block)?;
            clone.punch_hole(2 * at * block..(2 * at + 1) * block)?;
        }
    }
    volume.close()?;
    Ok(true)
}

/// Images that a power cut could leave in the middle of chains, each with unfinished intents of a kind that the
/// previous ones lack.
pub fn owing(device: &Arc<dyn BlockDevice>) -> Result<Vec<(String, Vec<u8>)>> {
    /// How often this is tried, because the order of threads varies.
    const TRIES: usize = 5;
    for _ in 0..TRIES {
        let found = owing_once(device)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    bail!("no log ended within a chain")
}

fn owing_once(device: &Arc<dyn BlockDevice>) -> Result<Vec<(String, Vec<u8>)>> {
    let before = copy(&**device)?;
    let recorder = Arc::new(Recorder::new(copy(&**device)?));
    let volume = open(&(Arc::clone(&recorder) as _))?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let syncing = scope.spawn(|| -> uxfs::Result<()> {
            while !over.load(Ordering::Relaxed) {
                volume.sync()?;
            }
            Ok(())
        });
        let done = chains(&volume);
        over.store(true, Ordering::Relaxed);
        done?;
        Ok(syncing.join().expect("no panic")?)
    })?;
    drop(volume);
    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(before));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for cut in recording.cuts() {
        power.advance(cut)?;
        power.make(|_| Fate::Dropped)?;
        let volume = Volume::open_device(Arc::clone(&stage) as _, &OpenOptions::new())?;
        let unfinished = volume.recovery().map(|recovery| recovery.unfinished).unwrap_or_default();
        drop(volume);
        let new = unfinished.iter().fold(false, |new, kind| seen.insert(kind.clone()) | new);
        if new && found.len() < LOGS_MAX {
            let mut bytes = vec![0; SIZE as usize];
            stage.read(0, &mut bytes)?;
            found.push((format!("owing {}", unfinished.join(", ")), bytes));
        }
        stage.rewind()?;
    }
    Ok(found)
}

fn copy(device: &dyn BlockDevice) -> Result<Arc<dyn BlockDevice>> {
    let mut bytes = vec![0; SIZE as usize];
    device.read(0, &mut bytes)?;
    let copy = MemoryDevice::anonymous(SIZE)?;
    copy.write(0, &bytes, Durability::Volatile)?;
    Ok(Arc::new(copy))
}

/// All kinds of chains.
fn chains(volume: &Volume) -> uxfs::Result<()> {
    let root = volume.open_dir("/")?;
    let [base, clone, other] = ["/base", "/clone", "/other"].map(|path| volume.open_file(path));
    let (base, clone, other) = (base?, clone?, other?);
    let block = u64::from(volume.metadata("/")?.block_size);
    for round in 0..ROUNDS {
        match base.exchange_range(0, &clone, 0, None, ExchangeOptions::new()) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            done => done?,
        }
        let made = root.create_file(b"made", &NewNode::default())?;
        let file = made.open()?;
        base.clone_range(0, &file, 0, 0)?;
        file.punch_hole(10 * block..90 * block)?;
        other.write_at(&vec![round as u8; 30 * block as usize], 40 * block)?;
        for nth in 0..12 {
            made.set_xattr(format!("user.{nth}").as_bytes(), &[1; 300], SetXattr::Either)?;
            made.set_xattr(format!("user.{nth}").as_bytes(), &[2; 2000], SetXattr::Either)?;
            root.link(
                format!("a name that is long enough for few to fit in, number {nth}").as_bytes(),
                &made,
            )?;
        }
        file.set_len(block)?;
        drop(file);
        for nth in 0..12 {
            root.remove_file(
                format!("a name that is long enough for few to fit in, number {nth}").as_bytes(),
            )?;
        }
        root.remove_file(b"made")?;
    }
    Ok(())
}

/// An intent or done item of the log: its record, and its position in the record's data.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    header: RecordHeader,
    record: usize,
    len: usize,
    at: usize,
    bytes: usize,
}

/// Kinds of items: from EFI to XMD.
const KINDS: [u16; 12] =
    [0x1236, 0x1237, 0x1240, 0x1241, 0x1242, 0x1243, 0x1244, 0x1245, 0x1246, 0x1247, 0x1248, 0x1249];

/// Intents and done items in the last records of an image's log.
pub fn items(image: &[u8]) -> Result<Vec<Item>> {
    let superblock = Superblock::parse(image.get(..512).context("a superblock")?)?;
    let identity = LogIdentity { v5: true, uuid: superblock.uuid() };
    let start = superblock.log_daddr().0 as usize * 512;
    let log = start..start + superblock.log_bytes() as usize;
    let mut records = Vec::new();
    for at in log.clone().step_by(BLOCK_SIZE) {
        let Ok(header) = RecordHeader::check(&image[at..log.end], &identity) else { continue };
        let len = header.total_blocks() as usize * BLOCK_SIZE;
        // A record that wraps around the end of the log is left out.
        if at + len <= log.end {
            records.push((at, len, *header));
        }
    }
    records.sort_unstable_by_key(|(_, _, header)| header.lsn().0);
    let mut found = Vec::new();
    for &(record, len, header) in records.iter().rev().take(RECORDS) {
        let mut bytes = image[record..record + len].to_vec();
        let Ok(data) = unpack(&header, &mut bytes) else { continue };
        let mut at = 0;
        for op in RecordOps::new(data, header.num_logops.get()) {
            let Ok(op) = op else { break };
            at += 12;
            let kind = op.data.first_chunk().map(|kind| u16::from_le_bytes(*kind));
            if kind.is_some_and(|kind| KINDS.contains(&kind)) {
                found.push(Item { header, record, len, at, bytes: op.data.len() });
            }
            at += op.data.len();
        }
    }
    Ok(found)
}

/// Damages some of the items, with correct checksums.
pub fn damage_items(items: &[Item], rng: &mut Rng, device: &mut Overlay) -> Result<Vec<String>> {
    let mut story = Vec::new();
    for _ in 0..rng.usize(1..=3) {
        let Some(item) = rng.choice(items) else { break };
        let mut record = vec![0; item.len];
        device.read(item.record as u64, &mut record)?;
        let heads = item.header.header_blocks() as usize * BLOCK_SIZE;
        if unpack(&item.header, &mut record).is_err() {
            continue;
        }
        let width = [1, 4, 8][rng.usize(..3)].min(item.bytes);
        let from = rng.usize(..=(item.bytes - width) / width) * width;
        let place = &mut record[heads + item.at + from..][..width];
        match rng.u8(..5) {
            0 => place.fill(0),
            1 => place.fill(0xff),
            2 => place[rng.usize(..width)] ^= 1 << rng.u8(..8),
            3 => place[0] = place[0].wrapping_add(if rng.bool() { 1 } else { 0xff }),
            _ => rng.fill(place),
        }
        // Its header, which is needed for packing it, may be damaged already.
        if pack(&mut record, None).is_err() {
            continue;
        }
        apply(item.record, &record, device);
        story.push(format!("{width} bytes at {from} of an item in the record at {:#x}", item.record));
    }
    Ok(story)
}
