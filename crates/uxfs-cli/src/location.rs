//! `IMAGE:/path` and `IMAGE@2:/path`: which image, which partition of it, and which path in it.

use crate::exit::{Exit, Failure, Result, host_name};
use crate::host::Identity;
use crate::interrupt;
use crate::options::Global;
use crate::problems;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uxfs::{OpenOptions, Recovery, Volume};

/// A place in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The image file, or the block device.
    pub image: PathBuf,
    /// The partition that holds the volume, if one was named.
    pub partition: Option<u32>,
    /// The path in it; `/` if only the image was named.
    pub path: Vec<u8>,
}

impl Location {
    /// Splits `IMAGE:/path` at its last `:/`. `:/` in the image's name or in the path is understood if the image
    /// exists: the whole is tried first, then the longest image part. The same holds for `@2` at the end of the
    /// image's name.
    pub fn parse(text: &OsStr) -> Self {
        Self::parse_with(text, Path::exists)
    }

    /// A path in an image, or in a partition of it.
    fn of(image: &[u8], path: &[u8], exists: &impl Fn(&Path) -> bool) -> Self {
        let image = Path::new(OsStr::from_bytes(image));
        let numbered = if exists(image) { None } else { numbered(image).filter(|(image, _)| exists(image)) };
        let (image, partition) = numbered.map_or((image, None), |(image, number)| (image, Some(number)));
        Self { image: image.into(), partition, path: path.to_vec() }
    }

    fn parse_with(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Self {
        let bytes = text.as_bytes();
        let split = |at: usize| {
            let (image, path) = bytes.split_at(at);
            Self::of(image, path.get(1..).unwrap_or_default(), &exists)
        };
        let whole = Self::of(bytes, b"/", &exists);
        if exists(&whole.image) {
            return whole;
        }
        let mut splits = (1..bytes.len()).rev().filter(|&at| bytes[at..].starts_with(b":/")).map(split);
        let Some(last) = splits.next() else { return whole };
        if exists(&last.image) {
            return last;
        }
        splits.find(|location| exists(&location.image)).unwrap_or(last)
    }

    /// The last part of the path, if it is a name.
    pub fn file_name(&self) -> Option<&[u8]> {
        let name = self.path.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty())?;
        (!matches!(name, b"." | b"..")).then_some(name)
    }

    /// An error of the volume, with the image's name added.
    pub fn failure(&self, error: &uxfs::Error) -> Failure {
        Failure::of_image(&self.name(), error)
    }

    /// The image and its partition, as they are written.
    pub fn name(&self) -> PathBuf {
        let mut name = self.image.clone().into_os_string();
        if let Some(number) = self.partition {
            name.push(format!("@{number}"));
        }
        name.into()
    }

    /// How to open the volume for reading: where it lies is looked up.
    pub fn options(&self, global: &Global) -> Result<OpenOptions> {
        let options = global.open_options();
        let Some((offset, length)) = self.place(global)? else { return Ok(options) };
        Ok(options.offset(offset).length(Some(length)))
    }

    /// Offset and length of the named partition.
    pub fn place(&self, global: &Global) -> Result<Option<(u64, u64)>> {
        let Some(number) = self.partition else { return Ok(None) };
        if global.offset != 0 || global.length.is_some() {
            let what = "a partition is named, and so says where the volume is; leave --offset and --length";
            return Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(&self.name()))));
        }
        check(&self.image)?;
        uxfs::partition(&self.image, number).map(Some).map_err(|error| self.failure(&error))
    }

    /// Whether both are in one volume, as far as known.
    pub fn shares_volume(&self, other: &Self) -> bool {
        let same = self.image == other.image
            || Identity::of_path(&self.image).is_some_and(|one| Some(one) == Identity::of_path(&other.image));
        same && self.partition == other.partition
    }
}

impl FromStr for Location {
    type Err = Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Infallible> {
        Ok(Self::parse(OsStr::new(text)))
    }
}

/// The parser that arguments use: paths are bytes, so that they go through `OsString`.
pub fn parser() -> impl clap::builder::TypedValueParser<Value = Location> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().map(|text| Location::parse(&text))
}

/// The parser of an image without a path. The image need not exist.
pub fn image_parser() -> impl clap::builder::TypedValueParser<Value = Location> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().map(|text| Location::of(text.as_bytes(), b"/", &Path::exists))
}

