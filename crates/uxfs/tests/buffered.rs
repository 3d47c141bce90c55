//! Files that are read and written through the page cache, beside handles that go past it, as xfs_repair and the kernel see
//! them.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Counter, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use common::files::{Random, new_file, remove};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{
    ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Rename, Volume, check_device,
    mkfs_device,
};

const BLOCK: u64 = 4096;

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xAA; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// Two files and what they hold.
struct Pair {
    files: [File; 2],
    models: [Vec<u8>; 2],
    /// Whether the volume can exchange them.
    exchanges: bool,
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    model.resize(model.len().max(end), 0);
    model[at as usize..end].copy_from_slice(data);
}

fn cut(model: &[u8], from: u64, to: u64) -> Vec<u8> {
    model[model.len().min(from as usize)..model.len().min(to as usize)].to_vec()
}

impl Pair {
    /// Does something to one of them; what it was.
    fn step(&mut self, random: &mut Random, stamp: u8) -> String {
        let which = random.below(2) as usize;
        let file = match random.below(3) {
            0 => self.files[which].direct(),
            _ => self.files[which].buffered(),
        };
        let other = self.files[1 - which].clone();
        let unit = [1, 512, BLOCK][random.below(3) as usize];
        let (mut ours, theirs) = (self.models[which].clone(), &self.models[1 - which]);
        let size = ours.len() as u64;
        let at = random.below((size + 3 * BLOCK).min(800_000)) / unit * unit;
        let most = [50, 5000, 60_000][random.below(3) as usize];
        let len = (1 + random.below(most)).div_ceil(unit) * unit;
        let data = vec![stamp; len as usize];
        let (first, last) = (at / BLOCK * BLOCK, (at + len).div_ceil(BLOCK) * BLOCK);
        let kind = random.below(24);
        let story = format!("kind {kind}, {len} bytes at {at} of {size}, buffered {}", file.is_buffered());
        match kind {
            0..=5 => {
                file.write_at(&data, at).expect(&story);
                put(&mut ours, at, &data);
            }
            6 | 7 => {
                let end = file.append(&data).expect(&story);
                assert_eq!(end, size, "{story}");
                ours.extend(&data);
            }
            8..=10 => {
                let mut seen = vec![0xAA; len as usize];
                let count = file.read_at(&mut seen, at).expect(&story);
                assert!(seen[..count] == cut(&ours, at, at + len), "{story}");
            }
            11 => {
                file.set_len(at).expect(&story);
                ours.resize(at as usize, 0);
            }
            12 => {
                file.punch_hole(at..at + len).expect(&story);
                let end = ours.len().min((at + len) as usize);
                ours[end.min(at as usize)..end].fill(0);
            }
            13 => {
                file.zero_range(at..at + len, false).expect(&story);
                put(&mut ours, at, &vec![0; len as usize]);
            }
            14 => {
                file.allocate(at..at + len, at.is_multiple_of(2)).expect(&story);
                if !at.is_multiple_of(2) {
                    ours.resize(ours.len().max((at + len) as usize), 0);
                }
            }
            15 if last < size => {
                file.collapse_range(first..last).expect(&story);
                ours.drain(first as usize..last as usize);
            }
            16 if first < size => {
                file.insert_range(first..last).expect(&story);
                ours.splice(first as usize..first as usize, vec![0; (last - first) as usize]);
            }
            17 if last <= theirs.len() as u64 && size >= first => {
                other.clone_range(first, &file, first, last - first).expect(&story);
                put(&mut ours, first, &cut(theirs, first, last));
            }
            18 if self.exchanges => {
                file.exchange_range(0, &other, 0, None, ExchangeOptions::new()).expect(&story);
                self.models.swap(0, 1);
                return story;
            }
            19 => {
                let copied = other.copy_range(at, &file, at, len).expect(&story);
                if copied > 0 {
                    put(&mut ours, at, &cut(theirs, at, at + copied));
                }
            }
            20 => file.sync().expect(&story),
            21 => drop(file.queue(4).expect(&story)),
            22 => match file.overwrite_at(&data, at) {
                Ok(()) => put(&mut ours, at, &data),
                Err(error) => {
                    let kinds = [ErrorKind::NotAllocated, ErrorKind::InvalidInput];
                    assert!(kinds.contains(&error.kind()), "{story}: {error}");
                }
            },
            _ => {}
        }
        self.models[which] = ours;
        story
    }

