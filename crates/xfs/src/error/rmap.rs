//! What can be wrong with a reverse map.

use crate::owner::Mapping;
use std::fmt;
use xfs_format::types::AgNumber;

/// The reverse map of a group does not say of blocks what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reverse map of group {ag} is damaged: {mapping}: {problem}")]
pub struct RmapDamage {
    /// The group.
    pub ag: AgNumber,
    /// The blocks that it is about, and who should have them; or the record that is bad.
    pub mapping: Mapping,
    /// What is wrong.
    pub problem: RmapProblem,
}

/// What a reverse map says wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmapProblem {
    /// No one record covers them for that owner. A record that has some of them, if there is one.
    NotMapped(Option<Mapping>),
    /// They are unwritten where they should be written, or the other way round.
    State,
    /// They have an owner already, or still: that record.
    Mapped(Mapping),
    /// No map can have this.
    Invalid(&'static str),
}

impl RmapDamage {
    pub(crate) const fn new(ag: AgNumber, mapping: &Mapping, problem: RmapProblem) -> Self {
        Self { ag, mapping: *mapping, problem }
    }
}

impl fmt::Display for RmapProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMapped(None) => f.write_str("not mapped"),
            Self::NotMapped(Some(found)) => write!(f, "not mapped, but {found}"),
            Self::State => f.write_str("mapped in the other state"),
            Self::Mapped(found) => write!(f, "mapped already: {found}"),
            Self::Invalid(check) => write!(f, "bad {check}"),
        }
    }
}
