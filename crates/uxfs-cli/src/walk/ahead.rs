//! Reads files into memory ahead of a walk, from a slow device: a second walk over the same tree runs ahead of the
//! first, and threads read the files that it finds, many at once.
//!
//! Invariants: the first walk is not affected, and gets each file and each error for itself; the second is at most
//! [`FILES_MAX`] files ahead, and those take at most an eighth of the caches, except for one file; it ends with the
//! first; if nothing is slow, it does not begin.

use super::{EntryOrder, Step, Walk};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use uxfs::{File, FileType, Node, Volume};

/// The most files ahead of the first walk.
const FILES_MAX: u64 = 256;
/// The most bytes to read of a file. In larger ones, the first walk reads long runs by itself.
const OF_A_FILE: u64 = 1 << 20;
/// If this many of so many small files took this long, they waited for the device, and threads are
/// worthwhile.
const LOOK: u32 = 32;
const SLOW: u32 = 24;
const LONG: Duration = Duration::from_micros(70);
/// Larger files take time on any device.
const SMALL: u64 = 64 << 10;

/// See above.
pub struct Ahead {
    volume: Volume,
    start: Node,
    order: EntryOrder,
    bytes_max: u64,
    /// Threads that read files. They wait for the device, most of the time.
    readers: usize,
    /// Files that the first walk has passed.
    passed: u64,
    /// The time of the last one, and how many small ones were timed and took long.
    last: Instant,
    small: u32,
    slow: u32,
    is_over: bool,
    running: Option<Running>,
}

/// The threads.
struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The first walk has passed a file, and someone waits for that.
    passed: Condvar,
    /// There is a file to read.
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    /// How many files the first walk has passed.
    passed: u64,
    /// Someone waits for more.
    is_awaited: bool,
    /// Files to read: their position in the walk, and their inode numbers.
    wanted: VecDeque<(u64, u64)>,
    /// Files that were read, and their bytes. They stay open, so that the data stays in memory.
    read: Vec<(u64, u64, File)>,
    /// The bytes of these and of files that are being read.
    bytes: u64,
    is_over: bool,
}

impl State {
    /// Removes files that the first walk has passed.
    fn take_passed(&mut self) -> Vec<(u64, u64, File)> {
        let passed = self.passed;
        self.wanted.retain(|(nth, _)| *nth >= passed);
        let gone: Vec<_> = self.read.extract_if(.., |(nth, ..)| *nth < passed).collect();
        self.bytes -= gone.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        gone
    }
}

impl Ahead {
    /// Reads ahead of a walk from `start` in this order, with caches of this size and this many
    /// threads.
    pub fn of(volume: &Volume, start: &Node, order: EntryOrder, cache_bytes: u64, readers: usize) -> Self {
        Self {
            volume: volume.clone(),
            start: start.clone(),
            order,
            bytes_max: cache_bytes / 8,
            readers,
            passed: 0,
            last: Instant::now(),
            small: 0,
            slow: 0,
            is_over: false,
            running: None,
        }
    }

    /// The walk has passed a [leaf](Step::Leaf) of this many bytes and is done with it.
    pub fn passed(&mut self, bytes: u64) {
        self.passed += 1;
        if let Some(running) = &self.running {
            return running.shared.passed(self.passed);
        }
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        if bytes <= SMALL {
            self.small += 1;
            self.slow += u32::from(took >= LONG);
        }
        if self.small == LOOK {
            self.small = 0;
            if std::mem::take(&mut self.slow) >= SLOW && !self.is_over {
                self.running = Some(self.begin());
            }
        }
    }

    /// The walk has skipped something: from here on the two walks would differ.
    pub fn end(&mut self) {
        self.running = None;
        self.is_over = true;
    }

