//! Directories of every form, walked and looked up.

use std::ops::ControlFlow;
use xfs::dir::{lookup, walk};
use xfs::testing::MemoryFork;
use xfs_format::dir::is_valid_name;

/// Names that are looked up of those that a walk gives.
const LOOKUPS_MAX: usize = 32;

/// A fork as [`MemoryFork::from_fuzz`] reads it.
pub fn run(data: &[u8]) {
    let Some(fork) = MemoryFork::from_fuzz(data, true) else { return };
    let mut names = Vec::new();
    let mut last = 0;
    let mut entries = 0usize;
    let _ = walk(&fork, 0, &mut |entry| {
        // `.` and `..` of a short directory are not stored.
        assert!(is_valid_name(entry.name) || matches!(entry.name, b"." | b".."));
        assert!(entry.next > last, "positions ascend");
        last = entry.next;
        entries += 1;
        assert!(entries <= data.len() + 2, "more entries than bytes");
        if names.len() < LOOKUPS_MAX {
            names.push((entry.name.to_vec(), entry.next));
        }
        ControlFlow::Continue(())
    });
    for (name, next) in &names {
        let _ = lookup(&fork, name);
        // Going on from any position gives what comes behind it.
        let _ = walk(&fork, *next, &mut |entry| {
            assert!(entry.next > *next);
            ControlFlow::Break(())
        });
    }
    let _ = lookup(&fork, data.get(8..16).unwrap_or(b"name"));
    let position = data.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
    let _ = walk(&fork, position, &mut |_| ControlFlow::Continue(()));
}
