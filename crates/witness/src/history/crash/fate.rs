//! The fate of writes that a power cut leaves in doubt.
//!
//! Invariant: all that is chosen follows from a number, so that an image can be named and made again.

use blockdev::{Fate, WriteRecord};
use fastrand::Rng;
use std::fmt;
use std::ops::Range;

/// How the fates of an image are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// All writes in doubt are lost.
    Dropped,
    /// None is.
    Applied,
    /// Any part of them, by this number; some torn.
    Any(u64),
    /// The same, but each write is there as a whole or not at all, except those to the log: the kernel finds out what of its
    /// records is there, however many of them came with one write.
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
    /// Chooses for one write after the other, on a device with such sectors and the log there.
    pub fn chooser(self, sector: u32, log: Range<u64>) -> impl FnMut(&WriteRecord) -> Fate {
        let seed = match self {
            Self::Any(seed) | Self::Whole(seed) => seed,
            Self::Dropped | Self::Applied => 0,
        };
        let mut rng = Rng::with_seed(seed);
        // Few are lost, or most: a fault may need either.
        let lost = [0.05, 0.2, 0.5, 0.8, 0.95][rng.usize(..5)];
        let torn = [0.02, 0.2, 0.6][rng.usize(..3)];
        move |write| {
            let tears = match self {
                Self::Dropped => return Fate::Dropped,
                Self::Applied => return Fate::Applied,
                Self::Any(_) => true,
                Self::Whole(_) => log.contains(&write.offset),
            };
            if tears && write.data.len() > sector as usize && rng.f64() < torn {
                Fate::Torn(kept(&mut rng, write.data.len() / sector as usize))
            } else if rng.f64() < lost {
                Fate::Dropped
            } else {
                Fate::Applied
            }
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
