//! What files may contain, sector by sector: everything that was ever put there, and when.
//!
//! Invariants:
//! - all words of a sector are the same: the unique number of its writer, or zero;
//! - after a crash, a sector has what was certainly in it when the last completed sync began, or something later;
//!   nothing older, and nothing else.

use anyhow::{Result, bail, ensure};

/// Bytes that a device writes atomically.
pub(super) const SECTOR: usize = 512;

/// When something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begun: u64,
    pub(super) ended: u64,
}

/// Something that was put into a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    value: u64,
    span: Span,
    /// Whether it is certain: a failed operation may have been done in part.
    certain: bool,
}

/// Everything that was ever in a sector, or in another place with one number.
#[derive(Clone, Debug)]
pub(super) struct SectorHistory(Vec<Version>);

/// The possible content of a place that moves elsewhere.
#[derive(Clone, Debug)]
pub(super) struct Past {
    /// The present content comes last.
    values: Vec<u64>,
    certain: bool,
}

impl SectorHistory {
    /// This is the content from the start.
    pub(super) fn new(value: u64) -> Self {
        Self(vec![Version { value, span: Span { begun: 0, ended: 0 }, certain: true }])
    }

    /// Something was put there.
    pub(super) fn put(&mut self, value: u64, span: Span, certain: bool) {
        self.0.push(Version { value, span, certain });
    }

    /// The blocks of another place came here. After a crash, their content may be what that place had before.
    pub(super) fn take(&mut self, past: &Past, span: Span, certain: bool) {
        let mut left = past.values.len();
        for &value in &past.values {
            left -= 1;
            self.0.push(Version { value, span, certain: certain && past.certain && left == 0 });
        }
    }

    /// The blocks of another place come here, one extent after the other. A crash in between leaves a hole between
    /// those that have moved and those that have not.
    pub(super) fn come(&mut self, past: &Past, span: Span) {
        self.put(0, span, false);
        self.take(past, span, true);
    }

    /// The present content, and earlier content that may be there after a crash if nothing was synced since `durable`.
    pub(super) fn past(&self, durable: u64) -> Past {
        let mut values: Vec<u64> = Vec::new();
        for version in &self.0[self.base(durable)..] {
            values.retain(|value| *value != version.value);
            values.push(version.value);
        }
        Past { values, certain: self.now().is_some() }
    }

    /// The last certain version before `begun`.
    fn base(&self, begun: u64) -> usize {
        let is_base = |version: &Version| version.certain && version.span.ended < begun;
        self.0.iter().rposition(is_base).unwrap_or(0)
    }

    /// The present content, if it is certain.
    pub(super) fn now(&self) -> Option<u64> {
        self.0.last().filter(|version| version.certain).map(|version| version.value)
    }

    /// Whether this may be the content now.
    pub(super) fn may_be(&self, value: u64) -> bool {
        self.0[self.base(u64::MAX)..].iter().any(|version| version.value == value)
    }

    /// Whether this may be the content after a crash at `cut`, if everything that ended before `durable` was synced.
    pub(super) fn may_be_behind(&self, value: u64, cut: u64, durable: u64) -> bool {
        let may = |version: &Version| version.value == value && version.span.begun < cut;
        self.0[self.base(durable)..].iter().any(may)
    }
}

/// The number in a sector.
pub(super) fn number(sector: &[u8]) -> Result<u64> {
    let words: Vec<u64> =
        sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
    let Some(&first) = words.first() else { bail!("an empty sector") };
    ensure!(
        words.iter().all(|&word| word == first),
        "one sector holds {:x?}",
        words.iter().fold(Vec::new(), |mut all, word| {
            if all.last() != Some(word) {
                all.push(*word);
            }
            all
        })
    );
    Ok(first)
}

/// Sectors with these numbers.
pub(super) fn sectors(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| number.to_le_bytes().repeat(SECTOR / 8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begun: u64) -> Span {
        Span { begun, ended: begun + 1 }
    }

    #[test]
    fn what_was_synced_stays_until_something_else_comes() {
        let mut place = SectorHistory::new(0);
        place.put(1, span(10), true);
        place.put(2, span(20), true);
        place.put(3, span(30), true);
        assert!(place.may_be(3) && !place.may_be(2));
        assert_eq!(place.now(), Some(3));
        for (value, cut, durable, may) in [
            (0, 15, 0, true),
            (0, 15, 12, false),
            (1, 15, 12, true),
            (1, 40, 12, true),
            (2, 15, 12, false),
            (2, 40, 25, true),
            (1, 40, 25, false),
            (3, 40, 25, true),
            (3, 30, 25, false),
        ] {
            assert_eq!(place.may_be_behind(value, cut, durable), may, "{value} {cut} {durable}");
        }
    }

    #[test]
    fn what_is_not_certain_may_be_there_or_not() {
        let mut place = SectorHistory::new(0);
        place.put(1, span(10), true);
        place.put(2, span(20), false);
        assert!(place.may_be(1) && place.may_be(2) && !place.may_be(0));
        assert_eq!(place.now(), None);
        assert!(place.may_be_behind(1, 40, 30) && place.may_be_behind(2, 40, 30));
    }

    #[test]
    fn a_clone_has_the_past_of_what_it_was_made_of() {
        let mut source = SectorHistory::new(0);
        source.put(1, span(10), true);
        source.put(2, span(20), true);
        let mut place = SectorHistory::new(7);
        place.take(&source.past(15), span(30), true);
        assert_eq!(place.now(), Some(2));
        assert!(place.may_be_behind(1, 40, 15) && place.may_be_behind(7, 40, 15));
        assert!(!place.may_be_behind(0, 40, 15), "that was over before");
        assert!(!place.may_be_behind(1, 60, 50) && place.may_be_behind(2, 60, 50));
    }

    #[test]
    fn what_moves_may_be_a_hole_on_the_way_and_not_behind_it() {
        let (mut source, mut place) = (SectorHistory::new(0), SectorHistory::new(7));
        source.put(2, span(10), true);
        place.put(8, span(10), true);
        place.come(&source.past(20), Span { begun: 30, ended: 40 });
        assert_eq!(place.now(), Some(2));
        for (value, cut, durable, may) in
            [(0, 29, 20, false), (8, 35, 20, true), (0, 35, 20, true), (2, 35, 20, true), (0, 60, 50, false)]
        {
            assert_eq!(place.may_be_behind(value, cut, durable), may, "{value} {cut} {durable}");
        }
    }

    #[test]
    fn a_sector_of_two_is_found() {
        assert_eq!(number(&sectors([5])).unwrap(), 5);
        let mut torn = sectors([5]);
        torn[100] = 1;
        assert!(number(&torn).is_err());
    }
}
