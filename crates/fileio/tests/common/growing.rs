//! A map that grows: a file on a device of which every block that is free can be had.
#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use blockdev::DeviceError;
use fileio::{
    CopyOnWrite, DelayedAllocation, Extent, ExtentState, FileMapping, FileMappingMut, FileSpace, MapLookup,
    MapSeq, Staged,
};

use super::common::BLOCK;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MapError {
    #[error("no space")]
    NoSpace,
    #[error("the map is broken")]
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unwritten,
    Written,
    Shared,
}

#[derive(Debug, Default)]
struct State {
    /// Block of the file: block of the device.
    blocks: BTreeMap<u64, (u64, Kind)>,
    staged: BTreeMap<u64, u64>,
    size: u64,
    /// Blocks of the device that nobody has, and that are not reserved.
    free: u64,
    next: u64,
    reserved: u64,
    in_memory: Option<u64>,
    told: Vec<Option<u64>>,
    is_broken: bool,
    lacks_space_from: Option<u64>,
}

/// What happens when content is about to change, once.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

#[derive(Debug)]
pub struct GrowingMap {
    hook: Hook,
    state: Mutex<State>,
    seq: AtomicU64,
    looks: AtomicU64,
}

impl GrowingMap {
    /// A file without bytes, and this many blocks for it.
    pub fn new(free: u64) -> Self {
        Self {
            hook: Hook::default(),
            state: Mutex::new(State { free, ..State::default() }),
            seq: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        }
    }

    fn change<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap();
        let done = work(&mut state);
        self.seq.fetch_add(1, Ordering::SeqCst);
        done
    }

    /// Has something happen when content is about to change the next time, with its bytes held.
    pub fn when_content_changes(&self, work: impl FnOnce() + Send + 'static) {
        *self.hook.0.lock().unwrap() = Some(Box::new(work));
    }

    /// How often a run was looked up.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    pub fn reserved(&self) -> u64 {
        self.state.lock().unwrap().reserved
    }

    pub fn in_memory(&self) -> Option<u64> {
        self.state.lock().unwrap().in_memory
    }

    /// Every size that was told.
    pub fn told(&self) -> Vec<Option<u64>> {
        self.state.lock().unwrap().told.clone()
    }

    pub fn break_it(&self, is_broken: bool) {
        self.state.lock().unwrap().is_broken = is_broken;
    }

    /// From which byte on there is too little space to be told of what was written back.
    pub fn lack_space(&self, from: Option<u64>) {
        self.state.lock().unwrap().lacks_space_from = from;
    }

    pub fn give(&self, blocks: u64) {
        self.state.lock().unwrap().free += blocks;
    }

    /// Says of all blocks that others have them too.
    pub fn share(&self) {
        self.change(|state| {
            state
                .blocks
                .values_mut()
                .filter(|(_, kind)| *kind == Kind::Written)
                .for_each(|block| block.1 = Kind::Shared);
        });
    }
}

fn indexes(range: &Range<u64>) -> Range<u64> {
    assert!(range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK), "whole blocks: {range:?}");
    range.start / BLOCK..range.end / BLOCK
}

impl FileMapping for GrowingMap {
    type Error = MapError;

    fn size(&self) -> u64 {
        self.state.lock().unwrap().size
    }

    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn lookup(&self, offset: u64) -> Result<MapLookup, MapError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let seq = self.seq();
        let state = self.state.lock().unwrap();
        let block = offset / BLOCK;
        let kind = |block: u64| state.blocks.get(&block).copied();
        let first = kind(block);
        let mut end = block + 1;
        // A few blocks at a time, as extents are.
        while end < block + 7 {
            match (first, kind(end)) {
                (None, None) => {}
                (Some((at, kind)), Some((next, same))) if kind == same && next == at + (end - block) => {}
                _ => break,
            }
            end += 1;
        }
        let state_of = match first {
            None => ExtentState::Hole,
            Some((at, Kind::Unwritten)) => ExtentState::Unwritten(at * BLOCK),
            Some((at, Kind::Written)) => ExtentState::Written(at * BLOCK),
            Some((at, Kind::Shared)) => ExtentState::Shared(at * BLOCK),
        };
        let extent = Extent { offset: block * BLOCK, len: (end - block) * BLOCK, state: state_of };
        Ok(MapLookup { extent, size: state.size, seq })
    }

    fn seq(&self) -> MapSeq {
        MapSeq(self.seq.load(Ordering::SeqCst))
    }

    fn content_changes(&self) -> Result<(), MapError> {
        let work = self.hook.0.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
        Ok(())
    }

    fn copy_on_write(&self) -> Option<&dyn CopyOnWrite<Error = MapError>> {
        Some(self)
    }
}

