//! Parent pointers compared with names: every name of an inode has a pointer among its attributes, and every pointer a
//! name.
//!
//! A pointer is an attribute of the inode. Its name is that of the entry, its value is the number and generation of the
//! directory. For each inode, pointers and names are summed up as keyed hashes of all three. So the order does not
//! matter, and an image cannot be crafted so that different sides agree. Memory: some forty bytes per inode, on volumes
//! with parent pointers.

use super::Check;
use super::report::FindingPlace;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use xfs_format::da::name_hash;
use xfs_format::error::FormatError;
use xfs_format::features::Incompat;
use xfs_format::superblock::Superblock;
use xfs_format::types::InodeNumber;

const NAME: &str = "parent pointers";

/// Bytes of a pointer's value: number and generation of the directory.
const VALUE_BYTES: usize = 12;

/// What is known of an inode's pointers and names.
#[derive(Default)]
struct Sum {
    /// Hashes of its pointers minus those of its names. It wraps.
    difference: u64,
    pointers: u32,
    names: u32,
}

/// The pointers and names of all inodes. Empty on a volume without parent pointers.
pub(super) struct Parents {
    wanted: bool,
    key: RandomState,
    sums: HashMap<InodeNumber, Sum>,
    /// Inodes some of whose pointers are unknown.
    unknown: HashSet<InodeNumber>,
    /// The directory whose names are being processed, and its generation.
    dir: (InodeNumber, u32),
}

impl Parents {
    pub(super) fn new(superblock: &Superblock) -> Self {
        Self {
            wanted: superblock.incompat().contains(Incompat::PARENT),
            key: RandomState::new(),
            sums: HashMap::new(),
            unknown: HashSet::new(),
            dir: (InodeNumber(0), 0),
        }
    }

    /// Notes that not all pointers of an inode could be read.
    pub(super) fn lose(&mut self, ino: InodeNumber) {
        if self.wanted {
            self.unknown.insert(ino);
        }
    }

    /// The next names are those of this directory.
    pub(super) fn enter(&mut self, dir: InodeNumber, generation: u32) {
        self.dir = (dir, generation);
    }

    /// Processes a name of the present directory.
    pub(super) fn name(&mut self, of: InodeNumber, name: &[u8]) {
        if self.wanted {
            let hash = self.key.hash_one((self.dir.0.0, self.dir.1, name));
            let sum = self.sums.entry(of).or_default();
            sum.difference = sum.difference.wrapping_sub(hash);
            sum.names = sum.names.saturating_add(1);
        }
    }
}

/// Processes a pointer of an inode. `hash` is the hash under which it is stored, if it is indexed.
pub(super) fn pointer(
    check: &mut Check<'_>,
    of: InodeNumber,
    (name, value): (&[u8], Option<&[u8]>),
    hash: Option<u32>,
) {
    let place = FindingPlace::inode(of);
    if !check.parents.wanted {
        return check.report.add_named(place, FormatError::new(NAME, "on a volume without"), name);
    }
    let parts = value.filter(|value| value.len() == VALUE_BYTES).and_then(|value| {
        let (dir, generation) = (value.first_chunk()?, value.last_chunk()?);
        Some((u64::from_be_bytes(*dir), u32::from_be_bytes(*generation)))
    });
    let Some((dir, generation)) = parts else {
        check.parents.lose(of);
        return check.report.add_named(place, FormatError::new(NAME, "value"), name);
    };
    if let Some(hash) = hash.filter(|_| !check.geometry().ascii_ci) {
        let due = name_hash(name) ^ (dir >> 32) as u32 ^ dir as u32;
        if hash != due {
            let problem = FormatError::mismatch(NAME, "hash", hash.into(), due.into());
            check.report.add_named(place, problem, name);
        }
    }
    let parents = &mut check.parents;
    let sum = parents.sums.entry(of).or_default();
    sum.difference = sum.difference.wrapping_add(parents.key.hash_one((dir, generation, name)));
    sum.pointers = sum.pointers.saturating_add(1);
}

/// The checks after all pointers and names were seen.
pub(super) fn check(check: &mut Check<'_>) {
    // Recovery may still have to finish a pointer.
    if !check.report.names_known || check.report.is_unfinished() {
        return;
    }
    let parents = &check.parents;
    let wrong = parents.sums.iter().filter(|(ino, sum)| {
        sum.difference != 0 && !parents.unknown.contains(ino) && check.inodes.is_sound(**ino)
    });
    let mut wrong: Vec<(InodeNumber, u32, u32)> =
        wrong.map(|(&ino, sum)| (ino, sum.pointers, sum.names)).collect();
    wrong.sort_unstable_by_key(|&(ino, ..)| ino.0);
    for (ino, pointers, names) in wrong {
        let problem = match pointers.cmp(&names) {
            std::cmp::Ordering::Less => {
                FormatError::mismatch(NAME, "count: names without one", pointers.into(), names.into())
            }
            std::cmp::Ordering::Greater => {
                FormatError::mismatch(NAME, "count: pointers without a name", pointers.into(), names.into())
            }
            std::cmp::Ordering::Equal => FormatError::new(NAME, "directories or names that they say"),
        };
        check.report.add(FindingPlace::inode(ino), problem);
        if check.report.stopped() {
            return;
        }
    }
}
