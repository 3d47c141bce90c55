//! What becomes of the writes that a power cut leaves in doubt.
//!
//! Invariant: all that is chosen follows from a number, so that an image can be named and made again.

use blockdev::{Fate, WriteRecord};
use fastrand::Rng;
use std::fmt;

/// How the fates of an image are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// All writes in doubt are lost.
    Dropped,
    /// None is.
    Applied,
    /// Any part of them, by this number; some torn.
    Any(u64),
    /// The same, but each write is there as a whole or not at all.
    Whole(u64),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => f.write_str("dropped"),
            Self::Applied => f.write_str("applied"),
            Self::Any(seed) => write!(f, "any-{seed:x}"),
            Self::Whole(seed) => write!(f, "whole-{seed:x}"),
        }
    }
}

impl Choice {
    /// Chooses for one write after the other.
    pub fn chooser(self, sector: u32) -> impl FnMut(&WriteRecord) -> Fate {
        let (seed, tears) = match self {
            Self::Any(seed) => (seed, true),
            Self::Whole(seed) => (seed, false),
            Self::Dropped | Self::Applied => (0, false),
        };
        let mut rng = Rng::with_seed(seed);
        // Few lost, or most: what is wrong may need either.
        let lost = [0.05, 0.2, 0.5, 0.8, 0.95][rng.usize(..5)];
        let torn = if tears { [0.02, 0.2, 0.6][rng.usize(..3)] } else { 0.0 };
        move |write| match self {
            Self::Dropped => Fate::Dropped,
            Self::Applied => Fate::Applied,
            Self::Any(_) | Self::Whole(_) if rng.f64() < torn && write.data.len() > sector as usize => {
                Fate::Torn(kept(&mut rng, write.data.len() / sector as usize))
            }
            Self::Any(_) | Self::Whole(_) if rng.f64() < lost => Fate::Dropped,
            Self::Any(_) | Self::Whole(_) => Fate::Applied,
        }
    }
}

/// Which sectors of a write are there: the first of them, the last, or any.
fn kept(rng: &mut Rng, sectors: usize) -> Vec<bool> {
    let cut = rng.usize(1..sectors);
    match rng.u32(..3) {
        0 => (0..sectors).map(|sector| sector < cut).collect(),
        1 => (0..sectors).map(|sector| sector >= cut).collect(),
        _ => (0..sectors).map(|_| rng.bool()).collect(),
    }
}
