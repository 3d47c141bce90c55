//! What an image did, and what all of them did together.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How an image ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It was opened and walked, with or without errors.
    #[default]
    Walked,
    /// It could not be opened; errors say why.
    Refused,
    /// It made uxfs panic: message and place.
    Panicked(String),
    /// It did not end in time.
    Hung,
    /// The process ended.
    Died(String),
}

/// What one image did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DamageOutcome {
    /// Its number.
    pub image: u64,
    /// The volume that was damaged.
    pub volume: String,
    /// How it ended.
    pub end: End,
    /// How often each error came.
    pub errors: BTreeMap<String, u64>,
    /// Inodes that were read.
    pub inodes: u64,
    /// Names that were listed.
    pub names: u64,
    /// Most memory at one time.
    pub peak_bytes: u64,
    /// Time it took, damage included.
    pub millis: u64,
    /// The damage.
    pub story: Vec<String>,
}

impl DamageOutcome {
    /// The forbidden result, if there was one.
    pub fn failure(&self, memory_max: u64) -> Option<String> {
        let what = match &self.end {
            End::Panicked(message) => format!("panicked: {message}"),
            End::Hung => "hung".into(),
            End::Died(status) => format!("the process ended: {status}"),
            _ if self.peak_bytes > memory_max => format!("took {} MiB", self.peak_bytes >> 20),
            _ => return None,
        };
        Some(format!("{what}; volume {}, {}", self.volume, self.story.join("; ")))
    }
}

/// What all images did.
#[derive(Debug, Default)]
pub struct Summary {
    /// Their numbers.
    pub images: BTreeSet<u64>,
    intact: u64,
    damaged: u64,
    refused: u64,
    panics: BTreeMap<String, u64>,
    hangs: u64,
    deaths: u64,
    over_memory: u64,
    peak_bytes: u64,
    millis: u64,
    slowest_millis: u64,
    errors: BTreeMap<String, u64>,
    volumes: BTreeMap<String, u64>,
}

impl Summary {
    /// Adds one image.
    pub fn add(&mut self, outcome: &DamageOutcome, memory_max: u64) {
        if !self.images.insert(outcome.image) {
            return;
        }
        match &outcome.end {
            End::Walked if outcome.errors.is_empty() => self.intact += 1,
            End::Walked => self.damaged += 1,
            End::Refused => self.refused += 1,
            End::Panicked(message) => *self.panics.entry(message.clone()).or_default() += 1,
            End::Hung => self.hangs += 1,
            End::Died(_) => self.deaths += 1,
        }
        self.over_memory += u64::from(outcome.peak_bytes > memory_max);
        self.peak_bytes = self.peak_bytes.max(outcome.peak_bytes);
        self.millis += outcome.millis;
        self.slowest_millis = self.slowest_millis.max(outcome.millis);
        // In how many images, not how often.
        for error in outcome.errors.keys() {
            *self.errors.entry(error.clone()).or_default() += 1;
        }
        *self.volumes.entry(outcome.volume.clone()).or_default() += 1;
    }

    /// Images that did what none may do.
    pub fn failures(&self) -> u64 {
        self.panics.values().sum::<u64>() + self.hangs + self.deaths + self.over_memory
    }

    /// The counts in one line.
    pub fn counts(&self) -> String {
        format!(
            "{} without an error, {} with errors, {} refused, {} panics, {} hangs, {} processes ended, {} over memory",
            self.intact,
            self.damaged,
            self.refused,
            self.panics.values().sum::<u64>(),
            self.hangs,
            self.deaths,
            self.over_memory
        )
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut errors: Vec<_> = self.errors.iter().collect();
        errors.sort_by(|a, b| b.1.cmp(a.1));
        writeln!(f, "images with each error:")?;
        for (error, count) in errors {
            writeln!(f, "{count:8} {error}")?;
        }
        for (volume, count) in &self.volumes {
            writeln!(f, "volume {volume}: {count} images")?;
        }
        for (message, count) in &self.panics {
            writeln!(f, "{count:8} panics: {message}")?;
        }
        writeln!(
            f,
            "peak memory {} MiB, slowest image {} ms, {:.1} ms on average",
            self.peak_bytes >> 20,
            self.slowest_millis,
            self.millis as f64 / self.images.len().max(1) as f64
        )?;
        write!(f, "{} images: {}", self.images.len(), self.counts())
    }
}
