//! The parent: starts a child, listens, kills it, and judges what is left.

use super::super::campaign::Task;
use super::super::drive::{self, Actor};
use super::super::durable::{self, Clock, Durable};
use super::super::target::{EngineTarget, Target};
use super::super::{History, judge};
use super::Args;
use super::child::Said;
use crate::handles::Io;
use crate::history::op::Op;
use anyhow::{Context, Error, Result, bail, ensure};
use fastrand::Rng;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use uxfs::{ErrorKind, OpenOptions, Volume};

/// A child that goes when this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the parent knows of the threads of its child.
struct ChildProgress {
    actors: Vec<Actor>,
    threads: Vec<Durable>,
    ops: u64,
}

/// Has one child killed: how many operations it had done, and what there is to say.
pub fn one(task: &Task, args: &Args) -> Result<(u64, String)> {
    let history = History::new(task)?;
    let result = killed(&history, task, args);
    if let (Err(_), Some(keep)) = (&result, &args.which.keep) {
        history.keep(keep)?;
    }
    result
}

fn killed(history: &History, task: &Task, args: &Args) -> Result<(u64, String)> {
    let image = history.image();
    let mut rng = Rng::with_seed(task.seed ^ task.geometry.salt());
    let (direct, wanted) = (rng.bool(), rng.u64(1..args.ops.max(2)));
    let pause = Duration::from_micros(rng.u64(..3_000));
    // Half of them are killed right behind a sync: a random moment is hardly ever just that one.
    let after = rng.bool().then_some(wanted);
    let (mut child, output) = start(task, &image, direct, after)?;
    let mut lines = BufReader::new(output);
    let mut known = ready(task, &mut lines)?;
    if after.is_some() {
        refused(&image)?;
        drop(child.0.stdin.take());
        while known.hear(&mut lines)? {}
    } else {
        while known.ops < wanted {
            ensure!(known.hear(&mut lines)?, "the child ended by itself: {:?}", child.0.try_wait()?);
        }
        refused(&image)?;
        // Somewhere in whatever it does next.
        std::thread::sleep(pause);
        child.0.kill()?;
    }
    let ended = child.0.wait()?;
    ensure!(ended.signal() == Some(Signal::KILL.as_raw()), "the child was not killed: {ended}");
    // Let in at once: nothing of the child holds the image.
    let target = EngineTarget::open(&image).context("opening the volume of a process that was killed")?;
    let recovery = target.recovery().unwrap_or_else(|| "nothing to recover".to_owned());
    target.close()?;
    while known.hear(&mut lines)? {}
    judge::is_sound(&image)?;
    let records = judge::by_uxfs(&image)?;
    known.unfinished(&records);
    let places = durable::judge(&known.threads, durable::END, &records).map_err(Error::msg)?;
    let places: Vec<String> = places.iter().map(ToString::to_string).collect();
    let how = if direct { "direct" } else { "by the page cache" };
    let when = if after.is_some() { ", killed behind a sync" } else { "" };
    Ok((
        known.ops,
        format!(
            "{} operations, {how}{when}; {recovery}; behind what was durable: {}",
            known.ops,
            places.join(", ")
        ),
    ))
}

fn start(task: &Task, image: &Path, direct: bool, after: Option<u64>) -> Result<(Running, ChildStdout)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("kill-worker")
        .args(["--geometry", task.geometry.volume.name])
        .args(["--seed", &task.seed.to_string(), "--threads", &task.threads.to_string()])
        .args(["--io", task.io.name()])
        .args(direct.then_some("--direct"))
        .args(after.map(|ops| format!("--after={ops}")))
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a child")?;
    let output = child.stdout.take().context("a pipe from the child")?;
    Ok((Running(child), output))
}

/// While the child lives, nobody else may write.
fn refused(image: &Path) -> Result<()> {
    match Volume::open(image, &OpenOptions::new().writable(true)) {
        Err(error) if error.kind() == ErrorKind::Locked => Ok(()),
        Err(error) => bail!("a second opener was refused, but not because of the first: {error}"),
        Ok(_) => bail!("a second opener was let in"),
    }
}

/// The next line, if it is there as a whole.
fn next(lines: &mut impl BufRead) -> Result<Option<Said>> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    if line.ends_with('\n') { Ok(Some(serde_json::from_str(&line)?)) } else { Ok(None) }
}

fn ready(task: &Task, lines: &mut impl BufRead) -> Result<ChildProgress> {
    let Some(Said::Ready(numbers)) = next(lines)? else { bail!("the child does not start") };
    let actors = drive::fresh_actors(task.seed, task.threads, &task.geometry)?;
    let mut threads = Vec::new();
    for (thread, (actor, numbers)) in actors.iter().zip(numbers).enumerate() {
        let durable = Durable::told(actor, thread, numbers, Clock::counting(), EngineTarget::STRICT)?;
        threads.push(durable.syncing(task.io == Io::Syncing));
    }
    Ok(ChildProgress { actors, threads, ops: 0 })
}

impl ChildProgress {
    /// Hears of one more operation. `false`: there are no more.
    fn hear(&mut self, lines: &mut impl BufRead) -> Result<bool> {
        let Some(said) = next(lines)? else { return Ok(false) };
        let Said::Did { thread, begun, ended, ok, numbers } = said else { bail!("{said:?} in the middle") };
        let op = self.next_op(thread);
        let (actor, durable) = (&mut self.actors[thread], &mut self.threads[thread]);
        let expected = actor.model.apply(&op);
        ensure!(expected.is_ok() == ok, "thread {thread}: {op:?}: parent and child do not do the same");
        numbers.into_iter().for_each(|(id, ino)| durable.know(super::super::model::Id(id), ino));
        durable.began(begun);
        durable.note(&actor.model, &op, ok, ended);
        durable.began(ended);
        self.ops += 1;
        Ok(true)
    }

    /// What a thread does next: it follows from the seed.
    fn next_op(&mut self, thread: usize) -> Op {
        let Actor { model, generator, .. } = &mut self.actors[thread];
        loop {
            let op = generator.next(model);
            if model.predictable(&op) {
                return op;
            }
        }
    }

    /// Takes into account what each thread was about to do.
    fn unfinished(&mut self, records: &[crate::record::Record]) {
        for thread in 0..self.threads.len() {
            let op = self.next_op(thread);
            let model = &mut self.actors[thread].model;
            let _ = model.apply(&op);
            self.threads[thread].unfinished(model, &op, records);
        }
    }
}
