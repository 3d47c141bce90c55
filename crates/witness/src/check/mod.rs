//! The checker against `xfs_repair -n`: sound volumes are clean for both, and a volume with one damaged field gets
//! the same verdict from both.
//!
//! Invariants: whatever is changed in an image is put back before the next change; every verdict in which the two
//! differ is one that [`explained`] has a reason for, and every reason there is still needed.

mod atlas;
pub mod explained;
pub mod fields;

use crate::command::{finish, said};
use crate::fill::{Sizes, fill};
use crate::sandbox::{Mounted, mkfs, scratch};
use crate::volumes::{ALL, VolumeKind};
use anyhow::{Context, Result, ensure};
use blockdev::FileOptions;
use clap::Args as ClapArgs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use xfs::check::CheckOptions;

/// Compares what `uxfs check` and `xfs_repair -n` say of sound and of damaged volumes.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Only volumes of these names.
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
    /// Seed of what the volumes are filled with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print every field, not just those about which the two differ.
    #[arg(long)]
    all: bool,
}

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
        for kind in fields::KINDS {
            if args.only.is_empty() || args.only.iter().any(|only| only == kind.name) {
                right &= fields::run(&kind, &mut |outcome| {
                    if args.all || outcome.differs() {
                        println!("{outcome}");
                    }
                })?;
            }
        }
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
    let theirs = if kind.beyond_repair { Ok(()) } else { theirs(image)? };
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

/// What `uxfs check` says.
pub fn ours(image: &Path) -> Result<Verdict> {
    let device =
        FileOptions::new().sector_size(512).direct(false).open(image).context("opening the image")?;
    Ok(match xfs::check::check(Arc::new(device), &CheckOptions::default()) {
        Ok(report) => report.findings().first().map_or(Ok(()), |finding| Err(finding.to_string())),
        Err(error) => Err(format!("refused: {error}")),
    })
}

/// What `xfs_repair -n` says.
pub fn theirs(image: &Path) -> Result<Verdict> {
    let output = finish(Command::new("xfs_repair").arg("-n").arg(image))?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let said = said(&output);
    ensure!(!said.contains("command not found"), "{said}");
    // What it says of any image in a file, and of where it is.
    let noise = ["Phase", "- ", "No modify", "Cannot get host filesystem geometry", "Repair may fail"];
    let first = said
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !noise.iter().any(|noise| line.starts_with(noise)));
    Ok(Err(first.unwrap_or("damaged").to_owned()))
}
