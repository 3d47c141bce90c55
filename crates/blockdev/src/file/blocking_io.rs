//! Whole requests from system calls that may transfer less than was asked for.
//!
//! Direct transfers need aligned buffers. Other buffers go piecewise through an aligned buffer of the thread. A request
//! continues at a whole sector: a part of a sector is transferred again.

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
/// This many calls in a row may transfer less than a sector each.
const FRUITLESS_MAX: u32 = 8;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(BOUNCE_BYTES));
}

/// The system calls.
pub(super) trait Calls {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno>;
    fn write(&self, buf: &[u8], offset: u64) -> Result<usize, Errno>;
    /// A write that is durable when it returns.
    fn write_durably(&self, buf: &[u8], offset: u64) -> Result<usize, Errno>;
    fn sync(&self) -> Result<(), Errno>;
}

impl Calls for File {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        retry(|| rustix::io::pread(self, &mut *buf, offset))
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        retry(|| rustix::io::pwrite(self, buf, offset))
    }

    fn write_durably(&self, buf: &[u8], offset: u64) -> Result<usize, Errno> {
        let slices = [IoSlice::new(buf)];
        retry(|| rustix::io::pwritev2(self, &slices, offset, ReadWriteFlags::DSYNC))
    }

    fn sync(&self) -> Result<(), Errno> {
        retry(|| rustix::fs::fdatasync(self))
    }
}

/// The progress of a request.
pub(crate) struct Progress {
    len: usize,
    done: usize,
    /// Calls must begin at a multiple of this.
    unit: usize,
    fruitless: u32,
}

impl Progress {
    /// Nothing of `len` bytes is done; calls begin at multiples of `unit`, a power of two.
    pub(crate) fn new(len: usize, unit: usize) -> Self {
        Self { len, done: 0, unit, fruitless: 0 }
    }

    /// Bytes that are done: whole units, except at the end.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    pub(crate) fn is_over(&self) -> bool {
        self.done == self.len
    }

    /// Counts what a call transferred that began at [`done`](Self::done). `false`: there is no progress.
    pub(crate) fn advance(&mut self, bytes: usize) -> bool {
        let total = (self.done + bytes).min(self.len);
        let whole = if total == self.len { total } else { total & !(self.unit - 1) };
        let is_further = whole > self.done;
        self.done = whole;
        self.fruitless = if is_further { 0 } else { self.fruitless + 1 };
        is_further || bytes > 0 && self.fruitless < FRUITLESS_MAX
    }
}

fn needs_bounce(io: HostIo, address: *const u8) -> bool {
    io == HostIo::Direct && !(address as usize).is_multiple_of(DIRECT_ALIGN)
}

/// Where a call may begin.
fn unit(io: HostIo, sector: u32) -> usize {
    if io == HostIo::Direct { sector as usize } else { 1 }
}

