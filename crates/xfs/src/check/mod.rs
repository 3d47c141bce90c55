//! The checker: walks all metadata of a volume, writes nothing, and reports what is wrong.
//!
//! There is one file per structure. The order:
//! 1. each group: the copies of the superblock, the headers, the free space, inode, refcount and rmap trees
//!    (`superblock`, `group`, `free_space`, `inode_trees`, `refcount`, `rmap`);
//! 2. each inode: its core, the maps of its forks, symbolic links and attributes (`inode`, `unused`, `map`, `symlink`,
//!    `attr`), and the unlinked lists (`unlinked`);
//! 3. each directory: its blocks and indexes, and the inodes of its names (`dir`, `links`);
//! 4. quota: the dquot files and their counts (`quota`);
//! 5. what must agree in the end: owners of blocks, refcounts, rmap trees, link counts, the counters of the superblock
//!    (`owners`, `links`, `totals`).
//!
//! Invariants: work and memory grow with the existing metadata, not with the size of the volume. Nothing on the device
//! makes it panic, loop or recurse without bound. A finding is data, and consequences of damage that was already
//! reported are left out (such as a block without an owner because its owner cannot be read). The checker knows the
//! format and the device, and nothing of the engine's caches.

mod attr;
mod da_tree;
mod dir;
mod free_space;
mod group;
mod inode;
mod inode_table;
mod inode_trees;
mod links;
mod map;
mod owners;
mod parents;
mod quota;
mod reader;
mod refcount;
mod report;
mod rmap;
mod superblock;
mod symlink;
mod totals;
mod tree;
mod unlinked;
mod unused;

pub use report::{Counts, Finding, FindingPlace, Report};

use crate::error::{Error, Result};
use crate::mount::{check_device, read_superblock, refuse_unhandled};
use crate::recovery::{self, log_ends};
use blockdev::BlockDevice;
use inode_table::InodeTable;
use links::Links;
use owners::Owners;
use parents::Parents;
use quota::Quota;
use reader::Reader;
use std::sync::Arc;
use totals::Totals;
use xfs_format::geometry::Geometry;
use xfs_format::log::LogEnds;
use xfs_format::superblock::Superblock;
use xfs_format::types::AgNumber;

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Check a volume with a dirty log as it is, without replay. Then changes in the log are missing, and many findings
    /// may be due only to that.
    pub norecovery: bool,
    /// How many findings to keep. The others are counted.
    pub keep: usize,
    /// The number of findings at which to give up.
    pub stop: u64,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { norecovery: false, keep: 10_000, stop: 100_000 }
    }
}

/// Checks the volume on a device. A dirty log is replayed in memory first, as for reading, so the volume is checked as
/// recovery will make it. `Err` if it cannot be checked, because the device fails, has no volume, or one with an
/// unsupported feature or with a dirty log that cannot be replayed.
pub fn check(device: Arc<dyn BlockDevice>, options: &CheckOptions) -> Result<Report> {
    let mut report = Report::new(options.keep, options.stop);
    let (mut device, mut log_head) = (device, None);
    let mut superblock = match read_superblock(&*device) {
        Ok(superblock) => superblock,
        Err(Error::Corrupt { problem, .. }) => {
            report.add(FindingPlace::VOLUME, problem);
            (report.owners_known, report.names_known) = (false, false);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    refuse_unhandled(&superblock)?;
    let unknown = superblock.uncheckable();
    if !unknown.is_empty() {
        return Err(Error::UnsupportedFeature(unknown.join(", ")));
    }
    check_device(&*device, &Geometry::from_superblock(&superblock))?;
    match look_at_log(&mut device, &mut superblock, options, &mut report) {
        Ok(ends) => log_head = Some(ends.head_lsn()),
        // Nothing is replayed then: the volume is checked as it is.
        Err(Error::Corrupt { problem, .. }) => {
            report.log_clean = false;
            report.add(FindingPlace::VOLUME, problem);
        }
        Err(error) => return Err(error),
    }
    // The volume may have grown in the log.
    let geometry = Geometry::from_superblock(&superblock);
    let mut check = Check {
        owners: Owners::new(&geometry),
        inodes: InodeTable::new(&geometry),
        links: Links::default(),
        parents: Parents::new(&superblock),
        quota: Quota::new(&superblock),
        totals: Totals::default(),
        reader: Reader::new(device, geometry, log_head),
        superblock: &superblock,
        report,
    };
    check.run()?;
    Ok(check.report)
}

/// Finds the log's ends. A dirty log is replayed; then `device` becomes a layer in memory.
fn look_at_log(
    device: &mut Arc<dyn BlockDevice>,
    superblock: &mut Superblock,
    options: &CheckOptions,
    report: &mut Report,
) -> Result<LogEnds> {
    let ends = log_ends::log_ends(&**device, superblock)?;
    report.log_clean = ends.clean;
    if ends.clean || options.norecovery {
        return Ok(ends);
    }
    if !superblock.is_v5() {
        return Err(Error::DirtyLog);
    }
    let replayed = recovery::replay(device, superblock, &ends)?;
    *superblock = *replayed.superblock();
    refuse_unhandled(superblock)?;
    let (patched, what) = replayed.into_device();
    *device = patched;
    // Blocks that were on their way from one owner to another have none, or two.
    report.owners_known &= what.unfinished.is_empty();
    report.replayed = Some(what);
    Ok(ends)
}

/// A check in progress.
struct Check<'a> {
    reader: Reader,
    superblock: &'a Superblock,
    owners: Owners,
    inodes: InodeTable,
    links: Links,
    parents: Parents,
    quota: Quota,
    totals: Totals,
    report: Report,
}

impl Check<'_> {
    fn geometry(&self) -> &Geometry {
        self.reader.geometry()
    }

    fn groups(&self) -> impl Iterator<Item = AgNumber> + use<> {
        (0..self.geometry().ag_count()).map(AgNumber)
    }

    fn run(&mut self) -> Result<()> {
        superblock::check_primary(self)?;
        for ag in self.groups() {
            if self.report.stopped() {
                return Ok(());
            }
            let before = self.report.total();
            group::check(self, ag)?;
            if self.report.total() == before {
                self.settle(ag)?;
            }
        }
        inode::check_all(self)?;
        unlinked::check(self)?;
        quota::check_all(self)?;
        dir::check_all(self)?;
        if self.report.stopped() {
            return Ok(());
        }
        links::check(self);
        parents::check(self);
        totals::check(self);
        if self.report.owners_known {
            for ag in self.groups() {
                if self.owners.is_settled(ag) {
                    continue;
                }
                self.owners.report_unowned(ag, &mut self.report);
                self.owners.report_shared(ag, &mut self.report);
                rmap::compare(self, ag)?;
            }
        }
        Ok(())
    }
    /// Drops the owners of a group in which nothing is wrong and all blocks have their owner before any inode is
    /// checked. On a volume with many groups, most are like that.
    fn settle(&mut self, ag: AgNumber) -> Result<()> {
        if self.owners.is_whole(ag) && rmap::agrees(self, ag)? {
            self.owners.settle(ag);
        }
        Ok(())
    }
}
