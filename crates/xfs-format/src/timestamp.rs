//! Points in time as inodes keep them: 32 bits of seconds and of nanoseconds, or 64 bits of nanoseconds.

use crate::error::FormatError;

/// The first second that a bigtime timestamp can name, from the Unix epoch: December 1901.
const BIGTIME_EPOCH: i64 = i32::MIN as i64;
const NANOS: u64 = 1_000_000_000;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds from the Unix epoch.
    pub secs: i64,
    /// Nanoseconds on top, below 1,000,000,000.
    pub nanos: u32,
}

impl Timestamp {
    /// The point that eight bytes of an inode name.
    pub fn from_disk(bits: u64, bigtime: bool) -> Result<Self, FormatError> {
        if bigtime {
            // Both parts are far below their types' bounds: the quotient has 35 bits, the rest 30.
            let secs = (bits / NANOS).cast_signed() + BIGTIME_EPOCH;
            return Ok(Self { secs, nanos: (bits % NANOS) as u32 });
        }
        let [s0, s1, s2, s3, n0, n1, n2, n3] = bits.to_be_bytes();
        let secs = i32::from_be_bytes([s0, s1, s2, s3]).into();
        let nanos = u32::from_be_bytes([n0, n1, n2, n3]);
        if u64::from(nanos) >= NANOS {
            return Err(FormatError::mismatch("inode", "nanoseconds", nanos.into(), NANOS - 1));
        }
        Ok(Self { secs, nanos })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy() {
        assert_eq!(
            Timestamp::from_disk(0xffff_ffff_0000_0005, false).unwrap(),
            Timestamp { secs: -1, nanos: 5 }
        );
        assert_eq!(Timestamp::from_disk(NANOS, false).unwrap_err().check, "nanoseconds");
    }

    #[test]
    fn bigtime() {
        let first = Timestamp::from_disk(0, true).unwrap();
        assert_eq!(first, Timestamp { secs: -2_147_483_648, nanos: 0 });
        let epoch = 2_147_483_648 * NANOS;
        assert_eq!(Timestamp::from_disk(epoch + 7, true).unwrap(), Timestamp { secs: 0, nanos: 7 });
        // The last second is in July 2486.
        assert_eq!(Timestamp::from_disk(u64::MAX, true).unwrap().secs, 16_299_260_425);
    }
}
