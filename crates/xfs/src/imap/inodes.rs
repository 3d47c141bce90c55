//! What is remembered of the inodes of a volume, in memory alone, from one change to the next.
//!
//! Invariant: who points to whom in a list of unlinked inodes is a hint: a wrong or missing one costs a walk along the list,
//! no more.

use super::InodeShape;
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgInode, AgNumber, InodeNumber};

const SHARDS: usize = 16;

/// The inodes of a volume: what allocation remembers from one to the next.
#[derive(Debug)]
pub struct Inodes {
    shape: InodeShape,
    /// Where the next directory goes.
    next_group: AtomicU32,
    /// Where generation numbers follow from a seed; else each thread has its own source of them.
    generations: Option<Mutex<fastrand::Rng>>,
    pub(crate) unlinked: UnlinkedHints,
}

impl Inodes {
    /// The inodes of a volume of this shape. Generation numbers follow from `seed` if there is one.
    pub fn new(geometry: &Geometry, seed: Option<u64>) -> Self {
        Self {
            shape: InodeShape::new(geometry),
            next_group: AtomicU32::new(0),
            generations: seed.map(|seed| Mutex::new(fastrand::Rng::with_seed(seed))),
            unlinked: UnlinkedHints::default(),
        }
    }

    /// How inodes come on this volume.
    pub fn shape(&self) -> &InodeShape {
        &self.shape
    }

    /// A generation number: nobody who knew the inode's earlier ones can guess it.
    pub fn generation(&self) -> u32 {
        match &self.generations {
            Some(seeded) => seeded.lock().u32(..),
            None => fastrand::u32(..),
        }
    }

    /// Where to look first for an inode of `parent`: in its group, or, for a directory, in one group after the other.
    pub(crate) fn first_group(&self, geometry: &Geometry, parent: InodeNumber, directory: bool) -> AgNumber {
        if directory {
            AgNumber(self.next_group.fetch_add(1, Ordering::Relaxed) % geometry.ag_count().max(1))
        } else {
            geometry.split_inode(parent).map_or(AgNumber(0), |(ag, _)| ag)
        }
    }
}

/// Who points to an inode of a list: its predecessor, by group and inode.
#[derive(Debug, Default)]
pub struct UnlinkedHints {
    shards: [Shard; SHARDS],
}

static SHARD: LockClass = LockClass::new("unlinked hints");

type Before = HashMap<(AgNumber, AgInode), AgInode>;

#[derive(Debug, Default)]
struct Shard {
    before: Mutex<Before>,
    users: Users,
}

impl UnlinkedHints {
    fn shard(&self, ag: AgNumber) -> Counted<MutexGuard<'_, Before>> {
        let Shard { before, users } = &self.shards[ag.0 as usize % SHARDS];
        SHARD.lock_by(users, Mode::Exclusive, || before.try_lock(), || before.lock())
    }

    /// The predecessor, if it is known.
    pub(crate) fn get(&self, ag: AgNumber, inode: AgInode) -> Option<AgInode> {
        self.shard(ag).get(&(ag, inode)).copied()
    }

    /// Takes note of the predecessor, or forgets it.
    pub(crate) fn set(&self, ag: AgNumber, inode: AgInode, before: Option<AgInode>) {
        let mut shard = self.shard(ag);
        match before {
            Some(before) => shard.insert((ag, inode), before),
            None => shard.remove(&(ag, inode)),
        };
    }
}
