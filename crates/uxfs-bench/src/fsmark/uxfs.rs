//! Directories of a volume that uxfs has open in this process.

use super::{AnyTree, Named, Seen, Tree, TreeDir};
use crate::config::{Config, VolumePlace};
use crate::error::{Error, Result};
use crate::setup::mkfs_options;
use crate::target::Label;
use crate::volume::{place_dir, save};
use ::uxfs::{Designs, Dir, NewNode, OpenOptions, Volume};
use blockdev::{BlockDevice, FileDevice, MemoryOptions};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Bytes of caches: the kernel, too, keeps all that it has seen in memory.
const CACHE_BYTES: u64 = 2 << 30;

/// A volume of uxfs's own.
pub(crate) struct UxfsTree {
    volume: Volume,
    root: Dir,
    device: Arc<dyn BlockDevice>,
    /// Holds the image; none where it is in memory.
    _dir: Option<TempDir>,
}

impl UxfsTree {
    /// A new volume at the place that is asked for.
    pub(crate) fn make(
        config: &Config,
        bytes: u64,
        groups: u32,
        designs: Designs,
    ) -> Result<Box<dyn AnyTree>> {
        let (device, name, dir) = make_device(config, bytes)?;
        ::uxfs::mkfs_device(Arc::clone(&device), &mkfs_options(config, groups)?, true)
            .map_err(Error::volume)?;
        let options = OpenOptions::new().writable(true).cache_size(CACHE_BYTES).designs(designs);
        let volume = Volume::open_device(Arc::clone(&device), &options).map_err(Error::volume)?;
        let root = volume.open_dir("/").map_err(Error::volume)?;
        let label = Label { target: "uxfs".to_owned(), device: name, locking: named(designs) };
        Ok(Box::new(Named { label, tree: Self { volume, root, device, _dir: dir } }))
    }
}

/// What older designs there are, in place of a locking.
pub(crate) fn named(designs: Designs) -> Option<String> {
    (designs != Designs::default()).then(|| designs.to_string())
}

/// A device of zeroes, its name in reports, and what holds it.
pub(crate) fn make_device(
    config: &Config,
    bytes: u64,
) -> Result<(Arc<dyn BlockDevice>, String, Option<TempDir>)> {
    let image_in = |dir: &TempDir| {
        let image = dir.path().join("image");
        let made = File::create(&image).and_then(|file| file.set_len(bytes));
        made.map_err(Error::host(format!("cannot make {}", image.display()))).map(|()| image)
    };
    Ok(match &config.place {
        VolumePlace::Memory => {
            let device = MemoryOptions::new().huge_pages(true).anonymous(bytes)?;
            (Arc::new(device), "memory".to_owned(), None)
        }
        VolumePlace::Shm => {
            let device = MemoryOptions::new().shmem(true).anonymous(bytes)?;
            (Arc::new(device), "shm".to_owned(), None)
        }
        VolumePlace::Dir(place) => {
            let dir = place_dir(place)?;
            let device = FileDevice::open_writable(&image_in(&dir)?)?;
            (Arc::new(device), place.display().to_string(), Some(dir))
        }
    })
}

impl Tree for UxfsTree {
    type Dir = UxfsDir;

    fn make_dir(&mut self, name: &str) -> Result<UxfsDir> {
        let made = self.root.create_dir(name.as_bytes(), &NewNode::default());
        let dir = made.and_then(|node| node.as_dir()).map_err(Error::volume)?;
        Ok(UxfsDir { dir, volume: self.volume.clone(), new: NewNode::default() })
    }

    fn remove_dir(&mut self, name: &str) -> Result<()> {
        self.root.remove_dir(name.as_bytes()).map_err(Error::volume)
    }

    fn sync(&mut self) -> Result<()> {
        self.volume.sync().map_err(Error::volume)
    }

    fn finish(self, keep: Option<&Path>) -> Result<()> {
        self.volume.close().map_err(Error::volume)?;
        keep.map_or(Ok(()), |path| save(&*self.device, path))
    }
}

/// One of its directories.
pub(crate) struct UxfsDir {
    dir: Dir,
    volume: Volume,
    new: NewNode,
}

impl TreeDir for UxfsDir {
    fn create(&mut self, name: &[u8]) -> Result<()> {
        self.dir.create_file(name, &self.new).map(drop).map_err(Error::volume)
    }

    fn create_durably(&mut self, name: &[u8], content: &[u8]) -> Result<()> {
        let durably = || {
            let file = self.dir.create_file(name, &self.new)?.open()?;
            file.write_at(content, 0)?;
            file.sync()
        };
        durably().map_err(Error::volume)
    }

    fn walk(&mut self, each: &mut dyn FnMut(Seen)) -> Result<()> {
        for entry in self.dir.entries().with_inodes() {
            // By inode number, as every walk in this process does: the name has been looked up already.
            let metadata = entry.and_then(|entry| self.volume.metadata_of(entry.ino));
            let metadata = metadata.map_err(Error::volume)?;
            each(Seen { is_file: metadata.is_file(), size: metadata.size });
        }
        Ok(())
    }

    fn unlink(&mut self, name: &[u8]) -> Result<()> {
        self.dir.remove_file(name).map_err(Error::volume)
    }
}
