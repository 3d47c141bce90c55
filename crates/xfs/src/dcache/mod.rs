//! Names in memory, so that a path walk needs no lock and writes nothing: what kernels call the dcache.
//!
//! A bounded table of slots, one cache line each, has the inode of a name in a directory. It has only existing names of
//! up to 32 bytes, and neither `.` nor `..`.
//!
//! Invariants:
//! - a name is added with its directory locked, after a lookup that found it or the commit that made it. It is removed
//!   with the directory locked exclusively, before the change that removes the name is published. So every entry is
//!   true whenever it can be read. Nobody adds a name that is about to be removed, and whoever has seen a change, or
//!   anything later, no longer finds the old name;
//! - a directory is identified by number and generation, because its number may be reused. The names of a removed
//!   directory were removed one by one, because it had to be empty; the generation is for damaged volumes.

mod slot;

#[cfg(all(test, not(shuttle)))]
mod models;

use crate::keyed_hash::KeyedHash;
use crate::lazy_table::LazyTable;
use slot::{Slot, WORDS, Words};
use std::hash::{BuildHasher, Hasher};
use xfs_format::inode::InodeType;
use xfs_format::types::InodeNumber;

/// Maximum length of a name in the table.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 8;

/// Slots that a name can be in.
const WAYS: usize = 4;

// The layout of a slot.
const DIR: usize = 0;
const NAME: usize = 1;
/// The generations of the directory and of the inode.
const GENERATIONS: usize = NAME + NAME_WORDS;
/// The inode's number, and its type above it: no inode number has more than 56 bits.
const INODE: usize = GENERATIONS + 1;
const KIND_SHIFT: u32 = 56;
const _: () = assert!(INODE + 1 == WORDS && size_of::<Slot>() == 64);

/// One of the files that have had an inode number, as file handles identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Its inode number.
    pub ino: InodeNumber,
    /// Different for each file that has had the number.
    pub generation: u32,
}

/// A name that was found in memory.
pub struct Dentry<'a> {
    child: FileId,
    kind: InodeType,
    slot: &'a Slot,
    seq: u64,
}

/// The names of one volume.
#[derive(Debug)]
pub(crate) struct Dcache {
    sets: LazyTable<Set>,
    hasher: KeyedHash,
}

#[derive(Default)]
struct Set([Slot; WAYS]);

/// The key of a name.
struct Key {
    dir: FileId,
    name: [u64; NAME_WORDS],
}

impl Dentry<'_> {
    /// The file that the name has.
    pub fn child(&self) -> FileId {
        self.child
    }

    /// Its type.
    pub fn kind(&self) -> InodeType {
        self.kind
    }

    /// Whether the name has had this file without a break since it was found, as far as is known.
    #[inline]
    pub fn holds(&self) -> bool {
        self.slot.is_at(self.seq)
    }
}

impl Key {
    /// `None` for names that are not stored, and for what is not a name.
    #[inline]
    fn new(dir: FileId, name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > NAME_BYTES || name == b"." || name == b".." {
            return None;
        }
        let mut words = [0; NAME_WORDS];
        let (whole, rest) = name.as_chunks::<8>();
        // Names are distinguished by where the zeroes begin.
        let mut has_zero = false;
        for (word, part) in words.iter_mut().zip(whole) {
            *word = u64::from_le_bytes(*part);
            has_zero |= has_zero_byte(*word);
        }
        if let Some(last) = words.get_mut(whole.len()) {
            for (shift, &byte) in rest.iter().enumerate() {
                has_zero |= byte == 0;
                *last |= u64::from(byte) << (8 * shift);
            }
        }
        (!has_zero).then_some(Self { dir, name: words })
    }

    /// Whether a word of a slot matches this name.
    #[inline]
    fn is_word(&self, at: usize, word: u64) -> bool {
        match at {
            DIR => word == self.dir.ino.0,
            GENERATIONS => (word >> 32) as u32 == self.dir.generation,
            INODE => true,
            _ => word == self.name[at - NAME],
        }
    }

    fn words(&self, child: FileId, kind: InodeType) -> Option<Words> {
        if child.ino.0 >> KIND_SHIFT != 0 {
            return None;
        }
        let mut words = [0; WORDS];
        words[DIR] = self.dir.ino.0;
        words[NAME..NAME + NAME_WORDS].copy_from_slice(&self.name);
        words[GENERATIONS] = u64::from(self.dir.generation) << 32 | u64::from(child.generation);
        words[INODE] = kind_bits(kind) << KIND_SHIFT | child.ino.0;
        Some(words)
    }
}

