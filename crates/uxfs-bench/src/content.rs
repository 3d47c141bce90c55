//! The content of a measured file's pages.
//!
//! Every page holds one 64-bit word over and over: the kernel's zram keeps such a page without compressing it
//! or allocating for it, which is its best case. The word follows from the page's index and from the
//! *generation* of the run that wrote it last, so that a lost, a torn and a misplaced write all show:
//!
//! - [`Content`] knows each page's generation, hence each byte of the file, at any time between two runs;
//! - a generation uses [`CLASSES`] words, and a page's class is a hash of index and generation, so that a
//!   writer needs just that many prepared buffers and fills none while the clock runs.

use crate::error::{Error, Result};
use crate::work::{Op, Work};
use blockdev::AlignedBuf;
use std::collections::HashMap;

/// Bytes of a page, the unit of all the workloads on files.
pub const PAGE: usize = 4096;

/// Words per generation.
pub const CLASSES: usize = 4;

/// Mixes the bits of a number (the finaliser of the SplitMix64 generator).
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number that follows from a page and a generation: its low bits choose the class, its top bit whether a
/// mixed run writes the page.
const fn dice(page: u64, generation: u32) -> u64 {
    mix(page ^ ((generation as u64) << 40))
}

/// Which of the generation's words a page gets, if it is a request.
pub(crate) const fn class(page: u64, generation: u32) -> usize {
    (dice(page, generation) % CLASSES as u64) as usize
}

/// Whether a mixed run of this generation writes the page (and reads it otherwise).
pub(crate) const fn is_write(page: u64, generation: u32) -> bool {
    dice(page, generation) >> 63 == 1
}

/// The word of a class of a generation. Generation 0 is a file of zeroes.
pub(crate) const fn word(class: usize, generation: u32) -> u64 {
    if generation == 0 { 0 } else { mix(((generation as u64) << 8) | class as u64) }
}

