//! A volume that has been idle, and then crashes: what covers its log is something that others can replay.
//!
//! A minute without work ended in a checkpoint with nothing in it, which `xfs_logprint` and kernels up to 6.1 fail on:
//! the log says that something is to be replayed, and there is nothing.
#![forbid(unsafe_code)]

mod common;

use common::{made, mounted, open, repair_finds_nothing};
use std::path::Path;
use std::process::Command;
use uxfs::{NewNode, Volume};

fn create(volume: &Volume, name: &str) {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let file = root.create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("a file");
    file.write_at(name.as_bytes(), 0).expect("written");
    file.sync().expect("synced");
}

/// What `xfs_logprint` finds to be replayed: the items of each transaction.
fn to_replay(image: &Path) -> String {
    let out = Command::new("xfs_logprint").arg("-t").arg(image).output().expect("xfs_logprint");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && !text.contains("ERROR"), "{:?}\n{text}", out.status);
    text
}

/// The shapes of logs that matter to how records are written.
const SHAPES: [&[&str]; 3] = [&[], &["-l", "su=16k"], &["-s", "size=4096"]];

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_crashes_after_it_was_idle_can_be_mounted() {
    for shape in SHAPES {
        for intervals in 0..=4 {
            let dir = tempfile::tempdir().expect("a folder");
            let image = made(dir.path(), shape);
            let volume = open(&image);
            create(&volume, "hello");
            for _ in 0..intervals {
                volume.pass_idle_time().expect("still open");
            }
            // As a process that is killed.
            drop(volume);
            let replay = to_replay(&image);
            if intervals >= 3 {
                assert_eq!(replay.matches("TRANS: tid").count(), 1, "{replay}");
                assert_eq!(replay.matches("type = XFS_LI_").count(), 0, "{replay}");
            }
            mounted(&image, |at| {
                assert_eq!(std::fs::read(at.join("hello")).expect("there"), b"hello");
                std::fs::write(at.join("by the kernel"), b"x").expect("written");
            });
            repair_finds_nothing(&image);
        }
    }
}

/// Covered, changed, covered again: each time the log has what came since, and nothing that was covered.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_is_idle_again_and_again_can_be_mounted_at_any_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = made(dir.path(), &[]);
    for round in 0..6 {
        let volume = open(&image);
        for nth in 0..3 {
            create(&volume, &format!("{round} {nth}"));
            for _ in 0..(round + nth) % 5 {
                volume.pass_idle_time().expect("still open");
            }
        }
        drop(volume);
        to_replay(&image);
        let copy = dir.path().join("copy.img");
        std::fs::copy(&image, &copy).expect("copied");
        mounted(&copy, |at| {
            for name in (0..=round).flat_map(|round| (0..3).map(move |nth| format!("{round} {nth}"))) {
                assert_eq!(std::fs::read(at.join(&name)).expect("there"), name.as_bytes());
            }
        });
        repair_finds_nothing(&copy);
    }
}
