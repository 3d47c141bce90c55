//! Verbs that make many files, by several threads: what they make is what one thread makes, as the kernel shows it.
#![forbid(unsafe_code)]

mod common;

use common::forge::Forged;
use common::{Image, assert_same, fill, manifest, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use tar::EntryType as Kind;

/// A tree of every kind of file, and directories full of small ones.
fn tree(dir: &Path) {
    fill(dir);
    for of in 0..16 {
        let of = dir.join(format!("more/d{of}"));
        std::fs::create_dir_all(&of).unwrap();
        for nth in 0..40_usize {
            // Some in several pieces, some beyond what another thread is given.
            std::fs::write(of.join(format!("f{nth}")), vec![nth as u8; nth * nth * 217 % 200_000]).unwrap();
        }
    }
}

/// What the kernel shows in an image that `xfs_repair` finds sound.
fn shown(image: &Path) -> BTreeMap<Vec<u8>, String> {
    run("xfs_repair", &[&"-n", &image]);
    let at = scratch();
    let mounted = oracles::Mounted::new(image, &at.path().join("mnt"), "loop,ro,nouuid");
    manifest(mounted.dir())
}

/// By how many threads the same is done.
const THREADS: [&str; 2] = ["2", "16"];

#[test]
#[ignore = "needs root and xfsprogs"]
fn any_number_of_threads_makes_the_same_tree() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (source, archive) = (path("tree"), path("tar"));
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    let xattrs = ["--xattrs", "--xattrs-include=*", "--acls"];
    run("tar", &[&xattrs[0], &xattrs[1], &xattrs[2], &"-cf", &archive, &"-C", &source, &"."]);
    let original = path("original");
    uxfs_ok(&[&"mkfs", &"-q", &original, &"400M", &"--from", &source, &"--threads", &"1"]);
    let expected = shown(&original);
    for threads in THREADS {
        let image = path("image");
        let new = || uxfs_ok(&[&"mkfs", &"-q", &"-f", &image, &"400M"]);
        let root = || format!("{}:/", image.display());
        new();
        uxfs_ok(&[&"untar", &"--threads", &threads, &"-i", &archive, &root()]);
        assert_eq!(shown(&image), expected, "untar by {threads}");
        new();
        uxfs_ok(&[&"cp", &"-a", &"--threads", &threads, &source.join("."), &root()]);
        assert_eq!(shown(&image), expected, "cp by {threads}");
        new();
        let whole = format!("{}:/.", original.display());
        uxfs_ok(&[&"cp", &"-a", &"--threads", &threads, &whole, &root()]);
        assert_eq!(shown(&image), expected, "cp of an image by {threads}");
        let image_root: OsString = format!("{}:/", original.display()).into();
        for from in [source.clone().into_os_string(), archive.clone().into(), image_root] {
            let made = [&"mkfs" as &dyn AsRef<OsStr>, &"-q", &"-f", &image, &"400M", &"--threads", &threads];
            uxfs_ok(&[&made[..], &[&"--from", &from]].concat());
            assert_eq!(shown(&image), expected, "mkfs --from {} by {threads}", from.display());
        }
        let out = path(&format!("out{threads}"));
        uxfs_ok(&[&"cp", &"-a", &"--threads", &threads, &root(), &out]);
        assert_same(&source, &out);
        let packed = path("packed");
        uxfs_ok(&[&"tar", &"--threads", &threads, &"-o", &packed, &root()]);
        new();
        uxfs_ok(&[&"untar", &"-i", &packed, &root()]);
        assert_eq!(shown(&image), expected, "tar by {threads}");
        uxfs_ok(&[&"rm", &"-r", &"--threads", &threads, &format!("{}many", root())]);
        assert!(shown(&image).keys().all(|path| !path.starts_with(b"many")), "rm by {threads}");
    }
}

/// An archive that is written entry by entry.
struct Archive(tar::Builder<std::fs::File>);

impl Archive {
    fn new(path: &Path) -> Self {
        Self(tar::Builder::new(std::fs::File::create(path).unwrap()))
    }

    fn entry(&mut self, kind: Kind, name: &str, content: &[u8], link: &str) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        if link.is_empty() {
            self.0.append_data(&mut header, name, content).unwrap();
        } else {
            self.0.append_link(&mut header, name, link).unwrap();
        }
    }

    fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(Kind::Regular, name, content, "");
    }
}

