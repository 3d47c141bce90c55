//! The volume: opened, with what its log holds replayed first, and closed.
//!
//! It stands on all others. Opening reads the superblock and a few blocks of the log, however large the volume is;
//! everything else is read when it is first needed. What is done to an open volume is said of its [`Mount`], to which a
//! volume derefs.

mod info;

pub use info::{VolumeInfo, VolumeStat};

pub use crate::inode::{ForkKind, Inode, InodeEntry, InodeHandle};
pub use crate::mount::OpenOptions;

use crate::alter;
use crate::error::{Error, Result, ShutdownReason};
use crate::file;
use crate::inactive::{self, gives_room};
use crate::log::check_headers;
use crate::mount::{Mount, check_volume, read_superblock};
use crate::recovery::{self, clean};
use crate::trans;
use blockdev::{BlockDevice, Claim};
use std::ops::Deref;
use std::sync::Arc;
use xfs_format::geometry::Geometry;

/// An open volume. Shared by all threads; every call may be made from any of them.
#[derive(Debug)]
pub struct Volume {
    mount: Arc<Mount>,
    log_clean: bool,
    /// Whether the copies of the superblock had to be made to follow it when the volume was opened.
    copies_settled: bool,
    /// What recovery found and did when the volume was opened.
    recovery: Option<recovery::Report>,
}

impl Deref for Volume {
    type Target = Arc<Mount>;

    fn deref(&self) -> &Arc<Mount> {
        &self.mount
    }
}

impl Volume {
    /// Opens the volume on `device`: reads the superblock and nothing else that grows with the volume. A log that is
    /// dirty is replayed: for reading in memory alone, for writing on the device.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_claimed(device, options, None)
    }

    /// As [`open`](Self::open), on a device that the caller may have claimed before: for as long as it keeps that, nobody
    /// else gets in, be the volume closed.
    pub fn open_claimed(
        device: Arc<dyn BlockDevice>,
        options: &OpenOptions,
        claim: Option<Arc<Claim>>,
    ) -> Result<Arc<Self>> {
        let mut device = device;
        // Before the first look: another writer who closes now would leave us with its old counters.
        let claim = match claim {
            None if options.writable => Some(Arc::new(Claim::new(&*device)?)),
            claim => claim,
        };
        let mut superblock = read_superblock(&*device)?;
        check_volume(&*device, &superblock, options)?;
        let ends = clean::log_ends(&*device, &superblock);
        let log_clean = match &ends {
            Ok(ends) => ends.clean,
            // Whoever wants no replay wants to read what is there, whatever the log looks like.
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
                    // Files that the unfinished work is about would be neither as they were nor as they were to be.
                    let finished =
                        recovery::finish_in_memory(&device, |scratch| Self::finish(scratch, options));
                    finished.unwrap_or_else(|error| replayed.into_device_despite(&error))
                } else {
                    replayed.into_device()
                };
                device = patched;
                // With the counters of what was finished.
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
        let mount = Mount::open(device, superblock, ends, options, claim, gives_room)?;
        let mut copies_settled = false;
        if mount.is_writable() {
            let journal = mount.journal()?;
            let this = Arc::downgrade(&mount);
            journal.set_cover(move || {
                // What fails here is tried again when the journal has been idle once more.
                let _ = this.upgrade().map(|mount| trans::superblock::cover(&mount));
            });
            if let Some(recovered) = recovered {
                let owed = recovered.adopt(journal, mount.geometry())?;
                report = Some(owed.finish(&mount)?);
            }
            recovery::free_staged(&mount)?;
            // A kernel that recovered a growth or a label that was cut short leaves the copies as they were.
            copies_settled = alter::settle_copies(&mount)?;
        }
        Ok(Arc::new(Self { mount, log_clean, copies_settled, recovery: report }))
    }

    /// Opens a volume for writing, which carries out what its log promises, and closes it. Gives what was done.
    fn finish(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Option<recovery::Report>> {
        let volume = Self::open(device, &OpenOptions { writable: true, ..options.clone() })?;
        volume.close()?;
        Ok(volume.recovery().cloned())
    }

    /// Whether nothing in the log waited to be replayed when the volume was opened.
    pub fn log_is_clean(&self) -> bool {
        self.log_clean
    }

    /// What recovery found and did when the volume was opened. `None`: there was nothing to do.
    pub fn recovery(&self) -> Option<&recovery::Report> {
        self.recovery.as_ref()
    }

    /// Whether the copies of the superblock lagged behind it when the volume was opened, and were made to follow: a change of
    /// its size, label, UUID or features had been cut short.
    pub fn copies_settled(&self) -> bool {
        self.copies_settled
    }

    /// Writes everything back and leaves a clean log. Files may not be in use any more: later changes fail. A volume
    /// that is dropped without this is as after a crash: its log has to be replayed.
    ///
    /// If an inode without a name cannot be freed, or a time not be told, because something is damaged, all else is written
    /// back, the log is clean, and the damage is what this fails with: `xfs_repair` finds the inode on its list.
    ///
    /// If it fails otherwise, the volume is shut down, and its log is left to be recovered, with all that was committed in it
    /// unless the device refused that. The first error says why; all that is asked for later, this again too, fails with
    /// [`Error::Shutdown`]. However it ends, nothing is written any more when it returns.
    pub fn close(&self) -> Result<()> {
        if self.is_writable() {
            self.write_back()?;
            self.give_up_claim();
        }
        Ok(())
    }

    /// Shuts the volume down instead of closing it, as not all could be written that was to be: what was committed is in the
    /// log.
    pub fn close_in_vain(&self) -> Result<()> {
        let write = self.write_side()?;
        {
            // Growth and labels write beside the journal: they end before this.
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
        // Growth and labels write beside the journal. They end before this, or find the volume closed.
        let _alone = write.altering.lock();
        // What fails here is in the way of all else, too: it says why.
        let given = file::give_back_all_copies(self);
        debug_assert!(
            given.is_err() || write.space.promises_nothing(),
            "all that was promised has come or never will"
        );
        // Who is in the middle of a change ends it, and nobody begins one: from here on the counters stand still.
        let frozen = match journal.freeze() {
            Ok(frozen) => frozen,
            Err(stopped) => {
                journal.halt(ShutdownReason::NotClosed);
                return Err(given.err().unwrap_or(stopped));
            }
        };
        let (times, freed) = (file::log_all_times(self), inactive::inactivate_all(self));
        file::end_promises(self);
        let done = given.and(times).and(freed);
        if self.log_clean && frozen.is_untouched() && done.is_ok() {
            // What nobody has changed stays as it is, to the byte.
            let flushed = self.flushed(self.device().flush());
            frozen.leave();
            return flushed;
        }
        let (unlinked, done) = match done {
            // It stays on its list, which is for `xfs_repair`: recovery would fail on it as well, and nothing else is to
            // depend on the log.
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
