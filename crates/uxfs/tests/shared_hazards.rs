//! What can go wrong where files share blocks, each of it once: looks that are no longer so, blocks that others have just
//! given up, too little space in the midst, offsets that do not fit, and threads that wait for each other.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use common::{mounted, repair_finds_nothing};
use fileio::testing::{CHANGE, COMMITTED, STAGED, at};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use uxfs::{
    AlignedBuf, ErrorKind, ExchangeOptions, Extent, File, MkfsOptions, NewNode, OpenOptions, Result, Volume,
    check_device, mkfs_device,
};

const BLOCK: u64 = 4096;
const BYTES: u64 = 64 << 20;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let options = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("clean");
    (device, volume)
}

fn file(volume: &Volume, name: &str) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("opened")
}

/// Two files that share all of this many blocks, of which each holds its own number.
fn pair(volume: &Volume, blocks: u64) -> (File, File, Vec<u8>) {
    let content: Vec<u8> = (0..blocks * BLOCK).map(|at| (at / BLOCK % 250) as u8 + 1).collect();
    let (one, other) = (file(volume, "one"), file(volume, "other"));
    one.write_at(&content, 0).expect("written");
    one.clone_range(0, &other, 0, 0).expect("a clone");
    (one, other, content)
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

fn extents(file: &File) -> Vec<Extent> {
    file.extents().collect::<Result<_>>().expect("a map")
}

/// Where a block of a file lies.
fn place(file: &File, block: u64) -> u64 {
    let at = block * BLOCK;
    let of = |extent: &Extent| {
        (at >= extent.logical).then(|| at - extent.logical).filter(|skip| *skip < extent.length)
    };
    extents(file).iter().find_map(|extent| Some(extent.physical + of(extent)?)).expect("it is mapped")
}

/// The volume, as it would be if the power went now, in a file.
fn cut_off(device: &Arc<dyn BlockDevice>, dir: &std::path::Path, name: &str) -> PathBuf {
    let image = dir.join(name);
    let mut all = vec![0; BYTES as usize];
    device.read(0, &mut all).expect("read");
    std::fs::write(&image, all).expect("an image");
    image
}

fn ends_well(device: &Arc<dyn BlockDevice>, volume: Volume) {
    volume.close().expect("closes");
    drop(volume);
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = cut_off(device, dir.path(), "volume.img");
    repair_finds_nothing(&image);
    mounted(&image, |at| {
        let script = "cd $1; for f in *; do dd if=/dev/zero of=$f bs=4k count=9 conv=notrunc status=none; done; \
                      sync; rm -rf *; sync";
        let out =
            std::process::Command::new("bash").args(["-euc", script, "bash"]).arg(at).output().expect("bash");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
    repair_finds_nothing(&image);
}

/// The other owner gave a block up, and that is in no log yet: after a crash it has the block again, and must find what it
/// had there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_another_has_just_given_up_is_not_written_in_place() {
    let (device, volume) = made();
    let (one, other, content) = pair(&volume, 8);
    let third = file(&volume, "third");
    one.clone_range(0, &third, 0, 2 * BLOCK).expect("a clone");
    third.set_len(0).expect("cut");
    volume.sync().expect("synced");
    let before = place(&one, 4);
    other.set_len(0).expect("cut");
    one.write_at(&[99; BLOCK as usize], 4 * BLOCK).expect("written");
    assert_ne!(place(&one, 4), before, "written in place");
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = cut_off(&device, dir.path(), "cut.img");
    mounted(&image, |at| {
        let found = std::fs::read(at.join("other")).expect("read");
        assert!(found.is_empty() || found == content, "the other owner has lost its content");
        let ours = std::fs::read(at.join("one")).expect("read");
        assert!(ours.iter().zip(&content).all(|(ours, old)| ours == old || *ours == 99));
    });
    repair_finds_nothing(&image);
    drop((one, other, third));
    ends_well(&device, volume);
}

/// The same where space for copies is short. Then it is put on disk that the other owner gave them up, and what is written in
/// place behind that is in nobody's way.
#[test]
fn what_another_has_just_given_up_is_its_own_where_space_is_short() {
    let (mut copied, mut in_place) = (0, 0);
    for (are_staged, taken) in
        [true, false].into_iter().flat_map(|staged| (225..268).map(move |at| (staged, at)))
    {
        let (device, volume) = made();
        let (one, other, content) = pair(&volume, 32);
        one.set_len(200 * BLOCK).expect("a hole");
        let filler = fill(&volume, 300);
        let more = |blocks: u64| filler.allocate(filler.size()..filler.size() + blocks * BLOCK, false);
        match are_staged {
            // Space for 31 more copies.
            true => one.write_at(&[200; BLOCK as usize], 0).expect("written"),
            false => more(32).expect("as much"),
        }
        if more(taken).is_err() {
            continue;
        }
        volume.sync().expect("synced");
        other.set_len(0).expect("cut");
        let before = place(&one, 8);
        one.write_at(&[99; 31 * BLOCK as usize], BLOCK).expect("nobody else has the blocks");
        *(if place(&one, 8) == before { &mut in_place } else { &mut copied }) += 1;
        let mut all = vec![0; BYTES as usize];
        device.read(0, &mut all).expect("read");
        let cut: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
        cut.write(0, &all, Durability::Volatile).expect("written");
        let after = Volume::open_device(cut, &OpenOptions::new().writable(true)).expect("recovered");
        let found = bytes(&after.open_file("/other").expect("there"));
        let as_before = found.is_empty() || found == content;
        assert!(
            as_before,
            "staged: {are_staged}, {taken} blocks taken: the other owner has lost its content"
        );
    }
    assert!(copied > 10 && in_place > 10, "{copied} were copied, {in_place} written in place");
}

/// Between the look at the map and the hold of the bytes, somebody clones the file: its first write beside that is neither
/// refused, nor does it go into what the clone has.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_look_from_before_a_clone_is_void() {
    for queued in [false, true] {
        let (device, volume) = made();
        let (one, other) = (file(&volume, "one"), file(&volume, "other"));
        one.write_at(&[7; 64 << 10], 0).expect("written");
        one.overwrite_at(&[7; BLOCK as usize], 0).expect("written");
        let (from, to) = (one.clone(), other.clone());
        at(CHANGE, move || from.clone_range(0, &to, 0, 0).expect("a clone"));
        match queued {
            false => one.overwrite_at(&[8; 8192], BLOCK).expect("written"),
            true => {
                let mut queue = one.queue(4).expect("a queue");
                let mut buf = AlignedBuf::zeroed(8192);
                buf.fill(8);
                queue.push_overwrite(BLOCK, buf, 1).expect("pushed");
                queue.wait(1, |done| assert_eq!(done.result.expect("written"), 8192)).expect("done");
            }
        }
        assert!(bytes(&other) == vec![7; 64 << 10], "queued: {queued}: the clone has changed");
        assert!(bytes(&one)[4096..12288].iter().all(|&byte| byte == 8));
        drop((one, other));
        ends_well(&device, volume);
    }
}

/// An empty file is cut where a clone does not reach, behind each commit of it in turn: the cut takes the flag for shared
/// blocks off, which the clone has just set. What the reverse map is told depends on that.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_cut_beside_a_clone_takes_no_flag_that_it_needs() {
    fn behind(nth: u32, file: File) {
        at(COMMITTED, move || match nth {
            0 => file.set_len(32 * BLOCK).expect("cut"),
            nth => behind(nth - 1, file),
        });
    }
    for nth in 0..4 {
        let (device, volume) = made();
        let (one, other) = (file(&volume, "one"), file(&volume, "other"));
        one.write_at(&[7; 16 * BLOCK as usize], 0).expect("written");
        one.punch_hole(5 * BLOCK..6 * BLOCK).expect("a hole");
        one.punch_hole(10 * BLOCK..11 * BLOCK).expect("a hole");
        other.set_len(64 * BLOCK).expect("a hole");
        behind(nth, other.clone());
        one.clone_range(0, &other, 0, 16 * BLOCK)
            .unwrap_or_else(|error| panic!("behind commit {nth}: {error}"));
        assert_eq!(other.size(), 32 * BLOCK, "behind commit {nth}: it was not cut");
        assert!(bytes(&other)[..16 * BLOCK as usize] == bytes(&one), "behind commit {nth}");
        drop((one, other));
        ends_well(&device, volume);
    }
}

