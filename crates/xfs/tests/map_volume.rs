//! Block maps on real volumes: files whose extents were mapped, unmapped, converted and moved by transactions are
//! sound to `xfs_repair`, have the same extents to the kernel, and the content that was written. Needs root and
//! xfsprogs.
#![forbid(unsafe_code)]

mod common;

use blockdev::{AlignedBuf, Durability, FileOptions};
use common::{Image, try_run};
use fiemap::FiemapExtentFlags;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use xfs::Error;
use xfs::agf;
use xfs::alloc::{Purpose, Request, Target};
use xfs::bmap::TransFork;
use xfs::bmap::edit::MapEditor;
use xfs::defer;
use xfs::inode::ForkKind;
use xfs::trans::Trans;
use xfs::trans::reservation::ReservationBuilder;
use xfs::volume::{OpenOptions, Volume};
use xfs_format::bmbt::Extent;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{AgNumber, FileBlock, FsBlock, InodeNumber};

type Editor<'t, 'v> = MapEditor<TransFork<'t, 'v>>;

fn open(image: &Image) -> Arc<Volume> {
    let device = FileOptions::new().sector_size(512).write(true).open(image.path()).unwrap();
    Volume::open(Arc::new(device), &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap()
}

/// A file, and what each of its blocks must hold: the word that fills it, or nothing.
struct Edits {
    image: Image,
    volume: Option<Arc<Volume>>,
    ino: InodeNumber,
    words: Vec<Option<u64>>,
    rng: fastrand::Rng,
    had_tree: bool,
}

impl Edits {
    fn volume(&self) -> Arc<Volume> {
        Arc::clone(self.volume.as_ref().unwrap())
    }

    fn map(&self) -> Vec<Extent> {
        let volume = self.volume();
        let inode = volume.inode(self.ino).unwrap();
        volume.extents(&inode, ForkKind::Data).unwrap().iter().collect()
    }

    /// One transaction that changes the file's map. `false`: no space.
    fn edit(
        &mut self,
        change: impl FnOnce(&mut Editor<'_, '_>, &mut Vec<Option<u64>>, &mut fastrand::Rng),
    ) -> bool {
        let volume = self.volume();
        let need =
            ReservationBuilder::new(volume.geometry()).inodes(1).map_changes(10).extents(10).blocks(80);
        let mut trans = match Trans::start(&volume, need.build()) {
            Ok(trans) => trans,
            Err(Error::NoSpace) => return false,
            Err(error) => panic!("{error}"),
        };
        let entry = volume.entry(self.ino).unwrap();
        let locked = entry.ilock();
        trans.join_inode(entry, locked).unwrap();
        let mut editor = MapEditor::new(TransFork::new(&mut trans, self.ino, ForkKind::Data)).unwrap();
        let mut words = self.words.clone();
        change(&mut editor, &mut words, &mut self.rng);
        editor.finish().unwrap();
        let format = trans.inode(self.ino).fork_format(ForkKind::Data);
        // One in eight never happens.
        if self.rng.u32(..8) > 0 {
            trans.commit().unwrap();
            self.words = words;
            self.had_tree |= format == Some(ForkFormat::Btree);
        }
        true
    }

    /// A random change.
    fn step(&mut self, grow: u32) {
        let span = self.words.len() as u64;
        let start = self.rng.u64(..span - 40);
        let range = FileBlock(start)..FileBlock(start + self.rng.u64(1..32));
        let kind = self.rng.u32(..100);
        self.edit(|editor, words, rng| match kind {
            _ if kind < grow => {
                for _ in 0..rng.u32(1..6) {
                    let at = rng.u64(..span - 8);
                    map(editor, words, rng, at);
                }
            }
            _ if kind.is_multiple_of(5) => shift(editor, words, range),
            _ if kind.is_multiple_of(2) => convert(editor, words, rng, range),
            _ => unmap(editor, words, range),
        });
    }

    /// Closes the volume and asks the others; leaves it open again.
    fn witnesses(&mut self) {
        let map = self.map();
        let block_size = u64::from(self.volume().geometry().block_size);
        let to_daddr = {
            let geometry = self.volume().geometry().clone();
            move |extent: &Extent| {
                geometry.extent_daddr(extent.startblock, extent.blockcount.into()).unwrap().0
            }
        };
        let volume = self.volume.take().unwrap();
        volume.close().unwrap();
        drop(volume);
        self.repair("ours");
        let mount = self.image.mount("");
        let path = mount.join("file");
        let found: Vec<_> = fiemap::fiemap(&path)
            .unwrap()
            .map(|extent| extent.unwrap())
            .map(|e| {
                (e.fe_logical, e.fe_physical, e.fe_length, e.fe_flags.contains(FiemapExtentFlags::UNWRITTEN))
            })
            .collect();
        let expected: Vec<_> = map
            .iter()
            .map(|e| {
                let len = u64::from(e.blockcount) * block_size;
                (e.startoff.0 * block_size, to_daddr(e) * 512, len, e.unwritten)
            })
            .collect();
        assert!(found == expected, "{} extents to the kernel, {} to us", found.len(), expected.len());
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut block = vec![0; block_size as usize];
        for (at, word) in self.words.iter().enumerate() {
            file.read_exact_at(&mut block, at as u64 * block_size).unwrap();
            let word = word.unwrap_or(0).to_le_bytes();
            assert!(block.chunks(8).all(|chunk| chunk == word), "block {at}");
        }
        // The kernel goes on with the same file.
        for at in (0..self.words.len()).step_by(211) {
            let word = self.rng.u64(1..);
            file.write_all_at(&word.to_le_bytes().repeat(block_size as usize / 8), at as u64 * block_size)
                .unwrap();
            self.words[at] = Some(word);
        }
        drop(file);
        mount.unmount();
        self.repair("the kernel's");
        self.volume = Some(open(&self.image));
    }

    fn repair(&self, whose: &str) {
        let output = try_run("xfs_repair", &["-n", self.image.path().to_str().unwrap()]);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "after {whose} changes: {out}{err}");
    }
}

