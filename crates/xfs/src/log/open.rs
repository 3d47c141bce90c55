//! Opening a log: where it continues, and that no traces of a crash lie behind that position.
//!
//! A crash may have left blocks of the current cycle behind the head: records that were under way behind an incomplete
//! one. Once the log has overwritten a part of them, the rest would look like its newest records. So they are
//! overwritten before anything else is. They may lie over the tail that the last record names, and over more than was
//! overwritten there. A crash that comes before the next record leaves them cleared: a kernel goes past what does not
//! begin as a header, and our recovery tells by what is in them that the log was free there, and not damaged.

use super::layout::{LogLayout, Pos};
use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice, Durability};
use xfs_format::error::FormatError;
use xfs_format::log::{self, BLOCK_SIZE, LogEnds, block_cycle};
use xfs_format::superblock::Superblock;

/// Blocks that are checked together.
const CHUNK: u32 = 256;

/// Checks that a journal can be written to a volume's log, on a device with this sector size.
pub fn check_shape(superblock: &Superblock, device_sector: u32) -> Result<()> {
    LogLayout::new(superblock, device_sector, 0).map(drop)
}

/// Checks that a volume's log can have records of this size (`h_size`), on a device with this sector size.
pub fn check_record_size(superblock: &Superblock, device_sector: u32, size: u32) -> Result<()> {
    if LogLayout::new(superblock, device_sector, size)?.size == size {
        return Ok(());
    }
    let problem = FormatError::value("log", "size of a record", size.into());
    Err(Error::corrupt_block(superblock.log_daddr(), None, problem))
}

/// Where a log continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogStart {
    /// The position of the next record, and from now on the start of recovery: everything before it has been written
    /// back.
    pub(super) head: Pos,
    /// The start of recovery if the next record is never written: the tail that the last one names.
    pub(super) tail: Pos,
    /// Block of the last record (`u32::MAX` if there is none).
    pub(super) previous: u32,
    /// Whether something was left behind the head, and is cleared.
    pub(super) had_traces: bool,
}

/// Checks what was found of a log. Returns its layout and where it continues.
///
/// Its records have the size of the last one. A kernel reads all records from the tail on as the first of them says. A
/// kernel that mounts the volume after us may name one of our records as the tail, so ours have the size that its
/// records had before.
pub(super) fn prepare(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    ends: &LogEnds,
) -> Result<(LogLayout, LogStart)> {
    if !ends.clean {
        return Err(Error::DirtyLog);
    }
    let layout = LogLayout::new(superblock, device.sector_size(), ends.record_size)?;
    let (head, previous) = layout
        .head(ends, device.sector_size())
        .map_err(|problem| Error::corrupt_block(superblock.log_daddr(), None, problem))?;
    let tail = match ends.last_record {
        None => head,
        Some(_) => layout.pos(ends.tail).min(head),
    };
    let had_traces = clear_traces(device, &layout, head, tail)?;
    Ok((layout, LogStart { head, tail, previous, had_traces }))
}

/// Blocks between the head and the start of recovery after a crash: up to there the log is free.
fn room(layout: &LogLayout, head: Pos, tail: Pos) -> u32 {
    let used = head.0 - tail.0;
    layout.blocks.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
}

/// Overwrites what a crash may have left behind the head. Returns whether there was anything.
fn clear_traces(device: &dyn BlockDevice, layout: &LogLayout, head: Pos, tail: Pos) -> Result<bool> {
    let room = room(layout, head, tail);
    let mut found = false;
    for_chunks(layout, head, room, |offset, first, chunk| {
        device.read(offset, chunk)?;
        let blocks = (first.0..).zip(chunk.chunks_exact(BLOCK_SIZE));
        found |=
            blocks.into_iter().any(|(at, block)| block_cycle(block) > Some(older_cycle(layout, Pos(at))));
        Ok(())
    })?;
    if !found {
        return Ok(false);
    }
    for_chunks(layout, head, room, |offset, first, chunk| {
        for (at, block) in (first.0..).zip(chunk.chunks_exact_mut(BLOCK_SIZE)) {
            // What was never written stays zero.
            match older_cycle(layout, Pos(at)) {
                0 => block.fill(0),
                older => log::clear(block, older),
            }
        }
        Ok(device.write(offset, chunk, Durability::Volatile)?)
    })?;
    device.flush()?;
    Ok(true)
}

