//! Volumes that the kernel fills, and what the kernel and the command say of them. Needs root, mkfs.xfs, loop
//! mounts, GNU tar, find and du: a test fails where one of them is missing.
#![allow(dead_code)]

pub mod forge;

use oracles::{Mounted, xfsprogs::Release};
use rustix::fs::{AtFlags, FileType, Mode};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs a program that must succeed; gives what it printed. `xfs_repair` is the newest release's, and the system's as well
/// where it knows what the volume has.
pub fn run(program: &str, args: &[&dyn AsRef<OsStr>]) -> Vec<u8> {
    if program == "xfs_repair" {
        let newest = Release::Unstable.path(program).expect("installed");
        succeeds(&newest, args, |_| false);
        return succeeds(program.as_ref(), args, |said| said.contains("unsupported filesystem features"));
    }
    succeeds(program.as_ref(), args, |_| false)
}

/// Runs a program that must succeed, or say something that is not held against it.
fn succeeds(program: &Path, args: &[&dyn AsRef<OsStr>], or: impl Fn(&str) -> bool) -> Vec<u8> {
    let output = Command::new(program)
        .args(args.iter().map(|arg| arg.as_ref()))
        .output()
        .unwrap_or_else(|error| panic!("{} is needed: {error}", program.display()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || or(&said), "{}: {}: {said}", program.display(), output.status);
    output.stdout
}

/// Runs the command.
pub fn uxfs(args: &[&dyn AsRef<OsStr>]) -> Output {
    let args = args.iter().map(|arg| arg.as_ref());
    Command::new(env!("CARGO_BIN_EXE_uxfs")).args(args).output().expect("the command starts")
}

/// The command, to be started and sent a signal. A shell starts what runs in its background with SIGINT ignored, which
/// the command would inherit from the test, and obey.
pub fn uxfs_heeding_signals() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_uxfs")]);
    command
}

/// Runs the command, which must succeed; gives what it printed.
pub fn uxfs_ok(args: &[&dyn AsRef<OsStr>]) -> Vec<u8> {
    let output = uxfs(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "uxfs: {}: {said}", output.status);
    assert!(said.is_empty(), "{said}");
    output.stdout
}

/// Runs the command, which must end with `code` and one line that has `text` in it, and print nothing else.
pub fn uxfs_fails(args: &[&dyn AsRef<OsStr>], code: i32, text: &str) {
    let output = uxfs(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.starts_with("uxfs: ") && said.contains(text), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(output.stdout.is_empty());
}

/// Runs the command with the image as its standard input and output, which must end with 2 and name it.
pub fn refuses_itself(args: &[&dyn AsRef<OsStr>], image: &Path) {
    let before = std::fs::read(image).unwrap();
    let open = || std::fs::File::options().read(true).write(true).open(image).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    let command = command.args(args.iter().map(|arg| arg.as_ref())).stdin(open()).stdout(open());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("is {} itself", image.display())), "{said}");
    assert!(std::fs::read(image).unwrap() == before, "bytes changed");
}

/// A volume in a file.
pub struct Image {
    pub dir: TempDir,
    pub path: PathBuf,
}

impl Image {
    /// A volume of 400 MiB made with these options.
    pub fn new(options: &[&str]) -> Self {
        Self::made_by("mkfs.xfs".as_ref(), options)
    }

    /// The same, made by this `mkfs.xfs`.
    pub fn made_by(mkfs: &Path, options: &[&str]) -> Self {
        let dir = scratch();
        let path = dir.path().join("volume.img");
        std::fs::File::create(&path).unwrap().set_len(400 << 20).unwrap();
        let mut mkfs = Command::new(mkfs);
        let output = mkfs.arg("-q").args(options).arg(&path).output().expect("mkfs.xfs is needed");
        assert!(output.status.success(), "mkfs.xfs: {}", String::from_utf8_lossy(&output.stderr));
        Self { dir, path }
    }

    /// A volume with a mixed tree in it.
    pub fn filled(options: &[&str]) -> Self {
        let image = Self::new(options);
        fill(image.mount(&[]).dir());
        image
    }

    /// Lets the kernel mount it.
    pub fn mount(&self, options: &[&str]) -> Mounted {
        let dir = self.dir.path().join("mnt");
        Mounted::new(&self.path, &dir, &[&["loop", "nouuid"], options].concat().join(","))
    }

