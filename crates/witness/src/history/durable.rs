//! The required state after a crash.
//!
//! A journal makes transactions durable in their order. So after recovery, names, modes, owners, links and
//! attributes of what one thread owns are what they were after some number of its operations: at least as many as
//! had ended when the last `sync` began, and as many as the last change of each object that was fsynced. Of the
//! operation behind these, nothing may be there; if the kernel did it, any part may, as some of its operations are
//! several transactions. And there is one moment for all threads: what ended before it is there, what began after it is not. Content is not in the journal:
//! it must be right where the file was made durable and not changed since. Of all others, each sector must be the file's
//! own ([`own`](super::own)), where the files themselves are looked at.
//!
//! Invariants:
//! - facts are about inode numbers, not paths, so that a rename of a directory changes two facts and not one for
//!   every object below it;
//! - the whole history is kept, with its times, so that a crash at any time of it can be judged.

use super::content::Content;
use super::drive::{Actor, Observer};
use super::generator::{SHARED, STRIPE, STRIPED, folder};
use super::judge;
use super::model::{Id, Key, Kind, Model, Node};
use super::op::{AllocateHow, Name, Op, Ref};
use super::own::{self, Files, Possible};
use super::target::{Called, Slots, Target};
use crate::record::{Inode, Record, escape};
use anyhow::{Context, Result};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that all threads of a history share; every look at it gives a later time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// A clock that asks something else for the time.
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// A clock that counts.
    pub fn counting() -> Self {
        let count = AtomicU64::new(1);
        Self::new(move || count.fetch_add(1, Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The end of a history, as a time to judge it at.
pub const END: u64 = u64::MAX;

/// The subject of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Subject {
    /// A name in the directory of this inode number.
    Entry(u64, String),
    /// The inode of this number, if it has a name.
    Inode(u64),
}

/// The fact itself.
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

/// From when to when something lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    begun: u64,
    ended: u64,
}

/// The changes of facts that one operation made; `None`: there is no such fact any more.
#[derive(Clone, Debug)]
struct Step {
    span: Span,
    /// The model's clock.
    clock: u64,
    /// What was done.
    kind: &'static str,
    changes: Vec<(Subject, Option<Fact>)>,
}

/// When an `fsync` returned, and how many steps it covers.
#[derive(Clone, Copy, Debug)]
struct Fsync {
    returned: u64,
    covers: usize,
}

/// What was in a file after a change of it.
#[derive(Clone, Debug)]
struct Version {
    span: Span,
    content: Content,
    /// When the first `fsync` of it returned.
    fsynced: Option<u64>,
}

/// Keeps what one thread's operations changed, and what was made durable when.
#[derive(Debug)]
pub struct Durable {
    thread: usize,
    /// Every operation is there as a whole or not at all.
    whole: bool,
    /// What a call did to a file's content is durable when it returns.
    syncing: bool,
    clock: Clock,
    /// When the operation under way began.
    begun: u64,
    numbers: HashMap<Id, u64>,
    /// The facts when the history began.
    base: Facts,
    steps: Vec<Step>,
    fsyncs: Vec<Fsync>,
    syncs: Vec<Span>,
    versions: HashMap<Id, Vec<Version>>,
    /// The file in which each thread has stripes.
    striped: Option<Id>,
}

/// What was found after a crash.
struct Crash<'a> {
    cut: u64,
    threads: &'a [Durable],
    /// Those of all threads that had ended.
    syncs: Vec<Span>,
    inodes: Inodes<'a>,
    /// The files themselves, if they are looked at.
    files: Option<&'a Files>,
}

/// A moment of a thread's history that is like what was found.
#[derive(Clone, Debug)]
struct Moment {
    /// How many steps are there.
    place: usize,
    /// Whether the next step is there in part.
    amid: bool,
    /// Times of the whole history at which this was so.
    span: Span,
}

/// Where a crash left one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// How many of the operations that changed something are there.
    pub there: usize,
    /// How many had to be.
    pub certain: usize,
    /// How many could be.
    pub begun: usize,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.there - self.certain.min(self.there), self.begun - self.certain)
    }
}

impl Durable {
    /// Starts with what a thread has on a fresh volume, which must have been synced.
    pub fn new<T: Target>(target: &T, actor: &Actor, thread: usize, clock: Clock) -> Result<Self> {
        let mut numbers = Vec::new();
        for path in [Name::default(), Name::from(SHARED), folder(thread)] {
            let id = actor.model.lookup(&path).context("a folder")?;
            numbers.push((id.0, target.stat(&path.0)?.ino.0));
        }
        Self::told(actor, thread, numbers, clock, T::STRICT)
    }

