//! `uxfs bench`: measures file I/O.

mod csv;
mod model;
mod page;
mod progress;
mod table;
mod trees;

pub use model::recorded;
use page::Page;
pub use progress::Progress;
pub use table::{print_locks, print_measurements};

use crate::exit::{Exit, Failure, Result, host_name};
use crate::options::{Global, parse_size};
use clap::ValueEnum;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use uxfs_bench::{
    CilLocks, Config, DesignLists, Error, Flushing, FxMark, HandleCounts, Locking, Reservations, Vectors,
    Versus, VolumePlace, Workload,
};

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Asked {
    /// Read, then overwrite, random pages of one file
    Overwrite,
    /// Random reads and overwrites of one file at once, half and half; with --direct, many in flight
    Randrw,
    /// Read, then overwrite, one file sequentially, in requests of --block, from page caches that hold
    /// it
    Seq,
    /// Lock and unlock ranges of one range lock; no file
    Rangelock,
    /// Make empty files in each thread's own directories, stat all of them, remove them
    Fsmark,
    /// Start and stop journal handles; change one inode in each transaction
    Handles,
    /// The 19 workloads of FxMark: threads read, write, look up, make, remove and rename, each in files and directories
    /// of its own or in shared ones
    Fxmark,
    /// Clients of a file server, each with its own directory: files are made, written in pieces, read, examined,
    /// listed, renamed, flushed and removed
    Dbench,
    /// Clone a file, and overwrite random pages that it shares with the clone
    Cow,
    /// Write 64 KiB to each thread's own regions of one device or file, each write durable before the next
    Osync,
    /// `untar`, `tar`, `find`, `rm -r` and `cp -r` of a whole tree, compared with tar, find, rm and cp on the kernel's
    /// mount of a similar image (root only)
    Trees,
    /// All of them except `trees`
    All,
}

/// The text below the options.
const LATENCIES: &str = "With --verbose, tables also show latencies in microseconds: the median, and those of 99 of \
100 and 999 of 1,000 operations. --csv, --json and --report always have it. Of operations that take microseconds, \
one in seven or eight is timed, of shorter ones one in 32 or 64, so that timing hardly affects the other figures. \
Pairs of handles take about as long as reading the clock, which is part of their times: they are timed for a moment \
after those that are counted. Locks, and operations that become durable together, are not timed one by one.";

