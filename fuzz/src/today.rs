//! A small volume with today's features, made by uxfs: clones in many pieces, copies on write, parent pointers in each
//! form of an attribute fork. What damage and intents are laid over.
//!
//! Invariant: it follows from nothing but the code, so that a finding is found again.

use crate::seal::UUID;
use blockdev::{BlockDevice, MemoryDevice};
use std::sync::Arc;
use uxfs::{File, NewNode, OpenOptions, SetXattr, Timestamp, Volume};
use xfs::mkfs::{Before, Options, format, plan};
use xfs_format::geometry::Geometry;
use xfs_format::superblock::Superblock;
use xfs_format::types::{AgBlock, AgNumber, FsBlock, InodeNumber};

/// Bytes of the volume.
pub const BYTES: u64 = 32 << 20;
/// Bytes of a block: small ones have trees of two levels.
pub const BLOCK: u64 = 1024;

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The file.
    pub ino: InodeNumber,
    /// First block of the volume.
    pub start: FsBlock,
    /// First block of the file.
    pub offset: u64,
    /// Blocks.
    pub len: u32,
}

/// The volume, and what there is in it to name.
pub struct Today {
    /// It.
    pub device: Arc<dyn BlockDevice>,
    /// Its superblock.
    pub superblock: Superblock,
    /// Its shape.
    pub geometry: Geometry,
    /// Inodes and their generations.
    pub inodes: Vec<(InodeNumber, u32)>,
    /// Mappings of files, of which some share blocks.
    pub mapped: Vec<Mapped>,
}

/// How a volume of these is opened for writing.
pub fn writable() -> OpenOptions {
    let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    OpenOptions::new().writable(true).repeatable(Some(time))
}

impl Default for Today {
    /// Makes it.
    fn default() -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
        let time = xfs_format::timestamp::Timestamp { seconds: 0, nanoseconds: 0 };
        let options = Options { small: true, block_size: BLOCK as u32, ..Options::new(UUID, time) };
        format(&*device, &plan(&options, BYTES).expect("a plan"), Before::Zeroes).expect("a volume");
        let volume = Volume::open_device(Arc::clone(&device), &writable()).expect("a sound volume");
        let (inodes, mapped) = fill(&volume).expect("room for everything");
        volume.close().expect("closed");
        let mut sector = [0; 512];
        device.read(0, &mut sector).expect("read");
        let superblock = Superblock::parse(&sector).expect("a superblock");
        let geometry = Geometry::from_superblock(&superblock);
        let mapped = mapped.iter().map(|(ino, extent)| {
            let block = (extent.physical / BLOCK) as u32;
            let (ag, block) = (block / geometry.ag_blocks, block % geometry.ag_blocks);
            Mapped {
                ino: *ino,
                start: geometry.join_block(AgNumber(ag), AgBlock(block)),
                offset: extent.logical / BLOCK,
                len: (extent.length / BLOCK) as u32,
            }
        });
        let mapped = mapped.collect();
        Self { device, superblock, geometry, inodes, mapped }
    }
}

type Content = (Vec<(InodeNumber, u32)>, Vec<(InodeNumber, uxfs::Extent)>);

fn fill(volume: &Volume) -> uxfs::Result<Content> {
    let new = NewNode::default();
    let root = volume.open_dir("/")?;
    let file = |name: &str| -> uxfs::Result<File> { root.create_file(name.as_bytes(), &new)?.open() };
    let base = file("base")?;
    for nth in 0..200 {
        base.write_at(&[nth as u8 + 1; BLOCK as usize], nth * 2 * BLOCK)?;
    }
    base.allocate(500 * BLOCK..520 * BLOCK, false)?;
    let clones = [file("clone")?, file("other")?, file("third")?];
    for (nth, clone) in (0..).zip(&clones) {
        base.clone_range(0, clone, 0, 0)?;
        for at in 0..40 {
            clone.write_at(&[nth as u8; 700], (at * 7 + nth) * BLOCK)?;
            clone.punch_hole((at * 9) * BLOCK..(at * 9 + 1) * BLOCK)?;
        }
    }
    let plain = file("plain")?;
    plain.write_at(&[9; 40 * BLOCK as usize], 0)?;
    let dir = root.create_dir(b"dir", &NewNode { permissions: 0o755, ..NewNode::default() })?.as_dir()?;
    for (name, links, values) in [("short", 2, 1), ("leaf", 8, 2), ("node", 60, 30)] {
        let node = dir.create_file(name.as_bytes(), &new)?;
        for nth in 0..links {
            dir.link(format!("{name}-has-a-name-of-some-length-{nth}").as_bytes(), &node)?;
        }
        for nth in 0..values {
            node.set_xattr(format!("user.{nth}").as_bytes(), &[nth as u8; 60], SetXattr::Either)?;
        }
    }
    volume.lookup("/dir/node")?.set_xattr(b"user.remote", &[1; 3000], SetXattr::Either)?;
    root.create_symlink(b"link", &[b'l'; 700], &new)?;
    let mut inodes = Vec::new();
    let mut mapped = Vec::new();
    for path in ["/", "/dir", "/link", "/base", "/clone", "/other", "/third", "/plain"].into_iter().chain([
        "/dir/short",
        "/dir/leaf",
        "/dir/node",
    ]) {
        let node = volume.symlink_metadata(path)?;
        inodes.push((InodeNumber(node.ino), node.generation));
    }
    for name in ["base", "clone", "other", "third", "plain"] {
        let file = volume.open_file(format!("/{name}"))?;
        let ino = InodeNumber(file.metadata().ino);
        for extent in file.extents() {
            mapped.push((ino, extent?));
        }
    }
    Ok((inodes, mapped))
}
