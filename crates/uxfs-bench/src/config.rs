//! The configuration of a run.

use crate::content::PAGE;
use crate::error::{Error, Result};
use crate::fxmark::FxMark;
use fileio::Flushing;
use std::path::PathBuf;
use std::time::Duration;
use uxfs::{CilLocks, Designs, HandleCounts, Locking, Reservations, Vectors};

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Threads read, then overwrite, random pages of one file, by direct I/O.
    Overwrite,
    /// Threads do both at once, half and half, with many requests in flight each, by direct I/O.
    RandRw,
    /// The same through the page cache, which holds all of the file, one request at a time.
    Buffered,
    /// Threads read, then overwrite, each a part of one file in order, through the page cache, which holds all of the file.
    Seq,
    /// Threads lock and unlock ranges of their own of one range lock; no file.
    RangeLock,
    /// Threads make empty files in directories of their own, stat all of them, and remove them.
    FsMark,
    /// Clients of a file server make, write, read, look at, list, rename, flush and remove files in directories of their
    /// own.
    Dbench,
    /// Threads start and stop journal handles, and change one inode in each transaction.
    Handles,
    /// The workloads of FxMark: threads read, write, look up, make, remove and rename, in files and directories of their
    /// own or in shared ones.
    FxMark,
    /// A file is cloned, and threads overwrite random pages that it shares with the clone, by direct I/O.
    Cow,
    /// Threads write to regions of their own of one device or file, each write durable before the next.
    OSync,
}

impl Workload {
    /// The workloads with a model.
    pub(crate) const MODELLED: [Self; 5] =
        [Self::Overwrite, Self::RandRw, Self::Buffered, Self::RangeLock, Self::Handles];

    /// Whether locks are counted in it. A workload of locks alone measures them anyway.
    pub(crate) const fn counts_locks(self) -> bool {
        !matches!(self, Self::RangeLock | Self::Cow)
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "overwrite",
            Self::RandRw => "randrw",
            Self::Buffered => "randrw-buffered",
            Self::Seq => "seq",
            Self::RangeLock => "rangelock",
            Self::FsMark => "fsmark",
            Self::FxMark => "fxmark",
            Self::Dbench => "dbench",
            Self::Handles => "handles",
            Self::Cow => "cow",
            Self::OSync => "osync",
        }
    }
}

/// Where the volume that uxfs opens is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePlace {
    /// In anonymous memory with large pages.
    Memory,
    /// In a file on tmpfs, mapped into memory.
    Shm,
    /// In an image file in this directory, used with O_DIRECT and removed afterwards; for `osync` also a device, or a
    /// file in place of one.
    Dir(PathBuf),
}

impl std::str::FromStr for VolumePlace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "memory" | "mem" => Self::Memory,
            "shm" => Self::Shm,
            path => Self::Dir(path.into()),
        })
    }
}

/// What uxfs is compared with through system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Versus {
    /// A kernel XFS on a RAM device, made for this.
    KernelXfs,
    /// A kernel XFS on a loop device, made for this, over a file in the directory of uxfs's volume, or else on tmpfs.
    KernelXfsLoop,
    /// A kernel ext4 on a RAM device, made for this.
    KernelExt4,
    /// Any mounted directory.
    Dir(PathBuf),
}

impl std::str::FromStr for Versus {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "kernel-xfs" => Self::KernelXfs,
            "kernel-xfs-loop" => Self::KernelXfsLoop,
            "kernel-ext4" => Self::KernelExt4,
            dir => Self::Dir(dir.into()),
        })
    }
}

/// Designs of the journal to choose from; none: today's.
#[derive(Clone, Debug, Default)]
pub struct DesignLists {
    /// How open handles are counted.
    pub handles: Vec<HandleCounts>,
    /// How log space is counted.
    pub reservation: Vec<Reservations>,
    /// How commits come into a checkpoint.
    pub cil: Vec<CilLocks>,
    /// How their vectors are made.
    pub vectors: Vec<Vectors>,
}

