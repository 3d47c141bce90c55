//! Each inode: that the trees and the inode agree on whether it is in use, its core, and the maps of its forks.

use super::map::{ForkOf, Map, WhichFork};
use super::report::FindingPlace;
use super::{Check, attr, inode_trees, map, quota, symlink, unused};
use crate::error::Result;
use blockdev::AlignedBuf;
use xfs_format::ag::NULL_AG_BLOCK;
use xfs_format::error::FormatError;
use xfs_format::inode::{Dinode, ForkFormat, InodeCore, InodeFlags, InodeFlags2, InodeType};
use xfs_format::records::{INODES_PER_CHUNK, InodeChunk};
use xfs_format::types::{AgBlock, AgInode, AgNumber, DiskAddr, InodeNumber};
use zerocopy::FromBytes;

const NAME: &str = "inode";
/// Flags that new entries of a directory inherit. Only directories have these.
const OF_DIRECTORIES: InodeFlags =
    InodeFlags::RTINHERIT.union(InodeFlags::PROJINHERIT).union(InodeFlags::NOSYMLINKS);

/// The inodes of one chunk as they are on the device.
struct Cluster {
    /// The inode at the start of the bytes.
    first: u32,
    bytes: AlignedBuf,
}

/// Checks all inodes of all groups.
pub(super) fn check_all(check: &mut Check<'_>) -> Result<()> {
    for ag in check.groups() {
        let mut index = 0;
        while let Some(chunk) = check.inodes.chunk(ag, index) {
            let chunk = InodeChunk { start: chunk.start, holes: chunk.holes, free: chunk.free };
            for (block, blocks) in inode_trees::blocks(check.geometry(), &chunk) {
                let cluster = read_cluster(check, ag, (block, blocks))?;
                check_cluster(check, ag, &chunk, &cluster, blocks)?;
            }
            index += 1;
        }
    }
    check_special(check);
    Ok(())
}

fn read_cluster(check: &Check<'_>, ag: AgNumber, (block, blocks): (u32, u32)) -> Result<Cluster> {
    let geometry = check.geometry();
    let bytes =
        check.reader.raw(geometry.daddr_of(ag, AgBlock(block)), u64::from(blocks) << geometry.block_log)?;
    Ok(Cluster { first: block << geometry.inodes_per_block_log, bytes })
}

fn check_cluster(
    check: &mut Check<'_>,
    ag: AgNumber,
    chunk: &InodeChunk,
    cluster: &Cluster,
    blocks: u32,
) -> Result<()> {
    let size = usize::from(check.geometry().inode_size);
    let behind = u64::from(cluster.first) + (u64::from(blocks) << check.geometry().inodes_per_block_log);
    for index in (0..INODES_PER_CHUNK).filter(|index| chunk.holes >> index & 1 == 0) {
        if check.report.stopped() {
            return Ok(());
        }
        let inode = AgInode(chunk.start.0 + index);
        if inode.0 < cluster.first || u64::from(inode.0) >= behind {
            continue;
        }
        let at = (inode.0 - cluster.first) as usize * size;
        let bytes = cluster.bytes.get(at..at + size).unwrap_or_default();
        let ino = check.geometry().join_inode(ag, inode);
        check_inode(check, ino, bytes, chunk.free >> index & 1 == 1)?;
    }
    Ok(())
}

/// Reads again an inode that was seen before.
pub(super) fn read(check: &Check<'_>, ino: InodeNumber) -> Result<Option<(InodeCore, Vec<u8>)>> {
    let geometry = check.geometry();
    let Some((ag, inode)) = geometry.split_inode(ino) else { return Ok(None) };
    let block = inode.0 >> geometry.inodes_per_block_log;
    let daddr: DiskAddr = geometry.daddr_of(ag, AgBlock(block));
    let bytes = check.reader.raw(daddr, geometry.block_size.into())?;
    let size = usize::from(geometry.inode_size);
    let at = (inode.0 - (block << geometry.inodes_per_block_log)) as usize * size;
    let bytes = bytes.get(at..at + size).unwrap_or_default().to_vec();
    Ok(InodeCore::parse(&bytes, ino, geometry).ok().flatten().map(|core| (core, bytes)))
}

