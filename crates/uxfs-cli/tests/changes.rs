//! The verbs that change an image: what xfs_repair and the kernel say of it afterwards. Needs root, xfsprogs, loop
//! mounts and GNU tar.
#![forbid(unsafe_code)]

mod common;

use common::{Image, assert_same, blocks, run, scratch, uxfs, uxfs_fails, uxfs_heeding_signals, uxfs_ok};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

fn assert_sound(image: &Path) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_tree_that_is_copied_in_is_the_same_tree() {
    let source = Image::filled(&[]);
    let kernel = source.mount(&["ro"]);
    for options in [&[][..], &["-b", "size=1024"]] {
        let image = Image::new(options);
        uxfs_ok(&[&"cp", &"-a", &kernel.dir().join("."), &image.at("/")]);
        assert_sound(&image.path);
        {
            let mount = image.mount(&["ro"]);
            assert_same(kernel.dir(), mount.dir());
            for name in ["ends-in-hole", "ends-in-data", "all-hole", "runs"] {
                let [from, to] =
                    [kernel.dir(), mount.dir()].map(|dir| blocks(&dir.join("sparse").join(name)));
                assert!(to <= from + 16, "{name}: holes were filled");
            }
            let ino = |name: &str| mount.dir().join(name).metadata().unwrap().ino();
            assert_eq!(ino("docs/small.txt"), ino("links/hard-one"));
        }
        // Once more over what is there, then from image to image, then away with it.
        uxfs_ok(&[&"cp", &"-a", &kernel.dir().join("."), &image.at("/")]);
        assert_sound(&image.path);
        assert_same(kernel.dir(), image.mount(&["ro"]).dir());
        let other = Image::new(&[]);
        uxfs_ok(&[&"cp", &"-a", &image.at("/"), &other.at("/")]);
        assert_sound(&other.path);
        assert_same(kernel.dir(), other.mount(&["ro"]).dir());
        let names = uxfs_ok(&[&"ls", &image.path]);
        for name in String::from_utf8(names).unwrap().lines() {
            uxfs_ok(&[&"rm", &"-r", &image.at(&format!("/{name}"))]);
        }
        assert_sound(&image.path);
        assert_eq!(std::fs::read_dir(image.mount(&[]).dir()).unwrap().count(), 0);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn names_modes_owners_and_sizes_change() {
    let image = Image::new(&[]);
    let at = |path: &str| image.at(path);
    let host = scratch();
    std::fs::write(host.path().join("file"), "text\n").unwrap();
    let file = host.path().join("file");

    uxfs_ok(&[&"mkdir", &"-p", &"-m", &"2750", &at("/a/b/c"), &at("/a/b")]);
    uxfs_ok(&[&"mkdir", &at("/empty"), &at("/gone")]);
    uxfs_fails(&[&"mkdir", &at("/empty")], 9, "exists");
    uxfs_fails(&[&"mkdir", &at("/no/such")], 3, "no such file");
    uxfs_ok(&[&"cp", &"--owner", &"5:6", &file, &at("/a/file")]);
    uxfs_ok(&[&"cp", &file, &at("/a/b/")]);
    uxfs_fails(&[&"cp", &file, &at("/nowhere/file")], 3, "no such file");
    uxfs_fails(&[&"cp", &file, &at("/nothing/")], 2, "not a directory");
    uxfs_fails(&[&"cp", &host.path(), &at("/x")], 3, "give -r");
    uxfs_fails(&[&"cp", &host.path().join("nope"), &at("/x")], 3, "no such file");
    uxfs_fails(&[&"cp", &"-r", &host.path(), &at("/a/file")], 2, "not a directory");
    uxfs_fails(&[&"cp", &"-r", &at("/a"), &at("/a/b")], 1, "into itself");

    uxfs_ok(&[&"ln", &at("/a/file"), &at("/hard")]);
    uxfs_ok(&[&"ln", &"-s", &"a/file", &at("/soft")]);
    uxfs_fails(&[&"ln", &"-s", &"other", &at("/soft")], 9, "exists");
    uxfs_ok(&[&"ln", &"-sf", &"b/file", &at("/a/soft")]);
    uxfs_fails(&[&"ln", &at("/a"), &at("/dir")], 2, "one name only");

    uxfs_ok(&[&"chmod", &"u=rwxs,go=rx", &at("/hard")]);
    uxfs_ok(&[&"chmod", &"-R", &"700", &at("/a/b")]);
    uxfs_ok(&[&"chown", &"70000:80000", &at("/a/b/file")]);
    uxfs_ok(&[&"truncate", &"-s", &"2", &at("/a/b/file")]);
    uxfs_ok(&[&"truncate", &"-s", &"+1M", &at("/a/b/file"), &at("/new")]);

    for size in ["9223372036854775808", "+9223372036854775807", "18446744073709551615"] {
        uxfs_fails(&[&"truncate", &"-s", &size, &at("/a/b/file")], 10, "no file is larger than");
    }

    uxfs_ok(&[&"mv", &at("/new"), &at("/renamed")]);
    uxfs_ok(&[&"mv", &at("/a/b"), &at("/renamed"), &at("/empty")]);
    uxfs_fails(&[&"mv", &at("/empty"), &at("/empty/b")], 2, "into itself");
    uxfs_fails(&[&"mv", &at("/nope"), &at("/x")], 3, "no such file");
    uxfs_ok(&[&"mv", &"--exchange", &at("/soft"), &at("/hard")]);

    uxfs_ok(&[&"rmdir", &at("/gone")]);
    uxfs_fails(&[&"rmdir", &at("/empty")], 9, "not empty");
    uxfs_fails(&[&"rm", &at("/empty")], 2, "give -r");
    uxfs_fails(&[&"rm", &at("/nope")], 3, "no such file");
    uxfs_ok(&[&"rm", &"-f", &at("/nope")]);
    uxfs_fails(&[&"rm", &"-r", &at("/")], 2, "not a name");

    uxfs_ok(&[&"xattr", &"set", &at("/a/file"), &"user.color", &"red"]);
    uxfs_ok(&[&"xattr", &"set", &at("/a/file"), &"user.other", &"0x00ff0a"]);
    uxfs_fails(&[&"xattr", &"set", &"--create", &at("/a/file"), &"user.color", &"x"], 9, "exists");
    assert_eq!(uxfs_ok(&[&"xattr", &"get", &at("/a/file"), &"user.other"]), b"\0\xff\n");
    uxfs_ok(&[&"xattr", &"rm", &at("/a/file"), &"user.other"]);
    uxfs_fails(&[&"xattr", &"get", &at("/a/file"), &"user.other"], 3, "no attribute");
    assert_eq!(uxfs_ok(&[&"xattr", &"list", &at("/a/file")]), b"user.color\n");

    assert_sound(&image.path);
    let mount = image.mount(&[]);
    let of = |path: &str| {
        let of = mount.dir().join(path).symlink_metadata().unwrap();
        (of.mode(), of.uid(), of.gid(), of.size(), of.nlink())
    };
    assert_eq!(of("a/file"), (0o104_755, 5, 6, 5, 2));
    assert_eq!(of("empty/b/file"), (0o100_700, 70000, 80000, 2 + (1 << 20), 1));
    // A directory keeps its set-group-id where a short octal mode does not name it.
    assert_eq!((of("empty/b").0, of("empty/b/c").0), (0o40_700 | of("empty/b").0 & 0o2000, 0o42_700));
    assert_eq!(of("empty/renamed").3, 1 << 20);
    assert_eq!((of("soft").0, of("hard").0), (0o104_755, 0o120_777));
    assert_eq!(std::fs::read_link(mount.dir().join("a/soft")).unwrap(), Path::new("b/file"));
    assert_eq!(common::xattrs(&mount.dir().join("a/file"))[&b"user.color"[..]], b"red");
    std::fs::write(mount.dir().join("empty/b/kernel"), "writes on").unwrap();
    drop(mount);
    assert_eq!(uxfs_ok(&[&"cat", &at("/empty/b/kernel")]), b"writes on");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_volume_ends_a_copy_and_stays_sound() {
    let image = Image::new(&[]);
    let host = scratch();
    let large = std::fs::File::create(host.path().join("large")).unwrap();
    let bytes = vec![7; 1 << 20];
    for at in 0..450 {
        std::os::unix::fs::FileExt::write_all_at(&large, &bytes, at << 20).unwrap();
    }
    let output = uxfs(&[&"cp", &host.path().join("large"), &image.at("/")]);
    assert_eq!(output.status.code(), Some(10), "{}", String::from_utf8_lossy(&output.stderr));
    assert_sound(&image.path);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn archives_and_trees_become_the_same_volume() {
    let source = Image::filled(&[]);
    let kernel = source.mount(&["ro"]);
    let dir = scratch();
    let [gnu, ours] = ["gnu.tar", "ours.tar"].map(|name| dir.path().join(name));
    run(
        "tar",
        &[
            &"-C",
            &kernel.dir(),
            &"--xattrs",
            &"--xattrs-include=*",
            &"--acls",
            &"--format=pax",
            &"-S",
            &"-cf",
            &gnu,
            &".",
        ],
    );
    uxfs_ok(&[&"tar", &source.path, &"-o", &ours]);
    for archive in [&gnu, &ours] {
        let image = Image::new(&[]);
        uxfs_ok(&[&"untar", &image.path, &"-i", archive]);
        assert_sound(&image.path);
        assert_same(kernel.dir(), image.mount(&["ro"]).dir());
    }
    let made = dir.path().join("made.img");
    for from in [kernel.dir(), &ours] {
        uxfs_ok(&[&"mkfs", &"-qf", &made, &"400M", &"--time", &"86400", &"--from", &from]);
        assert_sound(&made);
        let image = Image { dir: scratch(), path: made.clone() };
        let mount = image.mount(&["ro"]);
        assert_same(kernel.dir(), mount.dir());
        assert_eq!(mount.dir().join("docs/small.txt").metadata().unwrap().ctime(), 86400);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_archive_stays_below_where_it_is_unpacked() {
    let image = Image::new(&[]);
    let dir = scratch();
    let archive = dir.path().join("evil.tar");
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::os::unix::fs::symlink("/outside", dir.path().join("a/link")).unwrap();
    run("tar", &[&"-C", &dir.path().join("a"), &"-cf", &archive, &"link"]);
    std::fs::remove_file(dir.path().join("a/link")).unwrap();
    std::fs::create_dir(dir.path().join("a/link")).unwrap();
    std::fs::write(dir.path().join("a/link/file"), "text").unwrap();
    run("tar", &[&"-C", &dir.path().join("a"), &"-rf", &archive, &"link/file"]);
    run(
        "tar",
        &[&"-C", &dir.path().join("a/link"), &"-P", &"--transform=s,^,../../,", &"-rf", &archive, &"file"],
    );
    uxfs_ok(&[&"mkdir", &image.at("/outside"), &image.at("/into")]);
    let output = uxfs(&[&"untar", &image.at("/into"), &"-i", &archive]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_sound(&image.path);
    assert_eq!(uxfs_ok(&[&"find", &image.path, &"-name", &"file"]), b"");
    let other = dir.path().join("other.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &other, &"16M"]);
    uxfs_fails(&[&"untar", &image.path, &"-i", &other], 4, "not a tar archive");
}

/// The handler is in place once a name was said; what the archive has behind the signal must not come into the volume.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_signal_leaves_a_clean_log() {
    let image = Image::new(&[]);
    let dir = scratch();
    for nth in 0..200 {
        std::fs::write(dir.path().join(format!("file-{nth:03}")), vec![7; 10_000]).unwrap();
    }
    let archive = run("tar", &[&"--sort=name", &"-C", &dir.path(), &"-c", &"."]);
    let mut untar = uxfs_heeding_signals();
    untar.args(["-v", "untar"]).arg(&image.path).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut untar = untar.spawn().unwrap();
    let mut input = untar.stdin.take().unwrap();
    let (first, rest) = archive.split_at(archive.len() / 2);
    input.write_all(first).unwrap();
    let mut said = BufReader::new(untar.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    kill_process(Pid::from_child(&untar), Signal::INT).unwrap();
    // It stops reading.
    let _ = input.write_all(rest);
    drop(input);
    let mut all = String::new();
    said.read_to_string(&mut all).unwrap();
    assert_eq!(untar.wait().unwrap().code(), Some(11), "{all}");
    assert!(all.contains("interrupted; what is done is whole"), "{all}");
    assert_sound(&image.path);
    let there = uxfs_ok(&[&"ls", &image.path]);
    assert!(!String::from_utf8_lossy(&there).contains("file-199"));
}
