//! Extended attributes: every length, every namespace, every form, on every kind of object; ACLs.

use super::Sizes;
use super::names::colliding;
use super::site::Site;
use anyhow::{Result, ensure};
use rustix::fs::FileType;

/// Namespaces that users see.
const SPACES: [&str; 3] = ["user.", "trusted.", "security."];

/// Longest name with its namespace, and longest value, that the kernel takes.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65_536;

pub(super) fn fill(site: &mut Site, sizes: &Sizes) -> Result<()> {
    value_lengths(site, sizes)?;
    name_lengths(site, sizes.many(1, 12) as usize)?;
    counts(site, sizes.many(2_500, 300))?;
    large_values(site)?;
    replaced_and_removed(site, sizes.many(400, 60))?;
    let one_leaf = (site.block as usize / 256).clamp(2, 100);
    sharing_a_hash(site, one_leaf)?;
    if sizes.beyond_repair {
        sharing_a_hash(site, 500)?;
    }
    on_every_kind(site)?;
    acls(site)?;
    capability(site)
}

/// One file per length of value, in one of the namespaces each.
fn value_lengths(site: &mut Site, sizes: &Sizes) -> Result<()> {
    let mut dir = site.child(b"value-lengths")?;
    let block = dir.block as usize;
    let mut lengths: Vec<usize> = (0..=300).step_by(sizes.many(1, 15) as usize).collect();
    for around in [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, block, 2 * block, 3 * block, 64 << 10] {
        for header in [0, 56, 80, 112, 168] {
            lengths.extend([around.saturating_sub(header + 1), around - header, around - header + 1]);
        }
    }
    lengths.push(1);
    lengths.retain(|&len| len <= VALUE_MAX);
    lengths.sort_unstable();
    lengths.dedup();
    for (index, len) in lengths.into_iter().enumerate() {
        let name = format!("{len}").into_bytes();
        dir.touch(&name)?;
        let value = dir.bytes(len);
        let attr = format!("{}a{len}", SPACES[index % SPACES.len()]);
        ensure!(dir.set_attr(&name, attr.as_bytes(), &value)?, "no room for {len} bytes");
    }
    Ok(())
}

/// Attributes with names of every length, of any bytes, on a few files.
fn name_lengths(site: &mut Site, step: usize) -> Result<()> {
    let mut dir = site.child(b"name-lengths")?;
    for space in SPACES {
        dir.touch(space.as_bytes())?;
        for len in (1..=NAME_MAX - space.len()).step_by(step) {
            let mut attr = space.as_bytes().to_vec();
            attr.extend(dir.name(len));
            let value = dir.bytes(len % 50);
            dir.set_attr(space.as_bytes(), &attr, &value)?;
        }
    }
    Ok(())
}

/// Files with few, some and very many attributes.
fn counts(site: &mut Site, most: u64) -> Result<()> {
    let mut dir = site.child(b"counts")?;
    let mut count = 1;
    loop {
        let count_now = count.min(most);
        let name = format!("{count_now}").into_bytes();
        if count % 2 == 0 {
            dir.mkdir(&name)?
        } else {
            dir.touch(&name)?
        }
        for index in 0..count_now {
            let len = if index % 40 == 39 { dir.rng.usize(1_000..6_000) } else { dir.rng.usize(0..150) };
            let value = dir.bytes(len);
            let space = SPACES[dir.rng.usize(0..SPACES.len())];
            dir.set_attr(&name, format!("{space}{index:x}").as_bytes(), &value)?;
        }
        if count >= most {
            return Ok(());
        }
        count = count * 3 / 2 + 1;
    }
}

/// Several of the largest values on one inode.
fn large_values(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"large")?;
    dir.touch(b"file")?;
    for index in 0..20 {
        let value = dir.bytes(VALUE_MAX - index * 100);
        let attr = format!("{}large-{index}", SPACES[index % SPACES.len()]);
        ensure!(dir.set_attr(b"file", attr.as_bytes(), &value)?, "no room for the largest value");
    }
    Ok(())
}

