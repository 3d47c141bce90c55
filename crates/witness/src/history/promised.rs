//! What a log has promised to do, and each recovery does in its own way: blocks of the trees of maps, and when an inode was
//! changed whose attribute is set by recovery.
//!
//! A kernel that finishes setting an attribute in an inode (ATTRI) says that the inode was changed then, at the time of its
//! recovery, although the change that promised it has said when it was. uxfs leaves that time as it is.
//!
//! Invariant: nothing else passes for it. Of times, only as many differ as attributes were promised, and only if they are
//! later than all that the log tells of.

use super::map_trees;
use super::recover::same;
use crate::record::{Inode, Record};
use anyhow::{Context, Result};
use blockdev::FileDevice;
use std::path::Path;
use uxfs::{OpenOptions, Volume};
use xfs::recovery::unfinished_chains;

/// What the log of a volume has promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promised {
    /// The block size, if maps are to be changed.
    maps: Option<u64>,
    /// How many attributes are to be changed.
    attrs: usize,
    /// The last time at which an inode was changed, before any recovery.
    latest: i128,
}

impl Promised {
    /// By an image that nobody has recovered, and what is `seen` of it.
    pub(crate) fn of(image: &Path, seen: &[Record]) -> Result<Self> {
        let chains = unfinished_chains(&FileDevice::open(image)?).context("the log")?;
        let kinds: Vec<&str> =
            chains.iter().flat_map(|chain| &chain.left).map(|intent| intent.kind).collect();
        let block =
            Volume::open(image, &OpenOptions::new())?.info().context("the shape of the volume")?.block_size;
        let changes_maps = kinds.iter().any(|kind| ["BUI", "XMI"].contains(kind));
        Ok(Self {
            maps: changes_maps.then_some(block.into()),
            attrs: kinds.iter().filter(|&&kind| kind == "ATTRI").count(),
            latest: inodes(seen).map(|inode| inode.ctime).max().unwrap_or_default(),
        })
    }

    /// Both recoveries came to the same, except for that.
    pub(crate) fn same(&self, what: &str, expected: &[Record], found: Vec<Record>) -> Result<()> {
        let found = match self.maps {
            Some(block) => map_trees::leveled(expected, found, block),
            None => found,
        };
        same(what, expected, &self.timed(expected, found))
    }

    /// What was found, with the times that were expected of inodes whose attributes were promised to be changed.
    fn timed(&self, expected: &[Record], mut found: Vec<Record>) -> Vec<Record> {
        let mut expected = expected.iter().peekable();
        let mut left = self.attrs;
        for record in &mut found {
            while expected.next_if(|other| other.path < record.path).is_some() {}
            let other = expected.peek().filter(|other| other.path == record.path);
            if let (Some(mine), Some(theirs)) =
                (&mut record.inode, other.and_then(|other| other.inode.as_ref()))
                && mine.ctime != theirs.ctime
                && mine.ctime.max(theirs.ctime) > self.latest
                && left > 0
            {
                left -= 1;
                mine.ctime = theirs.ctime;
            }
        }
        found
    }
}

fn inodes(records: &[Record]) -> impl Iterator<Item = &Inode> {
    records.iter().filter_map(|record| record.inode.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(times: [i128; 3]) -> Vec<Record> {
        let file = |(nth, ctime): (usize, i128)| Record {
            path: format!("/file{nth}"),
            inode: Some(Inode { ctime, ..Inode::default() }),
            ..Record::default()
        };
        times.into_iter().enumerate().map(file).collect()
    }

    #[test]
    fn only_times_of_a_recovery_are_let_pass_and_no_more_than_were_promised() {
        let promised = Promised { maps: None, attrs: 1, latest: 100 };
        let expected = files([90, 101, 100]);
        for (times, passes) in [
            ([90, 101, 100], true),
            ([90, 80, 100], true),
            ([90, 120, 100], true),
            ([110, 101, 100], true),
            ([91, 101, 100], false),
            ([90, 101, 99], false),
            ([110, 80, 100], false),
        ] {
            let found = promised.timed(&expected, files(times));
            assert_eq!(found == expected, passes, "{times:?}");
        }
        let none = Promised { attrs: 0, ..promised };
        assert_ne!(none.timed(&expected, files([90, 80, 100])), expected);
    }
}
