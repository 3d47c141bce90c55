//! `mv`, `ln`, `truncate`, `chown` and `chmod` do to an image what GNU's programs do as root on a mounted volume: the same
//! commands are given to both, and the same trees must come of it. Needs root, xfsprogs, loop mounts, GNU coreutils.
#![forbid(unsafe_code)]

mod common;

use common::{Image, found, run, scratch, twins, uxfs, uxfs_fails, uxfs_ok};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

/// Programs and their arguments; `@` stands for the directory of the case.
const CASES: &[&[&str]] = &[
    // What was moved just now is not lost to what is moved next.
    &["mv", "@/p/x", "@/q/x", "@/to"],
    &["mv", "@/p/x", "@/q/x", "@/other", "@/to"],
    &["mv", "@/other", "@/to"],
    &["mv", "@/p/x", "@/q/y", "@/to"],
    &["mv", "@/hard/x", "@/p/x"],
    &["mv", "@/p/x", "@/hard/x", "@/to"],
    &["mv", "-n", "@/p/x", "@/q/x", "@/to"],
    &["mv", "@/p/x", "@/dangling"],
    // What the new link would take the place of stays where it cannot be made.
    &["ln", "-sf", "text", "@/p/x"],
    &["ln", "-sf", "text", "@/nothing"],
    &["ln", "-sf", "text", "@/q"],
    &["ln", "-sf", "", "@/p/x"],
    &["ln", "-s", "", "@/nothing"],
    &["ln", "-sf", LONG_TEXT, "@/p/x"],
    &["ln", "-f", "@/p/x", "@/q/x"],
    &["ln", "-f", "@/p/x", "@/p/x"],
    &["ln", "-f", "@/p/x", "@/q/dir"],
    &["ln", "-f", "@/p/x", "@/dangling"],
    &["ln", "-sf", "text", "@/dangling"],
    &["ln", "-sf", "text", "@/circle"],
    &["ln", "-f", "@/p/x", "@/far"],
    &["ln", "-sf", "text", "@/far"],
    &["mv", "@/p/x", "@/far"],
    // Files that are made behind links.
    &["truncate", "-s", "3", "@/dangling"],
    &["truncate", "-s", "3", "@/chain"],
    &["truncate", "-s", "3", "@/circle"],
    &["truncate", "-s", "3", "@/lost"],
    &["truncate", "-s", "3", "@/nothing/"],
    &["truncate", "-c", "-s", "3", "@/dangling"],
    // Links that are named, and what they lead to.
    &["chown", "5:6", "@/todir"],
    &["chown", "-R", "5:6", "@/todir"],
    &["chown", "-R", "5:6", "@/todir/"],
    &["chown", "-R", "5:6", "@/q"],
    &["chown", "--no-dereference", "5:6", "@/todir"],
    &["chown", "-h", "5:7", "@/todir"],
    &["chmod", "700", "@/todir"],
    &["chmod", "-R", "700", "@/q"],
];

/// As long as no text of a link can be: 1,023 bytes are the most.
const LONG_TEXT: &str = match str::from_utf8(&[b't'; 1024]) {
    Ok(text) => text,
    Err(_) => "",
};

