//! Metadata buffers and their bounded cache.
//!
//! A buffer enters the cache only after its verifier passed it, and remembers which one that was: who reads the
//! same place as another structure has it checked again. Two threads that miss the same buffer at the same time
//! both read it; the first one's stays.
//!
//! What readers get is a snapshot of the committed version. Transactions get the buffer itself (`MetaBuf`), which
//! stays in the cache as long as anybody has it: a place on the device never has two of them.

mod chunks;
mod handle;
mod spare;

pub(crate) use chunks::{ChunkMap, Words, runs, runs_of_word};
pub(crate) use handle::{Change, Look, MetaBuf, Overlay, Owned};
pub(crate) use spare::{copy_of, keep, zeroes};

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::log::Journal;
use blockdev::{AlignedBuf, BlockDevice};
use fileio::testing::point;
use lockstat::LockClass;
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::identity;
use xfs_format::log::BufType;
use xfs_format::types::{DiskAddr, Uuid};
use xfs_format::verify::{Verifier, VerifyContext};

/// No buffer is larger: a directory block, an inode cluster and an attribute value stay below.
pub const MAX_BUF_BYTES: u64 = 1 << 20;
/// What an entry costs besides its bytes.
const OVERHEAD_BYTES: u64 = 400;
const SHARDS: usize = 64;
/// What is wrong with metadata that were changed after all that the log knows of.
pub(crate) const AHEAD: &str = "LSN behind the log's head";

static SHARD_LOCK: LockClass = LockClass::new("buffer cache");

/// A metadata buffer that passed its verifier. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Buf {
    daddr: DiskAddr,
    bytes: Arc<[u8]>,
}

impl Buf {
    /// A buffer of bytes that were read at `daddr` and checked.
    pub fn new(daddr: DiskAddr, bytes: Arc<[u8]>) -> Self {
        Self { daddr, bytes }
    }

    /// Where its first block lies.
    pub fn daddr(&self) -> DiskAddr {
        self.daddr
    }

    /// Whether these very bytes are what it is made of.
    pub(crate) fn is_of(&self, bytes: &Arc<[u8]>) -> bool {
        Arc::ptr_eq(&self.bytes, bytes)
    }

    /// The bytes, to be kept.
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

/// A run of bytes of the device that is part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub daddr: DiskAddr,
    /// Its length in bytes.
    pub len: u64,
}

