//! Making a volume in an image file or on a block device.
//!
//! Existing content is examined first: a volume, or anything else with a known signature, is overwritten only
//! on request. Everything that can be refused is refused before the image is created, extended or written.

use crate::error::{Error, ErrorKind, Result};
use crate::options::OpenOptions;
use crate::partitions;
use crate::probe;
use crate::volume::Volume;
use blockdev::{BlockDevice, Claim, FileDevice, FileOptions, Window, Withheld};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;
use xfs::mkfs::{Before, Groups, Options, format, plan};
use xfs_format::kernels::Kernel;
use xfs_format::timestamp::Timestamp;

pub use xfs::mkfs::Features as MkfsFeatures;

/// Options of a new volume. The defaults are those of `mkfs.xfs` of xfsprogs 6.18 for a file: kernels from 6.10 on
/// mount it. For older ones there is [`MkfsFeatures::of_kernel`].
///
/// ```no_run
/// use uxfs::{MkfsOptions, mkfs};
///
/// # fn main() -> Result<(), uxfs::Error> {
/// mkfs("disk.img", &MkfsOptions::new().size(1 << 30).label("data"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    engine: Options,
    /// `None`: the sectors of the disk, or 512 in a file.
    sector_size: Option<u32>,
    offset: u64,
    length: Option<u64>,
    overwrite: bool,
    is_uuid_given: bool,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        let uuid = xfs_format::types::Uuid(Uuid::new_v4().into_bytes());
        Self {
            engine: Options::new(uuid, Timestamp::now()),
            sector_size: None,
            offset: 0,
            length: None,
            overwrite: false,
            is_uuid_given: false,
        }
    }
}

impl MkfsOptions {
    /// A new random UUID, the current time, and what `mkfs.xfs` would choose.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the volume. The default is the whole file or device. A shorter file is extended. A longer one
    /// keeps what follows the volume.
    pub fn size(mut self, bytes: u64) -> Self {
        self.engine.size = Some(bytes);
        self
    }

    /// Bytes a block, 1024 to 65536.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.engine.block_size = bytes;
        self
    }

    /// Bytes a sector, 512 to a block. The default is the sector of the disk, or 512 in a file.
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = Some(bytes);
        self
    }

    /// Bytes an inode, 512 to 2048.
    pub fn inode_size(mut self, bytes: u32) -> Self {
        self.engine.inode_size = bytes;
        self
    }

    /// Bytes a directory block, a block to 65536.
    pub fn dir_block_size(mut self, bytes: u32) -> Self {
        self.engine.dir_block_size = Some(bytes);
        self
    }

    /// Bytes of the log.
    pub fn log_size(mut self, bytes: u64) -> Self {
        self.engine.log_size = Some(bytes);
        self
    }

    /// How many allocation groups.
    pub fn group_count(mut self, count: u32) -> Self {
        self.engine.groups = Groups::Count(count);
        self
    }

    /// Bytes an allocation group.
    pub fn group_size(mut self, bytes: u64) -> Self {
        self.engine.groups = Groups::Bytes(bytes);
        self
    }

    /// The label, up to 12 bytes.
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
        self.engine.label = label.as_ref().to_vec();
        self
    }

    /// The UUID. With [`time`](Self::time), the same options always give the same bytes. Then all of the old content is
    /// read, and zeroed where needed: blocks of an earlier volume with this UUID would pass for newer than this one's.
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.is_uuid_given = true;
        self.engine.uuid = xfs_format::types::Uuid(uuid);
        self
    }

    /// When the root directory was made.
    pub fn time(mut self, time: Timestamp) -> Self {
        self.engine.time = time;
        self
    }

    /// Features of the requested volume that keep it from being filled afterwards; empty: it can be filled.
    pub fn read_only_because(&self) -> Vec<String> {
        xfs::mkfs::unwritable(&self.engine.features)
    }

    /// Which features are on. [`MkfsFeatures::of_kernel`] has the sets that long-term kernels mount; the default is the
    /// newest.
    pub fn features(mut self, features: MkfsFeatures) -> Self {
        self.engine.features = features;
        self
    }

    /// Features of the requested volume that a release of Linux (`6.1`) does not write. `None`: that is no release.
    pub fn unknown_to(&self, kernel: &str) -> Option<Vec<&'static str>> {
        Kernel::parse(kernel).map(|kernel| self.engine.features.unknown_to(kernel))
    }

    /// Whether volumes below 300 MiB, of one group, or with a log below 64 MiB are made: what `mkfs.xfs` makes only
    /// with `--unsupported`. The minimum is 16 MiB.
    pub fn small(mut self, small: bool) -> Self {
        self.engine.small = small;
        self
    }

    /// Where in the file or device the volume starts, in bytes. Without size and length, a partition must begin
    /// there, and the volume takes all of it. Nothing is written outside of it, nor over a part of another
    /// partition.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// How many bytes it may take from there; `None`: as many as its size, or as its partition has.
    pub fn length(mut self, length: Option<u64>) -> Self {
        self.length = length;
        self
    }

    /// Whether to overwrite a volume, or anything else with a known signature.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// The engine's options on a device whose sectors have `least` bytes.
    fn engine_on(&self, least: u32) -> Options {
        let sector_size = self.sector_size.unwrap_or(least);
        Options { sector_size, size: self.whole_blocks(), ..self.engine.clone() }
    }

    /// The requested size, rounded down to whole blocks.
    fn whole_blocks(&self) -> Option<u64> {
        let block = Some(u64::from(self.engine.block_size)).filter(|block| block.is_power_of_two());
        self.engine.size.map(|size| size - size % block.unwrap_or(1))
    }
}

