//! uxfs's own side of a run: a volume in memory or in a file, and its file opened in process.

use crate::config::{Config, VolumePlace};
use crate::content::{Content, PAGE};
use crate::error::{Error, Result};
use crate::setup::{FILE_NAME, make_image};
use crate::suite::{Observer, new_content};
use crate::target::{AnyTarget, Label, Measured, RawTarget, UxfsTarget};
use blockdev::{AlignedBuf, BlockDevice, FileDevice, HostIo, MemoryOptions};
use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use uxfs::{Locking, OpenOptions, Volume};

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// A volume of uxfs's own, with one file.
pub(crate) struct OwnVolume {
    device: Arc<dyn BlockDevice>,
    /// Name of the device in reports.
    name: String,
    /// What the file holds, through whatever target it was written.
    content: Arc<Mutex<Content>>,
    /// Byte on the device at which the file starts.
    base: u64,
    /// Holds the image while the volume is in use; none where it is in memory.
    _dir: Option<TempDir>,
}

impl OwnVolume {
    /// Makes a volume at the place that is asked for.
    pub(crate) fn make(config: &Config) -> Result<Self> {
        let (device, name, dir) = make_device(config)?;
        let base = only_extent(&open_file(&device, Locking::Range)?)?;
        Ok(Self { device, name, content: new_content(config.file_pages()), base, _dir: dir })
    }

    fn label(&self, target: &str, locking: Option<Locking>) -> Label {
        Label {
            target: target.to_owned(),
            device: self.name.clone(),
            locking: locking.map(|locking| locking.to_string()),
        }
    }

    /// The same bytes with no file system between.
    pub(crate) fn raw(&self) -> Box<dyn AnyTarget> {
        let target = RawTarget::new(Arc::clone(&self.device), self.base);
        Box::new(Measured::new(self.label("raw", None), Arc::clone(&self.content), target))
    }

    /// The file, opened in process, through a page cache that has all of it if `buffered`.
    pub(crate) fn target(&self, locking: Locking, buffered: bool) -> Result<Box<dyn AnyTarget>> {
        let device = Arc::clone(&self.device);
        let target = UxfsTarget::new(move || match buffered {
            true => open_cached(&device, locking),
            false => open_file(&device, locking),
        });
        Ok(Box::new(Measured::new(self.label("uxfs", Some(locking)), Arc::clone(&self.content), target)))
    }

    /// What the file holds.
    pub(crate) fn content(&self) -> Content {
        self.content.lock().clone()
    }

    /// Leaves the volume where it is asked for.
    pub(crate) fn finish(self, config: &Config, observer: &mut dyn Observer) -> Result<()> {
        self.device.flush()?;
        if let Some(path) = &config.keep {
            observer.note(&format!("saving the volume as {}", path.display()));
            save(&*self.device, path)?;
        }
        Ok(())
    }
}

/// Opens the volume and its file.
pub(crate) fn open_file(device: &Arc<dyn BlockDevice>, locking: Locking) -> Result<uxfs::File> {
    let options = OpenOptions::new().writable(true).locking(locking);
    let volume = Volume::open_device(Arc::clone(device), &options).map_err(Error::volume)?;
    volume.open_file(format!("/{FILE_NAME}")).map_err(Error::volume)
}

/// The same through a page cache, in which there is nothing yet.
pub(crate) fn open_buffered(device: &Arc<dyn BlockDevice>, locking: Locking) -> Result<uxfs::File> {
    let options = OpenOptions::new().writable(true).locking(locking).cache_size(device.size() * 2);
    let volume = Volume::open_device(Arc::clone(device), &options).map_err(Error::volume)?;
    Ok(volume.open_file(format!("/{FILE_NAME}")).map_err(Error::volume)?.buffered())
}

/// The same, with all of the file read into it.
pub(crate) fn open_cached(device: &Arc<dyn BlockDevice>, locking: Locking) -> Result<uxfs::File> {
    let file = open_buffered(device, locking)?;
    let mut buf = AlignedBuf::zeroed(CHUNK);
    let mut at = 0;
    while at < file.size() {
        at += file.read_at(&mut buf, at).map_err(Error::volume)? as u64;
    }
    Ok(file)
}

