//! Changing blocks of B+trees.
//!
//! A [`NodeShape`] says where in a block a record, key or pointer lies, so that a caller can name the bytes that it is
//! about to change before it changes them. A [`NodeMut`] changes them. It keeps the block's counts within its size;
//! the caller is responsible for the order of records, the keys of children, and checksums.

use crate::ag::MAX_LEVELS;
use crate::btree::{INLINE_BODY, LongHeader, Node, Plain, ShortHeader, Tree, Width};
use crate::error::FormatError;
use crate::types::{DiskAddr, Uuid};
use std::marker::PhantomData;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// No sibling.
pub const NO_BLOCK: u64 = u64::MAX;

/// Where things lie in one block of a tree, or in its root within an inode.
#[derive(Clone, Copy, Debug)]
pub struct NodeShape<T: Tree> {
    len: usize,
    body_at: usize,
    level: u16,
    tree: PhantomData<T>,
}

impl<T: Tree> NodeShape<T> {
    /// A block of `len` bytes.
    pub fn block(len: usize, v5: bool, level: u16) -> Self {
        Self { len, body_at: T::header_len(v5), level, tree: PhantomData }
    }

    /// A root within an inode whose fork has `len` bytes.
    pub fn inline_root(len: usize, level: u16) -> Self {
        Self { len, body_at: INLINE_BODY, level, tree: PhantomData }
    }

    /// How many records or children it has room for.
    pub fn capacity(&self) -> usize {
        let body = self.len.saturating_sub(self.body_at);
        if self.level == 0 { T::max_records(body) } else { T::max_children(body) }
    }

    /// The least that a block has, unless it is a root.
    pub fn least(&self) -> usize {
        self.capacity() / 2
    }

    /// The bytes of the header that hold level and count.
    pub fn counts(&self) -> Range<usize> {
        if self.is_inline() { 0..4 } else { 4..8 }
    }

    /// The bytes of the header that hold the siblings; none for a root within an inode.
    pub fn siblings(&self) -> Range<usize> {
        if self.is_inline() { 0..0 } else { 8..8 + 2 * T::pointer_len() }
    }

    /// The bytes of some records of a leaf.
    pub fn records(&self, which: Range<usize>) -> Range<usize> {
        self.elements(self.body_at, size_of::<T::Record>(), which)
    }

    /// The bytes of some keys of an inner block.
    pub fn keys(&self, which: Range<usize>) -> Range<usize> {
        self.elements(self.body_at, size_of::<T::Key>(), which)
    }

    /// The bytes of some pointers of an inner block.
    pub fn pointers(&self, which: Range<usize>) -> Range<usize> {
        let at = self.body_at + self.capacity() * size_of::<T::Key>();
        self.elements(at, T::pointer_len(), which)
    }

    /// The bytes that change where the entries `which` of a block change: one run for a leaf, two for others.
    pub fn entries(&self, which: Range<usize>) -> [Range<usize>; 2] {
        if self.level == 0 {
            [self.records(which), 0..0]
        } else {
            [self.keys(which.clone()), self.pointers(which)]
        }
    }

    fn is_inline(&self) -> bool {
        self.body_at == INLINE_BODY
    }

    fn elements(&self, at: usize, size: usize, which: Range<usize>) -> Range<usize> {
        let most = self.capacity();
        at + which.start.min(most) * size..at + which.end.min(most) * size
    }
}

/// What a new block's header says.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock {
    /// Height above the leaves.
    pub level: u16,
    /// Siblings, left and right; [`NO_BLOCK`] for none.
    pub siblings: (u64, u64),
    /// Where the block lies.
    pub daddr: DiskAddr,
    /// The volume's metadata UUID.
    pub uuid: Uuid,
    /// Group number or inode.
    pub owner: u64,
}

/// One block of a tree, or a root within an inode, that is being changed.
#[derive(Debug)]
pub struct NodeMut<'a, T: Tree> {
    bytes: &'a mut [u8],
    shape: NodeShape<T>,
    count: usize,
}

impl<'a, T: Tree> NodeMut<'a, T> {
    /// The block in `bytes`; its counts are checked.
    pub fn view(bytes: &'a mut [u8], v5: bool) -> Result<Self, FormatError> {
        let node = Node::<T>::view(bytes, v5)?;
        let (level, count) = (node.level(), node.count());
        let shape = NodeShape::block(bytes.len(), v5, level);
        Ok(Self { bytes, shape, count })
    }

    /// The root in the bytes of an inode's fork; its counts are checked.
    pub fn inline_root(fork: &'a mut [u8]) -> Result<Self, FormatError> {
        let node = Node::<T>::inline_root(fork)?;
        let (level, count) = (node.level(), node.count());
        let shape = NodeShape::inline_root(fork.len(), level);
        Ok(Self { bytes: fork, shape, count })
    }

