//! Which kernels mount a volume: the first release of Linux that reads each feature, and the first that writes it.
//!
//! A kernel refuses a volume that has an incompatible feature which it does not know, and mounts one with a read-only
//! compatible one for reading. So the release that mounts a volume is that of its youngest feature. Releases are those of
//! the kernel as its makers publish it; distributions take features into older ones. What a kernel was built with is
//! not known here: recent ones have version 4 and names that ignore case as options, which are off.
//!
//! Invariant: each row of the table of features has a row here.

use crate::feature_table::{self, Mark, Present};
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
    /// It is mounted, perhaps for reading alone.
    pub read: Option<Kernel>,
    /// It is mounted for writing.
    pub written: Option<Kernel>,
}

/// Before the first release that anybody would ask for.
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
const TABLE: &[(Mark, Since)] = &[
    (Mark::Format(4), OLD),
    (Mark::Format(5), V5),
    (Mark::Version(VersionFlags::ATTR), OLD),
    (Mark::Version(VersionFlags::NLINK), OLD),
    (Mark::Version(VersionFlags::QUOTA), OLD),
    (Mark::Version(VersionFlags::ALIGN), OLD),
    (Mark::Version(VersionFlags::DALIGN), OLD),
    (Mark::Version(VersionFlags::SHARED), NEVER),
    (Mark::Version(VersionFlags::LOGV2), OLD),
    (Mark::Version(VersionFlags::SECTOR), OLD),
    (Mark::Version(VersionFlags::EXTFLG), OLD),
    (Mark::Version(VersionFlags::DIRV2), OLD),
    (Mark::Version(VersionFlags::BORG), OLD),
    (Mark::Version(VersionFlags::MOREBITS), OLD),
    (Mark::DirV1, NEVER),
    (Mark::Features2(Features2::LAZYSBCOUNT), OLD),
    (Mark::Features2(Features2::ATTR2), OLD),
    (Mark::Features2(Features2::PARENT), NEVER),
    (Mark::Features2(Features2::PROJID32), OLD),
    (Mark::Features2(Features2::CRC), V5),
    (Mark::Features2(Features2::FTYPE), both(3, 12)),
    (Mark::RoCompat(RoCompat::FINOBT), written(3, 16)),
    (Mark::RoCompat(RoCompat::RMAPBT), written(4, 8)),
    (Mark::RoCompat(RoCompat::REFLINK), written(4, 9)),
    (Mark::RoCompat(RoCompat::INOBTCNT), written(5, 10)),
    (Mark::Incompat(Incompat::FTYPE), both(3, 12)),
    (Mark::Incompat(Incompat::SPINODES), both(4, 2)),
    (Mark::Incompat(Incompat::META_UUID), both(4, 3)),
    (Mark::Incompat(Incompat::BIGTIME), both(5, 10)),
    (Mark::Incompat(Incompat::NEEDSREPAIR), NEVER),
    (Mark::Incompat(Incompat::NREXT64), both(5, 19)),
    (Mark::Incompat(Incompat::EXCHRANGE), both(6, 10)),
    (Mark::Incompat(Incompat::PARENT), both(6, 10)),
    (Mark::Incompat(Incompat::METADIR), both(6, 13)),
    (Mark::Incompat(Incompat::ZONED), both(6, 15)),
    (Mark::Incompat(Incompat::ZONE_GAPS), both(6, 15)),
    (Mark::LogIncompat(LogIncompat::XATTRS), both(5, 19)),
    (Mark::Flag(feature_table::FLAG_READ_ONLY), READ_ONLY),
    (Mark::ExternalLog, OLD),
    (Mark::Realtime, OLD),
    // No kernel cares; a daemon does.
    (Mark::RootAttribute("xfs:autofsck"), OLD),
];

/// Bytes of a page on most machines. Blocks that are larger take a kernel that has memory in larger pieces.
const PAGE_BYTES: u32 = 4096;
/// The first with blocks larger than pages.
const LARGE_BLOCKS: Since = both(6, 12);

impl Mark {
    /// The first kernels that read and write volumes with it.
    pub fn since(self) -> Since {
        TABLE.iter().find(|(mark, _)| *mark == self).map_or(NEVER, |(_, since)| *since)
    }
}

/// Which kernels mount a volume, on machines with pages of 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The first of all.
    pub since: Since,
    /// For what older ones do not mount it.
    pub read_because: Vec<String>,
    /// For what older ones do not mount it for writing.
    pub written_because: Vec<String>,
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
        Self { since: Since { read, written }, read_because, written_because }
    }
}

/// Of a bit that nobody here knows, the word that it is in tells what a kernel that does not know it does.
fn row(feature: &Present) -> (String, Since) {
    let unknown = match feature.support.read {
        _ if feature.is_ignored => OLD,
        true => READ_ONLY,
        false => NEVER,
    };
    (feature.name.clone(), feature.row.map_or(unknown, |row| row.mark.since()))
}

/// The youngest kernel of some, and whose it is. None at all is younger than any.
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
