//! Names are bytes. This is how messages show them.

use std::fmt::Write;

/// Longest name of a directory entry, in bytes.
pub const MAX_NAME: usize = 255;

/// A name or path as one line of text: UTF-8 stays as it is, but control characters, backslashes and bytes that
/// are not UTF-8 become `\n`-like or `\ooo` escapes, as `ls -b` writes them.
///
/// ```
/// assert_eq!(uxfs::printable(b"r\xe9sum\xc3\xa9\n"), "r\\351sum\u{e9}\\n");
/// ```
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push_char(&mut out, c));
        chunk.invalid().iter().for_each(|&byte| push_octal(&mut out, byte));
    }
    out
}

/// Whether a name is safe to print: it has no control characters, not even 8-bit ones, and none that changes the text
/// direction. It may have other bytes that are not UTF-8.
pub fn is_plain(name: &[u8]) -> bool {
    name.utf8_chunks().all(|chunk| {
        let plain = !chunk.valid().chars().any(|c| c.is_control() || is_invisible(c));
        plain && !chunk.invalid().iter().any(|byte| matches!(byte, 0x80..=0x9f))
    })
}

fn push_char(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        '\\' => out.push_str("\\\\"),
        c if c.is_control() || is_invisible(c) => {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_octal(out, byte));
        }
        c => out.push(c),
    }
}

/// Characters that change the text direction, or that end a line on some terminals: with them a name could
/// pass for another one.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn push_octal(out: &mut String, byte: u8) {
    // Writing to a string does not fail.
    let _ = write!(out, "\\{byte:03o}");
}

#[cfg(test)]
mod tests {
    use super::{is_plain, printable};

    #[test]
    fn plain_names_have_nothing_to_obey() {
        for plain in [&b"name"[..], b"a b\\c", "r\u{e9}sum\u{e9}".as_bytes(), b"latin \xe9"] {
            assert!(is_plain(plain));
        }
        for other in
            [&b"\x1b[2J"[..], b"a\nb", b"a\x7f", b"\x9b31m", "\u{9b}31m".as_bytes(), "\u{202e}x".as_bytes()]
        {
            assert!(!is_plain(other));
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(printable(b"plain name"), "plain name");
        assert_eq!(printable(b"a\x1b[2Jb"), "a\\033[2Jb");
        assert_eq!(printable(b"a\\b\tc\r\n"), "a\\\\b\\tc\\r\\n");
        assert_eq!(printable("\u{202e}gpj.exe".as_bytes()), "\\342\\200\\256gpj.exe");
        assert_eq!(printable(b"\xff\xfe"), "\\377\\376");
        assert_eq!(printable("\u{9b}".as_bytes()), "\\302\\233");
    }
}
