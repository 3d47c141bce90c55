//! The expected content of a file, and which calls must be refused.
//!
//! Invariant: it knows bytes and the size, nothing of blocks, pages or space.

use super::call::{Call, Pair, Step};
use anyhow::{Result, bail, ensure};
use std::ops::Range;

/// What is in a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content(Vec<u8>);

impl Content {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(super) fn size(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What a read gives.
    pub(super) fn read(&self, at: u64, len: u64) -> &[u8] {
        let end = at.saturating_add(len).min(self.size());
        &self.0[at.min(end) as usize..end as usize]
    }

    /// A byte, with zeroes past the end.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(super) fn put(&mut self, at: u64, data: &[u8]) {
        let end = at as usize + data.len();
        self.0.resize(self.0.len().max(end), 0);
        self.0[at as usize..end].copy_from_slice(data);
    }

    /// Zeroes as much of it as lies in the file.
    pub(super) fn zero(&mut self, at: u64, len: u64) {
        let end = (at + len).min(self.size()) as usize;
        self.0[end.min(at as usize)..end].fill(0);
    }

    pub(super) fn resize(&mut self, size: u64) {
        self.0.resize(size as usize, 0);
    }

    pub(super) fn grow(&mut self, size: u64) {
        self.resize(size.max(self.size()));
    }

    pub(super) fn collapse(&mut self, at: u64, len: u64) {
        self.0.drain(at as usize..(at + len) as usize);
    }

    pub(super) fn insert(&mut self, at: u64, len: u64) {
        let old = self.0.len();
        self.resize(self.size() + len);
        self.0.copy_within(at as usize..old, (at + len) as usize);
        self.0[at as usize..(at + len) as usize].fill(0);
    }

    /// The content of both after an exchange of this many bytes, or up to their ends.
    pub(super) fn exchange(&mut self, at: u64, other: &mut Self, other_at: u64, len: Option<u64>) {
        if let Some(len) = len {
            let mine = self.read(at, len).to_vec();
            self.put(at, other.read(other_at, len));
            other.put(other_at, &mine);
            return;
        }
        let (mine, others) = (self.read(at, u64::MAX).to_vec(), other.read(other_at, u64::MAX).to_vec());
        let sizes = [self.size(), other.size()];
        let become_of = |file: &mut Self, at: u64, tail: &[u8], size: u64| {
            file.resize(at);
            file.put(at, tail);
            file.resize(size);
        };
        become_of(self, at, &others, sizes[1]);
        become_of(other, other_at, &mine, sizes[0]);
    }

    /// The same within one file.
    pub(super) fn exchange_within(&mut self, at: u64, other_at: u64, len: u64) {
        let (mine, others) = (self.read(at, len).to_vec(), self.read(other_at, len).to_vec());
        self.put(at, &others);
        self.put(other_at, &mine);
    }
}

/// Whether a call must be refused as invalid, by the sizes of both files, with blocks of this many bytes.
pub(super) fn refuses(step: &Step, sizes: [u64; 2], block: u64) -> bool {
    let size = sizes[step.file];
    let whole = |numbers: &[u64]| numbers.iter().all(|number| number.is_multiple_of(block));
    match &step.call {
        Call::Collapse { at, len } => !whole(&[*at, *len]) || at + len >= size,
        Call::Insert { at, len } => !whole(&[*at, *len]) || *at >= size,
        Call::Clone(pair) => refuses_pair(pair, size, sizes[step.second(pair.same)], block, false),
        Call::Dedupe { pair, .. } => refuses_pair(pair, size, sizes[step.second(pair.same)], block, true),
        Call::Copy(pair) => {
            let len = pair.len.min(size.saturating_sub(pair.from));
            len > 0 && pair.same && meet(pair.from..pair.from + len, pair.at..pair.at + len)
        }
        Call::Exchange { at, other_at, len, same } => {
            let other = sizes[step.second(*same)];
            let to_end = len.is_none();
            if *at > size || *other_at > other {
                return true;
            }
            let len = len.unwrap_or((size - at).max(other - other_at));
            let (end, other_end) = (at + len, other_at + len);
            let ends_both = end >= size && other_end >= other;
            let rounded = len.next_multiple_of(block);
            !to_end && (end > size || other_end > other)
                || !whole(&[*at, *other_at])
                || !whole(&[len]) && !ends_both
                || *same && meet(*at..at + rounded, *other_at..other_at + rounded)
        }
        _ => false,
    }
}

fn refuses_pair(pair: &Pair, size: u64, to_size: u64, block: u64, dedupes: bool) -> bool {
    let Pair { from, at, mut len, same } = *pair;
    if len == 0 && !dedupes {
        // All up to the end.
        len = size.saturating_sub(from);
    }
    let (end, to_end) = (from + len, at + len);
    if end > size {
        return true;
    }
    if len == 0 {
        return false;
    }
    if (from | at) & (block - 1) != 0 || dedupes && to_end > to_size {
        return true;
    }
    let ends_both = end == size && to_end >= to_size;
    if !dedupes && !len.is_multiple_of(block) && !ends_both {
        return true;
    }
    let whole = if dedupes && !ends_both { len & !(block - 1) } else { len };
    let rounded = |start: u64| start..(start + whole).next_multiple_of(block);
    same && meet(rounded(from), rounded(at))
}

