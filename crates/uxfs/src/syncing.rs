//! Making a file durable: when somebody asks, or with each change.
//!
//! Invariants:
//! - data first: they are on the device before the flush begins, and before the log is forced that says where they lie;
//! - the log is forced only if it may lack something of the file other than times: its map, size, a name or an
//!   attribute. An overwrite costs only its data;
//! - the device is flushed once, by the log force or by the caller;
//! - no lock is held while the device flushes, and all waiters share a flush ([`fileio::Flushing`]).

use crate::error::Result;
use crate::file::File;
use std::ops::Range;
use xfs::file;

/// When changes of a file's content through a handle become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncing {
    /// When the file or the volume is synced.
    #[default]
    Later,
    /// When the call returns, with what is needed to read it back, as with `O_DSYNC`.
    Data,
    /// When the call returns, with all metadata, as with `O_SYNC`.
    All,
}

impl File {
    /// The same file, with changes of content through this handle durable as `syncing` says. If a change cannot be made
    /// durable, it is still made.
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

    /// Makes everything durable that was written and changed of the file before, as `fsync` does. Reports, once,
    /// failures of write-back since the last call.
    pub fn sync(&self) -> Result<()> {
        self.make_durable(0..u64::MAX, Syncing::All)
    }

    /// Makes the file's data durable, and what is needed to read them back, as `fdatasync` does. Times may not be
    /// included. Otherwise as [`sync`](Self::sync).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_range(0..u64::MAX)
    }

    /// As [`sync_data`](Self::sync_data), for `range` alone: other dirty pages stay in memory.
    pub fn sync_range(&self, range: Range<u64>) -> Result<()> {
        self.make_durable(range, Syncing::Data)
    }

    /// The end of every write: makes `range` durable, if this handle asks for it.
    #[inline]
    pub(crate) fn written(&self, range: Range<u64>) -> Result<()> {
        match self.syncing {
            Syncing::Later => Ok(()),
            syncing => self.make_durable(range, syncing),
        }
    }

    /// The end of every other change of content.
    pub(crate) fn changed(&self) -> Result<()> {
        self.written(0..u64::MAX)
    }

    /// A durable write in the cheapest way. `false`: that is not possible, and nothing was written.
    #[inline]
    pub(crate) fn overwrite_durably(&self, buf: &[u8], offset: u64) -> Result<bool> {
        if self.syncing != Syncing::Data || !self.data.overwrite_durably(offset, buf)? {
            return Ok(false);
        }
        // The log may not have the mapping yet.
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

    /// Writes dirty pages back, and reports failures since the last call.
    fn write_back(&self, range: Range<u64>) -> Result<()> {
        let written = self.data.write_back(range);
        if let Some(failure) = self.data.failed_since(&self.told) {
            return Err(failure.into());
        }
        Ok(written?)
    }
}
