//! One operation of a history, complete in itself: a list of operations can be written down, cut, and done again.

use super::acl::Acl;
use super::content::Blob;
use crate::record::{Hints, escape};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A name, or a path below the root without a slash in front: any bytes.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// Its components.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        unescape(&text).map(Self).ok_or_else(|| serde::de::Error::custom("a bad escape in a name"))
    }
}

/// Undoes [`escape`].
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    Some(bytes)
}

/// A file: by its path, or one that was opened before and may have no name any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ref {
    /// Opened for this operation alone.
    Path(Name),
    /// Open already.
    Slot(usize),
}

/// How `rename` treats what has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameHow {
    /// Replaces it.
    Plain,
    /// Fails.
    NoReplace,
    /// Both change places.
    Exchange,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocateHow {
    Allocate,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
    CollapseRange,
    InsertRange,
}

/// What `setxattr` treats as an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrHow {
    /// Nothing.
    Set,
    /// That there is such an attribute.
    Create,
    /// That there is none.
    Replace,
}

/// Which of an object's two access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AclKind {
    /// Its own.
    Access,
    /// That of objects made in it.
    Default,
}

/// Types that `mknod` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    Regular,
    Fifo,
    Socket,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
}

/// A moment, as seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment(pub i64, pub u32);

impl Moment {
    /// Nanoseconds since 1970.
    pub fn nanoseconds(self) -> i128 {
        i128::from(self.0) * 1_000_000_000 + i128::from(self.1)
    }
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Makes a regular file that must not be there; it stays open if a slot is given.
    Create {
        path: Name,
        mode: u16,
        slot: Option<usize>,
    },
    /// Opens a regular file.
    Open {
        path: Name,
        slot: usize,
    },
    /// Closes a file, which ends it if it has no name.
    Close {
        slot: usize,
    },
    /// Makes a file without a name.
    Tmpfile {
        dir: Name,
        mode: u16,
        slot: usize,
    },
    /// Gives an open file a name.
    LinkSlot {
        slot: usize,
        path: Name,
    },
    Mkdir {
        path: Name,
        mode: u16,
    },
    Mknod {
        path: Name,
        kind: NodeKind,
        mode: u16,
    },
    Symlink {
        path: Name,
        target: Name,
    },
    Link {
        from: Name,
        to: Name,
    },
    Unlink {
        path: Name,
    },
    Rmdir {
        path: Name,
    },
    Rename {
        from: Name,
        to: Name,
        how: RenameHow,
    },
    Write {
        file: Ref,
        offset: u64,
        len: u32,
        seed: u64,
    },
    Read {
        file: Ref,
        offset: u64,
        len: u32,
    },
    Allocate {
        file: Ref,
        how: AllocateHow,
        offset: u64,
        len: u64,
    },
    Truncate {
        file: Ref,
        size: u64,
    },
    /// Has a file share a range of another's blocks, or of its own; a length of 0 is all up to the end.
    Clone {
        from: Ref,
        offset: u64,
        to: Ref,
        at: u64,
        len: u64,
    },
    /// Has two files share what is the same in both.
    Dedupe {
        from: Ref,
        offset: u64,
        to: Ref,
        at: u64,
        len: u64,
    },
    /// Copies a range, by sharing it where that can be.
    CopyRange {
        from: Ref,
        offset: u64,
        to: Ref,
        at: u64,
        len: u32,
    },
    /// Has two files exchange a range of their content; a length of 0 is all up to the ends of both.
    Exchange {
        file: Ref,
        at: u64,
        other: Ref,
        other_at: u64,
        len: u64,
        /// Only what the first file has written.
        only_written: bool,
    },
    SeekData {
        file: Ref,
        offset: u64,
    },
    SeekHole {
        file: Ref,
        offset: u64,
    },
    SetXattr {
        path: Name,
        name: Name,
        value: Blob,
        how: XattrHow,
    },
    RemoveXattr {
        path: Name,
        name: Name,
    },
    GetXattr {
        path: Name,
        name: Name,
    },
    ListXattr {
        path: Name,
    },
    /// Sets or, without a list, removes.
    SetAcl {
        path: Name,
        kind: AclKind,
        acl: Option<Acl>,
    },
    Chmod {
        path: Name,
        mode: u16,
    },
    Chown {
        path: Name,
        uid: u32,
        gid: u32,
    },
    /// To other files than directories, nothing can be handed down.
    SetProject {
        path: Name,
        id: u32,
        inherit: bool,
    },
    /// For files other than directories, the extent size stays as it is.
    SetHints {
        path: Name,
        hints: Hints,
    },
    Utimens {
        path: Name,
        atime: Moment,
        mtime: Moment,
    },
    ReadDir {
        path: Name,
    },
    ReadLink {
        path: Name,
    },
    Stat {
        path: Name,
    },
    Fsync {
        file: Ref,
    },
    FsyncDir {
        path: Name,
    },
    Sync,
    /// Nothing happens for as many times as the journal waits before it goes on by itself.
    Idle {
        intervals: u8,
    },
}

