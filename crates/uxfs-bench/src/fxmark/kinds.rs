//! The names of the workloads, and what each does.

use crate::timer;

/// One of the workloads of FxMark. The first letter says data or metadata, the second reads or writes, the third what
/// of it, and the last how much threads share: low, medium, high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, clippy::upper_case_acronyms)]
pub enum FxMark {
    DRBL,
    DRBM,
    DRBH,
    DWOL,
    DWOM,
    DWAL,
    DWTL,
    DWSL,
    MRPL,
    MRPM,
    MRPH,
    MRDL,
    MRDM,
    MWCL,
    MWCM,
    MWUL,
    MWUM,
    MWRL,
    MWRM,
}

impl FxMark {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 19] = [
        Self::DRBL,
        Self::DRBM,
        Self::DRBH,
        Self::DWOL,
        Self::DWOM,
        Self::DWAL,
        Self::DWTL,
        Self::DWSL,
        Self::MRPL,
        Self::MRPM,
        Self::MRPH,
        Self::MRDL,
        Self::MRDM,
        Self::MWCL,
        Self::MWCM,
        Self::MWUL,
        Self::MWUM,
        Self::MWRL,
        Self::MWRM,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DRBL => "DRBL",
            Self::DRBM => "DRBM",
            Self::DRBH => "DRBH",
            Self::DWOL => "DWOL",
            Self::DWOM => "DWOM",
            Self::DWAL => "DWAL",
            Self::DWTL => "DWTL",
            Self::DWSL => "DWSL",
            Self::MRPL => "MRPL",
            Self::MRPM => "MRPM",
            Self::MRPH => "MRPH",
            Self::MRDL => "MRDL",
            Self::MRDM => "MRDM",
            Self::MWCL => "MWCL",
            Self::MWCM => "MWCM",
            Self::MWUL => "MWUL",
            Self::MWUM => "MWUM",
            Self::MWRL => "MWRL",
            Self::MWRM => "MWRM",
        }
    }

    /// What one operation of it is, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::DRBL => "read a block of a file of one's own",
            Self::DRBM => "read a block of one's own of a shared file",
            Self::DRBH => "read one block of a shared file, which all read",
            Self::DWOL => "overwrite a block of a file of one's own",
            Self::DWOM => "overwrite a block of one's own of a shared file",
            Self::DWAL => "append a block to a file of one's own",
            Self::DWTL => "cut a block off a file of one's own",
            Self::DWSL => "overwrite a block of a file of one's own, and sync it",
            Self::MRPL => "look up a path of five parts, of one's own",
            Self::MRPM => "look up any of 32,768 paths of five parts",
            Self::MRPH => "look up one path of five parts, which all look up",
            Self::MRDL => "list an entry of a directory of one's own",
            Self::MRDM => "list an entry of a shared directory",
            Self::MWCL => "make an empty file in a directory of one's own",
            Self::MWCM => "make a file of one block in a shared directory",
            Self::MWUL => "remove an empty file of a directory of one's own",
            Self::MWUM => "remove an empty file of a shared directory",
            Self::MWRL => "rename a file in a directory of one's own",
            Self::MWRM => "move a file from a directory of one's own to a shared one",
        }
    }

    /// One operation in so many is timed: what is made durable each time, other changes of files and names rarely, and
    /// what takes some hundred nanoseconds hardly ever.
    pub(super) const fn timed(self) -> u32 {
        match self {
            Self::DWSL => timer::EACH,
            Self::DWAL | Self::DWTL => timer::SHORT,
            Self::MWCL | Self::MWCM | Self::MWUL | Self::MWUM | Self::MWRL | Self::MWRM => timer::SHORT,
            Self::DRBL | Self::DRBM | Self::DRBH | Self::DWOL | Self::DWOM => timer::TINY,
            Self::MRPL | Self::MRPM | Self::MRPH | Self::MRDL | Self::MRDM => timer::TINY,
        }
    }

    /// Bytes of data that an operation moves.
    pub(super) const fn bytes(self) -> u64 {
        match self {
            Self::DRBL | Self::DRBM | Self::DRBH | Self::DWOL | Self::DWOM | Self::DWAL | Self::DWSL => 4096,
            _ => 0,
        }
    }
}

impl std::str::FromStr for FxMark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(text));
        named.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            format!("no workload of FxMark is called {text}; there are {}", names.join(", "))
        })
    }
}
