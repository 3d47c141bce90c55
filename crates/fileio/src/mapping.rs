//! The seam between the data path and a format: where a file's bytes lie on the device.

use blockdev::DeviceError;
use std::ops::Range;

/// What stands behind a run of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Nothing is allocated; reads give zeroes.
    Hole,
    /// Space is allocated at this device byte but was never written; reads give zeroes.
    Unwritten(u64),
    /// Data lie at this device byte.
    Written(u64),
    /// Data lie at this device byte and other files share them: readable, not overwritable in place. What is written there
    /// goes elsewhere, if the format [can do that](FileMapping::copy_on_write).
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

/// Names one version of a file's map and size: equal values mean that neither has changed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSeq(pub u64);

/// What one look at a file's map gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The run that holds the byte that was asked for. It may reach behind the end of the file.
    pub extent: Extent,
    /// Size of the file in bytes.
    pub size: u64,
    /// The version that says so, or an earlier one.
    pub seq: MapSeq,
}

/// How a format tells the data path where bytes lie.
///
/// `lookup` is on the path of every request: it takes no exclusive lock, writes no shared cache line and
/// allocates nothing once the map is in memory.
pub trait FileMapping: Send + Sync {
    /// The format's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Size of the file in bytes.
    fn size(&self) -> u64;
    /// Allocation unit of the format in bytes, a power of two.
    fn block_size(&self) -> u32;
    /// The run that holds byte `offset`: it starts at or before `offset` and ends behind it. No lock is held on return.
    fn lookup(&self, offset: u64) -> Result<Found, Self::Error>;
    /// As [`lookup`](Self::lookup), for a reader: shared blocks may be called written, as it makes no difference
    /// to it, if telling them apart has a price.
    #[inline]
    fn lookup_to_read(&self, offset: u64) -> Result<Found, Self::Error> {
        self.lookup(offset)
    }
    /// Comes behind a read of the device, before anybody relies on what was read: an error if the file has ended meanwhile, so
    /// that the bytes may be another's. On the path of every such read.
    #[inline]
    fn check_read(&self) -> Result<(), Self::Error> {
        Ok(())
    }
    /// The version now: a load. Whoever changes where bytes lie makes it another one before they let go of these bytes.
    fn seq(&self) -> MapSeq;
    /// Comes before the file's content is changed, behind all that could refuse it, once the bytes are held: a format may
    /// have to take away what does not outlive the content. On the path of every overwrite, as `lookup` is.
    #[inline]
    fn content_changes(&self) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Says that some of the file was written over in place: a format that keeps times takes note. On the path of every
    /// overwrite, as `lookup` is.
    #[inline]
    fn overwritten(&self) {}
    /// A write to `range` (whole blocks) is over, or failed, and what was set aside for it in
    /// [`stage`](CopyOnWrite::stage) or [`allocate`](FileMappingMut::allocate) was not taken: it is anybody's again.
    fn give_up(&self, range: Range<u64>) {
        if let Some(copier) = self.copy_on_write() {
            copier.unstage(range);
        }
    }
    /// How to write what other files share; without it, such writes are refused. Asked when one is met.
    fn copy_on_write(&self) -> Option<&dyn CopyOnWrite<Error = Self::Error>> {
        None
    }
}

/// Where bytes go whose blocks other files share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Device byte of the first.
    pub device: u64,
    /// Bytes that follow each other from there, at least 1.
    pub len: u64,
}

