//! Carves the structures of a real image into seeds: `carve IMAGE CORPUS`.
//!
//! Knows magics and nothing else: blocks of one owner are taken in the order of their addresses, which is
//! near enough to their order in the fork for a fuzzer to begin with. Writes into `CORPUS/<target>/`.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Largest seed in bytes: small ones are worked through faster.
const SEED_MAX: usize = 64 << 10;
/// Most seeds of one kind out of one image.
const KIND_MAX: usize = 12;

struct Seeds {
    corpus: PathBuf,
    name: String,
    counts: BTreeMap<(&'static str, u64), usize>,
    seen: HashSet<Vec<u8>>,
}

impl Seeds {
    /// Writes one seed, unless there are enough of its kind.
    fn add(&mut self, target: &'static str, kind: u64, bytes: Vec<u8>) {
        let count = self.counts.entry((target, kind)).or_default();
        if *count >= KIND_MAX || bytes.len() > SEED_MAX || !self.seen.insert(bytes.clone()) {
            return;
        }
        *count += 1;
        let dir = self.corpus.join(target);
        fs::create_dir_all(&dir).expect("the corpus can be written");
        fs::write(dir.join(format!("{}-{kind:x}-{count}", self.name)), bytes)
            .expect("the corpus can be written");
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(image), Some(corpus)) = (args.next(), args.next()) else {
        eprintln!("usage: carve IMAGE CORPUS");
        std::process::exit(2);
    };
    let bytes = fs::read(&image).expect("the image can be read");
    let name = Path::new(&image).file_stem().map_or("image".into(), |s| s.to_string_lossy().into_owned());
    let mut seeds = Seeds { corpus: corpus.into(), name, counts: BTreeMap::new(), seen: HashSet::new() };
    carve(&bytes, &mut seeds);
    for ((target, kind), count) in &seeds.counts {
        println!("{target} {kind:#x}: {count}");
    }
}

/// The shape of the volume, as far as carving needs it.
struct Shape {
    v5: bool,
    block_log: u8,
    dir_log: u8,
    inode: usize,
}

fn carve(image: &[u8], seeds: &mut Seeds) {
    let shape = Shape {
        v5: be16(image, 100) & 0xf == 5,
        block_log: image[120],
        dir_log: image[192],
        inode: be16(image, 104).into(),
    };
    seeds.add("superblock", 0, [&[3], &image[..512]].concat());
    let block = 1usize << shape.block_log;
    let (mut dirs, mut leaves, mut attrs, mut links) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (number, sector) in image.chunks_exact(512).enumerate() {
        match &sector[..4] {
            b"XAGF" => seeds.add("ag", 0, [&[0, 0x80 | u8::from(shape.v5)], sector].concat()),
            b"XAGI" => seeds.add("ag", 1, [&[1, 0x80 | u8::from(shape.v5)], sector].concat()),
            b"XAFL" => seeds.add("ag", 2, [&[2, 0x80 | u8::from(shape.v5)], sector].concat()),
            b"\xfe\xed\xba\xbe" => log_record(image, number * 512, seeds),
            _ => {}
        }
    }
    for at in (0..image.len() - block).step_by(block) {
        let here = &image[at..at + block];
        tree_block(here, &shape, seeds);
        inodes(here, &shape, seeds);
        let owned = |map: &mut BTreeMap<u64, Vec<u8>>, owner: usize, len: usize| {
            if let Some(bytes) = image.get(at..at + len) {
                map.entry(be64(here, owner)).or_default().extend(bytes);
            }
        };
        let dir_block = block << shape.dir_log;
        match (&here[..4], be16(here, 8)) {
            (b"XDB3" | b"XDD3", _) => owned(&mut dirs, 40, dir_block),
            (b"XARM", _) => owned(&mut attrs, 32, block),
            (b"XSLM", _) => owned(&mut links, 32, block),
            (_, 0x3df1 | 0x3dff) => owned(&mut leaves, 48, dir_block),
            (_, 0x3ebe) => {
                owned(&mut leaves, 48, dir_block);
                owned(&mut attrs, 48, block);
            }
            (_, 0x3bee) => owned(&mut attrs, 48, block),
            _ => {}
        }
    }
    forks(&shape, seeds, &dirs, &leaves, &attrs, &links);
}

/// The eight bytes that say a fork's shape, as `MemoryFork::from_fuzz` reads them.
fn prefix(shape: &Shape, flags: u8, split: usize, size: usize) -> Vec<u8> {
    let logs = shape.block_log - if shape.v5 { 10 } else { 9 };
    let flags = flags | u8::from(shape.v5) | 2;
    vec![flags, logs & 3 | shape.dir_log << 2, split.min(255) as u8, size.min(255) as u8, 0, 0, 0, 0]
}

fn forks(
    shape: &Shape,
    seeds: &mut Seeds,
    dirs: &BTreeMap<u64, Vec<u8>>,
    leaves: &BTreeMap<u64, Vec<u8>>,
    attrs: &BTreeMap<u64, Vec<u8>>,
    links: &BTreeMap<u64, Vec<u8>>,
) {
    let block = 1usize << shape.block_log;
    for (owner, data) in dirs {
        let index = leaves.get(owner).map(Vec::as_slice).unwrap_or_default();
        let split = data.len() / block;
        let form = u64::from(!index.is_empty()) + u64::from(index.len() > block << shape.dir_log);
        seeds.add("dir", form, [&prefix(shape, 16, split, split), &data[..], index].concat());
    }
    for data in attrs.values() {
        let kind = u64::from(data.len() > block);
        seeds.add("attr", kind, [&[2], &prefix(shape, 16, 255, 0)[..], data].concat());
    }
    for data in links.values() {
        seeds.add("attr", 2, [&[1], &prefix(shape, 16, 255, 1)[..], data].concat());
    }
}

fn tree_block(here: &[u8], shape: &Shape, seeds: &mut Seeds) {
    let kind: u8 = match &here[..4] {
        b"AB3B" | b"ABTB" => 3,
        b"AB3C" | b"ABTC" => 4,
        b"IAB3" | b"IABT" => 5,
        b"FIB3" | b"FIBT" => 6,
        b"RMB3" => 7,
        b"R3FC" => 8,
        b"BMA3" | b"BMAP" => {
            let flags = 64 | 32 | u8::from(shape.v5);
            return seeds.add("inode", 100 + u64::from(here[5]), [&[flags], here].concat());
        }
        _ => return,
    };
    let flags = 0x80 | u8::from(shape.v5) | (shape.block_log.saturating_sub(10) & 3) << 1;
    seeds.add("ag", u64::from(kind) << 8 | u64::from(here[5]), [&[kind, flags], here].concat());
}

/// Inodes of all formats, and the local forks in them.
fn inodes(here: &[u8], shape: &Shape, seeds: &mut Seeds) {
    for inode in here.chunks_exact(shape.inode).filter(|inode| inode.starts_with(b"IN")) {
        let (mode, format, forkoff, aformat) = (be16(inode, 2), inode[5], inode[82], inode[83]);
        let size_log = shape.inode.trailing_zeros() as u8 - if shape.v5 { 9 } else { 8 };
        let flags = 32 | 16 | u8::from(shape.v5) | size_log << 1 | u8::from(be64(inode, 120) & 16 != 0) << 3;
        let kind = u64::from(mode >> 12) << 16
            | u64::from(format) << 8
            | u64::from(aformat) << 1
            | u64::from(forkoff != 0);
        seeds.add("inode", kind, [&[flags], inode].concat());
        let core = if shape.v5 { 176 } else { 100 };
        let split = if forkoff == 0 { shape.inode } else { core + usize::from(forkoff) * 8 };
        let size = be64(inode, 56) as usize;
        if format == 1 && mode >> 12 == 4 {
            let local = inode.get(core..core + size).unwrap_or_default();
            seeds.add("dir", 100, [&prefix(shape, 8, 0, 0)[..], local].concat());
        }
        if aformat == 1 && forkoff != 0 {
            let local = inode.get(split..).unwrap_or_default();
            seeds.add("attr", 100, [&[2], &prefix(shape, 8, 0, 0)[..], local].concat());
        }
    }
}

/// A record whole, its first operations as items, and a piece of the log around it.
fn log_record(image: &[u8], at: usize, seeds: &mut Seeds) {
    let len = be32(image, at + 12) as usize;
    let heads = (be32(image, at + 320) as usize).div_ceil(32 << 10).max(1);
    if len == 0 || len > 256 << 10 {
        return;
    }
    if let Some(record) = image.get(at..at + heads * 512 + len) {
        seeds.add("log", u64::from(len > 4096), [&[0x0c], record].concat());
        let mut rest = &record[heads * 512..];
        for _ in 0..be32(image, at + 40).min(4000) {
            let (len, Some(body)) = (be32(rest, 4) as usize, rest.get(12..)) else { break };
            let Some(region) = body.get(..len) else { break };
            let kind = region.get(..2).map_or(0, |k| u64::from(u16::from_le_bytes([k[0], k[1]])));
            if (0x1236..0x1250).contains(&kind) {
                seeds.add("log", kind, [&[1], region].concat());
            }
            rest = &body[len..];
        }
    }
    if let Some(piece) = image.get(at..at + (40 << 10)) {
        seeds.add("log", 2, [&[0x0e], piece].concat());
    }
}
