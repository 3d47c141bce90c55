//! Changing what a volume is: label and size while it is open, UUID and features while nobody has it.

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
    /// The feature that `mkfs.xfs` calls so, if it is one of these.
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

/// The UUID that a volume is to have.
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

/// What growing made of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grown {
    /// How large it was.
    pub from: u64,
    /// How large it is.
    pub to: u64,
    /// What is left over at the end, too little for a group of its own.
    pub left_out: u64,
    /// Whether it was stopped ([`grow_unless`]): the volume is as it was.
    pub stopped: bool,
}

impl Volume {
    /// Gives the volume a label: up to 12 bytes, none of them 0; none takes it away. Durable when this returns, in every
    /// group's copy of the superblock.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        Ok(alter::set_label(self.engine(), label.as_ref())?)
    }

    /// Makes the volume larger: as large as its device or partition, or `bytes`. Other threads go on with it meanwhile.
    /// Durable when this returns; whatever comes between leaves the volume as it was, or as it is then.
    ///
    /// The device is as long as it was when the volume was opened. As with `xfs_growfs`, an end that would make a group of
    /// fewer than 64 blocks is left out. [`ErrorKind::InvalidInput`]: it would become smaller.
    /// [`ErrorKind::Damaged`]: the partition table does not say what comes behind, or no boot record protects it.
    /// [`ErrorKind::AlreadyExists`]: it would reach behind its partition or into another one; or another volume, or anything
    /// else that is known by its marks, begins at one of the first 4096 whole MiB of the device behind this one, and would be
    /// lost.
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

    /// What growing would make of it on a device of `device` bytes, and nothing else.
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
/// `bytes`; a file that is shorter becomes longer, if the volume is all of its end. What is refused leaves all as it was,
/// the file's length too. `how` says where the volume lies.
///
/// [`ErrorKind::Damaged`]: the partition table does not say what comes behind, or no boot record protects it.
/// [`ErrorKind::AlreadyExists`]: it would reach behind its partition or into another one, also where `how` says a length that
/// does; or another volume, or anything else that is known by its marks, would be lost. Unless a partition begins with the volume,
/// that is looked for at each whole MiB of the file behind it, and at the first 4096 of a block device.
/// [`ErrorKind::ReadOnly`]: it is to be opened without recovery.
pub fn grow(image: impl AsRef<Path>, bytes: Option<u64>, how: &OpenOptions) -> Result<Grown> {
    grow_unless(image, bytes, how, &|| false)
}

/// As [`grow`], until `stop` says so, which is asked before each new group: then all is as it was.
pub fn grow_unless(
    image: impl AsRef<Path>,
    bytes: Option<u64>,
    how: &OpenOptions,
    stop: &dyn Fn() -> bool,
) -> Result<Grown> {
    // The headers of many groups are small, and far apart: the host's page cache takes them faster than the disk does.
    let device = Arc::new(FileOptions::new().write(true).direct(false).open(image)?);
    // What comes behind a partition is not the volume's, and a table that is damaged does not say what does.
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
    // Nobody else gets the file before the volume is as large.
    let longer = Volume::open_device(Arc::new(lengthened?), &how)?;
    grow_to(&longer, Some(bytes), stop, || Ok(device.with_length(before).map(drop)?))
}

/// Grows, and closes. Where that was stopped, `undo` comes before others get the image.
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

/// What growing would make of a volume in an image file that is as long as it needs then, if it can be.
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

/// A growth over which nothing is lost, or one that was stopped. All of a partition is the volume's that begins with it.
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

/// Whether a volume that starts at this byte of a device has a partition to itself as far as it grows. Refuses to have it
/// reach behind its partition, into another one, or over the table; a table that is damaged, or that nothing protects, does not
/// say what is whose. One that a volume at the device's start has overwritten says nothing.
fn unless_in_partition(device: &dyn BlockDevice, start: u64, growth: &Grown) -> Result<bool> {
    if start == 0 || growth.to == growth.from {
        return Ok(false);
    }
    let Some(table) = partitions::read(device)? else { return Ok(false) };
    table.check_believed()?;
    behind::refuse_partitions(&table, &(start..start.saturating_add(growth.to)))?;
    // What begins in the midst of a partition may have others beside it.
    Ok(table.beginning_at(start).is_some())
}

/// Changes the UUID of the volume in an image or on a block device, and gives the new one as text. Its log must be clean:
/// [`ErrorKind::DirtyLog`]. `how` says where the volume lies.
///
/// A crash in between leaves a volume that has the old UUID or the new one. Metadata go on carrying the one that the volume
/// was made with.
pub fn set_uuid(image: impl AsRef<Path>, uuid: NewUuid, how: &OpenOptions) -> Result<String> {
    let change = match uuid {
        NewUuid::Random => UuidChange::To(xfs_format::types::Uuid(Uuid::new_v4().into_bytes())),
        NewUuid::To(bytes) => UuidChange::To(xfs_format::types::Uuid(bytes)),
        NewUuid::Restore => UuidChange::Restore,
    };
    on_device(image.as_ref(), how, |device| alter::set_uuid(&*device, change)).map(|uuid| uuid.to_string())
}

/// Switches features on, all that are missing or none, for the volume in an image or on a block device, and gives those that
/// it had before. If none is missing, that is [`ErrorKind::InvalidInput`]. Its log must be clean: [`ErrorKind::DirtyLog`].
/// `how` says where the volume lies.
pub fn upgrade(image: impl AsRef<Path>, features: &[Upgrade], how: &OpenOptions) -> Result<Vec<Upgrade>> {
    let engine: Vec<_> = features.iter().map(|feature| feature.engine()).collect();
    let there = on_device(image.as_ref(), how, |device| upgrade::upgrade(device, &engine))?;
    Ok(features.iter().copied().filter(|feature| there.contains(&feature.engine())).collect())
}

/// Does something to a device that nobody else has. Volumes have smaller sectors than some disks under image files.
fn on_device<T>(
    image: &Path,
    how: &OpenOptions,
    work: impl Fn(Arc<dyn BlockDevice>) -> xfs::Result<T>,
) -> Result<T> {
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
