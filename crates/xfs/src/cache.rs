//! A bounded cache with concurrent lookups: shards, each a map under a reader-writer lock.
//!
//! A hit takes its shard's lock shared and sets one bit if it is not set yet. The CLOCK algorithm makes room within a
//! shard. The total weight never exceeds the limit: an entry that does not fit into its shard is handed back uncached.
//! The exception are entries that must stay ([`Evict::must_stay`]), that is, changes that are not on disk yet; the log
//! bounds their number. While these fill a shard, an insertion looks at no more than [`STUCK_LOOKS`] entries, so that
//! its cost does not depend on their number. Above the *high watermark*, which is far above the limit, whoever begins a
//! change starts write-back; above the *hard watermark*, twice as far, it waits for that. An entry that is too heavy
//! for any shard, such as a file with a million extents, does not count for the watermarks: write-back would not make
//! it lighter.
//!
//! The limit can be lowered and raised again ([`Cache::set_limit`]) up to the one that the cache was made with, to lend
//! memory to other users.

use crate::keyed_hash::KeyedHash;
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Minimum bytes per shard, if there is enough for two shards.
const MIN_SHARD_BYTES: u64 = 1 << 20;

/// Entries that are checked for a victim in a shard that was found to be full of entries that must stay.
const STUCK_LOOKS: usize = 16;

/// Decides what may leave a cache when room is needed.
pub(crate) trait Evict {
    /// Whether somebody relies on this entry being found. Called with the shard's lock held exclusively, so nobody gets
    /// the entry from the cache meanwhile.
    fn must_stay(&self) -> bool;

    /// Closes other ways to the entry than this cache. Returns whether there was one, which counts as a use. Called
    /// before [`must_stay`](Self::must_stay), often needlessly.
    fn recall(&self) -> bool {
        false
    }
}

/// Something shared that may be found in other ways than through a cache.
pub(crate) trait Recall {
    /// See [`Evict::recall`].
    fn recall(&self) -> bool {
        false
    }
}

/// Shared entries stay while somebody else has them.
impl<T: Recall> Evict for Arc<T> {
    fn must_stay(&self) -> bool {
        Arc::strong_count(self) > 1
    }

    fn recall(&self) -> bool {
        (**self).recall()
    }
}

#[cfg(test)]
impl Recall for u64 {}

#[cfg(test)]
impl Evict for u64 {
    fn must_stay(&self) -> bool {
        false
    }
}

/// A bounded map from `K` to `V`. Values are returned as clones.
pub(crate) struct Cache<K, V> {
    shards: Box<[Shard<K, V>]>,
    /// Has random keys, so that numbers in an image cannot be chosen to collide.
    hasher: KeyedHash,
    /// The weight limit of a shard now, and the one without other users of the memory.
    shard_limit: AtomicU64,
    shard_limit_max: u64,
    /// How far the high watermark of a shard lies above its limit.
    shard_slack: u64,
    /// Number of shards above the high watermark, and above the hard one.
    over_high: AtomicUsize,
    over_hard: AtomicUsize,
}

/// A shard has its own cache lines, so that threads in different shards do not disturb each other.
#[repr(align(128))]
struct Shard<K, V> {
    ring: RwLock<Ring<K, V>>,
    class: &'static LockClass,
    users: Users,
}

struct Ring<K, V> {
    slots: HashMap<K, usize, KeyedHash>,
    entries: Vec<Entry<K, V>>,
    hand: usize,
    weight: u64,
    /// The maximum weight of the shard.
    limit_max: u64,
    /// The total weight of entries that are each heavier than the maximum.
    giants: u64,
    /// Two full rounds made too little room, and since then nobody has made enough.
    stuck: bool,
    /// It is above the high watermark, and above the hard one.
    is_over_high: bool,
    is_over_hard: bool,
}

struct Entry<K, V> {
    key: K,
    value: V,
    weight: u64,
    used: AtomicBool,
}

