//! `uxfs mkfs --from IMAGE:/`: a volume made of another one keeps all that inodes say. The kernel describes volumes of
//! both sides where it can mount them; of v4 volumes, `xfs_db` says what is in the inodes. Needs root, xfsprogs, loop
//! mounts, sgdisk.
#![forbid(unsafe_code)]

mod common;

use common::{Image, assert_same, fill, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use oracles::xfsprogs::Release;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

type Args<'a> = [&'a dyn AsRef<OsStr>];

const UUID: &str = "uuid=3e3a4f8c-7a52-4a5e-9f0e-0f6d1b3c5a77";

fn assert_sound(image: &Path) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image]);
    run(
        Release::Unstable.path("xfs_repair").unwrap().to_str().unwrap(),
        &[&"-n", &"-f", &"-o", &"force_geometry", &image],
    );
    uxfs_ok(&[&"check", &image]);
}

/// What the kernel says of all below a directory: all times, to the nanosecond; of directories, no sizes.
fn described(dir: &Path) -> Vec<String> {
    let times = "%A@ %T@ %C@ %B@";
    let said = run(
        "find",
        &[
            &dir,
            &"(",
            &"-type",
            &"d",
            &"-printf",
            &format!("%P %y %m %U %G %n {times}\\n"),
            &")",
            &"-o",
            &"-printf",
            &format!("%P %y %m %U %G %n %s {times} %l\\n"),
        ],
    );
    let mut lines: Vec<String> = String::from_utf8_lossy(&said).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Flags, project and wishes of a file, as the kernel gives them.
fn hints(path: &Path) -> Vec<String> {
    let said = run("xfs_io", &[&"-r", &"-c", &"stat", &path]);
    let said = String::from_utf8(said).unwrap();
    let lines = said.lines().filter(|line| line.starts_with("fsxattr.") && !line.contains("extents"));
    let line = |line: &str| match line.strip_prefix("fsxattr.xflags = 0x") {
        // Whether there is an empty attribute fork is no matter.
        Some(flags) => {
            let flags = u32::from_str_radix(flags.split(' ').next().unwrap(), 16).unwrap();
            format!("flags {:x}", flags & 0x7fff_ffff)
        }
        None => line.to_owned(),
    };
    lines.map(line).collect()
}

/// Where a file has data, and space that was set aside, in units of 512 bytes and as blocks of 4 KiB have it.
fn layout(path: &Path) -> Vec<(u64, u64, bool)> {
    let said = String::from_utf8(run("xfs_io", &[&"-r", &"-c", &"fiemap -v", &path])).unwrap();
    let mut runs: Vec<(u64, u64, bool)> = Vec::new();
    for line in said.lines().skip(2).filter(|line| !line.contains("hole")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words[1].trim_start_matches('[').trim_end_matches("]:");
        let (start, end) = place.split_once("..").unwrap();
        let flags = u64::from_str_radix(words[4].trim_start_matches("0x"), 16).unwrap();
        let (start, end): (u64, u64) = (start.parse().unwrap(), end.parse().unwrap());
        let (start, end, unwritten) = (start / 8 * 8, (end + 1).next_multiple_of(8), flags & 0x800 != 0);
        match runs.last_mut() {
            Some(last) if last.1 == start && last.2 == unwritten => last.1 = end,
            _ => runs.push((start, end, unwritten)),
        }
    }
    runs
}

fn io(path: &Path, commands: &[&str]) {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"-f"];
    for command in commands {
        args.extend([&"-c" as &dyn AsRef<OsStr>, command]);
    }
    args.push(&path);
    run("xfs_io", &args);
}

const HINTED: [&str; 9] = [
    "flags/immutable",
    "flags/append",
    "flags/hints",
    "flags/wish",
    "flags/project",
    "flags/project/inside",
    "flags/streams",
    "sparse/prealloc",
    "sparse/behind-end",
];

