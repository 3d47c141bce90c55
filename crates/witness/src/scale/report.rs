//! The measurements, as a table that grows during the runs, and how they grew from size to size.

use super::setting::Setting;
use super::subject::Shape;
use serde::{Deserialize, Serialize};

/// One phase of one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub phase: String,
    pub ops: u64,
    pub seconds: f64,
    /// Of all threads, including the journal's.
    pub cpu_seconds: f64,
    /// Peak of allocated bytes.
    pub heap_peak: u64,
    /// Peak of resident bytes.
    pub resident_peak: u64,
    /// The maximum allowed for `heap_peak`.
    pub memory_bound: u64,
}

impl Measured {
    fn micros_each(&self) -> f64 {
        self.seconds * 1e6 / self.ops as f64
    }

    fn cpu_micros_each(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.ops as f64
    }
}

/// All measurements so far.
pub struct Report {
    rows: Vec<(Shape, u64, Measured)>,
}

/// The phases whose times are divided by the number of parts.
const GROWING: [&str; 3] = ["make", "look up", "remove"];

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

impl Report {
    /// Begins a table.
    pub fn new(setting: &Setting) -> Self {
        let log = setting.log_mib.map_or_else(|| "default".to_owned(), |mib| format!("{mib} MiB"));
        println!(
            "scale: blocks of {} bytes, {log} log, {} MiB of cache, {} thread(s)",
            setting.block_size, setting.cache_mib, setting.threads
        );
        println!(
            "{:<10}{:>9} {:<8}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "shape", "count", "phase", "seconds", "µs each", "cpu µs", "heap MiB", "RSS MiB", "bound MiB"
        );
        Self { rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add(&mut self, shape: Shape, count: u64, measured: Measured) {
        println!(
            "{shape:<10}{count:>9} {:<8}{:>9.3}{:>10.2}{:>10.2}{:>10.1}{:>10.1}{:>10.0}",
            measured.phase,
            measured.seconds,
            measured.micros_each(),
            measured.cpu_micros_each(),
            mib(measured.heap_peak),
            mib(measured.resident_peak),
            mib(measured.memory_bound),
        );
        self.rows.push((shape, count, measured));
    }

    /// Notes what judges said.
    pub fn judged(&self, said: &str) {
        println!("{:>20} {said}", "");
    }

    /// Notes that all blocks are free again.
    pub fn space(&self, free: u64) {
        println!("{:>20} {free} blocks are free again, as before", "");
    }

    /// Whether the rows of the last subject stayed within their bound.
    pub fn within(&self) -> bool {
        let Some((shape, count, _)) = self.rows.last() else { return true };
        let mut within = true;
        for (_, _, row) in self.rows.iter().filter(|row| (row.0, row.1) == (*shape, *count)) {
            if row.heap_peak > row.memory_bound {
                println!("FAILED: {shape} {count} {}: more memory than its bound", row.phase);
                within = false;
            }
        }
        within
    }

    /// How the time per part grew from the smallest to the largest size.
    pub fn growth(&self, shape: Shape) {
        for phase in GROWING {
            let mut rows: Vec<_> =
                self.rows.iter().filter(|(of, _, row)| *of == shape && row.phase == phase).collect();
            rows.sort_by_key(|(_, count, _)| *count);
            if let [(_, least, first), .., (_, most, last)] = rows[..] {
                println!(
                    "{shape}: {phase}: each takes {:.2} times as long at {most} as at {least}, {:.2} times the \
                     processor time; heap peak {:.1} times",
                    last.micros_each() / first.micros_each(),
                    last.cpu_micros_each() / first.cpu_micros_each(),
                    last.heap_peak as f64 / first.heap_peak as f64
                );
            }
        }
    }
}
