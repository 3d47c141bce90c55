//! Attributes inside the inode (short form): a header, then entries packed without alignment.
//!
//! Invariant: every entry that [`ShortAttrs::entries`] yields lies within the bytes that the header counts, which
//! lie within the inode; the entries end exactly there.

use super::{AttrFlags, is_valid_name};
use crate::error::FormatError;

/// The name of this form in errors.
pub const SHORT_ATTRS: &str = "short attributes";
const HEADER_LEN: usize = 4;

/// With names or values from this length on, kernels put an attribute into a leaf, though the length would fit here.
/// Longer ones are read all the same.
const LONG: usize = 255;

/// Attributes inside the inode.
#[derive(Clone, Copy, Debug)]
pub struct ShortAttrs<'a> {
    /// How many.
    pub count: u8,
    entries: &'a [u8],
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortAttr<'a> {
    /// Its namespace.
    pub flags: AttrFlags,
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl ShortAttr<'_> {
    /// Whether kernels would put it into an inode that has room for it.
    pub fn is_short(&self) -> bool {
        self.name.len() < LONG && self.value.len() < LONG
    }

    /// Flags that are never set inside an inode: the attribute is incomplete, or its value lies
    /// elsewhere.
    pub fn check_flags(&self) -> Result<(), FormatError> {
        match self.flags.intersects(AttrFlags::LOCAL | AttrFlags::INCOMPLETE) {
            true => Err(FormatError::value(SHORT_ATTRS, "attribute flags", self.flags.bits().into())),
            false => Ok(()),
        }
    }
}

impl<'a> ShortAttrs<'a> {
    /// Reads the header. `bytes` is the fork's room, or as much of it as is used.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let short = || FormatError::value(SHORT_ATTRS, "size", bytes.len() as u64);
        let (&[high, low, count, _pad], _) = bytes.split_first_chunk::<HEADER_LEN>().ok_or_else(short)?;
        let total = u16::from_be_bytes([high, low]);
        let entries = bytes.get(HEADER_LEN..total.into()).ok_or(FormatError::mismatch(
            SHORT_ATTRS,
            "total size",
            total.into(),
            bytes.len() as u64,
        ))?;
        Ok(Self { count, entries })
    }

    /// The attributes in order; the iterator ends behind the first error.
    pub fn entries(&self) -> ShortAttrEntries<'a> {
        ShortAttrEntries { rest: self.entries, left: self.count, done: false }
    }
}

/// The short form of these attributes; `None` if they do not fit, whatever the inode's size.
pub fn encode_short<'a>(attrs: impl IntoIterator<Item = ShortAttr<'a>>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_LEN];
    let mut count = 0u8;
    for attr in attrs {
        count = count.checked_add(1)?;
        let (name_len, value_len) =
            (u8::try_from(attr.name.len()).ok()?, u8::try_from(attr.value.len()).ok()?);
        bytes.extend_from_slice(&[name_len, value_len, attr.flags.namespace().bits()]);
        bytes.extend_from_slice(attr.name);
        bytes.extend_from_slice(attr.value);
    }
    let [high, low] = u16::try_from(bytes.len()).ok()?.to_be_bytes();
    bytes.splice(..HEADER_LEN, [high, low, count, 0]);
    Some(bytes)
}

/// Attributes of the short form.
#[derive(Debug)]
pub struct ShortAttrEntries<'a> {
    rest: &'a [u8],
    left: u8,
    done: bool,
}

impl<'a> ShortAttrEntries<'a> {
    fn take(&mut self) -> Result<ShortAttr<'a>, FormatError> {
        let outside = || FormatError::new(SHORT_ATTRS, "entry outside the inode");
        let (&[name_len, value_len, flags], rest) = self.rest.split_first_chunk::<3>().ok_or_else(outside)?;
        let (name, rest) = rest.split_at_checked(name_len.into()).ok_or_else(outside)?;
        let (value, rest) = rest.split_at_checked(value_len.into()).ok_or_else(outside)?;
        let flags = AttrFlags::from_disk(SHORT_ATTRS, flags)?;
        if !is_valid_name(name) {
            return Err(FormatError::new(SHORT_ATTRS, "attribute name"));
        }
        self.rest = rest;
        Ok(ShortAttr { flags, name, value })
    }
}

impl<'a> Iterator for ShortAttrEntries<'a> {
    type Item = Result<ShortAttr<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.done = true;
            let behind = self.rest.len() as u64;
            return (behind != 0)
                .then(|| Err(FormatError::value(SHORT_ATTRS, "bytes behind the last entry", behind)));
        };
        self.left = left;
        let item = self.take();
        self.done = item.is_err();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = vec![0, 0, 2, 0];
        for (name, value, flags) in [(&b"one"[..], &b"1"[..], 0u8), (b"selinux", b"label\0", 4)] {
            bytes.extend([name.len() as u8, value.len() as u8, flags]);
            bytes.extend(name);
            bytes.extend(value);
        }
        bytes[1] = bytes.len() as u8;
        bytes
    }

    #[test]
    fn entries_come_in_order_whatever_lies_behind() {
        let mut bytes = sample();
        bytes.extend([0xaa; 9]);
        let attrs = ShortAttrs::parse(&bytes).unwrap();
        let all: Vec<_> = attrs.entries().collect::<Result<_, _>>().unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[1], ShortAttr { flags: AttrFlags::SECURE, name: b"selinux", value: b"label\0" });
    }

    #[test]
    fn what_is_encoded_is_read_back() {
        let bytes = sample();
        let all: Vec<_> = ShortAttrs::parse(&bytes).unwrap().entries().map(Result::unwrap).collect();
        assert_eq!(encode_short(all.iter().copied()).as_deref(), Some(&*bytes));
        assert_eq!(encode_short([]), Some(vec![0, 4, 0, 0]));
        assert_eq!(encode_short([ShortAttr { value: &[0; 256], ..all[0] }]), None);
        assert_eq!(encode_short(std::iter::repeat_n(all[0], 256)), None);
        assert!(encode_short(std::iter::repeat_n(all[0], 255)).is_some());
    }

    #[test]
    fn lies_are_found() {
        let check = |at: usize, byte: u8| {
            let mut bytes = sample();
            bytes[at] = byte;
            match ShortAttrs::parse(&bytes) {
                Err(problem) => problem.check,
                Ok(attrs) => attrs.entries().find_map(Result::err).expect("a lie is found").check,
            }
        };
        assert_eq!(check(1, 3), "total size");
        assert_eq!(check(1, 200), "total size");
        assert_eq!(check(2, 1), "bytes behind the last entry");
        assert_eq!(check(2, 3), "entry outside the inode");
        assert_eq!(check(6, 6), "attribute flags");
        assert_eq!(check(6, 0x10), "attribute flags");
        assert_eq!(check(8, 0), "attribute name");
    }
}
