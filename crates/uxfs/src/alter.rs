//! Changing a volume itself: label and size while it is open, UUID and features while it is not.

use crate::behind;
use crate::error::{Error, ErrorKind, Result};
use crate::options::OpenOptions;
use crate::partitions;
use crate::volume::{SECTOR_BYTES_MIN, Volume, explain, part, room_at};
use blockdev::{BlockDevice, FileDevice, FileOptions, Storage};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;
use xfs::alter::{self, UuidChange};
use xfs::upgrade;

/// A feature that can be switched on in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Upgrade {
    /// Timestamps reach beyond 2038. Inodes take them up when they change.
    Bigtime,
    /// Each group's header counts the blocks of its inode trees.
    InobtCount,
    /// Extent counts may be 64-bit. Inodes take them up when they need them.
    Nrext64,
}

impl Upgrade {
    /// The feature of this `mkfs.xfs` name, if it is one of these.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Bigtime, Self::InobtCount, Self::Nrext64].into_iter().find(|one| one.name() == name)
    }

    /// Its name, as the tools write it.
    pub fn name(self) -> &'static str {
        self.engine().name()
    }

    fn engine(self) -> upgrade::Upgrade {
        match self {
            Self::Bigtime => upgrade::Upgrade::Bigtime,
            Self::InobtCount => upgrade::Upgrade::InobtCount,
            Self::Nrext64 => upgrade::Upgrade::Nrext64,
        }
    }
}

/// The new UUID of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewUuid {
    /// A random one.
    Random,
    /// This one. All zeroes is none: the kernel mounts such a volume only with `nouuid`.
    To([u8; 16]),
    /// The one that the volume was made with.
    Restore,
}

/// The result of growing a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grown {
    /// The old size.
    pub from: u64,
    /// The new size.
    pub to: u64,
    /// The unused rest at the end, too small for a group.
    pub left_out: u64,
    /// Whether it was stopped ([`grow_unless`]): the volume is as it was.
    pub stopped: bool,
}

impl Volume {
    /// Sets the label: up to 12 bytes, none of them 0. An empty label removes it. When this returns it is durable, in
    /// every group's copy of the superblock.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        Ok(alter::set_label(self.engine(), label.as_ref())?)
    }

    /// Makes the volume larger: as large as its device or partition, or `bytes`. Other threads can use it meanwhile.
    /// Durable when this returns. After a crash the volume has the old size or the new one.
    ///
    /// The device's size is the one at the time of opening. As with `xfs_growfs`, a rest of fewer than 64 blocks is
    /// left out. [`ErrorKind::InvalidInput`]: the size is smaller than now. [`ErrorKind::Damaged`]: the partition table
    /// does not tell what follows, or no boot record protects it. [`ErrorKind::AlreadyExists`]: it would reach past its
    /// partition or into another one; or another volume, or anything else with a known signature, begins at one of the
    /// first 4096 whole MiB after this one, and would be lost.
    pub fn grow(&self, bytes: Option<u64>) -> Result<Grown> {
        let device = self.device();
        let growth = self.plan_growth(bytes, device.size())?;
        let (whole, start) = self.whole_device();
        unless_in_partition(&**whole, start, &growth)?;
        behind::refuse_overlap(&**device, growth.from..growth.to)?;
        self.grow_unless(bytes, &|| false)
    }

    fn grow_unless(&self, bytes: Option<u64>, stop: &dyn Fn() -> bool) -> Result<Grown> {
        let device = self.device().size();
        let grown = alter::grow_unless(self.engine(), bytes.unwrap_or(device), stop)?;
        Ok(self.in_bytes(grown))
    }

    /// The result of growing on a device of `device` bytes. Nothing is changed.
    pub fn plan_growth(&self, bytes: Option<u64>, device: u64) -> Result<Grown> {
        let growth = alter::plan_growth(self.engine(), bytes.unwrap_or(device), device)?;
        Ok(self.in_bytes(alter::Grown::from(&growth)))
    }

    fn in_bytes(&self, grown: alter::Grown) -> Grown {
        let log = self.engine().geometry().block_log;
        Grown {
            from: grown.from << log,
            to: grown.to << log,
            left_out: grown.left_out << log,
            stopped: grown.stopped,
        }
    }
}

