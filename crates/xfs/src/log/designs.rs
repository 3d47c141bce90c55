//! The designs that the journal can be built from. Their names are those of the command line.
//!
//! The older ones are there for comparison in measurements. They are chosen when a volume is opened, and keep the same
//! guarantees.

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
            /// Both, the older first.
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

/// A name of neither design.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no design is called {name:?} (there are {}, {})", known[0], known[1])]
pub struct UnknownDesign {
    name: String,
    known: [&'static str; 2],
}

choice! {
    /// How open handles and their log space are counted.
    HandleCounts:
    /// Both under one lock, which a start takes once and a stop twice, as older kernels did.
    Locked = "locked",
    /// By atomics in a cache line per thread.
    Atomic = "atomic"
}

choice! {
    /// How log space is counted.
    Reservations:
    /// Under one lock, which every reservation and release takes, as older kernels did.
    Locked = "locked",
    /// By atomics. Most handles do not touch them: space that was given back serves the thread's next handle.
    Atomic = "atomic"
}

choice! {
    /// How commits join the checkpoint that gathers them.
    CilLocks:
    /// All into one list under one lock, while another lock, held shared, keeps the checkpoint open, as older kernels
    /// did.
    SingleLock = "single-lock",
    /// Into a list per thread, whose lock also keeps the checkpoint open.
    Sharded = "sharded"
}

choice! {
    /// When the log vectors of buffers and inodes are formatted.
    Vectors:
    /// By each commit, with all changes since the item was last written; the previous vector is discarded. Kernels do
    /// this.
    AtCommit = "at-commit",
    /// Once, when their checkpoint is closed.
    AtClose = "at-close"
}

/// What a journal is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Designs {
    /// How open handles are counted.
    pub handles: HandleCounts,
    /// How log space is counted.
    pub reservation: Reservations,
    /// How commits join a checkpoint.
    pub cil: CilLocks,
    /// When vectors are formatted.
    pub vectors: Vectors,
}

impl Designs {
    /// The older design in every choice.
    pub const OLDEST: Self = Self {
        handles: HandleCounts::Locked,
        reservation: Reservations::Locked,
        cil: CilLocks::SingleLock,
        vectors: Vectors::AtCommit,
    };

    /// Each differs from the default in one choice, where it has the older design.
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
    /// Lists only the older choices: nothing for the default.
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
        let all = "handles=locked reservation=locked cil=single-lock vectors=at-commit";
        assert_eq!(Designs::OLDEST.to_string(), all);
    }
}
