//! Which project every inode of a volume belongs to: what the kernel says of it, and what uxfs says.
//!
//! Invariant: every inode that a manifest describes is found on either side, special files and symbolic links too,
//! which only a list of all inodes tells the kernel's projects of.

use crate::command;
use crate::record::{Project, Record};
use anyhow::{Context, Result, bail};
use blockdev::BlockDevice;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uxfs::{OpenOptions, Volume};

/// In the flags that users see: new files belong to the directory's project.
const INHERIT: u32 = 0x200;

/// Adds what the kernel says to the manifest of a volume that is mounted at `mnt`.
pub fn add_by_kernel(manifest: &mut [Record], mnt: &Path) -> Result<()> {
    let said = command::output(Command::new("xfs_io").args(["-r", "-c", "bulkstat"]).arg(mnt))?;
    let projects = listed(&said)?;
    add(manifest, |ino| projects.get(&ino).copied().context("the kernel's list of inodes does not have it"))
}

/// Adds what uxfs says of the volume on a device.
pub fn add_by_uxfs(manifest: &mut [Record], device: Arc<dyn BlockDevice>) -> Result<()> {
    let volume = Volume::open_device(device, &OpenOptions::new())?;
    add(manifest, |ino| {
        let found = volume.node(ino)?.metadata();
        Ok(Project { id: found.project_id, inherit: found.xflags & INHERIT != 0 })
    })
}

fn add(manifest: &mut [Record], mut project: impl FnMut(u64) -> Result<Project>) -> Result<()> {
    for record in manifest {
        if let Some(inode) = &mut record.inode {
            let found = project(record.ino).with_context(|| format!("{}: its project", record.path))?;
            inode.project = Some(found);
        }
    }
    Ok(())
}

/// What `bulkstat` lists: for each inode, a line for each field.
fn listed(said: &str) -> Result<HashMap<u64, Project>> {
    let mut projects: HashMap<u64, Project> = HashMap::new();
    let mut last = None;
    for line in said.lines() {
        let Some((name, value)) = line.trim().split_once(" = ") else { continue };
        match (name, last) {
            ("bs_ino", _) => {
                let ino = value.parse().context("an inode number")?;
                projects.insert(ino, Project::default());
                last = Some(ino);
            }
            ("bs_projectid" | "bs_xflags", None) => bail!("bulkstat: {line:?} is of no inode"),
            ("bs_projectid", Some(ino)) => {
                projects.entry(ino).or_default().id = value.parse().context("a project")?;
            }
            ("bs_xflags", Some(ino)) => {
                let flags = u32::from_str_radix(value.trim_start_matches("0x"), 16).context("flags")?;
                projects.entry(ino).or_default().inherit = flags & INHERIT != 0;
            }
            _ => {}
        }
    }
    Ok(projects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_inodes_is_understood() {
        let said = "bs_ino = 128\n\tbs_xflags = 0x0\n\tbs_projectid = 0\n\
                    bs_ino = 131\n\tbs_xflags = 0x80000200\n\tbs_projectid = 4294967294\n";
        let found = listed(said).unwrap();
        assert_eq!(found[&128], Project::default());
        assert_eq!(found[&131], Project { id: 4_294_967_294, inherit: true });
        assert!(listed("\tbs_projectid = 7\n").is_err());
    }
}
