//! Files that are append-only: whoever writes to one leaves what is there, also what others append meanwhile.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::new_file;
use fileio::testing::{CHANGE, HOLD, at};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{Changes, ErrorKind, File, MkfsOptions, OpenOptions, Result, Volume, mkfs_device};

const BLOCK: u64 = 4096;

fn volume() -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("it opens")
}

/// A file of one block, opened when it was append-only already.
fn append_only(volume: &Volume, name: &str) -> File {
    let file = new_file(volume, name);
    file.write_at(&[1; BLOCK as usize], 0).expect("written");
    let changes = Changes { append_only: Some(true), ..Changes::default() };
    file.node().change(&changes).expect("changed");
    volume.open_file(name).expect("there")
}

fn bytes(file: &File, offset: u64) -> [u8; BLOCK as usize] {
    let mut bytes = [0; BLOCK as usize];
    file.read_at(&mut bytes, offset).expect("read");
    bytes
}

/// A write at the end of the file as it was. Before it holds its bytes, another thread appends there.
#[test]
fn what_is_appended_beside_a_write_stays() {
    type Write = fn(&File) -> Result<()>;
    let ways: [(&str, Write); 4] = [
        ("direct", |file| file.write_at(&[3; BLOCK as usize], BLOCK)),
        ("buffered", |file| file.buffered().write_at(&[3; BLOCK as usize], BLOCK)),
        ("filling", |file| file.append_at(&[3; BLOCK as usize], BLOCK)),
        ("durable", |file| file.syncing(uxfs::Syncing::Data).write_at(&[3; BLOCK as usize], BLOCK)),
    ];
    let mut lost = Vec::new();
    for (nth, place) in [HOLD, CHANGE].into_iter().enumerate() {
        for (way, write) in ways {
            let volume = volume();
            let file = append_only(&volume, &format!("{way} {nth}"));
            let beside = Arc::new(Mutex::new(None));
            let (other, started) = (file.clone(), Arc::clone(&beside));
            at(place, move || {
                let appends = thread::spawn(move || other.append(&[2; BLOCK as usize]).expect("appended"));
                // It may end here, or wait for the write.
                let until = Instant::now() + Duration::from_millis(200);
                while !appends.is_finished() && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                *started.lock().unwrap() = Some(appends);
            });
            let written = write(&file);
            let appends = beside.lock().unwrap().take();
            // On the way a buffered write need not come by.
            let Some(appends) = appends else {
                assert_eq!((way, place), ("buffered", HOLD));
                continue;
            };
            let appended = appends.join().expect("no panic");
            if bytes(&file, appended) != [2; BLOCK as usize] {
                lost.push((way, place));
            }
            match written {
                Ok(()) => assert!(bytes(&file, BLOCK) == [3; BLOCK as usize], "{way}, {place}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Protected, "{way}, {place}"),
            }
        }
    }
    assert!(lost.is_empty(), "what was appended is overwritten: {lost:?}");
}

/// What was allowed before the file was held, and what was not, is so afterwards.
#[test]
fn a_write_behind_the_end_lets_it_grow() {
    for is_buffered in [false, true] {
        let volume = volume();
        let file = append_only(&volume, "file");
        let file = if is_buffered { file.buffered() } else { file };
        let refused = |written: Result<()>| assert_eq!(written.unwrap_err().kind(), ErrorKind::Protected);
        refused(file.write_at(&[9; 1], BLOCK - 1));
        refused(file.append_at(&[9; 1], 0));
        refused(file.write_at(&[], 0));
        file.write_at(&[3; 100], BLOCK + 50).expect("a gap and bytes");
        file.append_at(&[4; 100], 2 * BLOCK).expect("more");
        refused(file.write_at(&[9; 100], BLOCK + 100));
        refused(file.overwrite_at(&[9; 100], 0));
        refused(
            file.queue(1).and_then(|mut queue| queue.push_overwrite(0, uxfs::AlignedBuf::zeroed(512), 0)),
        );
        let others = new_file(&volume, "other");
        others.write_at(&[9; BLOCK as usize], 0).expect("written");
        refused(others.copy_range(0, &file, 0, BLOCK).map(drop));
        refused(file.punch_hole(0..BLOCK));
        refused(file.zero_range(0..BLOCK, true));
        refused(file.collapse_range(0..BLOCK));
        refused(file.insert_range(0..BLOCK));
        refused(file.set_len(0));
        refused(file.set_len(1 << 20));
        file.allocate(0..1 << 20, true).expect("as in a kernel");
        let mut expected = vec![1; BLOCK as usize];
        expected.extend([0; 50]);
        expected.extend([3; 100]);
        expected.resize(2 * BLOCK as usize, 0);
        expected.extend([4; 100]);
        let mut found = vec![0; 4 * BLOCK as usize];
        let read = file.read_at(&mut found, 0).expect("read");
        assert!(found[..read] == expected, "buffered {is_buffered}");
        let changes = Changes { append_only: Some(false), ..Changes::default() };
        file.node().change(&changes).expect("changed");
        file.write_at(&[5; 100], 0).expect("it is a file like others now");
        assert_eq!(bytes(&file, 0)[..100], [5; 100]);
    }
}