/// Fills `buf` from byte `offset` of the file.
pub(super) fn read(
    file: &impl Calls,
    io: HostIo,
    sector: u32,
    offset: u64,
    buf: &mut [u8],
) -> Result<(), DeviceError> {
    let len = buf.len();
    let fail = |e: io::Error| DeviceError::io("read", offset, len, e);
    let mut progress = Progress::new(len, unit(io, sector));
    while !progress.is_over() {
        let at = offset + progress.done() as u64;
        let rest = &mut buf[progress.done()..];
        let got = if needs_bounce(io, rest.as_ptr()) {
            BOUNCE.with_borrow_mut(|bounce| {
                let now = rest.len().min(BOUNCE_BYTES);
                let got = file.read(&mut bounce[..now], at)?.min(now);
                rest[..got].copy_from_slice(&bounce[..got]);
                Ok(got)
            })
        } else {
            file.read(rest, at)
        };
        if !progress.advance(got.map_err(|e: Errno| fail(e.into()))?) {
            return Err(fail(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    Ok(())
}

/// Writes `buf` at byte `offset` of the file.
pub(super) fn write(
    file: &impl Calls,
    io: HostIo,
    sector: u32,
    offset: u64,
    buf: &[u8],
    durability: Durability,
) -> Result<(), DeviceError> {
    let fail = |e: io::Error| DeviceError::io("write", offset, buf.len(), e);
    let mut progress = Progress::new(buf.len(), unit(io, sector));
    while !progress.is_over() {
        let at = offset + progress.done() as u64;
        let rest = &buf[progress.done()..];
        let put = if needs_bounce(io, rest.as_ptr()) {
            BOUNCE.with_borrow_mut(|bounce| {
                let now = rest.len().min(BOUNCE_BYTES);
                bounce[..now].copy_from_slice(&rest[..now]);
                write_once(file, &bounce[..now], at, durability)
            })
        } else {
            write_once(file, rest, at, durability)
        };
        if !progress.advance(put.map_err(|e| fail(e.into()))?) {
            return Err(fail(io::ErrorKind::WriteZero.into()));
        }
    }
    Ok(())
}

/// Makes completed writes durable. A device without a flush is no error.
pub(super) fn flush(file: &impl Calls) -> Result<(), DeviceError> {
    sync(file).map_err(|e| DeviceError::io("flush", 0, 0, e))
}

fn sync(file: &impl Calls) -> Result<(), Errno> {
    match file.sync() {
        Err(e) if has_no_flush(e) => Ok(()),
        other => other,
    }
}

/// Whether this error says that the file cannot be flushed.
pub(crate) fn has_no_flush(e: Errno) -> bool {
    matches!(e, Errno::INVAL | Errno::NOTSUP)
}

/// Whether this error says that the host has no durable writes. If the request is wrong in another way, a plain write
/// shows it.
pub(crate) fn has_no_fua(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

/// One write; a host that cannot do a durable one in one call gets a write and a sync.
fn write_once(file: &impl Calls, buf: &[u8], offset: u64, durability: Durability) -> Result<usize, Errno> {
    if durability == Durability::Volatile {
        return file.write(buf, offset);
    }
    match file.write_durably(buf, offset) {
        Err(e) if has_no_fua(e) => {
            let put = file.write(buf, offset)?;
            sync(file)?;
            Ok(put)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const SECTOR: u32 = 512;

    /// A host that transfers less than it was asked for, and nothing at an unaligned place.
    struct Meager {
        bytes: RefCell<Vec<u8>>,
        /// The most that each call transfers, in turn.
        at_most: Vec<usize>,
        calls: Cell<usize>,
        fua: Result<(), Errno>,
        flush: Result<(), Errno>,
        synced: Cell<u32>,
    }

    impl Meager {
        fn new(at_most: &[usize]) -> Self {
            let bytes = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
            Self {
                bytes: RefCell::new(bytes),
                at_most: at_most.to_vec(),
                calls: Cell::new(0),
                fua: Ok(()),
                flush: Ok(()),
                synced: Cell::new(0),
            }
        }

        /// How much of a request is done.
        fn allows(&self, address: *const u8, len: usize, offset: u64) -> Result<usize, Errno> {
            if !(address as usize | len | offset as usize).is_multiple_of(SECTOR as usize) {
                return Err(Errno::INVAL);
            }
            let call = self.calls.replace(self.calls.get() + 1);
            assert!(call < 10_000, "it goes on for ever");
            Ok(len.min(self.at_most[call % self.at_most.len()]))
        }
    }

    impl Calls for Meager {
        fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
            let len = self.allows(buf.as_ptr(), buf.len(), offset)?;
            buf[..len].copy_from_slice(&self.bytes.borrow()[offset as usize..][..len]);
            Ok(len)
        }

        fn write(&self, buf: &[u8], offset: u64) -> Result<usize, Errno> {
            let len = self.allows(buf.as_ptr(), buf.len(), offset)?;
            self.bytes.borrow_mut()[offset as usize..][..len].copy_from_slice(&buf[..len]);
            Ok(len)
        }

        fn write_durably(&self, buf: &[u8], offset: u64) -> Result<usize, Errno> {
            self.fua?;
            self.write(buf, offset)
        }

        fn sync(&self) -> Result<(), Errno> {
            self.synced.set(self.synced.get() + 1);
            self.flush
        }
    }

    /// After a count that was not whole sectors, the next call began in the middle of a sector, and failed.
    #[test]
    fn a_transfer_goes_on_where_a_sector_begins() {
        for at_most in [&[700, 5000, 100, 512][..], &[511, 4097], &[1 << 19]] {
            for skip in [0, 8] {
                let host = Meager::new(at_most);
                let mut memory = AlignedBuf::zeroed(400 << 10);
                let buf = &mut memory[skip..skip + (300 << 10)];
                read(&host, HostIo::Direct, SECTOR, 4096, buf).unwrap();
                assert!(buf == &host.bytes.borrow()[4096..][..buf.len()]);
                buf.reverse();
                write(&host, HostIo::Direct, SECTOR, 8192, buf, Durability::Fua).unwrap();
                assert!(buf == &host.bytes.borrow()[8192..][..buf.len()]);
            }
        }
    }

    /// A host that never completes a sector is reported.
    #[test]
    fn no_transfer_goes_on_for_ever() {
        for at_most in [0, 1, 511] {
            let host = Meager::new(&[at_most]);
            let mut buf = AlignedBuf::zeroed(4096);
            assert!(read(&host, HostIo::Direct, SECTOR, 0, &mut buf).is_err());
            assert!(write(&host, HostIo::Direct, SECTOR, 0, &buf, Durability::Volatile).is_err());
        }
    }

    #[test]
    fn a_host_without_durable_writes_gets_a_write_and_a_sync() {
        for fua in [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL] {
            for flush in [Ok(()), Err(Errno::INVAL), Err(Errno::NOTSUP), Err(Errno::IO)] {
                let host = Meager { fua: Err(fua), flush, ..Meager::new(&[1 << 20]) };
                let buf = AlignedBuf::zeroed(4096);
                let done = write(&host, HostIo::Direct, SECTOR, 0, &buf, Durability::Fua);
                // A disk without a cache has nothing to flush.
                assert_eq!(done.is_ok(), flush != Err(Errno::IO), "{fua} {flush:?}");
                assert_eq!(host.synced.get(), 1);
                assert!(host.bytes.borrow()[..4096].iter().all(|&byte| byte == 0));
            }
        }
        let host = Meager { fua: Err(Errno::IO), ..Meager::new(&[1 << 20]) };
        let buf = AlignedBuf::zeroed(4096);
        assert!(write(&host, HostIo::Direct, SECTOR, 0, &buf, Durability::Fua).is_err());
    }
}
