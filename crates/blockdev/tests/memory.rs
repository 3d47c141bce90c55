//! Memory devices.

mod common;
#[path = "common/mapped.rs"]
mod mapped;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use blockdev::{
    BlockDevice, DeviceError, Durability, FileDevice, FileOptions, MemoryDevice, MemoryOptions, Window,
};
use mapped::mapped;
use tempfile::TempDir;

/// Where files are on disk, which have something to sync, and where they are in memory, if the host has such a place.
fn dirs() -> Vec<TempDir> {
    let mut dirs = vec![tempfile::tempdir().unwrap()];
    dirs.extend(tempfile::tempdir_in("/dev/shm"));
    dirs
}

#[test]
fn memory_of_its_own() {
    for (huge, shmem) in [(false, false), (true, false), (false, true), (true, true)] {
        let device = MemoryOptions::new().huge_pages(huge).shmem(shmem).anonymous(4 << 20).unwrap();
        assert!(!device.has_write_cache() && !device.is_read_only());
        let mut whole = vec![1; 4 << 20];
        device.read(0, &mut whole).unwrap();
        assert!(whole.iter().all(|&b| b == 0), "new memory is zero");
        common::check_blocking(&device, 500);
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        common::check_refusals(&device);
        common::check_queue(device, 128, 2000);
    }
    let large = MemoryOptions::new().sector_size(4096).anonymous((1 << 20) + 5000).unwrap();
    assert_eq!((large.size(), large.sector_size()), ((1 << 20) + 4096, 4096));
    common::check_blocking(&large, 200);
}

#[test]
fn sizes_that_cannot_be_mapped_are_refused() {
    assert!(MemoryDevice::anonymous(0).is_err());
    assert!(MemoryDevice::anonymous(511).is_err());
    assert!(MemoryDevice::anonymous(u64::MAX).is_err());
    assert!(MemoryOptions::new().sector_size(100).anonymous(4096).is_err());
    // A large sparse device costs nothing until it is written.
    for shmem in [false, true] {
        let sparse = MemoryOptions::new().shmem(shmem).anonymous(1 << 40).unwrap();
        sparse.write((1 << 40) - 512, &[1; 512], Durability::Volatile).unwrap();
    }
}

#[test]
fn a_mapped_file_is_the_file() {
    for dir in dirs() {
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = mapped(&path).unwrap();
        common::check_blocking(&device, 300);
        device.write(8192, &[3; 1024], Durability::Fua).unwrap();
        device.flush().unwrap();
        assert!(matches!(mapped(&path), Err(DeviceError::Locked)));
        assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
        // SAFETY: nobody cuts the file short.
        let reader = unsafe { MemoryOptions::new().write(false).map_file(&path) }.unwrap();
        let mut buf = [0; 1024];
        reader.read(8192, &mut buf).unwrap();
        assert_eq!(buf, [3; 1024]);
        assert!(matches!(reader.write(0, &buf, Durability::Volatile), Err(DeviceError::ReadOnly)));
        reader.flush().unwrap();
        common::check_queue(Arc::new(device), 64, 1000);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
    }
}

#[test]
fn threads_on_bytes_of_their_own_do_not_disturb_each_other() {
    let device = MemoryDevice::anonymous(1 << 20).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let device = &device;
            scope.spawn(move || {
                let mut buf = [0; 512];
                for round in 0..2000u64 {
                    let at = (round % 16 * 8 + u64::from(thread)) * 512;
                    let value = thread ^ round as u8;
                    device.write(at, &[value; 512], Durability::Volatile).unwrap();
                    device.read(at, &mut buf).unwrap();
                    assert_eq!(buf, [value; 512]);
                }
            });
        }
    });
}

#[test]
fn any_byte_may_be_prefetched() {
    let device = Arc::new(MemoryDevice::anonymous(1 << 16).unwrap());
    let window = Window::new(Arc::clone(&device) as Arc<dyn BlockDevice>, 4096, Some(8192)).unwrap();
    assert!(device.prefetches() && window.prefetches());
    for offset in [0, 1, 4095, (1 << 16) - 1, 1 << 16, u64::MAX - 511, u64::MAX] {
        device.prefetch(offset);
        window.prefetch(offset);
    }
}

