//! What is remembered of a volume's inodes from one change to the next, only in memory.
//!
//! Invariant: the predecessor in an unlinked list is a hint. A wrong or missing one only costs a walk along the list.

use super::InodeGeometry;
use lockstat::{Counted, LockClass, Mode, Users};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgInode, AgNumber, InodeNumber};

const SHARDS: usize = 16;

/// State of inode allocation in a volume.
#[derive(Debug)]
pub struct Inodes {
    geometry: InodeGeometry,
    /// Where the next directory goes.
    next_group: AtomicU32,
    /// The source of generation numbers if they follow from a seed. Otherwise each thread has its own.
    generations: Option<Mutex<fastrand::Rng>>,
    pub(crate) unlinked: UnlinkedHints,
}

impl Inodes {
    /// State for a volume with this geometry. If there is a `seed`, generation numbers follow from it.
    pub fn new(geometry: &Geometry, seed: Option<u64>) -> Self {
        Self {
            geometry: InodeGeometry::new(geometry),
            next_group: AtomicU32::new(0),
            generations: seed.map(|seed| Mutex::new(fastrand::Rng::with_seed(seed))),
            unlinked: UnlinkedHints::default(),
        }
    }

    /// The inode geometry of this volume.
    pub fn geometry(&self) -> &InodeGeometry {
        &self.geometry
    }

    /// A generation number. It cannot be guessed from the inode's earlier ones.
    pub fn generation(&self) -> u32 {
        match &self.generations {
            Some(seeded) => seeded.lock().u32(..),
            None => fastrand::u32(..),
        }
    }

    /// Where to look first for an inode for `parent`: in its group, or, for a directory, in one group after the other.
    pub(crate) fn first_group(&self, geometry: &Geometry, parent: InodeNumber, directory: bool) -> AgNumber {
        if directory {
            AgNumber(self.next_group.fetch_add(1, Ordering::Relaxed) % geometry.ag_count().max(1))
        } else {
            geometry.split_inode(parent).map_or(AgNumber(0), |(ag, _)| ag)
        }
    }
}

/// The predecessors of inodes in their unlinked lists, by group and inode.
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

    /// Sets or removes the predecessor.
    pub(crate) fn set(&self, ag: AgNumber, inode: AgInode, before: Option<AgInode>) {
        let mut shard = self.shard(ag);
        match before {
            Some(before) => shard.insert((ag, inode), before),
            None => shard.remove(&(ag, inode)),
        };
    }
}
