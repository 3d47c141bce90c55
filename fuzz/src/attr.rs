//! Attributes of every form, symlink targets, and ACLs.

use std::ops::ControlFlow;
use xfs::attr::ParentRecord;
use xfs::testing::MemoryFork;
use xfs::{attr, symlink};
use xfs_format::acl;

/// Values that are read of the attributes that a walk gives.
const GETS_MAX: usize = 16;
/// Longest value of an attribute.
const VALUE_MAX: usize = 65536;

/// First byte: what to try; the rest: a fork as [`MemoryFork::from_fuzz`] reads it, or an ACL.
pub fn run(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    match kind % 8 {
        0 => acls(rest),
        1 => target(rest),
        _ => attributes(rest),
    }
}

fn acls(data: &[u8]) {
    for v5 in [false, true] {
        if let Ok(entries) = acl::parse(data, v5) {
            assert!(entries.len() * 12 <= data.len());
            assert_eq!(acl::to_linux(&entries).len(), 4 + 8 * entries.len());
        }
    }
}

fn target(data: &[u8]) {
    let Some(fork) = MemoryFork::from_fuzz(data, false) else { return };
    if let Ok(target) = symlink::target(&fork) {
        assert!((1..=1024).contains(&target.len()) && !target.contains(&0));
    }
}

fn attributes(data: &[u8]) {
    let Some(fork) = MemoryFork::from_fuzz(data, false) else { return };
    let mut names = Vec::new();
    let mut entries = 0usize;
    let _ = attr::walk(&fork, &mut |entry| {
        entries += 1;
        assert!(entries <= data.len(), "more attributes than bytes");
        if names.len() < GETS_MAX {
            names.push((entry.namespace, entry.name.to_vec()));
        }
        ControlFlow::Continue(())
    });
    for (namespace, name) in &names {
        if let Ok(Some(value)) = attr::get(&fork, *namespace, name) {
            assert!(value.len() <= VALUE_MAX);
        }
    }
    if let Ok(parents) = attr::parents(&fork) {
        assert!(parents.len() <= entries.max(data.len()), "more parent pointers than attributes");
        for (_, record) in &parents {
            assert_eq!(ParentRecord::parse(&record.to_bytes()), Some(*record));
        }
    }
    if let Ok(full_names) = attr::linux::list(&fork) {
        for name in full_names.iter().take(GETS_MAX) {
            let _ = attr::linux::get(&fork, name);
        }
    }
}
