//! The first pass over a log finds what the second must know in advance:
//!
//! - which buffers were freed, and how often: changes before the last free are not replayed, because the blocks may
//!   have other content by now;
//! - which intents were not finished;
//! - which kinds of quota were switched off;
//! - how large the volume became, if it grew.

use super::report::Counts;
use super::transactions::{Item, Transaction};
use crate::trans::{AttrWork, IntentWork};
use std::collections::{BTreeMap, HashMap};
use xfs_format::error::FormatError;
use xfs_format::log::{AttrChange, BufFlags, ItemType, LogItem};
use xfs_format::superblock::Superblock;
use xfs_format::types::{DiskAddr, Lsn};

/// A buffer's disk address and its length in 512-byte units.
pub(super) type Span = (DiskAddr, u32);

/// An unfinished intent.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    pub(super) kind: ItemType,
    pub(super) id: u64,
    /// The transaction that logged it.
    pub(super) lsn: Lsn,
    /// Its work, if it can be carried out here.
    pub(super) promise: Option<IntentWork>,
}

/// Ids from here on are addresses in some kernel's memory; no counter gets there.
const ADDRESSES: u64 = 1 << 62;

/// What must not be replayed.
#[derive(Debug, Default)]
pub(super) struct CancelTable {
    /// Buffers that were freed, and how often.
    cancelled: HashMap<Span, u32>,
    quota_off: u32,
}

/// The result of the first pass.
#[derive(Default)]
pub(super) struct Pass1 {
    pub(super) cancels: CancelTable,
    intents: BTreeMap<u64, Unfinished>,
    by_id: HashMap<(ItemType, u64), u64>,
    next: u64,
    /// The highest intent id that was counted and not taken from an address.
    pub(super) highest_id: u64,
    /// The largest size in a logged superblock, in blocks and groups.
    pub(super) size: Option<(u64, u32)>,
    pub(super) counts: Counts,
}

impl Pass1 {
    /// Processes a transaction.
    pub(super) fn add(&mut self, transaction: &Transaction) -> Result<(), FormatError> {
        self.counts.transactions += 1;
        for item in transaction.items()? {
            self.counts.items += 1;
            self.add_item(transaction.lsn, &item)?;
        }
        Ok(())
    }

    fn add_item(&mut self, lsn: Lsn, item: &Item<'_>) -> Result<(), FormatError> {
        if let Some((id, promise)) = promised(item)? {
            self.promise(item.kind, id, lsn, promise);
        } else if let Some((kind, id)) = ended(item) {
            self.keep(kind, id);
        }
        match item.format {
            LogItem::Buf(buf) if buf.flags.contains(BufFlags::CANCEL) => {
                *self.cancels.cancelled.entry((buf.daddr, buf.len.into())).or_default() += 1;
            }
            LogItem::QuotaOff(off) => self.cancels.quota_off |= off.flags.get(),
            LogItem::Buf(buf) if buf.daddr == DiskAddr(0) => {
                let begins = buf.runs().next().is_some_and(|run| run.offset == 0);
                let size = item.region(0).filter(|_| begins).and_then(Superblock::size_in);
                self.size = self.size.max(size);
            }
            _ => {}
        }
        Ok(())
    }

    fn promise(&mut self, kind: ItemType, id: u64, lsn: Lsn, promise: Option<IntentWork>) {
        self.counts.intents += 1;
        if id < ADDRESSES {
            self.highest_id = self.highest_id.max(id);
        }
        // Kernels relog an intent that waits long: it is ended and logged anew under another id.
        if let Some(old) = self.by_id.insert((kind, id), self.next) {
            self.intents.remove(&old);
        }
        self.intents.insert(self.next, Unfinished { kind, id, lsn, promise });
        self.next += 1;
    }

    fn keep(&mut self, kind: ItemType, id: u64) {
        if let Some(number) = self.by_id.remove(&(kind, id)) {
            self.intents.remove(&number);
        }
    }

    /// Unfinished intents, oldest first.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &Unfinished> {
        self.intents.values()
    }
}

impl CancelTable {
    /// Splits it by the place of a buffer.
    pub(super) fn split(self, parts: usize, part_of: impl Fn(DiskAddr) -> usize) -> Vec<Self> {
        let quota_off = self.quota_off;
        let mut split: Vec<_> = (0..parts).map(|_| Self { cancelled: HashMap::new(), quota_off }).collect();
        for ((daddr, len), times) in self.cancelled {
            split[part_of(daddr)].cancelled.insert((daddr, len), times);
        }
        split
    }

