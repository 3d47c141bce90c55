//! `info`, `ls`, `stat`, `cat`, `tree`, `find`, `du`: what they say is what the kernel and the GNU tools say.
#![forbid(unsafe_code)]

mod common;

use common::{Image, blocks, run, uxfs, uxfs_ok};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn objects(bytes: &[u8]) -> Vec<Value> {
    serde_json::Deserializer::from_slice(bytes).into_iter().map(|value| value.unwrap()).collect()
}

/// A path in JSON, as the host names it below `dir`.
fn host_path(dir: &Path, object: &Value, key: &str) -> std::path::PathBuf {
    let bytes = match object.get(format!("{key}_bytes")) {
        Some(hex) => {
            let hex = hex.as_str().unwrap();
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        }
        None => object[key].as_str().unwrap().as_bytes().to_vec(),
    };
    dir.join(OsStr::from_bytes(bytes.strip_prefix(b"/").unwrap_or(&bytes)))
}

fn moment(seconds: i64, nanoseconds: i64) -> String {
    let time = jiff::Timestamp::new(seconds, i32::try_from(nanoseconds).unwrap());
    // Before 1970 jiff wants both of one sign.
    let time = time.unwrap_or_else(|_| {
        jiff::Timestamp::new(seconds + 1, i32::try_from(nanoseconds - 1_000_000_000).unwrap()).unwrap()
    });
    time.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string()
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn find_lists_every_file_as_the_kernel_has_it() {
    for options in [&[][..], &["-b", "size=2048", "-n", "size=8192"], &["-i", "nrext64=1", "-m", "rmapbt=1"]]
    {
        let image = Image::filled(options);
        let found = objects(&uxfs_ok(&[&"find", &image.path, &"-links", &"+0", &"--json"]));
        let mount = image.mount(&["ro"]);
        let mut seen = BTreeSet::new();
        for object in &found {
            let path = host_path(mount.dir(), object, "path");
            let of = path.symlink_metadata().unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let number = |key: &str| object[key].as_u64().unwrap();
            assert_eq!(number("ino"), of.ino(), "{path:?}");
            assert_eq!(object["mode"], format!("{:04o}", of.mode() & 0o7777), "{path:?}");
            assert_eq!(number("nlink"), of.nlink(), "{path:?}");
            assert_eq!((number("uid"), number("gid")), (of.uid().into(), of.gid().into()), "{path:?}");
            assert_eq!(number("size"), of.size(), "{path:?}");
            assert_eq!(number("blocks"), blocks(&path), "{path:?}");
            assert_eq!(object["mtime"], moment(of.mtime(), of.mtime_nsec()), "{path:?}");
            assert_eq!(object["atime"], moment(of.atime(), of.atime_nsec()), "{path:?}");
            assert_eq!(object["ctime"], moment(of.ctime(), of.ctime_nsec()), "{path:?}");
            if let Some(rdev) = object["rdev"].as_object() {
                let numbers = (rdev["major"].as_u64().unwrap(), rdev["minor"].as_u64().unwrap());
                let (major, minor) = (rustix::fs::major(of.rdev()), rustix::fs::minor(of.rdev()));
                assert_eq!(numbers, (major.into(), minor.into()), "{path:?}");
            }
            assert!(seen.insert(path));
        }
        assert_eq!(seen.len(), common::manifest(mount.dir()).len());
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn find_finds_what_gnu_find_does() {
    let image = Image::filled(&[]);
    let mount = image.mount(&["ro"]);
    let sorted = |bytes: Vec<u8>| {
        let mut paths: Vec<Vec<u8>> = bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
        paths.sort();
        paths
    };
    let tests: &[&[&str]] = &[
        &[],
        &["-name", "*.bin"],
        &["-name", "entry-000[1-3]?"],
        &["-name", "entry-[!0]*"],
        &["-iname", "SMALL*"],
        &["-type", "d"],
        &["-type", "l"],
        &["-type", "p"],
        &["-type", "f", "-size", "+100k"],
        &["-size", "-2"],
        &["-size", "+0", "-size", "-100c"],
        &["-size", "+3c", "-size", "-20k"],
        &["-size", "1c"],
        &["-type", "f", "-links", "+1"],
        &["-uid", "1000"],
        &["-gid", "-7"],
        &["-perm", "4751"],
        &["-perm", "-1777"],
        &["-perm", "/6000"],
        &["-empty"],
        &["-maxdepth", "1"],
        &["-mindepth", "100"],
        &["-mindepth", "1", "-maxdepth", "2", "-type", "f"],
        &["-path", "*/links/*"],
    ];
    for tests in tests {
        let tests: Vec<&dyn AsRef<OsStr>> = tests.iter().map(|test| test as &dyn AsRef<OsStr>).collect();
        let ours =
            uxfs_ok(&[&[&"find" as &dyn AsRef<OsStr>, &image.path], &tests[..], &[&"-print0"]].concat());
        let mut gnu = std::process::Command::new("find");
        // GNU find wants its depths first, and says so on standard error.
        let gnu =
            gnu.current_dir(mount.dir()).arg(".").args(tests.iter().map(|test| test.as_ref())).arg("-print0");
        let gnu = gnu.output().unwrap();
        assert!(gnu.status.success());
        let gnu: Vec<u8> = gnu
            .stdout
            .split(|&byte| byte == 0)
            .flat_map(|path| {
                let path = path
                    .strip_prefix(b"./")
                    .or_else(|| path.strip_prefix(b"."))
                    .map(|rest| [b"/", rest].concat());
                [path.unwrap_or_default(), vec![0]].concat()
            })
            .collect();
        let (ours, gnu) = (sorted(ours), sorted(gnu));
        let filter =
            |paths: Vec<Vec<u8>>| paths.into_iter().filter(|path| !path.is_empty()).collect::<Vec<_>>();
        let (ours, gnu) = (filter(ours), filter(gnu));
        let shown: Vec<_> = tests.iter().map(|test| test.as_ref()).collect();
        assert!(ours == gnu, "{shown:?}: {} and {}", ours.len(), gnu.len());
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn ls_lists_what_is_there() {
    let image = Image::filled(&[]);
    let mount = image.mount(&["ro"]);
    for dir in ["many", "bytes", "docs", "special"] {
        let listed = uxfs_ok(&[&"ls", &"--raw", &image.at(&format!("/{dir}"))]);
        let mut names: Vec<Vec<u8>> = std::fs::read_dir(mount.dir().join(dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_vec())
            .filter(|name| name[0] != b'.')
            .collect();
        names.sort();
        let expected: Vec<u8> = names.iter().flat_map(|name| [name, &b"\n"[..]].concat()).collect();
        assert!(listed == expected, "{dir}");
        let unsorted = uxfs_ok(&[&"ls", &"--raw", &"-U", &image.at(&format!("/{dir}"))]);
        assert_eq!(unsorted.len(), expected.len());
    }
    let long = String::from_utf8(uxfs_ok(&[&"ls", &"-l", &image.at("/docs/small.txt")])).unwrap();
    assert!(long.starts_with("-rwsr-x--x   3  1000  1000           12 1969-12-31 23:59 "), "{long}");
    let device = String::from_utf8(uxfs_ok(&[&"ls", &"-l", &image.at("/special/block")])).unwrap();
    assert!(device.starts_with("br--------   1     0     0   259, 70000 "), "{device}");
    let link = String::from_utf8(uxfs_ok(&[&"ls", &"-l", &image.at("/links/absolute")])).unwrap();
    assert!(link.ends_with("/links/absolute -> /docs\n"), "{link}");
    let hidden = uxfs_ok(&[&"ls", &"-a", &image.at("/docs")]);
    assert!(hidden.starts_with(b".hidden\n"));
    let all = uxfs_ok(&[&"ls", &"-aR", &image.path]);
    let directories = run("find", &[&mount.dir(), &"-type", &"d"]);
    let headed = all.windows(2).filter(|pair| pair == b":\n").count();
    // One of the odd names ends in a colon.
    assert_eq!(headed, directories.iter().filter(|&&byte| byte == b'\n').count());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn stat_says_all() {
    let image = Image::filled(&[]);
    let stat = |path: &str, flags: &[&dyn AsRef<OsStr>]| {
        let place = image.at(path);
        objects(&uxfs_ok(&[&[&"stat" as &dyn AsRef<OsStr>, &place, &"--json"], flags].concat())).remove(0)
    };
    let mount = image.mount(&["ro"]);
    for path in ["docs/small.txt", "docs/large.bin", "docs", "docs/empty", "links/relative"] {
        let object = stat(&format!("/{path}"), &[&"-x"]);
        let ours: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = object["xattrs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|xattr| {
                let hex = xattr["value_bytes"].as_str().unwrap();
                let value = (0..hex.len()).step_by(2);
                let value = value.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
                (xattr["name"].as_str().unwrap().as_bytes().to_vec(), value)
            })
            .filter(|(name, _): &(Vec<u8>, _)| !name.starts_with(b"trusted.SGI_ACL"))
            .collect();
        assert!(ours == common::xattrs(&mount.dir().join(path)), "{path}");
        assert!(!ours.is_empty(), "{path}");
    }
    let object = stat("/links/relative", &[]);
    assert_eq!((&object["type"], &object["target"]), (&"symlink".into(), &"../docs/small.txt".into()));
    assert_eq!(stat("/links/relative", &[&"-L"])["type"], "file");
    let extents = stat("/sparse/prealloc", &[&"-e"])["extent_list"].clone();
    let of = |at: usize, key: &str| extents[at][key].clone();
    assert_eq!(
        (of(0, "logical"), of(0, "length"), of(0, "unwritten")),
        (0.into(), 65536.into(), true.into())
    );
    assert_eq!(
        (of(1, "logical"), of(1, "length"), of(1, "unwritten")),
        (65536.into(), 65536.into(), false.into())
    );
    assert_eq!((of(2, "logical"), of(2, "unwritten")), (131_072.into(), true.into()));
    let text = String::from_utf8(uxfs_ok(&[&"stat", &image.at("/docs/small.txt")])).unwrap();
    assert!(text.contains("Modified: 1969-12-31 23:59:58.250000001"), "{text}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn cat_gives_the_bytes() {
    let image = Image::filled(&[]);
    let mount = image.mount(&["ro"]);
    for path in ["docs/large.bin", "docs/empty", "sparse/ends-in-hole", "sparse/prealloc", "sparse/runs"] {
        let bytes = uxfs_ok(&[&"cat", &image.at(&format!("/{path}"))]);
        assert!(bytes == std::fs::read(mount.dir().join(path)).unwrap(), "{path}");
    }
    let twice = uxfs_ok(&[&"cat", &image.at("/docs/small.txt"), &image.at("/links/absolute/small.txt")]);
    assert_eq!(twice, b"a few bytes\na few bytes\n");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn du_sums_as_gnu_du_does() {
    let image = Image::filled(&[]);
    let mount = image.mount(&["ro"]);
    let lines = |bytes: Vec<u8>, prefix: &str| {
        let text = String::from_utf8(bytes).unwrap();
        let lines = text.lines().map(|line| line.replacen(&format!("\t{prefix}"), "\t", 1));
        lines.collect::<BTreeSet<String>>()
    };
    for dir in ["docs", "many", "sparse", "deep", "links"] {
        for flags in [&[][..], &["-a"], &["-s"]] {
            let flags: Vec<&dyn AsRef<OsStr>> = flags.iter().map(|flag| flag as &dyn AsRef<OsStr>).collect();
            let host = mount.dir().join(dir);
            let gnu = run("du", &[&flags[..], &[&"-k" as &dyn AsRef<OsStr>, &host]].concat());
            let place = image.at(&format!("/{dir}"));
            let ours = uxfs_ok(&[&[&"du" as &dyn AsRef<OsStr>], &flags[..], &[&place]].concat());
            assert_eq!(lines(ours, ""), lines(gnu, mount.dir().to_str().unwrap()));
        }
    }
    // Names of one file are counted once, over all of the volume.
    let ours = uxfs_ok(&[&"du", &"-s", &image.path]);
    let gnu = run("du", &[&"-sk", &mount.dir()]);
    let number = |bytes: &[u8]| String::from_utf8_lossy(bytes).split('\t').next().unwrap().to_owned();
    assert_eq!(number(&ours), number(&gnu));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn tree_draws_everything_once() {
    let image = Image::filled(&[]);
    let mount = image.mount(&["ro"]);
    let drawn = String::from_utf8_lossy(&uxfs_ok(&[&"tree", &"-a", &image.path])).into_owned();
    let count = |kind: &[&str]| {
        let mut find = std::process::Command::new("find");
        let found = find.arg(mount.dir()).args(["-mindepth", "1"]).args(kind).args(["-printf", "x"]).output();
        found.unwrap().stdout.len()
    };
    let (directories, files) = (count(&["-type", "d"]), count(&["!", "-type", "d"]));
    assert!(drawn.ends_with(&format!("\n{directories} directories, {files} files\n")), "{}", drawn.len());
    let shallow = String::from_utf8(uxfs_ok(&[&"tree", &"-L", &"1", &image.path])).unwrap();
    let expected = "/\n├── bytes\n├── deep\n├── docs\n├── links\n├── many\n├── sparse\n└── special\n\n7 directories, 0 files\n";
    assert_eq!(shallow, expected);
    let links = String::from_utf8(uxfs_ok(&[&"tree", &image.at("/links")])).unwrap();
    assert!(links.contains("├── absolute -> /docs\n"), "{links}");
    assert_eq!(objects(&uxfs_ok(&[&"tree", &"-a", &"--json", &image.path])).len(), directories + files + 1);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn info_says_what_the_volume_is() {
    let image = Image::filled(&["-L", "a label", "-b", "size=2048", "-i", "size=1024"]);
    let info = objects(&uxfs_ok(&[&"info", &image.path, &"--json"])).remove(0);
    assert_eq!(info["label"], "a label");
    assert_eq!(info["block_size"], 2048);
    assert_eq!(info["inode_size"], 1024);
    assert_eq!(info["version"], 5);
    let uuid = String::from_utf8(run("blkid", &[&"-o", &"value", &"-s", &"UUID", &image.path])).unwrap();
    assert_eq!(info["uuid"], uuid.trim());
    let mount = image.mount(&["ro"]);
    let of = rustix::fs::statvfs(mount.dir()).unwrap();
    assert_eq!(info["available_blocks"].as_u64().unwrap() * 2048, of.f_blocks * of.f_frsize);
    let text = String::from_utf8(uxfs_ok(&[&"info", &image.path])).unwrap();
    assert!(text.starts_with("XFS version 5\nlabel       a label\n"), "{text}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_image_may_have_a_colon_in_its_name() {
    let image = Image::filled(&[]);
    let odd = image.dir.path().join("a:");
    std::fs::create_dir(&odd).unwrap();
    let odd = odd.join("b:c.img");
    std::fs::rename(&image.path, &odd).unwrap();
    let mut place = OsString::from(&odd);
    assert!(uxfs_ok(&[&"ls", &place]).starts_with(b"bytes\n"));
    place.push(":/docs/small.txt");
    assert_eq!(uxfs_ok(&[&"cat", &place]), b"a few bytes\n");
}

#[test]
fn help_lists_the_exit_codes() {
    let help = String::from_utf8(uxfs_ok(&[&"--help"])).unwrap();
    assert!(help.contains("Exit codes:") && help.contains("7  the volume's log is dirty"), "{help}");
    assert!(uxfs(&[&"--version"]).status.success());
}
