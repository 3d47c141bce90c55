//! Names compared with inodes: every name leads to an inode in use of its type; every inode has as many names as its
//! link count; every directory has a name in exactly one other, which is its `..`; and all of them are connected to the
//! root.
//!
//! Memory: a few words per directory. `.` and `..` count as names, so the link counts of directories need no special
//! rule.

use super::inode_table::{DIRECTORY, Use};
use super::report::FindingPlace;
use super::{Check, unlinked};
use std::collections::{BTreeSet, HashMap};
use xfs_format::dir::DirFileType;
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

const NAME: &str = "directory";

/// What is known of a directory.
#[derive(Clone, Copy, Default)]
struct Directory {
    /// The inode of its `..`.
    parent: Option<InodeNumber>,
    /// The directory with its name.
    holder: Option<InodeNumber>,
    /// Whether its parents lead to a root.
    rooted: bool,
}

/// All directories.
#[derive(Default)]
pub(super) struct Links {
    directories: HashMap<InodeNumber, Directory>,
}

impl Links {
    /// Notes that there is such a directory, whatever it contains.
    pub(super) fn add_directory(&mut self, ino: InodeNumber) {
        self.directories.entry(ino).or_default();
    }
}

/// A name in a directory.
pub(super) struct Entry<'a> {
    pub(super) dir: InodeNumber,
    pub(super) name: &'a [u8],
    pub(super) inode: InodeNumber,
    pub(super) file_type: DirFileType,
}

/// A type's byte on disk.
fn type_byte(file_type: DirFileType) -> u8 {
    match file_type {
        DirFileType::Unknown => 0,
        DirFileType::Regular => 1,
        DirFileType::Directory => 2,
        DirFileType::CharDevice => 3,
        DirFileType::BlockDevice => 4,
        DirFileType::Fifo => 5,
        DirFileType::Socket => 6,
        DirFileType::Symlink => 7,
        DirFileType::Whiteout => 8,
    }
}

/// Processes one name. `keeps_type`: whether its form of entry stores the type.
pub(super) fn entry(check: &mut Check<'_>, entry: &Entry<'_>, keeps_type: bool) {
    let place = FindingPlace::inode(entry.dir);
    let dots = matches!(entry.name, b"." | b"..");
    check.report.counts.names += u64::from(!dots);
    if dots && check.inodes.is_unlinked(entry.dir) {
        // Their links were subtracted when the directory's name was removed. Its parent may be gone by now.
        return;
    }
    match check.inodes.in_use(entry.inode) {
        Use::Unknown => return,
        Use::No => {
            let problem = FormatError::value(NAME, "name of an inode that is not in use", entry.inode.0);
            return check.report.add_named(place, problem, entry.name);
        }
        Use::Yes => check.inodes.name(entry.inode),
    }
    let kind = check.inodes.kind(entry.inode);
    let said = type_byte(entry.file_type);
    // A whiteout is a device.
    let agrees = said == kind || said == 8 && kind == 3;
    if keeps_type && kind != 0 && !agrees {
        let problem = FormatError::mismatch(NAME, "file type of a name", said.into(), kind.into());
        check.report.add_named(place, problem, entry.name);
    }
    match entry.name {
        b"." => {
            check.report.same(place, NAME, "inode of `.`", entry.inode.0, entry.dir.0);
        }
        b".." => {
            check.links.directories.entry(entry.dir).or_default().parent = Some(entry.inode);
        }
        name => {
            check.parents.name(entry.inode, name);
            if kind == DIRECTORY {
                held(check, entry);
            }
        }
    }
}

/// A directory has a name in another one.
fn held(check: &mut Check<'_>, entry: &Entry<'_>) {
    let place = FindingPlace::inode(entry.dir);
    let root = check.geometry().root;
    let known = check.links.directories.entry(entry.inode).or_default();
    if known.holder.is_some() || entry.inode == root || entry.inode == entry.dir {
        let problem = FormatError::value(NAME, "second name of a directory", entry.inode.0);
        check.report.add_named(place, problem, entry.name);
    } else {
        known.holder = Some(entry.dir);
    }
}

