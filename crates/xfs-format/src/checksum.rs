//! CRC-32C of v5 metadata: little-endian, computed with its own four bytes as zeroes.

use crate::error::FormatError;

/// The checksum of `bytes` whose own field lies at `crc_offset`; `None` if the field does not fit.
pub fn compute(bytes: &[u8], crc_offset: usize) -> Option<u32> {
    let before = bytes.get(..crc_offset)?;
    let after = bytes.get(crc_offset.checked_add(4)?..)?;
    let crc = crc32c::crc32c(before);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    Some(crc32c::crc32c_append(crc, after))
}

/// Checks the checksum at `crc_offset` of `bytes`.
pub fn check(structure: &'static str, bytes: &[u8], crc_offset: usize) -> Result<(), FormatError> {
    let computed =
        compute(bytes, crc_offset).ok_or(FormatError::value(structure, "length", bytes.len() as u64))?;
    let stored = bytes
        .get(crc_offset..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|raw| u32::from_le_bytes(*raw))
        .unwrap_or_default();
    if stored != computed {
        return Err(FormatError::mismatch(structure, "checksum", stored.into(), computed.into()));
    }
    Ok(())
}

/// Writes the right checksum into `bytes`; `false` if the field does not fit.
pub fn store(bytes: &mut [u8], crc_offset: usize) -> bool {
    let Some(crc) = compute(bytes, crc_offset) else { return false };
    match bytes.get_mut(crc_offset..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        Some(field) => {
            *field = crc.to_le_bytes();
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_itself_does_not_count() {
        let mut bytes = *b"123456789abcdefg";
        assert!(store(&mut bytes, 4));
        assert_eq!(check("x", &bytes, 4), Ok(()));
        let mut zeroed = bytes;
        zeroed[4..8].fill(0);
        assert_eq!(compute(&zeroed, 4), Some(crc32c::crc32c(&zeroed)));
        bytes[15] ^= 1;
        assert_eq!(check("x", &bytes, 4).unwrap_err().check, "checksum");
    }

    #[test]
    fn known_value() {
        // The check value of CRC-32C, with four zero bytes in front.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_field_outside_is_an_error() {
        assert_eq!(compute(&[0; 8], 5), None);
        assert_eq!(compute(&[0; 8], usize::MAX), None);
        assert!(!store(&mut [0; 8], 6));
        assert!(check("x", &[0; 3], 0).is_err());
    }
}
