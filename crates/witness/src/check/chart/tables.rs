//! The fields of each structure, as the format has them; checksums are left out, as they are always put right.

use super::Field;

pub(super) const SUPERBLOCK: &[Field] = &[
    ("magic", 0, 4),
    ("blocksize", 4, 4),
    ("dblocks", 8, 8),
    ("rblocks", 16, 8),
    ("rextents", 24, 8),
    ("uuid", 32, 16),
    ("logstart", 48, 8),
    ("rootino", 56, 8),
    ("rbmino", 64, 8),
    ("rsumino", 72, 8),
    ("rextsize", 80, 4),
    ("agblocks", 84, 4),
    ("agcount", 88, 4),
    ("rbmblocks", 92, 4),
    ("logblocks", 96, 4),
    ("versionnum", 100, 2),
    ("sectsize", 102, 2),
    ("inodesize", 104, 2),
    ("inopblock", 106, 2),
    ("fname", 108, 12),
    ("blocklog", 120, 1),
    ("sectlog", 121, 1),
    ("inodelog", 122, 1),
    ("inopblog", 123, 1),
    ("agblklog", 124, 1),
    ("rextslog", 125, 1),
    ("inprogress", 126, 1),
    ("imax_pct", 127, 1),
    ("icount", 128, 8),
    ("ifree", 136, 8),
    ("fdblocks", 144, 8),
    ("frextents", 152, 8),
    ("uquotino", 160, 8),
    ("gquotino", 168, 8),
    ("qflags", 176, 2),
    ("flags", 178, 1),
    ("shared_vn", 179, 1),
    ("inoalignmt", 180, 4),
    ("unit", 184, 4),
    ("width", 188, 4),
    ("dirblklog", 192, 1),
    ("logsectlog", 193, 1),
    ("logsectsize", 194, 2),
    ("logsunit", 196, 4),
    ("features2", 200, 4),
    ("bad_features2", 204, 4),
    ("features_compat", 208, 4),
    ("features_ro_compat", 212, 4),
    ("features_incompat", 216, 4),
    ("features_log_incompat", 220, 4),
    ("spino_align", 228, 4),
    ("pquotino", 232, 8),
    ("lsn", 240, 8),
    ("meta_uuid", 248, 16),
    ("behind the structure", 264, 16),
];

pub(super) const AGF: &[Field] = &[
    ("magic", 0, 4),
    ("version", 4, 4),
    ("seqno", 8, 4),
    ("length", 12, 4),
    ("bno_root", 16, 4),
    ("cnt_root", 20, 4),
    ("rmap_root", 24, 4),
    ("bno_level", 28, 4),
    ("cnt_level", 32, 4),
    ("rmap_level", 36, 4),
    ("flfirst", 40, 4),
    ("fllast", 44, 4),
    ("flcount", 48, 4),
    ("freeblks", 52, 4),
    ("longest", 56, 4),
    ("btreeblks", 60, 4),
    ("uuid", 64, 16),
    ("rmap_blocks", 80, 4),
    ("refcount_blocks", 84, 4),
    ("refcount_root", 88, 4),
    ("refcount_level", 92, 4),
    ("spare", 96, 8),
    ("lsn", 208, 8),
];

pub(super) const AGI: &[Field] = &[
    ("magic", 0, 4),
    ("version", 4, 4),
    ("seqno", 8, 4),
    ("length", 12, 4),
    ("count", 16, 4),
    ("root", 20, 4),
    ("level", 24, 4),
    ("freecount", 28, 4),
    ("newino", 32, 4),
    ("dirino", 36, 4),
    ("uuid", 296, 16),
    ("pad", 316, 4),
    ("lsn", 320, 8),
    ("free_root", 328, 4),
    ("free_level", 332, 4),
    ("iblocks", 336, 4),
    ("fblocks", 340, 4),
];

pub(super) const AGFL: &[Field] = &[("magic", 0, 4), ("seqno", 4, 4), ("uuid", 8, 16), ("lsn", 24, 8)];

/// The header of a block of a group's tree.
pub(super) const SHORT_TREE: &[Field] = &[
    ("magic", 0, 4),
    ("level", 4, 2),
    ("numrecs", 6, 2),
    ("leftsib", 8, 4),
    ("rightsib", 12, 4),
    ("blkno", 16, 8),
    ("lsn", 24, 8),
    ("uuid", 32, 16),
    ("owner", 48, 4),
];

/// The header of a block of a fork's map.
pub(super) const LONG_TREE: &[Field] = &[
    ("magic", 0, 4),
    ("level", 4, 2),
    ("numrecs", 6, 2),
    ("leftsib", 8, 8),
    ("rightsib", 16, 8),
    ("blkno", 24, 8),
    ("lsn", 32, 8),
    ("uuid", 40, 16),
    ("owner", 56, 8),
    ("pad", 68, 4),
];

pub(super) const SPACE: &[Field] = &[("startblock", 0, 4), ("blockcount", 4, 4)];
pub(super) const REFCOUNT: &[Field] = &[("startblock", 0, 4), ("blockcount", 4, 4), ("refcount", 8, 4)];
pub(super) const REFCOUNT_KEY: &[Field] = &[("key startblock", 0, 4)];
pub(super) const CHUNK: &[Field] = &[("startino", 0, 4), ("freecount", 4, 4), ("free", 8, 8)];
pub(super) const SPARSE_CHUNK: &[Field] =
    &[("startino", 0, 4), ("holemask", 4, 2), ("count", 6, 1), ("freecount", 7, 1), ("free", 8, 8)];
