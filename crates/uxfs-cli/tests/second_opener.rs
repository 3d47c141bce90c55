//! While one process has an image open for writing, no other gets it, and is told so; when the first has died, however
//! that was, the next one gets it at once, with all that was durable.

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

/// Unmounts a device, and waits until nobody has it: another test's mount namespace may have a copy of the mount.
fn unmount(at: &Path, device: &str) {
    run("umount", &[&at]);
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let is_busy = || std::fs::File::options().read(true).custom_flags(flags).open(device).is_err();
    let tries = (0..600).take_while(|_| is_busy());
    tries.for_each(|_| std::thread::sleep(std::time::Duration::from_millis(50)));
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
    unmount(&at, &above.0);
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
    unmount(&at, &below.0);
    uxfs_ok(&[&"cp", &source, &format!("{}:/mine", above.0)]);
}
