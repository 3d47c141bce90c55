//! The damage itself: bits, bytes, fields, sectors and whole blocks, from a random source.

use super::layout::{Kind, Target};
use super::overlay::Overlay;
use blockdev::BlockDevice;
use fastrand::Rng;
use std::collections::BTreeMap;
use xfs_format::checksum;

/// Most places that are damaged in one image.
const DAMAGES_MAX: usize = 8;
/// What lies at the start of a structure decides most about it.
const HEADER: usize = 128;

/// Pieces of metadata by kind, to choose kind first and piece second.
#[derive(Debug)]
pub struct Menu {
    kinds: Vec<(Kind, Vec<Target>)>,
}

impl Menu {
    /// All the targets of an image.
    pub fn new(targets: &[Target]) -> Self {
        let mut kinds = BTreeMap::<Kind, Vec<Target>>::new();
        for target in targets {
            kinds.entry(target.kind).or_default().push(*target);
        }
        Self { kinds: kinds.into_iter().collect() }
    }

    /// How many pieces there are of each kind.
    pub fn counts(&self) -> impl Iterator<Item = (Kind, usize)> + '_ {
        self.kinds.iter().map(|(kind, targets)| (*kind, targets.len()))
    }

    fn choose(&self, rng: &mut Rng) -> Option<Target> {
        let (kind, targets) = rng.choice(&self.kinds)?;
        // Most damage to these ends the story at once.
        if matches!(kind, Kind::Superblock | Kind::Log) && rng.u8(..4) != 0 {
            return self.choose_again(rng);
        }
        rng.choice(targets).copied()
    }

    fn choose_again(&self, rng: &mut Rng) -> Option<Target> {
        let (_, targets) = rng.choice(&self.kinds)?;
        rng.choice(targets).copied()
    }
}

/// What was done, for whoever looks at one image.
pub type Story = Vec<String>;

/// Damages an image: `device` is the sound one as yet.
pub fn damage(menu: &Menu, rng: &mut Rng, device: &mut Overlay) -> Story {
    let size = device.size();
    let seal = rng.bool();
    let count = rng.usize(1..=DAMAGES_MAX);
    let mut story = vec![format!("checksums {}", if seal { "put right" } else { "as they are" })];
    let mut changed = BTreeMap::<usize, (Target, Vec<u8>)>::new();
    for _ in 0..count {
        let Some(target) = menu.choose(rng) else { break };
        let (_, bytes) = changed.entry(target.at).or_insert_with(|| (target, current(device, target)));
        let other = menu.choose(rng).map(|other| current(device, other)).unwrap_or_default();
        let what = one(bytes, &other, size, rng);
        story.push(format!("{:?} at {:#x}: {what}", target.kind, target.at));
    }
    for (target, mut bytes) in changed.into_values() {
        if let Some(crc) = target.crc.filter(|_| seal) {
            checksum::store(&mut bytes, crc);
        }
        apply(target.at, &bytes, device);
    }
    if rng.u8(..100) == 0 {
        let size = rng.u64(..size);
        story.push(format!("cut at byte {size}"));
        device.cut(size);
    }
    story
}

/// The bytes from sector to sector that hold `at..at + len`, and where `at` is in them.
fn sectors(device: &Overlay, at: usize, len: usize) -> (usize, Vec<u8>) {
    let start = at / 512 * 512;
    let mut bytes = vec![0; (at + len).next_multiple_of(512) - start];
    // A structure that goes over the end of a device that was cut short reads as zeroes.
    let _ = device.read(start as u64, &mut bytes);
    (at - start, bytes)
}

/// A structure as it is now.
pub fn current(device: &Overlay, target: Target) -> Vec<u8> {
    let (skip, bytes) = sectors(device, target.at, target.len);
    bytes.get(skip..skip + target.len).unwrap_or_default().to_vec()
}

/// Lays changed bytes over the image. Other changes of the same sectors (inodes are smaller than some) are
/// kept.
pub fn apply(at: usize, changed: &[u8], device: &mut Overlay) {
    let (skip, mut bytes) = sectors(device, at, changed.len());
    if let Some(place) = bytes.get_mut(skip..skip + changed.len()) {
        place.copy_from_slice(changed);
    }
    device.change(at - skip, &bytes);
}

