//! Metadata that only XFS has, for an exact copy of a volume.
//!
//! Invariants: nothing is kept in part or rounded: what the new volume cannot hold ends the work, by its name; the
//! flags that protect a file are set last, in the same step as its times.

use super::{StepResult, Trouble};
use crate::exit::Exit;
use std::ops::RangeInclusive;
use uxfs::{Changes, ErrorKind, File, Metadata, Node, Timestamp, VolumeInfo};

const PREALLOC: u32 = 0x2;
const IMMUTABLE: u32 = 0x8;
const APPEND: u32 = 0x10;
const EXTENT_SIZE: u32 = 0x800;
const EXTENT_SIZE_INHERIT: u32 = 0x1000;
const COW_EXTENT_SIZE: u32 = 0x1_0000;

/// Seconds that an inode keeps in 32 bits.
const SHORT_TIMES: RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;

/// Metadata of an inode that archives and other file systems do not have.
#[derive(Clone, Copy, Debug)]
pub struct Exact {
    ctime: Timestamp,
    /// When it was made, if the volume has that.
    btime: Option<Timestamp>,
    project: u32,
    xflags: u32,
    extent_size: u32,
    cow_extent_size: u32,
    is_dir: bool,
}

/// What the inodes of a volume can hold.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    late_times: bool,
}

impl Keeps {
    /// The limits of a volume.
    pub fn of(info: &VolumeInfo) -> Self {
        Self { late_times: info.features.iter().any(|name| name == "bigtime") }
    }

    fn check(&self, of: &Metadata) -> StepResult<()> {
        let times = [Some(of.atime), Some(of.mtime), Some(of.ctime), of.btime];
        let late = times.iter().flatten().find(|time| !SHORT_TIMES.contains(&time.seconds));
        match late {
            Some(time) if !self.late_times => Err(unkept(format!(
                "has a time that the new volume cannot keep, second {}; a volume with bigtime can",
                time.seconds
            ))),
            _ => Ok(()),
        }
    }
}

impl Exact {
    /// All metadata of a file, if the new volume can hold it.
    pub fn of(of: &Metadata, keeps: Keeps) -> StepResult<Self> {
        keeps.check(of)?;
        let wish = |bytes: u64| u32::try_from(bytes).map_err(|_| bad_hint("it is too large"));
        Ok(Self {
            ctime: of.ctime,
            btime: of.btime,
            project: of.project_id,
            xflags: of.xflags,
            extent_size: wish(of.extent_size)?,
            cow_extent_size: wish(of.cow_extent_size)?,
            is_dir: of.is_dir(),
        })
    }

    /// The same, but names may still be added.
    pub fn unprotected(self) -> Self {
        Self { xflags: self.xflags & !(IMMUTABLE | APPEND), ..self }
    }

    /// What a file must have before it has blocks.
    pub fn before_content(&self, node: &Node) -> StepResult<()> {
        if !self.has(EXTENT_SIZE) {
            return Ok(());
        }
        set(node, &Changes { extent_size: Some(self.extent_size), ..Changes::default() })
    }

    /// The rest, together with what must be set last.
    pub fn behind_all(&self, with: Changes) -> Changes {
        Changes {
            ctime: Some(self.ctime),
            crtime: self.btime,
            project: Some(self.project),
            project_inherit: Some(self.has(0x200)),
            no_atime: Some(self.has(0x40)),
            no_dump: Some(self.has(0x80)),
            immutable: Some(self.has(IMMUTABLE)),
            append_only: Some(self.has(APPEND)),
            synchronous: Some(self.has(0x20)),
            no_defrag: Some(self.has(0x2000)),
            extent_size: (self.is_dir && self.has(EXTENT_SIZE_INHERIT)).then_some(self.extent_size),
            cow_extent_size: self.has(COW_EXTENT_SIZE).then_some(self.cow_extent_size),
            preallocated: Some(self.has(PREALLOC)),
            no_symlinks: Some(self.has(0x400)),
            file_stream: Some(self.has(0x4000)),
            realtime_inherit: Some(self.has(0x100)),
            direct_access: Some(self.has(0x8000)),
            ..with
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.xflags & flag != 0
    }
}

/// Makes changes, some of which may not fit the volume.
pub fn set(node: &Node, changes: &Changes) -> StepResult<()> {
    node.change(changes).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => bad_hint(&error.to_string()),
        _ => error.into(),
    })
}

/// Whether changes belong to an exact copy.
pub fn says_more(changes: &Changes) -> bool {
    changes.project.is_some()
}

/// Preallocates space as in the source: inside the file, and past its end if it was preallocated on purpose.
pub fn allocate(from: &File, to: &File) -> StepResult<()> {
    let of = from.metadata();
    // No file is larger.
    let end = if of.xflags & PREALLOC == 0 { of.size } else { i64::MAX as u64 };
    for extent in from.extents() {
        let extent = extent?;
        let end = extent.logical.saturating_add(extent.length).min(end);
        if extent.unwritten && extent.logical < end {
            to.allocate(extent.logical..end, true)?;
        }
    }
    Ok(())
}

fn bad_hint(why: &str) -> Trouble {
    unkept(format!("has an extent size that the new volume cannot keep: {why}"))
}

fn unkept(what: String) -> Trouble {
    Trouble::end(Exit::Unsupported, what)
}
