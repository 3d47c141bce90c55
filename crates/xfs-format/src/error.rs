//! What is wrong with a structure: which one, which check, what was found.

use std::fmt;

/// A structure failed a check. The reader adds its address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FormatError {
    /// The structure, in the field's own name: `superblock`, `AGF`, `directory leaf block`, …
    pub structure: &'static str,
    /// The check that failed: `magic`, `checksum`, `owner`, `entry count`, …
    pub check: &'static str,
    /// What was found, where that is a number.
    pub found: Option<u64>,
    /// What would have been right, where that is one number (or a bound).
    pub expected: Option<u64>,
}

impl FormatError {
    /// A check that has no single number to show.
    pub const fn new(structure: &'static str, check: &'static str) -> Self {
        Self { structure, check, found: None, expected: None }
    }

    /// A check on a number.
    pub const fn value(structure: &'static str, check: &'static str, found: u64) -> Self {
        Self { structure, check, found: Some(found), expected: None }
    }

    /// A check on a number that should have been, or stayed within, another.
    pub const fn mismatch(structure: &'static str, check: &'static str, found: u64, expected: u64) -> Self {
        Self { structure, check, found: Some(found), expected: Some(expected) }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: bad {}", self.structure, self.check)?;
        if let Some(found) = self.found {
            write!(f, " ({found:#x}")?;
            if let Some(expected) = self.expected {
                write!(f, ", expected {expected:#x}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}
