//! Failed runs: their calls are kept, repeated, and reduced while they still fail.
//!
//! Invariant: fewer calls are the old ones without some of them, in the old order.

use super::call::{End, Step};

use super::{FsxRun, Source};
use crate::handles::Io;
use crate::history::campaign::Task;
use crate::history::geometry;
use crate::history::redo::shrink;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// First line of a file of calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Header {
    geometry: String,
    seed: u64,
    threads: usize,
    io: String,
}

/// A line behind it.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Line {
    /// A thread's call.
    Call(usize, Step),
    /// The volume is left, and opened again.
    End(End),
}

/// For each time that the volume is open, each thread's calls.
type Legs = Vec<(End, Vec<Vec<Step>>)>;

/// Keeps calls and image of a run in a folder.
pub(super) fn keep(folder: &Path, run: &FsxRun) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let (geometry, seed) = (run.task.geometry.volume.name, run.task.seed);
    let path = folder.join(format!("fsx-{geometry}-{seed}.calls"));
    let header = Header {
        geometry: geometry.to_owned(),
        seed,
        threads: run.task.threads,
        io: run.task.io.name().to_owned(),
    };
    save(&path, &header, &lines_of(run))?;
    run.keep(&path.with_extension("img"))?;
    println!("fsx: kept {}, which --redo does again", path.display());
    Ok(())
}

fn lines_of(run: &FsxRun) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut begun = vec![0; run.actors.len()];
    for (end, ended) in &run.ends {
        for (thread, actor) in run.actors.iter().enumerate() {
            let steps = actor.kept.iter().flatten().skip(begun[thread]);
            let steps = steps.take(ended[thread] as usize - begun[thread]);
            lines.extend(steps.map(|step| Line::Call(thread, step.clone())));
            begun[thread] = ended[thread] as usize;
        }
        lines.push(Line::End(*end));
    }
    lines
}

fn save(path: &Path, header: &Header, lines: &[Line]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "{}", serde_json::to_string(header)?)?;
    for line in lines {
        writeln!(file, "{}", serde_json::to_string(line)?)?;
    }
    Ok(file.flush()?)
}

fn load(path: &Path) -> Result<(Header, Vec<Line>)> {
    let mut lines = BufReader::new(File::open(path).with_context(|| path.display().to_string())?).lines();
    let header = serde_json::from_str(&lines.next().context("an empty file")??)?;
    let lines = lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<Result<_>>()?;
    Ok((header, lines))
}

fn legs_of(lines: &[Line], threads: usize) -> Legs {
    let mut legs = Legs::new();
    let mut open = vec![Vec::new(); threads];
    for line in lines {
        match line {
            Line::Call(thread, step) if *thread < threads => open[*thread].push(step.clone()),
            Line::Call(..) => {}
            Line::End(end) => legs.push((*end, std::mem::replace(&mut open, vec![Vec::new(); threads]))),
        }
    }
    // Whatever was last: judges look at volumes that were closed.
    legs.push((End::Closed, open));
    legs
}

/// Does the calls in a file again. `Ok(true)`: nothing is wrong with them this time.
pub(super) fn redo(path: &Path, seconds: u64) -> Result<bool> {
    let (header, lines) = load(path)?;
    println!("fsx: {} calls again on {}, seed {}", lines.len(), header.geometry, header.seed);
    let Err(error) = again(&header, &lines) else {
        println!("fsx: right");
        return Ok(true);
    };
    println!("fsx: FAILED: {error:#}");
    if seconds > 0 {
        let limit = Instant::now() + Duration::from_secs(seconds);
        let fewer = shrink(&lines, |lines| again(&header, lines).is_err(), limit);
        let target = path.with_extension("fewer.calls");
        save(&target, &header, &fewer)?;
        let error = again(&header, &fewer).err().context("it fails no longer")?;
        println!("fsx: {} calls are enough, in {}: {error:#}", fewer.len(), target.display());
    }
    Ok(false)
}

fn again(header: &Header, lines: &[Line]) -> Result<()> {
    let chosen = geometry::chosen(&geometry::ALL, std::slice::from_ref(&header.geometry))?;
    let io = Io::named(&header.io).with_context(|| format!("handles that are called {}", header.io))?;
    ensure!(header.threads > 0, "no threads");
    let task =
        Task { geometry: chosen[0], seed: header.seed, threads: header.threads, io, label: String::new() };
    FsxRun::new(&task)?.all(Source::Listed(&legs_of(lines, header.threads)))
}
