//! The hash of names that directory and attribute indexes are sorted by.
//!
//! The format defines it over groups of four bytes with shifts of 21, 14 and 7; as rotation distributes over
//! exclusive or, that is the same as one rotation by 7 a byte.

/// Hash of a name.
pub fn name_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, &byte| hash.rotate_left(7) ^ u32::from(byte))
}

/// Hash of a directory entry's name on a volume whose lookups ignore ASCII (and Latin-1) case.
pub fn ascii_ci_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, &byte| hash.rotate_left(7) ^ u32::from(ascii_ci_fold(byte)))
}

/// The lower-case form of a byte as case-insensitive volumes see it: ASCII letters, and the letters of Latin-1.
pub const fn ascii_ci_fold(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => byte + 0x20,
        _ => byte,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition in groups of four, as the format document states it.
    fn by_groups(name: &[u8]) -> u32 {
        let mut hash = 0u32;
        let mut groups = name.chunks_exact(4);
        for g in &mut groups {
            let word = u32::from(g[0]) << 21 ^ u32::from(g[1]) << 14 ^ u32::from(g[2]) << 7 ^ u32::from(g[3]);
            hash = word ^ hash.rotate_left(28);
        }
        match *groups.remainder() {
            [a, b, c] => (u32::from(a) << 14) ^ (u32::from(b) << 7) ^ u32::from(c) ^ hash.rotate_left(21),
            [a, b] => (u32::from(a) << 7) ^ u32::from(b) ^ hash.rotate_left(14),
            [a] => u32::from(a) ^ hash.rotate_left(7),
            _ => hash,
        }
    }

    #[test]
    fn one_byte_at_a_time_equals_four_at_a_time() {
        let mut name = Vec::new();
        for i in 0..300u32 {
            assert_eq!(name_hash(&name), by_groups(&name), "{name:?}");
            name.push((i.wrapping_mul(2_654_435_761) >> 24) as u8);
        }
    }

    #[test]
    fn dots_hash_as_on_every_volume() {
        assert_eq!(name_hash(b"."), 0x2e);
        assert_eq!(name_hash(b".."), 0x172e);
    }

    #[test]
    fn case_is_ignored_where_asked() {
        assert_eq!(ascii_ci_hash(b"ReadMe"), ascii_ci_hash(b"rEADmE"));
        assert_eq!(ascii_ci_hash(b"readme"), name_hash(b"readme"));
        assert_ne!(name_hash(b"ReadMe"), name_hash(b"readme"));
        assert_eq!(ascii_ci_fold(0xd7), 0xd7);
        assert_eq!(ascii_ci_fold(0xde), 0xfe);
    }
}
