//! Durability and its end: flushes, log forces, shutdown.

use super::{Mount, WriteSide};
use crate::error::{Error, Result, ShutdownReason};
use crate::log::CommitSeq;
use blockdev::DeviceError;

impl Mount {
    /// Whether the volume can be changed now: it is open for writing and was not shut down.
    pub fn check_writable(&self) -> Result<()> {
        match self.write_side()?.journal.is_shut_down() {
            Some(why) => Err(Error::Shutdown(why)),
            None if self.has_stopped_writes() => Err(Error::Shutdown(ShutdownReason::Closed)),
            None => Ok(()),
        }
    }

    /// Stops all writing, because what is in memory may no longer agree with the log.
    pub(crate) fn shut_down(&self, why: &Error) {
        let Some(WriteSide { journal, .. }) = &self.write else { return };
        match why {
            Error::Device(error) => journal.shutdown_for(ShutdownReason::Device, error),
            _ => journal.shutdown(ShutdownReason::Corruption),
        }
    }

    /// Makes durable what was written to the device. If that fails, the volume is shut down: the system reports the
    /// failure only once, to whoever asks first, and metadata that were being written back may be lost. If the volume
    /// was shut down or closed, the device is not flushed.
    pub fn flush(&self) -> Result<()> {
        self.flush_by(|| self.device.flush())
    }

    /// Like [`flush`](Self::flush), for a caller that flushes the device on behalf of several.
    pub fn flush_by(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        if self.is_writable() {
            self.check_writable()?;
        }
        match flush() {
            // The volume is being closed, and the device was not flushed.
            Err(DeviceError::Ended) => Err(Error::Shutdown(ShutdownReason::Closed)),
            flushed => self.flushed(flushed),
        }
    }

    /// The result of a device flush. If it failed, the volume is shut down.
    pub(crate) fn flushed(&self, flushed: Result<(), DeviceError>) -> Result<()> {
        Ok(flushed.inspect_err(|error| self.flush_failed(error))?)
    }

    /// Shuts the volume down because a flush of its device has failed.
    pub fn flush_failed(&self, error: &DeviceError) {
        if let Some(write) = &self.write {
            write.journal.shutdown_for(ShutdownReason::Flush, error);
        }
    }

    /// Makes durable what was committed up to the checkpoint `upto`, and what was written to the device before this
    /// call. `flush` flushes the device, perhaps on behalf of several callers. It is not called if the log flushes the
    /// device anyway. On a volume that was shut down this fails, even if there was nothing left to do. On a read-only
    /// volume it flushes the device.
    pub fn sync_upto(&self, upto: CommitSeq, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        let Some(write) = &self.write else { return self.flush_by(flush) };
        self.check_writable()?;
        let journal = &write.journal;
        if journal.is_forced(upto) || !journal.will_flush(upto) {
            self.flush_by(flush)?;
        }
        journal.force(upto)
    }

    /// Like [`sync_upto`](Self::sync_upto), for all that was committed before this call.
    pub fn sync_all(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        let newest = self.write.as_ref().map(|write| write.journal.newest());
        self.sync_upto(newest.unwrap_or_default(), flush)
    }

    /// Like [`sync_upto`](Self::sync_upto), but makes only commits durable, no file content.
    pub fn force_upto(&self, upto: CommitSeq) -> Result<()> {
        self.write_side()?.journal.force(upto)
    }

    /// Makes everything durable that was committed before this call. The times of overwritten files are included only
    /// if they were logged ([`log_all_times`](crate::file::log_all_times)). On a volume that was shut down it fails,
    /// even if there was nothing left to do.
    pub fn sync(&self) -> Result<()> {
        self.check_writable()?;
        self.write_side()?.journal.force_all()
    }

    /// Begins to close the volume, for good: from here on no lookup says where a file's bytes are to be written. A
    /// change of file content that is under way would be stranded, so the caller must hold all of each file meanwhile.
    pub fn stop_writes(&self) {
        if let Some(write) = &self.write {
            write.journal.stop_writes();
        }
    }

    /// Whether lookups no longer say where a file's bytes are to be written, because the volume is being closed or was
    /// shut down. The block maps in memory may then differ from those after a recovery.
    #[inline]
    pub(crate) fn has_stopped_writes(&self) -> bool {
        self.write.as_ref().is_some_and(|write| write.journal.has_stopped_writes())
    }

    /// Makes the journal do now what it otherwise does after half a minute without activity, and waits for it:
    /// [`Journal::pass_idle_time`](crate::log::Journal::pass_idle_time). Tests use it so that they need not wait.
    pub fn pass_idle_time(&self) -> Result<()> {
        self.write_side()?.journal.pass_idle_time()
    }

    /// Makes the journal's thread release the volume for good; it holds it when it covers an idle log. After this the
    /// volume ends where its last handle is dropped. Without it, that thread may end it a moment later.
    pub fn stop_covering(&self) {
        if let Some(write) = &self.write {
            write.journal.stop_covering();
        }
    }
}
