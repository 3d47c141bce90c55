//! Failures that don't end a verb: each has its line on standard error, and the exit code tells that there
//! were some.
//!
//! Invariant: lines are bounded in number and length, whatever an image holds: after the first
//! [`MAX_LINES`], failures are only counted, and the last line gives their number.

use crate::exit::{Exit, Result, host_name};
use crate::interrupt;
use crate::location::Location;
use indicatif::ProgressBar;
use std::io::Write;
use std::path::Path;

/// Failures that get a line of their own.
const MAX_LINES: u64 = 1000;
/// The most bytes of a path to print; of a longer one, both ends are printed.
const MAX_PATH: usize = 4096;

/// Writes one line to standard error. If no one reads it, the work goes on nevertheless.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "uxfs: {line}");
}

/// Counts failures and reports each one.
#[derive(Default)]
pub struct Problems {
    count: u64,
    progress: Option<ProgressBar>,
}

impl Problems {
    /// None so far; lines go around `progress`.
    pub fn beside(progress: &ProgressBar) -> Self {
        Self { count: 0, progress: Some(progress.clone()) }
    }

    /// Something at `path` in an image failed.
    pub fn at(&mut self, image: &Path, path: &[u8], what: impl std::fmt::Display) {
        self.say(&format!("{}: {}: {what}", host_name(image), short(path)));
    }

    /// One line, without the name of the command.
    pub fn say(&mut self, line: &str) {
        self.count += 1;
        if self.count <= MAX_LINES {
            self.write(line);
        }
    }

    fn write(&self, line: &str) {
        match &self.progress {
            Some(progress) => progress.suspend(|| complain(line)),
            None => complain(line),
        }
    }

    /// How many there were.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The exit code of a verb that did what it could.
    pub fn exit(&self) -> Exit {
        if self.count == 0 { Exit::Ok } else { Exit::Partial }
    }
}

impl Drop for Problems {
    fn drop(&mut self) {
        if let Some(more) = self.count.checked_sub(MAX_LINES).filter(|&more| more > 0) {
            self.write(&format!("{more} more failures, which are not listed"));
        }
    }
}

/// A path shortened for a line. It may have thousands of directories.
pub fn short(path: &[u8]) -> String {
    if path.len() <= MAX_PATH {
        return uxfs::printable(path);
    }
    let (start, end) = (&path[..MAX_PATH / 2], &path[path.len() - MAX_PATH / 2..]);
    format!("{} [{} bytes] {}", uxfs::printable(start), path.len() - MAX_PATH, uxfs::printable(end))
}

/// Does something for each location. A failure ends the verb if there is just one location. Otherwise it is
/// reported and the rest goes on. If nothing was done, as no volume could be opened, the exit code says why.
pub fn for_each(
    locations: &[Location],
    problems: &mut Problems,
    mut run: impl FnMut(&Location, &mut Problems) -> Result<()>,
) -> Result<Exit> {
    let mut failed = Vec::new();
    for location in locations {
        interrupt::check()?;
        match run(location, problems) {
            Ok(()) => {}
            Err(failure)
                if locations.len() == 1 || failure.is_quiet() || failure.exit() == Exit::Interrupted =>
            {
                return Err(failure);
            }
            Err(failure) => {
                failed.push(failure.exit());
                problems.say(&failure.to_string());
            }
        }
    }
    let of_volume = |exit: &Exit| matches!(exit, Exit::Unsupported | Exit::DirtyLog | Exit::Locked);
    match failed.first().copied().filter(of_volume) {
        Some(exit) if failed.len() == locations.len() && failed.iter().all(|other| *other == exit) => {
            Ok(exit)
        }
        _ => Ok(problems.exit()),
    }
}
