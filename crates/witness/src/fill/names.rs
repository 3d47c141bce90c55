//! Names: every legal byte, every length, and names that share one hash.

use super::Sizes;
use super::site::Site;
use anyhow::Result;

/// Names that share one hash are this long: groups of four bytes.
const COLLIDING_LEN: usize = 64;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    site.file(b"anchor", 100)?;
    every_byte(site)?;
    every_length(site)?;
    random_bytes(site, sizes.many(2_000, 50))?;
    // A block of a directory's index holds as many entries as a block has groups of 8 bytes, less its header.
    let one_block = (site.block as usize / 10).min(1_000);
    sharing_a_hash(site, one_block, 7)?;
    if sizes.beyond_repair {
        sharing_a_hash(site, 1_200, 11)?;
    }
    Ok(())
}

/// Each byte alone as a name (a dot cannot be), and between others.
fn every_byte(site: &mut Site) -> Result<()> {
    let dir = site.child(b"every-byte")?;
    for byte in (1..=255u8).filter(|&byte| byte != b'/') {
        if byte != b'.' {
            dir.link(site, b"anchor", &[byte])?;
        }
        dir.link(site, b"anchor", &[b'<', byte, b'>'])?;
    }
    dir.link(site, b"anchor", b"...")?;
    dir.link(site, b"anchor", b".hidden")?;
    let mut all: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    dir.link(site, b"anchor", &all)?;
    all.reverse();
    dir.link(site, b"anchor", &all).map(drop)
}

fn every_length(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"every-length")?;
    for len in 1..=255 {
        let name = dir.name(len);
        dir.link(site, b"anchor", &name)?;
    }
    Ok(())
}

fn random_bytes(site: &mut Site, count: u64) -> Result<()> {
    let mut dir = site.child(b"random")?;
    for _ in 0..count {
        let len = dir.rng.usize(4..=255);
        let name = dir.name(len);
        dir.link(site, b"anchor", &name)?;
    }
    Ok(())
}

/// Many names with one hash, of which every `gone`th is removed again.
fn sharing_a_hash(site: &mut Site, count: usize, gone: usize) -> Result<()> {
    let mut dir = site.child(format!("one-hash-{count}").as_bytes())?;
    let names = colliding(&mut dir, count, COLLIDING_LEN);
    for name in &names {
        dir.link(site, b"anchor", name)?;
    }
    for name in names.iter().step_by(gone) {
        dir.unlink(name)?;
    }
    Ok(())
}

/// `count` different names of `len` bytes whose hashes are equal.
///
/// The hash takes four bytes at a time, each shifted by seven bits more than the one after it; so the lowest
/// bit of a byte and the highest bit of the byte after it fall on the same bit, and flipping both changes
/// nothing.
pub(super) fn colliding(site: &mut Site, count: usize, len: usize) -> Vec<Vec<u8>> {
    let base: Vec<u8> = (0..len).map(|_| site.rng.u8(b'A'..=b'Y')).collect();
    let mut names = std::collections::BTreeSet::new();
    while names.len() < count {
        let mut name = base.clone();
        for group in name.chunks_exact_mut(4) {
            for at in 0..3 {
                if site.rng.bool() {
                    group[at] ^= 1;
                    group[at + 1] ^= 0x80;
                }
            }
        }
        names.insert(name);
    }
    let mut names: Vec<_> = names.into_iter().collect();
    site.rng.shuffle(&mut names);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of directory and attribute names, as the format's description gives it, for whole groups.
    fn hash(name: &[u8]) -> u32 {
        name.chunks_exact(4).fold(0u32, |hash, group| {
            let group = group.iter().enumerate();
            group.fold(hash.rotate_left(28), |hash, (at, &byte)| hash ^ (u32::from(byte) << (21 - 7 * at)))
        })
    }

    #[test]
    fn colliding_names_are_legal_different_and_share_a_hash() {
        let dir = tempfile::tempdir().unwrap();
        let mut site = Site::root(dir.path(), 3).unwrap();
        let names = colliding(&mut site, 500, COLLIDING_LEN);
        let first = hash(&names[0]);
        for name in &names {
            assert_eq!(hash(name), first);
            assert!(!name.contains(&b'/') && !name.contains(&0));
        }
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 500);
        assert_ne!(hash(b"ABCD"), hash(b"ABCE"));
    }
}
