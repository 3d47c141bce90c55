//! Opens a volume, replaying its log first, and closes it.
//!
//! This is the top module. Opening reads the superblock and a few blocks of the log, however large the volume is;
//! everything else is read when it is first needed. Operations on an open volume are methods of its [`Mount`], to which
//! a volume derefs.

mod info;

pub use info::{VolumeInfo, VolumeStat};

pub use crate::inode::{ForkKind, Inode, InodeEntry, InodeHandle};
pub use crate::mount::OpenOptions;

use crate::alloc::reserve_pool;
use crate::alter;
use crate::error::{Error, Result, ShutdownReason};
use crate::file;
use crate::inactive::{self, block_gc};
use crate::log::check_headers;
use crate::mount::{Mount, check_volume, read_superblock};
use crate::recovery::{self, log_ends};
use crate::trans;
use blockdev::{BlockDevice, Claim};
use std::ops::Deref;
use std::sync::Arc;
use xfs_format::geometry::Geometry;

/// An open volume. All threads share it, and any thread may make any call.
#[derive(Debug)]
pub struct Volume {
    mount: Arc<Mount>,
    log_clean: bool,
    /// Whether the copies of the superblock were stale when the volume was opened and had to be updated.
    copies_settled: bool,
    /// What recovery found and did at open.
    recovery: Option<recovery::Report>,
}

impl Deref for Volume {
    type Target = Arc<Mount>;

    fn deref(&self) -> &Arc<Mount> {
        &self.mount
    }
}

