//! Inodes of a volume: finding, reading and caching them, and the maps of their forks.

use super::Mount;
use crate::buf::{AHEAD, BufMap};
use crate::error::{Error, Result};
use crate::ifork::{self, ExtentList, ForkKind, ForkState};
use crate::imap::InodeBytes;
use crate::inode::{InMemory, Inode, InodeEntry, InodeHandle};
use crate::log::thread_slot;
use crate::refcount::SharedRun;
use fileio::testing::point;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::inode::ForkFormat;
use xfs_format::types::{FileBlock, FsBlock, InodeNumber, Lsn};

/// How often an inode is looked for on disk while blocks are being freed. After that its group is locked.
const LOOKS_MAX: u32 = 3;

impl Mount {
    /// The committed version of an inode, from the cache or from disk. A free inode is an error.
    pub fn inode(&self, ino: InodeNumber) -> Result<Arc<Inode>> {
        Ok(self.entry(ino)?.current())
    }

    /// Like [`inode`](Self::inode), but gives the entry, which has the lock and all later versions.
    pub fn entry(&self, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        let entry = match self.inodes.get(&ino) {
            Some(entry) => entry,
            None => self.read_inode(ino)?,
        };
        if entry.snapshot().is_free() { Err(Error::NoSuchInode(ino)) } else { Ok(entry) }
    }

    /// A handle of the file that has this number now. An inode that is being freed is an error, too.
    pub fn handle(&self, ino: InodeNumber) -> Result<InodeHandle> {
        let entry = self.entry(ino)?;
        let inode = entry.current();
        let gone = !entry.is_in_use(&inode);
        if gone { Err(Error::NoSuchInode(ino)) } else { Ok(InodeHandle::new(entry, &inode)) }
    }

    /// Calls `work` with what only memory knew of an inode, and its committed version. Takes no lock if the inode was
    /// looked up recently. An inode that is being freed is an error, too.
    pub fn look_at_inode<R>(&self, ino: InodeNumber, work: impl FnOnce(&InMemory, &Inode) -> R) -> Result<R> {
        let look = |entry: &InodeEntry| {
            let (in_memory, inode) = entry.in_memory_with_version();
            entry.is_in_use(&inode).then(|| work(&in_memory, &inode)).ok_or(Error::NoSuchInode(ino))
        };
        let recent = self.recent.find(ino);
        match recent.as_ref().and_then(|recent| recent.entry()) {
            Some(entry) => look(entry),
            None => look(&*self.noted_entry(ino)?),
        }
    }

    /// Reads an inode that is not in memory, or finds that another thread has just read it.
    fn read_inode(&self, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        // The tree may change while it is read: one block may be older than a commit, and the next one newer. So "not
        // found" is believed only while changes are locked out.
        let (ag, _) = self.geometry.split_inode(ino).ok_or(Error::NoSuchInode(ino))?;
        let (mut still, mut looks) = (None, 0);
        loop {
            let frees = self.bufs.writes().frees();
            if let Some(entry) = self.inodes.get(&ino) {
                return Ok(entry);
            }
            let parsed = self.look_for_inode(ino);
            point("an inode is read");
            match parsed {
                Ok((inode, cluster, writes)) => {
                    // No cluster of a locked group is freed.
                    let frees = still.is_none().then_some(frees);
                    if let Some(entry) = self.enter_if_newest(inode, cluster, writes, frees) {
                        self.read_chunks_ahead(ino);
                        return Ok(entry);
                    }
                    looks += 1;
                }
                Err(error) if still.is_some() || !self.is_writable() => return Err(error),
                Err(_) => looks = LOOKS_MAX,
            }
            if looks >= LOOKS_MAX && still.is_none() {
                still = Some(self.imap_source().keep_still(ag)?);
            }
        }
    }

    /// An inode as it is on disk, its cluster, and the cluster's write count from before it was read.
    fn look_for_inode(&self, ino: InodeNumber) -> Result<(Inode, BufMap, u64)> {
        let source = self.imap_source();
        let (cluster, offset) = source.imap_in_use(ino)?;
        let writes = self.bufs.writes().of(&[cluster]);
        let found = source.read_site(cluster, offset).map_err(|error| error.of_inode(ino))?;
        Ok((self.parse_inode(ino, &found)?, cluster, writes))
    }

    /// Parses an inode that was found on disk.
    pub(super) fn parse_inode(&self, ino: InodeNumber, found: &InodeBytes) -> Result<Inode> {
        self.check_inode_lsn(ino, found.bytes())?;
        Inode::parse(ino, found, &self.geometry)
    }

    /// Checks the inode's LSN. An inode that is newer than the log may be read but not changed: a crash would lose the
    /// change.
    fn check_inode_lsn(&self, ino: InodeNumber, bytes: &[u8]) -> Result<()> {
        let Some(write) = self.write.as_ref().filter(|_| self.geometry.v5) else { return Ok(()) };
        let Some(lsn) = xfs_format::inode::lsn_of(bytes) else { return Ok(()) };
        let ahead = |head: Lsn| FormatError::mismatch("inode", AHEAD, lsn.0, head.0);
        write.journal.check_lsn(lsn).map_err(|head| Error::corrupt_inode(ino, ahead(head)))
    }

