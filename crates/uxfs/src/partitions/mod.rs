//! Partition tables (GPT and MBR): the partitions by number and place, and the space between them.
//!
//! A table is trusted only if it is intact. A GPT needs right checksums; the copy at the device's end counts if the
//! first is damaged, unless there is an MBR with partitions of its own. An MBR needs valid flags. An MBR that protects
//! a missing GPT means damage. Bounded: at most [`MAX_ENTRIES`] entries are looked at, and a chain of logical
//! partitions only as far.

mod gpt;
mod mbr;

use crate::error::{Error, ErrorKind, Result};
use crate::probe::{self, Unread, View};
use blockdev::{BlockDevice, FileOptions};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a volume begins.
const XFS: &[u8; 4] = b"XFSB";
const MAX_ENTRIES: u32 = 256;
/// Partitions that a message lists.
const MAX_LISTED: usize = 16;

/// A partition: its number, and where it lies, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) number: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl Partition {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }
}

/// A device's partition table.
#[derive(Debug)]
pub(crate) struct Table {
    kind: &'static str,
    /// Whether a kernel trusts it too: a boot record protects the GPT.
    is_believed: bool,
    partitions: Vec<Partition>,
    /// Bytes outside of all partitions that hold the table itself.
    own: Vec<Range<u64>>,
}

/// The result of looking for a table.
enum Found {
    Nothing,
    /// A table with wrong checksums, or one that is gone.
    Damaged,
    Table(Table),
}

fn find(view: &View<'_>) -> Found {
    let protects = mbr::protects(view);
    match mbr::read(view) {
        // The MBR is the newer table: the remaining copy of a GPT is from an earlier use of the disk.
        Some(table) if !protects => Found::Table(table),
        _ => match gpt::read(view) {
            Some(table) => Found::Table(Table { is_believed: protects, ..table }),
            None if protects => Found::Damaged,
            None => Found::Nothing,
        },
    }
}

fn damaged() -> Error {
    Error::new(ErrorKind::Damaged, "the partition table (GPT) is damaged, and its copy is not there")
}

/// A device's partition table; an error if it cannot be trusted or read.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<Option<Table>> {
    let unread = Unread::default();
    let found = find(&View::whole(device, &unread));
    unread.check()?;
    match found {
        Found::Nothing => Ok(None),
        Found::Damaged => Err(damaged()),
        Found::Table(table) => Ok(Some(table)),
    }
}

