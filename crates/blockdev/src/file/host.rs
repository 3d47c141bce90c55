//! What the host says about a file: its kind, size and sectors, and whether direct I/O works.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::lock::{self, Lock};
use crate::{AlignedBuf, DeviceError, Storage};

/// `f_type` of a file system that keeps its files in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// An open file, and what a device needs to know of it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub file: File,
    pub storage: Storage,
    pub is_block: bool,
    /// Smallest sector that the host offers: a disk's logical block, 512 for a file.
    pub sector_min: u32,
    /// Unit of direct transfers in bytes; `None` if they are not possible or not wanted.
    pub direct_unit: Option<u32>,
}

/// Opens a regular file or a block device, nothing else (opening a FIFO could wait for ever).
pub(crate) fn open(path: &Path, write: bool, want_direct: bool) -> Result<Opened, DeviceError> {
    let fail = |e: Errno| match e {
        // A block device that is mounted, or claimed by another process.
        Errno::BUSY => DeviceError::Locked,
        e => DeviceError::setup(format!("opening {}", path.display()), e),
    };
    let kind = FileType::from_raw_mode(rustix::fs::stat(path).map_err(fail)?.st_mode);
    let is_block = kind_is_block(path, kind)?;
    let mut flags = OFlags::CLOEXEC | if write { OFlags::RDWR } else { OFlags::RDONLY };
    if is_block && write {
        flags |= OFlags::EXCL;
    }
    let open_with = |flags| retry(|| rustix::fs::open(path, flags, Mode::empty()));
    let looked_at = if write { others_are_out(path, is_block, open_with)? } else { None };
    let direct = if want_direct { open_with(flags | OFlags::DIRECT) } else { Err(Errno::INVAL) };
    let (fd, is_direct) = match direct {
        Ok(fd) => (fd, true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => (open_with(flags).map_err(fail)?, false),
        Err(e) => return Err(fail(e)),
    };
    let file = File::from(fd);
    let stat = rustix::fs::fstat(&file).map_err(fail)?;
    let now = FileType::from_raw_mode(stat.st_mode);
    let is_another = looked_at.is_some_and(|(device, inode)| (device, inode) != (stat.st_dev, stat.st_ino));
    if kind_is_block(path, now)? != is_block || is_another {
        return Err(DeviceError::Replaced);
    }
    let storage =
        if is_block { Storage::Disk(stat.st_rdev) } else { Storage::File(stat.st_dev, stat.st_ino) };
    if write && is_read_only(storage) {
        return Err(DeviceError::ReadOnly);
    }
    let sector_min = if is_block { rustix::fs::ioctl_blksszget(&file).map_err(fail)? } else { 512 };
    let direct_unit = if is_direct { probe_direct(&file, sector_min).map_err(fail)? } else { None };
    if is_direct && direct_unit.is_none() {
        clear_direct(&file).map_err(fail)?;
    }
    Ok(Opened { file, storage, is_block, sector_min, direct_unit })
}

/// How many bytes a file or a block device has. Writers ask after they have the lock: another writer may have changed
/// it before.
pub(crate) fn size(file: &File) -> Result<u64, DeviceError> {
    rustix::fs::seek(file, SeekFrom::End(0)).map_err(|e| DeviceError::setup("asking for the size", e))
}

/// The first data at or after a byte. `None`: the rest is a hole.
pub(crate) fn next_data(file: &File, from: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(at) => Some(at),
        Err(Errno::NXIO) => None,
        Err(_) => Some(from),
    }
}

/// The next hole at or after a byte; the end counts as one. `None`: the host does not say.
pub(crate) fn next_hole(file: &File, from: u64) -> Option<u64> {
    rustix::fs::seek(file, SeekFrom::Hole(from)).ok()
}

/// Whether a disk refuses writes though it can be opened for writing: a read-only loop device, a write-protected card.
fn is_read_only(storage: Storage) -> bool {
    let Storage::Disk(number) = storage else { return false };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let said = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    said.is_ok_and(|said| said.trim() == "1")
}

