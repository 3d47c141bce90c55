//! Other programs, run to their end, with what they said in the error when they fail.

use anyhow::{Context, Result, bail};
use std::process::{Command, Output};

/// Runs a program that must succeed.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a program that must succeed, and returns what it wrote to standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = finish(command)?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, said(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program and returns its outcome, whatever that is.
pub fn finish(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| {
        let name = command.get_program().to_string_lossy().into_owned();
        format!("cannot run {name} (ci/test installs what is needed on Debian)")
    })
}

/// Both streams of a program that ended.
pub fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}

/// Most bytes of memory that a process has had at once (`VmHWM`): of this one (`self`), or of one by its number.
pub fn resident_peak(process: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
