//! Damaged images and archives, with every verb of the command that changes or copies.
//!
//! Invariants:
//! - run `n` of seed `s` is always the same: which volume, which damage, which verb (the timing may differ with several
//!   threads);
//! - each run is a process of its own, with a time limit and a memory limit. A panic, a signal, an undocumented exit
//!   code, or a byte written outside of the volume and the destination is a failure;
//! - a verb that only reads changes no byte of the image;
//! - each run is a line of the results file, and runs that are in it are not repeated.

mod archive;
mod bases;
mod chains;
mod process;
mod verbs;

use crate::damage::mutate::damage;
use crate::damage::overlay::Overlay;
use anyhow::{Context, Result, ensure};
use bases::Base;
use clap::Args as ClapArgs;
use fastrand::Rng;
use process::Limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Has every verb that changes or copies work on damaged images and archives.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Seed of all damage.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs.
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Number of the first run: with `--runs 1 --keep FOLDER`, does one again and keeps what it had.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Results, one line a run. Runs that are in it already are not done again.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Runs at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: u32,
    /// Processor time that one run may take, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Memory that one run may take, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// The command; the one beside this program if it is not said.
    #[arg(long)]
    uxfs: Option<PathBuf>,
    /// Folder for what failed: the image, the archive, and what was run.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// What one run did.
#[derive(Debug, Serialize, Deserialize)]
struct HostileOutcome {
    seed: u64,
    run: u64,
    verb: String,
    end: String,
    wrong: Option<String>,
    rss_mib: u64,
    cpu_ms: u64,
    story: Vec<String>,
}

/// Bytes before and after the volume, which nobody may change.
const GUARD: usize = 1 << 20;
const GUARD_BYTE: u8 = 0xa5;

/// Runs the campaign. `false`: something did what nothing may do.
pub fn run(args: &Args) -> Result<bool> {
    let uxfs = match &args.uxfs {
        Some(uxfs) => uxfs.clone(),
        None => std::env::current_exe()?.with_file_name("uxfs"),
    };
    ensure!(uxfs.exists(), "{}: build the command first (cargo build -p uxfs-cli)", uxfs.display());
    let scratch = crate::sandbox::scratch()?;
    let bases = bases::make(&uxfs, scratch.path())?;
    let mut done: BTreeMap<u64, bool> = BTreeMap::new();
    if let Some(file) = args.resume.as_ref().and_then(|file| File::open(file).ok()) {
        for line in BufReader::new(file).lines() {
            // The last line may have been cut off.
            let Ok(outcome) = serde_json::from_str::<HostileOutcome>(&line?) else { continue };
            ensure!(outcome.seed == args.seed, "the results are of seed {}", outcome.seed);
            done.insert(outcome.run, outcome.wrong.is_none());
        }
    }
    let results = args.resume.as_ref().map(|file| File::options().create(true).append(true).open(file));
    let state = Mutex::new((results.transpose()?, Tally::default()));
    let next = AtomicU64::new(args.first);
    let end = args.first + args.runs;
    let failed = std::thread::scope(|scope| {
        let job = |number: u32| -> Result<()> {
            let dir = scratch.path().join(format!("job-{number}"));
            loop {
                let run = next.fetch_add(1, Ordering::Relaxed);
                if run >= end {
                    return Ok(());
                }
                if done.contains_key(&run) {
                    continue;
                }
                let outcome = one(args, &uxfs, &bases, &dir, run).with_context(|| format!("run {run}"))?;
                let mut state = state.lock().expect("no job panicked");
                state.1.add(&outcome, args);
                if let Some(file) = &mut state.0 {
                    file.write_all((serde_json::to_string(&outcome)? + "\n").as_bytes())?;
                }
            }
        };
        let jobs: Vec<_> = (0..args.jobs).map(|number| scope.spawn(move || job(number))).collect();
        jobs.into_iter().map(|job| job.join().expect("a job panicked")).collect::<Result<Vec<()>>>()
    });
    failed?;
    let (_, tally) = state.into_inner().expect("no job panicked");
    let before = done.values().filter(|right| !**right).count() as u64;
    println!("{tally}");
    Ok(tally.wrong + before == 0)
}

