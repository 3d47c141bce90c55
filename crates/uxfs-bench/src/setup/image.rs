//! A volume with one large allocated file, made by uxfs itself.
//!
//! The file is one extent and written all over, so that what is measured is overwriting, and the raw device can be
//! measured in the same place.

use crate::error::{Error, Result};
use std::path::Path;
use uxfs::{AlignedBuf, MkfsOptions, NewNode, OpenOptions, Volume};

/// Name of the file in the volume's root directory.
pub const FILE_NAME: &str = "bench.dat";

/// Half of the smallest volume that `mkfs.xfs` makes, and some.
const MIN_GROUP: u64 = 160 << 20;
/// The largest group that there can be is 1 TiB; some of it is not the file's.
const MAX_BYTES: u64 = 900 << 30;
/// Bytes that are written at a time.
const CHUNK: usize = 1 << 20;

/// Makes a volume in the new file `image` that holds [`FILE_NAME`] with `bytes` bytes of zeroes.
pub fn make_image(image: &Path, bytes: u64) -> Result<()> {
    if bytes > MAX_BYTES || bytes == 0 {
        return Err(Error::Usage(format!(
            "a file of {bytes} bytes cannot lie in one group of a volume; from 1 byte to {MAX_BYTES} can"
        )));
    }
    // Two groups, the file in the first and the log in the second: the file is one extent. Sectors of 4 KiB suit any
    // disk that the image may lie on.
    let group = (bytes + bytes / 16 + (64 << 20)).next_multiple_of(1 << 20).max(MIN_GROUP);
    let options = MkfsOptions::new().size(2 * group).group_count(2).block_size(4096).sector_size(4096);
    uxfs::mkfs(image, &options).map_err(Error::volume)?;
    let done = fill(image, bytes);
    if done.is_err() {
        // Half a volume is of no use.
        let _ = std::fs::remove_file(image);
    }
    done.map_err(Error::volume)
}

fn fill(image: &Path, bytes: u64) -> uxfs::Result<()> {
    let volume = Volume::open(image, &OpenOptions::new().writable(true))?;
    let written = write(&volume, bytes);
    let closed = volume.close();
    written.and(closed)
}

fn write(volume: &Volume, bytes: u64) -> uxfs::Result<()> {
    let file = volume.root()?.as_dir()?.create_file(FILE_NAME.as_bytes(), &NewNode::default())?.open()?;
    // All at once, so that it is in one piece.
    file.allocate(0..bytes, false)?;
    let zeroes = AlignedBuf::zeroed(CHUNK);
    let mut at = 0;
    while at < bytes {
        let len = (CHUNK as u64).min(bytes - at);
        file.write_at(&zeroes[..len as usize], at)?;
        at += len;
    }
    Ok(())
}
