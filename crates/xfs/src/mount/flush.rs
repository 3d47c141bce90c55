//! What makes changes durable, and what ends them: flushes, log forces, shutdown.

use super::{Mount, WriteSide};
use crate::error::{Error, Result, ShutdownReason};
use crate::log::CommitSeq;
use blockdev::DeviceError;

impl Mount {
    /// Whether something can be changed now: the volume is open for writing, and was not shut down.
    pub fn check_writable(&self) -> Result<()> {
        match self.write_side()?.journal.is_shut_down() {
            Some(why) => Err(Error::Shutdown(why)),
            None if self.has_stopped_writes() => Err(Error::Shutdown(ShutdownReason::Closed)),
            None => Ok(()),
        }
    }

    /// Stops all writing, as what is in memory can no longer be trusted to agree with what is in the log.
    pub(crate) fn shut_down(&self, why: &Error) {
        let Some(WriteSide { journal, .. }) = &self.write else { return };
        match why {
            Error::Device(error) => journal.shutdown_for(ShutdownReason::Device, error),
            _ => journal.shutdown(ShutdownReason::Corruption),
        }
    }

    /// Makes durable what was written to the device. If that fails, the volume is shut down: the system says so once,
    /// whoever asks, and metadata that were on their way to their places may be among what was lost. One that was shut down,
    /// or closed, leaves its device alone.
    pub fn flush(&self) -> Result<()> {
        self.flush_by(|| self.device.flush())
    }

    /// As [`flush`](Self::flush), by whoever flushes the device for several at once.
    pub fn flush_by(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        if self.is_writable() {
            self.check_writable()?;
        }
        match flush() {
            // The volume is being closed, and the device was not asked.
            Err(DeviceError::Ended) => Err(Error::Shutdown(ShutdownReason::Closed)),
            flushed => self.flushed(flushed),
        }
    }

    /// What came of a flush of the device; if that failed, the volume is shut down.
    pub(crate) fn flushed(&self, flushed: Result<(), DeviceError>) -> Result<()> {
        Ok(flushed.inspect_err(|error| self.flush_failed(error))?)
    }

    /// Shuts the volume down, as a flush of its device has failed.
    pub fn flush_failed(&self, error: &DeviceError) {
        if let Some(write) = &self.write {
            write.journal.shutdown_for(ShutdownReason::Flush, error);
        }
    }

    /// Makes durable what was committed up to the checkpoint of `upto`, and what was written to the device before this call.
    /// `flush` is for whoever flushes the device for several at once. Where the log flushes the device on its way it is not
    /// called. On a volume that was shut down this fails, even if there was nothing left to do; of one that is only read, the
    /// device is flushed.
    pub fn sync_upto(&self, upto: CommitSeq, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        let Some(write) = &self.write else { return self.flush_by(flush) };
        self.check_writable()?;
        let journal = &write.journal;
        if journal.is_forced(upto) || !journal.will_flush(upto) {
            self.flush_by(flush)?;
        }
        journal.force(upto)
    }

    /// As [`sync_upto`](Self::sync_upto), of all that was committed before this call.
    pub fn sync_all(&self, flush: impl FnOnce() -> Result<(), DeviceError>) -> Result<()> {
        let newest = self.write.as_ref().map(|write| write.journal.newest());
        self.sync_upto(newest.unwrap_or_default(), flush)
    }

    /// As [`sync_upto`](Self::sync_upto), where nothing but what was committed has to be durable.
    pub fn force_upto(&self, upto: CommitSeq) -> Result<()> {
        self.write_side()?.journal.force(upto)
    }

    /// Makes everything durable that was committed before this call; when files were written over only if that was logged
    /// ([`log_all_times`](crate::file::log_all_times)). On a volume that was shut down it fails, even if
    /// there was nothing left to do.
    pub fn sync(&self) -> Result<()> {
        self.check_writable()?;
        self.write_side()?.journal.force_all()
    }

    /// Begins to close the volume, for good: from here on nobody finds where a file's bytes are to be written. Who is in
    /// the middle of a change of them would be left there: whoever knows of the files holds all of each meanwhile.
    pub fn stop_writes(&self) {
        if let Some(write) = &self.write {
            write.journal.stop_writes();
        }
    }

    /// Whether nobody may find any more where a file's bytes are to be written: the volume is being closed, or was shut down.
    /// Where blocks lie in memory is then not where they will lie behind a recovery.
    #[inline]
    pub(crate) fn has_stopped_writes(&self) -> bool {
        self.write.as_ref().is_some_and(|write| write.journal.has_stopped_writes())
    }

    /// Has the journal do at once, and waits for it, what it does by itself when nothing has happened for half a minute:
    /// [`Journal::pass_idle_time`](crate::log::Journal::pass_idle_time). So that tests need not wait.
    pub fn pass_idle_time(&self) -> Result<()> {
        self.write_side()?.journal.pass_idle_time()
    }

    /// Has the journal's thread let go of the volume, which covers its log when it is idle, and take it no more. Whoever drops
    /// the last handle behind this ends the volume there; without it, that thread may, a moment later.
    pub fn stop_covering(&self) {
        if let Some(write) = &self.write {
            write.journal.stop_covering();
        }
    }
}
