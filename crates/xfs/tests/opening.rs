//! What opens and what is refused, and with which words: clean and dirty logs, foreign and damaged volumes.
#![forbid(unsafe_code)]

mod common;

use blockdev::FileOptions;
use common::{Image, run};
use std::sync::Arc;
use xfs::Error;
use xfs::namespace::Changes;
use xfs::setattr;
use xfs::volume::{OpenOptions, Volume};
use xfs_format::checksum;
use xfs_format::superblock::CRC_OFFSET;

/// Changes the superblock of an image and makes its checksum right again.
fn edit_superblock(image: &Image, edit: impl FnOnce(&mut [u8])) {
    let mut sector = [0; 512];
    image.device().read(0, &mut sector).unwrap();
    edit(&mut sector);
    assert!(checksum::store(&mut sector, CRC_OFFSET));
    image.patch(0, &sector);
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

const LOGS: [&[&str]; 6] = [
    &[],
    &["-l", "su=256k"],
    &["-l", "su=4k"],
    &["-s", "size=4096"],
    &["-s", "size=4096", "-l", "su=8k"],
    &["-b", "size=1024", "-m", "rmapbt=1"],
];

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_log_is_clean_after_mkfs_and_unmount_and_dirty_after_a_crash() {
    for args in LOGS {
        let image = Image::mkfs(400 << 20, args);
        assert!(image.open().unwrap().log_is_clean(), "after mkfs {args:?}");
        for round in 0..4 {
            let mount = image.mount("");
            for n in 0..50 * round {
                std::fs::write(mount.join(format!("{round}-{n}")), b"x").unwrap();
            }
            mount.unmount();
            assert!(image.open().unwrap().log_is_clean(), "unmount {round} of {args:?}");
        }
        for flush in [true, false] {
            let mount = image.mount("");
            std::fs::write(mount.join(format!("crash-{flush}")), b"x").unwrap();
            run("sync", &["-f", mount.dir().to_str().unwrap()]);
            let command = if flush { "shutdown -f" } else { "shutdown" };
            std::fs::write(mount.join("last"), b"x").unwrap();
            run("xfs_io", &["-x", "-c", command, mount.dir().to_str().unwrap()]);
            mount.unmount();
            let volume = image.open().unwrap();
            assert!(!volume.log_is_clean() && volume.recovery().is_some(), "{command} of {args:?}");
            let options = OpenOptions { norecovery: true, ..OpenOptions::default() };
            let volume = Volume::open(image.device(), &options).unwrap();
            assert!(!volume.log_is_clean() && volume.recovery().is_none());
            volume.stat().unwrap();
            drop(volume);
            image.mount("").unmount();
            assert!(image.open().unwrap().log_is_clean(), "after recovery of {args:?}");
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_log_that_went_round_is_understood() {
    // Every log force is padded to the stripe unit: a few hundred go once round.
    let image = Image::mkfs(400 << 20, &["-l", "su=256k,size=64m"]);
    for round in 0..3 {
        let mount = image.mount("");
        for n in 0..150 {
            std::fs::File::create(mount.join(format!("{round}-{n}"))).unwrap().sync_all().unwrap();
        }
        mount.unmount();
        let volume = image.open().unwrap();
        assert!(volume.log_is_clean());
    }
    let lsn = image.open().unwrap().superblock().lsn();
    assert!(lsn.0 >> 32 > 1, "the log never went round: {:#x}", lsn.0);
    let mount = image.mount("");
    std::fs::write(mount.join("last"), b"x").unwrap();
    run("xfs_io", &["-x", "-c", "shutdown -f", mount.dir().to_str().unwrap()]);
    mount.unmount();
    assert!(image.open().unwrap().recovery().is_some());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn old_logs_are_clean_after_mkfs() {
    for args in
        [&["-m", "crc=0"][..], &["-m", "crc=0", "-l", "version=1"], &["-m", "crc=0", "-b", "size=512"]]
    {
        let image = Image::mkfs(400 << 20, args);
        assert!(image.open().unwrap().log_is_clean(), "{args:?}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_not_xfs() {
    let image = Image::blank(64 << 20);
    assert!(matches!(image.open(), Err(Error::NotXfs)));
    let image = Image::blank(0);
    assert!(matches!(image.open(), Err(Error::NotXfs)));
    let image = Image::mkfs(400 << 20, &[]);
    image.patch(0, b"NOPE");
    assert!(matches!(image.open(), Err(Error::NotXfs)));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_truncated_image() {
    let image = Image::mkfs(400 << 20, &[]);
    let file = std::fs::File::options().write(true).open(image.path()).unwrap();
    file.set_len(399 << 20).unwrap();
    let Err(Error::Truncated { expected, actual }) = image.open() else { panic!("must be refused") };
    assert_eq!((expected, actual), (400 << 20, 399 << 20));
    file.set_len(512).unwrap();
    assert!(matches!(image.open(), Err(Error::Truncated { .. })));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn features_are_refused_by_name() {
    let image = Image::mkfs(400 << 20, &[]);
    edit_superblock(&image, |sb| sb[216] |= 0x80);
    let Err(Error::UnsupportedFeature(name)) = image.open() else { panic!("must be refused") };
    assert_eq!(name, "incompatible feature bit 0x80000000");
    edit_superblock(&image, |sb| {
        sb[216] = 0;
        sb[218] |= 0x02;
    });
    let Err(Error::UnsupportedFeature(name)) = image.open() else { panic!("must be refused") };
    assert_eq!(name, "zoned");
    edit_superblock(&image, |sb| {
        sb[218] = 0;
        sb[219] |= 0x10;
    });
    assert!(matches!(image.open(), Err(Error::NeedsRepair)));
    edit_superblock(&image, |sb| {
        sb[219] &= !0x10;
        sb[212] = 0x80;
    });
    // Readable, but not writable.
    image.open().unwrap();
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let Err(Error::Unwritable(why)) = Volume::open(image.device(), &options) else {
        panic!("must be refused")
    };
    assert_eq!(why, "read-only compatible feature bit 0x80000000");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn external_logs_and_realtime_sections_are_refused() {
    let image = Image::blank(400 << 20);
    let other = image.beside("other");
    std::fs::File::create(&other).unwrap().set_len(128 << 20).unwrap();
    let (path, other) = (image.path(), other.to_str().unwrap().to_owned());
    let path = path.to_str().unwrap();
    run("mkfs.xfs", &["-q", "-f", "-l", &format!("logdev={other},size=64m"), path]);
    assert!(matches!(image.open(), Err(Error::ExternalLog)));
    run("mkfs.xfs", &["-q", "-f", "-m", "reflink=0", "-r", &format!("rtdev={other}"), path]);
    assert!(matches!(image.open(), Err(Error::Realtime)));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn version_4_cannot_be_written() {
    let image = Image::mkfs(400 << 20, &["-m", "crc=0"]);
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    assert!(matches!(Volume::open(image.device(), &options), Err(Error::Unwritable(_))));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_device_with_larger_sectors_than_the_volume() {
    let image = Image::mkfs(400 << 20, &[]);
    let device = blockdev::FileOptions::new().sector_size(4096).open(image.path()).unwrap();
    let result = Volume::open(Arc::new(device), &OpenOptions::default());
    assert!(matches!(result, Err(Error::SectorSize { volume: 512, device: 4096 })));
    let image = Image::mkfs(400 << 20, &["-s", "size=4096"]);
    let device = blockdev::FileOptions::new().sector_size(4096).open(image.path()).unwrap();
    let volume = Volume::open(Arc::new(device), &OpenOptions::default()).unwrap();
    volume.inode(volume.geometry().root).unwrap();
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_hundred_tebibytes_open_with_a_handful_of_reads() {
    // Only some file systems hold files as large as that.
    let image = Image::blank_in("/dev/shm", 100 << 40);
    run("mkfs.xfs", &["-q", "-f", "-K", "-l", "size=64m", image.path().to_str().unwrap()]);
    let counter = Arc::new(blockdev::Counter::new(image.device()));
    let volume =
        Volume::open(Arc::clone(&counter) as Arc<dyn blockdev::BlockDevice>, &OpenOptions::default());
    let volume = volume.unwrap();
    volume.inode(volume.geometry().root).unwrap();
    assert_eq!(volume.geometry().ag_count(), 100);
    let counts = counter.counts();
    assert!(counts.reads < 200, "{counts:?}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn damaged_superblocks_are_named() {
    let image = Image::mkfs(400 << 20, &[]);
    let sound = {
        let mut sector = vec![0; 512];
        image.device().read(0, &mut sector).unwrap();
        sector
    };
    image.patch(300, b"x");
    let error = image.open().unwrap_err().to_string();
    assert_eq!(
        error.split(" (").next(),
        Some("block at 512-byte sector 0: damaged: superblock: bad checksum")
    );
    image.patch(0, &sound);
    // Whatever two bytes are set to, it opens, or it is an error.
    let mut opened = 0;
    for at in 4..264 {
        for value in [[0, 0], [0xff, 0xff], [0, 1], [0x80, 0]] {
            edit_superblock(&image, |sb| set(sb, at, &value));
            opened +=
                u32::from(image.open().is_ok_and(|volume| volume.inode(volume.geometry().root).is_ok()));
            image.patch(0, &sound);
        }
    }
    assert!(opened > 0);
}

/// The kernel believes the counts of blocks and inodes of users and groups that it left, as long as the superblock says
/// that they are right: after a change of ours they are not.
#[test]
#[ignore = "needs root and xfsprogs"]
fn quota_is_to_be_counted_anew_after_a_change() {
    let image = Image::mkfs(300 << 20, &[]);
    let path = image.path();
    let qflags = || run("xfs_db", &["-r", "-c", "sb 0", "-c", "p qflags", path.to_str().unwrap()]);
    // Users and groups: counted, with limits, checked.
    edit_superblock(&image, |sb| set(sb, 176, &0x01c7_u16.to_be_bytes()));
    image.open().unwrap();
    assert_eq!(qflags().trim(), "qflags = 0x1c7", "open for reading");
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let device = || Arc::new(FileOptions::new().direct(false).write(true).open(image.path()).unwrap());
    let untouched = std::fs::read(image.path()).unwrap();
    Volume::open(device(), &options).unwrap().close().unwrap();
    assert!(std::fs::read(image.path()).unwrap() == untouched, "nothing was changed");
    let volume = Volume::open(device(), &options).unwrap();
    let root = volume.handle(volume.geometry().root).unwrap();
    let private = Changes { permissions: Some(0o700), ..Changes::default() };
    setattr::change(&volume, &root, &private, volume.now()).unwrap();
    volume.sync().unwrap();
    drop(volume);
    // Not closed: the log says it, with the change.
    assert_eq!(image.open().unwrap().superblock().raw().qflags.get(), 0x00c3);
    Volume::open(device(), &options).unwrap().close().unwrap();
    assert_eq!(qflags().trim(), "qflags = 0xc3");
    run("xfs_repair", &["-n", path.to_str().unwrap()]);
}