/// Attributes that were replaced by shorter and longer ones, and removed.
fn replaced_and_removed(site: &mut Site, count: u64) -> Result<()> {
    let mut dir = site.child(b"changed")?;
    for (name, keep_every) in [(&b"some-left"[..], 3), (b"few-left", 50), (b"none-left", u64::MAX)] {
        dir.file(name, 5_000)?;
        for _ in 0..2 {
            for index in 0..count {
                let len = dir.rng.usize(0..200) << dir.rng.u32(0..5);
                let value = dir.bytes(len);
                dir.set_attr(name, format!("user.{index}").as_bytes(), &value)?;
            }
        }
        for index in 0..count {
            if keep_every == u64::MAX || index % keep_every != 0 {
                dir.remove_attr(name, format!("user.{index}").as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Attributes whose names have one hash, in one namespace and in several.
fn sharing_a_hash(site: &mut Site, count: usize) -> Result<()> {
    let mut dir = site.child(format!("one-hash-{count}").as_bytes())?;
    dir.touch(b"file")?;
    for (index, name) in colliding(&mut dir, count, 40).iter().enumerate() {
        for space in &SPACES[..1 + index % SPACES.len()] {
            let attr = [space.as_bytes(), name].concat();
            let len = dir.rng.usize(0..80);
            let value = dir.bytes(len);
            dir.set_attr(b"file", &attr, &value)?;
        }
    }
    Ok(())
}

/// Objects that are no files take attributes outside of `user.`.
fn on_every_kind(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"kinds")?;
    dir.symlink(b"short", b"symlink-inline")?;
    dir.symlink(&[b'l'; 1_000], b"symlink-remote")?;
    dir.symlink(&[b'm'; 150], b"symlink-pushed-out")?;
    dir.mknod(b"fifo", FileType::Fifo, 0, 0)?;
    dir.mknod(b"socket", FileType::Socket, 0, 0)?;
    dir.mknod(b"char", FileType::CharacterDevice, 4, 64)?;
    dir.mknod(b"block", FileType::BlockDevice, 8, 1)?;
    dir.mkdir(b"directory")?;
    dir.file(b"file", 10_000)?;
    for (index, name) in [
        "symlink-inline",
        "symlink-remote",
        "symlink-pushed-out",
        "fifo",
        "socket",
        "char",
        "block",
        "directory",
        "file",
    ]
    .into_iter()
    .enumerate()
    {
        for (space, len) in [("trusted.", 20 + index), ("security.", 300), ("trusted.", 7_000)] {
            let value = dir.bytes(len);
            dir.set_attr(name.as_bytes(), format!("{space}kind-{len}").as_bytes(), &value)?;
        }
    }
    Ok(())
}

/// Access and default ACLs, small and large.
fn acls(site: &mut Site) -> Result<()> {
    let mut dir = site.child(b"acls")?;
    for named in [1u32, 2, 5, 10, 25, 400] {
        let name = format!("file-{named}").into_bytes();
        dir.touch(&name)?;
        let value = acl(&mut dir, named);
        dir.set_attr(&name, b"system.posix_acl_access", &value)?;
        let name = format!("dir-{named}").into_bytes();
        let mut below = dir.child(&name)?;
        for attr in ["system.posix_acl_access", "system.posix_acl_default"] {
            let value = acl(&mut dir, named);
            dir.set_attr(&name, attr.as_bytes(), &value)?;
        }
        // These inherit.
        below.touch(b"file")?;
        below.child(b"directory")?.touch(b"file")?;
    }
    Ok(())
}

/// An ACL as the kernel takes it: version 2, then entries of tag, permission and identity.
fn acl(site: &mut Site, named: u32) -> Vec<u8> {
    let [user_obj, user, group_obj, group, mask, other] = [1, 2, 4, 8, 16, 32];
    let mut value = 2u32.to_le_bytes().to_vec();
    let mut push = |tag: u16, permission: u16, id: u32| {
        value.extend(tag.to_le_bytes());
        value.extend(permission.to_le_bytes());
        value.extend(id.to_le_bytes());
    };
    push(user_obj, 7, u32::MAX);
    (0..named).for_each(|index| push(user, site.rng.u16(0..8), 1_000 + index * 70_000));
    push(group_obj, site.rng.u16(0..8), u32::MAX);
    (0..named).for_each(|index| push(group, site.rng.u16(0..8), 2_000 + index * 1_000_000));
    push(mask, 6, u32::MAX);
    push(other, site.rng.u16(0..8), u32::MAX);
    value
}

/// A file capability, as installers set it.
fn capability(site: &mut Site) -> Result<()> {
    site.touch(b"with-capability")?;
    let mut value = 0x0200_0001u32.to_le_bytes().to_vec();
    value.extend([0x00, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    site.set_attr(b"with-capability", b"security.capability", &value).map(drop)
}
