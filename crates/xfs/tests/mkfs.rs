//! Volumes that are made here, judged by `xfs_repair`, by comparison with `mkfs.xfs`, and by the kernel.
//! Needs root, xfsprogs 6.1 and 7, loop mounts, and `/dev/shm` for sparse files of any size.
#![forbid(unsafe_code)]

mod common;

use blockdev::{BlockDevice, Counter, Durability, Fault, FaultDevice, FileOptions, MemoryDevice, Op};
use common::{Image, run, try_run};
use oracles::{umount, xfsprogs::Release};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xfs::check::{CheckOptions, check};
use xfs::mkfs::{Before, Features, Groups, Options, Refusal, format, log_blocks_min, plan};
use xfs::volume::{OpenOptions, Volume};
use xfs_format::superblock::{RawSuperblock, Superblock};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, Uuid};
use xfs_format::{checksum, superblock};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// Where sparse files may be of any size.
const SHM: &str = "/dev/shm";

/// The kernel mounts no two volumes of one UUID at a time, and tests run side by side: each call has its own.
fn options() -> Options {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut uuid = [0x5a; 16];
    uuid[..8].copy_from_slice(&u64::from(std::process::id()).to_be_bytes());
    uuid[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    // What the system's tools know; what is newer is asked of the newest, where a test says so.
    let features = Features::of_kernel("6.1").expect("a set");
    Options {
        features,
        ..Options::new(Uuid(uuid), Timestamp { seconds: 1_700_000_000, nanoseconds: 123_456_789 })
    }
}

/// A sparse file with a volume in it.
fn make(bytes: u64, options: &Options) -> Image {
    let image = Image::blank_in(SHM, bytes);
    format_image(&image, options, Before::Zeroes);
    image
}

fn format_image(image: &Image, options: &Options, before: Before) {
    let device = FileOptions::new().write(true).sector_size(512).open(image.path()).unwrap();
    let layout = plan(options, device.size()).unwrap();
    format(&device, &layout, before).unwrap();
}

/// The arguments of `mkfs.xfs` that mean the same.
fn arguments(options: &Options) -> Vec<String> {
    let on = u8::from;
    let Features {
        finobt,
        inobt_counts,
        sparse_inodes,
        reflink,
        bigtime,
        nrext64,
        rmapbt,
        exchange,
        parent_pointers,
    } = options.features;
    let mut arguments: Vec<String> = vec![
        format!("-bsize={}", options.block_size),
        format!("-ssize={}", options.sector_size),
        format!("-isize={},sparse={},nrext64={}", options.inode_size, on(sparse_inodes), on(nrext64)),
        format!(
            "-mfinobt={},inobtcount={},reflink={},bigtime={},rmapbt={}",
            on(finobt),
            on(inobt_counts),
            on(reflink),
            on(bigtime),
            on(rmapbt)
        ),
    ];
    if is_newest(options) {
        // Older releases do not know them, and newer ones have them on.
        arguments
            .extend([format!("-iexchange={}", on(exchange)), format!("-nparent={}", on(parent_pointers))]);
    }
    match options.groups {
        Groups::Automatic => {}
        Groups::Count(count) => arguments.push(format!("-dagcount={count}")),
        Groups::Bytes(bytes) => arguments.push(format!("-dagsize={bytes}")),
    }
    arguments.extend(options.dir_block_size.map(|bytes| format!("-nsize={bytes}")));
    arguments.extend(options.log_size.map(|bytes| format!("-lsize={bytes}")));
    if !options.label.is_empty() {
        arguments.push(format!("-L{}", String::from_utf8_lossy(&options.label)));
    }
    if options.small {
        arguments.push("--unsupported".to_owned());
    }
    arguments
}

/// Whether the volume has what xfsprogs 6.1 does not know.
fn is_newest(options: &Options) -> bool {
    options.features.exchange || options.features.parent_pointers
}

/// What `xfs_db` says of superblock and group headers, and of free space, without what differs by intent.
fn described(image: &Image, groups: u32, features: Features) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let path = image.path();
    let mut ask = |what: String, commands: &[&str]| {
        let mut args: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        args.push(path.to_str().unwrap());
        let said = run(xfs_db(&features), &args);
        for line in said.lines() {
            let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
            let differs = ["uuid", "crc", "core.atime", "v3.change_count", "v3.crc"];
            let is_time = key.contains("time.") || key.ends_with(".uuid");
            if !differs.iter().any(|name| key.starts_with(name)) && !is_time {
                all.insert(format!("{what} {key}"), value.to_owned());
            }
        }
    };
    ask("sb".to_owned(), &["sb 0", "p"]);
    let middle = groups / 2;
    for ag in [0, 1, middle, groups - 1].into_iter().filter(|&ag| ag < groups) {
        let (agf, agi, agfl) = (format!("agf {ag}"), format!("agi {ag}"), format!("agfl {ag}"));
        ask(agf.clone(), &[&agf, "p"]);
        ask(agi.clone(), &[&agi, "p"]);
        ask(agfl.clone(), &[&agfl, "p"]);
        for (header, root, exists) in [
            (&agf, "bnoroot", true),
            (&agf, "cntroot", true),
            (&agi, "root", true),
            (&agi, "free_root", features.finobt),
            (&agf, "rmaproot", features.rmapbt),
            (&agf, "refcntroot", features.reflink),
        ] {
            if exists {
                ask(format!("{ag} {root}"), &[header, &format!("addr {root}"), "p"]);
            }
        }
    }
    for inode in ["rootino", "rbmino", "rsumino"] {
        ask(inode.to_owned(), &["sb 0", &format!("addr {inode}"), "p"]);
    }
    all
}

