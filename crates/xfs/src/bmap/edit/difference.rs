//! What a change of a map comes to, block by block: extents that are only cut or joined are no change.

use super::{Remapped, part};
use smallvec::SmallVec;
use xfs_format::bmbt::Extent;
use xfs_format::types::FileBlock;

/// What replacing the extents `old` by `new`, both in ascending order, makes of their blocks: first what goes, then
/// what is in another state, and then what comes, since blocks that move within the file go first.
pub(super) fn difference(old: &[Extent], new: &[Extent]) -> SmallVec<[Remapped; 4]> {
    let bounds = |extent: &Extent| [extent.startoff, extent.end()];
    let mut cuts: SmallVec<[FileBlock; 16]> = old.iter().chain(new).flat_map(bounds).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let (mut gone, mut come, mut converted) = (Runs::default(), Runs::default(), Runs::default());
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
    let gone = gone.0.into_iter().map(Remapped::Gone);
    let converted = converted.0.into_iter().map(Remapped::Converted);
    gone.chain(converted).chain(come.0.into_iter().map(Remapped::Come)).collect()
}

/// Extents in ascending order, joined where they can be.
#[derive(Default)]
struct Runs(SmallVec<[Extent; 4]>);

impl Runs {
    fn add(&mut self, extent: Extent) {
        match self.0.last_mut().filter(|last| super::can_merge(last, &extent)) {
            Some(last) => last.blockcount += extent.blockcount,
            None => self.0.push(extent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Remapped::{Come, Converted, Gone};
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
        assert_eq!(difference(&[a], &[extent(0, 100, 6, false)])[..], [Come(extent(4, 104, 2, false))]);
        assert_eq!(difference(&[a, b], &[extent(0, 100, 6, false)])[..], [Converted(b)]);
        assert_eq!(difference(&[a], &[extent(0, 100, 1, false)])[..], [Gone(extent(1, 101, 3, false))]);
        let hole = [extent(0, 100, 1, false), extent(3, 103, 1, false)];
        assert_eq!(difference(&[a], &hole)[..], [Gone(extent(1, 101, 2, false))]);
    }

    #[test]
    fn an_extent_that_moves_goes_before_it_comes() {
        let (here, there) = (extent(8, 100, 4, false), extent(6, 100, 4, false));
        assert_eq!(difference(&[here], &[there])[..], [Gone(here), Come(there)]);
    }
}
