//! What is measured on: a volume made by uxfs, and an XFS that the kernel has mounted.

mod image;
mod mount;
mod zram;

pub use image::{FILE_NAME, make_image};
pub use mount::{KernelXfs, RamDevice};

use crate::error::{Error, Result};
use std::process::{Command, Stdio};

/// Runs a program that sets something up; what it prints is part of the error where it fails.
pub(crate) fn run(program: &'static str, command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let message = if error.kind() == std::io::ErrorKind::NotFound {
            let package = if program.contains("xfs") { "xfsprogs" } else { "mount (util-linux)" };
            format!("not found; install the package {package} (for example: apt-get install {package})")
        } else {
            error.to_string()
        };
        Error::Program { program, message }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let message = if said.is_empty() { output.status.to_string() } else { said.to_owned() };
    Err(Error::Program { program, message })
}
