//! The files, and what must be in them.
//!
//! Invariants:
//! - each thread has a part of every known file, at the same place in all of them, which only it changes. What moves
//!   others' parts is done by one thread while the others wait;
//! - the content of the common files is not known, but each sector of them is zero, or as somebody wrote it for them.

use super::field::{SECTOR, SectorHistory, Span, number};
use crate::handles::{Handles, Io};
use anyhow::{Context, Result, ensure};
use blockdev::Recorder;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use uxfs::{NewNode, Volume};

/// A file and its clones.
pub(super) const KNOWN: [&str; 3] = ["file", "clone", "other"];
/// Files that all threads change all the time.
pub(super) const COMMON: [&str; 2] = ["common", "commons"];
/// Numbers that are written to common files have this bit.
const OF_COMMON: u64 = 1 << 63;
/// Usual size of a common file in bytes.
pub(super) const COMMON_BYTES: u64 = 1 << 20;

/// A thread's part of each file, by sector.
pub(super) type Parts = [Vec<SectorHistory>; KNOWN.len()];

/// The files, and what must be in them.
pub(super) struct Site {
    pub(super) known: [Handles; KNOWN.len()],
    pub(super) common: [Handles; COMMON.len()],
    /// One per thread.
    pub(super) parts: Vec<Mutex<Parts>>,
    /// Sizes of the known files.
    pub(super) sizes: Mutex<[SectorHistory; KNOWN.len()]>,
    /// Held exclusively by a thread that moves others' parts.
    pub(super) order: RwLock<()>,
    pub(super) block: u64,
    /// Sectors of a part.
    pub(super) part: usize,
    pub(super) exchanges: bool,
    /// Kernels recover the files as well.
    pub(super) same_sizes: bool,
    next: AtomicU64,
    syncs: Mutex<Vec<Span>>,
    trace: Mutex<Vec<(Span, String)>>,
    clock: Arc<Recorder>,
}

/// What must be in the files, at any time.
pub(super) struct Expected {
    parts: Vec<Parts>,
    sizes: [SectorHistory; KNOWN.len()],
    syncs: Vec<Span>,
    last: u64,
    /// Everything that was done to the known files.
    trace: Vec<(Span, String)>,
}

impl Site {
    /// Makes the files on a fresh volume.
    pub(super) fn new(
        volume: &Volume,
        clock: Arc<Recorder>,
        threads: usize,
        exchanges: bool,
        same_sizes: bool,
        io: Io,
    ) -> Result<Self> {
        let root = volume.root()?.as_dir()?;
        let file = |name: &str, bytes: u64| -> Result<Handles> {
            let file = root.create_file(name.as_bytes(), &NewNode::default())?.open()?;
            file.set_len(bytes)?;
            Ok(Handles::new(file, io))
        };
        let block = u64::from(root.node().metadata()?.block_size);
        let part = (256 << 10).max(block * 16);
        let bytes = part * threads as u64;
        let part = part as usize / SECTOR;
        let known = [file(KNOWN[0], bytes)?, file(KNOWN[1], bytes)?, file(KNOWN[2], bytes)?];
        let common = [file(COMMON[0], COMMON_BYTES)?, file(COMMON[1], COMMON_BYTES)?];
        let empty = || Mutex::new([(); KNOWN.len()].map(|()| vec![SectorHistory::new(0); part]));
        volume.sync()?;
        Ok(Self {
            known,
            common,
            parts: (0..threads).map(|_| empty()).collect(),
            sizes: Mutex::new([(); KNOWN.len()].map(|()| SectorHistory::new(bytes))),
            order: RwLock::new(()),
            block,
            part,
            exchanges,
            same_sizes,
            next: AtomicU64::new(1),
            syncs: Mutex::default(),
            trace: Mutex::default(),
            clock,
        })
    }

    /// A unique time.
    pub(super) fn now(&self) -> u64 {
        self.clock.moment()
    }

