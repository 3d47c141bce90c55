//! Volumes that nobody made honestly: inodes and blocks changed, and their checksums put right.

use super::{Image, scratch, uxfs_ok};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use xfs_format::checksum;
use xfs_format::log::{BLOCK_SIZE, ItemType, RecordHeader, TransHeader, pack};
use xfs_format::superblock::Superblock;
use xfs_format::types::Lsn;
use zerocopy::IntoBytes;

/// Where a v5 inode has its checksum, and its data fork.
const INODE_CRC: usize = 100;
const FORK: usize = 176;
/// Bytes an inode.
const INODE: usize = 512;

/// Types as directories say them.
pub const REGULAR: u8 = 1;
pub const DIRECTORY: u8 = 2;
pub const SYMLINK: u8 = 7;

/// A small volume of one group, with blocks of 4096 bytes and inodes of 512.
pub struct Forged {
    pub dir: TempDir,
    pub path: PathBuf,
}

impl Forged {
    /// An empty one.
    pub fn new(size: &str) -> Self {
        let dir = scratch();
        let path = dir.path().join("volume.img");
        uxfs_ok(&[&"mkfs", &"-q", &"--small", &path, &size]);
        Self { dir, path }
    }

    /// One with what is in a directory of the host.
    pub fn of(size: &str, tree: &Path) -> Self {
        let forged = Self::new(size);
        uxfs_ok(&[&"cp", &"-a", &tree.join("."), &forged.at("/")]);
        forged
    }

    /// A path in it, as an argument.
    pub fn at(&self, path: &str) -> OsString {
        let mut argument = self.path.clone().into_os_string();
        argument.push(":");
        argument.push(path);
        argument
    }

    /// The inode number of a path.
    pub fn ino(&self, path: &str) -> u64 {
        let stat = uxfs_ok(&[&"stat", &"--json", &self.at(path)]);
        let stat: serde_json::Value = serde_json::from_slice(&stat).unwrap();
        stat["ino"].as_u64().unwrap()
    }

    /// Changes an inode.
    pub fn inode(&self, ino: u64, change: impl FnOnce(&mut [u8])) {
        self.sealed(ino as usize * INODE, INODE, INODE_CRC, change);
    }

    /// Changes a structure that has its checksum at `crc`.
    pub fn sealed(&self, at: usize, len: usize, crc: usize, change: impl FnOnce(&mut [u8])) {
        let mut bytes = std::fs::read(&self.path).unwrap();
        let structure = &mut bytes[at..at + len];
        change(structure);
        assert!(checksum::store(structure, crc));
        std::fs::write(&self.path, bytes).unwrap();
    }

    /// Gives a directory other entries, as many as fit into its inode: name, type, inode number.
    pub fn entries(&self, dir: u64, parent: u64, entries: &[(&[u8], u8, u64)]) {
        let mut fork = vec![entries.len() as u8, 0];
        fork.extend((parent as u32).to_be_bytes());
        let mut offset = 0x60_u16;
        for &(name, file_type, ino) in entries {
            fork.push(name.len() as u8);
            fork.extend(offset.to_be_bytes());
            fork.extend(name);
            fork.push(file_type);
            fork.extend((ino as u32).to_be_bytes());
            offset += (name.len() as u16 + 12).next_multiple_of(8);
        }
        self.inode(dir, |inode| {
            inode[5] = 1;
            inode[56..64].copy_from_slice(&(fork.len() as u64).to_be_bytes());
            inode[FORK..FORK + fork.len()].copy_from_slice(&fork);
        });
    }
}

impl From<Image> for Forged {
    fn from(image: Image) -> Self {
        Self { dir: image.dir, path: image.path }
    }
}

/// Where the log of a new volume goes on: behind one record of a header and a block, in cycle 1.
const LOG_HEAD: u64 = 2;
/// The number of a transaction in the log, and of an intent in it.
const TID: u32 = 7;
/// The client of the log that all transactions are of.
const TRANSACTION: u8 = 0x69;

impl Forged {
    /// Gives the log of a new volume a transaction that promises to free an extent, by an intent of one kind or another,
    /// and does no more.
    pub fn promises_to_free(&self, kind: ItemType, block: u64, count: u32) {
        let mut intent = [(kind as u16).to_le_bytes(), 1_u16.to_le_bytes()].concat();
        intent.extend(1_u32.to_le_bytes());
        intent.extend(u64::from(TID).to_le_bytes());
        intent.extend(block.to_le_bytes());
        intent.extend([count.to_le_bytes(), [0; 4]].concat());
        let header = TransHeader::checkpoint(TID, 1);
        let ops = [(1, &[][..]), (0, header.as_bytes()), (0, &intent), (2, &[])];
        let data: Vec<u8> = ops.iter().flat_map(|&(flags, region)| operation(flags, region)).collect();

        let mut bytes = std::fs::read(&self.path).unwrap();
        let superblock = Superblock::parse(&bytes[..512]).unwrap();
        let lsn = Lsn(1 << 32 | LOG_HEAD);
        let mut header = RecordHeader::new(superblock.uuid(), lsn, lsn, 32 << 10);
        header.num_logops.set(ops.len() as u32);
        header.len.set(BLOCK_SIZE as u32);
        let mut record = vec![0; 2 * BLOCK_SIZE];
        record[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
        record[BLOCK_SIZE..BLOCK_SIZE + data.len()].copy_from_slice(&data);
        pack(&mut record, None).unwrap();
        let at = (superblock.log_daddr().0 + LOG_HEAD) as usize * BLOCK_SIZE;
        bytes[at..at + record.len()].copy_from_slice(&record);
        std::fs::write(&self.path, bytes).unwrap();
    }
}

/// An operation of a log record: its header and its region.
fn operation(flags: u8, region: &[u8]) -> Vec<u8> {
    let len = region.len() as u32;
    [&TID.to_be_bytes()[..], &len.to_be_bytes(), &[TRANSACTION, flags, 0, 0], region].concat()
}

/// An extent record: where in the file, where on the volume, and how many blocks.
pub fn extent(offset: u64, block: u64, count: u64) -> [u8; 16] {
    (u128::from(offset) << 73 | u128::from(block) << 21 | u128::from(count)).to_be_bytes()
}
