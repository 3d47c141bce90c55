//! Images whose logs are read, and what is in those logs.

use oracles::Mounted;
use oracles::xfsprogs::Release;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use xfs_format::error::FormatError;
use xfs_format::log::{
    BLOCK_SIZE, LogEnds, LogIdentity, RecordHeader, RecordOps, find_ends, is_unmount_op, is_unmount_record,
    unpack, verify_checksum,
};
use xfs_format::types::Uuid;

pub(super) fn run(program: &str, args: &[&str]) -> String {
    // The three variables let mkfs make volumes below 300 MB, whose logs are small enough to be written
    // round.
    let out = Command::new(program)
        .args(args)
        .envs([("TEST_DIR", "1"), ("TEST_DEV", "1"), ("QA_CHECK_FS", "1")])
        .output()
        .unwrap_or_else(|e| panic!("{program} is needed for this test: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// An image, and a place to mount it.
pub(super) struct Image {
    dir: TempDir,
}

impl Image {
    pub(super) fn new(size_mib: u64, mkfs: &str) -> Self {
        Self::made_by(Release::System, size_mib, mkfs)
    }

    pub(super) fn made_by(release: Release, size_mib: u64, mkfs: &str) -> Self {
        let image = Self { dir: TempDir::new().unwrap() };
        fs::File::create(image.path()).unwrap().set_len(size_mib << 20).unwrap();
        fs::create_dir(image.mount_point()).unwrap();
        let path = image.path();
        let mut args = vec!["-q"];
        args.extend(mkfs.split_whitespace());
        args.push(path.to_str().unwrap());
        run(release.path("mkfs.xfs").unwrap().to_str().unwrap(), &args);
        image
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Mounts it, lets `work` loose on it, and leaves it clean or as a crash would.
    pub(super) fn mounted(&self, options: &str, crash: bool, work: impl FnOnce(&Path)) {
        let (path, dir) = (self.path(), self.mount_point());
        let options = format!("loop,{options}");
        let mounted = Mounted::new(&path, &dir, &options);
        work(mounted.dir());
        if crash {
            run("xfs_io", &["-x", "-c", "shutdown -f", mounted.dir().to_str().unwrap()]);
        }
    }

    pub(super) fn log(&self) -> Log {
        let image = fs::read(self.path()).unwrap();
        let be32 = |at: usize| u32::from_be_bytes(image[at..at + 4].try_into().unwrap());
        let start = u64::from_be_bytes(image[48..56].try_into().unwrap());
        let (block, ag_blocks, ag_log) = (be32(4) as usize, be32(84) as u64, image[124]);
        let block_of_log = (start >> ag_log) * ag_blocks + (start & ((1 << ag_log) - 1));
        let at = block_of_log as usize * block;
        Log {
            bytes: image[at..at + be32(96) as usize * block].to_vec(),
            identity: LogIdentity {
                v5: image[101] & 0xf == 5,
                uuid: Uuid(image[32..48].try_into().unwrap()),
            },
        }
    }
}

pub(super) struct Log {
    pub(super) bytes: Vec<u8>,
    identity: LogIdentity,
}

impl Log {
    pub(super) fn blocks(&self) -> u32 {
        (self.bytes.len() / BLOCK_SIZE) as u32
    }

    pub(super) fn ends(&self) -> LogEnds {
        find_ends::<FormatError, _>(self.blocks(), &self.identity, |block, buf| {
            let at = block as usize * BLOCK_SIZE;
            buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
            Ok(())
        })
        .unwrap()
    }

    pub(super) fn header(&self, block: u32) -> RecordHeader {
        *RecordHeader::check(&self.bytes[block as usize * BLOCK_SIZE..], &self.identity).unwrap()
    }

    /// The whole record at `block`, its checksum checked, unpacked.
    pub(super) fn record(&self, block: u32) -> (RecordHeader, Vec<u8>) {
        let header = self.header(block);
        let mut bytes = Vec::new();
        for i in 0..header.total_blocks() {
            let at = ((block + i) % self.blocks()) as usize * BLOCK_SIZE;
            bytes.extend(&self.bytes[at..at + BLOCK_SIZE]);
        }
        verify_checksum(&header, &bytes, &self.identity).unwrap();
        if is_unmount_record(&header, &bytes[header.header_blocks() as usize * BLOCK_SIZE..]) {
            let data = unpack(&header, &mut bytes.clone()).unwrap().to_vec();
            assert!(is_unmount_op(&RecordOps::new(&data, 1).next().unwrap().unwrap()));
        }
        let data = unpack(&header, &mut bytes).unwrap().to_vec();
        (header, data)
    }

    /// Blocks of all the records from the log's tail to its head.
    pub(super) fn live_records(&self, ends: &LogEnds) -> Vec<u32> {
        let mut at = ends.tail.0 as u32;
        let mut blocks = Vec::new();
        while at != ends.head {
            assert!(blocks.len() < self.blocks() as usize, "the head is never reached");
            blocks.push(at);
            at = (at + self.header(at).total_blocks()) % self.blocks();
        }
        blocks
    }
}
