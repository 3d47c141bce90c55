//! Volumes with all that `mkfs.xfs` has on today: `mkfs` makes the same; they are altered in place, grow from the
//! smallest to the largest, and take little memory however large they are. Needs root, xfsprogs 7, loop mounts, and
//! `/dev/shm` for sparse files of any size.
#![forbid(unsafe_code)]

mod common;

use common::{Image, manifest, run, scratch, uxfs_fails, uxfs_ok};
use oracles::xfsprogs::Release;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn info(image: &Path) -> Value {
    serde_json::from_slice(&uxfs_ok(&[&"info", &"--json", &image])).expect("one object")
}

fn tool(name: &str, args: &[&dyn AsRef<OsStr>]) -> String {
    let path = Release::Unstable.path(name).unwrap();
    String::from_utf8(run(path.to_str().unwrap(), args)).unwrap()
}

/// The newest `xfs_repair` finds nothing, nor does `uxfs check`.
fn sound(image: &Path) {
    tool("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image]);
    uxfs_ok(&[&"check", &image]);
}

/// The kernel makes and removes names, and content in every group that it likes.
fn let_the_kernel_work(image: &Image, name: &str) {
    let mount = image.mount(&[]);
    let work = "cd \"$0\" && mkdir $1 && for n in $(seq 200); do mkdir $1/$n; seq $n > $1/$n/file; done &&
        for n in $(seq 9); do cp --reflink=always $1/$n/file $1/clone-$n; done && rm -r $1/1* &&
        mv $1/20 $1/moved && ln $1/21/file $1/hard && xfs_io -f -c 'falloc 0 64k' $1/reserved";
    run("bash", &[&"-c", &work, &mount.dir(), &name]);
}

/// A volume of the newest release's defaults, or almost, with a tree in it.
fn filled(options: &[&str]) -> Image {
    let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), options);
    common::fill(image.mount(&[]).dir());
    image
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn mkfs_makes_what_mkfs_xfs_makes_today() {
    let words = |image: &Path| {
        let print = "p versionnum features2 features_compat features_ro_compat features_incompat agcount agblocks \
                     logstart logblocks rootino icount ifree fdblocks inoalignmt spino_align imax_pct dirblklog";
        tool("xfs_db", &[&"-r", &"-c", &"sb 0", &"-c", &print, &image])
    };
    let dir = scratch();
    let [ours, theirs] = ["ours", "theirs"].map(|name| dir.path().join(name));
    for size in ["300M", "1G", "77G", "3T", "100T"] {
        run("truncate", &[&"-s", &size, &theirs]);
        tool("mkfs.xfs", &[&"-q", &"-f", &theirs]);
        uxfs_ok(&[&"mkfs", &"-q", &ours, &size]);
        assert_eq!(words(&ours), words(&theirs), "{size}");
        // `autofsck`, an attribute of the root directory, is made by mkfs.xfs 7 alone.
        let features = |image: &Path| {
            let mut features = info(image)["features"].as_array().unwrap().clone();
            features.retain(|feature| feature != "autofsck");
            features
        };
        assert_eq!(features(&ours), features(&theirs), "{size}");
        std::fs::remove_file(&ours).unwrap();
        std::fs::remove_file(&theirs).unwrap();
    }
}

