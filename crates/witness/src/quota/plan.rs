//! The properties of a run. All of them follow from its seed, so the virtual machine needs nothing else.

use crate::history::geometry::{self, Geometry};
use anyhow::{Context, Result};

/// Volumes of a run: those where dquots lie in different ways, a log that is so small that it wraps, one with a reverse
/// map, and the newest defaults that the kernel with quota mounts.
const GEOMETRIES: [&str; 7] =
    ["default", "b1024", "s4096", "small-log-b1024", "small-log", "rmapbt-b1024", "stable"];
/// This many of them are mounted by kernels that log switching quota off.
const OLD: usize = 6;

/// The kinds of quota that are kept, and whether their limits are enforced.
const MOUNTED: [&[Kept]; 6] = [
    &[Kept(Kind::User, true), Kept(Kind::Group, true), Kept(Kind::Project, true)],
    &[Kept(Kind::User, false), Kept(Kind::Group, false), Kept(Kind::Project, false)],
    &[Kept(Kind::User, true), Kept(Kind::Group, false), Kept(Kind::Project, true)],
    &[Kept(Kind::User, true)],
    &[Kept(Kind::Group, true), Kept(Kind::Project, true)],
    &[Kept(Kind::User, false), Kept(Kind::Project, true)],
];

/// Owners of files: several per dquot block, at its ends, and in distant blocks.
pub(super) const USERS: [u32; 9] = [0, 1, 6, 7, 30, 481, 1000, 70_000, 3_000_000_000];
/// Their groups.
pub(super) const GROUPS: [u32; 6] = [0, 2, 29, 31, 1000, 2_500_000_000];
/// Projects of the directories with the files.
pub(super) const PROJECTS: [u32; 5] = [0, 5, 14, 65_536, 2_000_000_000];

/// User, group or project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    User,
    Group,
    Project,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// Its letter in options of programs.
    pub(super) const fn letter(self) -> char {
        match self {
            Self::User => 'u',
            Self::Group => 'g',
            Self::Project => 'p',
        }
    }

    /// All ids that files of a run may belong to.
    pub(super) const fn ids(self) -> &'static [u32] {
        match self {
            Self::User => &USERS,
            Self::Group => &GROUPS,
            Self::Project => &PROJECTS,
        }
    }
}

/// A kind of quota that is kept, and whether its limits are enforced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept(pub(super) Kind, pub(super) bool);

/// The properties of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) geometry: Geometry,
    pub(super) kept: &'static [Kept],
    /// The log is written before the end.
    pub(super) flush: bool,
    /// Files without a name are open at the end.
    pub(super) held: bool,
    /// A kind that is switched off in between, if the kernel still does that.
    pub(super) off: Option<Kind>,
}

impl Plan {
    /// The plan of a seed. With `quota_off`, quota is switched off in two of three runs.
    pub(super) fn new(seed: u64, quota_off: bool) -> Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x7175_6f74_6173);
        let known = if quota_off { OLD } else { GEOMETRIES.len() };
        let name = GEOMETRIES[seed as usize % known];
        let geometry = geometry::ALL.into_iter().find(|geometry| geometry.volume.name == name);
        let kept = MOUNTED[seed as usize % MOUNTED.len()];
        let (flush, held) = (rng.bool(), rng.u8(0..4) == 0);
        let off = (quota_off && rng.u8(0..3) > 0).then(|| kept[rng.usize(0..kept.len())].0);
        Ok(Self { seed, geometry: geometry.context("no such geometry")?, kept, flush, held, off })
    }

    /// Options of its mount.
    pub(super) fn options(&self) -> String {
        self.join(self.kept.iter())
    }

    /// Mount options after the crash: what was switched off stays off.
    pub(super) fn options_afterwards(&self) -> String {
        self.join(self.kept.iter().filter(|kept| Some(kept.0) != self.off))
    }

    /// The kinds that are still kept after the crash.
    pub(super) fn kept_afterwards(&self) -> impl Iterator<Item = Kind> + use<> {
        let off = self.off;
        self.kept.iter().map(|kept| kept.0).filter(move |&kind| Some(kind) != off)
    }

    fn join<'k>(&self, kept: impl Iterator<Item = &'k Kept>) -> String {
        let word = |&Kept(kind, limits): &Kept| {
            format!("{}{}", kind.letter(), if limits { "quota" } else { "qnoenforce" })
        };
        kept.map(word).collect::<Vec<_>>().join(",")
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.geometry.volume.name, self.options())?;
        f.write_str(if self.flush { ", log written" } else { "" })?;
        f.write_str(if self.held { ", files without a name" } else { "" })?;
        self.off.map_or(Ok(()), |off| write!(f, ", {off:?} switched off"))
    }
}
