//! What is in memory alone on volumes that are full: whatever was accepted finds its place when it is written back, in any
//! parts and whoever takes all other space; nothing is kept for what needs nothing more.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fault, FaultDevice, MemoryDevice, Op};
use common::files::{Random, closes_well, fill, new_file, remove};
use fileio::testing::{CHANGE, COMMITTED, at};
use std::sync::Arc;
use uxfs::{Changes, ErrorKind, File, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    made_on(Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory")))
}

fn made_on(device: Arc<dyn BlockDevice>) -> (Arc<dyn BlockDevice>, Volume) {
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    (device, volume)
}

/// Blocks that anybody may take.
fn available(volume: &Volume) -> u64 {
    let kept_back = volume.kept_back_blocks().expect("kept back");
    volume.info().expect("info").free_blocks.saturating_sub(kept_back)
}

fn copies_by_block(file: &File) {
    let hint = Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() };
    file.node().change(&hint).expect("a hint");
}

/// One write goes to blocks that were set aside and to some that were shared once. Of the latter nobody has to tell the map,
/// and something was kept for that for ever: also a clean close wrote down too few free blocks.
#[test]
fn nothing_is_kept_for_blocks_that_are_written_in_place() {
    for half in [4, 300] {
        let (device, volume) = made();
        let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
        copies_by_block(&one);
        one.allocate(0..half * BLOCK, false).expect("set aside");
        one.write_at(&vec![1; (half * BLOCK) as usize], half * BLOCK).expect("written");
        one.clone_range(half * BLOCK, &other, 0, half * BLOCK).expect("a clone");
        // What is shared is known now, and is shared no more then.
        one.overwrite_at(&[2; BLOCK as usize], (2 * half - 1) * BLOCK).expect("copied");
        drop(other);
        remove(&volume, "other");
        volume.sync().expect("synced");
        let before = available(&volume);
        let buffered = one.buffered();
        buffered.write_at(&vec![3; ((2 * half - 1) * BLOCK) as usize], 0).expect("written");
        buffered.sync_range(half * BLOCK..(2 * half - 1) * BLOCK).expect("synced");
        buffered.sync().expect("synced");
        assert_eq!(available(&volume), before, "something is kept");
        drop((buffered, one));
        closes_well(&device, volume);
    }
}

/// With each part the map leaves its inode or comes back, and others take each block that becomes free: the file must find its
/// own again. Blocks that were promised to holes of the same file are not taken for that.
#[test]
fn parts_find_the_blocks_that_the_map_gave_back() {
    const BLOCKS: u64 = 256;
    for is_shared in [false, true] {
        for (pieces, holes) in [(9, 0), (10, 0), (10, 3)] {
            let (device, volume) = made();
            let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
            one.allocate(0..BLOCKS * BLOCK, false).expect("set aside");
            for nth in 0..pieces {
                one.write_at(&[1; BLOCK as usize], (BLOCKS + 1 + 2 * nth) * BLOCK).expect("written");
            }
            if is_shared {
                one.write_at(&vec![2; (BLOCKS * BLOCK) as usize], 0).expect("written");
                one.clone_range(0, &other, 0, 0).expect("a clone");
            }
            let takers: Vec<File> = (0..24).map(|nth| new_file(&volume, &format!("taker{nth}"))).collect();
            let filler = fill(&volume, "filler");
            filler.set_len(filler.size() - 1000 * BLOCK).expect("cut");
            volume.sync().expect("synced");
            let buffered = one.buffered();
            buffered.write_at(&vec![9; (BLOCKS * BLOCK) as usize], 0).expect("accepted");
            for nth in 0..holes {
                buffered.write_at(&[9; BLOCK as usize], (2000 + 2 * nth) * BLOCK).expect("accepted");
            }
            // What is promised to others, of which every 16th block takes one more for the map: 12 of each are cheap. Nobody is
            // ever refused, who would have all that is dirty written back.
            let taking: Vec<File> = takers.iter().map(File::buffered).collect();
            for file in &taking {
                file.append(&[5; BLOCK as usize]).expect("room");
            }
            let mut taken = 0;
            let mut take = || {
                while available(&volume) > 20 {
                    filler.allocate(filler.size()..filler.size() + BLOCK, false).expect("room");
                }
                while available(&volume) > 0 {
                    taking[taken / 12].append(&[5; BLOCK as usize]).expect("room");
                    taken += 1;
                }
            };
            take();
            for pair in 0..BLOCKS / 2 {
                for at in [2 * pair + 1, 2 * pair] {
                    let synced = buffered.sync_range(at * BLOCK..(at + 1) * BLOCK);
                    synced.unwrap_or_else(|error| {
                        panic!("shared {is_shared}, {pieces} pieces, block {at}: {error}")
                    });
                    take();
                }
            }
            drop((buffered, one, other, taking, takers, filler));
            volume.close().expect("closes");
            drop(volume);
            let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new()).expect("opens");
            let one = volume.open_file("one").expect("there");
            let mut bytes = vec![0; one.size() as usize];
            one.read_at(&mut bytes, 0).expect("read");
            let written = (0..BLOCKS).chain((0..holes).map(|nth| 2000 + 2 * nth));
            let lost = written.filter(|at| bytes.get((at * BLOCK) as usize) != Some(&9)).count();
            assert_eq!(lost, 0, "shared {is_shared}, {pieces} pieces: blocks that were accepted");
        }
    }
}

