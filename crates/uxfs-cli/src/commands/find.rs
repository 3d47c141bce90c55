//! `uxfs find`: files that all the given tests hold for.
//!
//! Tests are written as `find` writes them (`-name`) or with two dashes. Tests on the directory entry come
//! first, so an inode is read only if a test needs it.

use crate::exit::{Exit, Result};
use crate::glob;
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, put_metadata, put_name, type_word};
use crate::problems::{Problems, for_each};
use crate::walk::{EntryOrder, Step, Walk};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use uxfs::{FileType, Metadata, Node, Volume};

/// Options that may be written with one dash.
pub const SINGLE_DASH: &[&str] = &[
    "name", "iname", "path", "type", "size", "links", "inum", "uid", "gid", "perm", "newer", "empty",
    "maxdepth", "mindepth", "print0",
];

/// Arguments of `find`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where to start
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// The name matches this pattern
    #[arg(long, value_name = "GLOB")]
    name: Option<OsString>,
    /// The name matches this pattern, ignoring the case of ASCII letters
    #[arg(long, value_name = "GLOB")]
    iname: Option<OsString>,
    /// The whole path in the image matches this pattern
    #[arg(long, value_name = "GLOB")]
    path: Option<OsString>,
    /// The type is one of these letters: f, d, l, b, c, p, s
    #[arg(long = "type", value_name = "T", value_delimiter = ',')]
    types: Vec<TypeLetter>,
    /// The size is N, more (+N) or less (-N): in units of 512 bytes, or c, w, k, M, G (rounded up); give it twice
    /// for a range
    #[arg(long, value_name = "[+-]N[UNIT]", allow_hyphen_values = true)]
    size: Vec<SizeTest>,
    /// The number of links is N, more (+N) or less (-N)
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    links: Option<Count>,
    /// The inode number is N
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    inum: Option<Count>,
    /// The owner's number is N
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    uid: Option<Count>,
    /// The group's number is N
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    gid: Option<Count>,
    /// The permissions are exactly MODE (octal), have all its bits (-MODE), or one of them (/MODE)
    #[arg(long, value_name = "[-/]MODE", allow_hyphen_values = true)]
    perm: Option<Permissions>,
    /// Changed later than the file at this path in the same image
    #[arg(long, value_name = "PATH")]
    newer: Option<OsString>,
    /// An empty regular file or directory
    #[arg(long)]
    empty: bool,
    /// Levels to go down at most
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// Levels to go down before the first test
    #[arg(long, value_name = "N", default_value_t = 0)]
    mindepth: usize,
    /// End each path with a NUL byte, not a newline
    #[arg(long)]
    print0: bool,
}

/// Prints the matches under each location.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let mut images = Images::new(global);
    let mut out = Output::new(global);
    let exit = for_each(&args.locations, &mut Problems::default(), |location, problems| {
        let volume = images.volume(location)?;
        find(args, location, &volume, &mut out, problems)
    })?;
    out.finish()?;
    Ok(exit)
}

