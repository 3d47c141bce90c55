//! Which kernels mount a volume: the first release of Linux that reads each feature, and the first that writes it.
//!
//! A kernel refuses a volume that has an incompatible feature which it does not know, and mounts one with a read-only
//! compatible one for reading. So the first release that mounts a volume is that of its newest feature. Releases are
//! those of the kernel as its makers publish it; distributions take features into older ones. Version 4 and
//! case-insensitive names are build options of recent kernels, off by default, as realtime always was: which a kernel
//! has is not known here, so they are named.
//!
//! Invariant: each row of the table of features has a row here.

use crate::feature_table::{self, FeatureMark, Present};
use crate::features::{Features2, Incompat, LogIncompat, RoCompat, VersionFlags};
use crate::superblock::Superblock;
use std::fmt;

/// A release of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel {
    /// As 6 in 6.12.
    pub major: u16,
    /// As 12 in 6.12.
    pub minor: u16,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Kernel {
    /// From its name: two numbers with a dot between.
    pub fn parse(name: &str) -> Option<Self> {
        let (major, minor) = name.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

/// The first kernels that can do something with a volume. `None`: none can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// It mounts the volume, perhaps read-only.
    pub read: Option<Kernel>,
    /// It mounts the volume for writing.
    pub written: Option<Kernel>,
}

/// Before any release that someone could ask for.
const ALWAYS: Kernel = Kernel { major: 2, minor: 6 };

const fn kernel(major: u16, minor: u16) -> Option<Kernel> {
    Some(Kernel { major, minor })
}

const fn both(major: u16, minor: u16) -> Since {
    Since { read: kernel(major, minor), written: kernel(major, minor) }
}

/// A read-only compatible feature of version 5. All kernels that know the version mount it for reading.
const fn written(major: u16, minor: u16) -> Since {
    Since { read: V5.read, written: kernel(major, minor) }
}

const OLD: Since = Since { read: Some(ALWAYS), written: Some(ALWAYS) };
const V5: Since = both(3, 10);
const READ_ONLY: Since = Since { read: Some(ALWAYS), written: None };
const NEVER: Since = Since { read: None, written: None };

/// All rows.
const TABLE: &[(FeatureMark, Since)] = &[
    (FeatureMark::Format(4), OLD),
    (FeatureMark::Format(5), V5),
    (FeatureMark::Version(VersionFlags::ATTR), OLD),
    (FeatureMark::Version(VersionFlags::NLINK), OLD),
    (FeatureMark::Version(VersionFlags::QUOTA), OLD),
    (FeatureMark::Version(VersionFlags::ALIGN), OLD),
    (FeatureMark::Version(VersionFlags::DALIGN), OLD),
    (FeatureMark::Version(VersionFlags::SHARED), NEVER),
    (FeatureMark::Version(VersionFlags::LOGV2), OLD),
    (FeatureMark::Version(VersionFlags::SECTOR), OLD),
    (FeatureMark::Version(VersionFlags::EXTFLG), OLD),
    (FeatureMark::Version(VersionFlags::DIRV2), OLD),
    (FeatureMark::Version(VersionFlags::BORG), OLD),
    (FeatureMark::Version(VersionFlags::MOREBITS), OLD),
    (FeatureMark::DirV1, NEVER),
    (FeatureMark::Features2(Features2::LAZYSBCOUNT), OLD),
    (FeatureMark::Features2(Features2::ATTR2), OLD),
    (FeatureMark::Features2(Features2::PARENT), NEVER),
    (FeatureMark::Features2(Features2::PROJID32), OLD),
    (FeatureMark::Features2(Features2::CRC), V5),
    (FeatureMark::Features2(Features2::FTYPE), both(3, 12)),
    (FeatureMark::RoCompat(RoCompat::FINOBT), written(3, 16)),
    (FeatureMark::RoCompat(RoCompat::RMAPBT), written(4, 8)),
    (FeatureMark::RoCompat(RoCompat::REFLINK), written(4, 9)),
    (FeatureMark::RoCompat(RoCompat::INOBTCNT), written(5, 10)),
    (FeatureMark::Incompat(Incompat::FTYPE), both(3, 12)),
    (FeatureMark::Incompat(Incompat::SPINODES), both(4, 2)),
    (FeatureMark::Incompat(Incompat::META_UUID), both(4, 3)),
    (FeatureMark::Incompat(Incompat::BIGTIME), both(5, 10)),
    (FeatureMark::Incompat(Incompat::NEEDSREPAIR), NEVER),
    (FeatureMark::Incompat(Incompat::NREXT64), both(5, 19)),
    (FeatureMark::Incompat(Incompat::EXCHRANGE), both(6, 10)),
    (FeatureMark::Incompat(Incompat::PARENT), both(6, 10)),
    (FeatureMark::Incompat(Incompat::METADIR), both(6, 13)),
    (FeatureMark::Incompat(Incompat::ZONED), both(6, 15)),
    (FeatureMark::Incompat(Incompat::ZONE_GAPS), both(6, 15)),
    (FeatureMark::LogIncompat(LogIncompat::XATTRS), both(5, 19)),
    (FeatureMark::Flag(feature_table::FLAG_READ_ONLY), READ_ONLY),
    (FeatureMark::ExternalLog, OLD),
    (FeatureMark::Realtime, OLD),
    // For a daemon; kernels ignore it.
    (FeatureMark::RootAttribute("xfs:autofsck"), OLD),
];

/// Bytes of a page on most machines. Larger blocks need a kernel with large folios.
const PAGE_BYTES: u32 = 4096;
/// The first with blocks larger than pages.
const LARGE_BLOCKS: Since = both(6, 12);

impl FeatureMark {
    /// The first kernels that read and write volumes with it.
    pub fn since(self) -> Since {
        TABLE.iter().find(|(mark, _)| *mark == self).map_or(NEVER, |(_, since)| *since)
    }

    /// The build option without which recent kernels do not mount volumes with it.
    pub fn build_option(self) -> Option<&'static str> {
        match self {
            Self::Format(4) => Some("XFS_SUPPORT_V4"),
            Self::Version(VersionFlags::BORG) => Some("XFS_SUPPORT_ASCII_CI"),
            _ => None,
        }
    }
}

