//! What a history is done to: a file system, by the calls that a program would make.
//!
//! Invariants:
//! - paths are relative to the volume's root, without a slash in front, and a symbolic link at their end is not
//!   followed;
//! - the caller is root with an empty umask: user and group of new objects are 0 unless a directory's set-group-ID
//!   bit says otherwise;
//! - errors are those that Linux has for the same mistake.

mod engine;
mod mounted;

pub use engine::EngineTarget;
pub use mounted::MountedTarget;

use super::acl::Acl;
use super::op::{
    AclKind, AllocateHow, Moment, Name, NodeKind, Op, OpOutcome, Ref, RenameHow, Stat, XattrHow,
};
use crate::record::Hints;
use rustix::io::Errno;

/// What a call gives.
pub type Called<T> = Result<T, Errno>;

/// What two files exchange.
#[derive(Clone, Copy, Debug)]
pub struct Exchanged {
    /// Where it begins in each.
    pub at: [u64; 2],
    /// Bytes; 0 for all up to the ends of both.
    pub len: u64,
    /// Only what the first file has written.
    pub only_written: bool,
}

/// A file system under test.
pub trait Target: Sync {
    /// An open regular file.
    type File: Send;

    /// Whether a call that fails for want of space leaves everything as it was, a write is all or nothing, and so is
    /// every call when the power goes.
    const STRICT: bool;

    /// Makes a regular file that must not be there.
    fn create(&self, path: &[u8], mode: u16) -> Called<Self::File>;
    /// Opens a regular file to read and write.
    fn open(&self, path: &[u8]) -> Called<Self::File>;
    /// Makes a regular file without a name.
    fn tmpfile(&self, dir: &[u8], mode: u16) -> Called<Self::File>;
    /// Gives an open file a name.
    fn link_file(&self, file: &Self::File, path: &[u8]) -> Called<()>;
    /// Makes a directory.
    fn mkdir(&self, path: &[u8], mode: u16) -> Called<()>;
    /// Makes a regular file, a pipe, a socket or a device node.
    fn mknod(&self, path: &[u8], kind: NodeKind, mode: u16) -> Called<()>;
    /// Makes a symbolic link.
    fn symlink(&self, path: &[u8], target: &[u8]) -> Called<()>;
    /// Gives an object one more name.
    fn link(&self, from: &[u8], to: &[u8]) -> Called<()>;
    /// Removes a name of what is not a directory.
    fn unlink(&self, path: &[u8]) -> Called<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &[u8]) -> Called<()>;
    /// Renames.
    fn rename(&self, from: &[u8], to: &[u8], how: RenameHow) -> Called<()>;
    /// Writes, and says how many bytes.
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64) -> Called<usize>;
    /// Reads until the buffer is full or the file ends.
    fn read(&self, file: &Self::File, buffer: &mut [u8], offset: u64) -> Called<usize>;
    /// Changes what is allocated.
    fn allocate(&self, file: &Self::File, how: AllocateHow, offset: u64, len: u64) -> Called<()>;
    /// Changes the size.
    fn truncate(&self, file: &Self::File, size: u64) -> Called<()>;
    /// Has `to` share a range of `from`, up to its end with a length of 0.
    fn clone_range(&self, from: &Self::File, offset: u64, to: &Self::File, at: u64, len: u64) -> Called<()>;
    /// Has both share a range if that is the same, and says whether it is.
    fn dedupe(&self, from: &Self::File, offset: u64, to: &Self::File, at: u64, len: u64) -> Called<bool>;
    /// Copies a range, and says how many bytes.
    fn copy_range(&self, from: &Self::File, offset: u64, to: &Self::File, at: u64, len: u64) -> Called<u64>;
    /// Has two files exchange what they have in a range each.
    fn exchange(&self, file: &Self::File, other: &Self::File, what: Exchanged) -> Called<()>;
    /// Where the next data (or the next hole) begin; `None`: past the end, or no more data.
    fn seek(&self, file: &Self::File, offset: u64, data: bool) -> Called<Option<u64>>;
    /// Sets an extended attribute.
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrHow) -> Called<()>;
    /// Removes one.
    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Called<()>;
    /// The value of one.
    fn get_xattr(&self, path: &[u8], name: &[u8]) -> Called<Vec<u8>>;
    /// Names of all, in any order.
    fn list_xattrs(&self, path: &[u8]) -> Called<Vec<Vec<u8>>>;
    /// Sets or removes an access control list.
    fn set_acl(&self, path: &[u8], kind: AclKind, acl: Option<&Acl>) -> Called<()>;
    /// Changes permission bits.
    fn chmod(&self, path: &[u8], mode: u16) -> Called<()>;
    /// Changes owner and group.
    fn chown(&self, path: &[u8], uid: u32, gid: u32) -> Called<()>;
    /// Sets the project, and whether a directory hands it down.
    fn set_project(&self, path: &[u8], id: u32, inherit: bool) -> Called<()>;
    /// Sets how a file wants to be treated; the extent size of a directory only.
    fn set_hints(&self, path: &[u8], hints: Hints) -> Called<()>;
    /// Sets times of last access and last modification.
    fn set_times(&self, path: &[u8], atime: Moment, mtime: Moment) -> Called<()>;
    /// Names in a directory without the dots, in any order, each with the letter of its type.
    fn read_dir(&self, path: &[u8]) -> Called<Vec<(Vec<u8>, char)>>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> Called<Vec<u8>>;
    /// What `stat` says.
    fn stat(&self, path: &[u8]) -> Called<Stat>;
    /// The same of an open file.
    fn stat_file(&self, file: &Self::File) -> Called<Stat>;
    /// Makes a file durable.
    fn fsync(&self, file: &Self::File) -> Called<()>;
    /// Makes a directory durable.
    fn fsync_dir(&self, path: &[u8]) -> Called<()>;
    /// Makes everything durable.
    fn sync(&self) -> Called<()>;
    /// Nothing happens for so many idle intervals of the journal. Others may do something beside it.
    fn idle(&self, intervals: u8) -> Called<()>;
}