/// A place in a structure; half of them in its header.
fn place(len: usize, rng: &mut Rng) -> usize {
    let reach = if rng.bool() { len.min(HEADER) } else { len };
    rng.usize(..reach.max(1))
}

/// One kind of damage to one structure.
fn one(bytes: &mut [u8], other: &[u8], size: u64, rng: &mut Rng) -> String {
    let len = bytes.len();
    let at = place(len, rng);
    match rng.u8(..16) {
        0..=2 => {
            let bits = rng.usize(1..=8);
            for _ in 0..bits {
                bytes[place(len, rng)] ^= 1 << rng.u8(..8);
            }
            format!("{bits} bits flipped")
        }
        3..=4 => {
            let run = rng.usize(1..=64).min(len - at);
            rng.fill(&mut bytes[at..at + run]);
            format!("{run} random bytes at {at}")
        }
        5..=10 => field(bytes, at, size, rng),
        11 => {
            let start = at / 512 * 512;
            let end = len.min(start + 512);
            bytes[start..end].fill(if rng.bool() { 0 } else { 0xff });
            format!("a sector filled at {start}")
        }
        12 => {
            bytes.fill(0);
            "all zeroes".into()
        }
        13..=14 => {
            let run = len.min(other.len());
            bytes[..run].copy_from_slice(&other[..run]);
            format!("{run} bytes of another structure")
        }
        _ => {
            let from = place(len, rng);
            let run = rng.usize(1..=256).min(len - at.max(from));
            bytes.copy_within(from..from + run, at);
            format!("{run} bytes moved from {from} to {at}")
        }
    }
}

/// A field set to something that makes code stumble.
fn field(bytes: &mut [u8], at: usize, size: u64, rng: &mut Rng) -> String {
    let width = 1usize << rng.u8(..4);
    let at = (at / width * width).min(bytes.len().saturating_sub(width));
    let Some(place) = bytes.get_mut(at..at + width) else { return "nothing".into() };
    let old = place.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    let all = u64::MAX >> (64 - 8 * width);
    let new = match rng.u8(..10) {
        0 => 0,
        1 => 1,
        2 => all,
        3 => all >> 1,
        4 => (all >> 1) + 1,
        5 => old.wrapping_add(1),
        6 => old.wrapping_sub(1),
        7 => rng.u64(..256),
        8 => rng.u64(..size / 512),
        _ => old ^ 1 << rng.u8(..(8 * width) as u8),
    } & all;
    place.copy_from_slice(&new.to_be_bytes()[8 - width..]);
    format!("{width} bytes at {at}: {old:#x} became {new:#x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{Durability, MemoryDevice};
    use std::sync::Arc;

    #[test]
    fn the_same_seed_does_the_same_damage_and_checksums_can_be_right() {
        let mut image = vec![0x55; 32 << 10];
        assert!(checksum::store(&mut image[4096..8192], 52));
        let menu = Menu::new(&[Target { kind: Kind::SpaceTree, at: 4096, len: 4096, crc: Some(52) }]);
        let (mut changed, mut sealed) = (0, 0);
        for seed in 0..200 {
            let result = || {
                let base = MemoryDevice::anonymous(image.len() as u64).unwrap();
                base.write(0, &image, Durability::Volatile).unwrap();
                let mut device = Overlay::new(Arc::new(base));
                let story = damage(&menu, &mut Rng::with_seed(seed), &mut device);
                let mut block = vec![0; 4096];
                device.read(4096, &mut block).ok().map(|()| (story, block))
            };
            let Some((story, block)) = result() else { continue };
            assert_eq!(result(), Some((story.clone(), block.clone())));
            changed += usize::from(block != image[4096..8192]);
            if story[0] == "checksums put right" {
                checksum::check("block", &block, 52).unwrap();
                sealed += 1;
            }
        }
        // Some damage does nothing: a block in place of itself, a bit flipped twice.
        assert!(changed > 150 && sealed > 70, "{changed} {sealed}");
    }
}
