//! While one process has an image open for writing, no other gets it, not even to read it, and is told so; when the first
//! has died, however that was, the next one gets it at once, with all that was durable. While one reads, none writes.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LOCKED: i32 = 8;
const WHAT_TO_DO: &str = "wait until that is done, or end it";

/// A process that has the image open for writing as long as it waits for the rest of its archive.
fn holder(image: &Image) -> Child {
    let dir = scratch();
    std::fs::write(dir.path().join("first"), "text").unwrap();
    std::fs::write(dir.path().join("second"), vec![7; 1 << 20]).unwrap();
    let archive = run("tar", &[&"-C", &dir.path(), &"-c", &"first", &"second"]);
    let mut untar = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    untar.args(["-v", "untar"]).arg(&image.path).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut untar = untar.spawn().unwrap();
    untar.stdin.as_mut().unwrap().write_all(&archive[..archive.len() / 2]).unwrap();
    // It has said a name, hence opened the volume.
    let mut said = String::new();
    BufReader::new(untar.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("first"), "{said}");
    untar
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_second_opener_is_refused_and_let_in_when_the_first_is_killed() {
    let image = Image::new(&[]);
    let file = image.dir.path().join("file");
    std::fs::write(&file, "text\n").unwrap();
    let mut first = holder(&image);
    uxfs_fails(&[&"mkdir", &image.at("/dir")], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"cp", &file, &image.at("/file")], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"recover", &image.path], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"mkfs", &"-f", &image.path], LOCKED, WHAT_TO_DO);
    assert_eq!(first.try_wait().unwrap(), None, "the first lives on");
    first.kill().unwrap();
    first.wait().unwrap();
    for verb in [&["mkdir"][..], &["chmod", "700"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
        let output = command.args(verb).arg(image.at("/dir")).output().unwrap();
        assert!(output.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image.path]);
    assert!(uxfs(&[&"stat", &image.at("/dir")]).status.success());
}

/// Everything that would write to an image, none of which may.
fn all_writers_are_refused(image: &Image, source: &Path, text: &str) {
    let untouched = image.dir.path().join("untouched");
    run("cp", &[&"--sparse=always", &image.path, &untouched]);
    let linked = image.dir.path().join("linked");
    let _gone = std::fs::remove_file(&linked);
    std::os::unix::fs::symlink(&image.path, &linked).unwrap();
    let commands: [&[&dyn AsRef<OsStr>]; 9] = [
        &[&"mkdir", &image.at("/dir")],
        &[&"rm", &image.at("/file")],
        &[&"cp", &source, &image.at("/file")],
        &[&"recover", &image.path],
        &[&"mkfs", &"-f", &image.path],
        &[&"mkfs", &"-f", &linked],
        &[&"mkfs", &"-f", &image.path, &"900M"],
        &[&"mkfs", &"-f", &image.path, &"--offset", &"16M", &"--length", &"300M"],
        &[&"mkfs", &"-f", &image.path, &"--from", &image.dir.path()],
    ];
    for command in commands {
        uxfs_fails(command, LOCKED, text);
    }
    run("cmp", &[&untouched, &image.path]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_the_kernel_has_mounted_is_not_written() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    let mount = image.mount(&[]);
    std::fs::write(mount.dir().join("file"), "kept\n").unwrap();
    run("sync", &[&"-f", &mount.dir()]);
    let text = format!("the image is mounted by the kernel, at {}: unmount it first", mount.dir().display());
    all_writers_are_refused(&image, &source, &text);
    drop(mount);
    // Let in as soon as it is unmounted.
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/file")]), b"kept\n");
    run("xfs_repair", &[&"-n", &image.path]);
}

/// A container's mounts are not seen from outside, nor can the path that the kernel knows the image by be followed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_mounted_in_another_mount_namespace_is_not_written() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    let mut other = Command::new("unshare");
    let script = "set -e; mount -t tmpfs none /mnt; mkdir /mnt/at /mnt/seen; mount --bind \"$0\" /mnt/seen
        mount -o loop /mnt/seen/volume.img /mnt/at; echo kept > /mnt/at/file; sync -f /mnt/at
        echo mounted; read line; umount /mnt/at; umount /mnt/seen";
    other.args(["-m", "--propagation", "private", "sh", "-c", script]).arg(image.dir.path());
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "mounted\n");
    all_writers_are_refused(&image, &source, "the kernel has the image attached as /dev/loop");
    writeln!(other.stdin.take().unwrap(), "go on").unwrap();
    assert!(other.wait().unwrap().success());
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/file")]), b"kept\n");
    run("xfs_repair", &[&"-n", &image.path]);
}