    /// The same, with the inode numbers of the root, the shared directory and the thread's folder; `whole`: no operation
    /// may be there in part.
    pub fn told(
        actor: &Actor,
        thread: usize,
        numbers: Vec<(u32, u64)>,
        clock: Clock,
        whole: bool,
    ) -> Result<Self> {
        let mut durable = Self {
            thread,
            whole,
            syncing: false,
            clock,
            begun: 0,
            numbers: numbers.into_iter().map(|(id, ino)| (Id(id), ino)).collect(),
            base: Facts::new(),
            steps: Vec::new(),
            fsyncs: Vec::new(),
            syncs: Vec::new(),
            versions: HashMap::new(),
            striped: actor.model.lookup(&Name::from(STRIPED)).ok(),
        };
        let model = &actor.model;
        let own = model.lookup(&folder(thread)).context("the thread's folder")?;
        let keys = [Key::Entry(Model::ROOT, folder(thread)), Key::Inode(own)];
        for key in &keys {
            if let Some((subject, Some(fact))) = durable.fact(model, key) {
                durable.base.insert(subject, fact);
            }
        }
        Ok(durable)
    }

    /// The same of a thread whose handles are syncing, or not.
    #[must_use]
    pub fn syncing(self, syncing: bool) -> Self {
        Self { syncing, ..self }
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

    /// The inode numbers that were learnt.
    pub fn numbers(&self) -> impl Iterator<Item = (Id, u64)> + '_ {
        self.numbers.iter().map(|(id, ino)| (*id, *ino))
    }

    /// The inode number of an object, if it was learnt.
    pub fn number(&self, id: Id) -> Option<u64> {
        self.numbers.get(&id).copied()
    }

    /// Tells of an object's inode number.
    pub fn know(&mut self, id: Id, ino: u64) {
        self.numbers.insert(id, ino);
    }

    /// What is in files is not certain any more: some of it could not be written back, and somebody was told.
    pub fn forget_content(&mut self) {
        self.versions.clear();
    }

    /// Says when the operation began that is noted next.
    pub fn began(&mut self, begun: u64) {
        self.begun = begun;
    }

    /// Notes that everything done so far became durable just now.
    pub fn all_durable(&mut self) {
        let now = self.clock.now();
        self.syncs.push(Span { begun: now, ended: now });
    }

    /// What was in each file at any time, and which file that is.
    fn contents(&self) -> impl Iterator<Item = (String, &Content)> {
        let named = |id: Id| format!("file {} of thread {}", id.0, self.thread);
        self.versions.iter().flat_map(move |(id, versions)| {
            versions.iter().map(move |version| (named(*id), &version.content))
        })
    }

    /// Notes an operation of which it is not known whether it was done, and how much of it. The model is as if it had
    /// been; objects that it may have made are recognised in what was found afterwards.
    pub fn unfinished(&mut self, model: &Model, op: &Op, records: &[Record]) {
        for key in &model.touched {
            let Key::Inode(id) = key else { continue };
            let path = model.path(*id, 0).map(|path| format!("/{}", escape(&path.0)));
            let found = records.iter().find(|record| Some(&record.path) == path.as_ref());
            if let (None, Some(record)) = (self.numbers.get(id), found) {
                self.numbers.insert(*id, record.ino);
            }
        }
        self.note(model, op, false, END);
    }

