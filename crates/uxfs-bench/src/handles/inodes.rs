//! Files whose times are changed, one in each transaction, while another thread has the log written.

use super::VOLUME_BYTES;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fsmark::make_device;
use crate::measure::Sample;
use crate::setup::mkfs_options;
use crate::target::Label;
use crate::timer;
use crate::together::{self, Clock, Cycle};
use ::uxfs::{Changes, Designs, NewNode, Node, OpenOptions, Timestamp, Volume, mkfs_device};
use blockdev::BlockDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Files of each thread: so many that most transactions bring a new item into their checkpoint.
const FILES: usize = 1000;
/// Transactions between two looks at the clock's phase.
const CHANGES: u64 = 10;
/// How often everything committed is forced to the log, at least.
const MOVED_EVERY: Duration = Duration::from_millis(10);
/// Bytes of caches: everything stays in memory.
const CACHE_BYTES: u64 = 1 << 30;

/// A volume, and each thread's files in it.
pub(super) struct Files {
    volume: Volume,
    hands: Vec<Hand>,
    device: Arc<dyn BlockDevice>,
    /// Holds the image; none where it is in anonymous memory.
    _dir: Option<TempDir>,
}

/// One thread's files, and how often it has changed one: the nth change gives its file the time n.
#[repr(align(128))]
struct Hand {
    files: Vec<Node>,
    changes: u64,
}

impl Hand {
    fn change(&mut self) -> Result<()> {
        let stamp = Some(time(self.changes));
        let file = &self.files[self.changes as usize % FILES];
        self.changes += 1;
        file.change(&Changes { mtime: stamp, ctime: stamp, ..Changes::default() }).map_err(Error::volume)
    }

    /// The time that each file was given last, of those that were given one.
    fn last(&self) -> impl Iterator<Item = (usize, Timestamp)> + use<'_> {
        (self.changes.saturating_sub(FILES as u64)..self.changes).map(|nth| (nth as usize % FILES, time(nth)))
    }
}

/// Each thread changes its files, one after the other.
struct Changing;

impl Cycle for Changing {
    type Part = Hand;
    const TIMED: u32 = timer::SHORT;
    const OPS: u64 = CHANGES;

    fn run(&self, hand: &mut Hand, clock: &mut impl Clock) -> Result<()> {
        (0..CHANGES).try_for_each(|_| clock.of(|| hand.change()))
    }
}

fn time(nth: u64) -> Timestamp {
    Timestamp { seconds: nth.cast_signed(), nanoseconds: 0 }
}

fn dir_name(thread: usize) -> String {
    format!("thread-{thread}")
}

fn file_name(nth: usize) -> String {
    format!("file-{nth}")
}

impl Files {
    /// A new volume with the files of as many threads as there will be.
    pub(super) fn make(config: &Config, designs: Designs) -> Result<Self> {
        let most = config.threads.iter().copied().max().unwrap_or(1);
        let (device, _, dir) = make_device(config, VOLUME_BYTES)?;
        mkfs_device(Arc::clone(&device), &mkfs_options(config, 4)?, true).map_err(Error::volume)?;
        let options = OpenOptions::new().writable(true).cache_size(CACHE_BYTES).designs(designs);
        let volume = Volume::open_device(Arc::clone(&device), &options).map_err(Error::volume)?;
        let hands = (0..most).map(|thread| hand(&volume, thread)).collect::<Result<_, _>>();
        let hands = hands.map_err(Error::volume)?;
        volume.sync().map_err(Error::volume)?;
        Ok(Self { volume, hands, device, _dir: dir })
    }

    /// Transactions a second of this many threads, and what single ones take.
    pub(super) fn measure(&mut self, threads: usize, time: Duration) -> Result<Sample> {
        let (over, volume) = (AtomicBool::new(false), &self.volume);
        let hands = self.hands.get_mut(..threads).unwrap_or_default();
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(MOVED_EVERY);
                    volume.sync()?;
                }
                Ok(())
            });
            let measured = together::run(hands, time, &Changing);
            over.store(true, Ordering::Relaxed);
            let moved: ::uxfs::Result<()> = moves.join().map_err(|_| Error::Panicked)?;
            moved.map_err(Error::volume)?;
            measured
        })
    }

    /// Closes the volume, and checks the last change of each file on it.
    pub(super) fn finish(self, label: &Label) -> Result<()> {
        let Self { volume, hands, device, _dir } = self;
        volume.close().map_err(Error::volume)?;
        let closed = Volume::open_device(device, &OpenOptions::new()).map_err(Error::volume)?;
        for (thread, hand) in hands.iter().enumerate() {
            for (nth, given) in hand.last() {
                let path = format!("/{}/{}", dir_name(thread), file_name(nth));
                let found = closed.metadata(&path).map_err(Error::volume)?.mtime;
                if found != given {
                    let target = label.to_string();
                    return Err(Error::Time { target, path, expected: given.seconds, found: found.seconds });
                }
            }
        }
        Ok(())
    }
}

/// A thread's directory, with its files.
fn hand(volume: &Volume, thread: usize) -> ::uxfs::Result<Hand> {
    let dir = volume.open_dir("/")?.create_dir(dir_name(thread).as_bytes(), &NewNode::default())?.as_dir()?;
    let file = |nth| dir.create_file(file_name(nth).as_bytes(), &NewNode::default());
    Ok(Hand { files: (0..FILES).map(file).collect::<Result<_, _>>()?, changes: 0 })
}
