//! A manifest: one line of JSON per name in a tree, sorted by path.
//!
//! Invariants:
//! - lines are sorted by their escaped path, so that two manifests can be compared in one pass;
//! - a file with several names is described at its first name, in that order, and not again; both
//!   sides sort alike, so they choose the same first name;
//! - what one side cannot say is absent there, and then not compared (see [`crate::compare`]).

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};

/// Everything a manifest says of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Path below the root, with every byte that is not printable ASCII, and `%`, as `%XX`. The root is `/`.
    pub path: String,
    /// Inode number.
    pub ino: u64,
    /// Type that the directory entry gives. Absent for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry_type: Option<FileType>,
    /// What the inode says. Absent for every name of an inode but the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inode: Option<Inode>,
}

/// What an inode says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inode {
    /// Its type.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky, in octal.
    pub mode: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of links.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Time of last access, as nanoseconds since 1970.
    pub atime: i128,
    /// Time of last modification.
    pub mtime: i128,
    /// Time of last change of the inode.
    pub ctime: i128,
    /// Time of creation, where the volume keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub btime: Option<i128>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdev: Option<(u32, u32)>,
    /// Target of a symbolic link, escaped like a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Where it was asked for: its project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<Project>,
    /// Likewise: how it wants to be treated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Hints>,
    /// Extended attributes by escaped name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, Bytes>,
    /// Content of a regular file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Number of entries of a directory, without `.` and `..`, and the SHA-256 of their names in the order in
    /// which the directory gives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<(u64, String)>,
}

/// Which project a file belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its number; 0 is none.
    pub id: u32,
    /// Whether what is made in this directory belongs to it too.
    pub inherit: bool,
}

/// How a file wants to be treated. What is made in a directory has its hints from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// Reading leaves the time of the last reading as it is.
    pub no_atime: bool,
    /// Backups leave it out.
    pub no_dump: bool,
    /// Its blocks should stay where they are.
    pub no_defrag: bool,
    /// Blocks of which whole multiples should be allocated; 0: no such wish.
    pub extent_blocks: u32,
}

/// A string of bytes: its length, and itself in hexadecimal if it is short, else its SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Length in bytes.
    pub len: u64,
    /// `hex:…` or `sha256:…`.
    pub value: String,
}

/// What is in a regular file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Hash of all bytes; of a file larger than [`FULL_HASH_MAX`], of its runs of data alone, each behind its two
    /// offsets as 8 bytes little-endian.
    pub hash: String,
    /// Runs of data as `lseek(SEEK_DATA)` and `lseek(SEEK_HOLE)` give them: first byte, byte behind the last.
    /// Unwritten space counts as hole.
    pub data: Vec<(u64, u64)>,
    /// The block map: neighbours that continue each other in the file and on the device, and are in the same
    /// state, are one. Absent where it cannot be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<MapRun>>,
}

/// A run of the block map, in bytes: place in the file, place on the device, length, state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRun(pub u64, pub u64, pub u64, pub RunState);

impl Record {
    /// The same, with blocks where they are, whoever has them as well: another may have given up what was shared with it.
    pub fn by_place(&self) -> Self {
        let mut record = self.clone();
        let content = record.inode.as_mut().and_then(|inode| inode.content.as_mut());
        if let Some(runs) = content.and_then(|content| content.extents.as_mut()) {
            let mut joined: Vec<MapRun> = Vec::with_capacity(runs.len());
            for MapRun(offset, device, len, state) in runs.drain(..) {
                let state = if state == RunState::Shared { RunState::Written } else { state };
                match joined.last_mut() {
                    Some(last)
                        if last.3 == state && (last.0 + last.2, last.1 + last.2) == (offset, device) =>
                    {
                        last.2 += len;
                    }
                    _ => joined.push(MapRun(offset, device, len, state)),
                }
            }
            *runs = joined;
        }
        record
    }
}

/// State of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunState {
    /// Written, and of this file alone.
    #[serde(rename = "w")]
    Written,
    /// Allocated, never written.
    #[serde(rename = "u")]
    Unwritten,
    /// Written, and shared with other files.
    #[serde(rename = "s")]
    Shared,
}

/// Type of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum FileType {
    #[default]
    Unknown,
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl FileType {
    /// The type in the high bits of a mode.
    pub fn from_mode(mode: u32) -> Self {
        match mode >> 12 {
            0o10 => Self::Regular,
            0o4 => Self::Directory,
            0o12 => Self::Symlink,
            0o2 => Self::CharDevice,
            0o6 => Self::BlockDevice,
            0o1 => Self::Fifo,
            0o14 => Self::Socket,
            _ => Self::Unknown,
        }
    }
}

/// Adds a run to a block map, joined to the last one where it continues it.
pub fn push_run(runs: &mut Vec<MapRun>, run: MapRun) {
    if let Some(last) = runs.last_mut()
        && last.0 + last.2 == run.0
        && last.1 + last.2 == run.1
        && last.3 == run.3
    {
        last.2 += run.2;
        return;
    }
    runs.push(run);
}