/// Where the first eight blocks of a file lie.
fn places(file: &File) -> Vec<u64> {
    (0..8).map(|block| place(file, block)).collect()
}

/// Takes a file's blocks away, and the other owner's with them, and the flag for shared blocks; gives where they lay.
fn emptied(volume: &Volume, one: &File, other: &File) -> Vec<u64> {
    let before = places(one);
    one.set_len(0).expect("cut");
    other.set_len(0).expect("cut");
    volume.sync().expect("synced");
    before
}

/// Writes the same content anew, which comes to lie there again: nobody else has these blocks now, whatever is known of them
/// from before.
fn written_anew(volume: &Volume, one: &File, other: &File, content: &[u8]) {
    let before = emptied(volume, one, other);
    one.write_at(content, 0).expect("written");
    assert_eq!(places(one), before, "other blocks");
    assert!(extents(one).iter().all(|extent| !extent.shared), "shared by whom?");
}

/// The same, but that another file gets the blocks, and gives them up in an exchange.
fn exchanged(volume: &Volume, one: &File, other: &File, content: &[u8]) {
    let before = emptied(volume, one, other);
    let new = file(volume, "new");
    new.write_at(content, 0).expect("written");
    assert_eq!(places(&new), before, "other blocks");
    one.set_len(8 * BLOCK).expect("a hole");
    one.exchange_range(0, &new, 0, Some(8 * BLOCK), ExchangeOptions::new()).expect("an exchange");
    assert!(places(one) == before && bytes(one) == content);
}

