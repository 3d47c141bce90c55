//! Whole requests out of system calls that may do less than they were asked for.
//!
//! Direct transfers need aligned buffers: others go piecewise through one aligned buffer per thread.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice};

use rustix::io::{Errno, ReadWriteFlags};

use super::HostIo;
use super::host::retry;
use crate::{AlignedBuf, DeviceError, Durability};

/// Size of a thread's bounce buffer, a multiple of every sector size.
const BOUNCE_BYTES: usize = 256 * 1024;
/// Address alignment that every host accepts for direct transfers.
const DIRECT_ALIGN: usize = 4096;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(BOUNCE_BYTES));
}

fn needs_bounce(io: HostIo, address: *const u8) -> bool {
    io == HostIo::Direct && !(address as usize).is_multiple_of(DIRECT_ALIGN)
}

/// Fills `buf` from byte `offset` of the file.
pub(super) fn read(file: &File, io: HostIo, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
    let len = buf.len();
    let fail = |e: io::Error| DeviceError::io("read", offset, len, e);
    if !needs_bounce(io, buf.as_ptr()) {
        return read_all(file, offset, buf).map_err(fail);
    }
    BOUNCE.with_borrow_mut(|bounce| {
        let mut at = offset;
        for piece in buf.chunks_mut(BOUNCE_BYTES) {
            let aligned = &mut bounce[..piece.len()];
            read_all(file, at, aligned).map_err(fail)?;
            piece.copy_from_slice(aligned);
            at += piece.len() as u64;
        }
        Ok(())
    })
}

/// Writes `buf` at byte `offset` of the file.
pub(super) fn write(
    file: &File,
    io: HostIo,
    offset: u64,
    buf: &[u8],
    durability: Durability,
) -> Result<(), DeviceError> {
    let fail = |e: io::Error| DeviceError::io("write", offset, buf.len(), e);
    if !needs_bounce(io, buf.as_ptr()) {
        return write_all(file, offset, buf, durability).map_err(fail);
    }
    BOUNCE.with_borrow_mut(|bounce| {
        let mut at = offset;
        for piece in buf.chunks(BOUNCE_BYTES) {
            let aligned = &mut bounce[..piece.len()];
            aligned.copy_from_slice(piece);
            write_all(file, at, aligned, durability).map_err(fail)?;
            at += piece.len() as u64;
        }
        Ok(())
    })
}

/// Makes completed writes durable; a device that has no flush says so and is believed.
pub(super) fn flush(file: &File) -> Result<(), DeviceError> {
    match retry(|| rustix::fs::fdatasync(file)) {
        Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
        Err(e) => Err(DeviceError::io("flush", 0, 0, e)),
    }
}

fn read_all(file: &File, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        let got = retry(|| rustix::io::pread(file, &mut *buf, offset))?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf = &mut buf[got..];
        offset += got as u64;
    }
    Ok(())
}

fn write_all(file: &File, mut offset: u64, mut buf: &[u8], durability: Durability) -> io::Result<()> {
    while !buf.is_empty() {
        let put = match durability {
            Durability::Volatile => retry(|| rustix::io::pwrite(file, buf, offset))?,
            Durability::Fua => write_fua(file, offset, buf)?,
        };
        if put == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        buf = &buf[put..];
        offset += put as u64;
    }
    Ok(())
}

/// One durable write; a host that cannot do it in one call gets a write and a sync.
fn write_fua(file: &File, offset: u64, buf: &[u8]) -> io::Result<usize> {
    let slices = [IoSlice::new(buf)];
    match retry(|| rustix::io::pwritev2(file, &slices, offset, ReadWriteFlags::DSYNC)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let put = retry(|| rustix::io::pwrite(file, buf, offset))?;
            retry(|| rustix::fs::fdatasync(file))?;
            Ok(put)
        }
        other => Ok(other?),
    }
}
