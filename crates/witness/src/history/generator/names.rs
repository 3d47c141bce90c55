//! Names for new objects.

use fastrand::Rng;

/// A name of any kind: most are short, some are long, some hold any byte, some share their hash with others.
pub fn ordinary(rng: &mut Rng) -> Vec<u8> {
    match rng.u32(..20) {
        0..=12 => letters(rng, 1, 12),
        13..=15 => letters(rng, 12, 60),
        16 => letters(rng, 60, 256),
        17 | 18 => any_bytes(rng),
        _ => colliding(rng),
    }
}

/// Letters and digits.
pub fn letters(rng: &mut Rng, min: usize, end: usize) -> Vec<u8> {
    let len = rng.usize(min..end);
    (0..len).map(|_| rng.alphanumeric() as u8).collect()
}

fn any_bytes(rng: &mut Rng) -> Vec<u8> {
    let len = rng.usize(2..40);
    let mut name: Vec<u8> = (0..len).map(|_| rng.u8(1..)).collect();
    name.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'+');
    // Not one of the two names that every directory has.
    name[0] = b'_';
    name
}

/// A name out of a set of many that all have one hash.
///
/// The hash takes four bytes at a time, each shifted by seven bits more than the one after it; so the lowest bit of
/// a byte and the highest bit of the byte after it fall on the same bit, and flipping both changes nothing.
pub fn colliding(rng: &mut Rng) -> Vec<u8> {
    let mut name = b"HashHashHashHashHashHash".to_vec();
    for group in name.chunks_exact_mut(4) {
        for at in 0..3 {
            if rng.bool() {
                group[at] ^= 1;
                group[at + 1] ^= 0x80;
            }
        }
    }
    name
}
