//! A bounded cache that many threads look up at once: shards, each a map under a reader-writer lock.
//!
//! A hit takes its shard's lock shared and sets one bit, if it is not set yet. Room is made by the CLOCK algorithm
//! within the shard. The weights of all entries together never exceed the limit: what does not fit into a shard
//! is handed back uncached. The exception are entries that must stay ([`Evict::must_stay`]): changes that are not on
//! disk yet, whose number the log bounds. While these fill a shard, an insertion looks at [`STUCK_LOOKS`] entries and
//! no more, so that it costs the same however many there are. What goes far beyond the limit makes the cache *crowded*:
//! whoever begins a change has changes written back then; twice as far makes it *swamped*, and they wait for that. An
//! entry that is too heavy for any shard, as a file of a million extents, crowds nobody: it would be as heavy once it is
//! written.
//!
//! The limit may be lowered and raised again ([`Cache::set_limit`]), up to the one that the cache was made with: memory that
//! something else takes for a while.

use crate::keyed_hash::KeyedHash;
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes that a shard has at least, as long as there are enough for two.
const MIN_SHARD_BYTES: u64 = 1 << 20;

/// Entries that are looked at for a victim in a shard that was found to be full of what must stay.
const STUCK_LOOKS: usize = 16;

/// What may leave a cache when room is needed.
pub(crate) trait Evict {
    /// Whether somebody relies on this entry being found. Asked with the shard's lock held exclusively: nobody gets
    /// the entry from the cache meanwhile.
    fn must_stay(&self) -> bool;

    /// Closes other ways to the entry than this cache; whether there was one, which counts as a use. Asked before
    /// [`must_stay`](Self::must_stay), as often as not in vain.
    fn recall(&self) -> bool {
        false
    }
}

/// What is shared, and may be found in another way than in a cache.
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

/// A bounded map from `K` to `V`; values are handed out as clones.
pub(crate) struct Cache<K, V> {
    shards: Box<[Shard<K, V>]>,
    /// Random keys: numbers in an image cannot be chosen to collide.
    hasher: KeyedHash,
    /// What a shard may weigh now, and when nobody else needs memory.
    shard_limit: AtomicU64,
    shard_limit_max: u64,
    /// By how much a shard may exceed its limit before it is crowded.
    shard_slack: u64,
    /// How many shards are crowded, and swamped.
    crowded: AtomicUsize,
    swamped: AtomicUsize,
}

/// Its own cache lines, so that threads in different shards do not disturb each other.
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
    /// What the shard may weigh at most.
    limit_max: u64,
    /// What the entries weigh that are heavier than that each.
    giants: u64,
    /// Two whole rounds made too little room, and nobody has made enough since.
    stuck: bool,
    /// It weighs far more than its limit, and all that it may.
    crowded: bool,
    swamped: bool,
}

struct Entry<K, V> {
    key: K,
    value: V,
    weight: u64,
    used: AtomicBool,
}