    /// Makes `bytes` an empty v5 block. Its checksum and LSN are filled in when it is written.
    pub fn create(bytes: &'a mut [u8], birth: &NewBlock) -> Result<Self, FormatError> {
        let (left, right) = birth.siblings;
        let short = FormatError::value(T::NAME, "length", bytes.len() as u64);
        // Pointers of a group and its number have 32 bits; all ones stay all ones.
        let narrow = |value: u64| (value as u32).into();
        match T::WIDTH {
            Width::Short => {
                let (header, _) = ShortHeader::mut_from_prefix(bytes).map_err(|_| short)?;
                *header = ShortHeader {
                    magic: T::MAGIC_V5.into(),
                    level: birth.level.into(),
                    numrecs: 0.into(),
                    leftsib: narrow(left),
                    rightsib: narrow(right),
                    blkno: birth.daddr.0.into(),
                    lsn: 0.into(),
                    uuid: birth.uuid.0,
                    owner: narrow(birth.owner),
                    crc: [0; 4],
                };
            }
            Width::Long => {
                let (header, _) = LongHeader::mut_from_prefix(bytes).map_err(|_| short)?;
                *header = LongHeader {
                    magic: T::MAGIC_V5.into(),
                    level: birth.level.into(),
                    numrecs: 0.into(),
                    leftsib: left.into(),
                    rightsib: right.into(),
                    blkno: birth.daddr.0.into(),
                    lsn: 0.into(),
                    uuid: birth.uuid.0,
                    owner: birth.owner.into(),
                    crc: [0; 4],
                    pad: 0.into(),
                };
            }
        }
        Self::view(bytes, true)
    }

    /// Makes a fork's bytes an empty root of this level.
    pub fn create_inline_root(fork: &'a mut [u8], level: u16) -> Result<Self, FormatError> {
        if fork.len() < INLINE_BODY || level == 0 || u32::from(level) >= MAX_LEVELS {
            return Err(FormatError::value(T::NAME, "level", level.into()));
        }
        fork.fill(0);
        let [high, low] = level.to_be_bytes();
        if let Some(field) = fork.first_chunk_mut::<2>() {
            *field = [high, low];
        }
        Self::inline_root(fork)
    }

    /// Where things lie in it.
    pub fn shape(&self) -> NodeShape<T> {
        self.shape
    }

    /// How many records or children it has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Sets the left sibling of a block.
    pub fn set_left(&mut self, pointer: u64) {
        let at = self.shape.siblings().start;
        self.put_pointer(at, pointer);
    }

    /// Sets the right sibling of a block.
    pub fn set_right(&mut self, pointer: u64) {
        let at = self.shape.siblings().start + T::pointer_len();
        self.put_pointer(at, pointer);
    }

    /// Sets the count. Entries beyond the old count are whatever the block held.
    pub fn set_count(&mut self, count: usize) {
        debug_assert!(
            count <= self.shape.capacity(),
            "{count} entries in a block for {}",
            self.shape.capacity()
        );
        self.count = count.min(self.shape.capacity());
        let at = self.shape.counts().start + 2;
        // Capacities have 16 bits.
        self.put(at, &(self.count as u16).to_be_bytes());
    }

    /// Replaces record `index` of a leaf.
    pub fn set_record(&mut self, index: usize, record: &T::Record) {
        self.put(self.shape.records(index..index).start, record.as_bytes());
    }

    /// Replaces the key of child `index`.
    pub fn set_key(&mut self, index: usize, key: &T::Key) {
        self.put(self.shape.keys(index..index).start, key.as_bytes());
    }

    /// Replaces the pointer to child `index`.
    pub fn set_pointer(&mut self, index: usize, pointer: u64) {
        self.put_pointer(self.shape.pointers(index..index).start, pointer);
    }

    /// Inserts a record before record `index`. The leaf must have room.
    pub fn insert_record(&mut self, index: usize, record: &T::Record) {
        debug_assert!(index <= self.count && self.count < self.shape.capacity(), "no room at {index}");
        self.shift(self.shape.records(index..self.count), size_of::<T::Record>());
        self.set_count(self.count + 1);
        self.set_record(index, record);
    }

    /// Inserts a child before child `index`. The block must have room.
    pub fn insert_child(&mut self, index: usize, key: &T::Key, pointer: u64) {
        debug_assert!(index <= self.count && self.count < self.shape.capacity(), "no room at {index}");
        self.shift(self.shape.keys(index..self.count), size_of::<T::Key>());
        self.shift(self.shape.pointers(index..self.count), T::pointer_len());
        self.set_count(self.count + 1);
        self.set_key(index, key);
        self.set_pointer(index, pointer);
    }

    /// Takes record or child `index` out.
    pub fn remove(&mut self, index: usize) {
        debug_assert!(index < self.count, "entry {index} of {}", self.count);
        for (from, gone) in
            self.shape.entries(index + 1..self.count).into_iter().zip(self.shape.entries(index..index + 1))
        {
            let end = from.end.min(self.bytes.len());
            if from.start < end {
                self.bytes.copy_within(from.start..end, gone.start);
            }
        }
        self.set_count(self.count.saturating_sub(1));
    }

