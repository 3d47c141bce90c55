//! Content that two files exchange.

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::two_files::{self, HeldBoth, Part};
use fileio::FILE_END_MAX;
use std::ops::Range;
use std::sync::Arc;
use xfs::file::{self, ExchangeBlocks};
use xfs_format::types::FileBlock;

/// How [`File::exchange_range`] goes about it.
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

    /// Leaves holes of the first file, and what it has set aside and never written, as they are in both files.
    #[must_use]
    pub fn only_written(self, only_written: bool) -> Self {
        Self { only_written, ..self }
    }

    /// Finds out what would be refused, and changes nothing.
    #[must_use]
    pub fn dry_run(self, dry_run: bool) -> Self {
        Self { dry_run, ..self }
    }
}

/// What is to be exchanged, by the sizes that the files have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    blocks: u64,
    /// Whether all up to the ends of both files is exchanged, so that data come to lie behind them.
    to_end: bool,
    /// What the files have then.
    sizes: Option<[u64; 2]>,
    /// Where both files end, or where they have to end at the earliest.
    ends: [u64; 2],
    held: [Range<u64>; 2],
}

impl Plan {
    /// Whether it is right for files of these sizes.
    fn is_for(&self, sizes: [u64; 2]) -> bool {
        if self.to_end { sizes == self.ends } else { (0..2).all(|nth| sizes[nth] >= self.ends[nth]) }
    }
}

impl File {
    /// Exchanges `len` bytes from byte `at` on with those of `other` from its byte `other_at` on: the content changes
    /// hands, and nothing is copied. All of it is exchanged or nothing, also behind a crash; it is durable when this returns.
    /// With `None` for `len`, all up to the ends of both files is exchanged, as long as the longer of the two, and so are
    /// their sizes, wherever the ranges begin: what lies behind a file's new end is gone. `other` may be this file if the
    /// ranges have nothing in common.
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
        // Up to the exchange itself all can be begun again, and nothing behind it.
        let exchange = || self.exchange_held((at, other, other_at, len), options);
        let Some((plan, _held)) = self.with_room(exchange)? else { return Ok(()) };
        if plan.to_end {
            for file in [self, other] {
                file::free_data_behind_end(engine, file.entry())?;
            }
        }
        self.moved()
    }

    /// Exchanges what is to be, and still holds both ranges; `None` if nothing is.
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

    /// Holds both ranges, and says what is to be exchanged as long as they are held; `None` if nothing is.
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
                Part { file: self, bytes: mine, changes: true },
                Part { file: other, bytes: others, changes: true },
            )?;
            // By the sizes of now, which stay as far as they matter: a file may have been cut and have grown again in
            // memory to the size that it had, with an end that nobody holds.
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
            return Err(invalid("a range begins behind the end of its file"));
        }
        let to_end = len.is_none();
        let len = len.unwrap_or_else(|| (sizes[0] - at).max(sizes[1] - other_at));
        let end = |start: u64| start.checked_add(len).filter(|&end| end <= FILE_END_MAX & !(block - 1));
        let (Some(mine), Some(others)) = (end(at), end(other_at)) else {
            return Err(invalid("the range ends behind what a file can have"));
        };
        if !to_end && (mine > sizes[0] || others > sizes[1]) {
            return Err(invalid("a range reaches behind the end of its file"));
        }
        // A part of a block must not come into the midst of a file.
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
            // A file that gets a smaller size loses what lies behind it, be that before its range.
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
