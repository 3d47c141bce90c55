//! `cp` that fails, is interrupted, or is not to take all: what is left, and what is said. And what it copies that is no
//! file: standard input and output, pipes, devices. Needs root, xfsprogs and loop mounts.
#![forbid(unsafe_code)]

mod common;

use common::forge::Forged;
use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_heeding_signals, uxfs_ok};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn start(args: &[&dyn AsRef<OsStr>]) -> Child {
    let mut command = uxfs_heeding_signals();
    command.args(args.iter().map(|arg| arg.as_ref()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn listed(image: &Image) -> String {
    String::from_utf8(uxfs_ok(&[&"ls", &image.path])).unwrap()
}

fn sound(image: &Image) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image.path]);
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// More names are said than a pipe holds, so that it cannot be done when the signal comes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn an_interrupted_copy_out_ends_with_its_code_and_no_half_file() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        for nth in 0..1000 {
            std::fs::write(mount.dir().join(format!("{nth:04}-{}", "n".repeat(200))), vec![7; 5000]).unwrap();
        }
    }
    for which in [Signal::INT, Signal::TERM] {
        let out = scratch();
        let mut child = start(&[&"cp", &"-rv", &image.path, &out.path()]);
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_exact(&mut [0]).unwrap();
        kill_process(Pid::from_child(&child), which).unwrap();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(11), "{rest}");
        assert!(rest.ends_with("interrupted; what is done is whole\n"), "{rest}");
        let names = names(out.path());
        assert!(names.len() < 1000);
        for name in names {
            assert!(!name.starts_with('.'), "{name}");
            assert_eq!(std::fs::read(out.path().join(&name)).unwrap(), vec![7; 5000], "{name}");
        }
    }
}

/// A file system of the host that is full: one line, nothing under the name of what did not fit.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_host_is_said_once_and_keeps_no_half_file() {
    struct Full(tempfile::TempDir);
    impl Drop for Full {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0.path()).status();
        }
    }
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        std::fs::create_dir(mount.dir().join("dir")).unwrap();
        std::fs::write(mount.dir().join("large"), vec![7; 3 << 20]).unwrap();
        for nth in 0..100 {
            std::fs::write(mount.dir().join(format!("dir/{nth}")), vec![7; 64 << 10]).unwrap();
        }
    }
    let full = Full(scratch());
    run("mount", &[&"-t", &"tmpfs", &"-o", &"size=1m", &"tmpfs", &full.0.path()]);
    uxfs_fails(&[&"cp", &image.at("/large"), &full.0.path()], 6, "No space left");
    uxfs_fails(&[&"cp", &"--replace", &image.at("/large"), &full.0.path()], 6, "No space left");
    assert!(names(full.0.path()).is_empty());
    std::fs::write(full.0.path().join("large"), "was there").unwrap();
    uxfs_fails(&[&"cp", &"--replace", &image.at("/large"), &full.0.path()], 6, "No space left");
    assert_eq!(std::fs::read(full.0.path().join("large")).unwrap(), b"was there");
    uxfs_fails(&[&"cp", &image.at("/large"), &full.0.path()], 6, "a part is written");
    std::fs::remove_file(full.0.path().join("large")).unwrap();
    uxfs_fails(&[&"cp", &"-r", &image.at("/dir"), &full.0.path()], 6, "No space left");
    for name in names(&full.0.path().join("dir")) {
        assert_eq!(full.0.path().join("dir").join(&name).metadata().unwrap().len(), 64 << 10, "{name}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_into_an_image_that_fails_leaves_no_half_file() {
    let image = Image::new(&[]);
    std::fs::write(image.mount(&[]).dir().join("there"), "was there").unwrap();
    uxfs_fails(&[&"cp", &"/dev/zero", &image.at("/zero")], 10, "space");
    uxfs_fails(&[&"cp", &"--replace", &"/dev/zero", &image.at("/there")], 10, "space");
    assert_eq!(listed(&image), "there\n");
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/there")]), b"was there");
    sound(&image);

    // Interrupted while it waits for more.
    for replace in [false, true] {
        let place = image.at(if replace { "/there" } else { "/new" });
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"cp", &"-v"];
        if replace {
            args.push(&"--replace");
        }
        args.extend([&"-" as &dyn AsRef<OsStr>, &place]);
        let mut child = start(&args);
        let mut input = child.stdin.take().unwrap();
        // More than a pipe holds: it reads.
        input.write_all(&vec![7; 3 << 20]).unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(input);
        assert_eq!(output.status.code(), Some(11), "{}", said(&output));
        assert_eq!(listed(&image), "there\n");
        assert_eq!(uxfs_ok(&[&"cat", &image.at("/there")]), b"was there");
        sound(&image);
    }
}

