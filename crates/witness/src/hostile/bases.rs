//! The volumes to be damaged: small ones with everything in them, which the command makes from one tree.

use super::chains::{self, Item};
use super::{GUARD, GUARD_BYTE};
use crate::command::run;
use crate::damage::layout::targets;
use crate::damage::mutate::Menu;
use anyhow::{Context, Result};
use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A sound volume.
pub struct Base {
    /// Its options.
    pub name: String,
    /// Its image, with guards around it.
    pub image: PathBuf,
    /// The volume without guards, in memory.
    pub device: Arc<dyn BlockDevice>,
    /// Its bytes.
    pub size: u64,
    /// Its metadata.
    pub menu: Menu,
    /// The tree in it as an archive.
    pub archive: Vec<u8>,
    /// The unfinished intents of its log.
    pub items: Vec<Item>,
}

/// Number of names with the same hash.
const CROWD: usize = 2000;
/// Bytes of each volume.
pub const SIZE: u64 = 24 << 20;
const SHAPES: [&[&str]; 6] = [
    &["--compat", "6.18"],
    &["--compat", "5.15"],
    &["--compat", "6.18", "-b", "size=1024"],
    &["-n", "size=8192"],
    &["-i", "size=1024", "-m", "finobt=0"],
    &["-m", "reflink=0,bigtime=0", "-i", "sparse=0"],
];

/// Makes all of them.
pub fn make(uxfs: &Path, dir: &Path) -> Result<Vec<Base>> {
    let tree = dir.join("tree");
    fill(&tree)?;
    let archive = dir.join("tree.tar");
    run(Command::new("tar")
        .args(["--format=posix", "--xattrs", "-S", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(&tree)
        .arg("."))?;
    let archive = fs::read(&archive)?;
    let mut bases = Vec::new();
    for (nth, options) in SHAPES.iter().enumerate() {
        let name = format!("[{}]", options.join(" "));
        let volume = made(uxfs, dir, &tree, nth, options)?;
        let is_shared = chains::share(&volume).with_context(|| name.clone())?;
        let owing = match nth {
            0 | 2 if is_shared => chains::owing(&volume).with_context(|| name.clone())?,
            _ => Vec::new(),
        };
        let mut bytes = vec![0; SIZE as usize];
        volume.read(0, &mut bytes)?;
        bases.push(base(dir.join(format!("image-{nth}")), name.clone(), &bytes, &archive)?);
        for (number, (what, bytes)) in owing.iter().enumerate() {
            let image = dir.join(format!("image-{nth}-{number}"));
            bases.push(base(image, format!("{name}, {what}"), bytes, &archive)?);
        }
    }
    Ok(bases)
}

fn made(uxfs: &Path, dir: &Path, tree: &Path, nth: usize, options: &[&str]) -> Result<Arc<dyn BlockDevice>> {
    let volume = dir.join(format!("volume-{nth}"));
    let size = SIZE.to_string();
    run(Command::new(uxfs)
        .args(["mkfs", "-q", "--small", "--from"])
        .arg(tree)
        .args(options)
        .arg(&volume)
        .arg(size))?;
    in_memory(&fs::read(&volume)?)
}

fn in_memory(bytes: &[u8]) -> Result<Arc<dyn BlockDevice>> {
    let device = MemoryDevice::anonymous(SIZE)?;
    device.write(0, bytes, Durability::Volatile)?;
    Ok(Arc::new(device))
}

fn base(image: PathBuf, name: String, bytes: &[u8], archive: &[u8]) -> Result<Base> {
    let device = in_memory(bytes)?;
    let menu = Menu::new(&targets(&*device, std::slice::from_ref(&(0..bytes.len())))?);
    let file = File::create(&image)?;
    file.set_len(SIZE + 2 * GUARD as u64)?;
    let guard = vec![GUARD_BYTE; GUARD];
    file.write_all_at(&guard, 0)?;
    file.write_all_at(&guard, GUARD as u64 + SIZE)?;
    for (at, block) in (GUARD as u64..).step_by(4096).zip(bytes.chunks(4096)) {
        if block.iter().any(|&byte| byte != 0) {
            file.write_all_at(block, at)?;
        }
    }
    let is_dirty = name.contains("owing");
    let items = if is_dirty { chains::items(bytes)? } else { Vec::new() };
    Ok(Base { name, image, device, size: SIZE, menu, archive: archive.to_vec(), items })
}

/// Files of every kind, directories of every form.
fn fill(tree: &Path) -> Result<()> {
    for (name, count) in [("short", 4), ("block", 40), ("leaf", 200), ("node", 700)] {
        let dir = tree.join("dirs").join(name);
        fs::create_dir_all(&dir)?;
        for number in 0..count {
            fs::write(
                dir.join(format!("entry-{number:04}-{}", "n".repeat(number % 40))),
                [number as u8; 10],
            )?;
        }
    }
    // Names with the same hash: equal characters 32 bytes apart cancel each other out.
    let crowd = tree.join("dirs/crowd");
    fs::create_dir(&crowd)?;
    fs::write(crowd.join("one"), "one")?;
    for number in 0..CROWD {
        fs::hard_link(crowd.join("one"), crowd.join(format!("{number:032}{number:032}")))?;
    }
    let deep = tree.join("deep").join(vec!["d"; 40].join("/"));
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("bottom"), "bottom")?;
    let files = tree.join("files");
    fs::create_dir(&files)?;
    fs::write(files.join("empty"), "")?;
    fs::write(files.join("large"), vec![7; 300_000])?;
    let holes = File::create(files.join("holes"))?;
    for at in (0..120).map(|nth| nth * 24_576) {
        holes.write_all_at(&[1; 4096], at)?;
    }
    holes.set_len(5 << 20)?;
    fs::hard_link(files.join("large"), files.join("linked"))?;
    symlink("short", files.join("link"))?;
    symlink("long/".repeat(150), files.join("long-link"))?;
    symlink("/", files.join("root"))?;
    for (name, count, len) in [("one", 1, 10), ("some", 20, 100), ("many", 60, 300), ("wide", 1, 9000)] {
        let path = files.join(name);
        fs::write(&path, name)?;
        for nth in 0..count {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, format!("user.{nth}"), &vec![nth as u8; len], flags)
                .context("attributes of the scratch folder")?;
        }
    }
    Ok(())
}
