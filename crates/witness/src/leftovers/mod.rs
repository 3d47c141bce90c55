//! Logs that a kernel left in the middle of chains of deferred work: clones, dedupes, exchanges, copies on write,
//! punched and cut files that share blocks, attributes and names. One copy is recovered by the kernel, the other by
//! uxfs.
//!
//! Invariant: a run succeeds only if
//! - reading the volume, and `uxfs check`, left the image as it was;
//! - what uxfs recovered is the tree that the kernel's own recovery made, and `xfs_repair -n` and `uxfs check` find
//!   nothing in it (except for attributes that a kernel had set in part, which both recoveries leave alike; the
//!   kernel's also leaves inodes without a name that it could not free: see `not_freed`);
//! - the power failed at some write of uxfs's recovery of another copy, and the next recovery, by uxfs and of one more
//!   copy by the kernel, came to the same tree;
//! - the kernel goes on with what uxfs recovered, with the same work, and nothing is found after that either.
//!
//! For some logs the kernel's own recovery leaves damage that `xfs_repair` finds as well. Then what uxfs recovers must
//! still be sound, and nothing is compared. The summary names each of these logs.
//!
//! The summary says how many logs had unfinished intents of each kind, and where their chains were cut.

mod judge;
mod load;
mod power;
mod shapes;

use crate::chains::Tally;
use crate::handles::Io;
use crate::history::campaign::{Task, Which};
use crate::sandbox::{Mounted, copy_sparse, scratch};
use anyhow::{Context, Result};
use blockdev::FileDevice;
use clap::Args as ClapArgs;
use fastrand::Rng;
use judge::Judged;
use power::Power;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Leaves logs in the midst of chains of deferred work, and has both kernel and uxfs recover a copy.
#[derive(ClapArgs, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// How many runs of each kind of volume, with one seed after the other.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Judge this image once more, which an earlier run kept, of one kind of volume.
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// Only leave the logs and count what is in them.
    #[arg(long)]
    count: bool,
}

/// Runs the command. `Ok(true)`: every volume was recovered as it must be.
pub fn run(args: &Args) -> Result<bool> {
    Io::refuse(args.which.io, "leftovers")?;
    let tasks = args.which.tasks_on(&shapes::geometries(), args.runs, "leftovers", "")?;
    let (found, kernel_failed) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let outcome = args.which.all("", tasks, |task| {
        let start = Instant::now();
        let (unfinished, what) = match one(task, args)? {
            (unfinished, None) => (unfinished, String::new()),
            (unfinished, Some(Judged::Same(report))) => (unfinished, format!("{report}, ")),
            (unfinished, Some(Judged::KernelFailed(damage))) => {
                let of = format!("{} --seed {}", task.geometry.volume.name, task.seed);
                kernel_failed.lock().expect("no panic").push(format!("{of}: {damage}"));
                (unfinished, "damaged by the kernel's own recovery, and sound by that of uxfs, ".to_owned())
            }
        };
        let kinds = unfinished.kinds().join(" ");
        *found.lock().expect("no panic") += unfinished;
        Ok((1, format!("unfinished: {kinds}; {what}{:.0} s", start.elapsed().as_secs_f64())))
    })?;
    let found = found.into_inner().expect("no panic");
    print!("leftovers: what was unfinished:\n{found}");
    let kernel_failed = kernel_failed.into_inner().expect("no panic");
    println!("leftovers: {} logs damaged by the kernel's own recovery, to xfs_repair", kernel_failed.len());
    kernel_failed.iter().for_each(|log| println!("  {log}"));
    Ok(outcome.conclude("leftovers", "runs right", "logs"))
}

/// Does one run. Returns what was unfinished, and the verdict.
fn one(task: &Task, args: &Args) -> Result<(Tally, Option<Judged>)> {
    let folder = scratch()?;
    let stage = Stage { folder: folder.path(), shape: shapes::named(task.geometry.volume.name)?, task };
    match &args.image {
        Some(kept) => copy_sparse(kept, &stage.image())?,
        None => stage.leave()?,
    }
    let result = stage.judged(args);
    let is_odd = !matches!(result, Ok((_, None | Some(Judged::Same(_)))));
    if let (true, Some(keep)) = (is_odd && args.image.is_none(), &args.which.keep) {
        std::fs::create_dir_all(keep)?;
        let kept = keep.join(format!("{}-{}.img", task.geometry.volume.name, task.seed));
        copy_sparse(&stage.image(), &kept)?;
        println!("leftovers: kept {}", kept.display());
    }
    result
}

/// Where one run happens.
struct Stage<'a> {
    folder: &'a Path,
    shape: shapes::Shape,
    task: &'a Task,
}

impl Stage<'_> {
    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    fn mnt(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    fn rng(&self) -> Rng {
        Rng::with_seed(self.task.seed ^ self.task.geometry.salt())
    }

    /// Makes the kernel fill a volume, and cuts the power while it changes that.
    fn leave(&self) -> Result<()> {
        const SHORTEST_MS: u64 = 30;
        const LONGEST_MS: u64 = 1_500;
        let mut rng = self.rng();
        let power = Power::new(self.folder)?;
        self.shape.mkfs(&power.image())?;
        let mounted = Mounted::new(&power.image(), &self.mnt(), false)?;
        load::prepare(mounted.dir(), &mut rng, self.task.threads).context("before the power fails")?;
        let lasts = Duration::from_millis(rng.u64(SHORTEST_MS..LONGEST_MS));
        let forced = rng.bool().then(|| mounted.dir().join("forced"));
        load::run(mounted.dir(), &mut rng, self.task.threads, lasts, || {
            // The log ends with this; otherwise where a checkpoint happened to end.
            forced.map_or(Ok(()), |file| File::create(file)?.sync_all())?;
            power.fail()
        })?;
        mounted.unmount()?;
        power.leave(&self.image())
    }

    fn judged(&self, args: &Args) -> Result<(Tally, Option<Judged>)> {
        let unfinished = Tally::of(&FileDevice::open(self.image())?).context("the log")?;
        let judged = (!args.count).then(|| judge::judge(self)).transpose()?;
        Ok((unfinished, judged))
    }
}
