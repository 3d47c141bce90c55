//! Options that every verb takes, and how numbers of bytes are written.

use crate::exit::{Exit, Failure, Result};
use clap::Args;
use uxfs::Timestamp;

/// Options of every verb.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every verb")]
pub struct Global {
    /// Where the volume starts in the image, in bytes (or with a suffix: K, M, G, T, s for 512-byte sectors).
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    pub offset: u64,
    /// How long the part of the image is that holds the volume; all the rest if it is not said.
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Read a volume whose log is dirty as it is, without replaying the log.
    #[arg(long, global = true)]
    pub norecovery: bool,
    /// Memory that caches of metadata and of pages may take together. Verbs that go through many files (cp, tar, untar, rm) take
    /// half as much again at most, and 192 MiB for all else.
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size, default_value = "64M")]
    pub cache_size: u64,
    /// Print JSON: one object, or one a line.
    #[arg(long, global = true)]
    pub json: bool,
    /// Write names as they are, with all that a terminal would obey. Programs do better with --json, or find --print0.
    #[arg(long, global = true)]
    pub raw: bool,
    /// Say more about what is being done.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// When all changes happen, if they don't happen by the clock.
    #[arg(skip)]
    pub time: Option<Timestamp>,
}

/// What the help of verbs that change volumes says of the time.
pub const TIME_HELP: &str = "\
With SOURCE_DATE_EPOCH in the environment, in seconds since 1970, that is when all that is changed changes.";

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

    /// The same, but that all changes happen when the environment says, if it does.
    pub fn at_source_date(&self) -> Result<Self> {
        Ok(Self { time: source_date()?, ..self.clone() })
    }
}

/// The time that reproducible builds give to what they make: `SOURCE_DATE_EPOCH` of the environment.
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