/// A log for today's features is larger than one for those of old, and so must the smallest volume be.
#[test]
#[ignore = "needs root and xfsprogs"]
fn small_volumes_are_made_where_mkfs_xfs_makes_them() {
    let dir = scratch();
    let [ours, theirs] = ["ours", "theirs"].map(|name| Image { path: dir.path().join(name), dir: scratch() });
    let (mut made, mut refused) = (0, 0);
    for block in ["1k", "4k", "16k", "32k", "64k"] {
        let block = format!("-bsize={block}");
        for size in [16, 20, 24, 32, 48, 64, 100, 200, 300] {
            File::create(&theirs.path).unwrap().set_len(size * MIB).unwrap();
            let mut mkfs = Command::new(Release::Unstable.path("mkfs.xfs").unwrap());
            let mkfs = mkfs.args(["-q", "--unsupported", &block]).arg(&theirs.path);
            let size = format!("{size}M");
            if mkfs.output().unwrap().status.success() {
                uxfs_ok(&[&"mkfs", &"-qf", &"--small", &ours.path, &size, &block]);
                let log = |image: &Image| info(&image.path)["log_blocks"].clone();
                assert_eq!(log(&ours), log(&theirs), "{block} {size}");
                sound(&ours.path);
                drop(ours.mount(&[]));
                uxfs_ok(&[&"mkdir", &"-p", &ours.at("/some/where")]);
                sound(&ours.path);
                made += 1;
            } else {
                let args: [&dyn AsRef<OsStr>; 6] = [&"mkfs", &"-qf", &"--small", &ours.path, &size, &block];
                uxfs_fails(&args, 2, "make fewer groups, or a larger volume");
                refused += 1;
            }
        }
    }
    assert!(made > 20 && refused > 10, "{made} {refused}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_of_today_is_altered_in_place() {
    let image = filled(&[]);
    let before = manifest(image.mount(&[]).dir());
    uxfs_ok(&[&"label", &image.path, &"today"]);
    assert_eq!(info(&image.path)["label"], "today");
    sound(&image.path);
    let made_with = info(&image.path)["uuid"].clone();
    uxfs_ok(&[&"uuid", &image.path, &"generate"]);
    assert_ne!(info(&image.path)["uuid"], made_with);
    sound(&image.path);
    for size in ["444M", "1G", "40G"] {
        uxfs_ok(&[&"grow", &image.path, &size]);
        sound(&image.path);
    }
    for feature in ["bigtime", "inobtcount", "nrext64"] {
        let said = format!("the volume has {feature} already");
        uxfs_fails(&[&"upgrade", &image.path, &"-O", &feature], 2, &said);
    }
    assert_eq!(manifest(image.mount(&[]).dir()), before);
    let_the_kernel_work(&image, "kernel");
    sound(&image.path);
    uxfs_ok(&[&"uuid", &image.path, &"restore"]);
    assert_eq!(info(&image.path)["uuid"], made_with);
    uxfs_ok(&[&"rm", &"-r", &image.at("/many"), &image.at("/kernel")]);
    uxfs_ok(&[&"cp", &"-a", &"/etc/ssl", &image.at("/ssl")]);
    sound(&image.path);
    let_the_kernel_work(&image, "again");
    sound(&image.path);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn features_are_switched_on_beside_a_reverse_map_and_parent_pointers() {
    let image = filled(&["-m", "bigtime=0,inobtcount=0", "-i", "nrext64=0"]);
    let before = manifest(image.mount(&[]).dir());
    for feature in ["inobtcount", "bigtime", "nrext64"] {
        uxfs_ok(&[&"upgrade", &image.path, &"-O", &feature]);
        assert!(info(&image.path)["features"].to_string().contains(feature));
        sound(&image.path);
    }
    let mount = image.mount(&[]);
    assert_eq!(manifest(mount.dir()), before);
    run("touch", &[&"-d", &"2200-01-01", &mount.dir().join("docs/small.txt")]);
    drop(mount);
    let_the_kernel_work(&image, "kernel");
    sound(&image.path);
    uxfs_ok(&[&"rm", &"-r", &image.at("/many"), &image.at("/kernel/5")]);
    sound(&image.path);
}

/// Some thousand groups come at once. What the kernel then finds it fills here and there, up to the last group.
#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_grow_from_the_smallest_and_to_a_tebibyte() {
    let dir = scratch();
    let path = dir.path().join("volume.img");
    let image = Image { dir, path };
    for (from, sizes) in
        [("16M", &["17M", "300M", "4G"][..]), ("300M", &["3G", "50G"]), ("8G", &["9000M", "1T"])]
    {
        uxfs_ok(&[&"mkfs", &"-qf", &"--small", &"--compat", &"6.18", &image.path, &from]);
        uxfs_ok(&[&"cp", &"-a", &"/etc/ssl", &image.at("/ssl")]);
        for (nth, size) in sizes.iter().enumerate() {
            uxfs_ok(&[&"grow", &image.path, &size]);
            let now = info(&image.path);
            let bytes = now["blocks"].as_u64().unwrap() * now["block_size"].as_u64().unwrap();
            assert_eq!(bytes, std::fs::metadata(&image.path).unwrap().len(), "{from} to {size}");
            sound(&image.path);
            let_the_kernel_work(&image, &format!("kernel-{nth}"));
            sound(&image.path);
        }
        run("diff", &[&"-r", &"--no-dereference", &"/etc/ssl", &image.mount(&[]).dir().join("ssl")]);
        std::fs::remove_file(&image.path).unwrap();
    }
}

/// Runs the command with no more than `most` bytes of memory of its own; gives the most that was resident at a time, as far
/// as it was seen.
fn within(most: u64, args: &[&dyn AsRef<OsStr>]) -> u64 {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -d {} && exec \"$0\" \"$@\"", most >> 10)]);
    command.arg(env!("CARGO_BIN_EXE_uxfs")).args(args.iter().map(|arg| arg.as_ref()));
    let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
        peak = peak.max(kib << 10);
        if let Some(status) = child.try_wait().expect("a child") {
            assert!(status.success(), "{status}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What memory a volume takes follows from what is done to it, and not from its size.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_of_100_tib_takes_little_memory() {
    const MOST: u64 = 400 * MIB;
    let dir = scratch();
    let path = dir.path().join("volume.img");
    File::create(&path).unwrap().set_len(100 * TIB).unwrap();
    tool("mkfs.xfs", &[&"-q", &path]);
    let image = Image { dir, path };
    let host = image.dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    common::fill(&host);
    let commands: [(&str, &[&dyn AsRef<OsStr>]); 6] = [
        ("info", &[&"info", &image.path]),
        ("mkdir", &[&"mkdir", &image.at("/made")]),
        ("cp -a", &[&"cp", &"-a", &host, &image.at("/host")]),
        ("rm -r", &[&"rm", &"-r", &image.at("/host/many")]),
        ("find", &[&"find", &image.path]),
        ("check", &[&"check", &image.path]),
    ];
    for (name, command) in commands {
        let peak = within(MOST, command);
        println!("{name}: {} MiB resident at most", peak / MIB);
        assert!(peak < MOST, "{name}: {peak}");
    }
    tool("xfs_repair", &[&"-n", &image.path]);
    let mount = image.mount(&[]);
    run("diff", &[&"-r", &"--no-dereference", &host.join("docs"), &mount.dir().join("host/docs")]);
    drop(mount);
    let_the_kernel_work(&image, "kernel");
    sound(&image.path);
}

/// A kernel's `df` leaves out what groups keep for their metadata, and `info` says how much that is.
#[test]
#[ignore = "needs root and xfsprogs"]
fn info_says_how_much_of_the_free_space_no_file_gets() {
    for options in [&[][..], &["-m", "rmapbt=0"], &["-b", "size=1024"]] {
        let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), options);
        let said = info(&image.path);
        let number = |name: &str| said[name].as_u64().unwrap_or_else(|| panic!("{name} in {said}"));
        let ours = number("free_blocks") - number("kept_back_blocks");
        let mount = image.mount(&[]);
        let theirs = rustix::fs::statvfs(mount.dir()).unwrap().f_bavail;
        drop(mount);
        // A mounted volume has a pool of its own for what must not fail.
        let pool = (number("blocks") / 20).min(8192);
        // Kernels count some blocks of a group's headers otherwise.
        let most = 32 * number("ag_count");
        let by_kernel = theirs + pool;
        assert!(
            ours.abs_diff(by_kernel) <= most,
            "{options:?}: {ours} blocks for files, {by_kernel} by the kernel"
        );
        let text = String::from_utf8(uxfs_ok(&[&"info", &image.path])).unwrap();
        let free = text.lines().find(|line| line.starts_with("free ")).unwrap();
        assert!(free.ends_with(" of it kept for metadata to grow"), "{free}");
    }
}