/// Adds a run of data to a list of data runs, joined to the last one where it continues it.
pub fn push_data(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match runs.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => runs.push((start, end)),
    }
}

/// Escapes a name, a path or a target so that it is printable and nothing is lost.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(byte as char);
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Bytes {
    /// Longest value that is written out.
    const MAX_SHOWN: usize = 64;

    /// Describes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let value = if bytes.len() <= Self::MAX_SHOWN {
            format!("hex:{}", hex(bytes))
        } else {
            format!("sha256:{}", hex(&Sha256::digest(bytes)))
        };
        Self { len: bytes.len() as u64, value }
    }
}

/// Largest file that is hashed with its holes.
pub const FULL_HASH_MAX: u64 = 256 << 20;

/// How content is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// What everyone knows.
    Sha256,
    /// What is some ten times as fast on processors that know nothing of the other: for histories, which do little
    /// else than look at the same content again and again.
    Blake3,
}

/// Hashes content that comes in pieces, and zeroes for the holes between them.
pub struct ContentHasher {
    state: State,
    position: u64,
}

enum State {
    Sha256(Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl ContentHasher {
    /// Before the first byte.
    pub fn new(hash: Hash) -> Self {
        let state = match hash {
            Hash::Sha256 => State::Sha256(Sha256::new()),
            Hash::Blake3 => State::Blake3(Box::default()),
        };
        Self { state, position: 0 }
    }

    fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Sha256(hasher) => hasher.update(bytes),
            State::Blake3(hasher) => drop(hasher.update(bytes)),
        }
    }

    /// Content ahead of `offset` that was not given is zeroes.
    pub fn zeroes_to(&mut self, offset: u64) {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        while self.position < offset {
            let len = (offset - self.position).min(ZEROES.len() as u64);
            self.update(&ZEROES[..len as usize]);
            self.position += len;
        }
    }

    /// Marks the start of a run of data in a file that is hashed without its holes.
    pub fn run(&mut self, start: u64, end: u64) {
        self.update(&start.to_le_bytes());
        self.update(&end.to_le_bytes());
    }

    /// The next bytes.
    pub fn data(&mut self, bytes: &[u8]) {
        self.update(bytes);
        self.position += bytes.len() as u64;
    }

    /// The hash of it all.
    pub fn finish(self) -> String {
        match self.state {
            State::Sha256(hasher) => hex(&hasher.finalize()),
            State::Blake3(hasher) => hex(hasher.finalize().as_bytes()),
        }
    }
}

/// Sorts a manifest and gives each inode's description to its first name.
pub fn assemble(mut records: Vec<Record>, mut inodes: HashMap<u64, Inode>) -> Vec<Record> {
    records.sort_by(|a, b| a.path.cmp(&b.path));
    for record in &mut records {
        record.inode = inodes.remove(&record.ino);
    }
    records
}

/// Writes a manifest.
pub fn write(out: &mut dyn Write, records: &[Record]) -> Result<()> {
    for record in records {
        serde_json::to_writer(&mut *out, record)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Reads a manifest, and checks that it is sorted.
pub fn read(input: &mut dyn BufRead) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let record: Record =
            serde_json::from_str(&line?).with_context(|| format!("manifest line {}", index + 1))?;
        if let Some(last) = records.last()
            && last.path >= record.path
        {
            bail!("manifest line {}: {} stands behind {}", index + 1, record.path, last.path);
        }
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_keeps_every_byte_apart() {
        let all: Vec<String> = (0..=255u8).map(|byte| escape(&[byte])).collect();
        let mut sorted = all.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 256);
        assert_eq!(escape(b"a%b c\xff"), "a%25b%20c%FF");
    }

    #[test]
    fn runs_join_only_where_they_continue() {
        let mut runs = Vec::new();
        push_run(&mut runs, MapRun(0, 100, 10, RunState::Written));
        push_run(&mut runs, MapRun(10, 110, 5, RunState::Written));
        push_run(&mut runs, MapRun(15, 115, 5, RunState::Unwritten));
        push_run(&mut runs, MapRun(20, 200, 5, RunState::Unwritten));
        assert_eq!(
            runs,
            [
                MapRun(0, 100, 15, RunState::Written),
                MapRun(15, 115, 5, RunState::Unwritten),
                MapRun(20, 200, 5, RunState::Unwritten)
            ]
        );
    }

    #[test]
    fn holes_hash_as_zeroes() {
        let mut plain = vec![0u8; 100_001];
        plain[..2].copy_from_slice(b"ab");
        plain[100_000] = b'c';
        let blake3 = hex(blake3::hash(&plain).as_bytes());
        for (hash, expected) in [(Hash::Sha256, hex(&Sha256::digest(&plain))), (Hash::Blake3, blake3)] {
            let mut with_hole = ContentHasher::new(hash);
            with_hole.data(b"ab");
            with_hole.zeroes_to(100_000);
            with_hole.data(b"c");
            assert_eq!(with_hole.finish(), expected);
        }
    }
}
