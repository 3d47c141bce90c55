//! Attributes that the kernel was in the middle of setting when it went down. Its recovery leaves them as they are,
//! marked as incomplete: nobody sees them, but `xfs_repair` and `uxfs check` find them. Uxfs never leaves one.
//!
//! `xfs_repair` before 6.2 also takes for damage what is none: two leaf blocks in a row whose last hashes are equal, as
//! names of two namespaces have. What it says of that passes if the newest release says nothing of that inode.
//!
//! Invariant: nothing else passes for one.

use super::judge;
use crate::sandbox::{judging, repair_findings_by};
use anyhow::{Context, Result, ensure};
use blockdev::FileDevice;
use oracles::xfsprogs::Release;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use xfs::check::{CheckOptions, Finding, check};

/// What `uxfs check` calls one.
const INCOMPLETE: &str = "attribute that is incomplete";

/// Nothing but such attributes is wrong with a volume: gives what `xfs_repair -n` says of them.
pub(super) fn nothing_else_is_wrong(image: &Path) -> Result<Vec<String>> {
    let findings = by_repair(judging(image)?, image)?;
    let clean = nothing_else_is_found(image)?;
    ensure!(clean, "uxfs check: the log is not clean");
    Ok(findings)
}

/// A release of `xfs_repair -n` finds nothing but such attributes: gives what it says of them.
pub(crate) fn by_repair(release: Release, image: &Path) -> Result<Vec<String>> {
    let findings = repair_findings_by(release, image)?;
    only(release, &findings, || by_repair(Release::Unstable, image))?;
    Ok(findings)
}

/// What a release of `xfs_repair -n` says tells of nothing but such attributes. `newest`: what the newest says.
pub(super) fn only(
    release: Release,
    findings: &[String],
    newest: impl FnOnce() -> Result<Vec<String>>,
) -> Result<()> {
    let equal_hashes = if release == Release::System { equal_hashes(findings) } else { BTreeSet::new() };
    if !equal_hashes.is_empty() {
        let newest = newest().context("asked about equal hashes")?;
        let confirmed = |line: &&String| {
            inode_of(line).is_some_and(|inode| equal_hashes.contains(&inode)) && !is_half_set(line)
        };
        let confirmed: Vec<&String> = newest.iter().filter(confirmed).collect();
        ensure!(
            confirmed.is_empty(),
            "xfs_repair -n of each release: {confirmed:?}, in\n{}",
            findings.join("\n")
        );
    }
    unexplained(findings, &equal_hashes).map_or(Ok(()), |line| {
        Err(anyhow::anyhow!("xfs_repair -n ({release:?}): {line}, in\n{}", findings.join("\n")))
    })
}

/// `uxfs check` finds nothing but such attributes. Gives whether the log is clean; if it is not, the volume was checked
/// as its recovery will make it.
pub(crate) fn nothing_else_is_found(image: &Path) -> Result<bool> {
    let (clean, others) = found_beside(image)?;
    let others: Vec<String> = others.iter().map(|finding| format!("{finding:?}")).collect();
    judge::none("uxfs check finds damage", &others).context("beside attributes that are half set")?;
    Ok(clean)
}

/// Whether the log is clean, and what `uxfs check` finds beside such attributes.
pub(super) fn found_beside(image: &Path) -> Result<(bool, Vec<Finding>)> {
    let report = check(Arc::new(FileDevice::open(image)?), &CheckOptions::default())?;
    let others = report.findings().iter().filter(|finding| finding.problem.check != INCOMPLETE);
    Ok((report.log_clean, others.cloned().collect()))
}

