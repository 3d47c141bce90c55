//! Checking a volume: everything is walked, nothing is written, and what is wrong comes back as data.

use crate::error::{ErrorKind, Result};
use crate::options::OpenOptions;
use crate::recovery::Recovery;
use crate::volume;
use blockdev::{BlockDevice, FileOptions};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use xfs::check::{self as engine, CheckOptions};

/// One thing that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The allocation group that it is in, where that is known.
    pub group: Option<u32>,
    /// The block of that group.
    pub block: Option<u32>,
    /// The inode that it belongs to.
    pub inode: Option<u64>,
    /// The structure, as the format calls it.
    pub structure: &'static str,
    /// The check that failed.
    pub what: &'static str,
    /// What was found, where that is a number.
    pub found: Option<u64>,
    /// What would have been right, where that is one number.
    pub expected: Option<u64>,
    /// The name of a file or of an attribute that it is about, or the id that a dquot is of.
    pub name: Option<Vec<u8>>,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a check found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckReport {
    /// What is wrong: as many findings as are kept.
    pub findings: Vec<Finding>,
    /// How many findings there are, kept or not.
    pub total: u64,
    /// Whether the check gave up because there were too many findings.
    pub stopped: bool,
    /// Whether the log is clean. If not, and [`recovery`](Self::recovery) is `None`, what is in it was left out.
    pub log_clean: bool,
    /// What was replayed from a dirty log in memory: the volume was checked as it will be after recovery. Unfinished
    /// intents were not carried out, and hide the owners of some blocks.
    pub recovery: Option<Recovery>,
    /// Whether the owners of all blocks are known. If not, blocks without an owner are not reported.
    pub owners_known: bool,
    /// Whether every directory could be read. If not, link counts are not judged.
    pub names_known: bool,
    /// Allocation groups that were checked.
    pub groups: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names in directories.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Extended attributes.
    pub attributes: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.total == 0
    }
}

/// Checks the volume in an image file or on a block device: walks all metadata and cross-checks them. The volume
/// is not written, and should not be in use.
///
/// A dirty log is replayed in memory first, unless `options` say [`norecovery`](OpenOptions::norecovery).
///
/// An error means that it cannot be checked: it is no volume or not supported, or its dirty log cannot be
/// replayed. Damage is not an error: it is in the report.
///
/// ```no_run
/// # fn main() -> Result<(), uxfs::Error> {
/// let report = uxfs::check("disk.img", &uxfs::OpenOptions::new())?;
/// report.findings.iter().for_each(|finding| println!("{finding}"));
/// # Ok(())
/// # }
/// ```
pub fn check(image: impl AsRef<Path>, options: &OpenOptions) -> Result<CheckReport> {
    let image = image.as_ref();
    // Metadata lie close together and are read in small pieces: the host's page cache helps.
    let how = FileOptions::new().keep_writers_out(true).direct(false);
    match check_device(Arc::new(how.open(image)?), options) {
        Err(error) if error.kind() == ErrorKind::SectorSize && image.is_file() => {
            let file = how.clone().sector_size(volume::SECTOR_BYTES_MIN).open(image)?;
            check_device(Arc::new(file), options)
        }
        other => other,
    }
}

/// Checks the volume on any device, of which `options` may choose a part; see [`check()`].
pub fn check_device(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<CheckReport> {
    let device = volume::part(device, options)?;
    let how = CheckOptions { norecovery: options.engine.norecovery, ..CheckOptions::default() };
    let report =
        engine::check(Arc::clone(&device), &how).map_err(|error| volume::explain(error, &*device))?;
    Ok(CheckReport {
        findings: report.findings().iter().map(finding).collect(),
        total: report.total(),
        stopped: report.stopped(),
        log_clean: report.log_clean,
        recovery: report.replayed.as_ref().map(Recovery::from),
        owners_known: report.owners_known,
        names_known: report.names_known,
        groups: report.counts.groups,
        inodes: report.counts.inodes,
        directories: report.counts.directories,
        names: report.counts.names,
        extents: report.counts.extents,
        attributes: report.counts.attributes,
    })
}

fn finding(from: &engine::Finding) -> Finding {
    Finding {
        group: from.place.ag.map(|ag| ag.0),
        block: from.place.block.map(|block| block.0),
        inode: from.place.inode.map(|inode| inode.0),
        structure: from.structure(),
        what: from.what(),
        found: from.problem.found,
        expected: from.problem.expected,
        name: from.name.as_deref().map(<[u8]>::to_vec),
        text: from.to_string(),
    }
}
