//! Growth where the partition table says little, or two say different things.
#![forbid(unsafe_code)]

use std::os::unix::fs::FileExt;
use uxfs::{ErrorKind, MkfsOptions, OpenOptions, Volume};

const MIB: u64 = 1 << 20;

struct Image(tempfile::NamedTempFile);

impl Image {
    /// Volumes of 16 MiB at these places.
    fn new(places: &[u64]) -> Self {
        let file = tempfile::Builder::new().prefix("uxfs-test-").tempfile_in("/dev/shm").expect("a file");
        file.as_file().set_len(80 * MIB).expect("long");
        for &place in places {
            let options = MkfsOptions::new().small(true).size(16 * MIB).offset(place);
            uxfs::mkfs(file.path(), &options).expect("made");
        }
        Self(file)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.as_file().write_all_at(bytes, at).expect("written");
    }

    /// A boot record with partitions of this kind: where each starts, and its length, in bytes.
    fn record(&self, kind: u8, partitions: &[(u64, u64)]) {
        let mut table = [0_u8; 512];
        for (entry, &(start, len)) in table[446..].chunks_exact_mut(16).zip(partitions) {
            entry[4] = kind;
            entry[8..12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
            entry[12..].copy_from_slice(&((len / 512) as u32).to_le_bytes());
        }
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        self.write(0, &table);
    }

    /// The copy of a GPT at the end, with one partition from 1 MiB to 70 MiB.
    fn copy_of_a_table(&self) {
        let last = 80 * MIB / 512 - 1;
        let mut entries = [0_u8; 512];
        entries[..16].fill(7);
        entries[32..40].copy_from_slice(&(MIB / 512).to_le_bytes());
        entries[40..48].copy_from_slice(&(70 * MIB / 512 - 1).to_le_bytes());
        let mut header = [0_u8; 512];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        for (place, value) in [(24, last), (40, 34), (48, last - 33), (72, last - 32)] {
            header[place..place + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        for (place, value) in [(80, 4), (84, 128), (88, crc32fast::hash(&entries))] {
            header[place..place + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        let crc = crc32fast::hash(&header[..92]);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        self.write(last * 512, &header);
        self.write((last - 32) * 512, &entries);
    }

    fn is_volume(&self, at: u64) -> bool {
        let mut magic = [0; 4];
        self.0.as_file().read_exact_at(&mut magic, at).expect("read");
        magic == *b"XFSB"
            && Volume::open(self.0.path(), &OpenOptions::new().offset(at).length(Some(16 * MIB))).is_ok()
    }
}

fn refused(image: &Image, other: Option<u64>, closed: bool) {
    let how = OpenOptions::new().offset(MIB).writable(true);
    let grown = if closed {
        uxfs::grow(image.0.path(), None, &how)
    } else {
        let volume = Volume::open(image.0.path(), &how).expect("open");
        let grown = volume.grow(None);
        volume.close().expect("closed");
        grown
    };
    let there = other.map(|at| image.is_volume(at));
    let error = grown.expect_err("it would lose what comes behind");
    assert!(matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Damaged), "{error}");
    assert!(there != Some(false), "the other volume is gone");
}

/// The first header of a GPT is gone, and its copy, as the image was made longer: what is left is the boot record that says
/// that there is one. It was taken for a partition that holds all.
#[test]
fn a_boot_record_that_protects_a_table_that_is_gone_is_no_partition() {
    let image = Image::new(&[MIB, 20 * MIB]);
    image.record(0xee, &[(512, 80 * MIB - 512)]);
    assert!(image.is_volume(20 * MIB));
    refused(&image, Some(20 * MIB), true);
}

/// The same where the header has its magic, and is damaged; an open volume grows all the same.
#[test]
fn an_open_volume_does_not_grow_where_the_table_is_damaged() {
    let image = Image::new(&[MIB]);
    image.record(0xee, &[(512, 80 * MIB - 512)]);
    image.write(512, b"EFI PART damaged");
    refused(&image, None, true);
    refused(&image, None, false);
}

/// A volume in the midst of a partition has not all of it.
#[test]
fn a_volume_in_the_midst_of_a_partition_does_not_grow_over_another_one_there() {
    let image = Image::new(&[MIB, 20 * MIB]);
    image.record(0x8e, &[(512 * 1024, 79 * MIB)]);
    assert!(image.is_volume(20 * MIB));
    refused(&image, Some(20 * MIB), true);
}

/// A disk that had a GPT was given an MBR by a program that knows no other: the copy at its end is not believed by a kernel,
/// as the boot record protects none.
#[test]
fn a_copy_that_was_left_of_another_table_is_not_believed() {
    let image = Image::new(&[MIB]);
    image.record(0x83, &[(MIB, 17 * MIB), (20 * MIB, 20 * MIB)]);
    image.write(20 * MIB, &vec![b'y'; 20 << 20]);
    assert_eq!(uxfs::partition(image.0.path(), 2).expect("two"), (20 * MIB, 20 * MIB));
    image.copy_of_a_table();
    assert_eq!(uxfs::partition(image.0.path(), 2).expect("two"), (20 * MIB, 20 * MIB));
    let how = OpenOptions::new().offset(MIB).writable(true);
    let grown = uxfs::grow(image.0.path(), None, &how).expect("as large as its partition");
    let mut second = vec![0; 20 << 20];
    image.0.as_file().read_exact_at(&mut second, 20 * MIB).expect("read");
    let changed = second.iter().filter(|&&byte| byte != b'y').count();
    assert_eq!((grown.to >> 20, changed), (17, 0), "size in MiB, and bytes of partition 2 that were written");
}

/// The length that was said is more than the volume's partition has: another volume lies behind it, what no mark names, or
/// nobody's room.
#[test]
fn a_volume_in_a_partition_does_not_grow_over_the_next_one() {
    let image = Image::new(&[MIB, 20 * MIB]);
    image.record(0x83, &[(MIB, 17 * MIB), (20 * MIB, 20 * MIB)]);
    let path = image.0.path();
    let refused_with = |length: u64, words: &str| {
        let before = std::fs::read(path).expect("read");
        let how = OpenOptions::new().offset(MIB).length(Some(length)).writable(true);
        let volume = Volume::open(path, &how).expect("open");
        let open = volume.grow(None).expect_err("refused while it is open");
        volume.close().expect("closed");
        drop(volume);
        let closed = uxfs::grow(path, None, &how).expect_err("refused");
        for refused in [open, closed] {
            assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
            assert!(refused.to_string().contains(words), "{refused}");
        }
        assert!(std::fs::read(path).expect("read") == before, "something was written");
    };
    refused_with(60 * MIB, "bytes 1048576 to 63963136 run over partition 2; give a smaller size");
    image.write(20 * MIB, &vec![b'y'; 20 << 20]);
    refused_with(60 * MIB, "run over partition 2");
    refused_with(20 * MIB, "run over partition 2");
    refused_with(18 * MIB, "run over the end of partition 1");
    let how = OpenOptions::new().offset(MIB).length(Some(17 * MIB));
    let grown = uxfs::grow(path, None, &how).expect("all of its partition");
    assert_eq!(grown.to, 17 * MIB);
}

/// What has the type of an entry that protects a GPT, and does not begin where such a one does, protects none: the copy that
/// was left was believed, and the volume grew over the second partition.
#[test]
fn an_entry_that_begins_elsewhere_protects_no_table() {
    let image = Image::new(&[MIB]);
    image.record(0x83, &[(MIB, 17 * MIB), (20 * MIB, 20 * MIB), (60 * MIB, MIB)]);
    image.write(446 + 2 * 16 + 4, &[0xee]);
    image.write(20 * MIB, &vec![b'y'; 20 << 20]);
    image.copy_of_a_table();
    let how = OpenOptions::new().offset(MIB).writable(true);
    let grown = uxfs::grow(image.0.path(), None, &how).expect("as large as its partition");
    let mut second = vec![0; 20 << 20];
    image.0.as_file().read_exact_at(&mut second, 20 * MIB).expect("read");
    assert!(grown.to == 17 * MIB && second.iter().all(|&byte| byte == b'y'), "{grown:?}");
    assert_eq!(uxfs::partition(image.0.path(), 3).expect("three"), (60 * MIB, MIB));
}

/// The copy of a table that no boot record protects had a volume grow over whatever lies in the partition that it names.
#[test]
fn a_table_that_nothing_protects_does_not_say_what_may_be_written() {
    for odd_record in [false, true] {
        let image = Image::new(&[MIB, 20 * MIB]);
        if odd_record {
            image.record(0x83, &[(MIB, 17 * MIB), (20 * MIB, 20 * MIB)]);
            // A flag that no boot record has.
            image.write(446, &[0x01]);
        }
        image.copy_of_a_table();
        for closed in [true, false] {
            refused(&image, Some(20 * MIB), closed);
        }
        image.write(20 * MIB, &vec![b'y'; 20 << 20]);
        refused(&image, None, true);
    }
}

/// Nor is a volume made beside it, whatever else may be lost.
#[test]
fn beside_a_table_that_is_gone_no_volume_is_made() {
    let image = Image::new(&[]);
    image.record(0xee, &[(512, 80 * MIB - 512)]);
    for overwrite in [false, true] {
        let options = MkfsOptions::new().small(true).size(16 * MIB).offset(MIB).overwrite(overwrite);
        let refused = uxfs::mkfs(image.0.path(), &options).expect_err("the table is damaged");
        assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    }
}
