//! Reads that fail once: what could not be read is not taken for nothing, and what was done is not said to have failed.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use common::files::{new_file, remove};
use std::sync::Arc;
use uxfs::{
    ErrorKind, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, Volume, check_device, mkfs_device,
};

const MIB: u64 = 1 << 20;

fn memory(bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(bytes).expect("memory"))
}

fn faulty(device: &Arc<dyn BlockDevice>) -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(Arc::clone(device), Vec::new()))
}

fn bytes(device: &Arc<dyn BlockDevice>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.size()).expect("small")];
    device.read(0, &mut bytes).expect("read");
    bytes
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let copy = memory(device.size());
    copy.write(0, &bytes(device), Durability::Volatile).expect("written");
    copy
}

/// Does it again and again, with the first read failing, the second, and so on, in longer steps from the tenth on, until none
/// of them fails. Gives how many did.
fn with_each_read_failing(mut attempt: impl FnMut(u64, &str) -> bool) -> usize {
    let all = std::iter::successors(Some(0_u64), |nth| Some(nth + 1 + nth / 10));
    all.take_while(|&nth| attempt(nth, &format!("read {nth} fails"))).count()
}

/// Has one of the next reads fail; gives its number.
fn fail(device: &FaultDevice, nth: u64) -> u64 {
    let number = device.seen(Op::Read) + nth;
    device.add(Fault::fail(Op::Read, number));
    number
}

/// An XFS volume, and another thing whose mark lies further in: what could not be read counted as nothing there, and was
/// written over unasked.
#[test]
fn nothing_is_made_over_what_cannot_be_read() {
    let xfs = memory(32 * MIB);
    mkfs_device(Arc::clone(&xfs), &MkfsOptions::new().small(true), true).expect("made");
    let btrfs = memory(32 * MIB);
    let mut sector = [0; 512];
    sector[0x40..0x48].copy_from_slice(b"_BHRfS_M");
    btrfs.write(0x1_0000, &sector, Durability::Volatile).expect("written");
    for device in [xfs, btrfs] {
        let before = bytes(&device);
        let count = with_each_read_failing(|nth, what| {
            let faulty = faulty(&device);
            let number = fail(&faulty, nth);
            let made = mkfs_device(faulty.clone(), &MkfsOptions::new().small(true), false);
            assert!(made.is_err(), "{what}");
            assert!(bytes(&device) == before, "{what}");
            faulty.seen(Op::Read) > number
        });
        assert!(count > 0, "{count} reads");
    }
}

/// A disk with two partitions.
fn partitioned() -> Arc<dyn BlockDevice> {
    let disk = memory(80 * MIB);
    let mut record = [0; 512];
    record[510..].copy_from_slice(&[0x55, 0xAA]);
    for (nth, (start, length)) in [(1, 32), (40, 32)].into_iter().enumerate() {
        let entry = &mut record[446 + 16 * nth..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&u32::try_from(start * MIB / 512).expect("small").to_le_bytes());
        entry[12..].copy_from_slice(&u32::try_from(length * MIB / 512).expect("small").to_le_bytes());
    }
    disk.write(0, &record, Durability::Volatile).expect("written");
    disk
}

#[test]
fn no_partition_is_lost_as_its_table_cannot_be_read() {
    let disk = partitioned();
    let options = MkfsOptions::new().small(true).offset(MIB);
    let before = bytes(&disk);
    let too_long = options.clone().length(Some(60 * MIB));
    let refused =
        |device: Arc<dyn BlockDevice>| mkfs_device(device, &too_long, false).map_err(|error| error.kind());
    assert_eq!(refused(Arc::clone(&disk)).map(drop), Err(ErrorKind::InvalidInput));
    with_each_read_failing(|nth, what| {
        let faulty = faulty(&disk);
        let number = fail(&faulty, nth);
        assert!(refused(faulty.clone()).is_err(), "{what}");
        assert!(bytes(&disk) == before, "{what}");
        faulty.seen(Op::Read) > number
    });
    // Nor does one grow there.
    mkfs_device(Arc::clone(&disk), &options, false).expect("made in its partition");
    let made = bytes(&disk);
    let behind = |device: &Arc<dyn BlockDevice>| bytes(device)[(40 * MIB) as usize..].to_vec();
    with_each_read_failing(|nth, what| {
        let disk = copy(&disk);
        let faulty = faulty(&disk);
        let options = OpenOptions::new().writable(true).offset(MIB);
        let volume = Volume::open_device(faulty.clone(), &options.length(Some(79 * MIB)));
        let Ok(volume) = volume else { panic!("{what}: it opens") };
        let number = fail(&faulty, nth);
        let grown = volume.grow(Some(60 * MIB));
        assert!(grown.is_err(), "{what}");
        drop(volume);
        assert!(behind(&disk) == made[(40 * MIB) as usize..], "{what}");
        faulty.seen(Op::Read) > number
    });
}

