//! A virtual machine with a kernel that can still do what the one that runs here cannot: mount v4 volumes.
//!
//! The kernel is Debian's, unpacked from its package and not installed; the one program in the machine is this
//! one, as its `init`. It needs `qemu-system-x86_64` and, the first time, a package mirror.

mod boot;
mod guest;
mod initramfs;
mod kernel;

pub use boot::{Boot, run_guest};
pub use guest::{Args as GuestArgs, run as guest};
pub use kernel::DebianKernel;
