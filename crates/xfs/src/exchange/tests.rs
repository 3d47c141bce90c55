//! Exchanges that a kernel has in the log while it repairs a mounted volume: of attribute forks, directories and
//! symlink targets. The kernel recovers one copy of the log, we another.
//!
//! When all is done, the kernel shrinks small forks into the inode. Kernels up to 6.18 that recover such an exchange do
//! that first, and fail. Only we recover those.

use crate::attr::Namespace;
use crate::attr::edit::SetXattr;
use crate::exchange;
use crate::inode::ForkKind;
use crate::mkfs::{Before, Features, Options, format, plan};
use crate::namespace::{self, NewInode, XattrChange};
use crate::setattr;
use crate::trans::Trans;
use crate::trans::reservation::ReservationBuilder;
use crate::volume::{InodeHandle, OpenOptions, Volume};
use blockdev::{BlockDevice, Durability, MemoryDevice};
use oracles::{Mounted, xfsprogs::Release};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use xfs_format::bmbt::Extent;
use xfs_format::checksum;
use xfs_format::log::{Exchange, ExchangeFlags};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, InodeNumber, Uuid};

const BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
}

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Volume> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    Volume::open(Arc::clone(device), &options).unwrap()
}

/// A volume without parent pointers, which would have to change along with the names.
fn made() -> Arc<dyn BlockDevice> {
    let device = memory();
    let features = Features { parent_pointers: false, ..Features::of_kernel("6.18").unwrap() };
    assert!(features.exchange && features.rmapbt);
    let new = Options { small: true, features, ..Options::new(Uuid([7; 16]), NOW) };
    format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
    device
}

fn bytes_of(device: &Arc<dyn BlockDevice>) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// What a kernel's repair exchanges between two inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// This many attributes each.
    Attributes(usize),
    /// Directories of this many names each.
    Dirs(usize),
    Links,
}

/// Start of the hash index of a directory.
const DIR_LEAF: u64 = (32 << 30) / BLOCK as u64;

impl Of {
    fn kind(self) -> ForkKind {
        if matches!(self, Self::Attributes(_)) { ForkKind::Attr } else { ForkKind::Data }
    }

    /// One of the two inodes.
    fn make(self, volume: &Arc<Volume>, root: &InodeHandle, name: &str) -> InodeNumber {
        let other = |nth: usize| format!("{name}-{nth:03}-{}", "x".repeat(30));
        match self {
            Self::Attributes(count) => {
                let file =
                    namespace::create(volume, root, name.as_bytes(), &NewInode::for_tests(0o100_644, NOW))
                        .unwrap();
                for nth in 0..count {
                    let change = XattrChange::Set(name.as_bytes(), SetXattr::Either);
                    let attr = other(nth);
                    setattr::change_xattr(volume, &file, Namespace::User, attr.as_bytes(), change, NOW)
                        .unwrap();
                }
                file.ino()
            }
            Self::Dirs(count) => {
                let dir =
                    namespace::create(volume, root, name.as_bytes(), &NewInode::for_tests(0o40_755, NOW))
                        .unwrap();
                for nth in 0..count {
                    let new = NewInode::for_tests(0o100_644, NOW);
                    namespace::create(volume, &dir, other(nth).as_bytes(), &new).unwrap();
                }
                dir.ino()
            }
            Self::Links => {
                let target = format!("/{}", format!("{name}/").repeat(200));
                let new = NewInode::for_tests(0o120_777, NOW);
                namespace::symlink(volume, root, name.as_bytes(), target.as_bytes(), &new).unwrap().ino()
            }
        }
    }

    /// Whether a kernel recovers it.
    fn kernel_recovers(self) -> bool {
        !matches!(self, Self::Attributes(20) | Self::Dirs(40))
    }

    /// Offsets of the owner and of the checksum in a block.
    fn owner_at(self, block: FileBlock) -> [usize; 2] {
        match self {
            Self::Dirs(_) if block.0 < DIR_LEAF => [40, 4],
            Self::Dirs(_) | Self::Attributes(_) => [48, 12],
            Self::Links => [32, 12],
        }
    }

    /// Makes blocks as the repair does: they already have the other inode as owner.
    fn disown(self, device: &Arc<dyn BlockDevice>, owner: InodeNumber, blocks: &[(FileBlock, u64)]) {
        for &(nth, at) in blocks {
            let [owner_at, crc_at] = self.owner_at(nth);
            let mut block = vec![0; BLOCK];
            device.read(at, &mut block).unwrap();
            block[owner_at..owner_at + 8].copy_from_slice(&owner.0.to_be_bytes());
            if matches!(self, Self::Dirs(_)) && nth.0 == 0 {
                // The first entry, `.`.
                block[64..72].copy_from_slice(&owner.0.to_be_bytes());
            }
            assert!(checksum::store(&mut block, crc_at));
            device.write(at, &block, Durability::Volatile).unwrap();
        }
    }
}

