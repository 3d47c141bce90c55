//! Seeks beside appends: what was appended is data up to an end that the file had, and no hole is seen before it.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::new_file;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use uxfs::{MkfsOptions, OpenOptions, Volume, mkfs_device};

/// Bytes of an append. Each end of the file is a multiple of that.
const LEN: u64 = 3 * 4096;

/// Looks at a file that grows, and says what was wrong.
fn seek_beside_appends(is_buffered: bool) -> Option<String> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(device, &OpenOptions::new().writable(true)).expect("it opens");
    let file = new_file(&volume, "file");
    let file = if is_buffered { file.buffered() } else { file };
    let (over, appended) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && file.append(&[7; LEN as usize]).is_ok() {
                appended.fetch_add(LEN, Ordering::SeqCst);
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut wrong = None;
        while wrong.is_none() && !over.load(Ordering::Relaxed) {
            let least = appended.load(Ordering::SeqCst);
            let hole = file.seek_hole(0).expect("sought").unwrap_or(0);
            if hole % LEN != 0 || hole < least {
                wrong = Some(format!("a hole at {hole}, of {least} bytes at least"));
            }
            let last = appended.load(Ordering::SeqCst).checked_sub(1);
            let data = last.and_then(|last| file.seek_data(last).expect("sought"));
            if data != last {
                wrong = wrong.or(Some(format!("data at {data:?}, not at {last:?}")));
            }
        }
        over.store(true, Ordering::Relaxed);
        wrong
    })
}

#[test]
fn no_hole_is_seen_before_the_end() {
    for is_buffered in [true, false] {
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            assert_eq!(seek_beside_appends(is_buffered), None, "buffered: {is_buffered}");
        }
    }
}
