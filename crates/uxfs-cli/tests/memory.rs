//! How much memory the verbs take that go through many files.
#![forbid(unsafe_code)]

mod common;

use common::{run, scratch, uxfs_ok};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const CACHE: u64 = 8 << 20;
/// What the help says: as much again as half of the caches, and 256 MiB.
const MOST: u64 = CACHE + CACHE / 2 + (256 << 20);
/// The same, of each thread above 8.
const OF_A_THREAD: u64 = 8 << 20;

/// Runs the command, which must succeed; gives how much memory it had at most, in bytes.
fn memory_of(args: &[&str], stdin: Stdio, stdout: Stdio) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    command.args(["--cache-size", "8M"]).args(args).stdin(stdin).stdout(stdout);
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let ended = loop {
        let said = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = said.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        most = most.max(peak.unwrap_or(0) << 10);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(ended.success(), "{args:?}: {ended}");
    assert!(most > CACHE / 2, "{args:?}: it was not seen: {most}");
    most
}

/// 12,000 files in 200 directories, 180 MiB: many times what the caches hold.
fn archive(path: &Path) {
    let mut to = tar::Builder::new(File::create(path).unwrap());
    for nth in 0..12_000_u32 {
        let content = nth.to_le_bytes().repeat(256 << (nth % 6));
        let content = if nth % 1000 == 0 { content.repeat(256) } else { content };
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        to.append_data(&mut header, format!("d{}/f{nth}", nth / 60), &*content).unwrap();
    }
    to.finish().unwrap();
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn verbs_of_many_files_take_what_the_help_says() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, tar, out) = (path("image"), path("a.tar"), path("out"));
    archive(tar.as_ref());
    uxfs_ok(&[&"mkfs", &image, &"768M"]);
    let root = format!("{image}:/");
    let first = || File::open(&tar).unwrap().into();
    let null = Stdio::null;
    let took = [
        ("untar", memory_of(&["untar", &root], first(), null())),
        ("tar", memory_of(&["tar", &root], null(), File::create(path("b.tar")).unwrap().into())),
        ("cp out", memory_of(&["cp", "-r", &root, &out], null(), null())),
        ("cp in", memory_of(&["cp", "-r", &out, &format!("{image}:/again")], null(), null())),
        ("rm", memory_of(&["rm", "-r", &format!("{image}:/again")], null(), null())),
    ];
    for (what, bytes) in took {
        assert!(bytes <= MOST, "{what} took {} MiB", bytes >> 20);
    }
    for threads in [16, 64] {
        let bytes = memory_of(&["untar", "--threads", &threads.to_string(), &root], first(), null());
        let most = MOST + (threads - 8) * OF_A_THREAD;
        assert!(bytes <= most, "untar by {threads} threads took {} MiB", bytes >> 20);
    }
    println!("{:?} MiB", took.map(|(what, bytes)| (what, bytes >> 20)));
    run("xfs_repair", &[&"-n", &image]);
}
