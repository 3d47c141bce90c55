//! What must be there after a crash.
//!
//! A journal makes transactions durable in their order. So after recovery, names, modes, owners, links and
//! attributes of what one thread owns are what they were after some number of its operations: at least as many as
//! the last `sync` covered, and as many as the last change of each object that was fsynced; and of the operation
//! behind these, any part may be there, as some operations are several transactions. Content is not in the journal:
//! it must be right where the file was fsynced and not changed since.
//!
//! Invariant: facts are about inode numbers, not paths, so that a rename of a directory changes two facts and not
//! one for every object below it.

use super::content::Content;
use super::drive::{Actor, Observer};
use super::generator::{SHARED, folder};
use super::judge;
use super::model::{Id, Key, Kind, Model, Node};
use super::op::{Name, Op, Ref};
use super::target::{Called, Slots, Target};
use crate::record::{Inode, Record, escape};
use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};

/// What a fact is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Subject {
    /// A name in the directory of this inode number.
    Entry(u64, String),
    /// The inode of this number, if it has a name.
    Inode(u64),
}

/// What is said of it.
#[derive(Clone, Debug)]
enum Fact {
    /// The name stands for this inode number.
    Names(u64),
    /// The inode is like this; and, where that is known, it is this object of the model.
    Is(String, Option<Id>),
}

impl PartialEq for Fact {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Names(a), Self::Names(b)) => a == b,
            (Self::Is(a, _), Self::Is(b, _)) => a == b,
            _ => false,
        }
    }
}

type Facts = HashMap<Subject, Fact>;

/// The changes of facts that one operation made; `None`: there is no such fact any more.
#[derive(Clone, Debug)]
struct Step {
    clock: u64,
    changes: Vec<(Subject, Option<Fact>)>,
}

/// Keeps what one thread's operations made durable, and what they changed since.
#[derive(Debug)]
pub struct Durable {
    numbers: HashMap<Id, u64>,
    /// The facts at the last sync.
    base: Facts,
    /// What every operation since changed.
    steps: Vec<Step>,
    /// How many of the steps are durable for certain.
    certain: usize,
}

impl Durable {
    /// Starts with what a thread has on a fresh volume, which must have been synced.
    pub fn new<T: Target>(target: &T, actor: &Actor, thread: usize) -> Result<Self> {
        let mut durable = Self { numbers: HashMap::new(), base: Facts::new(), steps: Vec::new(), certain: 0 };
        let model = &actor.model;
        let own = model.lookup(&folder(thread)).context("the thread's folder")?;
        for path in [Name::default(), Name::from(SHARED), folder(thread)] {
            let id = model.lookup(&path).context("a folder")?;
            durable.numbers.insert(id, target.stat(&path.0)?.ino.0);
        }
        let keys = [Key::Entry(Model::ROOT, folder(thread)), Key::Inode(own)];
        for key in &keys {
            if let Some((subject, Some(fact))) = durable.fact(model, key) {
                durable.base.insert(subject, fact);
            }
        }
        Ok(durable)
    }

    /// What the model says of a key now.
    fn fact(&self, model: &Model, key: &Key) -> Option<(Subject, Option<Fact>)> {
        match key {
            Key::Entry(dir, name) => {
                let subject = Subject::Entry(*self.numbers.get(dir)?, escape(&name.0));
                let id = model.entries(*dir).and_then(|entries| entries.get(name));
                Some((subject, id.and_then(|id| self.numbers.get(id)).map(|&ino| Fact::Names(ino))))
            }
            Key::Inode(id) => {
                let subject = Subject::Inode(*self.numbers.get(id)?);
                let node = model.get(*id);
                if node.is_some_and(|node| node.foreign) {
                    return None;
                }
                let node = node.filter(|node| !node.names.is_empty());
                Some((subject, node.map(|node| Fact::Is(described(node), Some(*id)))))
            }
        }
    }

    /// Learns the inode numbers of new objects.
    fn learn<T: Target>(&mut self, target: &T, slots: &Slots<T>, model: &Model) -> Called<()> {
        for key in &model.touched {
            let Key::Inode(id) = key else { continue };
            if self.numbers.contains_key(id) || model.get(*id).is_none() {
                continue;
            }
            let slot = model.slots().iter().position(|held| *held == Some(*id));
            let ino = match (model.path(*id, 0), slot) {
                (Some(path), _) => target.stat(&path.0)?.ino.0,
                (None, Some(slot)) => slots.ino(target, slot)?,
                (None, None) => continue,
            };
            self.numbers.insert(*id, ino);
        }
        Ok(())
    }

    /// Everything up to the last change of this object is durable.
    fn fsynced(&mut self, model: &Model, id: Id) {
        let Some(node) = model.get(id).filter(|node| !node.foreign) else { return };
        let covered = self.steps.iter().take_while(|step| step.clock <= node.changed).count();
        self.certain = self.certain.max(covered);
    }

