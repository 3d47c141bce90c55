//! v4 volumes without a kernel that mounts them: `mkfs.xfs` fills one from a description, and what uxfs sees must be
//! what was described; `xfs_db` says the numbers.
#![forbid(unsafe_code)]

use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::process::Command;
use witness::command::{output, run};
use witness::engine;
use witness::record::{FileType, Hash, Inode, Record, hex};
use witness::sandbox::{repair_finds_nothing, scratch};
use witness::volumes::{ALL, IGNORING_CASE};

const FILES: usize = 300;

fn inode<'a>(manifest: &'a [Record], path: &str) -> (&'a Record, &'a Inode) {
    let record = manifest.iter().find(|record| record.path == path).unwrap_or_else(|| panic!("no {path}"));
    (record, record.inode.as_ref().expect("it has one name"))
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_v4_volume_is_what_mkfs_was_told() {
    for kind in ALL.iter().filter(|kind| kind.v4).chain([&IGNORING_CASE]) {
        described(kind.name, &kind.mkfs_arguments());
    }
}

fn described(name: &str, arguments: &[String]) {
    let folder = scratch().unwrap();
    let image = folder.path().join("image");
    let size_of = |index: usize| index * index * 3;
    let mut text = String::from("/nothing\n0 0\nd--755 0 0\n");
    text.push_str("dir d--750 12 34\n");
    for index in 0..FILES {
        let source = folder.path().join(format!("source-{index}"));
        let bytes: Vec<u8> = (0..size_of(index)).map(|at| (at * 7 + index) as u8).collect();
        fs::write(&source, bytes).unwrap();
        writeln!(text, "file-{index:04} ---644 {index} 5 {}", source.display()).unwrap();
    }
    text.push_str(
        "$\nlink l--777 1 2 some/where\nchar c--600 3 4 4 64\nblock b--660 5 6 8 3\nfifo p--604 7 8\n$\n",
    );
    let description = folder.path().join("description");
    fs::write(&description, text).unwrap();
    fs::File::create(&image).unwrap().set_len(600 << 20).unwrap();
    let mut mkfs = Command::new("mkfs.xfs");
    run(mkfs.arg("-q").args(arguments).arg("-p").arg(&description).arg(&image)).unwrap();
    repair_finds_nothing(&image).unwrap();

    let manifest = engine::manifests(&image, 1, Hash::Sha256)
        .unwrap_or_else(|error| panic!("{name}: {error:#}"))
        .remove(0);
    assert_eq!(manifest.len(), FILES + 6, "{name}");
    let (dir, described) = inode(&manifest, "/dir");
    assert_eq!((described.mode.as_str(), described.uid, described.gid), ("0750", 12, 34), "{name}");
    assert_eq!(described.entries.as_ref().unwrap().0, FILES as u64, "{name}");
    assert_eq!(xfs_db(&image, dir.ino, "core.version"), "2", "{name}");
    for index in 0..FILES {
        let (record, described) = inode(&manifest, &format!("/dir/file-{index:04}"));
        let bytes = fs::read(folder.path().join(format!("source-{index}"))).unwrap();
        let content = described.content.as_ref().unwrap();
        assert_eq!(content.hash, hex(&Sha256::digest(&bytes)), "{name}: {}", record.path);
        assert_eq!((described.size, described.uid), (bytes.len() as u64, index as u32), "{name}");
        assert_eq!(described.btime, None, "{name}: v4 keeps no time of creation");
    }
    for (path, file_type, mode, uid) in [
        ("/link", FileType::Symlink, "0777", 1),
        ("/char", FileType::CharDevice, "0600", 3),
        ("/block", FileType::BlockDevice, "0660", 5),
        ("/fifo", FileType::Fifo, "0604", 7),
    ] {
        let (_, described) = inode(&manifest, path);
        assert_eq!(
            (described.file_type, described.mode.as_str(), described.uid),
            (file_type, mode, uid),
            "{name}"
        );
    }
    assert_eq!(inode(&manifest, "/link").1.target.as_deref(), Some("some/where"), "{name}");
    assert_eq!(inode(&manifest, "/char").1.rdev, Some((4, 64)), "{name}");
    assert_eq!(inode(&manifest, "/block").1.rdev, Some((8, 3)), "{name}");
    let (last, described) = inode(&manifest, &format!("/dir/file-{:04}", FILES - 1));
    let block_size: u64 = xfs_db_super(&image, "blocksize").parse().unwrap();
    let blocks: u64 = xfs_db(&image, last.ino, "core.nblocks").parse().unwrap();
    assert_eq!(described.blocks, blocks * (block_size / 512), "{name}");
    assert_eq!(xfs_db(&image, last.ino, "core.size"), described.size.to_string(), "{name}");
}

fn xfs_db(image: &std::path::Path, ino: u64, field: &str) -> String {
    value(
        &output(
            Command::new("xfs_db")
                .args(["-r", "-c", &format!("inode {ino}"), "-c", &format!("print {field}")])
                .arg(image),
        )
        .unwrap(),
    )
}

fn xfs_db_super(image: &std::path::Path, field: &str) -> String {
    value(
        &output(
            Command::new("xfs_db").args(["-r", "-c", "sb 0", "-c", &format!("print {field}")]).arg(image),
        )
        .unwrap(),
    )
}

fn value(line: &str) -> String {
    line.trim().rsplit("= ").next().unwrap_or_default().to_owned()
}
