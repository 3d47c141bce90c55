//! What is measured on: a volume made by uxfs, and file systems that the kernel has mounted.

mod compared;
mod image;
mod mount;
mod zram;

pub(crate) use compared::{Compared, Shape};
pub use image::{FILE_NAME, make_image};
pub(crate) use mount::Mounted;

use crate::config::Config;
use crate::error::{Error, Result};
use std::process::{Command, Stdio};
use uxfs::{MkfsFeatures, MkfsOptions};

/// What the volumes of the workloads on metadata are made with, where uxfs makes them.
pub(crate) fn mkfs_options(config: &Config, groups: u32) -> Result<MkfsOptions> {
    // By default, features are those of figures that there are already, and of the kernel's volumes beside it.
    let features = features(config.compat.as_deref().unwrap_or("6.1"))?;
    // Sectors of 4 KiB suit any disk that the image may lie on, and are those of a zram device.
    Ok(MkfsOptions::new().block_size(4096).sector_size(4096).group_count(groups).features(features))
}

/// The size of a volume for so many bytes and groups: its log has the size that larger ones have, and each group has room
/// for it.
pub(crate) fn volume_bytes(bytes: u64, groups: u32) -> u64 {
    const BYTES_MIN: u64 = 4 << 30;
    const GROUP_BYTES_MIN: u64 = 96 << 20;
    bytes.max(BYTES_MIN).max(u64::from(groups) * GROUP_BYTES_MIN).next_multiple_of(1 << 20)
}

/// A release's features, and others by name: `6.1+rmapbt`.
fn features(asked: &str) -> Result<MkfsFeatures> {
    let unknown =
        |what: &str, name: &str| Error::Usage(format!("{asked}: uxfs does not know the {what} {name}"));
    let mut names = asked.split('+');
    let release = names.next().unwrap_or_default();
    let mut features = MkfsFeatures::of_kernel(release).ok_or_else(|| unknown("kernel release", release))?;
    for name in names {
        let feature = match name {
            "bigtime" => &mut features.bigtime,
            "exchange" => &mut features.exchange,
            "inobtcount" => &mut features.inobt_counts,
            "nrext64" => &mut features.nrext64,
            "parent" => &mut features.parent_pointers,
            "reflink" => &mut features.reflink,
            "rmapbt" => &mut features.rmapbt,
            other => return Err(unknown("feature", other)),
        };
        *feature = true;
    }
    Ok(features)
}

/// Runs a program that sets something up; what it prints is part of the error where it fails.
pub(crate) fn run(program: &'static str, command: &mut Command) -> Result<()> {
    output(program, command).map(drop)
}

/// The same, for what it prints.
fn output(program: &'static str, command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let message = if error.kind() == std::io::ErrorKind::NotFound {
            let package = match program {
                "mkfs.xfs" => "xfsprogs",
                "mkfs.ext4" => "e2fsprogs",
                _ => "mount (util-linux)",
            };
            format!("not found; install the package {package} (for example: apt-get install {package})")
        } else {
            error.to_string()
        };
        Error::Program { program, message }
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let message = if said.is_empty() { output.status.to_string() } else { said.to_owned() };
    Err(Error::Program { program, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_added_to_those_of_a_release() {
        let plain = MkfsFeatures::of_kernel("5.4").expect("known");
        let with = MkfsFeatures { rmapbt: true, parent_pointers: true, ..plain };
        assert_eq!(features("5.4").expect("known"), plain);
        assert_eq!(features("5.4+rmapbt+parent").expect("known"), with);
        for unknown in ["", "3.2", "5.4+", "5.4+quota"] {
            assert!(matches!(features(unknown), Err(Error::Usage(_))), "{unknown}");
        }
    }
}
