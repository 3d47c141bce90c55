//! How a volume is divided into allocation groups.
//!
//! Invariants of the result of [`cut`]: all groups have the same size, except for the last. Each has from
//! [`GROUP_BYTES_MIN`] to just below 1 TiB, the last one too. Blocks that would make a smaller last group are left out
//! of the volume. The kernel demands this, and `mkfs.xfs` does the same.

use crate::error::mkfs::Refusal;

/// How to divide a volume into groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Groups {
    /// By size: four up to 4 TiB (fewer below 64 MiB), above that as few as possible.
    #[default]
    Automatic,
    /// This many.
    Count(u32),
    /// This many bytes each.
    Bytes(u64),
}

/// Minimum size of a group.
pub(super) const GROUP_BYTES_MIN: u64 = 16 << 20;
/// Groups are smaller than this.
const GROUP_BYTES_END: u64 = 1 << 40;
/// Minimum sector size of a device: groups end at least this much below their bound.
const SECTOR_BYTES: u64 = 512;
/// From this size on, groups are as large as possible.
const LARGE_BYTES: u64 = 4 << 40;
/// Maximum number of groups.
const GROUPS_MAX: u64 = 1_000_000;

/// The division of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub ag_blocks: u32,
    pub ag_count: u32,
    pub data_blocks: u64,
}

/// Divides `blocks` blocks of `1 << block_log` bytes, which are enough for one group.
pub(super) fn cut(groups: Groups, blocks: u64, block_log: u8, small: bool) -> Result<Cut, Refusal> {
    let least = GROUP_BYTES_MIN >> block_log;
    let most = (GROUP_BYTES_END - SECTOR_BYTES) >> block_log;
    let size = match groups {
        Groups::Automatic => automatic(blocks, block_log, most),
        Groups::Count(count) => {
            let limit = (blocks / least).min(GROUPS_MAX);
            if count == 0 || u64::from(count) > limit {
                return Err(Refusal::GroupCount { count: count.into(), least: 1, most: limit });
            }
            blocks.div_ceil(count.into())
        }
        Groups::Bytes(bytes) => bytes.div_ceil(1 << block_log),
    };
    if size < least || size > most {
        return Err(Refusal::GroupSize { blocks: size, least, most });
    }
    // A group is not larger than the volume.
    let size = size.min(blocks);
    let rest = blocks % size;
    let data_blocks = if rest < least { blocks - rest } else { blocks };
    let count = data_blocks.div_ceil(size);
    let fewest = if small { 1 } else { 2 };
    if count < fewest || count > GROUPS_MAX {
        return Err(Refusal::GroupCount { count, least: fewest, most: GROUPS_MAX });
    }
    // Both fit into 32 bits: a group has less than 2^30 blocks, and there are at most a million groups.
    Ok(Cut { ag_blocks: size as u32, ag_count: count as u32, data_blocks })
}

/// Blocks per group if nothing is specified.
fn automatic(blocks: u64, block_log: u8, most: u64) -> u64 {
    if blocks >= LARGE_BYTES >> block_log {
        return most;
    }
    let count = match blocks << block_log {
        0..0x200_0000 => 1,
        0x200_0000..0x400_0000 => 2,
        _ => 4,
    };
    blocks.div_ceil(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(bytes: u64, block_log: u8, groups: Groups) -> Result<(u32, u32, u64), Refusal> {
        cut(groups, bytes >> block_log, block_log, true)
            .map(|cut| (cut.ag_count, cut.ag_blocks, cut.data_blocks))
    }

    #[test]
    fn groups_are_those_of_mkfs() {
        // As xfsprogs 6.1 shows them with -N.
        let auto = |bytes, block_log| shape(bytes, block_log, Groups::Automatic).unwrap();
        assert_eq!(auto(16 << 20, 12), (1, 4096, 4096));
        assert_eq!(auto(33 << 20, 12), (2, 4224, 8448));
        assert_eq!(auto(63 << 20, 12), (2, 8064, 16128));
        assert_eq!(auto(64 << 20, 12), (4, 4096, 16384));
        assert_eq!(auto(300 << 20, 12), (4, 19200, 76800));
        assert_eq!(auto(4095 << 30, 12), (4, 268_369_920, 1_073_479_680));
        assert_eq!(auto(4 << 40, 12), (4, 268_435_455, 1_073_741_820));
        assert_eq!(auto(4097 << 30, 12), (5, 268_435_455, 1_074_003_968));
        assert_eq!(auto(100 << 40, 12), (100, 268_435_455, 26_843_545_500));
        assert_eq!(auto(100 << 40, 10), (100, 1_073_741_823, 107_374_182_300));
        assert_eq!(auto(4 << 40, 16), (4, 16_777_215, 67_108_860));
    }

    #[test]
    fn sizes_round_up_and_a_last_group_that_is_too_small_is_left_out() {
        let bytes = 1_000_003 << 10;
        assert_eq!(shape(bytes, 12, Groups::Count(7)), Ok((7, 35715, 250_000)));
        assert_eq!(shape(bytes, 12, Groups::Automatic), Ok((4, 62500, 250_000)));
        assert_eq!(shape(1_000_005 << 10, 12, Groups::Automatic), Ok((4, 62501, 250_001)));
        // A last group of 16 MiB stays, a smaller one is left out.
        assert_eq!(shape(300 << 20, 12, Groups::Bytes(284 << 20)), Ok((2, 72704, 76800)));
        assert_eq!(shape(300 << 20, 12, Groups::Bytes(285 << 20)), Ok((1, 72960, 72960)));
        assert_eq!(shape(300 << 20, 12, Groups::Bytes(1 << 30)), Ok((1, 76800, 76800)));
    }

    #[test]
    fn groups_that_cannot_be_are_refused() {
        let refused = |bytes, groups| shape(bytes, 12, groups).unwrap_err();
        let count = |count, most| Refusal::GroupCount { count, least: 1, most };
        assert_eq!(refused(300 << 20, Groups::Count(0)), count(0, 18));
        assert_eq!(refused(300 << 20, Groups::Count(19)), count(19, 18));
        assert_eq!(shape(300 << 20, 12, Groups::Count(18)).unwrap().0, 18);
        let size = |blocks| Refusal::GroupSize { blocks, least: 4096, most: 268_435_455 };
        assert_eq!(refused(300 << 20, Groups::Bytes(8 << 20)), size(2048));
        assert_eq!(refused(2 << 40, Groups::Count(2)), size(1 << 28));
        let one = cut(Groups::Count(1), 76800, 12, false);
        assert_eq!(one, Err(Refusal::GroupCount { count: 1, least: 2, most: GROUPS_MAX }));
    }
}
