//! Every file of a volume that was recovered is made longer: what comes behind its old end must be zeroes, whatever the
//! crash left there.

use anyhow::{Context, Result, ensure};
use uxfs::{Dir, ErrorKind, File, Volume};

/// By how much files grow behind all that they have.
const MORE: u64 = 5000;

/// Makes all files longer, each in a way of its own, and reads what comes. Gives how many there were.
pub fn of_all(volume: &Volume) -> Result<u64> {
    let mut grown = 0;
    let mut todo: Vec<Dir> = vec![volume.root()?.as_dir()?];
    while let Some(dir) = todo.pop() {
        for entry in dir.entries() {
            let entry = entry?;
            if entry.is_dot() {
                continue;
            }
            let Some(node) = dir.lookup(&entry.name)? else { continue };
            if node.file_type().is_dir() {
                todo.push(node.as_dir()?);
            } else if node.file_type().is_file() {
                let of = || format!("inode {}, {}", node.ino(), entry.name.escape_ascii());
                grown += u64::from(of_one(&node.open()?).with_context(of)?);
            }
        }
    }
    Ok(grown)
}

/// Whether there was room.
fn of_one(file: &File) -> Result<bool> {
    let size = file.size();
    let mut mapped = 0;
    for extent in file.extents() {
        let extent = extent?;
        mapped = extent.logical.saturating_add(extent.length);
    }
    let end = size.max(mapped).saturating_add(MORE);
    let done = match file.node().ino() % 5 {
        0 => file.set_len(end),
        1 => file.write_at(b"x", end - 1),
        2 => file.append_at(b"x", end - 1),
        3 => file.allocate(end - 1..end, false),
        _ => file.zero_range(end - 1..end, false),
    };
    match done {
        Ok(()) => {}
        Err(error)
            if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::TooLarge | ErrorKind::Shared) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    for extent in file.extents() {
        let extent = extent?;
        let (from, to) = (extent.logical.max(size), (extent.logical + extent.length).min(end - 1));
        if extent.unwritten || from >= to {
            continue;
        }
        let mut bytes = vec![1; (to - from) as usize];
        let got = file.read_at(&mut bytes, from)?;
        let other = bytes.iter().filter(|&&byte| byte != 0).count();
        ensure!(
            got == bytes.len() && other == 0,
            "it ended at {size} and grew to {end}: {other} bytes from {from} to {to} are not zeroes"
        );
    }
    Ok(true)
}
