//! Verbs on files that share blocks, as `cp` of the host makes them unasked: what would take a block from another file
//! ends with code 12 and leaves the image as it was. Needs root, mkfs.xfs and loop mounts.

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use std::path::Path;

fn assert_sound(image: &Path) {
    run("xfs_repair", &[&"-n", &image]);
}

/// Clones at the root, and in a tree beside files of their own.
fn cloned() -> Image {
    let image = Image::new(&[]);
    let mount = image.mount(&[]);
    let dir = mount.dir();
    let numbers: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(dir.join("b"), &numbers).unwrap();
    std::fs::create_dir_all(dir.join("tree/inner")).unwrap();
    for copy in ["a", "tree/inner/clone"] {
        run("cp", &[&"--reflink=always", &dir.join("b"), &dir.join(copy)]);
    }
    std::fs::write(dir.join("tree/inner/own"), &numbers).unwrap();
    std::fs::write(dir.join("tree/own"), "own").unwrap();
    std::fs::write(dir.join("other"), "other").unwrap();
    drop(mount);
    image
}

const SAID: &str = "shares blocks with other files";

#[test]
fn verbs_leave_shared_blocks_alone() {
    let image = cloned();
    let at = |path: &str| image.at(path);
    let host = scratch();
    let (text, tar) = (host.path().join("a"), host.path().join("a.tar"));
    std::fs::write(&text, "new content").unwrap();
    run("tar", &[&"-C", &host.path(), &"-cf", &tar, &"a"]);
    let before = std::fs::read(&image.path).unwrap();
    uxfs_fails(&[&"rm", &at("/a")], 12, SAID);
    uxfs_fails(&[&"rm", &"-f", &at("/a")], 12, SAID);
    uxfs_fails(&[&"truncate", &"-s", &"0", &at("/a")], 12, "shared with other files");
    uxfs_fails(&[&"truncate", &"-s", &"100", &at("/a")], 12, "shared with other files");
    uxfs_fails(&[&"truncate", &"-s", &"+1M", &at("/a")], 12, "shared with other files");
    uxfs_fails(&[&"mv", &at("/other"), &at("/a")], 12, SAID);
    uxfs_fails(&[&"ln", &"-f", &at("/other"), &at("/a")], 12, SAID);
    uxfs_fails(&[&"ln", &"-sf", &"other", &at("/a")], 12, SAID);
    uxfs_fails(&[&"cp", &text, &at("/a")], 12, "share");
    uxfs_fails(&[&"cp", &at("/other"), &at("/a")], 12, "share");
    uxfs_fails(&[&"cp", &"--replace", &text, &at("/a")], 12, SAID);
    uxfs_fails(&[&"cp", &"-a", &"--replace", &at("/other"), &at("/a")], 12, SAID);
    // What is named is what shares blocks, not what was to be copied or moved.
    let shared = "/a in the image shares blocks with other files, and is left as it is";
    let is_said = |source: &dyn std::fmt::Display| format!("uxfs: {source}: not copied: {shared}\n");
    uxfs_fails(&[&"cp", &text, &at("/a")], 12, &is_said(&text.display()));
    uxfs_fails(&[&"cp", &"--replace", &text, &at("/")], 12, &is_said(&text.display()));
    uxfs_fails(&[&"cp", &"-", &at("/a")], 12, &is_said(&"standard input"));
    uxfs_fails(&[&"cp", &at("/other"), &at("/a")], 12, shared);
    uxfs_fails(&[&"mv", &at("/other"), &at("/a")], 12, &format!("{}: /a: ", image.path.display()));
    std::fs::create_dir(host.path().join("inner")).unwrap();
    std::fs::write(host.path().join("inner/clone"), "new content").unwrap();
    let output = uxfs(&[&"cp", &"-r", &host.path().join("inner"), &at("/tree")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/inner/clone: not copied: /tree/inner/clone in the image shares"), "{said}");
    uxfs_fails(&[&"mv", &at("/a"), &at("/tree/inner/clone")], 12, ": /tree/inner/clone: ");
    // What is done with several files ends with 1 if some of it failed.
    let output = uxfs(&[&"rm", &at("/a"), &at("/b")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.matches(SAID).count()), (Some(1), 2), "{said}");
    let output = uxfs(&[&"untar", &"-i", &tar, &at("/")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("a: what has the name share"), "{said}");
    assert!(std::fs::read(&image.path).unwrap() == before, "the image has changed");
    assert_sound(&image.path);
}

/// `rm -r` removes what it can: a file that shares blocks stays whole, and so do the directories above it.
#[test]
fn a_tree_is_removed_but_for_files_that_share_blocks() {
    let image = cloned();
    let output = uxfs(&[&"rm", &"-r", &image.at("/tree")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/tree/inner/clone: ") && said.contains(SAID), "{said}");
    assert_sound(&image.path);
    // What belongs to the inode alone may change.
    uxfs_ok(&[&"chmod", &"600", &image.at("/a")]);
    uxfs_ok(&[&"xattr", &"set", &image.at("/a"), &"user.name", &"value"]);
    uxfs_ok(&[&"mv", &image.at("/a"), &image.at("/tree/a")]);
    assert_sound(&image.path);
    let mount = image.mount(&[]);
    let read = |path: &str| std::fs::read(mount.dir().join(path)).unwrap();
    for path in ["tree/a", "tree/inner/clone"] {
        assert!(read(path) == read("b"), "{path}");
    }
    assert!(!mount.dir().join("tree/inner/own").exists() && !mount.dir().join("tree/own").exists());
    for gone in ["b", "tree/a", "tree/inner/clone"] {
        std::fs::remove_file(mount.dir().join(gone)).unwrap();
    }
}

/// An inode without a name in a dirty log, whose blocks another file has: the volume is left to the kernel.
#[test]
fn recovery_leaves_shared_blocks_alone() {
    let image = cloned();
    let mount = image.mount(&[]);
    let a = std::fs::File::open(mount.dir().join("a")).unwrap();
    std::fs::remove_file(mount.dir().join("a")).unwrap();
    run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
    drop(a);
    drop(mount);
    let before = std::fs::read(&image.path).unwrap();
    uxfs_fails(&[&"recover", &image.path], 7, SAID);
    uxfs_fails(&[&"rm", &image.at("/other")], 7, SAID);
    let output = uxfs(&[&"recover", &"--dry-run", &image.path]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(7) && said.contains(SAID), "{said}");
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/other")]), b"other");
    assert!(std::fs::read(&image.path).unwrap() == before, "the image has changed");
    drop(image.mount(&[]));
    assert_sound(&image.path);
    uxfs_ok(&[&"rm", &image.at("/other")]);
}

/// Blocks that are staged for copy-on-write are nobody's yet: a file that has them is damaged, and its blocks are not
/// said to be another file's.
#[test]
fn a_file_on_blocks_that_are_staged_for_a_copy_is_damage() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        std::fs::write(mount.dir().join("a"), [1; 4096]).unwrap();
        run("cp", &[&"--reflink=always", &mount.dir().join("a"), &mount.dir().join("b")]);
        std::fs::write(mount.dir().join("own"), vec![2; 3 * 4096]).unwrap();
    }
    let shown = uxfs_ok(&[&"stat", &"--json", &"--extents", &image.at("/own")]);
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let first = shown["extent_list"][0]["physical"].as_u64().unwrap() / 4096;
    // The record of what the clones share tells of the middle of a file then.
    let record = format!("write recs[1].startblock {}", first + 1);
    let tree = [&"-x" as &dyn AsRef<std::ffi::OsStr>, &"-c", &"agf 0", &"-c", &"addr refcntroot"];
    let writes = [&"-c" as &dyn AsRef<std::ffi::OsStr>, &record, &"-c", &"write recs[1].refcount 1"];
    let staged = [&"-c" as &dyn AsRef<std::ffi::OsStr>, &"write recs[1].cowflag 1", &image.path];
    run("xfs_db", &[&tree[..], &writes[..], &staged[..]].concat());

    let before = std::fs::read(&image.path).unwrap();
    let said = "staged for copy-on-write";
    uxfs_fails(&[&"rm", &image.at("/own")], 5, said);
    uxfs_fails(&[&"truncate", &"-s", &"0", &image.at("/own")], 5, said);
    assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");
    let checked = uxfs(&[&"check", &image.path]);
    assert_eq!(checked.status.code(), Some(5));
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    let block = format!("block {}", first + 1);
    assert!(
        checked
            .lines()
            .any(|line| line.contains("extent: blocks that have another owner") && line.contains(&block)),
        "{checked} says nothing of {block}"
    );
}
