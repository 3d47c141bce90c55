//! Changing what a volume is: its label, its UUID, its size, its features.
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
mod features;
mod grow;
mod label;
mod uuid;

pub(crate) use copies::settle as settle_copies;
pub use features::{Upgrade, upgrade};
pub use grow::{Grown, Growth};
pub(crate) use uuid::finish as finish_uuid;
pub use uuid::{UuidChange, set_uuid};

/// Why a volume cannot be changed as it is wanted. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Refusal {
    /// Smaller than it is.
    #[error("a volume cannot become smaller: it has {has} bytes, {wanted} were asked for")]
    Shrink { has: u64, wanted: u64 },
    /// Larger than the device.
    #[error("a volume of {wanted} bytes does not fit on the device, which has {device}")]
    Device { wanted: u64, device: u64 },
    /// Larger than the format can say.
    #[error("no volume with groups of {ag_blocks} blocks can have {blocks} blocks")]
    TooLarge { blocks: u64, ag_blocks: u32 },
    /// Features that the volume has, all that were asked for.
    #[error("the volume has {} already", .0.join(", "))]
    HasFeatures(Vec<&'static str>),
    /// A feature that needs another one, which cannot be switched on.
    #[error(
        "{feature} needs {needs}, which the volume does not have, and which can be switched on by mkfs alone"
    )]
    Needs { feature: &'static str, needs: &'static str },
    /// A feature for which the log is too small.
    #[error("{feature} needs a log of {needed} blocks, the volume's has {blocks}")]
    Log { feature: &'static str, needed: u64, blocks: u32 },
}
