//! Fills a mounted volume, through the kernel, with one of everything that the format can hold.
//!
//! Invariants:
//! - the same seed and sizes give the same tree (names, content, attributes; the kernel chooses the places);
//! - each section has a directory and a random source of its own, so that a change of one leaves the others be;
//! - what the volume cannot hold (shared blocks without reflink) is left out and said; any other failure ends it.

mod attrs;
mod bulk;
mod clones;
mod data;
mod dirs;
mod names;
pub mod site;
mod special;

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use site::Site;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Fills a mounted volume with a mixed tree, deterministic by seed.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Where the volume is mounted.
    dir: PathBuf,
    /// Sizes and seed.
    #[command(flatten)]
    pub sizes: Sizes,
}

/// How much to make, and from which seed.
#[derive(ClapArgs, Clone, Copy, Debug)]
pub struct Sizes {
    /// Seed of everything that is random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Inodes in the whole tree, at least.
    #[arg(long, default_value_t = 20_000)]
    pub inodes: u64,
    /// Entries of the largest directory, at least.
    #[arg(long, default_value_t = 200_000)]
    pub big_dir: u64,
    /// Extents of the most fragmented file, at least.
    #[arg(long, default_value_t = 50_000)]
    pub extents: u64,
    /// Also runs of names with one hash that go on from one block of an index to the next. The kernel makes and
    /// reads them, but `xfs_repair` 6.1 calls them damaged.
    #[arg(long)]
    pub beyond_repair: bool,
}

impl Sizes {
    /// The size for a quick run.
    pub const fn small(seed: u64) -> Self {
        Self { seed, inodes: 500, big_dir: 5_000, extents: 2_000, beyond_repair: false }
    }

    /// The size that the volumes are judged by.
    pub const fn full(seed: u64) -> Self {
        Self { seed, inodes: 20_000, big_dir: 200_000, extents: 50_000, beyond_repair: false }
    }

    /// A count that a quick run makes smaller.
    fn many(&self, full: u64, small: u64) -> u64 {
        if self.inodes < 5_000 { small } else { full }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool> {
    fill(&args.dir, &args.sizes, &mut |line| eprintln!("{line}"))?;
    Ok(true)
}

type Section = fn(&mut Site, &Sizes) -> Result<()>;

/// Fills the volume mounted at `dir`; `say` gets a line per section.
pub fn fill(dir: &Path, sizes: &Sizes, say: &mut dyn FnMut(&str)) -> Result<()> {
    let mut root = Site::root(dir, sizes.seed)?;
    let sections: [(&str, Section); 8] = [
        ("names", names::fill),
        ("dirs", dirs::fill),
        ("big", dirs::fill_big),
        ("data", data::fill),
        ("clones", clones::fill),
        ("attrs", attrs::fill),
        ("special", special::fill),
        ("bulk", bulk::fill),
    ];
    for (name, section) in sections {
        let start = Instant::now();
        let before = root.inodes_in_use()?;
        let mut site = root.child(name.as_bytes())?;
        section(&mut site, sizes).with_context(|| format!("section {name}"))?;
        let made = root.inodes_in_use()?.saturating_sub(before);
        say(&format!("fill: {name}: {made} inodes in {:.1} s", start.elapsed().as_secs_f64()));
    }
    root.sync()
}