    /// Makes these records a leaf's content.
    pub fn set_records(&mut self, records: &[T::Record]) {
        self.set_count(records.len());
        let at = self.shape.records(0..0).start;
        self.put(at, records.as_bytes());
    }

    /// Makes these children an inner block's content.
    pub fn set_children(&mut self, children: &[(T::Key, u64)]) {
        self.set_count(children.len());
        for (index, (key, pointer)) in children.iter().enumerate() {
            self.set_key(index, key);
            self.set_pointer(index, *pointer);
        }
    }

    /// Moves the bytes of a run by some bytes to the right.
    fn shift(&mut self, run: Range<usize>, by: usize) {
        if run.start < run.end && run.end + by <= self.bytes.len() {
            self.bytes.copy_within(run.clone(), run.start + by);
        }
    }

    fn put_pointer(&mut self, at: usize, pointer: u64) {
        match T::WIDTH {
            // All ones stay all ones.
            Width::Short => self.put(at, &(pointer as u32).to_be_bytes()),
            Width::Long => self.put(at, &pointer.to_be_bytes()),
        }
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        let place = self.bytes.get_mut(at..).and_then(|rest| rest.get_mut(..value.len()));
        debug_assert!(place.is_some(), "{} bytes at {at} are outside the block", value.len());
        if let Some(place) = place {
            place.copy_from_slice(value);
        }
    }
}

/// Whether two entries are the same bytes.
pub fn same<E: Plain>(a: &E, b: &E) -> bool {
    a.as_bytes() == b.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmbt::BmbtKey;
    use crate::btree::{Bmbt, Bnobt};
    use crate::records::AllocRecord;

    fn birth(level: u16) -> NewBlock {
        NewBlock { level, siblings: (NO_BLOCK, 9), daddr: DiskAddr(80), uuid: Uuid([7; 16]), owner: 3 }
    }

    fn record(start: u32) -> AllocRecord {
        AllocRecord { startblock: start.into(), blockcount: 1.into() }
    }

    #[test]
    fn a_leaf_changes_within_the_ranges_that_its_shape_names() {
        let mut block = [0; 1024];
        let mut node = NodeMut::<Bnobt>::create(&mut block, &birth(0)).unwrap();
        for start in [5, 9, 20] {
            node.insert_record(node.count(), &record(start));
        }
        let before = block;
        let mut node = NodeMut::<Bnobt>::view(&mut block, true).unwrap();
        let shape = node.shape();
        node.insert_record(1, &record(7));
        let allowed = [shape.counts(), shape.entries(1..4)[0].clone()];
        for at in (0..1024).filter(|&at| before[at] != block[at]) {
            assert!(allowed.iter().any(|range| range.contains(&at)), "byte {at}");
        }
        let node = Node::<Bnobt>::view(&block, true).unwrap();
        assert_eq!(node.records().iter().map(|r| r.startblock.get()).collect::<Vec<_>>(), [5, 7, 9, 20]);
        assert_eq!((node.siblings(), node.owner()), ((NO_BLOCK, 9), Some(3)));
        NodeMut::<Bnobt>::view(&mut block, true).unwrap().remove(0);
        let node = Node::<Bnobt>::view(&block, true).unwrap();
        assert_eq!(node.records().iter().map(|r| r.startblock.get()).collect::<Vec<_>>(), [7, 9, 20]);
    }

    #[test]
    fn an_inline_root_keeps_pointers_behind_room_for_all_keys() {
        let mut fork = [0xff; 100];
        let mut root = NodeMut::<Bmbt>::create_inline_root(&mut fork, 1).unwrap();
        root.insert_child(0, &BmbtKey { startoff: 8.into() }, 70);
        root.insert_child(0, &BmbtKey { startoff: 0.into() }, 60);
        let view = crate::bmbt::BmbtRoot::view(&fork).unwrap();
        assert_eq!(view.pointers().map(|p| p.0).collect::<Vec<_>>(), [60, 70]);
        assert_eq!(view.keys()[1].startoff.get(), 8);
        assert_eq!(Node::<Bmbt>::inline_root(&fork).unwrap().capacity(), 6);
        assert!(NodeMut::<Bmbt>::create_inline_root(&mut fork, 0).is_err());
    }

    #[test]
    fn siblings_of_both_widths() {
        let mut block = [0; 1024];
        let mut node = NodeMut::<Bmbt>::create(&mut block, &birth(1)).unwrap();
        node.set_left(1 << 40);
        node.set_right(NO_BLOCK);
        assert_eq!(Node::<Bmbt>::view(&block, true).unwrap().siblings(), (1 << 40, NO_BLOCK));
    }
}
