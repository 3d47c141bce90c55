//! The same by system calls: a file in a mounted directory, or a device without a file system, opened so that each write is
//! durable before it returns, and past the page cache where that can be.

use super::drive::{Plain, Port, Target};
use super::held::Held;
use super::{device, uxfs};
use crate::error::{Error, Result};
use crate::target::{Label, mount_of};
use blockdev::AlignedBuf;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempPath;

/// Bytes that are written at a time while a file is made.
const CHUNK: usize = 1 << 20;

/// A file or a device, by system calls.
pub(super) struct SysFile {
    file: File,
    label: Label,
    op: &'static str,
    held: Arc<Mutex<Held>>,
    /// The file goes with this; none of a device that is not ours.
    _path: Option<TempPath>,
}

/// Opens for durable writes; the second is whether they are direct.
fn open(path: &Path) -> Result<(File, bool)> {
    let with = |flags: OFlags| {
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)
    };
    if let Ok(file) = with(OFlags::DIRECT | OFlags::DSYNC) {
        return Ok((file, true));
    }
    let file = with(OFlags::DSYNC).map_err(Error::host(format!("cannot open {}", path.display())))?;
    Ok((file, false))
}

impl SysFile {
    /// A new file in a mounted directory, of this many bytes, all written; `suffix` goes to its name in reports.
    pub(super) fn in_dir(dir: &Path, suffix: &str, bytes: u64) -> Result<Self> {
        let place = || Error::host(format!("cannot make a file in {}", dir.display()));
        let made = tempfile::Builder::new().prefix("uxfs-bench-").suffix(".dat").tempfile_in(dir);
        let made = made.map_err(place())?;
        let zeroes = AlignedBuf::zeroed(CHUNK);
        for at in (0..bytes).step_by(CHUNK) {
            let len = (bytes - at).min(CHUNK as u64) as usize;
            made.as_file().write_all_at(&zeroes[..len], at).map_err(place())?;
        }
        made.as_file().sync_all().map_err(place())?;
        let path = made.into_temp_path();
        let (kind, source) = mount_of(&path)?;
        let (file, direct) = open(&path)?;
        let how = if direct { "" } else { " (buffered)" };
        let label = Label {
            target: format!("kernel-{kind}{suffix}"),
            device: format!("{source}{how}"),
            locking: None,
        };
        Ok(Self { file, label, op: uxfs::OP, held: Arc::default(), _path: Some(path) })
    }

    /// A device, or a file in place of one, that others measure too.
    pub(super) fn raw(path: &Path, name: &str, held: &Arc<Mutex<Held>>) -> Result<Self> {
        let (file, direct) = open(path)?;
        let how = if direct { "" } else { " (buffered)" };
        let label = Label { target: "raw".to_owned(), device: format!("{name}{how}"), locking: None };
        Ok(Self { file, label, op: device::OP, held: Arc::clone(held), _path: None })
    }
}

impl Target for SysFile {
    fn label(&self) -> &Label {
        &self.label
    }

    fn op(&self) -> &'static str {
        self.op
    }

    fn held(&self) -> Arc<Mutex<Held>> {
        Arc::clone(&self.held)
    }

    fn ports<'a>(&'a self, threads: usize) -> Result<Vec<Box<dyn Port + 'a>>> {
        let port = |_| {
            Box::new(Plain(|offset, buf: &[u8]| {
                self.file.write_all_at(buf, offset).map_err(Error::host("pwrite"))
            })) as Box<dyn Port + 'a>
        };
        Ok((0..threads).map(port).collect())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(Error::host("pread"))
    }
}
