//! The checker against `xfs_repair -n`: sound volumes are clean for both, and a volume with one damaged field gets
//! the same verdict from both.
//!
//! Invariants: whatever is changed in an image is put back before the next change; every verdict in which the two
//! differ is one that [`explained`] has a reason for.

pub mod campaign;
pub mod chart;
pub mod explained;
pub mod specimens;
mod staging;
pub mod tally;

use crate::command::{finish, said};
use crate::fill::{Sizes, fill};
use crate::sandbox::{Mounted, mkfs, scratch};
use crate::volumes::{ALL, VolumeKind};
use anyhow::{Context, Result, ensure};
use blockdev::FileOptions;
use clap::Args as ClapArgs;
use oracles::xfsprogs::Release;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use xfs::check::CheckOptions;

/// Compares what `uxfs check` and `xfs_repair -n` say of sound and of damaged volumes.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Only sound volumes of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Leave out the volumes with one damaged field each.
    #[arg(long)]
    no_fields: bool,
    /// Leave out the sound volumes.
    #[arg(long)]
    no_sound: bool,
    /// About 20,000 inodes a sound volume instead of 1,000.
    #[arg(long)]
    full: bool,
    /// Seed of what sound volumes are filled with, and of which fields are damaged how.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many volumes with one damaged field.
    #[arg(long, default_value_t = 700)]
    cases: u64,
    /// Which fields: each of each structure as often as any other, or each place in the metadata.
    #[arg(long, value_enum, default_value_t = campaign::Draw::Fields)]
    draw: campaign::Draw,
    /// How many of these are judged at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Keep the volumes and a line for each case in this folder, and go on from what is there.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Only this case, of those of the seed.
    #[arg(long)]
    case: Option<u64>,
    /// Only fields whose name, after that of the structure and a comma, holds this.
    #[arg(long)]
    field: Option<String>,
    /// Only damaged volumes of these names.
    #[arg(long, value_delimiter = ',')]
    volumes: Vec<String>,
    /// Print every case, not just those about which the two differ.
    #[arg(long)]
    all: bool,
}

/// The share of damaged fields, in percent, about which the two must agree, whatever explains the others; and from how
/// many fields on that says anything.
const AGREED_LEAST: f64 = 99.0;
const ENOUGH: u64 = 2_000;

/// Runs the command. `Ok(false)`: a difference that has no explanation.
pub fn run(args: &Args) -> Result<bool> {
    let mut right = true;
    if !args.no_sound {
        let sizes = if args.full { Sizes::full(args.seed) } else { Sizes::small(args.seed) };
        for kind in ALL.iter().filter(|kind| args.only.is_empty() || args.only.iter().any(|o| o == kind.name))
        {
            // Kernels of today don't mount v4, and xfs_repair 6.1 knows no newer features.
            if !kind.v4 && kind.newer == 0 {
                right &= sound(kind, &sizes)?;
            }
        }
    }
    if !args.no_fields {
        let plan = campaign::Plan {
            seed: args.seed,
            draw: args.draw,
            cases: args.cases,
            jobs: args.jobs,
            folder: args.folder.clone(),
            case: args.case,
            field: args.field.clone(),
            volumes: args.volumes.clone(),
        };
        let outcomes = campaign::run(&plan, &|outcome| {
            if args.all || (outcome.differs() && outcome.reason().is_none()) {
                println!("{}: {}", outcome.what(), outcome.verdicts());
            }
        })?;
        // Fields that `xfs_repair` does not look at are few in a volume, and as many as others in a list of fields.
        let least =
            if args.draw == campaign::Draw::Places && args.cases >= ENOUGH { AGREED_LEAST } else { 0.0 };
        right &= tally::print(&outcomes) >= least && tally::right(&outcomes);
    }
    Ok(right)
}

