//! What the tests of several devices share: a seeded generator and the comparison with a model.

use std::sync::Arc;

use blockdev::{AlignedBuf, BlockDevice, Durability};

/// A small generator (xorshift64*), so that a printed seed replays a run.
pub struct Random(u64);

impl Random {
    /// Seeded from UXFS_SEED or the clock; prints the seed, which the harness shows if the test fails.
    pub fn seeded() -> Self {
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            since.as_nanos() as u64
        };
        let seed = std::env::var("UXFS_SEED").ok().map_or_else(now, |s| s.parse().expect("UXFS_SEED"));
        println!("replay with UXFS_SEED={seed}");
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Random blocking reads and writes, aligned buffers and not, against a model.
pub fn check_blocking(device: &dyn BlockDevice, rounds: u32) {
    let mut random = Random::seeded();
    let (sector, size) = (u64::from(device.sector_size()), device.size());
    let mut model = vec![0; size as usize];
    device.read(0, &mut model).unwrap();
    for round in 0..rounds {
        let len = (random.below(40) + 1) * sector;
        let len = len.min(size);
        let offset = random.below((size - len) / sector + 1) * sector;
        let range = offset as usize..(offset + len) as usize;
        let skew = if random.below(2) == 0 { 0 } else { 1 + random.below(100) as usize };
        let mut memory = AlignedBuf::zeroed(len as usize + skew);
        let buf = &mut memory[skew..];
        match random.below(5) {
            0..2 => {
                random.fill(buf);
                let durability = if random.below(8) == 0 { Durability::Fua } else { Durability::Volatile };
                device.write(offset, buf, durability).unwrap();
                model[range].copy_from_slice(buf);
            }
            2 if round % 16 == 0 => device.flush().unwrap(),
            _ => {
                device.read(offset, buf).unwrap();
                assert!(buf == &model[range], "round {round}: {len} bytes at {offset} differ");
            }
        }
    }
    let mut whole = vec![0; size as usize];
    device.read(0, &mut whole).unwrap();
    assert!(whole == model, "the whole device differs");
}

/// Random queued reads and writes at full depth against a model; requests in flight never overlap.
pub fn check_queue(device: Arc<dyn BlockDevice>, depth: u32, requests: u64) {
    let mut random = Random::seeded();
    let unit = u64::from(device.sector_size()).max(1024);
    let slots = device.size() / unit;
    assert!(slots > u64::from(depth), "the device is too small for the test");
    let mut model = vec![0; device.size() as usize];
    device.read(0, &mut model).unwrap();
    let mut queue = Arc::clone(&device).queue(depth).unwrap();
    assert_eq!(queue.depth(), depth);
    let mut busy = vec![None; slots as usize];
    let mut spare: Vec<AlignedBuf> = (0..depth).map(|_| AlignedBuf::zeroed(unit as usize)).collect();
    let (mut pushed, mut over) = (0, 0);
    while over < requests {
        while pushed < requests {
            let Some(mut buf) = spare.pop() else { break };
            let slot = loop {
                let slot = random.below(slots);
                if busy[slot as usize].is_none() {
                    break slot;
                }
            };
            let offset = slot * unit;
            let is_write = random.below(2) == 0;
            if is_write {
                random.fill(&mut buf);
                model[offset as usize..(offset + unit) as usize].copy_from_slice(&buf);
                let durability = if random.below(16) == 0 { Durability::Fua } else { Durability::Volatile };
                queue.push_write(offset, buf, durability, slot).unwrap();
            } else {
                queue.push_read(offset, buf, slot).unwrap();
            }
            busy[slot as usize] = Some(is_write);
            pushed += 1;
        }
        if spare.is_empty() {
            assert_eq!(queue.in_flight(), depth);
            let full = queue.push_read(0, AlignedBuf::zeroed(unit as usize), 0);
            assert!(matches!(full, Err(blockdev::DeviceError::QueueFull)), "{full:?}");
        }
        let min = random.below(4) as u32;
        let (before, in_flight) = (over, queue.in_flight());
        let count = queue
            .wait(min, &mut |done| {
                done.result.unwrap();
                let is_write = busy[done.tag as usize].take().expect("a completion of nothing");
                let at = (done.tag * unit) as usize;
                assert!(
                    done.buf[..] == model[at..at + unit as usize],
                    "slot {} (write: {is_write})",
                    done.tag
                );
                spare.push(done.buf);
                over += 1;
            })
            .unwrap();
        assert_eq!(over - before, u64::from(count));
        assert!(count >= min.min(in_flight));
    }
    assert_eq!(queue.in_flight(), 0);
    drop(queue);
    let mut whole = vec![0; device.size() as usize];
    device.read(0, &mut whole).unwrap();
    assert!(whole == model, "the whole device differs");
}

/// Requests that must be refused, and how.
pub fn check_refusals(device: &Arc<dyn BlockDevice>) {
    use blockdev::DeviceError::{Misaligned, OutOfRange};
    let (sector, size) = (device.sector_size() as usize, device.size());
    let mut buf = vec![0; 2 * sector];
    let read = |offset, buf: &mut [u8]| device.read(offset, buf);
    assert!(matches!(read(size, &mut buf), Err(OutOfRange { .. })));
    assert!(matches!(read(size - sector as u64, &mut buf), Err(OutOfRange { .. })));
    assert!(matches!(read(u64::MAX - sector as u64 + 1, &mut buf), Err(OutOfRange { .. })));
    assert!(matches!(read(1, &mut buf), Err(Misaligned { .. })));
    assert!(matches!(read(0, &mut buf[1..]), Err(Misaligned { .. })));
    let write = |offset, buf: &[u8]| device.write(offset, buf, Durability::Volatile);
    assert!(matches!(write(size, &buf), Err(OutOfRange { .. })));
    assert!(matches!(write(7, &buf), Err(Misaligned { .. })));
    let mut queue = Arc::clone(device).queue(2).unwrap();
    let aligned = || AlignedBuf::zeroed(2 * sector);
    assert!(matches!(queue.push_read(size, aligned(), 0), Err(OutOfRange { .. })));
    assert!(matches!(queue.push_read(3, aligned(), 0), Err(Misaligned { .. })));
    assert!(matches!(queue.push_write(size, aligned(), Durability::Volatile, 0), Err(OutOfRange { .. })));
    assert_eq!(queue.in_flight(), 0);
    assert!(Arc::clone(device).queue(0).is_err());
    assert!(Arc::clone(device).queue(u32::MAX).is_err());
}
