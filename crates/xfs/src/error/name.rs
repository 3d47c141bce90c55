//! Why a name cannot be made, changed or removed.

use super::Error;

/// Maximum number of names with the same hash in a directory.
#[cfg(not(test))]
pub const COLLISIONS_MAX: usize = 2048;
/// Making such a directory takes quadratic time.
#[cfg(test)]
pub const COLLISIONS_MAX: usize = 512;

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
    /// A directory to be removed or replaced has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory is required here.
    #[error("it is not a directory")]
    NotDirectory,
    /// A directory is not allowed here.
    #[error("it is a directory")]
    IsDirectory,
    /// The name has more than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    TooLong,
    /// The name is empty, `.` or `..`, or has a byte that names cannot have.
    #[error("it is no possible name")]
    Invalid,
    /// The target of a symbolic link is empty, or has a zero byte.
    #[error("it is no possible target of a symbolic link")]
    NoTarget,
    /// The target of a symbolic link is too long.
    #[error("the target of the symbolic link is longer than 1023 bytes")]
    TargetTooLong,
    /// The inode cannot have more names.
    #[error("it has too many links")]
    TooManyLinks,
    /// A directory would be moved below itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// The directory has been removed.
    #[error("the directory was removed")]
    Removed,
    /// The attribute exists already.
    #[error("the attribute exists already")]
    AttributeExists,
    /// There is no such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// An attribute cannot have this name, or a value of this length.
    #[error("the name or the value of the attribute is too long, or not possible")]
    AttributeTooLong,
    /// Only regular files and directories have user attributes: for other files, permissions mean something else or
    /// nothing.
    #[error("only regular files and directories have attributes of users (user.…)")]
    UserAttribute,
    /// A symbolic link has no permissions, so it has no ACL.
    #[error("a symbolic link has no access control list")]
    ListOfLink,
    /// The directory has so many names with this name's hash that they look like an attack: each lookup compares with
    /// all of them.
    #[error("the directory has {} names of this one's hash already", COLLISIONS_MAX)]
    TooManyCollisions,
    /// The directory has the flag that forbids symbolic links.
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
