//! A volume with one large allocated file, made by `mkfs.xfs` without the kernel's help.
//!
//! `mkfs.xfs -p` copies a file of the host into the new volume, in one extent and written; the host's file is
//! a hole of that size, so that it takes no room. The features are pinned: what is measured does not depend on
//! the version of xfsprogs.

use super::run;
use crate::error::{Error, Result};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Name of the file in the volume's root directory.
pub const FILE_NAME: &str = "bench.dat";

/// Most bytes that `mkfs.xfs -p` copies for one file (its length is a 32-bit number there).
const MAX_COPY: u64 = (1 << 31) - (1 << 20);

/// Half of the smallest volume that `mkfs.xfs` makes, and some.
const MIN_GROUP: u64 = 160 << 20;

/// Makes a volume in the new file `image` that holds [`FILE_NAME`] with `bytes` bytes of zeroes.
pub fn make_image(image: &Path, bytes: u64) -> Result<()> {
    if bytes > MAX_COPY || bytes == 0 {
        return Err(Error::Usage(format!(
            "a file of {bytes} bytes cannot be put into a new volume; from 1 byte to {MAX_COPY} is what \
             mkfs.xfs -p can do"
        )));
    }
    let dir = image.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let scratch = tempfile::Builder::new()
        .prefix("uxfs-bench-")
        .tempdir_in(dir)
        .map_err(Error::host(format!("cannot make a directory in {}", dir.display())))?;
    let (source, proto) = (scratch.path().join("source"), scratch.path().join("proto"));
    let host = || Error::host(format!("cannot write in {}", scratch.path().display()));
    File::create(&source).and_then(|file| file.set_len(bytes)).map_err(host())?;
    let source_name = source
        .to_str()
        .filter(|name| !name.contains(char::is_whitespace))
        .ok_or_else(|| Error::Usage(format!("{}: mkfs.xfs -p takes no blanks in names", dir.display())))?;
    let text = format!("/stand/boot\n0 0\nd--755 0 0\n{FILE_NAME} ---644 0 0 {source_name}\n$\n");
    std::fs::write(&proto, text).map_err(host())?;

    // Two groups, the file in the first and the log in the second: the file is one extent.
    let group = (bytes + bytes / 16 + (64 << 20)).next_multiple_of(1 << 20).max(MIN_GROUP);
    let made = File::options().write(true).create_new(true).open(image);
    made.and_then(|file| file.set_len(2 * group))
        .map_err(Error::host(format!("cannot make {}", image.display())))?;
    let done = run(
        "mkfs.xfs",
        Command::new("mkfs.xfs")
            .arg("-q")
            .args(["-m", "crc=1,finobt=1,reflink=1,rmapbt=0,bigtime=1,inobtcount=1"])
            // Sectors of 4 KiB suit any disk that the image may lie on.
            .args(["-i", "sparse=1", "-b", "size=4096", "-s", "size=4096", "-d", "agcount=2"])
            .arg("-p")
            .arg(&proto)
            .arg(image),
    );
    if done.is_err() {
        // Half a volume helps nobody.
        let _ = std::fs::remove_file(image);
    }
    done
}