    /// A v4 volume, which the kernel need not know, with what a prototype says; `$DIR` in it is a directory with
    /// a file `text`.
    pub fn of_prototype(prototype: &str) -> Self {
        let dir = scratch();
        std::fs::write(dir.path().join("text"), "text\n").unwrap();
        let proto = dir.path().join("proto");
        let prototype = prototype.replace("$DIR", dir.path().to_str().unwrap());
        std::fs::write(&proto, format!("/stand/boot\n0 0\nd--755 0 0\n{prototype}\n$\n")).unwrap();
        let path = dir.path().join("volume.img");
        std::fs::File::create(&path).unwrap().set_len(400 << 20).unwrap();
        run("mkfs.xfs", &[&"-q", &"-m", &"crc=0", &"-p", &proto, &path]);
        Self { dir, path }
    }

    /// A path in the image, as an argument.
    pub fn at(&self, path: &str) -> std::ffi::OsString {
        let mut argument = self.path.clone().into_os_string();
        argument.push(":");
        argument.push(path);
        argument
    }

    /// Changes bytes that occur once in the image (v4 has no checksums to keep right).
    pub fn patch(&self, from: &[u8], to: &[u8]) {
        assert_eq!(from.len(), to.len());
        let mut bytes = std::fs::read(&self.path).unwrap();
        // What is looked for lies within a block, and most blocks are empty.
        let found = (0..bytes.len()).step_by(4096).find_map(|start| {
            let block = &bytes[start..start + 4096];
            let in_block = || block.windows(from.len()).position(|window| window == from);
            if *block == [0; 4096] { None } else { in_block().map(|at| start + at) }
        });
        let found = found.expect("the bytes are there");
        bytes[found..found + to.len()].copy_from_slice(to);
        std::fs::write(&self.path, bytes).unwrap();
    }
}

/// A directory in memory, if there is one.
pub fn scratch() -> TempDir {
    let shm = Path::new("/dev/shm");
    let place = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("uxfs-test-").tempdir_in(place).unwrap()
}

/// Makes files of every kind.
pub fn fill(dir: &Path) {
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    write("docs/empty", b"");
    write("docs/small.txt", b"a few bytes\n");
    let large: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    write("docs/large.bin", &large);
    write("docs/.hidden/inner", b"x");
    write(&format!("docs/{}", "n".repeat(255)), b"longest name");
    for number in 0..3000 {
        write(&format!("many/entry-{number:05}"), b"");
    }
    let deep = vec!["d"; 120].join("/");
    write(&format!("deep/{deep}/bottom"), b"deep");
    std::fs::create_dir(dir.join("bytes")).unwrap();
    for byte in (1..=255u8).filter(|&byte| byte != b'/') {
        std::fs::write(dir.join("bytes").join(OsStr::from_bytes(&[b'n', byte, b'n'])), [byte]).unwrap();
    }

    let links = dir.join("links");
    std::fs::create_dir(&links).unwrap();
    let link = |target: &str, path: &Path| std::os::unix::fs::symlink(target, path);
    link("../docs/small.txt", &links.join("relative")).unwrap();
    link("/docs", &links.join("absolute")).unwrap();
    link(&"./".repeat(511), &links.join("long")).unwrap();
    link("nowhere", &links.join("dangling")).unwrap();
    link("loop", &links.join("loop")).unwrap();
    std::fs::hard_link(dir.join("docs/small.txt"), links.join("hard-one")).unwrap();
    std::fs::hard_link(dir.join("docs/small.txt"), links.join("hard-two")).unwrap();

    let special = dir.join("special");
    std::fs::create_dir(&special).unwrap();
    for (name, kind, device) in [
        ("char", FileType::CharacterDevice, (1, 3)),
        ("block", FileType::BlockDevice, (259, 70000)),
        ("fifo", FileType::Fifo, (0, 0)),
    ] {
        let device = rustix::fs::makedev(device.0, device.1);
        rustix::fs::mknodat(rustix::fs::CWD, special.join(name), kind, Mode::RUSR, device).unwrap();
    }

    let sparse = dir.join("sparse");
    std::fs::create_dir(&sparse).unwrap();
    let io = |name: &str, commands: &[&str]| {
        let path = sparse.join(name);
        let arguments: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        let done = Command::new("xfs_io").arg("-f").args(arguments).arg(path).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    io("ends-in-hole", &["pwrite -q 1m 70000", "pwrite -q 5m 1", "truncate 9m"]);
    io("ends-in-data", &["pwrite -q 3m 12345"]);
    io("all-hole", &["truncate 64m"]);
    io("prealloc", &["falloc 0 1m", "pwrite -q 64k 64k"]);
    io("behind-end", &["falloc -k 0 2m", "pwrite -q 0 5000"]);
    let runs: Vec<String> = (0..300).map(|n| format!("pwrite -q {}k 4k", n * 12)).collect();
    io("runs", &runs.iter().map(String::as_str).collect::<Vec<_>>());

    attributes(dir);
}

/// Attributes, lists, modes, owners and times.
fn attributes(dir: &Path) {
    let set = |path: &str, name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(dir.join(path), name, value, flags).unwrap();
    };
    set("docs/small.txt", "user.small", b"v");
    set("docs/small.txt", "user.with=equals%", b"binary\0\xff");
    set("docs/large.bin", "user.large", &[7; 60_000]);
    set("docs/large.bin", "trusted.kept", b"by root");
    set("docs", "user.of-a-directory", b"d");
    set("links/relative", "trusted.of-a-link", b"l");
    for number in 0..100 {
        set("docs/empty", &format!("user.number-{number}"), &[number; 100]);
    }
    run("setfacl", &[&"-m", &"u:1234:rx,g:99:r", &dir.join("docs/large.bin")]);
    run("setfacl", &[&"-d", &"-m", &"u:1234:rwx", &dir.join("docs")]);
    for (path, mode, uid, gid) in [
        ("docs/small.txt", 0o4751, 1000, 1000),
        ("docs/large.bin", 0o2640, 70_000, 3_000_000_000),
        ("many", 0o1777, 5, 6),
        ("docs/.hidden", 0o000, 0, 0),
    ] {
        let path = dir.join(path);
        std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).unwrap();
    }
    for (path, time) in [
        ("docs/small.txt", "1969-12-31 23:59:58.250000001 UTC"),
        ("docs/empty", "2020-02-29 12:00:00.999999999 UTC"),
        ("links/dangling", "2001-09-09 01:46:40.123456789 UTC"),
        ("special/fifo", "2030-01-01 00:00:00 UTC"),
        ("many", "2037-12-31 00:00:00.5 UTC"),
    ] {
        run("touch", &[&"-h", &"-d", &time, &dir.join(path)]);
    }
}

