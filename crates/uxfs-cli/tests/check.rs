//! `uxfs check`: exit codes and output, on volumes that the kernel filled and on damaged ones.

mod common;

use common::{Image, run, uxfs, uxfs_fails};
use oracles::xfsprogs::Release;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

fn lines(output: &[u8]) -> Vec<Value> {
    output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(json).collect()
}

fn json(line: &[u8]) -> Value {
    serde_json::from_slice(line).expect("a JSON object a line")
}

#[test]
fn a_filled_volume_is_clean() {
    let image = Image::filled(&[]);
    let output = uxfs(&[&"check", &image.path]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.trim_end().ends_with(": clean") && said.lines().count() == 1, "{said}");

    let output = uxfs(&[&"check", &"--json", &image.path]);
    let lines = lines(&output.stdout);
    let summary = &lines[0]["summary"];
    assert_eq!((lines.len(), &summary["clean"], &summary["findings"]), (1, &true.into(), &0.into()));
    assert!(summary["names"].as_u64() > Some(10) && summary["log_clean"] == true, "{summary}");
}

#[test]
fn damage_is_said_finding_by_finding() {
    let image = Image::new(&[]);
    // A byte of the AGI's counters in the second group: its checksum is wrong then.
    let agi = (400 << 20) / 4 + 2 * 512;
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    file.write_all_at(&[0x55], agi + 19).unwrap();
    let output = uxfs(&[&"check", &image.path]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.starts_with("group 1: AGI: checksum"), "{said}");

    let output = uxfs(&[&"check", &"--json", &image.path]);
    let lines = lines(&output.stdout);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(
        (&lines[0]["group"], &lines[0]["structure"], &lines[0]["what"]),
        (&1.into(), &"AGI".into(), &"checksum".into())
    );
    assert_eq!(lines.last().unwrap()["summary"]["clean"], false);

    file.set_len(100 << 20).unwrap();
    uxfs_fails(&[&"check", &image.path], 5, "truncated");
    file.write_all_at(b"none", 0).unwrap();
    uxfs_fails(&[&"check", &image.path], 4, "not an XFS volume");
}

fn findings(image: &Image) -> (Option<i32>, Vec<Value>) {
    let output = uxfs(&[&"check", &"--json", &image.path]);
    let mut found = lines(&output.stdout);
    found.pop();
    (output.status.code(), found)
}

/// Switches the bit that says that inodes have parent pointers.
fn switch_parent_bit(image: &Image) {
    let db = Release::Unstable.path("xfs_db").unwrap();
    let db = db.to_str().unwrap();
    let said = run(db, &[&"-c", &"sb 0", &"-c", &"print features_incompat", &image.path]);
    let said = String::from_utf8(said).unwrap();
    let bits = u32::from_str_radix(said.trim().rsplit("0x").next().unwrap(), 16).unwrap();
    let write = format!("write features_incompat {:#x}", bits ^ 0x80);
    run(db, &[&"-x", &"-c", &"sb 0", &"-c", &write, &image.path]);
}

/// What the kernel keeps agrees; what someone changes who knows nothing of pointers does not, and is named. Both as
/// `xfs_repair` says.
#[test]
fn parent_pointers_are_compared_with_names() {
    let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &[]);
    let repair = || {
        let output = Command::new(Release::Unstable.path("xfs_repair").unwrap())
            .arg("-n")
            .arg(&image.path)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines().filter(|line| line.contains("parent pointer")).count()
    };
    let mount = image.mount(&[]);
    common::fill(mount.dir());
    let at = |name: &str| mount.dir().join(name);
    for name in ["kept", "more", "renamed", "linked", "unlinked"] {
        std::fs::create_dir(at(&format!("dir-{name}"))).unwrap();
        std::fs::write(at(name), name).unwrap();
    }
    // Pointers in leaves, in several directories, under one name and under many.
    for number in 0..600 {
        std::fs::hard_link(at("kept"), at(&format!("dir-kept/a-rather-long-name-of-a-link-{number}")))
            .unwrap();
    }
    std::fs::hard_link(at("kept"), at("dir-more/kept")).unwrap();
    std::fs::hard_link(at("unlinked"), at("dir-unlinked/unlinked")).unwrap();
    std::fs::rename(at("more"), at("dir-more/most")).unwrap();
    let inode = |name: &str| std::fs::symlink_metadata(at(name)).unwrap().ino();
    let changed = [inode("dir-renamed"), inode("renamed"), inode("linked"), inode("unlinked")];
    drop(mount);
    assert_eq!(repair(), 0);
    assert_eq!(findings(&image), (Some(0), Vec::new()));

    switch_parent_bit(&image);
    let mount = image.mount(&[]);
    let at = |name: &str| mount.dir().join(name);
    std::fs::rename(at("dir-renamed"), at("dir-more/dir")).unwrap();
    std::fs::rename(at("renamed"), at("new-name")).unwrap();
    std::fs::hard_link(at("linked"), at("dir-more/linked")).unwrap();
    std::fs::remove_file(at("dir-unlinked/unlinked")).unwrap();
    std::fs::write(at("made"), "made").unwrap();
    let made = std::fs::metadata(at("made")).unwrap().ino();
    drop(mount);
    switch_parent_bit(&image);
    // One to add or to remove, or one of each.
    assert_eq!(repair(), 7);
    let (code, found) = findings(&image);
    assert_eq!(code, Some(5));
    let what = |ino: u64| {
        let of: Vec<&Value> = found.iter().filter(|finding| finding["inode"] == ino).collect();
        assert_eq!(of.len(), 1, "{of:?}");
        assert_eq!(of[0]["structure"], "parent pointers");
        (of[0]["what"].as_str().unwrap(), of[0]["found"].as_u64(), of[0]["expected"].as_u64())
    };
    let [dir, renamed, linked, unlinked] = changed;
    assert_eq!(what(dir), ("directories or names that they say", None, None));
    assert_eq!(what(renamed), ("directories or names that they say", None, None));
    assert_eq!(what(linked), ("count: names without one", Some(1), Some(2)));
    assert_eq!(what(unlinked), ("count: pointers without a name", Some(2), Some(1)));
    assert_eq!(what(made), ("count: names without one", Some(0), Some(1)));
    assert_eq!(found.len(), 5, "{found:?}");
}

/// `mkfs.xfs` says in all copies of the superblock that there is quota, where its inodes are found by name.
#[test]
fn a_volume_that_was_made_with_quota_is_clean() {
    let options = ["-m", "uquota,gquota,pquota"];
    let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &options);
    run(Release::Unstable.path("xfs_repair").unwrap().to_str().unwrap(), &[&"-n", &image.path]);
    assert_eq!(findings(&image), (Some(0), Vec::new()));
}
