//! The inodes of a transaction: private copies of what it changes.

use super::Trans;
use crate::error::Result;
use crate::imap::CLUSTER;
use crate::inode::{Inode, InodeEntry, InodeLocked, Site};
use crate::log::{CommitSeq, LogItem, LogVector};
use std::sync::Arc;
use xfs_format::inode::InodeCore;
use xfs_format::log::InodeFields;
use xfs_format::types::InodeNumber;

/// An inode that a transaction has locked.
pub(super) struct JoinedInode {
    entry: Arc<InodeEntry>,
    _locked: InodeLocked,
    site: Site,
    inode: Arc<Inode>,
    /// What this part of the transaction changed.
    fields: InodeFields,
    /// Whether that is more than times.
    needs_datasync: bool,
    /// Whether it is in the commit that is being made.
    is_in_commit: bool,
    /// What goes to the log for it, once that is known.
    logged: InodeFields,
}

impl JoinedInode {
    pub(super) fn ino(&self) -> InodeNumber {
        self.entry.ino()
    }

    pub(super) fn entry(&self) -> &InodeEntry {
        &self.entry
    }

    pub(super) fn is_clean(&self) -> bool {
        self.fields.is_empty()
    }

    /// The log vector of what changed since the inode was last written.
    pub(super) fn format(&mut self) -> (Arc<dyn LogItem>, LogVector) {
        // Whoever compares versions sees that this is another one.
        let inode = Arc::make_mut(&mut self.inode);
        inode.core_mut().changecount += 1;
        self.logged = self.entry.to_log(&self.inode, self.fields);
        let vector = self.entry.format(&self.inode, self.logged, &self.site);
        (Arc::clone(&self.entry) as Arc<dyn LogItem>, vector)
    }

    /// Makes what was changed the committed version.
    pub(super) fn publish(&mut self) {
        if self.is_clean() {
            return;
        }
        self.is_in_commit = true;
        self.entry.publish(Arc::clone(&self.inode), self.logged, &self.site);
        self.fields = InodeFields::empty();
    }

    /// What was published is in this checkpoint.
    pub(super) fn committed_in(&mut self, seq: CommitSeq) {
        if std::mem::take(&mut self.is_in_commit) {
            self.entry.committed_in(seq, !std::mem::take(&mut self.needs_datasync));
        }
    }
}

impl Trans<'_> {
    /// Joins an inode that the caller has locked. It stays locked up to the end of the transaction. Inodes that lie in
    /// the same transaction come in ascending order of their numbers, new ones aside.
    pub fn join_inode(&mut self, entry: Arc<InodeEntry>, locked: InodeLocked) -> Result<()> {
        debug_assert!(self.inodes.iter().all(|inode| inode.ino() != entry.ino()), "joined twice");
        self.forget_peeked();
        let site = match entry.site() {
            Some(site) => site,
            None => self.site_of(entry.ino())?,
        };
        let inode = entry.current();
        let none = InodeFields::empty();
        self.inodes.push(JoinedInode {
            entry,
            _locked: locked,
            site,
            inode,
            fields: none,
            needs_datasync: false,
            is_in_commit: false,
            logged: none,
        });
        Ok(())
    }

    /// Joins the inode that a piece of work is about, unless it is joined: when recovery does the work, nobody had it.
    pub(crate) fn join_owner(&mut self, ino: InodeNumber) -> Result<()> {
        if self.has_inode(ino) {
            return Ok(());
        }
        let entry = self.volume.entry(ino)?;
        let locked = entry.lock();
        self.join_inode(Arc::clone(&entry), locked)
    }

    /// Where an inode is written. A cluster that this transaction makes may have the place of one that was freed: its
    /// own counts, which nobody else sees yet.
    fn site_of(&self, ino: InodeNumber) -> Result<Site> {
        let (piece, offset) = self.volume.inode_source().site(ino)?;
        let cluster = match self.own_handle(&[piece]) {
            Some(own) => own,
            None => self.volume.bufs().read_handle(&[piece], &CLUSTER)?,
        };
        Ok(Site { cluster, offset })
    }

    /// The inode as this transaction has changed it.
    ///
    /// # Panics
    /// If it was not joined.
    pub fn inode(&self, ino: InodeNumber) -> &Inode {
        &self.joined(ino).inode
    }

    /// The same, to be kept.
    pub fn inode_snapshot(&self, ino: InodeNumber) -> Arc<Inode> {
        Arc::clone(&self.joined(ino).inode)
    }

    /// The entry of a joined inode.
    pub fn entry(&self, ino: InodeNumber) -> &Arc<InodeEntry> {
        &self.joined(ino).entry
    }

    /// Whether the inode was joined.
    pub fn has_inode(&self, ino: InodeNumber) -> bool {
        self.inodes.iter().any(|inode| inode.ino() == ino)
    }

    /// The inode for changing; `fields` says what will be logged besides the core: [`InodeFields::DFORK`] or
    /// [`InodeFields::AFORK`] (whatever the format), or [`InodeFields::CORE`] alone.
    ///
    /// # Panics
    /// If it was not joined.
    #[allow(dead_code, reason = "its users follow")]
    pub(crate) fn inode_mut(&mut self, ino: InodeNumber, fields: InodeFields) -> &mut Inode {
        let inode = self.joined_mut(ino);
        inode.fields |= fields | InodeFields::CORE;
        inode.needs_datasync = true;
        Arc::make_mut(&mut inode.inode)
    }

    /// The inode's core for changing its times, which nobody needs to read its content back.
    ///
    /// # Panics
    /// If it was not joined.
    pub(crate) fn times_mut(&mut self, ino: InodeNumber) -> &mut InodeCore {
        let inode = self.joined_mut(ino);
        inode.fields |= InodeFields::CORE;
        Arc::make_mut(&mut inode.inode).core_mut()
    }

    fn joined_mut(&mut self, ino: InodeNumber) -> &mut JoinedInode {
        self.inodes.iter_mut().find(|inode| inode.ino() == ino).expect("the inode was joined")
    }

    fn joined(&self, ino: InodeNumber) -> &JoinedInode {
        self.inodes.iter().find(|inode| inode.ino() == ino).expect("the inode was joined")
    }
}