/// Makes a volume in a file, which is created or extended if needed, or on a block device.
///
/// An image that another process or the kernel has open for writing, or has locked, is refused. If it fails, an
/// existing file holds no volume, and a new one is removed.
pub fn mkfs(image: impl AsRef<Path>, options: &MkfsOptions) -> Result<()> {
    make(image.as_ref(), options, &mut Make { direct: true, grown_from: None, fill: None })
}

/// Makes a volume, and lets `fill` put files in it. Until all of them are durable there is no volume: if the process is
/// killed or fails, it leaves an image that is not recognised as a volume, or no image if there was none.
///
/// `how` says how the volume is opened for filling; its place is that of `options`. The volume is closed afterwards.
/// The outer error is that of `mkfs`, the inner one that of `fill`.
pub fn mkfs_filled<T, E>(
    image: impl AsRef<Path>,
    options: &MkfsOptions,
    how: &OpenOptions,
    fill: impl FnOnce(&Volume) -> std::result::Result<T, E>,
) -> Result<std::result::Result<(T, Volume), E>> {
    let (mut fill, mut outcome) = (Some(fill), None);
    let mut run = |device: Arc<dyn BlockDevice>| {
        let volume = Volume::open_device(device, &how.clone().writable(true).offset(0).length(None))?;
        let fill = fill.take().expect("a volume is made once");
        match fill(&volume) {
            Ok(value) => {
                volume.close()?;
                outcome = Some(Ok((value, volume)));
                Ok(())
            }
            Err(error) => {
                outcome = Some(Err(error));
                Err(Error::new(ErrorKind::Io, "the volume was not filled"))
            }
        }
    };
    let made = make(
        image.as_ref(),
        options,
        &mut Make { direct: how.direct, grown_from: None, fill: Some(&mut run) },
    );
    match (made, outcome) {
        (Ok(()), Some(outcome)) | (Err(_), Some(outcome @ Err(_))) => Ok(outcome),
        (Err(error), _) => Err(error),
        (Ok(()), None) => unreachable!("what was made was filled"),
    }
}

/// Makes a volume, and fills it before it can be recognised as one.
struct Make<'a> {
    direct: bool,
    /// The length of the file before it was extended for the volume.
    grown_from: Option<u64>,
    fill: Option<&'a mut dyn FnMut(Arc<dyn BlockDevice>) -> Result<()>>,
}

/// How often to retry if others create and remove the file at the same time.
const TRIES: u32 = 10;

fn make(image: &Path, options: &MkfsOptions, how: &mut Make<'_>) -> Result<()> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        return match std::fs::metadata(image) {
            Ok(found) if found.file_type().is_block_device() => {
                let device = FileOptions::new().write(true).direct(how.direct).open(image)?;
                mkfs_in(Arc::new(device), options, Before::Unknown, how)
            }
            Ok(found) if found.is_file() => match in_file(image, options, how) {
                // Another process that created it has removed it again.
                Err(error) if error.kind() == ErrorKind::NotFound && tries > 0 => continue,
                made => made,
            },
            Ok(_) => {
                let what = "neither a regular file nor a block device: no place for a volume";
                Err(Error::new(ErrorKind::WrongType, what))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                match make_file(image, options, how) {
                    // Another process has created it since.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists && tries > 0 => continue,
                    made => made,
                }
            }
            Err(error) => Err(host(&error)),
        };
    }
}

/// Makes a volume on any device. `blank`: the whole device reads as zeroes, so nothing has to be wiped.
pub fn mkfs_device(device: Arc<dyn BlockDevice>, options: &MkfsOptions, blank: bool) -> Result<()> {
    let before = if blank { Before::Zeroes } else { Before::Unknown };
    mkfs_in(device, options, before, &mut Make { direct: true, grown_from: None, fill: None })
}