impl<K: Hash + Eq + Copy, V: Clone + Evict> Cache<K, V> {
    /// A cache with a total weight of `limit` bytes in at most `shards` shards, whose locks count into `class`.
    pub(crate) fn new(limit: u64, shards: usize, class: &'static LockClass) -> Self {
        let affordable = usize::try_from(limit / MIN_SHARD_BYTES).unwrap_or(usize::MAX);
        let count = affordable.clamp(1, shards);
        let shard = || Shard {
            ring: RwLock::new(Ring {
                slots: HashMap::with_hasher(KeyedHash::new()),
                entries: Vec::new(),
                hand: 0,
                weight: 0,
                limit_max: limit / count as u64,
                giants: 0,
                stuck: false,
                is_over_high: false,
                is_over_hard: false,
            }),
            class,
            users: Users::new(),
        };
        Self {
            shards: std::iter::repeat_with(shard).take(count).collect(),
            hasher: KeyedHash::new(),
            shard_limit: AtomicU64::new(limit / count as u64),
            shard_limit_max: limit / count as u64,
            shard_slack: u64::MAX,
            over_high: AtomicUsize::new(0),
            over_hard: AtomicUsize::new(0),
        }
    }

    /// Sets by how many bytes the high watermark lies above the limit: entries that must stay may exceed the limit by
    /// this much.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.shard_slack = bytes / self.shards.len() as u64;
    }

    /// Limits the total weight to `bytes`, but to no more than the cache was made for. Surplus entries are evicted at
    /// once.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let limit = (bytes / self.shards.len() as u64).min(self.shard_limit_max);
        if self.shard_limit.swap(limit, Ordering::Relaxed) <= limit {
            return;
        }
        for shard in self.shards.iter().filter(|shard| shard.read().weight > limit) {
            self.trim(shard.write());
        }
    }

    /// Evicts surplus entries of a ring.
    fn trim(&self, mut ring: Counted<RwLockWriteGuard<'_, Ring<K, V>>>) {
        let dropped = ring.make_room(0, self.shard_limit());
        self.update_watermarks(&mut ring);
        drop(ring);
        // Free the values with no lock held.
        drop(dropped);
    }

    fn shard_limit(&self) -> u64 {
        self.shard_limit.load(Ordering::Relaxed)
    }

    /// Whether dirty entries take far more than the limit.
    pub(crate) fn is_over_high_watermark(&self) -> bool {
        self.over_high.load(Ordering::Relaxed) > 0
    }

    /// Whether they exceed it by twice as much, which is all that is allowed.
    pub(crate) fn is_over_hard_watermark(&self) -> bool {
        self.over_hard.load(Ordering::Relaxed) > 0
    }

    /// Inserts an entry into a locked ring. Returns those that were evicted.
    fn enter(&self, ring: &mut Ring<K, V>, key: K, value: V, weight: u64) -> Vec<V> {
        let dropped = ring.insert(key, value, weight, self.shard_limit());
        self.update_watermarks(ring);
        dropped
    }

    /// Updates the watermark counts after the weight of a ring has changed.
    fn update_watermarks(&self, ring: &mut Ring<K, V>) {
        let beyond = (ring.weight - ring.giants).saturating_sub(self.shard_limit());
        note(&mut ring.is_over_high, beyond > self.shard_slack, &self.over_high);
        note(&mut ring.is_over_hard, beyond > self.shard_slack.saturating_mul(2), &self.over_hard);
    }

    /// Reclaims entries that need not stay any more, in shards above the high watermark.
    pub(crate) fn reclaim(&self) {
        for shard in &self.shards {
            if !shard.read().is_over_high {
                continue;
            }
            let mut ring = shard.write();
            ring.stuck = false;
            self.trim(ring);
        }
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.get_and(key, |_| ())
    }

    /// Whether `key` has a value. This does not count as a use.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.shard(key).read().slots.contains_key(key)
    }

    /// The value of `key`. Calls `with` on it while it cannot leave the cache.
    pub(crate) fn get_and(&self, key: &K, with: impl FnOnce(&V)) -> Option<V> {
        let ring = self.shard(key).read();
        let entry = ring.entries.get(*ring.slots.get(key)?)?;
        // Read first: if the bit is set already, this writes nothing to a line that others read.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        with(&entry.value);
        Some(entry.value.clone())
    }

    /// Inserts `value`, replacing an earlier one, if it fits.
    #[cfg(test)]
    pub(crate) fn insert(&self, key: K, value: V, weight: u64) {
        let shard = self.shard(&key);
        let mut ring = shard.write();
        let dropped = self.enter(&mut ring, key, value, weight);
        drop(ring);
        // Free the values with no lock held.
        drop(dropped);
    }

    /// Inserts `value` unless `key` has one, and returns the one that stays. `None` if `key` has none and `is_newest`
    /// says that `value` is outdated. `is_newest` is called where nothing can leave the cache before `value` is in.
    pub(crate) fn get_or_insert(
        &self,
        key: K,
        value: V,
        weight: u64,
        is_newest: impl FnOnce() -> bool,
    ) -> Option<V> {
        self.get_or_replace(key, value, weight, |_| false, is_newest)
    }

    /// Like [`get_or_insert`](Self::get_or_insert), but replaces a value that is `replaceable`. Whoever answers `true`
    /// knows that `value` is the latest, and the replacement is certain.
    pub(crate) fn get_or_replace(
        &self,
        key: K,
        value: V,
        weight: u64,
        replaceable: impl Fn(&V) -> bool,
        is_newest: impl FnOnce() -> bool,
    ) -> Option<V> {
        let shard = self.shard(&key);
        let mut ring = shard.write();
        match ring.slots.get(&key).and_then(|&slot| ring.entries.get(slot)) {
            Some(entry) if !replaceable(&entry.value) => return Some(entry.value.clone()),
            None if !is_newest() => return None,
            _ => {}
        }
        let dropped = self.enter(&mut ring, key, value.clone(), weight);
        drop(ring);
        drop(dropped);
        Some(value)
    }

    /// Changes the weight of `key`, if it is there. It is evicted if it has become too heavy.
    pub(crate) fn reweigh(&self, key: K, weight: u64) {
        let mut ring = self.shard(&key).write();
        let Some(slot) = ring.slots.get(&key).copied() else { return };
        let Some(entry) = ring.entries.get(slot) else { return };
        let value = entry.value.clone();
        let dropped = self.enter(&mut ring, key, value, weight);
        drop(ring);
        drop(dropped);
    }

    /// Removes the entry of `key`.
    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        let mut ring = self.shard(key).write();
        let slot = *ring.slots.get(key)?;
        ring.entries.get(slot)?.value.recall();
        Some(ring.remove(slot))
    }

    /// All values for which `choose` holds. A lock is held while it is called.
    pub(crate) fn select(&self, choose: impl Fn(&V) -> bool) -> Vec<V> {
        let mut chosen = Vec::new();
        for shard in &self.shards {
            let ring = shard.read();
            chosen
                .extend(ring.entries.iter().map(|entry| &entry.value).filter(|value| choose(value)).cloned());
        }
        chosen
    }

    /// The total weight of all entries in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().weight).sum()
    }

    fn shard(&self, key: &K) -> &Shard<K, V> {
        // The map inside of a shard uses the low bits of a hash of its own.
        let hash = self.hasher.hash_one(key);
        let index = (u128::from(hash) * self.shards.len() as u128) >> 64;
        #[allow(clippy::cast_possible_truncation, reason = "below the number of shards")]
        &self.shards[index as usize]
    }
}

