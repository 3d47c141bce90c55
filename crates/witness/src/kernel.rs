//! The kernel's manifest of a mounted tree.
//!
//! Invariants:
//! - names are opened relative to their directory, so no path is too long;
//! - the holes of a file are looked up before it is read: the kernel counts unwritten blocks in its page cache as data.
//!   So the volume should be freshly mounted, and read-only so that nothing changes.

use crate::record::{
    self, Bytes, Content, ContentHasher, FULL_HASH_MAX, FileType, Hash, Inode, MapRun, Record, RunState,
    escape, push_data, push_run,
};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use fiemap::{Fiemap, FiemapExtentFlags};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::io::{BufWriter, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Writes what the kernel says of a mounted tree to standard output.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Root of the tree: a volume mounted read-only, freshly.
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<bool> {
    record::write(&mut BufWriter::new(std::io::stdout().lock()), &manifest(&args.dir, Hash::Sha256)?)?;
    Ok(true)
}

/// The manifest of the tree below `dir`.
pub fn manifest(dir: &Path, hash: Hash) -> Result<Vec<Record>> {
    let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())
        .with_context(|| dir.display().to_string())?;
    let mut walk = Walk { hash, records: Vec::new(), inodes: HashMap::new() };
    let status = statx(root.as_fd(), c"")?;
    walk.records.push(Record { path: "/".into(), ino: status.stx_ino, ..Record::default() });
    let mut inode = base(&status);
    inode.xattrs = xattrs(&format!("/proc/self/fd/{}", root.as_raw_fd()).into_bytes())?;
    walk.directory(&root, "", status.stx_ino, inode)?;
    Ok(record::assemble(walk.records, walk.inodes))
}

struct Walk {
    hash: Hash,
    records: Vec<Record>,
    inodes: HashMap<u64, Inode>,
}

impl Walk {
    /// Describes everything in the directory `dir`, then the directory itself.
    fn directory(&mut self, dir: &OwnedFd, path: &str, ino: u64, mut inode: Inode) -> Result<()> {
        let mut names = Vec::new();
        let mut order = Sha256::new();
        let mut buffer = vec![MaybeUninit::uninit(); 256 << 10];
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.with_context(|| format!("{path}/: reading the directory"))?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                order.update(name.to_bytes_with_nul());
                names.push((name.to_owned(), entry_type(entry.file_type())));
            }
        }
        inode.entries = Some((names.len() as u64, record::hex(&order.finalize())));
        self.inodes.insert(ino, inode);
        for (name, entry_type) in names {
            let path = format!("{path}/{}", escape(name.to_bytes()));
            self.entry(dir, &name, &path, entry_type).with_context(|| path.clone())?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: &OwnedFd, name: &CStr, path: &str, entry_type: FileType) -> Result<()> {
        let status = statx(dir.as_fd(), name)?;
        let ino = status.stx_ino;
        self.records.push(Record { path: path.into(), ino, entry_type: Some(entry_type), inode: None });
        if self.inodes.contains_key(&ino) {
            return Ok(());
        }
        let mut inode = base(&status);
        let mut through_proc = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        through_proc.extend_from_slice(name.to_bytes());
        inode.xattrs = xattrs(&through_proc)?;
        match inode.file_type {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                let child = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                return self.directory(&child, path, ino, inode);
            }
            FileType::Regular => {
                let file = rustix::fs::openat(
                    dir,
                    name,
                    OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                    Mode::empty(),
                )?;
                inode.content = Some(content(file, inode.size, self.hash)?);
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                inode.target = Some(escape(target.to_bytes()));
            }
            FileType::CharDevice | FileType::BlockDevice => {
                inode.rdev = Some((status.stx_rdev_major, status.stx_rdev_minor));
            }
            FileType::Fifo | FileType::Socket | FileType::Unknown => {}
        }
        self.inodes.insert(ino, inode);
        Ok(())
    }
}

fn statx(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    Ok(rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?)
}