    fn synced(&mut self) {
        for step in self.steps.drain(..) {
            for (subject, fact) in step.changes {
                set(&mut self.base, subject, fact);
            }
        }
        self.certain = 0;
    }

    /// Judges what was recovered. `Ok` says how many operations behind the last sync are there, of how many.
    pub fn judge(&self, actor: &Actor, thread: usize, records: &[Record]) -> Result<(usize, usize), String> {
        let found = facts_of(thread, records);
        let (place, state) = self.place(&found)?;
        let mut content = Vec::new();
        for record in records {
            let (Some(inode), Some(Fact::Is(_, Some(id)))) =
                (&record.inode, state.get(&Subject::Inode(record.ino)))
            else {
                continue;
            };
            let Some(node) = actor.model.get(*id) else { continue };
            if let (Kind::File(expected), true) = (&node.kind, node.durable == node.version) {
                content.extend(wrong(expected, inode).map(|what| format!("{}: {what}", record.path)));
            }
        }
        match content.first() {
            None => Ok((place, self.steps.len())),
            Some(first) => Err(format!("{} fsynced files are not as they were: {first}", content.len())),
        }
    }

    /// After how many steps the facts were what was found.
    fn place(&self, found: &Facts) -> Result<(usize, Facts), String> {
        let mut state = self.base.clone();
        let subjects = state.keys().chain(found.keys());
        let mut odd: HashSet<Subject> =
            subjects.filter(|subject| state.get(*subject) != found.get(*subject)).cloned().collect();
        let mut best: Option<(usize, HashSet<Subject>)> = None;
        let mut amid: Option<(usize, Facts)> = None;
        for place in 0..=self.steps.len() {
            if place >= self.certain {
                if odd.is_empty() {
                    return Ok((place, state));
                }
                let next = self.steps.get(place).map(|step| &step.changes[..]).unwrap_or_default();
                let in_next = |subject| next.iter().any(|(changed, _)| changed == subject);
                if amid.is_none() && odd.iter().all(in_next) {
                    amid = Some((place, state.clone()));
                }
                if best.as_ref().is_none_or(|(_, least)| odd.len() < least.len()) {
                    best = Some((place, odd.clone()));
                }
            }
            for (subject, fact) in self.steps.get(place).into_iter().flat_map(|step| &step.changes) {
                set(&mut state, subject.clone(), fact.clone());
                if state.get(subject) == found.get(subject) {
                    odd.remove(subject);
                } else {
                    odd.insert(subject.clone());
                }
            }
        }
        amid.ok_or_else(|| self.explain(best, found))
    }

    fn explain(&self, best: Option<(usize, HashSet<Subject>)>, found: &Facts) -> String {
        let (place, odd) = best.unwrap_or_default();
        let mut state = self.base.clone();
        for (subject, fact) in self.steps[..place].iter().flat_map(|step| &step.changes) {
            set(&mut state, subject.clone(), fact.clone());
        }
        let mut odd: Vec<&Subject> = odd.iter().collect();
        odd.sort();
        let lines: Vec<String> = odd
            .iter()
            .take(10)
            .map(|subject| {
                format!("{subject:?}: {:?} instead of {:?}", found.get(subject), state.get(subject))
            })
            .collect();
        format!(
            "no moment of the history is like that: {} operations since the last sync, {} of them certain; nearest \
             after {place}, with {} differences:\n{}",
            self.steps.len(),
            self.certain,
            odd.len(),
            lines.join("\n")
        )
    }
}

fn set(facts: &mut Facts, subject: Subject, fact: Option<Fact>) {
    match fact {
        Some(fact) => facts.insert(subject, fact),
        None => facts.remove(&subject),
    };
}

