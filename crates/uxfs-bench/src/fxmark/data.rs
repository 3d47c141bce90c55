//! Blocks of files: read, overwritten, appended, cut off, synced.

use super::{FxMark, Hand, Plan, SHARED, Stage, own_dir, repeat, wrong};
use crate::error::Result;
use crate::fs::{Directory, FileSystem, OpenFile};
use crate::timer::Timer;
use blockdev::AlignedBuf;

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Bytes of a shared file that are one thread's own.
pub(super) const REGION: u64 = 8 << 20;
/// Bytes that are written at a time where the clock does not run.
const CHUNK: usize = 1 << 20;

/// The name of a thread's file in its directory, and of the one that all share.
const FILE: &[u8] = b"data";

/// A buffer that is filled with one word: what a thread's blocks hold. Storage that keeps such a block without
/// compressing it, as zram does, is the kernel's best case.
fn filled(word: u64, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    for eight in buf.chunks_exact_mut(8) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    buf
}

/// A word that no other thread has, nor another measurement, nor another stage of one.
fn word(plan: Plan, thread: usize, stage: u64) -> u64 {
    plan.serial << 32 | (thread as u64) << 8 | stage
}

/// What is in a file before the clock starts, and what is put there.
const BEFORE: u64 = 1;
const AFTER: u64 = 2;

/// Opens or makes what the workload needs.
pub(super) fn set<F: FileSystem>(fs: &F, which: FxMark, plan: Plan) -> Result<Stage<'_, F::Dir>> {
    type OfDir<F> = <<F as FileSystem>::Dir as Directory>::File;
    let shared = match which {
        FxMark::DRBM | FxMark::DRBH | FxMark::DWOM => Some(share(fs, which, plan)?),
        _ => None,
    };
    let mut hands: Vec<Box<dyn Hand + '_>> = Vec::new();
    for thread in 0..plan.threads {
        let at = if matches!(which, FxMark::DRBM | FxMark::DWOM) { thread as u64 * REGION } else { 0 };
        let file: OfDir<F> = match &shared {
            Some(dir) => dir.open(FILE)?,
            None => {
                let file = own_dir(fs, thread)?.create(FILE)?;
                let blocks = match which {
                    FxMark::DWAL => 0,
                    // One is left in the end.
                    FxMark::DWTL => plan.files + 1,
                    _ => 1,
                };
                fill(&file, 0..blocks * BLOCK, word(plan, thread, BEFORE))?;
                file
            }
        };
        let before = word(plan, if which == FxMark::DRBH { 0 } else { thread }, BEFORE);
        let after = word(plan, thread, AFTER);
        let block = |word| filled(word, BLOCK as usize);
        hands.push(match which {
            FxMark::DRBL | FxMark::DRBM | FxMark::DRBH => {
                // In memory, wherever the target keeps it.
                file.read(at, &mut block(0))?;
                Box::new(Reads { file, at, expected: block(before), buf: block(0) })
            }
            FxMark::DWAL => Box::new(Appends { file, block: block(after), blocks: 0 }),
            FxMark::DWTL => Box::new(Cuts { file, expected: block(before) }),
            _ => Box::new(Overwrites { file, at, block: block(after), sync: which == FxMark::DWSL }),
        });
    }
    Ok(Stage { hands, left: Vec::new() })
}

/// The file that all threads use: a block, or a region for each of them.
fn share<F: FileSystem>(fs: &F, which: FxMark, plan: Plan) -> Result<F::Dir> {
    let dir = fs.root()?.make_dir(SHARED)?;
    let file = dir.create(FILE)?;
    if which == FxMark::DRBH {
        fill(&file, 0..BLOCK, word(plan, 0, BEFORE))?;
    } else {
        for thread in 0..plan.threads {
            let start = thread as u64 * REGION;
            fill(&file, start..start + REGION, word(plan, thread, BEFORE))?;
        }
    }
    drop(file);
    Ok(dir)
}

/// Writes a word all over a range.
fn fill(file: &impl OpenFile, range: std::ops::Range<u64>, word: u64) -> Result<()> {
    let chunk = filled(word, CHUNK.min((range.end - range.start) as usize));
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(CHUNK as u64);
        file.write(at, &chunk[..len as usize])?;
        at += len;
    }
    Ok(())
}

/// Fails if a block has the wrong content.
fn compare(file: &impl OpenFile, at: u64, expected: &[u8]) -> Result<()> {
    let mut found = AlignedBuf::zeroed(expected.len());
    file.read(at, &mut found)?;
    if *found == *expected { Ok(()) } else { Err(wrong(format!("byte {at} of a file is another's"))) }
}

/// Fails if a file has the wrong size.
fn ends_at(file: &impl OpenFile, expected: u64) -> Result<()> {
    match file.size()? {
        found if found == expected => Ok(()),
        found => Err(wrong(format!("a file has {found} bytes, not {expected}"))),
    }
}

/// Reads one block over and over.
struct Reads<F> {
    file: F,
    at: u64,
    expected: AlignedBuf,
    buf: AlignedBuf,
}

impl<F: OpenFile> Hand for Reads<F> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        let (file, buf, at) = (&self.file, &mut self.buf, self.at);
        repeat(plan.limit, timer, || file.read(at, buf))
    }

    fn check(&self) -> Result<()> {
        if *self.buf == *self.expected { Ok(()) } else { Err(wrong("what was read last is another's")) }
    }
}

/// Overwrites one block over and over, and syncs it each time if that is asked for.
struct Overwrites<F> {
    file: F,
    at: u64,
    block: AlignedBuf,
    sync: bool,
}

impl<F: OpenFile> Hand for Overwrites<F> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        let (file, block, at) = (&self.file, &self.block, self.at);
        if self.sync {
            return repeat(plan.limit, timer, || file.write(at, block).and_then(|()| file.sync()));
        }
        repeat(plan.limit, timer, || file.write(at, block))
    }

    fn check(&self) -> Result<()> {
        compare(&self.file, self.at, &self.block)
    }
}

/// Appends one block after the other to an empty file.
struct Appends<F> {
    file: F,
    block: AlignedBuf,
    /// That were appended.
    blocks: u64,
}

impl<F: OpenFile> Hand for Appends<F> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        while self.blocks < plan.files {
            timer.of(|| self.file.write(self.blocks * BLOCK, &self.block))?;
            self.blocks += 1;
        }
        Ok(self.blocks)
    }

    fn check(&self) -> Result<()> {
        ends_at(&self.file, self.blocks * BLOCK)?;
        compare(&self.file, 0, &self.block)?;
        compare(&self.file, (self.blocks - 1) * BLOCK, &self.block)
    }
}

/// Cuts a file off, block by block, until one is left.
struct Cuts<F> {
    file: F,
    expected: AlignedBuf,
}

impl<F: OpenFile> Hand for Cuts<F> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        for left in (1..=plan.files).rev() {
            timer.of(|| self.file.set_len(left * BLOCK))?;
        }
        Ok(plan.files)
    }

    fn check(&self) -> Result<()> {
        ends_at(&self.file, BLOCK)?;
        compare(&self.file, 0, &self.expected)
    }
}
