//! Master boot records: four partitions, one of which may hold a chain of logical ones.

use super::{MAX_ENTRIES, Partition, Table, u32_at};
use crate::probe::View;
use std::ops::Range;

const SECTOR_BYTES: u64 = 512;
/// How a boot record ends.
pub(super) const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The type of the entry that only says that there is a GPT.
const PROTECTIVE: u8 = 0xee;

/// Reads the table; `None`: there is none, or one without partitions of its own.
pub(super) fn read(view: &View<'_>) -> Option<Table> {
    let entries = entries(view, 0)?;
    if entries.iter().any(|entry| !matches!(entry.flag, 0 | 0x80)) {
        return None;
    }
    let mut table =
        Table { kind: "MBR", is_believed: true, partitions: Vec::new(), own: Vec::from([record_at(0)]) };
    let mut numbers = 5..MAX_ENTRIES;
    for (number, entry) in (1..).zip(&entries) {
        if entry.is_extended() {
            logical(view, entry, &mut numbers, &mut table);
        } else if entry.kind != 0 && !entry.is_protective() && entry.sectors != 0 {
            table.partitions.push(entry.partition(number, 0));
        }
    }
    let is_record_alone = table.partitions.is_empty() && table.own.len() == 1;
    (!is_record_alone).then_some(table)
}

/// Whether it says that there is a GPT. If another table was made later, perhaps only the GPT's header is left.
pub(super) fn protects(view: &View<'_>) -> bool {
    entries(view, 0).is_some_and(|entries| entries.iter().any(Entry::is_protective))
}

/// Logical partitions: each has a boot record of its own, with a link to the next. Unreadable records count as
/// occupied.
fn logical(view: &View<'_>, extended: &Entry, numbers: &mut Range<u32>, table: &mut Table) {
    let (mut at, mut sectors) = (extended.first * SECTOR_BYTES, extended.sectors);
    for _ in 0..MAX_ENTRIES {
        if table.own.contains(&record_at(at)) {
            // The chain turns back.
            return;
        }
        table.own.push(record_at(at));
        let Some(entries) = entries(view, at) else { return };
        let is_partition = |index: usize, entry: &Entry| {
            // The last two entries may hold old data.
            let is_within =
                || entry.first + entry.sectors <= sectors && extended.holds(&entry.partition(0, at));
            entry.sectors != 0 && !entry.is_extended() && (index < 2 || is_within())
        };
        for (index, entry) in entries.iter().enumerate() {
            if is_partition(index, entry) {
                let Some(number) = numbers.next() else { return };
                table.partitions.push(entry.partition(number, at));
            }
        }
        let Some(next) = entries.iter().find(|entry| entry.is_extended()) else { return };
        (at, sectors) = ((extended.first + next.first) * SECTOR_BYTES, next.sectors);
    }
}

fn record_at(at: u64) -> Range<u64> {
    at..at + SECTOR_BYTES
}

/// An entry of a boot record, in sectors of 512 bytes.
struct Entry {
    flag: u8,
    kind: u8,
    first: u64,
    sectors: u64,
}

impl Entry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85) && self.sectors != 0
    }

    /// Whether all of a partition lies in this one, of the first boot record.
    fn holds(&self, other: &Partition) -> bool {
        let all = self.partition(0, 0);
        all.start <= other.start && other.end() <= all.end()
    }

    /// A kernel accepts it only if it begins after the boot record. Otherwise its bytes count as occupied.
    fn is_protective(&self) -> bool {
        self.kind == PROTECTIVE && self.first == 1
    }

    /// The partition, counted from the byte where the boot record is.
    fn partition(&self, number: u32, record: u64) -> Partition {
        let start = record + self.first * SECTOR_BYTES;
        Partition { number, start, length: self.sectors * SECTOR_BYTES }
    }
}

fn entries(view: &View<'_>, at: u64) -> Option<[Entry; 4]> {
    let record: [u8; 512] = view.bytes(at)?;
    if record[510..] != SIGNATURE {
        return None;
    }
    let entry = |index: usize| {
        let entry = record.get(446 + index * 16..)?.first_chunk::<16>()?;
        Some(Entry {
            flag: entry[0],
            kind: entry[4],
            first: u64::from(u32_at(entry, 8)?),
            sectors: u64::from(u32_at(entry, 12)?),
        })
    };
    Some([entry(0)?, entry(1)?, entry(2)?, entry(3)?])
}
