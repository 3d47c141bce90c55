//! A file with many extents: data in every other block, with holes in between.

use super::subject::{Shape, Subject, scattered};
use anyhow::{Context, Result, ensure};
use fiemap::{Fiemap, FiemapExtentFlags};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use uxfs::{File, NewNode, Volume};

const FILE: &str = "fragmented";
/// Blocks that the kernel reads.
const KERNEL_SAMPLE: u64 = 1000;
/// Memory per extent: a packed record in a leaf that is at least half full, and its share of the levels above.
const EXTENT_BYTES: u64 = 40;

/// The file.
#[derive(Debug)]
pub struct Extents {
    /// How it is made.
    pub shape: Shape,
    /// The number of its extents.
    pub count: u64,
    /// Bytes per block.
    pub block: u64,
}

impl Extents {
    fn open(volume: &Volume) -> Result<File> {
        Ok(volume.open_file(FILE)?)
    }

    /// The bytes of extent `nth`.
    fn place(&self, nth: u64) -> Range<u64> {
        let start = 2 * nth * self.block;
        start..start + self.block
    }

    /// The content of extent `nth`: one repeated word, for which a compressing device needs no memory.
    fn content(&self, nth: u64) -> Vec<u8> {
        let word =
            if self.shape == Shape::Written { (nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { 0 };
        word.to_ne_bytes().repeat(self.block as usize / 8)
    }

    fn sample(&self) -> impl Iterator<Item = u64> {
        let count = self.count;
        (0..KERNEL_SAMPLE.min(count)).map(move |nth| scattered(nth, count))
    }
}

impl Subject for Extents {
    fn prepare(&self, volume: &Volume) -> Result<()> {
        volume.open_dir("/")?.create_file(FILE.as_bytes(), &NewNode::default())?;
        Ok(())
    }

    fn make(&self, volume: &Volume, parts: Range<u64>) -> Result<()> {
        let file = Self::open(volume)?;
        if self.shape == Shape::Punched {
            // Each thread allocates its own range. The first one moves the end.
            file.allocate(self.place(parts.start).start..self.place(parts.end).start, false)?;
        }
        let within = parts.end - parts.start;
        for nth in 0..within {
            let place = match self.shape {
                Shape::Written => self.place(parts.start + nth),
                _ => self.place(parts.start + scattered(nth, within)),
            };
            match self.shape {
                Shape::Written => file.write_at(&self.content(parts.start + nth), place.start)?,
                Shape::Scattered => file.allocate(place, false)?,
                _ => file.punch_hole(place.end..place.end + self.block)?,
            }
        }
        Ok(())
    }

    fn check(&self, volume: &Volume, nth: u64) -> Result<()> {
        let file = Self::open(volume)?;
        let mut both = vec![1; 2 * self.block as usize];
        let start = self.place(nth).start;
        let len = file.read_at(&mut both, start)?;
        let (data, hole) = both[..len].split_at(self.block as usize);
        ensure!(data == self.content(nth), "block {} holds something else", 2 * nth);
        ensure!(hole.iter().all(|&byte| byte == 0), "a hole holds something");
        Ok(())
    }

    fn touch(&self, _volume: &Volume) -> Result<()> {
        Ok(())
    }

    fn remove(&self, volume: &Volume, _parts: Range<u64>) -> Result<()> {
        let file = Self::open(volume)?;
        let found = file.metadata().extents;
        ensure!(found == self.count, "the file has {found} extents");
        file.set_len(0)?;
        ensure!(file.metadata().extents == 0, "extents are left");
        Ok(())
    }

    fn removes_at_once(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.count * EXTENT_BYTES
    }

    fn kernel_sees(&self, mnt: &Path) -> Result<String> {
        let file = fs::File::open(mnt.join(FILE))?;
        let mut seen = 0;
        for extent in Fiemap::new(&file) {
            let extent = extent.context("FIEMAP")?;
            let place = self.place(seen);
            ensure!(
                extent.fe_logical == place.start && extent.fe_length == self.block,
                "the kernel has extent {seen} at {} with {} bytes",
                extent.fe_logical,
                extent.fe_length
            );
            let unwritten = extent.fe_flags.contains(FiemapExtentFlags::UNWRITTEN);
            ensure!(unwritten == (self.shape != Shape::Written), "extent {seen} is of the wrong kind");
            seen += 1;
        }
        ensure!(seen == self.count, "the kernel has {seen} extents");
        let mut block = vec![1; self.block as usize];
        for nth in self.sample() {
            file.read_exact_at(&mut block, self.place(nth).start)?;
            ensure!(block == self.content(nth), "the kernel reads something else in block {}", 2 * nth);
        }
        Ok(format!("{seen} extents listed, {} read", KERNEL_SAMPLE.min(self.count)))
    }
}
