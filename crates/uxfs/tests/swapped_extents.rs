//! Files whose extents a kernel has swapped, as its defragmenter does: where they lie in trees, the blocks of those change
//! their owner, of which the log has nothing but a mark. No recovery was tried before.
#![forbid(unsafe_code)]

mod common;

use oracles::Mounted;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const BLOCK: usize = 4096;

/// A file of this many extents, all of one byte.
fn scattered(path: &Path, extents: u64, byte: u8) {
    let file = File::create(path).expect("made");
    (0..extents).for_each(|n| file.write_all_at(&[byte; BLOCK], 2 * n * BLOCK as u64).expect("written"));
    file.set_len(16 << 20).expect("as long as the other");
    file.sync_all().expect("synced");
}

fn xfs_io(command: &str, path: &Path) {
    let run = Command::new("xfs_io").args(["-x", "-c", command]).arg(path).output().expect("xfs_io");
    let text = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(run.status.success() && text.is_empty(), "{command}: {text}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn swapped_extents_are_those_of_their_new_owners() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = common::made(dir.path(), &[]);
    common::mounted(&image, |at| {
        scattered(&at.join("a"), 1500, b'a');
        scattered(&at.join("b"), 1000, b'b');
    });
    let at = tempfile::tempdir().expect("a mount point");
    let mount = Mounted::new(&image, at.path(), "loop");
    xfs_io(&format!("swapext {}", mount.join("b").display()), &mount.join("a"));
    xfs_io("shutdown -f", mount.dir());
    mount.unmount();

    let volume = common::open(&image);
    let report = volume.recovery().expect("the log was dirty");
    assert!(report.transactions >= 1, "{report:?}");
    for (name, byte, extents) in [("/a", b'b', 1000), ("/b", b'a', 1500)] {
        let file = volume.lookup(name).expect("there").open().expect("opened");
        let mut bytes = vec![0; 16 << 20];
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
        let written = bytes.chunks(BLOCK).filter(|block| block.iter().all(|&found| found == byte)).count();
        let zeroes = bytes.chunks(BLOCK).filter(|block| block.iter().all(|&found| found == 0)).count();
        assert_eq!((written, written + zeroes), (extents, bytes.len() / BLOCK), "{name}");
    }
    volume.close().expect("closed");
    drop(volume);
    common::repair_finds_nothing(&image);
    common::mounted(&image, |at| {
        for name in ["a", "b"] {
            File::options().write(true).open(at.join(name)).expect("opened").set_len(4 << 20).expect("cut");
        }
    });
    common::repair_finds_nothing(&image);
}
