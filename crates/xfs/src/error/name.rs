//! Why a name cannot be made, changed or removed.

use super::Error;

/// Names of one hash that a directory gets at most.
#[cfg(not(test))]
pub const CROWD_MAX: usize = 2048;
/// Making such a directory takes its square.
#[cfg(test)]
pub const CROWD_MAX: usize = 512;

/// Why a name cannot be made, changed or removed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameProblem {
    /// The name is in use.
    #[error("it exists already")]
    Exists,
    /// There is no such name.
    #[error("no such file or directory")]
    Missing,
    /// A directory that is to be removed or replaced has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory is wanted here.
    #[error("it is not a directory")]
    NotDirectory,
    /// No directory is wanted here.
    #[error("it is a directory")]
    IsDirectory,
    /// The name has more than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    TooLong,
    /// The name is empty, `.` or `..`, or has a byte that no name has.
    #[error("it is no possible name")]
    Invalid,
    /// The target of a symbolic link is empty, or has a zero byte.
    #[error("it is no possible target of a symbolic link")]
    NoTarget,
    /// The target of a symbolic link has more bytes than one can have.
    #[error("the target of the symbolic link is longer than 1023 bytes")]
    TargetTooLong,
    /// The inode cannot have more names.
    #[error("it has too many links")]
    TooManyLinks,
    /// A directory would be moved below itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// The directory has no name any more.
    #[error("the directory was removed")]
    Removed,
    /// An attribute exists that should not.
    #[error("the attribute exists already")]
    AttributeExists,
    /// There is no such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// An attribute cannot have this name, or a value as long as this.
    #[error("the name or the value of the attribute is too long, or not possible")]
    AttributeTooLong,
    /// Users' attributes are those of regular files and directories: of others, permissions say something else, or nothing.
    #[error("only regular files and directories have attributes of users (user.…)")]
    UserAttribute,
    /// A symbolic link has no permissions that a list could tell of.
    #[error("a symbolic link has no access control list")]
    ListOfLink,
    /// The directory has so many names of this name's hash that they look like an attack: each is compared with all.
    #[error("the directory has {} names of this one's hash already", CROWD_MAX)]
    Crowded,
    /// The directory is marked as one that takes no symbolic links.
    #[error("the directory takes no symbolic links")]
    NoSymlinks,
    /// The two lie in different project trees.
    #[error("it belongs to another project's tree")]
    OtherProject,
}

impl From<NameProblem> for Error {
    fn from(problem: NameProblem) -> Self {
        Self::Name(problem)
    }
}
