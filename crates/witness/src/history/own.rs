//! Whether a file has only bytes of its own after a crash, whether it was synced or not.
//!
//! Each sector of a recovered file must be as that file was at that place: behind the change that was durable when the
//! power went, or behind a later one that had begun. So it is what was written there, or zeroes where they were read
//! once: of a hole, of what was punched, zeroed or set aside, of what lay past the end. What clones, copies, exchanges,
//! collapses and insertions bring to a place is in the model's content behind them, and is the file's own from then on. While a range is cut out or put in, which takes
//! many transactions, what is behind it may be where it was, where it goes, or a hole between both.
//! The device begins with a [pattern](filler_word) that no file has, so that nothing else that lies on it is taken for one of
//! these: neither what was there before the volume, nor what belongs, or belonged, to another file.
//!
//! - The size lies between the sizes that the file had since it was durable.
//! - Its last sector is not older than the first change that made the file so long: the size never comes ahead of data.
//! - The shared file is judged stripe by stripe, by what its owner did.
//!
//! Not judged: whether sectors that are there belong to one moment (several changes may be under way, and be there in part);
//! zeroes ahead of the last sector where something was written for the first time since the file was durable; what lies
//! past the end (that is looked at when the file grows), files without a name, attributes and links.

use super::content::{self, Content};
use crate::record;
use anyhow::{Context, Result, ensure};
use blockdev::BlockDevice;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{OpenOptions, Volume};

/// How much of a file is read at once.
const CHUNK: usize = 1 << 18;

/// Bytes of a sector that are shown, and by which their origin is looked for.
const SHOWN: usize = 16;

/// Above the number of a sector in each of the words that it begins with.
const FILLER: u64 = 0xeeee_eeee << 32;

/// What each word of a sector holds before the volume is made.
pub fn filler_word(sector: u64) -> u64 {
    debug_assert!(sector < 1 << 32, "a number that leaves room");
    FILLER | sector
}

/// The sector that a word was in before the volume was made.
fn filler_sector(word: u64) -> Option<u64> {
    (word & FILLER == FILLER).then_some(word & !FILLER)
}

/// The files of a recovered volume, which is read by uxfs.
#[derive(Debug)]
pub struct Files {
    volume: Volume,
    /// Bytes that a device writes as a whole.
    sector: u64,
    judged: AtomicU64,
}

impl Files {
    /// Those on a device.
    pub fn on(device: Arc<dyn BlockDevice>, sector: u32) -> Result<Self> {
        let volume = Volume::open_device(device, &OpenOptions::new())?;
        Ok(Self { volume, sector: sector.into(), judged: AtomicU64::new(0) })
    }

    /// How many sectors were judged.
    pub fn judged(&self) -> u64 {
        self.judged.load(Ordering::Relaxed)
    }

    /// What is wrong in the file of an inode number; `origin` says where bytes are from.
    pub fn wrong(
        &self,
        ino: u64,
        possible: &Possible<'_>,
        found: &record::Content,
        size: u64,
        origin: impl Fn(&[u8]) -> String,
    ) -> Result<Option<String>> {
        let file = self.volume.node(ino)?.open()?;
        ensure!(file.size() == size, "inode {ino} has {} bytes, and {size} in a manifest", file.size());
        let mut read = |at: u64, out: &mut [u8]| -> Result<()> {
            self.judged.fetch_add((out.len() as u64).div_ceil(self.sector), Ordering::Relaxed);
            let got = file.read_at(out, at).with_context(|| format!("reading inode {ino} at {at}"))?;
            ensure!(got == out.len(), "{got} bytes of inode {ino} at {at} instead of {}", out.len());
            Ok(())
        };
        if let Some(what) = possible.wrong_size(size) {
            return Ok(Some(what));
        }
        let odd = possible.odd_sector(size, &found.data, self.sector, &mut read)?;
        Ok(odd.map(|(at, bytes)| {
            let shown = record::hex(&bytes[..bytes.len().min(SHOWN)]);
            format!("its sector at {at} of {size} never was like that: {shown}: {}", origin(&bytes))
        }))
    }
}

/// What a file may be like: its versions, in order, of each thread that has a part of it.
#[derive(Debug)]
pub struct Possible<'a> {
    versions: Vec<Vec<&'a Content>>,
    /// Bytes of a stripe; the threads have stripes in turn.
    stripe: u64,
}

impl<'a> Possible<'a> {
    /// For a file of one thread.
    pub fn of(versions: Vec<&'a Content>) -> Self {
        Self::striped(vec![versions], u64::MAX)
    }

    /// For a file with stripes of all threads.
    pub fn striped(versions: Vec<Vec<&'a Content>>, stripe: u64) -> Self {
        debug_assert!(versions.iter().all(|of_one| !of_one.is_empty()), "a file is like something");
        Self { versions, stripe }
    }

