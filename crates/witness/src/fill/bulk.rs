//! Ordinary files in an ordinary tree, until the volume has as many inodes as were asked for; and freed ones
//! between them.

use super::Sizes;
use super::site::Site;
use anyhow::Result;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    let mut number = 0u64;
    while site.inodes_in_use()? < sizes.inodes + 10 {
        let mut dir = site.child(format!("{number:04}").as_bytes())?;
        number += 1;
        for sub in 0..dir.rng.u32(1..5) {
            let mut below = dir.child(format!("sub{sub}").as_bytes())?;
            let count = below.rng.u32(5..60);
            for index in 0..count {
                object(&mut below, index)?;
            }
            dir.touch(format!("beside-{sub}").as_bytes())?;
        }
        // Free inodes inside chunks that stay in use.
        for index in 0..40 {
            dir.touch(format!("short-lived-{index}").as_bytes())?;
        }
        for index in (0..40).filter(|index| index % 4 != 0) {
            dir.unlink(format!("short-lived-{index}").as_bytes())?;
        }
    }
    Ok(())
}

fn object(dir: &mut Site, index: u32) -> Result<()> {
    let name = format!("{index:03}-{:x}", dir.rng.u32(..)).into_bytes();
    match dir.rng.u32(0..20) {
        0 => {
            let len = dir.rng.usize(1..200);
            let target = dir.name(len);
            dir.symlink(&target, &name)?;
            return Ok(());
        }
        1 => dir.mkdir(&name)?,
        2 => {
            dir.file(&name, 60_000)?;
            let again = [&name[..], b"-again"].concat();
            dir.link(dir, &name, &again)?;
        }
        _ => {
            let scale = dir.rng.u32(1..14);
            let len = dir.rng.usize(0..1 << scale);
            dir.file(&name, len)?;
        }
    }
    if dir.rng.u32(0..4) == 0 {
        let len = dir.rng.usize(0..120);
        let value = dir.bytes(len);
        dir.set_attr(&name, b"user.note", &value)?;
    }
    let (uid, gid, mode) = (dir.rng.u32(0..3_000), dir.rng.u32(0..3_000), dir.rng.u32(0..0o10000));
    dir.chown(&name, uid, gid)?;
    dir.chmod(&name, mode)?;
    let mut time = || (dir.rng.i64(-(1 << 31)..1 << 34), dir.rng.i64(0..1_000_000_000));
    let (access, modification) = (time(), time());
    dir.times(&name, access, modification)
}
