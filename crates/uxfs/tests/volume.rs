//! The library on volumes that the kernel made: paths, holes, extents, overwrites. Needs root, mkfs.xfs and mount.
#![forbid(unsafe_code)]

use blockdev::MemoryOptions;
use oracles::Mounted;
use rustix::fs::SeekFrom;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uxfs::{AlignedBuf, ErrorKind, OpenOptions, Volume};

fn run(program: &str, args: &[&str], path: &Path) {
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Image {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.img");
        std::fs::File::create(&path).unwrap().set_len(320 << 20).unwrap();
        run("mkfs.xfs", &["-q", "-m", "reflink=1"], &path);
        Self { dir, path }
    }

    fn mount(&self) -> Mounted {
        let dir = self.dir.path().join("mnt");
        Mounted::new(&self.path, &dir, "loop")
    }

    fn open(&self) -> Volume {
        Volume::open(&self.path, &OpenOptions::new()).unwrap()
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn paths_lead_where_the_kernel_goes() {
    let image = Image::new();
    {
        let mount = image.mount();
        let at = |path: &str| mount.join(path);
        std::fs::create_dir_all(at("a/b/c")).unwrap();
        std::fs::write(at("a/file"), "one").unwrap();
        std::fs::write(at("a/b/other"), "two").unwrap();
        symlink("../file", at("a/b/up")).unwrap();
        symlink("c/../../b", at("a/b/around")).unwrap();
        symlink("/a/b", at("abs")).unwrap();
        symlink("abs/", at("slashed")).unwrap();
        symlink("../../../../a/file", at("a/escape")).unwrap();
        symlink("a/file/", at("not-a-dir")).unwrap();
        for n in 0..50 {
            symlink(if n == 0 { "a/file".to_owned() } else { format!("l{}", n - 1) }, at(&format!("l{n}")))
                .unwrap();
        }
    }
    let volume = image.open();
    let ino = |path: &str| volume.lookup(path).map(|node| node.ino());
    let file = ino("/a/file").unwrap();
    for path in [
        "a/file",
        "//a///file",
        "/a/./b/../file",
        "/../../a/file",
        "/a/b/up",
        "/abs/up",
        "/slashed/up",
        "/a/escape",
        "/a/b/around/around/up",
        "/l39",
        "/a/b/c/../../file",
    ] {
        assert_eq!(ino(path).unwrap_or_else(|error| panic!("{path}: {error}")), file, "{path}");
    }
    let root = volume.root().unwrap().ino();
    for path in ["", "/", ".", "..", "/a/..", "/a/b/../.."] {
        assert_eq!(ino(path).unwrap(), root, "{path}");
    }
    let kind = |path: &[u8]| volume.lookup(path).unwrap_err().kind();
    assert_eq!(kind(b"/a/nope"), ErrorKind::NotFound);
    assert_eq!(kind(b"/a/nope/x"), ErrorKind::NotFound);
    assert_eq!(kind(b"/a/file/x"), ErrorKind::NotADirectory);
    assert_eq!(kind(b"/a/file/"), ErrorKind::NotADirectory);
    assert_eq!(kind(b"/a/file/."), ErrorKind::NotADirectory);
    assert_eq!(kind(b"/not-a-dir"), ErrorKind::NotADirectory);
    assert_eq!(kind(b"/l40"), ErrorKind::TooManySymlinks);
    assert_eq!(kind(b"/a\0b"), ErrorKind::InvalidPath);
    assert_eq!(kind(&[b'x'; 256]), ErrorKind::NameTooLong);
    assert_eq!(kind(&[b'x'; 255]), ErrorKind::NotFound);

    assert!(volume.symlink_metadata("/abs").unwrap().is_symlink());
    assert!(volume.symlink_metadata("/abs/").unwrap().is_dir());
    assert!(volume.metadata("/abs").unwrap().is_dir());
    assert_eq!(volume.read_link("/abs").unwrap(), b"/a/b");
    assert_eq!(volume.read_link("/a").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(volume.open_file("/a").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(volume.open_dir("/a/file").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(volume.node(u64::MAX).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_directory_can_be_taken_up_anywhere() {
    let image = Image::new();
    {
        let mount = image.mount();
        std::fs::create_dir(mount.join("dir")).unwrap();
        (0..2000).for_each(|n| std::fs::write(mount.join(format!("dir/{n}")), "").unwrap());
    }
    let volume = image.open();
    let dir = volume.open_dir("/dir").unwrap();
    let all: Vec<_> = dir.entries().map(Result::unwrap).collect();
    assert_eq!(all.len(), 2000);
    for at in [0, 1, 255, 256, 257, 1999] {
        let rest: Vec<_> = dir.entries_from(all[at].next).map(Result::unwrap).collect();
        assert!(rest == all[at + 1..], "{at}");
    }
    assert_eq!(
        dir.lookup(b"1234").unwrap().unwrap().ino(),
        all.iter().find(|e| e.name == b"1234").unwrap().ino
    );
    assert!(dir.lookup(b"2000").unwrap().is_none());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn holes_and_extents_are_the_kernels() {
    let image = Image::new();
    let commands =
        ["pwrite -q 1m 70000", "pwrite -q 5m 1", "falloc 6m 1m", "pwrite -q 6600k 4k", "truncate 9m"];
    let mut expected = Vec::new();
    {
        let mount = image.mount();
        let path = mount.join("file");
        let args: Vec<&str> = ["-f"].into_iter().chain(commands.iter().flat_map(|c| ["-c", c])).collect();
        run("xfs_io", &args, &path);
        std::fs::write(mount.join("origin"), vec![7; 100_000]).unwrap();
        let mut copy = Command::new("cp");
        copy.arg("--reflink=always").args([mount.join("origin"), mount.join("clone")]);
        assert!(copy.status().unwrap().success());
    }
    {
        // Nothing is in the page cache, which would count unwritten space as data.
        let mount = image.mount();
        let file = std::fs::File::open(mount.join("file")).unwrap();
        for at in (0..10 << 20).step_by(100_000) {
            let seek = |from| rustix::fs::seek(&file, from).ok();
            expected.push((at, seek(SeekFrom::Data(at)), seek(SeekFrom::Hole(at))));
        }
    }
    let volume = image.open();
    let file = volume.open_file("/file").unwrap();
    for (at, data, hole) in expected {
        assert_eq!((at, file.seek_data(at).unwrap(), file.seek_hole(at).unwrap()), (at, data, hole));
    }
    let extents: Vec<_> = file.extents().map(Result::unwrap).collect();
    // What the kernel preallocated behind a former end of the file is unwritten, too.
    let asked = extents.iter().filter(|extent| extent.unwritten && extent.logical >= 6 << 20);
    assert_eq!(asked.map(|extent| extent.length).sum::<u64>(), (1 << 20) - 4096);
    let device = std::fs::File::open(&image.path).unwrap();
    for name in ["origin", "clone"] {
        let file = volume.open_file(name).unwrap();
        for extent in file.extents().map(Result::unwrap) {
            assert!(extent.shared);
            let mut bytes = [0; 512];
            device.read_exact_at(&mut bytes, extent.physical).unwrap();
            assert_eq!(bytes, [7; 512]);
        }
        assert_eq!(file.extents().map(|extent| extent.unwrap().length).sum::<u64>(), 102_400);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn overwrites_are_seen_by_the_kernel() {
    let image = Image::new();
    {
        let mount = image.mount();
        std::fs::write(mount.join("file"), vec![1; 1_000_000]).unwrap();
        run("xfs_io", &["-f", "-c", "falloc 0 1m"], &mount.join("prealloc"));
        run("xfs_io", &["-f", "-c", "truncate 1m"], &mount.join("hole"));
    }
    let mut expected = vec![1; 1_000_000];
    {
        let reader = image.open();
        let refused = reader.open_file("/file").unwrap().overwrite_at(b"x", 0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    }
    {
        let volume = Volume::open(&image.path, &OpenOptions::new().writable(true)).unwrap();
        let file = volume.open_file("/file").unwrap();
        for (offset, len, byte) in [(0, 4096, 2), (5000, 10, 3), (123_456, 77_777, 4), (999_999, 1, 5)] {
            file.overwrite_at(&vec![byte; len], offset).unwrap();
            let at = usize::try_from(offset).unwrap();
            expected[at..at + len].fill(byte);
        }
        let mut queue = file.queue(8).unwrap();
        for n in 0..8u8 {
            let mut buf = AlignedBuf::zeroed(4096);
            buf.fill(10 + n);
            let at = 400_000 / 4096 * 4096 + usize::from(n) * 8192;
            queue.push_overwrite(at as u64, buf, n.into()).unwrap();
            expected[at..at + 4096].fill(10 + n);
        }
        let mut tags = Vec::new();
        queue
            .wait(8, |over| {
                assert_eq!(over.result.unwrap(), 4096);
                tags.push(over.tag);
            })
            .unwrap();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7]);
        file.sync().unwrap();
        let second = Volume::open(&image.path, &OpenOptions::new().writable(true)).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Locked);
        let mut back = vec![0; 1_000_001];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 1_000_000);
        assert!(back[..1_000_000] == expected);

        let kind = |path: &str, offset: u64| {
            volume.open_file(path).unwrap().overwrite_at(b"xy", offset).unwrap_err().kind()
        };
        assert_eq!(kind("/file", 999_999), ErrorKind::InvalidInput);
        assert_eq!(kind("/prealloc", 0), ErrorKind::NotAllocated);
        assert_eq!(kind("/hole", 0), ErrorKind::NotAllocated);
        volume.close().unwrap();
    }
    run("xfs_repair", &["-n"], &image.path);
    let mount = image.mount();
    let mut bytes = Vec::new();
    std::fs::File::open(mount.join("file")).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes == expected);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn names_are_bytes() {
    let image = Image::new();
    let odd = b"r\xe9sum\xe9\n";
    {
        let mount = image.mount();
        std::fs::write(mount.join(std::ffi::OsStr::from_bytes(odd)), "text").unwrap();
    }
    let volume = image.open();
    assert_eq!(volume.metadata(odd).unwrap().size, 4);
    let entries: Vec<_> = volume.root().unwrap().as_dir().unwrap().entries().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].name, odd);
    let error = volume.metadata([&odd[..], b"x"].concat()).unwrap_err().to_string();
    assert_eq!(error, "r\\351sum\\351\\nx: no such file or directory");
}

/// Each handle had a range lock of its own: two threads that opened one file by themselves lost each other's bytes
/// where they wrote halves of one sector.
#[test]
#[ignore = "needs root and xfsprogs"]
fn handles_of_one_file_keep_out_of_each_others_way() {
    let image = Image::new();
    {
        let mount = image.mount();
        std::fs::write(mount.join("file"), vec![1; 8192]).unwrap();
        std::fs::hard_link(mount.join("file"), mount.join("other-name")).unwrap();
    }
    let device = Arc::new(MemoryOptions::new().copy_of(&image.path).unwrap());
    let volume = Volume::open_device(device, &OpenOptions::new().writable(true)).unwrap();
    let (one, two) = (volume.open_file("/file").unwrap(), volume.open_file("/other-name").unwrap());
    // A queue holds a request's range until the request is handed back.
    let (mut first, mut second) = (one.queue(1).unwrap(), two.queue(1).unwrap());
    first.push_overwrite(0, AlignedBuf::zeroed(4096), 0).unwrap();
    second.push_overwrite(0, AlignedBuf::zeroed(4096), 0).unwrap();
    assert_eq!(second.wait(0, |_| ()).unwrap(), 0, "both have the range");
    assert_eq!(first.wait(1, |over| assert_eq!(over.result.unwrap(), 4096)).unwrap(), 1);
    assert_eq!(second.wait(1, |over| assert_eq!(over.result.unwrap(), 4096)).unwrap(), 1);
    drop((first, second, one, two));

    // However many are opened and closed, the next one works.
    for _ in 0..500 {
        volume.open_file("/file").unwrap().overwrite_at(b"x", 5).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let file = volume.open_file("/file").unwrap();
            scope.spawn(move || {
                for n in 0..2000u32 {
                    let mut back = [0];
                    file.overwrite_at(&[n as u8], thread).unwrap();
                    file.read_at(&mut back, thread).unwrap();
                    assert_eq!(back, [n as u8], "lost in round {n}");
                }
            });
        }
    });
}