    /// The entry of an inode that is in memory, whether in use or free.
    pub(crate) fn cached_entry(&self, ino: InodeNumber) -> Option<Arc<InodeEntry>> {
        self.inodes.get(&ino)
    }

    /// The entry of an inode for a lookup. The second lookup notes it in the table of recent inodes, which makes the
    /// next ones faster. The first does not: noting costs more than a lookup, and most files are looked up once.
    pub(crate) fn noted_entry(&self, ino: InodeNumber) -> Result<Arc<InodeEntry>> {
        let note = |entry: &Arc<InodeEntry>| {
            if entry.is_looked_up_again() {
                self.recent.note(entry);
            }
        };
        match self.inodes.get_and(&ino, note) {
            Some(entry) => Ok(entry),
            None => self.read_inode(ino),
        }
    }

    /// Evicts an inode from the cache. This is allowed whenever nobody holds it and it is written back.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn forget_inode(&self, ino: InodeNumber) {
        self.inodes.remove(&ino);
    }

    /// The geometry for an inode that comes into memory. Each thread has a copy, whose references it counts by itself. The
    /// volume's size in it stays what it was, which inodes do not ask for.
    fn geometry_for_inode(&self) -> &Arc<Geometry> {
        &self.inode_geometries[thread_slot::current() % self.inode_geometries.len()]
    }

    /// Puts an inode into the cache unless it is there already. Returns the entry that is in the cache.
    pub(crate) fn enter_inode(&self, inode: Arc<Inode>) -> Arc<InodeEntry> {
        let entry = InodeEntry::new(inode.ino(), inode, self.geometry_for_inode());
        let weight = entry.weighed();
        let kept = self.inodes.get_or_insert(entry.ino(), Arc::clone(&entry), weight, || true);
        kept.unwrap_or(entry)
    }

    /// Like [`enter_inode`](Self::enter_inode), for an inode that was read, and only if that is still its latest
    /// version: its cluster's write count is still what it was before the read, and so are the frees of the volume,
    /// unless the group is locked (`None`).
    pub(super) fn enter_if_newest(
        &self,
        inode: Inode,
        cluster: BufMap,
        writes: u64,
        frees: Option<u64>,
    ) -> Option<Arc<InodeEntry>> {
        let entry = InodeEntry::new(inode.ino(), Arc::new(inode), self.geometry_for_inode());
        let weight = entry.weighed();
        let counts = self.bufs.writes();
        let is_newest =
            || frees.is_none_or(|frees| counts.frees() == frees) && counts.of(&[cluster]) == writes;
        self.inodes.get_or_insert(entry.ino(), entry, weight, is_newest)
    }

    /// Tells the cache the weight of an inode that has changed to `inode`, if it differs by much.
    pub(crate) fn weigh_anew(&self, entry: &InodeEntry, inode: &Inode) {
        if entry.is_misjudged(inode) {
            self.inodes.reweigh(entry.ino(), entry.weigh(inode));
        }
    }

    /// The inodes in memory for which `is_one` holds.
    pub(crate) fn inodes_in_memory(&self, is_one: impl Fn(&Arc<InodeEntry>) -> bool) -> Vec<Arc<InodeEntry>> {
        self.inodes.select(is_one)
    }

    /// Inodes in use that have no name. They are all in memory: an open file or an operation keeps them there, and so
    /// does a failure to free them.
    pub(crate) fn unlinked_in_memory(&self) -> Result<Vec<Arc<InodeEntry>>> {
        let is_unlinked = |entry: &Arc<InodeEntry>| {
            let inode = entry.snapshot();
            inode.nlink() == 0 && !inode.is_free()
        };
        let mut found = std::mem::take(&mut *self.write_side()?.unfinished.lock());
        found.retain(is_unlinked);
        let known: HashSet<InodeNumber> = found.iter().map(|entry| entry.ino()).collect();
        // Looked at with no lock of the cache held.
        let others = self.inodes.select(|entry| !known.contains(&entry.ino()));
        found.extend(others.into_iter().filter(is_unlinked));
        Ok(found)
    }

    /// The extents of a fork, read at the first call. A fork that the inode does not have is empty.
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
            self.inodes.reweigh(inode.ino(), entry.weigh(&entry.snapshot()));
        }
        Ok(list)
    }

    /// What is known of the sharing of `start` and up to `blocks` blocks from it, which lie in one group. A block that
    /// has just lost all owners but one counts as shared until that is on disk.
    pub(crate) fn shared_run(&self, start: FsBlock, blocks: u64) -> Result<SharedRun> {
        // This order matters: what leaves the tree is noted in `unshared` first.
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

    /// Fails with [`Error::Shared`] if a block of a file in `blocks` has more than one owner although the file's
    /// reflink flag is off.
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

    /// Fails with [`Error::Shared`] if other files have blocks of an inode that is not marked as sharing any, and with
    /// another error if its maps cannot be read. Whatever removes the last name of an inode checks this first.
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
