//! Many threads overwrite one file at once, on a volume in memory.
//!
//! ```text
//! cargo run --release -p uxfs --example threads
//! ```
//! Requests that do not overlap never wait for each other: each thread has a part of the file for itself.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;
use uxfs::{AlignedBuf, BlockDevice, MemoryDevice, MkfsOptions, NewNode, OpenOptions, Volume};

const PAGE: u64 = 4096;
const PAGES_OF_EACH: u64 = 16_384;
const THREADS: u64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 30)?);
    // Memory that was just mapped is zeroes.
    uxfs::mkfs_device(Arc::clone(&device), &MkfsOptions::new(), true)?;
    let volume = Volume::open_device(device, &OpenOptions::new().writable(true))?;

    let file = volume.root()?.as_dir()?.create_file(b"shared", &NewNode::default())?.open()?;
    let part = vec![0; usize::try_from(PAGES_OF_EACH * PAGE)?];
    for _ in 0..THREADS {
        file.append(&part)?;
    }

    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| {
                let file = file.clone();
                scope.spawn(move || -> Result<(), uxfs::Error> {
                    let page = AlignedBuf::zeroed(4096);
                    let first = nth * PAGES_OF_EACH;
                    (first..first + PAGES_OF_EACH)
                        .try_for_each(|page_no| file.overwrite_at(&page, page_no * PAGE))
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let writes = THREADS * PAGES_OF_EACH;
    println!(
        "{writes} overwrites of one file by {THREADS} threads in {:.3} s",
        began.elapsed().as_secs_f64()
    );

    volume.close()?;
    Ok(())
}