fn mkfs_in(
    device: Arc<dyn BlockDevice>,
    options: &MkfsOptions,
    before: Before,
    how: &mut Make<'_>,
) -> Result<()> {
    let room = room(&*device, options)?;
    let whole = Arc::clone(&device);
    let device: Arc<dyn BlockDevice> =
        if room == (0..device.size()) { device } else { window(device, &room)? };
    let claim = Claim::new(&*device)?;
    let layout = plan(&options.engine_on(device.sector_size()), device.size()).map_err(xfs::Error::from)?;
    if before == Before::Unknown && !options.overwrite {
        refuse_occupied(&*device)?;
        refuse_overlap(&*whole, &room, how.grown_from)?;
    }
    let before = match before {
        Before::Unknown if options.is_uuid_given => Before::SameUuid,
        before => before,
    };
    let Some(fill) = &mut how.fill else { return Ok(format(&*device, &layout, before)?) };
    let held = Arc::new(Withheld::new(device)?);
    format(&*held, &layout, before)?;
    // The volume makes its own claim.
    drop(claim);
    fill(held.clone())?;
    Ok(held.finish()?)
}

/// The bytes of a device that may be written. If only the start is given, they are the partition that begins there.
fn room(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Range<u64>> {
    let start = options.offset;
    let wanted = [options.length, options.whole_blocks()].into_iter().flatten().min();
    if start == 0 {
        let end = wanted.map_or(device.size(), |wanted| whole_sectors(device, wanted));
        return Ok(0..end.min(device.size()));
    }
    // A table that cannot be trusted does not tell what may be written.
    let table = partitions::read(device)?;
    let length = match (wanted, &table) {
        (Some(wanted), _) => wanted,
        (None, Some(table)) => match table.beginning_at(start) {
            Some(partition) => partition.length,
            None => return Err(no_size(start, &table.numbers())),
        },
        (None, None) => return Err(no_size(start, "there is no partition table")),
    };
    let room = start..start.saturating_add(whole_sectors(device, length));
    if let Some(lost) = table.and_then(|table| table.in_the_way(&room)) {
        let what = format!("bytes {start} to {} run over {lost}", room.end);
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(room)
}

fn no_size(start: u64, why: &str) -> Error {
    let what = format!("no partition begins at byte {start} ({why}); give the volume's size");
    Error::new(ErrorKind::InvalidInput, what)
}

/// The requested range, limited to the device.
fn whole_sectors(device: &dyn BlockDevice, bytes: u64) -> u64 {
    bytes - bytes % u64::from(device.sector_size())
}

fn window(device: Arc<dyn BlockDevice>, room: &Range<u64>) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(Window::new(device, room.start, Some(room.end - room.start))?))
}

/// Known signatures are not overwritten without a request.
fn refuse_occupied(device: &dyn BlockDevice) -> Result<()> {
    let unread = probe::Unread::default();
    let view = probe::View::whole(device, &unread);
    let what = match probe::describe(&view) {
        Some(what) => what,
        None if partitions::describe(&view).is_some() => "a whole disk with a partition table",
        None => return Ok(unread.check()?),
    };
    Err(Error::new(ErrorKind::AlreadyExists, would_be_lost(what)))
}

fn would_be_lost(what: &str) -> String {
    format!("this is {what}, which would be lost; say so if that is wanted")
}

/// Refuses to overwrite something that begins elsewhere: a volume at the start of the device or of a partition, up to
/// its own size, or partitions of a disk whose table exists only as the copy at its end. A volume must not begin in the
/// middle of a partition either. `end`: the device's old end, if it was extended.
fn refuse_overlap(device: &dyn BlockDevice, room: &Range<u64>, end: Option<u64>) -> Result<()> {
    let lost = |what: String| Err(Error::new(ErrorKind::AlreadyExists, what));
    let table = partitions::read(device)?;
    if room.start == 0 {
        // A table there was seen already. A table of which only the copy at the end is left counts too.
        return if table.is_some() {
            lost(would_be_lost("a whole disk with a partition table"))
        } else {
            Ok(())
        };
    }
    let unread = probe::Unread::default();
    let view = probe::View::whole(device, &unread);
    if let Some(one) = table.as_ref().and_then(|table| table.around(room.start)) {
        return lost(format!(
            "bytes {} to {} begin inside of partition {}, and not at its start; say so if that is wanted",
            room.start, room.end, one.number
        ));
    }
    let partitions = table.as_ref().map_or(&[][..], |table| table.partitions());
    let whole = (0, end.unwrap_or(device.size()));
    let places = partitions.iter().map(|one| (one.start, one.length)).chain([whole]);
    for (start, length) in places.filter(|&(start, _)| start != room.start) {
        let Some(part) = view.part(start, length) else { continue };
        let Some(what) = probe::describe(&part) else { continue };
        if start < room.end && room.start < start.saturating_add(probe::extent(&part)) {
            return lost(format!(
                "bytes {} to {} run over {what} that begins at byte {start} and would be lost; say so if that is \
                 wanted",
                room.start, room.end
            ));
        }
    }
    Ok(unread.check()?)
}