/// The byte on the device at which a file starts that lies in one piece, as [`make_image`] makes it.
fn only_extent(file: &uxfs::File) -> Result<u64> {
    let mut extents = file.extents();
    match extents.next().transpose().map_err(Error::volume)? {
        Some(extent) if extent.length >= file.size() && !extent.unwritten => Ok(extent.physical),
        _ => Err(Error::Shape {
            path: FILE_NAME.into(),
            problem: "it is not in one written piece of the new volume".to_owned(),
        }),
    }
}

/// A new directory in `place`.
pub(crate) fn place_dir(place: &Path) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("uxfs-bench-")
        .tempdir_in(place)
        .map_err(Error::host(format!("cannot make a directory in {}", place.display())))
}

/// Makes the image, and opens it as a device.
fn make_device(config: &Config) -> Result<(Arc<dyn BlockDevice>, String, Option<TempDir>)> {
    let shm = Path::new("/dev/shm");
    match &config.place {
        VolumePlace::Memory => {
            let passing = std::env::temp_dir();
            let dir = place_dir(if shm.is_dir() { shm } else { &passing })?;
            let image = dir.path().join("image");
            make_image(&image, config.size)?;
            let size = image.metadata().map_err(Error::host("cannot look at the image"))?.len();
            let device = MemoryOptions::new().huge_pages(true).anonymous(size)?;
            load(&image, &device)?;
            Ok((Arc::new(device), "memory".to_owned(), None))
        }
        VolumePlace::Shm => {
            let dir = place_dir(shm)?;
            let image = dir.path().join("image");
            make_image(&image, config.size)?;
            // Shared memory of this process's own: the file could be cut short by anybody.
            let device = MemoryOptions::new().shmem(true).copy_of(&image)?;
            Ok((Arc::new(device), "shm".to_owned(), None))
        }
        VolumePlace::Dir(place) => {
            let dir = place_dir(place)?;
            let image = dir.path().join("image");
            make_image(&image, config.size)?;
            let device = FileDevice::open_writable(&image)?;
            let how = if device.host_io() == HostIo::Direct { "" } else { " (buffered)" };
            Ok((Arc::new(device), format!("{}{how}", place.display()), Some(dir)))
        }
    }
}

/// Copies a device into a new file and leaves out what is zero.
pub(crate) fn save(device: &dyn BlockDevice, path: &Path) -> Result<()> {
    let host = || Error::host(format!("cannot write {}", path.display()));
    let file = File::create(path).map_err(host())?;
    file.set_len(device.size()).map_err(host())?;
    let mut buf = AlignedBuf::zeroed(CHUNK);
    let mut offset = 0;
    while offset < device.size() {
        let len = (CHUNK as u64).min(device.size() - offset) as usize;
        device.read(offset, &mut buf[..len])?;
        for (nth, page) in buf[..len].chunks(PAGE).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                file.write_all_at(page, offset + (nth * PAGE) as u64).map_err(host())?;
            }
        }
        offset += len as u64;
    }
    Ok(())
}

/// Copies a file into a device that is all zeroes.
fn load(path: &Path, device: &dyn BlockDevice) -> Result<()> {
    let host = || Error::host(format!("cannot read {}", path.display()));
    let file = File::open(path).map_err(host())?;
    let mut buf = AlignedBuf::zeroed(CHUNK);
    let mut offset = 0;
    while offset < device.size() {
        let len = (CHUNK as u64).min(device.size() - offset) as usize;
        file.read_exact_at(&mut buf[..len], offset).map_err(host())?;
        for (nth, page) in buf[..len].chunks(PAGE).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                device.write(offset + (nth * PAGE) as u64, page, blockdev::Durability::Volatile)?;
            }
        }
        offset += len as u64;
    }
    Ok(())
}