/// Which kernels mount a volume, on machines with pages of 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The first of all.
    pub since: Since,
    /// The features that keep older kernels from mounting it.
    pub read_because: Vec<String>,
    /// The features that keep older kernels from mounting it for writing.
    pub written_because: Vec<String>,
    /// Build options that a recent kernel needs for it, as `XFS_SUPPORT_V4`.
    pub build_options: Vec<&'static str>,
}

impl Kernels {
    /// Of a volume.
    pub fn of(sb: &Superblock) -> Self {
        let named = feature_table::present(sb).filter(|one| !one.row.is_some_and(|row| row.usual));
        let mut rows: Vec<(String, Since)> = named.map(|one| row(&one)).collect();
        if sb.raw().blocksize.get() > PAGE_BYTES {
            rows.push(("blocks larger than pages".to_owned(), LARGE_BLOCKS));
        }
        let (read, read_because) = youngest(&rows, |since| since.read);
        let (written, written_because) = youngest(&rows, |since| since.written);
        let build_options =
            feature_table::present(sb).filter_map(|one| one.row?.mark.build_option()).collect();
        Self { since: Since { read, written }, read_because, written_because, build_options }
    }
}

/// For an unknown bit, its word tells what a kernel does that does not know it.
fn row(feature: &Present) -> (String, Since) {
    let unknown = match feature.support.read {
        _ if feature.is_ignored => OLD,
        true => READ_ONLY,
        false => NEVER,
    };
    (feature.name.clone(), feature.row.map_or(unknown, |row| row.mark.since()))
}

/// The newest of some kernels, and the feature that needs it. No kernel at all counts as newer than
/// any.
fn youngest(
    rows: &[(String, Since)],
    of: impl Fn(&Since) -> Option<Kernel>,
) -> (Option<Kernel>, Vec<String>) {
    let rank = |kernel: Option<Kernel>| (kernel.is_none(), kernel);
    let Some(last) = rows.iter().map(|(_, since)| of(since)).max_by_key(|kernel| rank(*kernel)) else {
        return (Some(ALWAYS), Vec::new());
    };
    let whose = rows.iter().filter(|(_, since)| of(since) == last && last != Some(ALWAYS));
    (last, whose.map(|(name, _)| name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature_table::{Support, TABLE as FEATURES};

    #[test]
    fn every_feature_has_one_row_and_is_read_before_it_is_written() {
        for feature in FEATURES {
            let rows = TABLE.iter().filter(|(mark, _)| *mark == feature.mark).count();
            assert_eq!(rows, 1, "{}", feature.name);
            let since = feature.mark.since();
            assert!(since.written.is_none() || since.read <= since.written, "{}", feature.name);
            assert!(since.read.is_some() || since.written.is_none(), "{}", feature.name);
        }
        assert_eq!(TABLE.len(), FEATURES.len());
    }

    /// Kernels mount volumes with such bits, and those of the log, and write to them.
    #[test]
    fn bits_that_a_kernel_ignores_keep_none_off() {
        let support = |read| Support { read, written: false, checked: false, made: false };
        let since = |read, is_ignored| {
            row(&Present { name: "bit".to_owned(), support: support(read), is_ignored, row: None }).1
        };
        assert_eq!(since(true, true), OLD);
        assert_eq!(since(true, false), READ_ONLY);
        assert_eq!(since(false, false), NEVER);
    }

    #[test]
    fn releases_are_numbers() {
        assert_eq!(Kernel::parse("6.12"), kernel(6, 12));
        assert!(Kernel::parse("6.12") > Kernel::parse("6.6"));
        assert_eq!(kernel(5, 4).unwrap().to_string(), "5.4");
        assert!(["", "6", "6.", "6.1.2", "six.one"].iter().all(|name| Kernel::parse(name).is_none()));
    }

    #[test]
    fn what_none_mounts_is_younger_than_all() {
        let rows = [("old", OLD), ("new", both(6, 10)), ("flag", READ_ONLY), ("also", both(6, 10))];
        let rows = rows.map(|(name, since)| (name.to_owned(), since));
        let of =
            |rows: &[_], read: bool| youngest(rows, |since| if read { since.read } else { since.written });
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(of(&rows, true), (kernel(6, 10), named(&["new", "also"])));
        assert_eq!(of(&rows, false), (None, named(&["flag"])));
        assert_eq!(of(&rows[..1], true), (Some(ALWAYS), Vec::new()));
    }
}