/// Whether a disk has durable writes that are cheaper than a flush: it supports them, or has no cache. For a file
/// this is unknown, and one flush serves many writes.
pub(crate) fn has_fua(storage: Storage) -> bool {
    let Storage::Disk(number) = storage else { return false };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let disk = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // A partition has what its disk has, one folder up.
    let asked = |what: &str| {
        [disk.join("queue"), disk.join("../queue")]
            .iter()
            .find_map(|queue| std::fs::read_to_string(queue.join(what)).ok())
    };
    let is = |what, value| asked(what).is_some_and(|found| found.trim() == value);
    is("fua", "1") || is("write_cache", "write through")
}

/// Checks, before a file is opened for writing, that no one else has it open for writing or locked: once it is open,
/// this process is one of them. Gives the device and inode number of the file that was looked at.
fn others_are_out(
    path: &Path,
    is_block: bool,
    open_with: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
) -> Result<Option<(u64, u64)>, DeviceError> {
    // If we may not read it, the open below reports that.
    let Ok(fd) = open_with(OFlags::CLOEXEC | OFlags::NONBLOCK) else { return Ok(None) };
    let file = File::from(fd);
    if is_block {
        crate::elsewhere::refuse_locked(&file)?;
        return Ok(None);
    }
    crate::elsewhere::refuse_open(&file, path)?;
    Ok(file.metadata().ok().map(|of| (of.dev(), of.ino())))
}

/// What must hold before a file is written: no other process writes it, nor does the kernel. (It has claimed a block
/// device by being opened, but not what loop devices have of the same bytes.)
pub(crate) fn keep_others_out(opened: &Opened, path: &Path) -> Result<Lock, DeviceError> {
    let lock = lock::lock_for_writing(&opened.file, opened.storage)?;
    match opened.storage {
        Storage::Disk(number) => crate::in_use::refuse_layered(number)?,
        _ => {
            crate::in_use::refuse_attached(&opened.file, path)?;
            is_still_there(path, opened.storage)?;
        }
    }
    Ok(lock)
}

/// The last holder of the lock may have removed or replaced the file: then writes to it would be lost.
pub(crate) fn is_still_there(path: &Path, opened: Storage) -> Result<(), DeviceError> {
    let now = rustix::fs::stat(path).map(|stat| Storage::File(stat.st_dev, stat.st_ino));
    if now == Ok(opened) { Ok(()) } else { Err(DeviceError::Replaced) }
}

fn kind_is_block(path: &Path, kind: FileType) -> Result<bool, DeviceError> {
    match kind {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        FileType::Directory => Err(DeviceError::setup(
            format!("opening {}", path.display()),
            io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"),
        )),
        _ => Err(DeviceError::invalid(
            format!("opening {}", path.display()),
            "it is neither a regular file nor a block device",
        )),
    }
}

/// The unit of direct transfers: what the host says, or else what a read shows to work.
fn probe_direct(file: &File, sector_min: u32) -> Result<Option<u32>, Errno> {
    let said = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = said.filter(|s| s.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    if let Some(s) = told {
        if s.stx_dio_offset_align == 0 || s.stx_dio_mem_align as usize > AlignedBuf::ALIGN {
            return Ok(None);
        }
        return Ok(Some(s.stx_dio_offset_align.max(sector_min)));
    }
    let size = rustix::fs::seek(file, SeekFrom::End(0))?;
    let mut buf = AlignedBuf::zeroed(4096);
    for unit in [sector_min, 4096] {
        if u64::from(unit) > size {
            break;
        }
        match retry(|| rustix::io::pread(file, &mut buf[..unit as usize], 0)) {
            Ok(_) => return Ok(Some(unit)),
            Err(Errno::INVAL) => {}
            // A bad first sector is for whoever reads it to report.
            Err(_) => return Ok(Some(unit)),
        }
    }
    Ok(None)
}

/// Sends transfers through the page cache from now on.
pub(crate) fn clear_direct(file: &File) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)
}

/// Whether the file is kept in memory alone.
pub(crate) fn is_tmpfs(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| s.f_type == TMPFS_MAGIC as _)
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