    fn check(&self, story: &str) {
        for (file, model) in self.files.iter().zip(&self.models) {
            assert_eq!(file.size(), model.len() as u64, "{story}");
            assert_eq!(file.metadata().size, model.len() as u64, "{story}: stat");
            assert_eq!(file.node().metadata().expect("stat").size, model.len() as u64, "{story}: stat");
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn every_operation_sees_what_is_in_memory() {
    for compat in ["6.18", "5.15"] {
        for (cache, block) in [(1 << 20, 4096), (64 << 20, 1024)] {
            let mut random = Random::seeded();
            let dir = tempfile::tempdir().expect("a place");
            let image = dir.path().join("image");
            let features = MkfsFeatures::of_kernel(compat).expect("known");
            let options = MkfsOptions::new().size(300 << 20).features(features).block_size(block);
            uxfs::mkfs(&image, &options).expect("a volume");
            let options = OpenOptions::new().writable(true).cache_size(cache);
            let volume = Volume::open(&image, &options).expect("opens");
            let files = ["one", "two"].map(|name| new_file(&volume, name));
            let mut pair = Pair { files, models: [Vec::new(), Vec::new()], exchanges: compat == "6.18" };
            for round in 0..500_u64 {
                let story = pair.step(&mut random, (round % 250) as u8 + 1);
                pair.check(&format!("round {round}: {story}"));
            }
            for (file, model) in pair.files.iter().zip(&pair.models) {
                assert!(content(file) == *model && content(&file.buffered()) == *model);
            }
            let models = pair.models.clone();
            drop(pair);
            volume.close().expect("closed");
            drop(volume);
            common::repair_finds_nothing(&image);
            common::mounted(&image, |at| {
                for (name, model) in ["one", "two"].into_iter().zip(&models) {
                    assert!(std::fs::read(at.join(name)).expect("read") == *model, "{name}");
                    std::fs::write(at.join(name), b"the kernel goes on").expect("written");
                }
            });
            common::repair_finds_nothing(&image);
        }
    }
}

fn memory(bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(bytes).expect("memory"))
}

fn made_on(device: &Arc<dyn BlockDevice>) {
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(device), &MkfsOptions::new().small(true).features(features), true).expect("made");
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("opens")
}

fn is_sound(device: &Arc<dyn BlockDevice>) {
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// What was taken in is there, whatever else is: a full volume refuses at the write.
#[test]
fn a_full_volume_refuses_at_the_write_and_keeps_what_it_took() {
    for piece in [1000, 4096, 70_000] {
        let device = memory(40 << 20);
        made_on(&device);
        let volume = open(&device);
        let [sequence, scattered] = ["sequence", "scattered"].map(|name| new_file(&volume, name).buffered());
        let (mut taken, mut places) = (0_u64, Vec::new());
        let mut is_full = [false; 2];
        while is_full != [true; 2] {
            match sequence.append(&vec![1; piece]) {
                Ok(_) => taken += piece as u64,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    is_full[0] = true;
                }
            }
            let at = (places.len() as u64) * 3 * 70_000;
            match scattered.write_at(&vec![2; piece], at) {
                Ok(()) => places.push(at),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    is_full[1] = true;
                }
            }
        }
        assert!(taken > 5 << 20, "{taken} bytes");
        volume.close().expect("what was taken is written back");
        drop((sequence, scattered, volume));
        is_sound(&device);
        let volume = open(&device);
        let sequence = volume.open_file("sequence").expect("opened");
        assert!(content(&sequence) == vec![1; taken as usize]);
        let scattered = volume.open_file("scattered").expect("opened");
        for at in places {
            let mut seen = vec![0; piece];
            scattered.read_at(&mut seen, at).expect("read");
            assert!(seen == vec![2; piece], "byte {at}");
        }
        assert!(volume.info().expect("info").free_blocks < 600, "it was full");
    }
}