/// Whether a fresh and a filled volume of a kind are clean for both.
fn sound(kind: &VolumeKind, sizes: &Sizes) -> Result<bool> {
    let folder = scratch()?;
    let image = folder.path().join("image");
    mkfs(&image, kind)?;
    let fresh = agree_on_clean(&image, kind, "fresh")?;
    fill_by_kernel(&image, &Sizes { beyond_repair: kind.beyond_repair, ..*sizes }, folder.path())?;
    Ok(fresh & agree_on_clean(&image, kind, "filled")?)
}

fn agree_on_clean(image: &Path, kind: &VolumeKind, what: &str) -> Result<bool> {
    let ours = ours(image)?;
    let theirs = if kind.beyond_repair { Ok(()) } else { theirs(kind.release(), image)? };
    for problem in [&ours, &theirs].into_iter().filter_map(|verdict| verdict.as_ref().err()) {
        println!("check: {}, {what}: {problem}", kind.name);
    }
    let right = ours.is_ok() && theirs.is_ok();
    println!("check: {}, {what}: {}", kind.name, if right { "clean for both" } else { "FAILED" });
    Ok(right)
}

fn fill_by_kernel(image: &Path, sizes: &Sizes, folder: &Path) -> Result<()> {
    let mounted = Mounted::new(image, &folder.join("mnt"), false)?;
    fill(mounted.dir(), sizes, &mut |_| {})?;
    mounted.unmount()
}

/// What one of the two says of a volume: nothing, or the first thing that is wrong.
pub type Verdict = std::result::Result<(), String>;

/// How a verdict begins that is none.
pub const PANIC: &str = "panic";

/// The longest that `xfs_repair` may take, in seconds, before it counts as hung.
const REPAIR_SECONDS: &str = "300";

/// What `uxfs check` says.
pub fn ours(image: &Path) -> Result<Verdict> {
    let device =
        FileOptions::new().sector_size(512).direct(false).open(image).context("opening the image")?;
    let check = AssertUnwindSafe(|| xfs::check::check(Arc::new(device), &CheckOptions::default()));
    Ok(match catch_unwind(check) {
        Ok(Ok(report)) => report.findings().first().map_or(Ok(()), |finding| Err(finding.to_string())),
        Ok(Err(error)) => Err(format!("refused: {error}")),
        Err(_) => Err(PANIC.to_owned()),
    })
}

/// What the `xfs_repair -n` of a release says.
pub fn theirs(release: Release, image: &Path) -> Result<Verdict> {
    // Without its threads that read ahead: they cost more than they gain on a small volume in memory.
    let repair = release.path("xfs_repair")?;
    let timeout = ["--signal=KILL", REPAIR_SECONDS];
    let output = finish(Command::new("timeout").args(timeout).arg(repair).args(["-n", "-P"]).arg(image))?;
    // Of some damage it says so and ends as if nothing were wrong.
    let said = said(&output);
    if let Some(line) = said.lines().find(|line| line.contains("corruption detected")) {
        return Ok(Err(line.trim().to_owned()));
    }
    ensure!(output.status.code() != Some(127), "{said} (ci/test installs what is needed on Debian)");
    if output.status.code().is_none_or(|code| code > 100) {
        return Ok(Err(format!("hung or crashed: {}", output.status)));
    }
    if output.status.success() {
        return Ok(Ok(()));
    }
    // What it says of any image in a file, and of where it is.
    let noise = [
        // What is staged for copies on write is in no file yet.
        "leftover CoW extent",
        "Phase",
        "No modify",
        "Cannot get host filesystem geometry",
        "Repair may fail",
        "the image and the host",
    ];
    // Steps of its own are set in; findings may begin with a dash, too.
    let is_step = |line: &str| line.starts_with("   ");
    let mut lines = said.lines().filter(|line| !line.is_empty() && !is_step(line));
    let first = lines.find(|line| !noise.iter().any(|noise| line.starts_with(noise)));
    if first.is_none() && said.contains(noise[0]) {
        return Ok(Ok(()));
    }
    Ok(Err(first.unwrap_or("damaged").to_owned()))
}