fn find(
    args: &Args,
    location: &Location,
    volume: &Volume,
    out: &mut Output,
    problems: &mut Problems,
) -> Result<()> {
    let failure = |error| location.failure(&error);
    let newer = args.newer.as_ref().map(|path| volume.metadata(path.as_bytes()).map(|of| of.mtime));
    let tests = Tests { args, newer: newer.transpose().map_err(failure)? };
    let start = volume.lookup_nofollow(&location.path).map_err(failure)?;
    let mut walk = Walk::new(volume, start, &location.path, EntryOrder::Stored);
    if tests.need_inode() || out.is_json() {
        walk = walk.with_inodes();
    }
    while let Some(step) = walk.next() {
        let (file_type, node) = match &step {
            Step::Enter(node) => (FileType::Directory, Some(node.clone())),
            Step::Leaf(leaf) => (leaf.file_type, None),
            Step::Leave(_) => continue,
            Step::Failed(error) => {
                problems.at(&location.image, walk.path(), error);
                continue;
            }
            Step::Damaged(what) => {
                problems.at(&location.image, walk.path(), what);
                continue;
            }
        };
        if args.maxdepth.is_some_and(|most| walk.depth() >= most) {
            walk.skip();
        }
        if walk.depth() < args.mindepth || !tests.entry(walk.name(), walk.path(), file_type) {
            continue;
        }
        let node = match (&step, tests.need_inode() || out.is_json()) {
            (Step::Leaf(leaf), true) => Some(leaf.node(volume)),
            _ => node.map(Ok),
        };
        let found = node.transpose().and_then(|node| {
            let hit = tests.inode(node.as_ref())?;
            let of = node.filter(|_| hit && out.is_json()).map(|node| node.metadata()).transpose()?;
            Ok((of, hit))
        });
        match found {
            Ok((of, true)) => print(args, &walk, file_type, of.as_ref(), out)?,
            Ok((_, false)) => {}
            Err(error) => problems.at(&location.image, walk.path(), &error),
        }
    }
    Ok(())
}

fn print(
    args: &Args,
    walk: &Walk,
    file_type: FileType,
    of: Option<&Metadata>,
    out: &mut Output,
) -> Result<()> {
    if out.is_json() {
        let mut object = Object::new();
        put_name(&mut object, "path", walk.path());
        object.insert("type".to_owned(), type_word(file_type).into());
        if let Some(of) = of {
            put_metadata(&mut object, of);
        }
        return out.object(object);
    }
    if args.print0 {
        out.bytes(walk.path())?;
        return out.bytes(&[0]);
    }
    out.name(walk.path())?;
    out.text("\n")
}

/// The requested tests.
struct Tests<'a> {
    args: &'a Args,
    newer: Option<uxfs::Timestamp>,
}

impl Tests<'_> {
    /// The tests that a directory entry answers.
    fn entry(&self, name: &[u8], path: &[u8], file_type: FileType) -> bool {
        let args = self.args;
        let hit = |pattern: &Option<OsString>, text: &[u8]| {
            pattern.as_ref().is_none_or(|pattern| glob::matches(pattern.as_bytes(), text))
        };
        let iname = args.iname.as_ref().map(|pattern| pattern.to_ascii_lowercase());
        (args.types.is_empty() || args.types.contains(&TypeLetter(file_type)))
            && hit(&args.name, name)
            && hit(&args.path, path)
            && (iname.is_none() || hit(&iname, &name.to_ascii_lowercase()))
    }

    /// Whether there are other tests.
    fn need_inode(&self) -> bool {
        let args = self.args;
        !args.size.is_empty()
            || args.links.is_some()
            || args.inum.is_some()
            || args.uid.is_some()
            || args.gid.is_some()
            || args.perm.is_some()
            || args.empty
            || self.newer.is_some()
    }

    fn inode(&self, node: Option<&Node>) -> uxfs::Result<bool> {
        let Some(node) = node.filter(|_| self.need_inode()) else { return Ok(true) };
        let of = node.metadata()?;
        let args = self.args;
        let count = |test: &Option<Count>, value: u64| test.as_ref().is_none_or(|test| test.holds(value));
        let hit = count(&args.links, of.nlink.into())
            && count(&args.inum, of.ino)
            && count(&args.uid, of.uid.into())
            && count(&args.gid, of.gid.into())
            && args.size.iter().all(|test| test.holds(of.size))
            && args.perm.as_ref().is_none_or(|test| test.holds(of.permissions()))
            && self.newer.is_none_or(|newer| of.mtime > newer);
        Ok(hit && (!args.empty || is_empty(node, &of)?))
    }
}

fn is_empty(node: &Node, of: &Metadata) -> uxfs::Result<bool> {
    if of.is_dir() {
        return Ok(node.as_dir()?.entries().next().transpose()?.is_none());
    }
    Ok(of.is_file() && of.size == 0)
}

