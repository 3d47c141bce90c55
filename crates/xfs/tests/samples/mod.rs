//! Real forks for the tests of the walkers: volumes made by mkfs.xfs, filled by the kernel (or, on v4, by
//! xfsprogs, as kernels leave v4 behind), and read raw where `xfs_db` says that a fork's blocks are.
#![allow(dead_code, reason = "each test binary uses a part")]

use oracles::Mounted;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use xfs::fork::Fork;
use xfs::testing::MemoryFork;
use xfs_format::geometry::Geometry;
use xfs_format::inode::{ForkFormat, InodeCore};
use xfs_format::superblock::Superblock;
use xfs_format::types::{DiskAddr, FileBlock, FsBlock, InodeNumber};

/// A volume in a file, gone when dropped.
pub struct Image {
    dir: tempfile::TempDir,
    path: PathBuf,
}

/// Runs a command to its end; its output. Fails the test if it fails.
pub fn run(program: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let mut command = Command::new(program);
    command.args(args);
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

impl Image {
    /// A new volume of 1 GiB (sparse), made with these options.
    pub fn mkfs(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the image");
        let path = dir.path().join("image");
        File::create(&path).and_then(|file| file.set_len(1 << 30)).expect("an image");
        let image = Self { dir, path };
        run("mkfs.xfs", [&["-q"], options, &[image.path.to_str().expect("UTF-8")]].concat());
        image
    }

    /// Mounts the volume, lets `with` work on it, and unmounts it, even if `with` panics.
    pub fn mounted<T>(&self, with: impl FnOnce(&Path) -> T) -> T {
        let mount = Mounted::new(&self.path, &self.dir.path().join("mount"), "loop");
        with(mount.dir())
    }

    /// Runs commands of `xfs_db` that only read.
    pub fn db(&self, commands: &[&str]) -> String {
        let mut args = vec!["-r"];
        for command in commands {
            args.extend(["-c", command]);
        }
        args.push(self.path.to_str().expect("UTF-8"));
        run("xfs_db", args)
    }

    /// Runs commands of `xfs_db` that write.
    pub fn db_write(&self, commands: &[String]) -> String {
        let mut args = vec!["-x"];
        for command in commands {
            args.extend(["-c", command]);
        }
        args.push(self.path.to_str().expect("UTF-8"));
        run("xfs_db", args)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn geometry(&self) -> Geometry {
        let superblock = Superblock::parse(&self.bytes(0, 4096)).expect("the superblock");
        Geometry::from_superblock(&superblock)
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        File::open(&self.path)
            .and_then(|file| file.read_exact_at(&mut bytes, at))
            .expect("bytes of the image");
        bytes
    }

    fn inode(&self, geometry: &Geometry, ino: InodeNumber) -> (Vec<u8>, InodeCore) {
        let (ag, within) = geometry.split_inode(ino).expect("an inode of the volume");
        let at = ((u64::from(ag.0) * u64::from(geometry.ag_blocks)) << geometry.block_log)
            + u64::from(within.0) * u64::from(geometry.inode_size);
        let bytes = self.bytes(at, geometry.inode_size.into());
        let core = InodeCore::parse(&bytes, ino, geometry).expect("a sound inode").expect("an inode in use");
        (bytes, core)
    }

    /// The data fork of an inode.
    pub fn data_fork(&self, ino: u64) -> MemoryFork {
        let geometry = self.geometry();
        let ino = InodeNumber(ino);
        let (bytes, core) = self.inode(&geometry, ino);
        let mut fork = MemoryFork::new(geometry, ino, core.size);
        match core.data.format {
            ForkFormat::Local => fork.set_local(bytes[core.data.range].to_vec()),
            _ => self.map(&mut fork, "bmap -d"),
        }
        fork
    }

    /// The attribute fork of an inode, if there is one.
    pub fn attr_fork(&self, ino: u64) -> Option<MemoryFork> {
        let geometry = self.geometry();
        let ino = InodeNumber(ino);
        let (bytes, core) = self.inode(&geometry, ino);
        let attr = core.attr?;
        let mut fork = MemoryFork::new(geometry, ino, 0);
        match attr.format {
            ForkFormat::Local => fork.set_local(bytes[attr.range].to_vec()),
            _ => self.map(&mut fork, "bmap -a"),
        }
        Some(fork)
    }

    /// Maps what `xfs_db` lists: `data offset 0 startblock 13 (0/13) count 1 flag 0`.
    fn map(&self, fork: &mut MemoryFork, bmap: &str) {
        let inode = format!("inode {}", fork.inode());
        let geometry = fork.geometry().clone();
        for line in self.db(&[&inode, bmap]).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |after: &str| -> u64 {
                let at = words.iter().position(|&word| word == after);
                let word = at.and_then(|at| words.get(at + 1));
                word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("xfs_db says: {line}"))
            };
            let (offset, start, count) = (number("offset"), number("startblock"), number("count"));
            let (ag, block) = geometry.split_block(FsBlock(start)).expect("a block of the volume");
            let DiskAddr(daddr) = geometry.daddr_of(ag, block);
            for nth in 0..count {
                let daddr = daddr + (nth << (geometry.block_log - 9));
                let bytes = self.bytes(daddr << 9, geometry.block_size as usize);
                fork.map(FileBlock(offset + nth), DiskAddr(daddr), bytes);
            }
        }
    }
}

/// Every legal byte as a name of one byte, and names of mixed bytes.
pub fn legal_names() -> Vec<Vec<u8>> {
    let single = (1..=255u8).filter(|&byte| byte != b'/' && byte != b'.').map(|byte| vec![byte]);
    let long = (1..=255u8).filter(|&byte| byte != b'/').map(|byte| vec![byte; 3 + usize::from(byte) % 253]);
    single.chain(long).collect()
}

/// The seed of a randomized test: `XFS_TEST_SEED`, or a new one. It is printed, so that a failure can be replayed.
pub fn seed() -> u64 {
    let seed = std::env::var("XFS_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("replay with XFS_TEST_SEED={seed}");
    seed
}