    /// A unique number.
    pub(super) fn number(&self, of_common: bool) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) | if of_common { OF_COMMON } else { 0 }
    }

    /// Everything that had ended before this time is durable.
    pub(super) fn durable(&self) -> u64 {
        self.syncs.lock().expect("no panic").iter().map(|sync| sync.begun).max().unwrap_or(0)
    }

    /// Makes all durable.
    pub(super) fn sync(&self, volume: &Volume) -> Result<()> {
        let begun = self.now();
        volume.sync()?;
        let sync = Span { begun, ended: self.now() };
        self.syncs.lock().expect("no panic").push(sync);
        self.note(sync, "sync".to_owned());
        Ok(())
    }

    /// Whether this can be in a common file.
    pub(super) fn is_common(&self, number: u64) -> bool {
        is_common(number, self.next.load(Ordering::Relaxed))
    }

    /// Records for people what was done when.
    pub(super) fn note(&self, span: Span, what: String) {
        self.trace.lock().expect("no panic").push((span, what));
    }

    /// The last operations, one per line.
    pub(super) fn last_notes(&self) -> String {
        const SHOWN: usize = 12;
        let trace = self.trace.lock().expect("no panic");
        let last = &trace[trace.len().saturating_sub(SHOWN)..];
        last.iter().map(|(span, what)| format!("\n  {}..{} {what}", span.begun, span.ended)).collect()
    }

    /// What must be there once nobody changes it any more.
    pub(super) fn into_expected(self) -> Expected {
        Expected {
            parts: self.parts.into_iter().map(|part| part.into_inner().expect("no panic")).collect(),
            sizes: self.sizes.into_inner().expect("no panic"),
            syncs: self.syncs.into_inner().expect("no panic"),
            trace: self.trace.into_inner().expect("no panic"),
            last: self.next.into_inner(),
        }
    }
}

fn is_common(number: u64, next: u64) -> bool {
    number == 0 || number & OF_COMMON != 0 && number & !OF_COMMON < next
}

impl Expected {
    /// What was done, one call per line, in the order in which the calls ended.
    pub(super) fn trace(&self) -> String {
        let line = |(span, what): &(Span, String)| format!("{} to {}: {what}\n", span.begun, span.ended);
        self.trace.iter().map(line).collect()
    }

    /// Checks that all files are as they may be after a crash at `cut`; without one, as they must be at the end.
    pub(super) fn check(&self, cut: Option<u64>, read: impl Fn(&str) -> Result<Vec<u8>>) -> Result<()> {
        let before = |sync: &&Span| cut.is_none_or(|cut| sync.ended < cut);
        let durable = self.syncs.iter().filter(before).map(|sync| sync.begun).max().unwrap_or(0);
        let may_be = |place: &SectorHistory, number: u64| match cut {
            Some(cut) => place.may_be_behind(number, cut, durable),
            None => place.may_be(number),
        };
        for (file, name) in KNOWN.into_iter().enumerate() {
            let bytes = read(name)?;
            ensure!(may_be(&self.sizes[file], bytes.len() as u64), "{name} has {} bytes", bytes.len());
            let places = self.parts.iter().flat_map(|parts| &parts[file]);
            for (nth, (sector, place)) in bytes.chunks(SECTOR).zip(places).enumerate() {
                let found = number(sector).with_context(|| format!("{name}, sector {nth}"))?;
                ensure!(
                    may_be(place, found),
                    "{name}, sector {nth}: {found:x} at {cut:?}, synced at {durable}, instead of one of {place:?}"
                );
            }
        }
        for name in COMMON {
            for (nth, sector) in read(name)?.chunks(SECTOR).enumerate() {
                let found = number(sector).with_context(|| format!("{name}, sector {nth}"))?;
                ensure!(is_common(found, self.last), "{name}, sector {nth}: {found:x} is not of this file");
            }
        }
        Ok(())
    }
}