/// The checks after all directories were seen.
pub(super) fn check(check: &mut Check<'_>) {
    name_special(check);
    if check.report.names_known {
        check_parents(check);
    }
    for ag in check.groups() {
        let mut index = 0;
        while let Some(inodes) = check.inodes.used_in(ag, index) {
            for ino in inodes {
                if check.report.stopped() {
                    return;
                }
                unlinked::report_unlisted(check, ino);
                check_links(check, ino);
            }
            index += 1;
        }
    }
}

/// Inodes that the superblock names, and no directory does.
fn special(check: &Check<'_>) -> BTreeSet<InodeNumber> {
    let raw = check.superblock.raw();
    let numbers = [raw.uquotino, raw.gquotino, raw.pquotino, raw.rbmino, raw.rsumino].map(|ino| ino.get());
    numbers.into_iter().filter(|&ino| ino != 0 && ino != u64::MAX).map(InodeNumber).collect()
}

fn name_special(check: &mut Check<'_>) {
    if check.geometry().metadir_root.is_some() {
        // They have names in the metadata directory tree.
        return;
    }
    for ino in special(check) {
        if check.inodes.in_use(ino) == Use::No {
            let problem = FormatError::value("superblock", "metadata inode that is not in use", ino.0);
            check.report.add(FindingPlace::VOLUME, problem);
        }
        check.inodes.name(ino);
    }
}

fn check_links(check: &mut Check<'_>, ino: InodeNumber) {
    if !check.report.names_known || !check.inodes.is_sound(ino) || check.inodes.kind(ino) == 0 {
        return;
    }
    let left = check.inodes.links_left(ino);
    if left != 0 {
        // Links minus names: shown as what would have to be added to or subtracted from the count.
        let problem = if left.cast_signed() > 0 {
            FormatError::value("inode", "link count: links without a name", left.into())
        } else {
            FormatError::value("inode", "link count: names beyond it", left.wrapping_neg().into())
        };
        check.report.add(FindingPlace::inode(ino), problem);
    }
}

/// Every directory except for the roots has a name in its parent, and leads up to a root.
fn check_parents(check: &mut Check<'_>) {
    let roots: Vec<InodeNumber> =
        [Some(check.geometry().root), check.geometry().metadir_root].into_iter().flatten().collect();
    let mut all: Vec<InodeNumber> = check.links.directories.keys().copied().collect();
    all.sort_unstable();
    for &ino in &all {
        let Some(dir) = check.links.directories.get(&ino).copied() else { continue };
        // One that is unlinked and still open has no name.
        if check.inodes.is_listed(ino) || !check.inodes.is_sound(ino) {
            continue;
        }
        let place = FindingPlace::inode(ino);
        if roots.contains(&ino) {
            if let Some(parent) = dir.parent {
                check.report.same(place, NAME, "parent of the root", parent.0, ino.0);
            }
            continue;
        }
        match (dir.parent, dir.holder) {
            (Some(parent), Some(holder)) => {
                check.report.same(place, NAME, "parent", parent.0, holder.0);
            }
            (_, None) => check.report.add(place, FormatError::new(NAME, "no name leads to it")),
            (None, Some(_)) => {}
        }
    }
    for &ino in &all {
        check_way_up(check, ino, &roots);
    }
}

/// Goes from parent to parent. Each directory is visited once; those that lead to a root are marked.
fn check_way_up(check: &mut Check<'_>, ino: InodeNumber, roots: &[InodeNumber]) {
    let mut way: Vec<InodeNumber> = Vec::new();
    let mut on_way: std::collections::HashSet<InodeNumber> = std::collections::HashSet::new();
    let mut at = ino;
    let rooted = loop {
        let Some(dir) = check.links.directories.get(&at) else { break false };
        if dir.rooted || roots.contains(&at) {
            break true;
        }
        if !on_way.insert(at) {
            check.report.add(FindingPlace::inode(at), FormatError::new(NAME, "it lies in itself"));
            break true;
        }
        way.push(at);
        match dir.holder {
            Some(holder) => at = holder,
            None => break true, // reported already
        }
    };
    debug_assert!(rooted || !check.links.directories.contains_key(&at), "only the unknown is not rooted");
    for ino in way {
        if let Some(dir) = check.links.directories.get_mut(&ino) {
            dir.rooted = true;
        }
    }
}
