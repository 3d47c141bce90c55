//! A directory that the kernel has mounted, by system calls; for projects, by `xfs_io`.

use super::{Called, Exchanged, Target};
use crate::command;
use crate::history::acl::Acl;
use crate::history::op::{AclKind, AllocateHow, Ino, Moment, NodeKind, RenameHow, Stat, XattrHow};
use crate::record::Hints;
use anyhow::{Context, Result};
use oracles::xfsprogs::Release;
use rustix::fs::{
    AtFlags, Dev, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Statx, StatxFlags,
    Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted directory.
#[derive(Debug)]
pub struct MountedTarget {
    root: OwnedFd,
}

/// Longest value of an attribute.
const XATTR_BYTES_MAX: usize = 64 << 10;

impl MountedTarget {
    /// The tree below `dir`. Sets the umask of this process to nothing.
    pub fn new(dir: &Path) -> Result<Self> {
        rustix::process::umask(Mode::empty());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = rustix::fs::open(dir, flags, Mode::empty()).with_context(|| dir.display().to_string())?;
        Ok(Self { root })
    }

    /// A path for calls that take no directory.
    /// What no system call of a safe library does.
    fn by_xfs_io(&self, path: &[u8], commands: &[String]) -> Called<()> {
        let mut all = format!("/proc/{}/fd/{}/", std::process::id(), self.root.as_raw_fd()).into_bytes();
        all.extend_from_slice(path);
        let mut program = Command::new("xfs_io");
        program.args(commands.iter().flat_map(|command| ["-c", command]));
        // Some of its failures are said, and no more.
        match command::finish(program.arg(OsString::from_vec(all))) {
            Ok(output) if output.status.success() && output.stderr.is_empty() => Ok(()),
            failed => {
                eprintln!("history: kernel: {:?}", failed.map(|output| command::said(&output)));
                Err(Errno::IO)
            }
        }
    }

    fn through_proc(&self, path: &[u8]) -> PathBuf {
        let mut all = format!("/proc/self/fd/{}/", self.root.as_raw_fd()).into_bytes();
        all.extend_from_slice(path);
        OsString::from_vec(all).into()
    }

    fn open_with(&self, path: &[u8], flags: OFlags, mode: u16) -> Called<OwnedFd> {
        rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, self::mode(mode))
    }

    fn open_dir(&self, path: &[u8]) -> Called<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        self.open_with(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, 0)
    }
}

/// The path of an open file, for other programs.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Shares ranges of two open files; whether they were the same. No safe library has these calls.
fn share_by_xfs_io(verb: &str, from: &OwnedFd, offset: u64, to: &OwnedFd, at: u64, len: u64) -> Called<bool> {
    let command = format!("{verb} {} {offset} {at} {len}", path_of(from));
    on_both(Command::new("xfs_io"), verb, &command, to)
}

/// Has `xfs_io` do something to an open file and another one; whether that is the same, or was done.
fn on_both(mut xfs_io: Command, verb: &str, command: &str, to: &OwnedFd) -> Called<bool> {
    let said = command::finish(xfs_io.args(["-c", command]).arg(path_of(to))).map_err(|_| Errno::IO)?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    match text.trim_end() {
        "" if said.status.success() => Ok(true),
        text if text.ends_with("Extents did not match.") => Ok(false),
        text if text.ends_with("Invalid argument") => Err(Errno::INVAL),
        text if text.ends_with("No space left on device") => Err(Errno::NOSPC),
        text if text.ends_with("File too large") => Err(Errno::FBIG),
        text => {
            eprintln!("history: kernel: {verb}: {text}");
            Err(Errno::IO)
        }
    }
}

/// How `chattr` is told whether a flag is to be set.
fn sign(on: bool) -> char {
    if on { '+' } else { '-' }
}

fn mode(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode))
}

fn stat_of(status: &Statx) -> Stat {
    let letter = letter(FileType::from_raw_mode(u32::from(status.stx_mode)));
    Stat {
        letter,
        mode: status.stx_mode & 0o7777,
        uid: status.stx_uid,
        gid: status.stx_gid,
        nlink: status.stx_nlink,
        size: if letter == 'd' { 0 } else { status.stx_size },
        ino: Ino(status.stx_ino),
    }
}

fn letter(file_type: FileType) -> char {
    match file_type {
        FileType::RegularFile => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Unknown => '?',
    }
}

fn statx(dir: BorrowedFd<'_>, path: &[u8]) -> Called<Stat> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    Ok(stat_of(&rustix::fs::statx(dir, path, flags, StatxFlags::BASIC_STATS)?))
}

impl Target for MountedTarget {
    type File = OwnedFd;
    const STRICT: bool = false;

