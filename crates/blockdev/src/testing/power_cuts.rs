//! The images that power cuts leave of a recorded run, one after the other on one device.
//!
//! Cuts come in the order of time. A write that can no longer be lost is written for good, unless it follows one
//! that can be lost. The rest is written for one image and taken back. So an image costs what lies between the cuts,
//! not what the whole run has written.

use std::sync::Arc;

use crate::{DeviceError, Durability, Fate, Recording, Rewind, WriteRecord};

/// Makes images of a recorded run.
#[derive(Debug)]
pub struct PowerCuts<'a> {
    recording: &'a Recording,
    device: Arc<Rewind>,
    /// For each write, the time before which a cut can undo it.
    durable_from: Vec<u64>,
    cut: u64,
    /// How many writes are on the device for good.
    settled: usize,
}

impl<'a> PowerCuts<'a> {
    /// `device` holds what it held when the recording began, and has no marks.
    pub fn new(recording: &'a Recording, device: Arc<Rewind>) -> Self {
        let mut flushes: Vec<(u64, u64)> =
            recording.flushes().iter().filter_map(|f| Some((f.started, f.completed?))).collect();
        flushes.sort_unstable();
        // The earliest end of each flush and those that started later.
        let mut earliest = u64::MAX;
        for flush in flushes.iter_mut().rev() {
            earliest = earliest.min(flush.1);
            flush.1 = earliest;
        }
        let from = |write: &WriteRecord| match (write.completed, write.durability) {
            (None, _) => u64::MAX,
            (Some(completed), Durability::Fua) => completed,
            (Some(completed), Durability::Volatile) => {
                let next = flushes.partition_point(|&(started, _)| started <= completed);
                flushes.get(next).map_or(u64::MAX, |&(_, ends)| ends)
            }
        };
        let durable_from = recording.writes().iter().map(from).collect();
        Self { recording, device, durable_from, cut: 0, settled: 0 }
    }

    /// Goes on to a later cut. The device must be where [`make`](Self::make) found it.
    pub fn advance(&mut self, cut: u64) -> Result<(), DeviceError> {
        assert!(cut >= self.cut, "cuts come in the order of time");
        self.cut = cut;
        while self.durable_from.get(self.settled).is_some_and(|&from| from < cut) {
            self.recording.apply(&self.recording.writes()[self.settled], &Fate::Applied, &*self.device)?;
            self.settled += 1;
        }
        Ok(())
    }

    /// The writes that the cut may undo.
    pub fn in_doubt(&self) -> impl Iterator<Item = &'a WriteRecord> {
        self.begun().filter(|(_, durable)| !durable).map(|(write, _)| write)
    }

    /// Sets a mark on the device and makes an image after it. `choose` decides about each write in doubt.
    pub fn make(&self, mut choose: impl FnMut(&WriteRecord) -> Fate) -> Result<(), DeviceError> {
        self.device.mark();
        for (write, durable) in self.begun() {
            let fate = if durable { Fate::Applied } else { choose(write) };
            self.recording.apply(write, &fate, &*self.device)?;
        }
        Ok(())
    }

    /// Writes that had begun and are not on the device for good, and whether they are durable.
    fn begun(&self) -> impl Iterator<Item = (&'a WriteRecord, bool)> {
        let (cut, from) = (self.cut, &self.durable_from[self.settled..]);
        let writes = self.recording.writes()[self.settled..].iter().zip(from);
        writes
            .take_while(move |(write, _)| write.started < cut)
            .map(move |(write, &from)| (write, from < cut))
    }
}
