//! Files that share blocks, made by the kernel: what gives up blocks counts an owner less, with and without a reverse map,
//! clean and behind a crash; what is not shared is changed in its place; what shares blocks and is not marked is refused, and
//! the image is as it was, to the byte.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "what is refused leaves nothing that a crash could tear")]
mod common;

use common::{mounted, repair_finds_nothing};
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::{ErrorKind, File, NewNode, OpenOptions, Rename, Result, Volume};

/// Runs a script of the shell, with the mount point as `$1`.
fn script(at: &Path, text: &str) {
    let out = Command::new("bash").args(["-euc", text, "bash"]).arg(at).output().expect("bash");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A volume as mkfs.xfs makes it, with these options.
fn made_with(dir: &Path, options: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(300 << 20)).expect("a sparse image");
    let out = Command::new("mkfs.xfs").arg("-q").args(options).arg(&image).output().expect("mkfs.xfs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    image
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a place in memory")
}

/// What shares blocks with what: whole files, parts, what was found to be the same, and a file with itself. Beside them
/// what could be taken for shared and is not.
const SHARERS: &str = "
    cd $1
    seq 1 60000 > a; cp --reflink=always a b
    xfs_io -f -c 'pwrite -q -S 1 0 256k' part-of >/dev/null
    xfs_io -f -c 'pwrite -q -S 2 0 256k' -c 'reflink part-of 64k 64k 64k' part >/dev/null
    xfs_io -f -c 'pwrite -q -S 3 0 128k' same >/dev/null
    xfs_io -f -c 'pwrite -q -S 3 0 128k' -c fsync -c 'dedupe same 0 0 128k' same-too >/dev/null
    xfs_io -f -c 'pwrite -q -S 4 0 32k' -c fsync -c 'reflink self 0 64k 32k' self >/dev/null
    xfs_io -f -c 'pwrite -q -S 5 0 16k' -c 'reflink part-of 0 64k 16k' mixed >/dev/null
    seq 1 20000 > alone; cp --reflink=always alone gone; rm gone
    echo content > plain
    sync
";

fn filled() -> (tempfile::TempDir, PathBuf) {
    filled_with(&[])
}

fn filled_with(options: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = scratch();
    let image = made_with(dir.path(), options);
    mounted(&image, |at| script(at, SHARERS));
    (dir, image)
}

fn open(image: &Path) -> Volume {
    try_open(image).expect("opens")
}

/// A program that another test is just starting has, until it runs, all files open that this process had.
fn try_open(image: &Path) -> Result<Volume> {
    loop {
        match Volume::open(image, &OpenOptions::new().writable(true)) {
            Err(error) if error.kind() == ErrorKind::Locked => std::thread::yield_now(),
            other => return other,
        }
    }
}

/// All bytes of an image, without its holes.
fn bytes_of(image: &Path) -> Vec<(u64, Vec<u8>)> {
    use rustix::fs::{SeekFrom, seek};
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(image).unwrap();
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        let mut run = vec![0; (at - start) as usize];
        file.read_exact_at(&mut run, start).unwrap();
        runs.push((start, run));
    }
    runs
}

/// The content of all files, as the kernel reads them.
fn content(image: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    mounted(image, |at| {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
            .iter()
            .map(|path| (path.strip_prefix(at).unwrap().to_owned(), std::fs::read(path).unwrap()))
            .collect()
    })
}

/// `work` on a volume must be refused because blocks are shared, and leave the image as it was.
fn refused(image: &Path, what: &str, work: impl FnOnce(&Volume) -> Result<()>) {
    let before = bytes_of(image);
    let volume = open(image);
    let error = work(&volume).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Shared, "{what}: {error}");
    let said = error.to_string();
    assert!(said.contains("share"), "{what}: {said}");
    volume.close().expect("closes");
    drop(volume);
    assert!(bytes_of(image) == before, "{what}: the image has changed");
}

type OnFile = fn(&File) -> Result<()>;

/// A change of a file, and what becomes of its bytes.
type OnBytes = fn(&mut Vec<u8>);

const GIVEN_UP: [(&str, OnFile, OnBytes); 11] = [
    ("cut to nothing", |file| file.set_len(0), |bytes| bytes.clear()),
    ("cut", |file| file.set_len(8192), |bytes| bytes.truncate(8192)),
    ("cut in the middle", |file| file.set_len(96 << 10), |bytes| bytes.resize(96 << 10, 0)),
    ("punch", |file| file.punch_hole(0..8192), |bytes| bytes[..8192].fill(0)),
    (
        "punch much",
        |file| file.punch_hole(4096..100 << 10),
        |bytes| bytes[4096..].iter_mut().take(98304).for_each(|byte| *byte = 0),
    ),
    (
        "zero",
        |file| file.zero_range(4096..80 << 10, true),
        |bytes| bytes[4096..].iter_mut().take(77824).for_each(|byte| *byte = 0),
    ),
    ("collapse", |file| file.collapse_range(4096..8192), |bytes| drop(bytes.drain(4096..8192))),
    ("insert", |file| file.insert_range(4096..12288), |bytes| drop(bytes.splice(4096..4096, [0; 8192]))),
    (
        "cut, and write where it was",
        |file| file.set_len(4096).and_then(|()| file.write_at(&[7; 8192], 4096)),
        |bytes| {
            bytes.truncate(4096);
            bytes.extend([7; 8192]);
        },
    ),
    (
        "punch, and write into the hole",
        |file| file.punch_hole(8192..16384).and_then(|()| file.write_at(&[8; 8192], 8192)),
        |bytes| bytes[8192..16384].fill(8),
    ),
    ("space in holes", |file| file.allocate(0..128 << 10, true), |_| {}),
];

