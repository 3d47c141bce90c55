//! Inodes of a volume: found, read, kept in memory; and the maps of their forks.

use super::Mount;
use crate::buf::AHEAD;
use crate::error::{Error, Result};
use crate::ifork::{self, ExtentList, ForkKind, ForkState};
use crate::inode::{Inode, InodeEntry, InodeHandle};
use crate::refcount::SharedRun;
use fileio::testing::point;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber, Lsn};

impl Mount {
    /// Reads an inode, or finds it in the cache: the version that is committed now. An inode that is free is an error.
    pub fn inode(&self, ino: InodeNumber) -> Result<Arc<Inode>> {
        Ok(self.entry(ino)?.current())
    }

    /// As [`inode`](Self::inode), with its lock and whatever version is committed later.
    pub fn entry(&self, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        let entry = match self.inodes.get(&ino) {
            Some(entry) => entry,
            None => self.read_inode(ino)?,
        };
        if entry.peek().is_free() { Err(Error::NoSuchInode(ino)) } else { Ok(entry) }
    }

    /// The file that has this number now, for whoever works with it later. One that is being freed is an error, too.
    pub fn handle(&self, ino: InodeNumber) -> Result<InodeHandle> {
        let entry = self.entry(ino)?;
        let inode = entry.current();
        let gone = !entry.is_in_use(&inode);
        if gone { Err(Error::NoSuchInode(ino)) } else { Ok(InodeHandle::new(entry, &inode)) }
    }

    /// Reads an inode that is not in memory, or finds that another thread was faster.
    fn read_inode(&self, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        // The tree is read as it is being changed: one block of it may be of before a commit, and another of after it. That
        // an inode is not to be found there is believed of those alone who keep changes off.
        let mut still = None;
        loop {
            let writes = self.bufs.writes();
            if let Some(entry) = self.inodes.get(&ino) {
                return Ok(entry);
            }
            let found = self.inode_source().find(ino);
            let parsed = found.and_then(|found| {
                self.check_inode_lsn(ino, found.bytes())?;
                Inode::parse(ino, &found, &self.geometry)
            });
            point("an inode is read");
            match parsed {
                // It may have been changed, written and forgotten since its cluster was looked at, or freed with it.
                Ok(inode) => {
                    if let Some(entry) =
                        self.enter_if_newest(Arc::new(inode), || self.bufs.writes() == writes)
                    {
                        return Ok(entry);
                    }
                }
                Err(error) if still.is_some() || !self.is_writable() => return Err(error),
                Err(error) => {
                    let Some((ag, _)) = self.geometry.split_inode(ino) else { return Err(error) };
                    still = Some(self.inode_source().keep_still(ag)?);
                }
            }
        }
    }

    /// An inode that is newer than the log may be read, and not changed: a crash would lose that.
    fn check_inode_lsn(&self, ino: InodeNumber, bytes: &[u8]) -> Result<()> {
        let Some(write) = self.write.as_ref().filter(|_| self.geometry.v5) else { return Ok(()) };
        let Some(lsn) = xfs_format::inode::lsn_of(bytes) else { return Ok(()) };
        let ahead = |head: Lsn| FormatError::mismatch("inode", AHEAD, lsn.0, head.0);
        write.journal.check_lsn(lsn).map_err(|head| Error::corrupt_inode(ino, ahead(head)))
    }

    /// The entry of an inode that is in memory, in use or not.
    #[allow(dead_code, reason = "its users follow")]
    pub(crate) fn cached_entry(&self, ino: InodeNumber) -> Option<Arc<InodeEntry>> {
        self.inodes.get(&ino)
    }

    /// The entry of an inode for a look at it, which is found in a quicker way the next time.
    pub(crate) fn noted_entry(&self, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        match self.inodes.get_and(&ino, |entry| self.recent.note(entry)) {
            Some(entry) => Ok(entry),
            None => self.read_inode(ino),
        }
    }

