//! A manifest of a volume, made by the engine that the library and the command use.
//!
//! Invariants:
//! - every name that a directory lists is also looked up by its hash, and every attribute is read by its hash. If
//!   listing and lookup disagree, the manifest ends;
//! - content is read through the data path ([`DirectFile`]), not from the map.

use crate::record::{
    self, Bytes, Content, ContentHasher, FULL_HASH_MAX, FileType, Hash, Inode, MapRun, Record, RunState,
    escape, push_data, push_run,
};
use anyhow::{Context, Result, ensure};
use blockdev::{BlockDevice, FileDevice};
use clap::Args as ClapArgs;
use fileio::{DirectFile, ExtentState, FileMapping, Locking};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xfs::attr::linux;
use xfs::dir;
use xfs::iomap;
use xfs::volume::{ForkKind, OpenOptions, Volume};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::InodeNumber;

/// Writes uxfs's manifest of a volume to standard output.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// The image or block device.
    image: PathBuf,
    /// Read a volume whose log is dirty as it is.
    #[arg(long)]
    norecovery: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool> {
    let volume = open(&args.image, args.norecovery)?;
    record::write(&mut BufWriter::new(std::io::stdout().lock()), &manifest(&volume, Hash::Sha256)?)?;
    Ok(true)
}

/// The manifests that `threads` threads make of one open volume concurrently.
pub fn manifests(image: &Path, threads: usize, hash: Hash) -> Result<Vec<Vec<Record>>> {
    let volume = open(image, false)?;
    std::thread::scope(|scope| {
        let walks: Vec<_> = (0..threads).map(|_| scope.spawn(|| manifest(&volume, hash))).collect();
        walks.into_iter().map(|walk| walk.join().expect("a walk does not panic")).collect()
    })
}

/// The manifest of the volume on a device, opened for reading.
pub fn manifest_of(device: Arc<dyn BlockDevice>, hash: Hash) -> Result<Vec<Record>> {
    manifest(&Volume::open(device, &OpenOptions::default())?, hash)
}

fn open(image: &Path, norecovery: bool) -> Result<Arc<Volume>> {
    let device = Arc::new(FileDevice::open(image)?);
    Ok(Volume::open(device, &OpenOptions { norecovery, ..OpenOptions::default() })?)
}

/// The manifest of the whole volume.
pub fn manifest(volume: &Arc<Volume>, hash: Hash) -> Result<Vec<Record>> {
    let root = volume.geometry().root;
    let mut walk = Walk { volume, hash, records: Vec::new(), inodes: HashMap::new() };
    walk.records.push(Record { path: "/".into(), ino: root.0, ..Record::default() });
    walk.inode(root, "")?;
    Ok(record::assemble(walk.records, walk.inodes))
}

struct Walk<'a> {
    volume: &'a Arc<Volume>,
    hash: Hash,
    records: Vec<Record>,
    inodes: HashMap<u64, Inode>,
}

impl Walk<'_> {
    /// Describes an inode that was not seen yet, and everything below it.
    fn inode(&mut self, ino: InodeNumber, path: &str) -> Result<()> {
        let inode = self.volume.inode(ino)?;
        let mut described = base(&inode, self.volume.geometry().block_size);
        if let Some(fork) = self.volume.fork(&inode, ForkKind::Attr) {
            described.xattrs = xattrs(&*fork)?;
        }
        match described.file_type {
            FileType::Directory => return self.directory(&inode, path, described),
            FileType::Regular => described.content = Some(content(self.volume, &inode, self.hash)?),
            FileType::Symlink => {
                let fork = self.volume.fork(&inode, ForkKind::Data).context("a data fork")?;
                described.target = Some(escape(&xfs::symlink::target(&*fork)?));
            }
            FileType::CharDevice | FileType::BlockDevice => described.rdev = inode.device(),
            FileType::Fifo | FileType::Socket | FileType::Unknown => {}
        }
        self.inodes.insert(ino.0, described);
        Ok(())
    }

    fn directory(&mut self, inode: &xfs::volume::Inode, path: &str, mut described: Inode) -> Result<()> {
        let mut names = Vec::new();
        let mut order = Sha256::new();
        {
            let fork = self.volume.fork(inode, ForkKind::Data).context("a data fork")?;
            dir::walk(&*fork, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    order.update(entry.name);
                    order.update([0]);
                    names.push((entry.name.to_vec(), entry.inode, entry.file_type));
                }
                ControlFlow::Continue(())
            })?;
            for (name, ino, file_type) in &names {
                let found = dir::lookup(&*fork, name)?;
                ensure!(
                    found == Some((*ino, *file_type)),
                    "{path}/{}: listed as {ino}, looked up as {found:?}",
                    escape(name)
                );
            }
        }
        described.entries = Some((names.len() as u64, record::hex(&order.finalize())));
        self.inodes.insert(inode.ino().0, described);
        for (name, ino, file_type) in names {
            let path = format!("{path}/{}", escape(&name));
            if !self.inodes.contains_key(&ino.0) {
                self.inode(ino, &path).with_context(|| path.clone())?;
            }
            let entry_type = Some(entry_type(file_type));
            self.records.push(Record { path, ino: ino.0, entry_type, inode: None });
        }
        Ok(())
    }
}

