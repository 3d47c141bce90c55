//! Metadata buffers and their bounded cache.
//!
//! A buffer enters the cache only after its verifier has passed it, and remembers the verifier. If it is read as
//! another structure, it is checked again. Two threads that miss the same buffer at the same time both read it; the
//! first one's stays.
//!
//! Readers get a snapshot of the committed version. Transactions get the buffer itself (`MetaBuf`), which stays in the
//! cache while anybody holds it, so there are never two for one address.

mod chunks;
mod format;
mod handle;
mod readahead;
mod spare;
mod write_counts;

pub(crate) use chunks::ChunkMap;
pub(crate) use handle::{BufChange, BufLock, ClusterInode, MetaBuf, Older};
pub(crate) use readahead::Wanted;
pub(crate) use spare::{copy_of, keep, new_zeroes, zeroes};
pub(crate) use write_counts::WriteCounts;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::log::Journal;
use blockdev::{AlignedBuf, BlockDevice};
use fileio::testing::point;
use lockstat::LockClass;
use readahead::ReadAhead;
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::identity;
use xfs_format::log::BufType;
use xfs_format::types::{DiskAddr, Uuid};
use xfs_format::verify::{Verifier, VerifyContext};

/// Maximum size of a buffer. Directory blocks, inode clusters and attribute values are all smaller.
pub const MAX_BUF_BYTES: u64 = 1 << 20;
/// What a cache entry costs besides its bytes.
const OVERHEAD_BYTES: u64 = 400;
const SHARDS: usize = 64;
/// The check that fails for metadata that is newer than the end of the log.
pub(crate) const AHEAD: &str = "LSN behind the log's head";

static SHARD_LOCK: LockClass = LockClass::new("buffer cache");

/// A metadata buffer that passed its verifier. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Buf {
    daddr: DiskAddr,
    bytes: Arc<[u8]>,
}

impl Buf {
    /// A buffer with bytes that were read at `daddr` and checked.
    pub fn new(daddr: DiskAddr, bytes: Arc<[u8]>) -> Self {
        Self { daddr, bytes }
    }

    /// The disk address of its first block.
    pub fn daddr(&self) -> DiskAddr {
        self.daddr
    }

    /// Whether it shares these bytes (by address, not content).
    pub(crate) fn is_of(&self, bytes: &Arc<[u8]>) -> bool {
        Arc::ptr_eq(&self.bytes, bytes)
    }

    /// The bytes as an owned reference.
    pub(crate) fn share(&self) -> Arc<[u8]> {
        Arc::clone(&self.bytes)
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// One map of a buffer: a contiguous range of bytes on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufMap {
    /// Its disk address.
    pub daddr: DiskAddr,
    /// Its length in bytes.
    pub len: u64,
}

/// The maps of a buffer: mostly one.
pub(crate) type BufMaps = SmallVec<[BufMap; 1]>;

/// The cache of metadata buffers of one volume.
#[derive(Debug)]
pub struct BufCache {
    device: Arc<dyn BlockDevice>,
    v5: bool,
    meta_uuid: Uuid,
    cache: Cache<(u64, u64), Arc<MetaBuf>>,
    writes: Arc<WriteCounts>,
    /// The journal. No buffer may be newer than its head.
    journal: Option<Arc<Journal>>,
    ahead: ReadAhead,
}

impl BufCache {
    /// A cache of at most `limit` bytes in front of `device`.
    pub fn new(device: Arc<dyn BlockDevice>, geometry: &Geometry, limit: u64) -> Self {
        Self {
            device,
            v5: geometry.v5,
            meta_uuid: geometry.meta_uuid,
            cache: Cache::new(limit, SHARDS, &SHARD_LOCK),
            writes: Arc::default(),
            journal: None,
            ahead: ReadAhead::new(limit),
        }
    }

    /// From now on, a buffer that is newer than the log fails its check: a crash would lose changes of it.
    pub(crate) fn set_journal(&mut self, journal: Arc<Journal>) {
        self.journal = Some(journal);
    }

    /// Limits the memory of all buffers to `bytes`, but to no more than the cache was made for.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.cache.set_limit(bytes);
    }

