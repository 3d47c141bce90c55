//! Inodes, their maps and their content, as the engine and the kernel see them, on volumes of many shapes.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run};
use fileio::{ExtentState, FileMapping};
use oracles::Mounted;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;
use xfs::iomap::{self, FileMap};
use xfs::volume::{ForkKind, Volume};
use xfs_format::inode::InodeType;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// What must be the same on both sides.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    size: u64,
    sectors: u64,
    times: [Timestamp; 3],
    born: Option<Timestamp>,
    device: Option<(u32, u32)>,
    content: Option<u64>,
}

/// Bytes that tell files and offsets apart.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Fills a mounted volume with inodes of every kind.
fn fill(mount: &Mounted, block: usize, reflink: bool, bigtime: bool) {
    let at = |name: &str| mount.join(name);
    for dir in 0..12 {
        fs::create_dir_all(at(&format!("d{dir}/sub"))).unwrap();
        for file in 0..100_u64 {
            let len = (file * 53 % 9000) as usize;
            fs::write(at(&format!("d{dir}/f{file}")), pattern(file, len)).unwrap();
        }
        // Free inodes in the middle of chunks.
        for file in (0..100).step_by(7) {
            fs::remove_file(at(&format!("d{dir}/f{file}"))).unwrap();
        }
    }
    fs::hard_link(at("d0/f1"), at("d1/hard")).unwrap();
    symlink("short", at("short")).unwrap();
    symlink("x".repeat(900), at("long")).unwrap();
    fs::write(at("attrs"), b"attributes").unwrap();
    for n in 0..30 {
        let value = "v".repeat(n * 17);
        run("setfattr", &["-n", &format!("user.a{n}"), "-v", &value, at("attrs").to_str().unwrap()]);
    }
    for (name, kind) in [("c", "c"), ("b", "b")] {
        run("mknod", &[at(name).to_str().unwrap(), kind, "259", "70000"]);
    }
    run("mknod", &[at("fifo").to_str().unwrap(), "p"]);
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    run("chown", &["4294967294:70000", at("d2/f1").to_str().unwrap()]);
    run("chmod", &["6751", at("d2/f2").to_str().unwrap()]);
    run("touch", &["-d", "1923-04-05 06:07:08.000000009 UTC", at("d2/f3").to_str().unwrap()]);
    let late = if bigtime { "2345-06-07 08:09:10.987654321 UTC" } else { "2037-06-07 08:09:10.98765 UTC" };
    run("touch", &["-d", late, at("d2/f4").to_str().unwrap()]);

    let fragments = File::create(at("fragments")).unwrap();
    for n in 0..3000_u64 {
        fragments.write_all_at(&pattern(n, block), n * 2 * block as u64).unwrap();
    }
    File::create(at("sparse")).unwrap().write_all_at(b"end", 1 << 43).unwrap();
    let prealloc = at("prealloc");
    fs::write(&prealloc, pattern(5, 3 * block + 5)).unwrap();
    let (from, len) = (8 * block, 64 * block);
    let prealloc = prealloc.to_str().unwrap();
    run(
        "xfs_io",
        &["-c", &format!("falloc -k {from} {len}"), "-c", &format!("pwrite {} 10", 16 * block), prealloc],
    );
    run("xfs_io", &["-c", "falloc 0 100m", "-f", at("preallocated-only").to_str().unwrap()]);
    if reflink {
        fs::write(at("origin"), pattern(9, 64 * block)).unwrap();
        run("cp", &["--reflink=always", at("origin").to_str().unwrap(), at("clone").to_str().unwrap()]);
        let clone = File::options().write(true).open(at("clone")).unwrap();
        clone.write_all_at(&pattern(10, 4 * block), 20 * block as u64).unwrap();
    }
    run("sync", &["-f", mount.dir().to_str().unwrap()]);
}

fn time(seconds: i64, nanos: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: u32::try_from(nanos).unwrap() }
}

/// What the kernel says of every inode of a mounted volume.
fn kernel_sees(root: &Path, v5: bool) -> BTreeMap<u64, Seen> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let special = matches!(meta.mode() & 0o170_000, 0o020_000 | 0o060_000);
        let small = meta.is_file() && meta.len() < 200 << 20;
        let content = small.then(|| {
            let mut bytes = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            hash(&bytes)
        });
        let born = v5.then(|| {
            let born = meta.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
            Timestamp { seconds: born.as_secs().try_into().unwrap(), nanoseconds: born.subsec_nanos() }
        });
        let seen = Seen {
            mode: meta.mode(),
            nlink: meta.nlink(),
            owner: (meta.uid(), meta.gid()),
            size: meta.size(),
            sectors: meta.blocks(),
            times: [
                time(meta.atime(), meta.atime_nsec()),
                time(meta.mtime(), meta.mtime_nsec()),
                time(meta.ctime(), meta.ctime_nsec()),
            ],
            born,
            device: special.then(|| (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()))),
            content,
        };
        all.insert(meta.ino(), seen);
    }
    all
}