/// The last handle may go before the bytes are written back; a name too.
/// What is reserved for a file with one dirty page is some twenty blocks, most of which it gives back. Whoever needed space
/// otherwise than through pages was told meanwhile that there is none, with most of the volume free.
#[test]
fn what_is_reserved_for_dirty_pages_is_nobodys_lack_of_space() {
    const FEW: u64 = 400;
    type Need = fn(&File) -> uxfs::Result<()>;
    let needs: [(&str, Need); 4] = [
        ("write", |file| file.write_at(&[1; 4 << 20], 1 << 20)),
        ("append", |file| file.append(&[1; 4 << 20]).map(drop)),
        ("allocate", |file| file.allocate(0..4 << 20, false)),
        ("zero", |file| file.zero_range(0..4 << 20, false)),
    ];
    for (what, need) in needs {
        let device = memory(64 << 20);
        made_on(&device);
        let volume = open(&device);
        let direct = new_file(&volume, "direct");
        let files: Vec<_> = (0..800).map(|nth| new_file(&volume, &nth.to_string()).buffered()).collect();
        volume.sync().expect("synced");
        let free = || volume.info().expect("info").free_blocks;
        let before = free();
        for file in files.iter().take_while(|_| free() > FEW) {
            file.write_at(&[2; BLOCK as usize], 0).expect("a block");
        }
        assert!(free() <= FEW, "{what}: all is reserved, but {}", free());
        need(&direct).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(free() > before / 2, "{what}: most was free");
        drop((direct, files));
        volume.close().expect("closed");
        is_sound(&device);
    }
    // Names, and the blocks of new files.
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    for nth in 0..2000 {
        let file = new_file(&volume, &format!("a file, the name of which is not short: {nth}")).buffered();
        file.write_at(&[1; BLOCK as usize], 0).expect("a block");
    }
    volume.close().expect("closed");
    is_sound(&device);
}

/// Nor of those who need it for two files: an exchange, and one of what is shared.
#[test]
fn what_is_reserved_for_dirty_pages_is_found_by_who_changes_two_files() {
    type Change = fn(&File, &File) -> uxfs::Result<()>;
    let changes: [(&str, Change); 4] = [
        ("exchange", |one, other| {
            one.exchange_range(5 * BLOCK, other, 9 * BLOCK, Some(BLOCK), ExchangeOptions::new())
        }),
        ("exchange to the ends", |one, other| {
            one.exchange_range(5 * BLOCK, other, 9 * BLOCK, None, ExchangeOptions::new())
        }),
        ("dedupe", |one, other| one.dedupe_range(5 * BLOCK, other, 9 * BLOCK, BLOCK).map(drop)),
        ("clone", |one, other| one.clone_range(5 * BLOCK, other, 9 * BLOCK, BLOCK)),
    ];
    for (what, change) in changes {
        let device = memory(64 << 20);
        let features = MkfsFeatures::of_kernel("6.18").expect("known");
        let options = MkfsOptions::new().small(true).group_count(1).features(features);
        mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
        let volume = open(&device);
        let [one, other, filler, dirty] =
            ["one", "other", "filler", "dirty"].map(|name| new_file(&volume, name));
        for file in [&one, &other] {
            file.write_at(&vec![1; 40 * BLOCK as usize], 0).expect("written");
        }
        let available = || {
            let kept_back = volume.kept_back_blocks().expect("kept back");
            volume.info().expect("info").free_blocks.saturating_sub(kept_back)
        };
        while available() > 1500 {
            filler.append(&vec![3; 64 * BLOCK as usize]).expect("space");
        }
        volume.sync().expect("synced");
        let dirty = dirty.buffered();
        for nth in (0..).take_while(|_| available() > 2) {
            dirty
                .write_at(&[2; BLOCK as usize], nth * 2 * BLOCK)
                .expect("a block, and what the map may need");
        }
        change(&one, &other).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop((one, other, filler, dirty));
        volume.close().expect("closed");
        drop(volume);
        is_sound(&device);
    }
}

#[test]
fn a_file_that_is_closed_or_removed_dirty_ends_well() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let free = volume.info().expect("info").free_blocks;
    for nth in 0..300 {
        new_file(&volume, &format!("kept {nth}")).buffered().write_at(&[7; 5000], 0).expect("written");
        new_file(&volume, "gone").buffered().write_at(&[8; 5000], 0).expect("written");
        remove(&volume, "gone");
    }
    let kept = volume.open_file("kept 299").expect("opened");
    assert_eq!((kept.size(), kept.metadata().size), (5000, 5000));
    assert!(content(&kept) == vec![7; 5000]);
    volume.sync().expect("synced");
    // Two blocks a file, and what inodes and names take: nothing of those that are gone.
    let taken = free - volume.info().expect("info").free_blocks;
    assert!((600..700).contains(&taken), "{taken} blocks");
    drop(kept);
    volume.close().expect("closed");
    drop(volume);
    is_sound(&device);
    let volume = open(&device);
    for nth in 0..300 {
        assert!(content(&volume.open_file(format!("kept {nth}")).expect("there")) == vec![7; 5000]);
    }
}

