//! Programs that tests ask whether uxfs is right: releases of xfsprogs ([`xfsprogs`]) and the kernel ([`Mounted`]).
//!
//! For tests and witnesses alone: nothing that is published depends on it but to be tested. Invariant: what is asked for
//! and cannot be had is an error that says what is missing, never a reason to leave a test out.
#![forbid(unsafe_code)]

mod mounted;
pub mod xfsprogs;

pub use mounted::{Mounted, mount, umount};
