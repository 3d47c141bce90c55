//! Where the metadata of an image lie: found by their magics, which needs nothing of the code under test.
//!
//! v5 blocks must also carry a right checksum, which keeps file content out and tells how long a block is.
//! Blocks that were freed are found too; damage to them is damage to nothing.

use blockdev::{BlockDevice, DeviceError};
use std::ops::Range;
use xfs_format::checksum;

/// What a block is, as far as damage goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names of the structures")]
pub enum Kind {
    Superblock,
    Agf,
    Agi,
    Agfl,
    SpaceTree,
    InodeTree,
    OtherTree,
    Bmbt,
    Inode,
    DirData,
    DirIndex,
    Node,
    AttrLeaf,
    AttrRemote,
    Symlink,
    Log,
}

/// One piece of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// What it is.
    pub kind: Kind,
    /// First byte in the image.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// Where its checksum lies in it, if it has one that damage can be hidden behind.
    pub crc: Option<usize>,
}

impl Target {
    /// Its bytes in the image.
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// Most targets of one kind: the others would only be more of the same.
const KIND_MAX: usize = 4000;

struct Shape {
    v5: bool,
    block: usize,
    sector: usize,
    inode: usize,
    dir_block: usize,
}

impl Shape {
    fn of(image: &[u8]) -> Option<Self> {
        let (&block_log, &dir_log) = (image.get(120)?, image.get(192)?);
        Some(Self {
            v5: be16(image, 100) & 0xf == 5,
            block: 1usize.checked_shl(block_log.into())?,
            sector: be16(image, 102).into(),
            inode: be16(image, 104).into(),
            dir_block: 1usize.checked_shl(u32::from(block_log) + u32::from(dir_log))?,
        })
    }
}

/// Bytes that are looked through at once.
const PIECE: usize = 1 << 20;
/// The longest structure: what a piece overlaps the next by.
const LONGEST: usize = 64 << 10;

/// A piece of the image, addressed as the whole.
struct Piece {
    start: usize,
    bytes: Vec<u8>,
}

impl Piece {
    fn read(device: &dyn BlockDevice, range: Range<usize>) -> Result<Self, DeviceError> {
        let end = range.end.min(usize::try_from(device.size()).unwrap_or(usize::MAX));
        let mut bytes = vec![0; end.saturating_sub(range.start) / 512 * 512];
        device.read(range.start as u64, &mut bytes)?;
        Ok(Self { start: range.start, bytes })
    }

    fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        self.bytes.get(range.start.checked_sub(self.start)?..range.end.checked_sub(self.start)?)
    }
}

/// The metadata of a sound image. `data_ranges`: which parts of it hold anything.
pub fn targets(device: &dyn BlockDevice, data_ranges: &[Range<usize>]) -> Result<Vec<Target>, DeviceError> {
    let mut found = Vec::new();
    let first = Piece::read(device, 0..512)?;
    let Some(shape) = Shape::of(&first.bytes) else { return Ok(found) };
    let mut behind = 0;
    for range in data_ranges {
        let mut at = (range.start / shape.block * shape.block).max(behind);
        while at < range.end {
            let end = (at + PIECE).min(range.end).next_multiple_of(shape.block);
            let piece = Piece::read(device, at..end + LONGEST)?;
            for at in (at..end).step_by(shape.block) {
                block(&piece, at, &shape, &mut found);
            }
            at = end;
            behind = end;
        }
    }
    Ok(thin_out(found))
}

/// Keeps at most [`KIND_MAX`] of each kind, evenly chosen.
fn thin_out(found: Vec<Target>) -> Vec<Target> {
    let mut counts = std::collections::BTreeMap::<Kind, (usize, usize)>::new();
    for target in &found {
        counts.entry(target.kind).or_default().0 += 1;
    }
    found
        .into_iter()
        .filter(|target| {
            let (all, seen) = counts.entry(target.kind).or_default();
            *seen += 1;
            seen.is_multiple_of(all.div_ceil(KIND_MAX).max(1))
        })
        .collect()
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
}

