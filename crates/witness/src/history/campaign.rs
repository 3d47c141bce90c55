//! Many histories, one after the other or some at once, with what is known of those done before.
//!
//! Invariants:
//! - what a history does does not depend on which others there are, nor on how many run at once;
//! - a history is noted as done once it was right, and never before.

use super::geometry::{self, Geometry};
use crate::handles::Io;
use anyhow::Result;
use clap::Args as ClapArgs;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Which histories there are to be.
#[derive(ClapArgs, Clone, Debug)]
pub struct Which {
    /// Seed of the first one.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads that share a volume. Of several numbers, each seed takes the next.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Only geometries of these names.
    #[arg(long, value_delimiter = ',')]
    pub geometry: Vec<String>,
    /// By which handles uxfs reads and writes files; where nothing else is said, those that go past the page cache.
    #[arg(long, value_enum)]
    pub io: Option<Io>,
    /// How many run at once, each on a volume of its own.
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Results, one line for each that was right. Those that are in it already are not done again.
    #[arg(long)]
    pub resume: Option<PathBuf>,
    /// Keep image and operations of those that fail, in this folder.
    #[arg(long)]
    pub keep: Option<PathBuf>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Task {
    /// On which kind of volume.
    pub geometry: Geometry,
    /// From which seed.
    pub seed: u64,
    /// By how many threads.
    pub threads: usize,
    /// By which handles.
    pub io: Io,
    /// Its label in results: the options that repeat it.
    pub label: String,
}

/// The results of all histories.
#[derive(Debug, Default)]
pub struct CampaignOutcome {
    /// The sum of what each said of itself.
    pub total: u64,
    /// How many were right.
    pub right: u64,
    /// Labels of those that were not.
    pub failed: Vec<String>,
}

impl Which {
    /// Those of `runs` seeds on each geometry that were not right before. `label` names the rest of their options.
    pub fn tasks(&self, runs: u64, who: &str, rest: &str) -> Result<Vec<Task>> {
        self.tasks_on(&geometry::ALL, runs, who, rest)
    }

    /// The same, on volumes out of these.
    pub fn tasks_on(&self, all: &[Geometry], runs: u64, who: &str, rest: &str) -> Result<Vec<Task>> {
        let done = done_before(self.resume.as_deref())?;
        let io = self.io.unwrap_or(Io::Direct);
        let by = if io == Io::Direct { String::new() } else { format!(" --io {}", io.name()) };
        let mut tasks = Vec::new();
        for geometry in geometry::chosen(all, &self.geometry)? {
            for nth in 0..runs {
                let seed = self.seed + nth;
                let turn = nth as usize % self.threads.len().max(1);
                let threads = self.threads.get(turn).copied().unwrap_or(1).max(1);
                let name = geometry.volume.name;
                let label = format!("{who} --geometry {name} --seed {seed} --threads {threads} {rest}{by}");
                if !done.contains(&label) {
                    tasks.push(Task { geometry, seed, threads, io, label });
                }
            }
        }
        Ok(tasks)
    }

    /// Does `tasks`, so many at once as was asked for. `one` does one of them, and gives what it adds to the total and
    /// what there is to say of it.
    pub fn all(
        &self,
        prefix: &str,
        tasks: Vec<Task>,
        one: impl Fn(&Task) -> Result<(u64, String)> + Sync,
    ) -> Result<CampaignOutcome> {
        let todo = Mutex::new(tasks.into_iter());
        let outcome = Mutex::new(CampaignOutcome::default());
        let work = || -> Result<()> {
            loop {
                let Some(task) = todo.lock().expect("no panic").next() else { return Ok(()) };
                let result = one(&task);
                let mut outcome = outcome.lock().expect("no panic");
                match result {
                    Ok((count, what)) => {
                        println!("{prefix}{}: right: {what}", task.label);
                        note(self.resume.as_deref(), &task.label, count)?;
                        outcome.right += 1;
                        outcome.total += count;
                    }
                    Err(error) => {
                        println!("{prefix}{}: FAILED: {error:#}", task.label);
                        outcome.failed.push(task.label);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            workers.into_iter().try_for_each(join)
        })?;
        Ok(outcome.into_inner().expect("no panic"))
    }
}

impl CampaignOutcome {
    /// Prints the results; `right` and `total` name the counts. Gives whether every one was right.
    pub fn conclude(&self, name: &str, right: &str, total: &str) -> bool {
        println!(
            "{name}: {} {right}, {} {total}; {} failed{}",
            self.right,
            self.total,
            self.failed.len(),
            self.list()
        );
        self.failed.is_empty()
    }

    /// The labels of those that failed, a line each.
    pub fn list(&self) -> String {
        self.failed.iter().map(|label| format!("\n  {label}")).collect()
    }
}

/// Labels of what was right before.
pub(crate) fn done_before(path: Option<&Path>) -> Result<BTreeSet<String>> {
    match path.filter(|path| path.exists()) {
        None => Ok(BTreeSet::new()),
        Some(path) => {
            let label = |line: String| line.split('\t').next().unwrap_or_default().to_owned();
            let lines = BufReader::new(File::open(path)?).lines();
            Ok(lines.map(|line| line.map(label)).collect::<std::io::Result<_>>()?)
        }
    }
}

/// Notes what was right, and what it adds to the total.
pub(crate) fn note(path: Option<&Path>, label: &str, count: u64) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{label}\t{count}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_right_is_known_by_its_label() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("done");
        assert!(done_before(Some(&path)).unwrap().is_empty());
        note(Some(&path), "some --seed 1", 20).unwrap();
        note(Some(&path), "some --seed 2", 300).unwrap();
        let labels: Vec<_> = done_before(Some(&path)).unwrap().into_iter().collect();
        assert_eq!(labels, ["some --seed 1", "some --seed 2"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "some --seed 1\t20\nsome --seed 2\t300\n");
    }
}
