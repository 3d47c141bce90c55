//! Corruption of an rmap tree.

use crate::owner::Mapping;
use std::fmt;
use xfs_format::types::AgNumber;

/// The rmap tree of a group does not match what it should have for some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reverse map of group {ag} is damaged: {mapping}: {problem}")]
pub struct RmapDamage {
    /// The group.
    pub ag: AgNumber,
    /// The blocks and their expected owner, or the bad record.
    pub mapping: Mapping,
    /// The mismatch.
    pub problem: RmapProblem,
}

/// What is wrong in an rmap tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmapProblem {
    /// No single record covers them for that owner. If a record has some of them, it is given.
    NotMapped(Option<Mapping>),
    /// They are unwritten instead of written, or vice versa.
    State,
    /// They have an owner already, or still, by this record.
    Mapped(Mapping),
    /// No rmap tree can have this record.
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
