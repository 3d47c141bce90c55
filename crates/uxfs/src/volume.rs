//! Opening a volume, and finding files in it.

use crate::deferring::Deferring;
use crate::dir::Dir;
use crate::engine;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::gathering::Gathering;
use crate::info::VolumeInfo;
use crate::metadata::Metadata;
use crate::names;
use crate::node::Node;
use crate::open_files::OpenFiles;
use crate::options::OpenOptions;
use crate::partitions;
use crate::path;
use crate::probe;
use crate::recovery::Recovery;
use crate::still;
use blockdev::{BlockDevice, Caught, FileOptions, Window};
use fileio::testing::point;
use fileio::{Failure, FlushDevice, Locking, PageCache, SyncCursor, Writers};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use xfs::file;
use xfs::inactive;
use xfs::inode::{InMemory, Inode};
use xfs::iomap::FileMap;
use xfs::namespace;
use xfs::volume::InodeHandle;
use xfs_format::types::InodeNumber;

/// The smallest sector that any volume or device has.
pub(crate) const SECTOR_BYTES_MIN: u32 = 512;

/// Threads that write dirty pages back.
const WRITERS: usize = 2;

/// An open volume. Cheap to clone; all calls may be made from any number of threads at once.
///
/// Permissions are not checked: whoever can read the image can read all files.
///
/// Paths are bytes, with or without a slash in front, and start at the volume's root. Symbolic links are
/// followed inside the volume alone: an absolute target starts at the volume's root.
#[derive(Clone, Debug)]
pub struct Volume {
    shared: Arc<Shared>,
}

/// What every request looks at, apart from the count of handles, which is written whenever one comes or goes.
#[derive(Debug)]
#[repr(align(128))]
struct Shared {
    engine: Arc<xfs::volume::Volume>,
    device: Arc<dyn BlockDevice>,
    /// The device that holds the volume's, and the start in it, in bytes.
    whole: (Arc<dyn BlockDevice>, u64),
    /// Flushes the device for all waiters.
    flusher: FlushDevice,
    /// The device, if nothing becomes durable before the close. Dropped after the engine, which uses it.
    deferring: Option<Deferring>,
    locking: Locking,
    open_files: OpenFiles,
    pages: Arc<PageCache>,
    /// Threads that write dirty pages back, from the first buffered handle on.
    writers: OnceLock<Option<Writers>>,
    /// Write-back failures up to here were reported.
    told: SyncCursor,
    /// Held while it is decided whether the volume can be closed.
    closing: Mutex<()>,
    /// The device, if small writes to it are gathered, with the claim to it. Dropped last, as writes may be in progress
    /// until then.
    gathering: Option<Gathering>,
}

impl Drop for Shared {
    /// When the last handle is dropped the volume has ended, and the next may open it.
    fn drop(&mut self) {
        point("a volume is let go");
        // What was not synced is lost, as in a crash. The threads use the engine.
        self.pages.abandon();
        drop(self.writers.take());
        self.open_files.keep_none();
        self.engine.stop_covering();
    }
}