/// A clone of a file's first block, beside a write to others, gives it the flag again that it had. What is known of the others
/// from then keeps no write to them from where it goes, neither one that has found space nor one that waits in memory.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_clone_beside_a_write_brings_nothing_back_that_was_shared_before() {
    static WRITTEN: [u8; 6 * BLOCK as usize] = [8; 6 * BLOCK as usize];
    type Case = fn(&Volume, &File, &File, &[u8], Box<dyn FnOnce()>) -> Result<()>;
    let cases: [(&str, Case); 3] = [
        ("an overwrite", |volume, one, other, content, clone| {
            // It finds twice that the blocks are shared, and is about to hold them once more.
            let (volume, first, second) = (volume.clone(), one.clone(), other.clone());
            let content = content.to_vec();
            at(CHANGE, || ());
            at(CHANGE, || ());
            at(CHANGE, move || {
                written_anew(&volume, &first, &second, &content);
                at(STAGED, clone);
            });
            one.overwrite_at(&WRITTEN, BLOCK)
        }),
        ("write-back", |volume, one, other, content, clone| {
            written_anew(volume, one, other, content);
            // Behind the write-back that comes before each clone.
            let buffered = one.buffered();
            let file = buffered.clone();
            at(CHANGE, move || file.write_at(&WRITTEN, BLOCK).expect("written"));
            clone();
            buffered.sync()
        }),
        ("write-back to what was exchanged", |volume, one, other, content, clone| {
            exchanged(volume, one, other, content);
            let buffered = one.buffered();
            let file = buffered.clone();
            at(CHANGE, move || file.write_at(&WRITTEN, BLOCK).expect("written"));
            clone();
            buffered.sync()
        }),
    ];
    for (name, write) in cases {
        let (device, volume) = made();
        let (one, other, content) = pair(&volume, 8);
        let (from, third) = (one.clone(), file(&volume, "third"));
        let is_cloned = Arc::new(AtomicBool::new(false));
        let cloned = Arc::clone(&is_cloned);
        let clone = move || {
            from.clone_range(0, &third, 0, BLOCK).expect("a clone");
            cloned.store(true, Ordering::Relaxed);
        };
        write(&volume, &one, &other, &content, Box::new(clone))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(is_cloned.load(Ordering::Relaxed), "{name}: no clone was made beside it");
        assert!(bytes(&one)[BLOCK as usize..7 * BLOCK as usize] == WRITTEN, "{name}");
        drop((one, other));
        ends_well(&device, volume);
    }
}

/// What is known of a file's blocks may be from before: whoever asks for extents is told what is so now.
#[test]
#[ignore = "needs root and xfsprogs"]
fn extents_are_shared_as_long_as_others_have_them() {
    let (device, volume) = made();
    let (one, other, _) = pair(&volume, 8);
    let shared =
        || extents(&one).iter().map(|extent| (extent.length / BLOCK, extent.shared)).collect::<Vec<_>>();
    assert_eq!(shared(), [(8, true)]);
    other.punch_hole(2 * BLOCK..4 * BLOCK).expect("a hole");
    assert_eq!(shared(), [(2, true), (2, false), (4, true)]);
    other.set_len(0).expect("cut");
    assert_eq!(shared(), [(8, false)]);
    drop((one, other));
    ends_well(&device, volume);
}

