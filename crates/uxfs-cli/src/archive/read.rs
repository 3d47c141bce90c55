//! Reading an archive: POSIX (PAX), GNU, or the plain old one.
//!
//! Invariants: nothing is taken from a header whose checksum is wrong; what an archive claims costs no more
//! memory than the limits of [`extra`](super::extra) and [`MAX_RUNS`]; an entry's content is read to its end before the
//! next header, whether it was used or not.

use super::extra::{Extra, Global};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use std::io::Read;
use tar::{EntryType, Header};
use uxfs::{Special, Timestamp};

const BLOCK: u64 = 512;
/// The archive's label, which is no file.
const VOLUME_LABEL: u8 = b'V';
/// A directory of an incremental archive. Its content lists its former entries.
const LISTED_DIRECTORY: u8 = b'D';
/// Runs that a sparse file may have.
pub const MAX_RUNS: usize = 1 << 20;

/// The type of an entry.
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
    /// Something that no volume can hold, with the letter of its type.
    Other(char),
}

/// An entry of an archive. Its content is read next.
#[derive(Debug)]
pub struct Entry {
    /// Its name as the archive has it.
    pub name: Vec<u8>,
    /// Its type.
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
    /// Where its data are: runs of offset and length. The content is these, one after the other.
    pub runs: Vec<(u64, u64)>,
}

/// An archive that is being read.
pub struct Reader<R: Read> {
    input: R,
    /// Unread bytes of the current entry's content, and of the padding after it.
    left: u64,
    padding: u64,
    /// What applies to all entries that follow.
    global: Global,
    /// The first header, or the end, if it was read already.
    first: Option<Option<Header>>,
    /// Whether anything was read.
    begun: bool,
}

