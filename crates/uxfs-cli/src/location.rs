//! `IMAGE:/path`: which image, and which path in it.

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
use uxfs::{OpenOptions, Volume};

/// A place in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The image file, or the block device.
    pub image: PathBuf,
    /// The path in it; `/` if only the image was named.
    pub path: Vec<u8>,
}

impl Location {
    /// Splits `IMAGE:/path` at its last `:/`. An image that has `:/` in its own name, or a path that has, is
    /// understood where the image exists: the whole is tried first, then the longest image part.
    pub fn parse(text: &OsStr) -> Self {
        Self::parse_with(text, Path::exists)
    }

    fn parse_with(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Self {
        let bytes = text.as_bytes();
        let split = |at: usize| {
            let (image, path) = bytes.split_at(at);
            Self { image: OsStr::from_bytes(image).into(), path: path.get(1..).unwrap_or_default().to_vec() }
        };
        let whole = Self { image: text.into(), path: b"/".to_vec() };
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

    /// The last part of the path, if it has one that is a name.
    pub fn file_name(&self) -> Option<&[u8]> {
        let name = self.path.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty())?;
        (!matches!(name, b"." | b"..")).then_some(name)
    }

    /// What an error of the volume says, with the image's name in front.
    pub fn failure(&self, error: &uxfs::Error) -> Failure {
        Failure::of_image(&self.image, error)
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

/// Volumes that are open, so that several paths in one image share one.
pub struct Images<'a> {
    global: &'a Global,
    writable: bool,
    open: Vec<(PathBuf, Option<Identity>, Volume)>,
}

impl<'a> Images<'a> {
    /// None yet.
    pub fn new(global: &'a Global) -> Self {
        Self { global, writable: false, open: Vec::new() }
    }

    /// None yet; those that come are opened for writing, and have to be closed.
    pub fn writable(global: &'a Global) -> Self {
        interrupt::watch();
        Self { global, writable: true, open: Vec::new() }
    }

    /// The volume in the location's image.
    pub fn volume(&mut self, location: &Location) -> Result<Volume> {
        let identity = Identity::of_path(&location.image);
        let is_it = |(image, known, _): &&(PathBuf, Option<Identity>, Volume)| {
            *image == location.image || (identity.is_some() && *known == identity)
        };
        if let Some((.., volume)) = self.open.iter().find(is_it) {
            return Ok(volume.clone());
        }
        let volume = open(location, &self.global.open_options().writable(self.writable))?;
        self.open.push((location.image.clone(), identity, volume.clone()));
        Ok(volume)
    }

    /// Which of those that were opened the location's image is.
    pub fn number(&self, location: &Location) -> Option<usize> {
        let identity = Identity::of_path(&location.image);
        self.open.iter().position(|(image, known, _)| {
            *image == location.image || (identity.is_some() && *known == identity)
        })
    }

    /// Writes back what was changed and leaves clean logs. The first failure counts.
    pub fn close(self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        let close = |(image, _, volume): &(PathBuf, Option<Identity>, Volume)| {
            volume.close().map_err(|error| Failure::of_image(image, &error))
        };
        let closed: Vec<Result<()>> = self.open.iter().map(close).collect();
        closed.into_iter().collect()
    }
}

fn open(location: &Location, options: &OpenOptions) -> Result<Volume> {
    let image = &location.image;
    check(image)?;
    let volume = Volume::open(image, options).map_err(|error| Failure::of_image(image, &error))?;
    if let Some(recovery) = volume.recovery().filter(|recovery| recovery.written) {
        problems::complain(&format!("{}: recovered the log: {recovery}", host_name(image)));
    }
    Ok(volume)
}

/// Says what is wrong with an image that cannot be one, or that the host doesn't let be read.
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

/// The image that was meant where a path in it was not written with a slash at its start.
fn before_colon(image: &Path) -> Option<&Path> {
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
    fn a_file_name_is_a_name() {
        let name =
            |path: &str| Location { image: "i".into(), path: path.into() }.file_name().map(<[u8]>::to_vec);
        assert_eq!(name("/a/b"), Some(b"b".to_vec()));
        assert_eq!(name("/a/b//"), Some(b"b".to_vec()));
        assert_eq!(name("/"), None);
        assert_eq!(name("/a/."), None);
        assert_eq!(name("/a/.."), None);
    }
}
