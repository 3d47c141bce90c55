//! Boots the virtual machine, waits for it, and reads its report from its first disk.

use super::guest::{BODY, MAGIC};
use super::{DebianKernel, initramfs};
use crate::fill::Sizes;
use crate::record::{self, Record};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Room for a report: a manifest of the full size takes about 40 MB.
const REPORT_DISK: u64 = 1 << 30;

/// A virtual machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// Its disks after the one for its report.
    pub disks: &'a [&'a Path],
    /// Additional programs of this machine that it gets.
    pub programs: &'a [&'a str],
    /// Arguments of its first process, which is this program.
    pub arguments: &'a str,
    /// How long it may take.
    pub limit: Duration,
}

/// What to do in a machine that describes a volume.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// The volume.
    pub image: &'a Path,
    /// What to fill it with. `None`: only describe it.
    pub fill: Option<Sizes>,
    /// How long the machine may take.
    pub limit: Duration,
}

/// Boots `kernel` with the volume as its only disk, and fills the volume if requested. Returns what that kernel sees in
/// it. `scratch` is a folder for what the machine needs meanwhile.
pub fn run_guest(kernel: &DebianKernel, boot: &Boot<'_>, scratch: &Path) -> Result<Vec<Record>> {
    let machine =
        Machine { disks: &[boot.image], programs: &[], arguments: &arguments(boot.fill), limit: boot.limit };
    record::read(&mut &run_machine(kernel, &machine, scratch)?[..])
}

/// Boots a machine with `kernel` and returns its report.
pub fn run_machine(kernel: &DebianKernel, machine: &Machine<'_>, scratch: &Path) -> Result<Vec<u8>> {
    let initrd = scratch.join("initramfs");
    let modules = kernel.modules(&["virtio_pci", "virtio_blk", "xfs"])?;
    let mut out = BufWriter::new(File::create(&initrd)?);
    initramfs::write(&mut out, machine.programs, &modules)?;
    drop(out);
    let report = scratch.join("report-disk");
    File::create(&report)?.set_len(REPORT_DISK)?;
    let console = scratch.join("console");

    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-M", "q35", "-m", "2048", "-smp", "2", "-nodefaults", "-no-reboot", "-display", "none"])
        .args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initrd)
        .args(["-append", &format!("{KERNEL_ARGUMENTS} -- {}", machine.arguments)])
        .args(["-serial", &format!("file:{}", console.display())]);
    for path in [&*report].iter().chain(machine.disks) {
        let path = path.to_str().context("image path")?.replace(',', ",,");
        qemu.args(["-drive", &format!("file={path},format=raw,if=virtio,cache=unsafe,aio=threads")]);
    }
    let mut child = qemu
        .stdin(Stdio::null())
        .spawn()
        .context("qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)")?;
    let ended = wait(&mut child, machine.limit);
    let result = ended.and_then(|()| take(&report));
    fs::remove_file(&report)?;
    fs::remove_file(&initrd)?;
    result.with_context(|| format!("the virtual machine said last:\n{}", tail(&console)))
}

const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable";

fn arguments(fill: Option<Sizes>) -> String {
    match fill {
        None => "vm-guest --no-fill".to_owned(),
        Some(Sizes { seed, inodes, big_dir, extents, beyond_repair }) => {
            let beyond = if beyond_repair { " --beyond-repair" } else { "" };
            format!(
                "vm-guest --seed {seed} --inodes {inodes} --big-dir {big_dir} --extents {extents}{beyond}"
            )
        }
    }
}

fn wait(child: &mut Child, limit: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "qemu ended with {status}");
            return Ok(());
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("the virtual machine was not done after {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn take(disk: &Path) -> Result<Vec<u8>> {
    let mut disk = File::open(disk)?;
    let mut head = [0u8; 16];
    disk.read_exact(&mut head)?;
    let (magic, len) = head.split_at(8);
    ensure!(magic == MAGIC, "it left no report");
    let len = u64::from_le_bytes(len.try_into()?);
    disk.seek(SeekFrom::Start(BODY))?;
    let mut body = Vec::new();
    disk.take(len).read_to_end(&mut body)?;
    ensure!(body.len() as u64 == len, "its report is cut off");
    Ok(body)
}

fn tail(console: &Path) -> String {
    let text =
        fs::read(console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(80)..].join("\n")
}