    /// Notes what an operation changed, which ended at a time.
    pub fn note(&mut self, model: &Model, op: &Op, ok: bool, ended: u64) {
        let span = Span { begun: self.begun, ended };
        let changes: Vec<_> = model.touched.iter().filter_map(|key| self.fact(model, key)).collect();
        if !changes.is_empty() {
            self.steps.push(Step { span, clock: model.clock, kind: op.kind(), changes });
        }
        if let Op::Allocate {
            file, how: AllocateHow::CollapseRange | AllocateHow::InsertRange, offset, ..
        } = op
            && ok
        {
            Self::at(model, file).into_iter().for_each(|id| self.keep_gap(model, id, *offset, span));
        }
        for id in
            model.touched.iter().filter_map(|key| if let Key::Inode(id) = key { Some(*id) } else { None })
        {
            self.keep_content(model, id, span);
        }
        let at = |file: &Ref| Self::at(model, file);
        match op {
            Op::Write { file, .. }
            | Op::Allocate { file, .. }
            | Op::Truncate { file, .. }
            | Op::Clone { to: file, .. }
            | Op::Dedupe { to: file, .. }
            | Op::CopyRange { to: file, .. } => {
                at(file).into_iter().for_each(|id| self.keep_content(model, id, span));
                if self.syncing && ok {
                    at(file).into_iter().for_each(|id| self.content_durable(id, span.ended));
                }
                if !ok && let Some((id, content)) = model.copied(op) {
                    self.keep_part(model, id, content, span);
                }
            }
            Op::Exchange { file, other, .. } => {
                [file, other].into_iter().filter_map(at).for_each(|id| self.keep_content(model, id, span));
            }
            Op::Sync if ok => self.syncs.push(span),
            Op::Fsync { file } if ok => {
                at(file).into_iter().for_each(|id| self.fsynced(model, id, span.ended));
            }
            Op::FsyncDir { path } if ok => {
                model.lookup(path).into_iter().for_each(|id| self.fsynced(model, id, span.ended));
            }
            _ => {}
        }
    }

    fn at(model: &Model, file: &Ref) -> Option<Id> {
        match file {
            Ref::Path(path) => model.lookup(path).ok(),
            Ref::Slot(slot) => model.slots()[*slot],
        }
    }

    /// Keeps that what lies behind `offset` is on its way to another place: until it is there, a hole may be.
    fn keep_gap(&mut self, model: &Model, id: Id, offset: u64, span: Span) {
        let Some(now) = model.content(id) else { return };
        let versions = self.versions.entry(id).or_default();
        let before = versions.last().map_or(0, |last| last.content.size());
        let mut content = now.clone();
        content.truncate(offset);
        content.truncate(before.max(now.size()));
        versions.push(Version { span, content, fsynced: None });
    }

    /// Keeps what is in a file now, if that is something new.
    fn keep_content(&mut self, model: &Model, id: Id, span: Span) {
        let Some(content) = model.get(id).and(model.content(id)) else { return };
        let versions = self.versions.entry(id).or_default();
        if versions.last().is_none_or(|last| last.content != *content) {
            versions.push(Version { span, content: content.clone(), fsynced: None });
        }
    }

    /// Keeps what may be in a file in part, though the call failed.
    fn keep_part(&mut self, model: &Model, id: Id, content: Content, span: Span) {
        self.versions.entry(id).or_default().push(Version { span, content, fsynced: None });
        self.keep_content(model, id, span);
    }

    /// What is in a file now is durable.
    fn content_durable(&mut self, id: Id, returned: u64) {
        if let Some(version) = self.versions.get_mut(&id).and_then(|versions| versions.last_mut()) {
            version.fsynced.get_or_insert(returned);
        }
    }

    /// Everything up to the last change of this object is durable, and what is in it.
    fn fsynced(&mut self, model: &Model, id: Id, returned: u64) {
        self.content_durable(id, returned);
        let Some(node) = model.get(id).filter(|node| !node.foreign) else { return };
        let covers = self.steps.partition_point(|step| step.clock <= node.changed);
        self.fsyncs.push(Fsync { returned, covers });
    }

    /// How many steps must be there after a crash at `cut`.
    fn certain(&self, cut: u64, syncs: &[Span]) -> usize {
        let fsyncs = self.fsyncs.iter().filter(|fsync| fsync.returned < cut).map(|fsync| fsync.covers);
        let synced = syncs.iter().map(|sync| self.steps.partition_point(|step| step.span.ended < sync.begun));
        fsyncs.chain(synced).max().unwrap_or(0)
    }

