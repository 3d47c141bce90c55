//! A v4 volume that a kernel in a virtual machine has filled and described.

use crate::fill::Sizes;
use crate::record;
use crate::sandbox::{mkfs, scratch};
use crate::vm::{Boot, DebianKernel, run_guest};
use crate::volumes::ALL;
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that the virtual machine may take.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// Makes a volume, has a Debian kernel in a virtual machine fill it, and writes the image and what that kernel
/// sees in it.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Where the image goes.
    image: PathBuf,
    /// Where the manifest goes.
    manifest: PathBuf,
    /// Which of the matrix's volumes.
    #[arg(long, default_value = "v4")]
    kind: String,
    /// Folder of the unpacked kernel; fetched if it is empty.
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Describe the image as it is: neither make nor fill it.
    #[arg(long)]
    no_fill: bool,
    /// Sizes and seed.
    #[command(flatten)]
    sizes: Sizes,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool> {
    let kernel = DebianKernel::at(&args.kernel.clone().map_or_else(DebianKernel::default_dir, Ok)?)?;
    if !args.no_fill {
        let kind = ALL.iter().find(|kind| kind.name == args.kind).context("no volume of that name")?;
        mkfs(&args.image, kind)?;
    }
    let boot = Boot { image: &args.image, fill: (!args.no_fill).then_some(args.sizes), limit: LIMIT };
    let records = run_guest(&kernel, &boot, scratch()?.path())?;
    record::write(&mut BufWriter::new(File::create(&args.manifest)?), &records)?;
    println!("{} objects", records.len());
    Ok(true)
}
