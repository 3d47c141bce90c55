//! The checks that every request passes before a device touches it.

use crate::DeviceError;

/// Smallest and largest sector that a device may have, in bytes.
pub(crate) const SECTOR_BYTES_MIN: u32 = 512;
const SECTOR_BYTES_MAX: u32 = 4096;

/// Size and sector of a device: what a request is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    size: u64,
    sector: u32,
}

impl Geometry {
    /// A device of `size` bytes, rounded down to whole sectors.
    pub(crate) fn new(size: u64, sector: u32) -> Result<Self, DeviceError> {
        if !sector.is_power_of_two() || !(SECTOR_BYTES_MIN..=SECTOR_BYTES_MAX).contains(&sector) {
            let why = format!("a sector of {sector} bytes (a power of two from 512 to 4096 is possible)");
            return Err(DeviceError::invalid("setting up the device", why));
        }
        Ok(Self { size: size & !(u64::from(sector) - 1), sector })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn sector(&self) -> u32 {
        self.sector
    }

    /// Whether `len` bytes at `offset` are whole sectors inside the device.
    #[inline]
    pub(crate) fn check(&self, offset: u64, len: usize) -> Result<(), DeviceError> {
        let len = len as u64;
        if (offset | len) & (u64::from(self.sector) - 1) != 0 {
            return Err(DeviceError::Misaligned { offset, len, sector: self.sector });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, len, size: self.size }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_whole_sectors_inside() {
        let g = Geometry::new(10_000, 512).unwrap();
        assert_eq!(g.size(), 9728);
        assert!(g.check(0, 9728).is_ok());
        assert!(g.check(9728, 0).is_ok());
        assert!(matches!(g.check(9216, 1024), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(g.check(u64::MAX - 511, 512), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(g.check(100, 512), Err(DeviceError::Misaligned { .. })));
        assert!(matches!(g.check(512, 100), Err(DeviceError::Misaligned { .. })));
        assert!(Geometry::new(10_000, 8192).is_err());
        assert!(Geometry::new(10_000, 1000).is_err());
        assert!(Geometry::new(10_000, 0).is_err());
    }
}
