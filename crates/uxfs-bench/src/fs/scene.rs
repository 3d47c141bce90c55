//! The file systems of a run: uxfs's own, and those that it is compared with.

use super::{SysFs, UxfsFs};
use crate::config::{Config, Versus};
use crate::error::Result;
use crate::setup::{KernelXfs, RamDevice};
use crate::suite::Observer;
use crate::target::Label;

/// A file system with its name in reports.
pub(crate) struct Site<F> {
    pub(crate) label: Label,
    pub(crate) fs: F,
}

/// A [`Site`] of either kind; a workload has one function, generic over the file system, that it calls with each.
pub(crate) enum Target {
    Uxfs(Site<UxfsFs>),
    Sys(Site<SysFs>),
}

impl Target {
    pub(crate) fn label(&self) -> &Label {
        match self {
            Self::Uxfs(site) => &site.label,
            Self::Sys(site) => &site.label,
        }
    }
}

/// File systems of the same size and shape, each with all that is mounted for it.
pub(crate) struct Scene {
    pub(crate) targets: Vec<Target>,
    _mounts: Vec<KernelXfs>,
}

impl Scene {
    /// Volumes of at least `bytes` bytes, with a group for each of `threads` threads, as directories go to one group
    /// after the other.
    pub(crate) fn set(
        config: &Config,
        bytes: u64,
        threads: usize,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        /// The least size of a volume: one that has a log of the size that larger ones have.
        const BYTES_MIN: u64 = 4 << 30;
        let bytes = bytes.max(BYTES_MIN).next_multiple_of(1 << 20);
        let groups = u32::try_from(threads).unwrap_or(u32::MAX).max(4);
        observer.note("making a volume");
        let mut targets = vec![Target::Uxfs(UxfsFs::make(config, bytes, groups)?)];
        let mut mounts = Vec::new();
        for versus in &config.versus {
            let (device, suffix) = match versus {
                Versus::Dir(dir) => {
                    targets.push(Target::Sys(SysFs::in_dir(dir, "")?));
                    continue;
                }
                Versus::KernelXfs => (RamDevice::Zram, ""),
                Versus::KernelXfsLoop => (RamDevice::Loop, "-loop"),
            };
            observer.note("making and mounting an XFS in memory");
            let mount = KernelXfs::mount_beside(config, device, bytes, groups)?;
            targets.push(Target::Sys(SysFs::in_dir(mount.dir(), suffix)?));
            mounts.push(mount);
        }
        Ok(Self { targets, _mounts: mounts })
    }

    /// Takes down what was set up.
    pub(crate) fn finish(self, observer: &mut dyn Observer) -> Result<()> {
        for target in self.targets {
            observer.note(&format!("closing {}", target.label()));
            match target {
                Target::Uxfs(site) => site.finish()?,
                Target::Sys(site) => site.finish()?,
            }
        }
        Ok(())
    }
}
