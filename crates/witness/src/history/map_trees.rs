//! How many blocks the tree of a file's map is in, behind recoveries that changed the map.
//!
//! What a log promises to do to a map (BUI, XMI) is done when the log is recovered, by each in its own way: blocks of a
//! tree have to be half full, and who shares entries with a neighbour, and when two become one, is free. So a file with
//! the same map may have a block more or less behind one recovery than behind another. That the blocks are half full,
//! and that the inode counts what is there, `xfs_repair -n` and `uxfs check` have asked of both.
//!
//! Invariant: nothing else passes for it, and no more than trees of a map as long can differ by.

use crate::record::Record;

/// Bytes of a block's header, on v5 volumes.
const HEADER: u64 = 72;
/// Bytes of a record, and of a key with its pointer.
const ENTRY: u64 = 16;

/// What was found, where files with the map that was expected have as many blocks as were expected, unless they can't
/// have had so many.
pub(super) fn leveled(expected: &[Record], found: Vec<Record>, block: u64) -> Vec<Record> {
    let mut expected = expected.iter().peekable();
    let level = |mut record: Record| {
        while expected.next_if(|other| other.path < record.path).is_some() {}
        let other = expected.peek().filter(|other| other.path == record.path);
        if let (Some(inode), Some(other)) = (&mut record.inode, other.and_then(|other| other.inode.as_ref()))
            && let (Some(mine), Some(theirs)) = (&inode.content, &other.content)
            && let (Some(runs), true) = (&mine.extents, mine.extents == theirs.extents)
            && inode.blocks.abs_diff(other.blocks) * 512 <= spread(runs.len() as u64, block) * block
        {
            inode.blocks = other.blocks;
        }
        record
    };
    found.into_iter().map(level).collect()
}

/// By how many blocks trees of this many extents can differ.
fn spread(extents: u64, block: u64) -> u64 {
    let most = (block - HEADER) / ENTRY;
    let level = |blocks: u64| Some(blocks / (most / 2)).filter(|&blocks| blocks > 1);
    let emptiest: u64 = std::iter::successors(level(extents), |&blocks| level(blocks)).sum();
    // Under a root within the inode.
    emptiest.saturating_sub(extents.div_ceil(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Content, Inode, MapRun, RunState};

    fn file(extents: u64, blocks: u64) -> Record {
        let run = |nth| MapRun(2 * nth * 1024, 4096 * nth, 1024, RunState::Written);
        let content = Content { extents: Some((0..extents).map(run).collect()), ..Content::default() };
        let inode = Inode { blocks, content: Some(content), ..Inode::default() };
        Record { path: "/file".into(), inode: Some(inode), ..Record::default() }
    }

    #[test]
    fn only_as_many_blocks_as_trees_can_differ_by_are_let_pass() {
        // 5 leaves at least, 9 at most.
        assert_eq!(spread(275, 1024), 4);
        assert_eq!([spread(20, 1024), spread(57, 1024), spread(60, 4096)], [0; 3]);
        let expected = [file(275, 564)];
        for (blocks, passes) in
            [(564, true), (562, true), (556, true), (572, true), (554, false), (574, false)]
        {
            let found = leveled(&expected, vec![file(275, blocks)], 1024);
            assert_eq!(found == expected, passes, "{blocks}");
        }
        assert_ne!(
            leveled(&[file(20, 42)], vec![file(20, 44)], 1024),
            [file(20, 42)],
            "no tree of so few extents"
        );
    }

    #[test]
    fn another_map_or_another_file_is_left_as_it_is() {
        let (expected, found) = ([file(275, 564)], vec![file(274, 562)]);
        assert_eq!(leveled(&expected, found.clone(), 1024), found);
        let other = Record { path: "/other".into(), ..file(275, 562) };
        assert_eq!(leveled(&expected, vec![other.clone()], 1024), [other]);
        let mut empty = file(0, 2);
        empty.inode.as_mut().unwrap().content = None;
        assert_eq!(leveled(&[file(0, 0)], vec![empty.clone()], 1024), [empty]);
    }

    #[test]
    fn each_file_is_compared_with_its_own() {
        let named = |path: &str, blocks| Record { path: path.into(), ..file(275, blocks) };
        let expected = [named("/a", 560), named("/c", 562), named("/d", 564)];
        let found = vec![named("/b", 1), named("/c", 564), named("/d", 562)];
        assert_eq!(
            leveled(&expected, found, 1024),
            [named("/b", 1), expected[1].clone(), expected[2].clone()]
        );
    }
}
