//! The kind of volume, and the way the subjects are made.

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use std::path::Path;
use uxfs::{MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs};

const MIB: u64 = 1 << 20;

/// What all steps must agree on.
#[derive(ClapArgs, Clone, Debug)]
pub struct Setting {
    /// Bytes a block.
    #[arg(long, default_value_t = 4096)]
    pub block_size: u32,
    /// MiB of the log; by default, what mkfs makes of a volume of this size.
    #[arg(long)]
    pub log_mib: Option<u64>,
    /// MiB that the caches of metadata may hold.
    #[arg(long, default_value_t = 64)]
    pub cache_mib: u64,
    /// Threads that work on the one directory, or the one file.
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
}

impl Setting {
    /// The same, as arguments of a command.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--block-size={}", self.block_size),
            format!("--cache-mib={}", self.cache_mib),
            format!("--threads={}", self.threads),
        ];
        arguments.extend(self.log_mib.map(|mib| format!("--log-mib={mib}")));
        arguments
    }

    /// Makes an empty volume.
    pub fn mkfs(&self, image: &Path, bytes: u64) -> Result<()> {
        let mut options =
            MkfsOptions::new().size(bytes).block_size(self.block_size).small(true).overwrite(true);
        if let Some(mib) = self.log_mib {
            // Today's defaults demand larger logs than the small ones that these tests need.
            let old = MkfsFeatures::of_kernel("6.1").context("its set")?;
            options = options.log_size(mib * MIB).features(old);
        }
        Ok(mkfs(image, &options)?)
    }

    /// Bytes that caches may hold.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_mib * MIB
    }

    /// How volumes are opened.
    pub fn options(&self) -> OpenOptions {
        OpenOptions::new().cache_size(self.cache_bytes())
    }

    /// Changes a volume and closes it. Returns the number of blocks that are then free.
    pub fn change(&self, image: &Path, change: impl FnOnce(&Volume) -> Result<()>) -> Result<u64> {
        let volume = Volume::open(image, &self.options().writable(true))?;
        change(&volume)?;
        volume.sync()?;
        let free = volume.info()?.free_blocks;
        volume.close()?;
        Ok(free)
    }

    /// Reads a volume.
    pub fn look<R>(&self, image: &Path, look: impl FnOnce(&Volume) -> Result<R>) -> Result<R> {
        look(&Volume::open(image, &self.options())?)
    }
}
