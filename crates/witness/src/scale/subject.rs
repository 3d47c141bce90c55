//! The kinds of large subjects, and their operations.

use super::entries::Entries;
use super::extents::Extents;
use super::setting::Setting;
use super::sharing::{Clones, Frayed};
use anyhow::Result;
use clap::ValueEnum;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use uxfs::Volume;

/// A kind of subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// A directory of empty files.
    Files,
    /// A directory with many names of one file.
    Links,
    /// A directory of empty files that had as many others before.
    Recycled,
    /// A file with data in every other block, written from its start.
    Written,
    /// A file with space at every other block, allocated in a scattered order.
    Scattered,
    /// A preallocated file, with a hole punched at every other block in a scattered order.
    Punched,
    /// A file and its clone, in which every other block was overwritten.
    Frayed,
    /// A file of one block, and its clones.
    Clones,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Files,
        Self::Links,
        Self::Recycled,
        Self::Written,
        Self::Scattered,
        Self::Punched,
        Self::Frayed,
        Self::Clones,
    ];

    /// Its name, as the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Links => "links",
            Self::Recycled => "recycled",
            Self::Written => "written",
            Self::Scattered => "scattered",
            Self::Punched => "punched",
            Self::Frayed => "frayed",
            Self::Clones => "clones",
        }
    }

    /// Whether it is a directory, and not a file.
    pub fn is_directory(self) -> bool {
        matches!(self, Self::Files | Self::Links | Self::Recycled)
    }

    /// A subject of this kind with this many parts.
    pub fn subject(self, count: u64, setting: &Setting) -> Box<dyn Subject> {
        let block = u64::from(setting.block_size);
        match self {
            Self::Files | Self::Links | Self::Recycled => Box::new(Entries { shape: self, count }),
            Self::Written | Self::Scattered | Self::Punched => {
                Box::new(Extents { shape: self, count, block })
            }
            Self::Frayed => Box::new(Frayed { count, block }),
            Self::Clones => Box::new(Clones { count, block }),
        }
    }

    /// The size of the volume that it is made on.
    pub fn volume_bytes(self, count: u64, setting: &Setting) -> u64 {
        let each = if self.is_directory() { 2048 } else { 4 * u64::from(setting.block_size) };
        (1 << 30) + count * each
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Something with many parts.
pub trait Subject: Sync {
    /// Makes what must exist before the first part.
    fn prepare(&self, volume: &Volume) -> Result<()>;
    /// Makes the parts with these numbers.
    fn make(&self, volume: &Volume, parts: Range<u64>) -> Result<()>;
    /// Checks part `nth`, and what must not exist beside it.
    fn check(&self, volume: &Volume, nth: u64) -> Result<()>;
    /// Changes a few distant parts. No later check depends on it.
    fn touch(&self, volume: &Volume) -> Result<()>;
    /// Removes the parts with these numbers.
    fn remove(&self, volume: &Volume, parts: Range<u64>) -> Result<()>;
    /// Whether removing is one call, for one thread.
    fn removes_at_once(&self) -> bool;
    /// Bytes of memory that it takes in addition to the caches.
    fn bytes(&self) -> u64;
    /// Asks the kernel, which has it mounted, for the number of parts. Returns what was looked at.
    fn kernel_sees(&self, mnt: &Path) -> Result<String>;
}

/// A permutation of `0..count` without any visible order.
pub fn scattered(nth: u64, count: u64) -> u64 {
    // A prime that is greater than any count.
    const STRIDE: u64 = 2_654_435_761;
    nth * STRIDE % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_places_are_all_places() {
        for count in [1, 2, 10, 1000, 9973, 10_000] {
            let mut places: Vec<u64> = (0..count).map(|nth| scattered(nth, count)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count));
        }
    }
}
