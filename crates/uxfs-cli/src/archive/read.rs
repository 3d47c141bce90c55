//! Reading an archive: POSIX (PAX), GNU, or the plain old one.
//!
//! Invariants: nothing is taken from a header whose checksum is wrong; what an archive claims of sizes costs no more
//! memory than [`MAX_TEXT`]; an entry's content is read to its end before the next header, whoever used it or not.

use super::pax;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use std::io::Read;
use tar::{EntryType, Header};
use uxfs::{Special, Timestamp};

const BLOCK: u64 = 512;
/// Bytes that extended headers and long names of one entry may have, and runs that a sparse file may have.
const MAX_TEXT: u64 = 16 << 20;
const MAX_RUNS: usize = 1 << 20;

/// What an entry stands for.
#[derive(Debug, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// Another name of the entry with this name.
    HardLink(Vec<u8>),
    /// A device or pipe.
    Special(Special),
    /// Something that no volume can hold, by the letter of its type.
    Other(char),
}

/// An entry of an archive. Its content is read next.
#[derive(Debug)]
pub struct Entry {
    /// Its name as the archive has it.
    pub name: Vec<u8>,
    /// What it stands for.
    pub what: What,
    /// Permissions.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When it was last read, if the archive says that.
    pub atime: Option<Timestamp>,
    /// When its content last changed.
    pub mtime: Timestamp,
    /// Attributes, access control lists in the form of Linux among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Attributes that could not be understood.
    pub lost_xattrs: u64,
    /// Size of the file.
    pub size: u64,
    /// Where its data are: runs of offset and length. The content is these, one behind the other.
    pub runs: Vec<(u64, u64)>,
}

/// An archive that is being read.
pub struct Reader<R: Read> {
    input: R,
    /// Bytes of the current entry's content that were not read, and of the padding behind it.
    left: u64,
    padding: u64,
    /// Records for all entries that follow.
    global: Vec<pax::Record>,
}