/// Files with every flag that a kernel sets.
fn fill_flags(dir: &Path) {
    let dir = dir.join("flags");
    std::fs::create_dir(&dir).unwrap();
    for sub in ["project", "streams"] {
        std::fs::create_dir(dir.join(sub)).unwrap();
    }
    for name in ["immutable", "append", "hints"] {
        std::fs::write(dir.join(name), name).unwrap();
    }
    std::fs::hard_link(dir.join("immutable"), dir.join("an-immutable-name")).unwrap();
    std::fs::hard_link(dir.join("append"), dir.join("z-append")).unwrap();
    io(&dir.join("wish"), &["extsize 64k", "cowextsize 128k", "pwrite -q 0 5000"]);
    let change = |name: &str, command: &str| run("xfs_io", &[&"-r", &"-c", &command, &dir.join(name)]);
    change("hints", "chattr +Adsf");
    change("project", "chproj 4711");
    change("project", "chattr +PEn");
    change("project", "extsize 32k");
    std::fs::write(dir.join("project/inside"), "of the project").unwrap();
    change("streams", "chattr +Sx");
    change("streams", "cowextsize 64k");
    std::fs::write(dir.join("streams/inside"), "x").unwrap();
    change("immutable", "chattr +i");
    change("append", "chattr +a");
    change("project", "chattr +a");
}

fn make(from: &OsString, to: &Path, more: &Args<'_>) {
    uxfs_ok(&[&[&"mkfs" as &dyn AsRef<OsStr>, &"-q", &"--from", from, &to], more].concat());
    assert_sound(to);
}

fn beside(image: &Image, name: &str) -> Image {
    let dir = scratch();
    let path = dir.path().join(name);
    assert_ne!(path, image.path);
    Image { dir, path }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn all_that_a_kernel_shows_of_a_volume_is_in_the_copy() {
    let old = Image::filled(&[]);
    fill_flags(old.mount(&[]).dir());
    let before = std::fs::read(&old.path).unwrap();
    for shape in [
        &[][..],
        &[&"-b" as &dyn AsRef<OsStr>, &"size=1k"],
        &[&"-m", &"rmapbt=1,reflink=0", &"-i", &"size=1k"],
    ] {
        let new = beside(&old, "new.img");
        if shape.len() > 2 {
            // Where nothing is ever shared, nobody wishes how it is to be copied.
            let what = "extent size that the new volume cannot keep";
            let from = old.at("/");
            uxfs_fails(
                &[&[&"mkfs" as &dyn AsRef<OsStr>, &"-q", &"--from", &from, &new.path], shape].concat(),
                4,
                what,
            );
            assert!(!new.path.exists());
            continue;
        }
        make(&old.at("/"), &new.path, shape);
        assert_eq!(std::fs::metadata(&new.path).unwrap().len(), 400 << 20);
        let (theirs, ours) = (old.mount(&["ro"]), new.mount(&["ro"]));
        let (left, right) = (described(theirs.dir()), described(ours.dir()));
        assert!(left.len() > 3000);
        for (left, right) in left.iter().zip(&right) {
            assert_eq!(left, right);
        }
        assert_eq!(left.len(), right.len());
        for name in HINTED {
            assert_eq!(hints(&theirs.join(name)), hints(&ours.join(name)), "{name}");
        }
        for file in std::fs::read_dir(theirs.join("sparse")).unwrap() {
            let name = file.unwrap().path();
            let name = name.strip_prefix(theirs.dir()).unwrap();
            assert_eq!(layout(&theirs.join(name)), layout(&ours.join(name)), "{}", name.display());
        }
        assert_same(theirs.dir(), ours.dir());
        drop((theirs, ours));
        // A kernel goes on with it.
        let mounted = new.mount(&[]);
        run("xfs_io", &[&"-r", &"-c", &"chattr -i", &mounted.join("flags/immutable")]);
        run(
            "sh",
            &[
                &"-c",
                &"cd \"$0\" && rm -r many links && cp -r docs more && echo x >> flags/immutable",
                &mounted.dir(),
            ],
        );
        drop(mounted);
        assert_sound(&new.path);
    }
    assert!(std::fs::read(&old.path).unwrap() == before, "the source was written");
}

/// The same of a volume that has all that is made today, with blocks that files share.
#[test]
#[ignore = "needs root and xfsprogs"]
fn shared_blocks_become_each_file_s_own() {
    let old = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &[]);
    {
        let mount = old.mount(&[]);
        fill(mount.dir());
        run("cp", &[&"--reflink=always", &mount.join("docs/large.bin"), &mount.join("docs/clone")]);
        io(&mount.join("docs/clone"), &["pwrite -q 100k 9k"]);
    }
    let new = beside(&old, "new.img");
    make(&old.at("/"), &new.path, &[]);
    let (theirs, ours) = (old.mount(&["ro"]), new.mount(&["ro"]));
    assert_eq!(described(theirs.dir()), described(ours.dir()));
    assert_same(theirs.dir(), ours.dir());
}

