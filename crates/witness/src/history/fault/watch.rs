//! Notices what hangs, and what panics in a thread that nobody waits for.
//!
//! Invariant: an attempt that takes longer than the limit ends the command, as its threads cannot be ended.

use anyhow::{Result, anyhow};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// What a command that hangs ends with: as for any witness that has something against it.
const HUNG: i32 = 1;

static PANICS: AtomicU64 = AtomicU64::new(0);
static LAST: Mutex<String> = Mutex::new(String::new());

/// How many panics there were in any thread.
fn panics() -> u64 {
    PANICS.load(Ordering::SeqCst)
}

/// What the last one said.
fn last_panic() -> String {
    LAST.lock().map(|text| text.clone()).unwrap_or_default()
}

/// Watches attempts.
#[derive(Debug)]
pub struct Watch {
    running: Arc<Mutex<HashMap<u64, (Instant, String)>>>,
    next: AtomicU64,
}

/// An attempt under way.
#[derive(Debug)]
pub struct Watched<'a>(&'a Watch, u64);

impl Watch {
    /// Attempts hang after `limit` seconds.
    pub fn start(limit: u64) -> Self {
        static HOOK: OnceLock<()> = OnceLock::new();
        HOOK.get_or_init(|| {
            std::panic::set_hook(Box::new(|info| {
                PANICS.fetch_add(1, Ordering::SeqCst);
                eprintln!("{info}");
                if let Ok(mut last) = LAST.lock() {
                    *last = info.to_string();
                }
            }));
        });
        let running: Arc<Mutex<HashMap<u64, (Instant, String)>>> = Arc::default();
        let watched = Arc::downgrade(&running);
        std::thread::spawn(move || {
            while let Some(running) = watched.upgrade() {
                let now = Instant::now();
                for (since, what) in running.lock().expect("no panic").values() {
                    if now - *since > Duration::from_secs(limit) {
                        println!("{what}: FAILED: hangs for {limit} s");
                        exit(HUNG);
                    }
                }
                drop(running);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Self { running, next: AtomicU64::new(0) }
    }

    /// Watches an attempt: it is an error if it panics, or a thread does that it does not wait for.
    pub fn attempt(&self, what: String, attempt: impl FnOnce() -> Result<()>) -> Result<()> {
        let _watched = self.over(what);
        let before = panics();
        let tried = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|_| Err(anyhow!("panicked")));
        if panics() == before { tried } else { Err(anyhow!("a thread panicked: {}", last_panic())) }
    }

    /// Watches until the result goes.
    pub fn over(&self, what: String) -> Watched<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().expect("no panic").insert(number, (Instant::now(), what));
        Watched(self, number)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Ok(mut running) = self.0.running.lock() {
            running.remove(&self.1);
        }
    }
}
