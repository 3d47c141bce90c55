//! The unlinked lists: inodes that have no name and are still in use.
//!
//! Each group has 64 singly linked lists. The AGI has the heads, and each inode points to the next one. An inode's
//! pointer lies in its cluster and is logged with the cluster, not with the inode. Memory keeps hints on which inode
//! points to which, so that removing one from the middle needs no walk. Each hint is checked against the disk before it
//! is used. A wrong or missing hint only costs a walk along the list.

use super::locked::LockedInodes;
use super::trees;
use crate::error::{Error, Result};
use crate::imap::CLUSTER;
use crate::trans::{BufIndex, Trans};
use std::mem::offset_of;
use xfs_format::ag::{NULL_AG_INODE, UNLINKED_BUCKETS};
use xfs_format::btree::Inobt;
use xfs_format::checksum;
use xfs_format::error::FormatError;
use xfs_format::inode::{CRC_OFFSET, Dinode};
use xfs_format::types::{AgInode, AgNumber, InodeNumber};
use zerocopy::IntoBytes;

/// Where an inode has its pointer to the next one.
const NEXT_AT: usize = offset_of!(Dinode, next_unlinked);

/// An inode's pointer, in a transaction.
#[derive(Clone, Copy)]
struct At {
    cluster: BufIndex,
    offset: usize,
    inode: AgInode,
}

/// Puts an inode on its group's list: it has lost its last name and is still in use.
pub fn add_unlinked(trans: &mut Trans<'_>, ino: InodeNumber) -> Result<()> {
    let mount = trans.mount();
    let hints = &mount.write_side()?.inodes.unlinked;
    let (ag, inode) = trans.geometry().split_inode(ino).ok_or(Error::NoSuchInode(ino))?;
    let bucket = inode.0 as usize % UNLINKED_BUCKETS;
    let head = head(trans, ag, bucket)?;
    if head == Some(inode) {
        return Err(damaged("inode that is on the list already", inode));
    }
    let at = find_inode(trans, ag, inode)?;
    if let Some(next) = next_of(trans, at)? {
        return Err(damaged("pointer of an inode that is on no list", next));
    }
    if let Some(head) = head {
        set_next(trans, at, Some(head))?;
        hints.set(ag, head, Some(inode));
    }
    hints.set(ag, inode, None);
    set_head(trans, ag, bucket, Some(inode))
}

/// Removes an inode from its group's list before it is freed.
pub fn remove_unlinked(trans: &mut Trans<'_>, ino: InodeNumber) -> Result<()> {
    let mount = trans.mount();
    let hints = &mount.write_side()?.inodes.unlinked;
    let (ag, inode) = trans.geometry().split_inode(ino).ok_or(Error::NoSuchInode(ino))?;
    let bucket = inode.0 as usize % UNLINKED_BUCKETS;
    let head = head(trans, ag, bucket)?;
    let at = find_inode(trans, ag, inode)?;
    let next = next_of(trans, at)?;
    let before = if head == Some(inode) { None } else { Some(before(trans, ag, inode, head)?) };
    match before {
        None => set_head(trans, ag, bucket, next)?,
        Some(before) => set_next(trans, before, next)?,
    }
    if next.is_some() {
        set_next(trans, at, None)?;
    }
    if let Some(next) = next {
        hints.set(ag, next, before.map(|before| before.inode));
    }
    hints.set(ag, inode, None);
    Ok(())
}

/// Calls `each` with the inodes on a group's lists as they were left, in no order.
pub fn for_each_unlinked(
    trans: &mut Trans<'_>,
    ag: AgNumber,
    each: &mut dyn FnMut(InodeNumber),
) -> Result<()> {
    for bucket in 0..UNLINKED_BUCKETS {
        let mut next = head(trans, ag, bucket)?;
        let mut left = LockedInodes::lock(trans, ag)?.agi()?.count.get();
        while let Some(inode) = next {
            left = left.checked_sub(1).ok_or_else(|| damaged("length", inode))?;
            each(trans.geometry().join_inode(ag, inode));
            let at = find_inode(trans, ag, inode)?;
            next = next_of(trans, at)?;
        }
    }
    Ok(())
}