pub(super) const CHUNK_KEY: &[Field] = &[("key startino", 0, 4)];
pub(super) const SPACE_KEY: &[Field] = &[("key startblock", 0, 4), ("key blockcount", 4, 4)];
pub(super) const RMAP: &[Field] = &[("startblock", 0, 4), ("blockcount", 4, 4), ("owner", 8, 8)];
pub(super) const RMAP_KEY: &[Field] = &[
    ("low key startblock", 0, 4),
    ("low key owner", 4, 8),
    ("low key offset", 12, 8),
    ("high key startblock", 20, 4),
    ("high key owner", 24, 8),
    ("high key offset", 32, 8),
];

/// The core of an inode, without what depends on large extent counts.
pub(super) const INODE: &[Field] = &[
    ("magic", 0, 2),
    ("mode", 2, 2),
    ("version", 4, 1),
    ("format", 5, 1),
    ("onlink", 6, 2),
    ("uid", 8, 4),
    ("gid", 12, 4),
    ("nlink", 16, 4),
    ("projid_lo", 20, 2),
    ("projid_hi", 22, 2),
    ("atime", 32, 8),
    ("mtime", 40, 8),
    ("ctime", 48, 8),
    ("size", 56, 8),
    ("nblocks", 64, 8),
    ("extsize", 72, 4),
    ("forkoff", 82, 1),
    ("aformat", 83, 1),
    ("dmevmask", 84, 4),
    ("dmstate", 88, 2),
    ("flags", 90, 2),
    ("gen", 92, 4),
    ("next_unlinked", 96, 4),
    ("changecount", 104, 8),
    ("lsn", 112, 8),
    ("flags2", 120, 8),
    ("cowextsize", 128, 4),
    ("pad2", 132, 12),
    ("crtime", 144, 8),
    ("ino", 152, 8),
    ("uuid", 160, 16),
];
pub(super) const SMALL_COUNTS: &[Field] =
    &[("pad", 24, 6), ("flushiter", 30, 2), ("nextents", 76, 4), ("anextents", 80, 2)];
pub(super) const LARGE_COUNTS: &[Field] =
    &[("big_nextents", 24, 8), ("big_anextents", 76, 4), ("nrext64_pad", 80, 2)];

pub(super) const DIR_DATA: &[Field] = &[
    ("magic", 0, 4),
    ("blkno", 8, 8),
    ("lsn", 16, 8),
    ("uuid", 24, 16),
    ("owner", 40, 8),
    ("bestfree offset", 48, 2),
    ("bestfree length", 50, 2),
    ("bestfree 2 offset", 52, 2),
    ("bestfree 2 length", 54, 2),
    ("bestfree 3 offset", 56, 2),
    ("bestfree 3 length", 58, 2),
    ("pad", 60, 4),
];
pub(super) const DIR_FREE: &[Field] = &[
    ("magic", 0, 4),
    ("blkno", 8, 8),
    ("lsn", 16, 8),
    ("uuid", 24, 16),
    ("owner", 40, 8),
    ("firstdb", 48, 4),
    ("nvalid", 52, 4),
    ("nused", 56, 4),
    ("pad", 60, 4),
];
/// The header of leaves and nodes of directories and attributes.
pub(super) const DA: &[Field] = &[
    ("forw", 0, 4),
    ("back", 4, 4),
    ("magic", 8, 2),
    ("pad", 10, 2),
    ("blkno", 16, 8),
    ("lsn", 24, 8),
    ("uuid", 32, 16),
    ("owner", 48, 8),
];
pub(super) const DIR_LEAF: &[Field] = &[("count", 56, 2), ("stale", 58, 2), ("pad2", 60, 4)];
pub(super) const DA_NODE: &[Field] = &[("count", 56, 2), ("level", 58, 2), ("pad2", 60, 4)];
pub(super) const ATTR_LEAF: &[Field] = &[
    ("count", 56, 2),
    ("usedbytes", 58, 2),
    ("firstused", 60, 2),
    ("holes", 62, 1),
    ("pad1", 63, 1),
    ("freemap base", 64, 2),
    ("freemap size", 66, 2),
    ("freemap 2 base", 68, 2),
    ("freemap 2 size", 70, 2),
    ("freemap 3 base", 72, 2),
    ("freemap 3 size", 74, 2),
    ("pad2", 76, 4),
];
pub(super) const HASHED: &[Field] = &[("hash", 0, 4), ("address", 4, 4)];
pub(super) const NODE_ENTRY: &[Field] = &[("hash", 0, 4), ("before", 4, 4)];
pub(super) const ATTR_ENTRY: &[Field] =
    &[("hash", 0, 4), ("nameidx", 4, 2), ("flags", 6, 1), ("entry pad", 7, 1)];
/// The header of blocks of remote values and of targets of symbolic links.
pub(super) const REMOTE: &[Field] = &[
    ("magic", 0, 4),
    ("offset", 4, 4),
    ("bytes", 8, 4),
    ("uuid", 16, 16),
    ("owner", 32, 8),
    ("blkno", 40, 8),
    ("lsn", 48, 8),
];
