//! Writes beside somebody who takes all that is free while their data are written: into space that was set aside, and to what
//! is shared. Each is whole, or not at all.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use common::files::{fill, new_file, remove};
use std::sync::{Arc, Mutex};
use uxfs::{Changes, ErrorKind, MkfsFeatures, MkfsOptions, OpenOptions, Volume, check_device, mkfs_device};

const BLOCK: u64 = 4096;
type Step = Box<dyn FnOnce() + Send>;

/// Does something before the next write of content that begins with 0xAB.
struct Hooked {
    step: Mutex<Option<Step>>,
    inner: Arc<dyn BlockDevice>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl Layer for Hooked {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if buf[..16] == [0xAB; 16] {
            let step = self.step.lock().unwrap().take();
            if let Some(step) = step {
                step();
            }
        }
        self.inner.write(offset, buf, durability)
    }
}

#[test]
fn a_write_to_space_that_was_set_aside_is_whole_or_not_at_all() {
    let mut halves = Vec::new();
    for pieces in 8..40 {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).unwrap());
        mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true), true).unwrap();
        let device = Arc::new(Hooked { step: Mutex::new(None), inner: memory.clone() });
        let volume = Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).unwrap();
        let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
        for nth in 0..pieces {
            let range = nth * 4 * BLOCK..(nth + 1) * 4 * BLOCK;
            file.allocate(range.clone(), false).unwrap();
            other.allocate(range, false).unwrap();
        }
        volume.sync().unwrap();
        assert!(volume.info().unwrap().free_blocks > 6000);
        let its = volume.clone();
        *device.step.lock().unwrap() = Some(Box::new(move || drop(fill(&its, "filler"))));
        // From within the first piece into the midst of the sixth.
        let len = 20 * BLOCK;
        let done = file.write_at(&vec![0xAB; len as usize], 2 * BLOCK);
        assert!(device.step.lock().unwrap().is_none(), "nobody took anything");
        let mut found = vec![0; len as usize];
        file.read_at(&mut found, 2 * BLOCK).unwrap();
        let written = found.chunks(BLOCK as usize).filter(|block| block[0] == 0xAB).count();
        match done {
            Ok(()) => assert_eq!(written, 20),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                if written > 0 {
                    halves.push((pieces, written));
                }
            }
        }
        drop((file, other));
        remove(&volume, "filler");
        volume.close().unwrap();
        drop(volume);
        assert!(check_device(memory, &OpenOptions::new()).unwrap().is_clean());
    }
    assert!(halves.is_empty(), "(pieces, blocks written) of writes that ended half-way: {halves:?}");
}

/// So is one that copies pieces, each of which has the map leave the inode for a block and come back.
#[test]
fn a_copy_of_pieces_is_whole_beside_somebody_who_takes_all_space() {
    const PIECES: u64 = 16;
    for more in 4..9 {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).unwrap());
        // Without parent pointers, which take their part of an inode.
        let features = MkfsFeatures::of_kernel("6.12").unwrap();
        mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true).features(features), true).unwrap();
        let device = Arc::new(Hooked { step: Mutex::new(None), inner: memory.clone() });
        let volume = Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).unwrap();
        let (source, file) = (new_file(&volume, "source"), new_file(&volume, "file"));
        source.write_at(&vec![7; (2 * PIECES * BLOCK) as usize], 0).unwrap();
        for nth in 0..PIECES {
            source.clone_range(2 * nth * BLOCK, &file, nth * BLOCK, BLOCK).unwrap();
        }
        for nth in 0..more {
            file.write_at(&[5; BLOCK as usize], (PIECES + 1 + 2 * nth) * BLOCK).unwrap();
        }
        let hint = Changes { cow_extent_size: Some(BLOCK as u32), ..Changes::default() };
        file.node().change(&hint).unwrap();
        // What is free near them lies in single blocks.
        let holes = new_file(&volume, "holes");
        holes.allocate(0..600 * BLOCK, false).unwrap();
        (0..300).for_each(|nth| holes.punch_hole(2 * nth * BLOCK..(2 * nth + 1) * BLOCK).unwrap());
        volume.sync().unwrap();
        let its = volume.clone();
        *device.step.lock().unwrap() = Some(Box::new(move || drop(fill(&its, "filler"))));
        let done = file.overwrite_at(&vec![0xAB; (PIECES * BLOCK) as usize], 0);
        done.unwrap_or_else(|error| panic!("{more} more extents: {error}"));
        assert!(device.step.lock().unwrap().is_none(), "nobody took anything");
        drop((source, file, holes));
        remove(&volume, "filler");
        volume.close().unwrap();
        drop(volume);
        assert!(check_device(memory, &OpenOptions::new()).unwrap().is_clean());
    }
}
