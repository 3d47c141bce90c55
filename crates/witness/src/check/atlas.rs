//! Where one piece of each structure lies in an image, in use and with something in it.
//!
//! Found through the headers, trees and maps of a sound volume: blocks that were freed are not among them.

use anyhow::{Context, Result};
use blockdev::FileOptions;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use xfs::volume::{ForkKind, Inode, OpenOptions, Volume};
use xfs_format::ag::AgHeader;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{ForkFormat, InodeType};
use xfs_format::types::{AgBlock, AgNumber, DiskAddr, InodeNumber};

/// One structure.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// First byte in the image.
    pub at: u64,
    /// Bytes.
    pub len: usize,
    /// Where its checksum lies.
    pub crc: usize,
    /// What offsets of fields count from.
    pub base: usize,
}

/// Places by the structures' names.
#[derive(Debug, Default)]
pub struct Atlas {
    places: BTreeMap<&'static str, Place>,
}

impl Atlas {
    /// Looks through an image.
    pub fn of(image: &Path) -> Result<Self> {
        let device = FileOptions::new().sector_size(512).direct(false).open(image)?;
        let volume = Volume::open(Arc::new(device), &OpenOptions::default())?;
        let file = File::open(image)?;
        let mut survey = Survey { file, volume, atlas: Self::default() };
        survey.headers()?;
        survey.trees()?;
        survey.inodes()?;
        Ok(survey.atlas)
    }

    /// A structure's place.
    pub fn get(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    fn add(&mut self, name: &'static str, place: Place) {
        self.places.entry(name).or_insert(place);
    }
}

struct Survey {
    file: File,
    volume: Arc<Volume>,
    atlas: Atlas,
}

fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes.get(at..at + width).unwrap_or_default().iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Survey {
    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    fn bytes(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).context("reading the image")?;
        Ok(bytes)
    }

    fn headers(&mut self) -> Result<()> {
        let geometry = self.geometry().clone();
        let len = geometry.sector_size as usize;
        let place = |daddr: DiskAddr, crc| Place { at: daddr.0 << 9, len, crc, base: 0 };
        self.atlas.add("superblock", place(DiskAddr(0), 224));
        self.atlas.add("superblock copy", place(geometry.daddr_of(AgNumber(1), AgBlock(0)), 224));
        for (name, header, crc) in
            [("AGF", AgHeader::Agf, 216), ("AGI", AgHeader::Agi, 312), ("AGFL", AgHeader::Agfl, 32)]
        {
            let mut here = place(header.daddr(&geometry, AgNumber(0)), crc);
            if header == AgHeader::Agfl {
                // Fields count from the first slot in use.
                let agf = self.bytes(AgHeader::Agf.daddr(&geometry, AgNumber(0)).0 << 9, 64)?;
                here.base = 36 + 4 * number(&agf, 40, 4) as usize;
            }
            self.atlas.add(name, here);
        }
        Ok(())
    }

    /// A leaf of each tree that has several records, in the first group that has one.
    fn trees(&mut self) -> Result<()> {
        let geometry = self.geometry().clone();
        for ag in (0..geometry.ag_count).map(AgNumber) {
            let agf = self.bytes(AgHeader::Agf.daddr(&geometry, ag).0 << 9, 224)?;
            let agi = self.bytes(AgHeader::Agi.daddr(&geometry, ag).0 << 9, 344)?;
            let roots = [
                ("bnobt", "bnobt root", number(&agf, 16, 4)),
                ("cntbt", "cntbt root", number(&agf, 20, 4)),
                ("rmapbt", "rmapbt root", number(&agf, 24, 4)),
                ("refcountbt", "refcountbt root", number(&agf, 88, 4)),
                ("inobt", "inobt root", number(&agi, 20, 4)),
                ("finobt", "finobt root", number(&agi, 328, 4)),
            ];
            for (name, root, block) in roots.into_iter().filter(|(_, _, block)| *block != 0) {
                self.tree(ag, name, root, block)?;
            }
        }
        Ok(())
    }

    fn tree(&mut self, ag: AgNumber, name: &'static str, root: &'static str, block: u64) -> Result<()> {
        let geometry = self.geometry().clone();
        let key_len = match name {
            "inobt" | "finobt" | "refcountbt" => 4,
            "rmapbt" => 40,
            _ => 8,
        };
        let mut block = block;
        loop {
            let at = geometry.daddr_of(ag, AgBlock(u32::try_from(block)?)).0 << 9;
            let bytes = self.bytes(at, geometry.block_size as usize)?;
            let place = Place { at, len: bytes.len(), crc: 52, base: 56 };
            let least = if name == "finobt" { 1 } else { 2 };
            if number(&bytes, 4, 2) == 0 {
                if number(&bytes, 6, 2) >= least {
                    self.atlas.add(name, place);
                }
                return Ok(());
            }
            self.atlas.add(root, place);
            let most = (bytes.len() - 56) / (key_len + 4);
            block = number(&bytes, 56 + most * key_len, 4);
        }
    }

