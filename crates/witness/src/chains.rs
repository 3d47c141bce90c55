//! How many images had chains of deferred work unfinished: for each kind of intent, and for each place at which a chain
//! was cut.

use anyhow::Result;
use blockdev::BlockDevice;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;
use xfs::recovery::{LoggedChain, LoggedIntent, unfinished_chains};

/// All kinds of intents, in the order in which a chain has them.
pub const KINDS: [&str; 6] = ["XMI", "BUI", "ATTRI", "RUI", "CUI", "EFI"];

/// Counts of images, by sort.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    images: u64,
    unfinished: u64,
    kinds: BTreeMap<&'static str, u64>,
    promises: BTreeMap<LoggedIntent, u64>,
    steps: BTreeMap<String, u64>,
}

impl Tally {
    /// The counts of one image.
    pub fn of(device: &dyn BlockDevice) -> Result<Self> {
        Ok(Self::of_chains(&unfinished_chains(device)?))
    }

    fn of_chains(chains: &[LoggedChain]) -> Self {
        let left = || chains.iter().flat_map(|chain| &chain.left);
        let kinds: BTreeSet<&str> = left().map(|intent| intent.kind).collect();
        let promises: BTreeSet<&LoggedIntent> = left().collect();
        let steps: BTreeSet<String> = chains.iter().map(step).collect();
        Self {
            images: 1,
            unfinished: u64::from(!chains.is_empty()),
            kinds: kinds.into_iter().map(|kind| (kind, 1)).collect(),
            promises: promises.into_iter().map(|promise| (promise.clone(), 1)).collect(),
            steps: steps.into_iter().map(|step| (step, 1)).collect(),
        }
    }

    /// The kinds of which any image had one.
    pub fn kinds(&self) -> Vec<&'static str> {
        KINDS.into_iter().filter(|kind| self.kinds.contains_key(kind)).collect()
    }

    /// The kinds of which none had one.
    pub fn missing(&self) -> Vec<&'static str> {
        KINDS.into_iter().filter(|kind| !self.kinds.contains_key(kind)).collect()
    }

    /// Whether something in `other` occurred here fewer than this many times.
    pub fn seldom_had(&self, other: &Self, times: u64) -> bool {
        let fewer = |count: Option<&u64>| count.is_none_or(|count| *count < times);
        other.steps.keys().any(|step| fewer(self.steps.get(step)))
            || other.promises.keys().any(|promise| fewer(self.promises.get(promise)))
    }
}

/// Where a chain was cut: what was done, as far as the log shows it, and what was left, each kind once.
fn step(chain: &LoggedChain) -> String {
    let kinds = |intents: &[LoggedIntent]| {
        let mut kinds: Vec<&str> = Vec::new();
        for intent in intents {
            if !kinds.contains(&intent.kind) {
                kinds.push(intent.kind);
            }
        }
        kinds.join(", ")
    };
    let done = kinds(&chain.done);
    format!("{} left{}{done}", kinds(&chain.left), if done.is_empty() { "" } else { " behind " })
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.images += other.images;
        self.unfinished += other.unfinished;
        other.kinds.into_iter().for_each(|(kind, count)| *self.kinds.entry(kind).or_default() += count);
        other.promises.into_iter().for_each(|(what, count)| *self.promises.entry(what).or_default() += count);
        other.steps.into_iter().for_each(|(step, count)| *self.steps.entry(step).or_default() += count);
    }
}

/// A table, a line a kind and a line a place.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} images, {} of them with unfinished chains", self.images, self.unfinished)?;
        for kind in KINDS {
            let of_kind = self.promises.iter().filter(|(promise, _)| promise.kind == kind);
            let each: Vec<String> = of_kind
                .filter(|(promise, _)| !promise.what.is_empty())
                .map(|(promise, count)| format!("{} {count}", promise.what))
                .collect();
            writeln!(f, "  {:8}  {kind:5}  {}", self.kinds.get(kind).unwrap_or(&0), each.join(", "))?;
        }
        let mut steps: Vec<(&String, &u64)> = self.steps.iter().collect();
        steps.sort_by_key(|(step, count)| (std::cmp::Reverse(**count), *step));
        writeln!(f, "  where a chain was cut:")?;
        steps.iter().try_for_each(|(step, count)| writeln!(f, "  {count:8}  {step}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(kind: &'static str, what: &str) -> LoggedIntent {
        LoggedIntent { kind, what: what.to_owned() }
    }

    #[test]
    fn each_image_counts_once_for_each_kind_and_place() {
        let chain = LoggedChain {
            done: vec![intent("BUI", "unmap")],
            left: vec![intent("RUI", "unmap"), intent("CUI", "decrease"), intent("RUI", "unmap")],
        };
        let plain = LoggedChain { done: Vec::new(), left: vec![intent("EFI", "")] };
        let mut tally = Tally::default();
        let both = Tally::of_chains(&[chain.clone(), chain, plain.clone()]);
        assert!(tally.seldom_had(&both, 1));
        tally += both.clone();
        assert!(!tally.seldom_had(&both, 1) && tally.seldom_had(&both, 2));
        tally += Tally::of_chains(&[plain]);
        tally += Tally::of_chains(&[]);
        assert_eq!(tally.kinds(), ["RUI", "CUI", "EFI"]);
        assert_eq!(tally.missing(), ["XMI", "BUI", "ATTRI"]);
        let said = tally.to_string();
        assert!(said.contains("3 images, 2 of them"), "{said}");
        assert!(said.contains("2  EFI left\n") && said.contains("1  RUI, CUI left behind BUI\n"), "{said}");
        assert!(said.contains("1  CUI    decrease 1\n"), "{said}");
    }
}