/// Overwrites in a queue hold their bytes until its thread takes them out, which may be waiting for what a clone holds.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_clone_waits_for_no_queue_for_ever() {
    let (device, volume) = made();
    let (one, other, content) = pair(&volume, 16);
    let push = |queue: &mut uxfs::Queue, tag| {
        let mut buf = AlignedBuf::zeroed(BLOCK as usize);
        buf.fill(50);
        queue.push_overwrite(12 * BLOCK, buf, tag).expect("pushed");
        queue.submit().expect("submitted");
    };
    let mut queue = other.queue(4).expect("a queue");
    // The first is a copy, which is over at once; the second stays until it is taken out.
    push(&mut queue, 1);
    queue.wait(1, |done| assert!(done.result.is_ok())).expect("taken out");
    push(&mut queue, 2);
    // Whoever waits for itself is told.
    assert_eq!(one.clone_range(0, &other, 0, 0).expect_err("held").kind(), ErrorKind::Busy);
    let begun = Instant::now();
    let (said, answer) = mpsc::channel();
    let (from, to) = (one.clone(), other.clone());
    let cloning = std::thread::spawn(move || {
        said.send(()).expect("heard");
        from.clone_range(0, &to, 0, 0)
    });
    answer.recv().expect("begun");
    std::thread::sleep(Duration::from_millis(50));
    one.write_at(&[51; 100], 0).expect("written");
    queue.wait(1, |done| assert!(done.result.is_ok())).expect("taken out");
    cloning.join().expect("no panic").expect("a clone");
    assert!(begun.elapsed() < Duration::from_secs(30));
    drop(queue);
    let found = bytes(&one);
    assert!(found[..100] == [51; 100] && found[100..] == content[100..]);
    drop((one, other));
    ends_well(&device, volume);
}

/// Leaves this many blocks for whoever wants some.
fn fill(volume: &Volume, left: u64) -> File {
    let filler = file(volume, "filler");
    let mut end = 0;
    for step in [256 * BLOCK, 16 * BLOCK, BLOCK] {
        while filler.allocate(end..end + step, false).is_ok() {
            end += step;
        }
    }
    if left > 0 {
        filler.set_len(end - left * BLOCK).expect("cut");
    }
    volume.sync().expect("synced");
    filler
}

/// So that the kernel has room to go on.
fn remove(volume: &Volume, filler: File) {
    drop(filler);
    volume.root().expect("root").as_dir().expect("a directory").remove_file(b"filler").expect("removed");
}

/// Holes and copies are asked for together: what does not fit has changed nothing.
#[test]
#[ignore = "needs root and xfsprogs"]
fn too_little_space_for_copies_changes_nothing() {
    let (device, volume) = made();
    let (one, other, _) = pair(&volume, 2048);
    // Data of its own, shared blocks, a hole, shared blocks again.
    one.write_at(&[3; 4 * BLOCK as usize], 0).expect("written");
    one.punch_hole(100 * BLOCK..300 * BLOCK).expect("a hole");
    let content = bytes(&other);
    let filler = fill(&volume, 600);
    let before = bytes(&one);
    let whole = vec![9; 2048 * BLOCK as usize];
    let attempts: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("write", &|| one.write_at(&whole, 0)),
        ("write in the midst", &|| one.write_at(&whole[..1500 * BLOCK as usize], 50 * BLOCK + 5)),
        ("overwrite", &|| one.overwrite_at(&whole[..1500 * BLOCK as usize], 400 * BLOCK)),
        ("zero", &|| one.zero_range(3 * BLOCK + 5..2000 * BLOCK + 5, false)),
    ];
    for (what, attempt) in attempts {
        let error = attempt().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
        assert!(bytes(&one) == before, "{what}: content has changed");
        let places = |map: &[Extent]| {
            map.iter().map(|run| (run.logical, run.physical, run.length)).collect::<Vec<_>>()
        };
        let joined = |file: &File| {
            let mut runs: Vec<(u64, u64, u64)> = Vec::new();
            for (logical, physical, length) in places(&extents(file)) {
                match runs.last_mut() {
                    Some(last) if last.0 + last.2 == logical && last.1 + last.2 == physical => {
                        last.2 += length
                    }
                    _ => runs.push((logical, physical, length)),
                }
            }
            runs
        };
        assert!(joined(&one).len() <= joined(&other).len() + 4, "{what}: space was left behind");
    }
    // What gives blocks up needs none.
    one.punch_hole(500 * BLOCK..600 * BLOCK).expect("a hole");
    // What fits is done, though more than it needs was staged before.
    one.write_at(&[8; 10], 700 * BLOCK).expect("written");
    one.write_at(&[8; 10 * BLOCK as usize], 1000 * BLOCK + 1).expect("written");
    remove(&volume, filler);
    assert!(bytes(&other) == content);
    drop((one, other));
    ends_well(&device, volume);
}

