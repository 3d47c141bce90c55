//! The interface between the data path and a format: where a file's bytes lie on the device.

use blockdev::DeviceError;
use std::ops::Range;

/// The state of a run of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Nothing is allocated; reads give zeroes.
    Hole,
    /// Space is allocated at this device byte but was never written; reads give zeroes.
    Unwritten(u64),
    /// Data lie at this device byte.
    Written(u64),
    /// Data lie at this device byte, and other files share them: readable, but not overwritable in place. Writes go
    /// elsewhere, if the format [supports that](FileMapping::copy_on_write).
    Shared(u64),
}

/// A run of a file's bytes in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte of the run in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Where the run lies.
    pub state: ExtentState,
}

/// Names a version of a file's map and size. Equal values mean that neither has changed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSeq(pub u64);

/// The result of a lookup in a file's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLookup {
    /// The run that contains the requested byte. It may reach past the end of the file.
    pub extent: Extent,
    /// Size of the file in bytes.
    pub size: u64,
    /// The version that was looked at, or an earlier one.
    pub seq: MapSeq,
}

/// How a format tells the data path where bytes lie.
///
/// `lookup` is on the path of every request. Once the map is in memory, it takes no exclusive lock, writes no shared
/// cache line and allocates nothing.
pub trait FileMapping: Send + Sync {
    /// The format's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Size of the file in bytes.
    fn size(&self) -> u64;
    /// Allocation unit of the format in bytes, a power of two.
    fn block_size(&self) -> u32;
    /// The run that contains byte `offset`: it starts at or before `offset` and ends after it. No lock is held on
    /// return.
    fn lookup(&self, offset: u64) -> Result<MapLookup, Self::Error>;
    /// Like [`lookup`](Self::lookup), for a reader. Shared blocks may be reported as written if telling them apart is
    /// costly, because to a reader it makes no difference.
    #[inline]
    fn lookup_to_read(&self, offset: u64) -> Result<MapLookup, Self::Error> {
        self.lookup(offset)
    }
    /// Called after a read of the device, before the result is used. It fails if the file has ended meanwhile, so that
    /// the bytes may belong to another file. On the path of every such read.
    #[inline]
    fn check_read(&self) -> Result<(), Self::Error> {
        Ok(())
    }
    /// The current version; a single load. Whoever changes where bytes lie changes the version before releasing these
    /// bytes.
    fn seq(&self) -> MapSeq;
    /// Called before the file's content is changed, after everything that could refuse the change, with the bytes held.
    /// A format may have to remove what must not outlive the content. Like `lookup`, it is on the path of every
    /// overwrite.
    #[inline]
    fn content_changes(&self) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Reports that some of the file was overwritten in place, for formats that store times. Like `lookup`, it is on
    /// the path of every overwrite.
    #[inline]
    fn overwritten(&self) {}
    /// A write to `range` (whole blocks) has ended or failed. What [`stage`](CopyOnWrite::stage) or
    /// [`allocate`](FileMappingMut::allocate) set aside for it and it did not take is free again.
    fn give_up(&self, range: Range<u64>) {
        if let Some(copier) = self.copy_on_write() {
            copier.unstage(range);
        }
    }
    /// How to write to blocks that other files share. Without it, such writes are refused. Called when one occurs.
    fn copy_on_write(&self) -> Option<&dyn CopyOnWrite<Error = Self::Error>> {
        None
    }
}

/// Where to write bytes whose blocks other files share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Device byte of the first.
    pub device: u64,
    /// Number of contiguous bytes from there, at least 1.
    pub len: u64,
}