impl Volume {
    /// Opens the volume in an image file or on a block device.
    ///
    /// Other processes that use this library cannot write it while it is open, nor open it while it is open for
    /// writing: [`ErrorKind::Locked`]. Writers that take no lock may be found by [`written_by`](crate::written_by).
    ///
    /// ```no_run
    /// use uxfs::{OpenOptions, Volume};
    ///
    /// # fn main() -> Result<(), uxfs::Error> {
    /// let volume = Volume::open("disk.img", &OpenOptions::new())?;
    /// let mut hosts = [0; 512];
    /// let read = volume.open_file("/etc/hosts")?.read_at(&mut hosts, 0)?;
    /// println!("{}", String::from_utf8_lossy(&hosts[..read]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(image: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let image = image.as_ref();
        let writes = options.engine.writable && !options.in_memory;
        let how = FileOptions::new().write(writes).keep_writers_out(true).direct(options.direct);
        match Self::open_device(Arc::new(how.open(image)?), options) {
            // The disk under an image file has larger sectors than the volume, or than the volume's start is a
            // multiple of. The host's page cache has no such limit.
            Err(error) if error.kind() == ErrorKind::SectorSize && image.is_file() => {
                let file = how.clone().sector_size(SECTOR_BYTES_MIN).open(image)?;
                Self::open_device(Arc::new(file), options)
            }
            other => other,
        }
    }

    /// Opens the volume on any device; `options` may choose a part of it. A panic of a request counts as a failure.
    pub fn open_device(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let device = Caught::before(device);
        let device = if options.in_memory { xfs::recovery::in_memory(device) } else { device };
        let whole = (Arc::clone(&device), options.offset);
        let device = part(device, options)?;
        let deferring = match options.durable_at_close {
            true => Some(Deferring::new(Arc::clone(&device), options.engine.writable)?),
            false => None,
        };
        let device = deferring.as_ref().map_or(device, Deferring::device);
        let gathering = match options.gather_writes && options.engine.writable && deferring.is_none() {
            true => Some(Gathering::new(Arc::clone(&device))?),
            false => None,
        };
        let device = gathering.as_ref().map_or(device, Gathering::device);
        let claim = deferring.as_ref().and_then(Deferring::claim);
        let claim = claim.or_else(|| gathering.as_ref().map(Gathering::claim));
        let engine = xfs::volume::Volume::open_claimed(Arc::clone(&device), &options.engine, claim)
            .map_err(|error| explain(error, &*device))?;
        let flusher = FlushDevice::new(Arc::clone(&device), options.flushing);
        let (locking, open_files) = (options.locking, OpenFiles::within(options.engine.cache_size));
        let (all, metadata) = (options.engine.cache_size, Arc::downgrade(&engine));
        let share = move |used| metadata.upgrade().map_or(all, |engine| engine.share_memory(used));
        let pages = PageCache::sharing(all, share);
        let (writers, told) = (OnceLock::new(), pages.sync_cursor());
        if options.engine.repeatable.is_some() {
            // There is no background thread.
            let _none = writers.set(None);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                engine,
                device,
                whole,
                flusher,
                deferring,
                locking,
                open_files,
                pages,
                writers,
                told,
                closing: Mutex::default(),
                gathering,
            }),
        })
    }

    /// The root directory.
    pub fn root(&self) -> Result<Node> {
        self.node(self.engine().geometry().root.0)
    }

    /// The file of any type that `path` names; a symbolic link at its end is followed.
    pub fn lookup(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        self.walk(path.as_ref(), true)
    }

    /// The same, but a symbolic link at the end of `path` is not followed.
    pub fn lookup_nofollow(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        self.walk(path.as_ref(), false)
    }

    fn walk(&self, path: &[u8], follow: bool) -> Result<Node> {
        match self.cached(path, follow) {
            Some(node) => Ok(node),
            None => path::resolve(&self.root()?, path, follow),
        }
    }

    /// The inode of `path`, if all names are cached.
    fn cached(&self, path: &[u8], follow: bool) -> Option<Node> {
        let dentry = path::cached(self.engine(), path, follow)?;
        Some(Node { volume: self.clone(), handle: namespace::handle_of(self.engine(), &dentry)? })
    }

    /// The metadata of `path`, if all names are cached.
    fn cached_metadata(&self, path: &[u8], follow: bool) -> Option<Metadata> {
        let engine = self.engine();
        let dentry = path::cached(engine, path, follow)?;
        namespace::look_at(engine, &dentry, |in_memory, inode| {
            engine::metadata_in_memory(engine, in_memory, inode)
        })
    }

    /// The file of any type with this inode number.
    pub fn node(&self, ino: u64) -> Result<Node> {
        let handle = self.engine().handle(InodeNumber(ino))?;
        Ok(Node { volume: self.clone(), handle })
    }

    /// The metadata of the file of any type with this inode number.
    pub fn metadata_of(&self, ino: u64) -> Result<Metadata> {
        let engine = self.engine();
        let look = |in_memory: &InMemory, inode: &Inode| engine::metadata_in_memory(engine, in_memory, inode);
        Ok(engine.look_at_inode(InodeNumber(ino), look)?)
    }

    /// The metadata of `path`; a symbolic link at its end is followed.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.metadata_at(path.as_ref(), true)
    }

    /// The same, but a symbolic link at the end of `path` is not followed.
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.metadata_at(path.as_ref(), false)
    }

    fn metadata_at(&self, path: &[u8], follow: bool) -> Result<Metadata> {
        match self.cached_metadata(path, follow) {
            Some(metadata) => Ok(metadata),
            None => self.at(path, follow, Node::metadata),
        }
    }

    /// Opens a regular file.
    pub fn open_file(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        self.at(path, true, |node| {
            wanted(node, path, "regular file", node.file_type().is_file())?;
            node.open()
        })
    }

    /// Opens a directory.
    pub fn open_dir(&self, path: impl AsRef<[u8]>) -> Result<Dir> {
        let path = path.as_ref();
        self.at(path, true, |node| {
            wanted(node, path, "directory", node.file_type().is_dir())?;
            node.as_dir()
        })
    }

    /// The target of the symbolic link that `path` names.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.at(path, false, |node| {
            wanted(node, path, "symbolic link", node.file_type().is_symlink())?;
            node.read_link()
        })
    }

    /// Does something with the file of `path`. If the file is gone before that is done, looks the path up again: a name
    /// that moves from file to file always has one.
    fn at<R>(&self, path: &[u8], follow: bool, mut work: impl FnMut(&Node) -> Result<R>) -> Result<R> {
        if let Some(node) = self.cached(path, follow) {
            match work(&node) {
                Err(error) if error.kind() == ErrorKind::Stale => {}
                other => return other,
            }
        }
        let root = self.root()?;
        loop {
            match path::resolve(&root, path, follow).and_then(|node| work(&node)) {
                Err(error) if error.kind() == ErrorKind::Stale => {}
                other => return other,
            }
        }
    }

    /// Shape, features and free space.
    pub fn info(&self) -> Result<VolumeInfo> {
        // The rest does not depend on them.
        let attributes = self.root().and_then(|root| root.xattr_names()).unwrap_or_default();
        engine::info(self.engine(), &attributes)
    }

    /// The part of [`VolumeInfo::free_blocks`] that files cannot use: each group keeps some for its metadata, and the
    /// volume keeps up to 64, so that what removes something succeeds when it is full. A kernel's `df` leaves out the
    /// former, and instead of the latter a twentieth of all blocks, up to 8192, while the volume is mounted. Reads the
    /// headers of all groups.
    pub fn kept_back_blocks(&self) -> Result<u64> {
        Ok(self.engine().kept_back()?)
    }

    /// The recovery when the volume was opened. `None`: the log was clean, or recovery was disabled.
    pub fn recovery(&self) -> Option<Recovery> {
        self.engine().recovery().map(Recovery::from)
    }

    /// Whether the copies of the superblock were out of date when the volume was opened for writing, and were updated:
    /// a change of its size, label, UUID or features had been interrupted.
    pub fn copies_settled(&self) -> bool {
        self.engine().copies_settled()
    }

    /// Whether a crash or a repair had left something behind the end of the log, which was cleared when the volume was
    /// opened for writing.
    pub fn log_traces_cleared(&self) -> bool {
        self.engine().log_traces_cleared()
    }

    /// Makes all earlier changes durable. Reports, once, failures of write-back since the last call. What they do not
    /// concern is durable all the same.
    pub fn sync(&self) -> Result<()> {
        let written = self.pages().write_every_file_back();
        let failed = self.pages().failed_since(&self.shared.told);
        let times = file::log_all_times(self.engine());
        // A second failure is retried later.
        let _later = inactive::retry_inactivation(self.engine());
        let synced = self.engine().sync_all(|| self.shared.flusher.flush());
        // The first failure is the reason of those behind it.
        if let Some(failure) = failed {
            return Err(failure.into());
        }
        written?;
        synced?;
        Ok(times?)
    }

    /// Makes durable what was committed up to a checkpoint, and earlier writes to the device. One flush serves all
    /// waiters. If it fails, the volume is shut down, as it is unknown what was lost.
    pub(crate) fn sync_upto(&self, upto: xfs::log::CommitSeq) -> Result<()> {
        Ok(self.engine().sync_upto(upto, || self.shared.flusher.flush())?)
    }

    /// Does at once what the volume does by itself after half a minute without activity: the first call makes all
    /// changes durable, the next one writes them back, and then the log is covered, so that it need not be replayed.
    /// For tests.
    #[doc(hidden)]
    pub fn pass_idle_time(&self) -> Result<()> {
        Ok(self.engine().pass_idle_time()?)
    }

    /// Writes everything back and leaves a clean log. Afterwards nothing can be changed, and open files can only be
    /// read. Calls of other threads that are in progress end first; new ones wait, and fail with
    /// [`ErrorKind::ShutDown`]. Overwrites that stay in a [`Queue`](crate::Queue) prevent the close:
    /// [`ErrorKind::Busy`], and nothing has changed. Dropping a writable volume without a close is like a crash: its
    /// log has to be replayed.
    ///
    /// [`ErrorKind::Damaged`] means that a file without a name could not be freed: everything else is written back, the
    /// log is clean, and `xfs_repair` will find the file.
    ///
    /// Any other error says why the volume could not be closed. It is then shut down for good: committed changes are in
    /// its log, as far as the device took them, and the next open recovers them. This process can open it once
    /// everything of the volume is dropped. Until then all calls fail with [`ErrorKind::ShutDown`], even another close.
    /// Nothing is written after this returns.
    pub fn close(&self) -> Result<()> {
        // Most of the work is done while others can still change things.
        let _told_below = self.pages().write_every_file_back();
        let unwritten = self.stop_writes()?;
        if self.engine().is_writable() {
            // Syncs in progress end before the volume does, and no new ones begin.
            let _shut_down = self.shared.flusher.end().inspect_err(|error| self.engine().flush_failed(error));
        }
        if let Some(failure) = unwritten {
            let closed = self.engine().shut_down_unclosed();
            self.settle();
            closed?;
            return Err(failure.into());
        }
        let closed = self.engine().close();
        // Also after a failure.
        self.settle();
        closed.map_err(|error| self.device_failure().unwrap_or_else(|| error.into()))?;
        self.shared.deferring.as_ref().map_or(Ok(()), Deferring::finish)
    }

    /// Writes all gathered writes out.
    fn settle(&self) {
        if let Some(gathering) = &self.shared.gathering {
            gathering.settle();
        }
    }

    /// Waits for all writes to files, and lets no new ones begin: they wait until all files are held. Only then is the
    /// close decided, so that no write is left half done, and a busy file makes the close fail without harm. Gives the
    /// error of an earlier write-back, if there was one.
    fn stop_writes(&self) -> Result<Option<Failure>> {
        if !self.engine().is_writable() {
            return Ok(self.pages().failed_since(&self.shared.told));
        }
        // Two threads that each held some files would wait for each other.
        let _alone = self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut busy = None;
        let attempt = |patience| {
            // Threads that keep opening files would always be ahead of one that holds all open files.
            let _held_off = busy.is_some().then(|| self.open_files().hold_off_openers());
            self.hold_all(busy, patience).inspect_err(|&ino| busy = Some(ino))
        };
        still::patiently(attempt).map_err(|ino| {
            let what = format!("the volume cannot be closed: writes to inode {ino} are still in a queue");
            Error::new(ErrorKind::Busy, what)
        })
    }

    /// Keeps writers out of all open files, starting with `first`, and then decides. Fails with the inode number of a
    /// file that stays busy for `patience`, and then releases all files.
    fn hold_all(&self, first: Option<u64>, patience: Duration) -> std::result::Result<Option<Failure>, u64> {
        let engine = self.engine();
        let (mut held, mut unwritten) = (BTreeMap::new(), None);
        loop {
            let others = self.open_files().others(|ino| held.contains_key(&ino), || engine.stop_writes());
            if others.is_empty() {
                // Waiters that continue now fail, as the volume is shut down.
                return Ok(self.pages().failed_since(&self.shared.told).or(unwritten));
            }
            let mut others = Vec::from_iter(others);
            others.sort_by_key(|(ino, _)| Some(*ino) != first);
            for (ino, file) in others {
                let (file, written) = file.hold_off_writers(patience).ok_or(ino)?;
                unwritten = written.err().or(unwritten);
                held.insert(ino, file);
            }
        }
    }

    /// For a volume that becomes durable only at its close: the first failure of its device, which made all later calls
    /// fail.
    pub fn device_failure(&self) -> Option<Error> {
        self.shared.deferring.as_ref()?.failure()
    }

    /// The device, or the part of it, with the volume.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.shared.device
    }

    /// The device that holds it, and the start in it, in bytes.
    pub(crate) fn whole_device(&self) -> (&Arc<dyn BlockDevice>, u64) {
        (&self.shared.whole.0, self.shared.whole.1)
    }

    pub(crate) fn engine(&self) -> &Arc<xfs::volume::Volume> {
        &self.shared.engine
    }

    /// The time of a change that is made now.
    pub(crate) fn now(&self) -> xfs_format::timestamp::Timestamp {
        self.engine().now()
    }

    pub(crate) fn locking(&self) -> Locking {
        self.shared.locking
    }

    /// The page cache of this volume's files.
    pub(crate) fn pages(&self) -> &Arc<PageCache> {
        &self.shared.pages
    }

    /// See [`PageCache::with_room`].
    pub(crate) fn with_room<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        self.pages().with_room(change, |error| error.kind() == ErrorKind::NoSpace)
    }

    /// Starts the threads that write dirty pages back. If the host cannot start threads, writers do it
    /// themselves.
    pub(crate) fn start_writers(&self) {
        self.shared.writers.get_or_init(|| Writers::start(self.pages(), WRITERS).ok());
    }

    pub(crate) fn open_files(&self) -> &OpenFiles {
        &self.shared.open_files
    }

    /// Drops a file from memory that has no name and no open handle.
    pub(crate) fn let_go(&self, nameless: Option<InodeNumber>) {
        if let Some(ino) = nameless {
            self.open_files().let_go(ino.0, |data| data.is_unwanted(FileMap::begin_end));
        }
    }

    /// The inode that a directory entry names: if it is not in use, the directory is damaged.
    pub(crate) fn handle_of_entry(&self, ino: u64, name: &[u8]) -> Result<InodeHandle> {
        let found = self.engine().handle(InodeNumber(ino)).map_err(Error::from);
        found.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(
                ErrorKind::Damaged,
                format!(
                    "damaged: the entry `{}` names inode {ino}, which is not in use",
                    names::printable(name)
                ),
            ),
            _ => error,
        })
    }
}