/// What the host says of one file, as text that is compared.
pub fn describe(path: &Path) -> String {
    let of = path.symlink_metadata().unwrap();
    let kind = of.mode() & 0o170_000;
    let (is_dir, is_file) = (of.is_dir(), of.is_file());
    let size = if is_dir { 0 } else { of.size() };
    let links = if is_dir { 0 } else { of.nlink() };
    let content = if is_file { checksum(path) } else { String::new() };
    let target = std::fs::read_link(path).map(PathBuf::into_os_string).unwrap_or_default();
    format!(
        "{kind:o} mode={:o} uid={} gid={} size={size} nlink={links} mtime={}.{:09} rdev={:x} {content} {target:?} {:?}",
        of.mode() & 0o7777,
        of.uid(),
        of.gid(),
        of.mtime(),
        of.mtime_nsec(),
        of.rdev(),
        xattrs(path)
    )
}

fn checksum(path: &Path) -> String {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&std::fs::read(path).unwrap());
    format!("{:x}", hasher.finish())
}

/// Attributes as the host has them, but for XFS's own form of lists.
pub fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names
        .filter(|name| !name.starts_with(b"trusted.SGI_ACL"))
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}

/// Every path under `dir`, relative, with its description.
pub fn manifest(dir: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let relative = path.strip_prefix(dir).unwrap().as_os_str().as_bytes().to_vec();
        all.insert(relative, describe(&path));
        if path.symlink_metadata().unwrap().is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    all
}

/// Two trees must be the same.
pub fn assert_same(left: &Path, right: &Path) {
    let (left, right) = (manifest(left), manifest(right));
    let name = |path: &Vec<u8>| std::ffi::OsString::from_vec(path.clone());
    for (path, description) in &left {
        assert_eq!(right.get(path), Some(description), "{:?}", name(path));
    }
    for path in right.keys() {
        assert!(left.contains_key(path), "{:?} is too much", name(path));
    }
    assert!(left.len() > 3000);
}

/// Space that a file takes on the host, in units of 512 bytes.
pub fn blocks(path: &Path) -> u64 {
    rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).unwrap().st_blocks as u64
}

/// What there is below a directory, where times of today are not told apart.
pub fn found(dir: &Path) -> BTreeMap<Vec<u8>, String> {
    let today = |text: String| {
        let (before, behind) = text.split_once("mtime=").unwrap();
        let (time, behind) = behind.split_once(' ').unwrap();
        let seconds: i64 = time.split_once('.').unwrap().0.parse().unwrap();
        let time = if seconds > 1_600_000_000 { "now" } else { time };
        format!("{before}mtime={time} {behind}")
    };
    manifest(dir).into_iter().map(|(path, text)| (path, today(text))).collect()
}

/// Two images with the same in them.
pub fn twins(fill: impl FnOnce(&Path)) -> (Image, Image) {
    let first = Image::new(&[]);
    fill(first.mount(&[]).dir());
    let dir = scratch();
    let path = dir.path().join("volume.img");
    run("cp", &[&"--sparse=always", &first.path, &path]);
    (first, Image { dir, path })
}