/// Where the partition of this number lies in an image file or on a block device: offset and length in bytes.
///
/// ```no_run
/// # fn main() -> Result<(), uxfs::Error> {
/// let (offset, length) = uxfs::partition("disk.img", 2)?;
/// let options = uxfs::OpenOptions::new().offset(offset).length(Some(length));
/// let volume = uxfs::Volume::open("disk.img", &options)?;
/// # Ok(())
/// # }
/// ```
pub fn partition(image: impl AsRef<Path>, number: u32) -> Result<(u64, u64)> {
    let device = FileOptions::new().direct(false).open(image)?;
    let Some(table) = read(&device)? else {
        let what = format!("there is no partition {number}, as there is no partition table");
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    let Some(found) = table.partitions.iter().find(|partition| partition.number == number) else {
        let what = format!("there is no partition {number}: {}", table.numbers());
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    if found.end() > device.size() {
        let (end, size) = (found.end(), device.size());
        let what =
            format!("partition {number} ends at byte {end}, past the end of the image of {size} bytes");
        return Err(Error::new(ErrorKind::Truncated, what));
    }
    Ok((found.start, found.length))
}

/// Whether an image file holds an XFS volume, which begins at its start or is in one of its partitions. What cannot be
/// read holds none.
pub fn holds_volume(image: impl AsRef<Path>) -> bool {
    let image = image.as_ref();
    let mut first = [0; 512];
    if File::open(image).and_then(|file| file.read_at(&mut first, 0)).is_err() {
        return false;
    }
    // Each table has a boot record, or one that protects it. Most files have none.
    if first.starts_with(XFS) || !first.ends_with(&mbr::SIGNATURE) {
        return first.starts_with(XFS);
    }
    let Ok(device) = FileOptions::new().direct(false).open(image) else { return false };
    let (Ok(Some(table)), unread) = (read(&device), Unread::default()) else { return false };
    let view = View::whole(&device, &unread);
    let begins = |partition: &Partition| view.part(partition.start, partition.length)?.bytes::<4>(0);
    table.partitions.iter().any(|partition| begins(partition).is_some_and(|bytes| bytes == *XFS))
}

impl Table {
    /// Fails for a GPT that no boot record protects, like the leftover copy of an old one: it may forbid writes, but
    /// cannot allow them.
    pub(crate) fn check_believed(&self) -> Result<()> {
        if self.is_believed {
            return Ok(());
        }
        let what = "no boot record protects the partition table (GPT), which may be a disk's of before: restore the boot \
                    record, or remove the table and its copy at the end";
        Err(Error::new(ErrorKind::Damaged, what))
    }

    /// The partition that begins at this byte.
    pub(crate) fn beginning_at(&self, start: u64) -> Option<Partition> {
        self.partitions.iter().find(|partition| partition.start == start).copied()
    }

    /// All partitions.
    pub(crate) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// The partition inside of which this byte lies, but not at its start.
    pub(crate) fn around(&self, byte: u64) -> Option<Partition> {
        self.partitions.iter().find(|one| one.start < byte && byte < one.end()).copied()
    }

    /// The partition that holds this byte.
    pub(crate) fn holding(&self, byte: u64) -> Option<Partition> {
        self.partitions.iter().find(|one| one.start <= byte && byte < one.end()).copied()
    }

    /// How many bytes are free from this byte on: up to the end of its partition, or else up to the next partition or
    /// part of the table. `None`: nothing follows.
    pub(crate) fn room_at(&self, byte: u64) -> Option<u64> {
        if let Some(partition) = self.holding(byte) {
            return Some(partition.end() - byte);
        }
        let starts = self.partitions.iter().map(|one| one.start).chain(self.own.iter().map(|own| own.start));
        starts.filter(|&start| start > byte).min().map(|start| start - byte)
    }

    /// Lists the partitions in words.
    pub(crate) fn numbers(&self) -> String {
        let numbers: Vec<String> =
            self.partitions.iter().take(MAX_LISTED).map(|partition| partition.number.to_string()).collect();
        let more = if self.partitions.len() > MAX_LISTED { ", …" } else { "" };
        match numbers.len() {
            0 => format!("the {} partition table has none", self.kind),
            _ => format!("the {} partition table has {}{more}", self.kind, numbers.join(", ")),
        }
    }

    /// The part of the table, or the partition, that would be lost if these bytes were written. They may lie within
    /// one partition, but not overlap one in part.
    pub(crate) fn in_the_way(&self, of: &Range<u64>) -> Option<InTheWay> {
        let meets = |other: &Range<u64>| of.start < other.end && other.start < of.end;
        if self.own.iter().any(meets) {
            return Some(InTheWay::Table);
        }
        let holds = |one: &Partition| one.start <= of.start && of.end <= one.end();
        let cut = |one: &&Partition| meets(&(one.start..one.end())) && !holds(one);
        let mut cut: Vec<&Partition> = self.partitions.iter().filter(cut).collect();
        // The partition that the volume was meant for is the least helpful answer.
        cut.sort_by_key(|one| one.start == of.start);
        let name = |one: &&Partition| match one.start == of.start {
            true => InTheWay::Behind(one.number),
            false => InTheWay::Partition(one.number),
        };
        cut.first().map(name)
    }
}

/// What would be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// A part of the table itself.
    Table,
    /// The partition of this number, or a part of it.
    Partition(u32),
    /// The bytes begin in the partition of this number and reach past its end.
    Behind(u32),
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => f.write_str("the partition table"),
            Self::Partition(number) => write!(f, "partition {number}"),
            Self::Behind(number) => write!(f, "the end of partition {number}"),
        }
    }
}