impl<K: Hash + Eq + Copy, V: Clone + Evict> Cache<K, V> {
    /// A cache for entries that weigh `limit` bytes together, in at most `shards` shards, whose locks
    /// count into `class`.
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
                crowded: false,
                swamped: false,
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
            crowded: AtomicUsize::new(0),
            swamped: AtomicUsize::new(0),
        }
    }

    /// By how many bytes changes that must stay may exceed the limit before the cache is crowded.
    pub(crate) fn set_slack(&mut self, bytes: u64) {
        self.shard_slack = bytes / self.shards.len() as u64;
    }

    /// Has all entries weigh `bytes` together at most, but no more than the cache was made for; who is too many goes at once.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let limit = (bytes / self.shards.len() as u64).min(self.shard_limit_max);
        if self.shard_limit.swap(limit, Ordering::Relaxed) <= limit {
            return;
        }
        for shard in self.shards.iter().filter(|shard| shard.read().weight > limit) {
            self.trim(shard.write());
        }
    }

    /// Has entries go that are too many in a ring.
    fn trim(&self, mut ring: Counted<RwLockWriteGuard<'_, Ring<K, V>>>) {
        let dropped = ring.make_room(0, self.shard_limit());
        self.judge(&mut ring);
        drop(ring);
        // Values are freed with no lock held.
        drop(dropped);
    }

    fn shard_limit(&self) -> u64 {
        self.shard_limit.load(Ordering::Relaxed)
    }

    /// Whether changes that wait to be written take far more than the limit.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed) > 0
    }

    /// Whether they take twice as much: all that they may.
    pub(crate) fn is_swamped(&self) -> bool {
        self.swamped.load(Ordering::Relaxed) > 0
    }

    /// Puts an entry into a ring that is locked; gives back those that had to go.
    fn enter(&self, ring: &mut Ring<K, V>, key: K, value: V, weight: u64) -> Vec<V> {
        let dropped = ring.insert(key, value, weight, self.shard_limit());
        self.judge(ring);
        dropped
    }

    /// Counts a ring whose weight has changed among the crowded, and the swamped.
    fn judge(&self, ring: &mut Ring<K, V>) {
        let beyond = (ring.weight - ring.giants).saturating_sub(self.shard_limit());
        note(&mut ring.crowded, beyond > self.shard_slack, &self.crowded);
        note(&mut ring.swamped, beyond > self.shard_slack.saturating_mul(2), &self.swamped);
    }

    /// Lets go of what need not stay any more in shards that are crowded.
    pub(crate) fn shed(&self) {
        for shard in &self.shards {
            if !shard.read().crowded {
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

    /// The same, and does something with it while it cannot leave the cache.
    pub(crate) fn get_and(&self, key: &K, with: impl FnOnce(&V)) -> Option<V> {
        let ring = self.shard(key).read();
        let entry = ring.entries.get(*ring.slots.get(key)?)?;
        // Read first: a bit that is set already costs no write to a line that others read.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        with(&entry.value);
        Some(entry.value.clone())
    }

    /// Puts `value` in, in place of an earlier one, if it fits.
    #[cfg(test)]
    pub(crate) fn insert(&self, key: K, value: V, weight: u64) {
        let shard = self.shard(&key);
        let mut ring = shard.write();
        let dropped = self.enter(&mut ring, key, value, weight);
        drop(ring);
        // Values are freed with no lock held.
        drop(dropped);
    }

    /// Puts `value` in unless `key` has one; gives the one that stays. `None`: it has none, and `is_newest` says that
    /// `value` is not the latest any more. That is asked where nothing can leave the cache until `value` is in.
    pub(crate) fn get_or_insert(
        &self,
        key: K,
        value: V,
        weight: u64,
        is_newest: impl FnOnce() -> bool,
    ) -> Option<V> {
        self.get_or_replace(key, value, weight, |_| false, is_newest)
    }

    /// As [`get_or_insert`](Self::get_or_insert), in the place of a value that is `replaceable`.
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
        if let Some(entry) = ring.slots.get(&key).and_then(|&slot| ring.entries.get(slot))
            && !replaceable(&entry.value)
        {
            return Some(entry.value.clone());
        }
        if !is_newest() {
            return None;
        }
        let dropped = self.enter(&mut ring, key, value.clone(), weight);
        drop(ring);
        drop(dropped);
        Some(value)
    }

    /// Changes the weight of `key`, if it is there; it leaves the cache if it has become too heavy.
    pub(crate) fn reweigh(&self, key: K, weight: u64) {
        let mut ring = self.shard(&key).write();
        let Some(slot) = ring.slots.get(&key).copied() else { return };
        let Some(entry) = ring.entries.get(slot) else { return };
        let value = entry.value.clone();
        let dropped = self.enter(&mut ring, key, value, weight);
        drop(ring);
        drop(dropped);
    }

    /// Takes the entry of `key` out.
    #[allow(dead_code, reason = "its users follow")]
    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        let mut ring = self.shard(key).write();
        let slot = *ring.slots.get(key)?;
        ring.entries.get(slot)?.value.recall();
        Some(ring.remove(slot))
    }

    /// All values that `choose` wants, which is asked with a lock held.
    pub(crate) fn select(&self, choose: impl Fn(&V) -> bool) -> Vec<V> {
        let mut chosen = Vec::new();
        for shard in &self.shards {
            let ring = shard.read();
            chosen
                .extend(ring.entries.iter().map(|entry| &entry.value).filter(|value| choose(value)).cloned());
        }
        chosen
    }

    /// Bytes that the entries weigh together.
    pub(crate) fn weight(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().weight).sum()
    }

    fn shard(&self, key: &K) -> &Shard<K, V> {
        // The map inside a shard takes the low bits of a hash of its own.
        let hash = self.hasher.hash_one(key);
        let index = (u128::from(hash) * self.shards.len() as u128) >> 64;
        #[allow(clippy::cast_possible_truncation, reason = "below the number of shards")]
        &self.shards[index as usize]
    }
}