    /// The moments of this thread's history that are like what was found.
    fn moments(&self, found: &Facts, crash: &Crash<'_>) -> Result<Vec<Moment>, String> {
        let begun = self.begun_at(crash.cut);
        let certain = self.certain(crash.cut, &crash.syncs);
        let mut state = self.base.clone();
        let subjects = state.keys().chain(found.keys());
        let mut odd: HashSet<Subject> =
            subjects.filter(|subject| state.get(*subject) != found.get(*subject)).cloned().collect();
        let mut nearest: Option<(usize, HashSet<Subject>)> = None;
        let mut content = None;
        let mut judged = HashMap::new();
        let mut moments = Vec::new();
        for place in 0..=begun {
            let next = self.steps[..begun].get(place);
            if place >= certain {
                let in_next = |subject| {
                    next.is_some_and(|step| step.changes.iter().any(|(changed, _)| changed == subject))
                };
                let amid = next.filter(|_| !self.whole && !odd.is_empty() && odd.iter().all(in_next));
                if odd.is_empty() || amid.is_some() {
                    match self.wrong_content(&state, crash, &mut judged)? {
                        None => moments.push(self.moment(place, amid)),
                        Some(what) => content = Some(what),
                    }
                }
                if nearest.as_ref().is_none_or(|(_, least)| odd.len() < least.len()) {
                    nearest = Some((place, odd.clone()));
                }
            }
            for (subject, fact) in next.into_iter().flat_map(|step| &step.changes) {
                set(&mut state, subject.clone(), fact.clone());
                if state.get(subject) == found.get(subject) {
                    odd.remove(subject);
                } else {
                    odd.insert(subject.clone());
                }
            }
        }
        match (moments.is_empty(), content) {
            (false, _) => Ok(moments),
            (true, Some(what)) => Err(what),
            (true, None) => Err(self.explain((certain, begun), nearest, found)),
        }
    }

    /// How many steps had begun at a time.
    fn begun_at(&self, cut: u64) -> usize {
        self.steps.partition_point(|step| step.span.begun < cut)
    }

    fn moment(&self, place: usize, amid: Option<&Step>) -> Moment {
        let last = amid.or_else(|| place.checked_sub(1).and_then(|last| self.steps.get(last)));
        let begun = last.map_or(0, |step| step.span.begun);
        let ended = self.steps.get(place).map_or(END, |step| step.span.ended);
        Moment { place, amid: amid.is_some(), span: Span { begun, ended } }
    }

    /// The first file whose content is wrong. What was judged before is known.
    fn wrong_content(
        &self,
        state: &Facts,
        crash: &Crash<'_>,
        judged: &mut HashMap<(u64, Id), Option<String>>,
    ) -> Result<Option<String>, String> {
        for (subject, fact) in state {
            let (Subject::Inode(ino), Fact::Is(_, Some(id))) = (subject, fact) else { continue };
            let wrong = match judged.entry((*ino, *id)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.wrong_file(*ino, *id, crash)?),
            };
            if wrong.is_some() {
                return Ok(wrong.clone());
            }
        }
        Ok(None)
    }

    /// What is wrong in a file: it is durable as it was at the crash, and is not as it was; or it has what it never had.
    fn wrong_file(&self, ino: u64, id: Id, crash: &Crash<'_>) -> Result<Option<String>, String> {
        let Some((path, inode)) = crash.inodes.get(&ino) else { return Ok(None) };
        let versions = self.versions_at(id, crash);
        let Some(last) = versions.last() else { return Ok(None) };
        if crash.is_durable(last) {
            let what = wrong(&last.content, inode);
            return Ok(
                what.map(|what| format!("a file that was made durable is not as it was: {path}: {what}"))
            );
        }
        let possible = Possible::of(versions.iter().map(|version| &version.content).collect());
        crash.not_own(ino, &possible)
    }

    /// What was in a file at a crash: the last version that was durable, and those behind it that had begun.
    fn versions_at(&self, id: Id, crash: &Crash<'_>) -> &[Version] {
        let Some(versions) = self.versions.get(&id) else { return &[] };
        let begun = &versions[..versions.partition_point(|version| version.span.begun < crash.cut)];
        &begun[begun.iter().rposition(|version| crash.is_durable(version)).unwrap_or(0)..]
    }

    fn explain(
        &self,
        (certain, begun): (usize, usize),
        nearest: Option<(usize, HashSet<Subject>)>,
        found: &Facts,
    ) -> String {
        let (place, odd) = nearest.unwrap_or_default();
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
        let next = self.steps.get(place).map_or("nothing", |step| step.kind);
        format!(
            "no moment of the history is like that: {begun} operations, {certain} of them certain; nearest after \
             {place}, before {next}, with {} differences:\n{}",
            odd.len(),
            lines.join("\n")
        )
    }
}

