//! What the virtual machine does with the volumes of quota runs.

use super::load;
use super::plan::Plan;
use crate::vm::{MNT, as_first_process, disk};
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, ValueEnum};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reported for a mount that counted usage.
pub(super) const COUNTED: &str = "counted";
/// Reported for a mount that trusted the existing counts.
pub(super) const KEPT: &str = "kept";

/// What to do with each volume.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Task {
    /// Change it under quota, and leave its log dirty.
    Load,
    /// Mount it with quota once, which recovers it or recounts.
    Mount,
    /// Mount it with quota for users, groups and projects once.
    Count,
}

/// The work of the first process of a virtual machine that has quota; of no use elsewhere.
#[derive(ClapArgs, Debug)]
pub struct GuestArgs {
    #[arg(value_enum)]
    task: Task,
    /// The seed of each volume's run.
    #[arg(long, value_delimiter = ',')]
    seeds: Vec<u64>,
    #[arg(long)]
    quota_off: bool,
    /// Operations of a run.
    #[arg(long)]
    ops: u64,
}

impl GuestArgs {
    /// The arguments as the machine gets them.
    pub(super) fn line(task: Task, seeds: &[u64], quota_off: bool, ops: u64) -> String {
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let task = match task {
            Task::Load => "load",
            Task::Mount => "mount",
            Task::Count => "count",
        };
        let off = if quota_off { " --quota-off" } else { "" };
        format!("quota-guest {task} --seeds {} --ops {ops}{off}", seeds.join(","))
    }
}

/// Runs it. The report has a line for each volume.
pub fn guest(args: &GuestArgs) -> Result<bool> {
    as_first_process(|report| {
        for (nth, &seed) in (0..).zip(&args.seeds) {
            let plan = Plan::new(seed, args.quota_off)?;
            let done = one(args, &plan, &disk(nth)).with_context(|| format!("seed {seed} ({plan})"));
            let line = match (done, args.task) {
                (Err(error), Task::Mount) => format!("failed: {error:#}").replace('\n', "; "),
                (done, _) => done?,
            };
            writeln!(report, "{line}")?;
        }
        Ok(())
    })
}

fn one(args: &GuestArgs, plan: &Plan, device: &Path) -> Result<String> {
    let dir = Path::new(MNT);
    let options = match args.task {
        Task::Load => plan.options(),
        Task::Mount => plan.options_afterwards(),
        Task::Count => "uquota,gquota,pquota".to_owned(),
    };
    let data = CString::new(options)?;
    let mut said = said_by_kernel()?;
    mount(device, dir, "xfs", MountFlags::NOATIME, Some(&*data)).context("mounting the volume with quota")?;
    let done = match args.task {
        Task::Load => load::load(dir, plan, args.ops),
        Task::Mount | Task::Count => {
            counted_anew(&mut said).map(|anew| (if anew { COUNTED } else { KEPT }).to_owned())
        }
    };
    unmount(dir, UnmountFlags::empty()).context("unmounting the volume")?;
    done
}

/// The kernel's messages from now on.
fn said_by_kernel() -> Result<File> {
    let mut messages = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open("/dev/kmsg")?;
    messages.seek(SeekFrom::End(0))?;
    Ok(messages)
}

fn counted_anew(messages: &mut File) -> Result<bool> {
    let mut line = [0; 8192];
    loop {
        match messages.read(&mut line) {
            Ok(len) if line[..len].windows(10).any(|word| word == b"Quotacheck") => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}
