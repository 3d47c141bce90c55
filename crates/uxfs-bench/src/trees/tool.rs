//! A timed program, with its peak memory.

use crate::error::{Error, Result};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the memory of a program is asked for. The kernel keeps the most that it had: what is missed is what it grew by
/// in its last moment.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A program to run.
pub(super) struct Tool<'a> {
    name: &'static str,
    command: &'a mut Command,
}

/// What one took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    pub(super) wall: Duration,
    /// The most memory that it had resident at once.
    pub(super) peak_kib: u64,
}

impl<'a> Tool<'a> {
    pub(super) fn new(name: &'static str, command: &'a mut Command) -> Self {
        Self { name, command }
    }

    /// Runs it to its end, and reads what it writes and throws that away. It must succeed.
    pub(super) fn run(self) -> Result<Ran> {
        let Self { name, command } = self;
        let failed = |message: String| Error::Program { program: name, message };
        let start = Instant::now();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let over = AtomicBool::new(false);
        let (id, over) = (child.id(), &over);
        let (said, ended, wall, peak_kib) = std::thread::scope(|scope| {
            let peak = scope.spawn(|| peak_kib(id, over));
            let said = read_all(&mut child);
            let ended = child.wait();
            let wall = start.elapsed();
            over.store(true, Ordering::Relaxed);
            (said, ended, wall, peak.join().unwrap_or_default())
        });
        let status = ended.map_err(|error| failed(error.to_string()))?;
        if status.success() {
            return Ok(Ran { wall, peak_kib });
        }
        Err(failed(format!("{status}: {}", said.trim())))
    }
}

/// Reads both ends to the last byte; gives what it said on standard error.
fn read_all(child: &mut Child) -> String {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let said = scope.spawn(|| {
            let mut said = Vec::new();
            // Where it cannot be read there is nothing to show.
            let _ = err.map(|mut err| err.read_to_end(&mut said));
            String::from_utf8_lossy(&said).into_owned()
        });
        if let Some(mut out) = out {
            let mut buf = vec![0; 1 << 20];
            while out.read(&mut buf).is_ok_and(|count| count > 0) {}
        }
        said.join().unwrap_or_default()
    })
}

/// The most memory that a process has had resident, as long as it is there.
fn peak_kib(id: u32, over: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !over.load(Ordering::Relaxed) {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        // None of a process that has ended and was not waited for.
        peak = high_water_kib(&status).unwrap_or(peak);
        std::thread::sleep(LOOK_EVERY);
    }
    peak
}

fn high_water_kib(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_timed_and_its_memory_is_seen() {
        let mut command = Command::new("sh");
        let ran = Tool::new("sh", command.args(["-c", "sleep 0.1; echo out"])).run().expect("it ends well");
        assert!(ran.wall >= Duration::from_millis(100) && ran.peak_kib > 100, "{ran:?}");
        assert_eq!(high_water_kib("Name:\tx\nVmHWM:\t  1234 kB\nVmRSS:\t 1 kB\n"), Some(1234));
        assert_eq!(high_water_kib("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_what_it_said() {
        let mut command = Command::new("sh");
        let failed = Tool::new("sh", command.args(["-c", "echo why >&2; exit 3"])).run().expect_err("3");
        assert!(failed.to_string().contains("sh: exit status: 3: why"), "{failed}");
    }
}
