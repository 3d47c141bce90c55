//! The table of features: for each that `mkfs.xfs` 6.18 knows, whether it is read, written, checked and made here.
//!
//! Every check that refuses a volume for its features asks this table. A feature that is not marked as written
//! prevents opening for writing. A bit without a row is refused by its number. So nothing is changed on volumes with
//! structures that this code does not maintain. [`FeatureMark`] says where a volume shows a feature, so no row can be
//! forgotten in a check.

use crate::features::{Features2, Incompat, LogIncompat, RoCompat, VersionFlags};
use crate::superblock::Superblock;

/// `sb_flags`: kernels mount the volume read-only.
pub(crate) const FLAG_READ_ONLY: u8 = 0x80;

/// Where a volume shows that it has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureMark {
    /// The format's version.
    Format(u16),
    /// A bit of `sb_versionnum`.
    Version(VersionFlags),
    /// Version 4 without the bit for version 2 directories.
    DirV1,
    /// A bit of `sb_features2`.
    Features2(Features2),
    /// A bit of `sb_features_ro_compat`.
    RoCompat(RoCompat),
    /// A bit of `sb_features_incompat`.
    Incompat(Incompat),
    /// A bit of `sb_features_log_incompat`.
    LogIncompat(LogIncompat),
    /// A bit of `sb_flags`.
    Flag(u8),
    /// The log lies on a device of its own.
    ExternalLog,
    /// There is a realtime section.
    Realtime,
    /// An attribute of the root directory, in the `trusted` namespace.
    RootAttribute(&'static str),
}

/// What is done with volumes that have a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// They are opened for reading, and their logs replayed.
    pub read: bool,
    /// They are opened for writing: all that belongs to the feature is maintained.
    pub written: bool,
    /// What belongs to the feature is checked.
    pub checked: bool,
    /// They are made.
    pub made: bool,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The name, as the tools write it.
    pub name: &'static str,
    /// Where a volume shows it.
    pub mark: FeatureMark,
    /// What is done with it.
    pub support: Support,
    /// The option of `mkfs.xfs` that asks for it.
    pub option: Option<(char, &'static str)>,
    /// Whether every volume since long ago has it, so that lists leave it out.
    pub usual: bool,
}

const fn row(name: &'static str, mark: FeatureMark, support: Support) -> Feature {
    Feature { name, mark, support, option: None, usual: false }
}

impl Feature {
    const fn option(self, letter: char, key: &'static str) -> Self {
        Self { option: Some((letter, key)), ..self }
    }

    const fn usual(self) -> Self {
        Self { usual: true, ..self }
    }
}

const NOTHING: Support = Support { read: false, written: false, checked: false, made: false };
const READ: Support = Support { read: true, checked: true, ..NOTHING };
const WRITTEN: Support = Support { written: true, ..READ };
const ALL: Support = Support { made: true, ..WRITTEN };