/// Files that a thread of a history has open, by number.
pub struct Slots<T: Target>(Vec<Option<T::File>>);

impl<T: Target> Slots<T> {
    /// None open.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    fn file(&self, slot: usize) -> Called<&T::File> {
        self.0.get(slot).and_then(Option::as_ref).ok_or(Errno::BADF)
    }

    /// Does something with a file.
    fn with<R>(&self, target: &T, file: &Ref, run: impl FnOnce(&T::File) -> Called<R>) -> Called<R> {
        match file {
            Ref::Slot(slot) => run(self.file(*slot)?),
            Ref::Path(path) => run(&target.open(&path.0)?),
        }
    }

    /// Does something with two files.
    fn with_both<R>(
        &self,
        target: &T,
        from: &Ref,
        to: &Ref,
        run: impl FnOnce(&T::File, &T::File) -> Called<R>,
    ) -> Called<R> {
        self.with(target, from, |from| self.with(target, to, |to| run(from, to)))
    }

    /// The inode number behind a slot.
    pub fn ino(&self, target: &T, slot: usize) -> Called<u64> {
        Ok(target.stat_file(self.file(slot)?)?.ino.0)
    }
}

/// Does one operation.
pub fn perform<T: Target>(target: &T, slots: &mut Slots<T>, op: &Op) -> Called<OpOutcome> {
    let done = |()| OpOutcome::Done;
    match op {
        Op::Create { path, mode, slot } => {
            let file = target.create(&path.0, *mode)?;
            if let Some(slot) = slot {
                slots.0[*slot] = Some(file);
            }
            Ok(OpOutcome::Done)
        }
        Op::Open { path, slot } => {
            slots.0[*slot] = Some(target.open(&path.0)?);
            Ok(OpOutcome::Done)
        }
        Op::Close { slot } => {
            slots.0[*slot] = None;
            Ok(OpOutcome::Done)
        }
        Op::Tmpfile { dir, mode, slot } => {
            slots.0[*slot] = Some(target.tmpfile(&dir.0, *mode)?);
            Ok(OpOutcome::Done)
        }
        Op::LinkSlot { slot, path } => target.link_file(slots.file(*slot)?, &path.0).map(done),
        Op::Mkdir { path, mode } => target.mkdir(&path.0, *mode).map(done),
        Op::Mknod { path, kind, mode } => target.mknod(&path.0, *kind, *mode).map(done),
        Op::Symlink { path, target: to } => target.symlink(&path.0, &to.0).map(done),
        Op::Link { from, to } => target.link(&from.0, &to.0).map(done),
        Op::Unlink { path } => target.unlink(&path.0).map(done),
        Op::Rmdir { path } => target.rmdir(&path.0).map(done),
        Op::Rename { from, to, how } => target.rename(&from.0, &to.0, *how).map(done),
        Op::SetXattr { path, name, value, how } => {
            target.set_xattr(&path.0, &name.0, &value.bytes(), *how).map(done)
        }
        Op::RemoveXattr { path, name } => target.remove_xattr(&path.0, &name.0).map(done),
        Op::GetXattr { path, name } => target.get_xattr(&path.0, &name.0).map(OpOutcome::Bytes),
        Op::ListXattr { path } => {
            let mut names = target.list_xattrs(&path.0)?;
            // What the volume keeps of a list has a name of its own, which only root sees.
            names.retain(|name| !name.starts_with(b"trusted.SGI_ACL_"));
            names.sort();
            Ok(OpOutcome::Names(names.into_iter().map(|name| (Name(name), 'x')).collect()))
        }
        Op::SetAcl { path, kind, acl } => target.set_acl(&path.0, *kind, acl.as_ref()).map(done),
        Op::Chmod { path, mode } => target.chmod(&path.0, *mode).map(done),
        Op::Chown { path, uid, gid } => target.chown(&path.0, *uid, *gid).map(done),
        Op::SetProject { path, id, inherit } => target.set_project(&path.0, *id, *inherit).map(done),
        Op::SetHints { path, hints } => target.set_hints(&path.0, *hints).map(done),
        Op::Utimens { path, atime, mtime } => target.set_times(&path.0, *atime, *mtime).map(done),
        Op::ReadDir { path } => {
            let mut names: Vec<_> =
                target.read_dir(&path.0)?.into_iter().map(|(name, letter)| (Name(name), letter)).collect();
            names.sort();
            Ok(OpOutcome::Names(names))
        }
        Op::ReadLink { path } => target.read_link(&path.0).map(OpOutcome::Bytes),
        Op::Stat { path } => target.stat(&path.0).map(OpOutcome::Stat),
        Op::FsyncDir { path } => target.fsync_dir(&path.0).map(done),
        Op::Sync => target.sync().map(done),
        Op::Idle { intervals } => target.idle(*intervals).map(done),
        _ => on_file(target, slots, op),
    }
}

