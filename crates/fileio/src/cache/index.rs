//! Which folio has which page of a file: a tree of nodes with 64 slots that is searched without a lock. On the level
//! above the leaves nodes have 8 slots, so that a slot of the next level corresponds to a large folio. A read of a
//! completely present large folio goes no deeper.
//!
//! Invariants:
//! - a node stays in place and keeps its level until the index is dropped, so a search never meets anything that is
//!   being freed. A search returns a folio only for a page of which the caller holds a byte in the file's range lock,
//!   and a folio leaves the index only while all of its bytes are held exclusively;
//! - a slot of a leaf has the address of its page's bytes if and only if all of the page is present. That changes only
//!   while the page is held exclusively;
//! - a slot for a large folio may have the address of its bytes while all of it is present. It is set under the lock
//!   `change`, and cleared under it by whoever exclusively holds a page that is no longer present, before they release
//!   it;
//! - folios are added and removed under the lock `change`, one at a time;
//! - a dirty page has its bit set in its node, and that node in its parents. A parent's bit may be set needlessly, and
//!   then stays for good, so that a search never misses a dirty page for a moment. Marking a page sets the bits from
//!   below, and again if there is a new root by then. Whoever makes a root sets its bit for the old one;
//! - a page with a folio has its folio bit set in its node, and a node with such a page has one in its parent. Those
//!   bits change under the lock `change`, and are exact while nobody holds it.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

use super::counted::Guard;
use super::folio::Folio;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Log2 of a node's slots, and by how many bits nodes below [`LARGE_LEVEL`] cover fewer pages. In a model they are so
/// small that a file of a few pages has large folios and a tree of several levels.
const SLOT_BITS: u32 = if cfg!(shuttle) { 2 } else { 6 };
const NARROW_BITS: u32 = if cfg!(shuttle) { 1 } else { 3 };
const SLOTS: usize = 1 << SLOT_BITS;
/// The level whose slots cover as many pages as the largest folio has.
const LARGE_LEVEL: u32 = 2;
/// Pages of the largest folio.
pub(super) const LARGE_PAGES: u64 = 1 << shift_of(LARGE_LEVEL);
/// Levels of a tree that covers all possible pages.
const LEVELS_MAX: usize = (u64::BITS - 1 + NARROW_BITS).div_ceil(SLOT_BITS) as usize;

/// Log2 of the number of pages that a slot on this level covers.
const fn shift_of(level: u32) -> u32 {
    level * SLOT_BITS - if level < LARGE_LEVEL { 0 } else { NARROW_BITS }
}

#[derive(Debug)]
#[repr(align(64))]
struct Node {
    slots: [Slot; SLOTS],
    dirty: AtomicU64,
    /// Which slots have folios, or nodes with folios.
    folios: AtomicU64,
    /// Which slots of large folios were found recently.
    used: AtomicU64,
    /// 0: its slots have folios; otherwise nodes of one level less.
    level: u32,
}

/// What a node has for a page, or for the pages below.
#[derive(Debug)]
struct Slot {
    /// A folio or a node.
    below: AtomicPtr<()>,
    /// The bytes of a page, or of a large folio, that is completely present. So readers need not look at the folio.
    whole: AtomicPtr<u8>,
}

