//! Hashes the numbers that caches are indexed by.
//!
//! Keys are disk addresses and inode numbers, and an image may contain any. Each table has its own secret, so that
//! nobody can choose numbers that collide in it. It takes a few instructions per number; the hash of the standard
//! library takes two hundred.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers with one secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedHash {
    start: u64,
    factor: u64,
}

/// A hash in progress.
#[derive(Debug)]
pub(crate) struct KeyedHasher {
    sum: u64,
    factor: u64,
}

impl KeyedHash {
    /// A new secret.
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        // Odd, because a factor of 0 would make all hashes the same.
        Self { start: random.hash_one(1), factor: random.hash_one(2) | 1 }
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { sum: self.start, factor: self.factor }
    }
}

/// Both halves of the product, so that every bit of the factors affects every bit of the result.
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for KeyedHasher {
    fn write_u64(&mut self, number: u64) {
        self.sum = fold(self.sum ^ number, self.factor).rotate_left(23);
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(number) ^ (part.len() as u64) << 56);
        }
    }

    fn finish(&self) -> u64 {
        fold(self.sum, self.factor ^ 0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn neighbours_lie_apart_under_every_secret() {
        for _ in 0..50 {
            let hash = KeyedHash::new();
            // As the caches use it: some bits select the shard, others the slot in it.
            for shift in [0, 32, 54] {
                let slots: HashSet<u64> =
                    (0..1024_u64).map(|nth| hash.hash_one((nth * 8, 4096_u64)) >> shift & 1023).collect();
                // With random slots, 647 would differ on average.
                assert!(slots.len() > 560, "{} of 1024 slots by the bits from {shift} on", slots.len());
            }
        }
        let (one, other) = (KeyedHash::new(), KeyedHash::new());
        assert_ne!(one.hash_one(7_u64), other.hash_one(7_u64), "secrets differ");
        assert_ne!(one.hash_one("ab"), one.hash_one("ba"));
    }
}
