//! Directory blocks that are larger than the volume's blocks lie in one piece, or are left alone: what a log says of one in
//! several pieces, no kernel can replay. What a kernel left of them in its log, we do.
#![forbid(unsafe_code)]

mod common;

use blockdev::{BlockDevice, Durability, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uxfs::{ErrorKind, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

const MIB: u64 = 1 << 20;

/// Everything of a device, on another.
fn crashed(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let copy: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(device.size()).expect("memory"));
    let mut bytes = vec![0; MIB as usize];
    for at in (0..device.size()).step_by(bytes.len()) {
        device.read(at, &mut bytes).expect("read");
        copy.write(at, &bytes, Durability::Volatile).expect("written");
    }
    copy
}

/// Where no space in one piece was left, a directory got blocks in several: what the log said of them, no kernel could
/// replay.
#[test]
fn directory_blocks_lie_in_one_piece() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(24 * MIB).expect("memory"));
    let options = MkfsOptions::new().small(true).dir_block_size(16 << 10).group_count(1);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let target = root.create_file(b"target", &NewNode::default()).expect("made");
    let filler = root.create_file(b"filler", &NewNode::default()).expect("made").open().expect("opened");
    let mut end = 0;
    for len in [MIB, 64 << 10, 4096] {
        while filler.write_at(&vec![1; len as usize], end).is_ok() {
            end += len;
        }
    }
    for block in (0..end / 4096).step_by(2).take(400) {
        filler.punch_hole(block * 4096..(block + 1) * 4096).expect("a hole");
    }
    volume.sync().expect("synced");
    let mut links =
        (0..40_000).map(|nth| root.link(format!("a name that takes some space {nth}").as_bytes(), &target));
    let full = links.find_map(Result::err);
    assert_eq!(full.map(|error| error.kind()), Some(ErrorKind::NoSpace));
    volume.sync().expect("synced");
    let crashed = crashed(&device);
    drop(filler);
    volume.close().expect("closed");
    for device in [crashed, device] {
        let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true));
        volume.expect("recovered").close().expect("closed");
        assert!(check_device(device, &OpenOptions::new()).expect("checked").is_clean());
    }
}

/// Leaves nothing free but single blocks, and then has a directory grow.
const SCRAPS: &str = r#"
            set -e
            mkdir d; touch target filler rest
            xfs_io -x -c "resblks 0" . > /dev/null
            fallocate -l $((16 << 20)) filler
            at=0
            for len in 16777216 1048576 65536 4096; do
                while fallocate -o $at -l $len rest 2> /dev/null; do at=$((at + len)); done
            done
            holes=; for n in $(seq 0 2 3000); do holes="$holes -c 'fpunch $((n * 4096)) 4096'"; done
            eval xfs_io $holes filler
            i=0; while [ $i -lt 3000 ] && ln target "d/a name of a certain length, to fill blocks: $i" 2>/dev/null; do i=$((i + 1)); done
            sync
"#;

/// A kernel may have left a directory with blocks in several pieces: it can be read, and is not changed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_directory_with_blocks_in_pieces_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = common::made(dir.path(), &["-n", "size=65536", "-m", "reflink=0"]);
    common::mounted(&image, |at| {
        let run = Command::new("bash").arg("-c").arg(SCRAPS).current_dir(at).output().expect("bash");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    });
    let before = std::fs::read(&image).expect("read");
    let volume = common::open(&image);
    let dir = volume.lookup("/d").expect("there").as_dir().expect("a directory");
    let names = dir.entries().filter(|entry| entry.is_ok()).count();
    assert!(names > 2000, "{names} names");
    let target = volume.lookup("/target").expect("there");
    let error = dir.link(&[b'n'; 200], &target).expect_err("it cannot be logged");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("several pieces"), "{error}");
    volume.close().expect("closed");
    drop((dir, target, volume));
    assert!(std::fs::read(&image).expect("read") == before, "not one byte was changed");
    common::repair_finds_nothing(&image);
}