/// The inode that points to one that is not the first of its list.
fn before(trans: &mut Trans<'_>, ag: AgNumber, inode: AgInode, head: Option<AgInode>) -> Result<At> {
    let mount = trans.mount();
    let hints = &mount.write_side()?.inodes.unlinked;
    if let Some(hint) = hints.get(ag, inode)
        && let Ok(at) = find_inode(trans, ag, hint)
        && next_of(trans, at)? == Some(inode)
    {
        return Ok(at);
    }
    let mut left = LockedInodes::lock(trans, ag)?.agi()?.count.get();
    let mut next = head;
    while let Some(here) = next {
        left = left.checked_sub(1).ok_or_else(|| damaged("length", here))?;
        let at = find_inode(trans, ag, here)?;
        next = next_of(trans, at)?;
        if let Some(next) = next {
            hints.set(ag, next, Some(here));
        }
        if next == Some(inode) {
            return Ok(at);
        }
    }
    Err(damaged("inode that is not on its list", inode))
}

fn head(trans: &mut Trans<'_>, ag: AgNumber, bucket: usize) -> Result<Option<AgInode>> {
    let locked = LockedInodes::lock(trans, ag)?;
    let head = locked.agi()?.unlinked.get(bucket).map_or(NULL_AG_INODE, |head| head.get());
    Ok(Some(head).filter(|&head| head != NULL_AG_INODE).map(AgInode))
}

fn set_head(trans: &mut Trans<'_>, ag: AgNumber, bucket: usize, head: Option<AgInode>) -> Result<()> {
    let mut locked = LockedInodes::lock(trans, ag)?;
    if let Some(place) = locked.bucket_mut(bucket)?.unlinked.get_mut(bucket) {
        place.set(head.map_or(NULL_AG_INODE, |head| head.0));
    }
    Ok(())
}

/// An inode of a list, which must be in use, with its cluster locked.
fn find_inode(trans: &mut Trans<'_>, ag: AgNumber, inode: AgInode) -> Result<At> {
    let mount = trans.mount();
    let ino = trans.geometry().join_inode(ag, inode);
    let chunk = trees::at_or_before::<Inobt>(&mut LockedInodes::lock(trans, ag)?, inode)?;
    let chunk = chunk.filter(|chunk| chunk.in_use(inode)).ok_or(Error::NoSuchInode(ino))?;
    let (map, offset) = mount.imap_source().place(ag, chunk.start, inode)?;
    let cluster = trans.buf_at(map.daddr, map.len, &CLUSTER)?;
    Ok(At { cluster, offset, inode })
}

fn next_of(trans: &Trans<'_>, at: At) -> Result<Option<AgInode>> {
    let bytes = trans.bytes(at.cluster).get(at.offset + NEXT_AT..).and_then(|rest| rest.first_chunk::<4>());
    let next = bytes.map(|raw| u32::from_be_bytes(*raw)).ok_or_else(|| damaged("cluster", at.inode))?;
    Ok(Some(next).filter(|&next| next != NULL_AG_INODE).map(AgInode))
}

fn set_next(trans: &mut Trans<'_>, at: At, next: Option<AgInode>) -> Result<()> {
    let inode_len = usize::from(trans.geometry().inode_size);
    trans.mark_inodes(at.cluster);
    let range = at.offset + NEXT_AT..at.offset + CRC_OFFSET + 4;
    let bytes = trans.bytes_mut(at.cluster, range);
    let inode =
        bytes.get_mut(at.offset..at.offset + inode_len).ok_or_else(|| damaged("cluster", at.inode))?;
    let next = next.map_or(NULL_AG_INODE, |next| next.0);
    inode[NEXT_AT..NEXT_AT + 4].copy_from_slice(next.to_be_bytes().as_bytes());
    checksum::store(inode, CRC_OFFSET);
    Ok(())
}

fn damaged(check: &'static str, inode: AgInode) -> Error {
    let problem = FormatError::value("list of unlinked inodes", check, inode.0.into());
    Error::Corrupt { daddr: None, inode: None, problem }
}
