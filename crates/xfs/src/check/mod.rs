//! The checker: walks all metadata of a volume, writes nothing, and says what is wrong.
//!
//! One file a structure. The order of things:
//! 1. each group: the copies of the superblock, the headers, the trees of free space, of inodes, of reference
//!    counts and of owners (`superblock`, `group`, `free_space`, `inode_trees`, `refcount`, `rmap`);
//! 2. each inode: its core, the maps of its forks, symbolic links and attributes (`inode`, `unused`, `map`, `symlink`,
//!    `attr`),
//!    and the lists of unlinked inodes (`unlinked`);
//! 3. each directory: its blocks and indexes, and what its names name (`dir`, `links`);
//! 4. quota: the files of dquots, and what they count (`quota`);
//! 5. what must agree in the end: owners of blocks, reference counts, the reverse map, link counts, the counters of
//!    the superblock (`owners`, `links`, `totals`).
//!
//! Invariants: work and memory go with the metadata that are there, not with the size of the volume; nothing that
//! the device holds makes it panic, loop or recurse without bound; a finding is data, and what follows from damage
//! that was reported already (a block without an owner because its owner cannot be read) is left out. It knows
//! the format and the device, and nothing of the engine's caches.

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

pub use report::{Counts, Finding, Place, Report};

use crate::error::{Error, Result};
use crate::mount::{check_device, read_superblock, refuse_unhandled};
use crate::recovery::{self, clean};
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
    /// Check a volume whose log is dirty as it is, without replay. What is in the log is missing then, and much of
    /// what is found may be nothing but that.
    pub norecovery: bool,
    /// How many findings to keep; the others are counted.
    pub keep: usize,
    /// With how many findings to give up.
    pub stop: u64,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { norecovery: false, keep: 10_000, stop: 100_000 }
    }
}

/// Checks the volume on a device. A dirty log is replayed in memory first, as for reading: what is checked is what
/// recovery will make of the volume. `Err`: it cannot be checked, because the device fails, or holds no volume, or one
/// with a feature that is not handled, or one whose dirty log cannot be replayed.
pub fn check(device: Arc<dyn BlockDevice>, options: &CheckOptions) -> Result<Report> {
    let mut report = Report::new(options.keep, options.stop);
    let (mut device, mut log_head) = (device, None);
    let mut superblock = match read_superblock(&*device) {
        Ok(superblock) => superblock,
        Err(Error::Corrupt { problem, .. }) => {
            report.add(Place::VOLUME, problem);
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
            report.add(Place::VOLUME, problem);
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

/// Finds the log's ends. If it is dirty it is replayed, and `device` is a layer in memory then.
fn look_at_log(
    device: &mut Arc<dyn BlockDevice>,
    superblock: &mut Superblock,
    options: &CheckOptions,
    report: &mut Report,
) -> Result<LogEnds> {
    let ends = clean::log_ends(&**device, superblock)?;
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
    // Blocks whose way from one owner to another was interrupted have none, or two.
    report.owners_known &= what.unfinished.is_empty();
    report.replayed = Some(what);
    Ok(ends)
}

/// A check under way.
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
    /// Forgets who owns what in a group in which nothing is wrong, and whose blocks all have their owner before any inode
    /// is looked at: most groups of a volume with many.
    fn settle(&mut self, ag: AgNumber) -> Result<()> {
        if self.owners.is_whole(ag) && rmap::agrees(self, ag)? {
            self.owners.settle(ag);
        }
        Ok(())
    }
}
