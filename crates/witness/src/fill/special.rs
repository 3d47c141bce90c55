//! Symbolic links, devices, fifos and sockets; modes, owners and times.

use super::Sizes;
use super::site::Site;
use anyhow::Result;
use rustix::fs::FileType;
use std::collections::BTreeSet;

/// Longest target of a symbolic link that XFS takes.
const TARGET_MAX: usize = 1_023;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    symlinks(site, sizes.many(1, 41) as usize)?;
    nodes(site)?;
    modes(site, sizes.many(1, 127) as usize)?;
    owners(site)?;
    times(site)
}

fn symlinks(site: &mut Site, step: usize) -> Result<()> {
    let mut dir = site.child(b"symlinks")?;
    let lengths = (1..=TARGET_MAX)
        .step_by(step)
        .chain([2, 60, 155, 156, 157, 335, 336, 337, 511, 512, 513, TARGET_MAX]);
    for len in lengths.collect::<BTreeSet<_>>() {
        let mut target = dir.name(len);
        for at in (20..len).step_by(97) {
            target[at] = b'/';
        }
        dir.symlink(&target, format!("{len}").as_bytes())?;
    }
    dir.symlink(b".", b"dot")?;
    dir.symlink(b"/", b"root")?;
    dir.symlink(b"loop", b"loop")
}

/// Device numbers up to what the kernel takes for XFS: 9 bits of major and 18 of minor.
fn nodes(site: &mut Site) -> Result<()> {
    let dir = site.child(b"nodes")?;
    for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 256), (511, 262_143), (300, 70_000)] {
        dir.mknod(format!("c{major}-{minor}").as_bytes(), FileType::CharacterDevice, major, minor)?;
        dir.mknod(format!("b{major}-{minor}").as_bytes(), FileType::BlockDevice, major, minor)?;
    }
    dir.mknod(b"fifo", FileType::Fifo, 0, 0)?;
    dir.mknod(b"socket", FileType::Socket, 0, 0)
}

fn modes(site: &mut Site, step: usize) -> Result<()> {
    let dir = site.child(b"modes")?;
    let modes = (0..=0o7777).step_by(step * 13).chain([0o4755, 0o2755, 0o1777, 0o6755, 0o7777]);
    for mode in modes.collect::<BTreeSet<u32>>() {
        let (file, below) = (format!("f{mode:04o}").into_bytes(), format!("d{mode:04o}").into_bytes());
        dir.touch(&file)?;
        dir.mkdir(&below)?;
        dir.chmod(&file, mode)?;
        dir.chmod(&below, mode)?;
    }
    Ok(())
}

fn owners(site: &mut Site) -> Result<()> {
    let dir = site.child(b"owners")?;
    let ids = [0, 1, 1_000, 65_534, 65_535, 65_536, 1 << 31, u32::MAX - 1];
    for uid in ids {
        for gid in ids {
            let name = format!("{uid}-{gid}").into_bytes();
            if (uid ^ gid) % 3 == 0 {
                dir.mkdir(&name)?
            } else {
                dir.touch(&name)?
            }
            dir.chown(&name, uid, gid)?;
        }
    }
    dir.symlink(b"of another", b"symlink")?;
    dir.chown(b"symlink", 77, 88)
}

/// Times at the ends of what each form holds; the kernel brings those that it cannot keep into range.
fn times(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"times")?;
    let seconds: [i64; 15] = [
        -(1 << 31),
        -(1 << 31) + 1,
        -1_000_000_000,
        -1,
        0,
        1,
        1_700_000_000,
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        8_589_934_592,
        16_299_260_424,
        16_299_260_425,
        1 << 40,
    ];
    for sec in seconds {
        for ns in [0, 1, 499_999_999, 999_999_999] {
            let name = format!("{sec}.{ns}").into_bytes();
            dir.touch(&name)?;
            let other = seconds[dir.rng.usize(0..seconds.len())];
            dir.times(&name, (other, 999_999_999 - ns), (sec, ns))?;
        }
    }
    dir.symlink(b"x", b"symlink")?;
    dir.times(b"symlink", (-5, 5), (1 << 33, 123_456_789))?;
    dir.mkdir(b"directory")?;
    dir.times(b"directory", (-5, 5), (1 << 33, 123_456_789))
}