/// Volumes that are open, so that several paths in one image share one.
pub struct Images<'a> {
    global: &'a Global,
    writable: bool,
    gathers: bool,
    open: Vec<(Location, Volume)>,
}

impl<'a> Images<'a> {
    /// None yet.
    pub fn new(global: &'a Global) -> Self {
        Self { global, writable: false, gathers: false, open: Vec::new() }
    }

    /// None yet. Volumes are opened for writing, and must be closed.
    pub fn writable(global: &'a Global) -> Self {
        interrupt::watch();
        Self { global, writable: true, gathers: false, open: Vec::new() }
    }

    /// The same, with small writes gathered.
    pub fn gathering(self) -> Self {
        Self { gathers: true, ..self }
    }

    /// The volume in the location's image.
    pub fn volume(&mut self, location: &Location) -> Result<Volume> {
        if let Some((_, volume)) = self.open.iter().find(|(known, _)| known.shares_volume(location)) {
            return Ok(volume.clone());
        }
        let options = location.options(self.global)?.writable(self.writable).gather_writes(self.gathers);
        let volume = open(location, &options)?;
        if !self.writable {
            warn_of_writer(location, uxfs::written_by(&location.image));
        }
        self.open.push((location.clone(), volume.clone()));
        Ok(volume)
    }

    /// The index of the location's volume.
    pub fn number(&self, location: &Location) -> Option<usize> {
        self.open.iter().position(|(known, _)| known.shares_volume(location))
    }

    /// Writes back all changes and leaves clean logs. The first failure counts.
    pub fn close(self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        let close = |(of, volume): &(Location, Volume)| volume.close().map_err(|error| of.failure(&error));
        let closed: Vec<Result<()>> = self.open.iter().map(close).collect();
        closed.into_iter().collect()
    }
}

fn open(location: &Location, options: &OpenOptions) -> Result<Volume> {
    let image = &location.image;
    check(image)?;
    let volume = Volume::open(image, options).map_err(|error| location.failure(&error))?;
    if let Some(said) = volume.recovery().as_ref().and_then(of_recovery) {
        problems::complain(&format!("{}: {said}", host_name(&location.name())));
    }
    Ok(volume)
}

/// Reports a recovery that changed the volume, or that could not finish.
fn of_recovery(recovery: &Recovery) -> Option<String> {
    if recovery.written {
        return Some(format!("recovered the log: {recovery}"));
    }
    let obstacle = recovery.obstacle.as_ref().filter(|_| !recovery.unfinished.is_empty())?;
    let unfinished = recovery.unfinished.join(", ");
    Some(format!(
        "what was under way at a crash cannot be finished ({unfinished}): {obstacle}. What is read is as the log leaves \
         it, and may be in the midst of a change"
    ))
}

/// Warns of the kernel, or a program that takes no lock, that has an image open for writing while it is read. What
/// could not be read has an error of its own, which is not warned of.
pub fn warn_of_writer(location: &Location, writer: Option<String>) {
    if let Some(who) = writer {
        let name = host_name(&location.name());
        let what = format!("is open for writing by {who}; what is read may be of several moments");
        problems::complain(&format!("{name}: {what}"));
    }
}

/// Splits `IMAGE@2`.
fn numbered(image: &Path) -> Option<(&Path, u32)> {
    let bytes = image.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|&byte| byte == b'@').filter(|&at| at > 0)?;
    let (image, number) = (bytes.get(..at)?, bytes.get(at + 1..)?);
    let number = str::from_utf8(number).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some((Path::new(OsStr::from_bytes(image)), number.parse().ok()?))
}

/// Explains why an image cannot be one or cannot be read.
pub fn check(image: &Path) -> Result<()> {
    let refuse = |exit, what: &str| Err(Failure::new(exit, format!("{}: {what}", host_name(image))));
    match std::fs::metadata(image) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return match before_colon(image) {
                Some(meant) => {
                    let meant = host_name(meant);
                    refuse(
                        Exit::NotFound,
                        &format!("no such image; a path in {meant} is written {meant}:/path"),
                    )
                }
                None => refuse(Exit::NotFound, "no such image"),
            };
        }
        Err(_) => {}
        Ok(metadata) if metadata.is_dir() => {
            return refuse(
                Exit::NotFound,
                "a directory of this machine; name an image file or a block device",
            );
        }
        Ok(metadata) if !metadata.is_file() && !metadata.file_type().is_block_device() => {
            let what = "neither a file nor a block device; write a stream to a file first";
            return refuse(Exit::NotFound, what);
        }
        Ok(_) => {}
    }
    match std::fs::File::open(image) {
        Ok(_) => Ok(()),
        Err(error) => refuse(Exit::Io, &format!("cannot be opened: {error}")),
    }
}

