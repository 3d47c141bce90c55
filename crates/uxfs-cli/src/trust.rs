//! What to accept from an untrusted image or archive, and how much.
//!
//! Invariants: a limit is checked before anything is made, so that the result is within all limits; the first limit
//! that is reached ends the verb, by its name.

use crate::exit::Exit;
use crate::options::parse_size;
use std::fmt;

/// Limits of `--untrusted`, unless others are given.
const UNTRUSTED: Limits = Limits { size: 16 << 30, files: 1_000_000, depth: 128 };

/// Options for untrusted sources.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for sources that are not trusted")]
pub struct TrustArgs {
    /// Leave devices out
    #[arg(long)]
    no_devices: bool,
    /// Take set-user-id and set-group-id off permissions
    #[arg(long)]
    no_setuid: bool,
    /// Leave out attributes that only root can set: security.*, trusted.* and system.*, except access control lists
    #[arg(long)]
    no_privileged_xattrs: bool,
    /// All three, and at most 16G of content, 1,000,000 files and 128 levels unless set otherwise
    #[arg(long)]
    untrusted: bool,
    /// Stop before more content than this is written, holes not counted
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Stop before more files than this are made, directories counted
    #[arg(long, value_name = "N")]
    max_files: Option<u64>,
    /// Stop where directories lie deeper than this
    #[arg(long, value_name = "N")]
    max_depth: Option<u64>,
}

/// What happens to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// They are made.
    Made,
    /// They are skipped, as requested.
    LeftOut,
    /// They are skipped, and each is reported.
    Refused,
}

/// What is taken.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// Devices.
    pub devices: Devices,
    /// Set-user-id and set-group-id.
    pub set_ids: bool,
    /// Attributes that only root can set.
    pub privileged_xattrs: bool,
    /// How much.
    pub limits: Limits,
}

/// The limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of content.
    pub size: u64,
    /// Files of all types.
    pub files: u64,
    /// Nested directories.
    pub depth: u64,
}

impl Trust {
    /// All of it, without limits.
    pub const FULL: Self =
        Self { devices: Devices::Made, set_ids: true, privileged_xattrs: true, limits: Limits::NONE };

    /// Whether an attribute of this name is accepted.
    pub fn takes_xattr(&self, name: &[u8]) -> bool {
        self.privileged_xattrs || name.starts_with(b"user.") || is_acl(name)
    }

    /// The accepted permissions.
    pub fn permissions(&self, permissions: u16) -> u16 {
        if self.set_ids { permissions } else { permissions & !0o6000 }
    }
}

impl Limits {
    /// Without limits.
    pub const NONE: Self = Self { size: u64::MAX, files: u64::MAX, depth: u64::MAX };
}

/// Whether an attribute is an access control list, as Linux names it.
pub fn is_acl(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

impl TrustArgs {
    /// What is accepted. `devices`: the default for devices.
    pub fn trust(&self, devices: Devices) -> Trust {
        let limits = if self.untrusted { UNTRUSTED } else { Limits::NONE };
        Trust {
            devices: if self.no_devices || self.untrusted { Devices::LeftOut } else { devices },
            set_ids: !(self.no_setuid || self.untrusted),
            privileged_xattrs: !(self.no_privileged_xattrs || self.untrusted),
            limits: Limits {
                size: self.max_size.unwrap_or(limits.size),
                files: self.max_files.unwrap_or(limits.files),
                depth: self.max_depth.unwrap_or(limits.depth),
            },
        }
    }
}

/// The limit that would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// Of content.
    Size(u64),
    /// Of files.
    Files(u64),
    /// Of levels.
    Depth(u64),
}

impl OverLimit {
    /// The failure of the verb.
    pub const EXIT: Exit = Exit::Limit;
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(limit) => write!(f, "more than {limit} bytes of content (--max-size)"),
            Self::Files(limit) => write!(f, "more than {limit} files (--max-files)"),
            Self::Depth(limit) => write!(f, "more than {limit} nested directories (--max-depth)"),
        }
    }
}

/// The remaining part of the limits.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limits: Limits,
    size: u64,
    files: u64,
}

impl Budget {
    /// All of it.
    pub fn new(limits: Limits) -> Self {
        Self { limits, size: limits.size, files: limits.files }
    }

    /// Takes one more file, of any type.
    pub fn take_file(&mut self) -> Result<(), OverLimit> {
        self.files = self.files.checked_sub(1).ok_or(OverLimit::Files(self.limits.files))?;
        Ok(())
    }

    /// Takes this much more content.
    pub fn take_size(&mut self, size: u64) -> Result<(), OverLimit> {
        self.size = self.size.checked_sub(size).ok_or(OverLimit::Size(self.limits.size))?;
        Ok(())
    }

    /// Whether a directory with this many above it is allowed.
    pub fn check_depth(&self, depth: u64) -> Result<(), OverLimit> {
        if depth > self.limits.depth { Err(OverLimit::Depth(self.limits.depth)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_at_each_of_its_limits() {
        let mut budget = Budget::new(Limits { size: 10, files: 2, depth: 1 });
        assert_eq!(budget.take_size(10), Ok(()));
        assert_eq!(budget.take_size(1), Err(OverLimit::Size(10)));
        assert_eq!((budget.take_file(), budget.take_file()), (Ok(()), Ok(())));
        assert_eq!(budget.take_file(), Err(OverLimit::Files(2)));
        assert_eq!((budget.check_depth(1), budget.check_depth(2)), (Ok(()), Err(OverLimit::Depth(1))));
    }

    #[test]
    fn what_is_not_trusted_has_no_privileges_and_limits() {
        let args = TrustArgs { untrusted: true, max_files: Some(5), ..TrustArgs::default() };
        let trust = args.trust(Devices::Made);
        assert_eq!(trust.devices, Devices::LeftOut);
        assert_eq!(trust.permissions(0o7755), 0o1755);
        assert_eq!((trust.limits.files, trust.limits.depth), (5, 128));
        for (name, taken) in [
            (&b"user.a"[..], true),
            (b"system.posix_acl_access", true),
            (b"system.nfs4_acl", false),
            (b"security.capability", false),
            (b"trusted.overlay.redirect", false),
        ] {
            assert_eq!(trust.takes_xattr(name), taken);
            assert!(Trust::FULL.takes_xattr(name));
        }
    }
}
