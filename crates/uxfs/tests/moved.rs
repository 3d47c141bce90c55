//! Blocks that have just moved, to another file or within their own, and are written to before that is in any log.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::FileOptions;
use common::mounted;
use oracles::xfsprogs::Release;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uxfs::{ExchangeOptions, File, NewNode, OpenOptions, Result, Volume};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8;

type Move = fn(&File, &File) -> Result<()>;

const MOVES: [(&str, Move); 4] = [
    ("all exchanged", |one, other| one.exchange_range(0, other, 0, None, ExchangeOptions::new())),
    ("exchanged", |one, other| {
        one.exchange_range(2 * BLOCK, other, 4 * BLOCK, Some(3 * BLOCK), ExchangeOptions::new())
    }),
    ("collapsed", |one, _| one.collapse_range(BLOCK..2 * BLOCK)),
    ("inserted", |one, _| one.insert_range(BLOCK..2 * BLOCK)),
];

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {text}");
}

fn tool(name: &str) -> Command {
    Release::Unstable.tool(name).expect("ci/xfsprogs installs it")
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// The first byte of each block.
fn numbers(files: &[Vec<u8>; 2]) -> [Vec<u8>; 2] {
    files.each_ref().map(|bytes| bytes.chunks(BLOCK as usize).map(|block| block[0]).collect())
}

/// A write to what moved is in no log. When the power went before the move was in one, the write was found where the block
/// had been: in the other file of an exchange, which nobody had written to.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_has_just_moved_is_not_written_in_place() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    for (what, moved) in MOVES {
        let (image, cut) = (dir.path().join("volume.img"), dir.path().join("cut.img"));
        std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse image");
        run(tool("mkfs.xfs").args(["-q", "-f"]).arg(&image));
        let device = Arc::new(FileOptions::in_memory().write(true).open(&image).expect("opened"));
        let volume = Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opens");
        let root = volume.root().and_then(|root| root.as_dir()).expect("a root");
        let [one, other] = [("one", 1), ("other", 101)].map(|(name, first)| {
            let node = root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
            let file = node.open().expect("opens");
            let content: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK) as u8 + first).collect();
            file.write_at(&content, 0).expect("written");
            file
        });
        volume.sync().expect("synced");
        let now = || [bytes(&one), bytes(&other)];
        let before = now();
        moved(&one, &other).expect(what);
        let behind = now();
        one.write_at(&[99; BLOCK as usize], 3 * BLOCK).expect("written");
        let written = now();
        // The power goes: what was written to the device is there, and nothing else.
        run(Command::new("cp").arg("--sparse=always").args([&image, &cut]));
        drop((root, one, other, volume));
        for who in ["the kernel", "uxfs"] {
            let found = match who {
                "uxfs" => by_uxfs(&image_of(&cut)),
                _ => mounted(&image_of(&cut), |at| {
                    ["one", "other"].map(|name| std::fs::read(at.join(name)).expect("read"))
                }),
            };
            assert!(
                found == before || found == behind || found == written,
                "{what}, by {who}: {:?}",
                numbers(&found)
            );
        }
    }
}

/// A copy of an image, which is clean behind this when somebody has recovered it.
fn image_of(cut: &Path) -> std::path::PathBuf {
    let copy = cut.with_extension("copy");
    run(Command::new("cp").arg("--sparse=always").args([cut, &copy]));
    copy
}

fn by_uxfs(image: &Path) -> [Vec<u8>; 2] {
    let volume = Volume::open(image, &OpenOptions::new().writable(true)).expect("recovered");
    let found = ["one", "other"].map(|name| bytes(&volume.open_file(name).expect("it is there")));
    volume.close().expect("closed");
    drop(volume);
    run(tool("xfs_repair").arg("-n").arg(image));
    found
}