/// Arguments of `bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = LATENCIES)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum)]
    workload: Asked,
    /// Direct I/O for `randrw`, which otherwise uses page caches that hold the file.
    #[arg(long)]
    direct: bool,
    /// Thread counts (default: 1,2,4,8,16, and for `osync` 64 too).
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    threads: Option<Vec<usize>>,
    /// Numbers of clients of `dbench`.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8")]
    clients: Vec<usize>,
    /// Lockings of the file in uxfs: exclusive, shared, interval-tree, btree, range (default: exclusive and
    /// range for `overwrite`, all but `shared` for `randrw`).
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    locking: Vec<Locking>,
    /// How the journals of `handles`, `fsmark` and `dbench` count open handles: locked, atomic. All combinations of
    /// this and the next options are measured. Default: today's designs, and for `handles` also each older one, for
    /// `fsmark` (without --fsync) the older ones of --cil and --vectors, for `dbench` that of --handles.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    handles: Vec<HandleCounts>,
    /// How they count log space: locked, atomic.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    reservation: Vec<Reservations>,
    /// How their commits enter a checkpoint: single-lock, sharded.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    cil: Vec<CilLocks>,
    /// When what goes to the log is copied for it: at-commit (by each commit, all that changed since it was last
    /// written), at-close (once, when a checkpoint is closed).
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    vectors: Vec<Vectors>,
    /// Run the same in a mounted directory; `kernel-xfs` makes and mounts one on a RAM device, `kernel-xfs-loop` on a
    /// loop device over a file in the directory that --device names, or else on tmpfs (root only); `kernel-ext4` is an
    /// ext4 on a RAM device.
    #[arg(long, value_name = "DIR|kernel-xfs|kernel-xfs-loop|kernel-ext4")]
    vs: Vec<Versus>,
    /// Where uxfs's volume is kept: memory (or mem), shm (a mapped file on tmpfs), or a directory (an image file in it,
    /// opened with O_DIRECT); of `trees`, both images: a directory, or else tmpfs. `osync` also takes a device, or a file in place of one, and writes all over it (--force).
    #[arg(long, value_name = "memory|shm|DIR|DEVICE", default_value = "memory")]
    device: VolumePlace,
    /// Run the same on the device without a file system, too (always, where --device is a directory).
    #[arg(long)]
    raw: bool,
    /// Run the same as plain memory copies, too (always, where --device is memory).
    #[arg(long)]
    memcpy: bool,
    /// Size of the file.
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "1G")]
    size: u64,
    /// 4 KiB pages for all threads together: random ones, except for `seq`.
    #[arg(long, value_name = "N", default_value_t = 262_144)]
    pages: u64,
    /// Bytes of a request of `seq`.
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "1M")]
    block: u64,
    /// Clones that `cow` makes of its file in a row; the first ones find caches cold.
    #[arg(long, value_name = "N", default_value_t = 16)]
    clones: usize,
    /// Requests that each thread keeps in flight. Default: 1 for `overwrite`, 128 for `randrw`.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    depth: Vec<u32>,
    /// Workloads of `fxmark` (default: all of them).
    #[arg(long = "workload", value_name = "NAME,…", value_delimiter = ',', long_help = fxmark_help())]
    fxmark: Vec<FxMark>,
    /// Files that each thread of `fsmark` makes; for `fxmark`, files that it makes, removes, lists and moves, and
    /// blocks that it appends and truncates.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    files: u64,
    /// Directories of each thread of `fsmark`, over which its files are spread.
    #[arg(long, value_name = "N", default_value_t = 1)]
    dirs: usize,
    /// Write this much content to each file of `fsmark`, and make it durable before the next.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    fsync: Option<u64>,
    /// Give the volumes of `fsmark`, `fxmark`, `dbench`, `handles`, `cow` and `trees` the features of this kernel release, and others by name, the kernel's
    /// volume too. Default: those of 6.1, and for the kernel what mkfs.xfs makes.
    #[arg(long, value_name = "RELEASE[+FEATURE…]")]
    compat: Option<String>,
    /// How the threads of `osync` flush the device: serialized (one flush each, in turn), concurrent (one each, at
    /// once), shared-flush (one for all waiters). Default: each of them.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    sync: Vec<Flushing>,
    /// Duration of a flush of `osync`'s device in memory, which does one at a time, as disks do. With --vs, a device
    /// without that delay is measured, too: the kernel's lies on a device as it is.
    #[arg(long, value_name = "MILLISECONDS,…", value_delimiter = ',', default_value = "0.1,1,10")]
    flush_ms: Vec<f64>,
    /// The tree of `trees`: a directory, or an archive of one (default: 83,000 files, like a kernel's sources).
    #[arg(long, value_name = "DIR|ARCHIVE")]
    source: Option<PathBuf>,
    /// Let `osync` write all over the device, or the file, that --device names.
    #[arg(long)]
    force: bool,
    /// Rounds, in each of which all targets take turns; medians are reported.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Repeat the pages until a measurement takes about this long.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 250)]
    min_time: u64,
    /// Count and time the locks (which slows them), and print them, worst first.
    #[arg(long)]
    lockstat: bool,
    /// Leave the volume in this file (of overwrite, randrw and fsmark).
    #[arg(long, value_name = "IMAGE")]
    keep: Option<PathBuf>,
    /// Seed of the order of pages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Predict instead of measuring (overwrite, randrw, rangelock, handles), with a processor for each thread: from the
    /// cache lines that each thread touches (recorded under valgrind), the time of an operation alone, and the time to
    /// move a line between processors (both measured here).
    #[arg(long, conflicts_with_all = ["vs", "report", "keep", "csv", "lockstat", "raw", "memcpy"])]
    model: bool,
    /// Cost of a moved line in the prediction (default: as measured here).
    #[arg(long, value_name = "NANOSECONDS", requires = "model")]
    moved_ns: Option<f64>,
    /// Print measurements as comma-separated values, below a line with the names of the columns.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write a report of the run, too: what was compared, tables, curves, latencies, locks, the machine. It is one HTML
    /// file that works offline. Without --lockstat, locks are counted for it in a short extra round at the end.
    #[arg(long, value_name = "PAGE.html")]
    report: Option<PathBuf>,
}