impl Op {
    /// The name of the kind of operation.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::Tmpfile { .. } => "tmpfile",
            Self::LinkSlot { .. } => "linkat",
            Self::Mkdir { .. } => "mkdir",
            Self::Mknod { .. } => "mknod",
            Self::Symlink { .. } => "symlink",
            Self::Link { .. } => "link",
            Self::Unlink { .. } => "unlink",
            Self::Rmdir { .. } => "rmdir",
            Self::Rename { how: RenameHow::Plain, .. } => "rename",
            Self::Rename { how: RenameHow::NoReplace, .. } => "rename no-replace",
            Self::Rename { how: RenameHow::Exchange, .. } => "rename exchange",
            Self::Write { .. } => "write",
            Self::Read { .. } => "read",
            Self::Allocate { how, .. } => match how {
                AllocateHow::Allocate => "allocate",
                AllocateHow::KeepSize => "allocate keep-size",
                AllocateHow::PunchHole => "punch hole",
                AllocateHow::ZeroRange => "zero range",
                AllocateHow::ZeroRangeKeepSize => "zero range keep-size",
                AllocateHow::CollapseRange => "collapse range",
                AllocateHow::InsertRange => "insert range",
            },
            Self::Truncate { .. } => "truncate",
            Self::Clone { .. } => "clone",
            Self::Dedupe { .. } => "dedupe",
            Self::CopyRange { .. } => "copy range",
            Self::Exchange { only_written: false, .. } => "exchange",
            Self::Exchange { only_written: true, .. } => "exchange written",
            Self::SeekData { .. } => "seek data",
            Self::SeekHole { .. } => "seek hole",
            Self::SetXattr { .. } => "setxattr",
            Self::RemoveXattr { .. } => "removexattr",
            Self::GetXattr { .. } => "getxattr",
            Self::ListXattr { .. } => "listxattr",
            Self::SetAcl { .. } => "set acl",
            Self::Chmod { .. } => "chmod",
            Self::Chown { .. } => "chown",
            Self::SetProject { .. } => "set project",
            Self::SetHints { .. } => "set hints",
            Self::Utimens { .. } => "utimens",
            Self::ReadDir { .. } => "readdir",
            Self::ReadLink { .. } => "readlink",
            Self::Stat { .. } => "stat",
            Self::Fsync { .. } => "fsync",
            Self::FsyncDir { .. } => "fsync dir",
            Self::Sync => "sync",
            Self::Idle { .. } => "idle",
        }
    }

    /// Whether it may need space that the volume doesn't have.
    pub fn may_lack_space(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::Tmpfile { .. }
                | Self::LinkSlot { .. }
                | Self::Mkdir { .. }
                | Self::Mknod { .. }
                | Self::Symlink { .. }
                | Self::Link { .. }
                | Self::Rename { .. }
                | Self::Write { .. }
                | Self::Allocate { .. }
                | Self::Truncate { .. }
                | Self::Clone { .. }
                | Self::Dedupe { .. }
                | Self::CopyRange { .. }
                | Self::Exchange { .. }
                | Self::SetXattr { .. }
                | Self::RemoveXattr { .. }
                | Self::SetAcl { .. }
        )
    }
}

/// What an operation gives when it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// Nothing to compare.
    Done,
    /// This many bytes were written.
    Wrote(u32),
    /// These bytes, or this value, or this target.
    Bytes(Vec<u8>),
    /// Whether two ranges were the same.
    Same(bool),
    /// A place in the file; `None` if there is none.
    Place(Option<u64>),
    /// Names, in order of their bytes, with what the list says besides.
    Names(Vec<(Name, char)>),
    /// What `stat` says.
    Stat(Stat),
}

/// What is compared of what `stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The letter of the type, as `ls` has it.
    pub letter: char,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Inode number: not compared.
    pub ino: Ino,
}

/// An inode number, which is equal to every other: the model does not know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ino(pub u64);

impl PartialEq for Ino {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Ino {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_survives_being_written_down() {
        let all: Vec<u8> = (0..=255).collect();
        let ops = [
            Op::Create { path: Name(all.clone()), mode: 0o644, slot: Some(3) },
            Op::Write { file: Ref::Slot(1), offset: u64::MAX, len: 7, seed: u64::MAX - 1 },
            Op::SetXattr {
                path: Name(all),
                name: Name(b"user.%".to_vec()),
                value: Blob { seed: 1, len: 2 },
                how: XattrHow::Create,
            },
            Op::Sync,
        ];
        for op in ops {
            let text = serde_json::to_string(&op).unwrap();
            assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), op, "{text}");
        }
        assert_eq!(unescape("%4"), None);
        assert_eq!(unescape("%zz"), None);
    }
}
