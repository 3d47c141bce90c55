//! What a thread does: to its part of the known files, to common files, and, while the others wait, to everything.

use super::field::{Past, SECTOR, SectorHistory, Span, number, sectors};
use super::site::{COMMON, COMMON_BYTES, KNOWN, Parts, Site};
use anyhow::{Context, Result, bail, ensure};
use blockdev::AlignedBuf;
use fastrand::Rng;
use std::ops::Range;
use std::sync::MutexGuard;
use uxfs::{Deduped, ErrorKind, ExchangeOptions, File, Volume};

/// Maximum number of sectors that are written, cut out or zeroed.
const SECTORS_MAX: usize = 96;
/// Maximum number of blocks that are cloned, exchanged or compared.
const BLOCKS_MAX: usize = 24;
/// Requests of one queue.
const DEPTH: u32 = 8;

/// A thread.
pub(super) struct Worker<'a> {
    pub(super) site: &'a Site,
    pub(super) volume: &'a Volume,
    pub(super) thread: usize,
    pub(super) rng: Rng,
    /// Whether the volume may be full.
    pub(super) tight: bool,
    /// Calls that found no space.
    pub(super) full: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Done,
    NoSpace,
}

impl Worker<'_> {
    /// One thing.
    pub(super) fn step(&mut self) -> Result<()> {
        match self.rng.u32(..200) {
            0..4 => {
                let site = self.site;
                let _alone = site.order.write().expect("no panic");
                self.all_of_it()
            }
            4..60 => self.common(),
            60..66 => self.site.sync(self.volume),
            _ => {
                let site = self.site;
                let _others = site.order.read().expect("no panic");
                self.own()
            }
        }
    }

    fn ended(&mut self, done: uxfs::Result<()>) -> Result<Ended> {
        match done {
            Ok(()) => Ok(Ended::Done),
            Err(error) if error.kind() == ErrorKind::NoSpace && self.tight => {
                self.full += 1;
                Ok(Ended::NoSpace)
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let free = self.volume.info().map(|info| info.free_blocks);
                let notes = self.site.last_notes();
                Err(error).with_context(|| format!("{free:?} blocks are free; last was done:{notes}"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Does something under this name in the trace.
    fn span<R>(
        &mut self,
        what: String,
        run: impl FnOnce(&Self) -> uxfs::Result<R>,
    ) -> (uxfs::Result<R>, Span) {
        let begun = self.site.now();
        let result = run(self);
        let span = Span { begun, ended: self.site.now() };
        let how = result.as_ref().err().map(|error| format!(": {:?}", error.kind())).unwrap_or_default();
        self.site.note(span, format!("thread {}: {what}{how}", self.thread));
        (result, span)
    }

    /// Sectors of a file for the trace, counted from the file's start.
    fn named(&self, file: usize, range: &Range<usize>) -> String {
        let start = self.thread * self.site.part;
        format!("{} {:?}", KNOWN[file], start + range.start..start + range.end)
    }

    // Operations on the thread's own part.

    fn own(&mut self) -> Result<()> {
        let site = self.site;
        let mut parts = site.parts[self.thread].lock().expect("no panic");
        let file = self.rng.usize(..KNOWN.len());
        match self.rng.u32(..100) {
            0..26 => self.write(&mut parts, file, None),
            26..36 => self.queued(&mut parts, file),
            36..52 => self.clone_blocks(&mut parts, file),
            52..60 => self.dedupe(&mut parts, file),
            60..72 if site.exchanges => self.exchange(&mut parts, file),
            60..78 => self.without(&mut parts, file, false),
            78..84 => self.without(&mut parts, file, true),
            84..88 => {
                site.known[file].next().sync()?;
                Ok(())
            }
            _ => self.read(&parts, file),
        }
        .with_context(|| format!("thread {}, {}", self.thread, KNOWN[file]))
    }

    /// The offset in a file of a sector of the thread's part.
    fn offset(&self, sector: usize) -> u64 {
        ((self.thread * self.site.part + sector) * SECTOR) as u64
    }

    fn some_sectors(&mut self) -> Range<usize> {
        let start = self.rng.usize(..self.site.part);
        let most = SECTORS_MAX.min(self.site.part - start);
        start..start + self.rng.usize(1..=most)
    }

    /// Two runs of the same number of sectors, in whole blocks.
    fn some_blocks(&mut self, apart: bool) -> Option<[Range<usize>; 2]> {
        let per_block = self.site.block as usize / SECTOR;
        let blocks = self.site.part / per_block;
        let (one, two) = (self.rng.usize(..blocks), self.rng.usize(..blocks));
        let len = self.rng.usize(1..=BLOCKS_MAX.min(blocks - one.max(two)));
        if apart && one.abs_diff(two) < len {
            return None;
        }
        Some([one, two].map(|start| start * per_block..(start + len) * per_block))
    }

    fn write(&mut self, parts: &mut Parts, file: usize, what: Option<(usize, Vec<u64>)>) -> Result<()> {
        let (start, numbers) = what.unwrap_or_else(|| {
            let range = self.some_sectors();
            let number = self.site.number(false);
            (range.start, vec![number; range.len()])
        });
        let bytes = sectors(numbers.iter().copied());
        let offset = self.offset(start);
        let what =
            format!("write {:x?} to {}", numbers[0], self.named(file, &(start..start + numbers.len())));
        let (done, span) = self.span(what, |worker| worker.site.known[file].next().write_at(&bytes, offset));
        if self.ended(done)? == Ended::Done {
            let places = parts[file][start..].iter_mut();
            places.zip(numbers).for_each(|(place, number)| place.put(number, span, true));
        }
        Ok(())
    }

    /// Overwrites several places at once.
    fn queued(&mut self, parts: &mut Parts, file: usize) -> Result<()> {
        let mut queue = self.site.known[file].plain().queue(DEPTH)?;
        let mut ranges: Vec<(Range<usize>, u64)> = Vec::new();
        for _ in 0..self.rng.u32(2..=DEPTH) {
            let range = self.some_sectors();
            let meets = |other: &(Range<usize>, u64)| range.start < other.0.end && other.0.start < range.end;
            if !ranges.iter().any(meets) {
                ranges.push((range, self.site.number(false)));
            }
        }
        let begun = self.site.now();
        for (tag, (range, number)) in ranges.iter().enumerate() {
            let mut buf = AlignedBuf::zeroed(range.len() * SECTOR);
            buf.copy_from_slice(&sectors(vec![*number; range.len()]));
            queue.push_overwrite(self.offset(range.start), buf, tag as u64)?;
        }
        let mut over = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(1, |completion| over.push((completion.tag, completion.result.map(drop))))?;
        }
        let span = Span { begun, ended: self.site.now() };
        for (tag, result) in over {
            let (range, number) = ranges[tag as usize].clone();
            let how = result.as_ref().err().map(|error| format!(": {:?}", error.kind())).unwrap_or_default();
            let what = format!("queued {number:x} to {}{how}", self.named(file, &range));
            self.site.note(span, format!("thread {}: {what}", self.thread));
            match result {
                // Not all of it had been written before.
                Err(error) if error.kind() == ErrorKind::NotAllocated => {}
                result => {
                    if self.ended(result)? == Ended::Done {
                        parts[file][range].iter_mut().for_each(|place| place.put(number, span, true));
                    }
                }
            }
        }
        Ok(())
    }

    fn pasts(&self, places: &[SectorHistory]) -> Vec<Past> {
        let durable = self.site.durable();
        places.iter().map(|place| place.past(durable)).collect()
    }

    fn clone_blocks(&mut self, parts: &mut Parts, file: usize) -> Result<()> {
        let to = self.rng.usize(..KNOWN.len());
        let Some([from_range, to_range]) = self.some_blocks(file == to) else { return Ok(()) };
        let pasts = self.pasts(&parts[file][from_range.clone()]);
        let (from, at) = (self.offset(from_range.start), self.offset(to_range.start));
        let len = (from_range.len() * SECTOR) as u64;
        let known = &self.site.known;
        let copies = self.rng.u32(..4) == 0;
        let what = format!(
            "{} {} to {}",
            if copies { "copy" } else { "clone" },
            self.named(file, &from_range),
            self.named(to, &to_range)
        );
        let (done, span) = self.span(what, |_| match copies {
            true => known[file].next().copy_range(from, known[to].next(), at, len).map(drop),
            false => known[file].next().clone_range(from, known[to].next(), at, len),
        });
        // If it found no space, some blocks may be shared already.
        let certain = self.ended(done)? == Ended::Done;
        let places = parts[to][to_range].iter_mut();
        places.zip(&pasts).for_each(|(place, past)| place.take(past, span, certain));
        Ok(())
    }

    fn dedupe(&mut self, parts: &mut Parts, file: usize) -> Result<()> {
        let to = self.rng.usize(..KNOWN.len());
        let Some([from_range, to_range]) = self.some_blocks(file == to) else { return Ok(()) };
        let now =
            |places: &[SectorHistory]| places.iter().map(SectorHistory::now).collect::<Option<Vec<u64>>>();
        if let Some(numbers) = now(&parts[file][from_range.clone()]).filter(|_| self.rng.u32(..4) > 0) {
            self.write(parts, to, Some((to_range.start, numbers)))?;
        }
        let same = Option::zip(now(&parts[file][from_range.clone()]), now(&parts[to][to_range.clone()]));
        let same = same.map(|(one, other)| one == other);
        let pasts = self.pasts(&parts[file][from_range.clone()]);
        let (from, at) = (self.offset(from_range.start), self.offset(to_range.start));
        let len = (from_range.len() * SECTOR) as u64;
        let known = &self.site.known;
        let what = format!("dedupe {} and {}", self.named(file, &from_range), self.named(to, &to_range));
        let mut deduped = None;
        let (done, span) = self.span(what, |_| {
            deduped = Some(known[file].next().dedupe_range(from, known[to].next(), at, len)?);
            Ok(())
        });
        if let (Ended::Done, Some(deduped)) = (self.ended(done)?, deduped) {
            let found = matches!(deduped, Deduped::Same(_));
            ensure!(same.is_none_or(|same| same == found), "dedupe: {deduped:?}, expected {same:?}");
            if !found {
                return Ok(());
            }
        }
        // The content is the same, but its earlier versions may be those of the other.
        for (place, past) in parts[to][to_range].iter_mut().zip(&pasts) {
            place.take(past, span, same == Some(true));
        }
        Ok(())
    }

    fn exchange(&mut self, parts: &mut Parts, file: usize) -> Result<()> {
        let other = self.rng.usize(..KNOWN.len());
        let Some([mine, others]) = self.some_blocks(file == other) else { return Ok(()) };
        let pasts = self.pasts(&parts[file][mine.clone()]);
        let other_pasts = self.pasts(&parts[other][others.clone()]);
        let (at, other_at) = (self.offset(mine.start), self.offset(others.start));
        let len = Some((mine.len() * SECTOR) as u64);
        let known = &self.site.known;
        let what = format!("exchange {} and {}", self.named(file, &mine), self.named(other, &others));
        let (done, span) = self.span(what, |_| {
            known[file].next().exchange_range(at, known[other].next(), other_at, len, ExchangeOptions::new())
        });
        if self.ended(done)? == Ended::Done {
            parts[file][mine]
                .iter_mut()
                .zip(&other_pasts)
                .for_each(|(place, past)| place.take(past, span, true));
            parts[other][others]
                .iter_mut()
                .zip(&pasts)
                .for_each(|(place, past)| place.take(past, span, true));
        }
        Ok(())
    }

    /// Makes a hole, or writes zeroes.
    fn without(&mut self, parts: &mut Parts, file: usize, zeroes: bool) -> Result<()> {
        let range = self.some_sectors();
        let bytes = self.offset(range.start)..self.offset(range.end);
        let known = &self.site.known;
        let what = format!("{} {}", if zeroes { "zero" } else { "punch" }, self.named(file, &range));
        let (done, span) = self.span(what, |_| match zeroes {
            true => known[file].next().zero_range(bytes, true),
            false => known[file].next().punch_hole(bytes),
        });
        if self.ended(done)? == Ended::Done {
            parts[file][range].iter_mut().for_each(|place| place.put(0, span, true));
        }
        Ok(())
    }

    fn read(&mut self, parts: &Parts, file: usize) -> Result<()> {
        let range = self.some_sectors();
        let mut bytes = vec![0xee; range.len() * SECTOR];
        let len = self.site.known[file].next().read_at(&mut bytes, self.offset(range.start))?;
        ensure!(len == bytes.len(), "{len} bytes were read instead of {}", bytes.len());
        for (at, sector) in range.zip(bytes.chunks(SECTOR)) {
            let found = number(sector).with_context(|| format!("sector {at}"))?;
            let place = &parts[file][at];
            ensure!(place.may_be(found), "sector {at}: {found:x} instead of what is last of {place:?}");
        }
        Ok(())
    }

    // Operations on whole files, while the others wait.

    fn all_of_it(&mut self) -> Result<()> {
        let site = self.site;
        let mut parts: Vec<MutexGuard<'_, Parts>> =
            site.parts.iter().map(|part| part.lock().expect("no panic")).collect();
        let (file, other) = (self.rng.usize(..KNOWN.len()), self.rng.usize(..KNOWN.len()));
        let mut places = |file: usize| -> Vec<SectorHistory> {
            parts.iter_mut().flat_map(|part| std::mem::take(&mut part[file])).collect()
        };
        let (mut mine, mut others) = (places(file), if other == file { Vec::new() } else { places(other) });
        let done = match self.rng.u32(..5) {
            0 | 1 if other != file => self.clone_all(&mine, &mut others, file, other),
            2 if other != file && site.exchanges => self.exchange_all(&mut mine, &mut others, file, other),
            3 => self.cut(&mut mine, file),
            _ => self.shift(&mut mine, file),
        };
        for (file, places) in [(file, mine), (other, others)] {
            let mut places = places.into_iter().peekable();
            if places.peek().is_some() {
                parts.iter_mut().for_each(|part| part[file] = places.by_ref().take(site.part).collect());
            }
        }
        done.with_context(|| format!("thread {} alone, {} and {}", self.thread, KNOWN[file], KNOWN[other]))
    }

    fn clone_all(
        &mut self,
        mine: &[SectorHistory],
        others: &mut [SectorHistory],
        file: usize,
        other: usize,
    ) -> Result<()> {
        let pasts = self.pasts(mine);
        let known = &self.site.known;
        let what = format!("clone all of {} to {}", KNOWN[file], KNOWN[other]);
        let (done, span) = self.span(what, |_| known[file].next().clone_range(0, known[other].next(), 0, 0));
        let certain = self.ended(done)? == Ended::Done;
        others.iter_mut().zip(&pasts).for_each(|(place, past)| place.take(past, span, certain));
        Ok(())
    }

    fn exchange_all(
        &mut self,
        mine: &mut [SectorHistory],
        others: &mut [SectorHistory],
        file: usize,
        other: usize,
    ) -> Result<()> {
        // Kernels recover no exchange of different sizes.
        let shorter = !self.site.same_sizes && self.rng.bool();
        let bytes = (mine.len() * SECTOR) as u64;
        if shorter {
            let size = self.rng.u64(1..mine.len() as u64) * SECTOR as u64;
            if !self.set_len(mine, file, size)? {
                return Ok(());
            }
        }
        let (pasts, other_pasts) = (self.pasts(mine), self.pasts(others));
        let sizes = {
            let sizes = self.site.sizes.lock().expect("no panic");
            let durable = self.site.durable();
            [sizes[file].past(durable), sizes[other].past(durable)]
        };
        let known = &self.site.known;
        let what = format!("exchange all of {} and {}", KNOWN[file], KNOWN[other]);
        let (done, span) = self.span(what, |_| {
            known[file].next().exchange_range(0, known[other].next(), 0, None, ExchangeOptions::new())
        });
        if self.ended(done)? == Ended::Done {
            mine.iter_mut().zip(&other_pasts).for_each(|(place, past)| place.take(past, span, true));
            others.iter_mut().zip(&pasts).for_each(|(place, past)| place.take(past, span, true));
            let mut places = self.site.sizes.lock().expect("no panic");
            places[file].take(&sizes[1], span, true);
            places[other].take(&sizes[0], span, true);
        }
        // Whichever is shorter now.
        self.lengthen(file, bytes)?;
        self.lengthen(other, bytes)
    }

    /// Cuts a file and makes it as long as before.
    fn cut(&mut self, mine: &mut [SectorHistory], file: usize) -> Result<()> {
        let bytes = (mine.len() * SECTOR) as u64;
        let size = self.rng.u64(..=mine.len() as u64) * SECTOR as u64;
        self.set_len(mine, file, size)?;
        self.lengthen(file, bytes)
    }

    /// Cuts a file. Returns whether there was space for that.
    fn set_len(&mut self, mine: &mut [SectorHistory], file: usize, size: u64) -> Result<bool> {
        let known = &self.site.known;
        let (done, span) =
            self.span(format!("cut {} to {size}", KNOWN[file]), |_| known[file].next().set_len(size));
        if self.ended(done)? == Ended::NoSpace {
            return Ok(false);
        }
        mine[size as usize / SECTOR..].iter_mut().for_each(|place| place.put(0, span, true));
        self.site.sizes.lock().expect("no panic")[file].put(size, span, true);
        Ok(true)
    }

    fn lengthen(&mut self, file: usize, bytes: u64) -> Result<()> {
        let known = &self.site.known;
        // Cutting needs space at most for a copy of the last block.
        loop {
            let (done, span) = self
                .span(format!("lengthen {} to {bytes}", KNOWN[file]), |_| known[file].next().set_len(bytes));
            if self.ended(done)? == Ended::Done {
                self.site.sizes.lock().expect("no panic")[file].put(bytes, span, true);
                return Ok(());
            }
            self.make_room()?;
        }
    }

    /// Frees the space of the common files.
    fn make_room(&self) -> Result<()> {
        Ok(self.site.common.iter().try_for_each(|file| file.next().set_len(0))?)
    }

    /// Cuts some blocks out of a file, and inserts as many elsewhere.
    fn shift(&mut self, mine: &mut [SectorHistory], file: usize) -> Result<()> {
        let per_block = self.site.block as usize / SECTOR;
        let blocks = mine.len() / per_block;
        let len = self.rng.usize(1..=(blocks / 4).max(1));
        let (out, into) = (self.rng.usize(..blocks - len), self.rng.usize(..blocks - len));
        let [out, into, len] = [out, into, len].map(|blocks| blocks * per_block);
        let bytes = |range: Range<usize>| (range.start * SECTOR) as u64..(range.end * SECTOR) as u64;
        let (whole, known) = (mine.len(), &self.site.known);
        let (done, span) = self.span(format!("collapse {} {:?}", KNOWN[file], out..out + len), |_| {
            known[file].next().collapse_range(bytes(out..out + len))
        });
        if self.ended(done)? == Ended::NoSpace {
            return Ok(());
        }
        let pasts = self.pasts(&mine[out + len..]);
        mine[out..].iter_mut().zip(&pasts).for_each(|(place, past)| place.come(past, span));
        mine[whole - len..].iter_mut().for_each(|place| place.put(0, span, true));
        let size = ((whole - len) * SECTOR) as u64;
        self.site.sizes.lock().expect("no panic")[file].put(size, span, true);
        if into >= whole - len {
            return self.lengthen(file, (whole * SECTOR) as u64);
        }
        let (done, span) = self.span(format!("insert {} {:?}", KNOWN[file], into..into + len), |_| {
            known[file].next().insert_range(bytes(into..into + len))
        });
        if self.ended(done)? == Ended::NoSpace {
            return self.lengthen(file, (whole * SECTOR) as u64);
        }
        let pasts = self.pasts(&mine[into..whole - len]);
        mine[into + len..].iter_mut().zip(&pasts).for_each(|(place, past)| place.come(past, span));
        mine[into..into + len].iter_mut().for_each(|place| place.put(0, span, true));
        self.site.sizes.lock().expect("no panic")[file].put((whole * SECTOR) as u64, span, true);
        Ok(())
    }

    // Operations on the files that all threads change all the time.

    fn common(&mut self) -> Result<()> {
        let site = self.site;
        let (file, other) = (self.rng.usize(..COMMON.len()), self.rng.usize(..COMMON.len()));
        let (one, two) = (site.common[file].next(), site.common[other].next());
        match self.common_call(one, two).map_err(|error| (error.kind(), error)) {
            Ok(()) => {}
            // The file is shorter than a moment ago, or a range was to be shared with itself.
            Err((ErrorKind::InvalidInput | ErrorKind::NotAllocated | ErrorKind::TooLarge, _)) => {}
            Err((ErrorKind::NoSpace, _)) if self.tight => {}
            Err((_, error)) => {
                let files = format!("thread {}, {} and {}", self.thread, COMMON[file], COMMON[other]);
                return Err(error).context(files);
            }
        }
        if self.rng.u32(..4) == 0 { self.common_read(one) } else { Ok(()) }
    }

    fn common_call(&mut self, one: &File, two: &File) -> uxfs::Result<()> {
        let (block, sector) = (self.site.block, SECTOR as u64);
        let most = COMMON_BYTES / sector;
        let at = self.rng.u64(..most) * sector;
        let len = self.rng.u64(1..=SECTORS_MAX as u64) * sector;
        let blocks = |rng: &mut Rng| rng.u64(..COMMON_BYTES / block) * block;
        let (from, to) = (blocks(&mut self.rng), blocks(&mut self.rng));
        let some = self.rng.u64(1..=BLOCKS_MAX as u64) * block;
        match self.rng.u32(..16) {
            0..=3 => {
                let number = self.site.number(true);
                one.write_at(&sectors(vec![number; (len / sector) as usize]), at)
            }
            4 => {
                let number = self.site.number(true);
                one.overwrite_at(&sectors(vec![number; (len / sector) as usize]), at)
            }
            5 | 6 => one.clone_range(from, two, to, some),
            7 => one.clone_range(0, two, 0, 0),
            8 => one.dedupe_range(from, two, to, some).map(drop),
            9 | 10 if self.site.exchanges => {
                let whole = self.rng.u32(..4) == 0 && !self.site.same_sizes;
                let options = ExchangeOptions::new().only_written(self.rng.bool());
                match whole {
                    true => one.exchange_range(0, two, 0, None, ExchangeOptions::new()),
                    false => one.exchange_range(from, two, to, Some(some), options),
                }
            }
            11 => one.punch_hole(at..at + len),
            12 => one.zero_range(at..at + len, self.rng.bool()),
            13 => one.collapse_range(from..from + some),
            14 if one.size() < 4 * COMMON_BYTES => one.insert_range(from..from + some),
            _ => one.set_len(self.rng.u64(..=most) * sector),
        }
    }

    fn common_read(&mut self, file: &File) -> Result<()> {
        let at = self.rng.u64(..COMMON_BYTES / SECTOR as u64) * SECTOR as u64;
        let mut bytes = vec![0; self.rng.usize(1..=SECTORS_MAX) * SECTOR];
        let len = file.read_at(&mut bytes, at)?;
        for sector in bytes[..len].chunks(SECTOR) {
            let found = number(sector).with_context(|| format!("a common file behind byte {at}"))?;
            if !self.site.is_common(found) {
                bail!("a common file behind byte {at} holds {found:x}, which is not of it");
            }
        }
        Ok(())
    }
}
