//! `trees`: whole trees come into an image and out of it, by the verbs of the command and by the kernel's own tools.
//!
//! Each round makes a new volume for each side and takes turns, `untar`, `tar`, `find`, `rm -r`, and on another volume `cp -r`: uxfs
//! as one process a verb, the kernel as a mount of an image that was made alike, on the same storage, `tar`, `cp` or `rm`, and
//! an unmount, by which all is as durable as it is when a verb of uxfs ends. All of that is in the time.
//!
//! - `find` looks at each inode. Before it, on both sides, the host forgets the image's pages: where they lie on a disk, both read
//!   that.
//! - Behind each step both images hold as many inodes as the step leaves there.
//! - Whatever was made is gone afterwards, also if a step fails or a signal comes.

mod grow;
mod image;
mod tool;

use crate::config::{Config, VolumePlace};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::measure::median;
use crate::suite::Observer;
use crate::volume::place_dir;
use image::Image;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;
use tool::{Ran, Tool};

/// What a step took, on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct TreeTimes {
    /// `trees`.
    pub workload: &'static str,
    /// `untar`, `tar`, `find`, `rm -r`, `cp -r`.
    pub op: &'static str,
    /// Where the images lie.
    pub device: String,
    /// Names in the tree, its own included.
    pub names: u64,
    /// Seconds that uxfs took.
    pub uxfs_s: f64,
    /// Seconds that the kernel took.
    pub kernel_s: f64,
    /// The first over the second: the median of what it is round by round.
    pub ratio: f64,
    /// The most memory that the process of uxfs had resident at once, in MiB.
    pub peak_mib: f64,
    /// The figures are medians over this many rounds.
    pub median_of: usize,
}

/// What is done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Untar,
    Tar,
    Find,
    Remove,
    Copy,
}

/// What `find` asks of each inode. All have it.
const SMALL: [&str; 2] = ["-size", "-1000000"];

impl Step {
    const ALL: [Self; 5] = [Self::Untar, Self::Tar, Self::Find, Self::Remove, Self::Copy];

    const fn name(self) -> &'static str {
        match self {
            Self::Untar => "untar",
            Self::Tar => "tar",
            Self::Find => "find",
            Self::Remove => "rm -r",
            Self::Copy => "cp -r",
        }
    }

    /// Whether it begins with another new volume than the steps before.
    const fn begins_anew(self) -> bool {
        matches!(self, Self::Copy)
    }
}

/// A tree, as a directory and as an archive of it.
struct Source {
    /// Where the tree lies.
    parent: PathBuf,
    /// Its name there and in the images.
    name: String,
    archive: PathBuf,
    count: grow::Count,
    /// Bytes that a volume needs which can hold it.
    volume_bytes: u64,
    _made: TempDir,
}

impl Source {
    /// The tree that is asked for, or one like that of a kernel's sources.
    fn of(asked: Option<&Path>, seed: u64, observer: &mut dyn Observer) -> Result<Self> {
        let cannot = |path: &Path| Error::host(format!("cannot read {}", path.display()));
        let made = place_dir(&std::env::temp_dir())?;
        let (parent, name) = match asked {
            Some(dir) if dir.is_dir() => {
                let dir = dir.canonicalize().map_err(cannot(dir))?;
                let name = dir.file_name().and_then(|name| name.to_str()).map(str::to_owned);
                let named = dir.parent().zip(name).map(|(parent, name)| (parent.to_owned(), name));
                named.ok_or_else(|| Error::Usage(format!("{} has no name to take along", dir.display())))?
            }
            Some(archive) => {
                let tree = made.path().join("tree");
                std::fs::create_dir(&tree).map_err(cannot(&tree))?;
                observer.note("unpacking the source");
                Tool::new("tar", Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&tree)).run()?;
                (made.path().to_owned(), "tree".to_owned())
            }
            None => {
                observer.note("making a tree like that of a kernel's sources");
                let tree = made.path().join("tree");
                grow::grow(&tree, &grow::LINUX, seed).map_err(cannot(&tree))?;
                (made.path().to_owned(), "tree".to_owned())
            }
        };
        observer.note("packing the source");
        let archive = made.path().join("tree.tar");
        Tool::new("tar", Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&parent).arg(&name))
            .run()?;
        let count = grow::count(&parent.join(&name)).map_err(cannot(&parent.join(&name)))?;
        // Blocks are larger than what is in an archive, and inodes and directories come to it.
        let bytes = archive.metadata().map_err(cannot(&archive))?.len() + count.names * 8192;
        let volume_bytes = (2 * bytes).max(1 << 30).next_multiple_of(1 << 20);
        Ok(Self { parent, name, archive, count, volume_bytes, _made: made })
    }
}

