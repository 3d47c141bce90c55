//! Why a volume cannot be changed as requested.

/// Why a volume cannot be changed as requested. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Refusal {
    /// Smaller than the volume is.
    #[error("a volume cannot become smaller: it has {has} bytes, {wanted} were asked for")]
    Shrink { has: u64, wanted: u64 },
    /// Larger than the device.
    #[error("a volume of {wanted} bytes does not fit on the device, which has {device}")]
    Device { wanted: u64, device: u64 },
    /// Larger than the format allows.
    #[error("no volume with groups of {ag_blocks} blocks can have {blocks} blocks")]
    TooLarge { blocks: u64, ag_blocks: u32 },
    /// The volume already has all features that were asked for.
    #[error("the volume has {} already", .0.join(", "))]
    HasFeatures(Vec<&'static str>),
    /// A feature needs another one that cannot be switched on.
    #[error(
        "{feature} needs {needs}, which the volume does not have, and which can be switched on by mkfs alone"
    )]
    Needs { feature: &'static str, needs: &'static str },
    /// The log is too small for a feature.
    #[error("{feature} needs a log of {needed} blocks, the volume's has {blocks}")]
    Log { feature: &'static str, needed: u64, blocks: u32 },
}