impl Args {
    fn workloads(&self) -> Result<Vec<Workload>> {
        let one = match self.workload {
            Asked::Trees => return Ok(Vec::new()),
            Asked::Overwrite => Workload::Overwrite,
            Asked::Rangelock => Workload::RangeLock,
            Asked::Randrw if self.direct => Workload::RandRw,
            Asked::Randrw => Workload::Buffered,
            Asked::Seq => Workload::Seq,
            Asked::Fsmark => Workload::FsMark,
            Asked::Handles => Workload::Handles,
            Asked::Fxmark => Workload::FxMark,
            Asked::Dbench => Workload::Dbench,
            Asked::Cow => Workload::Cow,
            Asked::Osync => Workload::OSync,
            Asked::All => {
                use Workload::{
                    Buffered, Cow, Dbench, FsMark, FxMark, Handles, OSync, Overwrite, RandRw, RangeLock, Seq,
                };
                return Ok(vec![
                    Overwrite, OSync, FsMark, RandRw, Buffered, Seq, RangeLock, Handles, FxMark, Dbench, Cow,
                ]);
            }
        };
        Ok(vec![one])
    }

    /// Refuses options that do not apply to the workload, so that no one believes that they were measured.
    fn check_heeded(&self, workloads: &[Workload]) -> Result<()> {
        use Workload::{Cow, Dbench, FsMark, FxMark, Handles, OSync, Overwrite, RandRw, Seq};
        let one_of = |those: &[Workload]| workloads.iter().any(|one| those.contains(one));
        let trees = self.workload == Asked::Trees;
        let journals = one_of(&[Handles, FsMark, Dbench]);
        let volumes = journals || one_of(&[FxMark, Cow]) || trees;
        let has_others = workloads.iter().any(|one| *one != Workload::RangeLock);
        let options = [
            ("--model", self.model, !trees, "not of trees"),
            ("--csv", self.csv, !trees, "not of trees"),
            ("--lockstat", self.lockstat, !trees, "not of trees"),
            ("--report", self.report.is_some(), !trees, "not of trees"),
            ("--vs", !self.vs.is_empty(), !trees, "not of trees"),
            ("--direct", self.direct, one_of(&[RandRw]), "only randrw has both ways"),
            ("--block", self.block != 1 << 20, one_of(&[Seq]), "only seq has requests of any size"),
            ("--dirs", self.dirs != 1, one_of(&[FsMark]), "only fsmark spreads files over directories"),
            ("--sync", !self.sync.is_empty(), one_of(&[OSync]), "only osync has several ways to flush"),
            ("--force", self.force, one_of(&[OSync]), "only osync writes all over a device"),
            ("--compat", self.compat.is_some(), volumes, "this workload's volume is always the same"),
            ("--handles", !self.handles.is_empty(), journals, "this workload begins no transactions"),
            ("--reservation", !self.reservation.is_empty(), journals, "this workload begins no transactions"),
            ("--cil", !self.cil.is_empty(), journals, "this workload begins no transactions"),
            ("--vectors", !self.vectors.is_empty(), journals, "this workload begins no transactions"),
            ("--vs", !self.vs.is_empty(), has_others, "the kernel has no such lock to compare"),
            (
                "--keep",
                self.keep.is_some(),
                one_of(&[Overwrite, RandRw, FsMark]),
                "this workload leaves no volume that could be kept",
            ),
            (
                "--fsync",
                self.fsync.is_some(),
                one_of(&[FsMark]),
                "only fsmark makes files durable one by one",
            ),
            (
                "--workload",
                !self.fxmark.is_empty(),
                one_of(&[FxMark]),
                "only fxmark has workloads of its own",
            ),
            ("--source", self.source.is_some(), trees, "only trees has a tree"),
        ];
        match options.into_iter().find(|(_, is_asked, is_heeded, _)| *is_asked && !is_heeded) {
            Some((option, .., why)) => Err(Failure::new(Exit::Usage, format!("{option}: {why}"))),
            None => Ok(()),
        }
    }

