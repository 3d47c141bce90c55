//! Names: making, linking, renaming and removing.

use super::{Id, Key, Kind, Model, Node, Time};
use crate::history::content::Content;
use crate::history::op::{Name, NodeKind, OpOutcome, RenameHow};
use crate::record::Project;
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Set-group-ID: on a directory, new objects take its group.
const SET_GID: u16 = 0o2000;

type Applied = Result<OpOutcome, Errno>;

impl Model {
    /// The directory and the name of a new object; the name must be free.
    fn place(&self, path: &Name) -> Result<(Id, Name), Errno> {
        let (dir, name) = self.parent(path)?;
        match self.step(dir, &name.0) {
            Err(Errno::NOENT) => Ok((dir, name)),
            Err(error) => Err(error),
            Ok(_) => Err(Errno::EXIST),
        }
    }

    /// A node as its directory wants it.
    fn made_in(&self, dir: Id, kind: Kind, mode: u16) -> Node {
        let parent = self.node(dir);
        let is_dir = matches!(kind, Kind::Dir(_));
        let set_gid = parent.mode & SET_GID != 0;
        let mode = mode | if is_dir && set_gid { SET_GID } else { 0 };
        let mut node = Node::new(kind, mode, if set_gid { parent.gid } else { 0 });
        if let (Some(list), false) = (&parent.default_acl, matches!(node.kind, Kind::Symlink(_))) {
            (node.mode, node.acl) = list.inherit(mode);
            node.default_acl = is_dir.then(|| list.clone());
        }
        if parent.project.inherit {
            node.project = Project { inherit: is_dir, ..parent.project };
        }
        if is_dir || matches!(node.kind, Kind::File(_)) {
            node.hints = parent.hints;
        }
        node
    }

    /// Gives a node a name, and counts that.
    fn enter(&mut self, dir: Id, name: Name, id: Id) {
        let is_dir = matches!(self.node(id).kind, Kind::Dir(_));
        let node = self.node_mut(id);
        node.names.push((dir, name.clone()));
        if !is_dir {
            node.nlink += 1;
        }
        node.linkable = false;
        self.touch(Key::Inode(id));
        self.change_entry(dir, name, Some(id), if is_dir { 1 } else { 0 });
    }

    /// Takes a name from a node; it goes if that was the last thing that held it.
    fn leave(&mut self, dir: Id, name: Name, id: Id) {
        let is_dir = matches!(self.node(id).kind, Kind::Dir(_));
        let node = self.node_mut(id);
        node.names.retain(|(other, called)| (*other, called) != (dir, &name));
        node.nlink = if is_dir { 0 } else { node.nlink - 1 };
        self.touch(Key::Inode(id));
        self.change_entry(dir, name, None, if is_dir { -1 } else { 0 });
        self.drop_unheld(id);
    }

    fn change_entry(&mut self, dir: Id, name: Name, id: Option<Id>, links: i32) {
        let node = self.node_mut(dir);
        node.mtime = Time::Running;
        node.nlink = node.nlink.wrapping_add_signed(links);
        let Kind::Dir(entries) = &mut node.kind else { unreachable!("parents are directories") };
        match id {
            Some(id) => entries.insert(name.clone(), id),
            None => entries.remove(&name),
        };
        self.touch(Key::Inode(dir));
        self.touch(Key::Entry(dir, name));
    }

    fn drop_unheld(&mut self, id: Id) {
        let node = self.node(id);
        if node.names.is_empty() && node.opens == 0 {
            if let Some(content) = self.content(id) {
                self.bytes -= content.footprint();
            }
            self.nodes.remove(&id);
            self.files.remove(id);
            self.dirs.remove(id);
            self.others.remove(id);
        }
    }

    fn hold(&mut self, slot: usize, id: Id) {
        self.slots[slot] = Some(id);
        self.node_mut(id).opens += 1;
    }

    pub(super) fn close(&mut self, slot: usize) {
        if let Some(id) = self.slots[slot].take() {
            self.node_mut(id).opens -= 1;
            self.drop_unheld(id);
        }
    }

    pub(super) fn create(&mut self, path: &Name, mode: u16, slot: Option<usize>) -> Applied {
        let id = self.make(path, Kind::File(Content::default()), mode)?;
        if let Some(slot) = slot {
            self.hold(slot, id);
        }
        Ok(OpOutcome::Done)
    }

    fn make(&mut self, path: &Name, kind: Kind, mode: u16) -> Result<Id, Errno> {
        let (dir, name) = self.place(path)?;
        let id = self.add(self.made_in(dir, kind, mode));
        self.enter(dir, name, id);
        Ok(id)
    }

    pub(super) fn open(&mut self, path: &Name, slot: usize) -> Applied {
        let id = self.file(&crate::history::op::Ref::Path(path.clone()))?;
        self.hold(slot, id);
        Ok(OpOutcome::Done)
    }