/// A device's partition table in words, with the options that open each volume in it; `None` if there is none.
pub(crate) fn describe(view: &View<'_>) -> Option<String> {
    use fmt::Write;
    let table = match find(view) {
        Found::Nothing => return None,
        Found::Damaged => return Some("a whole disk with a damaged GPT partition table".to_owned()),
        Found::Table(table) => table,
    };
    let kind = table.kind;
    let article = if kind == "GPT" { "a" } else { "an" };
    let mut text = format!("a whole disk with {article} {kind} partition table; name the partition to open");
    if let Some(first) = table
        .partitions
        .iter()
        .find(|one| inside(view, one) == Some("an XFS volume"))
        .or(table.partitions.first())
    {
        // Writing to a string does not fail.
        let _ = write!(text, " (as IMAGE@{}:/path, or by its place)", first.number);
    }
    text.push(':');
    for (listed, partition) in table.partitions.iter().enumerate() {
        if listed == MAX_LISTED {
            text.push_str(" …");
            break;
        }
        let what = inside(view, partition).unwrap_or("no known volume");
        let _ = write!(
            text,
            "{} partition {} ({what}): --offset {} --length {}",
            if listed == 0 { "" } else { ";" },
            partition.number,
            partition.start,
            partition.length
        );
    }
    if table.partitions.is_empty() {
        text.push_str(" it has none");
    }
    Some(text)
}