/// What changes blocks in pieces, and leaves it in the log: entries come and go.
const CHANGES: &str = r#"
            set -e
            for n in $(seq 3000 3400); do ln target "d/another one: $n"; done
            for n in $(seq 0 7 900); do rm "d/a name of a certain length, to fill blocks: $n"; done
            xfs_io -c fsync d
            xfs_io -x -c "shutdown -f" .
"#;

/// What recovery makes of a device that holds `image`, on which the power fails at write `nth`.
fn recovered(image: &[u8], nth: Option<u64>) -> (Arc<dyn BlockDevice>, bool) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(image.len() as u64).expect("memory"));
    for (at, bytes) in (0..).step_by(MIB as usize).zip(image.chunks(MIB as usize)) {
        device.write(at, bytes, Durability::Volatile).expect("written");
    }
    let faults = nth.map(|nth| Fault::fail(Op::Write, nth).then(Repeat::ReadOnlyAfter));
    let failing = Arc::new(FaultDevice::new(Arc::clone(&device), faults.into_iter().collect()));
    let first = Volume::open_device(failing, &OpenOptions::new().writable(true));
    (device, first.is_ok())
}

/// A kernel that crashes leaves a log with pieces of directory blocks, which no kernel recovers: it takes each piece for a
/// block. Nor did we. Now they are put together, wherever the power fails again.
#[test]
#[ignore = "needs root and xfsprogs"]
fn pieces_of_directory_blocks_in_a_log_are_put_together() {
    pieces_are_put_together(65536, 1000, 7);
}

/// This many names that the index has nodes: those look like a block of an attribute index.
#[test]
#[ignore = "needs root and xfsprogs"]
fn so_are_those_of_an_index_of_several_levels() {
    pieces_are_put_together(8192, 3000, 23);
}

fn pieces_are_put_together(dir_block: u32, links: usize, crashes_at: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("volume.img");
    std::fs::File::create(&image).expect("made").set_len(64 * MIB).expect("sparse");
    let mut mkfs = Command::new("mkfs.xfs");
    let small = [("TEST_DIR", "1"), ("TEST_DEV", "1"), ("QA_CHECK_FS", "1")];
    mkfs.envs(small)
        .args(["-q", "-n", &format!("size={dir_block}"), "-m", "rmapbt=0,reflink=0", "-d", "agcount=2"])
        .arg(&image);
    assert!(mkfs.status().expect("mkfs.xfs").success());
    let run = |script: &str, at: &Path| {
        let run = Command::new("bash").arg("-c").arg(script).current_dir(at).output().expect("bash");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    };
    // The blocks that the log changes are in their places before.
    common::mounted(&image, |at| run(&SCRAPS.replace("3000 ]", &format!("{links} ]")), at));
    common::mounted(&image, |at| run(CHANGES, at));
    let crashed = std::fs::read(&image).expect("read");
    let mut crashes = 0;
    for nth in (0..).step_by(crashes_at).map(Some).chain([None]) {
        let (device, whole) = recovered(&crashed, nth);
        let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true));
        let volume = volume.expect("recovered");
        let names = volume.lookup("/d").expect("there").as_dir().expect("a directory");
        let names: Vec<_> = names.entries().map(|entry| entry.expect("read")).collect();
        let count = |of: &str| names.iter().filter(|entry| entry.name.starts_with(of.as_bytes())).count();
        assert_eq!(
            (count("another one: "), count("a name of a")),
            (401, links - 129),
            "power failed at {nth:?}"
        );
        volume.close().expect("closed");
        drop((names, volume));
        assert!(check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked").is_clean());
        if whole {
            let mut bytes = vec![0; crashed.len()];
            device.read(0, &mut bytes).expect("read");
            std::fs::write(&image, bytes).expect("written");
            break;
        }
        crashes += 1;
    }
    assert!(crashes >= 2, "{crashes} crashes on the way");
    common::repair_finds_nothing(&image);
    common::mounted(&image, |at| run("for n in d/*; do rm \"$n\"; done; rmdir d", at));
    common::repair_finds_nothing(&image);
}
