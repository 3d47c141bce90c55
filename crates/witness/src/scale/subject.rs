//! What is made large: the kinds there are, and what each can do.

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
    /// A directory of names of one file.
    Links,
    /// A directory of empty files where as many others were before.
    Recycled,
    /// A file with a block of data at every second block, written from its start on.
    Written,
    /// A file with space at every second block, set aside in a scattered order.
    Scattered,
    /// A file set aside as a whole, with a hole punched at every second block in a scattered order.
    Punched,
    /// A file and its clone, of which every second block was written over.
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

    /// A subject of this kind with so many parts.
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

    /// How large a volume it is made on.
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
    /// Makes what there must be before the first part.
    fn prepare(&self, volume: &Volume) -> Result<()>;
    /// Makes the parts of these numbers, of all.
    fn make(&self, volume: &Volume, parts: Range<u64>) -> Result<()>;
    /// Looks at part `nth`, and at what must not be there beside it.
    fn check(&self, volume: &Volume, nth: u64) -> Result<()>;
    /// Changes a few parts that lie far apart. Nothing that is asked later depends on it.
    fn touch(&self, volume: &Volume) -> Result<()>;
    /// Takes the parts of these numbers away.
    fn remove(&self, volume: &Volume, parts: Range<u64>) -> Result<()>;
    /// Whether removing is one call, for one thread.
    fn removes_at_once(&self) -> bool;
    /// Bytes of memory that it takes beside the caches.
    fn bytes(&self) -> u64;
    /// Asks the kernel, which has it mounted, for as many parts as there must be; says what was looked at.
    fn kernel_sees(&self, mnt: &Path) -> Result<String>;
}

/// Another place in `0..count` for each `nth` in it: all over the place, each once.
pub fn scattered(nth: u64, count: u64) -> u64 {
    // A prime that is greater than any count, so that no multiple of it below `count` is one of `count`.
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
