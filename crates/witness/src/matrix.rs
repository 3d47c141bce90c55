//! The matrix: for each kind of volume, uxfs must see the same as the kernel, object by object.
//!
//! Invariant: a volume passes only if the kernel filled it, `xfs_repair -n` found nothing (except for the one volume
//! that it is wrong about), and every manifest that uxfs made of it had no difference. If asked for, several threads
//! make manifests at once.

use crate::compare::{CompareOutcome, compare};
use crate::fill::{Sizes, fill};
use crate::record::{Hash, Record};
use crate::sandbox::{Mounted, copy_sparse, mkfs, repair_finds_nothing, scratch};
use crate::vm::{Boot, DebianKernel, run_guest};
use crate::volumes::{ALL, JUDGED, VolumeKind};
use crate::{engine, kernel, v4};
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Compares what uxfs and the kernel see in one volume of each kind.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Only volumes of these names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Also the volumes beyond those that every change is judged by.
    #[arg(long)]
    all: bool,
    /// About 1,000 inodes a volume instead of 20,000.
    #[arg(long)]
    small: bool,
    /// Leave out the v4 volumes, which need a virtual machine.
    #[arg(long)]
    no_v4: bool,
    /// Seed of what the volumes are filled with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads that make a manifest of the same open volume at once. 0: 4 for the first volume, else 1.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// How many differences to print for each volume.
    #[arg(long, default_value_t = 20)]
    show: usize,
    /// Keep the images and manifests of volumes that fail, in this folder.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Folder of the unpacked kernel for v4 volumes; fetched if it is empty.
    #[arg(long)]
    kernel: Option<PathBuf>,
}

/// Runs the command. `Ok(true)`: every volume passed.
pub fn run(args: &Args) -> Result<bool> {
    let kinds = chosen(args)?;
    let sizes = if args.small { Sizes::small(args.seed) } else { Sizes::full(args.seed) };
    let mut failed = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let threads = match args.threads {
            0 if index == 0 => 4,
            0 => 1,
            threads => threads,
        };
        let folder = scratch()?;
        let verdict = one(kind, &sizes, threads, args, folder.path());
        match &verdict {
            Ok(true) => println!("matrix: {}: passed", kind.name),
            Ok(false) => println!("matrix: {}: FAILED", kind.name),
            Err(error) => println!("matrix: {}: FAILED: {error:#}", kind.name),
        }
        if !matches!(verdict, Ok(true)) {
            failed.push(kind.name);
            if let Some(keep) = &args.keep {
                std::fs::create_dir_all(keep)?;
                let name = format!("{}.img", kind.name);
                copy_sparse(&folder.path().join("image"), &keep.join(name))?;
            }
        }
    }
    println!(
        "matrix: {} volumes passed, {} failed (seed {}){}{}",
        kinds.len() - failed.len(),
        failed.len(),
        args.seed,
        if failed.is_empty() { "" } else { ": " },
        failed.join(", ")
    );
    Ok(failed.is_empty())
}

fn chosen(args: &Args) -> Result<Vec<VolumeKind>> {
    for name in &args.only {
        ensure!(ALL.iter().any(|kind| kind.name == name), "no volume is named {name}");
    }
    let kinds = ALL.iter().take(if args.all || !args.only.is_empty() { ALL.len() } else { JUDGED });
    let kinds = kinds.filter(|kind| args.only.is_empty() || args.only.iter().any(|name| name == kind.name));
    Ok(kinds.filter(|kind| !(args.no_v4 && kind.v4)).copied().collect())
}

/// Judges one kind of volume. `Ok(false)` if there are differences, which were printed.
fn one(kind: &VolumeKind, sizes: &Sizes, threads: usize, args: &Args, folder: &Path) -> Result<bool> {
    let image = folder.join("image");
    println!("matrix: {}: mkfs.xfs {}", kind.name, kind.mkfs_arguments().join(" "));
    let start = Instant::now();
    mkfs(&image, kind)?;
    let sizes = &Sizes { beyond_repair: kind.beyond_repair, ..*sizes };
    let theirs =
        if kind.v4 { by_guest(args, &image, sizes, folder)? } else { by_host(&image, sizes, folder)? };
    println!("matrix: {}: filled and described by the kernel in {:.1} s", kind.name, seconds(start));
    if !kind.beyond_repair && kind.newer == 0 {
        repair_finds_nothing(&image)?;
    }
    let start = Instant::now();
    let ours = engine::manifests(&image, threads, Hash::Sha256).context("uxfs")?;
    let took = seconds(start);
    let mut outcome = CompareOutcome::default();
    for manifest in &ours {
        outcome = compare(&theirs, manifest)?;
        if !outcome.differences.is_empty() {
            break;
        }
    }
    println!("matrix: {}: described by uxfs, {threads} threads at once, in {took:.1} s", kind.name);
    outcome.print(args.show);
    ensure!(outcome.objects >= sizes.inodes, "only {} objects were compared", outcome.objects);
    Ok(outcome.differences.is_empty() && outcome.one_sided.is_empty())
}

fn by_host(image: &Path, sizes: &Sizes, folder: &Path) -> Result<Vec<Record>> {
    let dir = folder.join("mnt");
    let mounted = Mounted::new(image, &dir, false)?;
    fill(mounted.dir(), sizes, &mut |_| {})?;
    mounted.unmount()?;
    let mounted = Mounted::new(image, &dir, true)?;
    let manifest = kernel::manifest(mounted.dir(), Hash::Sha256)?;
    mounted.unmount()?;
    Ok(manifest)
}

fn by_guest(args: &Args, image: &Path, sizes: &Sizes, folder: &Path) -> Result<Vec<Record>> {
    let dir = args.kernel.clone().map_or_else(DebianKernel::default_dir, Ok)?;
    let boot = Boot { image, fill: Some(*sizes), limit: v4::LIMIT };
    run_guest(&DebianKernel::at(&dir)?, &boot, folder)
}

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}