    fn config(&self) -> Result<Config> {
        let in_memory = !matches!(self.device, VolumePlace::Dir(_));
        let unsaid = Config::default();
        let latency = |&ms: &f64| {
            Duration::try_from_secs_f64(ms / 1000.0)
                .map_err(|error| Failure::new(Exit::Usage, format!("--flush-ms {ms}: {error}")))
        };
        Ok(Config {
            threads: self.threads.clone().unwrap_or(unsaid.threads),
            osync_threads: self.threads.clone().unwrap_or(unsaid.osync_threads),
            flushings: self.sync.clone(),
            flush_latencies: self.flush_ms.iter().map(latency).collect::<Result<_>>()?,
            overwrite: self.force,
            locking: self.locking.clone(),
            designs: DesignLists {
                handles: self.handles.clone(),
                reservation: self.reservation.clone(),
                cil: self.cil.clone(),
                vectors: self.vectors.clone(),
            },
            versus: self.vs.clone(),
            place: self.device.clone(),
            raw: self.raw || !in_memory,
            memcpy: self.memcpy || in_memory,
            size: self.size,
            pages: self.pages,
            block: self.block,
            clones: self.clones,
            depths: self.depth.clone(),
            files: self.files,
            clients: self.clients.clone(),
            fxmark: self.fxmark.clone(),
            dirs: self.dirs,
            fsync: self.fsync,
            compat: self.compat.clone(),
            rounds: self.rounds,
            min_time: Duration::from_millis(self.min_time),
            lockstat: self.lockstat,
            count_locks: self.report.is_some(),
            keep: self.keep.clone(),
            seed: self.seed,
        })
    }
}

/// Describes the workloads of FxMark.
fn fxmark_help() -> String {
    let kinds: String =
        FxMark::ALL.iter().map(|one| format!("\n  {}  {}", one.name(), one.about())).collect();
    format!("Workloads of `fxmark` (default: all of them). One operation of each is to{kinds}")
}

/// Runs the requested workloads.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let workloads = args.workloads()?;
    args.check_heeded(&workloads)?;
    if let Some(keep) = args.keep.as_ref().filter(|keep| keep.symlink_metadata().is_ok()) {
        let what = "is there already; name a new file to keep the volume in";
        return Err(Failure::new(Exit::AlreadyExists, format!("{}: {what}", host_name(keep))));
    }
    let config = args.config()?;
    if args.workload == Asked::Trees {
        return trees::run(&config, args.source.as_deref(), global);
    }
    if args.model {
        return model::run(&config, &workloads, args.moved_ns, global);
    }
    let page = args.report.as_deref().map(Page::create).transpose()?;
    let mut progress = Progress::new();
    let report = uxfs_bench::run(&config, &workloads, &mut progress).map_err(failure);
    progress.clear();
    let report = report?;
    if let Some(page) = page {
        page.write(&report)?;
    }
    let mut out = std::io::stdout().lock();
    if global.json {
        for line in &report.measurements {
            json_line(&mut out, line)?;
        }
        for line in &report.locks {
            json_line(&mut out, line)?;
        }
    } else if args.csv {
        csv::print(&mut out, &report.measurements)?;
    } else {
        print_measurements(&mut out, &report.measurements, global.verbose)?;
        print_locks(&mut out, &report.locks)?;
    }
    out.flush()?;
    Ok(Exit::Ok)
}

fn json_line(out: &mut impl Write, line: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, line).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// The failure for an error of a run.
pub fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Usage(_) => Exit::Usage,
        Error::Content { .. } | Error::Time { .. } => Exit::Damaged,
        Error::Interrupted => Exit::Interrupted,
        Error::Volume(error) => {
            error.downcast_ref::<uxfs::Error>().map_or(Exit::Io, |error| error.kind().into())
        }
        other if other.is_in_use() => Exit::Locked,
        other => other.host_error().map_or(Exit::Io, Exit::of_source),
    };
    Failure::new(exit, format!("bench: {error}"))
}
