//! Feature bits of the superblock. What is done with volumes that have one: see [`crate::feature_table`].

use bitflags::bitflags;

bitflags! {
    /// Bits of `sb_versionnum` above the version itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct VersionFlags: u16 {
        /// Inodes may have attribute forks.
        const ATTR = 0x0010;
        /// 32-bit link counts: version 2 inodes.
        const NLINK = 0x0020;
        /// Quota inodes exist.
        const QUOTA = 0x0040;
        /// Inode chunks are aligned (`sb_inoalignmt`).
        const ALIGN = 0x0080;
        /// Data are aligned (`sb_unit`, `sb_width`).
        const DALIGN = 0x0100;
        /// `sb_shared_vn` is in use. Never by Linux.
        const SHARED = 0x0200;
        /// Version 2 log records.
        const LOGV2 = 0x0400;
        /// Sectors are larger than 512 bytes.
        const SECTOR = 0x0800;
        /// Extents carry the unwritten flag.
        const EXTFLG = 0x1000;
        /// Version 2 directories.
        const DIRV2 = 0x2000;
        /// Directory hashes ignore the case of ASCII letters.
        const BORG = 0x4000;
        /// `sb_features2` is in use.
        const MOREBITS = 0x8000;
    }
}

bitflags! {
    /// `sb_features2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Features2: u32 {
        /// Free counters of the superblock are written only at unmount.
        const LAZYSBCOUNT = 0x0002;
        /// The attribute fork's offset is flexible.
        const ATTR2 = 0x0008;
        /// An old form of parent pointers. Never shipped on Linux.
        const PARENT = 0x0010;
        /// 32-bit project ids.
        const PROJID32 = 0x0080;
        /// Metadata carry checksums (v5).
        const CRC = 0x0100;
        /// Directory entries carry the file's type (v4's bit for it).
        const FTYPE = 0x0200;
    }
}

bitflags! {
    /// `sb_features_ro_compat`: code that does not know one of these may read and must not write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RoCompat: u32 {
        /// A tree of chunks with free inodes in each group.
        const FINOBT = 1 << 0;
        /// A reverse map in each group.
        const RMAPBT = 1 << 1;
        /// Files may share blocks.
        const REFLINK = 1 << 2;
        /// AGI counts the blocks of the inode trees.
        const INOBTCNT = 1 << 3;
    }
}

bitflags! {
    /// `sb_features_incompat`: code that does not know one of these must not touch the volume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Incompat: u32 {
        /// Directory entries carry the file's type.
        const FTYPE = 1 << 0;
        /// Inode chunks may be sparse.
        const SPINODES = 1 << 1;
        /// Metadata carry `sb_meta_uuid`, not `sb_uuid`.
        const META_UUID = 1 << 2;
        /// Timestamps may be 64-bit nanosecond counts.
        const BIGTIME = 1 << 3;
        /// `xfs_repair` must run first.
        const NEEDSREPAIR = 1 << 4;
        /// Extent counts may be 64-bit.
        const NREXT64 = 1 << 5;
        /// The log may hold exchanges of file content.
        const EXCHRANGE = 1 << 6;
        /// Inodes carry parent pointers.
        const PARENT = 1 << 7;
        /// Metadata inodes live in a directory tree of their own.
        const METADIR = 1 << 8;
        /// Realtime groups are zones.
        const ZONED = 1 << 9;
        /// Zones may have gaps in their addresses.
        const ZONE_GAPS = 1 << 10;
    }
}

bitflags! {
    /// `sb_features_log_incompat`: code that does not know one of these must not replay the log.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LogIncompat: u32 {
        /// The log may hold intents to change attributes.
        const XATTRS = 1 << 0;
    }
}

bitflags! {
    /// `sb_qflags`: what is counted for users, projects and groups, and whether limits hold.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QuotaFlags: u16 {
        /// What users take is counted.
        const USER = 0x0001;
        /// Limits of users hold.
        const USER_LIMITS = 0x0002;
        /// The counts of users are right.
        const USER_COUNTED = 0x0004;
        /// What projects take is counted.
        const PROJECT = 0x0008;
        /// Limits of groups or projects hold, on volumes of version 4.
        const OTHER_LIMITS = 0x0010;
        /// The counts of groups or projects are right, on volumes of version 4.
        const OTHER_COUNTED = 0x0020;
        /// What groups take is counted.
        const GROUP = 0x0040;
        /// Limits of groups hold.
        const GROUP_LIMITS = 0x0080;
        /// The counts of groups are right.
        const GROUP_COUNTED = 0x0100;
        /// Limits of projects hold.
        const PROJECT_LIMITS = 0x0200;
        /// The counts of projects are right.
        const PROJECT_COUNTED = 0x0400;
        /// All bits that say that counts are right.
        const COUNTED = 0x0004 | 0x0020 | 0x0100 | 0x0400;
    }
}
