//! The buffers of a transaction: private copies of what it changes.

use super::{Trans, reservation};
use crate::btree::edit::Block;
use crate::buf::{Buf, BufChange, BufLock, BufMap, ChunkMap, MetaBuf, Older, copy_of, keep, zeroes};
use crate::error::Result;
use crate::log::Joining;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::ag::AgHeader;
use xfs_format::geometry::Geometry;
use xfs_format::log::BUF_CHUNK_SIZE;
use xfs_format::types::{AgNumber, DiskAddr};
use xfs_format::verify::Verifier;

/// A buffer of a transaction. Valid up to the next roll or commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufIndex(pub(crate) usize);

/// Snapshots of buffers that are not locked, so that reading them again costs nothing: see [`Trans::forget_snapshots`].
pub(super) type Snapshots = RefCell<SmallVec<[(BufMap, &'static Verifier, Buf); SNAPSHOTS_MAX]>>;

const SNAPSHOTS_MAX: usize = 4;

/// How many tree blocks a header keeps, and in volumes of up to how many groups it keeps any: these blocks stay in
/// memory.
const NEAR_MOST: usize = 4;
const NEAR_GROUPS_MAX: u32 = 256;

/// A buffer that a transaction has locked.
pub(super) struct JoinedBuf {
    handle: Arc<MetaBuf>,
    /// The disk address of its first byte.
    daddr: DiskAddr,
    /// `None` once it was released.
    lock: Option<BufLock>,
    bytes: Arc<[u8]>,
    verifier: &'static Verifier,
    /// The chunks that this transaction changed.
    dirty: ChunkMap,
    /// Its blocks were just allocated, so the old content is irrelevant.
    fresh: bool,
    stale: bool,
    inodes: bool,
    /// Not logged, because another log item rebuilds its content.
    unlogged: bool,
}

impl JoinedBuf {
    fn new(handle: Arc<MetaBuf>, lock: BufLock) -> Self {
        let (bytes, verifier, inodes) = (Arc::clone(&lock.bytes), lock.verifier, lock.inodes);
        Self {
            daddr: handle.daddr(),
            handle,
            lock: Some(lock),
            bytes,
            verifier,
            dirty: ChunkMap::default(),
            fresh: false,
            stale: false,
            inodes,
            unlogged: false,
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        !self.stale && !self.fresh && self.dirty.is_empty()
    }

    /// Whether it goes to the log. A new buffer that another item logs does not.
    pub(super) fn is_logged(&self) -> bool {
        self.stale || !self.dirty.is_empty()
    }

    /// Whether all bytes that differ from the committed version are marked dirty.
    fn is_all_marked(&self) -> bool {
        let committed = self.handle.snapshot().0;
        let chunks = committed.chunks(BUF_CHUNK_SIZE).zip(self.bytes.chunks(BUF_CHUNK_SIZE));
        let is_free = self.fresh || self.stale || self.unlogged;
        is_free || chunks.enumerate().all(|(nth, (old, new))| old == new || self.dirty.has(nth))
    }

    /// Log bytes that a commit would take now.
    pub(super) fn log_bytes(&self) -> u64 {
        self.handle.log_bytes_with((!self.stale).then_some(&self.dirty), self.fresh).into()
    }

    /// Log bytes that a commit takes at most, whatever was changed.
    pub(super) fn log_bytes_most(&self) -> u64 {
        self.handle.maps().iter().map(|map| reservation::buffer_bytes(map.len)).sum()
    }

    /// Makes the changes the committed version.
    pub(super) fn commit(&mut self, joining: &mut Joining<'_>) {
        if self.is_clean() {
            return;
        }
        // Skipped where locks are counted: the check would add to those of a release build.
        debug_assert!(lockstat::is_enabled() || self.is_all_marked(), "bytes changed that are not logged");
        let is_logged = self.is_logged();
        let change = match self.stale {
            true => BufChange::Invalidate,
            false => BufChange::Bytes {
                bytes: Arc::clone(&self.bytes),
                dirty: &self.dirty,
                verifier: self.verifier,
                fresh: self.fresh,
                unlogged: self.unlogged,
                inodes: self.inodes,
            },
        };
        // A released buffer is clean.
        let Some(lock) = &mut self.lock else { return };
        if is_logged {
            self.handle.commit(change, lock, joining);
        } else {
            self.handle.publish(change, lock);
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.bytes).is_none() {
            self.bytes = self.of_older().unwrap_or_else(|| copy_of(&self.bytes));
        }
        // The copy was just made, so nobody else has it.
        Arc::get_mut(&mut self.bytes).unwrap_or_default()
    }

    /// A copy of the content in the memory of the previous version. `None` after the first change, or if somebody still
    /// reads the previous version.
    fn of_older(&mut self) -> Option<Arc<[u8]>> {
        self.take_older()?.caught_up(&self.bytes)
    }

    fn take_older(&mut self) -> Option<Older> {
        self.lock.as_mut()?.older.take()
    }
}

/// The group of a header buffer and its rank among that group's headers. The AGFL has none: whoever locks it holds the
/// AGF, so nobody waits for it.
fn header_rank(geometry: &Geometry, daddr: DiskAddr) -> Option<(AgNumber, u8)> {
    let sector = u64::from(geometry.sector_size >> 9);
    let group_len = u64::from(geometry.ag_blocks) << (geometry.block_log - 9);
    let ag = AgNumber((daddr.0 / group_len) as u32);
    let order = [AgHeader::Agi, AgHeader::Agf];
    let place = order.iter().position(|header| header.sector() == daddr.0 % group_len / sector)?;
    Some((ag, place as u8))
}

impl Trans<'_> {
    /// Locks the buffer at `maps`, read and checked if it is not in memory.
    pub fn buf_read(&mut self, maps: &[BufMap], verifier: &'static Verifier) -> Result<BufIndex> {
        if let Some(index) = self.find(maps) {
            return Ok(index);
        }
        debug_assert!(self.may_wait_for(maps), "waits for {maps:?} behind {:?}", self.highest_header());
        if let Some(handle) = self.mount.bufs().cached_handle(maps)
            && let Some(index) = self.lock_passed(handle, verifier)
        {
            return Ok(index);
        }
        loop {
            let handle = self.mount.bufs().read_handle(maps, verifier)?;
            let mut lock = handle.lock();
            // The buffer was freed while we waited for the lock, or was read while another transaction made it: read it
            // again.
            if !lock.stale && handle.is_cached() {
                handle.tell_verifier(&mut lock);
                return Ok(self.join(JoinedBuf::new(handle, lock)));
            }
            drop(lock);
            self.journal.force_all()?;
        }
    }

    /// Locks a buffer if it is in the cache and `verifier` has passed it.
    fn lock_passed(&mut self, handle: Arc<MetaBuf>, verifier: &'static Verifier) -> Option<BufIndex> {
        let lock = handle.lock();
        let good = lock.is_passed_by(verifier) && handle.is_cached();
        good.then(|| self.join(JoinedBuf::new(handle, lock)))
    }

    /// Locks the one-map buffer of `len` bytes at `daddr`.
    pub fn buf_at(&mut self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<BufIndex> {
        self.buf_read(&[BufMap { daddr, len }], verifier)
    }

    /// Like [`buf_at`](Self::buf_at), but `None` if somebody else has it locked.
    pub fn try_buf_at(
        &mut self,
        daddr: DiskAddr,
        len: u64,
        verifier: &'static Verifier,
    ) -> Result<Option<BufIndex>> {
        let pieces = [BufMap { daddr, len }];
        if let Some(index) = self.find(&pieces) {
            return Ok(Some(index));
        }
        let handle = self.mount.bufs().read_handle(&pieces, verifier)?;
        let Some(mut lock) = handle.try_lock() else { return Ok(None) };
        if lock.stale || !handle.is_cached() {
            return Ok(None);
        }
        handle.tell_verifier(&mut lock);
        Ok(Some(self.join(JoinedBuf::new(handle, lock))))
    }

    /// Locks the buffer of blocks that were just allocated, filled with zeroes. `verifier` is that of its future
    /// content. All of it is logged, unless [`leave_unlogged`](Self::leave_unlogged) is called.
    pub fn buf_get(&mut self, maps: &[BufMap], verifier: &'static Verifier) -> Result<BufIndex> {
        let len = maps.iter().map(|map| map.len as usize).sum();
        self.buf_get_with(maps, verifier, zeroes(len))
    }

    /// Like [`buf_get`](Self::buf_get), with this content.
    pub(crate) fn buf_get_with(
        &mut self,
        maps: &[BufMap],
        verifier: &'static Verifier,
        bytes: Arc<[u8]>,
    ) -> Result<BufIndex> {
        let index = match self.find(maps) {
            Some(index) => index,
            None => loop {
                let handle = self.mount.bufs().get_handle(maps, verifier)?;
                let lock = handle.lock();
                if !handle.is_cached() {
                    // A reader of the old content replaced the buffer before we had it locked.
                    continue;
                }
                if !handle.is_stale_and_pinned() {
                    break self.join(JoinedBuf::new(handle, lock));
                }
                // The log must cancel the old buffer before it logs the new content.
                drop(lock);
                self.journal.force_all()?;
            },
        };
        let buf = &mut self.bufs[index.0];
        debug_assert_eq!(buf.bytes.len(), bytes.len(), "a buffer's size is that of its maps");
        buf.take_older();
        buf.bytes = bytes;
        buf.verifier = verifier;
        buf.dirty.clear();
        buf.dirty.mark(0..buf.bytes.len());
        (buf.fresh, buf.stale, buf.inodes, buf.unlogged) = (true, false, false, false);
        Ok(index)
    }

    /// The content of a buffer as this transaction has changed it.
    pub fn bytes(&self, index: BufIndex) -> &[u8] {
        &self.bufs[index.0].bytes
    }

    /// The same as an owned snapshot.
    pub fn snapshot(&self, index: BufIndex) -> Buf {
        let buf = &self.bufs[index.0];
        Buf::new(buf.handle.daddr(), Arc::clone(&buf.bytes))
    }

    /// A private copy of a buffer's content, if one is available at little cost. It is given out once.
    pub(crate) fn cheap_copy(&mut self, index: BufIndex) -> Option<Arc<[u8]>> {
        self.bufs[index.0].of_older()
    }

    /// All bytes of a buffer, for changing those in `range`. The range is logged.
    pub fn bytes_mut(&mut self, index: BufIndex, range: Range<usize>) -> &mut [u8] {
        let buf = &mut self.bufs[index.0];
        debug_assert!(range.end <= buf.bytes.len(), "a change behind the buffer's end");
        // Mark it in an unlogged buffer too: the other item does not have what is changed from now on.
        buf.dirty.mark(range);
        buf.bytes_mut()
    }

    /// Replaces the content of a buffer by `new`. `old` is its content when it was last read. The two differ only in
    /// `changed`, which is logged.
    pub(crate) fn replace_bytes(
        &mut self,
        index: BufIndex,
        old: Buf,
        new: Arc<[u8]>,
        changed: &[Range<usize>],
    ) {
        let buf = &mut self.bufs[index.0];
        debug_assert_eq!(buf.bytes.len(), new.len(), "a buffer's size does not change");
        changed.iter().for_each(|range| buf.dirty.mark(range.clone()));
        let is_old = old.is_of(&buf.bytes);
        drop(old);
        if is_old {
            buf.take_older();
            keep(std::mem::replace(&mut buf.bytes, new));
            return;
        }
        // Write-back came in between and stamped the new LSN into the buffer.
        let bytes = buf.bytes_mut();
        changed.iter().for_each(|range| bytes[range.clone()].copy_from_slice(&new[range.clone()]));
        keep(new);
    }

    /// Whether a buffer has more than one map.
    pub(crate) fn is_scattered(&self, index: BufIndex) -> bool {
        self.bufs[index.0].handle.maps().len() > 1
    }

    /// Says that another log item rebuilds a new buffer when the log is replayed.
    pub fn leave_unlogged(&mut self, index: BufIndex) {
        let buf = &mut self.bufs[index.0];
        debug_assert!(buf.fresh, "only what is made anew may stay off the log");
        buf.dirty.clear();
        buf.unlogged = true;
    }

    /// Says that a buffer holds inodes. Only their unlinked list pointers are logged with it.
    pub fn mark_inodes(&mut self, index: BufIndex) {
        self.bufs[index.0].inodes = true;
    }

    /// Invalidates a buffer whose blocks are freed. Earlier changes of it will not be replayed, and no write is in
    /// progress that could overwrite the blocks' next content.
    pub fn invalidate(&mut self, index: BufIndex) {
        let buf = &mut self.bufs[index.0];
        // No write starts while a transaction holds the buffer.
        while buf.handle.is_being_written() && self.journal.is_shut_down().is_none() {
            buf.handle.wait_for_write();
        }
        buf.stale = true;
        buf.dirty.clear();
    }

    /// A snapshot as this transaction sees it: its own version, otherwise the committed one.
    pub fn snapshot_of(&self, maps: &[BufMap], verifier: &'static Verifier) -> Result<Buf> {
        match self.find(maps) {
            Some(index) => Ok(self.snapshot(index)),
            None => self.committed(maps, verifier),
        }
    }

    /// The committed content of a buffer that this transaction has not locked.
    fn committed(&self, maps: &[BufMap], verifier: &'static Verifier) -> Result<Buf> {
        let [map] = maps else { return self.mount.bufs().read_maps(maps, verifier) };
        let mut peeked = self.snapshots.borrow_mut();
        let known = peeked.iter().find(|(of, by, _)| of == map && std::ptr::eq(*by, verifier));
        if let Some((.., buf)) = known {
            return Ok(buf.clone());
        }
        let buf = self.mount.bufs().read_maps(maps, verifier)?;
        if peeked.len() == SNAPSHOTS_MAX {
            peeked.remove(0);
        }
        peeked.push((*map, verifier, buf.clone()));
        Ok(buf)
    }

    /// The handle of a buffer.
    pub(crate) fn handle(&self, index: BufIndex) -> Arc<MetaBuf> {
        Arc::clone(&self.bufs[index.0].handle)
    }

    /// The handle of a buffer that this transaction has.
    pub(super) fn own_handle(&self, maps: &[BufMap]) -> Option<Arc<MetaBuf>> {
        self.find(maps).map(|index| self.handle(index))
    }

    fn find(&self, maps: &[BufMap]) -> Option<BufIndex> {
        // Search backwards: transactions have few buffers and mostly use the last ones.
        let daddr = maps.first()?.daddr;
        let is_it = |buf: &JoinedBuf| buf.daddr == daddr && buf.lock.is_some() && buf.handle.maps() == maps;
        self.bufs.iter().rposition(is_it).map(BufIndex)
    }

    /// Like [`snapshot_of`](Self::snapshot_of), for one map.
    pub fn snapshot_at(&self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<Buf> {
        self.snapshot_of(&[BufMap { daddr, len }], verifier)
    }

    /// Whether this transaction has the one-map buffer of `len` bytes at `daddr` locked.
    pub(crate) fn has_locked(&self, daddr: DiskAddr, len: u64) -> bool {
        self.find(&[BufMap { daddr, len }]).is_some()
    }

    /// Releases the lock of a buffer that was not changed. Returns `false`, and does nothing, if it was. Afterwards the
    /// index is invalid.
    pub(crate) fn release_buf(&mut self, index: BufIndex) -> bool {
        let buf = &mut self.bufs[index.0];
        if buf.is_clean() {
            buf.lock = None;
        }
        let free = buf.lock.is_none();
        self.forget_snapshots();
        free
    }

    /// The highest group of which this transaction has a header locked.
    pub(crate) fn highest_group(&self) -> Option<AgNumber> {
        self.highest_header().map(|(ag, _)| ag)
    }

    /// The last of the locked group headers in lock order.
    fn highest_header(&self) -> Option<(AgNumber, u8)> {
        let owned = self.bufs.iter().filter(|buf| buf.lock.is_some());
        owned.filter_map(|buf| header_rank(self.geometry(), buf.handle.daddr())).max()
    }

    /// Lock order of group headers: by group, and within a group the AGI before the AGF. Returns whether all locked
    /// headers come before this buffer, or it is no header. Otherwise two transactions might deadlock.
    fn may_wait_for(&self, maps: &[BufMap]) -> bool {
        let rank = maps.first().and_then(|map| header_rank(self.geometry(), map.daddr));
        rank.is_none_or(|rank| self.highest_header() < Some(rank))
    }

    /// A tree block as this transaction sees it. The caller keeps others from changing the tree.
    pub(crate) fn read_block(&self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<Block<'_>> {
        let pieces = [self.one_block(daddr)];
        Ok(match self.find(&pieces) {
            Some(index) => Block::Private(self.bytes(index)),
            None => Block::Shared(self.committed(&pieces, verifier)?),
        })
    }

    /// Locks a tree block that is about to be changed. The group's `header` remembers the blocks that were used last.
    pub(crate) fn hold_block(
        &mut self,
        header: BufIndex,
        daddr: DiskAddr,
        verifier: &'static Verifier,
    ) -> Result<()> {
        let pieces = [self.one_block(daddr)];
        if self.find(&pieces).is_some() {
            return Ok(());
        }
        let is_it = |buf: &&Arc<MetaBuf>| buf.maps() == pieces;
        let header_lock = self.bufs[header.0].lock.as_ref();
        let near = header_lock.and_then(|lock| lock.near.iter().find(is_it)).map(Arc::clone);
        if near.is_some_and(|handle| self.lock_passed(handle, verifier).is_some()) {
            return Ok(());
        }
        let index = self.buf_read(&pieces, verifier)?;
        let handle = self.handle(index);
        if self.geometry().ag_count() <= NEAR_GROUPS_MAX
            && let Some(lock) = &mut self.bufs[header.0].lock
        {
            lock.near.retain(|buf| buf.maps() != pieces);
            lock.near.truncate(NEAR_MOST - 1);
            lock.near.insert(0, handle);
        }
        Ok(())
    }

    /// A tree block, for changing the bytes in `ranges`.
    pub(crate) fn modify_block(
        &mut self,
        daddr: DiskAddr,
        verifier: &'static Verifier,
        ranges: &[Range<usize>],
    ) -> Result<&mut [u8]> {
        let index = self.buf_read(&[self.one_block(daddr)], verifier)?;
        let buf = &mut self.bufs[index.0];
        ranges.iter().filter(|range| !range.is_empty()).for_each(|range| buf.dirty.mark(range.clone()));
        Ok(buf.bytes_mut())
    }

    /// A new tree block, filled with zeroes.
    pub(crate) fn create_block(&mut self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<&mut [u8]> {
        let index = self.buf_get(&[self.one_block(daddr)], verifier)?;
        Ok(self.bufs[index.0].bytes_mut())
    }

    /// Invalidates a tree block that returns to free space.
    pub(crate) fn forget_block(&mut self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<()> {
        let index = self.buf_read(&[self.one_block(daddr)], verifier)?;
        self.invalidate(index);
        Ok(())
    }

    fn one_block(&self, daddr: DiskAddr) -> BufMap {
        BufMap { daddr, len: self.geometry().block_size.into() }
    }

    /// Snapshots from before and after a lock may differ. So every lock that this transaction takes drops all
    /// snapshots.
    pub(super) fn forget_snapshots(&mut self) {
        self.snapshots.get_mut().clear();
    }

    #[inline]
    fn join(&mut self, joined: JoinedBuf) -> BufIndex {
        self.forget_snapshots();
        self.bufs.push(joined);
        BufIndex(self.bufs.len() - 1)
    }
}
