//! GUID partition tables: one after the first sector, and a copy with its header in the last
//! sector.

use super::{MAX_ENTRIES, Partition, Table, u32_at, u64_at};
use crate::probe::View;

const MAGIC: &[u8] = b"EFI PART";
/// Bytes of a header up to its last field.
const HEADER_BYTES: usize = 92;
/// Where a header keeps its checksum.
const CRC_OFFSET: usize = 16;

/// Reads the table in units of either size of sectors, and its copy at the end if the first is damaged.
pub(super) fn read(view: &View<'_>) -> Option<Table> {
    for sector in [512, 4096] {
        for at in [Some(sector), (view.len() / sector).checked_sub(1).map(|last| last * sector)] {
            let Some(at) = at.filter(|&at| at > 0) else { continue };
            if let Some(table) = read_at(view, at, sector) {
                return Some(table);
            }
        }
    }
    None
}

/// Reads the table whose header is at this byte, if its checksums are right.
fn read_at(view: &View<'_>, at: u64, sector: u64) -> Option<Table> {
    let header: [u8; 512] = view.bytes(at)?;
    let size = u32_at(&header, 12)? as usize;
    if !header.starts_with(MAGIC)
        || !(HEADER_BYTES..=512).contains(&size)
        || u64_at(&header, 24)? != at / sector
    {
        return None;
    }
    let mut summed = header.get(..size)?.to_vec();
    summed.get_mut(CRC_OFFSET..CRC_OFFSET + 4)?.fill(0);
    if crc32fast::hash(&summed) != u32_at(&header, CRC_OFFSET)? {
        return None;
    }
    let (first, last) = (u64_at(&header, 40)?, u64_at(&header, 48)?);
    let (entries, count, size) = (u64_at(&header, 72)?, u32_at(&header, 80)?, u32_at(&header, 84)?);
    if count > MAX_ENTRIES || !(128..=4096).contains(&size) || !size.is_power_of_two() {
        return None;
    }
    let array = view.vec(entries.checked_mul(sector)?, count as usize * size as usize)?;
    if crc32fast::hash(&array) != u32_at(&header, 88)? {
        return None;
    }
    let entries = (1..).zip(array.chunks_exact(size as usize));
    let partitions = entries.filter_map(|(number, entry)| partition(number, entry, sector)).collect();
    // The rest of the disk belongs to the two tables.
    let own = vec![0..first.checked_mul(sector)?, last.checked_add(1)?.checked_mul(sector)?..u64::MAX];
    Some(Table { kind: "GPT", is_believed: false, partitions, own })
}

fn partition(number: u32, entry: &[u8], sector: u64) -> Option<Partition> {
    let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
    if entry.get(..16)? == [0; 16] || last < first {
        return None;
    }
    let start = first.checked_mul(sector)?;
    let length = (last - first).checked_add(1)?.checked_mul(sector)?;
    Some(Partition { number, start, length })
}