    /// The versions of the thread that has the byte at a place.
    fn at(&self, at: u64) -> &[&'a Content] {
        &self.versions[(at / self.stripe) as usize % self.versions.len()]
    }

    fn wrong_size(&self, size: u64) -> Option<String> {
        let sizes = |of_one: &'_ Vec<&Content>| {
            let sizes = of_one.iter().map(|version| version.size());
            (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0))
        };
        let least = self.versions.iter().map(|of_one| sizes(of_one).0).max().unwrap_or(0);
        let most = self.versions.iter().map(|of_one| sizes(of_one).1).max().unwrap_or(0);
        (!(least..=most).contains(&size)).then(|| format!("size {size}, and it had {least} to {most} bytes"))
    }

    /// The first sector that no version had, and what is in it.
    fn odd_sector(
        &self,
        size: u64,
        data: &[(u64, u64)],
        sector: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Option<(u64, Vec<u8>)>> {
        let mut buffer = vec![0; CHUNK];
        let mut behind = 0;
        for &(start, end) in data.iter().chain([&(size, size)]) {
            if let Some(at) = self.odd_hole(behind, start, size, sector) {
                return Ok(Some((at, vec![0; (size - at).min(sector) as usize])));
            }
            let mut at = start / sector * sector;
            while at < end.min(size) {
                let bytes = &mut buffer[..(size - at).min(CHUNK as u64) as usize];
                read(at, bytes)?;
                for bytes in bytes.chunks(sector as usize) {
                    if at < end && !self.was(at, bytes, size) {
                        return Ok(Some((at, bytes.to_vec())));
                    }
                    at += bytes.len() as u64;
                }
            }
            behind = end;
        }
        Ok(None)
    }

    /// The first sector of a hole that no version had as one. What is not written in the oldest version is zeroes there.
    fn odd_hole(&self, start: u64, end: u64, size: u64, sector: u64) -> Option<u64> {
        let zeroes = vec![0; sector as usize];
        let last = (size.max(1) - 1) / sector * sector;
        let oldest = self.versions.iter().filter_map(|of_one| of_one.first());
        let mut suspects: Vec<u64> = oldest
            .flat_map(|version| version.written_within(start, end))
            .flat_map(|(from, to)| (from / sector..to.div_ceil(sector)).map(|nth| nth * sector))
            .collect();
        if (start..end).contains(&last) {
            suspects.push(last);
        }
        let whole = |at: &u64| *at >= start && *at < end;
        suspects
            .into_iter()
            .filter(whole)
            .find(|&at| !self.was(at, &zeroes[..(size - at).min(sector) as usize], size))
    }

    /// Whether a sector was like this when the file may have had its size.
    fn was(&self, at: u64, bytes: &[u8], size: u64) -> bool {
        let versions = self.at(at);
        let is_last = at + bytes.len() as u64 >= size;
        let so_long = versions.iter().position(|version| version.size() >= size).filter(|_| is_last);
        versions[so_long.unwrap_or(0)..].iter().rev().any(|version| version.has(at, bytes))
    }
}