/// One run, in a folder that is emptied before.
fn one(args: &Args, uxfs: &Path, bases: &[Base], dir: &Path, run: u64) -> Result<HostileOutcome> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let mut rng = Rng::with_seed(args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ run);
    let base = &bases[rng.usize(..bases.len())];
    let image = dir.join("image");
    let mut story = lay(base, &image, &mut rng)?;
    let archive = dir.join("archive");
    story.extend(archive::damaged(&base.archive, &archive, &mut rng)?);
    fs::create_dir(dir.join("out"))?;
    fs::write(dir.join("guard"), [GUARD_BYTE; 512])?;
    let verb = verbs::choose(&mut rng, dir);
    let limits = Limits {
        cpu: Duration::from_secs(args.seconds),
        wall: Duration::from_secs(6 * args.seconds),
        rss: args.mib << 20,
    };
    let before = if verb.only_reads() { Some(fs::read(&image)?) } else { None };
    let done = process::run(uxfs, &verb.args, &dir.join("out/stdout"), &limits)?;
    let untouched = || -> Result<()> {
        guards(dir, &image, base.size as usize)?;
        ensure!(
            before.is_none_or(|before| fs::read(&image).is_ok_and(|now| now == before)),
            "the image was written"
        );
        Ok(())
    };
    let wrong = done.wrong().or_else(|| untouched().err().map(|error| error.to_string()));
    let outcome = HostileOutcome {
        seed: args.seed,
        run,
        verb: verb.name.to_owned(),
        end: done.end.to_string(),
        wrong,
        rss_mib: done.rss >> 20,
        cpu_ms: done.cpu.as_millis() as u64,
        story,
    };
    if let Some(keep) = args.keep.as_ref().filter(|_| outcome.wrong.is_some()) {
        let kept = keep.join(format!("{}-{run}", args.seed));
        fs::create_dir_all(&kept)?;
        // The image before the run.
        let mut rng = Rng::with_seed(args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ run);
        let base = &bases[rng.usize(..bases.len())];
        lay(base, &kept.join("image"), &mut rng)?;
        fs::copy(&archive, kept.join("archive"))?;
        let command: Vec<_> = verb.args.iter().map(|arg| arg.to_string_lossy()).collect();
        fs::write(
            kept.join("command"),
            format!("uxfs {}\n{}\n", command.join(" "), serde_json::to_string(&outcome)?),
        )?;
    }
    Ok(outcome)
}

/// Writes a damaged volume between its guards.
fn lay(base: &Base, image: &Path, rng: &mut Rng) -> Result<Vec<String>> {
    crate::sandbox::copy_sparse(&base.image, image)?;
    let mut overlay = Overlay::new(base.device.clone());
    // Archives are also unpacked into sound volumes.
    if rng.u8(..8) == 0 {
        return Ok(vec![format!("volume {}", base.name)]);
    }
    // Intents in the log are damaged alone, or together with other things.
    let promised = if rng.bool() { &base.items[..] } else { &[] };
    let mut story =
        if promised.is_empty() || rng.bool() { damage(&base.menu, rng, &mut overlay) } else { Vec::new() };
    if !promised.is_empty() {
        story.extend(chains::damage_items(promised, rng, &mut overlay)?);
    }
    story.insert(0, format!("volume {}", base.name));
    let file = File::options().write(true).open(image)?;
    for (offset, sector) in overlay.changed() {
        file.write_all_at(sector, GUARD as u64 + offset)?;
    }
    Ok(story)
}

/// Fails if anything was written outside of the volume and the destination.
fn guards(dir: &Path, image: &Path, size: usize) -> Result<()> {
    let bytes = fs::metadata(image)?.len();
    ensure!(bytes as usize == size + 2 * GUARD, "the image has {bytes} bytes");
    let file = File::open(image)?;
    let mut guard = vec![0; GUARD];
    for at in [0, GUARD + size] {
        file.read_exact_at(&mut guard, at as u64)?;
        ensure!(guard.iter().all(|&byte| byte == GUARD_BYTE), "bytes outside of the volume were written");
    }
    ensure!(fs::read(dir.join("guard"))? == [GUARD_BYTE; 512], "a file of the host was written");
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let known = ["image", "archive", "out", "guard"].iter().any(|known| name == *known);
        ensure!(known, "{} was made outside of the destination", name.to_string_lossy());
    }
    Ok(())
}

/// What all runs did.
#[derive(Default)]
struct Tally {
    runs: u64,
    wrong: u64,
    ends: BTreeMap<(String, String), u64>,
    rss_mib: u64,
    cpu_ms: u64,
}

impl Tally {
    fn add(&mut self, outcome: &HostileOutcome, args: &Args) {
        self.runs += 1;
        *self.ends.entry((outcome.verb.clone(), outcome.end.clone())).or_default() += 1;
        self.rss_mib = self.rss_mib.max(outcome.rss_mib);
        self.cpu_ms = self.cpu_ms.max(outcome.cpu_ms);
        if let Some(wrong) = &outcome.wrong {
            self.wrong += 1;
            let story = outcome.story.join("; ");
            println!(
                "FAILED: --seed {} --first {} --runs 1: {}: {wrong}; {story}",
                args.seed, outcome.run, outcome.verb
            );
        }
        if self.runs.is_multiple_of(1000) {
            println!("{} runs, {} wrong", self.runs, self.wrong);
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((verb, end), count) in &self.ends {
            writeln!(f, "{verb:>16} ended with {end:>3}: {count}")?;
        }
        let Self { runs, wrong, rss_mib, cpu_ms, .. } = self;
        write!(f, "{runs} runs, {wrong} wrong; at most {rss_mib} MiB and {cpu_ms} ms of processor time")
    }
}