/// The default extent of a volume at byte `start` of a device: its partition, or what belongs to nothing else. `None`:
/// the whole device. An error: the partition table cannot be trusted.
pub(crate) fn room_at(device: &dyn BlockDevice, start: u64) -> Result<Option<u64>> {
    if start == 0 {
        return Ok(None);
    }
    let room = partitions::read(device)?.and_then(|table| table.room_at(start));
    Ok(room.map(|room| room.min(device.size().saturating_sub(start))))
}

/// The part of a device that `options` choose.
pub(crate) fn part(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    if options.offset == 0 && options.length.is_none() {
        return Ok(device);
    }
    let sector = device.sector_size();
    if !options.offset.is_multiple_of(u64::from(sector)) {
        let offset = options.offset;
        let what = format!("offset {offset} is not a multiple of the device's sectors of {sector} bytes");
        // No device has sectors smaller than this.
        let hopeless = !offset.is_multiple_of(u64::from(SECTOR_BYTES_MIN));
        let kind = if hopeless { ErrorKind::InvalidInput } else { ErrorKind::SectorSize };
        return Err(Error::new(kind, what));
    }
    // A damaged table matters only if sizes change.
    let length = options.length.or_else(|| room_at(&*device, options.offset).ok().flatten());
    Ok(Arc::new(Window::new(device, options.offset, length)?))
}

