//! Where each field of each structure lies in a sound image: superblocks, headers, trees, inodes, forks, directory,
//! attribute and symbolic link blocks, record by record.
//!
//! Invariants: found through the headers, trees and maps, so that blocks that were freed are not among them; read
//! from the image's bytes by the published format, with nothing of the code that is under test.

mod forks;
mod inodes;
mod space;
mod tables;

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// A field: its name, and where it lies in its structure, first byte and width in bytes.
type Field = (&'static str, usize, usize);

/// Bytes with one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte in the image.
    pub at: u64,
    /// Bytes.
    pub len: usize,
    /// Where the checksum lies.
    pub crc: usize,
}

/// One field of one piece.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    piece: u32,
    bit: u32,
    /// How many bits it has, at most 64.
    pub bits: u32,
}

/// What a spot is: the structure's name and the field's.
pub type Name = (&'static str, &'static str);

/// All fields of an image, by their names.
#[derive(Debug, Default)]
pub struct Chart {
    pieces: Vec<Piece>,
    spots: BTreeMap<Name, Vec<Spot>>,
}

impl Chart {
    /// Looks through an image.
    pub fn of(image: &Path) -> Result<Self> {
        let bytes = std::fs::read(image).with_context(|| image.display().to_string())?;
        let shape = Shape::of(&bytes).context("no superblock")?;
        let mut survey = Survey { image: &bytes, shape, chart: Self::default() };
        space::headers(&mut survey)?;
        space::trees(&mut survey)?;
        inodes::all(&mut survey)?;
        let chart = survey.chart;
        for piece in &chart.pieces {
            let at = usize::try_from(piece.at)?;
            let sound = xfs_format::checksum::check("piece", &bytes[at..at + piece.len], piece.crc);
            ensure!(sound.is_ok(), "{piece:?} has no right checksum: it is not what it was taken for");
        }
        Ok(chart)
    }

    /// The chart.
    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.spots.keys().copied()
    }

    /// Where a field is.
    pub fn spots(&self, name: Name) -> &[Spot] {
        self.spots.get(&name).map_or(&[], Vec::as_slice)
    }

    /// The piece that a spot is in.
    pub fn piece(&self, spot: Spot) -> Piece {
        self.pieces[spot.piece as usize]
    }
}

impl Spot {
    /// Its first bit, counted from the piece's start.
    pub const fn bit(&self) -> u32 {
        self.bit
    }

    /// The largest value that it can have.
    pub const fn most(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// Its value in the bytes of its piece.
    pub fn get(&self, piece: &[u8]) -> u64 {
        (self.bit..self.bit + self.bits).fold(0, |value, bit| {
            let byte = piece.get(bit as usize / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// Gives it a value in the bytes of its piece.
    pub fn set(&self, piece: &mut [u8], value: u64) {
        for nth in 0..self.bits {
            let bit = self.bit + self.bits - 1 - nth;
            let mask = 1 << (7 - bit % 8);
            if let Some(byte) = piece.get_mut(bit as usize / 8) {
                *byte = if value >> nth & 1 == 1 { *byte | mask } else { *byte & !mask };
            }
        }
    }
}

/// The numbers of a volume's superblock.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block_log: u32,
    sector: usize,
    ag_blocks: u64,
    ag_count: u64,
    ag_log: u32,
    inode: usize,
    inodes_log: u32,
    dir_blocks: u64,
    ro_compat: u64,
    incompat: u64,
}

impl Shape {
    fn of(sb: &[u8]) -> Option<Self> {
        sb.starts_with(b"XFSB").then(|| Self {
            block_log: number(sb, 120, 1) as u32,
            sector: number(sb, 102, 2) as usize,
            ag_blocks: number(sb, 84, 4),
            ag_count: number(sb, 88, 4),
            ag_log: number(sb, 124, 1) as u32,
            inode: number(sb, 104, 2) as usize,
            inodes_log: number(sb, 123, 1) as u32,
            dir_blocks: 1 << number(sb, 192, 1),
            ro_compat: number(sb, 212, 4),
            incompat: number(sb, 216, 4),
        })
    }

    const fn block(&self) -> usize {
        1 << self.block_log
    }

    const fn dir_block(&self) -> usize {
        (self.dir_blocks as usize) << self.block_log
    }

    /// The first byte of a block of a group.
    const fn ag_block(&self, ag: u64, block: u64) -> u64 {
        (ag * self.ag_blocks + block) << self.block_log
    }

    /// The first byte of a block of the volume.
    const fn fs_block(&self, block: u64) -> u64 {
        self.ag_block(block >> self.ag_log, block & ((1 << self.ag_log) - 1))
    }

    const fn finobt(&self) -> bool {
        self.ro_compat & 1 != 0
    }

    const fn rmapbt(&self) -> bool {
        self.ro_compat & 2 != 0
    }

    const fn reflink(&self) -> bool {
        self.ro_compat & 4 != 0
    }

    const fn sparse(&self) -> bool {
        self.incompat & 2 != 0
    }

    const fn large_counts(&self) -> bool {
        self.incompat & 32 != 0
    }
}

/// A number of `width` bytes, zero past the end.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes.get(at..at + width).unwrap_or_default().iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A survey under way.
struct Survey<'a> {
    image: &'a [u8],
    shape: Shape,
    chart: Chart,
}

impl<'a> Survey<'a> {
    fn bytes(&self, at: u64, len: usize) -> Result<&'a [u8]> {
        let at = usize::try_from(at)?;
        self.image.get(at..at + len).with_context(|| format!("byte {at} is behind the image's end"))
    }

    /// Notes a piece; gives its number, and its bytes.
    fn piece(&mut self, at: u64, len: usize, crc: usize) -> Result<(u32, &'a [u8])> {
        let bytes = self.bytes(at, len)?;
        self.chart.pieces.push(Piece { at, len, crc });
        Ok((u32::try_from(self.chart.pieces.len() - 1)?, bytes))
    }

    fn bits(&mut self, piece: u32, name: Name, bit: usize, bits: u32) {
        self.chart.spots.entry(name).or_default().push(Spot { piece, bit: bit as u32, bits });
    }

    /// Notes one field; what is longer than a number is two.
    fn field(&mut self, piece: u32, name: Name, at: usize, width: usize) {
        let first = width.min(8);
        self.bits(piece, name, at * 8, first as u32 * 8);
        if width > first {
            self.bits(piece, name, (at + width - 8) * 8, 64);
        }
    }

    /// Notes all fields of a table, for a structure that begins at `base` of the piece.
    fn fields(&mut self, piece: u32, structure: &'static str, base: usize, table: &[Field]) {
        for &(field, at, width) in table {
            self.field(piece, (structure, field), base + at, width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_back_as_it_was_set() {
        let sound = [0x5a_u8; 16];
        for (bit, bits) in [(0, 1), (1, 54), (55, 52), (107, 21), (64, 64), (8, 8)] {
            let spot = Spot { piece: 0, bit, bits };
            for value in [0, spot.most(), 1, spot.most() / 3] {
                let mut bytes = sound;
                spot.set(&mut bytes, value);
                assert_eq!(spot.get(&bytes), value);
                spot.set(&mut bytes, spot.get(&sound));
                assert_eq!(bytes, sound);
            }
        }
    }
}