impl DesignLists {
    fn are_empty(&self) -> bool {
        let Self { handles, reservation, cil, vectors } = self;
        handles.is_empty() && reservation.is_empty() && cil.is_empty() && vectors.is_empty()
    }

    /// All combinations; today's first.
    fn product(&self) -> Vec<Designs> {
        let Self { handles, reservation, cil, vectors } = self;
        let mut all = vec![Designs::default()];
        all = each(&all, handles, |designs, handles| Designs { handles, ..designs });
        all = each(&all, reservation, |designs, reservation| Designs { reservation, ..designs });
        all = each(&all, cil, |designs, cil| Designs { cil, ..designs });
        all = each(&all, vectors, |designs, vectors| Designs { vectors, ..designs });
        all.sort_by_key(|designs| *designs != Designs::default());
        all
    }
}

/// Each of `all` with each choice of `list`; unchanged if there is none.
fn each<T: Copy>(all: &[Designs], list: &[T], with: impl Fn(Designs, T) -> Designs) -> Vec<Designs> {
    if list.is_empty() {
        return all.to_vec();
    }
    all.iter().flat_map(|designs| list.iter().map(|choice| with(*designs, *choice))).collect()
}

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Thread counts, each measured.
    pub threads: Vec<usize>,
    /// Lockings of uxfs; none: the workload's default.
    pub locking: Vec<Locking>,
    /// Designs of the journal for `handles`, `fsmark` and `dbench`; none: the workload's default.
    pub designs: DesignLists,
    /// What uxfs is compared with.
    pub versus: Vec<Versus>,
    /// Where the volume is.
    pub place: VolumePlace,
    /// Whether the same pages are also measured on the device, without a file system.
    pub raw: bool,
    /// Whether plain memory copies are also measured.
    pub memcpy: bool,
    /// Size of the file in bytes.
    pub size: u64,
    /// Pages that all threads together go over in one pass.
    pub pages: u64,
    /// Bytes of a request of `seq`.
    pub block: u64,
    /// Clones of a file that `cow` makes in a row.
    pub clones: usize,
    /// Requests that each thread keeps in flight, each count measured; none: 1 for `overwrite`, 128 for `randrw`.
    pub depths: Vec<u32>,
    /// Files that each thread of `fsmark` and `fxmark` has, and blocks that one of `fxmark` appends or cuts off.
    pub files: u64,
    /// Numbers of clients of `dbench`, each measured.
    pub clients: Vec<usize>,
    /// Which of the workloads of `fxmark`; none: all.
    pub fxmark: Vec<FxMark>,
    /// Directories of each thread of `fsmark`, over which its files are spread.
    pub dirs: usize,
    /// Bytes that each file of `fsmark` gets when it is made, and has durable before the next; none: files stay empty, and
    /// nothing is durable.
    pub fsync: Option<u64>,
    /// The kernel release whose features the volumes of `fsmark`, `fxmark`, `dbench`, `handles` and `cow` have, and more features by name
    /// (`6.1+rmapbt+parent`); none: those of 6.1, and what `mkfs.xfs` gives the kernel's.
    pub compat: Option<String>,
    /// Thread counts of `osync`, each measured.
    pub osync_threads: Vec<usize>,
    /// How `osync` shares the flushes of a device; none: every way.
    pub flushings: Vec<Flushing>,
    /// Durations of a flush for `osync` on a device in memory, each measured; 0: nothing, which is also measured beside
    /// other targets.
    pub flush_latencies: Vec<Duration>,
    /// Whether `osync` may overwrite an existing device or file.
    pub overwrite: bool,
    /// Rounds that medians are taken over.
    pub rounds: usize,
    /// A measurement repeats its pages for about this long.
    pub min_time: Duration,
    /// Whether locks are counted and timed, which slows everything that is measured.
    pub lockstat: bool,
    /// Whether locks are counted in a short extra round at the end, so that the others are not slowed.
    pub count_locks: bool,
    /// Where to leave the volume after the run.
    pub keep: Option<PathBuf>,
    /// Seed of the order of pages.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: vec![1, 2, 4, 8, 16],
            locking: Vec::new(),
            designs: DesignLists::default(),
            versus: Vec::new(),
            place: VolumePlace::Memory,
            raw: false,
            memcpy: false,
            size: 1 << 30,
            pages: 262_144,
            block: 1 << 20,
            clones: 16,
            depths: Vec::new(),
            files: 10_000,
            clients: vec![1, 2, 4, 8],
            fxmark: Vec::new(),
            dirs: 1,
            fsync: None,
            compat: None,
            osync_threads: vec![1, 2, 4, 8, 16, 64],
            flushings: Vec::new(),
            flush_latencies: [100, 1000, 10_000].map(Duration::from_micros).to_vec(),
            overwrite: false,
            rounds: 5,
            min_time: Duration::from_millis(250),
            lockstat: false,
            count_locks: false,
            keep: None,
            seed: 1,
        }
    }
}

