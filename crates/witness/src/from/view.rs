//! What two trees on different file systems must have in common: everything that a copy can keep.
//!
//! Left out is what each file system decides for itself: inode numbers (which names are one file stays), space taken,
//! places on the device, the size of directories and the order of their entries, and the times that nobody can set.

use crate::record::{FileType, Record};
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