/// There is room for all copies of a write: what is set aside for later writes beside the first must not be what the last
/// one lacks.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_staged_for_later_is_not_what_the_write_lacks() {
    // Around what is set aside for one piece, and for several.
    for left in [40, 70, 100, 140] {
        let (device, volume) = made();
        let (one, other) = (file(&volume, "one"), file(&volume, "other"));
        one.write_at(&vec![1; 640 * BLOCK as usize], 0).expect("written");
        for at in 0..20 {
            one.clone_range(at * 32 * BLOCK, &other, at * 32 * BLOCK, BLOCK).expect("a clone");
        }
        let filler = fill(&volume, left);
        one.overwrite_at(&vec![2; 640 * BLOCK as usize], 0).unwrap_or_else(|error| panic!("{left}: {error}"));
        let mut found = vec![0; 640 * BLOCK as usize];
        one.read_at(&mut found, 0).expect("read");
        assert!(found.iter().all(|&byte| byte == 2));
        other.read_at(&mut found[..BLOCK as usize], 19 * 32 * BLOCK).expect("read");
        assert!(found[..BLOCK as usize].iter().all(|&byte| byte == 1), "the other has changed");
        remove(&volume, filler);
        drop((one, other));
        ends_well(&device, volume);
    }
}

/// Space that is staged for later writes goes back when somebody needs it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_staged_is_given_back_when_space_is_short() {
    let (device, volume) = made();
    let (one, other, content) = pair(&volume, 2048);
    for block in (0..2048).step_by(32) {
        one.write_at(&[1; 16], block * BLOCK).expect("written");
    }
    // Some sixty blocks were written, and two thousand are set aside for what comes beside them.
    let free = volume.info().expect("info").free_blocks;
    let filler = fill(&volume, 0);
    assert!(filler.size() / BLOCK > free + 1000, "{} blocks of {free}", filler.size() / BLOCK);
    drop(one);
    remove(&volume, filler);
    assert!(bytes(&other) == content);
    drop(other);
    ends_well(&device, volume);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn offsets_that_do_not_fit_are_refused() {
    let (device, volume) = made();
    let (one, other, content) = pair(&volume, 4);
    let far = !(BLOCK - 1);
    let end = (i64::MAX as u64) & !(BLOCK - 1);
    for (from, at, len) in [
        (far, 0, BLOCK),
        (0, far, BLOCK),
        (0, 0, u64::MAX),
        (BLOCK, 0, far),
        (0, end, 2 * BLOCK),
        (far, far, 0),
    ] {
        let error = one.clone_range(from, &other, at, len).expect_err("too far");
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::TooLarge), "{error}");

        let _either = one.copy_range(from, &other, end + (at & 1), len);
    }
    assert!(bytes(&one) == content);
    drop((one, other));
    ends_well(&device, volume);
}

