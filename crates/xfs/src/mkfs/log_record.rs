//! The only record of a new log: an unmount record in cycle 1, at block 0. The rest of the log is zero, which is a
//! cycle in which nothing was ever written.

use xfs_format::error::FormatError;
use xfs_format::log::{BLOCK_SIZE, RECORD_MAGIC, RecordHeader, pack, unmount_op};
use xfs_format::types::Uuid;
use zerocopy::{FromZeros, IntoBytes};

/// The usual size of log buffers. One header block covers the same size.
const BUFFER_BYTES: u32 = 32 << 10;
/// A little-endian Linux host.
const FORMAT_LINUX_LE: u32 = 1;
/// An arbitrary number: nothing else is in this log.
const TID: u32 = 0xb0c0_d0d0;

/// The record in whole blocks, padded to the log's stripe unit.
pub(super) fn clean(uuid: Uuid, stripe_unit: u32) -> Result<Vec<u8>, FormatError> {
    // At least a header block and a data block.
    let bytes = stripe_unit.max(2 * BLOCK_SIZE as u32);
    let mut header = RecordHeader::new_zeroed();
    header.magic.set(RECORD_MAGIC);
    header.cycle.set(1);
    header.version.set(2);
    header.lsn.set(1 << 32);
    header.tail_lsn.set(1 << 32);
    header.prev_block.set(u32::MAX);
    header.num_logops.set(1);
    header.fmt.set(FORMAT_LINUX_LE);
    header.fs_uuid = uuid.0;
    header.size.set(bytes.max(BUFFER_BYTES));
    let heads = header.size.get().div_ceil(BUFFER_BYTES) as usize * BLOCK_SIZE;
    header.len.set(bytes - heads as u32);
    let mut record = vec![0; bytes as usize];
    record[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
    let op = unmount_op(TID);
    record[heads..heads + op.len()].copy_from_slice(&op);
    pack(&mut record, None)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::log::{LogIdentity, find_ends};

    #[test]
    fn the_log_is_clean() {
        let uuid = Uuid([9; 16]);
        for stripe_unit in [1, 1024, 4096, 32768, 65536] {
            let mut log = clean(uuid, stripe_unit).unwrap();
            let record_blocks = (log.len() / BLOCK_SIZE) as u32;
            assert_eq!(log.len(), stripe_unit.max(1024) as usize);
            log.resize(4 << 20, 0);
            let identity = LogIdentity { v5: true, uuid };
            let ends = find_ends(8192, &identity, |block, buf: &mut [u8]| {
                let at = block as usize * BLOCK_SIZE;
                buf.copy_from_slice(&log[at..at + buf.len()]);
                Ok::<_, FormatError>(())
            });
            let ends = ends.unwrap();
            assert!(ends.clean, "{stripe_unit}");
            assert_eq!(ends.head, record_blocks, "{stripe_unit}");
        }
    }
}