/// Pages went with the last handle, so that who opened a small file to read it read it from the device each time.
#[test]
fn who_opens_a_file_again_finds_its_pages() {
    let counted = Arc::new(Counter::new(memory(64 << 20)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&counted) as _;
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.write_at(&[7; 50_000], 0).expect("written");
    file.sync().expect("synced");
    drop(file);
    let before = counted.counts().read_bytes;
    for _ in 0..3 {
        let again = volume.open_file("file").expect("there").buffered();
        assert!(content(&again) == vec![7; 50_000]);
    }
    assert_eq!(counted.counts().read_bytes, before);
    // What went past the pages meanwhile shows.
    volume.open_file("file").expect("there").write_at(&[8; 5000], 1000).expect("written");
    let again = volume.open_file("file").expect("there").buffered();
    assert!(content(&again)[1000..6000] == [8; 5000]);
    // As a crash: nothing keeps the volume open.
    drop((again, volume));
    is_sound(&device);
    let volume = open(&device);
    assert_eq!(volume.open_file("file").expect("there").size(), 50_000);
}

/// A file that lost its name and that no handle has open was written back all the same, and kept its blocks until then.
#[test]
fn what_is_dirty_of_a_file_that_is_gone_is_written_by_nobody() {
    let counted = Arc::new(Counter::new(memory(64 << 20)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&counted) as _;
    made_on(&device);
    let volume = open(&device);
    let is_gone = |name: &str| volume.open_file(name).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    new_file(&volume, "first").buffered().write_at(&[1; 10_000], 0).expect("written");
    volume.sync().expect("synced");
    let (free, before) = (volume.info().expect("info").free_blocks, counted.counts().written_bytes);
    let synced = new_file(&volume, "synced").buffered();
    synced.write_at(&vec![2; 1 << 20], 0).expect("written");
    synced.sync().expect("synced");
    drop(synced);
    let midway = counted.counts().written_bytes;
    assert!(midway - before >= 1 << 20);
    for nth in 0..20 {
        let name = format!("dirty {nth}");
        new_file(&volume, &name).buffered().write_at(&vec![3; 1 << 20], 0).expect("written");
        remove(&volume, &name);
        assert!(is_gone(&name));
    }
    // Replaced by a name that another had.
    new_file(&volume, "replaced").buffered().write_at(&vec![4; 1 << 20], 0).expect("written");
    let root = volume.open_dir("/").expect("a root");
    root.rename(b"first", &root, b"replaced", Rename::Replace).expect("renamed");
    remove(&volume, "synced");
    volume.sync().expect("synced");
    let written = counted.counts().written_bytes - midway;
    assert!(written < 1 << 20, "{written} bytes");
    assert_eq!(volume.info().expect("info").free_blocks, free);
    // One that a handle has open is written back when it is synced, and read.
    let open = new_file(&volume, "open").buffered();
    open.write_at(&[5; 10_000], 0).expect("written");
    remove(&volume, "open");
    assert!(content(&open) == vec![5; 10_000]);
    open.sync().expect("synced");
    drop(open);
    volume.sync().expect("synced");
    assert_eq!(volume.info().expect("info").free_blocks, free);
    volume.close().expect("closed");
    drop(volume);
    is_sound(&device);
}

/// Whoever opens a file by its node as it is removed has all of it, or is told that it is gone.
#[test]
fn a_dirty_file_that_is_opened_as_it_is_removed_is_whole_or_gone() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let (mut whole, mut gone) = (0, 0);
    for nth in 0..2000 {
        let file = new_file(&volume, "file").buffered();
        file.write_at(&[nth as u8; 9000], 0).expect("written");
        let node = file.node().clone();
        drop(file);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| node.open());
            remove(&volume, "file");
            match opener.join().expect("no panic") {
                Ok(file) => {
                    assert!(content(&file) == vec![nth as u8; 9000], "round {nth}");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Stale);
                    gone += 1;
                }
            }
        });
    }
    println!("{whole} whole, {gone} gone");
    volume.close().expect("closed");
    drop(volume);
    is_sound(&device);
}

