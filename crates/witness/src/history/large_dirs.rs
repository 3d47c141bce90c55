//! Large directories of one group, which grow and shrink beside each other: names go from the middle of each, so that the
//! map of its blocks is cut into more extents than its inode holds, and joined again.
//!
//! Invariant: a directory holds what its thread left there, and is empty and gone in the end.

use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use uxfs::{Dir, NewNode, Volume};

const FOLDER: &[u8] = b"large";
const THREADS: usize = 3;
/// Directories go to one group after the other: of so many, the first few by number are in one, if groups are few.
const MADE: usize = 4 * THREADS;
/// Names that come at a time, and that go from a directory that is to shrink: those of many blocks.
const MANY: std::ops::RangeInclusive<usize> = 1..=200;
/// Names that go from the middle of others: those of a block or two, of 4096 bytes.
const FEW: std::ops::RangeInclusive<usize> = 17..=36;
/// Extents between which a directory is kept: inodes of 512 bytes hold 21.
const EXTENTS: std::ops::Range<u64> = 15..24;

/// Has threads do `steps` such things each, in a folder of their own, which is gone afterwards.
pub fn run(volume: &Volume, seed: u64, steps: u64) -> Result<()> {
    let root = volume.open_dir("/")?;
    let folder = root.create_dir(FOLDER, &NewNode::default())?.as_dir()?;
    let make = |nth: usize| folder.create_dir(nth.to_string().as_bytes(), &NewNode::default())?.as_dir();
    let mut dirs = (0..MADE).map(make).collect::<uxfs::Result<Vec<Dir>>>()?;
    dirs.sort_by_key(|dir| dir.node().ino());
    std::thread::scope(|scope| {
        let work = |(thread, dir)| {
            let rng = fastrand::Rng::with_seed(seed ^ (thread as u64) << 40);
            scope.spawn(move || swell(dir, rng, steps))
        };
        let handles: Vec<_> = dirs.iter().take(THREADS).enumerate().map(work).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        handles.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    (0..MADE).try_for_each(|nth| folder.remove_dir(nth.to_string().as_bytes()))?;
    Ok(root.remove_dir(FOLDER)?)
}

fn swell(dir: &Dir, mut rng: fastrand::Rng, steps: u64) -> Result<()> {
    // Names made one after the other lie together.
    let mut there: Vec<u64> = Vec::new();
    let mut next = 0;
    for _ in 0..steps {
        let extents = dir.node().metadata()?.extents;
        let grows = extents < EXTENTS.start || extents < EXTENTS.end && rng.u8(..4) == 0;
        let count = rng.usize(if grows || extents >= EXTENTS.end { MANY } else { FEW });
        if grows {
            for _ in 0..count {
                dir.create_file(&name(next), &NewNode::default())?;
                there.push(next);
                next += 1;
            }
        } else {
            let first = rng.usize(..there.len());
            let going = first..there.len().min(first + count);
            there.drain(going).try_for_each(|nth| dir.remove_file(&name(nth)))?;
        }
    }
    let listed = dir.entries().map(|entry| Ok(entry?.name)).collect::<uxfs::Result<BTreeSet<_>>>()?;
    let known: BTreeSet<_> = there.iter().map(|nth| name(*nth)).collect();
    ensure!(listed == known, "a large directory holds {} names, not {}", listed.len(), known.len());
    rng.shuffle(&mut there);
    Ok(there.iter().try_for_each(|nth| dir.remove_file(&name(*nth)))?)
}

/// So long that a block holds few.
fn name(nth: u64) -> Vec<u8> {
    format!("{nth:0220}").into_bytes()
}