impl<R: Read> Reader<R> {
    /// Reads from the start of an archive.
    pub fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, global: Global::default(), first: None, begun: false }
    }

    /// Whether it begins as an archive does; an error if not.
    pub fn look(&mut self) -> Result<()> {
        self.first = Some(self.header()?);
        Ok(())
    }

    /// The next entry, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        let mut extra = Extra::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header.entry_type();
            if kind.as_byte() == VOLUME_LABEL {
                // It has an empty size field.
                continue;
            }
            let size = header.entry_size().map_err(|error| bad(error.to_string()))?;
            if kind.is_pax_global_extensions() {
                Global::check_size(size)?;
                let text = self.text(size)?;
                self.global.add(&text)?;
            } else if kind.is_pax_local_extensions() {
                extra.take(size)?;
                extra.add(&self.text(size)?)?;
            } else if kind.is_gnu_longname() {
                extra.take(size)?;
                extra.name = Some(until_nul(self.text(size)?));
            } else if kind.is_gnu_longlink() {
                extra.take(size)?;
                extra.link = Some(until_nul(self.text(size)?));
            } else {
                return self.entry(&header, size, extra).map(Some);
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
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut done = 0;
        while done < block.len() {
            match self.input.read(&mut block[done..]) {
                Ok(0) if done == 0 && self.begun => return Ok(None),
                // The program that should have written it has probably failed.
                Ok(0) if done == 0 => {
                    return Err(Failure::new(Exit::Unsupported, "this is not a tar archive: it is empty"));
                }
                Ok(0) => return Err(bad("it ends within a header")),
                Ok(read) => {
                    self.begun = true;
                    done += read;
                }
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

    /// The whole of an extended header, within the limit.
    fn text(&mut self, size: u64) -> Result<Vec<u8>> {
        self.begin(size);
        let mut text = vec![0; size as usize];
        self.read(&mut text)?;
        Ok(text)
    }

    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    fn entry(&mut self, header: &Header, size: u64, mut extra: Extra) -> Result<Entry> {
        let wrong = |error: std::io::Error| bad(error.to_string());
        let (xattrs, lost_xattrs) = extra.take_xattrs()?;
        let id = |key, field: u64| {
            let id = extra.number(&self.global, key)?.unwrap_or(field);
            u32::try_from(id).map_err(|_| bad(format!("{key} {id}: no system has that")))
        };
        let get = |key| extra.get(&self.global, key);
        let name = [get("GNU.sparse.name"), get("path"), extra.name.as_deref()];
        let name = name
            .into_iter()
            .flatten()
            .next()
            .map_or_else(|| header.path_bytes().into_owned(), <[u8]>::to_vec);
        let link = [get("linkpath"), extra.link.as_deref()].into_iter().flatten().next();
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
            _ if kind.as_byte() == LISTED_DIRECTORY => What::Directory,
            EntryType::Symlink => What::Symlink(link()),
            EntryType::Link => What::HardLink(link()),
            EntryType::Char => {
                device().map(|(major, minor)| What::Special(Special::CharDevice(major, minor)))?
            }
            EntryType::Block => {
                device().map(|(major, minor)| What::Special(Special::BlockDevice(major, minor)))?
            }
            EntryType::Fifo => What::Special(Special::Fifo),
            // Very old archives mark directories by a slash.
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
        let mut entry = Entry {
            name,
            what,
            permissions: (header.mode().map_err(wrong)? & 0o7777) as u16,
            uid: id("uid", header.uid().map_err(wrong)?)?,
            gid: id("gid", header.gid().map_err(wrong)?)?,
            atime: extra.moment(&self.global, "atime"),
            mtime: extra.moment(&self.global, "mtime").unwrap_or(field),
            xattrs,
            lost_xattrs,
            size: 0,
            runs: Vec::new(),
        };
        // Only files have content; some programs give sizes to links.
        let has_content =
            matches!(entry.what, What::File | What::Other(_)) || kind.as_byte() == LISTED_DIRECTORY;
        let size = if has_content { extra.number(&self.global, "size")?.unwrap_or(size) } else { 0 };
        if kind == EntryType::GNUSparse {
            (entry.size, entry.runs) = self.old_sparse(header)?;
            self.begin(size);
        } else {
            self.begin(size);
            if entry.what == What::File {
                (entry.size, entry.runs) = self.layout(size, &mut extra)?;
            }
        }
        check_runs(&entry.runs, entry.size, self.left)?;
        Ok(entry)
    }

    /// Size and data runs of a file. Their map may be in its records or before its data.
    fn layout(&mut self, size: u64, extra: &mut Extra) -> Result<(u64, Vec<(u64, u64)>)> {
        let whole = if size > 0 { vec![(0, size)] } else { Vec::new() };
        let real = extra.number(&self.global, "GNU.sparse.realsize")?;
        let real = real.or(extra.number(&self.global, "GNU.sparse.size")?);
        let get = |key| extra.get(&self.global, key);
        match (get("GNU.sparse.major"), get("GNU.sparse.map"), real) {
            (Some(b"1"), _, Some(real)) => Ok((real, self.map_in_front()?)),
            // Format 0.1.
            (None | Some(b"0"), Some(map), Some(real)) => Ok((real, runs_of(map)?)),
            // Format 0.0: from earlier records.
            (None | Some(b"0"), None, Some(real)) => Ok((real, std::mem::take(&mut extra.runs))),
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
                    // The rest of the block is padding.
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

    /// GNU's old format: four runs in the header, and more in blocks after it.
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

/// The map of GNU's format 0.1: numbers with commas between them.
fn runs_of(map: &[u8]) -> Result<Vec<(u64, u64)>> {
    let wrong = || bad("a broken map of a sparse file");
    let mut numbers = map.split(|&byte| byte == b',').filter(|_| !map.is_empty()).map(decimal);
    let mut runs = Vec::new();
    while let Some(offset) = numbers.next() {
        if runs.len() == MAX_RUNS {
            return Err(bad(format!("a sparse file with more than {MAX_RUNS} runs")));
        }
        let len = numbers.next().ok_or_else(wrong)?;
        runs.push((offset.ok_or_else(wrong)?, len.ok_or_else(wrong)?));
    }
    Ok(runs)
}

/// Runs must ascend, lie within the file, and match the size of its content.
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

pub fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
    text
}

pub fn bad(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Damaged, format!("the archive is broken: {what}"))
}

fn broken(error: &std::io::Error) -> Failure {
    if interrupt::asked() {
        return Failure::new(Exit::Interrupted, interrupt::WHAT);
    }
    Failure::new(Exit::Io, format!("the archive cannot be read: {error}"))
}