impl Dcache {
    /// A table of at most this many bytes.
    pub(crate) fn within(bytes: u64) -> Self {
        Self { sets: LazyTable::within(bytes), hasher: KeyedHash::new() }
    }

    /// Bytes that it takes once it is fully used.
    pub(crate) fn bytes(&self) -> u64 {
        self.sets.bytes()
    }

    /// The file that `name` has in a directory. `None` if that is not in memory.
    #[inline]
    pub(crate) fn find(&self, dir: FileId, name: &[u8]) -> Option<Dentry<'_>> {
        let key = Key::new(dir, name)?;
        let hash = self.hash(&key);
        let set = self.sets.find(hash)?;
        ways(hash).find_map(|way| {
            let slot = &set.0[way];
            let (words, seq) = slot.read(|at, word| key.is_word(at, word))?;
            let ino = InodeNumber(words[INODE] & ((1 << KIND_SHIFT) - 1));
            let child = FileId { ino, generation: words[GENERATIONS] as u32 };
            Some(Dentry { child, kind: kind_of(words[INODE] >> KIND_SHIFT)?, slot, seq })
        })
    }

    /// Adds a name. The caller has the directory locked, and has found or permanently added the name since.
    pub(crate) fn keep(&self, dir: FileId, name: &[u8], child: FileId, kind: InodeType) {
        let Some(key) = Key::new(dir, name) else { return };
        let Some(words) = key.words(child, kind) else { return };
        let hash = self.hash(&key);
        let set = self.sets.make(hash);
        let is_there = |way: &usize| set.0[*way].read(|at, word| key.is_word(at, word)).is_some();
        let free = || ways(hash).find(|&way| set.0[way].is_empty());
        let way = ways(hash).find(is_there).or_else(free).unwrap_or_else(|| fastrand::usize(..WAYS));
        set.0[way].fill(&words);
    }

    /// Removes a name that is about to change or go. The caller has the directory locked exclusively until that has
    /// happened.
    pub(crate) fn forget(&self, dir: FileId, name: &[u8]) {
        let Some(key) = Key::new(dir, name) else { return };
        let Some(set) = self.sets.find(self.hash(&key)) else { return };
        // Two concurrent lookups may both have added it.
        set.0.iter().for_each(|slot| slot.clear(|at, word| key.is_word(at, word)));
    }

    #[inline]
    fn hash(&self, key: &Key) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(key.dir.ino.0);
        // Most names are short.
        let used = key.name.iter().take_while(|&&word| word != 0);
        used.for_each(|&word| hasher.write_u64(word));
        hasher.finish()
    }
}

/// Whether one of the eight bytes of a word is 0.
const fn has_zero_byte(word: u64) -> bool {
    const ONES: u64 = u64::MAX / 255;
    word.wrapping_sub(ONES) & !word & ONES << 7 != 0
}

/// The slots of a set in lookup order: most names are found in the first.
#[inline]
fn ways(hash: u64) -> impl Iterator<Item = usize> {
    let first = (hash >> 8) as usize;
    (0..WAYS).map(move |nth| (first + nth) % WAYS)
}

/// A type as the four bits that a mode has for it.
fn kind_bits(kind: InodeType) -> u64 {
    u64::from(kind.to_mode() >> 12)
}

