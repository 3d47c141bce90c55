//! Inodes without a name that the kernel's recovery of a kernel's log could not free.
//!
//! A kernel that takes the attributes of such an inode away invalidates the first block of its attribute fork in one
//! transaction, and cuts the fork in a later one. When the log ends between the two, recovery does not replay that block,
//! which was cancelled, and the fork still names it. The kernel cannot read it then, and leaves the inode on its unlinked
//! list. Uxfs frees the inode.
//!
//! Invariant: nothing else passes for one. It is on an unlinked list, no name leads to it, and the first block of its
//! attribute fork is corrupt, as each `xfs_repair` that was asked says; `uxfs check` finds it on the list as well. Only what
//! the kernel recovered may hold one.

use super::{half_set, judge};
use crate::sandbox::repair_findings_by;
use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use std::collections::BTreeSet;
use std::path::Path;
use xfs::check::Finding;

/// What a kernel's recovery may leave that is not sound.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// The messages of `xfs_repair -n` about half-set attributes.
    pub half_set: Vec<Vec<String>>,
    /// The inodes that it could not free.
    pub not_freed: BTreeSet<u64>,
}

impl Left {
    /// The inodes that were not freed, for the line of a run: nothing if there are none.
    pub(crate) fn said(&self) -> String {
        match self.not_freed.len() {
            0 => String::new(),
            1 => "; the kernel could not free 1 inode without a name".to_owned(),
            many => format!("; the kernel could not free {many} inodes without a name"),
        }
    }

    /// The kernel's recovery behind one by uxfs that was cut leaves no other inode than its own of the same log did.
    pub(crate) fn has_all_of(&self, cut: &Self) -> Result<()> {
        ensure!(
            cut.not_freed.is_subset(&self.not_freed),
            "inodes that the kernel could not free: {:?}; behind a recovery by uxfs that was cut: {:?}",
            self.not_freed,
            cut.not_freed
        );
        Ok(())
    }
}

/// Nothing but such inodes and attributes that are half set is wrong with a volume that the kernel recovered, as releases of
/// `xfs_repair -n` and `uxfs check` see it.
pub(crate) fn nothing_else_is_wrong(image: &Path, releases: &[Release]) -> Result<Left> {
    let said = releases.iter().map(|&release| by_repair(release, image)).collect::<Result<Vec<_>>>()?;
    let (not_freed, half_set): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    ensure!(
        not_freed.windows(2).all(|pair| pair[0] == pair[1]),
        "inodes that were not freed, by each xfs_repair -n: {not_freed:?}"
    );
    let not_freed = not_freed.into_iter().next().unwrap_or_default();
    let (clean, found) = half_set::found_beside(image)?;
    ensure!(clean, "uxfs check: the log is not clean");
    only_listed(found, &not_freed)?;
    Ok(Left { half_set, not_freed })
}

/// A release of `xfs_repair -n` finds nothing else: gives the inodes, and what it says of attributes that are half set.
pub(crate) fn by_repair(release: Release, image: &Path) -> Result<(BTreeSet<u64>, Vec<String>)> {
    let (inodes, rest) = told_apart(&repair_findings_by(release, image)?);
    let newest = || by_repair(Release::Unstable, image).map(|(_, rest)| rest);
    half_set::only(release, &rest, newest)
        .with_context(|| format!("beside inodes that the kernel could not free: {inodes:?}"))?;
    Ok((inodes, rest))
}

/// `uxfs check` finds each of these inodes on an unlinked list, and nothing else.
fn only_listed(found: Vec<Finding>, inodes: &BTreeSet<u64>) -> Result<()> {
    let (listed, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|finding| listed(finding).is_some_and(|inode| inodes.contains(&inode)));
    let others: Vec<String> = others.iter().map(|finding| format!("{finding:?}")).collect();
    judge::none("uxfs check finds damage", &others)
        .with_context(|| format!("beside inodes that the kernel could not free: {inodes:?}"))?;
    let listed: BTreeSet<u64> = listed.iter().filter_map(self::listed).collect();
    ensure!(listed == *inodes, "inodes that were not freed: {inodes:?}; by uxfs check: {listed:?}");
    Ok(())
}

/// The inode that `uxfs check` finds on an unlinked list.
fn listed(finding: &Finding) -> Option<u64> {
    let is_listed = finding.structure() == "list of unlinked inodes"
        && finding.what() == "entry, though the log is clean";
    finding.place.inode.filter(|_| is_listed).map(|inode| inode.0)
}

