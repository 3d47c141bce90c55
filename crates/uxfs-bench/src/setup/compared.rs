//! The other side of a comparison, used by system calls: a mounted directory, or a file system made and mounted for it.

use super::mount::{KernelMount, Kind, Storage};
use crate::config::{Config, Versus, VolumePlace};
use crate::error::{Error, Result};
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
    /// Prepares the requested directory.
    pub(crate) fn set(
        config: &Config,
        versus: &Versus,
        shape: Shape,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let (storage, kind, suffix) = match versus {
            Versus::Dir(dir) => return Ok(Self::Dir(dir.clone())),
            Versus::KernelXfs => (Storage::Zram, Kind::Xfs, ""),
            Versus::KernelXfsLoop => (loop_at(&config.place)?, Kind::Xfs, "-loop"),
            Versus::KernelExt4 => (Storage::Zram, Kind::Ext4, ""),
        };
        observer.note(&format!("making and mounting an {kind} {storage}"));
        let mount = match (kind, &config.compat, shape.groups) {
            (Kind::Xfs, Some(_), Some(groups)) => {
                KernelMount::xfs_of_uxfs(config, storage, shape.bytes, groups)?
            }
            _ => KernelMount::new(storage, kind, shape)?,
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

/// A loop device over a file on the storage that uxfs's own volume lies on.
fn loop_at(place: &VolumePlace) -> Result<Storage> {
    match place {
        VolumePlace::Memory | VolumePlace::Shm => Ok(Storage::LoopInMemory),
        VolumePlace::Dir(dir) if dir.is_dir() => Ok(Storage::LoopIn(dir.clone())),
        VolumePlace::Dir(other) => Err(Error::Usage(format!(
            "{} is no directory, and kernel-xfs-loop is a file beside what uxfs writes to",
            other.display()
        ))),
    }
}