fn meet(one: Range<u64>, other: Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// How much of a deduped range may be shared afterwards.
pub(super) fn deduped(pair: &Pair, size: u64, to_size: u64, block: u64) -> u64 {
    let ends_both = pair.from + pair.len == size && pair.at + pair.len >= to_size;
    if ends_both { pair.len } else { pair.len & !(block - 1) }
}

/// Bytes of a call: each word of eight says by its bytes which call it was, and which word of the file.
pub(super) fn stamped(call: u64, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize + 16);
    let high = spread(call);
    for word in at / 8..(at + len).div_ceil(8) {
        bytes.extend_from_slice(&high);
        bytes.extend_from_slice(&spread(word));
    }
    bytes.truncate((at % 8 + len) as usize);
    bytes.drain(..(at % 8) as usize);
    bytes
}

/// Seven bits a byte: no byte is zero.
fn spread(number: u64) -> [u8; 4] {
    [0, 7, 14, 21].map(|shift| (number >> shift) as u8 | 0x80)
}

/// The origin of a byte for messages, from the word around it.
fn told(bytes: &[u8], at: usize) -> String {
    let word = at & !7;
    let Some(word) = bytes.get(word..word + 8) else {
        return format!("{:02x?}", &bytes[word.min(bytes.len())..]);
    };
    let joined = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, byte| sum << 7 | u64::from(byte & 0x7f));
    match word.iter().all(|byte| byte & 0x80 != 0) {
        true => format!("{word:02x?} (call {}, byte {})", joined(&word[..4]), joined(&word[4..]) * 8),
        false => format!("{word:02x?}"),
    }
}

/// Fails if what was read from byte `at` on is not what must be there.
pub(super) fn compare(found: &[u8], expected: &[u8], at: u64) -> Result<()> {
    ensure!(
        found.len() == expected.len(),
        "{} bytes were read at {at} instead of {}",
        found.len(),
        expected.len()
    );
    if found == expected {
        return Ok(());
    }
    let differs = |nth: &usize| found[*nth] != expected[*nth];
    let wrong: Vec<usize> = (0..found.len()).filter(differs).collect();
    let (Some(&first), Some(&last)) = (wrong.first(), wrong.last()) else { return Ok(()) };
    // Words lie at multiples of eight of the file.
    let lead = (at % 8) as usize;
    let word = |bytes: &[u8]| {
        let padded = [&vec![0; lead], bytes].concat();
        told(&padded, first + lead)
    };
    bail!(
        "{} bytes are wrong, from byte {} to {}: {} instead of {}",
        wrong.len(),
        at + first as u64,
        at + last as u64,
        word(found),
        word(expected)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_says_who_wrote_it() {
        let bytes = stamped(300, 13, 40);
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[3..], stamped(300, 16, 37)[..]);
        assert!(bytes.iter().all(|byte| *byte != 0));
        let error = compare(&bytes, &stamped(301, 13, 40), 13).unwrap_err().to_string();
        assert!(error.contains("(call 300, byte 16) instead of"), "{error}");
        assert!(compare(&bytes, &bytes.clone(), 13).is_ok());
        assert!(compare(&bytes[1..], &bytes, 13).is_err(), "one is missing");
    }

    #[test]
    fn contents_move() {
        let mut one = Content::new((1..=8).collect());
        one.collapse(2, 3);
        assert_eq!(one.bytes(), [1, 2, 6, 7, 8]);
        one.insert(1, 2);
        assert_eq!(one.bytes(), [1, 0, 0, 2, 6, 7, 8]);
        one.zero(4, 100);
        one.put(8, &[9]);
        assert_eq!(one.bytes(), [1, 0, 0, 2, 0, 0, 0, 0, 9]);
        let mut other = Content::new(vec![4, 5, 6]);
        one.exchange(4, &mut other, 0, None);
        assert_eq!((one.bytes(), other.bytes()), (&[1, 0, 0][..], &[0, 0, 0, 0, 9, 0, 0, 0, 0][..]));
        one.exchange(0, &mut other, 4, Some(2));
        assert_eq!((one.bytes(), &other.bytes()[4..6]), (&[9, 0, 0][..], &[1, 0][..]));
    }

    #[test]
    fn what_is_refused_is_known() {
        let step = |call| Step { file: 0, buffered: [false; 2], call };
        let pair = |from, at, len, same| Pair { from, at, len, same };
        for (call, is_refused) in [
            (Call::Collapse { at: 0, len: 4096 }, false),
            (Call::Collapse { at: 4096, len: 8192 }, true),
            (Call::Insert { at: 8192, len: 512 }, true),
            (Call::Clone(pair(8192, 8192, 1808, false)), false),
            (Call::Clone(pair(8192, 0, 1808, false)), true),
            (Call::Clone(pair(0, 4096, 8192, true)), true),
            (Call::Dedupe { pair: pair(0, 0, 5000, false), same_content: true }, false),
            (Call::Dedupe { pair: pair(0, 0, 9000, false), same_content: true }, true),
            (Call::Exchange { at: 0, other_at: 4096, len: Some(4096), same: false }, true),
            (Call::Exchange { at: 4096, other_at: 0, len: None, same: false }, false),
            (Call::Copy(pair(1, 5, 4, true)), false),
            (Call::Copy(pair(1, 4, 4, true)), true),
        ] {
            assert_eq!(refuses(&step(call.clone()), [10000, 6000], 4096), is_refused, "{call:?}");
        }
    }
}
