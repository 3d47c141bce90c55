//! The content of extended headers, which describe the next entry, and its limits.
//!
//! Invariants: no more is kept for an entry than the limits here, even if the archive repeats itself; look-ups do
//! not slow down with the number of records; what applies to all entries is kept once.

use super::pax;
use super::read::{MAX_RUNS, bad, decimal};
use crate::exit::Result;
use std::collections::HashMap;
use uxfs::Timestamp;

/// Limit for the extended headers and long names of one entry: as much as we write for one, and its names.
const MAX_BYTES: u64 = pax::MAX_BYTES as u64 + (1 << 20);
/// Limit for a header for all entries. Those of git have some fifty bytes.
const MAX_GLOBAL_BYTES: u64 = 64 << 10;
/// Bytes of the names of one file's attributes, with their ends: no system lists more (`XATTR_LIST_MAX`).
pub const MAX_NAMES: usize = 64 << 10;

/// Name and value.
type Xattr = (Vec<u8>, Vec<u8>);

/// Values with one record per entry.
const KEYS: [&str; 12] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "gid",
    "atime",
    "mtime",
    "GNU.sparse.major",
    "GNU.sparse.name",
    "GNU.sparse.realsize",
    "GNU.sparse.size",
    "GNU.sparse.map",
];
/// Values that may apply to all entries. Others in such a header are ignored, as they do not describe files.
const GLOBAL_KEYS: [&str; 4] = ["uid", "gid", "atime", "mtime"];