    /// Sets by how many bytes the high watermark lies above the limit: dirty buffers, which must stay, may exceed the
    /// limit by this much.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.cache.set_slack(bytes);
    }

    /// Whether dirty buffers take far more than the limit.
    pub(crate) fn is_over_high_watermark(&self) -> bool {
        self.cache.is_over_high_watermark()
    }

    /// Whether dirty buffers take the maximum that is allowed.
    pub(crate) fn is_over_hard_watermark(&self) -> bool {
        self.cache.is_over_hard_watermark()
    }

    /// Reclaims clean buffers if dirty ones take too much.
    pub(crate) fn reclaim(&self) {
        self.cache.reclaim();
    }

    /// The `len` bytes at `daddr` after `verifier` has passed them.
    pub fn read(&self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<Buf> {
        self.read_maps(&[BufMap { daddr, len }], verifier)
    }

    /// One buffer that consists of several maps.
    pub fn read_maps(&self, maps: &[BufMap], verifier: &'static Verifier) -> Result<Buf> {
        if let Some(buf) = self.cached_snapshot(maps, verifier) {
            return Ok(buf);
        }
        Ok(self.read_handle(maps, verifier)?.snapshot().0)
    }

    /// A snapshot of a cached buffer, if `verifier` was the last to pass it.
    fn cached_snapshot(&self, maps: &[BufMap], verifier: &'static Verifier) -> Option<Buf> {
        self.cached_handle(maps)?.passed_by(verifier)
    }

    /// The buffer itself, if it is in memory, with any verifier and in any state.
    pub(crate) fn cached_handle(&self, maps: &[BufMap]) -> Option<Arc<MetaBuf>> {
        let key = (maps.first()?.daddr.0, maps.iter().map(|map| map.len).sum());
        self.cached(&key, maps)
    }

    /// The buffer itself. It is read if it is not in memory.
    pub(crate) fn read_handle(&self, maps: &[BufMap], verifier: &'static Verifier) -> Result<Arc<MetaBuf>> {
        let (first, len) = extent_of(maps, verifier)?;
        let key = (first.daddr.0, len);
        let is_in_memory = || self.cached(&key, maps).is_some_and(|cached| !cached.is_stale());
        loop {
            if let Some(cached) = self.verified(&key, maps, verifier)? {
                return Ok(cached);
            }
            if let [map] = maps
                && self.wait_for_read_ahead(map)
            {
                continue;
            }
            let writes = self.writes.of(maps);
            let bytes = self.load(maps, len)?;
            // While we read or verified, another thread may have read the same buffer, changed it, written it back and
            // evicted it. Then our copy is old. This cannot have happened if nothing was written.
            let is_newest = || self.writes.of(maps) == writes;
            if !is_newest() && !is_in_memory() {
                continue;
            }
            point("a buffer is verified");
            if let Err(error) = self.verify(&bytes, first.daddr, verifier) {
                // Or it was written while we read, and we have a mix of both versions. The writer counts the write
                // before the buffer can be evicted.
                if is_in_memory() || !is_newest() {
                    continue;
                }
                return Err(error);
            }
            point("a buffer is read");
            if let Some(kept) = self.enter(key, maps, Arc::from(&*bytes), verifier, is_newest) {
                return Ok(kept);
            }
        }
    }

    /// The content in memory, after `verifier` has passed it.
    fn verified(
        &self,
        key: &(u64, u64),
        maps: &[BufMap],
        verifier: &'static Verifier,
    ) -> Result<Option<Arc<MetaBuf>>> {
        let Some(cached) = self.cached(key, maps) else { return Ok(None) };
        let Some(passed) = cached.live_verifier() else { return Ok(None) };
        if !std::ptr::eq(passed, verifier) {
            self.verify(&cached.snapshot().0, cached.daddr(), verifier)?;
            cached.set_verifier(verifier);
        }
        Ok(Some(cached))
    }

    /// Counts that tell whether something read from the device is the newest.
    pub(crate) fn writes(&self) -> &WriteCounts {
        &self.writes
    }

    /// The buffer of blocks that were just allocated. Their content does not matter, so nothing is read.
    pub(crate) fn get_handle(&self, maps: &[BufMap], verifier: &'static Verifier) -> Result<Arc<MetaBuf>> {
        let (first, len) = extent_of(maps, verifier)?;
        let key = (first.daddr.0, len);
        match self.cached(&key, maps) {
            Some(cached) => Ok(cached),
            None => {
                let bytes = zeroes(usize::try_from(len).unwrap_or(0));
                let kept = self.enter(key, maps, Arc::clone(&bytes), verifier, || true);
                Ok(kept.unwrap_or_else(|| Arc::new(MetaBuf::new(maps, bytes, verifier, &self.writes))))
            }
        }
    }

    /// Evicts what was read at an address that has just been written directly to the device. The blocks were free
    /// before, so nobody has changes of them.
    pub(crate) fn forget(&self, map: BufMap) {
        self.writes.written(&[map]);
        let key = (map.daddr.0, map.len);
        if let Some(cached) = self.cached(&key, &[map]).filter(|cached| !cached.is_stale()) {
            self.cache.remove(&key);
            cached.displace();
        }
    }

    fn cached(&self, key: &(u64, u64), maps: &[BufMap]) -> Option<Arc<MetaBuf>> {
        self.cache.get(key).filter(|cached| cached.maps() == maps)
    }

    /// Inserts a buffer unless another thread was faster, and returns the one that stays. If a transaction is about to
    /// make new content for this address, or the old content's freeing is not in the log yet, the buffer is not
    /// inserted: only this reader has it, and no transaction may change it ([`MetaBuf::is_cached`]). `None` if nothing
    /// is cached there and what was read is old.
    fn enter(
        &self,
        key: (u64, u64),
        maps: &[BufMap],
        bytes: Arc<[u8]>,
        verifier: &'static Verifier,
        is_newest: impl Fn() -> bool,
    ) -> Option<Arc<MetaBuf>> {
        let made = Arc::new(MetaBuf::new(maps, bytes, verifier, &self.writes));
        let weight = key.1 + OVERHEAD_BYTES;
        // A buffer that is stale or has other maps belongs to blocks that were freed since.
        let is_old = |old: &Arc<MetaBuf>| old.maps() != maps || old.is_stale();
        let replaceable = |old: &Arc<MetaBuf>| {
            if !is_old(old) {
                return false;
            }
            point("an old buffer is found");
            let Some(_owned) = old.try_lock() else { return false };
            // A transaction may have made it anew before we locked it. Ask last whether ours is the newest: a displaced
            // buffer must be replaced.
            let gone = is_old(old) && !old.is_stale_and_pinned() && is_newest();
            if gone {
                old.displace();
            }
            gone
        };
        let kept = self.cache.get_or_replace(key, Arc::clone(&made), weight, replaceable, &is_newest)?;
        if !is_old(&kept) {
            return Some(kept);
        }
        if !is_newest() {
            return None;
        }
        made.displace();
        Some(made)
    }

    /// Ends the cache. A buffer and its inodes keep each other alive, so all are detached.
    pub(crate) fn end(&self) {
        self.cache.select(|_| true).iter().for_each(|buf| buf.detach_all());
    }

    /// Bytes that the cache holds now.
    pub fn bytes(&self) -> u64 {
        self.cache.weight()
    }

    fn load(&self, maps: &[BufMap], len: u64) -> Result<AlignedBuf> {
        let len = usize::try_from(len).unwrap_or(0);
        let mut bytes = AlignedBuf::zeroed(len);
        let mut into = &mut bytes[..];
        for map in maps {
            let piece_len = usize::try_from(map.len).unwrap_or(usize::MAX).min(into.len());
            let (now, later) = into.split_at_mut(piece_len);
            self.device.read(map.daddr.0.saturating_mul(512), now)?;
            into = later;
        }
        Ok(bytes)
    }

    fn verify(&self, bytes: &[u8], daddr: DiskAddr, verifier: &'static Verifier) -> Result<()> {
        let context = VerifyContext { v5: self.v5, meta_uuid: self.meta_uuid, daddr };
        let damaged = |problem| Error::corrupt_block(daddr, None, problem);
        (verifier.check)(bytes, &context).map_err(damaged)?;
        let Some(journal) = self.journal.as_ref().filter(|_| self.v5) else { return Ok(()) };
        let Some(identity) = identity::identify(bytes) else { return Ok(()) };
        // Remote attribute values are never logged, so their LSN means nothing.
        let lsn = identity::lsn_of(bytes).filter(|_| identity.kind != BufType::AttrRemote);
        let known = lsn.map_or(Ok(()), |lsn| {
            journal.check_lsn(lsn).map_err(|head| FormatError::mismatch(verifier.name, AHEAD, lsn.0, head.0))
        });
        known.map_err(damaged)
    }
}

