//! Options do what the help says of them, where no other test asks: each is tried beside its absence. Needs xfsprogs
//! and root, as the other tests of verbs do.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, uxfs, uxfs_fails, uxfs_ok};
use std::process::{Command, Stdio};

/// What `stat --json` says of a path.
fn stat(image: &Image, path: &str) -> serde_json::Value {
    serde_json::from_slice(&uxfs_ok(&[&"stat", &"--json", &image.at(path)])).expect("one object")
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_new_name_that_is_taken_is_left_alone_if_asked() {
    let image = Image::new(&[]);
    uxfs_ok(&[&"truncate", &"-s", &"1", &image.at("/one")]);
    uxfs_ok(&[&"truncate", &"-s", &"2", &image.at("/two")]);
    let _code = uxfs(&[&"mv", &"-n", &image.at("/one"), &image.at("/two")]);
    assert_eq!(
        (stat(&image, "/one")["size"].as_u64(), stat(&image, "/two")["size"].as_u64()),
        (Some(1), Some(2))
    );
    uxfs_ok(&[&"mv", &image.at("/one"), &image.at("/two")]);
    assert_eq!(stat(&image, "/two")["size"].as_u64(), Some(1));
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    uxfs_fails(&[&"mv", &"-T", &image.at("/two"), &image.at("/dir")], 3, "is a directory");
    uxfs_ok(&[&"mv", &image.at("/two"), &image.at("/dir")]);
    assert_eq!(stat(&image, "/dir/two")["size"].as_u64(), Some(1));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn attributes_are_made_or_replaced_as_asked_and_of_links_themselves() {
    let image = Image::new(&[]);
    let file = image.at("/file");
    uxfs_ok(&[&"truncate", &"-s", &"1", &file]);
    uxfs_fails(&[&"xattr", &"set", &"--replace", &file, &"user.a", &"1"], 3, "no such attribute");
    uxfs_ok(&[&"xattr", &"set", &"--create", &file, &"user.a", &"1"]);
    uxfs_fails(&[&"xattr", &"set", &"--create", &file, &"user.a", &"2"], 9, "exists");
    uxfs_ok(&[&"xattr", &"set", &"--replace", &file, &"user.a", &"3"]);
    assert_eq!(uxfs_ok(&[&"xattr", &"get", &file, &"user.a"]), b"3");
    uxfs_ok(&[&"ln", &"-s", &"file", &image.at("/link")]);
    assert_eq!(uxfs_ok(&[&"xattr", &"list", &image.at("/link")]), b"user.a\n");
    uxfs_ok(&[&"xattr", &"set", &"-H", &image.at("/link"), &"trusted.own", &"x"]);
    assert_eq!(uxfs_ok(&[&"xattr", &"list", &"-H", &image.at("/link")]), b"trusted.own\n");
    assert_eq!(uxfs_ok(&[&"xattr", &"list", &file]), b"user.a\n");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn links_are_removed_and_what_is_not_there_is_no_failure() {
    let image = Image::new(&[]);
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    uxfs_ok(&[&"truncate", &"-s", &"1", &image.at("/dir/file")]);
    uxfs_ok(&[&"ln", &"-s", &"dir", &image.at("/link")]);
    uxfs_ok(&[&"rm", &"-r", &image.at("/link")]);
    uxfs_fails(&[&"stat", &image.at("/link")], 3, "no such file");
    assert_eq!(stat(&image, "/dir/file")["size"].as_u64(), Some(1));
    uxfs_ok(&[&"rm", &"-f", &image.at("/link"), &image.at("/nor/this")]);
    uxfs_ok(&[&"truncate", &"-c", &"-s", &"5", &image.at("/unmade")]);
    uxfs_fails(&[&"stat", &image.at("/unmade")], 3, "no such file");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn permissions_of_a_new_directory_are_as_the_umask_leaves_them() {
    let image = Image::new(&[]);
    let mode = |path: &str| stat(&image, path)["mode"].as_str().map(str::to_owned);
    let script = |options: &str, path: &str| {
        let uxfs = env!("CARGO_BIN_EXE_uxfs");
        format!("umask 027; {uxfs} mkdir {options} {}:{path}", image.path.display())
    };
    run("sh", &[&"-c", &script("", "/plain")]);
    run("sh", &[&"-c", &script("-m 777", "/asked")]);
    let of = |path: &str| mode(path).unwrap_or_else(|| stat(&image, path)["mode"].to_string());
    assert!(of("/plain").ends_with("750"), "{}", of("/plain"));
    assert!(of("/asked").ends_with("777"), "{}", of("/asked"));
}

#[test]
fn a_volume_takes_the_part_of_an_image_that_is_said_and_nothing_is_printed_if_asked() {
    let folder = common::scratch();
    let image = folder.path().join("disk.img");
    std::fs::write(&image, vec![0xa5_u8; 80 << 20]).unwrap();
    let part: [&dyn AsRef<std::ffi::OsStr>; 4] = [&"--offset", &"1M", &"--length", &"64M"];
    let made = uxfs_ok(&[&part[..], &[&"mkfs", &"-f", &"-q", &"--small", &image]].concat());
    assert!(made.is_empty(), "{made:?}");
    let bytes = std::fs::read(&image).unwrap();
    assert!(bytes[..1 << 20].iter().chain(&bytes[65 << 20..]).all(|byte| *byte == 0xa5));
    assert!(!uxfs_ok(&[&part[..], &[&"info", &image]].concat()).is_empty());
    uxfs_fails(&[&part[..3], &[&"32M", &"info", &image]].concat(), 5, "truncated image");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_archive_goes_through_standard_input_and_output_unless_a_file_is_named() {
    let (from, to) = (Image::new(&[]), Image::new(&[]));
    uxfs_ok(&[&"mkdir", &from.at("/dir")]);
    uxfs_ok(&[&"truncate", &"-s", &"77", &from.at("/dir/file")]);
    let archive = uxfs_ok(&[&"tar", &from.at("/dir")]);
    let file = to.dir.path().join("a.tar");
    assert!(uxfs_ok(&[&"tar", &"-o", &file, &from.at("/dir")]).is_empty());
    assert_eq!(std::fs::read(&file).unwrap(), archive);
    assert_eq!(uxfs_ok(&[&"tar", &"-o", &"-", &from.at("/dir")]), archive);
    uxfs_ok(&[&"untar", &to.at("/"), &"-i", &file, &"--owner", &"7:8"]);
    assert_eq!(stat(&to, "/file")["uid"].as_u64(), Some(7));
    uxfs_ok(&[&"mkdir", &to.at("/piped")]);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_uxfs"))
        .arg("untar")
        .arg(to.at("/piped"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut piped.stdin.take().unwrap(), &archive).unwrap();
    assert!(piped.wait().unwrap().success());
    assert_eq!(stat(&to, "/piped/file")["size"].as_u64(), Some(77));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_root_directory_is_what_an_image_alone_means() {
    let image = Image::new(&[]);
    uxfs_ok(&[&"mkdir", &image.at("/only")]);
    assert_eq!(uxfs_ok(&[&"ls", &image.path]), uxfs_ok(&[&"ls", &image.at("/")]));
    assert_eq!(uxfs_ok(&[&"ls", &image.path]), b"only\n");
    assert_eq!(uxfs_ok(&[&"ls", &"-d", &image.at("/only")]), uxfs_ok(&[&"ls", &"-dU", &image.at("/only")]));
    assert_eq!(uxfs_ok(&[&"ls", &image.at("/only")]), b"");
}
