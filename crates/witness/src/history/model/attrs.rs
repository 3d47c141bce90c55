//! Extended attributes, access control lists, modes, owners, times.

use super::{Id, Key, Kind, Model, Time};
use crate::history::acl::Acl;
use crate::history::content::Blob;
use crate::history::op::{AclKind, Moment, Name, OpOutcome, XattrHow};
use crate::record::{Hints, Project};
use rustix::io::Errno;

type Applied = Result<OpOutcome, Errno>;

/// Longest name of an attribute, with its prefix.
const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value.
const XATTR_VALUE_BYTES_MAX: u32 = 65_536;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o0010;

impl Model {
    /// Whether an object may have an attribute of this name.
    fn attribute_allowed(&self, id: Id, name: &Name, write: bool) -> Result<(), Errno> {
        if name.0.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::RANGE);
        }
        let plain = matches!(self.node(id).kind, Kind::File(_) | Kind::Dir(_));
        match name.0.starts_with(b"user.") && !plain {
            true if write => Err(Errno::PERM),
            true => Err(Errno::NODATA),
            false => Ok(()),
        }
    }

    pub(super) fn set_xattr(&mut self, path: &Name, name: &Name, value: Blob, how: XattrHow) -> Applied {
        if name.0.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::RANGE);
        }
        if value.len > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let id = self.lookup(path)?;
        self.attribute_allowed(id, name, true)?;
        match (self.node(id).xattrs.contains_key(name), how) {
            (true, XattrHow::Create) => return Err(Errno::EXIST),
            (false, XattrHow::Replace) => return Err(Errno::NODATA),
            _ => {}
        }
        self.node_mut(id).xattrs.insert(name.clone(), value);
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }

    pub(super) fn remove_xattr(&mut self, path: &Name, name: &Name) -> Applied {
        if name.0.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::RANGE);
        }
        let id = self.lookup(path)?;
        self.attribute_allowed(id, name, true)?;
        self.node_mut(id).xattrs.remove(name).ok_or(Errno::NODATA)?;
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }

    pub(super) fn get_xattr(&self, path: &Name, name: &Name) -> Applied {
        if name.0.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::RANGE);
        }
        let id = self.lookup(path)?;
        self.attribute_allowed(id, name, false)?;
        let value = self.node(id).xattrs.get(name).ok_or(Errno::NODATA)?;
        Ok(OpOutcome::Bytes(value.bytes()))
    }

    pub(super) fn list_xattrs(&self, path: &Name) -> Applied {
        let node = self.node(self.lookup(path)?);
        let mut names: Vec<Name> = node.xattrs.keys().cloned().collect();
        let lists = [(&node.acl, "access"), (&node.default_acl, "default")];
        for (_, kind) in lists.iter().filter(|(list, _)| list.is_some()) {
            names.push(Name(format!("system.posix_acl_{kind}").into_bytes()));
        }
        names.sort();
        Ok(OpOutcome::Names(names.into_iter().map(|name| (name, 'x')).collect()))
    }

    pub(super) fn set_acl(&mut self, path: &Name, kind: AclKind, acl: Option<&Acl>) -> Applied {
        let id = self.lookup(path)?;
        let node = self.node_mut(id);
        let is_dir = matches!(node.kind, Kind::Dir(_));
        match (kind, acl) {
            (AclKind::Access, Some(acl)) => {
                node.mode = (node.mode & !0o777) | acl.mode();
                node.acl = (!acl.is_minimal()).then(|| acl.clone());
            }
            (AclKind::Access, None) => node.acl = None,
            (AclKind::Default, Some(_)) if !is_dir => return Err(Errno::ACCESS),
            // It has none, and nothing is changed that an `fsync` would have to wait for.
            (AclKind::Default, None) if !is_dir => return Ok(OpOutcome::Done),
            (AclKind::Default, acl) => node.default_acl = acl.cloned(),
        }
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }

    pub(super) fn chmod(&mut self, path: &Name, mode: u16) -> Applied {
        let id = self.lookup(path)?;
        let node = self.node_mut(id);
        node.mode = mode;
        if let Some(acl) = &mut node.acl {
            acl.set_mode(mode);
        }
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }

    /// A new owner ends what a program's file gave to whoever runs it.
    pub(super) fn chown(&mut self, path: &Name, uid: u32, gid: u32) -> Applied {
        let id = self.lookup(path)?;
        let node = self.node_mut(id);
        (node.uid, node.gid) = (uid, gid);
        if !matches!(node.kind, Kind::Dir(_)) {
            node.mode &= !SET_UID;
            if node.mode & GROUP_EXECUTES != 0 {
                node.mode &= !SET_GID;
            }
        }
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }

    /// Only a directory can hand its project down; asked of other files, that is passed over.
    pub(super) fn set_project(&mut self, path: &Name, id: u32, inherit: bool) -> Applied {
        let file = self.lookup(path)?;
        let node = self.node_mut(file);
        node.project = Project { id, inherit: inherit && matches!(node.kind, Kind::Dir(_)) };
        self.touch(Key::Inode(file));
        Ok(OpOutcome::Done)
    }

    /// A file that may have blocks keeps the extent size that it has.
    pub(super) fn set_hints(&mut self, path: &Name, hints: Hints) -> Applied {
        let file = self.lookup(path)?;
        let node = self.node_mut(file);
        let is_dir = matches!(node.kind, Kind::Dir(_));
        let extent_blocks = if is_dir { hints.extent_blocks } else { node.hints.extent_blocks };
        node.hints = Hints { extent_blocks, ..hints };
        self.touch(Key::Inode(file));
        Ok(OpOutcome::Done)
    }

    pub(super) fn set_times(&mut self, path: &Name, atime: Moment, mtime: Moment) -> Applied {
        let id = self.lookup(path)?;
        let node = self.node_mut(id);
        (node.atime, node.mtime) = (Time::Set(atime), Time::Set(mtime));
        self.touch(Key::Inode(id));
        Ok(OpOutcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::op::Op;

    /// Whoever syncs the file behind it does not make durable what others did before.
    #[test]
    fn to_take_a_default_acl_off_a_file_changes_nothing() {
        let mut model = Model::new(4096, 1);
        let taken_off =
            |path: &[u8]| Op::SetAcl { path: Name(path.into()), kind: AclKind::Default, acl: None };
        model.apply(&Op::Create { path: Name(b"file".into()), mode: 0o600, slot: None }).unwrap();
        model.apply(&Op::Mkdir { path: Name(b"dir".into()), mode: 0o700 }).unwrap();
        model.apply(&taken_off(b"file")).unwrap();
        assert!(model.touched.is_empty());
        model.apply(&taken_off(b"dir")).unwrap();
        assert!(!model.touched.is_empty());
    }
}
