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
    /// The time of the system's clock.
    pub fn now() -> Self {
        let (secs, nanos) = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => (since.as_secs().cast_signed(), since.subsec_nanos()),
            // Before the epoch: to the second.
            Err(before) => (-before.duration().as_secs().cast_signed(), 0),
        };
        Self { secs, nanos }
    }

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

    /// The eight bytes that name this point, or the nearest that the form can name: what a clock or a user says may
    /// lie outside, and then the first or last second stands for it, as on a mounted volume.
    pub fn to_disk(self, bigtime: bool) -> u64 {
        let nanos = u64::from(self.nanos).min(NANOS - 1);
        if bigtime {
            let last = (u64::MAX / NANOS).cast_signed() + BIGTIME_EPOCH - 1;
            let secs = self.secs.clamp(BIGTIME_EPOCH, last) - BIGTIME_EPOCH;
            return secs.cast_unsigned() * NANOS + nanos;
        }
        let secs = self.secs.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
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
            Timestamp { secs: -1, nanos: 5 }
        );
        assert_eq!(Timestamp::from_disk(NANOS, false).unwrap_err().check, "nanoseconds");
    }

    #[test]
    fn both_forms_give_back_what_they_were_given() {
        for bigtime in [false, true] {
            for secs in [i32::MIN.into(), -1, 0, 1, 1_700_000_000, i64::from(i32::MAX)] {
                let time = Timestamp { secs, nanos: 999_999_999 };
                assert_eq!(Timestamp::from_disk(time.to_disk(bigtime), bigtime), Ok(time));
            }
            let far = Timestamp { secs: i64::MAX, nanos: 1 };
            assert!(Timestamp::from_disk(far.to_disk(bigtime), bigtime).unwrap().secs < far.secs);
            let early = Timestamp { secs: i64::MIN, nanos: 1 };
            assert_eq!(Timestamp::from_disk(early.to_disk(bigtime), bigtime).unwrap().secs, i32::MIN.into());
        }
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
