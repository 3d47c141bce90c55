//! The smallest logs that `mkfs.xfs` makes, and the default ones of volumes with large blocks: each change that a user can ask
//! for fits into them. Needs a release of xfsprogs.
#![forbid(unsafe_code)]

mod common;

use common::{run, scratch, uxfs_ok};
use oracles::xfsprogs::Release;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest `mkfs.xfs` with these options, on a new sparse file: what it says on standard error if it fails.
fn mkfs(image: &Path, bytes: u64, options: &[&str]) -> Result<(), String> {
    File::create(image).unwrap().set_len(bytes).unwrap();
    let mut mkfs = Command::new(Release::Unstable.path("mkfs.xfs").unwrap());
    let output = mkfs.args(["-q", "-f", "--unsupported"]).args(options).arg(image).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
}

/// Blocks of the smallest log that it makes with these options.
fn least_log(image: &Path, bytes: u64, options: &[&str]) -> u64 {
    const FAR_TOO_SMALL: &str = "size=2m";
    let said = mkfs(image, bytes, &[options, &["-l", FAR_TOO_SMALL]].concat()).expect_err("too small");
    let (_, least) = said.split_once("minimum size is ").unwrap_or_else(|| panic!("{said}"));
    least.split_whitespace().next().unwrap().parse().unwrap()
}

/// Makes, moves, replaces, shares and removes things of every kind.
fn change_everything(image: &Path) {
    let dir = scratch();
    let content = dir.path().join("content");
    std::fs::write(&content, vec![7; 300 << 10]).unwrap();
    let at = |path: &str| PathBuf::from(format!("{}:{path}", image.display()));
    uxfs_ok(&[&"cp", &content, &at("/a")]);
    uxfs_ok(&[&"mv", &"-T", &at("/a"), &at("/b")]);
    uxfs_ok(&[&"mkdir", &at("/dir")]);
    uxfs_ok(&[&"ln", &at("/b"), &at("/dir/linked")]);
    uxfs_ok(&[&"mv", &"-T", &at("/dir/linked"), &at("/moved")]);
    uxfs_ok(&[&"ln", &"-s", &"target", &at("/symlink")]);
    uxfs_ok(&[&"cp", &"--replace", &content, &at("/b")]);
    uxfs_ok(&[&"cp", &at("/b"), &at("/clone")]);
    uxfs_ok(&[&"cp", &"-r", &at("/dir"), &at("/again")]);
    uxfs_ok(&[&"xattr", &"set", &at("/b"), &"user.long", &"v".repeat(60_000)]);
    uxfs_ok(&[&"mv", &"-T", &at("/clone"), &at("/b")]);
    uxfs_ok(&[&"truncate", &"-s", &"5000", &at("/b")]);
    uxfs_ok(&[&"truncate", &"-s", &"0", &at("/moved")]);
    uxfs_ok(&[&"rm", &"-r", &at("/dir"), &at("/moved"), &at("/symlink")]);
    run("xfs_repair", &[&"-n", &image]);
    uxfs_ok(&[&"check", &image]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn every_change_fits_into_the_log_of_a_volume_with_large_blocks() {
    let dir = scratch();
    let image = dir.path().join("volume.img");
    for bytes in [2 << 30, 16 << 30_u64] {
        for block in ["size=16384", "size=32768", "size=65536"] {
            mkfs(&image, bytes, &["-b", block]).unwrap();
            change_everything(&image);
        }
        // What uxfs makes has the same log.
        std::fs::remove_file(&image).unwrap();
        uxfs_ok(&[&"mkfs", &"-q", &"-b", &"size=64k", &image, &bytes.to_string()]);
        change_everything(&image);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn every_change_fits_into_the_smallest_log() {
    let dir = scratch();
    let image = dir.path().join("volume.img");
    for bytes in [1 << 30, 2 << 30, 40 << 30_u64] {
        for block in [1024, 4096, 8192, 32768, 65536_u64] {
            for directory in [4096, 65536] {
                let sizes = [format!("size={block}"), format!("size={}", block.max(directory))];
                let options = ["-b", &sizes[0], "-n", &sizes[1]];
                let log = format!("size={}", least_log(&image, bytes, &options) * block);
                mkfs(&image, bytes, &[&options[..], &["-l", &log]].concat()).unwrap();
                change_everything(&image);
            }
        }
    }
}