/// The inodes that were not freed, and the lines of `xfs_repair -n` that do not follow from them.
fn told_apart(findings: &[String]) -> (BTreeSet<u64>, Vec<String>) {
    let all = |of: fn(&str) -> Option<u64>| -> BTreeSet<u64> {
        findings.iter().filter_map(|line| of(line)).collect()
    };
    let corrupt: BTreeSet<u64> = findings.windows(CORRUPT).filter_map(corrupt).collect();
    let inodes = [all(disconnected), all(without_links), corrupt]
        .iter()
        .fold(all(unlinked), |inodes, others| &inodes & others);
    let is_one = |inode: Option<u64>| inode.is_some_and(|inode| inodes.contains(&inode));

    let (mut rest, mut left) = (Vec::new(), findings);
    while let [line, behind @ ..] = left {
        if left.get(..CORRUPT).is_some_and(|lines| is_one(self::corrupt(lines))) {
            left = &left[CORRUPT..];
            continue;
        }
        if ![unlinked, emptied, disconnected, without_links].iter().any(|of| is_one(of(line))) {
            rest.push(line.clone());
        }
        left = behind;
    }
    (inodes, rest)
}

/// How many lines tell of a first block that is corrupt.
const CORRUPT: usize = 4;

/// The inode whose attribute fork has a first block that is corrupt. Lines that name no inode belong to it if they stand
/// around those that do.
fn corrupt(lines: &[String]) -> Option<u64> {
    let [read, block, problem, "would clear attr fork"] =
        lines.iter().map(String::as_str).collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let inode = number(block, "corrupt block 0 of inode ", " attribute fork")?;
    let is_whole = read.starts_with("Metadata corruption detected at ")
        && read.contains(", xfs_da3_node block ")
        && number(problem, "problem with attribute contents in inode ", "") == Some(inode);
    is_whole.then_some(inode)
}

/// The inode on top of an unlinked list.
fn unlinked(line: &str) -> Option<u64> {
    let (_, inode) = line.strip_prefix("agi unlinked bucket ")?.split_once(" (inode=")?;
    number(inode, "", ")")
}

/// The inode that has no blocks when its attribute fork is cleared.
fn emptied(line: &str) -> Option<u64> {
    let counts = ["bad nblocks ", "bad anextents "];
    let (_, inode) = counts.iter().find_map(|begin| line.strip_prefix(begin))?.split_once(" for inode ")?;
    number(inode, "", ", would reset to 0")
}

/// The inode that no name leads to.
fn disconnected(line: &str) -> Option<u64> {
    let kinds = ["disconnected inode ", "disconnected dir inode "];
    kinds.iter().find_map(|begin| number(line, begin, ", would move to lost+found"))
}

/// The inode that has no links, as is right: `xfs_repair` counts those that it would give it.
fn without_links(line: &str) -> Option<u64> {
    let ends = [" nlinks from 0 to 1", " nlinks from 0 to 2"];
    ends.iter().find_map(|end| number(line, "would have reset inode ", end))
}

