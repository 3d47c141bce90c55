//! Files of this machine that hold volumes: a path in one of them was meant where such a file is named as the place of a
//! copy. Nothing goes over one, be it that it was to be replaced: who wants that removes it first.

use crate::exit::{Exit, Failure, Result, host_name};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What an XFS volume begins with.
const MAGIC: [u8; 4] = *b"XFSB";

/// Refuses a file that is a volume, or that the kernel has attached as a loop device.
pub fn refuse(path: &Path) -> Result<()> {
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let name = host_name(path);
    if let Some(what) = uxfs::attached_as(path) {
        return Err(Failure::new(Exit::Locked, format!("{name}: {what}")));
    }
    let mut begins = [0; MAGIC.len()];
    let is_volume = File::open(path).is_ok_and(|mut file| file.read_exact(&mut begins).is_ok());
    if is_volume && begins == MAGIC {
        let what = format!(
            "this is an XFS volume; for a place in it write {name}:/, and to replace the file, remove it first"
        );
        return Err(Failure::new(Exit::AlreadyExists, format!("{name}: {what}")));
    }
    Ok(())
}
