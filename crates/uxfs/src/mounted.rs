//! Whether the kernel has an image mounted. Its loop devices take no lock on the image, and what it has in memory would
//! be lost, or written over what is done here.

use crate::error::{Error, ErrorKind, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Refuses an image that is mounted through a loop device, as far as this process can see.
pub(crate) fn refuse_mounted(image: &Path) -> Result<()> {
    let Ok(own) = fs::metadata(image) else { return Ok(()) };
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    for (device, place) in mounts.lines().filter_map(source_and_place) {
        let Some(name) = device.strip_prefix("/dev/").filter(|name| name.starts_with("loop")) else {
            continue;
        };
        let Ok(backing) = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")) else {
            continue;
        };
        let backing = fs::metadata(backing.trim_end_matches('\n'));
        if backing.is_ok_and(|backing| (backing.dev(), backing.ino()) == (own.dev(), own.ino())) {
            let what = format!("the image is mounted by the kernel, at {place}: unmount it first");
            return Err(Error::new(ErrorKind::Locked, what));
        }
    }
    Ok(())
}

/// What is mounted and where, from a line of `mountinfo`: the place is the fifth word, the source comes second behind
/// a lone dash.
fn source_and_place(line: &str) -> Option<(&str, &str)> {
    let (mount, source) = line.split_once(" - ")?;
    Some((source.split(' ').nth(1)?, mount.split(' ').nth(4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_line_of_mountinfo() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - xfs /dev/loop7 rw,errors=continue";
        assert_eq!(source_and_place(line), Some(("/dev/loop7", "/mnt2")));
        assert_eq!(source_and_place("nonsense"), None);
    }
}
