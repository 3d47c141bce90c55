//! Metadata that `stat` does not show: project, flags and hints, as given by the kernel and by uxfs.
//!
//! Invariant: every inode that a manifest describes is found on either side, special files and symbolic links too,
//! of which only a list of all inodes tells this.

use crate::command;
use crate::record::{Hints, Project, Record};
use anyhow::{Context, Result, bail};
use blockdev::BlockDevice;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uxfs::{OpenOptions, Volume};

/// In the flags that users see: how a file wants to be treated.
const NO_ATIME: u32 = 0x40;
const NO_DUMP: u32 = 0x80;
const NO_DEFRAG: u32 = 0x2000;
/// New files belong to the directory's project.
const INHERIT: u32 = 0x200;
/// There is an extent size; of a directory, for what is made in it.
const EXTENT_SIZE: u32 = 0x800 | 0x1000;

/// The metadata of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    project: u32,
    xflags: u32,
    extent_blocks: u32,
}

impl Found {
    fn project(self) -> Project {
        Project { id: self.project, inherit: self.xflags & INHERIT != 0 }
    }

    fn hints(self) -> Hints {
        let has = |flag| self.xflags & flag != 0;
        Hints {
            no_atime: has(NO_ATIME),
            no_dump: has(NO_DUMP),
            no_defrag: has(NO_DEFRAG),
            extent_blocks: if has(EXTENT_SIZE) { self.extent_blocks } else { 0 },
        }
    }
}

/// Adds what the kernel says to the manifest of a volume that is mounted at `mnt`.
pub fn add_by_kernel(manifest: &mut [Record], mnt: &Path) -> Result<()> {
    let said = command::output(Command::new("xfs_io").args(["-r", "-c", "bulkstat"]).arg(mnt))?;
    let all = listed(&said)?;
    add(manifest, |ino| all.get(&ino).copied().context("the kernel's list of inodes does not have it"))
}

/// Adds what uxfs says of the volume on a device.
pub fn add_by_uxfs(manifest: &mut [Record], device: Arc<dyn BlockDevice>) -> Result<()> {
    let volume = Volume::open_device(device, &OpenOptions::new())?;
    add(manifest, |ino| {
        let found = volume.node(ino)?.metadata()?;
        let extent_blocks = u32::try_from(found.extent_size / u64::from(found.block_size))?;
        Ok(Found { project: found.project_id, xflags: found.xflags, extent_blocks })
    })
}

fn add(manifest: &mut [Record], mut of: impl FnMut(u64) -> Result<Found>) -> Result<()> {
    for record in manifest {
        if let Some(inode) = &mut record.inode {
            let found = of(record.ino).with_context(|| format!("{}: project and hints", record.path))?;
            (inode.project, inode.hints) = (Some(found.project()), Some(found.hints()));
        }
    }
    Ok(())
}

/// What `bulkstat` lists: for each inode, a line for each field.
fn listed(said: &str) -> Result<HashMap<u64, Found>> {
    let mut all: HashMap<u64, Found> = HashMap::new();
    let mut last = None;
    for line in said.lines() {
        let Some((name, value)) = line.trim().split_once(" = ") else { continue };
        if name == "bs_ino" {
            let ino = value.parse().context("an inode number")?;
            last = Some(all.entry(ino).or_default());
            continue;
        }
        if !["bs_projectid", "bs_xflags", "bs_extsize_blks"].contains(&name) {
            continue;
        }
        let Some(found) = &mut last else { bail!("bulkstat: {line:?} is of no inode") };
        match name {
            "bs_projectid" => found.project = value.parse().context("a project")?,
            "bs_extsize_blks" => found.extent_blocks = value.parse().context("an extent size")?,
            _ => {
                found.xflags = u32::from_str_radix(value.trim_start_matches("0x"), 16).context("flags")?;
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_inodes_is_understood() {
        let said = "bs_ino = 128\n\tbs_xflags = 0x0\n\tbs_projectid = 0\n\tbs_extsize_blks = 0\n\
                    bs_ino = 131\n\tbs_xflags = 0x80001240\n\tbs_projectid = 4294967294\n\tbs_extsize_blks = 4\n";
        let found = listed(said).unwrap();
        assert_eq!(found[&128], Found::default());
        assert_eq!(found[&131].project(), Project { id: 4_294_967_294, inherit: true });
        let hints = Hints { no_atime: true, extent_blocks: 4, ..Hints::default() };
        assert_eq!(found[&131].hints(), hints);
        assert!(listed("\tbs_projectid = 7\n").is_err());
    }
}
