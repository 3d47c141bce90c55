//! Features that are not written: every verb that changes refuses by name, and not a byte changes; what reads reads.
//! The volumes are what the ordinary tools make unasked, or almost.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use oracles::xfsprogs::Release;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Who made a volume, with what, and what keeps it from being written.
struct Kind {
    mkfs: PathBuf,
    repair: PathBuf,
    options: &'static [&'static str],
    because: &'static [&'static str],
}

impl Kind {
    /// A volume that the kernel filled; `dirty`: and left with a log to replay.
    fn image(&self, dirty: bool) -> Image {
        let image = Image::made_by(&self.mkfs, self.options);
        let mount = image.mount(&[]);
        for n in 0..40 {
            std::fs::create_dir_all(mount.dir().join(format!("d{}", n % 4))).unwrap();
            std::fs::write(mount.dir().join(format!("d{}/f{n}", n % 4)), vec![n; 100 * n as usize]).unwrap();
        }
        std::fs::write(mount.dir().join("file"), "content\n").unwrap();
        if dirty {
            // With an inode without a name, which recovery would free. No other process may have it open.
            let crash =
                "cd \"$0\" && sync -f . && exec 3>held && dd if=/dev/zero bs=64k count=9 status=none >&3 &&
                rm held && exec xfs_io -x -c 'shutdown -f' .";
            run("sh", &[&"-c", &crash, &mount.dir()]);
        }
        drop(mount);
        image
    }
}

/// The command is refused for the sake of each of these features.
fn refused(args: &[&dyn AsRef<OsStr>], because: &[&str]) {
    let said = format!("the volume can be opened for reading only: {}", because.join(", "));
    uxfs_fails(args, 4, &said);
}

/// Every verb that changes, asked of a volume that must not be changed.
fn refuses_all(image: &Image, because: &[&str], dirty: bool) {
    let untouched = image.dir.path().join("untouched");
    run("cp", &[&"--sparse=always", &image.path, &untouched]);
    let host = image.dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("new"), "new\n").unwrap();
    let archive = image.dir.path().join("new.tar");
    run("tar", &[&"-cf", &archive, &"-C", &host, &"new"]);
    let [file, dir, other, new] = ["/file", "/d1", "/other", "/"].map(|path| image.at(path));
    let source = host.join("new");
    let commands: [&[&dyn AsRef<OsStr>]; 26] = [
        &[&"mkdir", &image.at("/made")],
        &[&"mkdir", &"-p", &image.at("/made/deep")],
        &[&"rm", &file],
        &[&"rm", &"-r", &dir],
        &[&"rm", &"-rf", &dir],
        &[&"rmdir", &dir],
        &[&"mv", &file, &other],
        &[&"mv", &"--exchange", &file, &dir],
        &[&"ln", &file, &other],
        &[&"ln", &"-s", &"target", &other],
        &[&"chmod", &"600", &file],
        &[&"chown", &"7:7", &file],
        &[&"chown", &"-R", &"7:7", &dir],
        &[&"truncate", &"-s", &"0", &file],
        &[&"truncate", &"-s", &"1M", &other],
        &[&"cp", &source, &file],
        &[&"cp", &source, &new],
        &[&"cp", &"-a", &host, &other],
        &[&"untar", &"-i", &archive, &new],
        &[&"xattr", &"set", &file, &"user.colour", &"red"],
        &[&"xattr", &"rm", &file, &"user.colour"],
        &[&"recover", &image.path],
        &[&"label", &image.path, &"new"],
        &[&"uuid", &image.path, &"generate"],
        &[&"grow", &image.path, &"500M"],
        &[&"upgrade", &image.path, &"-O", &"nrext64"],
    ];
    for command in commands {
        refused(command, because);
    }
    run("cmp", &[&untouched, &image.path]);

    // Reading goes on, replay in memory included.
    assert_eq!(uxfs_ok(&[&"cat", &file]), b"content\n");
    let listed = uxfs_ok(&[&"find", &image.path]);
    assert_eq!(listed.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count(), 46);
    let output = uxfs(&[&"recover", &"--dry-run", &"--json", &image.path]);
    let found: Value = serde_json::from_slice(&output.stdout).expect("an object");
    assert_eq!(found["was_clean"], !dirty);
    assert_eq!(output.status.code(), uxfs(&[&"recover", &image.path]).status.code());
    run("cmp", &[&untouched, &image.path]);
}