/// Makes the volume in an image, or on a block device, larger: as large as the device, the file or the partition, or as
/// `bytes`. A file that is too short is extended, if it ends with the volume. If growing is refused, nothing changes,
/// not even the file's length. `how` says where the volume lies.
///
/// [`ErrorKind::Damaged`]: the partition table does not tell what follows, or no boot record protects it.
/// [`ErrorKind::AlreadyExists`]: it would reach past its partition or into another one, also if `how` gives such a
/// length; or another volume, or anything else with a known signature, would be lost. Unless the volume fills a
/// partition, signatures are looked for at each whole MiB of the file after it, and at the first 4096 of a block
/// device. [`ErrorKind::ReadOnly`]: `how` asks for no recovery.
pub fn grow(image: impl AsRef<Path>, bytes: Option<u64>, how: &OpenOptions) -> Result<Grown> {
    grow_unless(image, bytes, how, &|| false)
}

/// As [`grow`], but `stop` is asked before each new group. If it says so, growing stops and nothing
/// has changed.
pub fn grow_unless(
    image: impl AsRef<Path>,
    bytes: Option<u64>,
    how: &OpenOptions,
    stop: &dyn Fn() -> bool,
) -> Result<Grown> {
    how.check_on_device()?;
    // The headers of many groups are small writes, far apart: the host's page cache takes them faster than the disk.
    let device = Arc::new(FileOptions::new().write(true).direct(false).open(image)?);
    // The bytes after a partition are not the volume's, and a damaged table does not tell where it ends.
    let length = how.length.map_or_else(|| room_at(&*device, how.offset), |length| Ok(Some(length)))?;
    let how = how.clone().writable(true).direct(false).length(length);
    let volume = Volume::open_device(device.clone(), &how)?;
    let is_file = matches!(device.place().storage, Storage::File(..));
    let longer = bytes.filter(|&bytes| is_file && bytes > volume.device().size());
    let planned = match longer {
        Some(bytes) => plan_longer(&volume, bytes, &how),
        None => volume.plan_growth(bytes, volume.device().size()),
    };
    let planned = planned.and_then(|growth| unless_lost(&device, growth, &how, stop));
    if planned.as_ref().map_or(true, |growth| growth.stopped || growth.to == growth.from) {
        let closed = volume.close();
        return planned.and_then(|growth| closed.map(|()| growth));
    }
    let Some(bytes) = longer else {
        return grow_to(&volume, bytes, stop, || Ok(()));
    };
    let before = device.length()?;
    let lengthened = device.with_length(before.max(how.offset + bytes));
    volume.close()?;
    drop(volume);
    // No one else can lock the file before the volume has its new size.
    let longer = Volume::open_device(Arc::new(lengthened?), &how)?;
    grow_to(&longer, Some(bytes), stop, || Ok(device.with_length(before).map(drop)?))
}

/// Grows the volume and closes it. If it was stopped, `undo` runs before others can lock the image.
fn grow_to(
    volume: &Volume,
    bytes: Option<u64>,
    stop: &dyn Fn() -> bool,
    undo: impl FnOnce() -> Result<()>,
) -> Result<Grown> {
    let grown = volume.grow_unless(bytes, stop);
    let undone = if grown.as_ref().is_ok_and(|grown| grown.stopped) { undo() } else { Ok(()) };
    let closed = volume.close();
    let grown = grown?;
    undone.and(closed).map(|()| grown)
}

/// The result of growing a volume in an image file that would be extended as needed.
fn plan_longer(volume: &Volume, bytes: u64, how: &OpenOptions) -> Result<Grown> {
    if how.offset.checked_add(bytes).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Error::new(ErrorKind::InvalidInput, "no file can be as large as that"));
    }
    if let Some(length) = how.length.filter(|&length| length < bytes) {
        let what = format!("the volume would have {bytes} bytes, its part of the file has {length}");
        return Err(Error::new(ErrorKind::NoSpace, what));
    }
    volume.plan_growth(Some(bytes), bytes)
}

