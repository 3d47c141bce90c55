//! What an overwrite of allocated blocks costs besides the transfer, on a real volume: one hold of its own range. So does a
//! read or an overwrite that finds all in memory.
//!
//! Everything else is counted and must stay where it is: heap allocations, the locks of the inode and of the
//! buffer cache, and every further class of locks or events (transactions, once there are any) that the process
//! knows.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use uxfs::{AlignedBuf, File, OpenOptions, Volume};

/// Counters are the process's, so that one test counts at a time.
static COUNTING: Mutex<()> = Mutex::new(());

const FILE_BYTES: u64 = 8 << 20;
const PAGE: u64 = 4096;
const OVERWRITES: u64 = 2000;

/// A volume with one written file, `/data`.
fn make_volume(dir: &std::path::Path) -> std::path::PathBuf {
    let (image, proto, data) = (dir.join("image"), dir.join("proto"), dir.join("data"));
    std::fs::write(&data, vec![7; FILE_BYTES as usize]).expect("a source file");
    let text = format!("/\n0 0\nd--755 0 0\ndata ---644 0 0 {}\n$\n", data.display());
    std::fs::write(&proto, text).expect("a proto file");
    std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse file");
    let made = Command::new("mkfs.xfs").arg("-q").arg("-p").arg(&proto).arg(&image).status();
    assert!(made.expect("mkfs.xfs").success());
    image
}

/// Shared and exclusive acquisitions so far, by class.
fn acquisitions() -> BTreeMap<&'static str, (u64, u64)> {
    lockstat::report().into_iter().map(|(class, counts)| (class, (counts.shared, counts.exclusive))).collect()
}

/// Does `work` and gives its allocations, and what each class of locks was taken more often.
fn costs(work: impl FnOnce()) -> (u64, BTreeMap<&'static str, (u64, u64)>) {
    let before = acquisitions();
    let allocations = allocation_counter::measure(work).count_total;
    let mut taken = acquisitions();
    for (class, (shared, exclusive)) in &mut taken {
        let earlier = before.get(class).copied().unwrap_or_default();
        (*shared, *exclusive) = (*shared - earlier.0, *exclusive - earlier.1);
    }
    taken.retain(|_, counts| *counts != (0, 0));
    (allocations, taken)
}

fn page_of(index: u64) -> u64 {
    index * 37 % (FILE_BYTES / PAGE) * PAGE
}

fn overwrite_blocking(file: &File, page: &AlignedBuf) {
    for index in 0..OVERWRITES {
        file.overwrite_at(page, page_of(index)).expect("an overwrite");
    }
}

fn overwrite_queued(queue: &mut uxfs::Queue, pages: &mut Vec<AlignedBuf>) {
    let mut done = 0;
    for index in 0..OVERWRITES {
        if pages.is_empty() {
            done += queue.wait(1, |completion| pages.push(completion.buf)).expect("a wait");
        }
        let page = pages.pop().expect("a page that came back");
        queue.push_overwrite(page_of(index), page, index).expect("a push");
    }
    while u64::from(done) < OVERWRITES {
        done += queue.wait(1, |completion| pages.push(completion.buf)).expect("a wait");
    }
}