/// Of a v4 volume: as `stat` has it, and as `xfs_db` does.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_of_version_4_becomes_one_of_version_5() {
    let old = Image::of_prototype(
        "dir d--755 5 6\n file -ug755 70000 4294967290 $DIR/text\n $\nlink l--777 7 8 some/where\nchar c--640 1 2 3 4\n\
         block b--600 0 0 259 70000\npipe p--644 3 4\nown ---644 1 1 $DIR/text\n",
    );
    let set = |path: &str, fields: &[(&str, &str)]| {
        let mut args = vec!["-x".to_owned(), "-c".to_owned(), format!("path {path}")];
        args.extend(
            fields.iter().flat_map(|(field, value)| ["-c".to_owned(), format!("write {field} {value}")]),
        );
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|arg| arg as _).collect();
        run("xfs_db", &[&args[..], &[&old.path]].concat());
    };
    let times = [
        ("core.atime.sec", "-5"),
        ("core.atime.nsec", "999999999"),
        ("core.mtime.sec", "1000000007"),
        ("core.mtime.nsec", "123456789"),
        ("core.ctime.sec", "2147483647"),
        ("core.ctime.nsec", "1"),
    ];
    for path in ["/", "/dir", "/dir/file", "/link", "/char", "/block", "/pipe"] {
        set(path, &times);
    }
    set(
        "/dir/file",
        &[("core.projid_lo", "17"), ("core.projid_hi", "2"), ("core.nodump", "1"), ("core.prealloc", "1")],
    );
    set("/dir", &[("core.projinherit", "1"), ("core.projid_lo", "17"), ("core.nosymlinks", "1")]);
    set("/own", &[("core.immutable", "1")]);
    for (path, kind, name) in
        [("/dir/file", "-r", "of.root"), ("/dir/file", "-s", "secure"), ("/dir", "-u", "user")]
    {
        let set = format!("attr_set {kind} -v 300 {name}");
        run("xfs_db", &[&"-x", &"-c", &format!("path {path}"), &"-c", &set, &old.path]);
    }
    let before = std::fs::read(&old.path).unwrap();
    let new = beside(&old, "new.img");
    // Parent pointers are attributes, of which the old volume has none.
    make(&old.at("/"), &new.path, &[&"--compat", &"6.1"]);
    assert!(std::fs::read(&old.path).unwrap() == before, "the source was written");
    let object = |image: &Image, path: &str| -> serde_json::Value {
        let mut object: serde_json::Value =
            serde_json::from_slice(&uxfs_ok(&[&"stat", &"--json", &image.at(path)])).unwrap();
        for key in ["ino", "generation", "btime"] {
            object.as_object_mut().unwrap().remove(key);
        }
        object
    };
    for path in ["/", "/dir", "/dir/file", "/link", "/char", "/block", "/pipe", "/own"] {
        let (theirs, ours) = (object(&old, path), object(&new, path));
        assert_eq!(theirs, ours, "{path}");
        if path != "/link" {
            let all = |image: &Image| uxfs_ok(&[&"xattr", &"list", &"--json", &image.at(path)]);
            assert_eq!(all(&old), all(&new), "{path}");
        }
    }
    let said = |path: &str, fields: &[&str]| {
        let mut args = vec!["-r".to_owned(), "-c".to_owned(), format!("path {path}")];
        args.extend(["-c".to_owned(), format!("print {}", fields.join(" "))]);
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|arg| arg as _).collect();
        let said = |image: &Image| {
            let said = run("xfs_db", &[&args[..], &[&image.path]].concat());
            String::from_utf8(said).unwrap()
        };
        // Those that its own inodes, of another version, have elsewhere are printed alike.
        assert_eq!(said(&old), said(&new), "{path}");
    };
    for path in ["/dir", "/dir/file", "/link", "/pipe"] {
        said(
            path,
            &[
                "core.mode",
                "core.uid",
                "core.gid",
                "core.atime",
                "core.mtime",
                "core.ctime",
                "core.size",
                "core.projid_lo",
                "core.projid_hi",
                "core.prealloc",
                "core.immutable",
                "core.nodump",
                "core.projinherit",
                "core.nosymlinks",
            ],
        );
    }
    let mounted = new.mount(&["ro"]);
    assert_eq!(std::fs::read(mounted.join("dir/file")).unwrap(), b"text\n");
    let attributes = common::xattrs(&mounted.join("dir/file"));
    assert_eq!(attributes[&b"trusted.of.root"[..]].len(), 300);
    assert_eq!(attributes[&b"security.secure"[..]].len(), 300);
}