/// Reads a file through its map.
fn read_all(volume: &Arc<Volume>, map: &FileMap) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(map.size()).unwrap()];
    let mut at = 0;
    while at < map.size() {
        let extent = map.lookup(at).unwrap().extent;
        assert!(extent.offset <= at && at < extent.offset + extent.len, "{extent:?} for {at}");
        let end = map.size().min(extent.offset.saturating_add(extent.len));
        if let ExtentState::Written(device) | ExtentState::Shared(device) = extent.state {
            let sectors = (end - at).next_multiple_of(4096).min(extent.offset + extent.len - at);
            let mut buf = vec![0; usize::try_from(sectors).unwrap()];
            volume.device().read(device + (at - extent.offset), &mut buf).unwrap();
            let range = usize::try_from(at).unwrap()..usize::try_from(end).unwrap();
            let len = range.len();
            bytes[range].copy_from_slice(&buf[..len]);
        }
        at = end;
    }
    bytes
}

/// What the engine says of one inode.
fn engine_sees(volume: &Arc<Volume>, ino: u64) -> Seen {
    let inode = volume.inode(InodeNumber(ino)).unwrap_or_else(|error| panic!("{ino}: {error}"));
    let content = (inode.is_file() && inode.size() < 200 << 20).then(|| {
        let map = iomap::file_map(volume, &inode).unwrap();
        hash(&read_all(volume, &map))
    });
    Seen {
        mode: inode.mode(),
        nlink: inode.nlink().into(),
        owner: (inode.uid(), inode.gid()),
        size: inode.size(),
        sectors: inode.blocks() * u64::from(volume.geometry().block_size) / 512,
        times: [inode.atime(), inode.mtime(), inode.ctime()],
        born: inode.crtime(),
        device: inode.device(),
        content,
    }
}

/// A run of a file's map: first and last sector in the file, first sector on the device, unwritten, shared.
type Run = (u64, u64, u64, bool, bool);

/// What the kernel says of a file's map.
fn kernel_map(path: &Path) -> Vec<Run> {
    let text = run("xfs_io", &["-r", "-c", "fiemap -v", path.to_str().unwrap()]);
    let mut runs = Vec::new();
    for line in text.lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, range, place, _, flags] = words[..] else { continue };
        let range = range.trim_matches(['[', ']', ':']);
        let (from, to) = range.split_once("..").unwrap();
        let (device, _) = place.split_once("..").unwrap();
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap();
        let number = |text: &str| text.parse::<u64>().unwrap();
        runs.push((number(from), number(to), number(device), flags & 0x800 != 0, flags & 0x2000 != 0));
    }
    runs
}

/// What the engine says of a file's map.
fn engine_map(volume: &Arc<Volume>, ino: u64) -> Vec<Run> {
    let inode = volume.inode(InodeNumber(ino)).unwrap();
    let map = iomap::file_map(volume, &inode).unwrap();
    let mut runs = Vec::new();
    let mut at = 0;
    while at < map.map_end() {
        let extent = map.lookup(at).unwrap().extent;
        let (from, end) = (extent.offset / 512, (extent.offset + extent.len) / 512);
        match extent.state {
            ExtentState::Hole => {}
            ExtentState::Unwritten(device) => runs.push((from, end - 1, device / 512, true, false)),
            ExtentState::Written(device) => runs.push((from, end - 1, device / 512, false, false)),
            ExtentState::Shared(device) => runs.push((from, end - 1, device / 512, false, true)),
        }
        at = extent.offset + extent.len;
    }
    runs
}

/// What has a name: path, inode, and the target of a symbolic link.
type Names = BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>;

fn kernel_tree(root: &Path) -> Names {
    use std::os::unix::ffi::OsStrExt;
    let mut names = Names::new();
    let mut todo = vec![(Vec::new(), root.to_owned())];
    while let Some((name, path)) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            for entry in fs::read_dir(&path).unwrap().map(Result::unwrap) {
                todo.push(([&name[..], b"/", entry.file_name().as_bytes()].concat(), entry.path()));
            }
        }
        let target = meta.is_symlink().then(|| fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec());
        names.insert(name, (meta.ino(), target));
    }
    names
}

