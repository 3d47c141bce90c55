//! A volume that was idle and then crashed, and Debian's kernel: 6.1 refused what the log was covered by.
//!
//! Needs a package mirror the first time, and `qemu-system-x86_64`.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::BufReader;
use std::process::Command;
use uxfs::{MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Volume};
use witness::sandbox::{repair_finds_nothing, scratch};
use witness::{command, record};

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_distributions_kernel_replays_what_an_idle_log_is_covered_by() {
    let folder = scratch().unwrap();
    let (image, manifest) = (folder.path().join("image"), folder.path().join("manifest"));
    File::create(&image).unwrap().set_len(512 << 20).unwrap();
    // What that kernel knows.
    let features = MkfsFeatures::of_kernel("6.1").expect("known");
    uxfs::mkfs(&image, &MkfsOptions::new().features(features)).unwrap();
    let volume = Volume::open(&image, &OpenOptions::new().writable(true)).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    root.create_file(b"hello", &NewNode::default()).unwrap();
    (0..4).for_each(|_| volume.pass_idle_time().unwrap());
    drop((root, volume));
    let mut machine = Command::new(env!("CARGO_BIN_EXE_witness"));
    command::run(machine.arg("v4").args([&image, &manifest]).arg("--no-fill")).unwrap();
    let found = record::read(&mut BufReader::new(File::open(&manifest).unwrap())).unwrap();
    assert!(found.iter().any(|record| record.path == "/hello"), "{found:?}");
    repair_finds_nothing(&image).unwrap();
}