/// The image that was meant, if a path in it lacks its first slash.
pub fn before_colon(image: &Path) -> Option<&Path> {
    let bytes = image.as_os_str().as_bytes();
    let colons = (1..bytes.len()).rev().filter(|&at| bytes[at] == b':');
    colons.map(|at| Path::new(OsStr::from_bytes(&bytes[..at]))).find(|image| image.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, existing: &[&str]) -> (String, String) {
        let exists = |path: &Path| existing.iter().any(|name| Path::new(name) == path);
        let location = Location::parse_with(OsStr::new(text), exists);
        (location.image.to_str().unwrap().to_owned(), String::from_utf8(location.path).unwrap())
    }

    fn pair(image: &str, path: &str) -> (String, String) {
        (image.to_owned(), path.to_owned())
    }

    #[test]
    fn the_last_colon_and_slash_divide() {
        assert_eq!(split("a.img:/etc", &["a.img"]), pair("a.img", "/etc"));
        assert_eq!(split("a.img", &["a.img"]), pair("a.img", "/"));
        assert_eq!(split("a.img:/", &[]), pair("a.img", "/"));
        assert_eq!(split("a:b.img:/x:y", &["a:b.img"]), pair("a:b.img", "/x:y"));
        assert_eq!(split("a:/b:/c", &[]), pair("a:/b", "/c"));
        assert_eq!(split("a.img:etc", &[]), pair("a.img:etc", "/"));
    }

    #[test]
    fn what_exists_decides_where_it_is_open() {
        assert_eq!(split("d:/a.img", &["d:/a.img"]), pair("d:/a.img", "/"));
        assert_eq!(split("d:/a.img:/x", &["d:/a.img"]), pair("d:/a.img", "/x"));
        assert_eq!(split("a.img:/x:/y", &["a.img"]), pair("a.img", "/x:/y"));
    }

    #[test]
    fn a_partition_is_named_by_its_number() {
        let exists = |path: &Path| ["a.img", "x@2", "d@1:/b@3"].iter().any(|name| Path::new(name) == path);
        let parse = |text: &str| {
            let found = Location::parse_with(OsStr::new(text), exists);
            (
                found.image.to_str().unwrap().to_owned(),
                found.partition,
                String::from_utf8(found.path).unwrap(),
            )
        };
        let is = |image: &str, partition, path: &str| (image.to_owned(), partition, path.to_owned());
        assert_eq!(parse("a.img@2:/etc"), is("a.img", Some(2), "/etc"));
        assert_eq!(parse("a.img@12"), is("a.img", Some(12), "/"));
        assert_eq!(parse("a.img:/x@2"), is("a.img", None, "/x@2"));
        assert_eq!(parse("a.img:/x@2:/y"), is("a.img", None, "/x@2:/y"));
        assert_eq!(parse("x@2"), is("x@2", None, "/"));
        assert_eq!(parse("x@2@5:/y"), is("x@2", Some(5), "/y"));
        assert_eq!(parse("d@1:/b@3:/c"), is("d@1:/b@3", None, "/c"));
        for none in ["a.img@", "a.img@x", "a.img@-1", "a.img@99999999999", "other@2", "@2"] {
            assert_eq!(parse(none), is(none, None, "/"));
        }
    }

    #[test]
    fn a_file_name_is_a_name() {
        let name = |path: &str| {
            Location { image: "i".into(), partition: None, path: path.into() }.file_name().map(<[u8]>::to_vec)
        };
        assert_eq!(name("/a/b"), Some(b"b".to_vec()));
        assert_eq!(name("/a/b//"), Some(b"b".to_vec()));
        assert_eq!(name("/"), None);
        assert_eq!(name("/a/."), None);
        assert_eq!(name("/a/.."), None);
    }
}
