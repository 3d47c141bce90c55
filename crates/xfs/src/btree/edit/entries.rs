//! The entries of a block, copied out of it, for changes that move entries between blocks.

use xfs_format::btree::{Node, Tree};
use xfs_format::node_mut::{NodeMut, same};

/// A leaf's record or an inner block's child.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry<T: Tree> {
    Record(T::Record),
    Child(T::Key, u64),
}

/// The entries of one block or of two siblings.
#[derive(Clone, Debug)]
pub(super) enum Entries<T: Tree> {
    Records(Vec<T::Record>),
    Children(Vec<(T::Key, u64)>),
}

impl<T: Tree> Entries<T> {
    /// The entries of `node`, with room for `more`.
    pub(super) fn of(node: &Node<'_, T>, more: usize) -> Self {
        if node.level() == 0 {
            let mut records = Vec::with_capacity(node.count() + more);
            records.extend_from_slice(node.records());
            Self::Records(records)
        } else {
            let mut children = Vec::with_capacity(node.count() + more);
            children.extend(
                node.keys()
                    .iter()
                    .enumerate()
                    .filter_map(|(index, key)| node.pointer(index).map(|pointer| (*key, pointer))),
            );
            Self::Children(children)
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Records(records) => records.len(),
            Self::Children(children) => children.len(),
        }
    }

    /// Inserts an entry of the right kind before entry `index`.
    pub(super) fn insert(&mut self, index: usize, entry: &Entry<T>) {
        match (self, entry) {
            (Self::Records(records), Entry::Record(record)) => {
                records.insert(index.min(records.len()), *record)
            }
            (Self::Children(children), Entry::Child(key, pointer)) => {
                children.insert(index.min(children.len()), (*key, *pointer));
            }
            _ => debug_assert!(false, "records and children in one block"),
        }
    }

    /// Appends the entries of a block of the same level.
    pub(super) fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Records(records), Self::Records(mut more)) => records.append(&mut more),
            (Self::Children(children), Self::Children(mut more)) => children.append(&mut more),
            _ => debug_assert!(false, "siblings of different levels"),
        }
    }

    /// Splits off the entries from `at` on.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Records(records) => Self::Records(records.split_off(at.min(records.len()))),
            Self::Children(children) => Self::Children(children.split_off(at.min(children.len()))),
        }
    }

    /// The key of a block with these entries.
    pub(super) fn key(&self) -> Option<T::Key> {
        match self {
            Self::Records(records) => T::span(records.iter().map(T::record_key)),
            Self::Children(children) => T::span(children.iter().map(|(key, _)| *key)),
        }
    }

    /// The first entry that differs from that of `node`.
    pub(super) fn first_difference(&self, node: &Node<'_, T>) -> usize {
        match self {
            Self::Records(records) => {
                let old = node.records();
                records.iter().zip(old).take_while(|(new, old)| same(*new, *old)).count()
            }
            Self::Children(children) => {
                let mut old = node.keys().iter().enumerate();
                let same_as_old = |(key, pointer): &&(T::Key, u64)| {
                    old.next()
                        .is_some_and(|(index, old)| same(key, old) && node.pointer(index) == Some(*pointer))
                };
                children.iter().take_while(same_as_old).count()
            }
        }
    }

    /// Writes them as a block's content.
    pub(super) fn write(&self, node: &mut NodeMut<'_, T>) {
        match self {
            Self::Records(records) => node.set_records(records),
            Self::Children(children) => node.set_children(children),
        }
    }
}

/// The key of a block.
pub(super) fn key_of<T: Tree>(node: &Node<'_, T>) -> Option<T::Key> {
    if node.level() == 0 {
        T::span(node.records().iter().map(T::record_key))
    } else {
        T::span(node.keys().iter().copied())
    }
}

/// The ranks of a block's first and last entries.
pub(super) fn rank_range<T: Tree>(node: &Node<'_, T>) -> Option<(T::Rank, T::Rank)> {
    if node.level() == 0 {
        let records = node.records();
        Some((T::record_rank(records.first()?), T::record_rank(records.last()?)))
    } else {
        let keys = node.keys();
        Some((T::key_rank(keys.first()?), T::key_rank(keys.last()?)))
    }
}