/// Maps some blocks that are not mapped yet, written (and filled) or unwritten.
fn map(editor: &mut Editor<'_, '_>, words: &mut [Option<u64>], rng: &mut fastrand::Rng, at: u64) {
    let hole = editor.extents().next_beginning(FileBlock(at)).map_or(u64::MAX, |next| next.startoff.0 - at);
    if editor.extents().at_or_before(FileBlock(at)).is_some_and(|extent| extent.end().0 > at) {
        return;
    }
    let want = rng.u64(1..6).min(hole) as u32;
    let trans = editor.store_mut().trans();
    let ag = AgNumber(rng.u32(..trans.geometry().ag_count()));
    let got = agf::allocate(trans, Target::In(ag), Request::new(1, want, Purpose::Data)).unwrap();
    let (startblock, blockcount) = (got.start(trans.geometry()), got.run.len);
    let extent = Extent { startoff: FileBlock(at), startblock, blockcount, unwritten: rng.u32(..3) == 0 };
    if !extent.unwritten {
        fill(editor, words, rng, &extent);
    }
    editor.map(extent).unwrap();
}

/// Writes random words to an extent's blocks.
fn fill(editor: &mut Editor<'_, '_>, words: &mut [Option<u64>], rng: &mut fastrand::Rng, extent: &Extent) {
    let trans = editor.store_mut().trans();
    let geometry = trans.geometry();
    let daddr = geometry.extent_daddr(extent.startblock, extent.blockcount.into()).unwrap().0;
    for nth in 0..u64::from(extent.blockcount) {
        let word = rng.u64(1..);
        words[(extent.startoff.0 + nth) as usize] = Some(word);
        let bytes = word.to_le_bytes().repeat(geometry.block_size as usize / 8);
        let at = daddr * 512 + nth * u64::from(geometry.block_size);
        let mut aligned = AlignedBuf::zeroed(bytes.len());
        aligned.copy_from_slice(&bytes);
        trans.mount().device().write(at, &aligned, Durability::Volatile).unwrap();
    }
}

