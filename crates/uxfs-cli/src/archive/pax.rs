//! Records of an extended header: `LENGTH KEY=VALUE` and a newline, where the length counts itself.

use uxfs::Timestamp;

/// Limit for the records of one entry.
pub const MAX_BYTES: usize = 16 << 20;

/// Records of one entry.
#[derive(Default)]
pub struct Records {
    bytes: Vec<u8>,
}

impl Records {
    /// Adds a record. The value may be any bytes; the key has no `=` in it.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        // Space, equals sign, newline.
        let rest = key.len() + value.len() + 3;
        let mut len = rest + digits(rest);
        if digits(len) != digits(rest) {
            len = rest + digits(len);
        }
        self.bytes.extend(len.to_string().into_bytes());
        self.bytes.push(b' ');
        self.bytes.extend(key);
        self.bytes.push(b'=');
        self.bytes.extend(value);
        self.bytes.push(b'\n');
    }

    /// Adds an attribute, and gives whether there was room for it.
    pub fn add_xattr(&mut self, name: &[u8], value: &[u8]) -> bool {
        let key = xattr_key(name);
        if self.bytes.len() + key.len() + value.len() > MAX_BYTES {
            return false;
        }
        self.add(&key, value);
        true
    }

    /// The header's content.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The key of an attribute: a key has no `=`, so that one in the name is written as `%3D`, and `%` as `%25`.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'%' => key.extend(b"%25"),
            b'=' => key.extend(b"%3D"),
            byte => key.push(byte),
        }
    }
    key
}

/// The records of an extended header: key and value of each, and a `None` where it is broken. A value may have any
/// bytes, newlines too.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() || bytes.first() == Some(&0) {
            return None;
        }
        let record = next_record(&mut bytes);
        if record.is_none() {
            bytes = &[];
        }
        Some(record)
    })
}

fn next_record<'a>(bytes: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let len: usize = std::str::from_utf8(bytes.get(..space)?).ok()?.parse().ok()?;
    let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    *bytes = bytes.get(len..)?;
    Some((record.get(..equals)?, record.get(equals + 1..)?))
}

/// A time from its decimal number.
pub fn moment(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let seconds: i64 = if whole == "-" { 0 } else { whole.parse().ok()? };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // Before 1970 a decimal counts away from zero, but nanoseconds count forward.
    Some(match (negative, nanoseconds) {
        (true, 1..) => {
            Timestamp { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }
        }
        _ => Timestamp { seconds, nanoseconds },
    })
}

/// The name of an attribute from its key: the reverse of [`xattr_key`].
pub fn xattr_name(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    let mut rest = key;
    while let Some((&byte, behind)) = rest.split_first() {
        let (byte, behind) = match (byte, behind) {
            (b'%', [b'2', b'5', behind @ ..]) => (b'%', behind),
            (b'%', [b'3', b'D', behind @ ..]) => (b'=', behind),
            other => other,
        };
        name.push(byte);
        rest = behind;
    }
    name
}

/// An access control list in the form of Linux, from its text; `None` if it names users without a number.
pub fn acl_of_text(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']).map(|entry| entry.split('#').next().unwrap_or_default().trim()) {
        if entry.is_empty() {
            continue;
        }
        let mut parts = entry.split(':');
        let (tag, who, bits) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
        // `other::r--`, but also `other:r--`.
        let (who, bits) = if bits.is_empty() { ("", who) } else { (who, bits) };
        let mut id = || who.parse().ok().or_else(|| parts.next()?.parse::<u32>().ok());
        let (tag, id) = match (tag, who) {
            ("user" | "u", "") => (0x01_u16, u32::MAX),
            ("user" | "u", _) => (0x02, id()?),
            ("group" | "g", "") => (0x04, u32::MAX),
            ("group" | "g", _) => (0x08, id()?),
            ("mask" | "m", _) => (0x10, u32::MAX),
            ("other" | "o", _) => (0x20, u32::MAX),
            _ => return None,
        };
        let bit = |letter, bit| if bits.contains(letter) { bit } else { 0 };
        entries.push((tag, id, bit('r', 4_u16) | bit('w', 2) | bit('x', 1)));
    }
    entries.sort_unstable();
    let mut list = vec![2, 0, 0, 0];
    for (tag, id, permissions) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    Some(list)
}

