//! Watches one process: its time, its memory, and how it ends.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often it is checked.
const TURN: Duration = Duration::from_millis(4);
/// Ticks per second in the kernel's times of a process, on every machine that Linux runs on today.
const TICKS: u64 = 100;
/// Bytes of standard error that are read. More is too much.
const STDERR_MAX: u64 = 8 << 20;
/// The highest documented exit code.
const EXIT_MAX: i32 = 14;

/// What a process may use.
pub struct Limits {
    /// Processor time.
    pub cpu: Duration,
    /// Elapsed time, some of which it may spend waiting for a processor: a limit for what sleeps for ever.
    pub wall: Duration,
    /// Memory.
    pub rss: u64,
}

/// How it ended.
#[derive(Debug)]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By a signal that we did not send.
    Signal(i32),
    /// It was ended because it took too long.
    Hung,
    /// It was ended because it took too much memory.
    Memory,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "{code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Hung => f.write_str("hung"),
            Self::Memory => f.write_str("memory"),
        }
    }
}

/// What it did.
pub struct Done {
    /// How it ended.
    pub end: End,
    /// Peak memory.
    pub rss: u64,
    /// Processor time.
    pub cpu: Duration,
    /// What it said.
    pub said: String,
}

impl Done {
    /// What is wrong, if it did what no process may do.
    pub fn wrong(&self) -> Option<String> {
        let said: String = self.said.chars().rev().take(400).collect::<Vec<_>>().into_iter().rev().collect();
        match self.end {
            _ if self.said.contains("panicked") => Some(format!("panicked: {said}")),
            End::Exit(code) if (0..=EXIT_MAX).contains(&code) => {
                (self.said.len() as u64 >= STDERR_MAX).then(|| "there is no end of complaints".to_owned())
            }
            End::Exit(code) => Some(format!("exit code {code}: {said}")),
            ref end => Some(format!("{end}: {said}")),
        }
    }
}

/// Runs it.
pub fn run(program: &Path, args: &[OsString], stdout: &Path, limits: &Limits) -> Result<Done> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(File::create(stdout)?)
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{}", program.display()))?;
    let pipe = child.stderr.take().context("a pipe")?;
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // When the limit is reached, the pipe is closed, which ends the process.
        let _ = pipe.take(STDERR_MAX).read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    });
    let started = Instant::now();
    let (mut rss, mut cpu) = (0, Duration::ZERO);
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break match (status.code(), status.signal()) {
                (Some(code), _) => End::Exit(code),
                (None, signal) => End::Signal(signal.unwrap_or_default()),
            };
        }
        rss = rss.max(memory(child.id()).unwrap_or_default());
        cpu = cpu.max(time(&child).unwrap_or_default());
        let too_long = cpu > limits.cpu || started.elapsed() > limits.wall;
        if too_long || rss > limits.rss {
            child.kill()?;
            child.wait()?;
            break if too_long { End::Hung } else { End::Memory };
        }
        std::thread::sleep(TURN);
    };
    let said = reader.join().unwrap_or_default();
    Ok(Done { end, rss, cpu, said })
}

/// Peak memory. `None` until it runs its own program: for a moment it has the memory of its parent, which is us.
fn memory(pid: u32) -> Option<u64> {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    if program(&pid.to_string())? == program("self")? {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Processor time that it took.
fn time(child: &Child) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The name may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `hostile` reported a run that had not begun, because it had the 670 MiB of `witness`.
    #[test]
    fn a_process_is_not_charged_with_the_memory_of_who_started_it() {
        assert_eq!(memory(std::process::id()), None);
    }

    #[test]
    fn a_process_that_takes_too_much_is_ended() {
        let limits = Limits { cpu: Duration::from_secs(60), wall: Duration::from_secs(60), rss: 32 << 20 };
        let args = ["if=/dev/zero", "of=/dev/null", "bs=64M", "count=1000"].map(OsString::from);
        let done = run(Path::new("/bin/dd"), &args, Path::new("/dev/null"), &limits).expect("run");
        assert!(matches!(done.end, End::Memory), "{:?} with {} bytes", done.end, done.rss);
    }
}
