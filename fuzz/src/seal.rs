//! Puts identities and checksums right, so that what is fuzzed is what lies behind them.

use xfs_format::checksum;
use xfs_format::types::{DiskAddr, Uuid};

/// The UUID that the fuzzed structures carry; that of [`xfs::testing::geometry`].
pub const UUID: Uuid = Uuid([7; 16]);

/// Where a structure keeps its identity.
#[derive(Clone, Copy)]
pub struct Places {
    /// Its magic.
    pub magic: [u8; 4],
    /// Its UUID.
    pub uuid: usize,
    /// Its own address, where it has one.
    pub daddr: Option<usize>,
    /// Its LSN.
    pub lsn: usize,
    /// Its checksum.
    pub crc: usize,
}

/// Overwrites what fits; the rest is the parser's to refuse.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Makes the structure pass every check of identity and checksum.
pub fn seal(bytes: &mut [u8], places: &Places, daddr: DiskAddr) {
    put(bytes, 0, &places.magic);
    put(bytes, places.uuid, &UUID.0);
    if let Some(at) = places.daddr {
        put(bytes, at, &daddr.0.to_be_bytes());
    }
    put(bytes, places.lsn, &[0; 8]);
    checksum::store(bytes, places.crc);
}
