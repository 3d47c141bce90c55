//! What a thread does in a round.
//!
//! Invariant: the times of a call are taken before it begins and after it has ended, from one counter. If one call
//! ended before another began, the counter shows it.

use super::event::{By, Event, EventOutcome, Op, WORD, Words};
use anyhow::{Context, Result, ensure};
use blockdev::AlignedBuf;
use fastrand::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{ErrorKind, File};

/// How often a thread checks whether the others are there before it begins.
const LOOKS: u32 = 2000;

/// What all threads share.
pub(super) struct Site {
    clock: AtomicU64,
    stamps: AtomicU64,
    arrived: AtomicU64,
    plan: Mutex<Plan>,
}

/// A round. Numbers are in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The number of threads, and of calls per thread.
    pub(super) threads: usize,
    pub(super) calls: usize,
    /// The bytes that many calls are about.
    pub(super) at: u64,
    pub(super) len: u64,
    /// Size of the file when it begins.
    pub(super) size: u64,
    /// Maximum words of a file.
    pub(super) most: u64,
    pub(super) mood: Mood,
}

/// Which calls are frequent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// Reads and writes of the same bytes.
    Meet,
    /// Moving and checking the end of the file.
    End,
    /// All of them.
    All,
}

impl Site {
    pub(super) fn new() -> Self {
        let plan = Plan { threads: 0, calls: 0, at: 0, len: 1, size: 0, most: 1, mood: Mood::All };
        Self {
            clock: AtomicU64::new(1),
            stamps: AtomicU64::new(1),
            arrived: AtomicU64::new(0),
            plan: Mutex::new(plan),
        }
    }

    pub(super) fn plan(&self) -> Plan {
        *self.plan.lock().expect("no panic")
    }

