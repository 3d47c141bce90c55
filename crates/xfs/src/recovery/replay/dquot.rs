//! Replay of dquots, and of their blocks.

use super::group_replay::GroupReplay;
use crate::error::{Error, Result};
use crate::recovery::patch::ByteSpan;
use xfs_format::error::FormatError;
use xfs_format::log::DquotFormat;
use xfs_format::quota::{DiskDquot, Dquot};
use xfs_format::types::{DiskAddr, Lsn};
use zerocopy::FromBytes;

const NAME: &str = "dquot log item";

impl GroupReplay<'_> {
    /// Writes a dquot, unless the one on disk is newer.
    pub(super) fn dquot(&mut self, lsn: Lsn, format: &DquotFormat, region: Option<&[u8]>) -> Result<()> {
        let daddr = DiskAddr(format.blkno.get().unsigned_abs());
        let damaged = |problem| Error::corrupt_block(daddr, None, problem);
        let region = region.ok_or_else(|| damaged(FormatError::new(NAME, "number of regions")))?;
        let (offset, id) = (format.boffset.get(), format.id.get());
        let logged = *DiskDquot::check(region, id).map_err(damaged)?;
        if format.len.get() != 1 {
            let blocks = u64::from(format.len.get().unsigned_abs());
            return Err(damaged(FormatError::mismatch(NAME, "blocks of its buffer", blocks, 1)));
        }
        let block = u64::from(self.geometry.block_size);
        if self.cancels.quota_is_off(logged.kind) || self.cancels.is_cancelled((daddr, (block / 512) as u32))
        {
            self.counts.cancelled += 1;
            return Ok(());
        }
        let size = size_of::<Dquot>() as u64;
        if !u64::from(offset).is_multiple_of(size) || u64::from(offset) + size > block {
            return Err(damaged(FormatError::value(NAME, "offset in its buffer", offset.into())));
        }
        let buffer = ByteSpan { offset: daddr.0.saturating_mul(512), len: block };
        let part = ByteSpan { offset: buffer.offset.saturating_add(offset.into()), len: size };
        let mut change = self.change_in(buffer, part, NAME)?;
        let (dquot, _) = Dquot::mut_from_prefix(change.bytes())
            .map_err(|_| damaged(FormatError::new(NAME, "truncated structure")))?;
        if dquot.lsn.get() > lsn.0 {
            let there = Lsn(dquot.lsn.get());
            self.newer("a dquot", there);
            return Ok(());
        }
        dquot.disk = logged;
        if self.geometry.v5 {
            dquot.lsn = lsn.0.into();
            dquot.crc = dquot.checksum().into();
        }
        self.patch.put(change);
        self.quota.insert(daddr);
        self.counts.dquots += 1;
        Ok(())
    }

    /// A dquot block must hold those of consecutive ids.
    pub(super) fn verify_dquots(&self, daddr: DiskAddr) -> Result<()> {
        let bytes = self.patch.get(daddr.0.saturating_mul(512), self.geometry.block_size.into(), NAME)?;
        let damaged = |problem| Error::corrupt_block(daddr, None, problem);
        let (first, _) = DiskDquot::ref_from_prefix(&bytes)
            .map_err(|_| damaged(FormatError::new("dquot", "truncated structure")))?;
        let uuid = self.geometry.v5.then_some(self.geometry.meta_uuid);
        for (nth, bytes) in (0..).zip(bytes.chunks_exact(size_of::<Dquot>())) {
            Dquot::check(bytes, first.id.get().wrapping_add(nth), uuid).map_err(damaged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Replay;
    use super::*;
    use crate::recovery::pass1::Pass1;
    use crate::recovery::patch::Patch;
    use crate::recovery::report::Counts;
    use crate::recovery::transactions::{Transaction, TransactionBuilder};
    use blockdev::{BlockDevice, Durability, MemoryDevice};
    use std::sync::Arc;
    use xfs_format::geometry::{DataBlocks, Geometry};
    use xfs_format::log::{BufFlags, BufHeader, BufType, Client, Op, OpFlags, TransHeader};
    use zerocopy::{FromZeros, IntoBytes};

    const VOLUME: u64 = 1 << 20;
    const BLOCK: usize = 4096;
    const SIZE: usize = size_of::<Dquot>();
    const USER: u8 = 1;
    const GROUP: u8 = 4;
    /// Where the dquots of users lie.
    const USERS: DiskAddr = DiskAddr(80);
    const GROUPS: DiskAddr = DiskAddr(160);

    fn geometry() -> Geometry {
        let shape = crate::testing::geometry(true, 12, 0);
        let blocks = (VOLUME / BLOCK as u64) as u32;
        Geometry { size: DataBlocks::new(blocks.into()), ag_blocks: blocks, ..shape }
    }

    fn disk(kind: u8, id: u32, blocks: u64) -> DiskDquot {
        let mut disk = DiskDquot::new_zeroed();
        (disk.magic, disk.version, disk.kind) = (0x4451.into(), 1, kind);
        (disk.id, disk.bcount) = (id.into(), blocks.into());
        disk
    }

    /// A dquot block that nobody has used yet.
    fn block(kind: u8, geometry: &Geometry) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        for (id, place) in (0..).zip(bytes.chunks_exact_mut(SIZE)) {
            let mut dquot = Dquot::new_zeroed();
            (dquot.disk, dquot.uuid) = (disk(kind, id, 0), geometry.meta_uuid.0);
            dquot.crc = dquot.checksum().into();
            place.copy_from_slice(dquot.as_bytes());
        }
        bytes
    }

    /// A dquot item.
    fn item(place: (DiskAddr, i32, usize), disk: DiskDquot) -> Vec<Vec<u8>> {
        let (daddr, len, offset) = place;
        let mut format = [0x123d_u16.to_le_bytes(), 2_u16.to_le_bytes()].concat();
        format.extend(disk.id.get().to_le_bytes());
        format.extend(daddr.0.to_le_bytes());
        format.extend(len.to_le_bytes());
        format.extend((offset as u32).to_le_bytes());
        vec![format, disk.as_bytes().to_vec()]
    }

    /// A user dquot with this `id`.
    fn user(id: u32, blocks: u64) -> Vec<Vec<u8>> {
        item((USERS, 1, id as usize * SIZE), disk(USER, id, blocks))
    }

    /// The item that switches quota off.
    fn off(flags: u32) -> Vec<Vec<u8>> {
        let mut format = [0x123e_u16.to_le_bytes(), 1_u16.to_le_bytes()].concat();
        format.extend(flags.to_le_bytes());
        format.extend([0; 12]);
        vec![format]
    }

    /// An item of a whole dquot block.
    fn made(daddr: DiskAddr, flags: BufFlags, buf_type: BufType, bytes: &[u8]) -> Vec<Vec<u8>> {
        let map = vec![u32::MAX; BLOCK / 128 / 32];
        let header = BufHeader { daddr, len: (BLOCK / 512) as u16, flags, buf_type, regions: 2, map: &map };
        let mut format = vec![0; BufHeader::bytes(BufHeader::map_words(BLOCK))];
        header.encode(&mut format);
        vec![format, bytes.to_vec()]
    }

    fn transaction(lsn: u64, items: &[Vec<Vec<u8>>]) -> Transaction {
        let mut gather = TransactionBuilder::default();
        let header = TransHeader::checkpoint(1, 1);
        let mut take = |flags, data: &[u8]| {
            gather.take(Lsn(lsn), &Op { tid: 1, client: Client::Transaction, flags, data }).unwrap()
        };
        take(OpFlags::START, &[]);
        take(OpFlags::empty(), header.as_bytes());
        for region in items.iter().flatten() {
            take(OpFlags::empty(), region);
        }
        take(OpFlags::COMMIT, &[]).unwrap()
    }

    /// Replays transactions over blocks of user and group dquots.
    fn replay(geometry: &Geometry, log: &[Transaction]) -> Result<(Patch, Counts)> {
        let device = MemoryDevice::anonymous(VOLUME).unwrap();
        for (daddr, kind) in [(USERS, USER), (GROUPS, GROUP)] {
            let mut bytes = blockdev::AlignedBuf::zeroed(BLOCK);
            bytes.copy_from_slice(&block(kind, geometry));
            device.write(daddr.0 * 512, &bytes, Durability::Volatile).unwrap();
        }
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let mut pass1 = Pass1::default();
        log.iter().for_each(|transaction| pass1.add(transaction).unwrap());
        let mut replay = Replay::new(&device, geometry, &(0..0), pass1.cancels, Lsn(9 << 32));
        log.iter().try_for_each(|transaction| replay.transaction(transaction))?;
        replay.finish().map(|(patch, counts, _)| (patch, counts))
    }

    fn found(patch: &Patch, daddr: DiskAddr, id: u32) -> Dquot {
        let at = daddr.0 * 512 + u64::from(id) * SIZE as u64;
        let bytes = patch.get(at, SIZE as u64, "test").unwrap();
        *Dquot::check(&bytes, id, Some(geometry().meta_uuid)).unwrap()
    }

    /// Regression: kernels give the length of a dquot's buffer in blocks, not in sectors. Only the first three dquots
    /// of a block could be replayed.
    #[test]
    fn a_dquot_lies_anywhere_in_its_block() {
        let geometry = geometry();
        let log: Vec<_> = [0, 3, 20, 29].map(|id| transaction(5, &[user(id, 7)])).into();
        let (patch, counts) = replay(&geometry, &log).unwrap();
        for id in 0..30 {
            let dquot = found(&patch, USERS, id);
            let expected = if [0, 3, 20, 29].contains(&id) { (7, 5) } else { (0, 0) };
            assert_eq!((dquot.disk.bcount.get(), dquot.lsn.get()), expected, "{id}");
        }
        assert_eq!(counts.dquots, 4);
    }

    #[test]
    fn what_is_newer_stays_and_later_changes_win() {
        let geometry = geometry();
        let log =
            [transaction(5, &[user(4, 7)]), transaction(4, &[user(4, 1)]), transaction(5, &[user(4, 8)])];
        let (patch, counts) = replay(&geometry, &log).unwrap();
        assert_eq!(found(&patch, USERS, 4).disk.bcount.get(), 8, "of the same age: made again");
        assert_eq!((counts.dquots, counts.newer), (2, 1));
    }

    /// As kernels before 5.14 log it. Wherever it is in the log, all dquots of that kind are skipped.
    #[test]
    fn dquots_of_a_kind_that_was_switched_off_stay() {
        let geometry = geometry();
        let group = item((GROUPS, 1, 9 * SIZE), disk(GROUP, 9, 7));
        let mut fresh = block(USER, &geometry);
        fresh[30 * SIZE..].fill(1);
        let buffer = made(USERS, BufFlags::UDQUOT_BUF, BufType::UserDquot, &fresh);
        for (flags, users, groups) in [(0x1, 0, 7), (0x40, 7, 0), (0x41, 0, 0), (0x8, 7, 7)] {
            let first = [buffer.clone(), user(9, 7), group.clone()];
            let log = [transaction(5, &first), transaction(6, &[off(flags)])];
            let (patch, counts) = replay(&geometry, &log).unwrap();
            let blocks = [USERS, GROUPS].map(|daddr| found(&patch, daddr, 9).disk.bcount.get());
            assert_eq!(blocks, [users, groups], "{flags:#x}");
            let last = patch.get(USERS.0 * 512 + BLOCK as u64 - 1, 1, "test").unwrap();
            assert_eq!(last, [u8::from(users != 0)], "{flags:#x}: the block");
            assert_eq!(counts.cancelled, u64::from(users == 0) * 2 + u64::from(groups == 0));
        }
    }

    #[test]
    fn blocks_of_dquots_are_verified() {
        let geometry = geometry();
        let whole = block(USER, &geometry);
        let make = |bytes: &[u8]| {
            let log = [transaction(5, &[made(USERS, BufFlags::UDQUOT_BUF, BufType::UserDquot, bytes)])];
            replay(&geometry, &log).map(drop)
        };
        make(&whole).unwrap();
        for at in [0, 2, 3, 4, 50, 109, 125, 29 * SIZE + 7] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            assert!(make(&damaged).is_err(), "{at}");
        }
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        let geometry = geometry();
        let refused = |place, id| {
            let log = [transaction(5, &[item(place, disk(USER, id, 7))])];
            replay(&geometry, &log).map(drop).unwrap_err().to_string()
        };
        assert!(refused((USERS, 8, 0), 0).contains("blocks of its buffer"));
        assert!(refused((USERS, 1, 8), 0).contains("offset"));
        assert!(refused((USERS, 1, 30 * SIZE), 30).contains("offset"));
        assert!(refused((USERS, 1, 3 * SIZE), 4).contains("id"), "the place of another one");
        assert!(refused((DiskAddr(VOLUME / 512), 1, 0), 0).contains("behind the volume"));
    }
}
