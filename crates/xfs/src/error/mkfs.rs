//! Why a volume cannot be made as requested.

/// Why a volume cannot be made as requested. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Refusal {
    /// Block size.
    #[error("blocks of {0} bytes are not possible: a power of two from 1024 to 65536 is")]
    BlockSize(u32),
    /// Sector size.
    #[error(
        "sectors of {sector} bytes are not possible with blocks of {block}: a power of two from 512 to {} is",
        .block.min(&32768)
    )]
    SectorSize { sector: u32, block: u32 },
    /// The device's sectors.
    #[error("the device has sectors of {device} bytes, the volume cannot have smaller ones ({volume})")]
    DeviceSector { volume: u32, device: u32 },
    /// Inode size.
    #[error(
        "inodes of {inode} bytes are not possible with blocks of {block}: a power of two from 512 to {} is",
        (.block / 2).min(2048)
    )]
    InodeSize { inode: u32, block: u32 },
    /// Directory block size.
    #[error(
        "directory blocks of {dir} bytes are not possible with blocks of {block}: a power of two from {block} to \
         65536 is"
    )]
    DirBlockSize { dir: u32, block: u32 },
    /// Label.
    #[error("a label has 12 bytes at most, and none of them is 0")]
    Label,
    /// UUID.
    #[error("a UUID of zeroes is none")]
    Uuid,
    /// Time.
    #[error(
        "the time lies outside of what the volume's timestamps can say (bigtime reaches from 1901 to 2486)"
    )]
    Time,
    /// A feature that needs another one.
    #[error("{feature} needs {needs}")]
    Feature { feature: &'static str, needs: &'static str },
    /// Larger than the device.
    #[error("a volume of {wanted} bytes does not fit on the device, which has {device}")]
    Device { wanted: u64, device: u64 },
    /// Too small.
    #[error(
        "a volume of {size} bytes is too small: {least} are the least{}",
        if *.small { "" } else { " (small volumes, which the kernel mounts all the same, must be asked for)" }
    )]
    TooSmall { size: u64, least: u64, small: bool },
    /// Number of groups.
    #[error("{count} groups are not possible: from {least} to {most} are")]
    GroupCount { count: u64, least: u64, most: u64 },
    /// Size of groups.
    #[error("groups of {blocks} blocks are not possible: from {least} to {most} blocks are")]
    GroupSize { blocks: u64, least: u64, most: u64 },
    /// A log size that is not a multiple of the block size.
    #[error("a log of {size} bytes is not a number of whole blocks of {block} bytes")]
    LogUnit { size: u64, block: u32 },
    /// Log size.
    #[error(
        "a log of {blocks} blocks is not possible: from {least} to {most} blocks are{}",
        if *.small { "" } else { " (smaller ones must be asked for as small volumes are)" }
    )]
    LogSize { blocks: u64, least: u64, most: u64, small: bool },
    /// No group has room for the log.
    #[error(
        "no group is large enough for a log of {blocks} blocks: groups have {group} blocks; make fewer groups, or a larger \
         volume"
    )]
    LogRoom { blocks: u32, group: u32 },
    /// The first group has no room for what it must contain.
    #[error("the first group, of {group} blocks, has no room for the root directory")]
    RootRoom { group: u32 },
}