fn extents(volume: &Arc<Volume>, ino: InodeNumber, kind: ForkKind) -> Vec<Extent> {
    let handle = volume.handle(ino).unwrap();
    let list = volume.extents(&handle.entry().current(), kind).unwrap();
    let (mut at, mut all) = (FileBlock(0), Vec::new());
    while let Some(extent) = list.ending_behind(at) {
        at = extent.end();
        all.push(extent);
    }
    all
}

/// A volume whose log has the exchange intent and nothing more.
fn promised(of: Of) -> Vec<u8> {
    let device = made();
    let volume = open(&device);
    let root = volume.handle(volume.geometry().root).unwrap();
    let inodes = ["one", "two"].map(|name| of.make(&volume, &root, name));
    let maps = inodes.map(|ino| extents(&volume, ino, of.kind()));
    assert!(maps.iter().all(|map| !map.is_empty()), "{of:?}: {maps:?}");
    let blocks_of = |extent: &Extent| {
        let at = volume.geometry().extent_daddr(extent.startblock, extent.blockcount.into()).unwrap();
        let startoff = extent.startoff.0;
        let block = move |nth: u64| (FileBlock(startoff + nth), at.0 * 512 + nth * BLOCK as u64);
        (0..u64::from(extent.blockcount)).map(block)
    };
    let places = maps.each_ref().map(|map| map.iter().flat_map(blocks_of).collect::<Vec<_>>());
    let blocks = maps.iter().flatten().map(|extent| extent.end().0).max().unwrap();
    volume.close().unwrap();
    drop((root, volume));
    of.disown(&device, inodes[1], &places[0]);
    of.disown(&device, inodes[0], &places[1]);

    let volume = open(&device);
    let entries = inodes.map(|ino| Arc::clone(volume.handle(ino).unwrap().entry()));
    let need = ReservationBuilder::new(volume.geometry())
        .inodes(2)
        .maps_at_once(1)
        .exchange_at_once()
        .blocks(64)
        .log_count(2);
    let mut promise = Trans::start(&volume, need.build()).unwrap();
    for entry in &entries {
        promise.join_inode(Arc::clone(entry), entry.ilock()).unwrap();
    }
    let mut flags = ExchangeFlags::empty();
    flags.set(ExchangeFlags::ATTR_FORK, of.kind() == ForkKind::Attr);
    let todo = Exchange {
        inodes,
        generations: inodes.map(|ino| promise.inode(ino).core().generation),
        offsets: [FileBlock(0); 2],
        blocks,
        flags,
        sizes: [u64::MAX; 2],
    };
    exchange::defer_exchange(&mut promise, todo);
    promise.roll().unwrap();
    volume.sync().unwrap();
    let crashed = bytes_of(&device);
    drop(promise);
    crashed
}

fn said(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {said}");
    said
}

/// What the kernel sees after recovering the log, if necessary. Then it changes everything.
fn by_kernel(image: &Path, mnt: &Path) -> [Vec<String>; 2] {
    let mounted = Mounted::new(image, mnt, "loop");
    let seen = ["one", "two"].map(|name| {
        let text = "cd $1; getfattr -h -d -m - $2; [ -d $2 ] && ls $2; [ -h $2 ] && readlink $2; :";
        let all = said(Command::new("bash").args(["-euc", text, "bash"]).arg(mnt).arg(name));
        let mut lines: Vec<String> = all
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    });
    let text = "cd $1; for f in one two; do if [ -d $f ]; then touch $f/new; rm $f/*-005-*; fi; \
                [ -h $f ] || setfattr -n user.new -v 1 $f; done; sync; rm -r one";
    said(Command::new("bash").args(["-euc", text, "bash"]).arg(mnt));
    drop(mounted);
    repair_finds_nothing(image);
    seen
}

fn repair_finds_nothing(image: &Path) {
    said(Release::Unstable.tool("xfs_repair").unwrap().args(["-n", "-o", "force_geometry"]).arg(image));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_a_repair_of_a_mounted_volume_left_unfinished_is_exchanged() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (image, mnt) = (dir.path().join("image"), dir.path().join("mnt"));
    for of in [Of::Attributes(400), Of::Dirs(200), Of::Links, Of::Attributes(20), Of::Dirs(40)] {
        let crashed = promised(of);
        let kernels = of.kernel_recovers().then(|| {
            std::fs::write(&image, &crashed).unwrap();
            by_kernel(&image, &mnt)
        });
        let device = memory();
        device.write(0, &crashed, Durability::Volatile).unwrap();
        let volume = open(&device);
        let report = volume.recovery().expect("the log was dirty");
        assert!(report.unfinished.iter().any(|what| what.contains("XMI")), "{report:?}");
        volume.close().unwrap();
        drop(volume);
        std::fs::write(&image, bytes_of(&device)).unwrap();
        repair_finds_nothing(&image);
        let ours = by_kernel(&image, &mnt);
        for (lines, other) in ours.iter().zip(["two", "one"]) {
            let of_other = lines.iter().filter(|line| line.contains(other)).count();
            assert!(!lines.is_empty() && of_other == lines.len(), "{of:?}: {lines:?}");
        }
        assert!(kernels.is_none_or(|kernels| kernels == ours), "{of:?}: {ours:?}");
    }
}
