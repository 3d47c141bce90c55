//! A manifest: one line of JSON per name in a tree, sorted by path.
//!
//! Invariants:
//! - lines are sorted by their escaped path, so that two manifests can be compared in one pass;
//! - a file with several names is described only at its first name in that order. Both sides sort in the same way, so
//!   they choose the same name;
//! - what one side cannot know is absent there, and then is not compared (see [`crate::compare`]).

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};

/// A manifest's entry for one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Path below the root. Every byte that is not printable ASCII, and `%`, is written as `%XX`. The root is `/`.
    pub path: String,
    /// Inode number.
    pub ino: u64,
    /// Type in the directory entry. Absent for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry_type: Option<FileType>,
    /// The inode. Absent for every name of an inode but the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inode: Option<Inode>,
}

/// An inode's metadata and content.
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
    /// Time of creation, if the volume stores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub btime: Option<i128>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdev: Option<(u32, u32)>,
    /// Target of a symbolic link, escaped like a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its project, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<Project>,
    /// Its hints, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Hints>,
    /// Extended attributes by escaped name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, Bytes>,
    /// Content of a regular file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Number of entries of a directory, without `.` and `..`, and the SHA-256 of their names in directory order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<(u64, String)>,
}

/// The project of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its number; 0 is none.
    pub id: u32,
    /// Whether new files in this directory belong to it too.
    pub inherit: bool,
}

/// How a file should be treated. New files inherit this from their directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// Reading does not update the access time.
    pub no_atime: bool,
    /// Backups skip it.
    pub no_dump: bool,
    /// Its blocks should stay where they are.
    pub no_defrag: bool,
    /// Allocate in multiples of this many blocks; 0 for no hint.
    pub extent_blocks: u32,
}

/// A string of bytes: its length, and its hexadecimal form if it is short, otherwise its SHA-256.
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
    /// Hash of all bytes. For a file larger than [`FULL_HASH_MAX`], only of its runs of data, each preceded by its two
    /// offsets as 8 bytes little-endian.
    pub hash: String,
    /// Runs of data as from `lseek(SEEK_DATA)` and `lseek(SEEK_HOLE)`: start and end. Unwritten space counts as a hole.
    pub data: Vec<(u64, u64)>,
    /// The block map. Contiguous runs in the same state are merged. Absent if it is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<MapRun>>,
}

/// A run of the block map, in bytes: offset in the file, place on the device, length, state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRun(pub u64, pub u64, pub u64, pub RunState);

impl Record {
    /// The same without the difference between shared and own blocks: another file may have given up what was shared.
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
    /// Written, and not shared.
    #[serde(rename = "w")]
    Written,
    /// Allocated and unwritten.
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

/// Adds a run to a block map, merging it with the last one if they are contiguous.
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

/// Adds a run of data to a list, merging it with the last one if they are contiguous.
pub fn push_data(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match runs.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => runs.push((start, end)),
    }
}

/// Escapes a name, path or target so that it is printable and no information is lost.
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
    /// Maximum length of a value that is written out.
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
    /// The common choice.
    Sha256,
    /// Some ten times as fast on processors without SHA instructions: for histories, which mostly look at the same
    /// content again and again.
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
    /// The state before the first byte.
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

    /// Content before `offset` that was not given is zeroes.
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

    /// The final hash.
    pub fn finish(self) -> String {
        match self.state {
            State::Sha256(hasher) => hex(&hasher.finalize()),
            State::Blake3(hasher) => hex(hasher.finalize().as_bytes()),
        }
    }
}

/// Sorts a manifest and attaches each inode's description to its first name.
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
