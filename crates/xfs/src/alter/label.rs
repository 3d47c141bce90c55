//! The label.

use super::copies;
use crate::error::{Error, Result};
use crate::mkfs;
use crate::mount::Mount;
use crate::trans::superblock::change_alone;
use std::mem::offset_of;
use std::sync::Arc;
use xfs_format::superblock::RawSuperblock;

/// The label, up to 12 bytes.
pub fn label(mount: &Mount) -> Result<Vec<u8>> {
    let raw = copies::committed(mount)?;
    let end = raw.fname.iter().position(|&byte| byte == 0).unwrap_or(raw.fname.len());
    Ok(raw.fname[..end].to_vec())
}

/// Sets the volume's label: up to 12 bytes without 0, or none. The change is durable when this returns.
pub fn set_label(mount: &Arc<Mount>, label: &[u8]) -> Result<()> {
    let mut fname = [0; 12];
    let place = fname.get_mut(..label.len()).filter(|_| !label.contains(&0));
    place.ok_or(Error::Mkfs(mkfs::Refusal::Label))?.copy_from_slice(label);
    let write = mount.write_side()?;
    let _alone = write.altering.lock();
    // It may have been closed meanwhile.
    mount.check_writable()?;
    if copies::committed(mount)?.fname == fname {
        return Ok(());
    }
    let at = offset_of!(RawSuperblock, fname);
    let seq = change_alone(mount, at..at + fname.len(), |raw| raw.fname = fname)?;
    write.journal.force(seq)?;
    copies::follow(mount, mount.geometry().ag_count())
}