/// How a format has bytes written whose blocks other files share: they go elsewhere, and then what was written comes in the
/// place of what was there. Between any two steps, and after a crash, each block reads as before the write or as after it.
///
/// Whoever calls holds the bytes in question exclusively, in whole blocks, and no other lock.
pub trait CopyOnWrite: Send + Sync {
    /// The format's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Sets space aside for all that others share in `range` (whole blocks). It may turn out that nobody shares it any
    /// more: a look that follows says of what is still shared.
    fn stage(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Where the shared byte `offset` is to be written.
    fn staged(&self, offset: u64) -> Result<Option<Staged>, Self::Error>;
    /// All that is shared in `range` was written, in whole blocks, to where it was staged: that is the file's from now on.
    fn replace(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Takes [`stage`](Self::stage) back: nothing was written, or not all of it.
    fn unstage(&self, range: Range<u64>);
}

/// How a format gives a file room that it did not have.
///
/// Whoever calls holds the bytes in question exclusively, and no other lock.
pub trait FileMappingMut: FileMapping {
    /// Gives every hole in `range` (whole blocks) space that was never written, [stages](CopyOnWrite::stage) what is shared,
    /// and sees to it that telling of data there ([`written`](Self::written)) will not fail for want of space. What has space
    /// keeps it. Where there is too little for all of it, nothing has changed.
    fn allocate(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Says that all of `range` (whole blocks) holds data now, what is shared where it was staged, and that the file ends at
    /// byte `size` at the earliest.
    fn written(&self, range: Range<u64>, size: Option<u64>) -> Result<(), Self::Error>;
    /// Whether whole blocks behind the end of the file and before byte `to` hold data: a truncation or a write that was
    /// cut short by a crash leaves such, and so do others.
    fn data_behind_end(&self, to: u64) -> Result<bool, Self::Error>;
    /// Frees all whole blocks behind the end of the file that hold data.
    fn free_behind_end(&self) -> Result<(), Self::Error>;
    /// Gives `range` (whole blocks, all of them holes behind the end of the file) space, has `write` put data there, and
    /// lets the file end at byte `size` at the earliest, in one step an extent. `write` is told a byte of the file, the
    /// byte of the device where it lies, and how many bytes follow each other from there.
    fn fill(
        &self,
        range: Range<u64>,
        size: u64,
        write: &mut dyn FnMut(u64, u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), Self::Error>;
}

/// How a format keeps room for bytes that are in memory alone so far, and that get their place when they are written back.
pub trait DelayedAllocation: FileMappingMut {
    /// Keeps so much of what is free that `range` (whole blocks, all of them holes for which nothing is kept yet) gets space
    /// later, and that telling of data there will not fail for want of it. Where there is too little, nothing is kept.
    fn reserve(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// As [`allocate`](FileMappingMut::allocate), for data that are [written back](Self::written_back) later, in any parts and
    /// in any order.
    fn allocate_to_write_back(&self, range: Range<u64>) -> Result<(), Self::Error> {
        self.allocate(range)
    }
    /// Takes back what is kept for so many bytes.
    fn unreserve(&self, bytes: u64);
    /// Gives `range`, all of it reserved, space that was never written. If it fails, what got none is still reserved, and the
    /// caller finds that as holes. No other thread does so for the same bytes, whether it holds them exclusively or not.
    fn allocate_reserved(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// As [`written`](FileMappingMut::written), of data that came long before: times are those that
    /// [`overwritten`](FileMapping::overwritten) has noted.
    fn written_back(&self, range: Range<u64>, size: Option<u64>) -> Result<(), Self::Error>;
    /// The file ends at byte `size` for whoever asks the format; `None`: where it ends on the device, if it was this map that
    /// said otherwise last. A file may be opened anew while its last data path is still being given up.
    fn ends_in_memory_at(&self, size: Option<u64>);
    /// Whether an error says that there is too little space.
    fn lacks_space(error: &Self::Error) -> bool;
}

/// How a format sets a file's space aside, frees it and moves it: the steps of what changes a file's shape.
///
/// Whoever calls holds the bytes in question exclusively, and no other lock; ranges are whole blocks.
pub trait FileSpace: DelayedAllocation {
    /// What a file was given, so that it can be taken back.
    type Given;

    /// Fails where nothing of the file can be changed any more.
    fn check_changeable(&self) -> Result<(), Self::Error>;
    /// Fails with what would end a change of where bytes lie half-way: it comes before the first step of several.
    fn check_pieces(&self) -> Result<(), Self::Error>;
    /// Gives every hole in `range` space that was never written, wherever the file ends.
    fn set_aside(&self, range: Range<u64>) -> Result<Self::Given, Self::Error>;
    /// Takes back what was given, of which nothing was written.
    fn take_back(&self, given: Self::Given) -> Result<(), Self::Error>;
    /// Says that space was set aside, and that the file ends at byte `size` now.
    fn was_set_aside(&self, size: Option<u64>) -> Result<(), Self::Error>;
    /// Frees all that `range` has.
    fn free(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Has all of `range`, which has space, read as zeroes.
    fn blank(&self, range: Range<u64>) -> Result<(), Self::Error>;
    /// Lets the file end at byte `size`, which lies before its end or at it, and frees all blocks behind.
    fn cut(&self, size: u64) -> Result<(), Self::Error>;
    /// Lets the file end at byte `size`, which lies behind its end.
    fn set_size(&self, size: u64) -> Result<(), Self::Error>;
    /// Frees `range` and moves what lies behind it to the front; the file ends at byte `size` then.
    fn collapse(&self, range: Range<u64>, size: u64) -> Result<(), Self::Error>;
    /// Moves what lies at the start of `range` and behind it by its length to the back; the file ends at byte `size` then.
    fn insert(&self, range: Range<u64>, size: u64) -> Result<(), Self::Error>;
    /// Makes durable what has been changed so far.
    fn make_durable(&self) -> Result<(), Self::Error>;
    /// The byte behind the last one that has space; may lie before or behind the end of the file.
    fn space_end(&self) -> u64;
    /// Whether an error says that a step was refused before anything of it was done.
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
    fn lookup(&self, offset: u64) -> Result<Found, Self::Error> {
        (**self).lookup(offset)
    }

    #[inline]
    fn lookup_to_read(&self, offset: u64) -> Result<Found, Self::Error> {
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