impl Crash<'_> {
    /// Whether a version was durable.
    fn is_durable(&self, version: &Version) -> bool {
        version.fsynced.is_some_and(|at| at < self.cut)
            || self.syncs.iter().any(|sync| version.span.ended < sync.begun)
    }

    /// What is in a file that it never had, if files are looked at.
    fn not_own(&self, ino: u64, possible: &Possible<'_>) -> Result<Option<String>, String> {
        let (Some(files), Some((path, inode))) = (self.files, self.inodes.get(&ino)) else { return Ok(None) };
        let Some(found) = &inode.content else { return Ok(None) };
        let origin = |bytes: &[u8]| own::origin(bytes, self.threads.iter().flat_map(Durable::contents));
        let wrong = files.wrong(ino, possible, found, inode.size, origin);
        let wrong = wrong.map_err(|error| format!("{path}: {error:#}"))?;
        Ok(wrong.map(|what| format!("a file has what it never had: {path}: {what}")))
    }

    /// What is wrong in the file in which each thread has stripes.
    fn wrong_stripes(&self) -> Result<Option<String>, String> {
        let path = format!("/{}", escape(STRIPED));
        let Some(ino) = self.inodes.iter().find(|(_, (known, _))| *known == path).map(|(ino, _)| *ino) else {
            return Ok(None);
        };
        let empty = Content::default();
        let versions = self.threads.iter().map(|durable| {
            let versions = durable.striped.map_or(&[][..], |id| durable.versions_at(id, self));
            // Before anything was written, it was empty.
            let first = durable.striped.and_then(|id| durable.versions.get(&id)).and_then(|all| all.first());
            let had =
                first.is_some_and(|first| versions.first().is_some_and(|version| version.span != first.span));
            let own = versions.iter().map(|version| &version.content);
            if had { own.collect() } else { std::iter::once(&empty).chain(own).collect() }
        });
        self.not_own(ino, &Possible::striped(versions.collect(), STRIPE))
    }
}

/// Judges what was recovered after a crash at `cut`: where that is in each thread's history, if it is anywhere.
pub fn judge(threads: &[Durable], cut: u64, records: &[Record]) -> Result<Vec<CrashPoint>, String> {
    judge_files(threads, cut, records, None)
}

/// The same, with a look at the files themselves.
pub fn judge_files(
    threads: &[Durable],
    cut: u64,
    records: &[Record],
    files: Option<&Files>,
) -> Result<Vec<CrashPoint>, String> {
    let syncs = threads.iter().flat_map(|thread| &thread.syncs).copied();
    let described =
        records.iter().filter_map(|record| Some((record.ino, (&*record.path, record.inode.as_ref()?))));
    let crash = Crash {
        cut,
        threads,
        syncs: syncs.filter(|sync| sync.ended < cut).collect(),
        inodes: described.collect(),
        files,
    };
    let mut all = Vec::new();
    for durable in threads {
        let found = facts_of(durable.thread, records);
        let moments = durable.moments(&found, &crash);
        all.push(moments.map_err(|what| format!("thread {}: {what}", durable.thread))?);
    }
    if let Some(what) = crash.wrong_stripes()? {
        return Err(what);
    }
    let Some(chosen) = common(&all) else {
        let spans: Vec<_> =
            all.iter().map(|moments| moments.iter().map(|m| m.span).collect::<Vec<_>>()).collect();
        return Err(format!(
            "operations of different threads are there in an order that never was: {spans:?}"
        ));
    };
    let place = |(durable, moment): (&Durable, &Moment)| CrashPoint {
        there: moment.place,
        certain: durable.certain(cut, &crash.syncs),
        begun: durable.begun_at(cut),
    };
    Ok(threads.iter().zip(chosen).map(place).collect())
}

/// One moment of each thread so that some time lies in all of them; if it can be, none at which a step is there in part.
fn common(all: &[Vec<Moment>]) -> Option<Vec<&Moment>> {
    // If there is such a time, the beginning of one of the moments is one.
    let mut times: Vec<u64> = all.iter().flatten().map(|moment| moment.span.begun).collect();
    times.sort_unstable();
    let at = |time: u64, parts: bool| -> Option<Vec<&Moment>> {
        let holds = |moment: &&Moment| moment.span.begun <= time && time < moment.span.ended;
        let fits = |moment: &&Moment| holds(moment) && (parts || !moment.amid);
        all.iter().map(|moments| moments.iter().find(fits)).collect()
    };
    let first = |parts| times.iter().rev().find_map(|&time| at(time, parts));
    first(false).or_else(|| first(true))
}

/// What a manifest says of inodes, and a path of each.
type Inodes<'a> = HashMap<u64, (&'a str, &'a Inode)>;

