//! Makes calls to two files, and compares the result of each with the expected one.
//!
//! Invariants:
//! - after each call the file has the model's size by every handle;
//! - a call that found no space has changed nothing, except for calls that may be done in part: then each byte is the
//!   old one or the new one.

use super::call::{Call, Pair, Piece, Step};
use super::files::{Files, Handles};
use super::model::{self, Content, compare, stamped};
use anyhow::{Context, Result, bail, ensure};
use blockdev::AlignedBuf;
use std::collections::VecDeque;
use uxfs::{Deduped, ErrorKind, File, Volume};

/// How many of the last calls are shown when one fails.
const SHOWN: usize = 12;
/// Requests of a queue.
const DEPTH: u32 = 4;
/// How many pieces of data a walk looks at.
const WALK: usize = 6;
/// How often the files' metadata in the volume are checked as well.
const STAT_EVERY: u64 = 32;

/// Two files, and what must be in them.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) names: [String; 2],
    pub(super) models: [Content; 2],
    /// Whether the volume may be full.
    pub(super) tight: bool,
    /// Whether the page cache is used at all.
    pub(super) buffers: bool,
    /// Calls that were done, those without space among them.
    pub(super) calls: u64,
    pub(super) full: u64,
    /// All of them, if they are to be kept.
    pub(super) kept: Option<Vec<Step>>,
    last: VecDeque<Step>,
}

impl Actor {
    pub(super) fn new(names: [String; 2], tight: bool, buffers: bool, keep: bool) -> Self {
        Self {
            names,
            models: Default::default(),
            tight,
            buffers,
            calls: 0,
            full: 0,
            kept: keep.then(Vec::new),
            last: VecDeque::new(),
        }
    }

    pub(super) fn sizes(&self) -> [u64; 2] {
        [self.models[0].size(), self.models[1].size()]
    }

    /// Opens the files, for as long as the volume is open.
    pub(super) fn at<'a>(&'a mut self, volume: &'a Volume) -> Result<At<'a>> {
        let block = u64::from(volume.root()?.metadata()?.block_size);
        let open = |name: &str| Handles::open(volume, name, self.buffers).map(Some);
        let files = [open(&self.names[0])?, open(&self.names[1])?];
        Ok(At { actor: self, volume, files: Files(files), block })
    }

    fn note(&mut self, step: &Step) {
        self.calls += 1;
        if let Some(kept) = &mut self.kept {
            kept.push(step.clone());
        }
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(step.clone());
    }

    fn last_calls(&self) -> String {
        let first = self.calls + 1 - self.last.len() as u64;
        let line = |(nth, step): (usize, &Step)| format!("\n  {}: {step:?}", first + nth as u64);
        self.last.iter().enumerate().map(line).collect()
    }
}

/// An actor, and its files on an open volume.
pub(super) struct At<'a> {
    pub(super) actor: &'a mut Actor,
    volume: &'a Volume,
    files: Files,
    pub(super) block: u64,
}

