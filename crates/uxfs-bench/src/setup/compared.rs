//! What a run compares uxfs with, by system calls: a mounted directory, or a file system that is made and mounted for it.

use super::mount::{KernelMount, Kind, RamDevice};
use crate::config::{Config, Versus};
use crate::error::Result;
use crate::suite::Observer;
use std::path::{Path, PathBuf};

/// A directory to compare with; what was made for it goes with this.
#[derive(Debug)]
pub(crate) enum Compared {
    Dir(PathBuf),
    Mount { mount: KernelMount, suffix: &'static str },
}

/// What file systems that are made for a run have in common with uxfs's own volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) bytes: u64,
    /// Allocation groups; none: as many as `mkfs.xfs` likes.
    pub(crate) groups: Option<u32>,
}

impl Compared {
    /// Has the directory ready that is asked for.
    pub(crate) fn set(
        config: &Config,
        versus: &Versus,
        shape: Shape,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let (device, kind, suffix) = match versus {
            Versus::Dir(dir) => return Ok(Self::Dir(dir.clone())),
            Versus::KernelXfs => (RamDevice::Zram, Kind::Xfs, ""),
            Versus::KernelXfsLoop => (RamDevice::Loop, Kind::Xfs, "-loop"),
            Versus::KernelExt4 => (RamDevice::Zram, Kind::Ext4, ""),
        };
        observer.note(&format!("making and mounting an {kind} in memory"));
        let mount = match (kind, &config.compat, shape.groups) {
            (Kind::Xfs, Some(_), Some(groups)) => {
                KernelMount::xfs_of_uxfs(config, device, shape.bytes, groups)?
            }
            _ => KernelMount::new(device, kind, shape)?,
        };
        Ok(Self::Mount { mount, suffix })
    }

    pub(crate) fn dir(&self) -> &Path {
        match self {
            Self::Dir(dir) => dir,
            Self::Mount { mount, .. } => mount.dir(),
        }
    }

    /// What is added to the type of the file system in reports.
    pub(crate) fn suffix(&self) -> &'static str {
        match self {
            Self::Dir(_) => "",
            Self::Mount { suffix, .. } => suffix,
        }
    }
}