impl Config {
    /// The most threads.
    const MAX_THREADS: usize = 1024;
    /// The most requests in flight.
    const MAX_DEPTH: u32 = 4096;
    /// The most files of a thread, and the most directories.
    const MAX_FILES: u64 = 100_000_000;
    const MAX_DIRS: usize = 10_000;
    /// The largest content of such a file.
    const MAX_FSYNC: u64 = 1 << 20;
    /// The largest request of `seq`.
    const MAX_BLOCK: u64 = 64 << 20;
    /// The longest flush.
    const MAX_FLUSH: Duration = Duration::from_secs(1);

    /// Finds options that make no sense before anything is set up.
    pub fn check(&self) -> Result<()> {
        let wrong = |message: String| Err(Error::Usage(message));
        let is_wrong = |threads: &[usize]| {
            threads.is_empty() || threads.iter().any(|n| !(1..=Self::MAX_THREADS).contains(n))
        };
        if is_wrong(&self.threads) || is_wrong(&self.osync_threads) {
            return wrong(format!("thread counts must be from 1 to {}", Self::MAX_THREADS));
        }
        if self.clients.is_empty() || self.clients.iter().any(|n| !(1..=Self::MAX_THREADS).contains(n)) {
            return wrong(format!("numbers of clients must be from 1 to {}", Self::MAX_THREADS));
        }
        if self.depths.iter().any(|depth| !(1..=Self::MAX_DEPTH).contains(depth)) {
            return wrong(format!("queue depths must be from 1 to {}", Self::MAX_DEPTH));
        }
        if self.size < PAGE as u64 || !self.size.is_multiple_of(PAGE as u64) {
            return wrong(format!("the size must be a multiple of {PAGE} bytes, and not 0"));
        }
        if u32::try_from(self.file_pages()).is_err() {
            return wrong("the size must be less than 16 TiB".to_owned());
        }
        let page = PAGE as u64;
        if !(page..=Self::MAX_BLOCK).contains(&self.block) || !self.block.is_multiple_of(page) {
            return wrong(format!("a block has {page} to {} bytes, a multiple of {page}", Self::MAX_BLOCK));
        }
        if self.pages == 0 || self.rounds == 0 || self.clones == 0 {
            return wrong("there must be at least one page, one clone and one round".to_owned());
        }
        if !(1..=Self::MAX_FILES).contains(&self.files) || !(1..=Self::MAX_DIRS).contains(&self.dirs) {
            let (files, dirs) = (Self::MAX_FILES, Self::MAX_DIRS);
            return wrong(format!("a thread has from 1 to {files} files, in 1 to {dirs} directories"));
        }
        if self.fsync.is_some_and(|bytes| bytes > Self::MAX_FSYNC) {
            return wrong(format!("a file that is made durable has from 0 to {} bytes", Self::MAX_FSYNC));
        }
        if self.flush_latencies.is_empty() || self.flush_latencies.iter().any(|&of| of > Self::MAX_FLUSH) {
            return wrong(format!("a flush takes from 0 to {} ms", Self::MAX_FLUSH.as_millis()));
        }
        Ok(())
    }

