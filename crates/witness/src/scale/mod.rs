//! Large subjects: a directory with many entries, a file with many extents, blocks that are shared in many pieces or by
//! many files. How do time and memory grow with their number?
//!
//! Each subject is made, judged, removed and judged again, at one size after the other, on a fresh volume each.
//!
//! Invariants:
//! - making and removing are separate processes, so that each has its own peak of memory, and removing begins with
//!   empty caches;
//! - each time `xfs_repair -n`, our checker and the kernel's mount find that the volume is right, with the whole
//!   subject and without it, and all space that it took is free again;
//! - memory has a bound, which is checked. Times are shown and never judged.

mod entries;
mod extents;
mod judge;
mod report;
mod setting;
mod sharing;
mod step;
mod subject;

use crate::sandbox::scratch;
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use report::{Measured, Report};
use setting::Setting;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use subject::Shape;

pub use step::{Args as StepArgs, run as step};

/// Makes and removes directories of many entries, files of many extents, many clones; shows how time and memory grow.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// How many entries, each a run of its own.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    entries: Vec<u64>,
    /// How many extents, each a run of its own.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    extents: Vec<u64>,
    /// What is made of them.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Shape::ALL)]
    shapes: Vec<Shape>,
    /// Image file or block device to use; by default, a sparse file in memory. What it holds is lost.
    #[arg(long)]
    image: Option<PathBuf>,
    #[command(flatten)]
    setting: Setting,
}

/// Runs the command. `false`: memory grew beyond its bound, or space was not given back.
pub fn run(args: &Args) -> Result<bool> {
    let folder = scratch()?;
    let image = args.image.clone().unwrap_or_else(|| folder.path().join("image"));
    let mut report = Report::new(&args.setting);
    let mut right = true;
    for &shape in &args.shapes {
        let counts = if shape.is_directory() { &args.entries } else { &args.extents };
        for &count in counts {
            let case = Case { shape, count, image: &image, mnt: &folder.path().join("mnt"), args };
            right &= case.run(&mut report).with_context(|| format!("{shape} {count}"))?;
        }
        report.growth(shape);
    }
    Ok(right)
}

/// One subject with one size.
struct Case<'a> {
    shape: Shape,
    count: u64,
    image: &'a Path,
    mnt: &'a Path,
    args: &'a Args,
}

impl Case<'_> {
    fn run(&self, report: &mut Report) -> Result<bool> {
        let setting = &self.args.setting;
        setting.mkfs(self.image, self.shape.volume_bytes(self.count, setting))?;
        let subject = self.shape.subject(self.count, setting);
        let free = setting.change(self.image, |volume| subject.prepare(volume))?;
        self.step("make", report)?;
        if self.shape == Shape::Files {
            self.step("touch", report)?;
        }
        self.judge(Some(&*subject), report).context("once it is there")?;
        self.step("remove", report)?;
        self.judge(None, report).context("once it is gone")?;
        let free_now = setting.look(self.image, |volume| Ok(volume.info()?.free_blocks))?;
        ensure!(free_now == free, "{free} blocks were free before, {free_now} are afterwards");
        report.space(free);
        if self.args.image.is_none() {
            std::fs::remove_file(self.image)?;
        }
        Ok(report.within())
    }

    /// Runs a step in a child process, and records its measurements.
    fn step(&self, what: &str, report: &mut Report) -> Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["scale-step", what, self.shape.name(), &self.count.to_string()])
            .arg(self.image)
            .args(self.args.setting.arguments())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = child.stdout.take().context("the child's output")?;
        for line in BufReader::new(lines).lines() {
            let measured: Measured = serde_json::from_str(&line?)?;
            report.add(self.shape, self.count, measured);
        }
        let status = child.wait()?;
        ensure!(status.success(), "{what}: {status}");
        Ok(())
    }

    fn judge(&self, subject: Option<&dyn subject::Subject>, report: &mut Report) -> Result<()> {
        let said = judge::judge(self.image, self.mnt, subject)?;
        report.judged(&said);
        Ok(())
    }
}
