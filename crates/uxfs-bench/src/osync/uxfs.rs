//! A file of a volume that uxfs has open in this process.

use super::drive::{Plain, Port, Target};
use super::held::Held;
use crate::error::{Error, Result};
use crate::target::Label;
use ::uxfs::{AlignedBuf, File, MkfsOptions, NewNode, OpenOptions, Syncing, Volume};
use blockdev::BlockDevice;
use fileio::Flushing;
use parking_lot::Mutex;
use std::sync::Arc;

/// In reports, what is written to a file.
pub(super) const OP: &str = "file write";

/// Bytes that are written at a time while the file is made.
const CHUNK: usize = 1 << 20;

/// A file whose blocks are its own, of a volume on a device whose flushes are shared in a way that can be chosen.
pub(super) struct VolumeFile {
    volume: Volume,
    file: File,
    label: Label,
    held: Arc<Mutex<Held>>,
}

/// Makes a volume on a device, with a file of this many bytes in it.
pub(super) fn format(device: &Arc<dyn BlockDevice>, bytes: u64) -> Result<()> {
    let options = MkfsOptions::new().block_size(4096).sector_size(4096);
    ::uxfs::mkfs_device(Arc::clone(device), &options, true).map_err(Error::volume)?;
    let options = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(device), &options).map_err(Error::volume)?;
    let made = make_file(&volume, bytes).map_err(Error::volume);
    made.and(volume.close().map_err(Error::volume))
}

fn make_file(volume: &Volume, bytes: u64) -> ::uxfs::Result<()> {
    let root = volume.root()?.as_dir()?;
    let file = root.create_file(crate::FILE_NAME.as_bytes(), &NewNode::default())?.open()?;
    file.allocate(0..bytes, false)?;
    let zeroes = AlignedBuf::zeroed(CHUNK);
    (0..bytes).step_by(CHUNK).try_for_each(|at| {
        let len = (bytes - at).min(CHUNK as u64) as usize;
        file.write_at(&zeroes[..len], at)
    })
}

impl VolumeFile {
    /// The file on a device that [`format`] has made it on.
    pub(super) fn open(device: &Arc<dyn BlockDevice>, name: &str, flushing: Flushing) -> Result<Self> {
        let options = OpenOptions::new().writable(true).flushing(flushing);
        let volume = Volume::open_device(Arc::clone(device), &options).map_err(Error::volume)?;
        let file = volume.open_file(format!("/{}", crate::FILE_NAME)).map_err(Error::volume)?;
        let file = file.syncing(Syncing::Data);
        let locking = Some(flushing.name().to_owned());
        let label = Label { target: "uxfs".to_owned(), device: name.to_owned(), locking };
        Ok(Self { volume, file, label, held: Arc::default() })
    }

    /// Overwrites, and returns when that is durable.
    fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.file.overwrite_at(buf, offset).map_err(Error::volume)
    }
}

impl Target for VolumeFile {
    fn label(&self) -> &Label {
        &self.label
    }

    fn op(&self) -> &'static str {
        OP
    }

    fn held(&self) -> Arc<Mutex<Held>> {
        Arc::clone(&self.held)
    }

    fn ports<'a>(&'a self, threads: usize) -> Result<Vec<Box<dyn Port + 'a>>> {
        let port =
            |_| Box::new(Plain(|offset, buf: &[u8]| self.write_durably(offset, buf))) as Box<dyn Port + 'a>;
        Ok((0..threads).map(port).collect())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.file.read_at(buf, offset) {
            Ok(count) if count == buf.len() => Ok(()),
            Ok(count) => Err(Error::Usage(format!("the file ended {count} bytes into a read"))),
            Err(error) => Err(Error::volume(error)),
        }
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        // What was measured is durable; a volume that cannot be closed has said so before.
        let _ = self.volume.clone().close();
    }
}
