//! The file systems of a run: uxfs's own, and those that it is compared with.

use super::{SysFs, UxfsFs};
use crate::config::{Config, Workload};
use crate::error::Result;
use crate::setup::{Compared, Shape, volume_bytes};
use crate::suite::Observer;
use crate::target::Label;
use ::uxfs::Designs;

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
    _compared: Vec<Compared>,
}

impl Scene {
    /// Volumes of at least `bytes` bytes, with a group for each of `threads` threads, as directories go to one group
    /// after the other; of uxfs's own one for each design that `workload` is measured with.
    pub(crate) fn set(
        config: &Config,
        workload: Workload,
        bytes: u64,
        threads: usize,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let groups = u32::try_from(threads).unwrap_or(u32::MAX).max(4);
        let bytes = volume_bytes(bytes, groups);
        observer.note("making a volume");
        let own = config.designs(workload);
        let make = |designs: &Designs| UxfsFs::make(config, bytes, groups, *designs).map(Target::Uxfs);
        let mut targets = own.iter().map(make).collect::<Result<Vec<_>>>()?;
        let shape = Shape { bytes, groups: Some(groups) };
        let mut all = Vec::new();
        for versus in &config.versus {
            let compared = Compared::set(config, versus, shape, observer)?;
            targets.push(Target::Sys(SysFs::in_dir(compared.dir(), compared.suffix())?));
            all.push(compared);
        }
        Ok(Self { targets, _compared: all })
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
