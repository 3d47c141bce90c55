//! XFS volumes in user space: no kernel mount, no privileges.
#![forbid(unsafe_code)]
