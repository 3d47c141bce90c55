//! What a request on a memory device costs. It is compared with an ordinary copy, which may not race, and with other
//! copies that may.
//!
//! `cargo run --release -p uxfs-blockdev --example copies`: medians of rounds in which all take turns, in nanoseconds.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use blockdev::{AlignedBuf, BlockDevice, Durability, MemoryDevice, MemoryOptions};

/// Bytes of the memory that is copied from and to.
const BYTES: usize = 256 << 20;
const ROUNDS: usize = 41;
const LENS: [usize; 4] = [512, 4 << 10, 64 << 10, 1 << 20];
/// Bytes of a measurement, whatever the length of a request.
const BYTES_EACH: usize = 8 << 20;
const REQUESTS_MAX: usize = 4000;

/// Source and destination of a copy.
trait Memory {
    fn read(&mut self, at: usize, buf: &mut [u8]);
    fn write(&mut self, at: usize, buf: &[u8]);
}

struct Ordinary(AlignedBuf);

impl Memory for Ordinary {
    fn read(&mut self, at: usize, buf: &mut [u8]) {
        buf.copy_from_slice(&self.0[at..at + buf.len()]);
    }

    fn write(&mut self, at: usize, buf: &[u8]) {
        self.0[at..at + buf.len()].copy_from_slice(buf);
    }
}

struct Device(MemoryDevice);

impl Memory for Device {
    fn read(&mut self, at: usize, buf: &mut [u8]) {
        self.0.read(at as u64, buf).expect("inside");
    }

    fn write(&mut self, at: usize, buf: &[u8]) {
        self.0.write(at as u64, buf, Durability::Volatile).expect("inside");
    }
}

struct Words(Vec<AtomicU64>);

impl Memory for Words {
    fn read(&mut self, at: usize, buf: &mut [u8]) {
        for (word, bytes) in self.0[at / 8..].iter().zip(buf.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    fn write(&mut self, at: usize, buf: &[u8]) {
        for (word, bytes) in self.0[at / 8..].iter().zip(buf.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("a word")), Ordering::Relaxed);
        }
    }
}

#[cfg(target_arch = "x86_64")]
struct RepMovsb(AlignedBuf);

#[cfg(target_arch = "x86_64")]
impl RepMovsb {
    fn copy(from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: both are `len` bytes long, and the direction flag is clear.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") from.len() => _,
                inout("rsi") from.as_ptr() => _,
                inout("rdi") to.as_mut_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Memory for RepMovsb {
    fn read(&mut self, at: usize, buf: &mut [u8]) {
        Self::copy(&self.0[at..at + buf.len()], buf);
    }

    fn write(&mut self, at: usize, buf: &[u8]) {
        Self::copy(buf, &mut self.0[at..at + buf.len()]);
    }
}

/// All copies, with memory behind every page.
fn memories() -> Vec<(&'static str, Box<dyn Memory>)> {
    let device = MemoryOptions::new().huge_pages(true).anonymous(BYTES as u64).expect("memory");
    let words = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    let mut memories: Vec<(_, Box<dyn Memory>)> = vec![
        ("ordinary", Box::new(Ordinary(AlignedBuf::large(BYTES)))),
        ("device", Box::new(Device(device))),
        ("words", Box::new(Words(words))),
    ];
    #[cfg(target_arch = "x86_64")]
    memories.push(("rep movsb", Box::new(RepMovsb(AlignedBuf::large(BYTES)))));
    let page = AlignedBuf::zeroed(1 << 20);
    for (_, memory) in &mut memories {
        (0..BYTES).step_by(page.len()).for_each(|at| memory.write(at, &page));
    }
    memories
}

fn main() {
    let mut memories = memories();
    let mut buf = AlignedBuf::zeroed((1 << 20) + 64);
    let mut rng = fastrand::Rng::with_seed(1);
    print!("{:<24}{:>8}", "", "bytes");
    memories.iter().for_each(|(name, _)| print!("{name:>12}"));
    println!();
    for (place, span, off) in [("near", 1 << 20, 0), ("near, buffer off", 1 << 20, 8), ("far", BYTES, 0)] {
        for is_write in [false, true] {
            for len in LENS {
                let requests = (BYTES_EACH / len).min(REQUESTS_MAX);
                let mut times = vec![Vec::new(); memories.len()];
                for _ in 0..ROUNDS {
                    for ((_, memory), times) in memories.iter_mut().zip(&mut times) {
                        let places: Vec<_> = (0..requests).map(|_| rng.usize(..span / len) * len).collect();
                        let buf = black_box(&mut buf[off..off + len]);
                        let start = Instant::now();
                        for at in places {
                            if is_write { memory.write(at, buf) } else { memory.read(at, buf) }
                        }
                        times.push(start.elapsed().as_nanos() as f64 / requests as f64);
                    }
                }
                let what = if is_write { "write" } else { "read" };
                print!("{:<24}{len:>8}", format!("{place}, {what}"));
                for times in &mut times {
                    times.sort_by(f64::total_cmp);
                    print!("{:>12.1}", times[ROUNDS / 2]);
                }
                println!();
            }
        }
    }
}