    /// Whether a later item frees the buffer.
    pub(super) fn is_cancelled(&self, span: Span) -> bool {
        self.cancelled.contains_key(&span)
    }

    /// The second pass came to an item that frees the buffer.
    pub(super) fn pass_cancel(&mut self, span: Span) {
        if let Some(left) = self.cancelled.get_mut(&span) {
            *left -= 1;
            if *left == 0 {
                self.cancelled.remove(&span);
            }
        }
    }

    /// Whether quota of a kind (bits of `d_type`) was switched off somewhere in the log.
    pub(super) fn quota_is_off(&self, kind: u8) -> bool {
        // User, project, group: in dquots, and in the quotaoff item.
        [(1, 0x1), (2, 0x8), (4, 0x40)].iter().any(|&(of, off)| kind & 7 == of && self.quota_off & off != 0)
    }
}

/// An intent's id, and its work if it can be carried out here. `None` if the item is not an intent.
pub(super) fn promised(item: &Item<'_>) -> Result<Option<(u64, Option<IntentWork>)>, FormatError> {
    Ok(Some(match &item.format {
        LogItem::FreeIntent(intent) => {
            let promise =
                (item.kind == ItemType::Efi).then(|| IntentWork::Free(intent.extents.iter().collect()));
            (intent.id, promise)
        }
        LogItem::RmapIntent(intent) => {
            let promise = (item.kind == ItemType::Rui).then(|| IntentWork::Rmap(intent.iter().collect()));
            (intent.id, promise)
        }
        LogItem::BmapIntent(intent) => (intent.id, Some(IntentWork::Map(intent.iter().collect()))),
        LogItem::RefcountIntent(intent) => {
            let promise = (item.kind == ItemType::Cui).then(|| IntentWork::Count(intent.iter().collect()));
            (intent.id, promise)
        }
        LogItem::AttrIntent(intent) => {
            let change = AttrChange::parse(intent, item.regions())?;
            (intent.id, Some(IntentWork::Attr(Box::new(AttrWork::from(&change)))))
        }
        LogItem::ExchangeIntent(intent) => (intent.id, Some(IntentWork::Exchange(intent.exchange))),
        _ => return Ok(None),
    }))
}

/// The intent that an item ends, if it is a done item.
pub(super) fn ended(item: &Item<'_>) -> Option<(ItemType, u64)> {
    match &item.format {
        LogItem::FreeDone(done) => Some((intent_of(item.kind), done.id)),
        LogItem::Done(done) => Some((intent_of(item.kind), done.intent_id.get())),
        _ => None,
    }
}

/// The intent type that a done item ends.
fn intent_of(done: ItemType) -> ItemType {
    match done {
        ItemType::Efd => ItemType::Efi,
        ItemType::EfdRt => ItemType::EfiRt,
        ItemType::Rud => ItemType::Rui,
        ItemType::RudRt => ItemType::RuiRt,
        ItemType::Cud => ItemType::Cui,
        ItemType::CudRt => ItemType::CuiRt,
        ItemType::Bud => ItemType::Bui,
        ItemType::Attrd => ItemType::Attri,
        ItemType::Xmd => ItemType::Xmi,
        other => other,
    }
}

/// An intent's name in messages.
pub(super) fn intent_name(kind: ItemType) -> &'static str {
    match kind {
        ItemType::Efi => "extents to be freed (EFI)",
        ItemType::Rui | ItemType::RuiRt => "reverse mappings to be changed (RUI)",
        ItemType::Cui | ItemType::CuiRt => "reference counts to be changed (CUI)",
        ItemType::Bui => "a block map to be changed (BUI)",
        ItemType::Attri => "an attribute to be changed (ATTRI)",
        ItemType::Xmi => "mappings to be exchanged (XMI)",
        ItemType::EfiRt => "realtime extents to be freed",
        _ => "work of an unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_void_goes_to_whom_it_concerns() {
        let spans = [(DiskAddr(8), 8), (DiskAddr(16), 8), (DiskAddr(16), 16)];
        let cancelled = spans.into_iter().zip(1..).collect();
        let mut parts = CancelTable { cancelled, quota_off: 0x8 }.split(3, |daddr| daddr.0 as usize / 8 % 2);
        assert!(parts.iter().all(|part| part.quota_is_off(2) && !part.quota_is_off(5)));
        let concerned: Vec<_> = parts.iter().map(|part| spans.map(|span| part.is_cancelled(span))).collect();
        assert_eq!(concerned, [[false, true, true], [true, false, false], [false; 3]]);
        for left in [true, false] {
            parts[0].pass_cancel(spans[1]);
            assert_eq!(parts[0].is_cancelled(spans[1]), left);
        }
    }
}