/// One that knows the features.
fn xfs_db(features: &Features) -> PathBuf {
    let release =
        if features.exchange || features.parent_pointers { Release::Unstable } else { Release::System };
    release.path("xfs_db").unwrap()
}

/// Whether the trees of free space can grow. Of those that cannot, xfsprogs 6.1 keeps blocks back all the same, and
/// looks for the root directory behind them.
fn trees_grow(options: &Options, bytes: u64) -> bool {
    plan(options, bytes).unwrap().group(AgNumber(0)).agfl.blocks > 0
}

/// Neither the newest `xfs_repair`, nor the system's where it agrees on the root directory's place, nor our own checker
/// finds anything.
fn assert_sound(image: &Image, (options, bytes): (&Options, u64), what: &str) {
    let path = image.path();
    let system = (trees_grow(options, bytes) && !is_newest(options)).then(|| "xfs_repair".into());
    for repair in system.into_iter().chain([Release::Unstable.path("xfs_repair").unwrap()]) {
        // With one or two groups it has nothing to compare the first superblock with, and would rather not.
        let output = try_run(&repair, &["-n", "-f", "-o", "force_geometry", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{what}: {repair:?}: {}{said}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let report = check(image.device(), &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings());
}

/// The kernel mounts the volume, makes files in it and reads them again.
fn let_the_kernel_work(image: &Image, what: &str) {
    let mount = image.mount("");
    for n in 0..200 {
        let dir = mount.join(format!("d{}", n % 7));
        std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{what}: {error}"));
        std::fs::write(dir.join(format!("file {n}")), vec![n as u8; n * 50]).unwrap();
    }
    for n in (0..200).step_by(3) {
        std::fs::remove_file(mount.join(format!("d{}/file {n}", n % 7))).unwrap();
    }
    mount.unmount();
}

/// The volume opens here, for writing if it is written, and holds this many inodes.
fn assert_opens(image: &Image, inodes: usize) {
    let device = FileOptions::new().sector_size(512).write(true).open(image.path()).unwrap();
    let writable = superblock_of(image).unwritable().is_empty();
    let options = OpenOptions { writable, ..OpenOptions::default() };
    let volume = Volume::open(Arc::new(device), &options).unwrap();
    assert!(volume.log_is_clean());
    let mut seen = 0;
    volume
        .for_each_inode(&mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, inodes);
}

/// All that is asked of a volume of any shape. `same`: whether `mkfs.xfs` is asked to make the same.
fn witness(bytes: u64, options: &Options, same: bool) {
    let what = format!("{bytes} {:?}", arguments(options));
    let ours = make(bytes, options);
    assert_sound(&ours, (options, bytes), &what);
    assert_opens(&ours, 3);
    let sb = superblock_of(&ours);
    if same {
        let theirs = Image::blank_in(SHM, bytes);
        let mut args = vec!["-q".to_owned(), "-f".to_owned()];
        args.extend(arguments(options));
        let mut mkfs = PathBuf::from("mkfs.xfs");
        let newest = !trees_grow(options, bytes) || is_newest(options);
        if newest {
            mkfs = Release::Unstable.path("mkfs.xfs").unwrap();
        }
        if newest && !is_newest(options) {
            args.extend(["-n", "parent=0", "-i", "exchange=0"].map(str::to_owned));
        }
        args.push(theirs.path().to_str().unwrap().to_owned());
        run(&mkfs, &args.iter().map(String::as_str).collect::<Vec<_>>());
        let groups = sb.raw().agcount.get();
        let (ours, theirs) =
            (described(&ours, groups, options.features), described(&theirs, groups, options.features));
        // Newer releases give inodes random generation numbers, and the root directory room for attributes.
        let own = |key: &str| {
            newest
                && (key.ends_with("core.gen")
                    || key.contains(" a.")
                    || key.ends_with("core.forkoff")
                    || key.ends_with("core.aformat"))
        };
        for (key, value) in theirs.iter().filter(|(key, _)| !own(key)) {
            assert_eq!(ours.get(key), Some(value), "{what}: {key}");
        }
        let counted = |all: &BTreeMap<String, String>| all.keys().filter(|key| !own(key)).count();
        assert_eq!(counted(&ours), counted(&theirs), "{what}");
    }
    let_the_kernel_work(&ours, &what);
    assert_sound(&ours, (options, bytes), &format!("{what}, after the kernel"));
    // Root, bitmap, summary; 7 directories; 200 files but every third.
    assert_opens(&ours, 3 + 7 + 133);
}

fn superblock_of(image: &Image) -> Superblock {
    let device = image.device();
    let mut sector = vec![0; 32768];
    device.read(0, &mut sector).unwrap();
    Superblock::parse(&sector).unwrap()
}

fn sized(block_size: u32, inode_size: u32, sector_size: u32) -> Options {
    Options { block_size, inode_size, sector_size, ..options() }
}

fn features(change: impl FnOnce(&mut Features)) -> Options {
    let mut options = options();
    change(&mut options.features);
    options
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn every_size_of_block_inode_and_sector() {
    for (block, inode, sector) in [
        (1024, 512, 512),
        (2048, 1024, 512),
        (4096, 512, 512),
        (4096, 512, 4096),
        (4096, 1024, 512),
        (4096, 2048, 4096),
        (8192, 2048, 8192),
        (16384, 512, 4096),
        (32768, 512, 512),
        (65536, 512, 512),
        (65536, 1024, 512),
        (65536, 2048, 4096),
    ] {
        witness(320 * MIB, &sized(block, inode, sector), true);
    }
    // Groups so small that their trees cannot grow.
    for (block, inode, sector, bytes) in [
        (16384, 512, 512, 64 * MIB),
        (16384, 1024, 4096, 64 * MIB),
        (65536, 512, 512, 600 * MIB),
        (65536, 2048, 4096, 600 * MIB),
    ] {
        let small = Options { small: true, ..sized(block, inode, sector) };
        assert!(!trees_grow(&small, bytes));
        witness(bytes, &small, false);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn every_feature_on_and_off() {
    let without_finobt = |f: &mut Features| (f.finobt, f.inobt_counts) = (false, false);
    for options in [
        features(|f| f.reflink = false),
        features(without_finobt),
        features(|f| f.inobt_counts = false),
        features(|f| f.sparse_inodes = false),
        features(|f| f.bigtime = false),
        features(|f| f.nrext64 = true),
        features(|f| f.rmapbt = true),
        features(|f| {
            without_finobt(f);
            (f.reflink, f.rmapbt, f.nrext64) = (false, true, true);
        }),
        features(|f| {
            without_finobt(f);
            (f.reflink, f.sparse_inodes, f.bigtime) = (false, false, false);
        }),
    ] {
        witness(300 * MIB, &options, true);
    }
    let one_kilo = Options { block_size: 1024, ..features(|f| f.rmapbt = true) };
    witness(300 * MIB, &one_kilo, true);
    witness(300 * MIB, &features(|f| f.exchange = true), true);
    witness(300 * MIB, &features(|f| f.parent_pointers = true), true);
    let all = |f: &mut Features| (f.parent_pointers, f.rmapbt, f.nrext64) = (true, true, true);
    witness(320 * MIB, &Options { block_size: 1024, ..features(all) }, true);
    witness(TIB, &Options { inode_size: 2048, sector_size: 4096, ..features(all) }, true);
    let unsparse = Options { block_size: 65536, ..features(|f| f.sparse_inodes = false) };
    witness(300 * MIB, &unsparse, true);
}

/// What every release since has made unasked, of every size.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_features_of_every_long_term_kernel() {
    for name in Features::KERNELS {
        let of =
            |options: Options| Options { features: Features::of_kernel(name).expect("a set"), ..options };
        witness(310 * MIB, &of(options()), true);
        witness(3 << 30, &of(sized(1024, 512, 512)), true);
        witness(10 * TIB, &of(sized(4096, 1024, 4096)), true);
        let small = Options { small: true, ..options() };
        witness(64 * MIB, &of(small), true);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn groups_label_log_and_directory_blocks() {
    let with = |groups| Options { groups, ..options() };
    // Rounded sizes, a short last group, one that is left out.
    witness(1_000_003 << 10, &with(Groups::Count(7)), true);
    witness((1 << 30) + 4096, &with(Groups::Automatic), true);
    witness(1 << 30, &with(Groups::Bytes(200 * MIB)), true);
    witness((600 + 15) * MIB, &with(Groups::Bytes(200 * MIB)), true);
    witness((600 + 16) * MIB, &with(Groups::Bytes(200 * MIB)), true);
    // Where mkfs.xfs would lay the log into a last group that is too small for it, it lies in the first one.
    witness(300 * MIB, &with(Groups::Bytes(284 * MIB)), false);
    let dir_block_size = Some(16384);
    witness(400 * MIB, &Options { dir_block_size, label: b"twelve bytes".to_vec(), ..options() }, true);
    let log_size = Some(100 * MIB);
    witness(1 << 30, &Options { log_size, block_size: 1024, ..options() }, true);
    witness(1 << 30, &Options { log_size, sector_size: 4096, ..options() }, true);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_from_the_smallest_to_100_tib() {
    let small = Options { small: true, ..options() };
    for (bytes, options) in [
        (16 * MIB, small.clone()),
        (17 * MIB + 512, small.clone()),
        (32 * MIB, small.clone()),
        (64 * MIB, Options { block_size: 1024, ..small.clone() }),
        (64 * MIB, Options { sector_size: 4096, ..small.clone() }),
        (100 * MIB, Options { inode_size: 2048, ..small.clone() }),
        (256 * MIB, Options { block_size: 65536, ..small.clone() }),
    ] {
        witness(bytes, &options, true);
    }
    witness(200 * (1 << 30), &options(), true);
    witness(TIB, &options(), true);
    witness(4 * TIB, &options(), true);
    witness(100 * TIB, &options(), true);
}

/// The kernel is asked for the least log that it takes; the volume with that log, or with one that is a little
/// larger, is mounted.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_least_log_is_one_that_the_kernel_mounts() {
    let mut shapes = Vec::new();
    for (block, inode, sector) in [
        (1024, 512, 512),
        (2048, 512, 512),
        (4096, 512, 512),
        (4096, 2048, 4096),
        (16384, 2048, 512),
        (65536, 512, 512),
    ] {
        for bytes in [320 * MIB, 3 << 30, 5 * TIB] {
            for bits in 0..4 {
                let mut options = Options { small: true, ..sized(block, inode, sector) };
                (options.features.reflink, options.features.nrext64) = (bits & 1 == 0, bits & 2 != 0);
                shapes.push((bytes, options));
            }
        }
    }
    let large_dirs = Some(65536);
    shapes.push((320 * MIB, Options { small: true, dir_block_size: large_dirs, ..sized(1024, 512, 512) }));
    shapes.push((5 * TIB, Options { small: true, dir_block_size: large_dirs, ..sized(4096, 512, 512) }));
    shapes.push((320 * MIB, Options { small: true, ..features(|f| f.rmapbt = true) }));
    shapes.push((320 * MIB, Options { small: true, ..features(|f| (f.rmapbt, f.reflink) = (true, false)) }));
    for (block, inode, sector) in [(1024, 512, 512), (4096, 512, 512), (4096, 2048, 4096), (65536, 1024, 512)]
    {
        for bits in 0..8 {
            let mut options = Options { small: true, ..sized(block, inode, sector) };
            let on = |bit: u32| bits >> bit & 1 == 1;
            options.features = Features {
                reflink: on(0),
                rmapbt: on(1),
                nrext64: on(2),
                parent_pointers: true,
                ..options.features
            };
            shapes.push((if on(0) { 3 << 30 } else { 5 * TIB }, options));
        }
    }
    let today = Features::of_kernel("6.18").expect("a set");
    let today = |options| Options { small: true, features: today, ..options };
    shapes.push((320 * MIB, today(options())));
    shapes.push((5 * TIB, today(Options { dir_block_size: large_dirs, ..options() })));
    for (bytes, options) in shapes {
        let least = log_blocks_min(plan(&options, bytes).unwrap().superblock()).unwrap();
        let log_size = Some(least * u64::from(options.block_size));
        let options = Options { log_size, ..options };
        let Ok(layout) = plan(&options, bytes) else {
            assert!(bytes == 320 * MIB, "{options:?}");
            continue;
        };
        assert_eq!(u64::from(layout.superblock().raw().logblocks.get()), least);
        let image = make(bytes, &options);
        image.mount("").unmount();
        if least > 512 {
            // Four blocks fewer, which the superblock alone says: refused, unless the bound were needlessly high.
            patch_log_blocks(&image, (least - 4) as u32);
            let dir = image.beside("mnt");
            let args =
                ["-o", "loop", image.path().to_str().unwrap(), dir.to_str().unwrap()].map(str::to_owned);
            let mounted = try_run("mount", &args.each_ref().map(String::as_str));
            if mounted.status.success() {
                umount(&dir).unwrap();
                panic!("the kernel takes less than {least} blocks: {options:?}");
            }
        }
    }
}

fn patch_log_blocks(image: &Image, blocks: u32) {
    let sb = superblock_of(image);
    let mut sector = vec![0; usize::from(sb.raw().sectsize.get())];
    image.device().read(0, &mut sector).unwrap();
    let at = std::mem::offset_of!(RawSuperblock, logblocks);
    sector[at..at + 4].copy_from_slice(&blocks.to_be_bytes());
    checksum::store(&mut sector, superblock::CRC_OFFSET);
    image.patch(0, &sector);
}

#[test]
fn the_same_options_give_the_same_bytes_whatever_was_there() {
    let options = Options { small: true, ..features(|f| f.nrext64 = true) };
    let bytes = 24 * MIB;
    let new = || MemoryDevice::anonymous(bytes).unwrap();
    let content = |device: &MemoryDevice| {
        let mut all = vec![0; bytes as usize];
        device.read(0, &mut all).unwrap();
        all
    };
    let layout = plan(&options, bytes).unwrap();
    let (first, second, dirty) = (new(), new(), new());
    format(&first, &layout, Before::Zeroes).unwrap();
    format(&second, &layout, Before::Unknown).unwrap();
    assert!(content(&first) == content(&second));
    // Over old content all that the volume speaks of is the same: what it does not speak of is free.
    dirty.write(0, &vec![0xee; bytes as usize], Durability::Volatile).unwrap();
    format(&dirty, &layout, Before::Unknown).unwrap();
    let (first, dirty) = (content(&first), content(&dirty));
    let geometry = layout.geometry();
    for ag in (0..geometry.ag_count()).map(AgNumber) {
        let group = layout.group(ag);
        let free: Vec<_> = group.free.iter().chain([&group.agfl]).collect();
        for block in (0..group.blocks)
            .filter(|block| !free.iter().any(|extent| (extent.start.0..extent.end()).contains(block)))
        {
            let at = (geometry.daddr_of(ag, xfs_format::types::AgBlock(block)).0 << 9) as usize;
            assert!(first[at..at + 4096] == dirty[at..at + 4096], "group {ag}, block {block}");
        }
    }
    // Another time or UUID is another volume.
    let time = Timestamp { seconds: 1, nanoseconds: 0 };
    let other = plan(&Options { time, ..options }, bytes).unwrap();
    let device = new();
    format(&device, &other, Before::Zeroes).unwrap();
    assert!(content(&device) != first);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_over_old_content_is_sound() {
    let image = Image::blank_in(SHM, 310 * MIB);
    // An older volume with other groups, full of things.
    format_image(
        &image,
        &Options { block_size: 1024, groups: Groups::Count(3), ..options() },
        Before::Zeroes,
    );
    let_the_kernel_work(&image, "first");
    format_image(&image, &options(), Before::Unknown);
    assert_sound(&image, (&options(), 310 * MIB), "second");
    assert_opens(&image, 3);
    let_the_kernel_work(&image, "second");
    assert_sound(&image, (&options(), 310 * MIB), "second, after the kernel");
}

#[test]
fn a_volume_of_100_tib_is_made_and_opened_with_few_requests() {
    let image = Image::blank_in(SHM, 100 * TIB);
    let file = FileOptions::new().write(true).sector_size(512).open(image.path()).unwrap();
    let device = Arc::new(Counter::new(Arc::new(file)));
    let layout = plan(&options(), device.size()).unwrap();
    format(&*device, &layout, Before::Zeroes).unwrap();
    let made = device.counts();
    let groups = u64::from(layout.geometry().ag_count());
    assert_eq!((groups, made.reads), (100, 0));
    // One write a group, and first inodes, log and superblock.
    assert_eq!(made.writes, groups + 3);
    assert!(made.written_bytes < groups * 32768 + 65536, "{made:?}");
    let volume = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    volume.inode(volume.geometry().root).unwrap();
    let opened = device.counts().reads;
    // The ends of a log of 2 GiB are found by halving; all else is a read each.
    assert!(opened <= 48, "{opened} reads");
    // Nothing but what was written takes room on the host.
    use std::os::unix::fs::MetadataExt;
    let taken = std::fs::metadata(image.path()).unwrap().blocks() * 512;
    assert!(taken < 8 * MIB, "{taken}");
}

#[test]
fn what_the_device_cannot_hold_is_refused_before_anything_is_written() {
    let layout = plan(&options(), 300 * MIB).unwrap();
    let device = Arc::new(Counter::new(Arc::new(MemoryDevice::anonymous(299 * MIB).unwrap())));
    let refused = format(&*device, &layout, Before::Unknown).unwrap_err();
    assert!(matches!(refused, xfs::Error::Mkfs(Refusal::Device { .. })), "{refused}");
    let large = blockdev::MemoryOptions::new().sector_size(4096).anonymous(300 * MIB).unwrap();
    let large = Arc::new(Counter::new(Arc::new(large)));
    let refused = format(&*large, &layout, Before::Unknown).unwrap_err();
    assert!(matches!(refused, xfs::Error::Mkfs(Refusal::DeviceSector { .. })), "{refused}");
    assert_eq!((device.counts().writes, large.counts().writes), (0, 0));
}

/// Shapes of all sizes, beside those that `mkfs.xfs` would choose: groups, log, what inodes may take, and refusals.
#[test]
#[ignore = "needs root and xfsprogs"]
fn shapes_are_those_of_mkfs() {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let image = Image::blank_in(SHM, 0);
    let (mut planned, mut refused) = (0, 0);
    for round in 0..300 {
        let block_log = random.u32(10..=16);
        // From about 256 MiB to 256 TiB, each doubling as often.
        let bound = 1 << random.u32(20..=47);
        let mut bytes = random.u64(0..bound) + 256 * MIB;
        let mut options = sized(1 << block_log, 512 << random.u32(0..=2), 512 << random.u32(0..=3));
        options.groups = match random.u8(0..4) {
            0 => Groups::Count(random.u32(1..40)),
            1 => Groups::Bytes(random.u64(16 * MIB..TIB + MIB) >> block_log << block_log),
            _ => Groups::Automatic,
        };
        if round < 2 {
            // A group has no room for the log that a volume of the size would have.
            bytes = 120 * TIB + 12345;
            options.groups = Groups::Bytes(364 * MIB);
        }
        let mkfs = match round % 2 {
            0 => Release::System,
            _ => {
                let kernel = Features::KERNELS[random.usize(..Features::KERNELS.len())];
                options.features = Features::of_kernel(kernel).expect("a set");
                // Older sets are given to a release as old, which has other rules for the log of small volumes.
                if is_newest(&options) { Release::Unstable } else { Release::System }
            }
        };
        std::fs::File::options().write(true).open(image.path()).unwrap().set_len(bytes).unwrap();
        let mut args = vec!["-N".to_owned()];
        args.extend(arguments(&options));
        args.push(image.path().to_str().unwrap().to_owned());
        let mkfs = mkfs.path("mkfs.xfs").unwrap();
        let theirs = try_run(mkfs, &args.iter().map(String::as_str).collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&theirs.stdout);
        let what = format!("round {round}: {bytes} {args:?}: {}", String::from_utf8_lossy(&theirs.stderr));
        match plan(&options, bytes) {
            Ok(layout) => {
                assert!(theirs.status.success(), "made here alone, {what}");
                let raw = layout.superblock().raw();
                let number = |key: &str, nth: usize| -> u64 {
                    let behind = said.split(key).nth(nth).unwrap_or_else(|| panic!("{key} in {said}"));
                    let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
                    behind[..digits].parse().unwrap()
                };
                assert_eq!(u64::from(raw.agcount.get()), number("agcount=", 1), "{what}");
                assert_eq!(u64::from(raw.agblocks.get()), number("agsize=", 1), "{what}");
                assert_eq!(raw.dblocks.get(), number("blocks=", 1), "{what}");
                // A log that fills its group leaves mkfs.xfs less for the free list than a group with a reverse map
                // should have. Ours has all of it.
                let (group, body) = (number("agsize=", 1), u64::from(options.block_size) - 56);
                let splits =
                    |records: u64, size: u64| -> u64 { if records > body / size / 2 { 2 } else { 0 } };
                let rmap = if options.features.rmapbt { splits(group, 24) } else { 0 };
                let fills = number("blocks=", 2) + 30 > group;
                let short =
                    if fills { (2 * splits(group.div_ceil(2), 8) + rmap).saturating_sub(4) } else { 0 };
                assert_eq!(u64::from(raw.logblocks.get()) + short, number("blocks=", 2), "{what}");
                assert_eq!(u64::from(raw.imax_pct), number("imaxpct=", 1), "{what}");
                planned += 1;
            }
            Err(refusal) => {
                assert!(!theirs.status.success(), "made there alone, {what}{refusal}");
                refused += 1;
            }
        }
    }
    assert!(planned > 50 && refused > 20, "{planned} planned, {refused} refused");
}

#[test]
fn an_interrupted_mkfs_leaves_no_volume() {
    let bytes = 24 * MIB;
    let layout = plan(&Options { small: true, ..options() }, bytes).unwrap();
    let inner: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(bytes).unwrap());
    let open = || Volume::open(inner.clone(), &OpenOptions::default());
    let mut writes = 0;
    loop {
        // A whole volume before each attempt.
        format(&*inner, &layout, Before::Unknown).unwrap();
        open().unwrap();
        let device = FaultDevice::new(inner.clone(), vec![Fault::fail(Op::Write, writes)]);
        if format(&device, &layout, Before::Unknown).is_ok() {
            break;
        }
        // The very first write may fail before anything changed.
        match open() {
            Ok(_) => assert_eq!(writes, 0),
            Err(error) => assert!(matches!(error, xfs::Error::NotXfs), "{error}"),
        }
        writes += 1;
    }
    assert!(writes >= 4, "{writes}");
}
