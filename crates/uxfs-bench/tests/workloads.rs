//! Small runs of the workloads on files: what they report, and what they leave on the volume, as the kernel and
//! `xfs_repair` see it. Needs root and xfsprogs, as the kernel has to mount the volume.
#![forbid(unsafe_code)]

use oracles::{Mounted, xfsprogs::Release};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use uxfs_bench::{
    Config, Content, FILE_NAME, Flushing, FxMark, Locking, Measurement, PAGE, Report, Silent, Versus,
    VolumePlace, Workload, run,
};

const SIZE: u64 = 8 << 20;

fn config() -> Config {
    Config {
        threads: vec![1, 3],
        size: SIZE,
        pages: SIZE / PAGE as u64,
        rounds: 2,
        min_time: Duration::ZERO,
        ..Config::default()
    }
}

/// Runs a program that must succeed.
fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// One test at a time has workloads mount the kernel's file systems: a device of one that is gone may be another's at
/// once, by the same name.
static MOUNTS: Mutex<()> = Mutex::new(());

/// Whether a workload's mount is left of a device. Loop devices that others use by the same name are none.
fn is_left(device: &str) -> bool {
    // Behind a loop device stands where it lies.
    let device = device.split(' ').next().expect("a name");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.lines().any(|line| line.starts_with(&format!("{device} ")) && line.contains("/uxfs-bench-"))
}

/// Whether a loop device has a file in this directory.
fn is_attached(device: &str, dir: &Path) -> bool {
    let name = device.strip_prefix("/dev/").expect("a device");
    let file = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
    Path::new(&file).starts_with(dir)
}

/// Lets `xfs_repair` look at the image, and compares the file as the kernel reads it, byte by byte.
fn check_volume(image: &Path, dir: &Path, content: &Content) {
    must(Release::Unstable.tool("xfs_repair").expect("installed").arg("-n").arg(image));
    let mounted = Mounted::new(image, &dir.join("mnt"), "loop,ro");
    let file = File::open(mounted.join(FILE_NAME)).expect("the file is there");
    assert_eq!(file.metadata().expect("it has metadata").len(), content.pages() * PAGE as u64);
    let mut held = [0; PAGE];
    for page in 0..content.pages() {
        file.read_exact_at(&mut held, page * PAGE as u64).expect("the kernel reads");
        assert!(held == content.page(page), "page {page} differs");
    }
}

/// The lines of a report for one target, locking and op.
fn lines<'a>(report: &'a Report, target: &str, locking: Option<&str>, op: &str) -> Vec<&'a Measurement> {
    let fits =
        |line: &&Measurement| line.target == target && line.locking.as_deref() == locking && line.op == op;
    report.measurements.iter().filter(fits).collect()
}

