//! Standard output: names, numbers, times, JSON.
//!
//! A name with characters that control a terminal is always escaped: sooner or later someone looks at it. If standard
//! output is no terminal, other names are written as they are, so that programs get the exact bytes; `--raw` does that
//! for all names. In JSON a name is a string; if it isn't UTF-8, its bytes are added in hexadecimal.

use crate::exit::Result;
use crate::flags::letters;
use crate::options::Global;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use uxfs::{FileType, Metadata, Timestamp};

/// A JSON object under construction.
pub type Object = Map<String, Value>;

/// Standard output, buffered. Call [`finish`](Self::finish): writing the rest of the buffer can fail,
/// too.
pub struct Output {
    out: BufWriter<Stdout>,
    terminal: bool,
    raw: bool,
    json: bool,
}

impl Output {
    /// Standard output, in the requested form.
    pub fn new(global: &Global) -> Self {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        Self { out: BufWriter::with_capacity(1 << 16, stdout), terminal, raw: global.raw, json: global.json }
    }

    /// Whether JSON is requested.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a name or a path.
    pub fn name(&mut self, name: &[u8]) -> Result<()> {
        if !self.raw && (self.terminal || !uxfs::is_plain(name)) {
            self.out.write_all(uxfs::printable(name).as_bytes())?;
        } else {
            self.out.write_all(name)?;
        }
        Ok(())
    }

    /// Writes text.
    pub fn text(&mut self, text: impl std::fmt::Display) -> Result<()> {
        Ok(write!(self.out, "{text}")?)
    }

    /// Writes bytes of a file.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Writes a JSON object as one line.
    pub fn object(&mut self, object: Object) -> Result<()> {
        let text = Value::Object(object).to_string();
        if self.raw || uxfs::is_plain(text.as_bytes()) {
            return Ok(writeln!(self.out, "{text}")?);
        }
        Ok(writeln!(self.out, "{}", escape(&text))?)
    }

    /// Flushes the buffer.
    pub fn finish(mut self) -> Result<()> {
        Ok(self.out.flush()?)
    }
}

/// JSON with control characters written as escapes. They occur only in strings, where that means the same.
fn escape(json: &str) -> String {
    use std::fmt::Write as _;
    json.chars().fold(String::with_capacity(json.len() + 16), |mut text, c| {
        if uxfs::is_plain(c.encode_utf8(&mut [0; 4]).as_bytes()) {
            text.push(c);
        } else {
            // All of them have four digits; writing to a string does not fail.
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        }
        text
    })
}

/// Puts a name into a JSON object: `key`, and `key_bytes` where it isn't UTF-8.
pub fn put_name(object: &mut Object, key: &str, name: &[u8]) {
    object.insert(key.to_owned(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        object.insert(format!("{key}_bytes"), hex(name).into());
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Adds the metadata of `stat` to a JSON object.
pub fn put_metadata(object: &mut Object, of: &Metadata) {
    let fields = json!({
        "ino": of.ino,
        "type": type_word(of.file_type),
        "mode": format!("{:04o}", of.permissions()),
        "nlink": of.nlink,
        "uid": of.uid,
        "gid": of.gid,
        "size": of.size,
        "blocks": of.blocks,
        "atime": rfc3339(of.atime),
        "mtime": rfc3339(of.mtime),
        "ctime": rfc3339(of.ctime),
        "btime": of.btime.map(rfc3339),
        "rdev": of.rdev.map(|rdev| json!({ "major": rdev.major, "minor": rdev.minor })),
        "project_id": of.project_id,
        "xflags": of.xflags,
        "flags": letters(of),
        "extent_size": of.extent_size,
        "generation": of.generation,
        "extents": of.extents,
    });
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
}

/// A type as one word, for JSON.
pub fn type_word(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "char-device",
        FileType::BlockDevice => "block-device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Unknown => "unknown",
    }
}

/// Type and permissions as `ls -l` shows them: `drwxr-xr-x`.
pub fn mode_text(metadata: &Metadata) -> String {
    let mode = metadata.mode;
    let mut text = String::with_capacity(10);
    text.push(metadata.file_type.letter());
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A human-readable number of bytes: `512`, `1.5K`, `23M`; rounded up, as by `ls -h` and `du -h`.
pub fn human_size(bytes: u64) -> String {
    const UNITS: &[u8] = b"KMGTPE";
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit: u128 = 1024;
    let bytes = u128::from(bytes);
    for &letter in UNITS {
        let tenths = (bytes * 10).div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{}", tenths / 10, tenths % 10, char::from(letter));
        }
        let whole = bytes.div_ceil(unit);
        if whole < 1024 {
            return format!("{whole}{}", char::from(letter));
        }
        unit *= 1024;
    }
    format!("{}E", bytes.div_ceil(1 << 60))
}

/// A time in UTC to the nanosecond, in the form of RFC 3339.
pub fn rfc3339(time: Timestamp) -> String {
    match moment(time) {
        Some(moment) => format!("{}", moment.strftime("%Y-%m-%dT%H:%M:%S.%9fZ")),
        None => format!("@{}.{:09}", time.seconds, time.nanoseconds),
    }
}

/// A time in the host's time zone, to the minute.
pub fn short_time(time: Timestamp) -> String {
    local_time(time, "%Y-%m-%d %H:%M")
}

/// A time in the host's time zone, to the nanosecond.
pub fn full_time(time: Timestamp) -> String {
    local_time(time, "%Y-%m-%d %H:%M:%S.%9f %z")
}

fn local_time(time: Timestamp, format: &str) -> String {
    match moment(time) {
        Some(moment) => {
            format!("{}", moment.to_zoned(jiff::tz::TimeZone::system()).strftime(format))
        }
        None => format!("@{}.{:09}", time.seconds, time.nanoseconds),
    }
}

fn moment(time: Timestamp) -> Option<jiff::Timestamp> {
    let seconds = jiff::Timestamp::from_second(time.seconds).ok()?;
    seconds.checked_add(jiff::SignedDuration::from_nanos(time.nanoseconds.into())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people_round_up() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_189, "10K"),
            (9 * 1024, "9.0K"),
            (10 * 1024, "10K"),
            (1023 * 1024 + 1, "1.0M"),
            (1 << 30, "1.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn moments_before_1970_count_their_nanoseconds_forward() {
        let time = Timestamp { seconds: -1, nanoseconds: 250_000_000 };
        assert_eq!(rfc3339(time), "1969-12-31T23:59:59.250000000Z");
        assert_eq!(
            rfc3339(Timestamp { seconds: 16_299_260_424, nanoseconds: 1 }),
            "2486-07-02T20:20:24.000000001Z"
        );
    }

    #[test]
    fn json_has_nothing_to_obey_and_means_the_same() {
        let name = "a\u{9b}b\u{202e}c\u{7f}d\u{e9}";
        let escaped = escape(&json!({ "name": name }).to_string());
        assert_eq!(escaped, "{\"name\":\"a\\u009bb\\u202ec\\u007fd\u{e9}\"}");
        assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap()["name"], name);
    }

    #[test]
    fn names_that_are_not_utf8_have_their_bytes_in_json() {
        let mut object = Object::new();
        put_name(&mut object, "name", b"a\xff");
        assert_eq!(object["name_bytes"], "61ff");
        put_name(&mut object, "other", "é".as_bytes());
        assert_eq!(object["other"], "é");
        assert!(!object.contains_key("other_bytes"));
    }
}