/// A type by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TypeLetter(FileType);

impl FromStr for TypeLetter {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Ok(Self(match text {
            "f" => FileType::Regular,
            "d" => FileType::Directory,
            "l" => FileType::Symlink,
            "b" => FileType::BlockDevice,
            "c" => FileType::CharDevice,
            "p" => FileType::Fifo,
            "s" => FileType::Socket,
            _ => return Err("a type is one of f, d, l, b, c, p, s".to_owned()),
        }))
    }
}

/// `N`, `+N`, `-N`.
#[derive(Clone, Copy, Debug)]
struct Count {
    than: std::cmp::Ordering,
    value: u64,
}

impl Count {
    fn holds(self, value: u64) -> bool {
        value.cmp(&self.value) == self.than
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        use std::cmp::Ordering;
        let (than, digits) = match text.as_bytes().first() {
            Some(b'+') => (Ordering::Greater, &text[1..]),
            Some(b'-') => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let value = digits.parse().map_err(|_| format!("`{text}` is not a number"))?;
        Ok(Self { than, value })
    }
}

/// A count of units; sizes are rounded up.
#[derive(Clone, Copy, Debug)]
struct SizeTest {
    count: Count,
    unit: u64,
}

impl SizeTest {
    fn holds(self, size: u64) -> bool {
        self.count.holds(size.div_ceil(self.unit))
    }
}

impl FromStr for SizeTest {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (number, unit) = match text.as_bytes().last() {
            Some(b'c') => (&text[..text.len() - 1], 1),
            Some(b'w') => (&text[..text.len() - 1], 2),
            Some(b'b') => (&text[..text.len() - 1], 512),
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'M') => (&text[..text.len() - 1], 1 << 20),
            Some(b'G') => (&text[..text.len() - 1], 1 << 30),
            _ => (text, 512),
        };
        Ok(Self { count: number.parse()?, unit })
    }
}

/// Permissions, and how they compare.
#[derive(Clone, Copy, Debug)]
enum Permissions {
    Exactly(u16),
    All(u16),
    Any(u16),
}

impl Permissions {
    fn holds(self, mode: u16) -> bool {
        match self {
            Self::Exactly(bits) => mode == bits,
            Self::All(bits) => mode & bits == bits,
            Self::Any(bits) => bits == 0 || mode & bits != 0,
        }
    }
}

impl FromStr for Permissions {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let digits = text.trim_start_matches(['-', '/']);
        let bits = u16::from_str_radix(digits, 8).ok().filter(|&bits| bits <= 0o7777);
        let bits = bits.ok_or_else(|| format!("`{text}` is not a mode in octal digits"))?;
        Ok(match text.as_bytes().first() {
            Some(b'-') => Self::All(bits),
            Some(b'/') => Self::Any(bits),
            _ => Self::Exactly(bits),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_their_unit() {
        let holds = |test: &str, size| test.parse::<SizeTest>().unwrap().holds(size);
        assert!(holds("1", 512));
        assert!(!holds("1", 513));
        assert!(holds("+1k", 1025));
        assert!(!holds("+1k", 1024));
        assert!(holds("-1M", 0));
        assert!(!holds("-1M", 1));
        assert!(holds("7c", 7));
        assert!("k".parse::<SizeTest>().is_err());
        assert!("é".parse::<SizeTest>().is_err());
    }

    #[test]
    fn permissions_compare_in_three_ways() {
        let holds = |test: &str, mode| test.parse::<Permissions>().unwrap().holds(mode);
        assert!(holds("644", 0o644));
        assert!(!holds("644", 0o755));
        assert!(holds("-4000", 0o4755));
        assert!(holds("/022", 0o020));
        assert!(!holds("/022", 0o755));
        assert!("9".parse::<Permissions>().is_err());
        assert!("17777".parse::<Permissions>().is_err());
    }
}