/// Checks that each thread count has its line, and that its figures go together.
fn assert_lines(report: &Report, workload: &str, target: &str, locking: Option<&str>, depth: u32) {
    for op in ["read", "write"] {
        let lines = lines(report, target, locking, op);
        let threads: Vec<usize> = lines.iter().map(|line| line.threads).collect();
        assert_eq!(threads, [1, 3], "{target} {locking:?} {op}");
        for line in lines {
            assert_eq!((line.workload, line.depth, line.median_of), (workload, depth, 2));
            assert!(line.ops_per_s > 0.0);
            let mib = line.mib_per_s.expect("pages have a size");
            assert!((mib - line.ops_per_s / 256.0).abs() <= mib * 1e-9);
            assert!(line.p50_us.expect("timed") <= line.p99_us.expect("timed"));
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn overwrite_in_memory_leaves_a_sound_volume() {
    let dir = TempDir::new().expect("a directory");
    let image = dir.path().join("kept.img");
    let config = Config {
        locking: Locking::ALL.to_vec(),
        raw: true,
        memcpy: true,
        keep: Some(image.clone()),
        ..config()
    };
    let report = run(&config, &[Workload::Overwrite], &mut Silent).expect("it runs");
    for locking in Locking::ALL {
        assert_lines(&report, "overwrite", "uxfs", Some(locking.name()), 1);
    }
    assert_lines(&report, "overwrite", "raw", None, 1);
    assert_lines(&report, "overwrite", "memcpy", None, 1);
    check_volume(&image, dir.path(), &report.content.expect("a file was written"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn mixed_queues_in_memory_leave_a_sound_volume() {
    let dir = TempDir::new().expect("a directory");
    let image = dir.path().join("kept.img");
    let config = Config { keep: Some(image.clone()), ..config() };
    let report = run(&config, &[Workload::RandRw], &mut Silent).expect("it runs");
    for locking in ["shared", "interval-tree", "btree", "range"] {
        assert_lines(&report, "randrw", "uxfs", Some(locking), 128);
    }
    check_volume(&image, dir.path(), &report.content.expect("a file was written"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_file_is_gone_over_in_order_by_requests_of_a_block() {
    for block in [4 << 10, 1 << 20] {
        let dir = TempDir::new().expect("a directory");
        let image = dir.path().join("kept.img");
        // Three threads have parts of different lengths.
        let config = Config {
            block,
            locking: vec![Locking::Range],
            memcpy: true,
            versus: vec![Versus::Dir(dir.path().to_owned())],
            keep: Some(image.clone()),
            ..config()
        };
        let report = run(&config, &[Workload::Seq], &mut Silent).expect("it runs");
        let targets: BTreeSet<&str> = report.measurements.iter().map(|line| &*line.target).collect();
        assert_eq!(targets.len(), 3, "{targets:?}");
        assert_eq!(report.measurements.len(), 3 * 2 * 2, "each reads and writes, with one thread and three");
        for line in &report.measurements {
            assert_eq!((line.workload, line.bytes, line.median_of), ("seq", Some(block), 2));
            let mib = line.mib_per_s.expect("blocks have a size");
            assert!((mib - line.ops_per_s * block as f64 / f64::from(1 << 20)).abs() <= mib * 1e-9);
        }
        check_volume(&image, dir.path(), &report.content.expect("a file was written"));
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_image_file_and_a_mapped_one_are_overwritten_in_place() {
    for place in [VolumePlace::Shm, VolumePlace::Dir(std::env::temp_dir())] {
        let dir = TempDir::new().expect("a directory");
        let image = dir.path().join("kept.img");
        let config = Config {
            place,
            locking: vec![Locking::Range],
            raw: true,
            depths: vec![1, 16],
            keep: Some(image.clone()),
            ..config()
        };
        let report = run(&config, &[Workload::Overwrite], &mut Silent).expect("it runs");
        for target in [("uxfs", Some("range")), ("raw", None)] {
            let lines = lines(&report, target.0, target.1, "write");
            let shape: Vec<(u32, usize)> = lines.iter().map(|line| (line.depth, line.threads)).collect();
            assert_eq!(shape, [(1, 1), (1, 3), (16, 1), (16, 3)]);
        }
        check_volume(&image, dir.path(), &report.content.expect("a file was written"));
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernels_file_systems_run_the_same_and_leave_nothing() {
    let _alone = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a directory");
    let config = Config {
        locking: vec![Locking::Range],
        versus: vec![
            Versus::KernelXfs,
            Versus::KernelXfsLoop,
            Versus::KernelExt4,
            Versus::Dir(dir.path().to_owned()),
        ],
        ..config()
    };
    let report = run(&config, &[Workload::Overwrite, Workload::RandRw], &mut Silent).expect("it runs");
    for (target, device) in
        [("kernel-xfs", "/dev/zram"), ("kernel-xfs-loop", "/dev/loop"), ("kernel-ext4", "/dev/zram")]
    {
        let is_made = |line: &&Measurement| line.target == target && line.device.starts_with(device);
        let lines: Vec<&Measurement> = report.measurements.iter().filter(is_made).collect();
        // Reads and writes of two thread counts, and of two workloads.
        assert_eq!(lines.len(), 8, "{target}: {:?}", report.measurements);
        assert!(!is_left(&lines[0].device), "{} is still mounted", lines[0].device);
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 0);
}

#[test]
fn locks_are_counted_by_target() {
    let config = Config { lockstat: true, locking: vec![Locking::Exclusive, Locking::Range], ..config() };
    let report = run(&config, &[Workload::Overwrite], &mut Silent).expect("it runs");
    let pages = SIZE / PAGE as u64;
    for target in ["uxfs exclusive", "uxfs range"] {
        let class = report.locks.iter().find(|class| class.target == target && class.class == "range");
        let class = class.unwrap_or_else(|| panic!("{target} is counted: {:?}", report.locks));
        // Two rounds of two thread counts, a pass each; one process-wide count, hence at least.
        assert!(class.exclusive >= 4 * pages && class.shared >= 4 * pages, "{class:?}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn files_that_are_made_are_looked_at_and_removed_and_a_sound_volume_is_left() {
    let dir = TempDir::new().expect("a directory");
    let image = dir.path().join("kept.img");
    let (threads, rounds) = (vec![1, 3], 2);
    let config = Config {
        threads: threads.clone(),
        files: 500,
        dirs: 2,
        lockstat: true,
        keep: Some(image.clone()),
        versus: vec![Versus::Dir(dir.path().to_owned())],
        ..config()
    };
    let report = run(&config, &[Workload::FsMark], &mut Silent).expect("it runs");
    for op in ["create", "create + sync", "walk", "unlink", "unlink + sync"] {
        let older = ["cil=single-lock", "vectors=at-commit", "cil=single-lock vectors=at-commit"];
        for design in [None].into_iter().chain(older.map(Some)) {
            let lines = lines(&report, "uxfs", design, op);
            let shape: Vec<(usize, usize)> =
                lines.iter().map(|line| (line.threads, line.median_of)).collect();
            assert_eq!(shape, [(1, rounds), (3, rounds)], "{design:?} {op}");
            assert!(lines.iter().all(|line| line.ops_per_s > 0.0 && line.workload == "fsmark"), "{lines:?}");
        }
        let others = report.measurements.iter().filter(|line| line.op == op && line.target != "uxfs").count();
        assert_eq!(others, threads.len(), "{op}: the same on a mounted directory");
    }
    for (op, n) in [("create", 1), ("create", 3), ("unlink", 1), ("unlink", 3)] {
        let target = format!("uxfs {op} × {n}");
        let class = |name: &str| {
            let found = report.locks.iter().find(|class| class.target == target && class.class == name);
            found.unwrap_or_else(|| panic!("{name} of {target}: {:?}", report.locks))
        };
        let files = 500 * n as u64 * rounds as u64;
        assert!(class("commits").shared >= files, "a transaction a file, at least");
        for name in ["inode", "buffer", "group header", "cil shard", "buffer state"] {
            assert!(class(name).exclusive >= files && class(name).per_commit.is_some(), "{name} of {target}");
        }
    }
    // In the older way of commits all threads take turns at one lock; what the first did alone, at most a third, is not
    // between threads. Other tests of the process count, too, and the more.
    let between = |design: &str| {
        let target = format!("uxfs {design}create × 3");
        let found = report.locks.iter().find(|of| of.target == target && of.class == "cil shard");
        found.map_or(0, |class| class.between)
    };
    let made = 3 * 500 * rounds as u64;
    assert!(between("cil=single-lock ") * 10 >= made * 6, "{:?}", report.locks);
    assert!(between("") * 2 < made, "{:?}", report.locks);
    must(Release::Unstable.tool("xfs_repair").expect("installed").arg("-n").arg(&image));
    // Nothing of the mounted directory is left but the volume that was asked for.
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 1);
}

/// Each file is on the device before the next is made.
#[test]
#[ignore = "needs root and xfsprogs"]
fn files_that_are_made_durable_have_their_content() {
    let dir = TempDir::new().expect("a directory");
    let image = dir.path().join("kept.img");
    let config = Config {
        threads: vec![2],
        files: 50,
        fsync: Some(5000),
        rounds: 1,
        place: VolumePlace::Dir(dir.path().to_owned()),
        keep: Some(image.clone()),
        versus: vec![Versus::Dir(dir.path().to_owned())],
        ..config()
    };
    let report = run(&config, &[Workload::FsMark], &mut Silent).expect("it runs");
    let ops = |target: fn(&str) -> bool| -> Vec<&str> {
        report.measurements.iter().filter(|line| target(&line.target)).map(|line| line.op).collect()
    };
    for target in [(|name| name == "uxfs") as fn(&str) -> bool, |name| name != "uxfs"] {
        assert_eq!(ops(target), ["create + fsync", "walk", "unlink", "unlink + sync"]);
    }
    must(Release::Unstable.tool("xfs_repair").expect("installed").arg("-n").arg(&image));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_makes_and_removes_the_same_files() {
    let _alone = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config {
        threads: vec![2],
        files: 300,
        rounds: 1,
        versus: vec![Versus::KernelXfs, Versus::KernelXfsLoop, Versus::KernelExt4],
        ..config()
    };
    let report = run(&config, &[Workload::FsMark], &mut Silent).expect("it runs");
    for (target, device) in
        [("kernel-xfs", "/dev/zram"), ("kernel-xfs-loop", "/dev/loop"), ("kernel-ext4", "/dev/zram")]
    {
        let lines: Vec<&Measurement> =
            report.measurements.iter().filter(|line| line.target == target).collect();
        assert_eq!(lines.len(), 5, "{lines:?}");
        let device = &lines[0].device.strip_prefix(device).map(|_| lines[0].device.clone());
        let device = device.as_ref().expect("it lies on a device of its kind");
        assert!(!is_left(device), "{device} is still mounted");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn all_of_fxmark_runs_on_a_volume_and_in_mounted_directories() {
    let _alone = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a directory");
    let config = Config {
        files: 50,
        rounds: 1,
        lockstat: true,
        versus: vec![Versus::Dir(dir.path().to_owned()), Versus::KernelXfs],
        ..config()
    };
    let report = run(&config, &[Workload::FxMark], &mut Silent).expect("it runs");
    assert_eq!(report.measurements.len(), FxMark::ALL.len() * 2 * 3);
    for which in FxMark::ALL {
        for target in ["uxfs", "kernel-xfs"] {
            let lines = lines(&report, target, None, which.name());
            let threads: Vec<usize> = lines.iter().map(|line| line.threads).collect();
            assert_eq!(threads, [1, 3], "{target} {}", which.name());
            assert!(lines.iter().all(|line| line.ops_per_s > 0.0 && line.workload == "fxmark"), "{lines:?}");
        }
    }
    let counted = |target: &str, class: &str| {
        report.locks.iter().any(|of| of.target == target && of.class == class && of.exclusive >= 150)
    };
    assert!(counted("uxfs MWCL × 3", "inode"), "{:?}", report.locks);
    let device = lines(&report, "kernel-xfs", None, "DRBL")[0].device.clone();
    assert!(device.starts_with("/dev/zram") && !is_left(&device), "{device}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 0);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn clients_work_on_a_volume_and_on_the_kernels() {
    let _alone = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config { clients: vec![1, 3], lockstat: true, versus: vec![Versus::KernelXfs], ..config() };
    let report = run(&config, &[Workload::Dbench], &mut Silent).expect("it runs");
    assert_eq!(report.measurements.len(), 12);
    for (target, design) in [("uxfs", None), ("uxfs", Some("handles=locked")), ("kernel-xfs", None)] {
        for op in ["mix", "MiB"] {
            let lines = lines(&report, target, design, op);
            let shape: Vec<(usize, usize)> =
                lines.iter().map(|line| (line.threads, line.median_of)).collect();
            assert_eq!(shape, [(1, 2), (3, 2)], "{target} {op}");
            assert!(lines.iter().all(|line| line.ops_per_s > 0.0 && line.workload == "dbench"), "{lines:?}");
        }
    }
    // Each client flushes seven times in an errand.
    let counted =
        |target: &str| report.locks.iter().any(|of| of.target == target && of.shared + of.exclusive > 0);
    assert!(counted("uxfs × 1") && counted("uxfs × 3"), "{:?}", report.locks);
    let handles = |target: &str| {
        let found = report.locks.iter().find(|of| of.target == target && of.class == "handles");
        found.map_or(0, |class| class.between)
    };
    assert!(handles("uxfs handles=locked × 3") > 0 && handles("uxfs × 3") == 0, "{:?}", report.locks);
}

/// Copies on write on both volumes, which have today's features. The workload itself compares what the file and its
/// clone hold after each round.
#[test]
#[ignore = "needs root and xfsprogs"]
fn pages_that_a_clone_shares_are_overwritten_beside_the_kernel() {
    let _mounts = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config {
        pages: 200,
        clones: 3,
        depths: vec![1, 8],
        compat: Some("6.18".to_owned()),
        versus: vec![Versus::KernelXfs],
        ..config()
    };
    let report = run(&config, &[Workload::Cow], &mut Silent).expect("it runs");
    for target in ["uxfs", "kernel-xfs"] {
        for op in ["clone", "clone + sync", "copy", "copy + sync", "again", "again + sync"] {
            let lines = lines(&report, target, None, op);
            assert_eq!(lines.len(), 4, "{target} {op}");
            assert!(lines.iter().all(|line| line.ops_per_s > 0.0 && line.median_of == 2), "{lines:?}");
        }
    }
}

fn osync_config() -> Config {
    Config {
        osync_threads: vec![1, 3],
        flush_latencies: vec![Duration::ZERO, Duration::from_micros(100)],
        min_time: Duration::from_millis(5),
        ..config()
    }
}

/// The workload itself compares what all regions hold after each measurement.
#[test]
fn durable_writes_are_measured_on_a_device_and_on_a_file_in_every_way() {
    let config = Config { lockstat: true, ..osync_config() };
    let report = run(&config, &[Workload::OSync], &mut Silent).expect("it runs");
    let ways = Flushing::ALL.map(Flushing::name);
    for device in ["memory", "memory, flush 0.1 ms"] {
        for (target, op, others) in
            [("device", "device write", &["one-flush-a-round"][..]), ("uxfs", "file write", &[])]
        {
            for way in ways.iter().chain(others) {
                let lines: Vec<&Measurement> = lines(&report, target, Some(way), op)
                    .into_iter()
                    .filter(|line| line.device == device)
                    .collect();
                let threads: Vec<usize> = lines.iter().map(|line| line.threads).collect();
                assert_eq!(threads, [1, 3], "{device} {target} {way}");
                for line in lines {
                    assert_eq!((line.workload, line.depth, line.median_of), ("osync", 1, 2));
                    let mib = line.mib_per_s.expect("writes have a size");
                    assert!(mib > 0.0 && (mib - line.ops_per_s / 16.0).abs() <= mib * 1e-9);
                    let (p50, p99, p999) = (line.p50_us, line.p99_us, line.p999_us);
                    assert!(p50 > Some(0.0) && p50 <= p99 && p99 <= p999, "{line:?}");
                }
            }
        }
    }
    for (class, way) in [("flush", "serialized"), ("flush state", "shared-flush")] {
        let target = format!("device {way}, memory, flush 0.1 ms × 3");
        let found = report.locks.iter().find(|found| found.class == class && found.target == target);
        assert!(found.is_some_and(|found| found.exclusive > 0), "{class} of {target}: {:?}", report.locks);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn durable_writes_go_to_a_disk_and_through_system_calls() {
    let _alone = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a directory");
    let config = Config {
        place: VolumePlace::Dir(dir.path().to_owned()),
        flushings: vec![Flushing::Shared],
        versus: vec![Versus::Dir(dir.path().to_owned()), Versus::KernelXfs, Versus::KernelXfsLoop],
        ..osync_config()
    };
    let report = run(&config, &[Workload::OSync], &mut Silent).expect("it runs");
    let here = dir.path().display().to_string();
    for (target, way, op) in [
        ("device", Some("shared-flush"), "device write"),
        ("device", Some("one-flush-a-round"), "device write"),
        ("raw", None, "device write"),
        ("uxfs", Some("shared-flush"), "file write"),
    ] {
        let lines = lines(&report, target, way, op);
        assert_eq!(lines.len(), 2, "{target} {way:?}");
        assert!(lines.iter().all(|line| line.device.starts_with(&here)), "{lines:?}");
    }
    let kernels: Vec<&Measurement> =
        report.measurements.iter().filter(|line| line.target.starts_with("kernel-")).collect();
    assert_eq!(kernels.len(), 6, "three mounted directories");
    assert!(kernels.iter().all(|line| line.op == "file write" && line.ops_per_s > 0.0));
    let zram = kernels.iter().find(|line| line.device.starts_with("/dev/zram")).expect("made for this");
    assert!(!is_left(&zram.device));
    // One lies where ours does, and there are as many threads, which write as much.
    let in_place = lines(&report, "kernel-xfs-loop", None, "file write");
    let threads: Vec<(usize, Option<u64>)> = in_place.iter().map(|line| (line.threads, line.bytes)).collect();
    assert_eq!(threads, [(1, Some(64 << 10)), (3, Some(64 << 10))]);
    for line in in_place {
        let device = line.device.strip_suffix(&format!(" in {here}")).expect("in the same directory");
        assert!(device.starts_with("/dev/loop") && !is_left(device) && !is_attached(device, dir.path()));
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 0);
}

/// A file stands for a device: nothing is written to it unasked, and nothing behind the regions if it is asked for.
#[test]
fn what_is_there_is_written_over_only_if_that_is_asked_for() {
    let dir = TempDir::new().expect("a directory");
    let disk = dir.path().join("disk");
    let held = vec![7; 8 << 20];
    std::fs::write(&disk, &held).expect("room");
    let config = Config { place: VolumePlace::Dir(disk.clone()), ..osync_config() };
    let refused = run(&config, &[Workload::OSync], &mut Silent).expect_err("not asked for");
    assert!(refused.to_string().contains("--force"), "{refused}");
    assert!(std::fs::read(&disk).expect("still there") == held);

    let small = Config { overwrite: true, osync_threads: vec![9], ..config.clone() };
    let refused = run(&small, &[Workload::OSync], &mut Silent).expect_err("nine regions");
    assert!(refused.to_string().contains("9437184 are written to"), "{refused}");
    assert!(std::fs::read(&disk).expect("still there") == held);

    let config = Config { overwrite: true, ..config };
    let beside = Config { versus: vec![Versus::KernelXfsLoop], ..config.clone() };
    let refused = run(&beside, &[Workload::OSync], &mut Silent).expect_err("there is no directory");
    assert!(refused.to_string().contains("no directory"), "{refused}");
    assert!(std::fs::read(&disk).expect("still there") == held);

    let report = run(&config, &[Workload::OSync], &mut Silent).expect("it runs");
    // Three ways, one flush a round, and system calls; two thread counts.
    assert_eq!(report.measurements.len(), 10, "{:?}", report.measurements);
    let now = std::fs::read(&disk).expect("still there");
    assert!(now[..3 << 20] != held[..3 << 20] && now[3 << 20..] == held[3 << 20..]);
}
