//! Pipes, character devices and standard output, which are written from start to end.

use super::Identity;
use crate::exit::{Exit, Failure, host_name};
use rustix::fd::AsFd;
use rustix::fs::FileType;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Something that is written from its start to its end.
pub enum Sink {
    /// Standard output.
    Stdout,
    /// A pipe or a device.
    Opened(File),
}

impl Sink {
    /// The stream at `path`: `-` is standard output; `None` if it is a file.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        if path.as_os_str() == "-" {
            return Ok(Some(Self::Stdout));
        }
        let Ok(found) = path.metadata() else { return Ok(None) };
        let kind = found.file_type();
        if !kind.is_fifo() && !kind.is_char_device() {
            return Ok(None);
        }
        Ok(Some(Self::Opened(File::options().write(true).open(path)?)))
    }

    /// Writes all of `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().write_all(bytes),
            Self::Opened(file) => file.write_all(bytes),
        }
    }

    /// Ends it: everything is flushed.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().flush(),
            Self::Opened(_) => Ok(()),
        }
    }
}

/// Refuses standard input or output that is the image itself: it would change while it is read.
pub fn refuse_image(stream: impl AsFd, name: &str, image: &Path) -> Result<(), Failure> {
    let stream = rustix::fs::fstat(stream).ok().as_ref().map(Identity::of);
    if stream.is_some() && stream == Identity::of_path(image) {
        let what = format!("{name}: is {} itself; use another file", host_name(image));
        return Err(Failure::new(Exit::Usage, what));
    }
    Ok(())
}

/// Whether this is a pipe or a device that is read from its start to its end.
pub fn is_read_in_order(kind: FileType) -> bool {
    matches!(kind, FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice)
}
