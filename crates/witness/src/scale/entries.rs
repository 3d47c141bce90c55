//! A directory with many entries.

use super::subject::{Shape, Subject, scattered};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uxfs::{Changes, Dir, NewNode, Volume};

const DIR: &str = "large";
/// The file with all the names, if they are links.
const TARGET: &str = "target";
/// How many entries the kernel looks up one by one.
const KERNEL_SAMPLE: u64 = 1000;

/// The directory.
#[derive(Debug)]
pub struct Entries {
    /// The kind of its entries.
    pub shape: Shape,
    /// The number of its entries.
    pub count: u64,
}

impl Entries {
    fn links(&self) -> bool {
        self.shape == Shape::Links
    }
}

/// Names whose order is unrelated to the order of their hashes.
fn name(nth: u64) -> String {
    format!("entry-{nth:09}")
}

/// Names that are removed before the directory is complete.
fn other(nth: u64) -> String {
    format!("other-{nth:09}")
}

fn dir(volume: &Volume) -> Result<Dir> {
    Ok(volume.open_dir(DIR)?)
}

impl Subject for Entries {
    fn prepare(&self, volume: &Volume) -> Result<()> {
        let root = volume.open_dir("/")?;
        root.create_dir(DIR.as_bytes(), &NewNode { permissions: 0o755, ..NewNode::default() })?;
        root.create_file(TARGET.as_bytes(), &NewNode::default())?;
        Ok(())
    }

    fn make(&self, volume: &Volume, parts: Range<u64>) -> Result<()> {
        let dir = dir(volume)?;
        let target = volume.lookup(TARGET)?;
        if self.shape == Shape::Recycled {
            for nth in parts.clone() {
                dir.create_file(other(nth).as_bytes(), &NewNode::default())?;
            }
            for nth in parts.clone() {
                dir.remove_file(other(nth).as_bytes())?;
            }
        }
        for nth in parts {
            if self.links() {
                dir.link(name(nth).as_bytes(), &target)?;
            } else {
                dir.create_file(name(nth).as_bytes(), &NewNode::default())?;
            }
        }
        Ok(())
    }

    fn check(&self, volume: &Volume, nth: u64) -> Result<()> {
        let dir = dir(volume)?;
        let found =
            dir.lookup(name(nth).as_bytes())?.with_context(|| format!("{} is not there", name(nth)))?;
        ensure!(found.metadata()?.size == 0, "{} is not empty", name(nth));
        let absent = name(self.count + nth);
        ensure!(dir.lookup(absent.as_bytes())?.is_none(), "{absent} is there");
        Ok(())
    }

    /// About one file in each inode cluster.
    fn touch(&self, volume: &Volume) -> Result<()> {
        const APART: usize = 32;
        let dir = dir(volume)?;
        for nth in (0..self.count).step_by(APART) {
            let node = dir.lookup(name(nth).as_bytes())?.with_context(|| name(nth))?;
            node.change(&Changes { permissions: Some(0o600), ..Changes::default() })?;
        }
        Ok(())
    }

    /// In another order than they were made.
    fn remove(&self, volume: &Volume, parts: Range<u64>) -> Result<()> {
        let dir = dir(volume)?;
        for nth in parts {
            dir.remove_file(name(scattered(nth, self.count)).as_bytes())?;
        }
        Ok(())
    }

    fn removes_at_once(&self) -> bool {
        false
    }

    /// The directory's map.
    fn bytes(&self) -> u64 {
        self.count
    }

    fn kernel_sees(&self, mnt: &Path) -> Result<String> {
        let dir = mnt.join(DIR);
        let mut seen = 0;
        for entry in fs::read_dir(&dir)? {
            entry?;
            seen += 1;
        }
        ensure!(seen == self.count, "the kernel reads {seen} entries");
        let sample = KERNEL_SAMPLE.min(self.count);
        let nlink = if self.links() { self.count + 1 } else { 1 };
        for nth in 0..sample {
            let name = name(scattered(nth, self.count));
            let found = fs::symlink_metadata(dir.join(&name)).with_context(|| name.clone())?;
            ensure!(found.is_file() && found.nlink() == nlink, "{name}: {} links", found.nlink());
        }
        Ok(format!("{seen} entries read, {sample} asked for"))
    }
}