/// Measures; `program` is the command itself, `source` a directory or an archive.
pub fn trees(
    config: &Config,
    program: &Path,
    source: Option<&Path>,
    observer: &mut dyn Observer,
) -> Result<Vec<TreeTimes>> {
    config.check()?;
    interrupt::install()?;
    image::may_mount()?;
    let place = match &config.place {
        VolumePlace::Memory | VolumePlace::Shm => Path::new("/dev/shm"),
        VolumePlace::Dir(dir) => dir.as_path(),
    };
    let dir = place_dir(place)?;
    let source = Source::of(source, config.seed, observer)?;
    observer.start("trees", (config.rounds * Step::ALL.len() * 2) as u64);
    let mut taken = Step::ALL.map(|step| (step, Vec::new()));
    for round in 0..config.rounds {
        let make = |name| Image::make(config, dir.path().join(name), source.volume_bytes);
        let [mut ours, mut theirs] = [make("uxfs.img")?, make("kernel.img")?];
        for (step, rounds) in &mut taken {
            if step.begins_anew() {
                [ours, theirs] = [ours.anew(config)?, theirs.anew(config)?];
            }
            // The side that begins changes from round to round.
            let mut pair = [Ran::default(); 2];
            for side in [round % 2, (round + 1) % 2] {
                interrupt::check()?;
                observer.step(&format!("{} {}", ["uxfs", "kernel"][side], step.name()));
                pair[side] = match side {
                    0 => by_uxfs(*step, program, &ours, &source)?,
                    _ => by_kernel(*step, &theirs, &source)?,
                };
            }
            let left = match step {
                Step::Untar | Step::Tar | Step::Find => source.count.inodes,
                Step::Remove => 0,
                Step::Copy => source.count.names,
            };
            ours.expect("uxfs", step.name(), left)?;
            theirs.expect("the kernel", step.name(), left)?;
            rounds.push(pair);
        }
    }
    Ok(taken.iter().map(|(step, rounds)| times(*step, rounds, place, source.count.names)).collect())
}

/// One verb.
fn by_uxfs(step: Step, program: &Path, image: &Image, source: &Source) -> Result<Ran> {
    let (root, tree) = (image.location("/"), image.location(&format!("/{}", source.name)));
    if step == Step::Find {
        image.forget_pages()?;
    }
    let mut verb = Command::new(program);
    match step {
        Step::Untar => verb.arg("untar").arg(root).stdin(open(&source.archive)?),
        Step::Tar => verb.arg("tar").arg(tree),
        Step::Find => verb.arg("find").arg(tree).args(SMALL),
        Step::Remove => verb.args(["rm", "-r"]).arg(tree),
        Step::Copy => verb.args(["cp", "-r"]).arg(source.parent.join(&source.name)).arg(root),
    };
    Tool::new("uxfs", &mut verb).run()
}

/// A mount, the tool, and an unmount.
fn by_kernel(step: Step, image: &Image, source: &Source) -> Result<Ran> {
    if step == Step::Find {
        image.forget_pages()?;
    }
    let start = Instant::now();
    let mounted = image.mount()?;
    let (root, tree) = (mounted.dir(), mounted.dir().join(&source.name));
    let (name, mut command) = match step {
        Step::Untar | Step::Tar => ("tar", Command::new("tar")),
        Step::Find => ("find", Command::new("find")),
        Step::Remove => ("rm", Command::new("rm")),
        Step::Copy => ("cp", Command::new("cp")),
    };
    match step {
        Step::Untar => command.args(["-xf", "-", "-C"]).arg(root).stdin(open(&source.archive)?),
        // Names are relative to the tree, as in ours.
        Step::Tar => command.args(["-cf", "-", "-C"]).arg(tree).arg("."),
        Step::Find => command.arg(tree).args(SMALL),
        Step::Remove => command.arg("-r").arg(tree),
        Step::Copy => command.arg("-r").arg(source.parent.join(&source.name)).arg(root),
    };
    Tool::new(name, &mut command).run()?;
    mounted.unmount()?;
    Ok(Ran { wall: start.elapsed(), peak_kib: 0 })
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(Error::host(format!("cannot open {}", path.display())))
}

fn times(step: Step, rounds: &[[Ran; 2]], place: &Path, names: u64) -> TreeTimes {
    let of = |what: fn(&[Ran; 2]) -> f64| median(rounds.iter().map(what).collect()).unwrap_or_default();
    TreeTimes {
        workload: "trees",
        op: step.name(),
        device: place.display().to_string(),
        names,
        uxfs_s: of(|[ours, _]| ours.wall.as_secs_f64()),
        kernel_s: of(|[_, theirs]| theirs.wall.as_secs_f64()),
        ratio: of(|[ours, theirs]| ours.wall.as_secs_f64() / theirs.wall.as_secs_f64().max(1e-9)),
        peak_mib: of(|[ours, _]| ours.peak_kib as f64 / 1024.0),
        median_of: rounds.len(),
    }
}