/// Of one that a crash left, all that its log has; nothing is written to it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_dirty_volume_is_copied_as_its_log_leaves_it() {
    let old = Image::new(&[]);
    {
        let mount = old.mount(&[]);
        std::fs::create_dir(mount.join("dir")).unwrap();
        for nth in 0..200 {
            std::fs::write(mount.join(format!("dir/{nth}")), nth.to_string()).unwrap();
        }
        run("sync", &[&"-f", &mount.dir()]);
        run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
    }
    let before = std::fs::read(&old.path).unwrap();
    let new = beside(&old, "new.img");
    make(&old.at("/dir"), &new.path, &[&"-L", &"below"]);
    assert!(std::fs::read(&old.path).unwrap() == before, "the source was written");
    let (theirs, ours) = (old.mount(&[]), new.mount(&["ro"]));
    assert_eq!(described(&theirs.join("dir")), described(ours.dir()));
    assert_eq!(std::fs::read(ours.join("150")).unwrap(), b"150");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_same_volume_gives_the_same_bytes() {
    let old = Image::filled(&[]);
    fill_flags(old.mount(&[]).dir());
    let new = beside(&old, "new.img");
    let mut made = Vec::new();
    for time in ["86400", "86400", "86401"] {
        make(&old.at("/"), &new.path, &[&"-f", &"-m", &UUID, &"--time", &time, &"-b", &"size=2k"]);
        made.push(std::fs::read(&new.path).unwrap());
    }
    assert!(made[0] == made[1]);
    assert!(made[0] != made[2], "what was made has a time of its own");
    let (theirs, ours) = (old.mount(&["ro"]), new.mount(&["ro"]));
    assert_eq!(described(theirs.dir()), described(ours.dir()), "times are the source's");
}

