//! Which chains of deferred work are unfinished in a log, and how far each has come: for tests of recovery, and to find
//! out what a crash left.
//!
//! A log does not say what belongs together. Here, intents are taken for one chain if they are about the same blocks or
//! the same inodes. A finished intent belongs to the chain if it was logged no earlier than the first unfinished one.
//! What began and ended within one checkpoint is not in the log at all.

use super::for_each_transaction;
use super::pass1::{ended, promised};
use super::records::Records;
use crate::error::Result;
use crate::mount::read_superblock;
use crate::recovery::log_ends::log_ends;
use crate::trans::IntentWork;
use blockdev::BlockDevice;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use xfs_format::log::ItemType;
use xfs_format::types::Lsn;

/// An intent in a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedIntent {
    /// Its name as in the log's documentation: `EFI`, `RUI`, `CUI`, `BUI`, `ATTRI`, `XMI`.
    pub kind: &'static str,
    /// What it does, in a word. Empty if its kind has only one meaning.
    pub what: String,
}

impl fmt::Display for LoggedIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, what } = self;
        if what.is_empty() { f.write_str(kind) } else { write!(f, "{kind} {what}") }
    }
}

/// A chain with an unfinished intent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedChain {
    /// What was finished, as far as the log shows it.
    pub done: Vec<LoggedIntent>,
    /// What is still to be done, in the order in which it was logged.
    pub left: Vec<LoggedIntent>,
}

/// The unfinished chains in the log of a volume; none if it is clean. Nothing is written.
pub fn unfinished_chains(device: &dyn BlockDevice) -> Result<Vec<LoggedChain>> {
    let superblock = read_superblock(device)?;
    let ends = log_ends(device, &superblock)?;
    if ends.clean {
        return Ok(Vec::new());
    }
    let records = Records::new(device, &superblock, &ends)?;
    let mut found = FoundIntents::default();
    for_each_transaction(&records, &mut |transaction| {
        let damaged = |problem| records.damaged_at(transaction.lsn, problem);
        for item in transaction.items().map_err(damaged)? {
            if let Some((id, promise)) = promised(&item).map_err(damaged)? {
                found.begin(item.kind, id, transaction.lsn, promise);
            } else if let Some((kind, id)) = ended(&item) {
                found.end(kind, id, transaction.lsn);
            }
        }
        Ok(())
    })?;
    Ok(found.chains())
}

/// An intent and its state.
#[derive(Clone, Debug)]
struct SeenIntent {
    kind: ItemType,
    begun: Lsn,
    ended: Option<Lsn>,
    promise: Option<IntentWork>,
}

#[derive(Debug, Default)]
struct FoundIntents {
    intents: Vec<SeenIntent>,
    by_id: HashMap<(ItemType, u64), usize>,
}

impl FoundIntents {
    fn begin(&mut self, kind: ItemType, id: u64, begun: Lsn, promise: Option<IntentWork>) {
        if let Some(old) = self.by_id.insert((kind, id), self.intents.len()) {
            self.intents[old].ended.get_or_insert(begun);
        }
        self.intents.push(SeenIntent { kind, begun, ended: None, promise });
    }

    fn end(&mut self, kind: ItemType, id: u64, lsn: Lsn) {
        if let Some(at) = self.by_id.remove(&(kind, id)) {
            self.intents[at].ended = Some(lsn);
        }
    }

    fn chains(self) -> Vec<LoggedChain> {
        let (done, left): (Vec<SeenIntent>, Vec<SeenIntent>) =
            self.intents.into_iter().partition(|intent| intent.ended.is_some());
        let mut groups: Vec<(About, Vec<SeenIntent>)> = Vec::new();
        for intent in left {
            let mut about = About::of(&intent);
            let mut of_it = Vec::new();
            groups.retain_mut(|(others, members)| {
                let meets = others.meets(&about);
                if meets {
                    about.add(others);
                    of_it.append(members);
                }
                !meets
            });
            of_it.push(intent);
            groups.push((about, of_it));
        }
        let mut chains: Vec<LoggedChain> = Vec::new();
        for (about, members) in groups {
            let first = members.iter().map(|intent| intent.begun).min();
            let belongs = |intent: &&SeenIntent| {
                intent.ended >= first
                    && about.meets(&About::of(intent))
                    // One that was relogged under another number was not carried out.
                    && !members.iter().any(|member| member.is_again(intent))
            };
            let done = done.iter().filter(belongs).flat_map(SeenIntent::logged).collect();
            chains.push(LoggedChain { done, left: members.iter().flat_map(SeenIntent::logged).collect() });
        }
        chains
    }
}

impl SeenIntent {
    /// Describes each of its pieces of work.
    fn logged(&self) -> Vec<LoggedIntent> {
        let kind = match self.kind {
            ItemType::Efi | ItemType::EfiRt => "EFI",
            ItemType::Rui | ItemType::RuiRt => "RUI",
            ItemType::Cui | ItemType::CuiRt => "CUI",
            ItemType::Bui => "BUI",
            ItemType::Attri => "ATTRI",
            ItemType::Xmi => "XMI",
            _ => "unknown",
        };
        let whats: Vec<String> = match &self.promise {
            Some(IntentWork::Rmap(updates)) => updates.iter().map(|update| spaced(update.op)).collect(),
            Some(IntentWork::Count(updates)) => updates.iter().map(|update| spaced(update.op)).collect(),
            Some(IntentWork::Map(updates)) => updates.iter().map(|update| spaced(update.op)).collect(),
            Some(IntentWork::Attr(work)) => vec![spaced(work.op())],
            _ => vec![String::new()],
        };
        let mut logged: Vec<LoggedIntent> =
            whats.into_iter().map(|what| LoggedIntent { kind, what }).collect();
        logged.dedup();
        logged
    }