fn check_inode(check: &mut Check<'_>, ino: InodeNumber, bytes: &[u8], free: bool) -> Result<()> {
    let place = FindingPlace::inode(ino);
    let core = match InodeCore::parse(bytes, ino, check.geometry()) {
        Ok(core) => core,
        Err(problem) => {
            check.report.add(place, problem);
            if !free {
                check.lose_inode(ino);
            }
            return Ok(());
        }
    };
    let next_unlinked =
        Dinode::ref_from_prefix(bytes).map_or(NULL_AG_BLOCK, |(raw, _)| raw.next_unlinked.get());
    unused::check(check, ino, bytes, core.is_none());
    match (core, free) {
        (None, true) => {
            if check.geometry().v5 && next_unlinked != NULL_AG_BLOCK {
                let problem =
                    FormatError::value(NAME, "next unlinked inode of a free one", next_unlinked.into());
                check.report.add(place, problem);
            }
            Ok(())
        }
        (None, false) => {
            check.report.add(place, FormatError::new(NAME, "mode: free, and in use for the inode tree"));
            check.lose_inode(ino);
            Ok(())
        }
        (Some(core), true) => {
            let problem =
                FormatError::value(NAME, "mode: in use, and free for the inode tree", core.mode.into());
            check.report.add(place, problem);
            // It may own blocks that the free space trees list as used, and it may have names.
            check.report.owners_known = false;
            Ok(())
        }
        (Some(core), false) => check_used(check, ino, &core, bytes, next_unlinked),
    }
}

fn check_used(
    check: &mut Check<'_>,
    ino: InodeNumber,
    core: &InodeCore,
    bytes: &[u8],
    next_unlinked: u32,
) -> Result<()> {
    let place = FindingPlace::inode(ino);
    check.report.counts.inodes += 1;
    check.inodes.note(ino, core.kind, core.nlink);
    if core.nlink != 0 && next_unlinked != NULL_AG_BLOCK {
        let problem = FormatError::value(NAME, "next unlinked inode of a linked one", next_unlinked.into());
        check.report.add(place, problem);
    }
    check_core(check, ino, core);
    let fork = |which| ForkOf { ino, core, bytes, which };
    let (data, attrs) = (fork(WhichFork::Data), fork(WhichFork::Attr));
    // Directories are walked later, symbolic links and attributes now.
    let data_map = map::load(check, &data, true, core.kind == InodeType::Symlink)?;
    let attr_map = map::load(check, &attrs, true, true)?;
    if data_map.sound && attr_map.sound {
        let blocks = data_map.blocks + attr_map.blocks;
        check.report.same(place, NAME, "block count", core.nblocks, blocks);
    }
    quota::note(check, ino, core, bytes, data_map.blocks + attr_map.blocks);
    if !data_map.sound || !attr_map.sound {
        check.report.owners_known = false;
    }
    check_size(check, ino, core, &data_map);
    match core.kind {
        InodeType::Directory if !data_map.sound => check.lose_inode(ino),
        InodeType::Symlink if data_map.sound => symlink::check(check, &data, &data_map)?,
        _ => {}
    }
    // Nobody looks up attributes of an inode without a name, and a crash may have come while they were being freed.
    if attr_map.sound && core.attr.is_some() && core.nlink != 0 {
        let before = check.report.total();
        attr::check(check, &attrs, &attr_map)?;
        if check.report.total() != before {
            check.parents.lose(ino);
        }
    } else if !attr_map.sound || core.nlink == 0 {
        check.parents.lose(ino);
    }
    Ok(())
}

