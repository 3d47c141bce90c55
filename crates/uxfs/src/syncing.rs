//! Making a file durable: when somebody asks, or with each change.
//!
//! Invariants:
//! - data first: what is to be durable is on the device before a flush of it begins, and before the log is forced that says
//!   where it lies;
//! - the log is forced only where something of the file may not be in it, times aside: its map, its size, a name, an
//!   attribute. Who writes over what is there pays for the data alone;
//! - the device is flushed once, by the log on its way or by who asks;
//! - nothing is locked while the device flushes, and whoever waits for a flush shares it with all who do
//!   ([`fileio::Flushing`]).

use crate::error::Result;
use crate::file::File;
use std::ops::Range;
use xfs::file;

/// When a change of a file's content is durable, for one handle of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncing {
    /// When the file or the volume is synced.
    #[default]
    Later,
    /// When the call returns, with all that is needed to read it back, as with `O_DSYNC`.
    Data,
    /// When the call returns, with times and all else, as with `O_SYNC`.
    All,
}

impl File {
    /// The same file, each of whose changes of content through this handle is durable when `syncing` says. What a write has
    /// changed by the time at which making it durable fails, stays changed.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), uxfs::Error> {
    /// let volume = uxfs::Volume::open("disk.img", &uxfs::OpenOptions::new().writable(true))?;
    /// let journal = volume.open_file("/db/wal")?.syncing(uxfs::Syncing::Data);
    /// let at = journal.append(b"begin")?; // A power cut from here on leaves it there.
    /// # let _ = at;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn syncing(&self, syncing: Syncing) -> Self {
        let mut file = self.again();
        file.syncing = syncing;
        file
    }

    /// Makes everything durable that was written and changed of the file before, as `fsync` does. What could not be written
    /// back since this handle last asked is told here, once.
    pub fn sync(&self) -> Result<()> {
        self.make_durable(0..u64::MAX, Syncing::All)
    }

    /// Makes durable what was written to the file before, and all that is needed to read it back, as `fdatasync` does: times
    /// may be those of before. Otherwise as [`sync`](Self::sync).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_range(0..u64::MAX)
    }

    /// As [`sync_data`](Self::sync_data), of what was written to `range`: the rest of what is in memory alone stays there.
    pub fn sync_range(&self, range: Range<u64>) -> Result<()> {
        self.make_durable(range, Syncing::Data)
    }

    /// What every write ends with: `range` is durable, if this handle has it so.
    #[inline]
    pub(crate) fn written(&self, range: Range<u64>) -> Result<()> {
        match self.syncing {
            Syncing::Later => Ok(()),
            syncing => self.make_durable(range, syncing),
        }
    }

    /// What every other change of content ends with.
    pub(crate) fn changed(&self) -> Result<()> {
        self.written(0..u64::MAX)
    }

    /// A write that this handle has durable, in the cheapest way that there is; `false` if it is none for that, and nothing was
    /// written.
    #[inline]
    pub(crate) fn overwrite_durably(&self, buf: &[u8], offset: u64) -> Result<bool> {
        if self.syncing != Syncing::Data || !self.data.overwrite_durably(offset, buf)? {
            return Ok(false);
        }
        // The way there may not be in the log yet.
        self.node.volume.engine().force_upto(self.entry().datasync_seq())?;
        Ok(true)
    }

    fn make_durable(&self, range: Range<u64>, syncing: Syncing) -> Result<()> {
        self.write_back(range)?;
        let (volume, entry) = (&self.node.volume, self.entry());
        let upto = match syncing {
            Syncing::All => {
                if volume.engine().is_writable() {
                    file::log_times(volume.engine(), entry)?;
                }
                entry.commit_seq()
            }
            Syncing::Data | Syncing::Later => entry.datasync_seq(),
        };
        volume.sync_upto(upto)
    }

    /// Writes back what is in memory alone, and tells what failed since this handle last asked.
    fn write_back(&self, range: Range<u64>) -> Result<()> {
        let written = self.data.write_back(range);
        if let Some(failure) = self.data.failed_since(&self.told) {
            return Err(failure.into());
        }
        Ok(written?)
    }
}