/// The cycle of a block that has not been written since the log wrapped around.
fn older_cycle(layout: &LogLayout, at: Pos) -> u32 {
    ((layout.lsn(at).0 >> 32) as u32).saturating_sub(1)
}

/// Goes through the blocks behind the head where a crash may have left traces: byte on the device, position, and a
/// buffer for the blocks.
fn for_chunks(
    layout: &LogLayout,
    head: Pos,
    room: u32,
    mut each: impl FnMut(u64, Pos, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut chunk = AlignedBuf::zeroed(CHUNK as usize * BLOCK_SIZE);
    let end = head.0 + u64::from(layout.doubtful_blocks().min(room));
    let mut at = head;
    while at.0 < end {
        let block = layout.block(at);
        let blocks = CHUNK.min(layout.blocks - block).min((end - at.0) as u32);
        let offset = layout.start + u64::from(block) * BLOCK_SIZE as u64;
        if let Some(part) = chunk.get_mut(..blocks as usize * BLOCK_SIZE) {
            each(offset, at, part)?;
        }
        at = Pos(at.0 + u64::from(blocks));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;
    use xfs_format::log::is_cleared;
    use xfs_format::types::Lsn;

    #[test]
    fn traces_of_a_crash_are_overwritten_across_the_end() {
        let layout = LogLayout::for_tests(3000, 512, 32 << 10);
        let device = MemoryDevice::anonymous(3000 * 512).unwrap();
        let stamp = |block: u64, cycle: u32| {
            let mut bytes = [0; 512];
            bytes[..4].copy_from_slice(&cycle.to_be_bytes());
            bytes[9] = 1;
            device.write(block * 512, &bytes, Durability::Volatile).unwrap();
        };
        let head = Pos(3000 * 6 + 2500);
        for block in 0..3000 {
            stamp(block, if block < 2500 { 6 } else { 5 });
        }
        let read = |block: u64| {
            let mut bytes = [0; 512];
            device.read(block * 512, &mut bytes).unwrap();
            bytes
        };
        let is_cleared = |block: u64, cycle: u64| is_cleared(&read(block), Lsn(cycle << 32 | block));
        let marked = |block: u64| (block_cycle(&read(block)).unwrap(), read(block)[9]);
        let free = Pos(head.0 - 100);
        clear_traces(&device, &layout, head, free).unwrap();
        assert_eq!((marked(2600), marked(40)), ((5, 1), (6, 1)));
        // The start of recovery is not behind the head: those records are what the log is for.
        stamp(2504, 6);
        clear_traces(&device, &layout, head, Pos(head.0 + 8 - 3000)).unwrap();
        assert!(is_cleared(2504, 5));
        assert_eq!(marked(2508), (5, 1));
        stamp(40, 7);
        clear_traces(&device, &layout, head, free).unwrap();
        assert_eq!((marked(2499), marked(2400)), ((6, 1), (6, 1)), "from the tail to the head");
        assert!(is_cleared(2500, 5) && is_cleared(2999, 5));
        assert!(is_cleared(0, 6) && is_cleared(40, 6) && is_cleared(2399, 6));
    }

    #[test]
    fn a_log_that_never_wrapped_gets_zeroes() {
        let layout = LogLayout::for_tests(3000, 512, 32 << 10);
        let device = MemoryDevice::anonymous(3000 * 512).unwrap();
        let (mut stamped, mut block) = ([0; 512], [1; 512]);
        stamped[3] = 1;
        device.write(20 * 512, &stamped, Durability::Volatile).unwrap();
        clear_traces(&device, &layout, Pos(3010), Pos(3000)).unwrap();
        device.read(20 * 512, &mut block).unwrap();
        assert_eq!(block, [0; 512]);
    }
}