/// Flags, hints and times.
fn check_core(check: &mut Check<'_>, ino: InodeNumber, core: &InodeCore) {
    let place = FindingPlace::inode(ino);
    let ag_blocks = check.geometry().ag_blocks;
    let (file, dir) = (core.kind == InodeType::Regular, core.kind == InodeType::Directory);
    let mut wrong = |what, found: u64| check.report.add(place, FormatError::value(NAME, what, found));
    let (flags, flags2) = (core.flags, core.flags2);
    // v4 inodes have flags and hints that kernels did not check for a long time.
    let hint = flags.intersects(InodeFlags::EXTSIZE | InodeFlags::EXTSZINHERIT);
    if flags.contains(InodeFlags::EXTSIZE) && !file || flags.contains(InodeFlags::EXTSZINHERIT) && !dir {
        wrong("flags: extent size hint", flags.bits().into());
    }
    if hint && core.extsize == 0 || !hint && core.extsize != 0 || core.extsize > ag_blocks / 2 {
        wrong("extent size hint", core.extsize.into());
    }
    if flags.intersects(OF_DIRECTORIES) && !dir {
        wrong("flags: those of a directory", flags.bits().into());
    }
    if flags2.contains(InodeFlags2::COWEXTSIZE) && !(file || dir) {
        wrong("flags2: copy-on-write extent size hint", flags2.bits());
    }
    let cow_hint = flags2.contains(InodeFlags2::COWEXTSIZE);
    if cow_hint != (core.cowextsize != 0) || core.cowextsize > ag_blocks / 2 {
        wrong("copy-on-write extent size hint", core.cowextsize.into());
    }
    if flags2.contains(InodeFlags2::REFLINK) && !file {
        wrong("flags2: shared blocks", flags2.bits());
    }
    if flags2.contains(InodeFlags2::DAX) && !(file || dir) {
        wrong("flags2: access as memory", flags2.bits());
    }
    if dir && core.data.format == ForkFormat::Local && core.nlink == 1 {
        // Even an empty directory has two. A removed one has none.
        wrong("link count", core.nlink.into());
    }
    if let Some(attr) = &core.attr
        && attr.format == ForkFormat::Btree
        && attr.nextents == 0
    {
        wrong("attribute extent count", 0);
    }
}

/// Size and map must agree where the user does not choose the size.
fn check_size(check: &mut Check<'_>, ino: InodeNumber, core: &InodeCore, map: &Map) {
    let place = FindingPlace::inode(ino);
    let geometry = check.geometry();
    let (block_log, dir_block) = (geometry.block_log, u64::from(geometry.dir_block_size()));
    let report = &mut check.report;
    match core.kind {
        InodeType::Directory if core.data.format != ForkFormat::Local => {
            if core.size == 0 && core.nlink == 0 && map.end.0 == 0 {
                // A directory that is being removed.
            } else if !core.size.is_multiple_of(dir_block) || core.size == 0 {
                report.add(place, FormatError::mismatch(NAME, "size of a directory", core.size, dir_block));
            }
        }
        InodeType::Symlink if core.size == 0 && core.nlink != 0 => {
            report.add(place, FormatError::value(NAME, "size of a symbolic link", 0));
        }
        InodeType::Regular => {
            // A file's length is limited by the addresses of its blocks.
            let most = u64::MAX >> 1 >> block_log;
            if map.sound && map.end.0 > most + 1 {
                report.add(
                    place,
                    FormatError::mismatch(NAME, "extent behind the largest file", map.end.0, most),
                );
            }
        }
        kind if kind.is_special() && core.size != 0 => {
            report.add(place, FormatError::mismatch(NAME, "size of a special file", core.size, 0));
        }
        _ => {}
    }
}

/// The inodes that the superblock names.
fn check_special(check: &mut Check<'_>) {
    let root = check.geometry().root;
    if !matches!(check.inodes.in_use(root), super::inode_table::Use::Unknown) && check.inodes.is_sound(root) {
        let kind = check.inodes.kind(root);
        if kind != super::inode_table::DIRECTORY {
            let problem = FormatError::value("superblock", "root inode: no directory", root.0);
            check.report.add(FindingPlace::inode(root), problem);
        }
    }
}

impl Check<'_> {
    /// An inode in use cannot be judged.
    fn lose_inode(&mut self, ino: InodeNumber) {
        self.inodes.note_damage(ino);
        self.report.owners_known = false;
        self.report.names_known = false;
    }
}