/// All rows.
pub const TABLE: &[Feature] = &[
    row("version 4 format", FeatureMark::Format(4), READ),
    row("crc", FeatureMark::Format(5), ALL).option('m', "crc"),
    row("attr", FeatureMark::Version(VersionFlags::ATTR), ALL).usual(),
    row("nlink", FeatureMark::Version(VersionFlags::NLINK), ALL).usual(),
    row("quota", FeatureMark::Version(VersionFlags::QUOTA), WRITTEN),
    row("align", FeatureMark::Version(VersionFlags::ALIGN), ALL).usual(),
    // Where data begin is advice.
    row("dalign", FeatureMark::Version(VersionFlags::DALIGN), WRITTEN).usual(),
    row("shared version number", FeatureMark::Version(VersionFlags::SHARED), NOTHING),
    row("logv2", FeatureMark::Version(VersionFlags::LOGV2), ALL).option('l', "version"),
    row("sector", FeatureMark::Version(VersionFlags::SECTOR), ALL).usual(),
    row("extflg", FeatureMark::Version(VersionFlags::EXTFLG), ALL).usual(),
    row("dirv2", FeatureMark::Version(VersionFlags::DIRV2), ALL).usual(),
    row("ascii-ci", FeatureMark::Version(VersionFlags::BORG), READ),
    row("morebits", FeatureMark::Version(VersionFlags::MOREBITS), ALL).usual(),
    row("version 1 directories", FeatureMark::DirV1, NOTHING),
    row("lazysbcount", FeatureMark::Features2(Features2::LAZYSBCOUNT), ALL).option('l', "lazy-count"),
    row("attr2", FeatureMark::Features2(Features2::ATTR2), ALL).option('i', "attr"),
    row("features2 parent", FeatureMark::Features2(Features2::PARENT), NOTHING),
    row("projid32", FeatureMark::Features2(Features2::PROJID32), ALL).option('i', "projid32bit"),
    row("features2 crc", FeatureMark::Features2(Features2::CRC), ALL).usual(),
    row("ftype", FeatureMark::Features2(Features2::FTYPE), READ),
    row("finobt", FeatureMark::RoCompat(RoCompat::FINOBT), ALL).option('m', "finobt"),
    row("rmapbt", FeatureMark::RoCompat(RoCompat::RMAPBT), ALL).option('m', "rmapbt"),
    row("reflink", FeatureMark::RoCompat(RoCompat::REFLINK), ALL).option('m', "reflink"),
    row("inobtcount", FeatureMark::RoCompat(RoCompat::INOBTCNT), ALL).option('m', "inobtcount"),
    row("ftype", FeatureMark::Incompat(Incompat::FTYPE), ALL).option('n', "ftype"),
    row("spinodes", FeatureMark::Incompat(Incompat::SPINODES), ALL).option('i', "sparse"),
    row("meta_uuid", FeatureMark::Incompat(Incompat::META_UUID), WRITTEN),
    row("bigtime", FeatureMark::Incompat(Incompat::BIGTIME), ALL).option('m', "bigtime"),
    row("needsrepair", FeatureMark::Incompat(Incompat::NEEDSREPAIR), NOTHING),
    row("nrext64", FeatureMark::Incompat(Incompat::NREXT64), ALL).option('i', "nrext64"),
    // It allows items in the log (XMI), and asks nothing of whoever logs none. Recovery finishes them.
    row("exchange", FeatureMark::Incompat(Incompat::EXCHRANGE), ALL).option('i', "exchange"),
    row("parent", FeatureMark::Incompat(Incompat::PARENT), ALL).option('n', "parent"),
    // Inodes of the metadata directory have a flag and no names that a path leads to: nothing of it changes.
    row("metadir", FeatureMark::Incompat(Incompat::METADIR), WRITTEN).option('m', "metadir"),
    row("zoned", FeatureMark::Incompat(Incompat::ZONED), NOTHING).option('r', "zoned"),
    row("zone-gaps", FeatureMark::Incompat(Incompat::ZONE_GAPS), NOTHING),
    // It allows items in the log (ATTRI), and asks nothing of whoever logs none.
    row("log xattrs", FeatureMark::LogIncompat(LogIncompat::XATTRS), WRITTEN),
    row("read-only flag", FeatureMark::Flag(FLAG_READ_ONLY), READ),
    row("external log", FeatureMark::ExternalLog, NOTHING).option('l', "logdev"),
    row("realtime section", FeatureMark::Realtime, NOTHING).option('r', "rtdev"),
    // What the kernel should do about damage. No change of the volume affects it.
    row("autofsck", FeatureMark::RootAttribute("xfs:autofsck"), WRITTEN).option('m', "autofsck"),
];

/// A feature that a volume has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its name; of a bit without a row, its word and number.
    pub name: String,
    /// What is done with it.
    pub support: Support,
    /// Whether a kernel that does not know the bit ignores it. For a bit of the log: while the log is clean.
    pub is_ignored: bool,
    /// The row; `None`: there is none.
    pub row: Option<&'static Feature>,
}

impl FeatureMark {
    /// Whether the superblock shows it. Attributes of the root directory are not there.
    pub fn is_in(self, sb: &Superblock) -> bool {
        let raw = sb.raw();
        match self {
            Self::Format(version) => sb.version() == version,
            Self::Version(bit) => sb.version_flags().contains(bit),
            Self::DirV1 => !sb.is_v5() && !sb.version_flags().contains(VersionFlags::DIRV2),
            Self::Features2(bit) => sb.features2().contains(bit),
            Self::RoCompat(bit) => sb.ro_compat().contains(bit),
            Self::Incompat(bit) => sb.incompat().contains(bit),
            Self::LogIncompat(bit) => sb.log_incompat().contains(bit),
            Self::Flag(bit) => raw.flags & bit != 0,
            Self::ExternalLog => raw.logstart.get() == 0,
            Self::Realtime => raw.rblocks.get() != 0 || raw.rextents.get() != 0,
            Self::RootAttribute(_) => false,
        }
    }

    /// The bit, if it is one of this word's.
    fn bit_of(self, word: Word) -> u32 {
        match (self, word) {
            (Self::Version(bit), Word::Version) => bit.bits().into(),
            (Self::Features2(bit), Word::Features2) => bit.bits(),
            (Self::RoCompat(bit), Word::RoCompat) => bit.bits(),
            (Self::Incompat(bit), Word::Incompat) => bit.bits(),
            (Self::LogIncompat(bit), Word::LogIncompat) => bit.bits(),
            (Self::Flag(bit), Word::Flags) => bit.into(),
            _ => 0,
        }
    }
}

/// A field of feature bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Version,
    Features2,
    Compat,
    RoCompat,
    Incompat,
    LogIncompat,
    Flags,
}

