//! Damaged volumes: whatever happens to its metadata, uxfs neither panics nor hangs nor takes much memory.
//!
//! Invariants:
//! - image `n` of seed `s` is always the same, however many jobs there are and wherever a run was taken up again;
//! - each image is opened and walked in a child process with a watchdog, one at a time, so that a panic, a hang, an
//!   abort or memory above the limit is that image's and no other's;
//! - whatever an image did is one line of the results file; what is there is not done again.

mod base;
pub mod layout;
pub mod mutate;
pub mod overlay;
mod report;
pub mod walk;
mod worker;

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use report::{DamageOutcome, Summary};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use worker::{Args as WorkerArgs, run as work};

/// Counts what is allocated, for the limit on memory.
#[global_allocator]
static ALLOCATOR: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// Damages the metadata of small real volumes, opens each and walks everything.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Seed of all damage.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many images.
    #[arg(long, default_value_t = 1000)]
    images: u64,
    /// Number of the first image: with `--images 1`, does one image again.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Results, one line an image. Images that are in it already are not done again.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Images at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: u32,
    /// Longest time that one image may run, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Most memory that opening and walking one image may take, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Folder of the volumes that are damaged; made if it is not there, kept for the next run.
    #[arg(long)]
    volumes: Option<PathBuf>,
    /// Have the checker look at each image, too: that which the walk stumbles over, it must find.
    #[arg(long)]
    check: bool,
    /// A volume to damage besides: an image file.
    #[arg(long)]
    extra: Vec<PathBuf>,
}

/// Runs the campaign. `false`: an image did what none may do.
pub fn run(args: &Args) -> Result<bool> {
    let dir = args.volumes.clone().unwrap_or_else(|| std::env::temp_dir().join("uxfs-damage-volumes"));
    let mut volumes = base::prepare(&dir)?;
    volumes.extend(args.extra.iter().cloned());
    let done = args.resume.as_deref().map_or_else(|| Ok(Summary::default()), |file| resumed(file, args))?;
    let results = args.resume.as_deref().map(append).transpose()?;
    let campaign = Campaign {
        args,
        volumes,
        todo: (args.first..args.first + args.images).filter(|n| !done.images.contains(n)).collect(),
        next: AtomicU64::new(0),
        state: Mutex::new(State { summary: done, results, started: Instant::now() }),
    };
    println!(
        "seed {}, {} images, {} to do, {} volumes",
        args.seed,
        args.images,
        campaign.todo.len(),
        campaign.volumes.len()
    );
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(|| campaign.job())).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("a job does not panic"))
    })?;
    let state = campaign.state.into_inner().expect("no job panicked");
    println!("{}", state.summary);
    Ok(state.summary.failures() == 0)
}

struct Campaign<'a> {
    args: &'a Args,
    volumes: Vec<PathBuf>,
    todo: BTreeSet<u64>,
    next: AtomicU64,
    state: Mutex<State>,
}

struct State {
    summary: Summary,
    results: Option<File>,
    started: Instant,
}

impl Campaign<'_> {
    /// Does images until none is left, with one child after the other.
    fn job(&self) -> Result<()> {
        let todo: Vec<u64> = self.todo.iter().copied().collect();
        let mut child = None;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(&image) = todo.get(index) else { return Ok(()) };
            let worker = match child.take() {
                Some(worker) => worker,
                None => worker::Child::start(&self.volumes, self.args.check)?,
            };
            let (outcome, worker) =
                worker.image(self.args.seed, image, Duration::from_secs(self.args.seconds));
            child = worker;
            self.record(outcome)?;
        }
    }

    fn record(&self, outcome: DamageOutcome) -> Result<()> {
        let mut state = self.state.lock().expect("no job panicked");
        if let Some(file) = &mut state.results {
            // One write a line: a run that is cut off leaves whole lines.
            let line = serde_json::to_string(&(self.args.seed, &outcome))? + "\n";
            file.write_all(line.as_bytes())?;
        }
        if let Some(failure) = outcome.failure(self.args.mib << 20) {
            println!("FAILED: --seed {} --first {} --images 1: {failure}", self.args.seed, outcome.image);
        }
        state.summary.add(&outcome, self.args.mib << 20);
        let count = state.summary.images.len();
        if count.is_multiple_of(1000) {
            let rate = count as f64 / state.started.elapsed().as_secs_f64();
            println!("{count} images ({rate:.0}/s): {}", state.summary.counts());
        }
        Ok(())
    }
}

fn append(file: &Path) -> Result<File> {
    OpenOptions::new().create(true).append(true).open(file).with_context(|| format!("{}", file.display()))
}

/// What an earlier run did.
fn resumed(file: &Path, args: &Args) -> Result<Summary> {
    let mut summary = Summary::default();
    let Ok(lines) = File::open(file) else { return Ok(summary) };
    for line in BufReader::new(lines).lines() {
        let line = line?;
        // The last line may have been cut off.
        let Ok((seed, outcome)) = serde_json::from_str::<(u64, DamageOutcome)>(&line) else { continue };
        ensure!(seed == args.seed, "{} holds results of seed {seed}", file.display());
        if (args.first..args.first + args.images).contains(&outcome.image) {
            summary.add(&outcome, args.mib << 20);
        }
    }
    Ok(summary)
}

/// Bytes allocated now; starts counting the peak anew.
pub(crate) fn reset_memory_peak() -> usize {
    ALLOCATOR.reset_peak_usage();
    ALLOCATOR.current_usage()
}

/// Most bytes that were allocated at one time since [`reset_memory_peak`].
pub(crate) fn memory_peak() -> usize {
    ALLOCATOR.peak_usage()
}
