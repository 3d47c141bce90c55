//! Chains of logical partitions, as `partx` reads them.

use std::os::unix::fs::FileExt;
use std::process::Command;

/// Number, first sector and sectors.
type Partition = (u32, u64, u64);

fn entry(kind: u8, first: u32, sectors: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&first.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    entry
}

fn record(entries: &[[u8; 16]]) -> Vec<u8> {
    let mut record = vec![0; 512];
    for (index, entry) in entries.iter().enumerate() {
        record[446 + index * 16..][..16].copy_from_slice(entry);
    }
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    record
}

/// What `partx` says, without extended partitions, and what we say, of boot records at these sectors.
fn both(records: &[(u64, &[[u8; 16]])]) -> [Vec<Partition>; 2] {
    let file = tempfile::Builder::new().prefix("uxfs-test-").tempfile_in("/dev/shm").expect("a file");
    file.as_file().set_len(8 << 20).expect("long");
    for (sector, entries) in records {
        file.as_file().write_all_at(&record(entries), sector * 512).expect("written");
    }
    let mut partx = Command::new("partx");
    partx.args(["--show", "--noheadings", "-o", "NR,START,SECTORS,TYPE"]).arg(file.path());
    let said = String::from_utf8(partx.output().expect("util-linux is installed").stdout).expect("text");
    let partition = |line: &str| {
        let mut words = line.split_whitespace();
        let mut number = || words.next().expect("a word").parse::<u64>().expect("a number");
        let found = (number() as u32, number(), number());
        (words.next() != Some("0x5")).then_some(found)
    };
    let place = |number| {
        let (start, length) = uxfs::partition(file.path(), number).ok()?;
        Some((number, start / 512, length / 512))
    };
    [said.lines().filter_map(partition).collect(), (1..20).filter_map(place).collect()]
}

/// The last two entries of a record were believed whatever is there, and so `IMAGE@6` named other bytes; or a link without
/// sectors was followed, and partitions of two chains had the same numbers.
#[test]
fn logical_partitions_are_numbered_as_partx_does() {
    let table = [entry(0x83, 64, 64), entry(0x05, 512, 4096)];
    let (here, link) = (entry(0x83, 8, 16), entry(0x05, 64, 64));
    let (first, second) = ([here, link], [entry(0x83, 8, 32)]);
    let chain = |first: &[[u8; 16]]| {
        both(&[(0, &table), (512, first), (576, &second), (1152, &[entry(0x83, 8, 99)])])
    };
    let plain = vec![(1, 64, 64), (5, 520, 16), (6, 584, 32)];
    assert_eq!(chain(&first), [plain.clone(), plain.clone()]);
    let empty_link = entry(0x05, 640, 0);
    for (what, first) in [
        ("the link first", [link, here, entry(0, 0, 0), entry(0, 0, 0)]),
        ("a third that reaches out", [here, link, entry(0x83, 100, 1 << 13), entry(0, 0, 0)]),
        ("a third and a fourth", [here, link, entry(0x41, 5000, 5000), entry(0x20, 0x4e_4e4e, 0x1234)]),
        ("an empty link", [here, empty_link, link, entry(0, 0, 0)]),
        ("of no kind", [entry(0, 8, 16), link, entry(0, 0, 0), entry(0, 0, 0)]),
    ] {
        assert_eq!(chain(&first), [plain.clone(), plain.clone()], "{what}");
    }
    let [theirs, ours] = chain(&[here, link, entry(0x83, 40, 8), entry(0, 0, 0)]);
    assert_eq!((ours.len(), ours), (4, theirs), "a third within its record's partition");
    for (what, table) in [
        ("an extended one without sectors", [entry(0x83, 64, 64), entry(0x05, 0, 0)]),
        ("two extended ones", [entry(0x05, 512, 512), entry(0x05, 2048, 512)]),
    ] {
        let [theirs, ours] = both(&[(0, &table), (512, &second), (2048, &second)]);
        assert_eq!(ours, theirs, "{what}");
    }
}
