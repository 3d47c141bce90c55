//! The child: does a history to an image until it is killed, by its parent or, right behind a sync, by itself; and tells
//! about each operation when it is over.
//!
//! Invariant: a line is in the pipe before the thread goes on to its next operation, so that of each thread, one
//! operation at most was under way that the parent knows nothing of.

use super::super::campaign::Which;
use super::super::drive::{self, Actor, Observer, Source};
use super::super::durable::{Clock, Durable};
use super::super::model::{Id, Key, Rules};
use super::super::op::Op;
use super::super::target::{Called, EngineTarget, Slots, Target};
use anyhow::{Context, Error, Result};
use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::OpenOptions;

/// Does a history to an image until it is killed.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Go round the host's page cache.
    #[arg(long)]
    direct: bool,
    /// Begin when nobody holds the other end of standard input any more; and be killed right behind the first call that
    /// makes something durable after so many operations.
    #[arg(long)]
    after: Option<u64>,
    /// The image.
    image: PathBuf,
}

/// What the child says: a line each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// The threads' folders are there and durable; inode numbers of the root, the shared directory and each folder.
    Ready(Vec<Vec<(u32, u64)>>),
    /// A thread has done an operation.
    Did {
        thread: usize,
        begun: u64,
        ended: u64,
        ok: bool,
        /// Inode numbers of objects that are new.
        numbers: Vec<(u32, u64)>,
    },
}

fn say(said: &Said) -> Result<()> {
    let mut line = serde_json::to_string(said)?;
    line.push('\n');
    // One write: a line is there as a whole, or the pipe ends in the middle of the last.
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// Tells of what one thread does.
struct Teller<'a> {
    thread: usize,
    time: &'a AtomicU64,
    begun: u64,
    durable: Durable,
    told: HashSet<Id>,
    after: Option<u64>,
}

impl Teller<'_> {
    /// Whether it is time to end. Two moments are an operation.
    fn is_last(&self, op: &Op, ended: u64) -> bool {
        let is_sync = matches!(op, Op::Sync | Op::Fsync { .. } | Op::FsyncDir { .. });
        is_sync && self.after.is_some_and(|after| ended / 2 >= after)
    }
}

impl Observer<EngineTarget> for Teller<'_> {
    fn begins(&mut self) {
        self.begun = self.time.fetch_add(1, Ordering::SeqCst);
        Observer::<EngineTarget>::begins(&mut self.durable);
    }

    fn done(
        &mut self,
        target: &EngineTarget,
        slots: &Slots<EngineTarget>,
        actor: &Actor,
        op: &Op,
        ok: bool,
    ) -> Called<()> {
        let ended = self.time.fetch_add(1, Ordering::SeqCst);
        if ok && self.is_last(op, ended) {
            // At once: what is on its way to the image only now is lost.
            let said = Said::Did { thread: self.thread, begun: self.begun, ended, ok, numbers: Vec::new() };
            say(&said).map_err(|_| rustix::io::Errno::PIPE)?;
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        }
        self.durable.done(target, slots, actor, op, ok)?;
        let mut numbers = Vec::new();
        for key in &actor.model.touched {
            if let Key::Inode(id) = key
                && let Some(ino) = self.durable.number(*id)
                && self.told.insert(*id)
            {
                numbers.push((id.0, ino));
            }
        }
        // A pipe without a reader means that the parent is gone.
        say(&Said::Did { thread: self.thread, begun: self.begun, ended, ok, numbers })
            .map_err(|_| rustix::io::Errno::PIPE)
    }
}

/// Runs the child. It ends by being killed.
pub fn run(args: &Args) -> Result<bool> {
    let task = args.which.tasks(1, "", "")?.pop().context("a geometry")?;
    let gathers = task.io.gathers(task.seed);
    let options = OpenOptions::new().writable(true).direct(args.direct).gather_writes(gathers);
    let target = EngineTarget::open_with(&args.image, &options)?.by(task.io);
    let mut actors = drive::actors(&target, task.seed, task.threads, &task.geometry)?;
    target.sync()?;
    let time = AtomicU64::new(1);
    let mut tellers = Vec::new();
    let mut ready = Vec::new();
    for (thread, actor) in actors.iter().enumerate() {
        let durable = Durable::new(&target, actor, thread, Clock::counting())?;
        ready.push(durable.numbers().map(|(id, ino)| (id.0, ino)).collect());
        tellers.push(Teller {
            thread,
            time: &time,
            begun: 0,
            durable,
            told: HashSet::new(),
            after: args.after,
        });
    }
    say(&Said::Ready(ready))?;
    if args.after.is_some() {
        std::io::stdin().read_to_end(&mut Vec::new())?;
    }
    let rules = Rules { tight: task.geometry.tight, strict: EngineTarget::STRICT };
    drive::run(&target, &mut actors, &mut tellers, Source::Generated(u64::MAX), rules, true)
        .map_err(Error::new)?;
    Ok(true)
}