impl State {
    fn take(&mut self) -> Result<u64, MapError> {
        self.free = self.free.checked_sub(1).ok_or(MapError::NoSpace)?;
        self.next += 1;
        // Not one after the other all the time.
        if self.next.is_multiple_of(11) {
            self.next += 1;
        }
        Ok(self.next)
    }
}

impl CopyOnWrite for GrowingMap {
    type Error = MapError;

    fn stage(&self, range: Range<u64>) -> Result<(), MapError> {
        self.change(|state| {
            let is_missing = |block: &u64| {
                let is_shared = state.blocks.get(block).is_some_and(|(_, kind)| *kind == Kind::Shared);
                is_shared && !state.staged.contains_key(block)
            };
            let missing = Vec::from_iter(indexes(&range).filter(is_missing));
            if state.free < missing.len() as u64 {
                return Err(MapError::NoSpace);
            }
            for block in missing {
                let at = state.take()?;
                state.staged.insert(block, at);
            }
            Ok(())
        })
    }

    fn staged(&self, offset: u64) -> Result<Option<Staged>, MapError> {
        let state = self.state.lock().unwrap();
        let staged = state.staged.get(&(offset / BLOCK));
        Ok(staged.map(|at| Staged { device: at * BLOCK + offset % BLOCK, len: BLOCK - offset % BLOCK }))
    }

    fn replace(&self, range: Range<u64>) -> Result<(), MapError> {
        self.change(|state| {
            for block in indexes(&range) {
                if let Some(at) = state.staged.remove(&block) {
                    state.blocks.insert(block, (at, Kind::Written));
                }
            }
        });
        Ok(())
    }

    fn unstage(&self, range: Range<u64>) {
        self.change(|state| {
            for block in indexes(&range).start..indexes(&range).end.min(1 << 30) {
                if state.staged.is_empty() {
                    break;
                }
                state.free += u64::from(state.staged.remove(&block).is_some());
            }
        });
    }
}

impl FileMappingMut for GrowingMap {
    fn allocate(&self, range: Range<u64>) -> Result<(), MapError> {
        self.change(|state| {
            let missing = indexes(&range).filter(|block| !state.blocks.contains_key(block));
            let missing = Vec::from_iter(missing);
            if state.free < missing.len() as u64 {
                return Err(MapError::NoSpace);
            }
            for block in missing {
                let at = state.take()?;
                state.blocks.insert(block, (at, Kind::Unwritten));
            }
            Ok(())
        })?;
        self.stage(range)
    }

    fn written(&self, range: Range<u64>, size: Option<u64>) -> Result<(), MapError> {
        self.replace(range.clone())?;
        self.change(|state| {
            if state.is_broken {
                return Err(MapError::Broken);
            }
            for block in indexes(&range) {
                let known = state.blocks.get_mut(&block).expect("it has space");
                if known.1 == Kind::Unwritten {
                    known.1 = Kind::Written;
                }
            }
            state.size = state.size.max(size.unwrap_or(0));
            Ok(())
        })
    }

    fn data_behind_end(&self, to: u64) -> Result<bool, MapError> {
        let state = self.state.lock().unwrap();
        let behind = state.size.div_ceil(BLOCK)..to.div_ceil(BLOCK).max(state.size.div_ceil(BLOCK));
        Ok(state.blocks.range(behind).any(|(_, (_, kind))| *kind != Kind::Unwritten))
    }

    fn free_behind_end(&self) -> Result<(), MapError> {
        self.change(|state| {
            let behind = state.size.div_ceil(BLOCK);
            let before = state.blocks.len();
            state.blocks.retain(|block, (_, kind)| *block < behind || *kind == Kind::Unwritten);
            state.free += (before - state.blocks.len()) as u64;
        });
        Ok(())
    }

    fn fill(
        &self,
        range: Range<u64>,
        size: u64,
        write: &mut dyn FnMut(u64, u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), MapError> {
        self.allocate(range.clone())?;
        for block in indexes(&range) {
            let at = self.state.lock().unwrap().blocks[&block].0;
            write(block * BLOCK, at * BLOCK, BLOCK).map_err(|_| MapError::Broken)?;
        }
        self.written(range, Some(size))
    }
}

impl DelayedAllocation for GrowingMap {
    fn reserve(&self, range: Range<u64>) -> Result<(), MapError> {
        self.change(|state| {
            let indexes = indexes(&range);
            assert!(indexes.clone().all(|block| !state.blocks.contains_key(&block)), "holes");
            let count = indexes.end - indexes.start;
            state.free = state.free.checked_sub(count).ok_or(MapError::NoSpace)?;
            state.reserved += count;
            Ok(())
        })
    }

