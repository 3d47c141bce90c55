//! A file in any mounted directory, by system calls.
//!
//! Direct I/O where it is asked for and the file system takes it; buffered where not, which the label says. The file is new, is
//! allocated and written before anything is measured, and is gone when the target is dropped.

use super::{At, DeviceQueue, Label, Port, QueuePort, Target, scan_with};
use crate::content::PAGE;
use crate::error::{Error, Result};
use crate::work::Work;
use blockdev::{BlockDevice, FileDevice};
use rustix::fs::{FallocateFlags, OFlags};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::{NamedTempFile, TempPath};

/// A file in a mounted directory.
#[derive(Debug)]
pub struct SysTarget {
    file: File,
    path: TempPath,
    direct: bool,
    /// For queues: the file through the same code that uxfs uses for its images.
    device: Arc<FileDevice>,
}

impl SysTarget {
    /// A new file of this many pages in `dir`, allocated and not yet written.
    pub fn create(dir: &Path, pages: u64, buffered: bool) -> Result<Self> {
        let place = || format!("cannot make a file in {}", dir.display());
        let bytes = pages * PAGE as u64;
        let temp = new_file(dir)?;
        match rustix::fs::fallocate(temp.as_file(), FallocateFlags::empty(), 0, bytes) {
            // Writing allocates too; a file system without preallocation is no worse for it here.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                temp.as_file().set_len(bytes).map_err(Error::host(place()))?;
            }
            Err(error) => return Err(Error::host(place())(error.into())),
            Ok(()) => {}
        }
        Self::open(temp, buffered)
    }

    /// A new and empty file in `dir`.
    pub(crate) fn empty(dir: &Path) -> Result<Self> {
        Self::open(new_file(dir)?, false)
    }

    /// Has `to`, which is empty, share all that this file holds.
    pub(crate) fn share(&self, to: &Self) -> Result<()> {
        rustix::fs::ioctl_ficlone(&to.file, &self.file).map_err(|error| Error::host("FICLONE")(error.into()))
    }

    fn open(temp: NamedTempFile, buffered: bool) -> Result<Self> {
        let path = temp.into_temp_path();
        let place = || format!("cannot open {}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&path);
        let (file, direct) = match direct {
            Ok(file) if !buffered => (file, true),
            _ => (options.open(&path).map_err(Error::host(place()))?, false),
        };
        let device = Arc::new(FileDevice::open_writable(&path)?);
        Ok(Self { file, path, direct, device })
    }

    /// Its name in reports: the type of the file system and a suffix, and the device that this lies on.
    pub fn label(&self, suffix: &str) -> Result<Label> {
        let (target, source) = mount_of(&self.path)?;
        let how = if self.direct { "" } else { " (buffered)" };
        Ok(Label {
            target: format!("kernel-{target}{suffix}"),
            device: format!("{source}{how}"),
            locking: None,
        })
    }
}

/// A new file in `dir`.
fn new_file(dir: &Path) -> Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix("uxfs-bench-")
        .suffix(".dat")
        .tempfile_in(dir)
        .map_err(Error::host(format!("cannot make a file in {}", dir.display())))
}

/// The type and the source of the mount that holds `path`; of a loop device, also where its file is.
pub(crate) fn mount_of(path: &Path) -> Result<(String, String)> {
    let path = path.canonicalize().map_err(Error::host(format!("cannot resolve {}", path.display())))?;
    let mounts =
        std::fs::read_to_string("/proc/self/mounts").map_err(Error::host("cannot list the mounts"))?;
    let best = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (source, dir, kind) = (fields.next()?, fields.next()?, fields.next()?);
            // Blanks in names are written \040; no file system that is measured here needs more.
            let dir = PathBuf::from(dir.replace("\\040", " "));
            path.starts_with(&dir).then(|| (dir.components().count(), kind.to_owned(), source.to_owned()))
        })
        // Of mounts on one directory the last one covers the others.
        .max_by_key(|&(depth, ..)| depth);
    let (kind, source) =
        best.map_or_else(|| ("?".to_owned(), "?".to_owned()), |(_, kind, source)| (kind, source));
    Ok((kind, place_of_loop(&source).map_or_else(|| source.clone(), |dir| format!("{source} in {dir}"))))
}

/// The directory of a loop device's file.
fn place_of_loop(source: &str) -> Option<String> {
    let name = source.strip_prefix("/dev/").filter(|name| name.starts_with("loop"))?;
    let file = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(Path::new(file.trim_end()).parent()?.display().to_string())
}

/// A thread's way to the file: all threads use one open file.
pub struct SysPort<'a>(&'a File);

impl Port for SysPort<'_> {
    fn read(&mut self, at: At, buf: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(buf, at.offset).map_err(Error::host("pread"))
    }

    fn write(&mut self, at: At, buf: &[u8]) -> Result<()> {
        self.0.write_all_at(buf, at.offset).map_err(Error::host("pwrite"))
    }
}

impl Target for SysTarget {
    type Port<'a> = SysPort<'a>;

    fn ports<'a>(&'a mut self, work: &Work<'_>) -> Result<Vec<SysPort<'a>>> {
        Ok((0..work.threads).map(|_| SysPort(&self.file)).collect())
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn QueuePort + '_>> {
        Ok(Box::new(DeviceQueue { queue: Arc::clone(&self.device).queue(depth)?, base: 0 }))
    }

    fn scan(&mut self, pages: u64, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let file = &self.file;
        scan_with(pages, |offset, buf| file.read_exact_at(buf, offset).map_err(Error::host("pread")), each)
    }
}
