//! The designs that the range lock is measured against: what kernels and databases use.

mod btree;
mod interval_tree;
mod queue;
mod whole_file;

pub use btree::{BTreeLock, BTreeToken};
pub use interval_tree::{IntervalTreeLock, IntervalTreeToken};
pub use whole_file::{WholeFileLock, WholeFileToken};