    fn unreserve(&self, bytes: u64) {
        self.change(|state| {
            state.reserved -= bytes / BLOCK;
            state.free += bytes / BLOCK;
        });
    }

    fn allocate_reserved(&self, range: Range<u64>) -> Result<(), MapError> {
        self.change(|state| {
            let indexes = indexes(&range);
            let count = indexes.end - indexes.start;
            state.reserved = state.reserved.checked_sub(count).expect("it was reserved");
            state.free += count;
            for block in indexes {
                let at = state.take()?;
                assert!(state.blocks.insert(block, (at, Kind::Unwritten)).is_none(), "holes");
            }
            Ok(())
        })
    }

    fn written_back(&self, range: Range<u64>, size: Option<u64>) -> Result<(), MapError> {
        let mut state = self.state.lock().unwrap();
        if state.lacks_space_from.is_some_and(|from| from < range.end.max(size.unwrap_or(0))) {
            return Err(MapError::NoSpace);
        }
        state.told.push(size);
        drop(state);
        self.written(range, size)
    }

    fn ends_in_memory_at(&self, size: Option<u64>) {
        self.state.lock().unwrap().in_memory = size;
    }

    fn lacks_space(error: &MapError) -> bool {
        *error == MapError::NoSpace
    }
}

impl GrowingMap {
    /// Lets the file end at `size`, and gives back what lies behind.
    fn end_at(&self, size: u64) {
        self.change(|state| {
            let gone = state.blocks.split_off(&size.div_ceil(BLOCK));
            state.free += gone.len() as u64;
            state.size = size;
        });
    }

    /// Where blocks lie from here on, each by so many further on.
    fn shift(&self, from: u64, to: u64) {
        self.change(|state| {
            let moves = state.blocks.split_off(&from);
            state.blocks.extend(moves.into_iter().map(|(block, at)| (block - from + to, at)));
        });
    }
}

impl FileSpace for GrowingMap {
    /// Blocks of the file.
    type Given = Vec<u64>;

    fn check_changeable(&self) -> Result<(), MapError> {
        Ok(())
    }

    fn check_pieces(&self) -> Result<(), MapError> {
        Ok(())
    }

    fn set_aside(&self, range: Range<u64>) -> Result<Vec<u64>, MapError> {
        self.change(|state| {
            let missing = Vec::from_iter(indexes(&range).filter(|block| !state.blocks.contains_key(block)));
            if state.free < missing.len() as u64 {
                return Err(MapError::NoSpace);
            }
            for block in &missing {
                let at = state.take()?;
                state.blocks.insert(*block, (at, Kind::Unwritten));
            }
            Ok(missing)
        })
    }

    fn take_back(&self, given: Vec<u64>) -> Result<(), MapError> {
        given.into_iter().try_for_each(|block| self.free(block * BLOCK..(block + 1) * BLOCK))
    }

    fn was_set_aside(&self, size: Option<u64>) -> Result<(), MapError> {
        self.change(|state| state.size = state.size.max(size.unwrap_or(0)));
        Ok(())
    }

    fn free(&self, range: Range<u64>) -> Result<(), MapError> {
        self.change(|state| {
            for block in indexes(&range) {
                state.free += u64::from(state.blocks.remove(&block).is_some());
            }
        });
        Ok(())
    }

    fn blank(&self, range: Range<u64>) -> Result<(), MapError> {
        // Others keep what they share.
        self.free(range.clone())?;
        self.set_aside(range).map(drop)
    }

    fn cut(&self, size: u64) -> Result<(), MapError> {
        assert!(size <= self.size(), "it ends there or behind");
        self.end_at(size);
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<(), MapError> {
        assert!(!self.data_behind_end(size)?, "what comes before the end reads as zeroes");
        self.change(|state| state.size = size);
        Ok(())
    }

    fn collapse(&self, range: Range<u64>, size: u64) -> Result<(), MapError> {
        self.free(range.clone())?;
        self.shift(indexes(&range).end, indexes(&range).start);
        self.end_at(size);
        Ok(())
    }

    fn insert(&self, range: Range<u64>, size: u64) -> Result<(), MapError> {
        self.shift(indexes(&range).start, indexes(&range).end);
        self.change(|state| state.size = size);
        Ok(())
    }

    fn make_durable(&self) -> Result<(), MapError> {
        Ok(())
    }

    fn space_end(&self) -> u64 {
        let state = self.state.lock().unwrap();
        state.blocks.last_key_value().map_or(0, |(block, _)| (block + 1) * BLOCK)
    }

    fn is_refusal(error: &MapError) -> bool {
        Self::lacks_space(error)
    }
}