fn says_why(image: &Image, because: &[&str]) {
    let info: Value = serde_json::from_slice(&uxfs_ok(&[&"info", &"--json", &image.path])).unwrap();
    assert_eq!(info["read_only_because"], json!(because));
    let table = info["feature_table"].as_array().expect("a table");
    for name in because {
        let row = table.iter().find(|row| row["name"] == *name).expect("a row");
        assert_eq!((&row["read"], &row["written"]), (&true.into(), &false.into()), "{name}");
    }
    let others = table.iter().filter(|row| !because.contains(&row["name"].as_str().expect("a name")));
    assert!(others.clone().count() > 5 && others.clone().all(|row| row["written"] == true), "{table:?}");
    let text = String::from_utf8(uxfs_ok(&[&"info", &image.path])).unwrap();
    assert!(text.contains(&format!("\nread-only   because of {}\n", because.join(", "))), "{text}");
    assert!(text.contains(&format!("\n            {}: not written", because[0])), "{text}");
}

/// The flag by which a kernel that fills a volume has none: it is set behind that.
fn flagged_read_only(image: &Image, flag: &str) {
    run("xfs_db", &[&"-x", &"-c", &"sb 0", &"-c", &format!("write flags {flag}"), &image.path]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_must_not_be_changed_is_refused_by_every_verb() {
    let because = &["read-only flag"];
    let kind = Kind { mkfs: "mkfs.xfs".into(), repair: "xfs_repair".into(), options: &[], because };
    for dirty in [false, true] {
        let image = kind.image(dirty);
        flagged_read_only(&image, "0x80");
        refuses_all(&image, kind.because, dirty);
        // A log that is replayed in memory says that there was no flag.
        if !dirty {
            says_why(&image, kind.because);
        }
        // The kernel finds what it left.
        flagged_read_only(&image, "0");
        drop(image.mount(&[]));
        run(kind.repair.to_str().unwrap(), &[&"-n", &image.path]);
    }
}

/// A volume that the kernel filled is changed here and there, also behind a crash, and the kernel goes on with it.
fn written(mkfs: &Path, repair: &Path, options: &'static [&'static str]) {
    for dirty in [false, true] {
        let kind = Kind { mkfs: mkfs.into(), repair: repair.into(), options, because: &[] };
        let image = kind.image(dirty);
        let info: Value = serde_json::from_slice(&uxfs_ok(&[&"info", &"--json", &image.path])).unwrap();
        assert_eq!(info["read_only_because"], json!([]));
        let sound = || run(repair.to_str().unwrap(), &[&"-n", &image.path]);
        uxfs_ok(&[&"recover", &image.path]);
        sound();
        uxfs_ok(&[&"cp", &"-a", &"/etc/ssl", &image.at("/ssl")]);
        sound();
        uxfs_ok(&[&"rm", &"-r", &image.at("/d1")]);
        uxfs_ok(&[&"truncate", &"-s", &"10", &image.at("/d2/f30")]);
        uxfs_ok(&[&"mv", &image.at("/d2"), &image.at("/d0/moved")]);
        uxfs_ok(&[&"ln", &"-s", &"x".repeat(900), &image.at("/link")]);
        sound();
        let mount = image.mount(&[]);
        run("diff", &[&"-r", &"--no-dereference", &"/etc/ssl", &mount.dir().join("ssl")]);
        run("cp", &[&"-a", &mount.dir().join("ssl"), &mount.dir().join("again")]);
        run("rm", &[&"-r", &mount.dir().join("ssl"), &mount.dir().join("d0"), &mount.dir().join("link")]);
        drop(mount);
        sound();
        uxfs_ok(&[&"rm", &"-r", &image.at("/again")]);
        sound();
        uxfs_ok(&[&"check", &image.path]);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_reverse_map_is_written() {
    let (mkfs, repair) = (Path::new("mkfs.xfs"), Path::new("xfs_repair"));
    written(mkfs, repair, &["-m", "rmapbt=1"]);
    written(
        mkfs,
        repair,
        &["-m", "rmapbt=1,reflink=0,finobt=0,inobtcount=0", "-b", "size=1024", "-i", "sparse=0"],
    );
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_xfsprogs_6_13_makes_is_written() {
    let release = Release::Stable;
    written(&release.path("mkfs.xfs").unwrap(), &release.path("xfs_repair").unwrap(), &[]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_xfsprogs_7_makes_is_written() {
    let release = Release::Unstable;
    written(&release.path("mkfs.xfs").unwrap(), &release.path("xfs_repair").unwrap(), &[]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn parent_pointers_are_written() {
    let (mkfs, repair) =
        (Release::Stable.path("mkfs.xfs").unwrap(), Release::Unstable.path("xfs_repair").unwrap());
    written(&mkfs, &repair, &["-n", "parent=1", "-m", "rmapbt=0"]);
    written(&mkfs, &repair, &["-n", "parent=1", "-b", "size=1024", "-m", "reflink=0"]);
}

/// All names of a file are those that the kernel says.
#[test]
#[ignore = "needs root and xfsprogs"]
fn stat_shows_all_names() {
    let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &[]);
    let mount = image.mount(&[]);
    run("mkdir", &[&"-p", &mount.dir().join("a/b")]);
    std::fs::write(mount.dir().join("file"), "content").unwrap();
    std::fs::hard_link(mount.dir().join("file"), mount.dir().join("a/b/file")).unwrap();
    std::fs::hard_link(mount.dir().join("file"), mount.dir().join(OsStr::from_bytes(b"a/\xffname"))).unwrap();
    drop(mount);
    uxfs_ok(&[&"ln", &image.at("/file"), &image.at("/a/other")]);
    let of = |path: &str| -> Value {
        serde_json::from_slice(&uxfs_ok(&[&"stat", &"--json", &image.at(path)])).unwrap()
    };
    let names = of("/a/other")["names"].as_array().expect("names").clone();
    let mut paths: Vec<&str> = names.iter().filter_map(|name| name["path"].as_str()).collect();
    paths.sort_unstable();
    assert_eq!(names.len(), 4);
    assert_eq!(paths, ["/a/b/file", "/a/other", "/a/\u{fffd}name", "/file"]);
    assert_eq!(of("/a/b")["names"][0]["path"], "/a/b");
    assert_eq!(of("/a/b")["names"][0]["directory"], of("/a")["ino"]);
    assert_eq!(of("/")["names"], json!([]));
    let text = String::from_utf8_lossy(&uxfs_ok(&[&"stat", &image.at("/file")])).into_owned();
    assert!(text.contains("\n    Name: /a/b/file\n") && text.contains("\n    Name: /file\n"), "{text}");
    let without = Image::new(&[]);
    let found: Value = serde_json::from_slice(&uxfs_ok(&[&"stat", &"--json", &without.at("/")])).unwrap();
    assert!(found.get("names").is_none(), "{found}");
}

/// Without a realtime section, which is refused. `mkfs.xfs` gives it to every volume that is to have quota, too.
#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_with_a_metadata_directory_are_written() {
    for option in ["metadir=1", "metadir=1,uquota,gquota"] {
        let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &["-m", option]);
        let mount = image.mount(&[]);
        run("cp", &[&"-r", &"src", &mount.dir().join("theirs")]);
        drop(mount);
        uxfs_ok(&[&"cp", &"-r", &"tests", &image.at("/ours")]);
        uxfs_ok(&[&"cp", &"--reflink=always", &image.at("/theirs/main.rs"), &image.at("/clone")]);
        uxfs_ok(&[&"mv", &image.at("/theirs/main.rs"), &image.at("/ours/moved")]);
        uxfs_ok(&[&"rm", &"-r", &image.at("/theirs/commands")]);
        uxfs_ok(&[&"grow", &image.path, &"500M"]);
        uxfs_ok(&[&"check", &image.path]);
        run("xfs_repair", &[&"-n", &image.path]);
        let mount = image.mount(&[]);
        assert!(std::fs::read(mount.dir().join("clone")).unwrap() == std::fs::read("src/main.rs").unwrap());
        run("diff", &[&"-r", &"tests/common", &mount.dir().join("ours/common")]);
        run("mv", &[&mount.dir().join("ours"), &mount.dir().join("theirs/in")]);
        run("rm", &[&"-r", &mount.dir().join("theirs/in/common")]);
        drop(mount);
        run("xfs_repair", &[&"-n", &image.path]);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn names_that_ignore_case_are_not_written() {
    let image = Image::new(&["-n", "version=ci"]);
    refused(&[&"mkdir", &image.at("/made")], &["ascii-ci"]);
    // Of several paths, as none can be made.
    for verb in ["mkdir", "rm"] {
        let out = uxfs(&[&verb, &image.at("/made"), &image.at("/other")]);
        assert_eq!(out.status.code(), Some(4), "{verb}");
    }
    assert_eq!(uxfs_ok(&[&"ls", &image.path]), b"");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_is_flagged_read_only_is_not_written() {
    let image = Image::new(&[]);
    run("xfs_db", &[&"-x", &"-c", &"sb 0", &"-c", &"write flags 0x80", &image.path]);
    refused(&[&"mkdir", &image.at("/made")], &["read-only flag"]);
    assert_eq!(uxfs_ok(&[&"ls", &image.path]), b"");
}

/// The bit allows items in the log and asks nothing else of writers.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_with_exchange_and_autofsck_is_written() {
    let options = ["-n", "parent=0", "-m", "rmapbt=0,autofsck=1", "-i", "exchange=1"];
    let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &options);
    let info: Value = serde_json::from_slice(&uxfs_ok(&[&"info", &"--json", &image.path])).unwrap();
    let features = info["features"].to_string();
    assert!(features.contains("\"exchange\"") && features.contains("\"autofsck\""), "{features}");
    assert_eq!(info["read_only_because"], json!([]));
    let host = image.dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    common::fill(&host);
    uxfs_ok(&[&"cp", &"-a", &host, &image.at("/tree")]);
    uxfs_ok(&[&"rm", &"-r", &image.at("/tree/many")]);
    let repair = Release::Unstable.path("xfs_repair").unwrap();
    let sound = || run(repair.to_str().unwrap(), &[&"-n", &image.path]);
    sound();
    let mount = image.mount(&[]);
    let (one, two) = (mount.dir().join("one"), mount.dir().join("two"));
    std::fs::write(&one, "one\n").unwrap();
    std::fs::write(&two, "two\n").unwrap();
    run(
        Release::Unstable.path("xfs_io").unwrap().to_str().unwrap(),
        &[&"-c", &format!("exchangerange {}", two.display()), &one],
    );
    assert_eq!(std::fs::read(&one).unwrap(), b"two\n");
    run("rm", &[&"-r", &mount.dir().join("tree")]);
    drop(mount);
    sound();
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/one")]), b"two\n");
    uxfs_ok(&[&"rm", &image.at("/one")]);
    sound();
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_with_a_reverse_map_are_made_and_filled() {
    let dir = scratch();
    let (image, source) = (dir.path().join("new.img"), dir.path().join("source"));
    std::fs::create_dir(&source).unwrap();
    common::fill(&source);
    uxfs_ok(&[&"mkfs", &"-q", &image, &"400M", &"-m", &"rmapbt=1", &"--from", &source]);
    run("xfs_repair", &[&"-n", &image]);
    uxfs_ok(&[&"grow", &image, &"1G"]);
    run("xfs_repair", &[&"-n", &image]);
    let made = Image { dir, path: image };
    let mount = made.mount(&[]);
    run("diff", &[&"-r", &"--no-dereference", &source.join("docs"), &mount.dir().join("docs")]);
    run("rm", &[&"-r", &mount.dir().join("docs")]);
    drop(mount);
    run("xfs_repair", &[&"-n", &made.path]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_with_parent_pointers_are_made_and_filled() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    common::fill(&source);
    for number in 0..200 {
        let link = source.join(format!("another-name-of-the-file-{number}"));
        if number == 0 {
            std::fs::write(link, "linked").unwrap()
        } else {
            std::fs::hard_link(source.join("another-name-of-the-file-0"), link).unwrap();
        }
    }
    let [image, again] = ["new.img", "again.img"].map(|name| dir.path().join(name));
    for to in [&image, &again] {
        let same = "uuid=8b1f2f6a-0c55-4c7e-9d43-1f8a1b5d2e01";
        let options =
            ["-n", "parent=1", "-m", same, "-m", "rmapbt=1", "-i", "nrext64=1", "--time", "1700000000"];
        let command: [&dyn AsRef<OsStr>; 6] = [&"mkfs", &"-q", to, &"400M", &"--from", &source];
        let command: Vec<&dyn AsRef<OsStr>> =
            command.into_iter().chain(options.iter().map(|option| option as &dyn AsRef<OsStr>)).collect();
        uxfs_ok(&command);
    }
    run("cmp", &[&image, &again]);
    let repair = Release::Unstable.path("xfs_repair").unwrap();
    let sound = |path: &Path| {
        run(repair.to_str().unwrap(), &[&"-n", &path]);
        uxfs_ok(&[&"check", &path]);
    };
    sound(&image);
    uxfs_ok(&[&"grow", &image, &"1G"]);
    sound(&image);
    let made = Image { dir, path: image };
    let mount = made.mount(&[]);
    run("diff", &[&"-r", &"--no-dereference", &source.join("docs"), &mount.dir().join("docs")]);
    let link = mount.dir().join("another-name-of-the-file-150");
    let said = run(
        Release::Unstable.path("xfs_io").unwrap().to_str().unwrap(),
        &[&"-r", &"-c", &"parent -p", &link],
    );
    assert_eq!(said.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count(), 200);
    run("rm", &[&"-r", &mount.dir().join("docs")]);
    drop(mount);
    sound(&made.path);
}

/// Options of `mkfs.xfs` whose features are not made are refused by name, and may be said where they say no.
#[test]
#[ignore = "needs root and xfsprogs"]
fn options_for_features_that_are_not_made() {
    let dir = scratch();
    let image = dir.path().join("new.img");
    for option in [["-m", "metadir=1"], ["-m", "autofsck=1"]] {
        let text = format!("{} {}: volumes with this feature are not made", option[0], option[1]);
        uxfs_fails(&[&"mkfs", &image, &"400M", &option[0], &option[1]], 2, &text);
        assert!(!image.exists());
    }
    let off: [&dyn AsRef<OsStr>; 8] = [
        &"mkfs",
        &"-q",
        &image,
        &"400M",
        &"-nparent=0",
        &"-iexchange=0",
        &"-mmetadir=0,autofsck=0",
        &"-mrmapbt=0",
    ];
    uxfs_ok(&off);
    run("xfs_repair", &[&"-n", &image]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_cannot_be_opened_is_refused_with_its_feature_by_every_verb() {
    let cases = [
        ("-rrtdev=", "the volume has a realtime section, which is not supported"),
        ("-llogdev=", "the volume has an external log, which is not supported"),
    ];
    for (option, said) in cases {
        for mkfs in [PathBuf::from("mkfs.xfs"), Release::Unstable.path("mkfs.xfs").unwrap()] {
            let dir = scratch();
            let other = dir.path().join("other device");
            std::fs::File::create(&other).unwrap().set_len(256 << 20).unwrap();
            let option = format!("{option}{}", other.display());
            let image = Image::made_by(&mkfs, &[&option]);
            let untouched = image.dir.path().join("untouched");
            run("cp", &[&"--sparse=always", &image.path, &untouched]);
            let host = dir.path().join("file");
            std::fs::write(&host, "content").unwrap();
            let (root, new) = (image.at("/"), image.at("/new"));
            let commands: [&[&dyn AsRef<OsStr>]; 16] = [
                &[&"info", &image.path],
                &[&"ls", &root],
                &[&"check", &image.path],
                &[&"recover", &image.path],
                &[&"cp", &host, &new],
                &[&"mkdir", &new],
                &[&"ln", &"-s", &"target", &new],
                &[&"truncate", &"-s", &"0", &new],
                &[&"rm", &new],
                &[&"chmod", &"600", &root],
                &[&"chown", &"7:7", &root],
                &[&"xattr", &"set", &root, &"user.colour", &"red"],
                &[&"label", &image.path, &"new"],
                &[&"uuid", &image.path, &"generate"],
                &[&"grow", &image.path, &"500M"],
                &[&"upgrade", &image.path, &"-O", &"nrext64"],
            ];
            for command in commands {
                uxfs_fails(command, 4, said);
            }
            run("cmp", &[&untouched, &image.path]);
        }
    }
}