    /// The same for a short round, of uxfs alone, whose locks count: as many threads at once as there ever are.
    pub(crate) fn short(&self) -> Self {
        const BYTES: u64 = 64 << 20;
        let most = |counts: &[usize]| counts.iter().copied().max().into_iter().collect();
        Self {
            threads: most(&self.threads),
            osync_threads: most(&self.osync_threads),
            clients: most(&self.clients),
            flush_latencies: self.flush_latencies.iter().copied().min().into_iter().collect(),
            versus: Vec::new(),
            raw: false,
            memcpy: false,
            size: self.size.min(BYTES),
            pages: self.pages.min(BYTES / PAGE as u64),
            files: self.files.min(1000),
            rounds: 1,
            min_time: self.min_time.min(Duration::from_millis(50)),
            lockstat: true,
            count_locks: false,
            keep: None,
            ..self.clone()
        }
    }

    /// Pages of the file.
    pub fn file_pages(&self) -> u64 {
        self.size / PAGE as u64
    }

    /// Pages of a request of a workload on files.
    pub(crate) fn span(&self, workload: Workload) -> u32 {
        match workload {
            // Checked to be small.
            Workload::Seq => (self.block / PAGE as u64) as u32,
            _ => 1,
        }
    }

    /// The lockings of a workload on files.
    pub(crate) fn lockings(&self, workload: Workload) -> Vec<Locking> {
        match (self.locking.is_empty(), workload) {
            (false, _) => self.locking.clone(),
            (true, Workload::RandRw) => {
                vec![Locking::Shared, Locking::IntervalTree, Locking::BTree, Locking::Range]
            }
            (true, Workload::Buffered) => {
                vec![Locking::Exclusive, Locking::IntervalTree, Locking::BTree, Locking::Range]
            }
            (true, _) => vec![Locking::Exclusive, Locking::Range],
        }
    }

    /// The ways to share flushes.
    pub(crate) fn flushings(&self) -> Vec<Flushing> {
        if self.flushings.is_empty() { Flushing::ALL.to_vec() } else { self.flushings.clone() }
    }

    /// The designs of the journal that a workload is measured with, today's first. By default, each has those beside it
    /// that its result is about: `handles` every older one, and all of them at once; `fsmark`, where it is not about
    /// flushes, those of commits; `dbench` that of handles.
    pub(crate) fn designs(&self, workload: Workload) -> Vec<Designs> {
        let unsaid = match workload {
            Workload::FxMark => DesignLists::default(),
            _ if !self.designs.are_empty() => return self.designs.product(),
            Workload::Handles => {
                let older = Designs::one_older().into_iter().chain([Designs::OLDEST]);
                return std::iter::once(Designs::default()).chain(older).collect();
            }
            Workload::FsMark if self.fsync.is_none() => DesignLists {
                cil: CilLocks::ALL.to_vec(),
                vectors: Vectors::ALL.to_vec(),
                ..DesignLists::default()
            },
            Workload::Dbench => DesignLists { handles: HandleCounts::ALL.to_vec(), ..DesignLists::default() },
            _ => DesignLists::default(),
        };
        unsaid.product()
    }

    /// What flushes take of the devices in memory that `osync` runs on. A file system of the kernel's has a device as it is,
    /// so that ours has one beside it, too.
    pub(crate) fn flush_latencies(&self) -> Vec<Duration> {
        let mut all = self.flush_latencies.clone();
        if !self.versus.is_empty() && !all.contains(&Duration::ZERO) {
            all.push(Duration::ZERO);
        }
        all
    }

