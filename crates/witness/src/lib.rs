//! Outside witnesses for uxfs: volumes filled by the kernel with everything the format can hold, manifests of
//! what the kernel and what uxfs see in them, and their comparison, object by object.
//!
//! A tool of this repository, not part of the product. Nothing here decides what is right: the kernel and
//! xfsprogs do.
#![forbid(unsafe_code)]

pub mod chains;
pub mod changes;
pub mod check;
pub mod command;
pub mod compare;
pub mod damage;
pub mod engine;
pub mod fill;
pub mod from;
pub mod fsx;
pub mod full;
pub mod handles;
pub mod history;
pub mod hostile;
pub mod kernel;
pub mod leftovers;
pub mod linear;
pub mod matrix;
pub mod quota;
pub mod record;
pub mod record_sizes;
pub mod recover_time;
pub mod sandbox;
pub mod scale;
pub mod torture;
pub mod v4;
pub mod vm;
pub mod volumes;
