//! The matrix of changes: each kind of volume that `mkfs.xfs` makes, filled by the kernel with everything, times each verb
//! that changes, and 200 random operations through the library. A change is right, or it is refused and not a byte
//! of the image has changed; refused are requests that must not succeed, and changes of volumes of version 4, with
//! a realtime section, or with names that ignore case: nothing else passes.
//!
//! Invariants:
//! - the judges are `xfs_repair -n`, before and after the kernel has used the volume, the verb's effect as the kernel
//!   sees it, and everything else in the volume, which must be unchanged: clones above all;
//! - a cell depends on its shape, its verb and the seed alone, not on which others are done, nor on how many at once;
//! - what `mkfs.xfs` or this kernel cannot do is said in the table, and passes nothing.

mod cell;
mod random;
mod shapes;
mod verbs;
mod volume;

use crate::sandbox::{copy_sparse, scratch};
use anyhow::{Context, Result, ensure};
use cell::{Bench, Verdict};
use clap::Args as ClapArgs;
use shapes::Shape;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use verbs::{On, VERBS, Verb};
use volume::Filled;

/// Changes volumes of every kind that mkfs.xfs makes, by every verb: right, or refused and untouched.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Only kinds of volumes whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<String>,
    /// Only verbs whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    verbs: Vec<String>,
    /// Only every Nth cell; the seed decides where to begin.
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Seed of what the volumes are filled with, and of the random operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many kinds of volumes are worked on at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Results, a line a cell. What passed is not done again.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Keep images of cells that fail, in this folder.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The command to judge: by default the `uxfs` beside this program.
    #[arg(long)]
    uxfs: Option<PathBuf>,
    /// Find out which cells are refused, and judge none of the others.
    #[arg(long)]
    refusals: bool,
    /// List the cells, and run none.
    #[arg(long)]
    list: bool,
}

/// The results of the cells, by shape and verb.
type Table = BTreeMap<(usize, usize), Verdict>;

/// Runs the command. `Ok(true)`: every cell passed.
pub fn run(args: &Args) -> Result<bool> {
    let shapes = shapes::all()?;
    let chosen = |name: &str, of: &[String]| of.is_empty() || of.iter().any(|part| name.contains(&**part));
    let begin = args.seed as usize;
    let cells = |at: usize, shape: &Shape| -> Vec<usize> {
        let verbs = VERBS.iter().enumerate().filter(|(_, verb)| chosen(verb.name, &args.verbs));
        let verbs =
            verbs.filter(|(nth, _)| (at * VERBS.len() + nth + begin).is_multiple_of(args.every.max(1)));
        if chosen(&shape.name, &args.shapes) { verbs.map(|(nth, _)| nth).collect() } else { Vec::new() }
    };
    let done = done_before(args)?;
    let all: Vec<(usize, &Shape, Vec<usize>)> =
        shapes.iter().enumerate().map(|(at, shape)| (at, shape, cells(at, shape))).collect();
    if args.list {
        for (_, shape, cells) in all.iter().filter(|(.., cells)| !cells.is_empty()) {
            println!("{} ({}): {}", shape.name, shape.describe(), cells.len());
        }
        return Ok(true);
    }
    let program = match &args.uxfs {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("uxfs"),
    };
    ensure!(program.exists(), "{}: cargo build --release -p uxfs-cli makes it", program.display());
    let (todo, table) = (Mutex::new(all.iter()), Mutex::new(Table::new()));
    let work = || -> Result<()> {
        loop {
            let Some((at, shape, cells)) = todo.lock().expect("no panic").next() else { return Ok(()) };
            let left: Vec<&Verb> = cells
                .iter()
                .map(|&nth| &VERBS[nth])
                .filter(|verb| !done.contains(&label(args, shape, verb)))
                .collect();
            if left.is_empty() {
                continue;
            }
            let mut note = |verb: &Verb, verdict: Verdict| -> Result<()> {
                println!("changes: {}: {}: {verdict}", shape.name, verb.name);
                let nth = VERBS.iter().position(|other| other.name == verb.name).context("a verb")?;
                if verdict.passes() {
                    write_down(args, &label(args, shape, verb))?;
                }
                table.lock().expect("no panic").insert((*at, nth), verdict);
                Ok(())
            };
            one_shape(args, shape, &program, &left, &mut note)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(conclude(&shapes, &table.into_inner().expect("no panic"), done.len(), args.seed))
}

/// All cells of one kind of volume.
fn one_shape(
    args: &Args,
    shape: &Shape,
    program: &std::path::Path,
    verbs: &[&Verb],
    note: &mut dyn FnMut(&Verb, Verdict) -> Result<()>,
) -> Result<()> {
    let folder = scratch()?;
    let wanted = [On::Clean, On::Crashed, On::CrashedClone];
    let wanted: Vec<On> = wanted.into_iter().filter(|on| verbs.iter().any(|verb| verb.on == *on)).collect();
    let filled = match Filled::new(shape, args.seed, folder.path(), &wanted) {
        Ok(filled) => filled,
        Err(error) => {
            let why = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
            return verbs.iter().try_for_each(|verb| note(verb, Verdict::NotMade(why.clone())));
        }
    };
    let bench = Bench::new(&filled, program, folder.path(), args)?;
    for verb in verbs {
        let verdict = bench.judge(verb).unwrap_or_else(|error| Verdict::Wrong(format!("{error:#}")));
        if let (Verdict::Wrong(_), Some(keep)) = (&verdict, &args.keep) {
            std::fs::create_dir_all(keep)?;
            let name = format!("{}-{}.img", shape.name, verb.name).replace(['/', ' '], "_");
            copy_sparse(&bench.image(), &keep.join(name))?;
        }
        note(verb, verdict)?;
    }
    Ok(())
}

/// What a cell is called in results.
fn label(args: &Args, shape: &Shape, verb: &Verb) -> String {
    let only = if args.refusals { " --refusals" } else { "" };
    format!("--seed {} --shapes {} --verbs {}{only}", args.seed, shape.name, verb.name)
}

fn done_before(args: &Args) -> Result<BTreeSet<String>> {
    let Some(path) = args.resume.as_ref().filter(|path| path.exists()) else { return Ok(BTreeSet::new()) };
    Ok(std::fs::read_to_string(path)?.lines().map(str::to_owned).collect())
}

fn write_down(args: &Args, label: &str) -> Result<()> {
    let Some(path) = &args.resume else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{label}")?)
}

/// Prints the table: a line a kind of volume, a letter a cell.
fn conclude(shapes: &[Shape], table: &Table, before: usize, seed: u64) -> bool {
    for (at, shape) in shapes.iter().enumerate() {
        let of_shape = || table.range((at, 0)..(at + 1, 0));
        if of_shape().next().is_none() {
            continue;
        }
        let letters: String =
            (0..VERBS.len()).map(|nth| table.get(&(at, nth)).map_or(' ', Verdict::letter)).collect();
        let why = of_shape().find_map(|(_, verdict)| match verdict {
            Verdict::NotMade(why) => Some(format!("  {why}")),
            _ => None,
        });
        println!("changes: {letters}  {}{}", shape.name, why.unwrap_or_default());
    }
    let count = |letter: char| table.values().filter(|verdict| verdict.letter() == letter).count();
    let wrong = count('W');
    println!(
        "changes: {} cells: {} right (R), {} refused and untouched (-), {} not to be had (.), {wrong} WRONG (W); {before} \
         passed before (seed {seed})",
        table.len(),
        count('R'),
        count('-'),
        count('.'),
    );
    wrong == 0
}