/// An error that names the type of `path`, unless it is the wanted one.
fn wanted(node: &Node, path: &[u8], what: &str, right: bool) -> Result<()> {
    if right {
        return Ok(());
    }
    let kind = match (node.file_type().is_dir(), what) {
        (true, _) => ErrorKind::IsADirectory,
        (_, "directory") => ErrorKind::NotADirectory,
        _ => ErrorKind::WrongType,
    };
    Err(Error::at_path(kind, path, format_args!("is a {}, not a {what}", node.file_type())))
}

/// Adds to the error what the device holds instead of an XFS volume.
pub(crate) fn explain(error: xfs::Error, device: &dyn BlockDevice) -> Error {
    if !matches!(error, xfs::Error::NotXfs) {
        return error.into();
    }
    // This is for a message: unreadable bytes are ignored.
    let unread = probe::Unread::default();
    let view = probe::View::whole(device, &unread);
    let what = match (probe::describe(&view), partitions::describe(&view)) {
        (Some(other), _) => format!("this is {other}; uxfs reads XFS"),
        (None, Some(partitions)) => format!("this is {partitions}"),
        (None, None) if device.size() == 0 => {
            "nothing to read: the file, or what of it was asked for, is smaller than a sector".to_owned()
        }
        (None, None) => {
            "not an XFS volume (no superblock at its start); if the volume starts further in, give --offset"
                .to_owned()
        }
    };
    Error::new(ErrorKind::NotXfs, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rename;
    use crate::change::NewNode;
    use crate::mkfs::{MkfsOptions, mkfs_device};
    use blockdev::MemoryDevice;

    /// Editors replace a file by renaming another over it, so the name always exists. An open at that moment failed
    /// with "no such file".
    #[test]
    fn a_name_that_is_replaced_leads_to_what_has_it_then() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(512 << 20).expect("memory"));
        mkfs_device(Arc::clone(&device), &MkfsOptions::new(), true).expect("a volume");
        let volume = Volume::open_device(device, &OpenOptions::new().writable(true)).expect("it opens");
        let root = volume.open_dir("/").expect("a root");
        let make = |name: &[u8]| root.create_file(name, &NewNode::default()).expect("a file");
        let first = make(b"a");
        let mut looks = Vec::new();
        let found = volume.at(b"/a", true, |node| {
            looks.push(node.ino());
            if looks.len() == 1 {
                make(b"new");
                root.rename(b"new", &root, b"a", Rename::Replace)?;
            }
            node.metadata()
        });
        let found = found.expect("there is always one");
        assert_eq!(looks, [first.ino(), found.ino]);
        assert_ne!(first.ino(), found.ino);
    }
}
