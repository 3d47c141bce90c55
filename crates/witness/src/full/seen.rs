//! What a call that finds no space must leave as it was.

use anyhow::{Result, ensure};
use uxfs::{Extent, Metadata, Node};

/// Of files with more extents than this, their number must do.
const EXTENTS_MAX: u64 = 100;

/// What is said of a file or directory, but for its bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    metadata: Metadata,
    extents: Vec<Extent>,
    names: Vec<Vec<u8>>,
    /// The value of the attribute that it is about.
    value: Option<Vec<u8>>,
    attribute: Vec<u8>,
}

impl Seen {
    /// Looks at a file or directory, and at its attribute of this name.
    pub fn of(node: &Node, attribute: &[u8]) -> Result<Self> {
        let metadata = node.metadata()?;
        let extents = match node.file_type().is_file() && metadata.extents <= EXTENTS_MAX {
            true => node.open()?.extents().collect::<uxfs::Result<_>>()?,
            false => Vec::new(),
        };
        let mut names = node.xattr_names()?;
        names.sort();
        let value = if attribute.is_empty() { None } else { node.xattr(attribute)? };
        Ok(Self { metadata, extents, names, value, attribute: attribute.to_owned() })
    }

    /// Looks again: nothing may have changed.
    pub fn must_be_the_same(self, node: &Node, what: &str) -> Result<()> {
        let now = Self::of(node, &self.attribute)?;
        ensure!(
            now.metadata == self.metadata,
            "{what} found no space and changed {:?} to {:?}",
            self.metadata,
            now.metadata
        );
        ensure!(
            now.extents == self.extents,
            "{what} found no space and changed {:?} to {:?}",
            self.extents,
            now.extents
        );
        ensure!(
            (now.names, now.value) == (self.names, self.value),
            "{what} found no space and changed attributes"
        );
        Ok(())
    }
}