/// What is there before each.
fn tree(dir: &Path) {
    let at = |name: &str| dir.join(name);
    for name in ["p/dir", "q/dir/inner", "hard", "to"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    for name in ["p/x", "q/x", "q/y", "other", "q/dir/file"] {
        std::fs::write(at(name), name).unwrap();
    }
    std::fs::hard_link(at("p/x"), at("hard/x")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("circle", at("circle")).unwrap();
    symlink("p/../q/link", at("chain")).unwrap();
    symlink("../p/new", at("q/link")).unwrap();
    symlink("nowhere/new", at("lost")).unwrap();
    symlink("q", at("todir")).unwrap();
    symlink("n".repeat(312), at("far")).unwrap();
    run("find", &[&dir, &"-depth", &"-exec", &"touch", &"-hd", &"2001-02-03 04:05:06.789 UTC", &"{}", &"+"]);
}

fn placed(case: &[&str], dir: &OsStr) -> Vec<OsString> {
    let place = |arg: &str| match arg.strip_prefix('@') {
        Some(rest) => {
            let mut place = dir.to_owned();
            place.push(rest);
            place
        }
        None => arg.into(),
    };
    case.iter().map(|arg| place(arg)).collect()
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn changes_of_an_image_are_those_of_gnu() {
    let (theirs, image) = twins(|dir| {
        for nth in 0..CASES.len() {
            std::fs::create_dir(dir.join(nth.to_string())).unwrap();
            tree(&dir.join(nth.to_string()));
        }
    });
    let kernel = theirs.mount(&[]);
    let mut outcomes = Vec::new();
    for (nth, case) in CASES.iter().enumerate() {
        let args = placed(case, kernel.dir().join(nth.to_string()).as_os_str());
        let gnu = Command::new(&args[0]).args(&args[1..]).output().unwrap();
        let args = placed(case, &image.at(&format!("/{nth}")));
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|arg| arg as &dyn AsRef<OsStr>).collect();
        outcomes.push((gnu, uxfs(&args)));
    }
    assert_sound(&image);
    let (ours, mut wrong) = (image.mount(&["ro"]), String::new());
    for (nth, (case, (gnu, uxfs))) in CASES.iter().zip(&outcomes).enumerate() {
        let [said_by_gnu, said] = [gnu, uxfs].map(|of| String::from_utf8_lossy(&of.stderr).into_owned());
        if gnu.status.success() != uxfs.status.success() {
            wrong += &format!("{case:?}: GNU {} {said_by_gnu}, uxfs {} {said}\n", gnu.status, uxfs.status);
        }
        let [theirs, ours] = [&kernel, &ours].map(|mount| found(&mount.dir().join(nth.to_string())));
        for path in theirs.keys().chain(ours.keys().filter(|path| !theirs.contains_key(*path))) {
            if theirs.get(path) != ours.get(path) {
                let (path, gnu, ours) = (String::from_utf8_lossy(path), theirs.get(path), ours.get(path));
                wrong += &format!("{case:?}: {path}: {said}\n  GNU  {gnu:?}\n  uxfs {ours:?}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// GNU moves a directory over one that it has just moved there, if that is empty; that one would be lost all the same.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_directory_that_was_just_moved_is_not_lost() {
    let image = Image::new(&[]);
    uxfs_ok(&[&"mkdir", &"-p", &image.at("/to"), &image.at("/p/dir"), &image.at("/q/dir/inner")]);
    uxfs_ok(&[&"chown", &"5:6", &image.at("/p/dir")]);
    uxfs_fails(
        &[&"mv", &image.at("/p/dir"), &image.at("/q/dir"), &image.at("/to")],
        1,
        "/q/dir: something else was moved to this name just now, and is left as it is",
    );
    assert_sound(&image);
    let mount = image.mount(&["ro"]);
    assert_eq!(std::fs::metadata(mount.dir().join("to/dir")).unwrap().uid(), 5);
    assert!(mount.dir().join("q/dir/inner").is_dir());
}

/// A directory tree's project is no matter of the device.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_would_leave_its_project_s_tree_is_told_to_be_copied() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        std::fs::create_dir(mount.dir().join("tree")).unwrap();
        run("xfs_io", &[&"-c", &"chproj 7", &"-c", &"chattr +P", &mount.dir().join("tree")]);
        std::fs::write(mount.dir().join("file"), "x").unwrap();
    }
    let (file, new) = (image.at("/file"), image.at("/tree/file"));
    uxfs_fails(&[&"mv", &file, &new], 2, "another project's tree; copy it (uxfs cp -a) and remove it");
    uxfs_fails(&[&"ln", &file, &new], 2, "another project's tree");
    assert_eq!(uxfs_ok(&[&"cat", &file]), b"x");
}

/// A volume so full that nothing more can be made: what a link was to take the place of is there still.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_volume_keeps_what_a_link_was_to_replace() {
    let image = Image::new(&["-d", "size=300m"]);
    let host = scratch();
    let file = host.path().join("file");
    std::fs::write(&file, "old").unwrap();
    uxfs_ok(&[&"cp", &file, &image.at("/old")]);
    // Files of half the size, again and again, until none of a block fits.
    let mut nth = 0;
    for size in (12..=26).rev().map(|power| 1 << power) {
        std::fs::write(&file, vec![7; size]).unwrap();
        while uxfs(&[&"cp", &file, &image.at(&format!("/{nth}"))]).status.success() {
            nth += 1;
        }
    }
    let long = "t".repeat(1000);
    uxfs_fails(&[&"ln", &"-sf", &long, &image.at("/old")], 10, "/old: no space left");
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/old")]), b"old");
    let names = String::from_utf8(uxfs_ok(&[&"ls", &"-a", &image.path])).unwrap();
    assert!(!names.contains(".uxfs-new"), "{names}");
    assert_sound(&image);
}

/// Directories that are there, some with lists of who may do what, and archives of them.
#[test]
#[ignore = "needs root and xfsprogs"]
fn lists_of_directories_that_are_there_are_what_gnu_tar_leaves_of_them() {
    let lists = |dir: &Path, names: &[&str], entries: &str| {
        for name in names {
            std::fs::create_dir_all(dir.join(name)).unwrap();
            run("setfacl", &[&"-m", &entries, &dir.join(name)]);
        }
    };
    let host = scratch();
    std::fs::create_dir_all(host.path().join("kept/inner")).unwrap();
    run("chmod", &[&"0711", &host.path().join("kept")]);
    let plain = run("tar", &[&"-C", &host.path(), &"-c", &"."]);
    lists(host.path(), &["kept"], "u:77:rwx,d:u:78:rx");
    let with_lists = run("tar", &[&"-C", &host.path(), &"--acls", &"--no-recursion", &"-c", &"kept"]);
    for (archive, acls) in [(plain, None), (with_lists, Some("--acls"))] {
        let (theirs, image) = twins(|dir| {
            lists(dir, &["to", "to/kept", "to/kept/inner", "to/other"], "u:1234:rwx,d:u:1235:rx");
        });
        let file = host.path().join("archive.tar");
        std::fs::write(&file, &archive).unwrap();
        let kernel = theirs.mount(&[]);
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(kernel.dir().join("to")).args(acls).arg("-xpf").arg(&file);
        assert!(tar.status().unwrap().success());
        uxfs_ok(&[&"untar", &"-i", &file, &image.at("/to")]);
        assert_sound(&image);
        let ours = image.mount(&["ro"]);
        for (path, theirs) in found(kernel.dir()) {
            let name = String::from_utf8_lossy(&path);
            assert_eq!(found(ours.dir()).get(&path), Some(&theirs), "{name}, {acls:?}");
        }
    }
}

fn assert_sound(image: &Image) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image.path]);
}
