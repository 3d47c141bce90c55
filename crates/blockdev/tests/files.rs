//! Files and block devices of the host.

mod common;
#[path = "common/mapped.rs"]
mod mapped;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use blockdev::{
    AlignedBuf, BlockDevice, DeviceError, Durability, FileDevice, FileOptions, HostIo, MemoryOptions,
    QueueKind, Window,
};
use mapped::mapped;
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 4 << 20;

fn image(dir: &TempDir, bytes: u64) -> PathBuf {
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// A directory on a file system with O_DIRECT, which the directory for temporary files usually is on.
fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_file_direct_and_buffered() {
    let dir = dir();
    let path = image(&dir, IMAGE_BYTES);
    for direct in [true, false] {
        let device = FileOptions::new().write(true).direct(direct).open(&path).unwrap();
        if !direct {
            assert_eq!(device.host_io(), HostIo::Buffered);
        }
        assert_eq!((device.size(), device.is_read_only()), (IMAGE_BYTES, false));
        common::check_blocking(&device, 300);
    }
    // Both ways see the same bytes.
    let (mut one, mut other) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    FileOptions::new().direct(true).open(&path).unwrap().read(4096, &mut one).unwrap();
    FileOptions::new().direct(false).open(&path).unwrap().read(4096, &mut other).unwrap();
    assert!(one == other);
}

#[test]
fn queues_of_every_kind_and_depth() {
    let dir = dir();
    let path = image(&dir, IMAGE_BYTES);
    for (kind, depth, direct) in [
        (QueueKind::Uring, 128, true),
        (QueueKind::Uring, 128, false),
        (QueueKind::Uring, 1, true),
        (QueueKind::Uring, 5, true),
        (QueueKind::Blocking, 32, true),
        (QueueKind::Auto, 32, true),
    ] {
        let device = FileOptions::new().write(true).direct(direct).queue_kind(kind).open(&path).unwrap();
        common::check_queue(Arc::new(device), depth, 2000);
    }
}

#[test]
fn requests_outside_or_misaligned_are_refused() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    for kind in [QueueKind::Uring, QueueKind::Blocking] {
        let device = FileOptions::new().write(true).queue_kind(kind).open(&path).unwrap();
        common::check_refusals(&(Arc::new(device) as Arc<dyn BlockDevice>));
    }
}

#[test]
fn sectors_of_4096_bytes() {
    let dir = dir();
    let path = image(&dir, (1 << 20) + 1000);
    let device = FileOptions::new().write(true).sector_size(4096).open(&path).unwrap();
    assert_eq!((device.sector_size(), device.size()), (4096, 1 << 20));
    assert!(matches!(device.read(512, &mut [0; 4096]), Err(DeviceError::Misaligned { sector: 4096, .. })));
    common::check_blocking(&device, 200);
    common::check_queue(Arc::new(device), 64, 500);
    assert!(FileOptions::new().sector_size(1000).open(&path).is_err());
    assert!(FileOptions::new().sector_size(8192).open(&path).is_err());
}

#[test]
fn a_second_writer_is_kept_out_and_readers_are_not() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    let writer = Arc::new(FileDevice::open_writable(&path).unwrap());
    assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
    assert!(matches!(mapped(&path), Err(DeviceError::Locked)));
    let reader = FileDevice::open(&path).unwrap();
    writer.write(0, &[5; 512], Durability::Volatile).unwrap();
    let mut sector = [0; 512];
    reader.read(0, &mut sector).unwrap();
    assert_eq!(sector, [5; 512]);
    // A queue holds the lock as well.
    let queue = Arc::clone(&writer).queue(4).unwrap();
    drop(writer);
    assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
    drop(queue);
    FileDevice::open_writable(&path).unwrap();
}

