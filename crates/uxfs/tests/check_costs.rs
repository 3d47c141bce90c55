//! What memory a check takes: it goes with what is in the volume, and not with how many groups that has.
#![forbid(unsafe_code)]

use std::path::Path;
use uxfs::{MkfsOptions, OpenOptions, check, grow, mkfs};

/// A group of the volumes here, and bytes that each may take beyond the first ones.
const GROUP: u64 = 16 << 20;
const PER_GROUP: u64 = 8;

/// The most bytes that a check has allocated at a time.
fn peak(image: &Path) -> u64 {
    let mut groups = 0;
    let counted = allocation_counter::measure(|| {
        let report = check(image, &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{:?}", report.findings);
        groups = report.groups;
    });
    println!("{groups} groups: {} bytes", counted.bytes_max);
    counted.bytes_max
}

#[test]
fn a_group_with_nothing_in_it_takes_next_to_no_memory() {
    const FEW: u64 = 200;
    const MANY: u64 = 1_200;
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = dir.path().join("volume.img");
    let options = MkfsOptions::new().size(GROUP).small(true);
    mkfs(&image, &options).expect("made");
    let peak_of = |groups: u64| {
        grow(&image, Some(groups * GROUP), &OpenOptions::new()).expect("grown");
        peak(&image)
    };
    let (few, many) = (peak_of(FEW), peak_of(MANY));
    assert!(many <= few + (MANY - FEW) * PER_GROUP, "{} bytes a group", (many - few) / (MANY - FEW));
}