/// What `statx` returns.
fn base(status: &Statx) -> Inode {
    let ns = |time: &StatxTimestamp| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let has_btime = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::BTIME);
    Inode {
        file_type: FileType::from_mode(u32::from(status.stx_mode)),
        mode: format!("{:04o}", status.stx_mode & 0o7777),
        uid: status.stx_uid,
        gid: status.stx_gid,
        nlink: status.stx_nlink,
        size: status.stx_size,
        blocks: status.stx_blocks,
        atime: ns(&status.stx_atime),
        mtime: ns(&status.stx_mtime),
        ctime: ns(&status.stx_ctime),
        btime: has_btime.then(|| ns(&status.stx_btime)),
        ..Inode::default()
    }
}

fn entry_type(file_type: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as T;
    match file_type {
        T::RegularFile => FileType::Regular,
        T::Directory => FileType::Directory,
        T::Symlink => FileType::Symlink,
        T::CharacterDevice => FileType::CharDevice,
        T::BlockDevice => FileType::BlockDevice,
        T::Fifo => FileType::Fifo,
        T::Socket => FileType::Socket,
        T::Unknown => FileType::Unknown,
    }
}

/// Extended attributes of the object at `path`, which is not followed at its end. A kernel that lists more than
/// 64 KiB of names says E2BIG; no volume made here has that many.
fn xattrs(path: &[u8]) -> Result<BTreeMap<String, Bytes>> {
    let path = if path.starts_with(b"/proc/self/fd/") && !path[b"/proc/self/fd/".len()..].contains(&b'/') {
        [path, b"/."].concat()
    } else {
        path.to_vec()
    };
    let path = PathBuf::from(std::ffi::OsString::from_vec(path));
    let mut names = vec![0u8; 64 << 10];
    let len = rustix::fs::llistxattr(&path, &mut names).context("listing attributes")?;
    let mut value = vec![0u8; 64 << 10];
    let mut found = BTreeMap::new();
    for name in names[..len].split_inclusive(|&byte| byte == 0) {
        let name = CStr::from_bytes_with_nul(name)?;
        let len = rustix::fs::lgetxattr(&path, name, &mut value)
            .with_context(|| format!("attribute {}", escape(name.to_bytes())))?;
        found.insert(escape(name.to_bytes()), Bytes::of(&value[..len]));
    }
    Ok(found)
}

/// Holes first, then the block map, and the bytes last.
fn content(file: OwnedFd, size: u64, hash: Hash) -> Result<Content> {
    let data = data_runs(&file, size)?;
    let extents = extents(&file)?;
    let mut hasher = ContentHasher::new(hash);
    let mut buffer = vec![0u8; 1 << 20];
    let mut file = std::fs::File::from(file);
    if size <= FULL_HASH_MAX {
        rustix::fs::seek(&file, SeekFrom::Start(0))?;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                len => hasher.data(&buffer[..len]),
            }
        }
    } else {
        for &(start, end) in &data {
            hasher.run(start, end);
            rustix::fs::seek(&file, SeekFrom::Start(start))?;
            let mut left = end - start;
            while left > 0 {
                let len = left.min(buffer.len() as u64) as usize;
                file.read_exact(&mut buffer[..len])?;
                hasher.data(&buffer[..len]);
                left -= len as u64;
            }
        }
    }
    Ok(Content { hash: hasher.finish(), data, extents })
}

fn data_runs(file: &OwnedFd, size: u64) -> Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        push_data(&mut runs, start, end);
        at = end;
    }
    Ok(runs)
}

/// The block map, where the file system has one.
fn extents(file: &OwnedFd) -> Result<Option<Vec<MapRun>>> {
    let mut runs = Vec::new();
    for extent in Fiemap::new(file) {
        let extent = match extent {
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => return Ok(None),
            other => other.context("FIEMAP")?,
        };
        let state = if extent.fe_flags.contains(FiemapExtentFlags::UNWRITTEN) {
            RunState::Unwritten
        } else if extent.fe_flags.contains(FiemapExtentFlags::SHARED) {
            RunState::Shared
        } else {
            RunState::Written
        };
        push_run(&mut runs, MapRun(extent.fe_logical, extent.fe_physical, extent.fe_length, state));
    }
    Ok(Some(runs))
}
