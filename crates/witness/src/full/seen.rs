//! The state that a call without space must not change.

use anyhow::{Result, ensure};
use uxfs::{Extent, Metadata, Node};

/// For files with more extents than this, only their number is compared.
const EXTENTS_MAX: u64 = 100;

/// The metadata of a file or directory, without its bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    metadata: Metadata,
    extents: Vec<Extent>,
    /// Whether others may have its blocks as well. Then a block of its own may have replaced a shared one, such as the
    /// old end of a file that was to grow: the content is the same.
    shares: bool,
    names: Vec<Vec<u8>>,
    /// The value of the attribute that it is about.
    value: Option<Vec<u8>>,
    attribute: Vec<u8>,
}

impl Seen {
    /// Looks at a file or directory, and at its attribute of this name.
    pub fn of(node: &Node, attribute: &[u8]) -> Result<Self> {
        let metadata = node.metadata()?;
        let mut shares = node.file_type().is_file() && metadata.extents > EXTENTS_MAX;
        let extents = match node.file_type().is_file() && metadata.extents <= EXTENTS_MAX {
            true => {
                let extents: Vec<Extent> = node.open()?.extents().collect::<uxfs::Result<_>>()?;
                shares |= extents.iter().any(|extent| extent.shared);
                unmarked(extents)
            }
            false => Vec::new(),
        };
        let mut names = node.xattr_names()?;
        names.sort();
        let value = if attribute.is_empty() { None } else { node.xattr(attribute)? };
        Ok(Self { metadata, extents, shares, names, value, attribute: attribute.to_owned() })
    }

    /// The same if the map may be split differently: zeroes past the end in the last block that were only in memory may
    /// have been written.
    pub fn in_any_pieces(self) -> Self {
        Self { shares: true, ..self }
    }

    /// Looks again: nothing may have changed.
    pub fn must_be_the_same(mut self, node: &Node, what: &str) -> Result<()> {
        let mut now = Self::of(node, &self.attribute)?;
        if self.shares {
            for seen in [&mut self, &mut now] {
                seen.metadata.extents = 0;
                seen.extents.clear();
            }
        }
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

/// Extents without what is known of other owners: that somebody gave up blocks is noticed only gradually.
fn unmarked(extents: Vec<Extent>) -> Vec<Extent> {
    let mut unmarked: Vec<Extent> = Vec::with_capacity(extents.len());
    for mut extent in extents {
        extent.shared = false;
        let goes_on = |last: &&mut Extent| {
            last.logical + last.length == extent.logical
                && last.physical + last.length == extent.physical
                && last.unwritten == extent.unwritten
        };
        match unmarked.last_mut().filter(goes_on) {
            Some(last) => last.length += extent.length,
            None => unmarked.push(extent),
        }
    }
    unmarked
}