/// What the command says and how it ends when it unpacks an archive by so many threads, and the files that are there.
fn untar(archive: &Path, image: &Forged, threads: &str) -> (Option<i32>, String, usize) {
    let output = uxfs(&[&"untar", &"--threads", &threads, &"-i", &archive, &image.path]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let files = shown(&image.path).values().filter(|what| what.starts_with("100")).count();
    (output.status.code(), said, files)
}

/// What was whole before an archive broke off was thrown away where it waited for a thread, and what had failed there was not
/// told.
#[test]
#[ignore = "needs root and xfsprogs"]
fn of_half_an_archive_all_is_there_that_was_whole() {
    let dir = scratch();
    let archive = dir.path().join("tar");
    let mut to = Archive::new(&archive);
    to.entry(Kind::Directory, "d1/f3", b"", "");
    (0..500).for_each(|nth| to.file(&format!("d{}/f{nth}", nth % 10), &[b'x'; 3000]));
    // A directory has the name.
    to.file("d1/f3", b"x");
    drop(to);
    let whole = std::fs::metadata(&archive).unwrap().len();
    std::fs::File::options().write(true).open(&archive).unwrap().set_len(whole - 100 * 3584 - 2000).unwrap();
    let expected = untar(&archive, &Forged::new("64M"), "1");
    assert!(expected.2 > 390 && expected.1.contains("the archive is broken"), "{expected:?}");
    for _ in 0..3 {
        assert_eq!(untar(&archive, &Forged::new("64M"), "8"), expected);
    }
}

/// Behind what ended the work, the thread that reads went on: it told of links to files that were never made.
#[test]
#[ignore = "needs root and xfsprogs"]
fn nothing_is_begun_behind_what_ends_the_work() {
    let dir = scratch();
    let archive = dir.path().join("tar");
    let mut to = Archive::new(&archive);
    for nth in 0..1500 {
        to.file(&format!("d/f{nth}"), &[7; 60_000]);
        to.entry(Kind::Link, &format!("d/l{nth}"), b"", &format!("d/f{nth}"));
    }
    drop(to);
    for threads in ["1", "8", "8"] {
        let (code, said, _) = untar(&archive, &Forged::new("40M"), threads);
        assert_eq!(code, Some(10), "{said}");
        assert!(said.lines().count() == 1 && said.contains("no space left"), "{said}");
    }
}

/// An archive has a file of the name that another one has until it takes its place.
#[test]
#[ignore = "needs root and xfsprogs"]
fn names_that_files_have_meanwhile_are_names_like_others() {
    let dir = scratch();
    let archive = dir.path().join("tar");
    let mut to = Archive::new(&archive);
    for nth in 0..300 {
        (0..8).for_each(|_| to.file("d/.uxfs-new-0", format!("S{nth}").as_bytes()));
        // By the thread that reads the archive.
        to.file("d/large", &format!("L{nth}").as_bytes().repeat(40_000));
    }
    drop(to);
    for threads in ["1", "8", "8", "8"] {
        let image = Forged::new("64M");
        assert_eq!(untar(&archive, &image, threads), (Some(0), String::new(), 2), "{threads}");
        assert_eq!(uxfs_ok(&[&"cat", &image.at("/d/.uxfs-new-0")]), b"S299");
        assert_eq!(uxfs_ok(&[&"cat", &image.at("/d/large")]), b"L299".repeat(40_000));
    }
}

/// What is in the destination may be reached by several names, and then order matters.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_was_there_is_written_into_in_order() {
    let dir = scratch();
    let (source, old) = (dir.path().join("source"), dir.path().join("old"));
    for of in ["a", "b"] {
        std::fs::create_dir_all(source.join(of)).unwrap();
        std::fs::create_dir_all(old.join(of)).unwrap();
    }
    for nth in 0..100 {
        let name = format!("f{nth}");
        std::fs::write(source.join("a").join(&name), format!("a{nth}")).unwrap();
        std::fs::write(source.join("b").join(&name), format!("b{nth}")).unwrap();
        std::fs::write(old.join("a").join(&name), "old").unwrap();
        if nth % 2 == 0 {
            std::fs::hard_link(old.join("a").join(&name), old.join("b").join(&name)).unwrap();
        } else {
            std::os::unix::fs::symlink(format!("../a/{name}"), old.join("b").join(&name)).unwrap();
        }
    }
    let copied = |threads: &str| {
        let image = Forged::new("64M");
        uxfs_ok(&[&"cp", &"-a", &"--threads", &"1", &old.join("."), &image.at("/")]);
        let args: [&dyn AsRef<OsStr>; 6] =
            [&"cp", &"-r", &"--preserve=links", &"--threads", &threads, &source.join(".")];
        let output = uxfs(&[&args[..], &[&image.at("/")]].concat());
        let times = |what: String| what.split(" mtime=").next().unwrap().to_owned();
        let content = |path: &Vec<u8>| {
            let path = String::from_utf8(path.clone()).unwrap();
            uxfs(&[&"cat", &image.at(&format!("/{path}"))]).stdout
        };
        let found = shown(&image.path).into_iter();
        let found: Vec<_> = found.map(|(path, what)| (content(&path), path.clone(), times(what))).collect();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), found)
    };
    let expected = copied("1");
    for _ in 0..3 {
        assert!(copied("8") == expected);
    }
}