/// A volume with a file in many extents, whose maps and trees are read again and again.
fn scattered() -> Arc<dyn BlockDevice> {
    let device = memory(32 * MIB);
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).features(features), true).expect("made");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let [file, beside] = ["file", "beside"].map(|name| new_file(&volume, name));
    for nth in 0..300 {
        file.write_at(&[1; 4096], nth * 4096).expect("written");
        beside.write_at(&[2; 4096], nth * 4096).expect("written");
    }
    new_file(&volume, "new");
    drop((file, beside));
    volume.close().expect("closed");
    device
}

/// The name was gone, and the call failed; the file's blocks were nobody's until the volume was closed.
#[test]
fn what_loses_its_name_is_gone_and_its_blocks_are_free_again() {
    let made = scattered();
    for is_renamed in [false, true] {
        let count = with_each_read_failing(|nth, what| {
            let device = copy(&made);
            let faulty = faulty(&device);
            let options = OpenOptions::new().writable(true).cache_size(64 << 10);
            let volume = Volume::open_device(faulty.clone(), &options).expect("clean");
            let before = volume.info().expect("info").free_blocks;
            let number = fail(&faulty, nth);
            let root = volume.root().expect("root").as_dir();
            let done = root.and_then(|root| match is_renamed {
                true => root.rename(b"new", &root, b"file", Rename::Replace),
                false => root.remove_file(b"file"),
            });
            let was_struck = faulty.seen(Op::Read) > number;
            faulty.heal();
            let is_there = volume.metadata("/file").is_ok_and(|file| file.size > 0);
            if let Err(error) = &done {
                assert_eq!(error.kind(), ErrorKind::Io, "{what}");
            }
            if volume.sync().is_err() {
                // Half-way through the file.
                assert!(done.is_err(), "{what}");
                drop(volume);
                let again = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true));
                again.and_then(|volume| volume.close()).expect("recovered");
            } else {
                assert_eq!(is_there, done.is_err(), "{what}");
                let free = volume.info().expect("info").free_blocks;
                assert_eq!(free >= before + 300, !is_there, "{what}: {before} and {free} blocks are free");
                volume.close().expect("closed");
            }
            let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked");
            assert!(report.is_clean() && report.log_clean, "{what}: {:?}", report.findings);
            was_struck
        });
        assert!(count > 3, "{count} reads");
    }
}

/// Space that a file held, which could not be freed when its last handle went, is there for who needs it.
#[test]
fn what_could_not_be_freed_is_freed_where_space_is_short() {
    let device = scattered();
    let faulty = faulty(&device);
    let options = OpenOptions::new().writable(true).cache_size(64 << 10);
    let volume = Volume::open_device(faulty.clone(), &options).expect("clean");
    let file = volume.open_file("/file").expect("there");
    remove(&volume, "file");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let filler = root.create_file(b"filler", &NewNode::default()).expect("made").open().expect("a file");
    let before = volume.info().expect("info").free_blocks;
    faulty.add(Fault::fail(Op::Read, faulty.seen(Op::Read)).then(Repeat::Sticky));
    drop(file);
    faulty.heal();
    assert_eq!(volume.info().expect("info").free_blocks, before, "or nothing is tested");
    let mut at = 0;
    while filler.write_at(&[3; 4096], at).is_ok() {
        at += 4096;
    }
    assert!(at / 4096 > before, "{} blocks were written, of {before} and 300", at / 4096);
    drop((filler, root));
    volume.close().expect("closed");
    let report = check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings);
}
