//! Recently looked-up inodes, found by number without a lock and without writing to cache lines that others use.
//!
//! This table stands before the inode cache and holds a part of its content. It is a set-associative table whose slots
//! are `ArcSwap`s: a reader protects what it loads in a slot of its own thread.
//!
//! Invariants:
//! - what is in the table is in the cache. An inode is noted with its shard of the cache locked (shared is enough), and
//!   the cache evicts none before it was recalled with that shard locked exclusively. So an inode has one entry,
//!   whether it is found here or there;
//! - an inode that is still read after a recall counts in `Arc::strong_count`.

use super::InodeEntry;
use crate::keyed_hash::KeyedHash;
use crate::lazy_table::LazyTable;
use arc_swap::{ArcSwapOption, Guard};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use xfs_format::types::InodeNumber;

/// Slots that an inode can be in.
const WAYS: usize = 4;
/// log2 of how many consecutive inodes lie in adjacent sets.
const ROW_LOG: u32 = 4;
/// If all slots are taken, only one in this many lookups replaces another inode, because changing slots is expensive.
const RARELY: u8 = 8;

/// Recently looked-up inodes of a volume.
#[derive(Debug)]
pub(crate) struct RecentInodes {
    sets: LazyTable<Set>,
    hasher: KeyedHash,
    this: Weak<Self>,
}

/// A set of slots in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    /// The inode number that each slot most likely has.
    inos: [AtomicU64; WAYS],
    entries: [ArcSwapOption<InodeEntry>; WAYS],
}

/// An inode that was found. It stays in place meanwhile.
pub(crate) struct Recent(Guard<Option<Arc<InodeEntry>>>);

impl Recent {
    pub(crate) fn entry(&self) -> Option<&Arc<InodeEntry>> {
        self.0.as_ref()
    }
}