/// Whoever waited for the lock has the file as its last writer left it: longer, or shorter; and no file of which there is
/// no name any more.
#[test]
fn who_waits_for_the_lock_sees_what_became_of_the_file() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    let waited = |meanwhile: &(dyn Fn(&FileDevice) + Sync)| {
        let first = FileDevice::open_writable(&path).unwrap();
        std::thread::scope(|threads| {
            let second = threads.spawn(|| FileDevice::open_writable(&path));
            // It has opened the file by then, and goes on trying for longer than that.
            std::thread::sleep(std::time::Duration::from_millis(50));
            meanwhile(&first);
            drop(first);
            second.join().unwrap()
        })
    };
    for len in [2 << 20, 1 << 19] {
        let second = waited(&|first| {
            let other = first.with_length(len).unwrap();
            assert_eq!((other.size(), other.length().unwrap(), first.size() == len), (len, len, false));
        });
        assert_eq!(second.unwrap().size(), len);
    }
    let replaced = waited(&|_| {
        std::fs::remove_file(&path).unwrap();
        image(&dir, 1 << 20);
    });
    assert!(matches!(replaced, Err(DeviceError::Replaced)));
    let removed = waited(&|_| std::fs::remove_file(&path).unwrap());
    assert!(matches!(removed, Err(DeviceError::Replaced)));
}

/// As long as one of a file's devices is there, nobody else writes it.
#[test]
fn a_device_of_another_length_holds_the_lock() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    let first = FileDevice::open_writable(&path).unwrap();
    let again = first.with_length(2 << 20).unwrap();
    drop(first);
    assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
    again.write(0, &[5; 512], Durability::Fua).unwrap();
    drop(again);
    FileDevice::open_writable(&path).unwrap();
}

#[test]
fn another_process_is_kept_out() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    let mut flock = Command::new("flock");
    flock.arg("-x").arg(&path).args(["-c", "echo locked; cat"]);
    flock.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut other = flock.spawn().expect("flock (util-linux)");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(other.stdout.as_mut().unwrap()), &mut line)
        .unwrap();
    assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
    FileDevice::open(&path).unwrap();
    drop(other.stdin.take());
    other.wait().unwrap();
    FileDevice::open_writable(&path).unwrap();
}

/// The locks that QEMU has on the bytes of a disk: nobody else may write, and it still reads.
#[test]
fn the_disk_of_a_virtual_machine_is_not_written() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    let machine = File::open(&path).unwrap();
    for byte in [100, 101, 103, 201, 203] {
        // SAFETY: `flock` is plain numbers, of which any are valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (libc::F_RDLCK as _, byte, 1);
        // SAFETY: the kernel reads one `flock`, which lives as long as the call.
        assert_eq!(unsafe { libc::fcntl(machine.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
    }
    assert!(matches!(FileDevice::open_writable(&path), Err(DeviceError::Locked)));
    assert!(matches!(mapped(&path), Err(DeviceError::Locked)));
    FileDevice::open(&path).unwrap();
    drop(machine);
    FileDevice::open_writable(&path).unwrap();
}

#[test]
fn a_reader_does_not_write() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    for kind in [QueueKind::Uring, QueueKind::Blocking] {
        let device = Arc::new(FileOptions::new().queue_kind(kind).open(&path).unwrap());
        assert!(device.is_read_only());
        assert!(matches!(device.write(0, &[0; 512], Durability::Volatile), Err(DeviceError::ReadOnly)));
        device.flush().unwrap();
        let mut queue = device.queue(2).unwrap();
        let pushed = queue.push_write(0, AlignedBuf::zeroed(512), Durability::Volatile, 0);
        assert!(matches!(pushed, Err(DeviceError::ReadOnly)));
    }
}

#[test]
fn a_file_that_shrinks_fails_and_does_not_hang() {
    let dir = dir();
    let path = image(&dir, 1 << 20);
    for kind in [QueueKind::Uring, QueueKind::Blocking] {
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let device = Arc::new(FileOptions::new().queue_kind(kind).open(&path).unwrap());
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        let mut buf = [0; 8192];
        assert!(matches!(device.read(4096, &mut buf), Err(DeviceError::Io { op: "read", offset: 4096, .. })));
        let mut queue = device.queue(4).unwrap();
        queue.push_read(4096, AlignedBuf::zeroed(8192), 7).unwrap();
        queue.push_read(0, AlignedBuf::zeroed(8192), 8).unwrap();
        let mut seen = Vec::new();
        let count = queue.wait(2, &mut |c| seen.push((c.tag, c.result.is_ok(), c.buf.len()))).unwrap();
        seen.sort_unstable();
        assert_eq!((count, seen), (2, vec![(7, false, 8192), (8, true, 8192)]));
    }
}

#[test]
fn a_queue_dropped_in_flight_finishes_first() {
    let dir = dir();
    let path = image(&dir, IMAGE_BYTES);
    let device = Arc::new(FileDevice::open_writable(&path).unwrap());
    for round in 0..50 {
        let mut queue = Arc::clone(&device).queue(64).unwrap();
        for index in 0..64 {
            let mut buf = AlignedBuf::zeroed(16_384);
            buf.fill(round);
            queue.push_write(index * 16_384, buf, Durability::Volatile, index).unwrap();
        }
        queue.submit().unwrap();
        drop(queue);
        let mut whole = vec![0; 64 * 16_384];
        device.read(0, &mut whole).unwrap();
        assert!(whole.iter().all(|&b| b == round));
    }
}

#[test]
fn what_is_not_a_device_is_refused() {
    let dir = dir();
    let refused = |path: &Path| match FileDevice::open(path) {
        Err(DeviceError::Setup { source, .. }) => source.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&dir.path().join("none")), std::io::ErrorKind::NotFound);
    assert_eq!(refused(dir.path()), std::io::ErrorKind::IsADirectory);
    assert_eq!(refused(Path::new("/dev/null")), std::io::ErrorKind::InvalidInput);
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(refused(&fifo), std::io::ErrorKind::InvalidInput);
    // An empty file is a device of no bytes, or no device: not a panic in any case.
    let empty = image(&dir, 0);
    assert_eq!(FileDevice::open(&empty).unwrap().size(), 0);
    assert!(mapped(&empty).is_err());
    assert!(MemoryOptions::new().copy_of(&empty).is_err());
}