/// The pieces of a buffer, of which there is mostly one.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// The cache of metadata buffers of one volume.
#[derive(Debug)]
pub struct BufCache {
    device: Arc<dyn BlockDevice>,
    v5: bool,
    meta_uuid: Uuid,
    cache: Cache<(u64, u64), Arc<MetaBuf>>,
    /// Counts buffers that were written back.
    writes: Arc<AtomicU64>,
    /// What no buffer may be newer than.
    journal: Option<Arc<Journal>>,
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
        }
    }

    /// From now on what is newer than the log fails its verifier: changes of it would be lost in a crash.
    pub(crate) fn set_journal(&mut self, journal: Arc<Journal>) {
        self.journal = Some(journal);
    }

    /// Has all buffers in memory take `bytes` at most, but no more than the cache was made for.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.cache.set_limit(bytes);
    }

    /// By how many bytes changes that must stay may exceed the limit before the cache is crowded.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.cache.set_slack(bytes);
    }

    /// Whether changes that wait to be written take far more than the limit.
    pub(crate) fn is_crowded(&self) -> bool {
        self.cache.is_crowded()
    }

    /// Whether they take all that they may.
    pub(crate) fn is_swamped(&self) -> bool {
        self.cache.is_swamped()
    }

    /// Lets go of what was written, where changes take too much.
    pub(crate) fn shed(&self) {
        self.cache.shed();
    }

    /// The `len` bytes at `daddr`, as `verifier` passed them.
    pub fn read(&self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<Buf> {
        self.read_pieces(&[Piece { daddr, len }], verifier)
    }

    /// One buffer made of several runs of bytes.
    pub fn read_pieces(&self, pieces: &[Piece], verifier: &'static Verifier) -> Result<Buf> {
        if let Some(buf) = self.look(pieces, verifier) {
            return Ok(buf);
        }
        Ok(self.read_handle(pieces, verifier)?.snapshot().0)
    }

    /// What is in memory, if `verifier` was the last to pass it.
    fn look(&self, pieces: &[Piece], verifier: &'static Verifier) -> Option<Buf> {
        let key = (pieces.first()?.daddr.0, pieces.iter().map(|piece| piece.len).sum());
        let cached = self.cached(&key, pieces)?;
        let look = cached.look();
        let good = !look.stale && std::ptr::eq(look.verifier, verifier);
        good.then(|| Buf::new(cached.daddr(), look.bytes))
    }

    /// The buffer itself, if it is in memory; whoever passed it, and whatever became of it.
    pub(crate) fn cached_handle(&self, pieces: &[Piece]) -> Option<Arc<MetaBuf>> {
        let key = (pieces.first()?.daddr.0, pieces.iter().map(|piece| piece.len).sum());
        self.cached(&key, pieces)
    }

    /// The buffer itself, read if it is not in memory.
    pub(crate) fn read_handle(&self, pieces: &[Piece], verifier: &'static Verifier) -> Result<Arc<MetaBuf>> {
        let (first, len) = extent_of(pieces, verifier)?;
        let key = (first.daddr.0, len);
        let is_in_memory = || self.cached(&key, pieces).is_some_and(|cached| !cached.is_stale());
        loop {
            if let Some(cached) = self.verified(&key, pieces, verifier)? {
                return Ok(cached);
            }
            let writes = self.writes();
            let bytes = self.load(pieces, len)?;
            // Another thread may have read the same place, changed it, written it back and forgotten it while we
            // read, or verify: then what we have is old. Nobody can have, if nothing was written.
            let is_newest = || self.writes() == writes;
            if !is_newest() && !is_in_memory() {
                continue;
            }
            point("a buffer is verified");
            if let Err(error) = self.verify(&bytes, first.daddr, verifier) {
                // Or it was written while we read, and what we have is half of that. Whoever writes it counts that before it
                // can be forgotten.
                if is_in_memory() || !is_newest() {
                    continue;
                }
                return Err(error);
            }
            point("a buffer is read");
            if let Some(kept) = self.enter(key, pieces, Arc::from(&*bytes), verifier, is_newest) {
                return Ok(kept);
            }
        }
    }

    /// What is in memory, once `verifier` has passed it.
    fn verified(
        &self,
        key: &(u64, u64),
        pieces: &[Piece],
        verifier: &'static Verifier,
    ) -> Result<Option<Arc<MetaBuf>>> {
        let Some(cached) = self.cached(key, pieces) else { return Ok(None) };
        let Some(passed) = cached.live_verifier() else { return Ok(None) };
        if !std::ptr::eq(passed, verifier) {
            self.verify(&cached.snapshot().0, cached.daddr(), verifier)?;
            cached.passed(verifier);
        }
        Ok(Some(cached))
    }

    /// Counts buffers that were written back: what was read of the device, and is not in memory, is the newest as long
    /// as this stays the same.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// The buffer of blocks that were just allocated: what they held does not matter, and nothing is read.
    pub(crate) fn fresh_handle(&self, pieces: &[Piece], verifier: &'static Verifier) -> Result<Arc<MetaBuf>> {
        let (first, len) = extent_of(pieces, verifier)?;
        let key = (first.daddr.0, len);
        match self.cached(&key, pieces) {
            Some(cached) => Ok(cached),
            None => {
                let bytes = zeroes(usize::try_from(len).unwrap_or(0));
                let kept = self.enter(key, pieces, Arc::clone(&bytes), verifier, || true);
                Ok(kept.unwrap_or_else(|| Arc::new(MetaBuf::new(pieces, bytes, verifier, &self.writes))))
            }
        }
    }

    /// Forgets what was read of a place that has just been written past the cache. It was free before, so that nobody
    /// has changes of it.
    pub(crate) fn forget(&self, piece: Piece) {
        self.writes.fetch_add(1, Ordering::Release);
        let key = (piece.daddr.0, piece.len);
        if let Some(cached) = self.cached(&key, &[piece]).filter(|cached| !cached.is_stale()) {
            self.cache.remove(&key);
            cached.displace();
        }
    }

    fn cached(&self, key: &(u64, u64), pieces: &[Piece]) -> Option<Arc<MetaBuf>> {
        self.cache.get(key).filter(|cached| cached.pieces() == pieces)
    }

    /// Puts a buffer in, unless another thread was faster; gives the one that stays. Where a transaction is about to
    /// make the place's next content, or the log does not say yet that the last one is gone, what was read stays
    /// outside, for this reader alone: no transaction may change it ([`MetaBuf::is_found`]). `None`: nothing is there, and
    /// what was read is old.
    fn enter(
        &self,
        key: (u64, u64),
        pieces: &[Piece],
        bytes: Arc<[u8]>,
        verifier: &'static Verifier,
        is_newest: impl FnOnce() -> bool,
    ) -> Option<Arc<MetaBuf>> {
        let made = Arc::new(MetaBuf::new(pieces, bytes, verifier, &self.writes));
        let weight = key.1 + OVERHEAD_BYTES;
        // What is stale, or made of other pieces, is of blocks that were freed since.
        let is_old = |old: &Arc<MetaBuf>| old.pieces() != pieces || old.is_stale();
        let replaceable = |old: &Arc<MetaBuf>| {
            if !is_old(old) {
                return false;
            }
            point("an old buffer is found");
            let Some(_owned) = old.try_own() else { return false };
            // A transaction may have made it anew before it was locked.
            let gone = is_old(old) && !old.is_stale_and_pinned();
            if gone {
                old.displace();
            }
            gone
        };
        let kept = self.cache.get_or_replace(key, Arc::clone(&made), weight, replaceable, is_newest)?;
        if !is_old(&kept) {
            return Some(kept);
        }
        made.displace();
        Some(made)
    }

    /// Nobody uses it any more. A buffer and what was to be written with it keep each other: all are let go of.
    pub(crate) fn end(&self) {
        self.cache.select(|_| true).iter().for_each(|buf| buf.detach_all());
    }

    /// Bytes that the cache holds now.
    pub fn weight(&self) -> u64 {
        self.cache.weight()
    }

    fn load(&self, pieces: &[Piece], len: u64) -> Result<AlignedBuf> {
        let len = usize::try_from(len).unwrap_or(0);
        let mut bytes = AlignedBuf::zeroed(len);
        let mut into = &mut bytes[..];
        for piece in pieces {
            let piece_len = usize::try_from(piece.len).unwrap_or(usize::MAX).min(into.len());
            let (now, later) = into.split_at_mut(piece_len);
            self.device.read(piece.daddr.0.saturating_mul(512), now)?;
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
        // Remote attribute values are never logged.
        let lsn = identity::lsn_of(bytes).filter(|_| identity.kind != BufType::AttrRemote);
        let known = lsn.map_or(Ok(()), |lsn| {
            journal.check_lsn(lsn).map_err(|head| FormatError::mismatch(verifier.name, AHEAD, lsn.0, head.0))
        });
        known.map_err(damaged)
    }
}

/// The first piece and the length of a buffer, within bounds.
fn extent_of(pieces: &[Piece], verifier: &'static Verifier) -> Result<(Piece, u64)> {
    let Some(first) = pieces.first() else {
        return Err(Error::corrupt_block(DiskAddr(0), None, FormatError::new(verifier.name, "length")));
    };
    let len = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.len));
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
    use xfs_format::attr::RAW;

    fn cache() -> (BufCache, Piece) {
        let device = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
        let piece = Piece { daddr: DiskAddr(8), len: 4096 };
        (BufCache::new(device, &geometry(true, 12, 0), 1 << 20), piece)
    }

    /// A reader of blocks that had been freed read them from the device, and put that in the place of the buffer in
    /// which another thread was just making inodes: their list pointers then came from old content.
    #[test]
    fn a_late_reader_does_not_displace_what_is_being_made() {
        let (cache, piece) = cache();
        let freed = cache.fresh_handle(&[piece], &RAW).expect("made");
        freed.publish(Change::Stale);
        let owned = freed.own();
        let late = cache.read_handle(&[piece], &RAW).expect("read");
        assert!(freed.is_found() && !late.is_found());
        drop(owned);
        let read = cache.read_handle(&[piece], &RAW).expect("read");
        assert!(read.is_found() && !freed.is_found(), "nobody makes anything of it any more");
    }

    /// A reader found a buffer stale that another thread then made anew and committed, and took its place in the cache: what
    /// was committed, and is not on disk, was found by nobody.
    #[cfg(not(shuttle))]
    #[test]
    fn a_late_reader_does_not_displace_what_was_just_made() {
        use crate::log::LogItem;
        let (cache, piece) = cache();
        let freed = cache.fresh_handle(&[piece], &RAW).expect("made");
        freed.publish(Change::Stale);
        let made = Arc::clone(&freed);
        fileio::testing::at("an old buffer is found", move || {
            // Another thread's commit ends.
            let _owned = made.own();
            let mut dirty = ChunkMap::default();
            dirty.mark(0..4096);
            made.pin();
            let bytes = Arc::from(vec![7; 4096]);
            let (verifier, fresh, unlogged, inodes) = (&RAW, true, false, false);
            made.publish(Change::Bytes { bytes, dirty: &dirty, verifier, fresh, unlogged, inodes });
        });
        cache.read_handle(&[piece], &RAW).expect("read");
        let again = cache.read_handle(&[piece], &RAW).expect("read");
        assert!(freed.is_found() && again.snapshot().0[0] == 7, "what was committed has its place");
    }

    /// Between the look whether anything was written and its entry into the cache, a buffer that was read could be read by
    /// another thread, changed, written back and forgotten: the old version came back to stay.
    #[cfg(not(shuttle))]
    #[test]
    fn what_was_changed_and_forgotten_while_it_was_read_is_read_again() {
        let device = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
        let piece = Piece { daddr: DiskAddr(8), len: 4096 };
        let cache =
            BufCache::new(Arc::clone(&device) as Arc<dyn BlockDevice>, &geometry(true, 12, 0), 1 << 20);
        let writes = Arc::clone(&cache.writes);
        fileio::testing::at("a buffer is read", move || {
            // As another thread's write-back ends.
            device.write(4096, &[7; 4096], blockdev::Durability::Volatile).expect("written");
            writes.fetch_add(1, Ordering::AcqRel);
        });
        let read = cache.read_handle(&[piece], &RAW).expect("read");
        assert_eq!(read.snapshot().0[..8], [7; 8]);
    }

    /// Passes what is the same all over.
    static WHOLE: Verifier = Verifier {
        name: "test",
        check: |bytes, _| match bytes.windows(2).all(|two| two[0] == two[1]) {
            true => Ok(()),
            false => Err(FormatError::new("test", "torn")),
        },
    };

    /// A buffer that another thread had read too, and was writing back, was called damaged: half of it was read before it
    /// was written, and half behind that.
    #[cfg(not(shuttle))]
    #[test]
    fn what_is_being_written_while_it_is_read_is_not_called_damaged() {
        use blockdev::Durability::Volatile;
        for is_over in [false, true] {
            let device = Arc::new(blockdev::MemoryDevice::anonymous(1 << 20).expect("a device"));
            let piece = Piece { daddr: DiskAddr(8), len: 4096 };
            let below = Arc::clone(&device) as Arc<dyn BlockDevice>;
            let cache = Arc::new(BufCache::new(below, &geometry(true, 12, 0), 1 << 20));
            device.write(4096, &[7; 2048], Volatile).expect("written");
            let other = Arc::clone(&cache);
            fileio::testing::at("a buffer is verified", move || {
                device.write(4096 + 2048, &[7; 2048], Volatile).expect("written");
                if is_over {
                    other.writes.fetch_add(1, Ordering::AcqRel);
                } else {
                    other.enter((8, 4096), &[piece], Arc::from([7; 4096]), &WHOLE, || true).expect("entered");
                }
            });
            let read = cache.read_handle(&[piece], &WHOLE).expect("not damaged");
            assert_eq!(read.snapshot().0[4000..], [7; 96]);
        }
    }

    /// What is damaged is told as such, however much else is being written.
    #[test]
    fn what_is_damaged_is_called_so() {
        let (cache, piece) = cache();
        cache.device.write(4096, &[7; 2048], blockdev::Durability::Volatile).expect("written");
        cache.read_handle(&[piece], &WHOLE).map(drop).expect_err("damaged");
    }

    #[test]
    fn what_is_written_past_the_cache_is_read_again() {
        let (cache, piece) = cache();
        let read = cache.read_handle(&[piece], &RAW).expect("read");
        assert!(read.is_found());
        cache.forget(piece);
        assert!(!read.is_found());
    }
}