/// While a block is zeroed, the one beside it is written to, in memory: their extents become one, and the map needs a block to
/// tell of the data. The write had nothing reserved for that, as no extent had to be cut then.
#[test]
fn a_write_has_its_reserve_when_its_neighbour_changes() {
    for pieces in 3..24 {
        let (device, volume) = made();
        let one = new_file(&volume, "one");
        one.allocate(0..2 * BLOCK, false).expect("set aside");
        one.write_at(&[1; BLOCK as usize], 0).expect("written");
        for nth in 0..pieces {
            one.write_at(&[1; BLOCK as usize], (3 + 2 * nth) * BLOCK).expect("written");
        }
        let filler = fill(&volume, "filler");
        filler.set_len(filler.size() - 40 * BLOCK).expect("cut");
        volume.sync().expect("synced");
        let buffered = one.buffered();
        buffered.read_at(&mut [0; 8], 0).expect("read");
        let beside = buffered.clone();
        at(CHANGE, move || beside.write_at(&[9; BLOCK as usize], BLOCK).expect("accepted"));
        one.zero_range(0..BLOCK, true).expect("zeroed");
        let mut end = filler.size() / BLOCK + 1;
        while available(&volume) >= 5 {
            filler.allocate(end * BLOCK..(end + 1) * BLOCK, true).expect("room");
            end += 1;
        }
        buffered.sync().unwrap_or_else(|error| panic!("{pieces} pieces: {error}"));
        let mut seen = [0];
        one.direct().read_at(&mut seen, BLOCK).expect("read");
        assert_eq!(seen, [9], "{pieces} pieces");
        drop((one, buffered, filler));
        closes_well(&device, volume);
    }
}

/// Writes of data fail while parts of what was claimed are written back, with hardly any space: nothing is kept for what was
/// given up.
#[test]
fn what_is_given_up_keeps_no_space() {
    const BLOCKS: u64 = 48;
    let mut random = Random::seeded();
    let (mut failed, mut judged) = (0, 0);
    'rounds: for round in 0..40_u64 {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
        let fault = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
        let (_, volume) = made_on(fault.clone());
        let (one, other) = (new_file(&volume, "one"), new_file(&volume, "other"));
        if round % 2 == 0 {
            copies_by_block(&one);
        }
        one.write_at(&vec![1; (BLOCKS * BLOCK) as usize], 0).expect("written");
        one.clone_range(0, &other, 0, 0).expect("a clone");
        one.punch_hole(8 * BLOCK..14 * BLOCK).expect("a hole");
        one.zero_range(20 * BLOCK..30 * BLOCK, true).expect("zeroed");
        one.overwrite_at(&[2; 4 * BLOCK as usize], 33 * BLOCK).expect("copied");
        let filler = fill(&volume, "filler");
        filler.set_len(filler.size() - (150 + random.below(40)) * BLOCK).expect("cut");
        volume.sync().expect("synced");
        let buffered = one.buffered();
        for stamp in 3..9 {
            let (at, len) = (random.below(BLOCKS), 1 + random.below(24));
            match buffered.write_at(&vec![stamp; (len * BLOCK) as usize], at * BLOCK) {
                Err(error) if error.kind() != ErrorKind::NoSpace => continue 'rounds,
                _ => {}
            }
            if random.below(2) == 0 {
                fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
            }
            for _ in 0..3 {
                let at = random.below(BLOCKS) * BLOCK;
                failed += u64::from(buffered.sync_range(at..at + BLOCK).is_err());
            }
            fault.heal();
        }
        let _told = (buffered.sync(), volume.sync());
        if buffered.sync().is_err() {
            continue;
        }
        volume.sync().expect("synced");
        drop((buffered, one, other, filler));
        judged += 1;
        closes_well(&memory, volume);
    }
    println!("{failed} failed, {judged} judged");
    assert!(judged > 10, "{judged}");
}

