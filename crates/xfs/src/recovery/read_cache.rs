//! Caches what replay reads from the device, in pieces, of which the last ones are kept: an inode cluster or a
//! directory block is read again and again while its parts are changed.
//!
//! Invariants: the cache does not exceed its size. The device is not written meanwhile. The cache does not know what
//! was changed.

use blockdev::{AlignedBuf, BlockDevice, DeviceError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// At most an inode cluster. A multiple of every sector size.
const PIECE: u64 = 16 << 10;

/// Reads a device that does not change.
#[derive(Debug)]
pub(super) struct ReadCache {
    device: Arc<dyn BlockDevice>,
    pieces: Mutex<Pieces>,
}

/// Two generations: when the young one is full, the old one is dropped.
#[derive(Debug)]
struct Pieces {
    /// Maximum number of pieces per generation.
    most: usize,
    young: HashMap<u64, Arc<[u8]>>,
    old: HashMap<u64, Arc<[u8]>>,
}

impl Pieces {
    fn new(most: usize) -> Self {
        Self { most, young: HashMap::new(), old: HashMap::new() }
    }

    fn get(&mut self, number: u64) -> Option<Arc<[u8]>> {
        if let Some(piece) = self.young.get(&number) {
            return Some(Arc::clone(piece));
        }
        let piece = self.old.remove(&number)?;
        self.put(number, Arc::clone(&piece));
        Some(piece)
    }

    fn put(&mut self, number: u64, piece: Arc<[u8]>) {
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(number, piece);
    }
}

impl ReadCache {
    /// Keeps at most this many bytes.
    pub(super) fn new(device: Arc<dyn BlockDevice>, kept: u64) -> Self {
        Self { device, pieces: Mutex::new(Pieces::new((kept / PIECE / 2) as usize)) }
    }

    /// Fills `into` from `offset` on.
    pub(super) fn read(&self, mut offset: u64, mut into: &mut [u8]) -> Result<(), DeviceError> {
        while !into.is_empty() {
            let at = (offset % PIECE) as usize;
            let len = into.len().min(PIECE as usize - at);
            let (now, later) = into.split_at_mut(len);
            match self.piece(offset / PIECE) {
                Some(piece) if piece.len() >= at + len => now.copy_from_slice(&piece[at..at + len]),
                // If a piece cannot be read as a whole, the requested part may still be good.
                _ => self.read_past(offset, now)?,
            }
            offset += len as u64;
            into = later;
        }
        Ok(())
    }

    fn piece(&self, number: u64) -> Option<Arc<[u8]>> {
        if let Some(piece) = self.pieces.lock().get(number) {
            return Some(piece);
        }
        let start = number * PIECE;
        let unit = u64::from(self.device.sector_size());
        let len = self.device.size().saturating_sub(start).min(PIECE) / unit * unit;
        let mut bytes = AlignedBuf::zeroed(len as usize);
        self.device.read(start, &mut bytes).ok()?;
        let piece: Arc<[u8]> = Arc::from(&*bytes);
        self.pieces.lock().put(number, Arc::clone(&piece));
        Some(piece)
    }

    /// Reads the requested bytes and the rest of their sectors.
    fn read_past(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let unit = u64::from(self.device.sector_size());
        let start = offset - offset % unit;
        let end = (offset + into.len() as u64).next_multiple_of(unit);
        let mut bytes = AlignedBuf::zeroed((end - start) as usize);
        self.device.read(start, &mut bytes)?;
        into.copy_from_slice(&bytes[(offset - start) as usize..][..into.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{Counter, Durability, FaultDevice, MemoryDevice};
    use blockdev::{Effect, Fault, Op, Repeat};

    const KEPT: u64 = 4 << 20;

    fn device(bytes: u64) -> Arc<dyn BlockDevice> {
        let device = MemoryDevice::anonymous(bytes).unwrap();
        for sector in 0..bytes / 512 {
            device.write(sector * 512, &[sector as u8; 512], Durability::Volatile).unwrap();
        }
        Arc::new(device)
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let counter = Arc::new(Counter::new(device(1 << 20)));
        let reading = ReadCache::new(Arc::clone(&counter) as _, KEPT);
        let mut bytes = [0; 1500];
        for _ in 0..3 {
            reading.read(PIECE - 700, &mut bytes).unwrap();
            assert_eq!((bytes[0], bytes[699], bytes[700], bytes[1499]), (30, 31, 32, 33));
        }
        assert_eq!(counter.counts().reads, 2);
    }

    #[test]
    fn it_keeps_no_more_than_it_may() {
        let reading = ReadCache::new(device(1 << 20), KEPT);
        let mut pieces = reading.pieces.lock();
        for number in 0..KEPT / PIECE * 2 {
            pieces.put(number, Arc::from([]));
            assert!((pieces.young.len() + pieces.old.len()) as u64 <= KEPT / PIECE);
            assert!(pieces.get(0).is_some(), "what is asked for all the time stays");
        }
    }

    /// The last piece of a device is shorter. One with a bad sector is still good for the others.
    #[test]
    fn pieces_that_cannot_be_read_as_a_whole() {
        let reading = ReadCache::new(device(PIECE + 1024), KEPT);
        let mut bytes = [0; 1024];
        reading.read(PIECE, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1023]), (32, 33));
        assert!(reading.read(PIECE + 512, &mut bytes).is_err());
        let fault = Fault { op: Op::Read, nth: 0, effect: Effect::Fail, repeat: Repeat::Once };
        let reading = ReadCache::new(Arc::new(FaultDevice::new(device(1 << 20), vec![fault])), KEPT);
        reading.read(512, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1023]), (1, 2));
    }
}
