//! What a read and an overwrite cost that find all in memory: a hold of their bytes, and nothing else.
//!
//! Heap allocations of the thread are counted, and every class of locks that the process knows.

#[path = "common/counting.rs"]
mod counting;

mod common;
#[path = "common/growing.rs"]
mod growing;

use std::collections::BTreeMap;
use std::sync::Arc;

use blockdev::{BlockDevice, Counter, MemoryOptions};
use common::BLOCK;
use counting::allocations;
use fileio::{BufferedFile, DirectFile, Locking, PageCache};
use growing::GrowingMap;
use lockstat::RANGE_CLASS;

const BLOCKS: u64 = 2048;
const ROUNDS: u64 = 1000;

type Cached = Arc<BufferedFile<GrowingMap>>;
/// Shared and exclusive acquisitions, by class.
type Taken = BTreeMap<&'static str, (u64, u64)>;

/// A file all of which is in memory and dirty, and its device.
fn cached() -> (Cached, Arc<PageCache>, Arc<Counter>) {
    lockstat::enable();
    let memory = MemoryOptions::new().anonymous(2 * BLOCKS * BLOCK).unwrap();
    let device = Arc::new(Counter::new(Arc::new(memory)));
    let pool = PageCache::new(64 << 20);
    let map = GrowingMap::new(BLOCKS);
    let file = DirectFile::new(Arc::clone(&device) as Arc<dyn BlockDevice>, map, Locking::Range);
    let file = BufferedFile::new(file, &pool);
    file.write_at(0, &vec![1; (BLOCKS * BLOCK) as usize]).unwrap();
    (file, pool, device)
}

fn taken() -> Taken {
    lockstat::report().into_iter().map(|(class, counts)| (class, (counts.shared, counts.exclusive))).collect()
}

/// Does `work`, and gives its allocations and the locks that were taken meanwhile.
fn costs(work: impl FnOnce()) -> (u64, Taken) {
    let before = taken();
    let allocations = allocations(work);
    let mut taken = taken();
    for (class, (shared, exclusive)) in &mut taken {
        let earlier = before.get(class).copied().unwrap_or_default();
        (*shared, *exclusive) = (*shared - earlier.0, *exclusive - earlier.1);
    }
    taken.retain(|_, counts| *counts != (0, 0));
    (allocations, taken)
}

/// Up and down the file: whole blocks, parts of them, and some of several.
fn place(index: u64) -> (u64, usize) {
    let at = index * 37 % (BLOCKS - 8) * BLOCK;
    match index % 3 {
        0 => (at, BLOCK as usize),
        1 => (at + 99, 300),
        _ => (at + 500, 9000),
    }
}

fn read(file: &Cached) {
    let mut buf = [0; 9000];
    for (at, len) in (0..ROUNDS).map(place) {
        assert_eq!(file.read_at(at, &mut buf[..len]).unwrap(), len);
    }
}

fn overwrite(file: &Cached, places: impl Iterator<Item = (u64, usize)>) {
    for (at, len) in places {
        assert_eq!(file.write_at(at, &[7; 9000][..len]).unwrap(), len);
    }
}

/// Alone in this file: counters are the process's.
#[test]
fn what_is_in_memory_takes_its_range_and_nothing_else() {
    let ((file, pool, device), (allocations, first)) = {
        let mut made = None;
        let counted = costs(|| made = Some(cached()));
        (made.unwrap(), counted)
    };
    assert!(allocations > 0, "the counter of allocations counts");
    for class in ["page clock", "write-back line", "file folios", "file end", "file caching"] {
        assert!(first.contains_key(class), "{class} counts: {first:?}");
    }
    let reads = BTreeMap::from([(RANGE_CLASS, (ROUNDS, 0))]);
    let writes = BTreeMap::from([(RANGE_CLASS, (0, ROUNDS))]);
    // Tables of the first use.
    read(&file);
    let all = || (0..ROUNDS).map(place);
    overwrite(&file, all());
    assert_eq!(costs(|| read(&file)), (0, reads.clone()), "of what is dirty");
    assert_eq!(costs(|| overwrite(&file, all())), (0, writes), "of what is dirty");
    file.write_back(0..u64::MAX).unwrap();
    assert_eq!(pool.dirty(), 0);
    let before = device.counts();
    assert_eq!(costs(|| read(&file)), (0, reads), "of what is clean");
    // The file comes into the line once. Each block becomes dirty by a hold of all of it, perhaps a second one.
    file.write_at(0, &[8]).unwrap();
    let within_blocks = || all().filter(|(_, len)| *len <= BLOCK as usize);
    let (allocations, taken) = costs(|| overwrite(&file, within_blocks()));
    assert_eq!((allocations, Vec::from_iter(taken.into_keys())), (0, vec![RANGE_CLASS]), "of what is clean");
    assert_eq!(device.counts(), before, "nothing comes to the device");
    drop((file, pool));
}
