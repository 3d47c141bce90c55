//! Blocks that are shared in many pieces, and a block that many files share.

use super::subject::{Subject, scattered};
use anyhow::{Context, Result, ensure};
use fiemap::{Fiemap, FiemapExtentFlags};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use uxfs::{Dir, File, NewNode, Volume};

const SOURCE: &str = "source";
const CLONE: &str = "clone";
const DIR: &str = "clones";
/// How many blocks or clones the kernel reads one by one.
const KERNEL_SAMPLE: u64 = 1000;
/// Memory per piece: an extent in each of two maps, and the record of what is shared.
const PIECE_BYTES: u64 = 120;
/// Blocks that are written at a time.
const FILLED_AT_ONCE: u64 = 256;

/// The content of block `nth` of a file: one repeated word.
fn content(nth: u64, changed: bool, block: u64) -> Vec<u8> {
    let word = (2 * nth + u64::from(changed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_ne_bytes().repeat(block as usize / 8)
}

/// A file and its clone, in which every other block was overwritten.
#[derive(Debug)]
pub struct Frayed {
    /// Pieces that stay shared. As many are not.
    pub count: u64,
    /// Bytes per block.
    pub block: u64,
}

impl Frayed {
    fn file(&self, volume: &Volume, name: &str) -> Result<File> {
        Ok(volume.open_file(name)?)
    }
}

impl Subject for Frayed {
    fn prepare(&self, volume: &Volume) -> Result<()> {
        let root = volume.open_dir("/")?;
        root.create_file(SOURCE.as_bytes(), &NewNode::default())?;
        root.create_file(CLONE.as_bytes(), &NewNode::default())?;
        Ok(())
    }

    fn make(&self, volume: &Volume, parts: Range<u64>) -> Result<()> {
        let (source, clone) = (self.file(volume, SOURCE)?, self.file(volume, CLONE)?);
        let (first, end) = (2 * parts.start, 2 * parts.end);
        let mut at = first;
        while at < end {
            let until = end.min(at + FILLED_AT_ONCE);
            let bytes: Vec<u8> = (at..until).flat_map(|nth| content(nth, false, self.block)).collect();
            source.write_at(&bytes, at * self.block)?;
            at = until;
        }
        source.clone_range(first * self.block, &clone, first * self.block, (end - first) * self.block)?;
        for nth in parts {
            let changed = 2 * nth + 1;
            clone.write_at(&content(changed, true, self.block), changed * self.block)?;
        }
        Ok(())
    }

    fn check(&self, volume: &Volume, nth: u64) -> Result<()> {
        let mut both = vec![0; 2 * self.block as usize];
        for (name, changed) in [(SOURCE, false), (CLONE, true)] {
            let len = self.file(volume, name)?.read_at(&mut both, 2 * nth * self.block)?;
            let (even, odd) = both[..len].split_at(self.block as usize);
            ensure!(even == content(2 * nth, false, self.block), "{name} holds something else");
            ensure!(odd == content(2 * nth + 1, changed, self.block), "{name} holds something else");
        }
        Ok(())
    }

    fn touch(&self, _volume: &Volume) -> Result<()> {
        Ok(())
    }

    fn remove(&self, volume: &Volume, _parts: Range<u64>) -> Result<()> {
        // The source first: each piece loses an owner, and what the clone no longer has is freed.
        self.file(volume, SOURCE)?.set_len(0)?;
        self.check_clone(volume)?;
        self.file(volume, CLONE)?.set_len(0)?;
        Ok(())
    }

    fn removes_at_once(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.count * PIECE_BYTES
    }

    fn kernel_sees(&self, mnt: &Path) -> Result<String> {
        let file = fs::File::open(mnt.join(CLONE))?;
        let (mut shared, mut own) = (0, 0);
        for extent in Fiemap::new(&file) {
            let extent = extent.context("FIEMAP")?;
            let is_shared = extent.fe_flags.contains(FiemapExtentFlags::SHARED);
            *(if is_shared { &mut shared } else { &mut own }) += extent.fe_length / self.block;
        }
        ensure!((shared, own) == (self.count, self.count), "{shared} blocks are shared, {own} are not");
        let mut block = vec![0; self.block as usize];
        for nth in (0..KERNEL_SAMPLE.min(self.count)).map(|nth| scattered(nth, 2 * self.count)) {
            file.read_exact_at(&mut block, nth * self.block)?;
            ensure!(block == content(nth, nth % 2 == 1, self.block), "the kernel reads something else");
        }
        Ok(format!("{shared} blocks are shared and as many are not"))
    }
}

impl Frayed {
    fn check_clone(&self, volume: &Volume) -> Result<()> {
        let (clone, mut block) = (self.file(volume, CLONE)?, vec![0; self.block as usize]);
        for nth in (0..KERNEL_SAMPLE.min(self.count)).map(|nth| scattered(nth, 2 * self.count)) {
            clone.read_at(&mut block, nth * self.block)?;
            ensure!(block == content(nth, nth % 2 == 1, self.block), "the clone lost block {nth}");
        }
        Ok(())
    }
}

/// A file of one block, and its clones.
#[derive(Debug)]
pub struct Clones {
    /// The number of clones.
    pub count: u64,
    /// Bytes per block.
    pub block: u64,
}

impl Clones {
    fn dir(volume: &Volume) -> Result<Dir> {
        Ok(volume.open_dir(DIR)?)
    }

    fn name(nth: u64) -> String {
        format!("clone-{nth:09}")
    }
}

impl Subject for Clones {
    fn prepare(&self, volume: &Volume) -> Result<()> {
        let root = volume.open_dir("/")?;
        root.create_dir(DIR.as_bytes(), &NewNode { permissions: 0o755, ..NewNode::default() })?;
        let source = root.create_file(SOURCE.as_bytes(), &NewNode::default())?.open()?;
        source.write_at(&content(0, false, self.block), 0)?;
        Ok(())
    }

    fn make(&self, volume: &Volume, parts: Range<u64>) -> Result<()> {
        let (dir, source) = (Self::dir(volume)?, volume.open_file(SOURCE)?);
        for nth in parts {
            let clone = dir.create_file(Self::name(nth).as_bytes(), &NewNode::default())?.open()?;
            source.clone_range(0, &clone, 0, 0)?;
        }
        Ok(())
    }

    fn check(&self, volume: &Volume, nth: u64) -> Result<()> {
        let file = volume.open_file(format!("{DIR}/{}", Self::name(nth)))?;
        let mut block = vec![0; self.block as usize];
        ensure!(file.read_at(&mut block, 0)? == block.len() && block == content(0, false, self.block));
        Ok(())
    }

    fn touch(&self, _volume: &Volume) -> Result<()> {
        Ok(())
    }

    fn remove(&self, volume: &Volume, parts: Range<u64>) -> Result<()> {
        let dir = Self::dir(volume)?;
        for nth in parts {
            dir.remove_file(Self::name(nth).as_bytes())?;
        }
        Ok(())
    }

    fn removes_at_once(&self) -> bool {
        false
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn kernel_sees(&self, mnt: &Path) -> Result<String> {
        let found = fs::read_dir(mnt.join(DIR))?.count() as u64;
        ensure!(found == self.count, "the kernel has {found} clones");
        for nth in (0..KERNEL_SAMPLE.min(self.count)).map(|nth| scattered(nth, self.count)) {
            let path = mnt.join(DIR).join(Self::name(nth));
            ensure!(fs::read(path)? == content(0, false, self.block), "clone {nth} holds something else");
        }
        Ok(format!("{found} clones of one block"))
    }
}
