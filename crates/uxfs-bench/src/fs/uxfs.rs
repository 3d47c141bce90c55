//! A volume that uxfs has open in this process.

use super::scene::Site;
use super::{Directory, FileSystem, OpenFile, Seen};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fsmark::{make_device, named};
use crate::setup::mkfs_options;
use crate::target::Label;
use ::uxfs::{Designs, Dir, File, Metadata, NewNode, OpenOptions, Rename, Volume};
use std::ops::ControlFlow;
use std::sync::Arc;
use tempfile::TempDir;

/// Bytes of caches: as much as the machine has, as the kernel's have, which writes back from a tenth of that on (uxfs from an
/// eighth).
fn cache_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit) * 8 / 10
}

/// A volume of uxfs's own.
pub(crate) struct UxfsFs {
    volume: Volume,
    /// Holds the image; none where it is in anonymous memory.
    _dir: Option<TempDir>,
}

fn seen(metadata: &Metadata) -> Seen {
    Seen { is_dir: metadata.is_dir(), size: metadata.size }
}

impl UxfsFs {
    /// A new volume at the place that is asked for, with a journal of these designs.
    pub(crate) fn make(config: &Config, bytes: u64, groups: u32, designs: Designs) -> Result<Site<Self>> {
        let (device, name, dir) = make_device(config, bytes)?;
        let options = mkfs_options(config, groups)?;
        ::uxfs::mkfs_device(Arc::clone(&device), &options, true).map_err(Error::volume)?;
        let options = OpenOptions::new().writable(true).cache_size(cache_bytes()).designs(designs);
        let volume = Volume::open_device(device, &options).map_err(Error::volume)?;
        let label = Label { target: "uxfs".to_owned(), device: name, locking: named(designs) };
        Ok(Site { label, fs: Self { volume, _dir: dir } })
    }
}

impl Site<UxfsFs> {
    /// Closes the volume.
    pub(crate) fn finish(self) -> Result<()> {
        self.fs.volume.close().map_err(Error::volume)
    }
}

impl FileSystem for UxfsFs {
    type Dir = UxfsDir;

    fn root(&self) -> Result<UxfsDir> {
        let dir = self.volume.open_dir("/").map_err(Error::volume)?;
        Ok(UxfsDir { dir, new: NewNode::default() })
    }

    fn look(&self, path: &[u8]) -> Result<Seen> {
        self.volume.metadata(path).map(|metadata| seen(&metadata)).map_err(Error::volume)
    }

    fn sync(&self) -> Result<()> {
        self.volume.sync().map_err(Error::volume)
    }
}

/// One of its directories.
pub(crate) struct UxfsDir {
    dir: Dir,
    /// What new files are made with.
    new: NewNode,
}

impl UxfsDir {
    /// Has `of` look at what has this name; none if nothing has.
    fn find<R>(&self, name: &[u8], of: impl FnOnce(::uxfs::Node) -> ::uxfs::Result<R>) -> Result<Option<R>> {
        let found = self.dir.lookup(name).and_then(|node| node.map(of).transpose());
        found.map_err(Error::volume)
    }
}

/// The error for a missing name.
fn missing(name: &[u8]) -> Error {
    Error::Usage(format!("{} is not there", String::from_utf8_lossy(name)))
}

impl Directory for UxfsDir {
    type File = File;

    fn reopen(&self) -> Result<Self> {
        let dir = self.dir.node().as_dir().map_err(Error::volume)?;
        Ok(Self { dir, new: NewNode::default() })
    }

    fn make(&self, name: &[u8]) -> Result<()> {
        self.dir.create_file(name, &self.new).map(drop).map_err(Error::volume)
    }

    fn create(&self, name: &[u8]) -> Result<File> {
        let made = self.dir.create_file(name, &self.new).and_then(|node| node.open());
        made.map(|file| file.buffered()).map_err(Error::volume)
    }

    fn open(&self, name: &[u8]) -> Result<File> {
        self.find(name, |node| node.open().map(|file| file.buffered()))?.ok_or_else(|| missing(name))
    }

    fn make_dir(&self, name: &[u8]) -> Result<Self> {
        let made = self.dir.create_dir(name, &self.new).and_then(|node| node.as_dir());
        Ok(Self { dir: made.map_err(Error::volume)?, new: NewNode::default() })
    }

    fn open_dir(&self, name: &[u8]) -> Result<Self> {
        let dir = self.find(name, |node| node.as_dir())?.ok_or_else(|| missing(name))?;
        Ok(Self { dir, new: NewNode::default() })
    }

    fn look(&self, name: &[u8]) -> Result<Option<Seen>> {
        self.find(name, |node| node.metadata().map(|metadata| seen(&metadata)))
    }

    fn list(&self, each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<()> {
        for entry in self.dir.entries() {
            if each(&entry.map_err(Error::volume)?.name).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        self.dir.rename(name, &to.dir, new_name, Rename::Replace).map_err(Error::volume)
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.dir.remove_file(name).map_err(Error::volume)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.dir.remove_dir(name).map_err(Error::volume)
    }
}

impl OpenFile for File {
    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.read_at(buf, offset) {
            Ok(count) if count == buf.len() => Ok(()),
            Ok(count) => {
                Err(Error::Usage(format!("the file ended {count} bytes into a request of {}", buf.len())))
            }
            Err(error) => Err(Error::volume(error)),
        }
    }

    #[inline]
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write_at(buf, offset).map_err(Error::volume)
    }

    fn set_len(&self, size: u64) -> Result<()> {
        Self::set_len(self, size).map_err(Error::volume)
    }

    fn size(&self) -> Result<u64> {
        Ok(Self::size(self))
    }

    fn sync(&self) -> Result<()> {
        Self::sync(self).map_err(Error::volume)
    }
}
