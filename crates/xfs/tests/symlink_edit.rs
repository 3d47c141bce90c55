//! Targets of symbolic links written to forks in memory and read back.
#![forbid(unsafe_code)]

use xfs::Error;
use xfs::fork::Fork;
use xfs::symlink::{TargetError, WRITABLE_MAX, blocks_needed, target, write};
use xfs::testing::{MemoryFork, geometry};
use xfs_format::types::InodeNumber;

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 255 + 1) as u8).collect()
}

fn link(block_log: u8, adjacent: bool) -> MemoryFork {
    let mut fork = MemoryFork::new(geometry(true, block_log, 0), InodeNumber(131), 0);
    fork.set_data_fork();
    if adjacent {
        fork.set_adjacent();
    }
    fork
}

#[test]
fn every_length_is_read_back() {
    for (block_log, adjacent) in [(10, false), (10, true), (12, false), (16, true)] {
        for len in 1..=WRITABLE_MAX {
            let mut fork = link(block_log, adjacent);
            write(&mut fork, &text(len)).unwrap();
            assert_eq!(fork.size(), len as u64);
            assert_eq!(target(&fork).unwrap(), text(len), "{len} bytes in blocks of 2^{block_log}");
            let mapped = fork.mapped().count();
            assert_eq!(mapped == 0, len <= 512 - 176);
            assert!(mapped <= blocks_needed(fork.geometry(), len) as usize);
            // The same as what comes back from the device.
            if mapped > 0 {
                let mut written = MemoryFork::new(fork.geometry().clone(), fork.inode(), fork.size());
                for (at, daddr, bytes) in fork.written_back() {
                    written.map(at, daddr, bytes);
                }
                if !adjacent || mapped == 1 {
                    assert_eq!(target(&written).unwrap(), text(len));
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_a_target_is_refused() {
    let mut fork = link(12, false);
    assert!(matches!(write(&mut fork, b""), Err(TargetError::Length(0))));
    assert!(matches!(write(&mut fork, &text(1024)), Err(TargetError::Length(1024))));
    assert!(matches!(write(&mut fork, b"a\0b"), Err(TargetError::Nul)));
    let mut v4 = MemoryFork::new(geometry(false, 12, 0), InodeNumber(131), 0);
    assert!(matches!(write(&mut v4, b"a"), Err(TargetError::Engine(Error::ReadOnly(_)))));
    assert_eq!(fork.mapped().count(), 0);
}