    pub(super) fn tmpfile(&mut self, dir: &Name, mode: u16, slot: usize) -> Applied {
        let dir = self.lookup(dir)?;
        if !matches!(self.node(dir).kind, Kind::Dir(_)) {
            return Err(Errno::NOTDIR);
        }
        let mut node = self.made_in(dir, Kind::File(Content::default()), mode);
        node.linkable = true;
        let id = self.add(node);
        self.hold(slot, id);
        Ok(OpOutcome::Done)
    }

    pub(super) fn link_slot(&mut self, slot: usize, path: &Name) -> Applied {
        let id = self.slots[slot].ok_or(Errno::BADF)?;
        let (dir, name) = self.place(path)?;
        let node = self.node(id);
        if node.nlink == 0 && !node.linkable {
            return Err(Errno::NOENT);
        }
        self.may_enter(dir, id)?;
        self.enter(dir, name, id);
        Ok(OpOutcome::Done)
    }

    pub(super) fn mkdir(&mut self, path: &Name, mode: u16) -> Applied {
        self.make(path, Kind::Dir(BTreeMap::new()), mode)?;
        Ok(OpOutcome::Done)
    }

    pub(super) fn mknod(&mut self, path: &Name, kind: NodeKind, mode: u16) -> Applied {
        let kind = match kind {
            NodeKind::Regular => Kind::File(Content::default()),
            special => Kind::Special(special),
        };
        self.make(path, kind, mode)?;
        Ok(OpOutcome::Done)
    }

    pub(super) fn symlink(&mut self, path: &Name, target: &Name) -> Applied {
        self.make(path, Kind::Symlink(target.clone()), 0o777)?;
        Ok(OpOutcome::Done)
    }

    pub(super) fn link(&mut self, from: &Name, to: &Name) -> Applied {
        let id = self.lookup(from)?;
        let (dir, name) = self.place(to)?;
        if matches!(self.node(id).kind, Kind::Dir(_)) {
            return Err(Errno::PERM);
        }
        self.may_enter(dir, id)?;
        self.enter(dir, name, id);
        Ok(OpOutcome::Done)
    }

    pub(super) fn unlink(&mut self, path: &Name) -> Applied {
        let (dir, name) = self.parent(path)?;
        let id = self.step(dir, &name.0)?;
        if matches!(self.node(id).kind, Kind::Dir(_)) {
            return Err(Errno::ISDIR);
        }
        self.leave(dir, name, id);
        Ok(OpOutcome::Done)
    }

    pub(super) fn rmdir(&mut self, path: &Name) -> Applied {
        let (dir, name) = self.parent(path)?;
        let id = self.step(dir, &name.0)?;
        match &self.node(id).kind {
            Kind::Dir(entries) if entries.is_empty() => self.leave(dir, name, id),
            Kind::Dir(_) => return Err(Errno::NOTEMPTY),
            _ => return Err(Errno::NOTDIR),
        }
        Ok(OpOutcome::Done)
    }

    /// Whether `above` is `below` or one of the directories that it is in.
    fn holds(&self, above: Id, below: Id) -> bool {
        let mut at = below;
        loop {
            if at == above {
                return true;
            }
            match self.node(at).names.first() {
                Some(&(dir, _)) => at = dir,
                None => return false,
            }
        }
    }

    /// Whether a directory hands a project down that a node does not belong to.
    pub fn keeps_out(&self, dir: Id, id: Id) -> bool {
        let project = self.node(dir).project;
        project.inherit && project.id != self.node(id).project.id
    }

    fn may_enter(&self, dir: Id, id: Id) -> Result<(), Errno> {
        if self.keeps_out(dir, id) { Err(Errno::XDEV) } else { Ok(()) }
    }

