//! Boots the virtual machine, waits for it, and takes the manifest from its second disk.

use super::guest::{BODY, MAGIC};
use super::{DebianKernel, initramfs};
use crate::fill::Sizes;
use crate::record::{self, Record};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Room for a manifest: the full size takes about 40 MB.
const MANIFEST_DISK: u64 = 1 << 30;

/// What to do in the machine.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// The volume.
    pub image: &'a Path,
    /// With what to fill it; `None`: it is only described.
    pub fill: Option<Sizes>,
    /// How long the machine may take.
    pub limit: Duration,
}

/// Boots `kernel` with the volume as its first disk; fills the volume if asked to. Returns what that kernel
/// sees in it. `scratch` is a folder for what the machine needs meanwhile.
pub fn run_guest(kernel: &DebianKernel, boot: &Boot<'_>, scratch: &Path) -> Result<Vec<Record>> {
    let initrd = scratch.join("initramfs");
    let modules = kernel.modules(&["virtio_pci", "virtio_blk", "xfs"])?;
    let mut out = BufWriter::new(File::create(&initrd)?);
    initramfs::write(&mut out, &modules)?;
    drop(out);
    let disk = scratch.join("manifest-disk");
    File::create(&disk)?.set_len(MANIFEST_DISK)?;
    let console = scratch.join("console");

    let mut machine = Command::new("qemu-system-x86_64");
    machine
        .args(["-M", "q35", "-m", "2048", "-smp", "2", "-nodefaults", "-no-reboot", "-display", "none"])
        .args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initrd)
        .args(["-append", &command_line(boot)])
        .args(["-serial", &format!("file:{}", console.display())]);
    for path in [boot.image, &disk] {
        let path = path.to_str().context("image path")?.replace(',', ",,");
        machine.args(["-drive", &format!("file={path},format=raw,if=virtio,cache=unsafe,aio=threads")]);
    }
    let mut child = machine
        .stdin(Stdio::null())
        .spawn()
        .context("qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)")?;
    let ended = wait(&mut child, boot.limit);
    let result = ended.and_then(|()| take(&disk));
    fs::remove_file(&disk)?;
    fs::remove_file(&initrd)?;
    result.with_context(|| format!("the virtual machine said last:\n{}", tail(&console)))
}

fn command_line(boot: &Boot<'_>) -> String {
    let base = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable -- vm-guest";
    match boot.fill {
        None => format!("{base} --no-fill"),
        Some(Sizes { seed, inodes, big_dir, extents, beyond_repair }) => {
            let beyond = if beyond_repair { " --beyond-repair" } else { "" };
            format!("{base} --seed {seed} --inodes {inodes} --big-dir {big_dir} --extents {extents}{beyond}")
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

fn take(disk: &Path) -> Result<Vec<Record>> {
    let mut disk = File::open(disk)?;
    let mut head = [0u8; 16];
    disk.read_exact(&mut head)?;
    let (magic, len) = head.split_at(8);
    ensure!(magic == MAGIC, "it left no manifest");
    let len = u64::from_le_bytes(len.try_into()?);
    disk.seek(SeekFrom::Start(BODY))?;
    record::read(&mut BufReader::new(disk.take(len)))
}

fn tail(console: &Path) -> String {
    let text =
        fs::read(console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(80)..].join("\n")
}