/// The number between two texts that a line begins and ends with.
fn number(line: &str, begin: &str, end: &str) -> Option<u64> {
    line.strip_prefix(begin)?.strip_suffix(end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs::check::FindingPlace;
    use xfs_format::error::FormatError;
    use xfs_format::types::{AgNumber, InodeNumber};

    /// The metadata of one: a directory if its number is even.
    fn one(inode: u64) -> Vec<String> {
        let (dir, links) = if inode.is_multiple_of(2) { ("dir ", 2) } else { ("", 1) };
        vec![
            format!("agi unlinked bucket 32 is {inode} in ag 0 (inode={inode})"),
            "Metadata corruption detected at 0x555cf3c8e14b, xfs_da3_node block 0xc2a/0x400".to_owned(),
            format!("corrupt block 0 of inode {inode} attribute fork"),
            format!("problem with attribute contents in inode {inode}"),
            "would clear attr fork".to_owned(),
            format!("bad nblocks 1 for inode {inode}, would reset to 0"),
            format!("bad anextents 1 for inode {inode}, would reset to 0"),
            format!("disconnected {dir}inode {inode}, would move to lost+found"),
            format!("would have reset inode {inode} nlinks from 0 to {links}"),
        ]
    }

    /// As `xfs_repair` says it: by phases.
    fn both(a: &[String], b: &[String]) -> Vec<String> {
        [&a[..1], &b[..1], &a[1..7], &b[1..7], &a[7..], &b[7..]].concat()
    }

    /// What `half_set` is asked about then passes.
    fn passes(rest: &[String]) -> bool {
        half_set::only(Release::Unstable, rest, || Ok(Vec::new())).is_ok()
    }

    #[test]
    fn an_inode_that_was_not_freed_explains_what_is_said_of_it() {
        let none = (BTreeSet::new(), Vec::new());
        assert_eq!(told_apart(&[]), none);
        for inode in [3168, 3169] {
            assert_eq!(told_apart(&one(inode)), (BTreeSet::from([inode]), Vec::new()));
        }
        let two = both(&one(3168), &one(3169));
        assert_eq!(told_apart(&two), (BTreeSet::from([3168, 3169]), Vec::new()));
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn without_a_line_that_makes_it_one_nothing_passes() {
        let whole = one(3168);
        for missing in [0, 1, 2, 3, 4, 7, 8] {
            let mut findings = whole.clone();
            findings.remove(missing);
            assert_eq!(told_apart(&findings), (BTreeSet::new(), findings.clone()), "{}", whole[missing]);
            assert!(!passes(&findings), "{}", whole[missing]);
        }
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn an_additional_line_does_not_pass() {
        for other in [
            "agi unlinked bucket 33 is 3169 in ag 0 (inode=3169)",
            "corrupt block 0 of inode 3169 attribute fork",
            "corrupt block 0 of inode 3168 attribute fork",
            "corrupt block 1 of inode 3168 attribute fork",
            "Metadata corruption detected at 0x555cf3c8e14b, xfs_da3_node block 0xc2a/0x400",
            "would clear attr fork",
            "problem with attribute contents in inode 3168",
            "bad nblocks 1 for inode 31680, would reset to 0",
            "bad nblocks 3 for inode 3168, would reset to 2",
            "disconnected inode 316, would move to lost+found",
            "would have reset inode 3168 nlinks from 1 to 2",
            "bad magic number in inode 3168",
        ] {
            let findings = [&one(3168)[..], &[other.to_owned()]].concat();
            let (inodes, rest) = told_apart(&findings);
            assert_eq!((inodes, &rest[..]), (BTreeSet::from([3168]), &[other.to_owned()][..]));
            assert!(!passes(&rest), "{other}");
        }
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn an_inode_does_not_explain_what_is_said_of_another() {
        // One is unlinked, and another has the corrupt block.
        let findings = [&one(3168)[..1], &one(3170)[1..]].concat();
        assert_eq!(told_apart(&findings), (BTreeSet::new(), findings.clone()));
        assert!(!passes(&findings));
        // The same beside one that passes.
        for near in [&one(3170)[..1], &one(3170)[1..]] {
            let (inodes, rest) = told_apart(&[&one(3168)[..], near].concat());
            assert_eq!((inodes, &rest[..]), (BTreeSet::from([3168]), near));
            assert!(!passes(&rest));
        }
        // Lines that name no inode stand around those of another.
        let mut split = one(3168);
        split[3] = "problem with attribute contents in inode 3170".to_owned();
        assert_eq!(told_apart(&split), (BTreeSet::new(), split.clone()));
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn attributes_that_are_half_set_may_stand_beside_it() {
        let half_set = [
            "attribute entry #0 in attr block 0, inode 101 is INCOMPLETE",
            "problem with attribute contents in inode 101",
            "would clear attr fork",
            "bad nblocks 1 for inode 101, would reset to 0",
            "bad anextents 1 for inode 101, would reset to 0",
        ]
        .map(str::to_owned);
        let whole = one(3168);
        let findings = [&whole[..1], &half_set, &whole[1..]].concat();
        let (inodes, rest) = told_apart(&findings);
        assert_eq!((inodes, &rest[..]), (BTreeSet::from([3168]), &half_set[..]));
        assert!(passes(&rest));
    }

    #[test]
    fn the_checker_finds_each_on_a_list_and_nothing_else() {
        let of = |what, inode| Finding {
            place: FindingPlace::group(AgNumber(0)).of(InodeNumber(inode)),
            problem: FormatError::value("list of unlinked inodes", what, inode),
            name: None,
        };
        let entry = |inode| of("entry, though the log is clean", inode);
        let inodes = BTreeSet::from([3168]);
        assert!(only_listed(vec![entry(3168)], &inodes).is_ok());
        assert!(only_listed(vec![], &BTreeSet::new()).is_ok());
        assert!(only_listed(vec![], &inodes).is_err(), "it is on no list");
        assert!(only_listed(vec![entry(3168)], &BTreeSet::new()).is_err(), "xfs_repair says nothing of it");
        assert!(only_listed(vec![entry(3168), entry(3169)], &inodes).is_err(), "another inode");
        assert!(only_listed(vec![entry(3168), of("link count", 3168)], &inodes).is_err(), "it has a name");
    }

    #[test]
    fn a_recovery_that_was_cut_leaves_no_more_inodes() {
        let left = |inodes: &[u64]| Left { not_freed: inodes.iter().copied().collect(), ..Left::default() };
        assert!(left(&[1, 2]).has_all_of(&left(&[1])).is_ok());
        assert!(left(&[1, 2]).has_all_of(&left(&[])).is_ok());
        assert!(left(&[1, 2]).has_all_of(&left(&[3])).is_err());
        assert_eq!(left(&[]).said(), "");
        assert!(left(&[1]).said().ends_with("1 inode without a name"));
        assert!(left(&[1, 2]).said().ends_with("2 inodes without a name"));
    }
}