/// An access control list as text, from the form that Linux gives; `None` if it is not one.
pub fn acl_text(linux: &[u8]) -> Option<String> {
    let entries = linux.strip_prefix(&[2, 0, 0, 0])?;
    let mut text = String::new();
    for entry in entries.chunks_exact(8) {
        let (tag, permissions) = (*entry.first()?, *entry.get(2)?);
        let id = u32::from_le_bytes(*entry.get(4..)?.first_chunk()?);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&who);
        text.push(':');
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if permissions & bit != 0 { letter } else { '-' });
        }
    }
    Some(text)
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_counts_itself() {
        for value_len in 0..1200 {
            let mut records = Records::default();
            records.add(b"key", &vec![b'x'; value_len]);
            let bytes = records.as_bytes();
            let space = bytes.iter().position(|&byte| byte == b' ').unwrap();
            let len: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
            assert_eq!(len, bytes.len(), "value of {value_len} bytes");
        }
    }

    #[test]
    fn names_of_attributes_are_escaped() {
        let mut records = Records::default();
        assert!(records.add_xattr(b"user.a=b%", b"v"));
        assert_eq!(records.as_bytes(), b"32 SCHILY.xattr.user.a%3Db%25=v\n".as_slice());
        assert!(!records.add_xattr(b"user.big", &vec![0; MAX_BYTES]));
    }

    #[test]
    fn what_is_written_is_read() {
        let mut records = Records::default();
        records.add(b"path", b"a\nb=c");
        assert!(records.add_xattr(b"user.a=b%", b"\0\n\n"));
        let parsed: Vec<_> = super::records(records.as_bytes()).map(Option::unwrap).collect();
        assert_eq!(parsed[0], (&b"path"[..], &b"a\nb=c"[..]));
        assert_eq!(parsed[1], (&b"SCHILY.xattr.user.a%3Db%25"[..], &b"\0\n\n"[..]));
        assert_eq!(xattr_name(b"user.a%3Db%25"), b"user.a=b%");
        for broken in [&b"9 a=b\n"[..], b"x a=b\n", b"6 a=b ", b"99999999999999999999 a=b\n", b"1 "] {
            assert_eq!(super::records(broken).collect::<Vec<_>>(), [None]);
        }
    }

    #[test]
    fn moments_are_decimals() {
        let time = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        for (text, wanted) in [
            ("5", time(5, 0)),
            ("5.000000001", time(5, 1)),
            ("5.1234567899", time(5, 123_456_789)),
            ("-0.75", time(-1, 250_000_000)),
            ("-.75", time(-1, 250_000_000)),
            ("-1.000000001", time(-2, 999_999_999)),
            ("-7", time(-7, 0)),
            ("x", None),
            ("1.-5", None),
        ] {
            assert_eq!(moment(text.as_bytes()), wanted, "{text}");
        }
    }

    #[test]
    fn lists_are_read_from_text() {
        let text = b"user::rwx,other::r--,user:1000:r-x";
        assert_eq!(
            acl_of_text(text).as_deref().and_then(acl_text).unwrap(),
            "user::rwx,user:1000:r-x,other::r--"
        );
        assert_eq!(acl_of_text(b"user::rwx\nuser:ada:rwx:7\n").map(|list| list.len()), Some(20));
        assert_eq!(acl_of_text(b"user:ada:rwx"), None);
    }

    #[test]
    fn lists_are_written_as_text() {
        let list = [
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 0xe8, 3, 0, 0, 0x20, 0, 4, 0, 255, 255,
            255, 255,
        ];
        assert_eq!(acl_text(&list).as_deref(), Some("user::rwx,user:1000:r-x,other::r--"));
        assert_eq!(acl_text(&[1, 0, 0, 0]), None);
    }
}