/// A volume that is dropped is as after a crash: what was synced is there.
#[test]
fn what_was_synced_outlives_a_volume_that_is_dropped() {
    let device = memory(64 << 20);
    made_on(&device);
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.write_at(&[1; 100_000], 0).expect("written");
    file.sync().expect("synced");
    file.write_at(&[2; 100_000], 100_000).expect("written");
    drop((file, volume));
    let volume = open(&device);
    let found = content(&volume.open_file("file").expect("there"));
    assert!(found.len() >= 100_000 && found[..100_000].iter().all(|&byte| byte == 1));
    assert!(found[100_000..].iter().all(|&byte| byte == 2), "no byte that nobody wrote");
    volume.close().expect("closed");
    drop(volume);
    is_sound(&device);
}

#[test]
fn what_could_not_be_written_back_is_told_at_the_next_sync_once() {
    let memory = memory(64 << 20);
    made_on(&memory);
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
    let device: Arc<dyn BlockDevice> = faulty.clone();
    let volume = open(&device);
    let (one, other) =
        (new_file(&volume, "file").buffered(), volume.open_file("file").expect("there").buffered());
    volume.sync().expect("synced");
    one.write_at(&[1; 50_000], 0).expect("in memory");
    // The first write is of content: what follows it goes through.
    faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)));
    let failed = one.sync().expect_err("the device failed");
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert!(failed.to_string().contains("writing back"), "{failed}");
    one.sync().expect("it was told");
    other.sync().expect_err("nobody told this one");
    other.sync().expect("now it was");
    volume.sync().expect_err("nor the volume");
    volume.sync().expect("now it was");
    one.write_at(&[2; 50_000], 0).expect("in memory");
    volume.close().expect("closed");
    drop((one, other, volume));
    is_sound(&memory);
    assert!(content(&open(&memory).open_file("file").expect("there")) == vec![2; 50_000]);
}

#[test]
fn a_close_that_cannot_write_back_is_none() {
    let memory = memory(64 << 20);
    made_on(&memory);
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
    let device: Arc<dyn BlockDevice> = faulty.clone();
    let volume = open(&device);
    let file = new_file(&volume, "file").buffered();
    file.write_at(&[1; 50_000], 0).expect("in memory");
    volume.sync().expect("synced");
    file.write_at(&[2; 50_000], 0).expect("in memory");
    faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)).then(Repeat::Once));
    volume.close().expect_err("not all could be written");
    assert_eq!(
        file.write_at(&[3; 10], 0).and_then(|()| file.sync()).expect_err("shut down").kind(),
        ErrorKind::ShutDown
    );
    drop((file, volume));
    let volume = open(&memory);
    let found = content(&volume.open_file("file").expect("there"));
    assert!(found.len() == 50_000 && found.iter().all(|byte| [1, 2].contains(byte)));
    volume.close().expect("closed");
    drop(volume);
    is_sound(&memory);
}

/// Threads on files of their own and on one, beside syncs, until the volume is closed beside them.
#[test]
fn a_volume_is_closed_beside_those_who_write_to_memory() {
    let device = memory(128 << 20);
    made_on(&device);
    let options = OpenOptions::new().writable(true).cache_size(2 << 20);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("opens");
    let shared = new_file(&volume, "shared");
    let is_over = AtomicBool::new(false);
    let mut written = Vec::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..4_u8 {
            let (volume, shared, is_over) = (&volume, shared.buffered(), &is_over);
            threads.push(scope.spawn(move || {
                let own = new_file(volume, &format!("own {thread}")).buffered();
                let (mut random, mut count) = (Random::seeded(), 0_u64);
                loop {
                    let done = own
                        .append(&[thread + 1; 777])
                        .and_then(|_| shared.write_at(&[thread + 1; 333], random.below(3 << 20)))
                        .and_then(|()| if random.below(50) == 0 { own.sync() } else { Ok(()) });
                    match done {
                        Ok(()) => count += 1,
                        Err(error) => {
                            assert!(is_over.load(Ordering::SeqCst), "{error}");
                            assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
                            return count;
                        }
                    }
                }
            }));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        is_over.store(true, Ordering::SeqCst);
        volume.close().expect("closed");
        written = threads.into_iter().map(|thread| thread.join().expect("right")).collect();
    });
    drop((shared, volume));
    is_sound(&device);
    let volume = open(&device);
    for (thread, count) in written.into_iter().enumerate() {
        let own = content(&volume.open_file(format!("own {thread}")).expect("there"));
        assert!(own.iter().all(|&byte| byte == thread as u8 + 1));
        // Of the last append nobody was told.
        assert!([count * 777, (count + 1) * 777].contains(&(own.len() as u64)), "{count}: {}", own.len());
    }
}