/// Where bytes are from: before the volume was made, or written to one of these files.
pub fn origin<'a>(bytes: &[u8], all: impl Iterator<Item = (String, &'a Content)>) -> String {
    let Some(begin) = bytes.get(..SHOWN) else { return "too few to tell from where".to_owned() };
    if begin.iter().all(|&byte| byte == 0) {
        return "zeroes".to_owned();
    }
    let word = u64::from_le_bytes(begin[..8].try_into().expect("eight bytes"));
    if let Some(sector) = filler_sector(word) {
        return format!("from sector {sector} of the device, before the volume was made");
    }
    let mut patterns: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for (name, content) in all {
        for (seed, end) in content.patterns() {
            let (known, _) = patterns.entry(seed).or_insert_with(|| (0, name.clone()));
            *known = end.max(*known);
        }
    }
    for (seed, (end, name)) in patterns {
        let mut pattern = vec![0; end as usize];
        content::fill(seed, 0, &mut pattern);
        if let Some(from) = pattern.windows(SHOWN).position(|window| window == begin) {
            return format!("from byte {from} of what was written by seed {seed:#x}, first to {name}");
        }
    }
    "from nowhere".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: u64 = 512;

    /// A file that was durable as the first version, and what is found of it.
    fn odd(versions: &[Content], found: &[u8], data: &[(u64, u64)]) -> Option<u64> {
        let possible = Possible::of(versions.iter().collect());
        let size = found.len() as u64;
        if possible.wrong_size(size).is_some() {
            return Some(u64::MAX);
        }
        let mut read = |at: u64, out: &mut [u8]| {
            out.copy_from_slice(&found[at as usize..at as usize + out.len()]);
            Ok(())
        };
        possible.odd_sector(size, data, SECTOR, &mut read).unwrap().map(|(at, _)| at)
    }

    fn written(parts: &[(u64, u64, u64)]) -> Content {
        let mut content = Content::default();
        parts.iter().for_each(|&(at, len, seed)| content.write(at, len, seed));
        content
    }

    fn bytes(content: &Content) -> Vec<u8> {
        content.read(0, content.size())
    }

    #[test]
    fn each_sector_is_of_some_version() {
        let versions = [written(&[(0, 2048, 1)]), written(&[(0, 2048, 1), (0, 1024, 2)])];
        let mut found = bytes(&versions[0]);
        assert_eq!(odd(&versions, &found, &[(0, 2048)]), None);
        found[512..1024].copy_from_slice(&bytes(&versions[1])[512..1024]);
        assert_eq!(odd(&versions, &found, &[(0, 2048)]), None, "a part of the second");
        found[512..600].copy_from_slice(&bytes(&versions[0])[512..600]);
        assert_eq!(odd(&versions, &found, &[(0, 2048)]), Some(512), "a sector is not there in part");
        found[512..1024].copy_from_slice(&bytes(&versions[1])[..512]);
        assert_eq!(odd(&versions, &found, &[(0, 2048)]), Some(512), "it was elsewhere");
        found[512..1024].fill(0xee);
        assert_eq!(odd(&versions, &found, &[(0, 2048)]), Some(512), "it is nobody's");
        found[512..1024].fill(0);
        assert_eq!(odd(&versions, &found, &[(0, 2048)]), Some(512), "zeroes that nobody read there");
        assert_eq!(odd(&versions, &found, &[(0, 512), (1024, 2048)]), Some(512), "a hole");
    }

    #[test]
    fn zeroes_are_there_where_they_were() {
        let mut punched = written(&[(0, 4096, 1)]);
        punched.punch(1024, 2048, 1024);
        let versions = [written(&[(0, 4096, 1)]), punched];
        let found = bytes(&versions[1]);
        assert_eq!(odd(&versions, &found, &[(0, 1024), (2048, 4096)]), None);
        assert_eq!(odd(&versions[..1], &found, &[(0, 1024), (2048, 4096)]), Some(1024));
        let grows = [Content::default(), written(&[(3000, 1000, 2)])];
        assert_eq!(odd(&grows, &bytes(&grows[1]), &[(0, 4000)]), None);
        assert_eq!(odd(&grows, &bytes(&grows[1]), &[(2560, 4000)]), None);
    }

    #[test]
    fn the_size_does_not_come_ahead_of_the_data() {
        let versions = [written(&[(0, 1000, 1)]), written(&[(0, 3000, 1)])];
        let mut found = bytes(&versions[1]);
        assert_eq!(odd(&versions, &found, &[(0, 3000)]), None);
        assert_eq!(odd(&versions, &found[..2000], &[(0, 2000)]), None, "a part of it");
        found[1500..].fill(0);
        assert_eq!(odd(&versions, &found, &[(0, 3000)]), Some(1024));
        found[1024..2560].copy_from_slice(&bytes(&versions[1])[1024..2560]);
        assert_eq!(odd(&versions, &found, &[(0, 3000)]), Some(2560));
        assert_eq!(odd(&versions, &found, &[(0, 2560)]), Some(2560), "a hole at the end");
        assert_eq!(odd(&versions, &[0; 4000], &[]), Some(u64::MAX), "it never was so long");
        assert_eq!(odd(&versions, &[0; 100], &[]), Some(u64::MAX), "nor so short");
        // Behind a cut, the same length may come without anything.
        let mut cut = versions[1].clone();
        cut.truncate(10);
        cut.truncate(3000);
        let versions = [versions[0].clone(), versions[1].clone(), cut];
        assert_eq!(odd(&versions, &bytes(&versions[2]), &[(0, 1000)]), None);
    }

    #[test]
    fn a_stripe_is_its_owners() {
        let (one, two) = (written(&[(0, 1024, 1)]), written(&[(1024, 1024, 2)]));
        let empty = Content::default();
        let possible = Possible::striped(vec![vec![&empty, &one], vec![&empty, &two]], 1024);
        assert!(possible.was(0, &one.read(0, 512), 2048));
        assert!(possible.was(1024, &two.read(1024, 512), 2048));
        assert!(!possible.was(1024, &one.read(0, 512), 2048));
        assert!(possible.wrong_size(2048).is_none() && possible.wrong_size(2049).is_some());
    }

    #[test]
    fn it_is_told_where_bytes_are_from() {
        let content = written(&[(0, 5000, 7)]);
        let told = |bytes: &[u8]| origin(bytes, [("/a".to_owned(), &content)].into_iter());
        assert!(told(&content.read(1234, 512)).contains("byte 1234 of"));
        assert!(
            told(&[filler_word(77).to_le_bytes(), filler_word(77).to_le_bytes()].concat())
                .contains("sector 77 ")
        );
        assert_eq!(told(&[0; 512]), "zeroes");
        assert_eq!(told(&[1; 512]), "from nowhere");
    }
}
