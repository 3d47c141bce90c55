//! Predicts workloads on more processors than there are: `bench … --model`.
//!
//! Threads that never wait for each other would scale perfectly. What prevents it are cache lines that move between
//! processors, and locks. Both depend on the program, not on the machine: so each thread's accesses to memory are
//! recorded ([`record`], [`pen`]), cut down to lines that several threads touch ([`steps`]), and played against each
//! other on caches that are made up ([`coherence`], [`simulate`]). The time of an operation alone, and that of a moved
//! line, are measured here ([`cost`]).
//!
//! Not modelled are the distance between sockets, the width of the memory bus, threads that sleep, processors that
//! share a core, the scheduler. So it is an upper bound, for a machine where lines move as fast as here. A
//! prediction tells what limits scaling, and about where; it is no measurement. Where figures of machines with
//! more processors were reported, they stand beside it ([`quoted`]).

mod coherence;
mod cost;
mod files;
mod handles;
pub(crate) mod locks;
mod patient;
mod pen;
mod prediction;
mod quoted;
mod record;
mod simulate;
mod steps;
mod trace;

pub use prediction::{MovedLine, Prediction};
pub use quoted::Quoted;
pub use record::Recorder;

use crate::config::{Config, Workload};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::suite::Observer;
use crate::target::Label;
use prediction::Parts;
use record::Request;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use steps::Pace;
use tempfile::TempDir;
use trace::{Mark, Recording};

/// How long moves of a line are measured.
const MOVES_FOR: Duration = Duration::from_secs(1);
/// How long a slice takes in which an operation alone is measured.
const SLICE: Duration = Duration::from_millis(4);
/// Slices that are measured, unless each takes long.
const SLICES: usize = 40;

/// Something that can be predicted.
pub(crate) struct Subject<'a> {
    pub(crate) label: Label,
    pub(crate) op: &'static str,
    pub(crate) depth: u32,
    /// Operations that are recorded as one.
    pub(crate) each: u64,
    /// Its name for the program that is recorded.
    pub(crate) key: String,
    pub(crate) slices: usize,
    /// Runs one thread for a slice, and gives operations a second.
    pub(crate) alone: Box<dyn FnMut() -> Result<f64> + 'a>,
}

/// All that can be predicted of a workload.
pub(crate) struct Scene<'a> {
    pub(crate) subjects: Vec<Subject<'a>>,
    /// What an instruction takes that waits for no memory, where operations touch memory that is in no cache.
    pub(crate) instruction_ns: Option<f64>,
    /// Makes the volume that a recording works on, where it works on one.
    pub(crate) image: Option<fn(&Config, &Path) -> Result<()>>,
}

/// Predicts what `workload` would give with each of the thread counts, each thread on a processor of its own. A moved line
/// costs `moved_ns`, or what is measured here.
pub fn predict(
    config: &Config,
    workload: Workload,
    recorder: &Recorder,
    moved_ns: Option<f64>,
    observer: &mut dyn Observer,
) -> Result<Vec<Prediction>> {
    let config = &Config { min_time: SLICE, ..config.clone() };
    config.check()?;
    if config.threads.iter().any(|&threads| threads > Mark::MAX_THREADS) {
        return Err(Error::Usage(format!("the model has from 1 to {} threads", Mark::MAX_THREADS)));
    }
    // Fails early.
    if !Workload::MODELLED.contains(&workload) {
        return Err(no_model(workload));
    }
    record::find_valgrind()?;
    interrupt::install()?;
    observer.note("measuring what a moved line costs, and operations alone");
    let moved_ns = moved_ns.map_or_else(|| cost::moved_line_ns(MOVES_FOR), Ok)?;
    let mut scene = match workload {
        Workload::RangeLock => locks::scene(config),
        Workload::Overwrite | Workload::RandRw | Workload::Buffered => {
            files::scene(config, workload, recorder)?
        }
        Workload::Handles => handles::scene(config)?,
        other => return Err(no_model(other)),
    };
    let mut alone_ns = Vec::new();
    for subject in &mut scene.subjects {
        interrupt::check()?;
        alone_ns.push(cost::best_ns(subject.slices, &mut subject.alone)?);
    }
    let recordings = record_all(config, workload, recorder, &scene, observer)?;
    let mut all = Vec::new();
    for (nth, (subject, alone_ns)) in scene.subjects.iter().zip(alone_ns).enumerate() {
        let pace = pace(&recordings[&(nth, 1)], alone_ns * subject.each as f64, scene.instruction_ns);
        for &threads in &config.threads {
            interrupt::check()?;
            let recording = &recordings[&(nth, threads)];
            let parts = Parts { workload, subject, threads, pace, moved_ns, recording };
            all.push(parts.predict(config.seed));
        }
    }
    quoted::hold_against(&mut all);
    Ok(all)
}

