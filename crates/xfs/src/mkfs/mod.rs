//! Making volumes.
//!
//! Three steps that know nothing of each other's inside: [`Options`] say what is wanted; [`plan`] turns them and a
//! device's size into a [`Layout`] or refuses, before anything is written; [`format()`] writes a layout. A layout
//! says where everything lies, and depends on the options alone: the same options give the same bytes.
//!
//! What `mkfs.xfs` would choose (groups, log size, alignments, the place of the root directory) is chosen here
//! too, as `xfs_repair` works out some of it again from the superblock and compares.
//!
//! This module knows the format and a device, and nothing of an open volume.

mod groups;
mod layout;
mod levels;
mod log_record;
mod log_size;
mod options;
mod plan;
mod structures;
mod write;

pub use crate::error::mkfs::Refusal;
pub use groups::Groups;
pub use layout::{Extent, GroupLayout, Layout};
pub use log_size::log_blocks_min;
pub use options::{Features, Options};
pub use plan::{plan, unwritable};
pub(crate) use structures::{agf, agi, seal};
pub(crate) use write::write_group;
pub use write::{Before, format};