#[test]
fn a_window_is_a_device_of_its_own() {
    let dir = dir();
    let path = dir.path().join("disk");
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![0xEE; 3 << 20]).unwrap();
    let disk: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_writable(&path).unwrap());
    let window = Window::new(Arc::clone(&disk), 1 << 20, Some(1 << 20)).unwrap();
    assert_eq!(window.size(), 1 << 20);
    common::check_blocking(&window, 200);
    let window: Arc<dyn BlockDevice> = Arc::new(window);
    common::check_refusals(&window);
    common::check_queue(window, 128, 1000);
    let mut outside = vec![0; 1 << 20];
    for at in [0, 2 << 20] {
        disk.read(at, &mut outside).unwrap();
        assert!(outside.iter().all(|&b| b == 0xEE), "a write left the window");
    }
    let sector = u64::from(disk.sector_size());
    let large = Window::with_sector_size(Arc::clone(&disk), sector, None, 4096).unwrap();
    assert_eq!((large.sector_size(), large.size()), (4096, (3 << 20) - 4096));
    assert!(matches!(large.read(512, &mut [0; 4096]), Err(DeviceError::Misaligned { .. })));
    assert!(Window::new(Arc::clone(&disk), 100, None).is_err());
    assert!(Window::new(Arc::clone(&disk), 4 << 20, None).is_err());
    assert!(Window::new(Arc::clone(&disk), 1 << 20, Some(3 << 20)).is_err());
    assert!(Window::new(Arc::clone(&disk), sector, Some(u64::MAX)).is_err());
    assert!(Window::with_sector_size(Arc::new(large), 0, None, 512).is_err());
}

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn attach(image: &Path, sector: u32) -> Self {
        let mut losetup = Command::new("losetup");
        losetup
            .args(["--find", "--show", "--direct-io=off", "--sector-size", &sector.to_string()])
            .arg(image);
        let output = losetup.output().expect("losetup");
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(std::thread::panicking() || detached.is_ok_and(|s| s.success()));
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_block_device() {
    let dir = dir();
    for sector in [512, 4096] {
        let path = image(&dir, IMAGE_BYTES);
        let disk = Loop::attach(&path, sector);
        {
            let device = FileDevice::open_writable(&disk.0).unwrap();
            assert_eq!((device.size(), device.sector_size()), (IMAGE_BYTES, sector));
            assert_eq!(device.host_io(), HostIo::Direct);
            assert!(matches!(FileDevice::open_writable(&disk.0), Err(DeviceError::Locked)));
            FileDevice::open(&disk.0).unwrap();
            common::check_blocking(&device, 200);
            let device: Arc<dyn BlockDevice> = Arc::new(device);
            common::check_refusals(&device);
            common::check_queue(device, 128, 1000);
        }
        assert_eq!(FileOptions::new().sector_size(512).open(&disk.0).is_ok(), sector == 512);
        FileDevice::open_writable(&disk.0).unwrap();
    }
}
