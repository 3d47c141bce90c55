//! Changing what a volume is: its label, its UUID, its size.
//!
//! All of it is in the superblock, of which each group has a copy. Invariants:
//! - what is said in the first superblock is so, at every moment: whatever must be there beforehand is on stable storage
//!   before it is said, and it is said in one transaction, or by one sector;
//! - the copies follow, the second group's last (`copies`): where that copy agrees, all do. Whoever finds after a
//!   crash that it does not writes them again.
//!
//! A label and a size change while the volume is in use. UUID and features do not: they are changed on a device that nobody
//! else has.

mod copies;
mod grow;
mod label;
mod uuid;

pub(crate) use copies::{follow as copies_follow, settle as settle_copies};
pub use grow::{Grown, Growth, grow, grow_unless, plan_growth};
pub use label::{label, set_label};
pub(crate) use uuid::finish as finish_uuid;
pub use uuid::{UuidChange, set_uuid};

pub use crate::error::alter::Refusal;