fn unmap(editor: &mut Editor<'_, '_>, words: &mut [Option<u64>], range: std::ops::Range<FileBlock>) {
    let done = editor.unmap(range, 3).unwrap();
    for extent in done.freed {
        words[extent.startoff.0 as usize..extent.end().0 as usize].fill(None);
        let trans = editor.store_mut().trans();
        defer::defer_free(trans, InodeNumber(0), extent.startblock, extent.blockcount, None).unwrap();
    }
}

/// Makes what is unwritten in a range written, with content; or the other way round.
fn convert(
    editor: &mut Editor<'_, '_>,
    words: &mut [Option<u64>],
    rng: &mut fastrand::Rng,
    range: std::ops::Range<FileBlock>,
) {
    let unwritten = rng.bool();
    let before: Vec<Extent> = editor.extents().iter().filter(|extent| extent.unwritten).collect();
    let rest = editor.convert(range.clone(), unwritten, 3).unwrap();
    let done = range.start..rest.map_or(range.end, |rest| rest.start);
    if unwritten {
        words[done.start.0 as usize..done.end.0 as usize].fill(None);
        return;
    }
    for extent in before {
        for at in extent.startoff.0.max(done.start.0)..extent.end().0.min(done.end.0) {
            let startblock = FsBlock(extent.startblock.0 + at - extent.startoff.0);
            fill(
                editor,
                words,
                rng,
                &Extent { startoff: FileBlock(at), startblock, blockcount: 1, unwritten },
            );
        }
    }
}

/// Takes a range out and lets a few extents behind it move up, as far as these go.
fn shift(editor: &mut Editor<'_, '_>, words: &mut Vec<Option<u64>>, range: std::ops::Range<FileBlock>) {
    let by = range.end.0 - range.start.0;
    if editor.extents().ending_behind(range.start).is_some_and(|extent| extent.startoff < range.end) {
        return unmap(editor, words, range);
    }
    let rest = editor.shift(range.end..FileBlock(words.len() as u64), -(by as i64), 5).unwrap();
    let end = rest.map_or(words.len() as u64, |rest| rest.start.0);
    let moved: Vec<_> = words.drain(range.start.0 as usize..range.end.0 as usize).collect();
    // The gap that the range was opens again behind those that moved.
    let at = (end - by) as usize;
    words.splice(at..at, moved);
}

fn edits(bytes: u64, args: &[&str], span: u64, steps: u32) {
    let seed = std::env::var("UXFS_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed: UXFS_SEED={seed}");
    let image = Image::mkfs(bytes, args);
    let mount = image.mount("");
    let path = mount.join("file");
    let file = std::fs::File::create(&path).unwrap();
    let ino = InodeNumber(file.metadata().unwrap().ino());
    let block_size = if args.contains(&"size=1024") { 1024 } else { 4096 };
    file.set_len(span * block_size).unwrap();
    drop(file);
    mount.unmount();
    let volume = Some(open(&image));
    let rng = fastrand::Rng::with_seed(seed);
    let mut edits = Edits { image, volume, ino, words: vec![None; span as usize], rng, had_tree: false };
    for grow in [100, 60, 30, 90] {
        for _ in 0..steps {
            edits.step(grow);
        }
        println!("{} extents", edits.map().len());
        edits.witnesses();
    }
    assert!(edits.had_tree && edits.map().len() as u32 > steps / 2);
    // All goes, from the end on.
    while !edits.map().is_empty() {
        edits.edit(|editor, words, _| unmap(editor, words, FileBlock(0)..FileBlock(span)));
    }
    edits.witnesses();
}

const PLAIN: [&str; 2] = ["-m", "rmapbt=0,reflink=1,finobt=1"];

#[test]
#[ignore = "needs root and xfsprogs"]
fn thousands_of_extents_in_blocks_of_four_kib() {
    edits(320 << 20, &[&PLAIN[..], &["-i", "nrext64=1"]].concat(), 16_000, 800);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn thousands_of_extents_in_blocks_of_one_kib() {
    edits(320 << 20, &[&PLAIN[..], &["-b", "size=1024", "-i", "nrext64=0,size=512"]].concat(), 30_000, 900);
}