/// Updates a shard's flag and the number of shards that have it set.
fn note(flag: &mut bool, now: bool, count: &AtomicUsize) {
    if *flag != now {
        *flag = now;
        match now {
            true => count.fetch_add(1, Ordering::Relaxed),
            false => count.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

impl<K, V> Shard<K, V> {
    fn read(&self) -> Counted<RwLockReadGuard<'_, Ring<K, V>>> {
        self.class.lock_by(&self.users, Mode::Shared, || self.ring.try_read(), || self.ring.read())
    }

    fn write(&self) -> Counted<RwLockWriteGuard<'_, Ring<K, V>>> {
        self.class.lock_by(&self.users, Mode::Exclusive, || self.ring.try_write(), || self.ring.write())
    }
}

impl<K: Hash + Eq + Copy, V: Evict> Ring<K, V> {
    /// Inserts an entry and returns those that were evicted.
    fn insert(&mut self, key: K, value: V, weight: u64, limit: u64) -> Vec<V> {
        let mut dropped = Vec::new();
        if let Some(&slot) = self.slots.get(&key) {
            dropped.push(self.remove(slot));
        }
        if weight > limit && !value.must_stay() {
            return dropped;
        }
        dropped.extend(self.make_room(weight, limit));
        self.slots.insert(key, self.entries.len());
        self.entries.push(Entry { key, value, weight, used: AtomicBool::new(false) });
        self.weight += weight;
        self.giants += self.giant(weight);
        dropped
    }

    /// Evicts entries until `weight` more fits in, or all that are left must stay.
    fn make_room(&mut self, weight: u64, limit: u64) -> Vec<V> {
        let mut dropped = Vec::new();
        while self.weight + weight > limit {
            let Some(victim) = self.victim() else {
                self.stuck = true;
                break;
            };
            dropped.push(self.remove(victim));
            // The newest entry is in this slot now. It must not be the next victim.
            self.hand = victim + 1;
        }
        self.stuck &= self.weight + weight > limit;
        dropped
    }

    /// The weight of an entry that no shard has room for, otherwise 0.
    fn giant(&self, weight: u64) -> u64 {
        if weight > self.limit_max { weight } else { 0 }
    }

    /// The next entry that may go and was not used since the hand last passed it. Two rounds clear every bit. If there
    /// is still no victim, all entries must stay, and the next searches are short.
    fn victim(&mut self) -> Option<usize> {
        let most = if self.stuck { STUCK_LOOKS } else { usize::MAX };
        let looks = most.min(2 * self.entries.len());
        for _ in 0..looks {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let entry = &mut self.entries[self.hand];
            let was_used = std::mem::take(entry.used.get_mut()) | entry.value.recall();
            if !was_used && !entry.value.must_stay() {
                return Some(self.hand);
            }
            self.hand += 1;
        }
        None
    }

    fn remove(&mut self, slot: usize) -> V {
        let entry = self.entries.swap_remove(slot);
        self.slots.remove(&entry.key);
        if let Some(moved) = self.entries.get(slot) {
            self.slots.insert(moved.key, slot);
        }
        self.weight -= entry.weight;
        self.giants -= self.giant(entry.weight);
        entry.value
    }
}

impl<K: Hash + Eq + Copy, V: Clone + Evict> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("shards", &self.shards.len()).field("weight", &self.weight()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CLASS: LockClass = LockClass::new("cache under test");

    #[test]
    fn stays_within_its_limit() {
        let cache = Cache::<u64, u64>::new(4 << 20, 16, &CLASS);
        for key in 0..10_000 {
            cache.insert(key, key, 4096);
            assert!(cache.weight() <= 4 << 20);
        }
        let kept = (0..10_000).filter(|key| cache.get(key) == Some(*key)).count();
        assert!((900..=1024).contains(&kept), "{kept} of 1024 possible");
    }

    #[test]
    fn a_limit_is_lowered_and_raised_again() {
        let cache = Cache::<u64, u64>::new(4 << 20, 4, &CLASS);
        let fill = || (0..2000).for_each(|key| cache.insert(key, key, 4096));
        fill();
        let full = cache.weight();
        cache.set_limit(1 << 20);
        assert!(cache.weight() <= 1 << 20 && cache.weight() > 900 << 10, "{}", cache.weight());
        fill();
        assert!(cache.weight() <= 1 << 20);
        cache.set_limit(u64::MAX);
        fill();
        assert!(cache.weight() <= 4 << 20 && cache.weight() >= full - (512 << 10), "{}", cache.weight());
    }

    #[test]
    fn what_is_used_stays() {
        let cache = Cache::<u64, u64>::new(100, 1, &CLASS);
        cache.insert(0, 0, 10);
        for key in 1..1000 {
            assert_eq!(cache.get(&0), Some(0), "at {key}");
            cache.insert(key, key, 10);
        }
        assert_eq!(cache.weight(), 100);
    }

    /// Regression: in a full cache each new entry evicted the one before it, which nobody had had time to use.
    #[test]
    fn what_came_last_goes_last() {
        let cache = Cache::<u64, u64>::new(100, 1, &CLASS);
        (1..=10).for_each(|key| cache.insert(key, key, 10));
        (11..=16).for_each(|key| cache.insert(key, key, 10));
        let kept: Vec<u64> = (1..=16).filter(|key| cache.get(key).is_some()).collect();
        assert_eq!(kept.len(), 10);
        assert!((11..=16).all(|key| kept.contains(&key)), "{kept:?}");
    }

    #[test]
    fn too_heavy_is_not_kept() {
        let cache = Cache::<u64, u64>::new(100, 1, &CLASS);
        cache.insert(1, 1, 60);
        cache.insert(2, 2, 101);
        assert_eq!((cache.get(&1), cache.get(&2)), (Some(1), None));
        cache.reweigh(1, 101);
        assert_eq!((cache.get(&1), cache.weight()), (None, 0));
    }

    #[test]
    fn what_is_too_heavy_and_must_stay_may_grow_on() {
        let cache = Cache::<u64, Arc<u64>>::new(100, 1, &CLASS);
        let held = Arc::new(0);
        cache.insert(0, Arc::clone(&held), 60);
        for weight in 100..103 {
            cache.reweigh(0, weight);
            assert_eq!((cache.get(&0).as_deref(), cache.weight()), (Some(&0), weight));
        }
    }

    #[test]
    fn the_first_value_wins_where_asked() {
        let cache = Cache::<u64, u64>::new(100, 1, &CLASS);
        assert_eq!(cache.get_or_insert(1, 5, 1, || false), None);
        assert_eq!(cache.get_or_insert(1, 5, 1, || true), Some(5));
        assert_eq!(cache.get_or_insert(1, 6, 1, || false), Some(5));
        cache.insert(1, 7, 3);
        assert_eq!((cache.get(&1), cache.weight()), (Some(7), 3));
    }

    #[test]
    fn what_somebody_has_stays() {
        let cache = Cache::<u64, Arc<u64>>::new(100, 1, &CLASS);
        let held = Arc::new(0);
        cache.insert(0, Arc::clone(&held), 60);
        for key in 1..10 {
            cache.insert(key, Arc::new(key), 60);
            assert_eq!(cache.get(&0).as_deref(), Some(&0));
        }
        drop(held);
        cache.insert(11, Arc::new(11), 60);
        cache.insert(12, Arc::new(12), 60);
        assert_eq!((cache.get(&0), cache.weight()), (None, 60));
        assert_eq!(cache.remove(&12).as_deref(), Some(&12));
        assert_eq!(cache.weight(), 0);
    }

    /// Counts how often it is asked.
    #[derive(Clone)]
    struct Dirty(Arc<(AtomicBool, std::sync::atomic::AtomicUsize)>);

    impl Evict for Dirty {
        fn must_stay(&self) -> bool {
            self.0.1.fetch_add(1, Ordering::Relaxed);
            self.0.0.load(Ordering::Relaxed)
        }
    }

    /// Regression: each insertion into a cache full of dirty entries went through all of them, twice.
    #[test]
    fn what_must_stay_is_not_looked_through_at_each_insertion() {
        let mut cache = Cache::<u64, Dirty>::new(1000, 1, &CLASS);
        cache.set_slack(8999);
        let dirty = Dirty(Arc::new((AtomicBool::new(true), 0.into())));
        for key in 0..10_000 {
            cache.insert(key, dirty.clone(), 1);
        }
        assert!(cache.weight() == 10_000 && cache.is_over_high_watermark());
        let asked = dirty.0.1.load(Ordering::Relaxed);
        assert!(asked < 10_000 * (STUCK_LOOKS + 2), "asked {asked} times");
        // Once they are on disk, the cache shrinks to its limit.
        dirty.0.0.store(false, Ordering::Relaxed);
        cache.insert(10_000, dirty.clone(), 1);
        assert!(cache.weight() <= 1000 && !cache.is_over_high_watermark(), "{}", cache.weight());
    }

    /// Regression: a file with a million extents made every checkpoint be written back at once.
    #[test]
    fn one_that_is_too_heavy_crowds_nobody() {
        let mut cache = Cache::<u64, Dirty>::new(1000, 1, &CLASS);
        cache.set_slack(1000);
        let dirty = Dirty(Arc::new((AtomicBool::new(true), 0.into())));
        cache.insert(0, dirty.clone(), 10_000);
        assert!(cache.weight() == 10_000 && !cache.is_over_high_watermark());
        for key in 1..=2000 {
            cache.insert(key, dirty.clone(), 1);
        }
        assert!(!cache.is_over_high_watermark());
        cache.insert(2001, dirty.clone(), 1);
        assert!(cache.is_over_high_watermark() && !cache.is_over_hard_watermark());
        // It may get lighter.
        cache.reweigh(0, 100);
        assert!(cache.weight() == 2101 && cache.is_over_high_watermark());
        cache.remove(&0);
        dirty.0.0.store(false, Ordering::Relaxed);
        cache.insert(2002, dirty.clone(), 1);
        assert!(cache.weight() <= 1000 && !cache.is_over_high_watermark(), "{}", cache.weight());
    }

    #[test]
    fn shedding_lets_go_of_what_was_written_and_of_nothing_else() {
        let mut cache = Cache::<u64, Dirty>::new(1000, 1, &CLASS);
        cache.set_slack(1000);
        let [written, waiting] = [(); 2].map(|()| Dirty(Arc::new((AtomicBool::new(true), 0.into()))));
        for key in 0..3000 {
            cache.insert(key, if key % 2 == 0 { written.clone() } else { waiting.clone() }, 1);
        }
        assert!(cache.is_over_high_watermark() && !cache.is_over_hard_watermark());
        cache.insert(3000, written.clone(), 1);
        assert!(cache.is_over_hard_watermark());
        cache.reclaim();
        assert!(cache.weight() == 3001 && cache.is_over_hard_watermark());
        written.0.0.store(false, Ordering::Relaxed);
        cache.reclaim();
        assert!(
            cache.weight() == 1500 && !cache.is_over_high_watermark() && !cache.is_over_hard_watermark(),
            "{}",
            cache.weight()
        );
        waiting.0.0.store(false, Ordering::Relaxed);
        cache.reclaim();
        assert_eq!(cache.weight(), 1500, "a shard below its high watermark reclaims nothing");
    }

    #[test]
    fn many_threads() {
        let cache = Cache::<u64, u64>::new(1 << 20, 16, &CLASS);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for i in 0..20_000_u64 {
                        let key = (i * 7 + thread * 13) % 600;
                        match cache.get(&key) {
                            Some(value) => assert_eq!(value, key * 3),
                            None => cache.insert(key, key * 3, 4096),
                        }
                    }
                });
            }
        });
        assert!(cache.weight() <= 1 << 20);
    }
}