/// What cannot fit is refused before anything is lost.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_file_that_a_larger_one_cannot_replace_is_as_it_was() {
    let host = scratch();
    std::fs::write(host.path().join("there"), "was there").unwrap();
    std::fs::write(host.path().join("large"), vec![7; 24 << 20]).unwrap();
    let image = Forged::of("40M", host.path());
    std::fs::write(host.path().join("large"), vec![7; 40 << 20]).unwrap();
    for source in [host.path().join("large").into_os_string(), image.at("/large")] {
        // A copy within the image would else share blocks, and need none.
        uxfs_fails(&[&"cp", &"--reflink=never", &source, &image.at("/there")], 10, "is as it was");
        assert_eq!(uxfs_ok(&[&"cat", &image.at("/there")]), b"was there");
    }
    // A file's own space counts.
    std::fs::write(host.path().join("large"), vec![8; 25 << 20]).unwrap();
    uxfs_ok(&[&"cp", &host.path().join("large"), &image.at("/large")]);
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image.path]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn bytes_come_from_and_go_to_what_is_no_file() {
    let image = Image::new(&[]);
    let host = scratch();
    let at = |name: &str| host.path().join(name);
    let bytes: Vec<u8> = (0..800_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(at("source"), &bytes).unwrap();
    let shell = |script: &str, place: &OsStr| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script, env!("CARGO_BIN_EXE_uxfs")]).arg(place).arg(at("source"));
        bash.current_dir(host.path()).output().unwrap()
    };
    for (name, script) in [
        ("stdin", r#"cat "$2" | "$0" cp - "$1""#),
        ("redirected", r#""$0" cp - "$1" < "$2""#),
        ("dev", r#"cat "$2" | "$0" cp /dev/stdin "$1""#),
        ("substituted", r#""$0" cp <(cat "$2") "$1""#),
        ("fifo", r#"mkfifo f; (sleep 0.1; cat "$2" > f) & "$0" cp f "$1""#),
        ("deleted", r#"cp "$2" d; exec 3< d; rm d; "$0" cp /dev/fd/3 "$1""#),
    ] {
        let output = shell(script, &image.at(&format!("/{name}")));
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", said(&output));
    }
    for (name, script) in [
        ("stdin", r#""$0" cp "$1" - > out"#),
        ("fifo", r#""$0" cp "$1" /dev/stdout | cat > out"#),
        ("dev", r#"mkfifo o; cat o > out & "$0" cp "$1" o; wait"#),
        ("deleted", r#""$0" cp "$1" /dev/stdout > out"#),
    ] {
        let output = shell(script, &image.at(&format!("/{name}")));
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", said(&output));
        assert!(std::fs::read(at("out")).unwrap() == bytes, "{name}");
    }
    assert!(Path::new("/dev/stdout").symlink_metadata().unwrap().is_symlink());
    // A reader that has what it wanted is no failure.
    let output = shell(r#""$0" cp "$1" - | head -c 1; exit ${PIPESTATUS[0]}"#, &image.at("/stdin"));
    assert_eq!((output.status.code(), &*said(&output)), (Some(0), ""));
    uxfs_ok(&[&"cp", &image.at("/stdin"), &"/dev/null"]);
    assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());

    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    uxfs_fails(&[&"cp", &"-", &image.at("/dir")], 2, "give the copy one");
    uxfs_fails(&[&"cp", &image.at("/stdin"), &image.at("/dev"), &"-"], 2, "several things");
    uxfs_fails(&[&"cp", &"-r", &image.at("/dir"), &"-"], 3, "only a file's bytes");
    sound(&image);
    let mount = image.mount(&["ro"]);
    for name in ["stdin", "redirected", "dev", "substituted", "fifo", "deleted"] {
        assert!(std::fs::read(mount.dir().join(name)).unwrap() == bytes, "{name}");
    }
}

/// An image with what nobody should take unasked.
fn odd() -> Image {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        let at = |name: &str| mount.dir().join(name);
        std::fs::create_dir_all(at("t/a/b/c")).unwrap();
        std::fs::write(at("t/suid"), "#!").unwrap();
        std::fs::write(at("t/a/able"), vec![7; 100_000]).unwrap();
        run("chmod", &[&"6755", &at("t/suid")]);
        run("setcap", &[&"cap_chown+ep", &at("t/a/able")]);
        run("setfattr", &[&"-n", &"trusted.x", &"-v", &"y", &at("t/a/able")]);
        run("setfattr", &[&"-n", &"user.x", &"-v", &"y", &at("t/a/able")]);
        run("setfacl", &[&"-m", &"u:7:r", &at("t/a/able")]);
        run("mknod", &[&"-m", &"666", &at("t/mem"), &"c", &"1", &"1"]);
    }
    image
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn nothing_privileged_is_taken_unasked_or_unwanted() {
    let image = odd();
    let other = Image::new(&[]);
    uxfs_ok(&[&"mkdir", &other.at("/r"), &other.at("/a"), &other.at("/n"), &other.at("/u")]);
    let out = scratch();
    for name in ["r", "a", "n", "u"] {
        std::fs::create_dir(out.path().join(name)).unwrap();
    }
    let into = |name: &str| [out.path().join(name).into_os_string(), other.at(&format!("/{name}"))];
    for to in into("r") {
        uxfs_fails(&[&"cp", &"-r", &image.at("/t"), &to], 1, "t/mem: a device; devices are copied with -a");
    }
    for to in into("a") {
        uxfs_ok(&[&"cp", &"-a", &image.at("/t"), &to]);
    }
    for to in into("n") {
        uxfs_ok(&[
            &"cp",
            &"-a",
            &"--no-devices",
            &"--no-setuid",
            &"--no-privileged-xattrs",
            &image.at("/t"),
            &to,
        ]);
    }
    for to in into("u") {
        uxfs_ok(&[&"cp", &"-a", &"--untrusted", &image.at("/t"), &to]);
    }
    sound(&other);
    let mount = other.mount(&["ro"]);
    for dir in [out.path(), mount.dir()] {
        let mode = |path: &str| dir.join(path).metadata().unwrap().mode() & 0o7777;
        let xattrs = |path: &str| {
            let names = common::xattrs(&dir.join(path)).into_keys();
            names.map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>().join(" ")
        };
        let all = "security.capability system.posix_acl_access trusted.x user.x";
        assert_eq!((mode("a/t/suid"), &*xattrs("a/t/a/able")), (0o6755, all));
        assert_eq!((mode("r/t/suid"), &*xattrs("r/t/a/able")), (0o755, ""));
        for name in ["n", "u"] {
            let suid = mode(&format!("{name}/t/suid"));
            let kept = xattrs(&format!("{name}/t/a/able"));
            assert_eq!((suid, &*kept), (0o755, "system.posix_acl_access user.x"), "{name}");
        }
        let device = |name: &str| dir.join(name).join("t/mem").symlink_metadata().is_ok();
        assert_eq!(["r", "a", "n", "u"].map(device), [false, true, false, false]);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn limits_end_a_copy_by_their_name() {
    let image = odd();
    let other = Image::new(&[]);
    let limits: [(&str, &str, &str); 3] = [
        ("--max-files", "3", "more than 3 files (--max-files)"),
        ("--max-size", "50000", "more than 50000 bytes of content (--max-size)"),
        ("--max-depth", "2", "more than 2 nested directories (--max-depth)"),
    ];
    for (option, value, text) in limits {
        let out = scratch();
        for to in [out.path().as_os_str().to_owned(), other.at("/")] {
            uxfs_fails(&[&"cp", &"-a", &option, &value, &image.at("/t"), &to], 13, text);
        }
        // Nothing is there in part.
        assert!(!out.path().join("t/a/able").exists() || option != "--max-size");
        uxfs_ok(&[&"rm", &"-r", &other.at("/t")]);
        assert_eq!(listed(&other), "");
    }
    sound(&other);
    let out = scratch();
    uxfs_ok(&[
        &"cp",
        &"-a",
        &"--max-files",
        &"7",
        &"--max-size",
        &"100002",
        &"--max-depth",
        &"4",
        &image.at("/t"),
        &out.path(),
    ]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn lines_about_failures_are_bounded() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        for nth in 0..1200 {
            let name = mount.dir().join(nth.to_string());
            let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, name, kind, mode, rustix::fs::makedev(1, 3)).unwrap();
        }
    }
    let out = scratch();
    let output = uxfs(&[&"cp", &"-r", &image.path, &out.path()]);
    let said = said(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1001));
    assert!(said.ends_with("uxfs: 200 more failures, which are not listed\n"));
}

/// What one copy made, another one with the same name must not take away.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_was_copied_just_now_is_not_lost() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        for name in ["a", "b", "into"] {
            std::fs::create_dir(mount.dir().join(name)).unwrap();
            std::fs::write(mount.dir().join(name).join("file"), name).unwrap();
        }
    }
    let out = scratch();
    for to in [out.path().as_os_str().to_owned(), image.at("/into")] {
        for options in [&["-a"][..], &["-a", "--replace"]] {
            let (a, b) = (image.at("/a/file"), image.at("/b/file"));
            let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"cp"];
            args.extend(options.iter().map(|option| option as &dyn AsRef<OsStr>));
            args.extend([&a as &dyn AsRef<OsStr>, &b, &to]);
            uxfs_fails(&args, 1, "just now");
        }
    }
    assert_eq!(std::fs::read(out.path().join("file")).unwrap(), b"a");
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/into/file")]), b"a");
}