/// The fields of the inode's core.
fn base(inode: &xfs::volume::Inode, block_size: u32) -> Inode {
    let ns = |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    Inode {
        file_type: FileType::from_mode(inode.mode()),
        mode: format!("{:04o}", inode.mode() & 0o7777),
        uid: inode.uid(),
        gid: inode.gid(),
        nlink: inode.nlink(),
        size: inode.size(),
        blocks: inode.blocks() * u64::from(block_size / 512),
        atime: ns(inode.atime()),
        mtime: ns(inode.mtime()),
        ctime: ns(inode.ctime()),
        btime: inode.crtime().map(ns),
        ..Inode::default()
    }
}

fn entry_type(file_type: dir::FileType) -> FileType {
    match file_type {
        dir::FileType::Unknown => FileType::Unknown,
        dir::FileType::Regular => FileType::Regular,
        dir::FileType::Directory => FileType::Directory,
        dir::FileType::CharDevice => FileType::CharDevice,
        dir::FileType::BlockDevice => FileType::BlockDevice,
        dir::FileType::Fifo => FileType::Fifo,
        dir::FileType::Socket => FileType::Socket,
        dir::FileType::Symlink => FileType::Symlink,
    }
}

fn xattrs(fork: &dyn xfs::fork::Fork) -> Result<BTreeMap<String, Bytes>> {
    let mut found = BTreeMap::new();
    for name in linux::list(fork)? {
        let value = linux::get(fork, &name)?;
        let value = value.with_context(|| format!("attribute {} is listed, and not found", escape(&name)))?;
        let twice = found.insert(escape(&name), Bytes::of(&value));
        ensure!(twice.is_none(), "attribute {} is listed twice", escape(&name));
    }
    Ok(found)
}

fn content(volume: &Arc<Volume>, inode: &Arc<xfs::volume::Inode>, hash: Hash) -> Result<Content> {
    let map = iomap::file_map(volume, inode)?;
    let size = inode.size();
    let (mut data, mut extents) = (Vec::new(), Vec::new());
    let mut at = 0;
    loop {
        let run = map.lookup(at)?.extent;
        let end = run.offset.checked_add(run.len).context("a run that ends behind every file")?;
        ensure!(run.offset <= at && end > at, "byte {at} is not in the run {run:?} that was found for it");
        let (device, state) = match run.state {
            ExtentState::Hole if end == u64::MAX => break,
            ExtentState::Hole => {
                at = end;
                continue;
            }
            ExtentState::Unwritten(device) => (device, RunState::Unwritten),
            ExtentState::Written(device) => (device, RunState::Written),
            ExtentState::Shared(device) => (device, RunState::Shared),
        };
        push_run(&mut extents, MapRun(run.offset, device, run.len, state));
        if state != RunState::Unwritten && run.offset < size {
            push_data(&mut data, run.offset, end.min(size));
        }
        at = end;
    }
    let file = DirectFile::new(Arc::clone(volume.device()), map, Locking::Range);
    let mut hasher = ContentHasher::new(hash);
    if size <= FULL_HASH_MAX {
        read(&file, 0, size, &mut hasher)?;
    } else {
        for &(start, end) in &data {
            hasher.run(start, end);
            read(&file, start, end, &mut hasher)?;
        }
    }
    Ok(Content { hash: hasher.finish(), data, extents: Some(extents) })
}

fn read<M: FileMapping>(
    file: &DirectFile<M>,
    start: u64,
    end: u64,
    hasher: &mut ContentHasher,
) -> Result<()> {
    let mut buffer = blockdev::AlignedBuf::zeroed((end - start).min(1 << 20) as usize);
    let mut at = start;
    while at < end {
        let want = (end - at).min(buffer.len() as u64) as usize;
        let len = file.read_at(at, &mut buffer[..want])?;
        ensure!(len == want, "{len} bytes instead of {want} at byte {at}");
        hasher.data(&buffer[..len]);
        at += len as u64;
    }
    Ok(())
}