    /// The queue depths of a workload on files.
    pub(crate) fn depths(&self, workload: Workload) -> Vec<u32> {
        match (self.depths.is_empty(), workload) {
            // There is no queue through the page cache.
            (_, Workload::Buffered | Workload::Seq) => vec![1],
            (false, _) => self.depths.clone(),
            (true, Workload::RandRw) => vec![128],
            (true, _) => vec![1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designs_are_combined() {
        let designs = |workload, handles: &[HandleCounts], reservation: &[Reservations]| {
            let (handles, reservation) = (handles.to_vec(), reservation.to_vec());
            let lists = DesignLists { handles, reservation, ..DesignLists::default() };
            let config = Config { designs: lists, ..Config::default() };
            let all = config.designs(workload);
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (both, locked) = (HandleCounts::ALL, [Reservations::Locked]);
        let of_commits = ["", "vectors=at-commit", "cil=single-lock", "cil=single-lock vectors=at-commit"];
        let mut unsaid = designs(Workload::FsMark, &[], &[]);
        assert_eq!(unsaid.remove(0), "", "today's is the first");
        unsaid.sort();
        assert_eq!(unsaid, {
            let mut older = of_commits[1..].to_vec();
            older.sort_unstable();
            older
        });
        assert_eq!(designs(Workload::Dbench, &[], &[]), ["", "handles=locked"]);
        assert_eq!(designs(Workload::FxMark, &[], &[]), [""]);
        let durable = Config { fsync: Some(1), ..Config::default() };
        assert_eq!(durable.designs(Workload::FsMark), [Designs::default()]);
        assert_eq!(designs(Workload::Handles, &both, &[]), ["", "handles=locked"]);
        let combined = ["handles=locked reservation=locked", "reservation=locked"];
        assert_eq!(designs(Workload::FsMark, &both, &locked), combined);
        let lists = DesignLists {
            cil: CilLocks::ALL.to_vec(),
            vectors: Vectors::ALL.to_vec(),
            ..DesignLists::default()
        };
        assert_eq!(lists.product().len(), 4);
        assert_eq!(designs(Workload::Handles, &[], &[]).len(), 6);
    }

    #[test]
    fn a_short_round_is_of_uxfs_alone_and_makes_sense() {
        let largest = Config { block: 64 << 20, versus: vec![Versus::KernelXfs], ..Config::default() };
        let short = largest.short();
        assert!(short.check().is_ok() && short.lockstat && !short.count_locks, "{short:?}");
        assert_eq!(
            (&short.threads[..], &short.osync_threads[..], &short.clients[..]),
            (&[16][..], &[64][..], &[8][..])
        );
        assert!(short.block <= short.size.min(short.pages * PAGE as u64), "{short:?}");
        assert!(short.versus.is_empty() && short.rounds == 1 && short.flush_latencies.len() == 1);
    }

    #[test]
    fn a_device_as_it_is_stands_beside_the_kernels() {
        let alone = Config::default();
        assert_eq!(alone.flush_latencies(), alone.flush_latencies);
        let beside = Config { versus: vec![Versus::KernelXfs], ..Config::default() };
        let mut all = beside.flush_latencies();
        assert_eq!(all.pop(), Some(Duration::ZERO));
        assert_eq!(all, beside.flush_latencies);
        let asked = Config { flush_latencies: vec![Duration::ZERO], ..beside };
        assert_eq!(asked.flush_latencies(), [Duration::ZERO]);
    }

    #[test]
    fn senseless_options_are_refused() {
        assert!(Config::default().check().is_ok());
        let bad = [
            Config { threads: vec![], ..Config::default() },
            Config { threads: vec![1, 0], ..Config::default() },
            Config { threads: vec![100_000], ..Config::default() },
            Config { clients: vec![2, 0], ..Config::default() },
            Config { depths: vec![0], ..Config::default() },
            Config { size: 0, ..Config::default() },
            Config { size: 4097, ..Config::default() },
            Config { size: 1 << 50, ..Config::default() },
            Config { pages: 0, ..Config::default() },
            Config { block: 0, ..Config::default() },
            Config { block: 6 << 10, ..Config::default() },
            Config { block: 1 << 30, ..Config::default() },
            Config { clones: 0, ..Config::default() },
            Config { rounds: 0, ..Config::default() },
            Config { files: 0, ..Config::default() },
            Config { dirs: 0, ..Config::default() },
            Config { fsync: Some(2 << 20), ..Config::default() },
            Config { osync_threads: vec![], ..Config::default() },
            Config { flush_latencies: vec![], ..Config::default() },
            Config { flush_latencies: vec![Duration::from_secs(2)], ..Config::default() },
        ];
        for config in bad {
            assert!(matches!(config.check(), Err(Error::Usage(_))), "{config:?}");
        }
    }
}
