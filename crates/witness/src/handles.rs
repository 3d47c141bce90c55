//! The handles for a campaign's calls.

use anyhow::{Result, bail};
use clap::ValueEnum;
use std::sync::atomic::{AtomicUsize, Ordering};
use uxfs::{File, Syncing};

/// The kinds of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// Those that bypass the page cache; nothing is ever cached.
    Direct,
    /// Those that go through it.
    Buffered,
    /// Either kind, with changes durable when a call returns, including times or not.
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

    /// Whether small writes are gathered before the device: in half of the runs if all kinds of handles are used.
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

/// An open file, by one handle or by several that calls take in turn.
#[derive(Debug)]
pub struct Handles {
    file: File,
    /// Further handles for calls, if there are any.
    kinds: Vec<File>,
    turn: AtomicUsize,
}

impl Handles {
    /// Those of a file.
    pub fn new(file: File, io: Io) -> Self {
        let kinds = match io {
            Io::Direct => Vec::new(),
            Io::Buffered => vec![file.buffered()],
            Io::Syncing => syncing(&file).into(),
            Io::Mixed => syncing(&file).into_iter().flat_map(|one| among_others(&file, one)).collect(),
        };
        // Files begin with different ones.
        let turn = AtomicUsize::new(file.node().ino() as usize / 3);
        Self { file, kinds, turn }
    }

    /// The one past the page cache, whose changes are durable when somebody syncs.
    pub fn plain(&self) -> &File {
        &self.file
    }

    /// The next handle in turn.
    pub fn next(&self) -> &File {
        self.nth(self.turn.fetch_add(1, Ordering::Relaxed))
    }

    /// One of them, by any number.
    pub fn nth(&self, nth: usize) -> &File {
        if self.kinds.is_empty() { &self.file } else { &self.kinds[nth % self.kinds.len()] }
    }
}

/// The four that make each change durable.
fn syncing(file: &File) -> [File; 4] {
    let (buffered, [data, all]) = (file.buffered(), [Syncing::Data, Syncing::All]);
    [file.syncing(data), buffered.syncing(data), file.syncing(all), buffered.syncing(all)]
}

/// One that syncs, together with others that leave dirty bytes for it.
fn among_others(file: &File, syncing: File) -> [File; 6] {
    let buffered = file.buffered();
    [buffered.clone(), file.clone(), buffered.clone(), buffered, file.direct(), syncing]
}