fn set(facts: &mut Facts, subject: Subject, fact: Option<Fact>) {
    match fact {
        Some(fact) => facts.insert(subject, fact),
        None => facts.remove(&subject),
    };
}

impl<T: Target> Observer<T> for Durable {
    fn begins(&mut self) {
        self.begun = self.clock.now();
    }

    fn done(&mut self, target: &T, slots: &Slots<T>, actor: &Actor, op: &Op, ok: bool) -> Called<()> {
        let ended = self.clock.now();
        self.learn(target, slots, &actor.model)?;
        self.note(&actor.model, op, ok, ended);
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
    let fields = (node.mode, node.uid, node.gid, node.project, node.hints, node.nlink);
    format!("{:?} {fields:?} {target} {:?}", judge::file_type(node), judge::attributes(node))
}

/// The same of what a manifest says.
fn found(inode: &Inode) -> String {
    let mode = u16::from_str_radix(&inode.mode, 8).unwrap_or(u16::MAX);
    let target = inode.target.clone().unwrap_or_default();
    let (project, hints) = (inode.project.unwrap_or_default(), inode.hints.unwrap_or_default());
    let fields = (mode, inode.uid, inode.gid, project, hints, inode.nlink);
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
    fn history(fsync: Option<&str>) -> (Durable, Vec<Record>) {
        let mkdir = |name: &str| Op::Mkdir { path: own(name), mode: 0o700 };
        let mut ops = vec![mkdir("a"), Op::Sync, mkdir("b"), mkdir("c"), mkdir("d")];
        if let Some(name) = fsync {
            ops.push(Op::FsyncDir { path: own(name) });
        }
        done(ops)
    }

    fn own(name: &str) -> Name {
        Name(format!("t0/{name}").into_bytes())
    }

    fn done(ops: Vec<Op>) -> (Durable, Vec<Record>) {
        let folder = tempfile::tempdir().unwrap();
        let target = MountedTarget::new(folder.path()).unwrap();
        let mut actors = drive::actors(&target, 1, 1, &geometry::ALL[0]).unwrap();
        // Not every host has a map of the blocks of its scratch files.
        std::fs::remove_file(folder.path().join("shared/striped")).unwrap();
        let mut durable = vec![Durable::new(&target, &actors[0], 0, Clock::counting()).unwrap()];
        let rules = Rules { tight: false, strict: false };
        let lists = [ops];
        drive::run(&target, &mut actors, &mut durable, Source::Listed(&lists), rules, true).unwrap();
        let records = kernel::manifest(folder.path(), HASH).unwrap();
        (durable.remove(0), records)
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

    /// How many operations after the last sync are there.
    fn behind(durable: &Durable, cut: u64, records: &[Record]) -> Result<(usize, usize), String> {
        let place = judge(std::slice::from_ref(durable), cut, records)?.remove(0);
        Ok((place.there - place.certain, place.begun - place.certain))
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn every_moment_behind_the_sync_is_right_and_no_other() {
        let (durable, records) = history(None);
        let judge = |names: &[&str]| behind(&durable, END, &without(&records, names));
        assert_eq!(judge(&[]), Ok((3, 3)));
        assert_eq!(judge(&["d"]), Ok((2, 3)));
        assert_eq!(judge(&["b", "c", "d"]), Ok((0, 3)));
        assert!(judge(&["a", "b", "c", "d"]).is_err(), "what was synced is gone");
        assert!(judge(&["b"]).unwrap_err().contains("no moment"), "a later change without an earlier one");
        assert!(judge(&["b", "c"]).is_err());
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn an_operation_in_part_is_the_kernels_privilege() {
        let (mut durable, records) = history(None);
        // `d` has gone, and its directory still counts it.
        let mut part = without(&records, &["d"]);
        part.iter_mut().filter(|r| r.path == "/t0").for_each(|r| r.inode.as_mut().unwrap().nlink += 1);
        assert_eq!(behind(&durable, END, &part), Ok((2, 3)));
        durable.whole = true;
        assert!(behind(&durable, END, &part).is_err());
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn what_was_fsynced_must_be_there_with_all_that_came_before() {
        let (durable, records) = history(Some("c"));
        let judge = |names: &[&str]| behind(&durable, END, &without(&records, names));
        assert!(judge(&["d"]).is_ok());
        assert!(judge(&["c", "d"]).is_err());
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn a_crash_in_between_is_judged_by_what_was_then() {
        let (durable, records) = history(Some("c"));
        let sync = durable.syncs[0];
        let judge = |cut, names: &[&str]| behind(&durable, cut, &without(&records, names));
        let all = ["a", "b", "c", "d"];
        assert!(judge(sync.ended, &all).is_ok(), "the sync had not returned");
        assert!(judge(sync.ended + 1, &all).is_err(), "the sync had returned");
        assert!(judge(sync.ended + 1, &["b", "c", "d"]).is_ok());
        assert!(judge(sync.ended + 1, &["c", "d"]).is_err(), "`b` comes later");
        let fsync = durable.fsyncs[0].returned;
        assert!(judge(fsync, &["c", "d"]).is_ok());
        assert!(judge(fsync + 1, &["c", "d"]).is_err());
    }

    #[test]
    fn a_mode_that_never_was_is_wrong() {
        let (durable, mut records) = history(None);
        let record = records.iter_mut().find(|record| record.path == "/t0/b").unwrap();
        record.inode.as_mut().unwrap().mode = "0701".into();
        assert!(behind(&durable, END, &records).is_err());
    }

    #[test]
    fn content_is_judged_where_it_was_made_durable_and_not_changed_since() {
        let versions = |times: &[(u64, u64, Option<u64>)]| -> Vec<Version> {
            let version = |(nth, &(begun, ended, fsynced)): (usize, &(u64, u64, Option<u64>))| {
                let mut content = Content::default();
                content.truncate(nth as u64);
                Version { span: Span { begun, ended }, content, fsynced }
            };
            times.iter().enumerate().map(version).collect()
        };
        let (mut durable, _) = history(None);
        let id = Id(77);
        durable
            .versions
            .insert(id, versions(&[(1, 2, None), (5, 6, Some(10)), (20, 21, None), (30, 31, None)]));
        let state = Facts::from([(Subject::Inode(9), Fact::Is(String::new(), Some(id)))]);
        fn crash<'a>(cut: u64, syncs: &[Span], inodes: Inodes<'a>) -> Crash<'a> {
            Crash { cut, threads: &[], syncs: syncs.to_vec(), inodes, files: None }
        }
        let judged = |cut, size, syncs: &[Span]| {
            let inode = Inode { size, ..Inode::default() };
            let crash = crash(cut, syncs, Inodes::from([(9, ("/t0/f", &inode))]));
            durable.wrong_content(&state, &crash, &mut HashMap::new()).unwrap().is_some()
        };
        let may_be = |cut, syncs: &[Span]| -> Vec<u64> {
            let versions = durable.versions_at(id, &crash(cut, syncs, Inodes::new()));
            versions.iter().map(|version| version.content.size()).collect()
        };
        assert_eq!(may_be(1, &[]), [0_u64; 0]);
        assert_eq!(may_be(10, &[]), [0, 1], "the fsync had not returned");
        assert_eq!(may_be(11, &[]), [1]);
        assert_eq!(may_be(21, &[]), [1, 2]);
        assert_eq!(may_be(26, &[Span { begun: 22, ended: 25 }]), [2]);
        assert_eq!(may_be(END, &[]), [1, 2, 3]);
        assert!(!judged(10, 9, &[]), "the fsync had not returned");
        assert!(judged(11, 9, &[]));
        assert!(!judged(11, 1, &[]));
        assert!(!judged(21, 9, &[]), "it was changed since");
        let sync = Span { begun: 22, ended: 25 };
        assert!(judged(26, 9, &[sync]) && !judged(26, 2, &[sync]));
        assert!(!judged(26, 9, &[Span { begun: 21, ..sync }]), "the sync began before the change ended");
        assert!(!judged(31, 9, &[sync]));
    }

    #[test]
    fn one_moment_must_do_for_all_threads() {
        let moment = |place, begun, ended| Moment { place, amid: false, span: Span { begun, ended } };
        let places = |all: &[Vec<Moment>]| -> Option<Vec<usize>> {
            Some(common(all)?.iter().map(|moment| moment.place).collect())
        };
        let one = vec![moment(1, 3, 8), moment(2, 6, 20)];
        assert_eq!(places(&[one.clone(), vec![moment(5, 10, 12)]]), Some(vec![2, 5]));
        assert_eq!(places(&[one.clone(), vec![moment(5, 1, 3)]]), None, "what ended before is not there");
        assert_eq!(places(&[one, vec![moment(5, 20, 21)]]), None);
    }
}