fn engine_tree(volume: &Arc<Volume>) -> Names {
    let mut names = Names::new();
    let mut todo = vec![(Vec::new(), volume.geometry().root)];
    while let Some((path, ino)) = todo.pop() {
        let inode = volume.inode(ino).unwrap();
        let fork = volume.fork(&inode, ForkKind::Data).unwrap();
        let mut target = None;
        if inode.is_dir() {
            xfs::dir::walk(&*fork, 0, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    todo.push(([&path[..], b"/", entry.name].concat(), entry.inode));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        } else if inode.is_symlink() {
            target = Some(xfs::symlink::target(&*fork).unwrap());
        }
        names.insert(path, (ino.0, target));
    }
    names
}

/// Joins runs that go on in the file and on the device, as both sides may cut at different places.
fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        if let Some(last) = joined.last_mut() {
            let follows = run.0 == last.1 + 1 && run.2 == last.2 + (run.0 - last.0);
            if follows && (run.3, run.4) == (last.3, last.4) {
                last.1 = run.1;
                continue;
            }
        }
        joined.push(run);
    }
    joined
}

/// Makes a volume, fills it by the kernel, and compares.
fn compare(args: &[&str]) {
    let image = Image::mkfs(2 << 30, args);
    let has = |feature: &str| !args.iter().any(|arg| arg.contains(&format!("{feature}=0")));
    let block = block_size(&image);
    let mount = image.mount("");
    fill(&mount, block, has("reflink"), has("bigtime"));
    // What the kernel says once nothing is left in memory.
    mount.unmount();
    let mount = image.mount(",ro,norecovery");
    let kernel = kernel_sees(mount.dir(), true);
    let tree = kernel_tree(mount.dir());
    let mut maps = BTreeMap::new();
    for name in ["fragments", "sparse", "prealloc", "preallocated-only", "origin", "clone"] {
        if let Ok(meta) = fs::metadata(mount.join(name)) {
            maps.insert(meta.ino(), kernel_map(&mount.join(name)));
        }
    }
    mount.unmount();

    let volume = image.open().unwrap();
    assert_eq!(engine_tree(&volume), tree, "names of {args:?}");
    for (ino, seen) in &kernel {
        assert_eq!(&engine_sees(&volume, *ino), seen, "inode {ino} of {args:?}");
    }
    for (ino, runs) in maps {
        assert_eq!(joined(engine_map(&volume, ino)), joined(runs), "map of {ino} of {args:?}");
    }
    // Besides what has a name there are the two inodes of the realtime section, which every volume has.
    let mut all = Vec::new();
    volume
        .for_each_inode(&mut |ino| {
            all.push(ino.0);
            ControlFlow::Continue(())
        })
        .unwrap();
    let nameless: Vec<_> = all.iter().filter(|ino| !kernel.contains_key(ino)).copied().collect();
    let sb = volume.superblock().raw();
    assert_eq!(nameless, [sb.rbmino.get(), sb.rsumino.get()], "{args:?}");
    assert_eq!(all.len(), kernel.len() + 2);
    check_numbers_not_in_use(&volume, &all);
    let stat = volume.stat().unwrap();
    assert_eq!(stat.inodes - stat.free_inodes, all.len() as u64);
}

