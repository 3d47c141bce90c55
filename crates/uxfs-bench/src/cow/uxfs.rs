//! Files that share blocks on a volume that uxfs has open in this process.

use super::{AnySite, Named, Site};
use crate::config::Config;
use crate::content::PAGE;
use crate::error::{Error, Result};
use crate::fsmark::make_device;
use crate::setup::mkfs_options;
use crate::target::{Label, UxfsTarget};
use ::uxfs::{AlignedBuf, Dir, NewNode, OpenOptions, Volume};
use std::sync::Arc;
use tempfile::TempDir;

/// Bytes that are written at a time to a new file.
const CHUNK: usize = 1 << 20;

/// A volume of uxfs's own.
pub(super) struct UxfsSite {
    volume: Volume,
    root: Dir,
    /// Files that were made.
    made: u64,
    /// Holds the image; none where it is in anonymous memory.
    _dir: Option<TempDir>,
}

impl UxfsSite {
    /// A new volume at the place that is asked for.
    pub(super) fn make(config: &Config, bytes: u64, groups: u32) -> Result<Box<dyn AnySite>> {
        let (device, name, dir) = make_device(config, bytes)?;
        ::uxfs::mkfs_device(Arc::clone(&device), &mkfs_options(config, groups)?, true)
            .map_err(Error::volume)?;
        let volume =
            Volume::open_device(device, &OpenOptions::new().writable(true)).map_err(Error::volume)?;
        let root = volume.open_dir("/").map_err(Error::volume)?;
        let label = Label { target: "uxfs".to_owned(), device: name, locking: None };
        Ok(Box::new(Named { label, site: Self { volume, root, made: 0, _dir: dir } }))
    }
}

impl Site for UxfsSite {
    type File = UxfsTarget;

    fn create(&mut self, pages: u64) -> Result<UxfsTarget> {
        let target = self.empty()?;
        let (file, bytes) = (target.file()?, pages * PAGE as u64);
        file.allocate(0..bytes, false).map_err(Error::volume)?;
        let zeroes = AlignedBuf::zeroed(CHUNK);
        for at in (0..bytes).step_by(CHUNK) {
            let len = (bytes - at).min(CHUNK as u64) as usize;
            file.write_at(&zeroes[..len], at).map_err(Error::volume)?;
        }
        Ok(target)
    }

    fn empty(&mut self) -> Result<UxfsTarget> {
        self.made += 1;
        let name = format!("file-{}", self.made);
        let node = self.root.create_file(name.as_bytes(), &NewNode::default()).map_err(Error::volume)?;
        Ok(UxfsTarget::opened(node.open().map_err(Error::volume)?))
    }

    fn share(&mut self, file: &UxfsTarget, to: &UxfsTarget) -> Result<()> {
        file.file()?.clone_range(0, to.file()?, 0, 0).map_err(Error::volume)
    }

    fn sync(&mut self) -> Result<()> {
        self.volume.sync().map_err(Error::volume)
    }

    fn remove(&mut self, file: UxfsTarget) -> Result<()> {
        let ino = file.file()?.node().ino();
        drop(file);
        let named = self.root.entries().find(|entry| entry.as_ref().map_or(true, |entry| entry.ino == ino));
        let Some(entry) = named.transpose().map_err(Error::volume)? else { return Ok(()) };
        self.root.remove_file(&entry.name).map_err(Error::volume)
    }

    fn finish(self) -> Result<()> {
        self.volume.close().map_err(Error::volume)
    }
}