fn open_file(image: &Path, options: &MkfsOptions, direct: bool) -> Result<Arc<FileDevice>> {
    let sector = options.sector_size.unwrap_or(512).clamp(512, 4096);
    let sector = if sector.is_power_of_two() { sector } else { 512 };
    Ok(Arc::new(FileOptions::new().write(true).direct(direct).sector_size(sector).open(image)?))
}

/// Where the volume ends in a file, if that is given.
fn wanted_end(options: &MkfsOptions) -> Result<Option<u64>> {
    let Some(size) = options.whole_blocks().or(options.length) else { return Ok(None) };
    let end = options.offset.checked_add(size).filter(|&end| i64::try_from(end).is_ok());
    let too_large = || Error::new(ErrorKind::InvalidInput, "no file can be as large as that");
    end.map(Some).ok_or_else(too_large)
}

/// Makes a volume in an existing file, and extends the file if needed. The file is locked meanwhile.
fn in_file(image: &Path, options: &MkfsOptions, how: &mut Make<'_>) -> Result<()> {
    let end = wanted_end(options)?;
    let file = open_file(image, options, how.direct)?;
    let (len, mut device) = (file.size(), Arc::clone(&file));
    if let Some(end) = end.filter(|&end| end > len) {
        check_plan(options, end)?;
        // A file whose content must not be lost is not extended.
        check_start(&*file, options)?;
        room(&*file, options)?;
        if !options.overwrite {
            refuse_overlap(&*file, &(options.offset..end), None)?;
            if len > options.offset {
                refuse_occupied(&Window::new(file.clone(), options.offset, None)?)?;
            }
        }
        how.grown_from = Some(len);
        // A file may end with a part of a sector.
        device = Arc::new(file.with_length(end.max(file.length()?))?);
    }
    mkfs_in(device, options, Before::Unknown, how)?;
    Ok(file.check_name(image)?)
}

/// Refuses a start that is not on a sector, as the open would later.
fn check_start(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<()> {
    let (start, sector) = (options.offset, device.sector_size());
    if start.is_multiple_of(u64::from(sector)) {
        return Ok(());
    }
    let what = format!("byte {start} does not start a sector of {sector} bytes");
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// Refuses what cannot be made in a file of `end` bytes.
fn check_plan(options: &MkfsOptions, end: u64) -> Result<()> {
    let room = end.saturating_sub(options.offset).min(options.length.unwrap_or(u64::MAX));
    plan(&options.engine_on(512), room).map_err(xfs::Error::from)?;
    Ok(())
}

/// Makes a volume in a new file. If another process has created the file meanwhile, that is
/// [`ErrorKind::AlreadyExists`], and nothing was done.
fn make_file(image: &Path, options: &MkfsOptions, how: &mut Make<'_>) -> Result<()> {
    let Some(end) = wanted_end(options)? else {
        let what = "no such file; give a size, and it is made";
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    check_plan(options, end)?;
    let taken = || Error::new(ErrorKind::AlreadyExists, "another process has made the file meanwhile");
    let identity = match File::options().write(true).create_new(true).open(image) {
        Ok(new) => new.metadata().map(|new| (new.dev(), new.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(taken()),
        Err(error) => Err(error),
    };
    let identity = identity.map_err(|error| host(&error))?;
    let remove = || {
        // The name may belong to another file now, and another process may use the file.
        let there = image.symlink_metadata().ok();
        if there.is_some_and(|there| (there.dev(), there.ino()) == identity) {
            let _ = std::fs::remove_file(image);
        }
    };
    let file = match open_file(image, options, how.direct) {
        Ok(file) if file.length()? > 0 => return Err(taken()),
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(taken()),
        // Another process was faster. The file is its own.
        Err(error) if error.kind() == ErrorKind::Locked => return Err(error),
        Err(error) => {
            if image.metadata().is_ok_and(|there| there.len() == 0) {
                remove();
            }
            return Err(error);
        }
    };
    let long = file.with_length(end).map_err(Error::from);
    let made = long.and_then(|long| mkfs_in(Arc::new(long), options, Before::Zeroes, how));
    if made.is_err() {
        // Half a volume is of no use. It is removed before others can lock it.
        remove();
        return made;
    }
    Ok(file.check_name(image)?)
}

/// What the host said.
fn host(error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    Error::new(kind, error.to_string())
}