/// Fills a buffer with one word.
pub(crate) fn fill(buf: &mut [u8], word: u64) {
    for chunk in buf.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

/// The buffers that a thread writes from, one for each class of a generation.
pub(crate) struct Sources([AlignedBuf; CLASSES]);

impl Sources {
    /// For requests of this many bytes.
    pub(crate) fn new(generation: u32, bytes: usize) -> Self {
        Self(std::array::from_fn(|class| {
            let mut buf = AlignedBuf::zeroed(bytes);
            fill(&mut buf, word(class, generation));
            buf
        }))
    }

    /// The content of a request of this generation that begins with a page.
    pub(crate) fn request(&self, page: u64, generation: u32) -> &[u8] {
        &self.0[class(page, generation)]
    }
}

/// What a measured file holds: the generation that wrote each page last.
#[derive(Debug, Clone)]
pub struct Content {
    generations: Vec<u32>,
    newest: u32,
    /// The pages per request, for generations with requests of more than one page. A whole request has the class of its
    /// first page.
    spans: HashMap<u32, u32>,
}

impl Content {
    /// A file of this many pages, all zeroes.
    pub fn zeroed(pages: u64) -> Self {
        Self {
            generations: vec![0; usize::try_from(pages).unwrap_or(usize::MAX)],
            newest: 0,
            spans: HashMap::new(),
        }
    }

    /// Pages of the file.
    pub fn pages(&self) -> u64 {
        self.generations.len() as u64
    }

    /// Whether nothing was written yet.
    pub fn is_fresh(&self) -> bool {
        self.newest == 0
    }

    /// The number for the next run that writes.
    pub(crate) fn next_generation(&mut self) -> u32 {
        self.newest += 1;
        self.newest
    }

    /// Records what a run has written.
    pub(crate) fn apply(&mut self, work: &Work<'_>) {
        if work.span > 1 {
            self.spans.insert(work.generation, work.span);
        }
        for &page in work.pages {
            let writes = match work.op {
                Op::Read => false,
                Op::Write => true,
                Op::Mixed => is_write(u64::from(page), work.generation),
            };
            let pages = page as usize..page as usize + work.span as usize;
            if let (true, Some(slots)) = (writes, self.generations.get_mut(pages)) {
                slots.fill(work.generation);
            }
        }
    }

    /// The word that fills a page.
    pub fn expected(&self, page: u64) -> u64 {
        let generation = self.generation(page);
        let span = u64::from(self.spans.get(&generation).copied().unwrap_or(1));
        word(class(page - page % span, generation), generation)
    }

    fn generation(&self, page: u64) -> u32 {
        usize::try_from(page).ok().and_then(|at| self.generations.get(at)).copied().unwrap_or(0)
    }

    /// Compares the bytes of some pages, the first of which has index `first`, with what they should be.
    pub fn check(&self, target: &str, first: u64, bytes: &[u8]) -> Result<()> {
        for (page, held) in (first..).zip(bytes.chunks(PAGE)) {
            let expected = self.expected(page);
            let pattern = expected.to_le_bytes();
            let wrong = held.chunks_exact(8).position(|chunk| chunk != pattern);
            if let Some(nth) = wrong {
                let mut found = [0; 8];
                found.copy_from_slice(&held[nth * 8..nth * 8 + 8]);
                return Err(Error::Content {
                    target: target.to_owned(),
                    page,
                    byte: nth * 8,
                    generation: self.generation(page),
                    expected,
                    found: u64::from_le_bytes(found),
                });
            }
        }
        Ok(())
    }

    /// The bytes of one page, as they should be.
    pub fn page(&self, page: u64) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        fill(&mut bytes, self.expected(page));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pages: &[u32], op: Op, generation: u32) -> Work<'_> {
        Work { pages, op, generation, threads: 1, depth: 1, passes: 1, span: 1 }
    }

    #[test]
    fn classes_and_words_differ() {
        let words: std::collections::HashSet<u64> =
            (1..100).flat_map(|g| (0..CLASSES).map(move |c| word(c, g))).collect();
        assert_eq!(words.len(), 99 * CLASSES);
        let mut seen = [0; CLASSES];
        (0..4000).for_each(|page| seen[class(page, 7)] += 1);
        assert!(seen.iter().all(|&n| n > 800), "{seen:?}");
        let writes = (0..4000).filter(|&page| is_write(page, 7)).count();
        assert!((1800..2200).contains(&writes), "{writes}");
    }

    #[test]
    fn a_mixed_run_changes_the_pages_that_it_writes_and_no_others() {
        let pages: Vec<u32> = (0..64).collect();
        let mut content = Content::zeroed(64);
        let first = content.next_generation();
        content.apply(&run(&pages, Op::Write, first));
        let second = content.next_generation();
        content.apply(&run(&pages[..32], Op::Mixed, second));
        for page in 0..64 {
            let generation = if page < 32 && is_write(page, second) { second } else { first };
            assert_eq!(content.expected(page), word(class(page, generation), generation));
        }
        content.apply(&run(&pages, Op::Read, second + 1));
        assert_eq!(content.generation(40), first);
    }

    #[test]
    fn all_pages_of_a_request_hold_its_word() {
        let mut content = Content::zeroed(64);
        let first = content.next_generation();
        content.apply(&run(&(0..64).collect::<Vec<u32>>(), Op::Write, first));
        let second = content.next_generation();
        content.apply(&Work { span: 16, ..run(&[0, 32], Op::Write, second) });
        for page in 0..64 {
            let (from, generation) =
                if page / 16 % 2 == 0 { (page / 16 * 16, second) } else { (page, first) };
            assert_eq!(content.expected(page), word(class(from, generation), generation), "{page}");
        }
        let sources = Sources::new(second, 16 * PAGE);
        let held: Vec<u8> = (32..48).flat_map(|page| content.page(page)).collect();
        assert!(sources.request(32, second) == held);
    }

    #[test]
    fn a_lost_a_torn_and_a_misplaced_write_show() {
        let mut content = Content::zeroed(8);
        let generation = content.next_generation();
        content.apply(&run(&[0, 1, 2, 3, 4, 5, 6, 7], Op::Write, generation));
        let good: Vec<u8> = (0..8).flat_map(|page| content.page(page)).collect();
        content.check("t", 0, &good).expect("as written");

        let mut lost = good.clone();
        lost[3 * PAGE..4 * PAGE].fill(0);
        assert!(matches!(
            content.check("t", 0, &lost),
            Err(Error::Content { page: 3, byte: 0, found: 0, .. })
        ));

        let mut torn = good.clone();
        torn[5 * PAGE + 512] ^= 1;
        assert!(matches!(content.check("t", 0, &torn), Err(Error::Content { page: 5, byte: 512, .. })));

        let other =
            (1..8).find(|&page| class(page, generation) != class(0, generation)).expect("two classes");
        let mut misplaced = good.clone();
        misplaced[..PAGE].copy_from_slice(&content.page(other));
        assert!(matches!(content.check("t", 0, &misplaced), Err(Error::Content { page: 0, .. })));
    }
}