/// What lies in the block at `at`: headers of a group, inodes, or one structure.
fn block(image: &Piece, at: usize, shape: &Shape, found: &mut Vec<Target>) {
    let Some(here) = image.get(at..at + shape.block) else { return };
    if here.starts_with(b"IN") {
        for inode in (at..at + shape.block).step_by(shape.inode) {
            let crc = shape.v5.then_some(100);
            // Free inodes are of little interest.
            let head = image.get(inode..inode + 4).unwrap_or_default();
            if head.starts_with(b"IN") && be16(head, 2) != 0 {
                found.push(Target { kind: Kind::Inode, at: inode, len: shape.inode, crc });
            }
        }
        return;
    }
    if let Some((kind, crc, lengths)) = identify(here, shape) {
        push(image, at, kind, crc, &lengths, shape, found);
    }
    for at in (at..at + shape.block).step_by(shape.sector.max(512)) {
        let (kind, crc) = match image.get(at..at + 4) {
            Some(b"XFSB") => (Kind::Superblock, 224),
            Some(b"XAGF") => (Kind::Agf, 216),
            Some(b"XAGI") => (Kind::Agi, 312),
            Some(b"XAFL") => (Kind::Agfl, 32),
            Some(b"\xfe\xed\xba\xbe") => {
                found.push(Target { kind: Kind::Log, at, len: 512, crc: None });
                continue;
            }
            _ => continue,
        };
        push(image, at, kind, crc, &[shape.sector], shape, found);
    }
}

/// The first of the possible lengths that the checksum agrees with; on v4 the first.
fn push(
    image: &Piece,
    at: usize,
    kind: Kind,
    crc: usize,
    lengths: &[usize],
    shape: &Shape,
    found: &mut Vec<Target>,
) {
    let sound = |len: usize| {
        let bytes = image.get(at..at + len)?;
        (!shape.v5 || checksum::check("", bytes, crc).is_ok()).then_some(len)
    };
    if let Some(len) = lengths.iter().find_map(|&len| sound(len)) {
        found.push(Target { kind, at, len, crc: shape.v5.then_some(crc) });
    }
}

/// Kind, place of the checksum, and possible lengths of a block that begins like this.
fn identify(here: &[u8], shape: &Shape) -> Option<(Kind, usize, Vec<usize>)> {
    let one = vec![shape.block];
    let dir = vec![shape.dir_block];
    let both = vec![shape.dir_block, shape.block];
    let magic = here.first_chunk::<4>()?;
    Some(match magic {
        b"AB3B" | b"AB3C" | b"ABTB" | b"ABTC" => (Kind::SpaceTree, 52, one),
        b"IAB3" | b"IABT" | b"FIB3" | b"FIBT" => (Kind::InodeTree, 52, one),
        b"RMB3" | b"R3FC" => (Kind::OtherTree, 52, one),
        b"BMA3" | b"BMAP" => (Kind::Bmbt, 64, one),
        b"XDB3" | b"XDD3" | b"XD2B" | b"XD2D" => (Kind::DirData, 4, dir),
        b"XDF3" | b"XD2F" => (Kind::DirIndex, 4, dir),
        b"XARM" => (Kind::AttrRemote, 12, one),
        b"XSLM" => (Kind::Symlink, 12, one),
        _ => match be16(here, 8) {
            0x3df1 | 0x3dff | 0xd2f1 | 0xd2ff => (Kind::DirIndex, 12, dir),
            0x3ebe | 0xfebe => (Kind::Node, 12, both),
            0x3bee | 0xfbee => (Kind::AttrLeaf, 12, one),
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{Durability, MemoryDevice};

    #[test]
    fn blocks_are_found_by_magic_and_checksum() {
        let mut image = vec![0; 64 << 10];
        image[0..4].copy_from_slice(b"XFSB");
        image[100..106].copy_from_slice(&[0, 5, 2, 0, 2, 0]);
        image[120] = 12;
        assert!(checksum::store(&mut image[..512], 224));
        image[512..516].copy_from_slice(b"XAGF");
        assert!(checksum::store(&mut image[512..1024], 216));
        // A block of a tree, and content that looks like one.
        image[8192..8196].copy_from_slice(b"AB3B");
        assert!(checksum::store(&mut image[8192..12288], 52));
        image[12288..12292].copy_from_slice(b"AB3B");
        image[16384..16388].copy_from_slice(b"IN\x81\xa4");
        let device = MemoryDevice::anonymous(image.len() as u64).unwrap();
        device.write(0, &image, Durability::Volatile).unwrap();
        let found = targets(&device, &[0..4096, 4096..image.len()]).unwrap();
        let kinds: Vec<_> = found.iter().map(|t| (t.kind, t.at, t.len)).collect();
        let expected = [
            (Kind::Superblock, 0, 512),
            (Kind::Agf, 512, 512),
            (Kind::SpaceTree, 8192, 4096),
            (Kind::Inode, 16384, 512),
        ];
        assert_eq!(kinds, expected);
    }
}
