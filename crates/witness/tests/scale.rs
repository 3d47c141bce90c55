//! A slice of the campaign of large things. Needs root, `xfs_repair` and a kernel with XFS.
#![forbid(unsafe_code)]

use std::process::Command;

fn scale(arguments: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_witness"));
    let output = command.arg("scale").args(arguments.split_whitespace()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "witness scale {arguments}: {}\n{}", output.status, said.concat());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_thousand_entries_and_extents() {
    scale("--entries 1000 --extents 1000");
}

/// A log that goes round, caches that are full, and threads that share one directory and one file.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_thousand_entries_and_extents_in_little_room() {
    scale("--entries 2000 --extents 1000 --block-size 1024 --log-mib 4 --cache-mib 1 --threads 4");
}