/// The inode that a line of `xfs_repair -n` names first.
fn inode_of(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("inode ")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

fn is_half_set(line: &str) -> bool {
    line.starts_with("attribute entry #") && line.ends_with("is INCOMPLETE")
}

/// The inodes of which `xfs_repair -n` says that a hash is not greater than the equal one before it.
fn equal_hashes(findings: &[String]) -> BTreeSet<u64> {
    let is_equal = |line: &str| {
        let numbers = line.strip_prefix("attribute block hashvalue inconsistency, expected > ");
        numbers.and_then(|numbers| numbers.split_once(" / saw ")).is_some_and(|(least, seen)| least == seen)
    };
    let of = |pair: &[String]| match pair {
        [what, whose] if is_equal(what) && whose.starts_with("bad attribute block in inode ") => {
            inode_of(whose)
        }
        _ => None,
    };
    findings.windows(2).filter_map(of).collect()
}

/// A line of `xfs_repair -n` that does not follow from an attribute that is incomplete, nor from equal hashes in one of
/// `equal_hashes`.
fn unexplained<'a>(findings: &'a [String], equal_hashes: &BTreeSet<u64>) -> Option<&'a str> {
    let half_set = |line: &&String| is_half_set(line);
    let mut inodes: BTreeSet<u64> =
        findings.iter().filter(half_set).filter_map(|line| inode_of(line)).collect();
    inodes.extend(equal_hashes);
    let follows = |line: &str| {
        let of_any = |inodes: &BTreeSet<u64>| inode_of(line).is_some_and(|inode| inodes.contains(&inode));
        let begins = |with: &[&str]| with.iter().any(|begin| line.starts_with(begin));
        // It clears the whole fork, and counts what is left then.
        line == "would clear attr fork"
            || of_any(&inodes)
                && begins(&[
                    "attribute entry #",
                    "problem with attribute contents in",
                    "bad nblocks ",
                    "bad anextents ",
                ])
            || of_any(equal_hashes)
                && begins(&["bad attribute block in", "bad hash path in attribute fork for"])
            || !equal_hashes.is_empty() && begins(&["attribute block hashvalue inconsistency, expected > "])
    };
    let stray = findings.iter().map(String::as_str).find(|line| !follows(line));
    stray.or_else(|| findings.first().filter(|_| inodes.is_empty()).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_follows_from_an_incomplete_attribute_is_let_pass() {
        let lines = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        let known = [
            "attribute entry #0 in attr block 0, inode 101 is INCOMPLETE",
            "problem with attribute contents in inode 101",
            "would clear attr fork",
            "bad nblocks 1 for inode 101, would reset to 0",
            "bad anextents 1 for inode 101, would reset to 0",
        ];
        let none = BTreeSet::new();
        assert_eq!(unexplained(&lines(&known), &none), None);
        assert_eq!(unexplained(&[], &none), None);
        for other in [
            "problem with attribute contents in inode 102",
            "bad nblocks 1 for inode 1011, would reset to 0",
            "disconnected inode 101, would move to lost+found",
            "agi unlinked bucket 37 is 101 in ag 0 (inode=101)",
        ] {
            let findings = lines(&[&known[..], &[other]].concat());
            assert_eq!(unexplained(&findings, &none), Some(other));
        }
        assert!(unexplained(&lines(&known[1..]), &none).is_some(), "clears a fork and does not say why");
    }

    #[test]
    fn equal_hashes_in_a_row_pass_and_others_do_not() {
        let said = |seen: u32| -> Vec<String> {
            [
                &format!("attribute block hashvalue inconsistency, expected > 6449 / saw {seen}"),
                "bad attribute block in inode 81",
                "bad hash path in attribute fork for inode 81",
                "problem with attribute contents in inode 81",
                "would clear attr fork",
                "bad nblocks 4 for inode 81, would reset to 0",
                "bad anextents 4 for inode 81, would reset to 0",
            ]
            .map(str::to_owned)
            .into()
        };
        let equal = equal_hashes(&said(6449));
        assert_eq!(equal, BTreeSet::from([81]));
        assert_eq!(unexplained(&said(6449), &equal), None);

        let smaller = equal_hashes(&said(6448));
        assert!(smaller.is_empty());
        assert!(unexplained(&said(6448), &smaller).is_some());

        let other = "bad attribute block in inode 82".to_owned();
        let both = [said(6449), vec![other.clone()]].concat();
        assert_eq!(unexplained(&both, &equal), Some(other.as_str()));
    }
}
