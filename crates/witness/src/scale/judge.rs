//! Outside judges of one volume: none of them is our code.

use super::subject::Subject;
use crate::history::is_sound;
use crate::sandbox::Mounted;
use anyhow::{Context, Result};
use std::path::Path;

/// Has the volume judged. Returns what the kernel looked at.
pub fn judge(image: &Path, mnt: &Path, subject: Option<&dyn Subject>) -> Result<String> {
    is_sound(image)?;
    let mounted = Mounted::new(image, mnt, true).context("the kernel's mount")?;
    let seen = match subject {
        Some(subject) => subject.kernel_sees(mounted.dir())?,
        None => "mounted".to_owned(),
    };
    mounted.unmount()?;
    Ok(format!("xfs_repair and uxfs check find nothing; the kernel: {seen}"))
}
