//! Bytes of a pipe, a device or standard input, read for a volume.
//!
//! Invariants: reads wait in short turns, so that a signal is noticed while nothing arrives; a pipe without a writer
//! is waited for, as by any reader.

use super::{Attributes, CHUNK, Filler, Rules, StepResult, go_on};
use crate::exit::Exit;
use crate::fill::Trouble;
use crate::host::stream::is_read_in_order;
use crate::interrupt::{self, Patient};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use std::fs::File;
use std::io::{ErrorKind, Read, Stdin};
use std::path::Path;
use uxfs::{AlignedBuf, Dir, Timestamp};

/// Something that is read from its start to its end.
pub enum Stream {
    /// Standard input.
    Stdin(Stdin),
    /// A pipe or a device of the host.
    Opened(File),
}

impl Stream {
    /// The file at `path`, if it cannot be read by offset and is no directory: a pipe, a device, or an open file
    /// without a name.
    pub fn of(path: &Path) -> std::io::Result<Option<Self>> {
        let found = rustix::fs::stat(path)?;
        let special = match FileType::from_raw_mode(found.st_mode) {
            kind if is_read_in_order(kind) => true,
            // Open, like `/dev/stdin`, but its path does not exist any more.
            FileType::RegularFile => path.canonicalize().is_err(),
            _ => false,
        };
        if !special {
            return Ok(None);
        }
        // Then opening a pipe does not wait; reading does.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(Some(Self::Opened(rustix::fs::open(path, flags, Mode::empty())?.into())))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stdin(stdin) => stdin.as_fd(),
            Self::Opened(fd) => fd.as_fd(),
        }
    }

    /// Its metadata. Standard input becomes a file as a shell would make it.
    fn attributes(&self, rules: &Rules) -> StepResult<Attributes> {
        let found = rustix::fs::fstat(self.fd()).map_err(std::io::Error::from)?;
        let permissions = match self {
            Self::Stdin(_) => 0o666,
            Self::Opened(_) => (found.st_mode & 0o777) as u16,
        };
        let (atime, mtime) = times(&found, rules);
        Ok(Attributes {
            permissions,
            uid: found.st_uid,
            gid: found.st_gid,
            atime: Some(atime),
            mtime,
            xattrs: Vec::new(),
            inode: None,
        })
    }

    /// Makes a file of all the input.
    pub fn copy(self, filler: &mut Filler<'_>, dir: &Dir, name: &[u8]) -> StepResult<()> {
        filler.at(name);
        let of = self.attributes(filler.rules())?;
        let mut from: Box<dyn Read> = match self {
            Self::Stdin(stdin) => Box::new(Patient::new(stdin)),
            Self::Opened(file) => Box::new(Patient::new(file)),
        };
        let mut buf = AlignedBuf::zeroed(CHUNK);
        filler.file(dir, name, &of, |filler, file| {
            let mut at = 0;
            loop {
                let len = fill(&mut *from, &mut buf)?;
                if len > 0 {
                    filler.append(file, at, &buf[..len])?;
                    at += len as u64;
                }
                if len < buf.len() {
                    return Ok(());
                }
            }
        })?;
        Ok(())
    }
}

/// Fills a buffer, up to the end of the input.
fn fill(from: &mut dyn Read, buf: &mut [u8]) -> StepResult<usize> {
    let mut len = 0;
    while len < buf.len() {
        go_on()?;
        match from.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) if interrupt::asked() => return Err(Trouble::end(Exit::Interrupted, interrupt::WHAT)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(len)
}

fn times(found: &Stat, rules: &Rules) -> (Timestamp, Timestamp) {
    let time =
        |seconds, nanoseconds: Option<u32>| Timestamp { seconds, nanoseconds: nanoseconds.unwrap_or(0) };
    if found.st_mtime == 0 {
        return (rules.now(), rules.now());
    }
    #[allow(clippy::useless_conversion)]
    let nanoseconds = |raw| u32::try_from(raw).ok();
    (
        time(found.st_atime, nanoseconds(found.st_atime_nsec)),
        time(found.st_mtime, nanoseconds(found.st_mtime_nsec)),
    )
}
