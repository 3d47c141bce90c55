//! Extended attributes: inside the inode (short form), leaves, and the blocks of remote values.
//!
//! Blocks of an attribute fork are always one block of the volume. Interior nodes are those of [`crate::da`].

mod leaf;
mod leaf_edit;
mod parent;
mod remote;
mod short;

pub use leaf::{AttrLeaf, AttrLeafEntry, INDEX, LEAF_MAGIC_V4, LEAF_MAGIC_V5, LeafAttr};
pub use leaf_edit::{
    LeafItem, format_leaf, insert_item, is_local, leaf_cost, leaf_items, leaf_room, remove_item, write_leaf,
};
pub use parent::{ParentRecord, attr_hash};
pub use remote::{RAW, REMOTE, REMOTE_MAGIC, RemoteBlock, remote_payload_len, write_remote_block};
pub(crate) use remote::{check_piece_identity, parse_piece, write_piece};
pub use short::{SHORT_ATTRS, ShortAttr, ShortAttrEntries, ShortAttrs, encode_short};

use crate::error::FormatError;
use crate::types::FileBlock;

/// Largest value of an attribute.
pub const VALUE_MAX: u32 = 65536;
/// Longest name of an attribute, without its namespace.
pub const NAME_MAX: usize = 255;

bitflags::bitflags! {
    /// Flags of an attribute.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AttrFlags: u8 {
        /// The value lies beside the name (leaves only).
        const LOCAL = 1 << 0;
        /// The namespace of trusted attributes.
        const ROOT = 1 << 1;
        /// The namespace of security attributes.
        const SECURE = 1 << 2;
        /// A pointer to a parent directory.
        const PARENT = 1 << 3;
        /// Being created or replaced: not visible yet (leaves only).
        const INCOMPLETE = 1 << 7;
    }
}

impl AttrFlags {
    /// The flags for the namespace. If none is set, it is a user attribute.
    pub const NAMESPACES: Self = Self::ROOT.union(Self::SECURE).union(Self::PARENT);

    /// Checks flags from disk: only known ones, and one namespace at most.
    fn from_disk(structure: &'static str, bits: u8) -> Result<Self, FormatError> {
        Self::from_bits(bits)
            .filter(|flags| flags.intersection(Self::NAMESPACES).bits().count_ones() <= 1)
            .ok_or(FormatError::value(structure, "attribute flags", bits.into()))
    }

    /// The namespace alone.
    pub const fn namespace(self) -> Self {
        self.intersection(Self::NAMESPACES)
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrValue<'a> {
    /// Beside the name.
    Inline(&'a [u8]),
    /// In blocks of its own.
    Remote {
        /// The first of them, in the attribute fork.
        block: FileBlock,
        /// Bytes of the value.
        len: u32,
    },
}

impl AttrValue<'_> {
    /// Bytes of the value.
    pub fn len(&self) -> u32 {
        match self {
            // Inline values are shorter than a block.
            Self::Inline(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::Remote { len, .. } => *len,
        }
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether an attribute can have this name: 1 to 255 bytes without NUL.
pub fn is_valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0)
}