impl Slot {
    fn empty() -> Self {
        Self { below: AtomicPtr::new(ptr::null_mut()), whole: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl Node {
    fn new(level: u32) -> Self {
        let word = || AtomicU64::new(0);
        let slots = std::array::from_fn(|_| Slot::empty());
        Self { level, dirty: word(), folios: word(), used: word(), slots }
    }

    #[inline]
    fn slot_of(&self, page: u64) -> usize {
        slot_at(self.level, page)
    }

    #[inline]
    fn covers(&self, page: u64) -> bool {
        let bits = shift_of(self.level + 1);
        bits >= u64::BITS || page >> bits == 0
    }

    #[inline]
    fn child(&self, slot: usize) -> Option<&Node> {
        debug_assert!(self.level > 0, "nodes");
        let child = self.slots[slot].below.load(Ordering::Acquire).cast::<Node>();
        // SAFETY: a slot of a node above the lowest level holds a node or nothing, and nodes live as long as the index.
        unsafe { child.as_ref() }
    }
}

/// The slot of a page in its node on a level.
#[inline]
fn slot_at(level: u32, page: u64) -> usize {
    let slots = if level + 1 == LARGE_LEVEL { SLOTS >> NARROW_BITS } else { SLOTS };
    (page >> shift_of(level)) as usize & (slots - 1)
}

/// The slot of a page in its leaf.
#[inline]
fn leaf_slot(page: u64) -> usize {
    slot_at(0, page)
}

/// The leaves of a range of pages: the first page in each, and the bits of all its pages.
#[inline]
fn leaves_of(pages: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let mut at = pages.start;
    std::iter::from_fn(move || {
        let page = at;
        let len = (pages.end - page).min((SLOTS - leaf_slot(page)) as u64);
        at += len;
        (len > 0).then(|| (page, (u64::MAX >> (u64::from(u64::BITS) - len)) << leaf_slot(page)))
    })
}

/// The adjacent slots of a leaf for these bits.
fn slots_of(leaf: &Node, bits: u64) -> &[Slot] {
    let first = bits.trailing_zeros() as usize;
    &leaf.slots[first..first + bits.count_ones() as usize]
}

/// The offset of a page in a large folio.
#[inline]
fn within_large(page: u64, page_log: u32) -> usize {
    ((page & (LARGE_PAGES - 1)) << page_log) as usize
}

/// The result of a search for a large folio.
enum Found<'a> {
    Large(&'a Node),
    Leaf(&'a Node),
}

/// See above.
#[derive(Debug)]
pub(super) struct Index {
    root: AtomicPtr<Node>,
}

/// Proof that the lock `change` is held, for changes of the index.
pub(super) struct Changing<'a>(PhantomData<&'a ()>);

impl<'a> Changing<'a> {
    pub(super) fn with(_change: &'a Guard<'_, ()>) -> Self {
        Self(PhantomData)
    }
}

impl Index {
    pub(super) fn new() -> Self {
        Self { root: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline]
    fn root(&self) -> Option<&Node> {
        // SAFETY: a root is a node, and nodes live as long as the index.
        unsafe { self.root.load(Ordering::SeqCst).as_ref() }
    }

    /// The leaf for a page.
    #[inline]
    fn leaf(&self, page: u64) -> Option<&Node> {
        let root = self.root()?;
        if root.covers(page) { self.leaf_below(root, page) } else { None }
    }

    /// The address of a completely present page's bytes, if it is known. Notes that the folio was used.
    ///
    /// # Safety
    /// As for [`folio`](Self::folio).
    #[inline]
    pub(super) unsafe fn whole(&self, page: u64, page_log: u32) -> Option<NonNull<u8>> {
        let node = match self.large_or_leaf(page)? {
            Found::Leaf(leaf) => leaf,
            Found::Large(node) => {
                let slot = node.slot_of(page);
                if let Some(bytes) = NonNull::new(node.slots[slot].whole.load(Ordering::Acquire)) {
                    if node.used.load(Ordering::Relaxed) >> slot & 1 == 0 {
                        node.used.fetch_or(1 << slot, Ordering::Relaxed);
                    }
                    // SAFETY: a large folio has that many bytes.
                    return Some(unsafe { bytes.add(within_large(page, page_log)) });
                }
                self.leaf_below(node, page)?
            }
        };
        let slot = &node.slots[leaf_slot(page)];
        let bytes = NonNull::new(slot.whole.load(Ordering::Acquire))?;
        let folio = slot.below.load(Ordering::Acquire).cast::<Folio>();
        // SAFETY: a slot of a leaf holds a folio or nothing, and it stays while one of its bytes is held.
        let folio = unsafe { folio.as_ref() }?;
        debug_assert!(folio.is_whole(page, bytes), "page {page} is present");
        folio.note_use();
        Some(bytes)
    }

    /// The address of a page's bytes if all of it is present, or was a moment ago. The caller holds nothing, and must
    /// not access them.
    #[inline]
    pub(super) fn address_of_whole(&self, page: u64, page_log: u32) -> Option<*const u8> {
        let leaf = match self.large_or_leaf(page)? {
            Found::Leaf(leaf) => leaf,
            Found::Large(node) => {
                let bytes = node.slots[node.slot_of(page)].whole.load(Ordering::Relaxed);
                if !bytes.is_null() {
                    return Some(bytes.wrapping_add(within_large(page, page_log)));
                }
                self.leaf_below(node, page)?
            }
        };
        let bytes = leaf.slots[leaf_slot(page)].whole.load(Ordering::Relaxed);
        (!bytes.is_null()).then_some(bytes.cast_const())
    }

    /// The node with the slot for the large folio of a page, or the page's leaf if the tree is too low for one.
    #[inline]
    fn large_or_leaf(&self, page: u64) -> Option<Found<'_>> {
        let mut node = self.root()?;
        if !node.covers(page) {
            return None;
        }
        if node.level < LARGE_LEVEL {
            return self.leaf_below(node, page).map(Found::Leaf);
        }
        for level in (LARGE_LEVEL + 1..=node.level).rev() {
            node = node.child(slot_at(level, page))?;
        }
        Some(Found::Large(node))
    }

    /// The leaf of a page below a node that covers it.
    #[inline]
    fn leaf_below<'a>(&'a self, node: &'a Node, page: u64) -> Option<&'a Node> {
        let mut node = node;
        // A node's level is in a line of its own, which is costly for a processor that has not been here recently.
        for level in (1..=node.level).rev() {
            debug_assert_eq!(node.level, level, "a level has nodes of one level");
            node = node.child(slot_at(level, page))?;
        }
        Some(node)
    }

    /// The slot for the large folio of a page, and its node.
    fn large(&self, page: u64) -> Option<(&Node, usize)> {
        match self.large_or_leaf(page)? {
            Found::Large(node) => Some((node, node.slot_of(page))),
            Found::Leaf(_) => None,
        }
    }

    /// Records that all of a large folio is present, if it is.
    pub(super) fn set_large_whole(&self, folio: &Folio, _changing: &Changing<'_>) {
        debug_assert!(folio.is_large(), "it has a slot");
        if let Some((node, slot)) = self.large(folio.pages().start)
            && folio.is_all_present()
        {
            let bytes = folio.bytes_of_page(folio.pages().start);
            node.slots[slot].whole.store(bytes, Ordering::Release);
        }
    }

    /// Whether all of a large folio is recorded as present.
    pub(super) fn is_large_whole(&self, folio: &Folio) -> bool {
        let large = self.large(folio.pages().start);
        large.is_some_and(|(node, slot)| !node.slots[slot].whole.load(Ordering::Acquire).is_null())
    }

    /// Something of a large folio is no longer present, or it does not exist.
    pub(super) fn clear_large_whole(&self, page: u64, _changing: &Changing<'_>) {
        if let Some((node, slot)) = self.large(page) {
            node.slots[slot].whole.store(ptr::null_mut(), Ordering::Release);
        }
    }

    /// Whether a large folio was found since this was last called.
    pub(super) fn take_use(&self, page: u64) -> bool {
        self.large(page).is_some_and(|(node, slot)| {
            let bit = 1 << slot;
            node.used.load(Ordering::Relaxed) & bit != 0
                && node.used.fetch_and(!bit, Ordering::Relaxed) & bit != 0
        })
    }

    /// Whether a page is dirty. Needs no hold; the answer may be outdated.
    #[inline]
    pub(super) fn is_dirty(&self, page: u64) -> bool {
        self.leaf(page).is_some_and(|leaf| leaf.dirty.load(Ordering::SeqCst) >> leaf_slot(page) & 1 != 0)
    }

    /// All of a page is present in `folio`, its folio; or, if `None`, no longer. The caller holds the page exclusively.
    pub(super) fn set_whole(&self, page: u64, folio: Option<&Folio>) {
        let bytes = folio.map_or(ptr::null_mut(), |folio| folio.bytes_of_page(page));
        if let Some(leaf) = self.leaf(page) {
            leaf.slots[leaf_slot(page)].whole.store(bytes, Ordering::Release);
        }
    }

    /// The folio of a page.
    ///
    /// # Safety
    /// The caller holds a byte of the page in the file's range lock as long as it uses the folio.
    #[inline]
    pub(super) unsafe fn folio(&self, page: u64) -> Option<&Folio> {
        let leaf = self.leaf(page)?;
        let folio = leaf.slots[leaf_slot(page)].below.load(Ordering::Acquire).cast::<Folio>();
        // SAFETY: a slot of a leaf holds a folio or nothing, and it stays while one of its bytes is held.
        unsafe { folio.as_ref() }
    }

    /// Whether a page has no folio.
    pub(super) fn is_free(&self, page: u64) -> bool {
        self.leaf(page).is_none_or(|leaf| leaf.slots[leaf_slot(page)].below.load(Ordering::Acquire).is_null())
    }

    /// How many pages the folio of a page has; 0 if there is none. The caller has the lock `change`, so that no folio
    /// is removed.
    pub(super) fn folio_len(&self, page: u64) -> u64 {
        let Some(leaf) = self.leaf(page) else { return 0 };
        let folio = leaf.slots[leaf_slot(page)].below.load(Ordering::Acquire).cast::<Folio>();
        // SAFETY: a slot of a leaf holds a folio or nothing, and none leaves the index without the lock.
        unsafe { folio.as_ref() }.map_or(0, |folio| folio.pages().end - folio.pages().start)
    }

    /// Adds a folio whose pages have none.
    pub(super) fn insert(&self, folio: Box<Folio>, changing: &Changing<'_>) {
        let pages = folio.pages();
        let folio = Box::into_raw(folio);
        for (page, bits) in leaves_of(pages) {
            let leaf = self.make_leaf(page, changing);
            for slot in slots_of(leaf, bits) {
                debug_assert!(
                    slot.whole.load(Ordering::Acquire).is_null(),
                    "no block of a new folio is present"
                );
                let before = slot.below.swap(folio.cast(), Ordering::AcqRel);
                debug_assert!(before.is_null(), "a page has one folio");
            }
            self.note_folios(page, bits, true);
        }
    }

    /// Sets or clears the folio bits of pages of one leaf from `page` on. The caller has the lock `change`.
    fn note_folios(&self, page: u64, bits: u64, are_there: bool) {
        for node in self.path(page).into_iter().flatten() {
            let bits = if node.level == 0 { bits } else { 1 << node.slot_of(page) };
            let before = node.folios.load(Ordering::Acquire);
            let now = if are_there { before | bits } else { before & !bits };
            node.folios.store(now, Ordering::Release);
            // Nothing changes for the nodes above.
            if (before == 0) == (now == 0) {
                break;
            }
        }
    }

    /// The nodes of a page, indexed by level.
    fn path(&self, page: u64) -> [Option<&Node>; LEVELS_MAX] {
        let mut path = [None; LEVELS_MAX];
        let mut at = self.root();
        while let Some(node) = at {
            path[node.level as usize] = Some(node);
            at = if node.level > 0 { node.child(node.slot_of(page)) } else { None };
        }
        path
    }

    /// Removes a folio.
    ///
    /// # Safety
    /// The caller holds all bytes of the folio exclusively in the file's range lock, or has the file alone.
    pub(super) unsafe fn remove(&self, folio: *const Folio, changing: &Changing<'_>) -> Box<Folio> {
        // SAFETY: it is in the index, as nobody else could take it out.
        let (pages, is_large) = unsafe { ((*folio).pages(), (*folio).is_large()) };
        if is_large {
            self.clear_large_whole(pages.start, changing);
            self.take_use(pages.start);
        }
        for (page, bits) in leaves_of(pages) {
            let leaf = self.leaf(page).expect("a folio that is in the index has leaves");
            for slot in slots_of(leaf, bits) {
                slot.whole.store(ptr::null_mut(), Ordering::Release);
                slot.below.store(ptr::null_mut(), Ordering::Release);
            }
            self.note_folios(page, bits, false);
        }
        // SAFETY: it was put in as a box, and nobody can find it any more.
        unsafe { Box::from_raw(folio.cast_mut()) }
    }

    fn make_leaf(&self, page: u64, _changing: &Changing<'_>) -> &Node {
        let mut root = match self.root() {
            Some(root) => root,
            None => self.publish_root(Node::new(0)),
        };
        while !root.covers(page) {
            let above = Node::new(root.level + 1);
            above.slots[0].below.store(ptr::from_ref(root).cast_mut().cast(), Ordering::Release);
            // A thread that is marking a page right now may not know of the new root.
            above.dirty.store(1, Ordering::SeqCst);
            let has_some = root.folios.load(Ordering::Acquire) != 0;
            above.folios.store(u64::from(has_some), Ordering::Release);
            root = self.publish_root(above);
        }
        let mut node = root;
        while node.level > 0 {
            let slot = node.slot_of(page);
            if node.child(slot).is_none() {
                let child = Box::into_raw(Box::new(Node::new(node.level - 1)));
                node.slots[slot].below.store(child.cast(), Ordering::Release);
            }
            node = node.child(slot).expect("it was just made");
        }
        node
    }

    fn publish_root(&self, root: Node) -> &Node {
        self.root.store(Box::into_raw(Box::new(root)), Ordering::SeqCst);
        self.root().expect("it was just made")
    }

    /// Marks pages that have folios as dirty. Returns how many were not.
    pub(super) fn mark_dirty(&self, pages: Range<u64>) -> u64 {
        leaves_of(pages).map(|(page, bits)| self.mark_dirty_in_leaf(page, bits)).sum()
    }

    /// The same for pages of one leaf, which has `page`, one of them.
    fn mark_dirty_in_leaf(&self, page: u64, bits: u64) -> u64 {
        let mut new = 0;
        loop {
            let root = self.root.load(Ordering::SeqCst);
            for node in self.path(page).into_iter().flatten() {
                let bits = if node.level == 0 { bits } else { 1 << node.slot_of(page) };
                if node.dirty.load(Ordering::SeqCst) & bits != bits {
                    let before = node.dirty.fetch_or(bits, Ordering::SeqCst);
                    new += if node.level == 0 { u64::from((bits & !before).count_ones()) } else { 0 };
                }
            }
            if self.root.load(Ordering::SeqCst) == root {
                return new;
            }
        }
    }

    /// Clears the dirty marks of pages. Returns how many had one.
    pub(super) fn clear_dirty(&self, pages: Range<u64>) -> u64 {
        let clear = |(page, bits): (u64, u64)| {
            let leaf = self.leaf(page)?;
            Some(u64::from((leaf.dirty.fetch_and(!bits, Ordering::SeqCst) & bits).count_ones()))
        };
        leaves_of(pages).filter_map(clear).sum()
    }

    /// The first dirty page from `page` on.
    pub(super) fn next_dirty(&self, page: u64) -> Option<u64> {
        let root = self.root()?;
        if root.covers(page) { next_dirty(root, 0, page) } else { None }
    }

    /// The first page from `page` on that has a folio.
    pub(super) fn next_folio(&self, page: u64) -> Option<u64> {
        let root = self.root()?;
        if root.covers(page) { next_folio(root, 0, page) } else { None }
    }

    /// Calls `gone` with every folio and frees it. The caller has the file alone.
    pub(super) fn drain(&mut self, mut gone: impl FnMut(&Folio)) {
        let root = std::mem::replace(self.root.get_mut(), ptr::null_mut());
        if !root.is_null() {
            drain(root, 0, &mut gone);
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.drain(|_| {});
    }
}

/// The positions of the set bits from `first` on.
fn set_bits(word: u64, first: usize) -> impl Iterator<Item = usize> {
    let mut left = word & u64::MAX << first;
    std::iter::from_fn(move || {
        let bit = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (bit < SLOTS).then_some(bit)
    })
}

/// `base` is the first page that the node covers.
fn next_dirty(node: &Node, base: u64, from: u64) -> Option<u64> {
    next_marked(node, base, from, &|node| node.dirty.load(Ordering::SeqCst))
}

/// `base` is the first page that the node covers.
fn next_folio(node: &Node, base: u64, from: u64) -> Option<u64> {
    next_marked(node, base, from, &|node| node.folios.load(Ordering::Acquire))
}

/// The first page from `from` on whose bit is set in its node's `word`. `base` is the first page that the node covers.
fn next_marked(node: &Node, base: u64, from: u64, word: &impl Fn(&Node) -> u64) -> Option<u64> {
    let shift = shift_of(node.level);
    let first = if from > base { ((from - base) >> shift) as usize } else { 0 };
    if first >= SLOTS {
        return None;
    }
    set_bits(word(node), first).find_map(|slot| {
        let start = base + ((slot as u64) << shift);
        match node.level {
            0 => Some(start),
            _ => next_marked(node.child(slot)?, start, from, word),
        }
    })
}

/// Frees a node, which covers pages from `base` on, and everything below it.
fn drain(node: *mut Node, base: u64, gone: &mut impl FnMut(&Folio)) {
    // SAFETY: nodes are made as boxes, each has one parent, and the index is going: nobody else has it.
    let mut node = unsafe { Box::from_raw(node) };
    let (level, shift) = (node.level, shift_of(node.level));
    for (index, slot) in node.slots.iter_mut().enumerate() {
        let (slot, page) = (*slot.below.get_mut(), base + ((index as u64) << shift));
        if slot.is_null() {
            continue;
        }
        if level > 0 {
            drain(slot.cast(), page, gone);
            continue;
        }
        let folio = slot.cast::<Folio>();
        // SAFETY: a leaf's slot holds a folio, which is freed with the last of its pages: pages come in order.
        let is_last = unsafe { (*folio).pages().end } == page + 1;
        if is_last {
            // SAFETY: it was put in as a box, and no slot behind this one has it.
            let folio = unsafe { Box::from_raw(folio) };
            gone(&folio);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::counted::{self, Mutex};
    use super::super::folio::Mark;
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn folio(first: u64, pages: u64) -> Box<Folio> {
        Box::new(Folio::new(first, pages, 12, 12))
    }

    #[test]
    fn folios_are_found_by_each_of_their_pages_and_go() {
        let (mut index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        let all = [(0, 1), (4, 4), (64, 256), (1 << 20, 1), (1 << 50, 16)];
        for (first, pages) in all {
            index.insert(folio(first, pages), &changing);
        }
        for (first, pages) in all {
            for page in first..first + pages {
                // SAFETY: this thread has the index alone.
                let found = unsafe { index.folio(page) }.expect("it is there");
                assert_eq!(found.pages(), first..first + pages);
            }
            assert!(index.is_free(first + pages));
        }
        // SAFETY: as above.
        let removed = unsafe { index.remove(index.folio(70).expect("there"), &changing) };
        assert_eq!(removed.pages(), 64..320);
        assert!((64..320).all(|page| index.is_free(page)));
        let all: Vec<_> = [0, 1, 5, 8, 1 << 21, 1 << 51].map(|page| index.next_folio(page)).into();
        assert_eq!(all, [Some(0), Some(4), Some(5), Some(1 << 20), Some(1 << 50), None]);
        let mut left = Vec::new();
        index.drain(|folio| left.push(folio.pages().start));
        assert_eq!(left, [0, 4, 1 << 20, 1 << 50]);
        assert!(index.is_free(0));
    }

    #[test]
    fn dirty_pages_are_found_in_order_also_behind_a_new_root() {
        let (index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        index.insert(folio(3, 1), &changing);
        assert!(index.mark_dirty(3..4) == 1 && index.mark_dirty(3..4) == 0);
        assert_eq!(index.next_dirty(100), None);
        for page in [70, 5000, 1 << 30] {
            index.insert(folio(page, 1), &changing);
            assert_eq!(index.mark_dirty(page..page + 1), 1);
        }
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(page) = index.next_dirty(at) {
            found.push(page);
            at = page + 1;
        }
        assert_eq!(found, [3, 70, 5000, 1 << 30]);
        assert_eq!([index.clear_dirty(70..71), index.clear_dirty(70..71)], [1, 0]);
        assert_eq!(index.next_dirty(4), Some(5000));
        assert_eq!(index.mark_dirty(70..71), 1);
        assert_eq!(index.next_dirty(4), Some(70));
    }

    #[test]
    fn a_page_is_whole_while_somebody_says_so_and_goes_with_its_folio() {
        let (index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        index.insert(folio(0, 4), &changing);
        // SAFETY: this thread has the index alone.
        let held = unsafe { index.folio(0) }.expect("there");
        // SAFETY: as above.
        let whole = |page| unsafe { index.whole(page, 12) }.map(NonNull::as_ptr);
        assert!((0..4).all(|page| whole(page).is_none() && index.address_of_whole(page, 12).is_none()));
        held.set(Mark::Present, 0..4);
        (0..3).for_each(|page| index.set_whole(page, Some(held)));
        index.set_whole(1, None);
        let bytes = [Some(held.bytes_of_page(0)), None, Some(held.bytes_of_page(2)), None];
        assert_eq!([0, 1, 2, 3].map(whole), bytes);
        assert_eq!(held.bytes_of_page(2) as usize - held.bytes_of_page(0) as usize, 8192);
        // SAFETY: as above.
        drop(unsafe { index.remove(held, &changing) });
        index.insert(folio(0, 1), &changing);
        index.insert(folio(1, 1), &changing);
        assert!((0..4).all(|page| whole(page).is_none() && index.address_of_whole(page, 12).is_none()));
    }

    #[test]
    fn a_large_folio_is_found_by_its_one_slot_while_all_of_it_is_present() {
        let (index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        for first in [0, 512, 5 * 512, 300 * 512] {
            index.insert(folio(first, 512), &changing);
            // SAFETY: this thread has the index alone.
            let held = unsafe { index.folio(first + 3) }.expect("there");
            assert!(held.is_large());
            // SAFETY: as above.
            let found = || unsafe { index.whole(first + 3, 12) }.map(NonNull::as_ptr);
            held.set(Mark::Present, 0..511);
            index.set_large_whole(held, &changing);
            assert!(!index.is_large_whole(held) && found().is_none() && !index.take_use(first));
            held.set(Mark::Present, 511..512);
            index.set_large_whole(held, &changing);
            // A tree of one folio has no slot for it.
            assert_eq!(index.is_large_whole(held), first > 0);
            if first > 0 {
                assert_eq!(found(), Some(held.bytes_of_page(first + 3)));
                assert_eq!(
                    index.address_of_whole(first + 511, 12),
                    Some(held.bytes_of_page(first + 511).cast_const())
                );
                assert_eq!([index.take_use(first), index.take_use(first)], [true, false]);
                index.clear_large_whole(first + 9, &changing);
                assert!(found().is_none() && index.address_of_whole(first, 12).is_none());
                index.set_large_whole(held, &changing);
            }
            // SAFETY: as above.
            drop(unsafe { index.remove(held, &changing) });
            assert!(found().is_none() && index.address_of_whole(first, 12).is_none());
        }
    }

    #[test]
    fn runs_of_pages_are_marked_and_cleared_across_nodes_and_counted_once() {
        let (index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        index.insert(folio(0, 256), &changing);
        assert_eq!(index.mark_dirty(60..64), 4);
        assert_eq!(index.mark_dirty(62..193), 129);
        assert_eq!(index.mark_dirty(193..193), 0);
        let dirty = |index: &Index| (0..256).filter(|page| index.next_dirty(*page) == Some(*page)).count();
        assert_eq!((index.next_dirty(0), dirty(&index)), (Some(60), 133));
        assert_eq!(index.clear_dirty(0..128), 68);
        assert_eq!((index.next_dirty(0), dirty(&index)), (Some(128), 65));
        assert_eq!(index.clear_dirty(128..300), 65);
        assert_eq!(index.next_dirty(0), None);
    }

    /// Regression: a concurrent search cleared a parent's bit for a moment, and the thread that had marked the page did
    /// not find it.
    #[test]
    fn who_marked_a_page_finds_it_beside_others_who_look() {
        let (index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        (0..128).for_each(|page| index.insert(folio(page, 1), &changing));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    index.next_dirty(0);
                }
            });
            for round in 0..400_000 {
                index.mark_dirty(70..71);
                let found = index.next_dirty(0);
                index.clear_dirty(70..71);
                is_over.store(found != Some(70), Ordering::Relaxed);
                assert_eq!(found, Some(70), "round {round}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn no_dirty_page_is_lost_among_threads_that_mark_look_and_clear() {
        let (index, change) = (Index::new(), Mutex::new(&counted::FOLIOS, ()));
        let change = change.lock();
        let changing = Changing::with(&change);
        for page in 0..4096 {
            index.insert(folio(page, 1), &changing);
        }
        for round in 0..200 {
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let index = &index;
                    scope.spawn(move || {
                        for page in (thread..4096).step_by(131) {
                            index.mark_dirty(page..page + 1);
                            assert!(
                                index.next_dirty(page).is_some_and(|found| found <= page),
                                "round {round}"
                            );
                            index.clear_dirty(page..page + 1);
                            index.next_dirty(page);
                        }
                    });
                }
            });
            assert_eq!(index.next_dirty(0), None);
        }
    }
}
