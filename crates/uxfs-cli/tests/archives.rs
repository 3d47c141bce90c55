//! Archives, from GNU tar and to it; and archives that were made to do harm: refused by name, with limits on what their
//! headers may say.
#![forbid(unsafe_code)]

mod common;

use common::forge::{DIRECTORY, Forged, SYMLINK};
use common::{run, scratch, uxfs, uxfs_fails, uxfs_ok};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A header and its content, filled up to whole blocks.
fn entry(kind: u8, name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    // As it is: the crate refuses some names.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    if matches!(kind, b'1' | b'2') {
        header.set_size(0);
        header.as_old_mut().linkname[..content.len()].copy_from_slice(content);
        header.set_cksum();
        return header.as_bytes().to_vec();
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A record of an extended header.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let len = (1..20).map(|digits| rest + digits).find(|len| len.to_string().len() + rest == *len).unwrap();
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

fn untar(image: &Forged, parts: &[Vec<u8>]) -> (Option<i32>, String) {
    let file = image.dir.path().join("archive");
    std::fs::write(&file, parts.concat()).unwrap();
    let output = uxfs(&[&"untar", &"-i", &file, &image.path]);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_headers_say_has_limits() {
    let image = Forged::new("16M");
    let file = || entry(b'0', "file", b"x");
    let deep = record("path", &[b"a/".repeat(400_000), b"f".to_vec()].concat());
    let xattrs: Vec<u8> =
        (0..150_000).flat_map(|nth| record(&format!("SCHILY.xattr.user.{nth}"), b"")).collect();
    let large = record("comment", &vec![b'x'; 9 << 20]);
    let runs: Vec<u8> = (0..1_100_000).flat_map(|nth| format!("{nth},0,").into_bytes()).collect();
    let runs =
        [record("GNU.sparse.map", &runs[..runs.len() - 1]), record("GNU.sparse.size", b"9999999")].concat();
    let cases: [(&str, Vec<Vec<u8>>, i32); 6] = [
        ("more than 4096 nested directories", vec![entry(b'x', "x", &deep), file()], 1),
        ("attributes have names of more than 65536 bytes", vec![entry(b'x', "x", &xattrs), file()], 5),
        ("a header for all files of", vec![entry(b'g', "g", &large), file()], 5),
        (
            "a header for all files says SCHILY.xattr.user.0",
            vec![entry(b'g', "g", &xattrs[..1000]), file()],
            5,
        ),
        (
            "extended headers of more than",
            vec![entry(b'x', "x", &large), entry(b'x', "x", &large), file()],
            5,
        ),
        ("a sparse file with more than 1048576 runs", vec![entry(b'x', "x", &runs), file()], 5),
    ];
    for (what, parts, code) in cases {
        let (ended, said) = untar(&image, &parts);
        assert!(said.contains(what), "{what}: {said:.300}");
        assert_eq!(ended, Some(code), "{said:.300}");
        assert!(said.len() < 10_000, "{what}: a line of {} bytes", said.len());
        // The same where a volume is made of it.
        let made = image.dir.path().join("made");
        let from = image.dir.path().join("archive");
        let output = uxfs(&[&"mkfs", &"-q", &"-f", &"--small", &"--from", &from, &made, &"16M"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(what), "{what}: {said:.300}");
        assert_eq!(output.status.code(), Some(code), "{said:.300}");
    }
    assert!(uxfs_ok(&[&"ls", &image.path]).is_empty());
    // A thousand headers for all files say no more than the last of them.
    let mut parts = vec![entry(b'g', "g", &record("gid", b"5")); 1000];
    parts.push(file());
    assert_eq!(untar(&image, &parts), (Some(0), String::new()));
}

#[test]
fn no_name_leads_through_a_link_or_up() {
    let image = Forged::new("16M");
    uxfs_ok(&[&"mkdir", &image.at("/outside"), &image.at("/in")]);
    uxfs_ok(&[&"ln", &"-s", &"/outside", &image.at("/in/there")]);
    uxfs_ok(&[&"truncate", &"-s", &"5", &image.at("/secret")]);
    let file = image.dir.path().join("archive");
    let parts = [
        entry(b'0', "there/through", b"x"),
        entry(b'2', "mine", b"/outside"),
        entry(b'0', "mine/through", b"x"),
        entry(b'0', "../up", b"x"),
        entry(b'0', "/absolute", b"x"),
        entry(b'1', "hard", b"mine/../../outside"),
        entry(b'1', "harder", b"../secret"),
        entry(b'0', "good", b"x"),
    ];
    std::fs::write(&file, parts.concat()).unwrap();
    let output = uxfs(&[&"untar", &"-i", &file, &image.at("/in")]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 5, "{said}");
    assert_eq!(said.matches("a name that leads elsewhere").count(), 3, "{said}");
    assert_eq!(uxfs_ok(&[&"ls", &image.at("/outside")]), b"");
    assert_eq!(uxfs_ok(&[&"ls", &image.at("/in")]), b"absolute\ngood\nmine\nthere\n");
}

fn sparse_file(path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    for at in [0, 1 << 20, 3 << 20] {
        file.write_all_at(&[7; 10_000], at).unwrap();
    }
    file.set_len(5 << 20).unwrap();
}

#[test]
fn sparse_files_of_every_format_are_read() {
    let tree = scratch();
    sparse_file(&tree.path().join("holes"));
    std::fs::File::create(tree.path().join("hole")).unwrap().set_len(3 << 20).unwrap();
    let wanted = std::fs::read(tree.path().join("holes")).unwrap();
    let formats: [&[&str]; 5] = [
        &["--format=gnu"],
        &["--format=oldgnu"],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ];
    for format in formats {
        let image = Forged::new("16M");
        let archive = image.dir.path().join("archive");
        let mut args: Vec<&dyn AsRef<OsStr>> = format.iter().map(|arg| arg as _).collect();
        let rest: [&dyn AsRef<OsStr>; 7] = [&"-S", &"-C", &tree.path(), &"-cf", &archive, &"holes", &"hole"];
        args.extend(rest);
        run("tar", &args);
        uxfs_ok(&[&"untar", &"-i", &archive, &image.path]);
        assert!(uxfs_ok(&[&"cat", &image.at("/holes")]) == wanted, "{format:?}");
        assert!(uxfs_ok(&[&"cat", &image.at("/hole")]) == vec![0; 3 << 20], "{format:?}");
        let stat = uxfs_ok(&[&"stat", &"--json", &image.at("/holes")]);
        let stat: serde_json::Value = serde_json::from_slice(&stat).unwrap();
        assert!(stat["blocks"].as_u64().unwrap() < 200, "{format:?}: the holes were filled");
    }
}

#[test]
fn an_incremental_archive_and_its_label_are_read() {
    let tree = scratch();
    std::fs::create_dir_all(tree.path().join("dir/inner")).unwrap();
    std::fs::write(tree.path().join("dir/file"), "text").unwrap();
    let image = Forged::new("16M");
    let archive = image.dir.path().join("archive");
    let rest: [&dyn AsRef<OsStr>; 7] =
        [&"--format=gnu", &"--label=a label", &"--incremental", &"-C", &tree.path(), &"-cf", &archive];
    run("tar", &[&rest[..], &[&"dir"]].concat());
    uxfs_ok(&[&"untar", &"-i", &archive, &image.path]);
    assert_eq!(uxfs_ok(&[&"find", &image.path]), b"/\n/dir\n/dir/inner\n/dir/file\n");
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/dir/file")]), b"text");
}

#[test]
fn a_sparse_file_with_a_long_path_has_its_own_name() {
    let tree = scratch();
    let dir = tree.path().join("d".repeat(120));
    std::fs::create_dir(&dir).unwrap();
    sparse_file(&dir.join("holes"));
    let image = Forged::of("16M", tree.path());
    let archive = image.dir.path().join("archive");
    uxfs_ok(&[&"tar", &image.path, &"-o", &archive]);
    let bytes = std::fs::read(&archive).unwrap();
    let find = |text: &[u8]| bytes.windows(text.len()).rposition(|window| window == text).unwrap();
    // Readers that take the last of the two are right as well.
    assert!(find(b" path=") < find(b" GNU.sparse.name="));
    let out = scratch();
    run("tar", &[&"-C", &out.path(), &"-xf", &archive]);
    let copy = out.path().join("d".repeat(120)).join("holes");
    assert!(std::fs::read(copy).unwrap() == std::fs::read(dir.join("holes")).unwrap());
}

#[test]
fn a_name_that_is_there_twice_goes_once_into_an_archive() {
    let tree = scratch();
    for name in ["e/x1", "e/x2"] {
        std::fs::create_dir_all(tree.path().join(name)).unwrap();
    }
    std::fs::write(tree.path().join("e/x2/pwn"), "x").unwrap();
    std::os::unix::fs::symlink("/somewhere", tree.path().join("link")).unwrap();
    let image = Forged::of("16M", tree.path());
    let [root, e, x2, link] = ["/", "/e", "/e/x2", "/link"].map(|path| image.ino(path));
    image.entries(e, root, &[(b"x1", SYMLINK, link), (b"x1", DIRECTORY, x2)]);
    let archive = image.dir.path().join("archive");
    for verb in [&["tar"][..], &["cp", "-r"]] {
        let to = image.dir.path().join("copy");
        let mut args: Vec<&dyn AsRef<OsStr>> = verb.iter().map(|arg| arg as _).collect();
        args.push(&image.path);
        match verb {
            ["tar"] => args.extend([&"-o" as &dyn AsRef<OsStr>, &archive]),
            _ => args.push(&to),
        }
        let output = uxfs(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("x1: damaged: directory: a name that is there twice"), "{said}");
    }
    let listed = run("tar", &[&"-tf", &archive]);
    assert_eq!(String::from_utf8_lossy(&listed), "./\n./e/\n./e/x1\n./link\n");
}

#[test]
fn the_file_of_an_archive_is_whole_or_not_there() {
    let tree = scratch();
    std::fs::write(tree.path().join("a"), "text").unwrap();
    std::fs::write(tree.path().join("b"), "text").unwrap();
    let image = Forged::of("16M", tree.path());
    let out = scratch();
    let (file, link, target) = (out.path().join("file"), out.path().join("link"), out.path().join("target"));
    std::fs::write(&target, "kept").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    uxfs_fails(&[&"tar", &image.path, &"-o", &link], 9, "a symbolic link, which is not followed");
    assert_eq!(std::fs::read(&target).unwrap(), b"kept");
    uxfs_fails(&[&"tar", &image.path, &"-o", &file, &"--max-files", &"2"], 13, "more than 2 files");
    uxfs_fails(&[&"tar", &image.path, &"-o", &file, &"--max-size", &"7"], 13, "more than 7 bytes");
    let left: Vec<_> =
        std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    uxfs_ok(&[&"tar", &image.path, &"-o", &target]);
    assert_eq!(run("tar", &[&"-tf", &target]), b"./\n./a\n./b\n");
    uxfs_ok(&[&"tar", &image.path, &"-o", &"/dev/null"]);
}

/// The kernel keeps no such attribute either: of links and special files, users could set any.
#[test]
#[ignore = "needs root and xfsprogs"]
fn attributes_of_users_are_of_files_and_directories_alone() {
    let archive = scratch();
    let image = common::Image::new(&[]);
    let header = record("SCHILY.xattr.user.of", b"users");
    let header = [header, record("SCHILY.xattr.trusted.of", b"root")].concat();
    let mut bytes = Vec::new();
    for (kind, name, content) in [(b'0', "file", &b"text"[..]), (b'2', "link", b"file"), (b'6', "pipe", b"")]
    {
        bytes.extend(entry(b'x', "header", &header));
        bytes.extend(entry(kind, name, content));
    }
    bytes.resize(bytes.len() + 1024, 0);
    let file = archive.path().join("archive.tar");
    std::fs::write(&file, bytes).unwrap();
    let output = uxfs(&[&"untar", &"-i", &file, &image.path]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("2 extended attributes were not kept"), "{said}");

    for name in ["/link", "/pipe"] {
        let before = std::fs::read(&image.path).unwrap();
        let why = "only regular files and directories have attributes of users";
        uxfs_fails(&[&"xattr", &"set", &"-H", &image.at(name), &"user.of", &"1"], 3, why);
        uxfs_fails(&[&"xattr", &"rm", &"-H", &image.at(name), &"user.of"], 3, why);
        assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");
        uxfs_ok(&[&"xattr", &"set", &"-H", &image.at(name), &"security.of", &"system"]);
    }
    let before = std::fs::read(&image.path).unwrap();
    let list = "0x0200000001000600ffffffff04000400ffffffff20000400ffffffff";
    let of_link = [&"xattr" as &dyn AsRef<OsStr>, &"set", &"-H"];
    let at = image.at("/link");
    uxfs_fails(
        &[of_link[0], of_link[1], of_link[2], &at, &"system.posix_acl_access", &list],
        3,
        "a symbolic link has no access control list",
    );
    assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");

    run("xfs_repair", &[&"-n", &image.path]);
    let mount = image.mount(&[]);
    let names = |name: &str| {
        let all = common::xattrs(&mount.dir().join(name));
        all.into_keys().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names("file"), ["trusted.of", "user.of"]);
    for name in ["link", "pipe"] {
        assert_eq!(names(name), ["security.of", "trusted.of"]);
        let path = mount.dir().join(name);
        let refused = rustix::fs::lsetxattr(&path, "user.of", b"1", rustix::fs::XattrFlags::empty());
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
    }
}

/// It was the name that was said to be too long, or not possible.
#[test]
fn a_target_that_no_link_can_have_is_told_as_one() {
    let image = Forged::new("16M");
    for (target, what) in [
        (vec![b't'; 1024], "long: the target of the symbolic link is longer than 1023 bytes"),
        (Vec::new(), "long: it is no possible target of a symbolic link"),
    ] {
        let header = record("linkpath", &target);
        let parts = if target.is_empty() { vec![] } else { vec![entry(b'x', "x", &header)] };
        let (code, said) = untar(&image, &[parts, vec![entry(b'2', "long", b""), vec![0; 1024]]].concat());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(what), "{said}");
    }
    assert!(uxfs_ok(&[&"ls", &image.path]).is_empty());
}