/// What applies to all entries that follow.
#[derive(Default)]
pub struct Global(HashMap<&'static str, Vec<u8>>);

impl Global {
    /// Takes in a header.
    pub fn add(&mut self, text: &[u8]) -> Result<()> {
        for record in pax::records(text) {
            let (key, value) = record.ok_or_else(broken)?;
            if let Some(key) = known(&GLOBAL_KEYS, key) {
                self.0.insert(key, value.to_vec());
                continue;
            }
            let of_one = known(&KEYS, key).is_some()
                || [&b"SCHILY.xattr."[..], b"SCHILY.acl.", b"GNU.sparse."]
                    .iter()
                    .any(|of| key.starts_with(of));
            if of_one {
                return Err(bad(format!("a header for all files says {}", uxfs::printable(key))));
            }
        }
        Ok(())
    }

    /// Fails for a header that is too long.
    pub fn check_size(size: u64) -> Result<()> {
        match size {
            0..=MAX_GLOBAL_BYTES => Ok(()),
            _ => Err(bad(format!("a header for all files of {size} bytes, the most is {MAX_GLOBAL_BYTES}"))),
        }
    }
}

/// What applies to the next entry.
#[derive(Default)]
pub struct Extra {
    /// Bytes so far.
    bytes: u64,
    values: HashMap<&'static str, Vec<u8>>,
    /// Attributes in their order, and which of them has a name.
    xattrs: Vec<Xattr>,
    places: HashMap<Vec<u8>, usize>,
    names_len: usize,
    /// Lists as text: access, default.
    lists: [Option<Vec<u8>>; 2],
    /// Runs of data of a sparse file, in GNU's format 0.0: a record for each number.
    pub runs: Vec<(u64, u64)>,
    offset: Option<u64>,
    /// A long name, as GNU has it.
    pub name: Option<Vec<u8>>,
    /// A long target.
    pub link: Option<Vec<u8>>,
}

impl Extra {
    /// Fails if a header of this many bytes would exceed the limit.
    pub fn take(&mut self, size: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > MAX_BYTES {
            return Err(bad(format!("extended headers of more than {MAX_BYTES} bytes for one file")));
        }
        Ok(())
    }

    /// Reads a header. If a key is repeated, the last one counts.
    pub fn add(&mut self, text: &[u8]) -> Result<()> {
        for record in pax::records(text) {
            let (key, value) = record.ok_or_else(broken)?;
            if let Some(key) = known(&KEYS, key) {
                self.values.insert(key, value.to_vec());
            } else if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                self.xattr(pax::xattr_name(name), value.to_vec())?;
            } else {
                match key {
                    b"SCHILY.acl.access" => self.lists[0] = Some(value.to_vec()),
                    b"SCHILY.acl.default" => self.lists[1] = Some(value.to_vec()),
                    b"GNU.sparse.offset" => self.offset = Some(number("GNU.sparse.offset", value)?),
                    b"GNU.sparse.numbytes" => self.run(number("GNU.sparse.numbytes", value)?)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, len: u64) -> Result<()> {
        let offset = self.offset.take().ok_or_else(|| bad("a run of a sparse file without its place"))?;
        if self.runs.len() == MAX_RUNS {
            return Err(bad(format!("a sparse file with more than {MAX_RUNS} runs")));
        }
        self.runs.push((offset, len));
        Ok(())
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<()> {
        if let Some(&place) = self.places.get(&name) {
            self.xattrs[place].1 = value;
            return Ok(());
        }
        self.names_len += name.len() + 1;
        if self.names_len > MAX_NAMES {
            return Err(bad(format!("a file whose attributes have names of more than {MAX_NAMES} bytes")));
        }
        self.places.insert(name.clone(), self.xattrs.len());
        self.xattrs.push((name, value));
        Ok(())
    }

    /// The value of a key: for this entry, or for all.
    pub fn get<'a>(&'a self, global: &'a Global, key: &str) -> Option<&'a [u8]> {
        self.values.get(key).or_else(|| global.0.get(key)).map(|value| &**value)
    }

    /// The same, as a number.
    pub fn number(&self, global: &Global, key: &str) -> Result<Option<u64>> {
        self.get(global, key).map(|value| number(key, value)).transpose()
    }

    /// The same, as a time.
    pub fn moment(&self, global: &Global, key: &str) -> Option<Timestamp> {
        self.get(global, key).and_then(pax::moment)
    }

    /// The attributes, and how many of them could not be understood. A list that exists only as text is converted to
    /// the form of Linux.
    pub fn take_xattrs(&mut self) -> Result<(Vec<Xattr>, u64)> {
        let mut lost = 0;
        for (text, name) in std::mem::take(&mut self.lists)
            .into_iter()
            .zip([&b"system.posix_acl_access"[..], b"system.posix_acl_default"])
        {
            match text.as_deref().map(pax::acl_of_text) {
                Some(Some(list)) if !self.places.contains_key(name) => self.xattr(name.to_vec(), list)?,
                // If the list names users that have no number here, it may exist with numbers, as an
                // attribute.
                Some(None) if !self.places.contains_key(name) => lost += 1,
                _ => {}
            }
        }
        self.places.clear();
        Ok((std::mem::take(&mut self.xattrs), lost))
    }
}

fn known(keys: &[&'static str], key: &[u8]) -> Option<&'static str> {
    keys.iter().copied().find(|known| known.as_bytes() == key)
}

fn number(key: &str, value: &[u8]) -> Result<u64> {
    decimal(value).ok_or_else(|| bad(format!("{key} is not a number")))
}

fn broken() -> crate::exit::Failure {
    bad("a broken extended header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(records: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut written = pax::Records::default();
        records.iter().for_each(|(key, value)| written.add(key, value));
        written.as_bytes().to_vec()
    }

    #[test]
    fn the_last_counts_and_what_is_said_of_one_goes_before_what_is_said_of_all() {
        let (mut global, mut extra) = (Global::default(), Extra::default());
        global.add(&text(&[(b"uid", b"1"), (b"uid", b"2"), (b"comment", b"x"), (b"gid", b"7")])).unwrap();
        extra
            .add(&text(&[(b"uid", b"3"), (b"SCHILY.xattr.user.a", b"1"), (b"SCHILY.xattr.user.a", b"2")]))
            .unwrap();
        extra.add(&text(&[(b"uid", b"4")])).unwrap();
        assert_eq!(extra.number(&global, "uid").unwrap(), Some(4));
        assert_eq!(extra.number(&global, "gid").unwrap(), Some(7));
        assert_eq!(extra.take_xattrs().unwrap().0, [(b"user.a".to_vec(), b"2".to_vec())]);
    }

    #[test]
    fn what_is_said_of_all_is_not_of_one() {
        for key in [&b"path"[..], b"size", b"SCHILY.xattr.user.a", b"GNU.sparse.map"] {
            let said = Global::default().add(&text(&[(key, b"1")])).unwrap_err().to_string();
            assert!(said.contains("a header for all files"), "{said}");
        }
    }

    #[test]
    fn one_entry_has_limits() {
        let mut extra = Extra::default();
        assert!(extra.take(MAX_BYTES).is_ok());
        assert!(extra.take(1).is_err());
        let mut extra = Extra::default();
        let many: Vec<Vec<u8>> =
            (0..6000).map(|nth| format!("SCHILY.xattr.user.{nth:06}").into_bytes()).collect();
        let many: Vec<(&[u8], &[u8])> = many.iter().map(|key| (&**key, &b""[..])).collect();
        assert!(extra.add(&text(&many[..5400])).is_ok());
        let said = extra.add(&text(&many)).unwrap_err().to_string();
        assert!(said.contains("more than 65536 bytes"), "{said}");
    }

    #[test]
    fn a_list_that_is_there_as_an_attribute_is_not_lost() {
        let unknown: (&[u8], &[u8]) = (b"SCHILY.acl.access", b"user:ada:rwx");
        let mut extra = Extra::default();
        extra.add(&text(&[unknown])).unwrap();
        assert_eq!(extra.take_xattrs().unwrap(), (Vec::new(), 1));
        let mut extra = Extra::default();
        extra.add(&text(&[unknown, (b"SCHILY.xattr.system.posix_acl_access", b"list")])).unwrap();
        let kept = vec![(b"system.posix_acl_access".to_vec(), b"list".to_vec())];
        assert_eq!(extra.take_xattrs().unwrap(), (kept, 0));
    }
}
