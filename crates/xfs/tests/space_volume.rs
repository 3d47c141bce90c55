//! Free space on real volumes: what transactions allocate and free leaves volumes that `xfs_repair` and the kernel
//! find sound. Needs root and xfsprogs.
#![forbid(unsafe_code)]

mod common;

use blockdev::FileOptions;
use common::{Image, try_run};
use std::sync::Arc;
use xfs::Error;
use xfs::agf;
use xfs::alloc::{AgExtent, Purpose, Request, Target};
use xfs::btree::Cursor;
use xfs::defer;
use xfs::trans::Trans;
use xfs::trans::reservation::ReservationBuilder;
use xfs::volume::{OpenOptions, Volume};
use xfs_format::ag::{AGF, AGFL, AgHeader, Agf, Agfl};
use xfs_format::btree::{Bnobt, Cntbt};
use xfs_format::types::{AgBlock, AgNumber, FsBlock, InodeNumber};

fn open(image: &Image) -> Arc<Volume> {
    let device = FileOptions::new().sector_size(512).write(true).open(image.path()).unwrap();
    Volume::open(Arc::new(device), &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap()
}

/// The free extents of a group by both trees, and the blocks that are free and in the AGFL.
fn free_runs(volume: &Volume, ag: AgNumber) -> (Vec<AgExtent>, Vec<u32>) {
    let geometry = volume.geometry();
    let roots = volume.group_space(ag).unwrap();
    let mut by_place = Vec::new();
    let mut cursor = Cursor::<Bnobt>::seek(volume.bufs(), geometry, ag, roots.bnobt, None).unwrap();
    while let Some(record) = cursor.next_record().unwrap() {
        by_place.push(AgExtent::new(record.startblock.get(), record.blockcount.get()));
    }
    let mut by_size = Vec::new();
    let mut cursor = Cursor::<Cntbt>::seek(volume.bufs(), geometry, ag, roots.cntbt, None).unwrap();
    while let Some(record) = cursor.next_record().unwrap() {
        by_size.push(AgExtent::new(record.startblock.get(), record.blockcount.get()));
    }
    by_size.sort();
    assert_eq!(by_place, by_size);
    assert!(by_place.windows(2).all(|pair| pair[0].end() < u64::from(pair[1].start.0)));
    assert_eq!(roots.free_blocks, by_place.iter().map(|run| run.len).sum::<u32>());
    assert_eq!(roots.longest, by_place.iter().map(|run| run.len).max().unwrap_or(0));
    let sector = geometry.sector_size.into();
    let agf = volume.bufs().read(AgHeader::Agf.daddr(geometry, ag), sector, &AGF).unwrap();
    let agfl = volume.bufs().read(AgHeader::Agfl.daddr(geometry, ag), sector, &AGFL).unwrap();
    let ring = Agfl::view(&agfl, geometry).unwrap().blocks(Agf::view(&agf).unwrap());
    (by_place, ring.map(|block| block.0).collect())
}

/// Blocks that are free to whoever counts as the superblock does.
fn free_blocks(volume: &Volume) -> u64 {
    (0..volume.geometry().ag_count())
        .map(|ag| {
            let roots = volume.group_space(AgNumber(ag)).unwrap();
            u64::from(roots.free_blocks) + u64::from(roots.agfl_blocks) + u64::from(roots.tree_blocks)
        })
        .sum()
}

/// Extents that one transaction frees at most.
const FREES_AT_ONCE: usize = 20;

struct Churn {
    volume: Arc<Volume>,
    rng: fastrand::Rng,
    held: Vec<(FsBlock, u32)>,
}

impl Churn {
    fn reservation(&self, blocks: u64) -> xfs::trans::reservation::Reservation {
        ReservationBuilder::new(self.volume.geometry())
            .extents(6)
            .frees(FREES_AT_ONCE as u64)
            .blocks(blocks)
            .build()
    }

    /// One transaction of a few allocations and freeings, committed or dropped.
    fn step(&mut self, fill: bool) {
        let geometry = self.volume.geometry();
        let reservation = self.reservation(if fill { 160 } else { 0 });
        let mut trans = match Trans::start(&self.volume, reservation) {
            Ok(trans) => trans,
            Err(Error::NoSpace) => return,
            Err(error) => panic!("{error}"),
        };
        let mut held = self.held.clone();
        for _ in 0..self.rng.u32(1..4) {
            if fill {
                let max = self.rng.u32(1..40);
                let min = self.rng.u32(1..=max);
                let purpose = if self.rng.bool() { Purpose::Data } else { Purpose::Metadata };
                let mut request = Request::new(min, max, purpose);
                if self.rng.u32(..6) == 0 {
                    request.align = 4;
                }
                let ag = AgNumber(self.rng.u32(..geometry.ag_count()));
                let block = AgBlock(self.rng.u32(..geometry.ag_blocks_of(ag)));
                let near = geometry.join_block(ag, block);
                let target = if self.rng.bool() { Target::Near(near) } else { Target::In(ag) };
                match agf::allocate(&mut trans, target, request) {
                    Ok(got) => held.push((got.start(geometry), got.run.len)),
                    Err(Error::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            } else if !held.is_empty() {
                let (start, len) = held.swap_remove(self.rng.usize(..held.len()));
                let part = if self.rng.bool() { len } else { self.rng.u32(1..=len) };
                defer::defer_free(&mut trans, InodeNumber(0), start, part, None).unwrap();
                if part < len {
                    held.push((FsBlock(start.0 + u64::from(part)), len - part));
                }
            }
        }
        if self.rng.u32(..8) > 0 {
            trans.commit().unwrap();
            self.held = held;
        }
    }

    /// What is free and what is held do not overlap, and add up.
    fn check(&self, before: u64) {
        let geometry = self.volume.geometry();
        let mut held: Vec<(FsBlock, u32)> = self.held.clone();
        let held_blocks: u64 = held.iter().map(|(_, len)| u64::from(*len)).sum();
        assert_eq!(free_blocks(&self.volume) + held_blocks, before);
        for ag in (0..geometry.ag_count()).map(AgNumber) {
            let (runs, ring) = free_runs(&self.volume, ag);
            held.extend(runs.iter().map(|run| (geometry.join_block(ag, run.start), run.len)));
            held.extend(ring.iter().map(|&block| (geometry.join_block(ag, AgBlock(block)), 1)));
        }
        held.sort();
        assert!(held.windows(2).all(|pair| pair[0].0.0 + u64::from(pair[0].1) <= pair[1].0.0), "overlap");
    }

    fn run(&mut self, steps: u32, phase: u32) {
        let held: u64 = self.held.iter().map(|(_, len)| u64::from(*len)).sum();
        let before = free_blocks(&self.volume) + held;
        for step in 0..steps {
            self.step((step / phase).is_multiple_of(2));
            if step % 100 == 99 {
                self.check(before);
            }
        }
        while !self.held.is_empty() {
            let mut trans = Trans::start(&self.volume, self.reservation(0)).unwrap();
            for (start, len) in self.held.drain(..self.held.len().min(FREES_AT_ONCE)) {
                defer::defer_free(&mut trans, InodeNumber(0), start, len, None).unwrap();
            }
            trans.commit().unwrap();
        }
        self.check(before);
    }
}

fn seed() -> u64 {
    let seed = std::env::var("UXFS_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed: UXFS_SEED={seed}");
    seed
}

/// `xfs_repair` finds nothing, and the kernel mounts and uses what is there.
fn witnesses(image: &Image) {
    let path = image.path();
    let output = try_run("xfs_repair", &["-n", path.to_str().unwrap()]);
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let mount = image.mount("");
    std::fs::write(mount.join("by the kernel"), vec![7; 1 << 20]).unwrap();
    mount.unmount();
    let output = try_run("xfs_repair", &["-n", path.to_str().unwrap()]);
    assert!(output.status.success(), "after the kernel: {}", String::from_utf8_lossy(&output.stdout));
}

fn churn(bytes: u64, args: &[&str], steps: u32) {
    let image = Image::mkfs(bytes, args);
    let volume = open(&image);
    let rng = fastrand::Rng::with_seed(seed());
    let mut churn = Churn { volume: Arc::clone(&volume), rng, held: Vec::new() };
    churn.run(steps, 800);
    volume.close().unwrap();
    drop((churn, volume));
    witnesses(&image);
}

/// Several threads on one volume, of which some find groups locked by others; and nearly full at times.
fn threads(bytes: u64, args: &[&str], count: u64, steps: u32) {
    let image = Image::mkfs(bytes, args);
    let volume = open(&image);
    let before = free_blocks(&volume);
    let seed = seed();
    let held: Vec<(FsBlock, u32)> = std::thread::scope(|scope| {
        let run = |nth| {
            let rng = fastrand::Rng::with_seed(seed.wrapping_add(nth));
            let mut churn = Churn { volume: Arc::clone(&volume), rng, held: Vec::new() };
            move || {
                for step in 0..steps {
                    churn.step((step / 500).is_multiple_of(2));
                }
                churn.held
            }
        };
        let threads: Vec<_> = (0..count).map(|nth| scope.spawn(run(nth))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut all = Churn { volume: Arc::clone(&volume), rng: fastrand::Rng::with_seed(seed), held };
    all.check(before);
    all.run(0, 1);
    assert_eq!(free_blocks(&volume), before);
    volume.close().unwrap();
    drop((all, volume));
    witnesses(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_in_four_groups() {
    threads(300 << 20, &["-m", "rmapbt=0", "-d", "agcount=4"], 4, 1000);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_that_fill_the_volume() {
    threads(64 << 20, &["--unsupported", "-b", "size=1024", "-m", "rmapbt=0", "-d", "agcount=2"], 4, 1000);
}

/// Nothing is closed: the kernel replays what the log holds, and both see the same free space afterwards.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_replays_allocations() {
    let image = Image::mkfs(300 << 20, &["-b", "size=1024", "-m", "rmapbt=0"]);
    let volume = open(&image);
    let before = free_blocks(&volume);
    let rng = fastrand::Rng::with_seed(seed());
    let mut churn = Churn { volume: Arc::clone(&volume), rng, held: Vec::new() };
    for step in 0..1500 {
        churn.step((step / 500_u32).is_multiple_of(2));
    }
    churn.check(before);
    volume.sync().unwrap();
    let groups = volume.geometry().ag_count();
    let expected: Vec<_> = (0..groups).map(|ag| free_runs(&volume, AgNumber(ag))).collect();
    let held = std::mem::take(&mut churn.held);
    drop((churn, volume));
    image.mount("").unmount();
    let volume = open(&image);
    for (ag, expected) in (0..groups).zip(&expected) {
        let found = free_runs(&volume, AgNumber(ag));
        assert_eq!(found.0, expected.0, "group {ag}");
        assert_eq!(found.1, expected.1, "ring of group {ag}");
    }
    let mut churn = Churn { volume: Arc::clone(&volume), rng: fastrand::Rng::new(), held };
    churn.run(0, 1);
    assert_eq!(free_blocks(&volume), before);
    volume.close().unwrap();
    drop((churn, volume));
    witnesses(&image);
}

/// What is kept back is enough for the kernel to mount a volume on which no block is left, and to delete from it.
fn filled(args: &[&str]) {
    let image = Image::mkfs(300 << 20, args);
    let mount = image.mount("");
    for nth in 0..100 {
        std::fs::write(mount.join(format!("file{nth}")), vec![7; 10_000]).unwrap();
    }
    mount.unmount();
    let volume = open(&image);
    let before = free_blocks(&volume);
    let mut all = Churn { volume: Arc::clone(&volume), rng: fastrand::Rng::with_seed(1), held: Vec::new() };
    for most in [4000, 100, 1] {
        loop {
            let Ok(mut trans) = Trans::start(&volume, all.reservation(most)) else { break };
            let request = Request::new(1, most as u32, Purpose::Data);
            let Ok(got) = agf::allocate(&mut trans, Target::In(AgNumber(0)), request) else { break };
            trans.commit().unwrap();
            all.held.push((got.start(volume.geometry()), got.run.len));
        }
    }
    let left = free_blocks(&volume);
    assert!(left < before / 20, "{left} blocks are left of {before}");
    volume.close().unwrap();
    let held = std::mem::take(&mut all.held);
    drop((all, volume));
    let mount = image.mount("");
    for nth in 0..100 {
        std::fs::remove_file(mount.join(format!("file{nth}"))).unwrap();
    }
    mount.unmount();
    let volume = open(&image);
    let mut all = Churn { volume: Arc::clone(&volume), rng: fastrand::Rng::with_seed(1), held };
    all.run(0, 1);
    volume.close().unwrap();
    drop((all, volume));
    witnesses(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_volume_with_reserves() {
    filled(&["-m", "rmapbt=0,reflink=1,finobt=1"]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_volume_without_reserves() {
    filled(&["-b", "size=1024", "-m", "rmapbt=0,reflink=0,finobt=0,inobtcount=0"]);
}

const PLAIN: [&str; 2] = ["-m", "rmapbt=0,reflink=1,finobt=1"];

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_of_four_kib() {
    churn(300 << 20, &PLAIN, 2400);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_of_one_kib_in_small_groups() {
    churn(
        64 << 20,
        &["--unsupported", "-b", "size=1024", "-d", "agcount=4", "-m", "reflink=0,finobt=0,rmapbt=0"],
        2400,
    );
}
