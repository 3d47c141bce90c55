//! The buffers of a transaction: private copies of what it changes.

use super::Trans;
use crate::btree::edit::Block;
use crate::buf::{
    Buf, Change, ChunkMap, Look, MetaBuf, Owned, Piece, Words, copy_of, keep, runs, runs_of_word, zeroes,
};
use crate::error::Result;
use crate::log::{LogItem, LogVector, VecSize};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::ag::AgHeader;
use xfs_format::geometry::Geometry;
use xfs_format::identity;
use xfs_format::log::{BUF_CHUNK_SIZE, BufFlags, BufHeader, BufType};
use xfs_format::types::{AgNumber, DiskAddr};
use xfs_format::verify::Verifier;

/// A buffer of a transaction. Good up to its next roll or commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufIndex(pub(crate) usize);

/// What was looked at without being locked, so that the next look at it costs nothing: see [`Trans::forget_peeked`].
pub(super) type Peeked = RefCell<SmallVec<[(Piece, &'static Verifier, Buf); PEEKED_MOST]>>;

const PEEKED_MOST: usize = 4;

/// A buffer that a transaction has locked.
pub(super) struct Joined {
    handle: Arc<MetaBuf>,
    /// Where it begins.
    daddr: DiskAddr,
    /// `None` once it was let go of.
    owned: Option<Owned>,
    bytes: Arc<[u8]>,
    verifier: &'static Verifier,
    /// What this transaction changed.
    dirty: ChunkMap,
    /// What was logged before, and not written when it was locked.
    logged: ChunkMap,
    /// Its blocks were just allocated: the old content does not count.
    fresh: bool,
    stale: bool,
    inodes: bool,
    /// To be kept off the log: its content is made by another item.
    unlogged: bool,
}

impl Joined {
    fn new(handle: Arc<MetaBuf>, owned: Owned, look: Look) -> Self {
        let Look { bytes, verifier, inodes, dirty: logged, stale: _ } = look;
        Self {
            daddr: handle.daddr(),
            handle,
            owned: Some(owned),
            bytes,
            verifier,
            dirty: ChunkMap::default(),
            logged,
            fresh: false,
            stale: false,
            inodes,
            unlogged: false,
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        !self.stale && !self.fresh && self.dirty.is_empty()
    }

    /// Whether it goes to the log. A buffer that was made anew and is logged by another item does not.
    fn is_logged(&self) -> bool {
        self.stale || !self.dirty.is_empty()
    }

    /// The log vector of what is dirty, since the buffer was last written.
    pub(super) fn format(&self) -> Option<(Arc<dyn LogItem>, LogVector)> {
        if !self.is_logged() {
            return None;
        }
        let mut dirty = self.dirty.clone();
        if !self.fresh && !self.stale {
            dirty.merge(&self.logged);
            // Where locks are counted, those of a release build are.
            debug_assert!(
                lockstat::is_enabled() || self.is_all_marked(&dirty),
                "bytes changed, or were logged before, that are not logged now"
            );
        }
        if let (Some(word), [_]) = (dirty.as_word(), self.handle.pieces()) {
            let word = if self.stale { 0 } else { word };
            return Some((Arc::clone(&self.handle) as Arc<dyn LogItem>, self.format_word(word)));
        }
        let mut parts = SmallVec::<[Part; 1]>::new();
        let mut at = 0;
        for piece in self.handle.pieces() {
            let len = usize::try_from(piece.len).unwrap_or(0);
            parts.push(Part::new(piece.daddr, at..at + len, &dirty, self.stale));
            at += len;
        }
        // A piece of which nothing changed needs no item, unless it is taken back.
        parts.retain(|part| self.stale || !part.map.iter().all(|word| *word == 0));
        let size = VecSize {
            regions: parts.iter().map(|part| u32::from(part.regions)).sum(),
            bytes: parts.iter().map(|part| part.log_bytes).sum::<usize>() as u32,
        };
        let mut vector = LogVector::of_spare(size);
        for part in &parts {
            part.format(self, &mut vector);
        }
        Some((Arc::clone(&self.handle) as Arc<dyn LogItem>, vector))
    }

    /// Whether what differs from the committed version is dirty, and so is what was logged and is not written yet.
    fn is_all_marked(&self, dirty: &ChunkMap) -> bool {
        let (len, look) = (self.bytes.len(), self.handle.look());
        let words = BufHeader::map_words(len);
        let [changed, logged, all] = [&self.dirty, &look.dirty, dirty].map(|map| map.part(0..len, words));
        let has = |map: &Words, nth: usize| map[nth / 32] >> (nth % 32) & 1 == 1;
        let chunks = look.bytes.chunks(BUF_CHUNK_SIZE).zip(self.bytes.chunks(BUF_CHUNK_SIZE));
        chunks.enumerate().all(|(nth, (old, new))| {
            (old == new || self.unlogged || has(&changed, nth)) && (!has(&logged, nth) || has(&all, nth))
        })
    }

    /// The log vector of a buffer of one piece that has no more than 64 chunks which are dirty, those of this word.
    fn format_word(&self, word: u64) -> LogVector {
        let len = self.bytes.len();
        let words = [word as u32, (word >> 32) as u32, 0, 0];
        let map_words = BufHeader::map_words(len);
        let mut longer = Words::new();
        let map = match words.get(..map_words) {
            Some(map) => map,
            None => {
                longer.extend_from_slice(&words);
                longer.resize(map_words, 0);
                &longer
            }
        };
        let runs = (word & !(word << 1)).count_ones();
        let header_bytes = BufHeader::bytes(map_words);
        let size = VecSize {
            regions: 1 + runs,
            bytes: header_bytes as u32 + word.count_ones() * BUF_CHUNK_SIZE as u32,
        };
        let mut vector = LogVector::of_spare(size);
        let (flags, buf_type) = self.flags_and_type();
        let header = BufHeader {
            daddr: self.daddr,
            len: (len / 512) as u16,
            flags,
            buf_type,
            regions: 1 + runs as u16,
            map,
        };
        vector.region_with(header_bytes, |to| header.encode(to));
        for run in runs_of_word(word, len) {
            vector.region(&self.bytes[run]);
        }
        vector
    }

    fn flags_and_type(&self) -> (BufFlags, BufType) {
        if self.stale {
            return (BufFlags::CANCEL, BufType::Unknown);
        }
        if self.inodes {
            return (BufFlags::INODE_BUF, BufType::Inode);
        }
        let kind = identity::identify(&self.bytes).map_or(BufType::Unknown, |identity| identity.kind);
        (BufFlags::empty(), kind)
    }

    /// Makes what was changed the committed version.
    pub(super) fn publish(&mut self) {
        if self.is_clean() {
            return;
        }
        let change = match self.stale {
            true => Change::Stale,
            false => Change::Bytes {
                bytes: Arc::clone(&self.bytes),
                dirty: &self.dirty,
                verifier: self.verifier,
                fresh: self.fresh,
                unlogged: self.unlogged,
                inodes: self.inodes,
            },
        };
        self.handle.publish(change);
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.bytes).is_none() {
            self.bytes = copy_of(&self.bytes);
        }
        // Nobody else has a copy that was just made.
        Arc::get_mut(&mut self.bytes).unwrap_or_default()
    }
}

/// What is logged of one piece of a buffer: an item of its own to whoever replays.
struct Part {
    daddr: DiskAddr,
    bytes: Range<usize>,
    map: Words,
    regions: u16,
    /// Bytes of its regions.
    log_bytes: usize,
}

impl Part {
    fn new(daddr: DiskAddr, bytes: Range<usize>, dirty: &ChunkMap, stale: bool) -> Self {
        let words = BufHeader::map_words(bytes.len());
        let map = if stale { smallvec![0; words] } else { dirty.part(bytes.clone(), words) };
        let start = (1, BufHeader::bytes(map.len()));
        let add = |(regions, sum), run: Range<usize>| (regions + 1, sum + run.len());
        let (regions, log_bytes) = runs(&map, bytes.len()).fold(start, add);
        Self { daddr, bytes, map, regions, log_bytes }
    }

    fn format(&self, buf: &Joined, vector: &mut LogVector) {
        let (flags, buf_type) = buf.flags_and_type();
        let header = BufHeader {
            daddr: self.daddr,
            len: (self.bytes.len() / 512) as u16,
            flags,
            buf_type,
            regions: self.regions,
            map: &self.map,
        };
        vector.region_with(BufHeader::bytes(self.map.len()), |to| header.encode(to));
        for run in runs(&self.map, self.bytes.len()) {
            vector.region(&buf.bytes[self.bytes.start + run.start..self.bytes.start + run.end]);
        }
    }
}

/// Of which group a buffer is a header, if it is one, and its place among the headers of that group. The AGFL has none:
/// whoever locks it has the AGF, so nobody waits for it.
fn header_rank(geometry: &Geometry, daddr: DiskAddr) -> Option<(AgNumber, u8)> {
    let sector = u64::from(geometry.sector_size >> 9);
    let group_len = u64::from(geometry.ag_blocks) << (geometry.block_log - 9);
    let ag = AgNumber((daddr.0 / group_len) as u32);
    let order = [AgHeader::Agi, AgHeader::Agf];
    let place = order.iter().position(|header| header.sector() == daddr.0 % group_len / sector)?;
    Some((ag, place as u8))
}

impl Trans<'_> {
    /// Locks the buffer at `pieces`, read and checked if it is not in memory.
    pub fn buf_read(&mut self, pieces: &[Piece], verifier: &'static Verifier) -> Result<BufIndex> {
        if let Some(index) = self.find(pieces) {
            return Ok(index);
        }
        debug_assert!(self.may_wait_for(pieces), "waits for {pieces:?} behind {:?}", self.highest_header());
        if let Some(handle) = self.volume.bufs().cached_handle(pieces) {
            let owned = handle.own();
            let look = handle.look();
            if !look.stale && std::ptr::eq(look.verifier, verifier) && handle.is_found() {
                return Ok(self.join(Joined::new(handle, owned, look)));
            }
        }
        loop {
            let handle = self.volume.bufs().read_handle(pieces, verifier)?;
            let owned = handle.own();
            // Freed while we waited for it, or read while another transaction was making it: what is there now is
            // read anew.
            let look = handle.look();
            if !look.stale && handle.is_found() {
                return Ok(self.join(Joined::new(handle, owned, look)));
            }
            drop(owned);
            self.journal.force_all()?;
        }
    }

    /// Locks the one-piece buffer of `len` bytes at `daddr`.
    pub fn buf_at(&mut self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<BufIndex> {
        self.buf_read(&[Piece { daddr, len }], verifier)
    }

    /// As [`buf_at`](Self::buf_at), or `None` where somebody else has it locked.
    pub fn try_buf_at(
        &mut self,
        daddr: DiskAddr,
        len: u64,
        verifier: &'static Verifier,
    ) -> Result<Option<BufIndex>> {
        let pieces = [Piece { daddr, len }];
        if let Some(index) = self.find(&pieces) {
            return Ok(Some(index));
        }
        let handle = self.volume.bufs().read_handle(&pieces, verifier)?;
        let Some(owned) = handle.try_own() else { return Ok(None) };
        let look = handle.look();
        if look.stale || !handle.is_found() {
            return Ok(None);
        }
        Ok(Some(self.join(Joined::new(handle, owned, look))))
    }

    /// Locks the buffer of blocks that were just allocated, all zeroes. `verifier` says what it is to become.
    /// Everything in it is logged, unless somebody says [`leave_unlogged`](Self::leave_unlogged).
    pub fn buf_new(&mut self, pieces: &[Piece], verifier: &'static Verifier) -> Result<BufIndex> {
        let index = match self.find(pieces) {
            Some(index) => index,
            None => loop {
                let handle = self.volume.bufs().fresh_handle(pieces, verifier)?;
                let owned = handle.own();
                if !handle.is_found() {
                    // A reader of what was here put another one in its place before we had it.
                    continue;
                }
                if !handle.is_stale_and_pinned() {
                    let look = handle.look();
                    break self.join(Joined::new(handle, owned, look));
                }
                // The log must say that the old buffer is gone before it says what the new one holds.
                drop(owned);
                self.journal.force_all()?;
            },
        };
        let buf = &mut self.bufs[index.0];
        let len = buf.bytes.len();
        buf.bytes = zeroes(len);
        buf.verifier = verifier;
        buf.dirty.clear();
        buf.dirty.mark(0..len);
        (buf.fresh, buf.stale, buf.inodes, buf.unlogged) = (true, false, false, false);
        Ok(index)
    }

    /// What a buffer holds, as this transaction has changed it.
    pub fn bytes(&self, index: BufIndex) -> &[u8] {
        &self.bufs[index.0].bytes
    }

    /// The same, to be kept.
    pub fn snapshot(&self, index: BufIndex) -> Buf {
        let buf = &self.bufs[index.0];
        Buf::new(buf.handle.daddr(), Arc::clone(&buf.bytes))
    }

    /// The buffer's bytes, all of them, for changing those in `range`, which will be logged.
    pub fn bytes_mut(&mut self, index: BufIndex, range: Range<usize>) -> &mut [u8] {
        let buf = &mut self.bufs[index.0];
        debug_assert!(range.end <= buf.bytes.len(), "a change behind the buffer's end");
        if !buf.unlogged {
            buf.dirty.mark(range);
        }
        buf.bytes_mut()
    }

    /// Has a buffer, which held `old` when it was read last, hold `new`. The two differ in `changed` at most, which will
    /// be logged.
    pub(crate) fn replace_bytes(
        &mut self,
        index: BufIndex,
        old: Buf,
        new: Arc<[u8]>,
        changed: &[Range<usize>],
    ) {
        let buf = &mut self.bufs[index.0];
        debug_assert_eq!(buf.bytes.len(), new.len(), "a buffer's size does not change");
        if !buf.unlogged {
            changed.iter().for_each(|range| buf.dirty.mark(range.clone()));
        }
        let is_old = old.is_of(&buf.bytes);
        drop(old);
        if is_old {
            keep(std::mem::replace(&mut buf.bytes, new));
            return;
        }
        // It was written back in between, which says in it up to where the log has it.
        let bytes = buf.bytes_mut();
        changed.iter().for_each(|range| bytes[range.clone()].copy_from_slice(&new[range.clone()]));
        keep(new);
    }

    /// Whether a buffer is made of several pieces.
    pub(crate) fn is_scattered(&self, index: BufIndex) -> bool {
        self.bufs[index.0].handle.pieces().len() > 1
    }

    /// Says that a buffer made anew is rebuilt from another log item when the log is replayed.
    pub fn leave_unlogged(&mut self, index: BufIndex) {
        let buf = &mut self.bufs[index.0];
        debug_assert!(buf.fresh, "only what is made anew may stay off the log");
        buf.dirty.clear();
        buf.unlogged = true;
    }

    /// Says that a buffer holds inodes, of which only the list pointers are logged with it.
    pub fn mark_inodes(&mut self, index: BufIndex) {
        self.bufs[index.0].inodes = true;
    }

    /// Takes a buffer back whose blocks are freed: earlier changes of it will not be replayed, and none is on its way to
    /// the device any more, where it would land on what the blocks hold next.
    pub fn invalidate(&mut self, index: BufIndex) {
        let buf = &mut self.bufs[index.0];
        // No write begins while a transaction has the buffer.
        while buf.handle.is_being_written() && self.journal.is_shut_down().is_none() {
            buf.handle.wait_for_write();
        }
        buf.stale = true;
        buf.dirty.clear();
    }

    /// What this transaction has of a place, or else what is committed.
    pub fn peek(&self, pieces: &[Piece], verifier: &'static Verifier) -> Result<Buf> {
        match self.find(pieces) {
            Some(index) => Ok(self.snapshot(index)),
            None => self.committed(pieces, verifier),
        }
    }

    /// What is committed of a place that this transaction has not locked.
    fn committed(&self, pieces: &[Piece], verifier: &'static Verifier) -> Result<Buf> {
        let [piece] = pieces else { return self.volume.bufs().read_pieces(pieces, verifier) };
        let mut peeked = self.peeked.borrow_mut();
        let known = peeked.iter().find(|(of, by, _)| of == piece && std::ptr::eq(*by, verifier));
        if let Some((.., buf)) = known {
            return Ok(buf.clone());
        }
        let buf = self.volume.bufs().read_pieces(pieces, verifier)?;
        if peeked.len() == PEEKED_MOST {
            peeked.remove(0);
        }
        peeked.push((*piece, verifier, buf.clone()));
        Ok(buf)
    }

    /// The handle behind a buffer.
    #[allow(dead_code, reason = "its users follow")]
    pub(crate) fn handle(&self, index: BufIndex) -> Arc<MetaBuf> {
        Arc::clone(&self.bufs[index.0].handle)
    }

    /// The handle of a buffer that this transaction has.
    pub(super) fn own_handle(&self, pieces: &[Piece]) -> Option<Arc<MetaBuf>> {
        self.find(pieces).map(|index| self.handle(index))
    }

    fn find(&self, pieces: &[Piece]) -> Option<BufIndex> {
        // Transactions have few buffers: the last ones are asked for most.
        let daddr = pieces.first()?.daddr;
        let is_it = |buf: &Joined| buf.daddr == daddr && buf.owned.is_some() && buf.handle.pieces() == pieces;
        self.bufs.iter().rposition(is_it).map(BufIndex)
    }

    /// As [`peek`](Self::peek), of one piece.
    pub fn peek_at(&self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<Buf> {
        self.peek(&[Piece { daddr, len }], verifier)
    }

    /// Whether this transaction has the one-piece buffer of `len` bytes at `daddr` locked.
    pub(crate) fn has_locked(&self, daddr: DiskAddr, len: u64) -> bool {
        self.find(&[Piece { daddr, len }]).is_some()
    }

    /// Gives back the lock of a buffer of which nothing was changed; `false` if something was. Its index is void then.
    pub(crate) fn let_go(&mut self, index: BufIndex) -> bool {
        let buf = &mut self.bufs[index.0];
        if buf.is_clean() {
            buf.owned = None;
        }
        let free = buf.owned.is_none();
        self.forget_peeked();
        free
    }

    /// The highest group of which a header is locked.
    pub(crate) fn highest_group(&self) -> Option<AgNumber> {
        self.highest_header().map(|(ag, _)| ag)
    }

    /// The last of the group headers that are locked, in the order in which they may be waited for.
    fn highest_header(&self) -> Option<(AgNumber, u8)> {
        let owned = self.bufs.iter().filter(|buf| buf.owned.is_some());
        owned.filter_map(|buf| header_rank(self.geometry(), buf.handle.daddr())).max()
    }

    /// Whether all group headers that are locked come before this buffer, if it is one: by group, and in a group the AGI,
    /// then the AGF. Otherwise two transactions might wait for each other.
    fn may_wait_for(&self, pieces: &[Piece]) -> bool {
        let rank = pieces.first().and_then(|piece| header_rank(self.geometry(), piece.daddr));
        rank.is_none_or(|rank| self.highest_header() < Some(rank))
    }

    /// A block of a tree as this transaction sees it. Whoever asks keeps changes of the tree off.
    pub(crate) fn read_block(&self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<Block<'_>> {
        let pieces = [self.one_block(daddr)];
        Ok(match self.find(&pieces) {
            Some(index) => Block::Private(self.bytes(index)),
            None => Block::Shared(self.committed(&pieces, verifier)?),
        })
    }

    /// Locks a block of a tree that is about to be changed.
    pub(crate) fn hold_block(&mut self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<()> {
        self.buf_read(&[self.one_block(daddr)], verifier).map(drop)
    }

    /// A block of a tree, for changing those bytes of it that are in `ranges`.
    pub(crate) fn modify_block(
        &mut self,
        daddr: DiskAddr,
        verifier: &'static Verifier,
        ranges: &[Range<usize>],
    ) -> Result<&mut [u8]> {
        let index = self.buf_read(&[self.one_block(daddr)], verifier)?;
        let buf = &mut self.bufs[index.0];
        if !buf.unlogged {
            ranges.iter().filter(|range| !range.is_empty()).for_each(|range| buf.dirty.mark(range.clone()));
        }
        Ok(buf.bytes_mut())
    }

    /// A new block of a tree: zeroes.
    pub(crate) fn create_block(&mut self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<&mut [u8]> {
        let index = self.buf_new(&[self.one_block(daddr)], verifier)?;
        Ok(self.bufs[index.0].bytes_mut())
    }

    /// A block of a tree that goes back to free space.
    pub(crate) fn forget_block(&mut self, daddr: DiskAddr, verifier: &'static Verifier) -> Result<()> {
        let index = self.buf_read(&[self.one_block(daddr)], verifier)?;
        self.invalidate(index);
        Ok(())
    }

    fn one_block(&self, daddr: DiskAddr) -> Piece {
        Piece { daddr, len: self.geometry().block_size.into() }
    }

    /// What was looked at before a lock was taken, or is looked at behind it, may differ: with every lock that this
    /// transaction takes, all looks begin anew.
    pub(super) fn forget_peeked(&mut self) {
        self.peeked.get_mut().clear();
    }

    fn join(&mut self, joined: Joined) -> BufIndex {
        self.forget_peeked();
        self.bufs.push(joined);
        BufIndex(self.bufs.len() - 1)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use xfs_format::attr::RAW;

    fn by_parts(buf: &Joined, dirty: &ChunkMap) -> Vec<Vec<u8>> {
        let part = Part::new(buf.daddr, 0..buf.bytes.len(), dirty, buf.stale);
        let size = VecSize { regions: part.regions.into(), bytes: part.log_bytes as u32 };
        let mut vector = LogVector::begin(None, size);
        part.format(buf, &mut vector);
        assert_eq!(vector.regions(), size.regions);
        vector.iter().map(<[u8]>::to_vec).collect()
    }

    /// A vector that is made from a word says the same as one that is made from a map.
    #[test]
    fn words_and_parts_agree() {
        const LENS: [usize; 10] = [512, 1024, 1536, 4096, 4608, 8192, 8704, 16384, 32768, 65536];
        let mut rng = fastrand::Rng::with_seed(7);
        let mut by_word = 0;
        for round in 0..3000 {
            let len = LENS[round % LENS.len()];
            let bytes: Arc<[u8]> = (0..len).map(|at: usize| (at * 7 + at / 128) as u8).collect();
            let piece = Piece { daddr: DiskAddr(64), len: len as u64 };
            let handle = Arc::new(MetaBuf::new(&[piece], Arc::clone(&bytes), &RAW, &Arc::default()));
            let top = if rng.bool() { len.min(8192) } else { len };
            let mut marked = |most: usize| {
                let mut map = ChunkMap::default();
                for _ in 0..rng.usize(1..=most) {
                    let from = rng.usize(0..top);
                    map.mark(from..(from + rng.usize(1..900)).min(top));
                }
                map
            };
            let (logged, dirty) = (marked(3), marked(6));
            let (fresh, unlogged, inodes) = (false, false, false);
            handle.publish(Change::Bytes { bytes, dirty: &logged, verifier: &RAW, fresh, unlogged, inodes });
            let (owned, look) = (handle.own(), handle.look());
            let mut joined = Joined::new(handle, owned, look);
            joined.dirty = dirty;
            let mut all = joined.dirty.clone();
            if round % 9 == 0 {
                joined.stale = true;
                joined.dirty.clear();
                all.clear();
            } else {
                all.merge(&logged);
            }
            by_word += u32::from(all.as_word().is_some());
            let (_, vector) = joined.format().expect("it is logged");
            let said: Vec<Vec<u8>> = vector.iter().map(<[u8]>::to_vec).collect();
            assert_eq!(said, by_parts(&joined, &all), "{len} bytes, round {round}");
        }
        assert!((1500..3000).contains(&by_word), "{by_word} of 3000 by a word");
    }
}
