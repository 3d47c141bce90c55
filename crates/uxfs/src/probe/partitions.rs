//! Partition tables (GPT and MBR): which partitions there are, so that the error can say how to open one.
//!
//! Bounded: at most [`MAX_ENTRIES`] entries are looked at, and a chain of logical partitions only as far.

use super::{View, describe as describe_volume};
use std::fmt::Write;

const MAX_ENTRIES: u32 = 256;
/// Partitions that a message lists.
const MAX_LISTED: usize = 16;

/// A partition: its number, and where it lies, in bytes.
struct Partition {
    number: u32,
    start: u64,
    length: u64,
}

/// A device's partition table in words, with the options that open each volume in it; `None` if there is none.
pub(crate) fn describe(view: &View<'_>) -> Option<String> {
    let (kind, partitions) = match gpt(view) {
        Some(partitions) => ("a GPT", partitions),
        None => ("an MBR", mbr(view)?),
    };
    let mut text = format!("a whole disk with {kind} partition table; name the partition to open:");
    for (listed, partition) in partitions.iter().enumerate() {
        if listed == MAX_LISTED {
            text.push_str(" …");
            break;
        }
        let what = inside(view, partition).unwrap_or("no known volume");
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{} partition {} ({what}): --offset {} --length {}",
            if listed == 0 { "" } else { ";" },
            partition.number,
            partition.start,
            partition.length
        );
    }
    if partitions.is_empty() {
        text.push_str(" it has none");
    }
    Some(text)
}