    fn is_again(&self, old: &Self) -> bool {
        let same = |promise: &IntentWork, other: &IntentWork| format!("{promise:?}") == format!("{other:?}");
        self.kind == old.kind
            && match (&self.promise, &old.promise) {
                (Some(mine), Some(others)) => same(mine, others),
                _ => true,
            }
    }
}

/// `AllocCow` as `alloc cow`.
fn spaced(name: impl fmt::Debug) -> String {
    let mut words = String::new();
    for letter in format!("{name:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// What an intent or a chain is about.
#[derive(Clone, Debug, Default)]
struct About {
    inodes: Vec<u64>,
    blocks: Vec<Range<u64>>,
}

impl About {
    fn of(intent: &SeenIntent) -> Self {
        let run = |start: u64, len: u32| start..start + u64::from(len);
        let mut about = Self::default();
        match &intent.promise {
            Some(IntentWork::Free(extents)) => {
                about.blocks.extend(extents.iter().map(|extent| run(extent.start.0, extent.len)));
            }
            Some(IntentWork::Rmap(updates)) => {
                about.blocks.extend(updates.iter().map(|update| run(update.start.0, update.len)));
            }
            Some(IntentWork::Count(updates)) => {
                about.blocks.extend(updates.iter().map(|update| run(update.start.0, update.len)));
            }
            Some(IntentWork::Map(updates)) => {
                about.blocks.extend(updates.iter().map(|update| run(update.start.0, update.len)));
                about.inodes.extend(updates.iter().map(|update| update.ino.0));
            }
            Some(IntentWork::Exchange(exchange)) => about.inodes.extend(exchange.inodes.map(|ino| ino.0)),
            Some(IntentWork::Attr(work)) => about.inodes.push(work.ino().0),
            None => {}
        }
        about
    }

    fn meets(&self, other: &Self) -> bool {
        let overlap = |one: &Range<u64>, two: &Range<u64>| one.start < two.end && two.start < one.end;
        self.inodes.iter().any(|ino| other.inodes.contains(ino))
            || self.blocks.iter().any(|run| other.blocks.iter().any(|theirs| overlap(run, theirs)))
    }

    fn add(&mut self, other: &mut Self) {
        self.inodes.append(&mut other.inodes);
        self.blocks.append(&mut other.blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use xfs_format::log::{BmapOp, BmapUpdate, Extent, RefcountOp, RefcountUpdate, RmapOp, RmapUpdate};
    use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

    fn free(start: u64, len: u32) -> Option<IntentWork> {
        Some(IntentWork::Free(smallvec![Extent { start: FsBlock(start), len }]))
    }

    fn count(start: u64, len: u32) -> Option<IntentWork> {
        let update = RefcountUpdate { op: RefcountOp::FreeCow, start: FsBlock(start), len };
        Some(IntentWork::Count(smallvec![update]))
    }

    fn map(start: u64, len: u32) -> Option<IntentWork> {
        Some(IntentWork::Map(smallvec![BmapUpdate {
            op: BmapOp::Unmap,
            ino: InodeNumber(128),
            start: FsBlock(start),
            offset: FileBlock(0),
            len,
            attr_fork: false,
            unwritten: false,
            realtime: false,
        }]))
    }

    fn rmap(start: u64, len: u32) -> Option<IntentWork> {
        Some(IntentWork::Rmap(smallvec![RmapUpdate {
            op: RmapOp::UnmapShared,
            owner: 128,
            start: FsBlock(start),
            offset: FileBlock(0),
            len,
            attr_fork: false,
            bmbt_block: false,
            unwritten: false,
        }]))
    }

    fn said(found: FoundIntents) -> Vec<[String; 2]> {
        let words =
            |intents: &[LoggedIntent]| intents.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        found.chains().iter().map(|chain| [words(&chain.done), words(&chain.left)]).collect()
    }

    #[test]
    fn what_is_about_the_same_blocks_is_one_chain() {
        let mut found = FoundIntents::default();
        // An older chain, which is finished.
        found.begin(ItemType::Efi, 1, Lsn(1), free(100, 10));
        found.end(ItemType::Efi, 1, Lsn(2));
        // A mapping is removed: from the map, then from the refcounts, and then its blocks are freed.
        found.begin(ItemType::Bui, 2, Lsn(3), map(100, 10));
        found.begin(ItemType::Rui, 3, Lsn(4), rmap(100, 10));
        found.end(ItemType::Bui, 2, Lsn(4));
        found.begin(ItemType::Cui, 4, Lsn(4), count(104, 4));
        // It belongs to something else.
        found.begin(ItemType::Efi, 5, Lsn(4), free(200, 10));
        assert_eq!(
            said(found),
            [["BUI unmap", "RUI unmap shared, CUI free cow"], ["", "EFI"]]
                .map(|chain| chain.map(str::to_owned))
        );
    }

    #[test]
    fn what_was_logged_again_was_not_done() {
        let mut found = FoundIntents::default();
        found.begin(ItemType::Cui, 1, Lsn(1), count(100, 4));
        found.end(ItemType::Cui, 1, Lsn(2));
        found.begin(ItemType::Cui, 2, Lsn(2), count(100, 4));
        assert_eq!(said(found), [["", "CUI free cow"].map(str::to_owned)]);
    }

    #[test]
    fn one_that_meets_two_makes_them_one() {
        let mut found = FoundIntents::default();
        found.begin(ItemType::Efi, 1, Lsn(1), free(100, 4));
        found.begin(ItemType::Efi, 2, Lsn(1), free(110, 4));
        found.begin(ItemType::Rui, 3, Lsn(1), rmap(102, 10));
        assert_eq!(said(found), [["", "EFI, EFI, RUI unmap shared"].map(str::to_owned)]);
    }
}