    fn begin(&self) -> Running {
        let shared = Arc::new(Shared::default());
        shared.state.lock().passed = self.passed;
        let mut threads = Vec::new();
        // Without the threads it only takes longer.
        let mut run = |work: Box<dyn FnOnce() + Send>| {
            threads.extend(Builder::new().name("read ahead".to_owned()).spawn(work));
        };
        let walk = Walk::new(&self.volume, self.start.clone(), b"", self.order).with_inodes();
        let to = Arc::clone(&shared);
        run(Box::new(move || to.walk(walk)));
        for _ in 0..self.readers {
            let (from, volume, bytes_max) = (Arc::clone(&shared), self.volume.clone(), self.bytes_max);
            run(Box::new(move || from.read(&volume, bytes_max)));
        }
        Running { shared, threads }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.passed.notify_all();
        self.shared.wanted.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has read nothing, with no other effect.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn passed(&self, files: u64) {
        let mut state = self.state.lock();
        state.passed = files;
        if std::mem::take(&mut state.is_awaited) {
            drop(state);
            self.passed.notify_all();
        }
    }

    /// Lists the files to come.
    fn walk(&self, mut walk: Walk) {
        let mut nth = 0;
        while let Some(step) = walk.next() {
            let found = match &step {
                Step::Leaf(leaf) if matches!(leaf.file_type, FileType::Regular | FileType::Unknown) => {
                    Some((nth, leaf.ino))
                }
                _ => None,
            };
            nth += u64::from(matches!(step, Step::Leaf(_)));
            if !self.wait_until(|state| nth < state.passed + FILES_MAX) {
                return;
            }
            if let Some(found) = found {
                self.state.lock().wanted.push_back(found);
                self.wanted.notify_one();
            }
        }
    }

    /// Waits until the first walk is far enough; `false` if it has ended.
    fn wait_until(&self, mut is_there: impl FnMut(&mut State) -> bool) -> bool {
        let mut state = self.state.lock();
        loop {
            let gone = state.take_passed();
            // These may be the last handles, and closing them takes time.
            MutexGuard::unlocked(&mut state, || drop(gone));
            if state.is_over || is_there(&mut state) {
                return !state.is_over;
            }
            state.is_awaited = true;
            self.passed.wait(&mut state);
        }
    }

    /// Reads files that are wanted.
    fn read(&self, volume: &Volume, bytes_max: u64) {
        while let Some((nth, ino)) = self.next() {
            // The first walk will find and report read errors.
            let Ok(file) = volume.node(ino).and_then(|node| node.open()) else { continue };
            let bytes = file.size().min(OF_A_FILE);
            let mut is_late = false;
            let goes_on = self.wait_until(|state| {
                is_late = nth < state.passed;
                let fits = state.bytes == 0 || state.bytes + bytes <= bytes_max;
                state.bytes += if fits && !is_late { bytes } else { 0 };
                fits || is_late
            });
            if !goes_on {
                return;
            }
            if !is_late {
                let _found_by_the_first = file.will_need(0..bytes);
                self.state.lock().read.push((nth, bytes, file));
            }
        }
    }

    /// The next file to read; `None` at the end.
    fn next(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        while !state.is_over {
            match state.wanted.pop_front() {
                Some((nth, ino)) if nth >= state.passed => return Some((nth, ino)),
                Some(_) => {}
                None => self.wanted.wait(&mut state),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{BlockDevice, DeviceError, Layer, MemoryDevice};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use uxfs::{MkfsOptions, NewNode, OpenOptions};

    /// A device whose reads can be made slow, and that counts reads in progress.
    #[derive(Debug)]
    struct Slow {
        below: Arc<dyn BlockDevice>,
        is_slow: AtomicBool,
        reads: AtomicUsize,
        most: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl Slow {
        fn new(below: Arc<dyn BlockDevice>, is_slow: bool) -> Self {
            let zero = AtomicUsize::default;
            Self { below, is_slow: AtomicBool::new(is_slow), reads: zero(), most: zero(), bytes: zero() }
        }
    }

    impl Layer for Slow {
        fn below(&self) -> &Arc<dyn BlockDevice> {
            &self.below
        }

        fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
            let reads = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(reads, Ordering::SeqCst);
            self.bytes.fetch_add(buf.len(), Ordering::SeqCst);
            if self.is_slow.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let read = self.below.read(offset, buf);
            self.reads.fetch_sub(1, Ordering::SeqCst);
            read
        }
    }

    fn content(nth: u32) -> Vec<u8> {
        nth.to_le_bytes().repeat(1 + nth as usize % 3000)
    }

    const FILES: u32 = 400;

    /// A volume with a tree of files.
    fn volume() -> (Volume, Arc<Slow>) {
        let below: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).unwrap());
        uxfs::mkfs_device(Arc::clone(&below), &MkfsOptions::new().small(true), true).unwrap();
        let volume = Volume::open_device(Arc::clone(&below), &OpenOptions::new().writable(true)).unwrap();
        let new = NewNode::default();
        for nth in 0..FILES {
            let name = format!("d{}", nth / 37);
            let top = volume.open_dir("/").unwrap();
            let dir = match top.lookup(name.as_bytes()).unwrap() {
                Some(dir) => dir.as_dir().unwrap(),
                None => top.create_dir(name.as_bytes(), &new).unwrap().as_dir().unwrap(),
            };
            let file = dir.create_file(format!("f{nth}").as_bytes(), &new).unwrap().open().unwrap();
            file.write_at(&content(nth), 0).unwrap();
        }
        volume.close().unwrap();
        let slow = Arc::new(Slow::new(below, false));
        let volume = Volume::open_device(Arc::clone(&slow) as _, &OpenOptions::new()).unwrap();
        (volume, slow)
    }

    /// Reads all files, and gives how many.
    fn read_all(volume: &Volume, mut each: impl FnMut()) -> u32 {
        let start = volume.lookup("/").unwrap();
        let mut walk = Walk::new(volume, start.clone(), b"", EntryOrder::Stored);
        let mut ahead = Ahead::of(volume, &start, EntryOrder::Stored, 64 << 20, 8);
        let mut files = 0;
        while let Some(step) = walk.next() {
            let Step::Leaf(leaf) = step else { continue };
            let nth: u32 = str::from_utf8(&walk.name()[1..]).unwrap().parse().unwrap();
            let file = leaf.node(volume).unwrap().open().unwrap();
            let mut found = vec![0; 1 << 16];
            let len = file.read_at(&mut found, 0).unwrap();
            assert!(found[..len] == content(nth), "file {nth}");
            files += 1;
            ahead.passed(len as u64);
            each();
        }
        files
    }

    #[test]
    fn files_of_a_slow_device_are_read_many_at_once() {
        let (volume, slow) = volume();
        slow.is_slow.store(true, Ordering::SeqCst);
        assert_eq!(read_all(&volume, || {}), FILES);
        assert!(slow.most.load(Ordering::SeqCst) > 4, "{slow:?}");
        assert_eq!(slow.reads.load(Ordering::SeqCst), 0, "nobody reads any more");
    }

    /// Files were read before their predecessors, and were gone from memory when they were needed.
    #[test]
    fn no_more_is_read_than_there_is() {
        for cache in [64 << 20, 16 << 20, 2 << 20] {
            let below: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(200 << 20).unwrap());
            uxfs::mkfs_device(Arc::clone(&below), &MkfsOptions::new().small(true), true).unwrap();
            let volume = Volume::open_device(Arc::clone(&below), &OpenOptions::new().writable(true)).unwrap();
            let top = volume.open_dir("/").unwrap();
            for nth in 0..164 {
                let file = top.create_file(format!("f{nth:04}").as_bytes(), &NewNode::default()).unwrap();
                file.open().unwrap().write_at(&vec![7; if nth < 64 { 4096 } else { 1 << 20 }], 0).unwrap();
            }
            volume.close().unwrap();
            let slow = Arc::new(Slow::new(below, true));
            let volume =
                Volume::open_device(Arc::clone(&slow) as _, &OpenOptions::new().cache_size(cache)).unwrap();
            let start = volume.lookup("/").unwrap();
            let mut walk = Walk::new(&volume, start.clone(), b"", EntryOrder::Stored);
            let mut ahead = Ahead::of(&volume, &start, EntryOrder::Stored, cache, 8);
            let mut buf = vec![0; 1 << 20];
            while let Some(step) = walk.next() {
                let Step::Leaf(leaf) = step else { continue };
                let len = leaf.node(&volume).unwrap().open().unwrap().read_at(&mut buf, 0).unwrap();
                ahead.passed(len as u64);
                if let Some(running) = &ahead.running {
                    let bytes = running.shared.state.lock().bytes;
                    assert!(bytes <= (cache / 8).max(1 << 20), "{bytes} bytes before the first");
                }
            }
            assert!(ahead.running.is_some());
            let read = slow.bytes.load(Ordering::SeqCst) >> 20;
            assert!(read < 120, "{read} MiB of 100 with caches of {cache} bytes");
        }
    }

    #[test]
    fn what_has_ended_does_not_begin_again() {
        let (volume, slow) = volume();
        slow.is_slow.store(true, Ordering::SeqCst);
        let start = volume.lookup("/").unwrap();
        let mut ahead = Ahead::of(&volume, &start, EntryOrder::Stored, 64 << 20, 8);
        let pass = |ahead: &mut Ahead| {
            for _ in 0..LOOK {
                std::thread::sleep(LONG);
                ahead.passed(1);
            }
        };
        pass(&mut ahead);
        assert!(ahead.running.is_some());
        ahead.end();
        assert_eq!(slow.reads.load(Ordering::SeqCst), 0);
        pass(&mut ahead);
        assert!(ahead.running.is_none());
    }

    /// A device becomes slow and fast, and the walk ends before its end.
    #[test]
    fn whoever_ends_waits_for_nobody_for_long() {
        let (volume, slow) = volume();
        let mut files = 0;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            read_all(&volume, || {
                files += 1;
                slow.is_slow.store(files % 100 < 60, Ordering::SeqCst);
                assert!(files < 250, "enough");
            })
        }));
        assert!(ended.is_err());
        assert_eq!(slow.reads.load(Ordering::SeqCst), 0, "nobody reads any more");
        slow.is_slow.store(false, Ordering::SeqCst);
        assert_eq!(read_all(&volume, || {}), FILES);
    }
}
