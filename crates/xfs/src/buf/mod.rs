//! Metadata buffers and their bounded cache.

use std::ops::Deref;
use std::sync::Arc;
use xfs_format::types::DiskAddr;

/// A metadata buffer that passed its verifier. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Buf {
    daddr: DiskAddr,
    bytes: Arc<[u8]>,
}

impl Buf {
    /// A buffer of bytes that were read at `daddr` and checked.
    pub fn new(daddr: DiskAddr, bytes: Arc<[u8]>) -> Self {
        Self { daddr, bytes }
    }

    /// Where its first block lies.
    pub fn daddr(&self) -> DiskAddr {
        self.daddr
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
