//! Options of every verb, and the form of byte counts.

use crate::exit::{Exit, Failure, Result};
use clap::Args;
use std::thread::available_parallelism;
use uxfs::Timestamp;

/// Options of every verb.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every verb")]
pub struct Global {
    /// Start of the volume in the image, in bytes (or with a suffix: K, M, G, T, s for 512-byte sectors).
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    pub offset: u64,
    /// Length of the part of the image that holds the volume (default: all the rest).
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Read a volume with a dirty log as it is, without replaying the log.
    #[arg(long, global = true)]
    pub norecovery: bool,
    /// Memory for the caches of metadata and pages together. Verbs for many files (cp, tar, untar, rm) take at most
    /// half as much again, plus 256 MiB for everything else, plus 8 MiB for each thread above 8.
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size, default_value = "64M")]
    pub cache_size: u64,
    /// Print JSON: one object, or one a line.
    #[arg(long, global = true)]
    pub json: bool,
    /// Write names as they are, with characters that control a terminal. Programs should use --json, or find --print0.
    #[arg(long, global = true)]
    pub raw: bool,
    /// Say more about what is being done.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// The time of all changes, if it is not the clock's.
    #[arg(skip)]
    pub time: Option<Timestamp>,
}

/// The number of threads for verbs on many files.
#[derive(Args, Clone, Copy, Debug)]
pub struct ThreadsArg {
    /// Number of threads that make, read or remove files (default: by verb and number of processors, and 8 at most);
    /// with -v or SOURCE_DATE_EPOCH, only one thread changes an image, in order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

impl ThreadsArg {
    /// The largest default: more would wait for each other.
    const UNASKED_MAX: usize = 8;

    /// The requested number, or this many for each processor.
    pub fn count(self, for_each_processor: usize) -> usize {
        let processors = || available_parallelism().map_or(1, usize::from);
        let unasked = || (processors() * for_each_processor).min(Self::UNASKED_MAX);
        self.threads.map_or_else(unasked, usize::from)
    }

    /// The same for changes of an image: output comes in order, and the same changes at the same time give the same
    /// volume.
    pub fn count_for_changes(self, for_each_processor: usize, is_ordered: bool) -> usize {
        if is_ordered { 1 } else { self.count(for_each_processor) }
    }

    /// The number of threads that read ahead from a slow device.
    pub fn count_ahead(self) -> usize {
        self.threads.map_or(Self::UNASKED_MAX, usize::from)
    }
}

/// The text about the time in the help of verbs that change volumes.
pub const TIME_HELP: &str = "\
With SOURCE_DATE_EPOCH in the environment (seconds since 1970), all changes happen at that time.";

impl Global {
    /// How to open a volume for reading.
    pub fn open_options(&self) -> uxfs::OpenOptions {
        uxfs::OpenOptions::new()
            .norecovery(self.norecovery)
            .offset(self.offset)
            .length(self.length)
            .cache_size(self.cache_size)
            .repeatable(self.time)
    }

    /// Whether changes are made one after the other, in the order of the output.
    pub fn is_ordered(&self) -> bool {
        self.verbose || self.time.is_some()
    }

    /// The same, with the time of the environment for all changes, if it is set.
    pub fn at_source_date(&self) -> Result<Self> {
        Ok(Self { time: source_date()?, ..self.clone() })
    }
}

/// The time of reproducible builds: `SOURCE_DATE_EPOCH` of the environment.
pub fn source_date() -> Result<Option<Timestamp>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let wrong = || {
        let what = format!("SOURCE_DATE_EPOCH: `{}` is not a number of seconds", text.display());
        Failure::new(Exit::Usage, what)
    };
    Ok(Some(Timestamp { seconds: seconds.ok_or_else(wrong)?, nanoseconds: 0 }))
}

/// A number of bytes: digits, and a suffix that multiplies: `s` (512), `K`, `M`, `G`, `T` (powers of 1024,
/// with or without `iB`).
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
    let shift = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "s" => 9,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(format!("`{suffix}` is not a unit; use s, K, M, G or T")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("2048s"), Ok(1 << 20));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("3GiB"), Ok(3 << 30));
        assert!(parse_size("").is_err());
        assert!(parse_size("-1").is_err());
        assert!(parse_size("5X").is_err());
        assert!(parse_size("99999999999T").is_err());
    }
}
