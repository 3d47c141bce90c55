//! `uxfs check`: exit codes and output, on volumes that the kernel filled and on damaged ones.
#![forbid(unsafe_code)]

mod common;

use common::forge::Forged;
use common::{Image, run, uxfs, uxfs_fails};
use oracles::xfsprogs::Release;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

fn lines(output: &[u8]) -> Vec<Value> {
    output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(json).collect()
}

fn json(line: &[u8]) -> Value {
    serde_json::from_slice(line).expect("a JSON object a line")
}

#[test]
#[ignore = "needs root and xfsprogs"]
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
#[ignore = "needs root and xfsprogs"]
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

fn findings(image: &Path) -> (Option<i32>, Vec<Value>) {
    let output = uxfs(&[&"check", &"--json", &image]);
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
#[ignore = "needs root and xfsprogs"]
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
    assert_eq!(findings(&image.path), (Some(0), Vec::new()));

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
    let (code, found) = findings(&image.path);
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

/// A volume of so many groups, with the features of today.
fn today(groups: &str, size: &str) -> Forged {
    let dir = common::scratch();
    let forged = Forged { path: dir.path().join("volume.img"), dir };
    let groups = format!("agcount={groups}");
    common::uxfs_ok(&[&"mkfs", &"-q", &"--small", &"--compat", &"6.18", &"-d", &groups, &forged.path, &size]);
    forged
}

/// Where the attributes begin that an inode holds.
fn attributes(inode: &[u8]) -> usize {
    176 + usize::from(inode[82]) * 8
}

/// Where each attribute that an inode holds begins, and where the last one ends.
fn entries(inode: &[u8]) -> Vec<usize> {
    let at = attributes(inode);
    let len = |at: usize| 3 + usize::from(inode[at]) + usize::from(inode[at + 1]);
    (0..inode[at + 2]).fold(vec![at + 4], |mut found, _| {
        let last = found[found.len() - 1];
        found.push(last + len(last));
        found
    })
}

/// The inode's attributes end here, and are so many.
fn resize(inode: &mut [u8], end: usize, count: u8) {
    let at = attributes(inode);
    inode[at..at + 2].copy_from_slice(&((end - at) as u16).to_be_bytes());
    inode[at + 2] = count;
}

/// Leaves so many of the inode's attributes.
fn keep(inode: &mut [u8], count: u8) {
    let end = entries(inode)[usize::from(count)];
    resize(inode, end, count);
}

/// Adds a copy of the first parent pointer, with this name.
fn add_pointer(inode: &mut [u8], name: &[u8]) {
    let found = entries(inode);
    let (first, end, count) = (found[0]..found[1], found[found.len() - 1], found.len() as u8);
    let len = first.len();
    inode.copy_within(first, end);
    inode[end + 3..end + 3 + name.len()].copy_from_slice(name);
    resize(inode, end + len, count);
}

/// One thing of a file's two pointers, or of what they are about, is wrong at a time. It is named, and `xfs_repair` finds
/// it too.
#[test]
#[ignore = "needs root and xfsprogs"]
fn each_way_in_which_pointers_and_names_differ_is_named() {
    type Damage = fn(&mut [u8], u64);
    type Case = (&'static str, Damage, &'static str, &'static str, Option<(u64, u64)>);
    const SAY: &str = "directories or names that they say";
    const MISSING: &str = "count: names without one";
    const EXTRA: &str = "count: pointers without a name";
    let forged = today("1", "60M");
    for dir in ["/here", "/there"] {
        common::uxfs_ok(&[&"mkdir", &forged.at(dir)]);
    }
    let text = forged.dir.path().join("text");
    std::fs::write(&text, "text").unwrap();
    common::uxfs_ok(&[&"cp", &text, &forged.at("/here/one")]);
    common::uxfs_ok(&[&"ln", &forged.at("/here/one"), &forged.at("/here/two")]);
    let (file, there) = (forged.ino("/here/one"), forged.ino("/there"));
    let repair = || {
        let mut repair = Release::Unstable.tool("xfs_repair").unwrap();
        let output = repair.args(["-n", "-o", "force_geometry"]).arg(&forged.path).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    assert_eq!(repair().0, Some(0), "{}", repair().1);
    assert_eq!(findings(&forged.path), (Some(0), Vec::new()));

    // What is done to which inode, and what is said of it then: structure, what, found, expected.
    let of_file: [Case; 9] = [
        ("one is missing", |inode, _| keep(inode, 1), "parent pointers", MISSING, Some((1, 2))),
        ("all are missing", |inode, _| keep(inode, 0), "parent pointers", MISSING, Some((0, 2))),
        ("one too many", |inode, _| add_pointer(inode, b"six"), "parent pointers", EXTRA, Some((3, 2))),
        ("two for one link", |inode, _| add_pointer(inode, b"one"), "parent pointers", EXTRA, Some((3, 2))),
        (
            "two for one link, none for the other",
            |inode, _| {
                let second = entries(inode)[1];
                inode[second + 3..second + 6].copy_from_slice(b"one");
            },
            "parent pointers",
            SAY,
            None,
        ),
        (
            "another generation",
            |inode, _| {
                let first = entries(inode)[0];
                inode[first + 3 + 3 + 11] ^= 1;
            },
            "parent pointers",
            SAY,
            None,
        ),
        (
            "another name",
            |inode, _| {
                let first = entries(inode)[0];
                inode[first + 3] ^= 1;
            },
            "parent pointers",
            SAY,
            None,
        ),
        (
            "another directory",
            |inode, there| {
                let first = entries(inode)[0];
                inode[first + 6..first + 14].copy_from_slice(&there.to_be_bytes());
            },
            "parent pointers",
            SAY,
            None,
        ),
        ("another link count", |inode, _| inode[19] += 1, "inode", "link count: links without a name", None),
    ];
    let sound = std::fs::read(&forged.path).unwrap();
    let judge = |case: &str, ino: u64, expected: (&str, &str, Option<(u64, u64)>)| {
        let (code, found) = findings(&forged.path);
        assert_eq!((code, found.len()), (Some(5), 1), "{case}: {found:?}");
        let found = &found[0];
        let counts = found["found"].as_u64().zip(found["expected"].as_u64());
        let (structure, what) = (found["structure"].as_str().unwrap(), found["what"].as_str().unwrap());
        assert_eq!(
            (found["inode"].as_u64(), structure, what, counts),
            (Some(ino), expected.0, expected.1, expected.2),
            "{case}"
        );
        let (code, said) = repair();
        assert_eq!(code, Some(1), "{case}: xfs_repair: {said}");
        std::fs::write(&forged.path, &sound).unwrap();
    };
    for (case, damage, structure, what, counts) in of_file {
        forged.inode(file, |inode| damage(inode, there));
        judge(case, file, (structure, what, counts));
    }
    // A directory has one, too.
    forged.inode(there, |inode| keep(inode, 0));
    judge("a directory without", there, ("parent pointers", MISSING, Some((0, 1))));
    // A pointer that says too little of the directory.
    forged.inode(file, |inode| {
        let found = entries(inode);
        inode[found[1] + 1] -= 1;
        resize(inode, found[2] - 1, 2);
    });
    judge("a short value", file, ("parent pointers", "value", None));
    assert_eq!(findings(&forged.path), (Some(0), Vec::new()));
}

/// What a free inode must not have, and what a copy of the superblock says of the log: both were let be, and `xfs_repair`
/// of today finds them.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_nobody_uses_is_looked_at() {
    let forged = today("4", "128M");
    let sound = std::fs::read(&forged.path).unwrap();
    let group = u32::from_be_bytes(*sound[84..].first_chunk().unwrap()) as usize * 4096;
    let free = forged.ino("/") + 20;
    type Damage<'a> = &'a dyn Fn();
    let cases: [(Damage<'_>, &str); 5] = [
        (&|| forged.inode(free, |inode| inode[90] = 0x10), "flags of a free one"),
        (&|| forged.inode(free, |inode| inode[71] = 1), "block count of a free one"),
        (&|| forged.inode(free, |inode| inode[7] = 1), "link count of version 1"),
        (&|| forged.inode(free, |inode| inode[127] |= 4), "flags2 of a free one"),
        (&|| forged.sealed(2 * group, 512, 224, |sb| sb[223] = 1), "log-incompatible features"),
    ];
    for (damage, what) in cases {
        damage();
        let (code, found) = findings(&forged.path);
        assert_eq!((code, found.len()), (Some(5), 1), "{what}: {found:?}");
        assert_eq!(found[0]["what"], what);
        let mut repair = Release::Unstable.tool("xfs_repair").unwrap();
        let output = repair.arg("-n").arg(&forged.path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Of a copy it says so, and ends as if nothing were wrong.
        assert!(output.status.code() == Some(1) || said.contains("would sync"), "{what}: {said}");
        std::fs::write(&forged.path, &sound).unwrap();
    }
}

/// A leaf of attributes whose header calls a part of its table free: kernels would put the next name there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_table_of_attributes_that_is_called_free_is_found() {
    let forged = Forged::new("40M");
    let text = forged.dir.path().join("text");
    std::fs::write(&text, "text").unwrap();
    common::uxfs_ok(&[&"cp", &text, &forged.at("/file")]);
    for nth in 0..20 {
        common::uxfs_ok(&[&"xattr", &"set", &forged.at("/file"), &format!("user.{nth}"), &"v".repeat(40)]);
    }
    let bytes = std::fs::read(&forged.path).unwrap();
    let leaf = (0..bytes.len()).step_by(4096).find(|&at| bytes[at + 8..at + 10] == [0x3b, 0xee]).unwrap();
    assert_eq!(findings(&forged.path), (Some(0), Vec::new()));
    // The first free piece then begins with the header.
    forged.sealed(leaf, 4096, 12, |leaf| leaf[64..66].fill(0));
    let (code, found) = findings(&forged.path);
    assert_eq!((code, found.len()), (Some(5), 1), "{found:?}");
    assert_eq!((&found[0]["what"], &found[0]["found"]), (&"free map".into(), &0.into()));
    let mut repair = Release::Unstable.tool("xfs_repair").unwrap();
    let output = repair.args(["-n", "-o", "force_geometry"]).arg(&forged.path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `mkfs.xfs` says in all copies of the superblock that there is quota, where its inodes are found by name.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_was_made_with_quota_is_clean() {
    let options = ["-m", "uquota,gquota,pquota"];
    let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &options);
    run(Release::Unstable.path("xfs_repair").unwrap().to_str().unwrap(), &[&"-n", &image.path]);
    assert_eq!(findings(&image.path), (Some(0), Vec::new()));
}