#[inline]
fn kind_of(bits: u64) -> Option<InodeType> {
    InodeType::from_mode((bits as u16) << 12)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const ROOT: FileId = FileId { ino: InodeNumber(128), generation: 7 };

    fn file(ino: u64) -> FileId {
        FileId { ino: InodeNumber(ino), generation: ino as u32 ^ 0x5a5a_5a5a }
    }

    fn found(cache: &Dcache, dir: FileId, name: &[u8]) -> Option<(FileId, InodeType)> {
        cache.find(dir, name).map(|dentry| (dentry.child(), dentry.kind()))
    }

    #[test]
    fn names_are_told_apart_to_the_byte() {
        let cache = Dcache::within(1 << 20);
        let longest = [b'x'; NAME_BYTES];
        let names: [&[u8]; 7] = [b"a", b"b", b"aa", b"12345678", b"123456789", &longest, &longest[1..]];
        for (nth, name) in names.iter().enumerate() {
            cache.keep(ROOT, name, file(nth as u64 + 200), InodeType::Regular);
        }
        for (nth, name) in names.iter().enumerate() {
            let expected = (file(nth as u64 + 200), InodeType::Regular);
            assert_eq!(found(&cache, ROOT, name), Some(expected), "{name:?}");
        }
        for other in
            [&b"ab"[..], b"1234567", b"a\0", b"", b"xx", b"12345678\0", b"1234567\09", b"123456789\0"]
        {
            assert_eq!(found(&cache, ROOT, other), None, "{other:?}");
        }
        assert_eq!(found(&cache, file(9), b"a"), None, "another directory");
        let reborn = FileId { generation: 8, ..ROOT };
        assert_eq!(found(&cache, reborn, b"a"), None, "another directory of this number");
    }

    #[test]
    fn what_cannot_be_told_apart_is_not_kept() {
        let cache = Dcache::within(1 << 20);
        let long = [b'x'; NAME_BYTES + 1];
        for name in [&b""[..], b".", b"..", b"a\0", b"\x001234567", b"1234567\0", b"123\x00567", &long] {
            cache.keep(ROOT, name, file(3), InodeType::Directory);
            assert_eq!(found(&cache, ROOT, name), None, "{name:?}");
        }
        cache.keep(ROOT, b"far", file(1 << KIND_SHIFT), InodeType::Directory);
        assert_eq!(found(&cache, ROOT, b"far"), None);
    }

    #[test]
    fn each_type_comes_back() {
        use InodeType as T;
        let cache = Dcache::within(1 << 20);
        let all = [T::Fifo, T::CharDevice, T::Directory, T::BlockDevice, T::Regular, T::Symlink, T::Socket];
        for kind in all {
            cache.forget(ROOT, b"it");
            cache.keep(ROOT, b"it", file((1 << KIND_SHIFT) - 1), kind);
            assert_eq!(found(&cache, ROOT, b"it"), Some((file((1 << KIND_SHIFT) - 1), kind)));
        }
    }

    #[test]
    fn what_was_forgotten_holds_no_more() {
        let cache = Dcache::within(1 << 20);
        cache.keep(ROOT, b"it", file(1), InodeType::Regular);
        cache.keep(ROOT, b"other", file(2), InodeType::Regular);
        let (it, other) = (cache.find(ROOT, b"it").expect("kept"), cache.find(ROOT, b"other").expect("kept"));
        assert!(it.holds() && other.holds());
        cache.forget(ROOT, b"it");
        assert!(!it.holds() && cache.find(ROOT, b"it").is_none());
        cache.keep(ROOT, b"it", file(1), InodeType::Regular);
        assert!(!it.holds(), "it was gone in between");
        assert!(cache.find(ROOT, b"other").is_some());
    }

    /// A new name finds room even if all slots are taken, and the remaining entries stay true.
    #[test]
    fn a_full_table_forgets_and_does_not_lie() {
        let cache = Dcache::within(0);
        let most = cache.bytes() / 64;
        for nth in 1..=4 * most {
            cache.keep(ROOT, nth.to_string().as_bytes(), file(nth), InodeType::Regular);
            let name = nth.to_string();
            assert_eq!(found(&cache, ROOT, name.as_bytes()), Some((file(nth), InodeType::Regular)));
        }
        let still = (1..=4 * most).filter_map(|nth| {
            let kept = found(&cache, ROOT, nth.to_string().as_bytes())?;
            assert_eq!(kept.0, file(nth));
            Some(nth)
        });
        assert!((most / 2..=most).contains(&(still.count() as u64)));
    }

    #[test]
    fn a_name_that_was_kept_twice_is_forgotten_twice() {
        let cache = Dcache::within(1 << 20);
        let key = Key::new(ROOT, b"it").expect("a name");
        let words = key.words(file(1), InodeType::Regular).expect("a small number");
        cache.keep(ROOT, b"it", file(1), InodeType::Regular);
        cache.sets.make(cache.hash(&key)).0.iter().for_each(|slot| slot.fill(&words));
        cache.forget(ROOT, b"it");
        assert_eq!(found(&cache, ROOT, b"it"), None);
    }
}
