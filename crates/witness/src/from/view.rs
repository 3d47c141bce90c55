//! What two trees on different file systems must have in common: everything that a copy can keep.
//!
//! Left out is what each file system decides for itself: inode numbers (which names are one file stays), space taken,
//! places on the device, the size of directories and the order of their entries, and the times that nobody can set.

use crate::record::{Content, FULL_HASH_MAX, FileType, MapRun, Record, RunState};
use std::collections::HashMap;

/// Attributes that are another form of others.
const DOUBLES: [&str; 2] = ["trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT"];

/// What a copy was to keep besides what all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// All that a directory of the host has.
    Whole,
    /// One at a given time: times of access are that.
    AtTime,
    /// The same, by way of an archive: there are no sockets in one.
    Archived,
}

/// A manifest of what a copy keeps.
pub fn kept(mut records: Vec<Record>, copy: Copy) -> Vec<Record> {
    let is_socket = |record: &Record| record.entry_type == Some(FileType::Socket);
    records.retain(|record| copy != Copy::Archived || !is_socket(record));
    let mut numbers = HashMap::new();
    for record in &mut records {
        let next = numbers.len() as u64;
        record.ino = *numbers.entry(record.ino).or_insert(next);
        let Some(inode) = &mut record.inode else { continue };
        (inode.blocks, inode.ctime, inode.btime) = (0, 0, None);
        if copy != Copy::Whole {
            inode.atime = 0;
        }
        if inode.file_type == FileType::Directory {
            inode.size = 0;
        }
        if let Some((_, order)) = &mut inode.entries {
            order.clear();
        }
        if copy == Copy::Archived {
            inode.entries = None;
        }
        if let Some(content) = &mut inode.content {
            content.extents = None;
        }
        inode.xattrs.retain(|name, _| !DOUBLES.contains(&&**name));
    }
    records
}

/// Bytes of the largest block that the data of volumes with blocks of different size are told in.
const BLOCK: u64 = 4096;

/// A manifest of what a copy of a volume keeps: all but places, inode numbers, the space that is taken and when a file was
/// made, which not every volume knows. `same_blocks`: blocks are as large in both, so that maps are the same.
pub fn whole_volume(mut records: Vec<Record>, same_blocks: bool) -> Vec<Record> {
    let mut numbers = HashMap::new();
    for record in &mut records {
        let next = numbers.len() as u64;
        record.ino = *numbers.entry(record.ino).or_insert(next);
        // Directories of old volumes do not say it; inodes do.
        record.entry_type = None;
        let Some(inode) = &mut record.inode else { continue };
        (inode.blocks, inode.btime) = (0, None);
        if inode.file_type == FileType::Directory {
            inode.size = 0;
        }
        if let Some((_, order)) = &mut inode.entries {
            order.clear();
        }
        if let Some(content) = &mut inode.content {
            if same_blocks {
                content.extents = content.extents.take().map(unplaced);
            } else {
                in_large_blocks(content, inode.size);
            }
        }
    }
    records
}

/// Runs of a map without their places; that blocks are shared does not go over.
fn unplaced(runs: Vec<MapRun>) -> Vec<MapRun> {
    let mut found: Vec<MapRun> = Vec::new();
    for MapRun(at, _, len, state) in runs {
        let state = if state == RunState::Shared { RunState::Written } else { state };
        match found.last_mut() {
            Some(last) if last.0 + last.2 == at && last.3 == state => last.2 += len,
            _ => found.push(MapRun(at, 0, len, state)),
        }
    }
    found
}

/// Runs of data as larger blocks have them. The hash of a large file is that of its runs, and goes.
fn in_large_blocks(content: &mut Content, size: u64) {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for &(start, end) in &content.data {
        let (start, end) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK).min(size));
        match found.last_mut() {
            Some(last) if last.1 >= start => last.1 = end,
            _ => found.push((start, end)),
        }
    }
    (content.data, content.extents) = (found, None);
    if size > FULL_HASH_MAX {
        content.hash.clear();
    }
}
