//! What a block device lies on: a partition on its disk, a loop device on a file or on another block device.
//!
//! Read from `/sys`, which anyone may read. Lists are bounded, since loop devices may come and go meanwhile. Devices
//! below the device mapper are not followed: it claims them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{DevicePlace, Storage, in_use};

/// The most loop devices that lie on each other.
const MAX_LAYERS: usize = 32;
/// The unit of `/sys`, whatever the disk's sectors are.
const SECTOR: u64 = 512;

/// One of the layers that hold a device's bytes.
#[derive(Debug)]
pub(crate) struct Layer {
    /// The range of bytes in it.
    pub place: DevicePlace,
    /// The disk's or partition's name; `None`: it is a file.
    pub name: Option<String>,
}

/// The device of this number and all layers below it, from the top. A partition is a range of its disk.
pub(crate) fn of_disk(number: u64) -> Vec<Layer> {
    let mut layers = Vec::new();
    let mut place = DevicePlace { storage: Storage::Disk(number), start: 0, len: u64::MAX };
    while layers.len() < MAX_LAYERS
        && let Storage::Disk(number) = place.storage
    {
        let mut folder = folder(number);
        let name = folder.file_name().and_then(|name| Some(name.to_str()?.to_owned()));
        if folder.join("partition").exists()
            && let Some(disk) = folder.parent().and_then(self::number)
        {
            place = below(
                place,
                Storage::Disk(disk),
                size(&folder, "start", SECTOR),
                size(&folder, "size", SECTOR),
            );
            folder.pop();
        }
        let backing = name.as_deref().filter(|_| folder.join("loop").exists());
        let backing = backing.and_then(|_| in_use::backing(folder.file_name()?.to_str()?));
        layers.push(Layer { place, name });
        let Some(backing) = backing else { break };
        place = below(place, backing, size(&folder, "loop/offset", 1), size(&folder, "loop/sizelimit", 1));
        if let Storage::File(..) = backing {
            layers.push(Layer { place, name: None });
        }
    }
    layers
}

/// Where bytes lie in the layer below. The upper one is `len` bytes from `start` on (0: all of the rest).
fn below(place: DevicePlace, storage: Storage, start: u64, len: u64) -> DevicePlace {
    let room = if len == 0 { u64::MAX } else { len.saturating_sub(place.start) };
    DevicePlace { storage, start: place.start.saturating_add(start), len: place.len.min(room) }
}

/// A device's folder in `/sys`.
fn folder(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    fs::canonicalize(&link).unwrap_or(link)
}

/// The device number of a folder in `/sys`.
pub(crate) fn number(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A number in a file; 0 if it is not there.
fn size(folder: &Path, file: &str, unit: u64) -> u64 {
    let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
    text.trim_end().parse::<u64>().unwrap_or(0).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_below_is_cut_to_the_part_that_is_there() {
        let whole = DevicePlace { storage: Storage::Disk(1), start: 0, len: u64::MAX };
        let file = Storage::File(1, 2);
        let part = below(whole, file, 1000, 500);
        assert_eq!(part, DevicePlace { storage: file, start: 1000, len: 500 });
        let inner = below(DevicePlace { start: 100, len: 1000, ..whole }, file, 1000, 500);
        assert_eq!(inner, DevicePlace { storage: file, start: 1100, len: 400 });
        assert_eq!(below(whole, file, 8, 0).len, u64::MAX);
    }
}
