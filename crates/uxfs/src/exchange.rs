//! Exchanging the content of two files.

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::two_files::{self, HeldBoth, LockedPart};
use fileio::FILE_END_MAX;
use std::ops::Range;
use std::sync::Arc;
use xfs::file::{self, ExchangeBlocks};
use xfs_format::types::FileBlock;

/// Options of [`File::exchange_range`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeOptions {
    only_written: bool,
    dry_run: bool,
}

impl ExchangeOptions {
    /// All of the range.
    pub fn new() -> Self {
        Self::default()
    }

    /// Skips holes and unwritten space of the first file: these ranges stay unchanged in both files.
    #[must_use]
    pub fn only_written(self, only_written: bool) -> Self {
        Self { only_written, ..self }
    }

    /// Checks everything, and changes nothing.
    #[must_use]
    pub fn dry_run(self, dry_run: bool) -> Self {
        Self { dry_run, ..self }
    }
}

/// What to exchange, given the sizes of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    blocks: u64,
    /// Whether everything up to the ends of both files is exchanged, so that data may end up past
    /// them.
    to_end: bool,
    /// The new sizes.
    sizes: Option<[u64; 2]>,
    /// Where the files end afterwards, or where they must end at least.
    ends: [u64; 2],
    held: [Range<u64>; 2],
}

impl Plan {
    /// Whether the plan still fits files of these sizes.
    fn is_for(&self, sizes: [u64; 2]) -> bool {
        if self.to_end { sizes == self.ends } else { (0..2).all(|nth| sizes[nth] >= self.ends[nth]) }
    }
}

impl File {
    /// Exchanges `len` bytes from byte `at` on with those of `other` from its byte `other_at` on: nothing is copied.
    /// All of it is exchanged or nothing, even after a crash. It is durable when this returns. With `None` for `len`,
    /// everything up to the end of the longer file is exchanged, and so are the sizes: what lies past a file's new end
    /// is lost. `other` may be this file if the ranges do not overlap.
    ///
    /// Offsets are whole blocks, and so is `len`, unless both files end there; a range with a length ends within both files.
    /// Where the volume does not have the feature: [`ErrorKind::Unsupported`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), uxfs::Error> {
    /// use uxfs::ExchangeOptions;
    ///
    /// let volume = uxfs::Volume::open("disk.img", &uxfs::OpenOptions::new().writable(true))?;
    /// let (live, next) = (volume.open_file("/table")?, volume.open_file("/table.next")?);
    /// live.exchange_range(0, &next, 0, None, ExchangeOptions::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn exchange_range(
        &self,
        at: u64,
        other: &Self,
        other_at: u64,
        len: Option<u64>,
        options: ExchangeOptions,
    ) -> Result<()> {
        let engine = self.node.volume.engine();
        if !Arc::ptr_eq(engine, other.node.volume.engine()) {
            return Err(invalid("the two files are on different volumes"));
        }
        file::check_exchanging(engine)?;
        for file in [self, other] {
            file.check_unprotected()?;
            file.check_writable()?;
        }
        // Everything before the exchange itself can be repeated, but nothing after it.
        let exchange = || self.exchange_held((at, other, other_at, len), options);
        let Some((plan, _held)) = self.with_room(exchange)? else { return Ok(()) };
        if plan.to_end {
            for file in [self, other] {
                file::free_data_behind_end(engine, file.entry())?;
            }
        }
        self.moved()
    }

    /// Makes the exchange, and still holds both ranges. `None`: there is nothing to exchange.
    fn exchange_held<'a>(
        &'a self,
        (at, other, other_at, len): (u64, &'a Self, u64, Option<u64>),
        options: ExchangeOptions,
    ) -> Result<Option<(Plan, HeldBoth<'a>)>> {
        let Some((plan, held)) = self.hold_to_exchange(at, other, other_at, len)? else { return Ok(None) };
        if options.dry_run {
            return Ok(None);
        }
        for file in [self, other] {
            file.content_changes()?;
            if plan.to_end {
                file.data.nothing_behind(file.size())?;
            }
        }
        let engine = self.node.volume.engine();
        let log = engine.geometry().block_log;
        file::exchange_blocks(
            engine,
            &ExchangeBlocks {
                files: [self.entry(), other.entry()],
                at: [at, other_at].map(|at| FileBlock(at >> log)),
                blocks: plan.blocks,
                sizes: plan.sizes,
                only_written: options.only_written,
                now: self.node.volume.now(),
            },
        )?;
        Ok(Some((plan, held)))
    }

    /// Holds both ranges, and plans the exchange, which is valid as long as they are held. `None`: there
    /// is nothing to exchange.
    fn hold_to_exchange<'a>(
        &'a self,
        at: u64,
        other: &'a Self,
        other_at: u64,
        len: Option<u64>,
    ) -> Result<Option<(Plan, HeldBoth<'a>)>> {
        loop {
            let plan = self.plan_exchange(at, other, other_at, len)?;
            if plan.blocks == 0 && plan.sizes.is_none() {
                return Ok(None);
            }
            let [mine, others] = plan.held.clone();
            let held = two_files::hold(
                LockedPart { file: self, bytes: mine, changes: true },
                LockedPart { file: other, bytes: others, changes: true },
            )?;
            // By the present sizes, which cannot change in a way that matters: a file may have been truncated and
            // have grown again in memory to its old size, with an end that is not held.
            if self.plan_exchange(at, other, other_at, len)? == plan
                && plan.is_for([self, other].map(|file| held.size(file)))
            {
                return Ok(Some((plan, held)));
            }
        }
    }

    fn plan_exchange(&self, at: u64, other: &Self, other_at: u64, len: Option<u64>) -> Result<Plan> {
        let (block, sizes) = (self.block(), [self.size_to_change()?, other.size_to_change()?]);
        if at > sizes[0] || other_at > sizes[1] {
            return Err(invalid("a range begins past the end of its file"));
        }
        let to_end = len.is_none();
        let len = len.unwrap_or_else(|| (sizes[0] - at).max(sizes[1] - other_at));
        let end = |start: u64| start.checked_add(len).filter(|&end| end <= FILE_END_MAX & !(block - 1));
        let (Some(mine), Some(others)) = (end(at), end(other_at)) else {
            return Err(invalid("the range ends past the largest file offset"));
        };
        if !to_end && (mine > sizes[0] || others > sizes[1]) {
            return Err(invalid("a range reaches past the end of its file"));
        }
        // A part of a block must not end up in the middle of a file.
        let ends_both = mine >= sizes[0] && others >= sizes[1];
        if (at | other_at) & (block - 1) != 0 || len & (block - 1) != 0 && !ends_both {
            return Err(invalid(format!("ranges that are exchanged are whole blocks of {block} bytes")));
        }
        let whole = len.next_multiple_of(block);
        let is_same = self.node.ino() == other.node.ino();
        if is_same && at < other_at + whole && other_at < at + whole {
            return Err(invalid("a file cannot exchange a range with a part of itself that overlaps it"));
        }
        let held = match to_end {
            // A file that becomes smaller loses what lies past its new end, even before its range.
            true => {
                let end = sizes[0].min(sizes[1]) & !(block - 1);
                [at.min(end)..u64::MAX, other_at.min(end)..u64::MAX]
            }
            false => [at..at + whole, other_at..other_at + whole],
        };
        let swapped = (to_end && sizes[0] != sizes[1]).then_some([sizes[1], sizes[0]]);
        let ends = if to_end { sizes } else { [mine, others] };
        Ok(Plan { blocks: whole / block, to_end, sizes: swapped, ends, held })
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}