/// Entries that name what an earlier one made, again and again: the last counts, and a link is to what was there last.
#[test]
#[ignore = "needs root and xfsprogs"]
fn of_entries_with_one_name_the_last_counts() {
    let dir = scratch();
    let archive = dir.path().join("tar");
    let mut to = Archive::new(&archive);
    let mut entry = |kind, name: &str, content: &[u8], link: &str| to.entry(kind, name, content, link);
    // Else it is now that they were changed.
    entry(Kind::Directory, ".", b"", "");
    (0..7).for_each(|of| entry(Kind::Directory, &format!("d{of}"), b"", ""));
    for round in 0..150_u32 {
        let name = |what: &str| format!("d{}/{what}{}", round % 7, round % 3);
        let small = round.to_le_bytes().repeat(10);
        entry(Kind::Regular, &name("again"), &small, "");
        entry(Kind::Regular, &name("large"), &small, "");
        // By the thread that reads the archive.
        entry(Kind::Regular, &name("large"), &small.repeat(4000), "");
        entry(Kind::Regular, &name("linked"), &small, "");
        entry(Kind::Link, &name("other"), b"", &name("linked"));
        entry(Kind::Symlink, &name("turned"), b"", "nowhere");
        entry(Kind::Regular, &name("turned"), &small, "");
        entry(Kind::Regular, &name("blocks"), &small, "");
        // A file has its name already: it is left out, each time.
        entry(Kind::Directory, &name("blocks"), b"", "");
        // What comes before its directory.
        entry(Kind::Regular, &format!("late{round}/file"), &small, "");
        entry(Kind::Directory, &format!("late{round}"), b"", "");
    }
    drop(to);
    let unpack = |threads: &str| {
        let image = Forged::new("128M");
        let output = uxfs(&[&"untar", &"--threads", &threads, &"-i", &archive, &image.path]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
        lines.sort();
        (shown(&image.path), lines)
    };
    let (expected, lines) = unpack("1");
    assert_eq!(lines.len(), 150, "{lines:?}");
    for _ in 0..2 {
        let (found, said) = unpack("8");
        assert_eq!(found, expected);
        assert_eq!(said, lines);
    }
}

/// What fails beside is told by its name, and the rest is there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_another_thread_cannot_make_is_told() {
    let dir = scratch();
    let source = dir.path().join("tree");
    for of in 0..4 {
        std::fs::create_dir_all(source.join(format!("d{of}"))).unwrap();
        for nth in 0..50 {
            std::fs::write(source.join(format!("d{of}/f{nth}")), [7; 3000]).unwrap();
        }
    }
    let image = Forged::new("64M");
    // Something else has the names of two files.
    uxfs_ok(&[&"mkdir", &"-p", &image.at("/tree/d1/f7"), &image.at("/tree/d3/f49")]);
    let output = uxfs(&[&"cp", &"-r", &"--threads", &"8", &source, &image.at("/")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    for name in ["d1/f7", "d3/f49"] {
        let line = format!("uxfs: {}: a directory has the name of the copy", source.join(name).display());
        assert!(said.contains(&line), "{said}");
    }
    let found = shown(&image.path);
    assert_eq!(found.len(), 2 + 4 * 51, "{:?}", found.keys());
}

/// A volume becomes full: no file is there in part, and nothing is left that has no name.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_volume_ends_the_work_of_all_threads() {
    let dir = scratch();
    let (source, archive) = (dir.path().join("tree"), dir.path().join("tar"));
    for of in 0..20 {
        std::fs::create_dir_all(source.join(format!("d{of}"))).unwrap();
        for nth in 0..50_u8 {
            std::fs::write(source.join(format!("d{of}/f{nth}")), vec![nth; 60_000]).unwrap();
        }
    }
    run("tar", &[&"-cf", &archive, &"-C", &dir.path(), &"tree"]);
    let from = |image: &Forged| {
        let untar = vec!["untar".into(), "-i".into(), archive.clone().into_os_string(), image.at("/")];
        let cp = vec!["cp".into(), "-r".into(), source.clone().into_os_string(), image.at("/")];
        [untar, cp]
    };
    for which in 0..2 {
        let image = Forged::new("40M");
        let args: Vec<OsString> = from(&image)[which].clone();
        let output =
            Command::new(env!("CARGO_BIN_EXE_uxfs")).args(&args).args(["--threads", "8"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(10), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let found = shown(&image.path);
        let files = found.iter().filter(|(_, what)| what.starts_with("100000"));
        let mut count = 0;
        for (name, what) in files {
            count += 1;
            assert!(what.contains(" size=60000 "), "{}: {what}", String::from_utf8_lossy(name));
        }
        assert!(count > 100, "{count} files");
        run("xfs_repair", &[&"-n", &image.path]);
    }
}

/// With a time, or where names are said, all is done in order, whatever number was asked for.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_has_to_be_in_order_is_done_by_one_thread() {
    let dir = scratch();
    let source = dir.path().join("tree");
    for of in 0..8 {
        std::fs::create_dir_all(source.join(format!("d{of}"))).unwrap();
        for nth in 0..40 {
            std::fs::write(source.join(format!("d{of}/f{nth:02}")), [of; 100]).unwrap();
        }
    }
    let images = ["one", "two"].map(|name| dir.path().join(name));
    let at_a_time = |args: &[&dyn AsRef<OsStr>]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
        let command = command.args(args.iter().map(|arg| arg.as_ref())).env("SOURCE_DATE_EPOCH", "86400");
        assert!(command.status().unwrap().success());
    };
    for (image, threads) in images.iter().zip(["1", "8"]) {
        at_a_time(&[
            &"mkfs",
            &"-q",
            &"--small",
            &image,
            &"100M",
            &"-m",
            &"uuid=6f2b1f27-90d8-4b9a-8e5b-1d0c7c3f6a11",
        ]);
        at_a_time(&[&"cp", &"-r", &"--threads", &threads, &source, &format!("{}:/", image.display())]);
    }
    assert!(std::fs::read(&images[0]).unwrap() == std::fs::read(&images[1]).unwrap());
    // A time that verbs take from the environment one by one.
    let larger = dir.path().join("larger");
    for of in 0..60 {
        let of = larger.join(format!("d{}/e{of}", of % 7));
        std::fs::create_dir_all(&of).unwrap();
        (0..50).for_each(|nth| std::fs::write(of.join(format!("f{nth}")), [7; 5000]).unwrap());
    }
    at_a_time(&[&"cp", &"-r", &larger, &format!("{}:/", images[0].display())]);
    for _ in 0..2 {
        let removed = ["1", "8"].map(|threads| {
            let image = dir.path().join(format!("removed{threads}"));
            std::fs::copy(&images[0], &image).unwrap();
            at_a_time(&[&"rm", &"-r", &"--threads", &threads, &format!("{}:/larger", image.display())]);
            std::fs::read(&image).unwrap()
        });
        assert!(removed[0] == removed[1]);
    }
    let image = Image::new(&[]);
    let output = uxfs(&[&"cp", &"-rv", &"--threads", &"8", &source, &image.at("/")]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let names: Vec<_> = said.lines().filter(|line| line.contains("/f")).collect();
    assert_eq!(names.len(), 320, "{said}");
    assert!(names.is_sorted(), "{said}");
}

#[test]
fn a_number_of_threads_is_one_to_256() {
    let image = Forged::new("20M");
    let before = std::fs::read(&image.path).unwrap();
    for wrong in ["0", "257", "-1", "many"] {
        for args in [vec!["rm", "-r"], vec!["untar", "-i", "/dev/null"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
            let threads = format!("--threads={wrong}");
            let output = command.args(args).args([&threads]).arg(image.at("/x")).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("--threads") && said.contains(wrong), "{said}");
        }
    }
    uxfs_fails(&[&"rm", &"-r", &"--threads", &"256", &image.at("/x")], 3, "no such file");
    assert!(std::fs::read(&image.path).unwrap() == before);
}