impl RecentInodes {
    /// A table of at most this many bytes.
    pub(crate) fn within(bytes: u64) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            sets: LazyTable::within(bytes),
            hasher: KeyedHash::new(),
            this: Weak::clone(this),
        })
    }

    /// Bytes that it takes once it is fully used.
    pub(crate) fn bytes(&self) -> u64 {
        self.sets.bytes()
    }

    /// The inode of this number, if it is in the table.
    #[inline]
    pub(crate) fn find(&self, ino: InodeNumber) -> Option<Recent> {
        let set = self.sets.find(self.hash(ino))?;
        let way = set.inos.iter().position(|known| known.load(Ordering::Relaxed) == ino.0)?;
        let found = Recent(set.entries[way].load());
        found.entry().is_some_and(|entry| entry.ino() == ino).then_some(found)
    }

    /// Notes an inode. The caller has its shard of the cache locked.
    pub(crate) fn note(&self, entry: &Arc<InodeEntry>) {
        let ino = entry.ino();
        let set = self.sets.make(self.hash(ino));
        let way_of = |ino: u64| set.inos.iter().position(|known| known.load(Ordering::Relaxed) == ino);
        // A recalled inode leaves its number behind.
        let free = || set.entries.iter().position(|place| place.load().is_none());
        let any = || (fastrand::u8(..RARELY) == 0).then(|| fastrand::usize(..WAYS));
        let Some(way) = way_of(ino.0).or_else(free).or_else(any) else { return };
        entry.note_in(&self.this);
        set.inos[way].store(ino.0, Ordering::Relaxed);
        // The replaced inode is still in the cache.
        set.entries[way].store(Some(Arc::clone(entry)));
    }

    /// Removes an inode. The caller has its shard of the cache locked exclusively.
    pub(crate) fn recall(&self, entry: &InodeEntry) {
        let Some(set) = self.sets.find(self.hash(entry.ino())) else { return };
        for place in &set.entries {
            let found = place.load();
            if found.as_ref().is_some_and(|found| std::ptr::eq(&raw const **found, entry)) {
                // If the slot has another inode by now, leave it.
                place.compare_and_swap(&found, None);
            }
        }
    }

    #[inline]
    fn hash(&self, ino: InodeNumber) -> u64 {
        // The lowest bits choose the set within a row.
        self.hasher.hash_one(ino.0 >> ROW_LOG) & !((1 << ROW_LOG) - 1) | ino.0 & ((1 << ROW_LOG) - 1)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::inode::entry::tests::free_inode;
    use crate::testing::geometry;
    use lockstat::LockClass;

    static CLASS: LockClass = LockClass::new("inode cache under test");

    fn entry(ino: u64) -> Arc<InodeEntry> {
        InodeEntry::new(InodeNumber(ino), Arc::new(free_inode(ino)), &Arc::new(geometry(true, 12, 0)))
    }

    /// Recent inodes are evicted from the cache like all others, and then are in neither.
    #[test]
    fn what_leaves_the_cache_is_recalled_and_what_somebody_has_stays() {
        let (recent, cache) = (RecentInodes::within(1 << 16), Cache::new(100, 1, &CLASS));
        let held = entry(1);
        cache.insert(InodeNumber(1), Arc::clone(&held), 10);
        for ino in 2..1000 {
            cache.insert(InodeNumber(ino), entry(ino), 10);
            let found = cache.get_and(&InodeNumber(ino), |entry| recent.note(entry)).expect("it fits");
            let noted = recent.find(InodeNumber(ino)).expect("there is room");
            assert!(Arc::ptr_eq(noted.entry().expect("an entry"), &found));
            cache.get_and(&InodeNumber(1), |entry| recent.note(entry));
            assert!(cache.weight() <= 100, "at {ino}");
        }
        let kept = |ino: &u64| cache.get(&InodeNumber(*ino)).is_some();
        let noted = |ino: &u64| recent.find(InodeNumber(*ino)).is_some();
        assert!((1..1000).filter(noted).all(|ino| kept(&ino)), "one that the cache has not");
        assert!((1..1000).filter(kept).count() == 10 && kept(&1));
    }

    /// A reader counts in the reference count only once the inode is recalled.
    #[test]
    fn who_looks_at_an_inode_that_is_recalled_keeps_it_in_the_cache() {
        let (recent, cache) = (RecentInodes::within(1 << 16), Cache::new(100, 1, &CLASS));
        cache.insert(InodeNumber(1), entry(1), 60);
        drop(cache.get_and(&InodeNumber(1), |entry| recent.note(entry)));
        let looking = recent.find(InodeNumber(1)).expect("noted");
        for ino in 2..10 {
            cache.insert(InodeNumber(ino), entry(ino), 60);
        }
        let kept = cache.get(&InodeNumber(1)).expect("somebody has it");
        assert!(Arc::ptr_eq(&kept, looking.entry().expect("an entry")));
        assert!(recent.find(InodeNumber(1)).is_none(), "recalled");
        drop((kept, looking));
        cache.insert(InodeNumber(10), entry(10), 60);
        cache.insert(InodeNumber(11), entry(11), 60);
        assert!(cache.get(&InodeNumber(1)).is_none());
    }

    /// However many there are, each number finds its own inode.
    #[test]
    fn a_full_table_gives_nobody_another_inode() {
        let recent = RecentInodes::within(0);
        let most = recent.bytes() / 16;
        let all: Vec<_> = (1..=2 * most).map(entry).collect();
        for _ in 0..4 {
            for entry in &all {
                recent.note(entry);
                if let Some(found) = recent.find(entry.ino()) {
                    assert!(found.entry().is_some_and(|found| Arc::ptr_eq(found, entry)));
                }
            }
        }
        let found = all.iter().filter(|entry| recent.find(entry.ino()).is_some()).count() as u64;
        assert!((most / 2..=most).contains(&found), "{found} of {most}");
        all.iter().for_each(|entry| recent.recall(entry));
        assert!(all.iter().all(|entry| recent.find(entry.ino()).is_none() && Arc::strong_count(entry) == 1));
    }
}
