//! What the checker found: each finding is data, and a report counts them.
//!
//! Invariants: a report keeps a bounded number of findings and counts the others. It also counts what was checked, so
//! that "nothing found" can be told from "nothing checked". This module does not know how things are checked.

use crate::recovery;
use std::fmt;
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber, InodeNumber};

/// Where a finding is. Any part may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FindingPlace {
    /// The allocation group.
    pub ag: Option<AgNumber>,
    /// A block of that group.
    pub block: Option<AgBlock>,
    /// The inode that it belongs to.
    pub inode: Option<InodeNumber>,
}

impl FindingPlace {
    /// The volume as a whole.
    pub const VOLUME: Self = Self { ag: None, block: None, inode: None };

    /// A group.
    pub const fn group(ag: AgNumber) -> Self {
        Self { ag: Some(ag), block: None, inode: None }
    }

    /// A block of a group.
    pub const fn block(ag: AgNumber, block: AgBlock) -> Self {
        Self { ag: Some(ag), block: Some(block), inode: None }
    }

    /// An inode.
    pub const fn inode(inode: InodeNumber) -> Self {
        Self { ag: None, block: None, inode: Some(inode) }
    }

    /// The same place, for an inode.
    pub const fn of(self, inode: InodeNumber) -> Self {
        Self { inode: Some(inode), ..self }
    }
}

impl fmt::Display for FindingPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}")?;
            gap = ", ";
        }
        if let Some(ag) = self.ag {
            write!(f, "{gap}group {ag}")?;
            gap = ", ";
        }
        if let Some(block) = self.block {
            write!(f, "{gap}block {block}")?;
            gap = ", ";
        }
        if gap.is_empty() { f.write_str("volume") } else { Ok(()) }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub place: FindingPlace,
    /// The structure, the failed check, what was found and what was expected.
    pub problem: FormatError,
    /// The name of the file or attribute, or the id of the dquot.
    pub name: Option<Box<[u8]>>,
}

impl Finding {
    /// The structure as the format calls it.
    pub fn structure(&self) -> &'static str {
        self.problem.structure
    }

    /// What is wrong with it.
    pub fn what(&self) -> &'static str {
        self.problem.check
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FormatError { structure, check, found, expected } = &self.problem;
        write!(f, "{}: {structure}: {check}", self.place)?;
        if let Some(name) = &self.name {
            write!(f, " `{}`", name.escape_ascii())?;
        }
        match (found, expected) {
            (Some(found), Some(expected)) => write!(f, " ({found}, expected {expected})"),
            (Some(found), None) => write!(f, " ({found})"),
            _ => Ok(()),
        }
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocation groups.
    pub groups: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names in directories, without `.` and `..`.
    pub names: u64,
    /// Extents of forks.
    pub extents: u64,
    /// Extended attributes.
    pub attributes: u64,
    /// Metadata blocks of trees, directories, attributes and symbolic links.
    pub blocks: u64,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    findings: Vec<Finding>,
    total: u64,
    keep: usize,
    stop: u64,
    /// What was checked.
    pub counts: Counts,
    /// Whether the log was clean. If not, the counters of the superblock are not judged.
    pub log_clean: bool,
    /// What was replayed from the log in memory, so that the volume was checked as recovery will make it.
    pub replayed: Option<recovery::Report>,
    /// Whether all owners of blocks are known. If not, blocks without an owner are not reported.
    pub owners_known: bool,
    /// Whether every directory could be read. If not, link counts are not judged.
    pub names_known: bool,
}

impl Report {
    /// An empty report. `keep` is how many findings are kept; the check ends at `stop` findings.
    pub(super) fn new(keep: usize, stop: u64) -> Self {
        Self {
            findings: Vec::new(),
            total: 0,
            keep,
            stop,
            counts: Counts::default(),
            log_clean: true,
            replayed: None,
            owners_known: true,
            names_known: true,
        }
    }

    /// Whether recovery has work to finish that was not done here.
    pub(super) fn is_unfinished(&self) -> bool {
        self.replayed.as_ref().is_some_and(|replayed| !replayed.unfinished.is_empty())
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.total == 0
    }

    /// The findings that are kept, in the order in which they were made.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The number of findings, kept or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether there are so many findings that the check ended early.
    pub fn stopped(&self) -> bool {
        self.total >= self.stop
    }

    /// Adds a finding.
    pub(super) fn add(&mut self, place: FindingPlace, problem: FormatError) {
        self.push(Finding { place, problem, name: None });
    }

    /// Adds a finding about a name.
    pub(super) fn add_named(&mut self, place: FindingPlace, problem: FormatError, name: &[u8]) {
        self.push(Finding { place, problem, name: Some(name.into()) });
    }

    /// Adds a finding unless two numbers are equal.
    pub(super) fn same(
        &mut self,
        place: FindingPlace,
        structure: &'static str,
        check: &'static str,
        found: impl Into<u64>,
        expected: impl Into<u64>,
    ) -> bool {
        let (found, expected) = (found.into(), expected.into());
        if found != expected {
            self.add(place, FormatError::mismatch(structure, check, found, expected));
        }
        found == expected
    }

    fn push(&mut self, finding: Finding) {
        self.total += 1;
        if self.findings.len() < self.keep {
            self.findings.push(finding);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_those_kept_are_counted() {
        let mut report = Report::new(2, 4);
        for n in 0..4_u64 {
            assert!(!report.stopped());
            report.same(FindingPlace::group(AgNumber(1)), "AGF", "count", n, 9_u64);
        }
        assert_eq!((report.findings().len(), report.total(), report.stopped()), (2, 4, true));
        assert_eq!(report.findings()[1].to_string(), "group 1: AGF: count (1, expected 9)");
        assert!(report.same(FindingPlace::VOLUME, "AGF", "count", 9_u64, 9_u64) && report.total() == 4);
    }

    #[test]
    fn places_are_said_as_far_as_they_are_known() {
        assert_eq!(FindingPlace::VOLUME.to_string(), "volume");
        let place = FindingPlace::block(AgNumber(2), AgBlock(7)).of(InodeNumber(131));
        assert_eq!(place.to_string(), "inode 131, group 2, block 7");
    }
}
