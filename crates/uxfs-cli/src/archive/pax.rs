//! Records of an extended header: `LENGTH KEY=VALUE` and a newline, where the length counts itself.

/// Bytes that the records of one entry may have.
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

    /// Adds an attribute, unless there would be too many bytes: whether it is in.
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
    fn lists_are_written_as_text() {
        let list = [
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 0xe8, 3, 0, 0, 0x20, 0, 4, 0, 255, 255,
            255, 255,
        ];
        assert_eq!(acl_text(&list).as_deref(), Some("user::rwx,user:1000:r-x,other::r--"));
        assert_eq!(acl_text(&[1, 0, 0, 0]), None);
    }
}
