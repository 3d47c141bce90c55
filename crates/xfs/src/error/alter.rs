//! Why a volume cannot be changed as it is wanted.

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