    /// Has the cache forget an inode, as it may whenever nobody has it and it is written.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn forget_inode(&self, ino: InodeNumber) {
        self.inodes.remove(&ino);
    }

    /// Puts an inode into the cache, unless it is there; gives the entry that stays.
    pub(crate) fn enter_inode(&self, inode: Arc<Inode>) -> Arc<InodeEntry> {
        let entry = InodeEntry::new(inode.ino(), inode, &self.geometry);
        let weight = entry.weigh();
        let kept = self.inodes.get_or_insert(entry.ino(), Arc::clone(&entry), weight, || true);
        kept.unwrap_or(entry)
    }

    /// The same of an inode that was read, if that is still the latest version of it.
    fn enter_if_newest(
        &self,
        inode: Arc<Inode>,
        is_newest: impl FnOnce() -> bool,
    ) -> Option<Arc<InodeEntry>> {
        let entry = InodeEntry::new(inode.ino(), inode, &self.geometry);
        let weight = entry.weigh();
        self.inodes.get_or_insert(entry.ino(), entry, weight, is_newest)
    }

    /// Has the cache know what an inode weighs after a change, if that differs by much.
    pub(crate) fn weigh_anew(&self, entry: &InodeEntry) {
        if entry.is_misjudged() {
            self.inodes.reweigh(entry.ino(), entry.weigh());
        }
    }

    /// Inodes in memory of this kind.
    pub(crate) fn inodes_in_memory(&self, is_one: impl Fn(&Arc<InodeEntry>) -> bool) -> Vec<Arc<InodeEntry>> {
        self.inodes.select(is_one)
    }

    /// Inodes in use that have no name. Whoever has one open, or is at work on it, keeps it in memory, and so does a failure
    /// to free it.
    pub(crate) fn unlinked_in_memory(&self) -> Result<Vec<Arc<InodeEntry>>> {
        let is_unlinked = |entry: &Arc<InodeEntry>| {
            let inode = entry.peek();
            inode.nlink() == 0 && !inode.is_free()
        };
        let mut found = std::mem::take(&mut *self.write_side()?.unfinished.lock());
        found.retain(is_unlinked);
        let known: HashSet<InodeNumber> = found.iter().map(|entry| entry.ino()).collect();
        found.extend(self.inodes.select(|entry| !known.contains(&entry.ino()) && is_unlinked(entry)));
        Ok(found)
    }

    /// The extents of a fork, read at the first call. A fork that the inode does not have has none.
    pub fn extents(&self, inode: &Inode, kind: ForkKind) -> Result<Arc<ExtentList>> {
        let Some(fork) = inode.fork_state(kind) else { return Ok(Arc::default()) };
        if let Some(list) = fork.loaded() {
            return Ok(Arc::clone(list));
        }
        let list = ifork::load(&self.bufs, &self.geometry, inode.ino(), fork)?;
        if kind == ForkKind::Attr || !inode.is_reflinked() {
            ifork::check_disjoint(inode.ino(), &list)?;
        }
        let list = Arc::clone(fork.keep(list));
        if let Some(entry) = self.inodes.get(&inode.ino()) {
            self.inodes.reweigh(inode.ino(), entry.weigh());
        }
        Ok(list)
    }

    /// What is known of `start` and up to `blocks` blocks from it, which lie in one group. What has one owner left since a
    /// moment ago counts as shared until that is on disk.
    pub(crate) fn shared_run(&self, start: FsBlock, blocks: u64) -> Result<SharedRun> {
        // In this order: what leaves the tree is noted before.
        let run = self.sharing().run(start, blocks)?;
        let (Some((ag, at)), false) = (self.geometry.split_block(start), run.shared) else { return Ok(run) };
        let lately = self.write.as_ref().and_then(|write| write.unshared.behind(ag, at.0));
        Ok(match lately {
            Some(lately) if lately.start <= at => {
                SharedRun { blocks: run.blocks.min(lately.end() - u64::from(at.0)), shared: true }
            }
            Some(lately) => SharedRun { blocks: run.blocks.min(u64::from(lately.start.0 - at.0)), ..run },
            None => run,
        })
    }

    /// Fails with [`Error::Shared`] if any block of a file in `blocks` has more than one owner, and the file's flag says
    /// that none has.
    pub fn check_unmarked(&self, entry: &InodeEntry, blocks: Range<FileBlock>) -> Result<()> {
        if !self.geometry.reflink {
            return Ok(());
        }
        let inode = entry.current();
        if inode.is_reflinked() {
            return Ok(());
        }
        let extents = self.extents(&inode, ForkKind::Data)?;
        point("a map is about to be compared with counts");
        self.sharing().check(entry.ino(), &extents, blocks)
    }

    /// Fails with [`Error::Shared`] if others have blocks of an inode that are marked as its own; with another error if
    /// its maps cannot be read. Whatever takes the last name of an inode asks this before.
    pub(crate) fn check_freeable(&self, inode: &Inode) -> Result<()> {
        for kind in [ForkKind::Data, ForkKind::Attr] {
            let holds = |fork: &ForkState| fork.nextents > 0 || fork.format == ForkFormat::Btree;
            if inode.fork_state(kind).is_some_and(holds) {
                let extents = self.extents(inode, kind)?;
                if kind == ForkKind::Data && inode.is_reflinked() {
                    continue;
                }
                self.sharing().check(inode.ino(), &extents, FileBlock(0)..FileBlock(u64::MAX))?;
            }
        }
        Ok(())
    }
}
