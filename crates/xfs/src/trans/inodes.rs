//! The inodes of a transaction: private copies of what it changes.

use super::Trans;
use crate::error::Result;
use crate::imap::CLUSTER;
use crate::inode::{IlockExclusive, Imap, Inode, InodeEntry, NotedTime, after_overwrite};
use crate::log::{CommitSeq, Joining};
use crate::mount::Mount;
use std::sync::Arc;
use xfs_format::inode::InodeCore;
use xfs_format::log::InodeFields;
use xfs_format::types::InodeNumber;

/// An inode that a transaction has joined.
pub(super) struct JoinedInode {
    entry: Arc<InodeEntry>,
    _locked: IlockExclusive,
    imap: Imap,
    inode: Arc<Inode>,
    /// What this part of the transaction changed.
    fields: InodeFields,
    /// The time of an overwrite that only memory knew when this part first changed the inode.
    overwritten: Option<NotedTime>,
    /// Whether it changed more than times.
    needs_datasync: bool,
    /// Whether it is part of the commit in progress.
    is_in_commit: bool,
}

impl JoinedInode {
    pub(super) fn ino(&self) -> InodeNumber {
        self.entry.ino()
    }

    pub(super) fn entry(&self) -> &InodeEntry {
        &self.entry
    }

    /// The inode as the transaction sees it.
    pub(super) fn inode(&self) -> &Inode {
        &self.inode
    }

    pub(super) fn is_clean(&self) -> bool {
        self.fields.is_empty()
    }

    /// Counts the change, so that readers that compare versions notice it.
    pub(super) fn count_change(&mut self) {
        Arc::make_mut(&mut self.inode).core_mut().changecount += 1;
    }

    /// The inode for changing its core and `fields`. The time of an overwrite that came before goes into it first.
    fn change(&mut self, mount: &Mount, fields: InodeFields) -> &mut Inode {
        let noted = self.is_clean().then(|| self.entry.overwritten().read());
        self.fields |= fields | InodeFields::CORE;
        let inode = Arc::make_mut(&mut self.inode);
        if let Some(noted) = noted
            && let Some(time) = noted.since(inode)
        {
            let time = mount.still_time().unwrap_or(time);
            let core = inode.core_mut();
            (core.mtime, core.ctime) = after_overwrite((core.mtime, core.ctime), time);
            inode.knows_note(noted);
            self.overwritten = Some(noted);
        }
        inode
    }

    /// Makes the changes the committed version.
    pub(super) fn commit(&mut self, joining: &mut Joining<'_>) {
        if self.is_clean() {
            return;
        }
        self.is_in_commit = true;
        let changed = std::mem::replace(&mut self.fields, InodeFields::empty());
        let noted = self.overwritten.take();
        if let Some(noted) = noted {
            self.entry.overwritten().tell(noted);
        }
        self.entry.commit(Arc::clone(&self.inode), changed, &self.imap, joining);
        if let Some(noted) = noted {
            self.entry.overwritten().told(noted);
        }
    }

    /// What was published belongs to checkpoint `seq`.
    pub(super) fn committed_in(&mut self, seq: CommitSeq) {
        if std::mem::take(&mut self.is_in_commit) {
            self.entry.committed_in(seq, !std::mem::take(&mut self.needs_datasync));
        }
    }
}

impl Trans<'_> {
    /// Joins an inode that the caller has locked. It stays locked up to the end of the transaction. Inodes are joined
    /// in ascending order of their numbers, except new ones.
    pub fn join_inode(&mut self, entry: Arc<InodeEntry>, locked: IlockExclusive) -> Result<()> {
        debug_assert!(self.inodes.iter().all(|inode| inode.ino() != entry.ino()), "joined twice");
        self.forget_snapshots();
        let (inode, imap) = entry.latest();
        let imap = match imap {
            Some(imap) => imap,
            None => self.imap_of(entry.ino())?,
        };
        let none = InodeFields::empty();
        self.inodes.push(JoinedInode {
            entry,
            _locked: locked,
            imap,
            inode,
            fields: none,
            overwritten: None,
            needs_datasync: false,
            is_in_commit: false,
        });
        Ok(())
    }

    /// Joins the owner of deferred work, unless it has joined. In recovery nobody has joined it before.
    pub(crate) fn join_owner(&mut self, ino: InodeNumber) -> Result<()> {
        if self.has_inode(ino) {
            return Ok(());
        }
        let entry = self.mount.entry(ino)?;
        let locked = entry.ilock();
        self.join_inode(Arc::clone(&entry), locked)
    }

    /// The imap of an inode: where it is written. A cluster that this transaction makes may replace a freed one at the
    /// same address. Then the transaction's own buffer counts, which nobody else sees yet.
    fn imap_of(&self, ino: InodeNumber) -> Result<Imap> {
        let (map, offset) = self.mount.imap_source().imap(ino)?;
        let cluster = match self.own_handle(&[map]) {
            Some(own) => own,
            None => self.mount.bufs().read_handle(&[map], &CLUSTER)?,
        };
        Ok(Imap { cluster, offset })
    }

    /// The inode as this transaction has changed it.
    ///
    /// # Panics
    /// If it was not joined.
    pub fn inode(&self, ino: InodeNumber) -> &Inode {
        &self.joined(ino).inode
    }

    /// The same as an owned reference.
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
    pub(crate) fn inode_mut(&mut self, ino: InodeNumber, fields: InodeFields) -> &mut Inode {
        let mount = self.mount;
        let joined = self.joined_mut(ino);
        joined.needs_datasync = true;
        joined.change(mount, fields)
    }

    /// The inode's core for changing its times, which nobody needs to read its content back.
    ///
    /// # Panics
    /// If it was not joined.
    pub(crate) fn times_mut(&mut self, ino: InodeNumber) -> &mut InodeCore {
        let mount = self.mount;
        self.joined_mut(ino).change(mount, InodeFields::CORE).core_mut()
    }

    fn joined_mut(&mut self, ino: InodeNumber) -> &mut JoinedInode {
        self.inodes.iter_mut().find(|inode| inode.ino() == ino).expect("the inode was joined")
    }

    fn joined(&self, ino: InodeNumber) -> &JoinedInode {
        self.inodes.iter().find(|inode| inode.ino() == ino).expect("the inode was joined")
    }
}
