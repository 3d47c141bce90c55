//! Memory devices.

mod common;

use std::fs::File;
use std::sync::Arc;

use blockdev::{BlockDevice, DeviceError, Durability, FileDevice, MemoryDevice, MemoryOptions, Window};

#[test]
fn anonymous_memory() {
    for huge in [false, true] {
        let device = MemoryOptions::new().huge_pages(huge).anonymous(4 << 20).unwrap();
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
    let sparse = MemoryDevice::anonymous(1 << 40).unwrap();
    sparse.write((1 << 40) - 512, &[1; 512], Durability::Volatile).unwrap();
}

#[test]
fn a_mapped_file_is_the_file() {
    // One on disk, which has something to sync; one in memory, where the host has such a place.
    let mut dirs = vec![tempfile::tempdir().unwrap()];
    dirs.extend(tempfile::tempdir_in("/dev/shm"));
    for dir in dirs {
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = MemoryDevice::map_file(&path).unwrap();
        common::check_blocking(&device, 300);
        device.write(8192, &[3; 1024], Durability::Fua).unwrap();
        device.flush().unwrap();
        assert!(matches!(MemoryDevice::map_file(&path), Err(DeviceError::Locked)));
        assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
        let reader = MemoryOptions::new().write(false).map_file(&path).unwrap();
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