/// Attached is as good as mounted: the next moment it may be.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_attached_as_a_loop_device_is_written_through_that_alone() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    let device = String::from_utf8(run("losetup", &[&"-f", &"--show", &image.path])).unwrap();
    let device = device.trim_end();
    all_writers_are_refused(&image, &source, &format!("attached as {device}"));
    uxfs_ok(&[&"cp", &source, &format!("{device}:/file")]);
    // Mounted, it is refused too.
    let at = image.dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    run("mount", &[&device, &at]);
    uxfs_fails(&[&"mkdir", &format!("{device}:/dir")], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"mkfs", &"-f", &device], LOCKED, WHAT_TO_DO);
    assert_eq!(std::fs::read(at.join("file")).unwrap(), b"text\n");
    run("umount", &[&at]);
    run("losetup", &[&"-d", &device]);
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
}

/// A loop device, let go of at the end.
struct Loop(String);

impl Loop {
    fn new(args: &[&dyn AsRef<OsStr>]) -> Self {
        let device = run("losetup", &[&[&"-f" as &dyn AsRef<OsStr>, &"--show"], args].concat());
        Self(String::from_utf8(device).unwrap().trim_end().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// The kernel claims a block device that it mounts, but not what a loop device lies on.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_a_loop_device_over_a_loop_device_has_is_not_written() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    let disk = image.dir.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(402 << 20).unwrap();
    run("sgdisk", &[&"-a", &"1", &"-n", &"1:2048:821247", &disk]);
    run(
        "dd",
        &[
            &format!("if={}", image.path.display()),
            &format!("of={}", disk.display()),
            &"bs=1M",
            &"seek=1",
            &"conv=notrunc,sparse",
        ],
    );
    let below = Loop::new(&[&disk]);
    let above = Loop::new(&[&"-o", &"1M", &"--sizelimit", &"400M", &below.0]);
    let untouched = image.dir.path().join("untouched");
    let refused = |device: &str, text: &str| {
        run("sync", &[]);
        run("cp", &[&"--sparse=always", &disk, &untouched]);
        let fails = |args: &[&dyn AsRef<OsStr>]| uxfs_fails(args, LOCKED, text);
        fails(&[&"cp", &source, &format!("{device}:/mine")]);
        fails(&[&"recover", &device]);
        fails(&[&"mkfs", &"-f", &device]);
        run("sync", &[]);
        run("cmp", &[&untouched, &disk]);
    };
    let at = image.dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    run("mount", &[&above.0, &at]);
    std::fs::write(at.join("file"), "kept\n").unwrap();
    run("sync", &[&"-f", &at]);
    let mounted = format!("mounted by the kernel, at {}", at.display());
    refused(&format!("{}@1", below.0), &mounted);
    // The same bytes by way of another device, and others.
    let beside = Loop::new(&[&"-o", &"1M", &disk]);
    let other = Loop::new(&[&"-o", &"401M", &disk]);
    refused(&beside.0, "the kernel");
    oracles::umount(&at).unwrap();
    // Not mounted, it is attached still.
    refused(&format!("{}@1", below.0), "attached as /dev/loop");
    drop(beside);
    // The one above all others is written, and one that lies elsewhere on the disk is in nobody's way.
    uxfs_ok(&[&"cp", &source, &format!("{}:/mine", above.0)]);
    assert_eq!(uxfs_ok(&[&"cat", &format!("{}:/file", above.0)]), b"kept\n");
    drop(other);
    // Nor is what lies above one that is mounted.
    run("dd", &[&"if=/dev/zero", &format!("of={}", disk.display()), &"bs=1M", &"count=1", &"conv=notrunc"]);
    drop(above);
    drop(below);
    let below = Loop::new(&[&image.path]);
    let above = Loop::new(&[&below.0]);
    run("mount", &[&below.0, &at]);
    run("cp", &[&"--sparse=always", &image.path, &untouched]);
    let text = format!("lies on {}, which is mounted or otherwise in use", below.0);
    uxfs_fails(&[&"cp", &source, &format!("{}:/mine", above.0)], LOCKED, &text);
    uxfs_fails(&[&"mkfs", &"-f", &above.0], LOCKED, &text);
    run("cmp", &[&untouched, &image.path]);
    oracles::umount(&at).unwrap();
    uxfs_ok(&[&"cp", &source, &format!("{}:/mine", above.0)]);
}

const ELSEWHERE: &str = "another process or the kernel has it open for writing";

/// A shell that says when it has done the first part of its work, and goes on when it is let.
struct Waiting(Child);

impl Waiting {
    fn new(program: &[&str], script: &str, args: &[&dyn AsRef<OsStr>]) -> Self {
        let script = format!("set -e\n{script}\necho ready; read line || true");
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(["sh", "-c", &script]).args(args.iter().map(|arg| arg.as_ref()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        Self(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

/// An image, and something to copy into it, that a user owns who is not root.
fn of_a_user() -> (Image, std::path::PathBuf) {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    for path in [image.dir.path(), &image.path, &source] {
        std::os::unix::fs::chown(path, Some(1000), Some(1000)).unwrap();
    }
    (image, source)
}

/// Runs the command by way of a shell, which has it as its third descriptor: a user may not see where it is.
fn uxfs_in(program: &[&str], script: &str, args: &[&dyn AsRef<OsStr>]) -> std::process::Output {
    let script = format!("exec 3<\"$0\"\n{script}");
    let mut command = Command::new(program[0]);
    let command = command.args(&program[1..]).args(["sh", "-c", &script, env!("CARGO_BIN_EXE_uxfs")]);
    command.args(args.iter().map(|arg| arg.as_ref())).output().unwrap()
}

const AS_USER: &str = "exec setpriv --reuid 1000 --regid 1000 --clear-groups /proc/self/fd/3 \"$@\"";

#[track_caller]
fn is_refused(output: &std::process::Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(LOCKED), "{said}");
    assert!(said.contains(ELSEWHERE) && said.lines().count() == 1, "{said}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_another_process_has_open_for_writing_is_not_written() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    let writer = Waiting::new(&["env"], "exec 3<>\"$0\"", &[&image.path]);
    all_writers_are_refused(&image, &source, ELSEWHERE);
    writer.end();
    // Who reads is in nobody's way, nor is what the command has got from whoever started it.
    let reader = Waiting::new(&["env"], "exec 3<\"$0\"", &[&image.path]);
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    reader.end();
    let script = "exec 4<>\"$1\"; shift; exec /proc/self/fd/3 \"$@\"";
    let output = uxfs_in(&["env"], script, &[&image.path, &"mkdir", &image.at("/other")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Locks of virtual machines, and of programs that lock as POSIX has it, are asked for.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_another_process_has_locked_is_not_written() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    let file = std::fs::File::open(&image.path).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    // To read an image through another descriptor lets go of such a lock: this process does not look whether it changed.
    for command in [&["mkdir"][..], &["mkfs", "-qf"]] {
        let mut args: Vec<&dyn AsRef<OsStr>> = command.iter().map(|arg| arg as &dyn AsRef<OsStr>).collect();
        let place = if command.len() == 1 { image.at("/dir") } else { image.path.clone().into() };
        args.push(&place);
        uxfs_fails(&args, LOCKED, "locked");
    }
    drop(file);
    assert!(!uxfs(&[&"stat", &image.at("/dir")]).status.success(), "it was made");
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
}

/// Neither the loop device nor the name that it knows its file by is to be seen in a container.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_mounted_outside_of_a_container_is_not_written() {
    let image = Image::new(&[]);
    std::fs::write(image.dir.path().join("source"), "text\n").unwrap();
    let mount = image.mount(&[]);
    std::fs::write(mount.dir().join("file"), "kept\n").unwrap();
    run("sync", &[&"-f", &mount.dir()]);
    let untouched = image.dir.path().join("untouched");
    run("cp", &[&"--sparse=always", &image.path, &untouched]);
    let script = "mount --bind \"$1\" /mnt; shift; mount -t tmpfs none /dev; mount -o remount,bind,ro /sys
        cd /mnt; exec /proc/self/fd/3 \"$@\"";
    let container = ["unshare", "-m", "--propagation", "private"];
    let dir = image.dir.path();
    // Docker gives root no right to ask about the files of others.
    let poor = script.replace("exec /proc", "exec setpriv --bounding-set -lease /proc");
    for (owner, script) in [(0, script), (1000, script), (1000, &poor)] {
        std::os::unix::fs::chown(&image.path, Some(owner), None).unwrap();
        for command in [
            &["cp", "source", "volume.img:/source"][..],
            &["rm", "volume.img:/file"],
            &["mkfs", "-f", "volume.img"],
            &["recover", "volume.img"],
        ] {
            let mut args: Vec<&dyn AsRef<OsStr>> = vec![&dir];
            args.extend(command.iter().map(|arg| arg as &dyn AsRef<OsStr>));
            is_refused(&uxfs_in(&container, script, &args));
        }
    }
    run("cmp", &[&untouched, &image.path]);
}

/// A user may not ask a loop device for its file, and knows the file by another name.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_mounted_in_a_container_is_not_written_by_its_owner() {
    let (image, source) = of_a_user();
    let untouched = image.dir.path().join("untouched");
    let refused = || {
        run("cp", &[&"--sparse=always", &image.path, &untouched]);
        is_refused(&uxfs_in(&["env"], AS_USER, &[&"cp", &source, &image.at("/source")]));
        is_refused(&uxfs_in(&["env"], AS_USER, &[&"mkfs", &"-f", &image.path]));
        run("cmp", &[&untouched, &image.path]);
    };
    let script = "mount -t tmpfs none /mnt; mkdir /mnt/at /mnt/seen; mount --bind \"$0\" /mnt/seen
        mount -o loop /mnt/seen/volume.img /mnt/at; echo kept > /mnt/at/file; sync -f /mnt/at";
    let container = ["unshare", "-m", "--propagation", "private"];
    let mounted = Waiting::new(&container, script, &[&image.dir.path()]);
    refused();
    mounted.end();
    // Nor is its other name to be followed.
    let hidden = image.dir.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    let other = hidden.join("other");
    std::fs::hard_link(&image.path, &other).unwrap();
    std::fs::set_permissions(&hidden, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let device = Loop::new(&[&other]);
    let at = image.dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    run("mount", &[&device.0, &at]);
    assert_eq!(std::fs::read(at.join("file")).unwrap(), b"kept\n");
    run("sync", &[&"-f", &at]);
    refused();
    oracles::umount(&at).unwrap();
    drop(device);
    let output = uxfs_in(&["env"], AS_USER, &[&"cp", &source, &image.at("/source")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    run("xfs_repair", &[&"-n", &image.path]);
}

/// A loop device has a file of overlayfs, which has another number than the one below.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_mounted_through_overlayfs_is_not_written() {
    let image = Image::new(&[]);
    let source = image.dir.path().join("source");
    std::fs::write(&source, "text\n").unwrap();
    for dir in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(image.dir.path().join(dir)).unwrap();
    }
    let below = image.dir.path().join("upper/volume.img");
    std::fs::rename(&image.path, &below).unwrap();
    let image = Image { path: below, ..image };
    let script = "cd \"$0\"; mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged
        mount -o loop merged/volume.img /mnt; echo kept > /mnt/file; sync -f /mnt";
    let container = ["unshare", "-m", "--propagation", "private"];
    let mounted = Waiting::new(&container, script, &[&image.dir.path()]);
    all_writers_are_refused(&image, &source, ELSEWHERE);
    mounted.end();
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/file")]), b"kept\n");
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    run("xfs_repair", &[&"-n", &image.path]);
}

const WRITTEN: &str = "another process is writing it, so that what is read would be of several moments";

#[test]
#[ignore = "needs root and xfsprogs"]
fn nobody_reads_what_another_process_writes() {
    let image = Image::new(&[]);
    let out = image.dir.path().join("out");
    let mut writer = holder(&image);
    let commands: [&[&dyn AsRef<OsStr>]; 8] = [
        &[&"ls", &image.path],
        &[&"cat", &image.at("/first")],
        &[&"stat", &image.at("/first")],
        &[&"tar", &image.path],
        &[&"tar", &image.path, &"-o", &out],
        &[&"cp", &"-r", &image.at("/"), &out],
        &[&"info", &image.path],
        &[&"check", &image.path],
    ];
    for command in commands {
        uxfs_fails(command, LOCKED, WRITTEN);
    }
    assert!(!out.exists(), "something was read");
    writer.kill().unwrap();
    writer.wait().unwrap();
    uxfs_ok(&[&"tar", &image.path, &"-o", &out]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn nobody_writes_what_another_process_reads() {
    let image = Image::new(&[]);
    let file = image.dir.path().join("file");
    std::fs::write(&file, vec![7; 4 << 20]).unwrap();
    uxfs_ok(&[&"cp", &file, &image.at("/file")]);
    let mut cat = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    let mut cat = cat.arg("cat").arg(image.at("/file")).stdout(Stdio::piped()).spawn().unwrap();
    // It waits for somebody to take the rest.
    let mut first = [0];
    cat.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let untouched = image.dir.path().join("untouched");
    run("cp", &[&"--sparse=always", &image.path, &untouched]);
    for command in [
        &[&"mkdir" as &dyn AsRef<OsStr>, &image.at("/dir")][..],
        &[&"cp", &file, &image.at("/other")],
        &[&"recover", &image.path],
        &[&"mkfs", &"-f", &image.path],
    ] {
        uxfs_fails(command, LOCKED, "another process is reading it");
    }
    run("cmp", &[&untouched, &image.path]);
    // Readers are in nobody's way but writers'.
    assert!(uxfs_ok(&[&"cat", &image.at("/file")]) == vec![7; 4 << 20]);
    drop(cat.stdout.take());
    cat.wait().unwrap();
    // One process reads and writes.
    uxfs_ok(&[&"cp", &image.at("/file"), &image.at("/other")]);
}

/// What comes from a pipe may come from the same image: nothing is opened for writing before there is something to write.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_pipe_leads_from_an_image_into_itself() {
    let image = Image::new(&[]);
    let file = image.dir.path().join("in");
    std::fs::write(&file, "text\n".repeat(1000)).unwrap();
    for name in ["/in", "/report"] {
        uxfs_ok(&[&"cp", &file, &image.at(name)]);
    }
    uxfs_ok(&[&"mkdir", &image.at("/dir")]);
    for (reader, source, writer) in [
        ("cat", image.at("/in"), vec!["cp".into(), "-".into(), image.at("/report")]),
        ("tar", image.at("/"), vec!["untar".into(), image.at("/dir")]),
    ] {
        let mut into = Command::new(env!("CARGO_BIN_EXE_uxfs"));
        let mut into = into.args(&writer).stdin(Stdio::piped()).spawn().unwrap();
        // Time to open the image too early.
        std::thread::sleep(Duration::from_millis(500));
        let read = uxfs_ok(&[&reader, &source]);
        into.stdin.take().unwrap().write_all(&read).unwrap();
        assert!(into.wait().unwrap().success(), "{writer:?}");
    }
    for name in ["/report", "/dir/in", "/dir/report"] {
        assert_eq!(uxfs_ok(&[&"cat", &image.at(name)]), std::fs::read(&file).unwrap(), "{name}");
    }
    // Nothing is no archive: whoever was to write it has failed.
    uxfs_fails(&[&"untar", &image.path, &"-i", &"/dev/null"], 4, "it is empty");
}

/// Of what the kernel writes, something can be seen all the same.
#[test]
#[ignore = "needs root and xfsprogs"]
fn who_reads_what_the_kernel_writes_is_warned() {
    let image = Image::new(&[]);
    let mount = image.mount(&[]);
    std::fs::write(mount.dir().join("file"), "text\n").unwrap();
    run("sync", &[&"-f", &mount.dir()]);
    let warned = |place: &dyn AsRef<OsStr>| {
        let output = uxfs(&[&"cat", place]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        assert_eq!(output.stdout, b"text\n");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("is open for writing by ") && said.contains("may be of several moments"),
            "{said}"
        );
        said
    };
    let at = format!("mounted at {}", mount.dir().display());
    let said = warned(&image.at("/file"));
    assert!(said.contains(&at), "{said}");
    let device = said.split_whitespace().find(|word| word.starts_with("/dev/loop")).unwrap();
    assert!(warned(&format!("{}:/file", device.trim_end_matches(','))).contains(&at));
    drop(mount);
    let writer = Waiting::new(&["env"], "exec 3<>\"$0\"", &[&image.path]);
    assert!(warned(&image.at("/file")).contains("another process or the kernel"));
    for looks in [&["check"][..], &["recover", "--dry-run"]] {
        let args =
            looks.iter().map(|word| word as &dyn AsRef<OsStr>).chain([&image.path as &dyn AsRef<OsStr>]);
        let said = String::from_utf8(uxfs(&args.collect::<Vec<_>>()).stderr).unwrap();
        assert!(said.contains("is open for writing by another process or the kernel"), "{looks:?}: {said}");
    }
    writer.end();
    assert!(uxfs(&[&"check", &image.path]).stderr.is_empty());
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/file")]), b"text\n");
}

/// A path in the volume was meant, and its end forgotten.
#[test]
#[ignore = "needs root and xfsprogs"]
fn no_copy_goes_over_a_disk_with_a_volume_in_a_partition() {
    let from = Image::new(&[]);
    let dir = from.dir.path();
    let (file, disk, out) = (dir.join("file"), dir.join("disk.img"), dir.join("out"));
    std::fs::write(&file, "text\n").unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/disk.img")]);
    for table in [
        &["-o", "-n", "1:2048:4095", "-n", "2:8192:0"][..],
        &["-o", "-n", "1:2048:4095", "-n", "2:8192:0", "-m", "1:2"],
    ] {
        std::fs::File::create(&disk).unwrap().set_len(400 << 20).unwrap();
        let args = table.iter().map(|arg| arg as &dyn AsRef<OsStr>).chain([&disk as &dyn AsRef<OsStr>]);
        run("sgdisk", &args.collect::<Vec<_>>());
        // With a table alone it is a file as any other.
        run("cp", &[&"--sparse=always", &disk, &out]);
        uxfs_ok(&[&"cp", &from.at("/disk.img"), &out]);
        uxfs_ok(&[&"mkfs", &"-q", &format!("{}@2", disk.display())]);
        run("cp", &[&"--sparse=always", &disk, &out]);
        let says = "an XFS volume is in one of its partitions";
        uxfs_fails(&[&"cp", &from.at("/disk.img"), &disk], 9, says);
        uxfs_fails(&[&"cp", &"--replace", &from.at("/disk.img"), &disk], 9, says);
        uxfs_fails(&[&"tar", &from.path, &"-o", &disk], 9, says);
        let into = uxfs(&[&"cp", &"-r", &from.at("/."), &dir]);
        assert!(!into.status.success(), "a file of a tree went over it");
        run("cmp", &[&out, &disk]);
        std::fs::remove_file(&disk).unwrap();
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn no_copy_goes_over_a_volume_or_what_is_attached() {
    let (from, to) = (Image::new(&[]), Image::new(&[]));
    let file = from.dir.path().join("file");
    std::fs::write(&file, "text\n").unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/file")]);
    let untouched = to.dir.path().join("untouched");
    let refused = |target: &dyn AsRef<OsStr>, code: i32, text: &str| {
        run("sync", &[]);
        run("cp", &[&"--sparse=always", &to.path, &untouched]);
        uxfs_fails(&[&"cp", &from.at("/file"), target], code, text);
        uxfs_fails(&[&"cp", &"--replace", &from.at("/file"), target], code, text);
        uxfs_fails(
            &[&"tar", &from.path, &"-o", target],
            code,
            if code == 2 { "a block device" } else { text },
        );
        run("sync", &[]);
        run("cmp", &[&untouched, &to.path]);
    };
    refused(&to.path, 9, "this is an XFS volume; for a place in it write");
    let mount = to.mount(&[]);
    std::fs::write(mount.dir().join("kept"), "kept\n").unwrap();
    run("sync", &[&"-f", &mount.dir()]);
    refused(&to.path, LOCKED, "the image is mounted by the kernel, at");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = mount.dir().to_str().unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(at)).unwrap();
    refused(&line.split(' ').next().unwrap(), 2, "neither a file nor a directory");
    assert_eq!(std::fs::read(mount.dir().join("kept")).unwrap(), b"kept\n");
    drop(mount);
    run("xfs_repair", &[&"-n", &to.path]);
    // Where it was removed, or was never a volume, the copy is made.
    std::fs::remove_file(&to.path).unwrap();
    for _ in 0..2 {
        uxfs_ok(&[&"cp", &from.at("/file"), &to.path]);
        assert_eq!(std::fs::read(&to.path).unwrap(), b"text\n");
    }
}

/// A process that makes a volume in a new file, as long as it waits for the rest of its archive.
fn maker(image: &Path) -> Child {
    let dir = scratch();
    std::fs::write(dir.path().join("first"), "text").unwrap();
    std::fs::write(dir.path().join("second"), vec![7; 1 << 20]).unwrap();
    let archive = run("tar", &[&"-C", &dir.path(), &"-c", &"first", &"second"]);
    let mut mkfs = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    mkfs.args(["-v", "mkfs", "--from", "/dev/stdin"]).arg(image).arg("300M");
    let mut mkfs = mkfs.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (begins, rest) = archive.split_at(archive.len() / 2);
    mkfs.stdin.as_mut().unwrap().write_all(begins).unwrap();
    let mut said = String::new();
    BufReader::new(mkfs.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("first"), "{said}");
    // The rest goes into the pipe when the caller lets go of it.
    let mut pipe = mkfs.stdin.take().unwrap();
    let rest = rest.to_vec();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        let _ = pipe.write_all(&rest);
    });
    mkfs
}

/// Until it is whole, there is no volume in the file that one is made in, and nothing goes over it all the same.
#[test]
#[ignore = "needs root and xfsprogs"]
fn nothing_goes_over_a_volume_that_is_being_made() {
    let from = Image::new(&[]);
    let file = from.dir.path().join("file");
    std::fs::write(&file, "text\n").unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/file")]);
    let image = from.dir.path().join("new.img");
    let mut mkfs = maker(&image);
    let what = "another process has it locked, or is making a volume of it";
    uxfs_fails(&[&"cp", &from.at("/file"), &image], LOCKED, what);
    uxfs_fails(&[&"cp", &"--replace", &from.at("/file"), &image], LOCKED, what);
    uxfs_fails(&[&"tar", &from.path, &"-o", &image], LOCKED, what);
    assert!(mkfs.try_wait().unwrap().is_none(), "it was over before");
    assert!(mkfs.wait().unwrap().success());
    uxfs_ok(&[&"check", &image]);
    assert_eq!(uxfs_ok(&[&"cat", &format!("{}:/first", image.display())]), b"text");
}

/// Starts what writes a file besides the one whose name it takes in the end, and stops it there, meanwhile.
fn stopped_within(args: &[&dyn AsRef<OsStr>], dir: &Path, meanwhile: impl FnOnce()) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    command.args(args.iter().map(AsRef::as_ref)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let open = || {
        let links = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().flatten();
        let targets: Vec<_> = links.filter_map(|link| std::fs::read_link(link.path()).ok()).collect();
        targets.iter().any(|target| {
            let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
            target.parent() == Some(dir) && (name.starts_with(".uxfs") || name.ends_with("(deleted)"))
        })
    };
    while !open() {
        std::thread::yield_now();
    }
    run("kill", &[&"-STOP", &child.id().to_string()]);
    meanwhile();
    run("kill", &[&"-CONT", &child.id().to_string()]);
    child.wait_with_output().unwrap()
}

/// That there was no volume when the copy was begun is long ago when it takes its name.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_was_made_meanwhile_is_not_replaced() {
    let from = Image::new(&[]);
    let file = from.dir.path().join("file");
    std::fs::write(&file, vec![7; 64 << 20]).unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/file")]);
    let dir = scratch();
    let target = dir.path().join("target");
    let volume = "there is a file with an XFS volume of that name; to replace the file, remove it first";
    let cp: [&dyn AsRef<OsStr>; 4] = [&"cp", &"--replace", &from.at("/file"), &target];
    let tar: [&dyn AsRef<OsStr>; 4] = [&"tar", &from.path, &"-o", &target];
    for args in [cp, tar] {
        for was_there in [true, false] {
            if was_there {
                std::fs::write(&target, "x").unwrap();
            }
            let out = stopped_within(&args, dir.path(), || {
                uxfs_ok(&[&"mkfs", &"-q", &target, &"300M"]);
                uxfs_ok(&[&"mkdir", &format!("{}:/kept", target.display())]);
            });
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(9), "{said}");
            assert!(said.contains(volume), "{said}");
            uxfs_ok(&[&"check", &target]);
            assert_eq!(uxfs_ok(&[&"ls", &format!("{}:/", target.display())]), b"kept\n");
            let left: Vec<_> =
                std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().path()).collect();
            assert_eq!(left, std::slice::from_ref(&target), "nothing is left of it");
            std::fs::remove_file(&target).unwrap();
        }
    }
}

/// Who writes or replaces a file asks for locks of every kind.
#[test]
#[ignore = "needs root and xfsprogs"]
fn no_copy_goes_over_a_file_that_is_locked() {
    let from = Image::new(&[]);
    let (file, target) = (from.dir.path().join("file"), from.dir.path().join("target"));
    std::fs::write(&file, "text\n").unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/file")]);
    let held = || std::fs::File::options().read(true).write(true).open(&target).unwrap();
    let ways: [fn(&std::fs::File); 2] = [
        |file| rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive).unwrap(),
        |file| rustix::fs::fcntl_lock(file, rustix::fs::FlockOperation::LockExclusive).unwrap(),
    ];
    for lock in ways {
        std::fs::write(&target, "a disk that runs").unwrap();
        let holder = held();
        lock(&holder);
        let what = "another process has it locked";
        uxfs_fails(&[&"cp", &from.at("/file"), &target], LOCKED, what);
        uxfs_fails(&[&"cp", &"--replace", &from.at("/file"), &target], LOCKED, what);
        uxfs_fails(&[&"tar", &from.path, &"-o", &target], LOCKED, what);
        assert_eq!(std::fs::read(&target).unwrap(), b"a disk that runs");
        drop(holder);
        uxfs_ok(&[&"cp", &from.at("/file"), &target]);
    }
}

/// It may be one of many files that are copied, and nobody has named it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn no_tree_goes_over_what_is_attached() {
    let (from, to) = (Image::new(&[]), Image::new(&[]));
    let file = from.dir.path().join("file");
    std::fs::write(&file, "text\n").unwrap();
    let name = to.path.file_name().unwrap().to_str().unwrap().to_owned();
    uxfs_ok(&[&"mkdir", &from.at("/dir")]);
    for one in [format!("/{name}"), format!("/dir/{name}")] {
        uxfs_ok(&[&"cp", &file, &from.at(&one)]);
    }
    let dir = to.path.parent().unwrap();
    let mount = to.mount(&[]);
    std::fs::write(mount.dir().join("kept"), "kept\n").unwrap();
    run("sync", &[&"-f", &mount.dir()]);
    // Not by its content.
    let wiped = std::fs::File::options().write(true).open(&to.path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&wiped, &[0; 4], 0).unwrap();
    drop(wiped);
    let what = "the image is mounted by the kernel, at";
    for replace in [&[][..], &["--replace"]] {
        let mut verb: Vec<&dyn AsRef<OsStr>> = vec![&"cp"];
        verb.extend(replace.iter().map(|one| one as &dyn AsRef<OsStr>));
        let (single, tree) = (from.at(&format!("/{name}")), from.at("/dir/."));
        uxfs_fails(&[&verb[..], &[&single, &dir]].concat(), LOCKED, what);
        uxfs_fails(&[&verb[..], &[&"-r", &tree, &dir]].concat(), 1, what);
    }
    let restored = std::fs::File::options().write(true).open(&to.path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&restored, b"XFSB", 0).unwrap();
    drop(restored);
    // The kernel writes to its log after a while, so the bytes need not be the same.
    drop(mount);
    assert_eq!(uxfs_ok(&[&"cat", &to.at("/kept")]), b"kept\n");
    run("xfs_repair", &[&"-n", &to.path]);
}

/// Each gives a whole file to the name, and the last one stays, whether something has the name before, nothing, or
/// now and then something.
#[test]
#[ignore = "needs root and xfsprogs"]
fn many_replace_one_file_at_once() {
    let from = Image::new(&[]);
    let (file, target) = (from.dir.path().join("file"), from.dir.path().join("target"));
    std::fs::write(&file, "text\n").unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/file")]);
    let copy = || {
        uxfs_ok(&[&"cp", &"--replace", &from.at("/file"), &target]);
    };
    let pack = || {
        uxfs_ok(&[&"tar", &from.path, &"-o", &target]);
    };
    for (verb, removes) in
        [(&copy as &(dyn Fn() + Sync), false), (&pack, false), (&copy, true), (&pack, true)]
    {
        let _gone = std::fs::remove_file(&target);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let remover = threads.spawn(|| {
                while removes && !is_over.load(Ordering::Relaxed) {
                    let _gone = std::fs::remove_file(&target);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let verbs: Vec<_> = (0..3).map(|_| threads.spawn(|| (0..20).for_each(|_| verb()))).collect();
            let done: Vec<_> = verbs.into_iter().map(|verb| verb.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            remover.join().unwrap();
            assert!(done.iter().all(Result::is_ok));
        });
        assert!(removes || target.exists());
    }
}

/// A file that another process takes back is not written to by whoever waited for it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn nothing_is_written_to_a_file_that_has_lost_its_name() {
    let from = Image::new(&[]);
    let (file, target) = (from.dir.path().join("file"), from.dir.path().join("target"));
    std::fs::write(&file, "text\n").unwrap();
    uxfs_ok(&[&"cp", &file, &from.at("/file")]);
    for nth in 0..8 {
        std::fs::write(&target, "old").unwrap();
        let holder = std::fs::File::open(&target).unwrap();
        rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut cp = Command::new(env!("CARGO_BIN_EXE_uxfs"));
        let cp = cp.arg("cp").arg(from.at("/file")).arg(&target).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20 * nth));
        std::fs::remove_file(&target).unwrap();
        drop(holder);
        let out = cp.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        match out.status.code() {
            // It came later, and made a new one.
            Some(0) => assert_eq!(std::fs::read(&target).unwrap(), b"text\n"),
            Some(LOCKED) => {
                assert!(!target.exists() && said.contains("something else took its name"), "{said}")
            }
            other => panic!("{other:?}: {said}"),
        }
        let _gone = std::fs::remove_file(&target);
    }
}
