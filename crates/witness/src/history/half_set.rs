//! Attributes that the kernel was in the middle of setting when it went down. Its recovery leaves them as they are,
//! marked as incomplete: nobody sees them, but `xfs_repair` and `uxfs check` find them. Uxfs never leaves one.
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
use xfs::check::{CheckOptions, check};

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
    unexplained(&findings).map_or(Ok(()), |line| {
        Err(anyhow::anyhow!("xfs_repair -n ({release:?}): {line}, in\n{}", findings.join("\n")))
    })?;
    Ok(findings)
}

/// `uxfs check` finds nothing but such attributes. Gives whether the log is clean; if it is not, the volume was checked
/// as its recovery will make it.
pub(crate) fn nothing_else_is_found(image: &Path) -> Result<bool> {
    let report = check(Arc::new(FileDevice::open(image)?), &CheckOptions::default())?;
    let others = report.findings().iter().filter(|finding| finding.problem.check != INCOMPLETE);
    let others: Vec<String> = others.map(|finding| format!("{finding:?}")).collect();
    judge::none("uxfs check finds damage", &others).context("beside attributes that are half set")?;
    Ok(report.log_clean)
}

/// A line of `xfs_repair -n` that does not follow from an attribute that is incomplete.
fn unexplained(findings: &[String]) -> Option<&str> {
    let inode_of = |line: &str| -> Option<u64> {
        let (_, rest) = line.split_once("inode ")?;
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    let half_set = |line: &&String| line.starts_with("attribute entry #") && line.ends_with("is INCOMPLETE");
    let inodes: BTreeSet<u64> = findings.iter().filter(half_set).filter_map(|line| inode_of(line)).collect();
    let follows = |line: &str| {
        let of_one = inode_of(line).is_some_and(|inode| inodes.contains(&inode));
        // It clears the whole fork, and counts what is left then.
        let begins =
            ["attribute entry #", "problem with attribute contents in", "bad nblocks ", "bad anextents "];
        line == "would clear attr fork" || of_one && begins.iter().any(|begin| line.starts_with(begin))
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
        assert_eq!(unexplained(&lines(&known)), None);
        assert_eq!(unexplained(&[]), None);
        for other in [
            "problem with attribute contents in inode 102",
            "bad nblocks 1 for inode 1011, would reset to 0",
            "disconnected inode 101, would move to lost+found",
            "agi unlinked bucket 37 is 101 in ag 0 (inode=101)",
        ] {
            let findings = lines(&[&known[..], &[other]].concat());
            assert_eq!(unexplained(&findings), Some(other));
        }
        assert!(unexplained(&lines(&known[1..])).is_some(), "clears a fork and does not say why");
    }
}
