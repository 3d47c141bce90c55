//! Which design keeps the requests on one file apart; the names are those of the command line.

use std::fmt;
use std::str::FromStr;

/// How the bytes in flight of one file are locked. All but [`Range`](Self::Range) are there to be measured
/// against, with the feature `designs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Locking {
    /// One reader-writer lock for the whole file; every writer takes it exclusively. What kernels did before.
    #[cfg(feature = "designs")]
    Exclusive,
    /// One reader-writer lock for the whole file; overwrites of whole sectors take it shared, as kernels do now,
    /// so that overlapping ones are not kept apart.
    #[cfg(feature = "designs")]
    Shared,
    /// Exact ranges, in an interval tree under a spin lock.
    #[cfg(feature = "designs")]
    IntervalTree,
    /// Exact ranges, in a B-tree under a mutex.
    #[cfg(feature = "designs")]
    BTree,
    /// Exact ranges, in the scalable range lock.
    #[default]
    Range,
}

impl Locking {
    /// Every design, from the oldest on.
    #[cfg(feature = "designs")]
    pub const ALL: [Self; 5] = [Self::Exclusive, Self::Shared, Self::IntervalTree, Self::BTree, Self::Range];
    /// Every design: this one.
    #[cfg(not(feature = "designs"))]
    pub const ALL: [Self; 1] = [Self::Range];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "designs")]
            Self::Exclusive => "exclusive",
            #[cfg(feature = "designs")]
            Self::Shared => "shared",
            #[cfg(feature = "designs")]
            Self::IntervalTree => "interval-tree",
            #[cfg(feature = "designs")]
            Self::BTree => "btree",
            Self::Range => "range",
        }
    }
}

impl fmt::Display for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is none of the designs'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no locking is called {0:?} (there are {all})", all = Locking::ALL.map(Locking::name).join(", "))]
pub struct UnknownLocking(String);

impl FromStr for Locking {
    type Err = UnknownLocking;

    fn from_str(name: &str) -> Result<Self, UnknownLocking> {
        Self::ALL.into_iter().find(|l| l.name() == name).ok_or_else(|| UnknownLocking(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for locking in Locking::ALL {
            assert_eq!(locking.to_string().parse(), Ok(locking));
        }
        assert!("rwsem".parse::<Locking>().unwrap_err().to_string().contains("there are"));
        assert_eq!(Locking::default(), Locking::Range);
    }
}