/// Keeps a shard's flag, and the number of shards that have it.
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
    /// Puts an entry in and gives back those that had to go.
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

    /// Has entries go until `weight` more fit in, or all that are left must stay.
    fn make_room(&mut self, weight: u64, limit: u64) -> Vec<V> {
        let mut dropped = Vec::new();
        while self.weight + weight > limit {
            let Some(victim) = self.victim() else {
                self.stuck = true;
                break;
            };
            dropped.push(self.remove(victim));
        }
        self.stuck &= self.weight + weight > limit;
        dropped
    }

    /// The part of a weight that no shard has room for: all or nothing.
    fn giant(&self, weight: u64) -> u64 {
        if weight > self.limit_max { weight } else { 0 }
    }

    /// The next entry that may go and was not used since the hand passed it last. Two rounds clear every bit: if
    /// there is none by then, all must stay, and the next searches are short ones.
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

    /// Each insertion into a cache full of changes went through all of them, twice.
    #[test]
    fn what_must_stay_is_not_looked_through_at_each_insertion() {
        let mut cache = Cache::<u64, Dirty>::new(1000, 1, &CLASS);
        cache.set_slack(8999);
        let dirty = Dirty(Arc::new((AtomicBool::new(true), 0.into())));
        for key in 0..10_000 {
            cache.insert(key, dirty.clone(), 1);
        }
        assert!(cache.weight() == 10_000 && cache.is_crowded());
        let asked = dirty.0.1.load(Ordering::Relaxed);
        assert!(asked < 10_000 * (STUCK_LOOKS + 2), "asked {asked} times");
        // Once they are on disk, the cache shrinks to its limit.
        dirty.0.0.store(false, Ordering::Relaxed);
        cache.insert(10_000, dirty.clone(), 1);
        assert!(cache.weight() <= 1000 && !cache.is_crowded(), "{}", cache.weight());
    }

    /// A file of a million extents had every checkpoint written back at once.
    #[test]
    fn one_that_is_too_heavy_crowds_nobody() {
        let mut cache = Cache::<u64, Dirty>::new(1000, 1, &CLASS);
        cache.set_slack(1000);
        let dirty = Dirty(Arc::new((AtomicBool::new(true), 0.into())));
        cache.insert(0, dirty.clone(), 10_000);
        assert!(cache.weight() == 10_000 && !cache.is_crowded());
        for key in 1..=2000 {
            cache.insert(key, dirty.clone(), 1);
        }
        assert!(!cache.is_crowded());
        cache.insert(2001, dirty.clone(), 1);
        assert!(cache.is_crowded() && !cache.is_swamped());
        // It may get lighter.
        cache.reweigh(0, 100);
        assert!(cache.weight() == 2101 && cache.is_crowded());
        cache.remove(&0);
        dirty.0.0.store(false, Ordering::Relaxed);
        cache.insert(2002, dirty.clone(), 1);
        assert!(cache.weight() <= 1000 && !cache.is_crowded(), "{}", cache.weight());
    }

    #[test]
    fn shedding_lets_go_of_what_was_written_and_of_nothing_else() {
        let mut cache = Cache::<u64, Dirty>::new(1000, 1, &CLASS);
        cache.set_slack(1000);
        let [written, waiting] = [(); 2].map(|()| Dirty(Arc::new((AtomicBool::new(true), 0.into()))));
        for key in 0..3000 {
            cache.insert(key, if key % 2 == 0 { written.clone() } else { waiting.clone() }, 1);
        }
        assert!(cache.is_crowded() && !cache.is_swamped());
        cache.insert(3000, written.clone(), 1);
        assert!(cache.is_swamped());
        cache.shed();
        assert!(cache.weight() == 3001 && cache.is_swamped());
        written.0.0.store(false, Ordering::Relaxed);
        cache.shed();
        assert!(cache.weight() == 1500 && !cache.is_crowded() && !cache.is_swamped(), "{}", cache.weight());
        waiting.0.0.store(false, Ordering::Relaxed);
        cache.shed();
        assert_eq!(cache.weight(), 1500, "a shard that is not crowded sheds nothing");
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
