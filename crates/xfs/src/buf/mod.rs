//! Metadata buffers and their bounded cache.
//!
//! A buffer enters the cache only after its verifier passed it, and remembers which one that was: who reads the
//! same place as another structure has it checked again. Two threads that miss the same buffer at the same time
//! both read it; the first one's stays.

use crate::cache::Cache;
use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice};
use fileio::lockstat::LockClass;
use std::ops::Deref;
use std::sync::Arc;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{DiskAddr, Uuid};
use xfs_format::verify::{Verifier, VerifyContext};

/// No buffer is larger: a directory block, an inode cluster and an attribute value stay below.
pub const MAX_BUF_BYTES: u64 = 1 << 20;
/// What an entry costs besides its bytes.
const OVERHEAD_BYTES: u64 = 160;
const SHARDS: usize = 64;

static SHARD_LOCK: LockClass = LockClass::new("buffer cache");

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

/// A run of bytes of the device that is part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub daddr: DiskAddr,
    /// Its length in bytes.
    pub len: u64,
}

#[derive(Clone)]
struct Cached {
    buf: Buf,
    verifier: &'static Verifier,
    /// Where the rest of a buffer of several pieces lies; none for most.
    rest: Option<Arc<[Piece]>>,
}

/// The cache of metadata buffers of one volume.
#[derive(Debug)]
pub struct BufCache {
    device: Arc<dyn BlockDevice>,
    v5: bool,
    meta_uuid: Uuid,
    cache: Cache<(u64, u64), Cached>,
}

impl BufCache {
    /// A cache of at most `limit` bytes in front of `device`.
    pub fn new(device: Arc<dyn BlockDevice>, geometry: &Geometry, limit: u64) -> Self {
        Self {
            device,
            v5: geometry.v5,
            meta_uuid: geometry.meta_uuid,
            cache: Cache::new(limit, SHARDS, &SHARD_LOCK),
        }
    }

    /// The `len` bytes at `daddr`, as `verifier` passed them.
    pub fn read(&self, daddr: DiskAddr, len: u64, verifier: &'static Verifier) -> Result<Buf> {
        self.read_pieces(&[Piece { daddr, len }], verifier)
    }

    /// One buffer made of several runs of bytes.
    pub fn read_pieces(&self, pieces: &[Piece], verifier: &'static Verifier) -> Result<Buf> {
        let Some((first, rest)) = pieces.split_first() else {
            return Err(Error::corrupt_block(DiskAddr(0), None, FormatError::new(verifier.name, "length")));
        };
        let len = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.len));
        if len == 0 || len > MAX_BUF_BYTES {
            let problem = FormatError::mismatch(verifier.name, "length", len, MAX_BUF_BYTES);
            return Err(Error::corrupt_block(first.daddr, None, problem));
        }
        let key = (first.daddr.0, len);
        if let Some(cached) = self.cache.get(&key)
            && cached.rest.as_deref().unwrap_or_default() == rest
        {
            if std::ptr::eq(cached.verifier, verifier) {
                return Ok(cached.buf);
            }
            self.verify(&cached.buf, cached.buf.daddr, verifier)?;
            let buf = cached.buf.clone();
            self.cache.insert(key, Cached { verifier, ..cached }, len + OVERHEAD_BYTES);
            return Ok(buf);
        }
        let bytes = self.load(pieces, len)?;
        self.verify(&bytes, first.daddr, verifier)?;
        let buf = Buf::new(first.daddr, Arc::from(&*bytes));
        let rest = (!rest.is_empty()).then(|| Arc::from(rest));
        self.cache.insert(key, Cached { buf: buf.clone(), verifier, rest }, len + OVERHEAD_BYTES);
        Ok(buf)
    }

    /// Bytes that the cache holds now.
    pub fn weight(&self) -> u64 {
        self.cache.weight()
    }

    fn load(&self, pieces: &[Piece], len: u64) -> Result<AlignedBuf> {
        let len = usize::try_from(len).unwrap_or(0);
        let mut bytes = AlignedBuf::zeroed(len);
        let mut into = &mut bytes[..];
        for piece in pieces {
            let piece_len = usize::try_from(piece.len).unwrap_or(usize::MAX).min(into.len());
            let (now, later) = into.split_at_mut(piece_len);
            self.device.read(piece.daddr.0.saturating_mul(512), now)?;
            into = later;
        }
        Ok(bytes)
    }

    fn verify(&self, bytes: &[u8], daddr: DiskAddr, verifier: &'static Verifier) -> Result<()> {
        let context = VerifyContext { v5: self.v5, meta_uuid: self.meta_uuid, daddr };
        (verifier.check)(bytes, &context).map_err(|problem| Error::corrupt_block(daddr, None, problem))
    }
}