/// One disk with both: what is copied stays, and so does the table.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_partition_is_copied_to_the_next() {
    let dir = scratch();
    let disk = dir.path().join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(900 << 20).unwrap();
    for range in ["1:2048:+400M", "2:0:+400M"] {
        run("sgdisk", &[&"-n", &range, &disk]);
    }
    let part = |number: u32, path: &str| {
        let mut at = disk.clone().into_os_string();
        at.push(format!("@{number}{path}"));
        at
    };
    uxfs_ok(&[&"mkfs", &"-q", &part(1, "")]);
    uxfs_ok(&[&"mkdir", &part(1, ":/sub")]);
    let text = dir.path().join("text");
    std::fs::write(&text, "some text").unwrap();
    uxfs_ok(&[&"cp", &"-p", &text, &part(1, ":/sub/text")]);
    let of_disk = || std::fs::read(&disk).unwrap()[..400 << 20].to_vec();
    let before = of_disk();
    uxfs_ok(&[&"mkfs", &"-q", &"--from", &part(1, ":/sub"), &part(2, "")]);
    assert!(of_disk() == before, "the source was written");
    assert_eq!(uxfs_ok(&[&"cat", &part(2, ":/text")]), b"some text");
    uxfs_ok(&[&"check", &part(2, "")]);
    let told = "a volume is not copied over itself";
    for (from, to) in [(part(1, ":/"), part(1, "")), (part(2, ":/"), disk.clone().into_os_string())] {
        uxfs_fails(&[&"mkfs", &"-f", &"--from", &from, &to], 2, told);
    }
    uxfs_fails(&[&"mkfs", &"-f", &"--from", &part(1, ":/"), &disk, &"--offset", &"300M", &"300M"], 2, told);
    assert!(of_disk() == before, "the source was written");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_cannot_be_copied_is_refused_by_its_name() {
    let old = Image::new(&["-m", "bigtime=1"]);
    let dir = old.dir.path();
    {
        let mount = old.mount(&[]);
        std::fs::create_dir(mount.join("late")).unwrap();
        std::fs::write(mount.join("late/file"), "x").unwrap();
        run("touch", &[&"-d", &"2100-01-01 UTC", &mount.join("late/file")]);
        std::fs::create_dir(mount.join("large")).unwrap();
        for nth in 0..9 {
            std::fs::write(mount.join(format!("large/{nth}")), vec![nth; 30 << 20]).unwrap();
        }
        std::fs::create_dir(mount.join("wish")).unwrap();
        io(&mount.join("wish/file"), &["extsize 4k", "pwrite -q 0 1"]);
    }
    let before = std::fs::read(&old.path).unwrap();
    let new = dir.join("new.img");
    let fails = |from: OsString, to: &Path, more: &Args<'_>, code: i32, text: &str| {
        uxfs_fails(
            &[&[&"mkfs" as &dyn AsRef<OsStr>, &"--small", &"--from", &from, &to], more].concat(),
            code,
            text,
        );
        assert!(!new.exists());
        assert!(std::fs::read(&old.path).unwrap() == before, "the source was written");
    };
    // The image itself, by whatever name.
    let link = dir.join("link.img");
    std::os::unix::fs::symlink(&old.path, &link).unwrap();
    let hard = dir.join("hard.img");
    std::fs::hard_link(&old.path, &hard).unwrap();
    for name in [&old.path, &link, &hard] {
        fails(old.at("/"), name, &[&"-f"], 2, "a volume is not copied over itself");
    }
    let bare = old.path.clone().into_os_string();
    fails(bare, &new, &[], 2, "an XFS volume, and no archive; to copy what is in it, write ");
    fails(old.at("/late/file"), &new, &[], 3, "not a directory");
    fails(old.at("/nothing"), &new, &[], 3, "/nothing");
    let none = dir.join("none.img:/").into_os_string();
    fails(none, &new, &[], 3, "no such file or directory");
    fails(old.at("/late"), &new, &[&"-m", &"bigtime=0"], 4, "has a time that the new volume cannot keep");
    fails(
        old.at("/wish"),
        &new,
        &[&"-b", &"size=8k"],
        4,
        "has an extent size that the new volume cannot keep",
    );
    fails(old.at("/large"), &new, &[&"200M"], 10, "no space");
    // No volume at all.
    let text = dir.join("text");
    std::fs::write(&text, "no volume").unwrap();
    let mut at = text.into_os_string();
    at.push(":/");
    fails(at, &new, &[], 4, "");
    // A volume in the place of the copy is not lost unasked.
    let there = PathBuf::from(dir).join("there.img");
    uxfs_ok(&[&"mkfs", &"-q", &there, &"300M"]);
    fails(old.at("/late"), &there, &[], 9, "");
    uxfs_ok(&[&"mkfs", &"-qf", &"--from", &old.at("/late"), &there]);
    assert_eq!(std::fs::metadata(&there).unwrap().len(), 300 << 20, "as large as it was");
}

/// A damaged file is told of; all others are there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_damaged_is_left_out_and_told() {
    let old = Image::of_prototype(
        "one ---644 0 0 $DIR/text\ntwo ---644 0 0 $DIR/text\nthree ---644 0 0 $DIR/text\n",
    );
    run("xfs_db", &[&"-x", &"-c", &"path /two", &"-c", &"write core.magic 0", &old.path]);
    let new = beside(&old, "new.img");
    let output = uxfs(&[&"mkfs", &"-q", &"--from", &old.at("/"), &new.path]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().count() == 1 && said.contains("/two: "), "{said}");
    assert_sound(&new.path);
    assert_eq!(uxfs_ok(&[&"ls", &new.path]), b"one\nthree\n");
}