/// How a format writes to blocks that other files share: the data are written elsewhere, and then replace what was
/// there. Between any two steps, and after a crash, each block reads as before the write or as after it.
///
/// The caller holds the bytes exclusively, in whole blocks, and no other lock.
pub trait CopyOnWrite: Send + Sync {
    /// The format's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Sets space aside for everything in `range` (whole blocks) that others share. Some of it may turn out to be no
    /// longer shared. A lookup after this tells what still is.
    fn stage(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Where to write the shared byte `offset`.
    fn staged(&self, offset: u64) -> Result<Option<Staged>, Self::Error>;
    /// Everything that is shared in `range` was written, in whole blocks, to where it was staged. This becomes the
    /// file's content.
    fn replace(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Undoes [`stage`](Self::stage): not everything was written.
    fn unstage(&self, range: Range<u64>);
}

/// How a format gives a file more space.
///
/// The caller holds the bytes exclusively, and no other lock.
pub trait FileMappingMut: FileMapping {
    /// Allocates unwritten space for every hole in `range` (whole blocks), [stages](CopyOnWrite::stage) copies of what
    /// is shared, and ensures that reporting data there ([`written`](Self::written)) will not fail for lack of space.
    /// Existing space is kept. If there is not enough for all of it, nothing has changed.
    fn allocate(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Reports that all of `range` (whole blocks) has data now, shared blocks at their staged place, and that the file
    /// is at least `size` bytes long.
    fn written(&self, range: Range<u64>, size: Option<u64>) -> Result<(), Self::Error>;
    /// Whether whole blocks past the end of the file and before byte `to` have data. A truncation or a write that a
    /// crash interrupted leaves such blocks, and so do other programs.
    fn data_behind_end(&self, to: u64) -> Result<bool, Self::Error>;
    /// Frees all whole blocks past the end of the file that have data.
    fn free_behind_end(&self) -> Result<(), Self::Error>;
    /// Allocates space for `range` (whole blocks, all of them holes past the end of the file) and makes the file at
    /// least `size` bytes long. Each extent is one step. `write` writes the data: it is given a byte of the file, its
    /// byte on the device, and the number of contiguous bytes from there.
    fn fill(
        &self,
        range: Range<u64>,
        size: u64,
        write: &mut dyn FnMut(u64, u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), Self::Error>;
}

/// How a format reserves space for bytes that are only in memory so far, and are allocated at write-back.
pub trait DelayedAllocation: FileMappingMut {
    /// Reserves enough free space to allocate `range` later (whole blocks, all of them holes without a reservation) and
    /// to report data there without running out of space. If there is not enough, nothing is reserved.
    fn reserve(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Like [`allocate`](FileMappingMut::allocate), for data that are [written back](Self::written_back) later in any
    /// parts and in any order.
    fn allocate_to_write_back(&self, range: Range<u64>) -> Result<(), Self::Error> {
        self.allocate(range)
    }
    /// Cancels the reservation for this many bytes.
    fn unreserve(&self, bytes: u64);
    /// Allocates unwritten space for `range`, all of which is reserved. If it fails, what was not allocated stays
    /// reserved, and the caller finds it as holes. No other thread does this for the same bytes, whether it holds them
    /// exclusively or not.
    fn allocate_reserved(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Like [`written`](FileMappingMut::written), for data that were written earlier: the times are those that
    /// [`overwritten`](FileMapping::overwritten) has noted.
    fn written_back(&self, range: Range<u64>, size: Option<u64>) -> Result<(), Self::Error>;
    /// Sets the file's size as the format reports it. `None` restores the size on the device, if this map was the last
    /// to set another. A file may be opened anew while its last data path is still being dropped.
    fn ends_in_memory_at(&self, size: Option<u64>);
    /// Whether an error means lack of space.
    fn lacks_space(error: &Self::Error) -> bool;
}

/// How a format preallocates, frees and moves a file's space: the steps of changes of a file's shape.
///
/// The caller holds the bytes exclusively, and no other lock. Ranges are whole blocks.
pub trait FileSpace: DelayedAllocation {
    /// What was allocated for a file, so that it can be taken back.
    type Given;

    /// Fails if nothing of the file can be changed any more.
    fn check_changeable(&self) -> Result<(), Self::Error>;
    /// Fails with anything that would end a change of the mapping half-way. Called before the first of several steps.
    fn check_pieces(&self) -> Result<(), Self::Error>;
    /// Allocates unwritten space for every hole in `range`, whatever the file's size is.
    fn set_aside(&self, range: Range<u64>) -> Result<Self::Given, Self::Error>;
    /// Frees what was allocated, before any of it was written.
    fn take_back(&self, given: Self::Given) -> Result<(), Self::Error>;
    /// Reports that space was preallocated, and sets the file's new size, if any.
    fn was_set_aside(&self, size: Option<u64>) -> Result<(), Self::Error>;
    /// Frees all that `range` has.
    fn free(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Makes all of `range`, which has space, read as zeroes.
    fn blank(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Sets the file's size to `size`, at or before its end, and frees all blocks behind it.
    fn cut(&self, size: u64) -> Result<(), Self::Error>;
    /// Sets the file's size to `size`, past its end.
    fn set_size(&self, size: u64) -> Result<(), Self::Error>;
    /// Frees `range` and moves everything behind it forward. The file's size becomes `size`.
    fn collapse(&self, range: Range<u64>, size: u64) -> Result<(), Self::Error>;
    /// Moves everything from the start of `range` on back by its length. The file's size becomes `size`.
    fn insert(&self, range: Range<u64>, size: u64) -> Result<(), Self::Error>;
    /// Makes durable what has been changed so far.
    fn make_durable(&self) -> Result<(), Self::Error>;
    /// The end of the last allocated space. It may lie before or past the end of the file.
    fn space_end(&self) -> u64;
    /// Whether an error means that a step was refused before anything was done.
    fn is_refusal(error: &Self::Error) -> bool;
}

impl<M: FileMappingMut + ?Sized> FileMappingMut for std::sync::Arc<M> {
    fn allocate(&self, range: Range<u64>) -> Result<(), Self::Error> {
        (**self).allocate(range)
    }

    fn written(&self, range: Range<u64>, size: Option<u64>) -> Result<(), Self::Error> {
        (**self).written(range, size)
    }

    fn data_behind_end(&self, to: u64) -> Result<bool, Self::Error> {
        (**self).data_behind_end(to)
    }

    fn free_behind_end(&self) -> Result<(), Self::Error> {
        (**self).free_behind_end()
    }

    fn fill(
        &self,
        range: Range<u64>,
        size: u64,
        write: &mut dyn FnMut(u64, u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), Self::Error> {
        (**self).fill(range, size, write)
    }
}

impl<M: FileMapping + ?Sized> FileMapping for std::sync::Arc<M> {
    type Error = M::Error;

    #[inline]
    fn size(&self) -> u64 {
        (**self).size()
    }

    #[inline]
    fn block_size(&self) -> u32 {
        (**self).block_size()
    }

    #[inline]
    fn lookup(&self, offset: u64) -> Result<MapLookup, Self::Error> {
        (**self).lookup(offset)
    }

    #[inline]
    fn lookup_to_read(&self, offset: u64) -> Result<MapLookup, Self::Error> {
        (**self).lookup_to_read(offset)
    }

    #[inline]
    fn check_read(&self) -> Result<(), Self::Error> {
        (**self).check_read()
    }

    #[inline]
    fn seq(&self) -> MapSeq {
        (**self).seq()
    }

    #[inline]
    fn content_changes(&self) -> Result<(), Self::Error> {
        (**self).content_changes()
    }

    #[inline]
    fn overwritten(&self) {
        (**self).overwritten();
    }

    fn copy_on_write(&self) -> Option<&dyn CopyOnWrite<Error = Self::Error>> {
        (**self).copy_on_write()
    }
}

/// The end of the last whole block that a file may have.
pub(crate) fn whole_blocks_max(block_size: u32) -> u64 {
    crate::FILE_END_MAX & !(u64::from(block_size) - 1)
}
