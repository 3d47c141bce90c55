//! Damage to archives: bytes, header fields with corrected checksums, whole blocks.

use anyhow::Result;
use fastrand::Rng;
use std::fs;
use std::path::Path;

const BLOCK: usize = 512;

/// Writes a damaged copy of an archive. Returns what was done.
pub fn damaged(archive: &[u8], to: &Path, rng: &mut Rng) -> Result<Vec<String>> {
    let mut bytes = archive.to_vec();
    let headers: Vec<usize> =
        (0..bytes.len() / BLOCK).map(|nth| nth * BLOCK).filter(|&at| is_header(&bytes[at..])).collect();
    let mut story = Vec::new();
    for _ in 0..rng.usize(0..6) {
        let at = headers[rng.usize(..headers.len())];
        match rng.u8(..8) {
            0 => {
                let from = rng.usize(..bytes.len() / BLOCK) * BLOCK;
                bytes.copy_within(from..from + BLOCK, at);
                story.push(format!("archive: block {at:#x} from {from:#x}"));
            }
            1 => {
                let place = rng.usize(..bytes.len());
                bytes[place] ^= 1 << rng.u8(..8);
                story.push(format!("archive: a bit at {place:#x}"));
            }
            2 => {
                // Where a PAX header has its records.
                let place = at + BLOCK + rng.usize(..64);
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = *rng.choice(b"0123456789 =\n/.\0\xff").unwrap_or(&0);
                    story.push(format!("archive: a byte of what is behind {at:#x}"));
                }
            }
            3 => {
                let kind = *rng.choice(b"0123456789xgLKSDVMNA\0").unwrap_or(&b'0');
                bytes[at + 156] = kind;
                story.push(format!("archive: {at:#x} is of type {kind:#x}"));
            }
            4 => {
                let name = *rng
                    .choice(&["../up", "/absolute", "files/root/through", ".", "a/../b", ""])
                    .unwrap_or(&"");
                bytes[at..at + 100].fill(0);
                bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
                story.push(format!("archive: {at:#x} is called {name}"));
            }
            5 => {
                let size =
                    *rng.choice(&["00000000000", "77777777777", "00000000777", "00010000000"]).unwrap_or(&"");
                bytes[at + 124..at + 135].copy_from_slice(size.as_bytes());
                story.push(format!("archive: {at:#x} has {size} bytes"));
            }
            _ => {
                let place = rng.usize(..BLOCK);
                bytes[at + place] = rng.u8(..);
                story.push(format!("archive: byte {place} of {at:#x}"));
            }
        }
        if rng.u8(..8) != 0 {
            seal(&mut bytes[at..at + BLOCK]);
        }
    }
    if rng.u8(..10) == 0 {
        bytes.truncate(rng.usize(..bytes.len()));
        story.push(format!("archive: cut at {}", bytes.len()));
    }
    fs::write(to, bytes)?;
    Ok(story)
}

fn is_header(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar")
}

/// Corrects the checksum of a header.
fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_does_the_same_damage() {
        let mut archive = vec![0; 64 * BLOCK];
        for block in archive.chunks_mut(BLOCK) {
            block[257..262].copy_from_slice(b"ustar");
        }
        let dir = tempfile::tempdir().unwrap();
        let once = |seed| {
            let to = dir.path().join("archive");
            let story = damaged(&archive, &to, &mut Rng::with_seed(seed)).unwrap();
            (story, fs::read(to).unwrap())
        };
        let changed = (0..50).filter(|&seed| {
            assert_eq!(once(seed), once(seed));
            once(seed).1 != archive
        });
        assert!(changed.count() > 30);
    }
}
