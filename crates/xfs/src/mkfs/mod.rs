//! Making volumes.
//!
//! There are three independent steps: [`Options`] say what is wanted; [`plan`] turns them and a device's size into a
//! [`VolumeLayout`], or refuses before anything is written; [`format()`] writes a layout. A layout says where
//! everything lies and depends only on the options: the same options give the same bytes.
//!
//! The choices of `mkfs.xfs` (groups, log size, alignments, the place of the root directory) are made here in the same
//! way, because `xfs_repair` recomputes some of them from the superblock and compares.
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
pub use layout::{Extent, GroupLayout, VolumeLayout};
pub use log_size::log_blocks_min;
pub use options::{Features, Options};
pub use plan::{plan, unwritable};
pub(crate) use structures::{agf, agi, seal};
pub(crate) use write::write_group;
pub use write::{Before, format};
