//! By which handles the calls of a campaign go to a file.

use anyhow::{Result, bail};
use clap::ValueEnum;

/// See above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// Those that go past the page cache; nothing is ever cached.
    Direct,
    /// Those that go through it.
    Buffered,
    /// Either of both, with what a call changes durable when it returns.
    Syncing,
    /// Each call takes another one.
    Mixed,
}

impl Io {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Syncing => "syncing",
            Self::Mixed => "mixed",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|io| io.name() == name)
    }

    /// Whether anything is ever in memory alone.
    pub fn is_cached(self) -> bool {
        self != Self::Direct
    }

    /// Whether small writes are gathered in front of the device: half of the time where all kinds of handles are there.
    pub fn gathers(self, seed: u64) -> bool {
        self == Self::Mixed && !seed.is_multiple_of(2)
    }

    /// For a campaign that chooses handles itself.
    pub fn refuse(asked: Option<Self>, campaign: &str) -> Result<()> {
        match asked {
            None => Ok(()),
            Some(io) => bail!("{campaign} chooses handles itself: --io {} is not known to it", io.name()),
        }
    }
}