impl Word {
    const ALL: [Self; 7] = [
        Self::Version,
        Self::Features2,
        Self::Compat,
        Self::RoCompat,
        Self::Incompat,
        Self::LogIncompat,
        Self::Flags,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Version => "version flag",
            Self::Features2 => "features2 bit",
            Self::Compat => "compatible feature bit",
            Self::RoCompat => "read-only compatible feature bit",
            Self::Incompat => "incompatible feature bit",
            Self::LogIncompat => "log-incompatible feature bit",
            Self::Flags => "flag",
        }
    }

    fn of(self, sb: &Superblock) -> u32 {
        match self {
            Self::Version => sb.version_flags().bits().into(),
            Self::Features2 => sb.features2().bits(),
            Self::Compat if sb.is_v5() => sb.raw().features_compat.get(),
            Self::Compat => 0,
            Self::RoCompat => sb.ro_compat().bits(),
            Self::Incompat => sb.incompat().bits(),
            Self::LogIncompat => sb.log_incompat().bits(),
            Self::Flags => sb.raw().flags.into(),
        }
    }

    /// What the word means to code that does not know one of its bits. A log with such a bit is not replayed.
    fn support(self) -> Support {
        let read = matches!(self, Self::Compat | Self::RoCompat | Self::LogIncompat | Self::Flags);
        Support { read, ..NOTHING }
    }

    /// Bits that the volume has and no row knows.
    fn unknown(self, sb: &Superblock) -> impl Iterator<Item = Present> + use<> {
        let bits = TABLE.iter().fold(self.of(sb), |bits, row| bits & !row.mark.bit_of(self));
        let bits = (0..u32::BITS).map(|shift| 1 << shift).filter(move |bit| bits & bit != 0);
        bits.map(move |bit| Present {
            name: format!("{} {bit:#x}", self.name()),
            support: self.support(),
            is_ignored: matches!(self, Self::Compat | Self::LogIncompat),
            row: None,
        })
    }
}

/// All features of a volume that its superblock shows: those of the table in its order, then unknown bits.
pub fn present(sb: &Superblock) -> impl Iterator<Item = Present> {
    let rows = TABLE.iter().filter(|row| row.mark.is_in(sb)).map(Present::from);
    rows.chain(Word::ALL.into_iter().flat_map(|word| word.unknown(sb)))
}

/// Unknown bits that forbid to replay the log: their names.
pub fn unreplayable(sb: &Superblock) -> Vec<String> {
    Word::LogIncompat.unknown(sb).map(|feature| feature.name).collect()
}

/// The row of an option of `mkfs.xfs`.
pub fn of_option(letter: char, key: &str) -> Option<&'static Feature> {
    TABLE.iter().find(|row| row.option == Some((letter, key)))
}

/// The rows of the root directory's attributes of these names in the `trusted` namespace.
pub fn of_root_attributes<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Vec<Present> {
    let row_of = |name: &[u8]| {
        let is_it = |row: &&Feature| matches!(row.mark, FeatureMark::RootAttribute(known) if known.as_bytes() == name);
        TABLE.iter().find(is_it).map(Present::from)
    };
    names.into_iter().filter_map(row_of).collect()
}

impl From<&'static Feature> for Present {
    fn from(row: &'static Feature) -> Self {
        Self { name: row.name.to_owned(), support: row.support, is_ignored: false, row: Some(row) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bits that have a name have a row, and no other has one.
    #[test]
    fn every_known_bit_has_one_row() {
        let words = [
            (Word::Version, VersionFlags::all().bits().into()),
            (Word::Features2, Features2::all().bits()),
            (Word::RoCompat, RoCompat::all().bits()),
            (Word::Incompat, Incompat::all().bits()),
            (Word::LogIncompat, LogIncompat::all().bits()),
        ];
        for (word, known) in words {
            let bits: Vec<u32> =
                TABLE.iter().map(|row| row.mark.bit_of(word)).filter(|&bit| bit != 0).collect();
            assert!(bits.iter().all(|bit| bit.is_power_of_two()), "{word:?}");
            assert_eq!(bits.iter().fold(0, |all, bit| all ^ bit), known, "{word:?}");
            assert_eq!(bits.len() as u32, known.count_ones(), "{word:?}");
        }
    }

    #[test]
    fn what_is_written_can_be_read_and_what_is_made_is_checked() {
        for Feature { name, support, .. } in TABLE {
            assert!(support.read || !support.written, "{name}");
            assert!(support.checked || !support.made, "{name}");
        }
    }

    /// A feature that was once written without its structures.
    #[test]
    fn features_that_ask_more_of_writers_than_is_done_are_not_written() {
        for name in ["realtime section", "version 4 format", "ascii-ci", "zoned"] {
            let row = TABLE.iter().find(|row| row.name == name).expect("a row");
            assert!(!row.support.written, "{name}");
        }
    }

    #[test]
    fn options_lead_to_rows() {
        assert_eq!(of_option('n', "parent").map(|row| row.name), Some("parent"));
        assert_eq!(of_option('m', "rmapbt").map(|row| row.support.made), Some(true));
        assert_eq!(of_option('i', "rmapbt"), None);
    }
}