/// What a partition holds.
fn inside(view: &View<'_>, partition: &Partition) -> Option<&'static str> {
    describe_volume(&view.part(partition.start, partition.length)?)
}

/// Partitions of a GUID partition table, whose header is in the second sector.
fn gpt(view: &View<'_>) -> Option<Vec<Partition>> {
    [512, 4096].into_iter().find_map(|sector| gpt_with(view, sector))
}

fn gpt_with(view: &View<'_>, sector: u64) -> Option<Vec<Partition>> {
    let header: [u8; 92] = view.bytes(sector)?;
    if header[..8] != *b"EFI PART" {
        return None;
    }
    let table = u64_at(&header, 72)?.checked_mul(sector)?;
    let count = u32_at(&header, 80)?.min(MAX_ENTRIES);
    let size = u64::from(u32_at(&header, 84)?);
    if !(128..=4096).contains(&size) {
        return None;
    }
    let mut partitions = Vec::new();
    for index in 0..count {
        let Some(entry) = view.bytes::<48>(table.checked_add(u64::from(index) * size)?) else { break };
        let (first, last) = (u64_at(&entry, 32)?, u64_at(&entry, 40)?);
        if entry[..16] == [0; 16] || last < first {
            continue;
        }
        let (Some(start), Some(length)) =
            (first.checked_mul(sector), (last - first).checked_add(1).and_then(|n| n.checked_mul(sector)))
        else {
            continue;
        };
        partitions.push(Partition { number: index + 1, start, length });
    }
    Some(partitions)
}

/// Partitions of a master boot record: four, of which one may hold a chain of logical ones.
fn mbr(view: &View<'_>) -> Option<Vec<Partition>> {
    let entries = mbr_entries(view, 0)?;
    if entries.iter().any(|entry| !matches!(entry.flag, 0 | 0x80)) {
        return None;
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(&entries) {
        if entry.is_extended() {
            logical(view, entry.first * 512, &mut partitions);
        } else if entry.kind != 0 && entry.sectors != 0 {
            partitions.push(Partition { number, start: entry.first * 512, length: entry.sectors * 512 });
        }
    }
    (!partitions.is_empty()).then_some(partitions)
}

/// Logical partitions: each has a boot record of its own that leads to the next.
fn logical(view: &View<'_>, extended: u64, partitions: &mut Vec<Partition>) {
    let mut at = extended;
    for number in 5..MAX_ENTRIES {
        let Some([here, next, ..]) = mbr_entries(view, at) else { return };
        if here.kind != 0 && here.sectors != 0 {
            let start = at + here.first * 512;
            partitions.push(Partition { number, start, length: here.sectors * 512 });
        }
        if !next.is_extended() {
            return;
        }
        at = extended + next.first * 512;
    }
}

/// An entry of a boot record, in sectors of 512 bytes.
struct MbrEntry {
    flag: u8,
    kind: u8,
    first: u64,
    sectors: u64,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

fn mbr_entries(view: &View<'_>, at: u64) -> Option<[MbrEntry; 4]> {
    let record: [u8; 512] = view.bytes(at)?;
    if record[510..] != [0x55, 0xaa] {
        return None;
    }
    let entry = |index: usize| {
        let entry = record.get(446 + index * 16..)?.first_chunk::<16>()?;
        Some(MbrEntry {
            flag: entry[0],
            kind: entry[4],
            first: u64::from(u32_at(entry, 8)?),
            sectors: u64::from(u32_at(entry, 12)?),
        })
    };
    Some([entry(0)?, entry(1)?, entry(2)?, entry(3)?])
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{BlockDevice, Durability, MemoryDevice};

    fn entry(flag: u8, kind: u8, first: u32, sectors: u32) -> [u8; 16] {
        let mut entry = [0; 16];
        entry[0] = flag;
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        entry
    }

    fn boot_record(entries: &[[u8; 16]]) -> Vec<u8> {
        let mut record = vec![0; 512];
        for (index, entry) in entries.iter().enumerate() {
            record[446 + index * 16..][..16].copy_from_slice(entry);
        }
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        record
    }

    fn device(parts: &[(u64, &[u8])]) -> MemoryDevice {
        let device = MemoryDevice::anonymous(1 << 20).unwrap();
        for (at, bytes) in parts {
            let mut sectors = bytes.to_vec();
            sectors.resize(bytes.len().next_multiple_of(512), 0);
            device.write(*at, &sectors, Durability::Volatile).unwrap();
        }
        device
    }

    #[test]
    fn primary_and_logical_partitions_are_listed() {
        let table = boot_record(&[entry(0x80, 0x83, 64, 64), entry(0, 0x05, 512, 1024)]);
        let first = boot_record(&[entry(0, 0x83, 8, 16), entry(0, 0x05, 64, 64)]);
        let second = boot_record(&[entry(0, 0x83, 8, 32)]);
        let device = device(&[(0, &table), (64 * 512, b"XFSB"), (512 * 512, &first), (576 * 512, &second)]);
        let text = describe(&View::whole(&device)).unwrap();
        assert!(text.starts_with("a whole disk with an MBR partition table"), "{text}");
        assert!(text.contains("partition 1 (an XFS volume): --offset 32768 --length 32768"), "{text}");
        assert!(text.contains("partition 5 (no known volume): --offset 266240 --length 8192"), "{text}");
        assert!(text.contains("partition 6 (no known volume): --offset 299008 --length 16384"), "{text}");
    }

    #[test]
    fn a_chain_that_turns_back_ends() {
        let table = boot_record(&[entry(0, 0x05, 64, 1024)]);
        let turn = boot_record(&[entry(0, 0x83, 8, 16), entry(0, 0x05, 0, 64)]);
        let device = device(&[(0, &table), (64 * 512, &turn)]);
        assert!(describe(&View::whole(&device)).unwrap().ends_with('…'));
    }

    #[test]
    fn guid_partitions_are_listed() {
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(b"EFI PART");
        header[72..80].copy_from_slice(&2u64.to_le_bytes());
        header[80..84].copy_from_slice(&u32::MAX.to_le_bytes());
        header[84..88].copy_from_slice(&128u32.to_le_bytes());
        let mut entries = vec![0; 512];
        entries[128..144].fill(7);
        entries[160..168].copy_from_slice(&100u64.to_le_bytes());
        entries[168..176].copy_from_slice(&199u64.to_le_bytes());
        let device = device(&[(512, &header), (1024, &entries), (51200, b"XFSB")]);
        let text = describe(&View::whole(&device)).unwrap();
        assert!(text.ends_with("partition 2 (an XFS volume): --offset 51200 --length 51200"), "{text}");
    }

    #[test]
    fn a_boot_record_without_partitions_is_no_table() {
        assert!(describe(&View::whole(&device(&[]))).is_none());
        assert!(describe(&View::whole(&device(&[(0, &boot_record(&[]))]))).is_none());
        let odd = boot_record(&[entry(0x7f, 0x83, 1, 1)]);
        assert!(describe(&View::whole(&device(&[(0, &odd)]))).is_none());
    }
}