/// Block size in bytes, as xfs_db sees it.
fn block_size(image: &Image) -> usize {
    let text = run("xfs_db", &["-r", "-c", "sb 0", "-c", "p blocksize", image.path().to_str().unwrap()]);
    text.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Numbers beside, between and far from those in use are refused, whatever lies there.
fn check_numbers_not_in_use(volume: &Arc<Volume>, all: &[u64]) {
    let used: std::collections::HashSet<u64> = all.iter().copied().collect();
    let mut refused = 0;
    for base in all.iter().step_by(5).copied().chain([0, 1, u64::MAX - 100, 1 << 32, 1 << 56]) {
        for ino in (base..base.saturating_add(100)).filter(|ino| !used.contains(ino)) {
            assert!(
                matches!(volume.inode(InodeNumber(ino)), Err(xfs::Error::NoSuchInode(_))),
                "inode {ino} is not in use"
            );
            refused += 1;
        }
    }
    assert!(refused > 500);
}

macro_rules! volumes {
    ($($name:ident: $args:expr;)*) => {
        $(
            #[test]
            #[ignore = "needs root and xfsprogs"]
            fn $name() {
                compare(&$args);
            }
        )*
    };
}

volumes! {
    default: [];
    blocks_of_1k: ["-b", "size=1024"];
    blocks_of_2k: ["-b", "size=2048"];
    blocks_of_16k: ["-b", "size=16384"];
    blocks_of_64k: ["-b", "size=65536"];
    directory_blocks_of_64k: ["-n", "size=65536"];
    inodes_of_1k: ["-i", "size=1024"];
    inodes_of_2k: ["-i", "size=2048"];
    reverse_map: ["-m", "rmapbt=1"];
    no_new_features: ["-m", "reflink=0,finobt=0,bigtime=0", "-i", "sparse=0"];
    extent_counts_of_64_bits: ["-i", "nrext64=1"];
    sectors_of_4k: ["-s", "size=4096"];
    many_groups: ["-d", "agsize=96m"];
}

/// Where free space lies in pieces too small for 64 inodes, the kernel makes chunks with holes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn sparse_chunks() {
    let image = Image::mkfs(400 << 20, &["-i", "sparse=1"]);
    let mount = image.mount("");
    // While there is space, the kernel gives new directories to the groups in turn. Files follow their directory.
    for n in 0..32 {
        fs::create_dir(mount.join(format!("d{n}"))).unwrap();
    }
    let all = mount.join("all");
    let file = File::create(&all).unwrap();
    let free = rustix::fs::statvfs(mount.dir()).unwrap();
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::empty(),
        0,
        free.f_bavail * free.f_bsize - (4 << 20),
    )
    .unwrap();
    // Room for 32 inodes in every megabyte of most of the volume.
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    for at in 0..200_u64 {
        rustix::fs::fallocate(&file, punch, (at << 20) + (64 << 10), 28 << 10).unwrap();
    }
    drop(file);
    // As long as a group has room for whole chunks, and more than a hundredth of all space is free by a count that is
    // off by megabytes, the kernel goes there: the holes are for what comes last.
    for n in 0..60_000 {
        if File::create(mount.join(format!("d{}/{n}", n % 32))).is_err() {
            break;
        }
    }
    let kernel = kernel_sees(mount.dir(), true).into_keys().collect::<Vec<_>>();
    mount.unmount();
    let volume = image.open().unwrap();
    let mut sparse = 0;
    for ag in (0..volume.geometry().ag_count()).map(xfs_format::types::AgNumber) {
        let root = volume.group_inodes(ag).unwrap().inobt;
        let mut cursor = xfs::btree::Cursor::<xfs_format::btree::Inobt>::seek(
            volume.bufs(),
            volume.geometry(),
            ag,
            root,
            None,
        )
        .unwrap();
        while let Some(record) = cursor.next_record().unwrap() {
            sparse += u32::from(record.chunk(true).unwrap().holes != 0);
        }
    }
    assert!(sparse > 20, "only {sparse} chunks are sparse");
    let mut found = Vec::new();
    volume
        .for_each_inode(&mut |ino| {
            volume.inode(ino).unwrap();
            found.push(ino.0);
            ControlFlow::Continue(())
        })
        .unwrap();
    let missing: Vec<_> = kernel.iter().filter(|ino| !found.contains(ino)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(found.len(), kernel.len() + 2);
    check_numbers_not_in_use(&volume, &found);
}

/// A volume of version 4, which the kernel here may not mount: filled by mkfs, asked by xfs_db.
#[test]
#[ignore = "needs root and xfsprogs"]
fn version_4() {
    for (block, inode) in [("512", "256"), ("1024", "512"), ("4096", "256"), ("4096", "2048")] {
        let image = Image::blank(1 << 30);
        let source = image.beside("source");
        fs::write(&source, pattern(3, 200_000)).unwrap();
        let mut proto = String::from("/dev/null\n0 0\nd--755 0 0\n");
        for n in 0..300 {
            proto.push_str(&format!("f{n} ---644 {n} {} {}\n", n + 1, source.display()));
        }
        proto.push_str(
            "c c--600 0 0 259 7000\nlink l--777 0 0 target\npipe p--600 5 6\ndir d--755 1 2\n$\n$\n",
        );
        let proto_path = image.beside("proto");
        fs::write(&proto_path, proto).unwrap();
        let (block_arg, inode_arg) = (format!("size={block}"), format!("size={inode}"));
        run(
            "mkfs.xfs",
            &[
                "-q",
                "-f",
                "-m",
                "crc=0",
                "-b",
                &block_arg,
                "-i",
                &inode_arg,
                "-p",
                proto_path.to_str().unwrap(),
                image.path().to_str().unwrap(),
            ],
        );
        let volume = image.open().unwrap();
        assert!(!volume.geometry().v5);
        let mut kinds = BTreeMap::new();
        volume
            .for_each_inode(&mut |ino| {
                let inode = volume.inode(ino).unwrap();
                *kinds.entry(format!("{:?}", inode.kind())).or_insert(0) += 1;
                if inode.kind() == InodeType::Regular && inode.size() == 200_000 {
                    let map = iomap::file_map(&volume, &inode).unwrap();
                    assert_eq!(read_all(&volume, &map), pattern(3, 200_000));
                    assert_eq!(inode.gid(), inode.uid() + 1);
                }
                if inode.kind() == InodeType::CharDevice {
                    assert_eq!(inode.device(), Some((259, 7000)));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        // Two regular files belong to the realtime section.
        let expected = [("CharDevice", 1), ("Directory", 2), ("Fifo", 1), ("Regular", 302), ("Symlink", 1)];
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(kinds, expected, "block {block}, inode {inode}");
    }
}