impl Volume {
    /// Opens the volume on `device`. Reads the superblock and nothing else that grows with the volume. A dirty log is
    /// replayed: in memory if the volume is opened for reading, on the device if for writing.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_claimed(device, options, None)
    }

    /// Like [`open`](Self::open), on a device that the caller may have claimed already. As long as the caller keeps the
    /// claim, nobody else gets in, even after the volume is closed.
    pub fn open_claimed(
        device: Arc<dyn BlockDevice>,
        options: &OpenOptions,
        claim: Option<Arc<Claim>>,
    ) -> Result<Arc<Self>> {
        let mut device = device;
        // Claim before the first read: another writer that closes now would leave us with its old counters.
        let claim = match claim {
            None if options.writable => Some(Arc::new(Claim::new(&*device)?)),
            claim => claim,
        };
        let mut superblock = read_superblock(&*device)?;
        check_volume(&*device, &superblock, options)?;
        let ends = log_ends::log_ends(&*device, &superblock);
        let log_clean = match &ends {
            Ok(ends) => ends.clean,
            // With `norecovery` the caller wants to read what is there, whatever the log looks like.
            Err(_) if options.norecovery => false,
            Err(_) => return ends.map(|_| unreachable!("an error has no value")),
        };
        if let (Ok(ends), true, true) = (&ends, log_clean, options.writable) {
            check_headers(&*device, &Geometry::from_superblock(&superblock), ends.head_lsn())?;
            alter::finish_uuid(&*device, &superblock, ends)?;
        }
        let (mut report, mut recovered) = (None, None);
        if let (Ok(ends), false) = (&ends, log_clean || options.norecovery) {
            let replayed = recovery::replay(&device, &superblock, ends)?;
            superblock = *replayed.superblock();
            check_volume(&*device, &superblock, options)?;
            if options.writable {
                replayed.check_writable()?;
                recovered = Some(replayed.write()?);
            } else {
                let (patched, what) = if replayed.owes() {
                    // Otherwise files with unfinished work would be in a state between before and after.
                    let finished =
                        recovery::finish_in_memory(&device, |scratch| Self::finish(scratch, options));
                    finished.unwrap_or_else(|error| replayed.into_device_despite(&error))
                } else {
                    replayed.into_device()
                };
                device = patched;
                // Read it again: it has the counters after the unfinished work.
                superblock = read_superblock(&*device)?;
                report = Some(what);
            }
        }
        let ends = match ends {
            Ok(ends) if options.writable => {
                Some(recovered.as_ref().map_or(ends, |recovered| recovered.ends(ends)))
            }
            _ => None,
        };
        let mount = Mount::open(device, superblock, ends, options, claim, block_gc)?;
        let mut copies_settled = false;
        if mount.is_writable() {
            let journal = mount.journal()?;
            let this = Arc::downgrade(&mount);
            journal.set_cover(move || {
                // A failure is retried the next time the journal is idle.
                let _ = this.upgrade().map(|mount| trans::superblock::cover(&mount));
            });
            if let Some(recovered) = recovered {
                let owed = recovered.adopt(journal, mount.geometry())?;
                report = Some(owed.finish(&mount)?);
            }
            recovery::free_staged(&mount)?;
            // Not before: recovery may need all that is free.
            mount.write_side()?.counters.keep_reserve_pool(reserve_pool(mount.geometry().data_blocks()));
            // A kernel that recovered an interrupted growth or label change leaves the copies as they were.
            copies_settled = alter::settle_copies(&mount)?;
        }
        Ok(Arc::new(Self { mount, log_clean, copies_settled, recovery: report }))
    }

    /// Opens a volume for writing, which finishes what its log promises, and closes it. Returns the recovery report.
    fn finish(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Option<recovery::Report>> {
        let volume = Self::open(device, &OpenOptions { writable: true, ..options.clone() })?;
        volume.close()?;
        Ok(volume.recovery().cloned())
    }

    /// Whether nothing in the log waited to be replayed when the volume was opened.
    pub fn log_is_clean(&self) -> bool {
        self.log_clean
    }

    /// What recovery found and did at open. `None` if there was nothing to do.
    pub fn recovery(&self) -> Option<&recovery::Report> {
        self.recovery.as_ref()
    }

    /// Whether the copies of the superblock were stale when the volume was opened and were updated, because a change of
    /// size, label, UUID or features had been interrupted.
    pub fn copies_settled(&self) -> bool {
        self.copies_settled
    }

    /// Whether a crash or a repair had left something behind the end of the log, which was cleared when the volume was
    /// opened for writing.
    pub fn log_traces_cleared(&self) -> bool {
        self.mount.journal().is_ok_and(|journal| journal.had_traces())
    }

    /// Writes everything back and leaves a clean log. No file may be in use: later changes fail. A volume that is
    /// dropped without this is as after a crash: its log has to be replayed.
    ///
    /// If damage keeps an unlinked inode from being freed, or a time from being logged, everything else is written
    /// back, the log is clean, and this fails with the damage. `xfs_repair` finds the inode on its unlinked list.
    ///
    /// If it fails otherwise, the volume is shut down and its log is left for recovery. The log has all that was
    /// committed, unless the device refused it. The first error says why; every later call, including this one, fails
    /// with [`Error::Shutdown`]. In every case nothing is written any more once this returns.
    pub fn close(&self) -> Result<()> {
        if self.is_writable() {
            self.write_back()?;
            self.give_up_claim();
        }
        Ok(())
    }

    /// Shuts the volume down instead of closing it, because not everything could be written. What was committed is in
    /// the log.
    pub fn shut_down_unclosed(&self) -> Result<()> {
        let write = self.write_side()?;
        {
            // Growth and label changes write outside of the journal. They end before this.
            let _alone = write.altering.lock();
            match write.journal.freeze() {
                Ok(frozen) => frozen.give_up(),
                Err(_) => write.journal.halt(ShutdownReason::NotClosed),
            }
        }
        self.give_up_claim();
        Ok(())
    }

    fn write_back(&self) -> Result<()> {
        let write = self.write_side()?;
        let journal = &write.journal;
        // Growth and label changes write outside of the journal. They end before this, or find the volume closed.
        let _alone = write.altering.lock();
        // A failure here would stop everything below as well, so this error is the one to report.
        let given = file::cancel_all_cow(self);
        debug_assert!(
            given.is_err() || write.space.promises_nothing(),
            "all that was promised has come or never will"
        );
        // Transactions that are open end, and no new one begins. From here on the counters do not change.
        let frozen = match journal.freeze() {
            Ok(frozen) => frozen,
            Err(stopped) => {
                journal.halt(ShutdownReason::NotClosed);
                return Err(given.err().unwrap_or(stopped));
            }
        };
        let (times, freed) = (file::log_all_times(self), inactive::inactivate_all(self));
        file::end_delalloc(self);
        let done = given.and(times).and(freed);
        if self.log_clean && frozen.is_untouched() && done.is_ok() {
            // A volume that nobody has changed stays as it is, to the byte.
            let flushed = self.flushed(self.device().flush());
            frozen.leave();
            return flushed;
        }
        let (unlinked, done) = match done {
            // The inode stays on its unlinked list for `xfs_repair`. Recovery would fail on it as well, and nothing
            // else may depend on the log.
            Err(error @ Error::Corrupt { .. }) => (Err(error), Ok(())),
            done => (Ok(()), done),
        };
        match done.and_then(|()| trans::superblock::write_counters(self, &frozen)) {
            Ok(()) => frozen.close().and(unlinked),
            Err(error) => {
                frozen.give_up();
                Err(unlinked.err().unwrap_or(error))
            }
        }
    }
}