impl<T: Target> Observer<T> for Durable {
    fn done(&mut self, target: &T, slots: &Slots<T>, actor: &Actor, op: &Op) -> Called<()> {
        let model = &actor.model;
        self.learn(target, slots, model)?;
        let changes: Vec<_> = model.touched.iter().filter_map(|key| self.fact(model, key)).collect();
        if !changes.is_empty() {
            self.steps.push(Step { clock: model.clock, changes });
        }
        match op {
            Op::Sync => self.synced(),
            Op::Fsync { file: Ref::Path(path) } | Op::FsyncDir { path } => {
                if let Ok(id) = model.lookup(path) {
                    self.fsynced(model, id);
                }
            }
            Op::Fsync { file: Ref::Slot(slot) } => {
                if let Some(id) = model.slots()[*slot] {
                    self.fsynced(model, id);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The facts in a manifest that are a thread's own.
fn facts_of(thread: usize, records: &[Record]) -> Facts {
    let own = format!("/{}", escape(&folder(thread).0));
    let below = format!("{own}/");
    let shared = format!("/{}/t{thread}-", escape(SHARED));
    let numbers: HashMap<&str, u64> =
        records.iter().map(|record| (record.path.as_str(), record.ino)).collect();
    let mut facts = Facts::new();
    let mut inodes = HashMap::new();
    for record in records {
        if let Some(inode) = &record.inode {
            inodes.insert(record.ino, inode);
        }
    }
    for record in records {
        let path = record.path.as_str();
        if path != own && !path.starts_with(&below) && !path.starts_with(&shared) {
            continue;
        }
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = if dir.is_empty() { "/" } else { dir };
        if let Some(&dir) = numbers.get(dir) {
            facts.insert(Subject::Entry(dir, name.to_owned()), Fact::Names(record.ino));
        }
        if let Some(inode) = inodes.get(&record.ino) {
            facts.insert(Subject::Inode(record.ino), Fact::Is(found(inode), None));
        }
    }
    facts
}

/// What the journal knows of an object, in words.
fn described(node: &Node) -> String {
    let target = match &node.kind {
        Kind::Symlink(target) => escape(&target.0),
        _ => String::new(),
    };
    let fields = (node.mode, node.uid, node.gid, node.project, node.nlink);
    format!("{:?} {fields:?} {target} {:?}", judge::file_type(node), judge::attributes(node))
}

/// The same of what a manifest says.
fn found(inode: &Inode) -> String {
    let mode = u16::from_str_radix(&inode.mode, 8).unwrap_or(u16::MAX);
    let target = inode.target.clone().unwrap_or_default();
    let fields = (mode, inode.uid, inode.gid, inode.project.unwrap_or_default(), inode.nlink);
    format!("{:?} {fields:?} {target} {:?}", inode.file_type, judge::listed(inode))
}

fn wrong(expected: &Content, inode: &Inode) -> Option<String> {
    if inode.size != expected.size() {
        return Some(format!("size {} instead of {}", inode.size, expected.size()));
    }
    expected.difference(inode.content.as_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::HASH;
    use crate::history::drive::{self, Source};
    use crate::history::geometry;
    use crate::history::model::Rules;
    use crate::history::target::MountedTarget;
    use crate::kernel;

    /// A directory and what a thread did in it: `t0/a` is synced, `t0/b`, `t0/c` and `t0/d` are not.
    fn history(fsync: Option<&str>) -> (Durable, Actor, Vec<Record>) {
        let folder = tempfile::tempdir().unwrap();
        let target = MountedTarget::new(folder.path()).unwrap();
        let mut actors = drive::actors(&target, 1, 1, &geometry::ALL[0]).unwrap();
        // Not every host has a map of the blocks of its scratch files.
        std::fs::remove_file(folder.path().join("shared/striped")).unwrap();
        let mut durable = vec![Durable::new(&target, &actors[0], 0).unwrap()];
        let mkdir = |name: &str| Op::Mkdir { path: Name(format!("t0/{name}").into_bytes()), mode: 0o700 };
        let mut ops = vec![mkdir("a"), Op::Sync, mkdir("b"), mkdir("c"), mkdir("d")];
        if let Some(name) = fsync {
            ops.push(Op::FsyncDir { path: Name(format!("t0/{name}").into_bytes()) });
        }
        let rules = Rules { tight: false, strict: false };
        let lists = [ops];
        drive::run(&target, &mut actors, &mut durable, Source::Listed(&lists), rules, true).unwrap();
        let records = kernel::manifest(folder.path(), HASH).unwrap();
        (durable.remove(0), actors.remove(0), records)
    }

    /// The records without some names; the folder that had them has fewer links then.
    fn without(records: &[Record], names: &[&str]) -> Vec<Record> {
        let mut left = records.to_vec();
        left.retain(|record| !names.iter().any(|name| record.path == format!("/t0/{name}")));
        for record in left.iter_mut().filter(|record| record.path == "/t0") {
            record.inode.as_mut().unwrap().nlink -= names.len() as u32;
        }
        left
    }

    #[test]
    fn every_moment_behind_the_sync_is_right_and_no_other() {
        let (durable, actor, records) = history(None);
        let judge = |names: &[&str]| durable.judge(&actor, 0, &without(&records, names));
        assert_eq!(judge(&[]), Ok((3, 3)));
        assert_eq!(judge(&["d"]), Ok((2, 3)));
        assert_eq!(judge(&["b", "c", "d"]), Ok((0, 3)));
        assert!(judge(&["a", "b", "c", "d"]).is_err(), "what was synced is gone");
        assert!(judge(&["b"]).unwrap_err().contains("no moment"), "a later change without an earlier one");
        assert!(judge(&["b", "c"]).is_err());
    }

    #[test]
    fn what_was_fsynced_must_be_there_with_all_that_came_before() {
        let (durable, actor, records) = history(Some("c"));
        let judge = |names: &[&str]| durable.judge(&actor, 0, &without(&records, names));
        assert!(judge(&["d"]).is_ok());
        assert!(judge(&["c", "d"]).is_err());
    }

    #[test]
    fn a_mode_that_never_was_is_wrong() {
        let (durable, actor, mut records) = history(None);
        let record = records.iter_mut().find(|record| record.path == "/t0/b").unwrap();
        record.inode.as_mut().unwrap().mode = "0701".into();
        assert!(durable.judge(&actor, 0, &records).is_err());
    }
}
