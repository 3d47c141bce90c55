//! Transactions that begin with less log space than they may need.

use super::reservation::{LogNeed, Reservation, ReservationBuilder};
use super::{JoinedBuf, Trans, begin_small};
use crate::agf;
use crate::alloc::{Purpose, Request, Target};
use crate::buf::BufMap;
use crate::defer;
use crate::error::{Error, Result};
use crate::mkfs::{Before, Features, Groups, Options, format, plan};
use crate::namespace::{self, NewInode, Removal};
use crate::volume::{OpenOptions, Volume};
use blockdev::{BlockDevice, MemoryDevice};
use std::cell::Cell;
use std::sync::Arc;
use xfs_format::attr::RAW;
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{AgNumber, FsBlock, InodeNumber, Uuid};

const GROUPS: u32 = 24;
const TIME: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

/// A volume of today's defaults with a log of 64 MiB.
fn made() -> Arc<Volume> {
    let bytes = u64::from(GROUPS) * (80 << 20);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(bytes).unwrap());
    let new = Options { groups: Groups::Count(GROUPS), ..Options::new(Uuid([7; 16]), TIME) };
    format(&*device, &plan(&new, bytes).unwrap(), Before::Zeroes).unwrap();
    Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap()
}

/// Of an operation that allocates a block in each group, and usually in one.
fn of_many(volume: &Volume) -> Reservation {
    let need = ReservationBuilder::new(volume.geometry()).extents(GROUPS.into()).blocks(GROUPS.into());
    Reservation { usual_log_bytes: Some(4 << 10), ..need.build() }
}

/// Allocates a block in each group.
fn allocate(trans: &mut Trans<'_>) -> Result<()> {
    for ag in (0..GROUPS).map(AgNumber) {
        agf::allocate(trans, Target::In(ag), Request::new(1, 1, Purpose::Data))?;
    }
    Ok(())
}

fn free(volume: &Volume) -> u64 {
    volume.write_side().unwrap().counters.available_blocks()
}

#[test]
fn what_a_commit_needs_beyond_the_usual_is_taken_where_there_is_any() {
    let volume = made();
    let before = free(&volume);
    let runs = Cell::new(0);
    begin_small(|need| {
        runs.set(runs.get() + 1);
        let mut trans = Trans::start(&volume, of_many(&volume).with_log_space(need))?;
        allocate(&mut trans)?;
        trans.commit()
    })
    .unwrap();
    assert_eq!((runs.get(), before - free(&volume)), (1, GROUPS.into()));
}

#[test]
fn an_operation_begins_again_where_the_log_has_no_more_and_has_changed_nothing() {
    let volume = made();
    let journal = &volume.write_side().unwrap().journal;
    let before = (free(&volume), journal.space().0);
    let needs = Cell::new(Vec::new());
    begin_small(|need| {
        needs.set([needs.take(), vec![need]].concat());
        let mut trans = Trans::start(&volume, of_many(&volume).with_log_space(need))?;
        let all = (need == LogNeed::Usual).then(|| journal.take_all());
        allocate(&mut trans)?;
        let done = trans.commit();
        if let Some(all) = all {
            assert!(matches!(done, Err(Error::ReservationShort)), "{done:?}");
            journal.give_all(all);
            assert_eq!((free(&volume), journal.space().0), before);
        }
        done
    })
    .unwrap();
    assert_eq!(needs.take(), [LogNeed::Usual, LogNeed::Most]);
    assert_eq!(before.0 - free(&volume), u64::from(GROUPS));
}

#[test]
fn what_usually_is_enough_needs_no_more_log_space() {
    let volume = made();
    let journal = &volume.write_side().unwrap().journal;
    let mut trans = Trans::start(&volume, of_many(&volume)).unwrap();
    let all = journal.take_all();
    agf::allocate(&mut trans, Target::In(AgNumber(0)), Request::new(1, 1, Purpose::Data)).unwrap();
    trans.commit().unwrap();
    journal.give_all(all);
}

/// Operations on names ask for megabytes at worst. A log of 64 MiB had room for fourteen of them.
#[test]
fn hundreds_change_names_at_once_in_a_log_of_64_mib() {
    for gib in [2, 64, 4096] {
        let new = Options::new(Uuid([7; 16]), TIME);
        let plan = plan(&Options { log_size: Some(64 << 20), ..new }, gib << 30).unwrap();
        let geometry = plan.geometry();
        let most = ReservationBuilder::new(geometry).inodes(2).inode_chunk().dir_change().parent_changes(1);
        let most = most.log_count(2);
        let (usual, most) = (most.build_to_begin_small(), most.build());
        let bytes = |reservation: Reservation| {
            let (bytes, count) = reservation.first_log_space();
            u64::from(bytes) * u64::from(count) + 3 * u64::from(reservation.intent_bytes)
        };
        let (usual, most) = (bytes(usual), bytes(most));
        assert!((64 << 20) / usual > 300 && most > 10 * usual, "{gib} GiB: {usual} of {most} bytes");
    }
}