/// What extended headers say of the next entry.
#[derive(Default)]
struct Extra {
    records: Vec<pax::Record>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Extra {
    fn get(&self, key: &str) -> Option<&[u8]> {
        // The last one counts.
        self.records.iter().rev().find(|(found, _)| found == key.as_bytes()).map(|(_, value)| &**value)
    }

    fn number(&self, key: &str) -> Result<Option<u64>> {
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok();
        self.get(key)
            .map(|value| number(value).ok_or_else(|| bad(format!("{key} is not a number"))))
            .transpose()
    }

    fn moment(&self, key: &str) -> Option<Timestamp> {
        self.get(key).and_then(pax::moment)
    }
}

impl<R: Read> Reader<R> {
    /// Reads from the start of an archive.
    pub fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, global: Vec::new() }
    }

    /// The next entry, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        let mut extra = Extra { records: self.global.clone(), ..Extra::default() };
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|error| bad(error.to_string()))?;
            let kind = header.entry_type();
            if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
                let records = pax::parse(&self.text(size)?).ok_or_else(|| bad("a broken extended header"))?;
                if kind.is_pax_global_extensions() {
                    self.global.extend(records.iter().cloned());
                }
                extra.records.extend(records);
            } else if kind.is_gnu_longname() {
                extra.name = Some(until_nul(self.text(size)?));
            } else if kind.is_gnu_longlink() {
                extra.link = Some(until_nul(self.text(size)?));
            } else {
                return self.entry(&header, size, &extra).map(Some);
            }
        }
    }

    /// Reads content of the entry; 0 at its end.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let mut done = 0;
        while done < want {
            match self.input.read(&mut buf[done..want]) {
                Ok(0) => return Err(bad("it ends within a file")),
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        self.left -= done as u64;
        Ok(done)
    }

    /// Reads what is left of the entry.
    fn skip(&mut self) -> Result<()> {
        let mut buf = [0; 1 << 14];
        self.left = self.left.checked_add(self.padding).ok_or_else(|| bad("a file of impossible size"))?;
        self.padding = 0;
        while self.read(&mut buf)? > 0 {}
        Ok(())
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut done = 0;
        while done < block.len() {
            match self.input.read(&mut block[done..]) {
                Ok(0) if done == 0 => return Ok(None),
                Ok(0) => return Err(bad("it ends within a header")),
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let block = header.as_bytes();
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { byte.into() })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(Failure::new(
                Exit::Unsupported,
                "this is not a tar archive, or a broken one (bad checksum)",
            ));
        }
        Ok(Some(header))
    }

    /// All of an extended header.
    fn text(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_TEXT {
            return Err(bad(format!("an extended header of {size} bytes")));
        }
        self.begin(size);
        let mut text = vec![0; size as usize];
        self.read(&mut text)?;
        Ok(text)
    }

    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    fn entry(&mut self, header: &Header, size: u64, extra: &Extra) -> Result<Entry> {
        let wrong = |error: std::io::Error| bad(error.to_string());
        let id = |key, field: u64| {
            let id = extra.number(key)?.unwrap_or(field);
            u32::try_from(id).map_err(|_| bad(format!("{key} {id}: no system has that")))
        };
        let name = [extra.get("GNU.sparse.name"), extra.get("path"), extra.name.as_deref()];
        let name = name
            .into_iter()
            .flatten()
            .next()
            .map_or_else(|| header.path_bytes().into_owned(), <[u8]>::to_vec);
        let link = [extra.get("linkpath"), extra.link.as_deref()].into_iter().flatten().next();
        let link = || match link {
            Some(link) => link.to_vec(),
            None => header.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default(),
        };
        let device = || -> Result<(u32, u32)> {
            let major = header.device_major().map_err(wrong)?.unwrap_or_default();
            Ok((major, header.device_minor().map_err(wrong)?.unwrap_or_default()))
        };
        let kind = header.entry_type();
        let what = match kind {
            EntryType::Directory => What::Directory,
            EntryType::Symlink => What::Symlink(link()),
            EntryType::Link => What::HardLink(link()),
            EntryType::Char => {
                device().map(|(major, minor)| What::Special(Special::CharDevice(major, minor)))?
            }
            EntryType::Block => {
                device().map(|(major, minor)| What::Special(Special::BlockDevice(major, minor)))?
            }
            EntryType::Fifo => What::Special(Special::Fifo),
            // Very old archives say by a slash that it is a directory.
            EntryType::Regular
                if header.as_ustar().is_none() && header.as_gnu().is_none() && name.ends_with(b"/") =>
            {
                What::Directory
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => What::File,
            other => What::Other(char::from(other.as_byte())),
        };
        let seconds = header.mtime().map_err(wrong)?;
        let field = Timestamp { seconds: seconds.cast_signed(), nanoseconds: 0 };
        let (xattrs, lost_xattrs) = pax::xattrs(&extra.records);
        let mut entry = Entry {
            name,
            what,
            permissions: (header.mode().map_err(wrong)? & 0o7777) as u16,
            uid: id("uid", header.uid().map_err(wrong)?)?,
            gid: id("gid", header.gid().map_err(wrong)?)?,
            atime: extra.moment("atime"),
            mtime: extra.moment("mtime").unwrap_or(field),
            xattrs,
            lost_xattrs,
            size: 0,
            runs: Vec::new(),
        };
        // Only files have content; some programs give sizes to links.
        let has_content = matches!(entry.what, What::File | What::Other(_));
        let size = if has_content { extra.number("size")?.unwrap_or(size) } else { 0 };
        if kind == EntryType::GNUSparse {
            (entry.size, entry.runs) = self.old_sparse(header)?;
            self.begin(size);
        } else {
            self.begin(size);
            if entry.what == What::File {
                (entry.size, entry.runs) = self.layout(size, extra)?;
            }
        }
        check_runs(&entry.runs, entry.size, self.left)?;
        Ok(entry)
    }

    /// Size and runs of data of a file, whose map may be in its records or in front of its data.
    fn layout(&mut self, size: u64, extra: &Extra) -> Result<(u64, Vec<(u64, u64)>)> {
        let whole = if size > 0 { vec![(0, size)] } else { Vec::new() };
        let real = extra.number("GNU.sparse.realsize")?.or(extra.number("GNU.sparse.size")?);
        match (extra.get("GNU.sparse.major"), extra.get("GNU.sparse.map"), real) {
            (Some(b"1"), _, Some(real)) => Ok((real, self.map_in_front()?)),
            (_, Some(map), Some(real)) => {
                let numbers = map.split(|&byte| byte == b',').map(decimal).collect::<Option<Vec<u64>>>();
                let numbers = numbers.filter(|numbers| numbers.len() % 2 == 0);
                let numbers = numbers.ok_or_else(|| bad("a broken map of a sparse file"))?;
                Ok((real, numbers.chunks_exact(2).map(|run| (run[0], run[1])).collect()))
            }
            (_, _, Some(_)) => Err(bad("a sparse file of a format that is not known")),
            _ => Ok((size, whole)),
        }
    }

    /// GNU's format 1.0: a line with the number of runs, then two lines each, filled up to whole blocks.
    fn map_in_front(&mut self) -> Result<Vec<(u64, u64)>> {
        let wrong = || bad("a broken map of a sparse file");
        let (mut numbers, mut digits, mut wanted) = (Vec::new(), Vec::new(), None);
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            let mut block = [0; BLOCK as usize];
            if self.read(&mut block)? < block.len() {
                return Err(wrong());
            }
            for &byte in &block {
                if byte != b'\n' {
                    digits.push(byte);
                    // What is behind the last line fills up the block.
                    if digits.len() > BLOCK as usize {
                        return Err(wrong());
                    }
                    continue;
                }
                let number = decimal(&digits).ok_or_else(wrong)?;
                digits.clear();
                if wanted.is_some() {
                    numbers.push(number);
                } else {
                    let runs = usize::try_from(number).ok().filter(|&runs| runs <= MAX_RUNS);
                    wanted = Some(2 * runs.ok_or_else(wrong)?);
                }
                if Some(numbers.len()) == wanted {
                    break;
                }
            }
        }
        Ok(numbers.chunks_exact(2).map(|run| (run[0], run[1])).collect())
    }

    /// GNU's old format: four runs in the header, and blocks with more behind it.
    fn old_sparse(&mut self, header: &Header) -> Result<(u64, Vec<(u64, u64)>)> {
        let wrong = |error: std::io::Error| bad(error.to_string());
        let header = header.as_gnu().ok_or_else(|| bad("a sparse file in a header that is not GNU's"))?;
        let mut runs = Vec::new();
        let mut add = |sparse: &[tar::GnuSparseHeader]| -> Result<()> {
            for run in sparse.iter().filter(|run| !run.is_empty()) {
                if runs.len() == MAX_RUNS {
                    return Err(bad("a sparse file with too many runs"));
                }
                runs.push((run.offset().map_err(wrong)?, run.length().map_err(wrong)?));
            }
            Ok(())
        };
        add(&header.sparse)?;
        let mut more = header.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            self.left = BLOCK;
            self.read(block.as_mut_bytes())?;
            add(&block.sparse)?;
            more = block.is_extended();
        }
        Ok((header.real_size().map_err(wrong)?, runs))
    }
}

/// Runs rise, lie within the file, and are what its content has.
fn check_runs(runs: &[(u64, u64)], size: u64, content: u64) -> Result<()> {
    let (mut at, mut sum) = (0_u64, 0_u64);
    for &(offset, len) in runs {
        let end = offset.checked_add(len).filter(|&end| offset >= at && end <= size);
        at = end.ok_or_else(|| bad("a broken map of a sparse file"))?;
        sum += len;
    }
    if sum > content || i64::try_from(size).is_err() {
        return Err(bad("a map of a sparse file that has more than the archive"));
    }
    Ok(())
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
    text
}

fn bad(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Damaged, format!("the archive is broken: {what}"))
}

fn broken(error: &std::io::Error) -> Failure {
    if interrupt::asked() {
        return Failure::new(Exit::Interrupted, interrupt::WHAT);
    }
    Failure::new(Exit::Io, format!("the archive cannot be read: {error}"))
}
