//! What lies after a volume that is to grow, and would be lost.
//!
//! A partition table tells who owns those bytes. Without one, signatures are looked for at each [`STEP`] of the file or
//! device, up to the new end of the volume. Old group headers are no obstacle: an interrupted growth leaves them, and
//! so does a larger volume that was there before.

use crate::error::{Error, ErrorKind, Result};
use crate::partitions::Table;
use crate::probe::{self, Unread, View};
use blockdev::{BlockDevice, FileDevice, Storage};
use std::ops::Range;

/// Where volumes begin, counted from the start of the file or device.
const STEP: u64 = 1 << 20;
/// The most places where signatures are looked for. There is no limit for an image file, whose holes are skipped.
const PLACES_MAX: usize = 4096;

/// Refuses growth over these bytes of a device if anything begins at one of the first [`PLACES_MAX`] places there:
/// [`ErrorKind::AlreadyExists`].
pub(crate) fn refuse_overlap(device: &dyn BlockDevice, bytes: Range<u64>) -> Result<()> {
    look(device, bytes, PLACES_MAX, &Some, &|| false).map(drop)
}

/// The same, but `stop` can end it. In an image file all places outside holes are looked at. Gives whether it was not
/// stopped.
pub(crate) fn refuse_overlap_unless(
    device: &FileDevice,
    bytes: Range<u64>,
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    let is_file = matches!(device.place().storage, Storage::File(..));
    let places = if is_file { usize::MAX } else { PLACES_MAX };
    look(device, bytes, places, &|from| device.next_data(from), stop)
}

/// Refuses a volume on these bytes of a device if the partition table gives some of them to something else:
/// [`ErrorKind::AlreadyExists`].
pub(crate) fn refuse_partitions(table: &Table, bytes: &Range<u64>) -> Result<()> {
    let Some(lost) = table.in_the_way(bytes) else { return Ok(()) };
    let what = format!(
        "bytes {} to {} run over {lost}; give a smaller size, or change the partitions first",
        bytes.start, bytes.end
    );
    Err(Error::new(ErrorKind::AlreadyExists, what))
}

fn look(
    device: &dyn BlockDevice,
    bytes: Range<u64>,
    mut places: usize,
    next_data: &dyn Fn(u64) -> Option<u64>,
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    let start = device.place().start;
    let end = bytes.end.min(device.size());
    // The next place at or after a byte.
    let place_at = |byte: u64| {
        let place = start.checked_add(byte)?.checked_next_multiple_of(STEP)?;
        Some(place - start).filter(|&place| place < end)
    };
    let mut next = place_at(bytes.start);
    while let Some(place) = next
        && places > 0
    {
        if stop() {
            return Ok(false);
        }
        let Some(data) = next_data(place) else { break };
        if data >= place + probe::MARKS_WITHIN {
            // Its place is the one before, if that one's marks are not all in the hole.
            next = place_at(data.saturating_sub(probe::MARKS_WITHIN - 1));
            continue;
        }
        // Unreadable bytes may be anything.
        let marks = probe::MARKS_WITHIN.min(device.size() - place) & !(u64::from(device.sector_size()) - 1);
        device.read(place, &mut blockdev::AlignedBuf::zeroed(marks as usize))?;
        let unread = Unread::default();
        let part = View::whole(device, &unread).part(place, u64::MAX);
        let begins = part.and_then(|part| probe::beginning(&part));
        unread.check()?;
        if let Some(what) = begins {
            let [from, to, at] = [bytes.start, bytes.end, place].map(|byte| start.saturating_add(byte));
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "bytes {from} to {to} run over {what} that begins at byte {at} and would be lost; give a smaller \
                     size, or remove it first"
                ),
            ));
        }
        places -= 1;
        next = place_at(place + 1);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{Durability, MemoryDevice, Window};
    use std::sync::Arc;

    #[test]
    fn places_are_counted_from_the_start_of_the_device() {
        let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).unwrap());
        let mut sector = [0; 512];
        sector[..4].copy_from_slice(b"XFSB");
        disk.write(40 << 20, &sector, Durability::Volatile).unwrap();
        let window = Window::new(Arc::clone(&disk), 4096, None).unwrap();
        let at = (40 << 20) - 4096;
        let said = refuse_overlap(&window, at - 1..at + 1).unwrap_err();
        assert_eq!(said.kind(), ErrorKind::AlreadyExists);
        assert!(said.to_string().contains("begins at byte 41943040 "), "{said}");
        refuse_overlap(&window, 0..at).unwrap();
        refuse_overlap(&window, at..at + 1).unwrap_err();
        refuse_overlap(&window, at + 1..u64::MAX).unwrap();
    }

    #[test]
    fn of_a_block_device_so_many_places_are_looked_at() {
        let last = STEP * (PLACES_MAX as u64 - 1);
        let disk = MemoryDevice::anonymous(last + (8 << 20)).unwrap();
        let mut sector = [0; 512];
        sector[..4].copy_from_slice(b"XFSB");
        disk.write(last, &sector, Durability::Volatile).unwrap();
        refuse_overlap(&disk, 0..u64::MAX).unwrap_err();
        disk.write(last, &[0; 512], Durability::Volatile).unwrap();
        disk.write(last + STEP, &sector, Durability::Volatile).unwrap();
        refuse_overlap(&disk, 0..u64::MAX).unwrap();
        refuse_overlap(&disk, 1..u64::MAX).unwrap_err();
    }

    #[test]
    fn holes_of_a_file_are_passed_over_and_marks_behind_them_are_not() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(1 << 43).unwrap();
        let device = blockdev::FileOptions::new().write(true).direct(false).open(file.path()).unwrap();
        let look = |bytes| refuse_overlap_unless(&device, bytes, &|| false);
        assert!(look(0..u64::MAX).unwrap());
        let mut sector = [0; 512];
        sector[0x40..0x48].copy_from_slice(b"_BHRfS_M");
        device.write((1 << 42) + 0x1_0000, &sector, Durability::Volatile).unwrap();
        assert!(look(0..1 << 42).unwrap());
        assert!(look((1 << 42) + 1..u64::MAX).unwrap());
        let said = look(0..(1 << 42) + 1).unwrap_err().to_string();
        assert!(said.contains("a btrfs volume that begins at byte 4398046511104 "), "{said}");
        assert!(!refuse_overlap_unless(&device, 0..u64::MAX, &|| true).unwrap());
    }
}
