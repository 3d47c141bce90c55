//! What a change of a map amounts to, block by block: extents that are only split or merged do not count as a change.

use super::{RmapUpdateKind, part};
use smallvec::SmallVec;
use xfs_format::bmbt::Extent;
use xfs_format::types::FileBlock;

/// What replacing the extents `old` by `new`, both in ascending order, does to their blocks: first those unmapped, then
/// those with another state, then those mapped. Blocks that move within the file must be unmapped first.
pub(super) fn difference(old: &[Extent], new: &[Extent]) -> SmallVec<[RmapUpdateKind; 4]> {
    let bounds = |extent: &Extent| [extent.startoff, extent.end()];
    let mut cuts: SmallVec<[FileBlock; 16]> = old.iter().chain(new).flat_map(bounds).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let (mut gone, mut come, mut converted) =
        (MergedExtents::default(), MergedExtents::default(), MergedExtents::default());
    for pair in cuts.windows(2) {
        let within = |extents: &[Extent]| {
            let around = extents.iter().find(|extent| extent.startoff <= pair[0] && pair[1] <= extent.end());
            around.map(|extent| part(extent, pair[0]..pair[1]))
        };
        match (within(old), within(new)) {
            (Some(old), Some(new)) if old == new => {}
            (Some(old), Some(new)) if old.startblock == new.startblock => converted.add(old),
            (was, is) => {
                was.into_iter().for_each(|extent| gone.add(extent));
                is.into_iter().for_each(|extent| come.add(extent));
            }
        }
    }
    let gone = gone.0.into_iter().map(RmapUpdateKind::Unmap);
    let converted = converted.0.into_iter().map(RmapUpdateKind::Convert);
    gone.chain(converted).chain(come.0.into_iter().map(RmapUpdateKind::Map)).collect()
}

/// Extents in ascending order, merged where possible.
#[derive(Default)]
struct MergedExtents(SmallVec<[Extent; 4]>);

impl MergedExtents {
    fn add(&mut self, extent: Extent) {
        match self.0.last_mut().filter(|last| super::can_merge(last, &extent)) {
            Some(last) => last.blockcount += extent.blockcount,
            None => self.0.push(extent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RmapUpdateKind::{Convert, Map, Unmap};
    use super::*;
    use xfs_format::types::FsBlock;

    fn extent(startoff: u64, startblock: u64, blockcount: u32, unwritten: bool) -> Extent {
        Extent { startoff: FileBlock(startoff), startblock: FsBlock(startblock), blockcount, unwritten }
    }

    #[test]
    fn cutting_and_joining_change_nothing() {
        let whole = extent(5, 100, 10, false);
        let halves = [extent(5, 100, 4, false), extent(9, 104, 6, false)];
        assert!(difference(&[whole], &halves).is_empty());
        assert!(difference(&halves, &[whole]).is_empty());
    }

    #[test]
    fn what_comes_goes_and_is_written_is_told_without_its_neighbours() {
        let (a, b) = (extent(0, 100, 4, false), extent(4, 104, 2, true));
        assert_eq!(difference(&[a], &[extent(0, 100, 6, false)])[..], [Map(extent(4, 104, 2, false))]);
        assert_eq!(difference(&[a, b], &[extent(0, 100, 6, false)])[..], [Convert(b)]);
        assert_eq!(difference(&[a], &[extent(0, 100, 1, false)])[..], [Unmap(extent(1, 101, 3, false))]);
        let hole = [extent(0, 100, 1, false), extent(3, 103, 1, false)];
        assert_eq!(difference(&[a], &hole)[..], [Unmap(extent(1, 101, 2, false))]);
    }

    #[test]
    fn an_extent_that_moves_goes_before_it_comes() {
        let (here, there) = (extent(8, 100, 4, false), extent(6, 100, 4, false));
        assert_eq!(difference(&[here], &[there])[..], [Unmap(here), Map(there)]);
    }
}
