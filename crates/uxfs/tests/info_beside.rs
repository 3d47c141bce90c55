//! What a volume says of itself beside changes: size, free blocks and counts of inodes are of one moment.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, MemoryDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{MkfsOptions, OpenOptions, Volume, VolumeInfo, mkfs_device};

const MIB: u64 = 1 << 20;

fn volume(options: MkfsOptions) -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(256 * MIB).expect("memory"));
    mkfs_device(Arc::clone(&device), &options.small(true), true).expect("a volume");
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("it opens")
}

fn growing() -> Volume {
    volume(MkfsOptions::new().size(40 * MIB).group_size(20 * MIB))
}

fn is_possible(info: &VolumeInfo) -> bool {
    info.free_blocks <= info.available_blocks
        && info.free_inodes <= info.inodes
        && u64::from(info.ag_count) == info.blocks.div_ceil(info.ag_blocks.into())
}

/// Somebody asks in the midst of a growth. The answer is of before or of after it.
#[test]
fn a_growth_is_seen_whole() {
    let volume = growing();
    let before = volume.info().expect("known");
    let (found, answer) = mpsc::channel();
    fileio::testing::at("the last group is longer", {
        let volume = volume.clone();
        move || {
            let asks = thread::spawn(move || found.send(volume.info().expect("known")).expect("sent"));
            // It may wait for the end of the growth.
            let until = Instant::now() + Duration::from_millis(300);
            while !asks.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    volume.grow(None).expect("grown");
    let after = volume.info().expect("known");
    let seen = answer.recv().expect("answered");
    let of = |info: &VolumeInfo| (info.blocks, info.free_blocks, info.ag_count);
    assert!([of(&before), of(&after)].contains(&of(&seen)), "{seen:?}");
}

#[test]
fn growths_and_looks_at_once() {
    for _ in 0..5 {
        let volume = growing();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let asks = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let info = volume.info().expect("known");
                    if !is_possible(&info) {
                        return Some(info);
                    }
                }
                None
            });
            for size in (60..=240).step_by(20) {
                volume.grow(Some(size * MIB)).expect("grown");
            }
            over.store(true, Ordering::Relaxed);
            let wrong = asks.join().expect("no panic");
            assert!(wrong.is_none(), "{wrong:?}");
        });
    }
}

/// A directory in a group of its own, beside few inodes in use: its chunk comes and goes.
#[test]
fn chunks_come_and_go_beside_looks() {
    let volume = volume(MkfsOptions::new().group_size(32 * MIB));
    let until = Instant::now() + Duration::from_secs(4);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asks = [(); 2].map(|()| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let info = volume.info().expect("known");
                    if !is_possible(&info) {
                        over.store(true, Ordering::Relaxed);
                        return Some(info);
                    }
                }
                None
            })
        });
        let root = volume.open_dir("/").expect("a root");
        while Instant::now() < until && !over.load(Ordering::Relaxed) {
            root.create_dir(b"d", &Default::default()).expect("made");
            root.remove_dir(b"d").expect("removed");
        }
        over.store(true, Ordering::Relaxed);
        for asks in asks {
            let wrong = asks.join().expect("no panic");
            assert!(wrong.is_none(), "{wrong:?}");
        }
    });
}