impl At<'_> {
    /// Does a call.
    pub(super) fn step(&mut self, step: &Step) -> Result<()> {
        self.actor.note(step);
        let done = self.call(step).and_then(|()| self.check_sizes());
        done.with_context(|| {
            let names = &self.actor.names;
            format!(
                "call {} on {} and {}, last were:{}",
                self.actor.calls,
                names[0],
                names[1],
                self.actor.last_calls()
            )
        })
    }

    fn model(&mut self, nth: usize) -> &mut Content {
        &mut self.actor.models[nth]
    }

    /// The result of a call. `None` if there was no space for it.
    fn ended<T>(&mut self, done: uxfs::Result<T>) -> Result<Option<T>> {
        match done {
            Ok(what) => Ok(Some(what)),
            Err(error) if error.kind() == ErrorKind::NoSpace && self.actor.tight => {
                self.actor.full += 1;
                Ok(None)
            }
            Err(error) => {
                let free = self.volume.info().map(|info| info.free_blocks);
                Err(error).with_context(|| format!("{free:?} blocks are free"))
            }
        }
    }

    fn call(&mut self, step: &Step) -> Result<()> {
        if model::refuses(step, self.actor.sizes(), self.block) {
            return self.refused(step);
        }
        let nth = step.file;
        match &step.call {
            Call::Read { at, len } => self.read(step, *at, *len),
            Call::Write { at, len } => self.write(step, *at, &stamped(self.actor.calls, *at, *len)),
            Call::Overwrite { at, len } => self.overwrite(step, *at, *len),
            Call::Append { len } => self.append(step, *len),
            Call::Seek { at } => self.seek(step, *at),
            Call::Queue(pieces) => self.queue(step, pieces),
            Call::Clone(pair) => self.clone_range(step, pair),
            Call::Copy(pair) => self.copy(step, pair),
            Call::Dedupe { pair, same_content } => self.dedupe(step, pair, *same_content),
            Call::Exchange { .. } => self.exchange(step),
            Call::Verify { chunk } => self.verify(nth, *chunk),
            Call::Sync => Ok(self.files.file(nth, step.buffered[0])?.sync()?),
            Call::SyncVolume => Ok(self.volume.sync()?),
            Call::Reopen => {
                self.files.0[nth] = None;
                self.files.0[nth] =
                    Some(Handles::open(self.volume, &self.actor.names[nth], self.actor.buffers)?);
                Ok(())
            }
            _ => self.shape(step),
        }
    }

    /// A call that must be refused.
    fn refused(&mut self, step: &Step) -> Result<()> {
        let done = match &step.call {
            Call::Clone(pair) => self.files.clone_range(step, pair),
            Call::Dedupe { pair, .. } => self.files.dedupe(step, pair).map(drop),
            Call::Copy(pair) => self.files.copy(step, pair).map(drop),
            Call::Exchange { .. } => self.files.exchange(step),
            _ => self.files.shape(step),
        };
        let kind = done.err().map(|error| error.kind());
        let may_be = |kind| kind == ErrorKind::InvalidInput || kind == ErrorKind::NoSpace && self.actor.tight;
        ensure!(kind.is_some_and(may_be), "{kind:?} instead of a refusal");
        Ok(())
    }

    fn read(&mut self, step: &Step, at: u64, len: u64) -> Result<()> {
        let file = self.files.file(step.file, step.buffered[0])?;
        self.check_range(&file, step.file, at, len)
    }

    fn check_range(&self, file: &File, nth: usize, at: u64, len: u64) -> Result<()> {
        let mut bytes = vec![0xee; len as usize];
        let found = file.read_at(&mut bytes, at)?;
        let expected = self.actor.models[nth].read(at, len);
        compare(&bytes[..found], expected, at).with_context(|| {
            let buffered = if file.is_buffered() { "buffered" } else { "direct" };
            format!(
                "a {buffered} read of {len} bytes at {at} of {}, of {} bytes",
                self.actor.names[nth],
                file.size()
            )
        })
    }

    fn write(&mut self, step: &Step, at: u64, data: &[u8]) -> Result<()> {
        let done = self.files.file(step.file, step.buffered[0])?.write_at(data, at);
        match self.ended(done)? {
            Some(()) => self.model(step.file).put(at, data),
            None => self.unchanged(step, at, data.len() as u64)?,
        }
        Ok(())
    }

    fn overwrite(&mut self, step: &Step, at: u64, len: u64) -> Result<()> {
        let data = stamped(self.actor.calls, at, len);
        let done = self.files.file(step.file, step.buffered[0])?.overwrite_at(&data, at);
        self.overwritten(step, at, &data, done)
    }

    fn overwritten(&mut self, step: &Step, at: u64, data: &[u8], done: uxfs::Result<()>) -> Result<()> {
        let is_within = at + data.len() as u64 <= self.model(step.file).size();
        match done {
            Err(error) if error.kind() == ErrorKind::NotAllocated => {}
            Err(error) if error.kind() == ErrorKind::InvalidInput && !is_within => {}
            done => {
                if self.ended(done)?.is_some() {
                    ensure!(is_within, "the end of the file was written over");
                    self.model(step.file).put(at, data);
                    return Ok(());
                }
            }
        }
        self.unchanged(step, at, data.len() as u64)
    }

    fn append(&mut self, step: &Step, len: u64) -> Result<()> {
        let size = self.model(step.file).size();
        let data = stamped(self.actor.calls, size, len);
        let done = self.files.file(step.file, step.buffered[0])?.append(&data);
        match self.ended(done)? {
            Some(at) => {
                ensure!(at == size, "it was put at {at} instead of {size}");
                self.model(step.file).put(at, &data);
            }
            None => self.unchanged(step, size, len)?,
        }
        Ok(())
    }

    /// Changes of where bytes lie within one file.
    fn shape(&mut self, step: &Step) -> Result<()> {
        let done = self.files.shape(step);
        if self.ended(done)?.is_none() {
            let (at, len) = match step.call {
                Call::SetLen { size } => (size, 0),
                Call::Allocate { at, len, .. } | Call::Punch { at, len } | Call::Zero { at, len, .. } => {
                    (at, len)
                }
                Call::Collapse { at, .. } | Call::Insert { at, .. } => (at, u64::MAX),
                _ => (0, 0),
            };
            return self.unchanged(step, at, len);
        }
        let model = self.model(step.file);
        match step.call {
            Call::SetLen { size } => model.resize(size),
            Call::Allocate { at, len, keep: false } => model.grow(at + len),
            Call::Punch { at, len } => model.zero(at, len),
            Call::Zero { at, len, keep } => {
                model.zero(at, len);
                if !keep {
                    model.grow(at + len);
                }
            }
            Call::Collapse { at, len } => model.collapse(at, len),
            Call::Insert { at, len } => model.insert(at, len),
            _ => {}
        }
        Ok(())
    }

    fn clone_range(&mut self, step: &Step, pair: &Pair) -> Result<()> {
        let len = if pair.len == 0 { u64::MAX } else { pair.len };
        let data = self.model(step.file).read(pair.from, len).to_vec();
        let done = self.files.clone_range(step, pair);
        match self.ended(done)? {
            Some(()) if data.is_empty() => Ok(()),
            Some(()) => {
                self.model(step.second(pair.same)).put(pair.at, &data);
                Ok(())
            }
            None => self.in_part(step.second(pair.same), pair.at, &data),
        }
    }

    fn copy(&mut self, step: &Step, pair: &Pair) -> Result<()> {
        let data = self.model(step.file).read(pair.from, pair.len).to_vec();
        let done = self.files.copy(step, pair);
        match self.ended(done)? {
            Some(copied) => {
                ensure!(copied == data.len() as u64, "{copied} bytes were copied, not {}", data.len());
                if copied > 0 {
                    self.model(step.second(pair.same)).put(pair.at, &data);
                }
                Ok(())
            }
            None => self.in_part(step.second(pair.same), pair.at, &data),
        }
    }

    fn dedupe(&mut self, step: &Step, pair: &Pair, same_content: bool) -> Result<()> {
        let to = step.second(pair.same);
        if same_content {
            let data = self.model(step.file).read(pair.from, pair.len).to_vec();
            let write = Step { file: to, buffered: [step.buffered[1]; 2], call: step.call.clone() };
            self.write(&write, pair.at, &data)?;
        }
        let sizes = self.actor.sizes();
        let len = model::deduped(pair, sizes[step.file], sizes[to], self.block);
        let models = &self.actor.models;
        let same = models[step.file].read(pair.from, len) == models[to].read(pair.at, len);
        let done = self.files.dedupe(step, pair);
        match self.ended(done)? {
            Some(Deduped::Same(bytes)) => {
                ensure!(same && bytes == len, "{bytes} bytes are the same, of {len}")
            }
            Some(_) => ensure!(!same, "{len} bytes are the same, and were not found to be"),
            None => self.unchanged(step, pair.from, len)?,
        }
        Ok(())
    }

    fn exchange(&mut self, step: &Step) -> Result<()> {
        let Call::Exchange { at, other_at, len, same } = step.call else { return Ok(()) };
        let done = self.files.exchange(step);
        if self.ended(done)?.is_none() {
            return self.unchanged(step, at, self.block);
        }
        let [one, two] = &mut self.actor.models;
        let (mine, others) = if step.file == 0 { (one, two) } else { (two, one) };
        match len {
            Some(len) if same => mine.exchange_within(at, other_at, len),
            _ => mine.exchange(at, others, other_at, len),
        }
        Ok(())
    }

    /// Data and holes alternate, and holes are zeroes.
    fn seek(&mut self, step: &Step, from: u64) -> Result<()> {
        let file = self.files.file(step.file, step.buffered[0])?;
        let (size, block) = (self.model(step.file).size(), self.block);
        let mut at = from;
        for _ in 0..WALK {
            let data = file.seek_data(at)?;
            if at >= size {
                ensure!(data.is_none(), "data at {data:?}, behind the end at {size}");
                ensure!(file.seek_hole(at)?.is_none(), "a hole behind the end at {size}");
                return Ok(());
            }
            let to = data.unwrap_or(size);
            ensure!(to >= at && (data.is_none() || to < size), "data at {data:?}, from {at} to {size}");
            let hole = self.model(step.file).read(at, to - at);
            ensure!(hole.iter().all(|byte| *byte == 0), "a hole from {at} to {to} that has data");
            if data.is_none() {
                return Ok(());
            }
            let hole = file.seek_hole(to)?.context("no hole, not even at the end")?;
            let is_place = hole == size || hole.is_multiple_of(block);
            ensure!(hole > to && hole <= size && is_place, "a hole at {hole} behind data at {to}, to {size}");
            at = hole;
        }
        Ok(())
    }

    /// Concurrent requests. Those that write have their bytes alone.
    fn queue(&mut self, step: &Step, pieces: &[Piece]) -> Result<()> {
        let mut over = Vec::new();
        {
            let mut queue = self.files.file(step.file, step.buffered[0])?.queue(DEPTH)?;
            for (tag, piece) in pieces.iter().enumerate().take(DEPTH as usize) {
                if piece.is_write {
                    let buf = AlignedBuf::copied(&stamped(self.actor.calls, piece.at, piece.len));
                    queue.push_overwrite(piece.at, buf, tag as u64)?;
                } else {
                    queue.push_read(piece.at, AlignedBuf::zeroed(piece.len as usize), tag as u64)?;
                }
            }
            while queue.in_flight() > 0 {
                queue.wait(1, |completion| over.push(completion))?;
            }
        }
        // A failed request is examined after the model has the others.
        over.sort_by_key(|over| (pieces[over.tag as usize].is_write, over.result.is_err()));
        for completion in over {
            let piece = pieces[completion.tag as usize];
            if piece.is_write {
                let data = stamped(self.actor.calls, piece.at, piece.len);
                self.overwritten(step, piece.at, &data, completion.result.map(drop)).context("queued")?;
            } else {
                let expected = self.actor.models[step.file].read(piece.at, piece.len);
                compare(&completion.buf[..completion.result?], expected, piece.at).context("queued")?;
            }
        }
        Ok(())
    }

    /// A failed call has changed nothing.
    fn unchanged(&mut self, step: &Step, at: u64, len: u64) -> Result<()> {
        let from = at.saturating_sub(2 * self.block);
        let by = [step.buffered[0], !step.buffered[0]];
        for buffered in by {
            let file = self.files.file(step.file, buffered)?;
            let len = len.min(4 << 20) + 4 * self.block;
            self.check_range(&file, step.file, from, len).context("after a call that failed")?;
        }
        Ok(())
    }

    /// A call that ran out of space has left old or new bytes.
    fn in_part(&mut self, nth: usize, at: u64, data: &[u8]) -> Result<()> {
        let file = self.files.file(nth, self.actor.calls.is_multiple_of(2))?;
        let (size, old) = (file.size(), &self.actor.models[nth]);
        let end = at + data.len() as u64;
        ensure!(size >= old.size() && size <= old.size().max(end), "{size} bytes after a call that failed");
        let mut found = vec![0; size as usize];
        ensure!(file.read_at(&mut found, 0)? == found.len(), "not all of {size} bytes were read");
        let is_old_or_new = |(nth, byte): (usize, &u8)| {
            let new = (nth as u64).checked_sub(at).and_then(|nth| data.get(nth as usize));
            *byte == old.byte(nth) || Some(byte) == new
        };
        let wrong = found.iter().enumerate().find(|found| !is_old_or_new(*found));
        ensure!(wrong.is_none(), "byte {wrong:?} is neither old nor new after a call that failed");
        self.actor.models[nth] = Content::new(found);
        Ok(())
    }

    fn check_sizes(&self) -> Result<()> {
        for (nth, size) in self.actor.sizes().into_iter().enumerate() {
            let Some(handles) = &self.files.0[nth] else { bail!("a file that is not open") };
            let found = handles.direct.size();
            let name = &self.actor.names[nth];
            ensure!(found == size, "{name} has {found} bytes instead of {size}");
            if self.actor.calls.is_multiple_of(STAT_EVERY) {
                let said = [handles.direct.metadata().size, handles.direct.node().metadata()?.size];
                ensure!(
                    said == [size; 2],
                    "stat says of {name} that it has {said:?} bytes instead of {size}"
                );
            }
        }
        Ok(())
    }

    /// Compares all of a file by all of its handles, `chunk` bytes at a time.
    fn verify(&self, nth: usize, chunk: u64) -> Result<()> {
        let Some(handles) = &self.files.0[nth] else { return Ok(()) };
        // A read by one handle may fill the cache of the other.
        let by = [Some(&handles.direct), handles.buffered.as_ref()];
        for file in by.into_iter().flatten() {
            let mut at = 0;
            // And what lies past the end.
            while at <= self.actor.models[nth].size() {
                self.check_range(file, nth, at, chunk.max(1))?;
                at += chunk.max(1);
            }
        }
        Ok(())
    }

    /// All of both files.
    pub(super) fn verify_all(&self) -> Result<()> {
        (0..2).try_for_each(|nth| self.verify(nth, 1 << 20)).context("when all of it was read")
    }
}
