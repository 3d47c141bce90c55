//! Points in time as inodes keep them: 32 bits of seconds and of nanoseconds, or 64 bits of nanoseconds.

use crate::error::FormatError;

/// The first second that a bigtime timestamp can name, from the Unix epoch: December 1901.
const BIGTIME_EPOCH: i64 = i32::MIN as i64;
const NANOS: u64 = 1_000_000_000;

/// A point in time: seconds since 1970 began in UTC, and the nanoseconds into that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds into the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The time of the system's clock.
    pub fn now() -> Self {
        let (seconds, nanoseconds) = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)
        {
            Ok(since) => (since.as_secs().cast_signed(), since.subsec_nanos()),
            // Before the epoch: to the second.
            Err(before) => (-before.duration().as_secs().cast_signed(), 0),
        };
        Self { seconds, nanoseconds }
    }

    /// The point that eight bytes of an inode name.
    pub fn from_disk(bits: u64, bigtime: bool) -> Result<Self, FormatError> {
        if bigtime {
            // Both parts are far below their types' bounds: the quotient has 35 bits, the rest 30.
            let seconds = (bits / NANOS).cast_signed() + BIGTIME_EPOCH;
            return Ok(Self { seconds, nanoseconds: (bits % NANOS) as u32 });
        }
        let [s0, s1, s2, s3, n0, n1, n2, n3] = bits.to_be_bytes();
        let seconds = i32::from_be_bytes([s0, s1, s2, s3]).into();
        let nanoseconds = u32::from_be_bytes([n0, n1, n2, n3]);
        if u64::from(nanoseconds) >= NANOS {
            return Err(FormatError::mismatch("inode", "nanoseconds", nanoseconds.into(), NANOS - 1));
        }
        Ok(Self { seconds, nanoseconds })
    }

    /// The eight bytes for this point. A point outside the range of the form becomes its first or last second, as
    /// on a mounted volume.
    pub fn to_disk(self, bigtime: bool) -> u64 {
        let nanos = u64::from(self.nanoseconds).min(NANOS - 1);
        if bigtime {
            let last = (u64::MAX / NANOS).cast_signed() + BIGTIME_EPOCH - 1;
            let secs = self.seconds.clamp(BIGTIME_EPOCH, last) - BIGTIME_EPOCH;
            return secs.cast_unsigned() * NANOS + nanos;
        }
        let secs = self.seconds.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        u64::from(secs.cast_unsigned()) << 32 | nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy() {
        assert_eq!(
            Timestamp::from_disk(0xffff_ffff_0000_0005, false).unwrap(),
            Timestamp { seconds: -1, nanoseconds: 5 }
        );
        assert_eq!(Timestamp::from_disk(NANOS, false).unwrap_err().check, "nanoseconds");
    }

    #[test]
    fn both_forms_give_back_what_they_were_given() {
        for bigtime in [false, true] {
            for seconds in [i32::MIN.into(), -1, 0, 1, 1_700_000_000, i64::from(i32::MAX)] {
                let time = Timestamp { seconds, nanoseconds: 999_999_999 };
                assert_eq!(Timestamp::from_disk(time.to_disk(bigtime), bigtime), Ok(time));
            }
            let far = Timestamp { seconds: i64::MAX, nanoseconds: 1 };
            assert!(Timestamp::from_disk(far.to_disk(bigtime), bigtime).unwrap().seconds < far.seconds);
            let early = Timestamp { seconds: i64::MIN, nanoseconds: 1 };
            assert_eq!(
                Timestamp::from_disk(early.to_disk(bigtime), bigtime).unwrap().seconds,
                i32::MIN.into()
            );
        }
    }

    #[test]
    fn bigtime() {
        let first = Timestamp::from_disk(0, true).unwrap();
        assert_eq!(first, Timestamp { seconds: -2_147_483_648, nanoseconds: 0 });
        let epoch = 2_147_483_648 * NANOS;
        assert_eq!(Timestamp::from_disk(epoch + 7, true).unwrap(), Timestamp { seconds: 0, nanoseconds: 7 });
        // The last second is in July 2486.
        assert_eq!(Timestamp::from_disk(u64::MAX, true).unwrap().seconds, 16_299_260_425);
    }
}