    /// Sets the next plan, while no thread does anything.
    pub(super) fn set_plan(&self, plan: Plan) {
        self.arrived.store(0, Ordering::SeqCst);
        *self.plan.lock().expect("no panic") = plan;
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits briefly for the others, so that calls overlap.
    fn meet(&self, threads: usize) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        for look in 0..LOOKS {
            if self.arrived.load(Ordering::SeqCst) >= threads as u64 {
                return;
            }
            if look % 100 == 99 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// A thread, with handles of its own.
pub(super) struct Worker<'a> {
    pub(super) site: &'a Site,
    pub(super) thread: usize,
    pub(super) rng: Rng,
    pub(super) direct: File,
    pub(super) buffered: File,
    /// Another file.
    pub(super) beside: File,
}

impl Worker<'_> {
    /// Does its calls of a round.
    pub(super) fn round(&mut self) -> Result<Vec<Event>> {
        let plan = self.site.plan();
        if self.thread >= plan.threads {
            return Ok(Vec::new());
        }
        let calls: Vec<(By, Op)> = (0..plan.calls).map(|_| self.choose(&plan)).collect();
        self.site.meet(plan.threads);
        calls.into_iter().map(|(by, op)| self.call(by, op)).collect()
    }

    /// Does a call.
    pub(super) fn call(&self, by: By, op: Op) -> Result<Event> {
        let file = if by == By::Buffered { &self.buffered } else { &self.direct };
        let begun = self.site.now();
        let done = if by == By::Queue { self.queued(op) } else { self.called(file, op) };
        let ended = self.site.now();
        let outcome = match done {
            Ok(outcome) => outcome,
            Err(error) => refusal(op, error.kind())
                .ok_or(error)
                .with_context(|| format!("thread {}, {by}: {op}", self.thread))?,
        };
        let outcome = in_words(outcome).with_context(|| format!("{begun} to {ended}: {by}: {op}"))?;
        Ok(Event { thread: self.thread, by, begun, ended, op, outcome })
    }

    fn called(&self, file: &File, op: Op) -> uxfs::Result<Found> {
        let bytes = |at: u64, len: u64| at * WORD..(at + len) * WORD;
        match op {
            Op::Read { at, len } => {
                let mut buf = vec![0xee; (len * WORD) as usize];
                let count = file.read_at(&mut buf, at * WORD)?;
                buf.truncate(count);
                return Ok(Found::Content(buf));
            }
            Op::Write { at, len, stamp } => file.write_at(&filled(len, stamp), at * WORD)?,
            Op::Overwrite { at, len, stamp } => file.overwrite_at(&filled(len, stamp), at * WORD)?,
            Op::Append { len, stamp } => return Ok(Found::Bytes(file.append(&filled(len, stamp))?)),
            Op::SetLen { size } => file.set_len(size * WORD)?,
            Op::Punch { at, len } => file.punch_hole(bytes(at, len))?,
            Op::Zero { at, len } => file.zero_range(bytes(at, len), false)?,
            Op::Size => return Ok(Found::Bytes(file.size())),
            Op::Stat => return Ok(Found::Bytes(file.metadata().size)),
            Op::Sync => file.sync()?,
            Op::Seek => drop(file.seek_data(0)?),
            Op::Evict => drop(self.beside.read_at(&mut [0; 65536], 0)?),
        }
        Ok(Found::Nothing)
    }

    /// Through a queue that is made for this.
    fn queued(&self, op: Op) -> uxfs::Result<Found> {
        let mut queue = self.direct.queue(2)?;
        match op {
            Op::Read { at, len } => {
                queue.push_read(at * WORD, AlignedBuf::zeroed((len * WORD) as usize), 0)?
            }
            Op::Overwrite { at, len, stamp } => {
                queue.push_overwrite(at * WORD, AlignedBuf::copied(&filled(len, stamp)), 0)?;
            }
            _ => return self.called(&self.direct, op),
        }
        let mut over = None;
        while queue.in_flight() > 0 {
            queue.wait(1, |completion| over = Some(completion))?;
        }
        let Some(over) = over else { return Ok(Found::Nothing) };
        let count = over.result?;
        Ok(if matches!(op, Op::Read { .. }) {
            Found::Content(over.buf[..count].to_vec())
        } else {
            Found::Nothing
        })
    }

    fn stamp(&self) -> u64 {
        self.site.stamps.fetch_add(1, Ordering::Relaxed)
    }

    fn choose(&mut self, plan: &Plan) -> (By, Op) {
        let (at, len) = self.range(plan);
        let kind = self.rng.u32(..100);
        let op = match (plan.mood, kind) {
            (Mood::Meet, 0..45) | (Mood::End, 0..20) | (Mood::All, 0..25) => Op::Read { at, len },
            (Mood::Meet, 45..85) | (Mood::End, 20..40) | (Mood::All, 25..50) => {
                Op::Write { at, len, stamp: self.stamp() }
            }
            (Mood::Meet, 85..92) | (Mood::All, 50..57) => Op::Overwrite { at, len, stamp: self.stamp() },
            (Mood::End, 40..62) | (Mood::All, 57..65) if plan.size < plan.most => {
                let most = self.rng.usize(..4);
                Op::Append { len: [1, 64, 512, len][most].max(1), stamp: self.stamp() }
            }
            (Mood::End, 40..72) | (Mood::All, 57..72) => {
                Op::SetLen { size: if self.rng.bool() { at } else { at + len } }
            }
            (Mood::End, 72..84) | (Mood::All, 72..76) => Op::Size,
            (Mood::End, 84..92) | (Mood::All, 76..78) => Op::Stat,
            (Mood::All, 78..85) => Op::Punch { at, len },
            (Mood::All, 85..92) => Op::Zero { at, len },
            (_, 97) => Op::Seek,
            (_, 96) => Op::Sync,
            _ => Op::Evict,
        };
        let by = match self.rng.u32(..40) {
            0 if matches!(op, Op::Read { .. } | Op::Overwrite { .. }) => By::Queue,
            0..24 => By::Buffered,
            _ => By::Direct,
        };
        (by, op)
    }

    /// The words of a call: mostly those of other calls.
    fn range(&mut self, plan: &Plan) -> (u64, u64) {
        let Plan { at, len, size, most, .. } = *plan;
        let rng = &mut self.rng;
        let (at, len) = match rng.u32(..10) {
            0..=3 => (at, len),
            4 | 5 => (at + rng.u64(..len), len),
            6 => (at.saturating_sub(rng.u64(..=len)), len + rng.u64(..=len)),
            7 => (size.saturating_sub(rng.u64(..=len)), rng.u64(1..=2 * len)),
            8 => (0, most),
            _ => (rng.u64(..most), rng.u64(1..=len)),
        };
        let at = at.min(most - 1);
        (at, len.min(most - at).max(1))
    }
}

/// The result of a call, in bytes.
enum Found {
    Nothing,
    Bytes(u64),
    Content(Vec<u8>),
    Refused(EventOutcome),
}

/// Errors that count as results.
fn refusal(op: Op, kind: ErrorKind) -> Option<Found> {
    match (op, kind) {
        (Op::Overwrite { .. }, ErrorKind::NotAllocated) => Some(Found::Refused(EventOutcome::NotAllocated)),
        (Op::Overwrite { .. }, ErrorKind::InvalidInput) => Some(Found::Refused(EventOutcome::PastEnd)),
        _ => None,
    }
}

fn in_words(found: Found) -> Result<EventOutcome> {
    Ok(match found {
        Found::Nothing => EventOutcome::Done,
        Found::Bytes(bytes) => EventOutcome::Bytes(bytes),
        Found::Refused(outcome) => outcome,
        Found::Content(bytes) => {
            ensure!(bytes.len().is_multiple_of(WORD as usize), "{} bytes were read", bytes.len());
            EventOutcome::Read(words(&bytes))
        }
    })
}

/// Whole words.
pub(super) fn words(bytes: &[u8]) -> Words {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect()
}

fn filled(len: u64, stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(len as usize)
}