/// The content of a partition.
fn inside(view: &View<'_>, partition: &Partition) -> Option<&'static str> {
    probe::describe(&view.part(partition.start, partition.length)?)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{BlockDevice, Durability, MemoryDevice};
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    fn entry(flag: u8, kind: u8, first: u32, sectors: u32) -> [u8; 16] {
        let mut entry = [0; 16];
        entry[0] = flag;
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        entry
    }

    fn boot_record(entries: &[[u8; 16]]) -> Vec<u8> {
        let mut record = vec![0; 512];
        for (index, entry) in entries.iter().enumerate() {
            record[446 + index * 16..][..16].copy_from_slice(entry);
        }
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        record
    }

    fn device(parts: &[(u64, &[u8])]) -> MemoryDevice {
        let device = MemoryDevice::anonymous(1 << 20).unwrap();
        for (at, bytes) in parts {
            let mut sectors = bytes.to_vec();
            sectors.resize(bytes.len().next_multiple_of(512), 0);
            device.write(*at, &sectors, Durability::Volatile).unwrap();
        }
        device
    }

    #[test]
    fn primary_and_logical_partitions_are_listed() {
        let table = boot_record(&[entry(0x80, 0x83, 64, 64), entry(0, 0x05, 512, 1024)]);
        let first = boot_record(&[entry(0, 0x83, 8, 16), entry(0, 0x05, 64, 64)]);
        let second = boot_record(&[entry(0, 0x83, 8, 32)]);
        let device = device(&[(0, &table), (64 * 512, b"XFSB"), (512 * 512, &first), (576 * 512, &second)]);
        let text = describe(&View::whole(&device, &Unread::default())).unwrap();
        assert!(text.starts_with("a whole disk with an MBR partition table"), "{text}");
        assert!(text.contains("partition 1 (an XFS volume): --offset 32768 --length 32768"), "{text}");
        assert!(text.contains("partition 5 (no known volume): --offset 266240 --length 8192"), "{text}");
        assert!(text.contains("partition 6 (no known volume): --offset 299008 --length 16384"), "{text}");
    }

    #[test]
    fn a_chain_that_turns_back_ends() {
        let table = boot_record(&[entry(0, 0x05, 64, 1024)]);
        let turn = boot_record(&[entry(0, 0x83, 8, 16), entry(0, 0x05, 0, 64)]);
        let device = device(&[(0, &table), (64 * 512, &turn)]);
        let found = read(&device).unwrap().expect("a table");
        assert_eq!(found.partitions, [Partition { number: 5, start: 72 * 512, length: 16 * 512 }]);
    }

    /// Only the first entry counted as a partition, and only the second as the link.
    #[test]
    fn what_leads_on_may_come_first() {
        let table = boot_record(&[entry(0, 0x05, 512, 1024)]);
        let first = boot_record(&[entry(0, 0x05, 64, 64), entry(0, 0x83, 8, 16)]);
        let second = boot_record(&[entry(0, 0x83, 8, 32)]);
        let device = device(&[(0, &table), (512 * 512, &first), (576 * 512, &second)]);
        let found = read(&device).unwrap().expect("a table");
        let place = |partition: &Partition| (partition.number, partition.start / 512, partition.length / 512);
        assert_eq!(found.partitions.iter().map(place).collect::<Vec<_>>(), [(5, 520, 16), (6, 584, 32)]);
    }

    #[test]
    fn logical_partitions_whose_record_is_gone_are_somebody_s() {
        let device = device(&[(0, &boot_record(&[entry(0, 0x05, 512, 1024)]))]);
        let table = read(&device).unwrap().expect("a table");
        assert_eq!((table.partitions.len(), table.room_at(100 * 512)), (0, Some(412 * 512)));
    }

    #[test]
    fn guid_partitions_are_listed() {
        let (header, entries) = guid_table(1, 2);
        let device = device(&[(512, &header), (1024, &entries), (51200, b"XFSB")]);
        let text = describe(&View::whole(&device, &Unread::default())).unwrap();
        assert!(text.ends_with("partition 2 (an XFS volume): --offset 51200 --length 51200"), "{text}");
    }

    /// A header at this sector, and entries for another: the second partition has sectors 100 to 199.
    fn guid_table(at: u64, entries_at: u64) -> (Vec<u8>, Vec<u8>) {
        let mut entries = vec![0; 512];
        entries[128..144].fill(7);
        entries[160..168].copy_from_slice(&100u64.to_le_bytes());
        entries[168..176].copy_from_slice(&199u64.to_le_bytes());
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        for (place, value) in [(24, at), (40, 34), (48, 2014), (72, entries_at)] {
            header[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (place, value) in [(80, 4), (84, 128), (88, crc32fast::hash(&entries))] {
            header[place..place + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        let crc = crc32fast::hash(&header[..92]);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        (header, entries)
    }

    #[test]
    fn a_damaged_table_is_not_believed_and_its_copy_is() {
        let (mut header, entries) = guid_table(1, 2);
        let (copy, _) = guid_table(2047, 2015);
        header[40] ^= 1;
        let protective = boot_record(&[entry(0, 0xee, 1, 2047)]);
        let first: [(u64, &[u8]); 3] = [(0, &protective), (512, &header), (1024, &entries)];
        let whole = device(&[&first[..], &[(2047 * 512, &copy), (2015 * 512, &entries)]].concat());
        let table = read(&whole).unwrap().expect("the copy");
        assert_eq!(table.partitions, [Partition { number: 2, start: 51200, length: 51200 }]);
        assert_eq!(read(&device(&first)).unwrap_err().kind(), ErrorKind::Damaged);
        // An image whose table was replaced by another kind.
        assert!(read(&device(&first[1..])).unwrap().is_none());
    }

    #[test]
    fn what_lies_in_the_way_of_a_volume_is_named() {
        let (header, entries) = guid_table(1, 2);
        let device = device(&[(512, &header), (1024, &entries)]);
        let table = read(&device).unwrap().unwrap();
        let in_the_way = |first: u64, last: u64| table.in_the_way(&(first * 512..last * 512));
        assert_eq!(in_the_way(100, 200), None);
        assert_eq!(in_the_way(120, 150), None);
        assert_eq!(in_the_way(34, 100), None);
        assert_eq!(in_the_way(200, 2015), None);
        assert_eq!(in_the_way(100, 201), Some(InTheWay::Behind(2)));
        assert_eq!(in_the_way(101, 201), Some(InTheWay::Partition(2)));
        assert_eq!(in_the_way(34, 101), Some(InTheWay::Partition(2)));
        assert_eq!(in_the_way(33, 40), Some(InTheWay::Table));
        assert_eq!(in_the_way(200, 2016), Some(InTheWay::Table));
    }

    #[test]
    fn there_is_room_up_to_what_is_somebody_elses() {
        let (header, entries) = guid_table(1, 2);
        let device = device(&[(512, &header), (1024, &entries)]);
        let table = read(&device).unwrap().unwrap();
        let room_at = |sector: u64| table.room_at(sector * 512).map(|bytes| bytes / 512);
        assert_eq!(room_at(100), Some(100), "the partition");
        assert_eq!(room_at(150), Some(50), "the rest of it");
        assert_eq!(room_at(34), Some(66), "up to the partition");
        assert_eq!(room_at(200), Some(1815), "up to the table's copy");
        assert_eq!(room_at(2048), None);
    }

    #[test]
    fn a_boot_record_without_partitions_is_no_table() {
        assert!(describe(&View::whole(&device(&[]), &Unread::default())).is_none());
        assert!(describe(&View::whole(&device(&[(0, &boot_record(&[]))]), &Unread::default())).is_none());
        let odd = boot_record(&[entry(0x7f, 0x83, 1, 1)]);
        assert!(describe(&View::whole(&device(&[(0, &odd)]), &Unread::default())).is_none());
    }

    /// Number, first sector and sectors.
    type Listed = (u32, u64, u64);

    /// The result of `partx`, without extended partitions, and ours, for boot records at these sectors.
    fn both(records: &[(u64, &[[u8; 16]])]) -> [Vec<Listed>; 2] {
        let file = tempfile::Builder::new().prefix("uxfs-test-").tempfile_in("/dev/shm").expect("a file");
        file.as_file().set_len(8 << 20).expect("long");
        for (sector, entries) in records {
            file.as_file().write_all_at(&boot_record(entries), sector * 512).expect("written");
        }
        let mut partx = Command::new("partx");
        partx.args(["--show", "--noheadings", "-o", "NR,START,SECTORS,TYPE"]).arg(file.path());
        let said = String::from_utf8(partx.output().expect("util-linux is installed").stdout).expect("text");
        let listed = |line: &str| {
            let mut words = line.split_whitespace();
            let mut number = || words.next().expect("a word").parse::<u64>().expect("a number");
            let found = (number() as u32, number(), number());
            (words.next() != Some("0x5")).then_some(found)
        };
        let place = |number| {
            let (start, length) = partition(file.path(), number).ok()?;
            Some((number, start / 512, length / 512))
        };
        [said.lines().filter_map(listed).collect(), (1..20).filter_map(place).collect()]
    }

    /// The last two entries of a record were trusted, so `IMAGE@6` named other bytes. A link without sectors was
    /// followed, so partitions of two chains had the same numbers.
    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn logical_partitions_are_numbered_as_partx_does() {
        let table = [entry(0, 0x83, 64, 64), entry(0, 0x05, 512, 4096)];
        let (here, link) = (entry(0, 0x83, 8, 16), entry(0, 0x05, 64, 64));
        let (first, second) = ([here, link], [entry(0, 0x83, 8, 32)]);
        let chain = |first: &[[u8; 16]]| {
            both(&[(0, &table), (512, first), (576, &second), (1152, &[entry(0, 0x83, 8, 99)])])
        };
        let plain = vec![(1, 64, 64), (5, 520, 16), (6, 584, 32)];
        assert_eq!(chain(&first), [plain.clone(), plain.clone()]);
        let empty_link = entry(0, 0x05, 640, 0);
        for (what, first) in [
            ("the link first", [link, here, entry(0, 0, 0, 0), entry(0, 0, 0, 0)]),
            ("a third that reaches out", [here, link, entry(0, 0x83, 100, 1 << 13), entry(0, 0, 0, 0)]),
            (
                "a third and a fourth",
                [here, link, entry(0, 0x41, 5000, 5000), entry(0, 0x20, 0x4e_4e4e, 0x1234)],
            ),
            ("an empty link", [here, empty_link, link, entry(0, 0, 0, 0)]),
            ("of no kind", [entry(0, 0, 8, 16), link, entry(0, 0, 0, 0), entry(0, 0, 0, 0)]),
        ] {
            assert_eq!(chain(&first), [plain.clone(), plain.clone()], "{what}");
        }
        let [theirs, ours] = chain(&[here, link, entry(0, 0x83, 40, 8), entry(0, 0, 0, 0)]);
        assert_eq!((ours.len(), ours), (4, theirs), "a third within its record's partition");
        for (what, table) in [
            ("an extended one without sectors", [entry(0, 0x83, 64, 64), entry(0, 0x05, 0, 0)]),
            ("two extended ones", [entry(0, 0x05, 512, 512), entry(0, 0x05, 2048, 512)]),
        ] {
            let [theirs, ours] = both(&[(0, &table), (512, &second), (2048, &second)]);
            assert_eq!(ours, theirs, "{what}");
        }
    }
}
