//! Which of several designs the journal is made of; the names are those of the command line.
//!
//! The older ones are there to be measured against. They are chosen when a volume is opened, and keep the same promises.

use std::fmt;
use std::str::FromStr;

/// A choice between an older and a newer design.
macro_rules! choice {
    (
        $(#[$about:meta])* $choice:ident:
        $(#[$old_about:meta])* $older:ident = $old_name:literal,
        $(#[$new_about:meta])* $newer:ident = $new_name:literal
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $choice {
            $(#[$old_about])*
            $older,
            $(#[$new_about])*
            #[default]
            $newer,
        }

        impl $choice {
            /// Both, the older one first.
            pub const ALL: [Self; 2] = [Self::$older, Self::$newer];

            /// Its name on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::$older => $old_name,
                    Self::$newer => $new_name,
                }
            }
        }

        impl fmt::Display for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $choice {
            type Err = UnknownDesign;

            fn from_str(name: &str) -> Result<Self, UnknownDesign> {
                let found = Self::ALL.into_iter().find(|design| design.name() == name);
                found.ok_or_else(|| UnknownDesign { name: name.to_owned(), known: [$old_name, $new_name] })
            }
        }
    };
}

/// A name that is neither design's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no design is called {name:?} (there are {}, {})", known[0], known[1])]
pub struct UnknownDesign {
    name: String,
    known: [&'static str; 2],
}

choice! {
    /// How open handles, and the log space that they hold, are counted.
    HandleCounts:
    /// Both under one lock, which a start takes once and a stop twice. What kernels did before.
    Locked = "locked",
    /// By atomics, a cache line of them for each thread.
    Atomic = "atomic"
}

choice! {
    /// How the space of the log is counted.
    Reservations:
    /// Under one lock, which whoever reserves or gives back takes. What kernels did before.
    Locked = "locked",
    /// By atomics, of which a handle seldom needs to know: what was given back serves the thread's next one.
    Atomic = "atomic"
}

choice! {
    /// How commits come into the checkpoint that gathers them.
    CilLocks:
    /// All into one list under one lock, while they hold a place in the checkpoint by another, shared. What kernels did
    /// before.
    SingleLock = "single-lock",
    /// Each thread's into a list of its own, whose lock is its place in the checkpoint as well.
    Sharded = "sharded"
}

choice! {
    /// What the vectors of items cost that commits bring into a checkpoint.
    Vectors:
    /// Each is made in two passes and two allocations while it comes in, and those that it replaces are freed meanwhile.
    /// What kernels did before.
    TwoPass = "two-pass",
    /// Each is sized and made once, before that, in the memory of an earlier one if that is large enough.
    OnePass = "one-pass"
}

/// What a journal is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Designs {
    /// How open handles are counted.
    pub handles: HandleCounts,
    /// How log space is counted.
    pub reservation: Reservations,
    /// How commits come into a checkpoint.
    pub cil: CilLocks,
    /// What their vectors cost.
    pub vectors: Vectors,
}

impl Designs {
    /// The older one of each.
    pub const OLDEST: Self = Self {
        handles: HandleCounts::Locked,
        reservation: Reservations::Locked,
        cil: CilLocks::SingleLock,
        vectors: Vectors::TwoPass,
    };

    /// Those that differ from today's in one choice, which is the older one.
    pub fn one_older() -> [Self; 4] {
        let (today, old) = (Self::default(), Self::OLDEST);
        [
            Self { handles: old.handles, ..today },
            Self { reservation: old.reservation, ..today },
            Self { cil: old.cil, ..today },
            Self { vectors: old.vectors, ..today },
        ]
    }
}

impl fmt::Display for Designs {
    /// The older ones alone: nothing where all are today's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { handles, reservation, cil, vectors } = *self;
        let today = Self::default();
        let choices = [
            (handles != today.handles).then(|| format!("handles={handles}")),
            (reservation != today.reservation).then(|| format!("reservation={reservation}")),
            (cil != today.cil).then(|| format!("cil={cil}")),
            (vectors != today.vectors).then(|| format!("vectors={vectors}")),
        ];
        f.write_str(&choices.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for design in HandleCounts::ALL {
            assert_eq!(design.to_string().parse(), Ok(design));
        }
        for design in Reservations::ALL {
            assert_eq!(design.to_string().parse(), Ok(design));
        }
        for design in CilLocks::ALL {
            assert_eq!(design.to_string().parse(), Ok(design));
        }
        for design in Vectors::ALL {
            assert_eq!(design.to_string().parse(), Ok(design));
        }
        let unknown = "spin".parse::<HandleCounts>().unwrap_err().to_string();
        assert_eq!(unknown, "no design is called \"spin\" (there are locked, atomic)");
    }

    #[test]
    fn only_older_designs_are_named() {
        assert_eq!(Designs::default().to_string(), "");
        assert_eq!(Designs::one_older()[2].to_string(), "cil=single-lock");
        let all = "handles=locked reservation=locked cil=single-lock vectors=two-pass";
        assert_eq!(Designs::OLDEST.to_string(), all);
    }
}
