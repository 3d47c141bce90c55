//! One image after a power cut: recovered, judged, and taken back.
//!
//! Invariant: whatever comes of it, the stage is left as the image was before its recovery.

use super::super::behind::the_kernel_goes_on;
use super::super::durable::{self, Durable};
use super::super::own::Files;
use super::super::promised::Promised;
use super::super::{growth, judge};
use super::fate::Choice;
use crate::record::Record;
use crate::record_sizes::{RecordSizes, log_of, superblock};
use crate::sandbox::{copy_sparse, repair_finds_nothing};
use anyhow::{Context, Error, Result, ensure};
use blockdev::{BlockDevice, Fate, FileOptions, Recorder, Recording, Rewind, WriteRecord};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uxfs::{OpenOptions, Volume};

/// A file in memory on which images are made, and which other programs see.
#[derive(Debug)]
pub struct Stage {
    device: Arc<Rewind>,
    path: PathBuf,
    sector: u32,
    log: Range<u64>,
}

/// An image that was right.
#[derive(Debug)]
pub struct Recovered {
    /// What its recovery wrote.
    pub recording: Recording,
    /// How many sectors of files were judged that were never synced.
    pub sectors: u64,
}

/// Somewhere the kernel may mount a copy of an image.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    pub copy: &'a Path,
    pub mnt: &'a Path,
}

/// Other views of an image.
struct Theirs {
    /// What the kernel makes of it.
    recovered: Vec<Record>,
    /// What uxfs reads without a write to it.
    replayed: Vec<Record>,
    /// The unfinished intents of its log.
    promised: Promised,
}

impl Stage {
    /// The stage that is the file at `path`.
    pub fn new(path: &Path, sector: u32) -> Result<Self> {
        let device = FileOptions::in_memory().write(true).sector_size(sector).open(path)?;
        let log = log_of(&superblock(&device)?);
        Ok(Self { device: Arc::new(Rewind::new(Arc::new(device))), path: path.to_owned(), sector, log })
    }

    /// Chooses what becomes of one write after the other of those that a cut leaves in doubt.
    pub fn chooser(&self, choice: Choice) -> impl FnMut(&WriteRecord) -> Fate {
        choice.chooser(self.sector, self.log.clone())
    }

    /// The device.
    pub fn device(&self) -> &Arc<Rewind> {
        &self.device
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has uxfs recover what is on the stage, and judges that as a crash at `cut` of a history.
    pub fn try_image(&self, threads: &[Durable], cut: u64, beside: Option<Beside<'_>>) -> Result<Recovered> {
        let theirs = beside.map(|beside| self.by_kernel(beside)).transpose()?;
        self.device.mark();
        let tried = self.recovered().and_then(|(found, recording)| {
            if let Some(theirs) = &theirs {
                let Theirs { recovered, replayed, promised } = theirs;
                promised.same("what uxfs recovered", recovered, found.clone())?;
                let what = "what uxfs reads without recovery on the device";
                // Inodes without a name may share blocks until recovery frees them.
                let by_place = |records: &[Record]| records.iter().map(Record::by_place).collect::<Vec<_>>();
                promised.same(what, &by_place(recovered), by_place(replayed))?;
            }
            let files = Files::on(self.device.clone(), self.sector)?;
            durable::judge_files(threads, cut, &found, Some(&files)).map_err(Error::msg)?;
            self.grows()?;
            Ok(Recovered { recording, sectors: files.judged() })
        });
        self.device.rewind()?;
        tried
    }

    fn by_kernel(&self, beside: Beside<'_>) -> Result<Theirs> {
        copy_sparse(&self.path, beside.copy)?;
        the_kernel_goes_on(beside.copy, beside.mnt)?;
        copy_sparse(&self.path, beside.copy)?;
        let recorder = Arc::new(Recorder::new(self.device.clone()));
        let replayed = judge::by_uxfs_on(recorder.clone()).context("uxfs, reading")?;
        ensure!(recorder.recording().writes().is_empty(), "uxfs, open for reading, wrote to the device");
        let promised = Promised::of(beside.copy, &replayed)?;
        let recovered = judge::by_kernel_after_recovery(beside.copy, beside.mnt)?;
        Ok(Theirs { recovered, replayed, promised })
    }

    /// Makes what was recovered longer.
    fn grows(&self) -> Result<()> {
        let volume = Volume::open_device(self.device.clone(), &OpenOptions::new().writable(true))?;
        growth::of_all(&volume).context("growing what was recovered")?;
        volume.close().context("closing what grew")?;
        drop(volume);
        judge::checker_finds_nothing(self.device.clone()).context("of what grew")
    }

    /// Recovers, and looks at what is there then.
    fn recovered(&self) -> Result<(Vec<Record>, Recording)> {
        let sizes = Arc::new(RecordSizes::over(self.device.clone())?);
        let recorder = Arc::new(Recorder::new(sizes.clone()));
        let device: Arc<dyn BlockDevice> = recorder.clone();
        let volume = Volume::open_device(device, &OpenOptions::new().writable(true)).context("recovery")?;
        volume.close().context("closing after the recovery")?;
        drop(volume);
        sizes.verdict()?;
        let recording = recorder.recording();
        judge::checker_finds_nothing(self.device.clone())?;
        repair_finds_nothing(&self.path)?;
        let found = judge::by_uxfs_on(self.device.clone())?;
        Ok((found, recording))
    }
}
