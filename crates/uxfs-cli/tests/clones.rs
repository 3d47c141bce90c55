//! Verbs on files that share blocks, as `cp` of the host makes them unasked: the others keep their content. Needs root,
//! mkfs.xfs and loop mounts.
#![forbid(unsafe_code)]

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

/// What another file has as well stays what it was, whatever becomes of the one that is named.
#[test]
#[ignore = "needs root and xfsprogs"]
fn verbs_leave_others_their_blocks() {
    let host = scratch();
    let (text, tar) = (host.path().join("a"), host.path().join("a.tar"));
    std::fs::write(&text, "new content").unwrap();
    run("tar", &[&"-C", &host.path(), &"-cf", &tar, &"a"]);
    let verbs: [(&[&str], Option<&str>); 12] = [
        (&["rm", "I:/a"], None),
        (&["truncate", "-s", "0", "I:/a"], Some("")),
        (&["truncate", "-s", "4096", "I:/a"], Some("0\n1\n2\n")),
        (&["mv", "I:/other", "I:/a"], Some("other")),
        (&["ln", "-f", "I:/other", "I:/a"], Some("other")),
        (&["ln", "-sf", "other", "I:/a"], Some("other")),
        (&["cp", "TEXT", "I:/a"], Some("new content")),
        (&["cp", "I:/other", "I:/a"], Some("other")),
        (&["cp", "--replace", "TEXT", "I:/a"], Some("new content")),
        (&["cp", "-a", "--replace", "I:/other", "I:/a"], Some("other")),
        (&["untar", "-i", "TAR", "I:/"], Some("new content")),
        (&["rm", "-r", "I:/tree"], Some("0\n1\n2\n")),
    ];
    for (verb, content) in verbs {
        let image = cloned();
        let args: Vec<std::ffi::OsString> = verb
            .iter()
            .map(|arg| match arg.strip_prefix("I:") {
                Some(path) => image.at(path),
                None if *arg == "TEXT" => text.clone().into(),
                None if *arg == "TAR" => tar.clone().into(),
                None => arg.into(),
            })
            .collect();
        let args: Vec<&dyn AsRef<std::ffi::OsStr>> = args.iter().map(|arg| arg as _).collect();
        uxfs_ok(&args);
        assert_sound(&image.path);
        let mount = image.mount(&[]);
        let read = |path: &str| std::fs::read_to_string(mount.dir().join(path)).unwrap();
        match content {
            None => assert!(!mount.dir().join("a").exists(), "{verb:?}"),
            Some(content) => assert!(read("a").starts_with(content), "{verb:?}"),
        }
        let numbers = read("b");
        assert!(numbers.starts_with("0\n1\n2\n") && numbers.len() == 348_890, "{verb:?}");
        if verb[1] != "-r" {
            assert!(read("tree/inner/clone") == numbers, "{verb:?}");
        }
        // The kernel goes on with it.
        for gone in ["b", "tree/inner/clone"] {
            let _ = std::fs::write(mount.dir().join(gone), "changed");
            let _ = std::fs::remove_file(mount.dir().join(gone));
        }
        drop(mount);
        assert_sound(&image.path);
    }
}

/// A cut within a block, and bytes behind the end, change the last block.
#[test]
#[ignore = "needs root and xfsprogs"]
fn verbs_write_elsewhere_what_is_shared() {
    let image = cloned();
    uxfs_ok(&[&"truncate", &"-s", &"100", &image.at("/a")]);
    uxfs_ok(&[&"truncate", &"-s", &"+1M", &image.at("/b")]);
    uxfs_ok(&[&"chmod", &"600", &image.at("/a")]);
    uxfs_ok(&[&"mv", &image.at("/a"), &image.at("/tree/a")]);
    assert_sound(&image.path);
    let mount = image.mount(&[]);
    let read = |path: &str| std::fs::read(mount.dir().join(path)).unwrap();
    let numbers = read("tree/inner/clone");
    assert!(numbers.starts_with(b"0\n1\n2\n") && numbers.len() == 348_890);
    assert!(read("tree/a") == numbers[..100]);
    let longer = read("b");
    assert!(longer.len() == 348_890 + (1 << 20) && longer.starts_with(&numbers));
    assert!(longer[348_890..].iter().all(|&byte| byte == 0));
}

/// An inode without a name in a dirty log, whose blocks another file has: it is freed, and the other keeps them.
#[test]
#[ignore = "needs root and xfsprogs"]
fn recovery_takes_shared_blocks_from_nobody() {
    let image = cloned();
    let mount = image.mount(&[]);
    let a = std::fs::File::open(mount.dir().join("a")).unwrap();
    std::fs::remove_file(mount.dir().join("a")).unwrap();
    run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
    drop(a);
    drop(mount);
    uxfs_ok(&[&"recover", &image.path]);
    assert_sound(&image.path);
    let mount = image.mount(&[]);
    let read = |path: &str| std::fs::read(mount.dir().join(path)).unwrap();
    assert!(read("tree/inner/clone") == read("b") && read("b").len() == 348_890);
}

/// Blocks that are staged for copy-on-write are nobody's yet: who opens the volume for writing frees them, as a kernel
/// does. A file that has them is damaged, and its blocks are not freed once more.
#[test]
#[ignore = "needs root and xfsprogs"]
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

    let found = uxfs(&[&"check", &image.path]);
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let block = format!("block {}", first + 1);
    assert!(found.contains(&block), "{found} says nothing of {block}");
    uxfs_fails(&[&"rm", &image.at("/own")], 5, "free");
    let checked = uxfs(&[&"check", &image.path]);
    assert_eq!(checked.status.code(), Some(5));
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked
            .lines()
            .any(|line| line.contains("extent: blocks that have another owner") && line.contains(&block)),
        "{checked} says nothing of {block}"
    );
}

/// A count that has reached its limit is not counted any more, up or down, and its blocks are never freed: so does the
/// kernel with a twin.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_count_at_its_limit_stays() {
    let images = [cloned(), cloned()];
    let tree = [&"-c" as &dyn AsRef<std::ffi::OsStr>, &"agf 0", &"-c", &"addr refcntroot"];
    let records = |image: &Path| {
        let shown = run("xfs_db", &[&tree[..], &[&"-c", &"print recs", &image]].concat());
        String::from_utf8(shown).unwrap()
    };
    for image in &images {
        let write = [&"-c" as &dyn AsRef<std::ffi::OsStr>, &"write recs[1].refcount 4294967295", &image.path];
        run("xfs_db", &[&[&"-x" as &dyn AsRef<std::ffi::OsStr>], &tree[..], &write[..]].concat());
        assert!(records(&image.path).contains("4294967295"));
    }
    let [ours, kernels] = &images;
    for gone in ["a", "b"] {
        uxfs_ok(&[&"rm", &ours.at(&format!("/{gone}"))]);
        let mount = kernels.mount(&[]);
        std::fs::remove_file(mount.dir().join(gone)).unwrap();
        drop(mount);
        assert_eq!(records(&ours.path), records(&kernels.path), "{gone}");
    }
    assert!(records(&ours.path).contains("4294967295"));
    let mount = ours.mount(&[]);
    assert!(std::fs::read_to_string(mount.dir().join("tree/inner/clone")).unwrap().starts_with("0\n1\n"));
}
