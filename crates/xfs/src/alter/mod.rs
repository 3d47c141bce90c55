//! Changing a volume's label, UUID and size.
//!
//! All of these are in the superblock, of which each group has a copy. Invariants:
//! - the first superblock is correct at every moment: everything that it relies on is on stable storage before it
//!   changes, and it changes by one transaction or one sector write;
//! - the copies follow, the second group's last (`copies`): if that copy is current, all are. If it is not after a
//!   crash, they are written again.
//!
//! Label and size change while the volume is in use. UUID and features do not: they are changed on a device that nobody
//! else uses.

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