/// Has the kernel share all of `/data` with a clone, and then write its first half anew.
fn share_second_half(image: &std::path::Path, dir: &std::path::Path) {
    let mount_point = dir.join("mnt");
    std::fs::create_dir(&mount_point).expect("a mount point");
    let half = FILE_BYTES / 2;
    let script = format!(
        "mount -o loop {image} {mnt} && cp --reflink=always {mnt}/data {mnt}/clone && \
         dd if=/dev/zero of={mnt}/data bs={half} count=1 conv=notrunc,fsync status=none; \
         status=$?; umount {mnt} && exit $status",
        image = image.display(),
        mnt = mount_point.display(),
    );
    let status = Command::new("sh").args(["-c", &script]).status();
    assert!(status.expect("a shell").success(), "{script}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn so_it_does_on_a_file_that_shares_other_blocks() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    lockstat::enable();
    let dir = tempfile::tempdir().expect("a scratch directory");
    let image = make_volume(dir.path());
    share_second_half(&image, dir.path());
    let volume = Volume::open(&image, &OpenOptions::new().writable(true)).expect("it opens");
    let file = volume.open_file("/data").expect("a file");
    let page = AlignedBuf::zeroed(PAGE as usize);
    let half = FILE_BYTES / 2;
    // What is shared is known from now on.
    file.overwrite_at(&page, half).expect("a copy of a shared block");
    let overwrite =
        || (0..half / PAGE).for_each(|n| file.overwrite_at(&page, n * PAGE).expect("an overwrite"));
    let only_ranges = BTreeMap::from([(lockstat::RANGE_CLASS, (0, half / PAGE))]);
    assert_eq!(costs(overwrite), (0, only_ranges));
    // And so is what was shared, once it was copied.
    let again = || file.overwrite_at(&page, half).expect("an overwrite");
    assert_eq!(costs(again), (0, BTreeMap::from([(lockstat::RANGE_CLASS, (0, 1))])));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_overwrite_takes_its_range_and_nothing_else() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    lockstat::enable();
    let dir = tempfile::tempdir().expect("a scratch directory");
    let image = make_volume(dir.path());
    let volume = Volume::open(&image, &OpenOptions::new().writable(true)).expect("it opens");

    let (allocations, taken) = costs(|| drop(volume.open_file("/data").expect("a file")));
    assert!(allocations > 0, "the counter of allocations counts");
    assert!(
        taken.contains_key("inode cache") && taken.contains_key("buffer cache"),
        "classes count: {taken:?}"
    );

    let only_ranges = BTreeMap::from([(lockstat::RANGE_CLASS, (0, OVERWRITES))]);
    let file = volume.open_file("/data").expect("a file");
    let page = AlignedBuf::zeroed(PAGE as usize);
    overwrite_blocking(&file, &page); // tables of the first use
    assert_eq!(costs(|| overwrite_blocking(&file, &page)), (0, only_ranges.clone()), "blocking");

    let mut queue = file.queue(32).expect("a queue");
    let mut pages: Vec<_> = (0..32).map(|_| page.clone()).collect();
    overwrite_queued(&mut queue, &mut pages);
    assert_eq!(costs(|| overwrite_queued(&mut queue, &mut pages)), (0, only_ranges), "queued");
}

/// What `work` costs at best: threads that write back look now and then whether there is something to do.
fn costs_at_best(work: impl Fn()) -> (u64, BTreeMap<&'static str, (u64, u64)>) {
    let attempts = (0..10).map(|_| costs(&work));
    attempts.min_by_key(|(allocations, taken)| (taken.len(), *allocations)).expect("some")
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn so_does_what_finds_all_in_memory() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    lockstat::enable();
    let dir = tempfile::tempdir().expect("a scratch directory");
    let image = make_volume(dir.path());
    let volume = Volume::open(&image, &OpenOptions::new().writable(true)).expect("it opens");
    let file = volume.open_file("/data").expect("a file").buffered();
    let page = [7; PAGE as usize];
    // Too little to be written back at once.
    let pages = || (0..OVERWRITES).map(|index| page_of(index) % (1 << 20));
    let overwrite = || pages().for_each(|at| file.write_at(&page, at).expect("an overwrite"));
    let read = || {
        let mut page = [0; PAGE as usize];
        pages().for_each(|at| assert_eq!(file.read_at(&mut page, at).expect("a read"), page.len()));
    };

    let (allocations, taken) = costs(overwrite);
    assert!(allocations > 0 && taken.contains_key("file folios"), "the page cache counts: {taken:?}");
    let exclusive = BTreeMap::from([(lockstat::RANGE_CLASS, (0, OVERWRITES))]);
    let shared = BTreeMap::from([(lockstat::RANGE_CLASS, (OVERWRITES, 0))]);
    assert_eq!(costs_at_best(overwrite), (0, exclusive), "an overwrite");
    assert_eq!(costs_at_best(read), (0, shared), "a read");
}