/// Operations on what is in a regular file.
fn on_file<T: Target>(target: &T, slots: &Slots<T>, op: &Op) -> Called<OpOutcome> {
    match op {
        Op::Write { file, offset, len, seed } => slots.with(target, file, |file| {
            let bytes = super::content::Blob { seed: *seed, len: *len }.bytes();
            Ok(OpOutcome::Wrote(target.write(file, &bytes, *offset)? as u32))
        }),
        Op::Read { file, offset, len } => slots.with(target, file, |file| {
            let mut bytes = vec![0xee; *len as usize];
            let len = target.read(file, &mut bytes, *offset)?;
            bytes.truncate(len);
            Ok(OpOutcome::Bytes(bytes))
        }),
        Op::Allocate { file, how, offset, len } => {
            slots.with(target, file, |file| target.allocate(file, *how, *offset, *len))?;
            Ok(OpOutcome::Done)
        }
        Op::Truncate { file, size } => {
            slots.with(target, file, |file| target.truncate(file, *size))?;
            Ok(OpOutcome::Done)
        }
        Op::Clone { from, offset, to, at, len } => {
            slots.with_both(target, from, to, |from, to| target.clone_range(from, *offset, to, *at, *len))?;
            Ok(OpOutcome::Done)
        }
        Op::Dedupe { from, offset, to, at, len } => slots
            .with_both(target, from, to, |from, to| target.dedupe(from, *offset, to, *at, *len))
            .map(OpOutcome::Same),
        Op::CopyRange { from, offset, to, at, len } => slots
            .with_both(target, from, to, |from, to| {
                target.copy_range(from, *offset, to, *at, u64::from(*len))
            })
            .map(|copied| OpOutcome::Wrote(copied as u32)),
        Op::Exchange { file, at, other, other_at, len, only_written } => {
            let what = Exchanged { at: [*at, *other_at], len: *len, only_written: *only_written };
            slots.with_both(target, file, other, |file, other| target.exchange(file, other, what))?;
            Ok(OpOutcome::Done)
        }
        Op::SeekData { file, offset } => {
            slots.with(target, file, |file| target.seek(file, *offset, true)).map(OpOutcome::Place)
        }
        Op::SeekHole { file, offset } => {
            slots.with(target, file, |file| target.seek(file, *offset, false)).map(OpOutcome::Place)
        }
        Op::Fsync { file } => {
            slots.with(target, file, |file| target.fsync(file))?;
            Ok(OpOutcome::Done)
        }
        _ => unreachable!("the caller does all others"),
    }
}