    fn inodes(&mut self) -> Result<()> {
        let volume = Arc::clone(&self.volume);
        let mut result = Ok(());
        volume.for_each_inode(&mut |ino| {
            result = volume.inode(ino).map_err(Into::into).and_then(|inode| self.inode(&inode));
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result
    }

    fn place_of(&self, ino: InodeNumber) -> Option<Place> {
        let geometry = self.geometry();
        let (ag, inode) = geometry.split_inode(ino)?;
        let start = geometry.daddr_of(ag, AgBlock(0)).0 << 9;
        let len = usize::from(geometry.inode_size);
        Some(Place { at: start + u64::from(inode.0) * len as u64, len, crc: 100, base: 0 })
    }

    fn inode(&mut self, inode: &Inode) -> Result<()> {
        let core = inode.core();
        let place = self.place_of(inode.ino()).context("an inode of the volume")?;
        let special = inode.ino().0 < self.geometry().root.0 + 3;
        let data = core.data.format;
        let name = match core.kind {
            _ if special => None,
            InodeType::Regular if data == ForkFormat::Btree && inode.is_reflinked() => {
                Some("shared btree file")
            }
            InodeType::Regular if data == ForkFormat::Btree => Some("btree file"),
            InodeType::Regular if core.data.nextents >= 2 && inode.is_reflinked() => Some("shared file"),
            InodeType::Regular if core.data.nextents >= 2 && core.nlink == 1 => Some("file"),
            InodeType::Directory if data == ForkFormat::Local && core.size > 40 => Some("short directory"),
            InodeType::Directory if data == ForkFormat::Extents => Some("directory"),
            InodeType::Symlink if data == ForkFormat::Local => Some("short symlink"),
            InodeType::Symlink => Some("remote symlink"),
            InodeType::Fifo => Some("fifo"),
            InodeType::CharDevice => Some("device"),
            _ => None,
        };
        if let Some(name) = name {
            self.atlas.add(name, place);
        }
        if let Some(attr) = &core.attr
            && attr.format == ForkFormat::Local
        {
            let bytes = self.bytes(place.at, place.len)?;
            if bytes.get(attr.range.start + 2).is_some_and(|&count| count >= 2) {
                self.atlas.add("short attributes", Place { base: attr.range.start, ..place });
            }
        }
        if core.attr.as_ref().is_some_and(|attr| attr.format == ForkFormat::Extents && attr.nextents > 0) {
            self.atlas.add("file with attribute extents", place);
        }
        if matches!(core.kind, InodeType::Directory | InodeType::Symlink) {
            self.fork(inode, ForkKind::Data)?;
        }
        self.fork(inode, ForkKind::Attr)?;
        if data == ForkFormat::Btree {
            self.map(inode, place)?;
        }
        Ok(())
    }

    /// The first leaf of the map of a data fork whose root points to leaves.
    fn map(&mut self, inode: &Inode, place: Place) -> Result<()> {
        let geometry = self.geometry().clone();
        let core = inode.core();
        let bytes = self.bytes(place.at, place.len)?;
        let fork = bytes.get(core.data.range.clone()).unwrap_or_default();
        let root = xfs_format::inode::btree_root(fork)?;
        if root.level() == 1
            && !inode.is_reflinked()
            && let Some(leaf) = root.pointers().next()
            && let Some(daddr) = geometry.extent_daddr(leaf, 1)
        {
            let len = geometry.block_size as usize;
            self.atlas.add("bmbt", Place { at: daddr.0 << 9, len, crc: 64, base: 72 });
        }
        Ok(())
    }

    /// Blocks of a fork, by their magics.
    fn fork(&mut self, inode: &Inode, kind: ForkKind) -> Result<()> {
        let geometry = self.geometry().clone();
        let block = geometry.block_size as usize;
        let extents = self.volume.extents(inode, kind)?;
        for extent in extents.iter() {
            let Some(daddr) = geometry.extent_daddr(extent.startblock, extent.blockcount.into()) else {
                continue;
            };
            for nth in 0..u64::from(extent.blockcount).min(64) {
                let at = (daddr.0 << 9) + nth * block as u64;
                let bytes = self.bytes(at, block)?;
                let plain = |crc| Place { at, len: block, crc, base: 0 };
                match (bytes.first_chunk::<4>(), number(&bytes, 8, 2)) {
                    (Some(b"XDB3"), _) if number(&bytes, block - 8, 4) >= 10 => {
                        self.atlas.add("block directory", plain(4));
                        let entries = number(&bytes, block - 8, 4) as usize;
                        let base = block - 8 - 8 * entries;
                        self.atlas.add("block directory index", Place { base, ..plain(4) });
                        self.atlas.add("block directory tail", Place { base: block - 8, ..plain(4) });
                    }
                    // With an entry behind `.` and `..`.
                    (Some(b"XDD3"), _) if number(&bytes, 96, 2) != 0xffff => {
                        self.atlas.add("data block", plain(4))
                    }
                    (Some(b"XDF3"), _) => self.atlas.add("free block", plain(4)),
                    (Some(b"XARM"), _) => self.atlas.add("remote value", plain(12)),
                    (Some(b"XSLM"), _) => self.atlas.add("symlink block", plain(12)),
                    (_, 0x3df1) => {
                        self.atlas.add("single leaf", Place { base: 64, ..plain(12) });
                        self.atlas.add("single leaf tail", Place { base: block - 6, ..plain(12) });
                    }
                    (_, 0x3dff) => self.atlas.add("directory leaf", Place { base: 64, ..plain(12) }),
                    (_, 0x3ebe) if kind == ForkKind::Data => {
                        self.atlas.add("directory node", Place { base: 64, ..plain(12) });
                    }
                    (_, 0x3ebe) => self.atlas.add("attribute node", Place { base: 64, ..plain(12) }),
                    (_, 0x3bee) if number(&bytes, 56, 2) >= 2 => {
                        self.atlas.add("attribute leaf", Place { base: 80, ..plain(12) });
                        let base = number(&bytes, 84, 2) as usize;
                        if bytes.get(86).is_some_and(|flags| flags & 1 == 1) {
                            self.atlas.add("attribute name", Place { base, ..plain(12) });
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
