//! XFS on-disk structures as zero-copy views, with their checksums and checks. Pure: no I/O, no caches.
//!
//! Everything on disk is big-endian except the checksums, which are little-endian.
#![forbid(unsafe_code)]

pub mod acl;
pub mod ag;
pub mod attr;
pub mod bmbt;
pub mod btree;
pub mod checksum;
pub mod da;
pub mod dir;
pub mod edit;
pub mod error;
pub mod feature_table;
pub mod features;
pub mod geometry;
pub mod identity;
pub mod inode;
mod inode_encode;
pub mod kernels;
pub mod log;
pub mod node_mut;
pub mod quota;
pub mod records;
pub mod superblock;
pub mod symlink;
pub mod timestamp;
pub mod types;
pub mod verify;