#[test]
fn a_copy_holds_what_the_file_held() {
    for (dir, shmem) in dirs().iter().flat_map(|dir| [(dir, false), (dir, true)]) {
        let path = dir.path().join("image");
        let file = File::create(&path).unwrap();
        // Holes at both ends and between, and a part of a sector at the end.
        file.set_len((1 << 30) + 100).unwrap();
        let parts = [(1 << 20, 1), (5 << 20, 100_000), (900 << 20, 3 << 20)];
        for (at, len) in parts {
            file.write_all_at(&vec![at as u8 | 7; len], at).unwrap();
        }
        let options = MemoryOptions::new().shmem(shmem).sector_size(4096);
        let copy = options.copy_of(&path).unwrap();
        assert_eq!((copy.size(), copy.sector_size(), copy.is_read_only()), (1 << 30, 4096, false));
        file.set_len(0).unwrap();
        file.set_len(1 << 30).unwrap();
        let mut expected = vec![0; 6 << 20];
        for (at, len) in parts {
            let from = at.saturating_sub(1 << 20);
            let mut held = vec![1; 6 << 20];
            copy.read(from, &mut held).unwrap();
            expected.fill(0);
            for (other, len) in parts.into_iter().filter(|part| (from..from + (6 << 20)).contains(&part.0)) {
                let start = (other - from) as usize;
                let end = (start + len).min(expected.len());
                expected[start..end].fill(other as u8 | 7);
            }
            assert!(held == expected, "around {at}, of {len} bytes");
        }
        copy.write(0, &[9; 4096], Durability::Fua).unwrap();
        assert!(File::open(&path).unwrap().metadata().unwrap().len() == 1 << 30);
    }
    assert!(MemoryOptions::new().copy_of("/nowhere").is_err());
}

#[test]
fn a_file_in_memory_behaves_as_memory() {
    for (dir, in_memory) in dirs().iter().zip([false, true]) {
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let options = FileOptions::in_memory();
        let device = options.clone().write(true).open(&path).unwrap();
        assert_eq!((device.has_fua(), device.sector_size()), (true, 512));
        // Some have their folder for temporary files in memory.
        assert!(!in_memory || !device.has_write_cache());
        common::check_blocking(&device, 100);
        device.write(0, &[5; 512], Durability::Fua).unwrap();
        device.flush().unwrap();
        let reader = options.open(&path).unwrap();
        assert!(reader.is_read_only() && !reader.has_fua());
        common::check_queue(Arc::new(device), 8, 100);
    }
}

/// Set for a process that is to cut a file short while it has it as a device.
const CUT: &str = "UXFS_TEST_CUT";

/// What comes of a process, of the program that runs, which does `test` with this file.
fn by_another_process(test: &str, path: &Path) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", test, "--nocapture"]).env(CUT, path).status().unwrap()
}

fn file_to_cut() -> Option<PathBuf> {
    std::env::var_os(CUT).map(PathBuf::from)
}

fn cut(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
}

/// A device that was made without `unsafe` gives errors where its file was, and no signal.
#[test]
fn a_file_that_is_cut_short_ends_nobody() {
    let Some(path) = file_to_cut() else {
        for dir in dirs() {
            let path = dir.path().join("image");
            std::fs::write(&path, vec![7; 1 << 20]).unwrap();
            let status = by_another_process("a_file_that_is_cut_short_ends_nobody", &path);
            assert!(status.success(), "{status}");
        }
        return;
    };
    let copies = [false, true].map(|shmem| MemoryOptions::new().shmem(shmem).copy_of(&path).unwrap());
    let device = FileOptions::in_memory().write(true).open(&path).unwrap();
    let mut buf = [0; 8192];
    device.read(65536, &mut buf).unwrap();
    cut(&path);
    assert!(matches!(device.read(65536, &mut buf), Err(DeviceError::Io { op: "read", .. })));
    device.read(0, &mut buf[..4096]).unwrap();
    for copy in copies {
        copy.read(65536, &mut buf).unwrap();
        copy.write(65536, &buf, Durability::Volatile).unwrap();
        assert_eq!(buf, [7; 8192]);
    }
}

/// What the caller of `map_file` promises will not happen.
#[test]
fn who_touches_what_was_cut_off_a_mapped_file_is_killed() {
    let Some(path) = file_to_cut() else {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let status = by_another_process("who_touches_what_was_cut_off_a_mapped_file_is_killed", &path);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        return;
    };
    // No core of it is left behind.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
    let device = mapped(&path).unwrap();
    cut(&path);
    let _ = device.read(65536, &mut [0; 8192]);
}
