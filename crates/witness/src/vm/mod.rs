//! A virtual machine with a kernel that can do what the one that runs here cannot: mount v4 volumes, keep quota.
//!
//! The kernel is Debian's, unpacked from its package and not installed; its first process is this
//! program. It needs `qemu-system-x86_64` and, the first time, a package mirror.

mod boot;
mod guest;
mod initramfs;
mod kernel;

pub use boot::{Boot, Machine, run_guest, run_machine};
pub use guest::{Args as GuestArgs, MNT, as_first_process, disk, run as guest};
pub use kernel::DebianKernel;