/// How fast one thread does what is recorded of it alone. Where operations touch memory for the first time, what their
/// instructions do not explain is the time of that.
fn pace(single: &Recording, alone_ns: f64, instruction_ns: Option<f64>) -> Pace {
    let (instructions, cold) = (single.instructions().max(1.0), single.cold_lines());
    let even = alone_ns / instructions;
    match instruction_ns {
        Some(instruction_ns) if cold >= 1.0 && instruction_ns < even => {
            Pace { instruction_ns, cold_line_ns: (alone_ns - instructions * instruction_ns) / cold }
        }
        _ => Pace { instruction_ns: even, cold_line_ns: 0.0 },
    }
}

/// Records each subject alone and with each of the thread counts; as many at a time as there are processors.
fn record_all(
    config: &Config,
    workload: Workload,
    recorder: &Recorder,
    scene: &Scene<'_>,
    observer: &mut dyn Observer,
) -> Result<HashMap<(usize, usize), Recording>> {
    let mut threads = config.threads.clone();
    threads.push(1);
    threads.sort_unstable();
    threads.dedup();
    let keys: Vec<&str> = scene.subjects.iter().map(|subject| subject.key.as_str()).collect();
    // The longest ones first, so that all workers end at about the same time.
    let count = keys.len();
    let jobs: Vec<(usize, usize)> =
        threads.iter().rev().flat_map(|&threads| (0..count).map(move |nth| (nth, threads))).collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let images = (0..workers).map(|_| Image::make(config, scene.image)).collect::<Result<Vec<_>>>()?;
    observer.start(workload.name(), jobs.len() as u64);
    let next = AtomicUsize::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for image in &images {
            let (tell, next, jobs, keys) = (tell.clone(), &next, &jobs, &keys);
            scope.spawn(move || {
                while let Some(&(nth, threads)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let request =
                        Request { workload, key: keys[nth].to_owned(), threads, image: image.path.clone() };
                    let recorded = interrupt::check().and_then(|()| recorder.record(&request));
                    if tell.send((nth, threads, recorded)).is_err() {
                        // Somebody has failed.
                        return;
                    }
                }
            });
        }
        drop(tell);
        let mut all = HashMap::new();
        while let Ok((nth, threads, recorded)) = told.recv() {
            observer.step(&format!("recorded {} × {threads}", keys[nth]));
            all.insert((nth, threads), recorded?);
        }
        // A worker that panicked has reported nothing.
        if all.len() == jobs.len() { Ok(all) } else { Err(Error::Panicked) }
    })
}

/// What a recording works on.
struct Image {
    path: Option<PathBuf>,
    _dir: Option<TempDir>,
}

impl Image {
    fn make(config: &Config, make: Option<fn(&Config, &Path) -> Result<()>>) -> Result<Self> {
        let Some(make) = make else { return Ok(Self { path: None, _dir: None }) };
        let (shm, passing) = (Path::new("/dev/shm"), std::env::temp_dir());
        let dir = crate::volume::place_dir(if shm.is_dir() { shm } else { &passing })?;
        let path = dir.path().join("image");
        make(config, &path)?;
        Ok(Self { path: Some(path), _dir: Some(dir) })
    }
}

/// Does what [`Recorder`] has recorded; `args` are those that it adds. For the recorded program; any other would wait
/// for a listener for ever.
pub fn record(args: impl Iterator<Item = OsString>) -> Result<()> {
    let Request { workload, key, threads, image } = Request::of_args(args)?;
    match (workload, image) {
        (Workload::RangeLock, None) => locks::record(&key, threads),
        (Workload::Handles, Some(image)) => handles::record(&key, &image, threads),
        (Workload::Overwrite | Workload::RandRw | Workload::Buffered, Some(image)) => {
            files::record(&key, &image, threads)
        }
        _ => Err(Error::Usage("nothing like that is recorded".to_owned())),
    }
}

/// Why a prediction is impossible.
fn no_model(workload: Workload) -> Error {
    let name = workload.name();
    Error::Usage(format!(
        "there is no model of {name} (there is one of overwrite, randrw, rangelock, handles)"
    ))
}

/// Unknown to recordings.
fn no_subject(key: &str) -> Error {
    Error::Usage(format!("there is no subject {key}"))
}
