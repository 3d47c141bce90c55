//! Verbs that change a whole tree, killed at any moment: what uxfs recovers is what a kernel recovers, to `xfs_repair` it is
//! sound, and no file has bytes that are not its own.
#![forbid(unsafe_code)]

mod common;

use common::{fill, manifest, run, scratch, uxfs_ok};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Moments at which each verb is killed, spread over the time that it takes.
const MOMENTS: u32 = 4;
const FILES: usize = 1500;

/// Enough for several checkpoints of several records each.
fn tree(dir: &Path) {
    fill(dir);
    for nth in 0..FILES {
        let of = dir.join(format!("d{}", nth % 20));
        std::fs::create_dir_all(&of).unwrap();
        let bytes: Vec<u8> = (0..nth * 37 % 20_000).map(|at| (at * 7 + nth) as u8 | 1).collect();
        std::fs::write(of.join(format!("a-file-with-some-name-{nth}")), bytes).unwrap();
    }
}

fn verb(args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn sound(image: &Path) -> BTreeMap<Vec<u8>, String> {
    run("xfs_repair", &[&"-n", &image]);
    let at = scratch();
    manifest(oracles::Mounted::new(image, &at.path().join("mnt"), "loop,ro,nouuid").dir())
}

/// Each byte of a file below `dir` is what `source` has at its place, or zero.
fn own_bytes_alone(dir: &Path, source: &Path) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, original) = (entry.path(), source.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            own_bytes_alone(&path, &original);
        } else if kind.is_file() {
            let (found, expected) = (std::fs::read(&path).unwrap(), std::fs::read(&original).unwrap());
            let is_own = found.iter().zip(&expected).all(|(found, own)| found == own || *found == 0);
            assert!(is_own && found.len() <= expected.len(), "{}", path.display());
        }
    }
}

/// Has a verb change copies of `before`, and kills it.
fn every_kill_is_recovered(before: &Path, source: &Path, args: &dyn Fn(&str) -> Vec<String>) {
    let dir = scratch();
    let copy = |from: &Path, name: &str| -> PathBuf {
        let to = dir.path().join(name);
        run("cp", &[&"--sparse=always", &from, &to]);
        to
    };
    let image = copy(before, "image");
    let at = format!("{}:/", image.display());
    let start = Instant::now();
    assert!(verb(&args(&at)).status().unwrap().success());
    let whole = start.elapsed();
    for nth in 1..=MOMENTS {
        copy(before, "image");
        let mut child = verb(&args(&at)).spawn().unwrap();
        std::thread::sleep(whole * nth / (MOMENTS + 1));
        child.kill().unwrap();
        child.wait().unwrap();
        // What the host was asked to write comes to rest.
        std::thread::sleep(Duration::from_millis(50));
        let theirs = copy(&image, "theirs");
        let mount = dir.path().join("mnt");
        let mounted = oracles::Mounted::new(&theirs, &mount, "loop");
        own_bytes_alone(mounted.dir(), source);
        drop(mounted);
        uxfs_ok(&[&"recover", &image]);
        assert!(
            sound(&image) == sound(&theirs),
            "{:?}, killed after {nth} of {} parts",
            args(&at),
            MOMENTS + 1
        );
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_kills_leave_is_recovered_as_a_kernel_does() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (source, archive, empty, full) = (path("tree"), path("tar"), path("empty"), path("full"));
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    run("tar", &[&"-cf", &archive, &"-C", &source, &"."]);
    // As the system's mkfs.xfs has it: its log's one record is small.
    std::fs::File::create(&empty).unwrap().set_len(400 << 20).unwrap();
    run("mkfs.xfs", &[&"-q", &empty]);
    run("cp", &[&"--sparse=always", &empty, &full]);
    uxfs_ok(&[&"cp", &"-a", &source.join("."), &format!("{}:/", full.display())]);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (archive, tree) = (archive.display().to_string(), format!("{}/.", source.display()));
    for threads in ["1", "4"] {
        every_kill_is_recovered(&empty, &source, &|at| {
            words(&["untar", "--threads", threads, "-i", &archive, at])
        });
    }
    every_kill_is_recovered(&empty, &source, &|at| words(&["cp", "-a", "--threads", "2", &tree, at]));
    every_kill_is_recovered(&full, &source, &|at| {
        words(&["rm", "-r", "--threads", "2", &format!("{at}d0"), &format!("{at}d1"), &format!("{at}d2")])
    });
}
