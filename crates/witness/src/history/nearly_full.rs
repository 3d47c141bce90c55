//! Volumes with little space left, so that calls find none.

use anyhow::{Result, ensure};
use uxfs::{ErrorKind, NewNode, Volume};

/// Takes all space of a volume but so many bytes, for a file in its root.
pub fn leave_free(volume: &Volume, bytes: u64) -> Result<()> {
    let info = volume.info()?;
    let file = volume.root()?.as_dir()?.create_file(b"filler", &NewNode::default())?.open()?;
    let mut most = (info.free_blocks * u64::from(info.block_size)).saturating_sub(bytes);
    // Groups keep some of what is free for their trees.
    while let Err(error) = file.allocate(0..most, true) {
        ensure!(error.kind() == ErrorKind::NoSpace && most > bytes, "filling the volume: {error}");
        most -= bytes;
    }
    Ok(())
}