    fn create(&self, path: &[u8], mode: u16) -> Called<OwnedFd> {
        self.open_with(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
    }

    fn open(&self, path: &[u8]) -> Called<OwnedFd> {
        self.open_with(path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK, 0)
    }

    fn tmpfile(&self, dir: &[u8], mode: u16) -> Called<OwnedFd> {
        self.open_with(dir, OFlags::RDWR | OFlags::TMPFILE, mode)
    }

    fn link_file(&self, file: &OwnedFd, path: &[u8]) -> Called<()> {
        rustix::fs::linkat(file, c"", &self.root, path, AtFlags::EMPTY_PATH)
    }

    fn mkdir(&self, path: &[u8], mode: u16) -> Called<()> {
        rustix::fs::mkdirat(&self.root, path, self::mode(mode))
    }

    fn mknod(&self, path: &[u8], kind: NodeKind, mode: u16) -> Called<()> {
        let none: Dev = 0;
        let (file_type, dev) = match kind {
            NodeKind::Regular => (FileType::RegularFile, none),
            NodeKind::Fifo => (FileType::Fifo, none),
            NodeKind::Socket => (FileType::Socket, none),
            NodeKind::CharDevice(major, minor) => {
                (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
            }
            NodeKind::BlockDevice(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        };
        rustix::fs::mknodat(&self.root, path, file_type, self::mode(mode), dev)
    }

    fn symlink(&self, path: &[u8], target: &[u8]) -> Called<()> {
        rustix::fs::symlinkat(target, &self.root, path)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Called<()> {
        rustix::fs::linkat(&self.root, from, &self.root, to, AtFlags::empty())
    }

    fn unlink(&self, path: &[u8]) -> Called<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::empty())
    }

    fn rmdir(&self, path: &[u8]) -> Called<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: &[u8], to: &[u8], how: RenameHow) -> Called<()> {
        let flags = match how {
            RenameHow::Plain => RenameFlags::empty(),
            RenameHow::NoReplace => RenameFlags::NOREPLACE,
            RenameHow::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&self.root, from, &self.root, to, flags)
    }

    fn write(&self, file: &OwnedFd, bytes: &[u8], offset: u64) -> Called<usize> {
        rustix::io::pwrite(file, bytes, offset)
    }

    fn read(&self, file: &OwnedFd, buffer: &mut [u8], offset: u64) -> Called<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(file, &mut buffer[done..], offset + done as u64)? {
                0 => break,
                len => done += len,
            }
        }
        Ok(done)
    }

    fn allocate(&self, file: &OwnedFd, how: AllocateHow, offset: u64, len: u64) -> Called<()> {
        let flags = match how {
            AllocateHow::Allocate => FallocateFlags::empty(),
            AllocateHow::KeepSize => FallocateFlags::KEEP_SIZE,
            AllocateHow::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            AllocateHow::ZeroRange => FallocateFlags::ZERO_RANGE,
            AllocateHow::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            AllocateHow::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
            AllocateHow::InsertRange => FallocateFlags::INSERT_RANGE,
        };
        rustix::fs::fallocate(file, flags, offset, len)
    }

    fn truncate(&self, file: &OwnedFd, size: u64) -> Called<()> {
        rustix::fs::ftruncate(file, size)
    }

    fn clone_range(&self, from: &OwnedFd, offset: u64, to: &OwnedFd, at: u64, len: u64) -> Called<()> {
        if offset == 0 && at == 0 && len == 0 {
            return rustix::fs::ioctl_ficlone(to, from);
        }
        share_by_xfs_io("reflink", from, offset, to, at, len).map(drop)
    }

    fn dedupe(&self, from: &OwnedFd, offset: u64, to: &OwnedFd, at: u64, len: u64) -> Called<bool> {
        share_by_xfs_io("dedupe", from, offset, to, at, len)
    }

    fn copy_range(&self, from: &OwnedFd, offset: u64, to: &OwnedFd, at: u64, len: u64) -> Called<u64> {
        // One call copies what is there when it begins. Of the next one, what this wrote past the end would be a part.
        let there = rustix::fs::fstat(from)?.st_size.cast_unsigned().saturating_sub(offset);
        let mut done = 0;
        while done < len && (done == 0 || done < there) {
            let (mut source, mut destination) = (offset + done, at + done);
            let left = usize::try_from(len - done).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut destination), left) {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                // As with a write, what was done counts.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn exchange(&self, file: &OwnedFd, other: &OwnedFd, what: Exchanged) -> Called<()> {
        let Exchanged { at: [at, other_at], len, only_written } = what;
        let mut command = format!("exchangerange -s {at} -d {other_at}");
        if len > 0 {
            command.push_str(&format!(" -l {len}"));
        }
        if only_written {
            command.push_str(" -w");
        }
        command.push_str(&format!(" {}", path_of(file)));
        let xfs_io = Release::Unstable.tool("xfs_io").map_err(|_| Errno::NOENT)?;
        on_both(xfs_io, "exchangerange", &command, other).map(drop)
    }

    fn seek(&self, file: &OwnedFd, offset: u64, data: bool) -> Called<Option<u64>> {
        let from = if data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        match rustix::fs::seek(file, from) {
            Ok(place) => Ok(Some(place)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrHow) -> Called<()> {
        let flags = match how {
            XattrHow::Set => XattrFlags::empty(),
            XattrHow::Create => XattrFlags::CREATE,
            XattrHow::Replace => XattrFlags::REPLACE,
        };
        rustix::fs::lsetxattr(self.through_proc(path), name, value, flags)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Called<()> {
        rustix::fs::lremovexattr(self.through_proc(path), name)
    }

    fn get_xattr(&self, path: &[u8], name: &[u8]) -> Called<Vec<u8>> {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let len = rustix::fs::lgetxattr(self.through_proc(path), name, &mut value[..])?;
        value.truncate(len);
        Ok(value)
    }

    fn list_xattrs(&self, path: &[u8]) -> Called<Vec<Vec<u8>>> {
        let mut names = vec![0u8; XATTR_BYTES_MAX];
        let len = rustix::fs::llistxattr(self.through_proc(path), &mut names[..])?;
        let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    fn set_acl(&self, path: &[u8], kind: AclKind, acl: Option<&Acl>) -> Called<()> {
        let name = match kind {
            AclKind::Access => "system.posix_acl_access",
            AclKind::Default => "system.posix_acl_default",
        };
        let path = self.through_proc(path);
        match acl {
            Some(acl) => rustix::fs::lsetxattr(path, name, &acl.to_linux(), XattrFlags::empty()),
            None => rustix::fs::lremovexattr(path, name),
        }
    }

    fn chmod(&self, path: &[u8], mode: u16) -> Called<()> {
        rustix::fs::chmodat(&self.root, path, self::mode(mode), AtFlags::empty())
    }

    fn chown(&self, path: &[u8], uid: u32, gid: u32) -> Called<()> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(&self.root, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn set_project(&self, path: &[u8], id: u32, inherit: bool) -> Called<()> {
        let mut commands = vec![format!("chproj {id}")];
        if self.stat(path)?.letter == 'd' {
            commands.push(format!("chattr {}P", sign(inherit)));
        }
        self.by_xfs_io(path, &commands)
    }

    fn set_hints(&self, path: &[u8], hints: Hints) -> Called<()> {
        let flags = [(hints.no_atime, 'A'), (hints.no_dump, 'd'), (hints.no_defrag, 'f')];
        let mut commands: Vec<_> =
            flags.iter().map(|(on, letter)| format!("chattr {}{letter}", sign(*on))).collect();
        if self.stat(path)?.letter == 'd' {
            let block = rustix::fs::fstatvfs(&self.root)?.f_bsize;
            commands.push(format!("extsize {}", u64::from(hints.extent_blocks) * block));
        }
        self.by_xfs_io(path, &commands)
    }

    fn set_times(&self, path: &[u8], atime: Moment, mtime: Moment) -> Called<()> {
        let time = |moment: Moment| Timespec { tv_sec: moment.0, tv_nsec: moment.1.into() };
        let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
        rustix::fs::utimensat(&self.root, path, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn read_dir(&self, path: &[u8]) -> Called<Vec<(Vec<u8>, char)>> {
        let dir = rustix::fs::Dir::read_from(self.open_dir(path)?)?;
        let mut names = Vec::new();
        for entry in dir {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push((name.to_vec(), letter(entry.file_type())));
            }
        }
        Ok(names)
    }

    fn read_link(&self, path: &[u8]) -> Called<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.root, path, Vec::new())?.into_bytes())
    }

    fn stat(&self, path: &[u8]) -> Called<Stat> {
        statx(self.root.as_fd(), path)
    }

    fn stat_file(&self, file: &OwnedFd) -> Called<Stat> {
        statx(file.as_fd(), b"")
    }

    fn fsync(&self, file: &OwnedFd) -> Called<()> {
        rustix::fs::fsync(file)
    }

    fn fsync_dir(&self, path: &[u8]) -> Called<()> {
        rustix::fs::fsync(self.open_dir(path)?)
    }

    fn sync(&self) -> Called<()> {
        rustix::fs::syncfs(&self.root)
    }

    /// The kernel's time cannot be made to pass.
    fn idle(&self, _intervals: u8) -> Called<()> {
        Ok(())
    }
}