/// Where space is short, what is dirty is written back and the change attempted again; and who writes something in between
/// makes it short once more.
#[test]
fn space_that_others_took_between_two_attempts_is_found_in_the_next() {
    let (device, volume) = made();
    let more = new_file(&volume, "more");
    more.write_at(&[1; 20 * BLOCK as usize], 0).expect("written");
    let [one, two] = ["one", "two"].map(|name| {
        let file = new_file(&volume, name);
        file.set_len(100 * BLOCK).expect("long");
        file.buffered()
    });
    let filler = fill(&volume, "filler");
    filler.set_len(filler.size() - 17 * BLOCK).expect("cut");
    volume.sync().expect("synced");
    one.write_at(&[3; BLOCK as usize], 10 * BLOCK).expect("accepted");
    let write = {
        let two = two.clone();
        move || two.write_at(&[3; BLOCK as usize], 10 * BLOCK).expect("accepted")
    };
    at(CHANGE, move || at(CHANGE, write));
    more.allocate(30 * BLOCK..31 * BLOCK, true).expect("there is space");
    drop((more, one, two, filler));
    closes_well(&device, volume);
}

/// One part of a claim is given up, and another was written in place, of which nobody tells: it kept what was reserved.
#[test]
fn what_is_given_up_keeps_nothing_for_what_was_written_in_place() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    let fault = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
    let (_, volume) = made_on(fault.clone());
    let [one, kept, gone] = ["one", "kept", "gone"].map(|name| new_file(&volume, name));
    copies_by_block(&one);
    one.write_at(&[1; 9 * BLOCK as usize], 0).expect("written");
    one.clone_range(0, &kept, 0, 4 * BLOCK).expect("a clone");
    one.clone_range(4 * BLOCK, &gone, 0, 5 * BLOCK).expect("a clone");
    one.overwrite_at(&[2; BLOCK as usize], 8 * BLOCK).expect("copied");
    drop(gone);
    remove(&volume, "gone");
    volume.sync().expect("synced");
    let buffered = one.buffered();
    buffered.write_at(&[3; 8 * BLOCK as usize], 0).expect("accepted");
    buffered.sync_range(4 * BLOCK..8 * BLOCK).expect("written in place");
    fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
    buffered.sync_range(0..4 * BLOCK).expect_err("it cannot be written");
    fault.heal();
    let _told = (buffered.sync(), volume.sync());
    buffered.sync().expect("synced");
    volume.sync().expect("synced");
    drop((buffered, one, kept));
    closes_well(&memory, volume);
}

/// The volume is shut down when promised blocks have just got their place: that they have it was not noticed, and the promise
/// withdrawn once more.
#[test]
fn a_shutdown_amid_write_back_withdraws_nothing_twice() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    let fault = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
    let (_, volume) = made_on(fault.clone());
    let [one, other] = ["one", "other"].map(|name| new_file(&volume, name));
    volume.sync().expect("synced");
    let buffered = one.buffered();
    buffered.write_at(&[1; 4 * BLOCK as usize], 0).expect("accepted");
    other.write_at(&[1; BLOCK as usize], 0).expect("written");
    at(COMMITTED, move || {
        fault.add(Fault::fail(Op::Flush, fault.seen(Op::Flush)));
        other.sync().expect_err("the flush fails");
    });
    buffered.sync().expect_err("the volume is shut down");
}