/// A growth that destroys nothing, or one that was stopped. A partition that begins with the volume belongs to it
/// entirely.
fn unless_lost(
    device: &FileDevice,
    growth: Grown,
    how: &OpenOptions,
    stop: &dyn Fn() -> bool,
) -> Result<Grown> {
    if unless_in_partition(device, how.offset, &growth)? {
        return Ok(growth);
    }
    let [from, to] = [growth.from, growth.to].map(|bytes| how.offset.saturating_add(bytes));
    let all = behind::refuse_overlap_unless(device, from..to, stop)?;
    Ok(if all { growth } else { Grown { to: growth.from, left_out: 0, stopped: true, ..growth } })
}

/// Whether a volume that starts at this byte of a device has a partition to itself, up to its new end. Refuses if it
/// would reach past its partition, into another one, or over the table. A table that is damaged or unprotected is
/// refused too, since it cannot be trusted. A table that a volume at the device's start has overwritten is ignored.
fn unless_in_partition(device: &dyn BlockDevice, start: u64, growth: &Grown) -> Result<bool> {
    if start == 0 || growth.to == growth.from {
        return Ok(false);
    }
    let Some(table) = partitions::read(device)? else { return Ok(false) };
    table.check_believed()?;
    behind::refuse_partitions(&table, &(start..start.saturating_add(growth.to)))?;
    // A volume in the middle of a partition may have others beside it.
    Ok(table.beginning_at(start).is_some())
}

/// Changes the UUID of the volume in an image or on a block device, and gives the new one as text. Its log must be clean:
/// [`ErrorKind::DirtyLog`]. `how` says where the volume lies.
///
/// A crash in between leaves a volume that has the old UUID or the new one. Metadata keep the UUID that the volume was
/// made with.
pub fn set_uuid(image: impl AsRef<Path>, uuid: NewUuid, how: &OpenOptions) -> Result<String> {
    let change = match uuid {
        NewUuid::Random => UuidChange::To(xfs_format::types::Uuid(Uuid::new_v4().into_bytes())),
        NewUuid::To(bytes) => UuidChange::To(xfs_format::types::Uuid(bytes)),
        NewUuid::Restore => UuidChange::Restore,
    };
    on_device(image.as_ref(), how, |device| alter::set_uuid(&*device, change)).map(|uuid| uuid.to_string())
}

/// Switches features on for the volume in an image or on a block device: all that are missing, or none on an error.
/// Gives those that it had before. If none is missing, that is [`ErrorKind::InvalidInput`]. Its log must be clean:
/// [`ErrorKind::DirtyLog`].
/// `how` says where the volume lies.
pub fn upgrade(image: impl AsRef<Path>, features: &[Upgrade], how: &OpenOptions) -> Result<Vec<Upgrade>> {
    let engine: Vec<_> = features.iter().map(|feature| feature.engine()).collect();
    let there = on_device(image.as_ref(), how, |device| upgrade::upgrade(device, &engine))?;
    Ok(features.iter().copied().filter(|feature| there.contains(&feature.engine())).collect())
}

/// Does something to a device that no one else has open. The page cache is used, since a volume's sectors may be
/// smaller than those of the disk under an image file.
fn on_device<T>(
    image: &Path,
    how: &OpenOptions,
    work: impl Fn(Arc<dyn BlockDevice>) -> xfs::Result<T>,
) -> Result<T> {
    how.check_on_device()?;
    let options = FileOptions::new().write(true).direct(how.direct);
    let run = |options: &FileOptions| {
        let device = part(Arc::new(options.open(image)?), how)?;
        work(Arc::clone(&device)).map_err(|error| explain(error, &*device))
    };
    match run(&options) {
        Err(error) if error.kind() == ErrorKind::SectorSize && image.is_file() => {
            run(&options.clone().sector_size(SECTOR_BYTES_MIN))
        }
        done => done,
    }
}
