//! Threads that share a buffer and lock the bytes that they touch.
//!
//! ```text
//! cargo run -p rangelock --example parts
//! ```
//! Each thread moves an amount between two accounts. It locks the bytes of both in one call, so that no order of locks
//! can deadlock; transfers between other accounts go on meanwhile.
#![forbid(unsafe_code)]

use rangelock::{Mode, RangeLock};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const ACCOUNTS: u64 = 64;
const BYTES_OF_EACH: u64 = 8;

/// Where an account lies.
fn bytes_of(account: u64) -> Range<u64> {
    account * BYTES_OF_EACH..(account + 1) * BYTES_OF_EACH
}

fn main() {
    let lock = RangeLock::with_geometry(16, 64);
    let balances: Vec<AtomicU64> = (0..ACCOUNTS).map(|_| AtomicU64::new(100)).collect();
    let balance = |account: u64| &balances[usize::try_from(account).expect("few accounts")];

    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (lock, balance) = (&lock, &balance);
            scope.spawn(move || {
                for step in 0..10_000 {
                    let from = (step * 7 + thread) % ACCOUNTS;
                    let to = (from + 1 + step % (ACCOUNTS - 1)) % ACCOUNTS;
                    let _both =
                        lock.lock_pair((bytes_of(from), Mode::Exclusive), (bytes_of(to), Mode::Exclusive));
                    let amount = balance(from).load(Ordering::Relaxed).min(1);
                    balance(from).fetch_sub(amount, Ordering::Relaxed);
                    balance(to).fetch_add(amount, Ordering::Relaxed);
                }
            });
        }
    });

    // Readers share; a writer would wait here.
    let _all = lock.lock(0..u64::MAX, Mode::Shared);
    let sum: u64 = balances.iter().map(|balance| balance.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, ACCOUNTS * 100);
    println!("{} transfers, and the sum is still {sum}", 4 * 10_000);
}