/// The first map and the length of a buffer, checked against the bounds.
fn extent_of(maps: &[BufMap], verifier: &'static Verifier) -> Result<(BufMap, u64)> {
    let Some(first) = maps.first() else {
        return Err(Error::corrupt_block(DiskAddr(0), None, FormatError::new(verifier.name, "length")));
    };
    let len = maps.iter().fold(0_u64, |sum, map| sum.saturating_add(map.len));
    if len == 0 || len > MAX_BUF_BYTES {
        let problem = FormatError::mismatch(verifier.name, "length", len, MAX_BUF_BYTES);
        return Err(Error::corrupt_block(first.daddr, None, problem));
    }
    Ok((*first, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;
    use std::sync::atomic::{AtomicU64, Ordering};
    use xfs_format::attr::RAW;

    fn cache() -> (BufCache, BufMap) {
        let device = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
        let map = BufMap { daddr: DiskAddr(8), len: 4096 };
        (BufCache::new(device, &geometry(true, 12, 0), 1 << 20), map)
    }

    /// Regression: a reader of freed blocks read them from the device and replaced the buffer in which another thread
    /// was making inodes. Their unlinked pointers then came from old content.
    #[test]
    fn a_late_reader_does_not_displace_what_is_being_made() {
        let (cache, map) = cache();
        let freed = cache.get_handle(&[map], &RAW).expect("made");
        let mut lock = freed.lock();
        freed.publish(BufChange::Invalidate, &mut lock);
        let late = cache.read_handle(&[map], &RAW).expect("read");
        assert!(freed.is_cached() && !late.is_cached());
        drop(lock);
        let read = cache.read_handle(&[map], &RAW).expect("read");
        assert!(read.is_cached() && !freed.is_cached(), "nobody makes anything of it any more");
    }

    /// Regression: a reader found a stale buffer, which another thread then made anew and committed, and replaced it in
    /// the cache. Nobody found what was committed and not yet on disk.
    #[cfg(not(shuttle))]
    #[test]
    fn a_late_reader_does_not_displace_what_was_just_made() {
        use crate::log::LogItem;
        let (cache, map) = cache();
        let freed = cache.get_handle(&[map], &RAW).expect("made");
        freed.publish(BufChange::Invalidate, &mut freed.lock());
        let made = Arc::clone(&freed);
        fileio::testing::at("an old buffer is found", move || {
            // Another thread's commit ends.
            let mut lock = made.lock();
            let mut dirty = ChunkMap::default();
            dirty.mark(0..4096);
            made.pin();
            let bytes = Arc::from(vec![7; 4096]);
            let (verifier, fresh, unlogged, inodes) = (&RAW, true, false, false);
            let change = BufChange::Bytes { bytes, dirty: &dirty, verifier, fresh, unlogged, inodes };
            made.publish(change, &mut lock);
        });
        cache.read_handle(&[map], &RAW).expect("read");
        let again = cache.read_handle(&[map], &RAW).expect("read");
        assert!(freed.is_cached() && again.snapshot().0[0] == 7, "what was committed has its place");
    }

    /// Regression: a reader of freed blocks marked the buffer there as displaced, then found that its own copy was old
    /// and inserted nothing. From then on nobody could make anything of these blocks.
    #[cfg(not(shuttle))]
    #[test]
    fn a_late_reader_that_turns_back_leaves_what_is_there_as_it_was() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let (cache, map) = cache();
        let freed = cache.get_handle(&[map], &RAW).expect("made");
        freed.publish(BufChange::Invalidate, &mut freed.lock());
        let writes = Arc::clone(&cache.writes);
        fileio::testing::at("an old buffer is found", move || {
            // Another thread's write-back of another buffer with the same counter ends.
            writes.written(&[map]);
        });
        let (held, transaction) = (Rc::new(RefCell::new(None)), Arc::clone(&freed));
        fileio::testing::at("an old buffer is found", {
            let held = Rc::clone(&held);
            // At the next look a transaction holds its lock for a moment.
            move || *held.borrow_mut() = Some(transaction.lock())
        });
        cache.read_handle(&[map], &RAW).expect("read");
        drop(held.take());
        let made = cache.get_handle(&[map], &RAW).expect("made");
        assert!(made.is_cached(), "whoever makes something of the blocks asks again, for ever");
    }

    /// Regression: between the check for writes and its insertion, a buffer that was read could be read by another
    /// thread, changed, written back and evicted. The old version came back to stay.
    #[cfg(not(shuttle))]
    #[test]
    fn what_was_changed_and_forgotten_while_it_was_read_is_read_again() {
        let device = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
        let map = BufMap { daddr: DiskAddr(8), len: 4096 };
        let cache =
            BufCache::new(Arc::clone(&device) as Arc<dyn BlockDevice>, &geometry(true, 12, 0), 1 << 20);
        let writes = Arc::clone(&cache.writes);
        fileio::testing::at("a buffer is read", move || {
            // As if another thread's write-back ended.
            device.write(4096, &[7; 4096], blockdev::Durability::Volatile).expect("written");
            writes.written(&[map]);
        });
        let read = cache.read_handle(&[map], &RAW).expect("read");
        assert_eq!(read.snapshot().0[..8], [7; 8]);
    }

    /// Passes bytes that are all the same.
    static WHOLE: Verifier = Verifier {
        name: "test",
        check: |bytes, _| match bytes.windows(2).all(|two| two[0] == two[1]) {
            true => Ok(()),
            false => Err(FormatError::new("test", "torn")),
        },
    };

    /// Regression: a buffer that another thread had read and was writing back was reported as damaged, because half of
    /// it was read before the write and half after it.
    #[cfg(not(shuttle))]
    #[test]
    fn what_is_being_written_while_it_is_read_is_not_called_damaged() {
        use blockdev::Durability::Volatile;
        for is_over in [false, true] {
            let device = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
            let map = BufMap { daddr: DiskAddr(8), len: 4096 };
            let below = Arc::clone(&device) as Arc<dyn BlockDevice>;
            let cache = Arc::new(BufCache::new(below, &geometry(true, 12, 0), 1 << 20));
            device.write(4096, &[7; 2048], Volatile).expect("written");
            let other = Arc::clone(&cache);
            fileio::testing::at("a buffer is verified", move || {
                device.write(4096 + 2048, &[7; 2048], Volatile).expect("written");
                if is_over {
                    other.writes.written(&[map]);
                } else {
                    other.enter((8, 4096), &[map], Arc::from([7; 4096]), &WHOLE, || true).expect("entered");
                }
            });
            let read = cache.read_handle(&[map], &WHOLE).expect("not damaged");
            assert_eq!(read.snapshot().0[4000..], [7; 96]);
        }
    }

    /// A device whose reads take time; it counts them.
    #[derive(Debug)]
    struct Slow(Arc<dyn BlockDevice>, AtomicU64);

    impl blockdev::Layer for Slow {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.0
        }
        fn pass_read(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), blockdev::DeviceError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(5));
            self.0.read(offset, buf)
        }
    }

    /// Regression: a reader read the same buffer again and again for as long as any other buffer of the volume was
    /// being written back.
    #[cfg(not(shuttle))]
    #[test]
    fn a_read_comes_to_its_end_beside_write_backs_of_other_buffers() {
        let below = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
        let device = Arc::new(Slow(below, AtomicU64::new(0)));
        let map = BufMap { daddr: DiskAddr(8), len: 4096 };
        let cache =
            BufCache::new(Arc::clone(&device) as Arc<dyn BlockDevice>, &geometry(true, 12, 0), 1 << 20);
        let writes = Arc::clone(&cache.writes);
        let other = BufMap { daddr: DiskAddr(1 << 20), len: 4096 };
        let pusher = std::thread::spawn(move || {
            for _ in 0..1000 {
                // A write-back of another buffer ends.
                writes.written(&[other]);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        cache.read_handle(&[map], &RAW).expect("read");
        let (reads, is_over) = (device.1.load(Ordering::Relaxed), pusher.is_finished());
        pusher.join().expect("pushed");
        assert!(reads <= 3 && !is_over, "one buffer was read {reads} times");
    }

    /// Damage is reported however much else is being written.
    #[test]
    fn what_is_damaged_is_called_so() {
        let (cache, map) = cache();
        cache.device.write(4096, &[7; 2048], blockdev::Durability::Volatile).expect("written");
        cache.read_handle(&[map], &WHOLE).map(drop).expect_err("damaged");
    }

    #[test]
    fn what_is_written_past_the_cache_is_read_again() {
        let (cache, map) = cache();
        let read = cache.read_handle(&[map], &RAW).expect("read");
        assert!(read.is_cached());
        cache.forget(map);
        assert!(!read.is_cached());
    }
}