const SHARING: [&str; 8] = ["a", "b", "part-of", "part", "same", "same-too", "self", "mixed"];

/// What the kernel makes of a volume that we changed: its content, and that it goes on with it.
fn judge(image: &Path, expected: &[(PathBuf, Vec<u8>)], what: &str) {
    let found = content(image);
    for ((path, bytes), (other, wanted)) in found.iter().zip(expected) {
        assert_eq!(path, other, "{what}");
        assert!(bytes == wanted, "{what}: {} is wrong", path.display());
    }
    assert_eq!(found.len(), expected.len(), "{what}");
    repair_finds_nothing(image);
    mounted(image, |at| {
        script(
            at,
            "cd $1; for n in $(seq 50); do seq $n 3000 > new-$n; done
             for f in *; do printf x | dd of=$f bs=1 seek=5000 conv=notrunc status=none; done; sync
             rm -f a same part; cp --reflink=always b b-too; rm b; truncate -s 5 self 2>/dev/null || true",
        )
    });
    repair_finds_nothing(image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_are_given_up_and_left_to_the_others() {
    for options in [&[][..], &["-m", "rmapbt=1"]] {
        let (dir, image) = filled_with(options);
        let before = content(&image);
        for (what, on_file, on_bytes) in GIVEN_UP {
            for crash in [false, true] {
                let what = format!("{what}, {options:?}, crash: {crash}");
                let copy = dir.path().join("copy.img");
                script(dir.path(), "cp --sparse=always $1/volume.img $1/copy.img");
                let mut expected = before.clone();
                let volume = open(&copy);
                for name in SHARING {
                    let file = volume.open_file(name).unwrap();
                    on_file(&file).unwrap_or_else(|error| panic!("{what} of {name}: {error}"));
                    let at = expected.iter().position(|(path, _)| path == Path::new(name)).unwrap();
                    on_bytes(&mut expected[at].1);
                }
                match crash {
                    true => volume.sync().unwrap(),
                    false => volume.close().unwrap(),
                }
                drop(volume);
                judge(&copy, &expected, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn names_of_files_that_share_blocks_go() {
    for options in [&[][..], &["-m", "rmapbt=1"]] {
        for crash in [false, true] {
            let (_dir, image) = filled_with(options);
            let mut expected = content(&image);
            let volume = open(&image);
            let root = volume.root().unwrap().as_dir().unwrap();
            root.remove_file(b"a").unwrap();
            root.rename(b"plain", &root, b"part", Rename::Replace).unwrap();
            let kept_open = volume.open_file("same").unwrap();
            root.remove_file(b"same").unwrap();
            root.remove_file(b"self").unwrap();
            root.rename(b"b", &root, b"mixed", Rename::Exchange).unwrap();
            root.remove_file(b"part-of").unwrap();
            drop(kept_open);
            let of = |expected: &[(PathBuf, Vec<u8>)], name: &str| {
                expected.iter().position(|(path, _)| path == Path::new(name)).unwrap()
            };
            let plain = expected.remove(of(&expected, "plain")).1;
            let part = of(&expected, "part");
            expected[part].1 = plain;
            let (b, mixed) = (of(&expected, "b"), of(&expected, "mixed"));
            let bytes = std::mem::take(&mut expected[b].1);
            expected[b].1 = std::mem::replace(&mut expected[mixed].1, bytes);
            expected.retain(|(path, _)| {
                !["a", "same", "self", "part-of"].iter().any(|gone| path == Path::new(gone))
            });
            match crash {
                true => volume.sync().unwrap(),
                false => volume.close().unwrap(),
            }
            drop((root, volume));
            judge(&image, &expected, &format!("names, {options:?}, crash: {crash}"));
        }
    }
}

/// What the kernel once shared and does no longer, and the parts of a file that are its own, are like any others.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_not_shared_can_be_changed() {
    let (_dir, image) = filled();
    let mut expected = content(&image);
    let of = |name: &str| expected.iter().position(|(path, _)| path == Path::new(name)).unwrap();
    let (alone, part, mixed, a) = (of("alone"), of("part"), of("mixed"), of("a"));
    let volume = open(&image);
    let root = volume.root().unwrap().as_dir().unwrap();
    let file = |name: &str| volume.open_file(name).unwrap();
    let part_file = file("part");
    part_file.write_at(&[9; 4096], 0).unwrap();
    part_file.punch_hole(128 << 10..140 << 10).unwrap();
    part_file.set_len(200 << 10).unwrap();
    let bytes = &mut expected[part].1;
    bytes[..4096].fill(9);
    bytes[128 << 10..140 << 10].fill(0);
    bytes.truncate(200 << 10);
    file("mixed").write_at(&[8; 40 << 10], 8192).unwrap();
    expected[mixed].1[8192..48 << 10].fill(8);
    // Blocks move within the file, and stay what they are.
    let shared = file("a");
    shared.insert_range(8192..16384).unwrap();
    shared.write_at(b"x", 16384).unwrap();
    shared.write_at(&[6; 4096], 8192).unwrap();
    let moved: Vec<u8> = [&[6; 4096][..], &[0; 4096]].concat();
    expected[a].1.splice(8192..8192, moved);
    expected[a].1[16384] = b'x';
    let bytes = &mut expected[alone].1;
    let own = file("alone");
    own.write_at(b"own", 0).unwrap();
    own.set_len(50_000).unwrap();
    bytes[..3].copy_from_slice(b"own");
    bytes.truncate(50_000);
    drop((part_file, shared, own));
    volume.close().unwrap();
    drop((root, volume));
    repair_finds_nothing(&image);
    assert!(content(&image) == expected);
    let volume = open(&image);
    volume.root().unwrap().as_dir().unwrap().remove_file(b"alone").unwrap();
    // A crash: the kernel replays what is left of the inode.
    volume.sync().unwrap();
    drop(volume);
    expected.remove(alone);
    assert!(content(&image) == expected);
    mounted(&image, |at| {
        script(at, "cd $1; for n in $(seq 300); do echo $n > new-$n; done; rm a same; cat b >/dev/null")
    });
    repair_finds_nothing(&image);
}

/// A file that lost its flag shares its blocks as before.
#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_that_nothing_marks_as_shared_are_refused_too() {
    let (_dir, image) = filled();
    let ino = open(&image).lookup("a").unwrap().ino();
    let set = |flags: &str| {
        let inode = format!("inode {ino}");
        let write = format!("write -d v3.flags2 {flags}");
        let out =
            Command::new("xfs_db").args(["-x", "-c", &inode, "-c", &write]).arg(&image).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    // Large times alone.
    set("8");
    refused(&image, "unlink", |volume| volume.root()?.as_dir()?.remove_file(b"a"));
    refused(&image, "cut", |volume| volume.open_file("a")?.set_len(0));
    refused(&image, "write", |volume| volume.open_file("a")?.write_at(&[1; 4096], 0));
    refused(&image, "overwrite", |volume| volume.open_file("a")?.overwrite_at(&[1; 512], 512));
    refused(&image, "punch", |volume| volume.open_file("a")?.punch_hole(0..4096));
    refused(&image, "zero", |volume| volume.open_file("a")?.zero_range(0..4096, true));
    refused(&image, "collapse", |volume| volume.open_file("a")?.collapse_range(0..4096));
}

/// Has the kernel leave a dirty log, with an inode that lost its last name while it was open.
fn crash_with(image: &Path, before: &str, gone: &str) {
    let at = tempfile::tempdir().unwrap();
    let text = format!(
        "mount -o loop,nouuid {image} $1
         trap 'umount $1' EXIT
         cd $1; {before}; sync
         exec 9<{gone}; rm {gone}
         cd /; xfs_io -x -c 'shutdown -f' $1 >/dev/null; exec 9<&-",
        image = image.display()
    );
    script(at.path(), &text);
}

/// Recovery frees an inode whose blocks another file has: that keeps them.
#[test]
#[ignore = "needs root and xfsprogs"]
fn an_inode_without_a_name_that_shares_blocks_is_freed() {
    for (options, gone) in [(&[][..], ""), (&["-m", "rmapbt=1"], ""), (&[], "rm b;")] {
        let dir = scratch();
        let image = made_with(dir.path(), options);
        crash_with(&image, &format!("seq 1 60000 > b; cp --reflink=always b a; {gone} echo x > c"), "a");
        let volume = open(&image);
        // The kernel may have the other on its way as well.
        let most = if gone.is_empty() { 1 } else { 2 };
        assert!((1..=most).contains(&volume.recovery().unwrap().inodes_freed));
        if gone.is_empty() {
            assert_eq!(volume.open_file("b").unwrap().size(), 348_894);
        }
        volume.close().unwrap();
        drop(volume);
        repair_finds_nothing(&image);
    }
}

/// A file may be made beside shared ones, and takes none of their blocks.
#[test]
#[ignore = "needs root and xfsprogs"]
fn new_files_take_no_shared_block() {
    let (_dir, image) = filled();
    let mut expected = content(&image);
    let volume = open(&image);
    let root = volume.root().unwrap().as_dir().unwrap();
    for n in 0..20 {
        let name = format!("new-{n:02}");
        let file = root.create_file(name.as_bytes(), &NewNode::default()).unwrap().open().unwrap();
        file.write_at(&[n; 200_000], 0).unwrap();
        expected.push((name.into(), vec![n; 200_000]));
    }
    expected.sort();
    volume.close().unwrap();
    drop((root, volume));
    repair_finds_nothing(&image);
    assert!(content(&image) == expected);
}