    pub(super) fn rename(&mut self, from: &Name, to: &Name, how: RenameHow) -> Applied {
        let (old_dir, old_name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        let id = self.step(old_dir, &old_name.0)?;
        let other = match self.step(new_dir, &new_name.0) {
            Ok(other) => Some(other),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        match (how, other) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        if self.holds(id, new_dir) {
            return Err(Errno::INVAL);
        }
        if other.is_some_and(|other| self.holds(other, old_dir)) {
            return Err(if how == RenameHow::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        match other {
            Some(other) if other == id => return Ok(OpOutcome::Done),
            Some(other) if how == RenameHow::Exchange => {
                // The one that goes the other way is not asked.
                self.may_enter(new_dir, id)?;
                self.exchange((old_dir, old_name, id), (new_dir, new_name, other));
                return Ok(OpOutcome::Done);
            }
            // The project is looked at when the types fit, and before the old directory must be empty.
            Some(other) => match self.may_replace(id, other) {
                Err(error) if error != Errno::NOTEMPTY => return Err(error),
                replaced => self.may_enter(new_dir, id).and(replaced)?,
            },
            None => self.may_enter(new_dir, id)?,
        }
        if let Some(other) = other {
            self.leave(new_dir, new_name.clone(), other);
        }
        self.moved((old_dir, old_name, id), (new_dir, new_name));
        Ok(OpOutcome::Done)
    }

    /// Everything that is wrong with a rename.
    pub(super) fn rename_mistakes(&self, from: &Name, to: &Name, how: RenameHow) -> Vec<Errno> {
        let old = self.parent(from);
        let new = self.parent(to);
        let id = old.as_ref().map_err(|error| *error).and_then(|(dir, name)| self.step(*dir, &name.0));
        let other = new.as_ref().map_err(|error| *error).and_then(|(dir, name)| self.step(*dir, &name.0));
        let mut mistakes = vec![id.err(), other.err().filter(|error| *error != Errno::NOENT || new.is_err())];
        match (how, &other) {
            (RenameHow::NoReplace, Ok(_)) => mistakes.push(Some(Errno::EXIST)),
            (RenameHow::Exchange, Err(_)) => mistakes.push(Some(Errno::NOENT)),
            (RenameHow::Plain, Ok(other)) if id.is_ok() => {
                mistakes.push(id.and_then(|id| self.may_replace(id, *other)).err());
            }
            _ => {}
        }
        if let (Ok(id), Ok((dir, _))) = (id, &new) {
            mistakes.extend([self.holds(id, *dir).then_some(Errno::INVAL), self.may_enter(*dir, id).err()]);
        }
        if let (Ok(other), Ok((dir, _))) = (other, &old)
            && self.holds(other, *dir)
        {
            mistakes.extend([Some(Errno::NOTEMPTY), (how == RenameHow::Exchange).then_some(Errno::INVAL)]);
        }
        mistakes.into_iter().flatten().collect()
    }

    /// Everything that is wrong with a link.
    pub(super) fn link_mistakes(&self, from: &Name, to: &Name) -> Vec<Errno> {
        let id = self.lookup(from);
        let is_dir = id.is_ok_and(|id| matches!(self.node(id).kind, Kind::Dir(_)));
        let enters = |id| self.parent(to).and_then(|(dir, _)| self.may_enter(dir, id));
        let other_project = id.and_then(enters).err();
        let mistakes = [id.err(), self.place(to).err(), is_dir.then_some(Errno::PERM), other_project];
        mistakes.into_iter().flatten().collect()
    }

    fn may_replace(&self, id: Id, other: Id) -> Result<(), Errno> {
        match (&self.node(id).kind, &self.node(other).kind) {
            (Kind::Dir(_), Kind::Dir(entries)) if entries.is_empty() => Ok(()),
            (Kind::Dir(_), Kind::Dir(_)) => Err(Errno::NOTEMPTY),
            (Kind::Dir(_), _) => Err(Errno::NOTDIR),
            (_, Kind::Dir(_)) => Err(Errno::ISDIR),
            _ => Ok(()),
        }
    }

    fn moved(&mut self, (old_dir, old_name, id): (Id, Name, Id), (new_dir, new_name): (Id, Name)) {
        let links = i32::from(matches!(self.node(id).kind, Kind::Dir(_)));
        self.change_entry(old_dir, old_name.clone(), None, -links);
        self.change_entry(new_dir, new_name.clone(), Some(id), links);
        self.renamed(id, (old_dir, old_name), (new_dir, new_name));
        self.touch(Key::Inode(id));
    }

    fn renamed(&mut self, id: Id, old: (Id, Name), new: (Id, Name)) {
        let names = &mut self.node_mut(id).names;
        if let Some(name) = names.iter_mut().find(|name| **name == old) {
            *name = new;
        }
    }

    fn exchange(&mut self, (a_dir, a_name, a): (Id, Name, Id), (b_dir, b_name, b): (Id, Name, Id)) {
        let links = |model: &Self, id| i32::from(matches!(model.node(id).kind, Kind::Dir(_)));
        let (a_links, b_links) = (links(self, a), links(self, b));
        self.change_entry(a_dir, a_name.clone(), Some(b), b_links - a_links);
        self.change_entry(b_dir, b_name.clone(), Some(a), a_links - b_links);
        self.renamed(a, (a_dir, a_name.clone()), (b_dir, b_name.clone()));
        self.renamed(b, (b_dir, b_name), (a_dir, a_name));
        for (id, links) in [(a, a_links), (b, b_links)] {
            // The kernel takes the entry for the directory above for content that changed.
            if links > 0 && a_dir != b_dir {
                self.node_mut(id).mtime = Time::Unknown;
            }
            self.touch(Key::Inode(id));
        }
    }

    pub(super) fn read_dir(&mut self, path: &Name) -> Applied {
        let id = self.lookup(path)?;
        let Kind::Dir(entries) = &self.node(id).kind else { return Err(Errno::NOTDIR) };
        let names = entries.iter().map(|(name, &id)| (name.clone(), self.node(id).letter())).collect();
        self.node_mut(id).atime = Time::Unknown;
        Ok(OpOutcome::Names(names))
    }

    pub(super) fn read_link(&mut self, path: &Name) -> Applied {
        let id = self.lookup(path)?;
        let Kind::Symlink(target) = &self.node(id).kind else { return Err(Errno::INVAL) };
        let target = target.0.clone();
        self.node_mut(id).atime = Time::Unknown;
        Ok(OpOutcome::Bytes(target))
    }

    pub(super) fn stat(&self, path: &Name) -> Applied {
        Ok(OpOutcome::Stat(self.node(self.lookup(path)?).stat()))
    }
}
