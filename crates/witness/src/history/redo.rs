//! Histories that failed, done again from what they left, and made shorter while they still fail.
//!
//! Invariant: a shorter history is the old one without some of its operations, in the old order.

use super::op::Op;
use super::{Args, History, Task, geometry};
use crate::handles::Io;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// First line of a file of operations: what they were done to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Name of the geometry.
    pub geometry: String,
    /// How many threads.
    pub threads: usize,
    /// Seed that they came from.
    pub seed: u64,
}

/// Operations with the thread that did each.
type Steps = Vec<(usize, Op)>;

/// Writes operations down.
pub fn save(path: &Path, header: &Header, steps: &[(usize, Op)]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut file, header)?;
    writeln!(file)?;
    for step in steps {
        serde_json::to_writer(&mut file, step)?;
        writeln!(file)?;
    }
    Ok(file.flush()?)
}

fn load(path: &Path) -> Result<(Header, Steps)> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut lines = BufReader::new(file).lines();
    let header = serde_json::from_str(&lines.next().context("an empty file")??)?;
    let steps = lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<Result<_>>()?;
    Ok((header, steps))
}

/// Does the operations in a file again. `Ok(true)`: nothing is wrong with them this time.
pub fn run(path: &Path, args: &Args) -> Result<bool> {
    let (header, steps) = load(path)?;
    println!("history: {} operations again on {}, seed {}", steps.len(), header.geometry, header.seed);
    let Err(error) = again(&header, &steps, args) else {
        println!("history: right");
        return Ok(true);
    };
    println!("history: FAILED: {error:#}");
    if args.shrink > 0 {
        let limit = Instant::now() + Duration::from_secs(args.shrink);
        let shorter = shrink(&steps, |steps| again(&header, steps, args).is_err(), limit);
        let error = again(&header, &shorter, args).err().context("it fails no longer")?;
        let target = path.with_extension("shorter.ops");
        save(&target, &header, &shorter)?;
        println!("history: {} operations are enough: {error:#}", shorter.len());
        println!("history: they are in {}", target.display());
    }
    Ok(false)
}

fn again(header: &Header, steps: &[(usize, Op)], args: &Args) -> Result<()> {
    let chosen = geometry::chosen(&geometry::ALL, std::slice::from_ref(&header.geometry))?;
    let task = Task {
        geometry: chosen[0],
        seed: header.seed,
        threads: header.threads,
        io: args.which.io.unwrap_or(Io::Direct),
        label: String::new(),
    };
    let mut lists = vec![Vec::new(); header.threads];
    for (thread, op) in steps {
        ensure!(*thread < header.threads, "a thread of number {thread}");
        lists[*thread].push(op.clone());
    }
    History::new(&task)?.redo(&lists, args.target)
}

/// Leaves out what is not needed to fail: first the end, then pieces, each half as long as those before.
pub(crate) fn shrink<T: Clone>(steps: &[T], fails: impl Fn(&[T]) -> bool, limit: Instant) -> Vec<T> {
    let (mut right, mut wrong) = (0, steps.len());
    while wrong - right > 1 && Instant::now() < limit {
        let middle = right.midpoint(wrong);
        if fails(&steps[..middle]) { wrong = middle } else { right = middle }
    }
    let mut steps = steps[..wrong].to_vec();
    let mut piece = steps.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < steps.len() {
            if Instant::now() >= limit {
                return steps;
            }
            let mut shorter = steps.clone();
            shorter.drain(at..(at + piece).min(steps.len()));
            if fails(&shorter) {
                steps = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_stays() {
        let step = |slot| (0, Op::Close { slot });
        let steps: Steps = (0..200).map(step).collect();
        let needed = [step(17), step(90), step(130)];
        let fails = |steps: &[(usize, Op)]| needed.iter().all(|step| steps.contains(step));
        let limit = Instant::now() + Duration::from_secs(3600);
        assert_eq!(shrink(&steps, fails, limit), needed);
        // Without time, it is at least still wrong.
        assert!(fails(&shrink(&steps, fails, Instant::now())));
    }

    #[test]
    fn operations_come_back_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ops");
        let steps = vec![(0, Op::Sync), (3, Op::Close { slot: 1 })];
        let header = Header { geometry: "default".into(), threads: 4, seed: 9 };
        save(&path, &header, &steps).unwrap();
        let (found, again) = load(&path).unwrap();
        assert_eq!((found.threads, again), (4, steps));
    }
}