/// Threads clone, dedupe, overwrite and cut the same files, and files of their own. A file that nobody writes to stays as it
/// was; each thread's own file is what that thread made of it; no block of the others is torn.
#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_share_and_write_at_once() {
    const THREADS: u64 = 4;
    const BLOCKS: u64 = 64;
    let (device, volume) = made();
    let golden = file(&volume, "golden");
    let gold: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK % 100) as u8 + 100).collect();
    golden.write_at(&gold, 0).expect("written");
    let pool: Vec<File> = (0..2).map(|n| file(&volume, &format!("pool{n}"))).collect();
    for one in &pool {
        one.write_at(&vec![1; (BLOCKS * BLOCK) as usize], 0).expect("written");
    }
    let stop = AtomicBool::new(false);
    let seed = std::env::var("UXFS_SEED")
        .ok()
        .map_or_else(|| fastrand::u64(..), |seed| seed.parse().expect("UXFS_SEED"));
    println!("replay with UXFS_SEED={seed}");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (golden, pool, volume, gold, stop) = (&golden, &pool, &volume, &gold, &stop);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ thread);
                let own = file(volume, &format!("own{thread}"));
                let mut model = Vec::new();
                let until = Instant::now() + Duration::from_secs(6);
                while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                    let (from, at) = (random.u64(..BLOCKS), random.u64(..BLOCKS));
                    let len = random.u64(1..=BLOCKS - from.max(at));
                    let bytes = |blocks: u64| (blocks * BLOCK) as usize;
                    let stamp = vec![random.u8(..100); bytes(len)];
                    let any = &pool[random.usize(..pool.len())];
                    let done = match random.u32(..10) {
                        0 | 1 => golden.clone_range(from * BLOCK, &own, at * BLOCK, len * BLOCK).map(|()| {
                            model.resize(model.len().max(bytes(at + len)), 0);
                            model[bytes(at)..bytes(at + len)]
                                .copy_from_slice(&gold[bytes(from)..bytes(from + len)]);
                        }),
                        2 | 3 => own.write_at(&stamp, at * BLOCK).map(|()| {
                            model.resize(model.len().max(bytes(at + len)), 0);
                            model[bytes(at)..bytes(at + len)].copy_from_slice(&stamp);
                        }),
                        4 => own.set_len(at * BLOCK).map(|()| model.resize(bytes(at), 0)),
                        5 => golden.clone_range(from * BLOCK, any, at * BLOCK, len * BLOCK),
                        6 => any.write_at(&stamp, at * BLOCK),
                        7 => pool[0].clone_range(from * BLOCK, &pool[1], at * BLOCK, len * BLOCK),
                        8 => pool[1].dedupe_range(from * BLOCK, &pool[0], at * BLOCK, len * BLOCK).map(drop),
                        _ => any.punch_hole(at * BLOCK..(at + len) * BLOCK),
                    };
                    if let Err(error) = done {
                        // The other file may be shorter by now; or so much is staged that there is no room.
                        let kind = error.kind();
                        let may = matches!(kind, ErrorKind::InvalidInput | ErrorKind::NoSpace);
                        if !may {
                            stop.store(true, Ordering::Relaxed);
                        }
                        assert!(may, "{error}");
                    }
                    let mut found = vec![0; model.len()];
                    assert_eq!(own.read_at(&mut found, 0).expect("read"), model.len());
                    if found != model {
                        stop.store(true, Ordering::Relaxed);
                        let first = found.iter().zip(&model).position(|(found, model)| found != model);
                        panic!("own{thread} is wrong at {first:?}");
                    }
                }
            });
        }
    });
    assert!(bytes(&golden) == gold, "what nobody wrote to has changed");
    for one in &pool {
        for (nth, block) in bytes(one).chunks(BLOCK as usize).enumerate() {
            assert!(block.iter().all(|byte| *byte == block[0]), "block {nth} is torn");
        }
    }
    drop((golden, pool));
    ends_well(&device, volume);
}

/// Panics at a write of the thread that made it while it is armed.
#[derive(Debug)]
struct Panics {
    armed: AtomicBool,
    of: ThreadId,
    inner: Arc<dyn BlockDevice>,
}

impl Layer for Panics {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(
        &self,
        offset: u64,
        buf: &[u8],
        durability: Durability,
    ) -> std::result::Result<(), DeviceError> {
        let panics = thread::current().id() == self.of && self.armed.swap(false, Ordering::SeqCst);
        assert!(!panics, "a device that panics");
        self.inner.write(offset, buf, durability)
    }
}

/// A device that panics in the midst of a copy: the next to write there finds his own bytes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_write_that_panicked_leaves_no_claim() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true), true).expect("a volume");
    let device = Arc::new(Panics {
        armed: AtomicBool::new(false),
        of: thread::current().id(),
        inner: Arc::clone(&memory),
    });
    let volume = Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).expect("it opens");
    let (one, other) = (file(&volume, "one"), file(&volume, "other"));
    one.write_at(&[1; 8 * BLOCK as usize], 0).expect("written");
    one.clone_range(0, &other, 0, 0).expect("a clone");
    one.overwrite_at(&[1; 100], 4 * BLOCK).expect("what is shared is known");
    device.armed.store(true, Ordering::SeqCst);
    let error = one.write_at(&[2; BLOCK as usize], 0).expect_err("it panics");
    assert!(error.to_string().contains("the device panicked"), "{error}");
    assert!(!device.armed.load(Ordering::SeqCst));
    one.punch_hole(0..BLOCK).expect("a hole");
    one.write_at(&[3; BLOCK as usize], 0).expect("written");
    let mut found = [0; BLOCK as usize];
    one.read_at(&mut found, 0).expect("read");
    assert!(found == [3; BLOCK as usize], "found {}", found[0]);
    drop((one, other));
    ends_well(&memory, volume);
}