/// A transaction that defers work has units in which any of it fits, even if its first part needs less.
#[test]
fn further_parts_have_log_space_for_deferred_work() {
    for (kernel, block_size) in [("4.19", 4096), ("6.1", 1024), ("6.1", 4096), ("6.18", 4096), ("6.18", 1024)]
    {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 30).unwrap());
        let features = Features::of_kernel(kernel).unwrap();
        let new = Options { block_size, features, ..Options::new(Uuid([7; 16]), TIME) };
        format(&*device, &plan(&new, 1 << 30).unwrap(), Before::Zeroes).unwrap();
        let volume = Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap();
        let need = || ReservationBuilder::new(volume.geometry());
        // What any reservation has that defers something.
        let least = need().frees(1).build().deferred_log_bytes;
        assert_eq!(least, need().frees(1).build().log_bytes, "{kernel} {block_size}");
        let most = need().extents(1).blocks(1).frees(1).rmaps(1).build();
        let mut trans =
            Trans::start(&volume, Reservation { usual_log_bytes: Some(4 << 10), ..most }).unwrap();
        let got =
            agf::allocate(&mut trans, Target::In(AgNumber(0)), Request::new(1, 1, Purpose::Data)).unwrap();
        let start = got.start(volume.geometry());
        defer::defer_free(&mut trans, InodeNumber(0), start, 1, None).unwrap();
        trans.take_log_space().unwrap();
        let journal = &volume.write_side().unwrap().journal;
        assert!(journal.has_room_for(trans.ticket.as_ref().unwrap(), least.into()), "{kernel} {block_size}");
    }
}

/// Regression: a buffer whose blocks had been freed before counted as one that is cancelled.
#[test]
fn blocks_that_are_metadata_again_are_counted_in_full() {
    const BLOCKS: u32 = 24;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1280 << 20).unwrap());
    let new = Options { groups: Groups::Count(4), block_size: 65536, ..Options::new(Uuid([7; 16]), TIME) };
    format(&*device, &plan(&new, 1280 << 20).unwrap(), Before::Zeroes).unwrap();
    let volume = Volume::open(device, &OpenOptions { writable: true, ..OpenOptions::default() }).unwrap();
    let geometry = volume.geometry();
    let most = || of_many(&volume).with_log_space(LogNeed::Most);
    let mut trans = Trans::start(&volume, most()).unwrap();
    let wish = Request::new(BLOCKS, BLOCKS, Purpose::Data);
    let first = agf::allocate(&mut trans, Target::In(AgNumber(0)), wish).unwrap().start(geometry);
    trans.commit().unwrap();
    let daddr = |nth| geometry.extent_daddr(FsBlock(first.0 + nth), 1).unwrap();
    let maps: Vec<_> = (0..u64::from(BLOCKS))
        .map(|nth| BufMap { daddr: daddr(nth), len: geometry.block_size.into() })
        .collect();
    let make = |need| {
        let mut trans = Trans::start(&volume, need).unwrap();
        for map in &maps {
            trans.buf_get(&[*map], &RAW).unwrap();
        }
        trans
    };
    make(most()).commit().unwrap();
    let mut trans = make(most());
    for map in &maps {
        let buf = trans.buf_get(&[*map], &RAW).unwrap();
        trans.invalidate(buf);
    }
    trans.commit().unwrap();
    volume.write_side().unwrap().journal.force_all().unwrap();
    let trans = make(of_many(&volume));
    let counted = trans.log_bytes(JoinedBuf::log_bytes);
    assert!(counted > u64::from(BLOCKS * geometry.block_size), "{counted} bytes");
    // Checks that no more is logged than was counted.
    trans.commit().unwrap();
}

/// Whatever an operation on names leaves when it begins again is nothing.
#[test]
fn operations_on_names_begin_again() {
    let volume = made();
    let root = volume.handle(volume.geometry().root).unwrap();
    let new = |mode| NewInode::for_tests(mode, TIME);
    let counts = || {
        let counters = &volume.write_side().unwrap().counters;
        (counters.free_blocks(), counters.available_blocks(), counters.inodes())
    };
    namespace::create(&volume, &root, b"before", &new(0o100_644)).unwrap();
    namespace::remove(&volume, &root, b"before", Removal::File, TIME).unwrap();
    let before = counts();
    let file = fileio::testing::beginning_again(|| {
        let file = namespace::create(&volume, &root, b"file", &new(0o100_644)).unwrap();
        let dir = namespace::create(&volume, &root, b"dir", &new(0o040_755)).unwrap();
        namespace::symlink(&volume, &dir, b"link", b"target", &new(0)).unwrap();
        namespace::link(&volume, &dir, b"second", &file, TIME).unwrap();
        let to = (&dir, b"moved".as_slice());
        namespace::rename(&volume, (&root, b"file"), to, namespace::Rename::Replace, TIME).unwrap();
        namespace::remove(&volume, &dir, b"second", Removal::File, TIME).unwrap();
        namespace::remove(&volume, &dir, b"moved", Removal::File, TIME).unwrap();
        namespace::remove(&volume, &dir, b"link", Removal::File, TIME).unwrap();
        namespace::remove(&volume, &root, b"dir", Removal::Directory, TIME).unwrap();
        file
    });
    assert!(file.current().is_err(), "it is removed");
    assert_eq!(counts(), before);
}
