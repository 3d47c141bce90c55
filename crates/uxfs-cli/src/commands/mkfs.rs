//! `uxfs mkfs`: makes a volume in a file or on a block device.
//!
//! Options are those of `mkfs.xfs`, letter by letter. Unsupported ones are refused by name, never ignored.

use super::info::Shown;
use super::untar::say_lost;
use crate::archive::read::Reader;
use crate::exit::{Exit, Failure, Result, host_name};
use crate::fill::archive::FromArchive;
use crate::fill::host::{self, FromHost, Target};
use crate::fill::image::{self, FromImage};
use crate::fill::{Existing, Filler, Reflink, Rules};
use crate::host::Identity;
use crate::host::attributes::Keep;
use crate::host::stream;
use crate::host::volumes::is_volume;
use crate::interrupt::{self, Patient};
use crate::location::{Images, Location, image_parser};
use crate::mode::Owner;
use crate::options::{Global, ThreadsArg, parse_size, source_date};
use crate::output::Output;
use crate::problems::{Problems, complain};
use crate::progress;
use crate::trust::Trust;
use clap::builder::PossibleValuesParser;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use uuid::Uuid;
use uxfs::{FeatureSupport, MkfsFeatures, MkfsOptions, Node, Timestamp, Volume};

/// Arguments of `mkfs`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file, which is created if it does not exist, or the block device; IMAGE@2 is its second
    /// partition
    #[arg(value_name = "IMAGE", value_parser = image_parser())]
    image: Location,
    /// Size of the volume, with a suffix: K, M, G, T, s (default: all of the file or device; with --offset, all of the
    /// partition that begins there)
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// The label, up to 12 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// Blocks: size=1K…64K
    #[arg(short, value_name = "size=N", value_delimiter = ',')]
    block: Vec<String>,
    /// Inodes: size=512…2048, sparse=0|1, nrext64=0|1, exchange=0|1
    #[arg(short, value_name = "size=N,…", value_delimiter = ',')]
    inode: Vec<String>,
    /// Sectors: size=512…32K
    #[arg(short, value_name = "size=N", value_delimiter = ',')]
    sector: Vec<String>,
    /// Log: size=N
    #[arg(short, value_name = "size=N", value_delimiter = ',')]
    log: Vec<String>,
    /// Data: agcount=N or agsize=N, size=N
    #[arg(short, value_name = "agcount=N,…", value_delimiter = ',')]
    data: Vec<String>,
    /// Directories: size=N bytes a block, parent=0|1
    #[arg(short, value_name = "size=N,…", value_delimiter = ',')]
    naming: Vec<String>,
    /// Metadata: uuid=… (then all old content is read, and zeroed), finobt=0|1, inobtcount=0|1, reflink=0|1,
    /// bigtime=0|1, rmapbt=0|1
    #[arg(short, value_name = "KEY=VALUE,…", value_delimiter = ',')]
    metadata: Vec<String>,
    /// Only features that this kernel and later ones write: those that mkfs.xfs had on when it came out (default: the
    /// set of 6.18, which kernels from 6.10 on write). Other features can be switched on or off as well, except those
    /// that it does not know
    #[arg(long, value_name = "KERNEL", value_parser = PossibleValuesParser::new(MkfsFeatures::KERNELS))]
    compat: Option<String>,
    /// Overwrite what is there
    #[arg(short)]
    force: bool,
    /// Print nothing
    #[arg(short)]
    quiet: bool,
    /// Make volumes below 300M, of one group, or with a log below 64M, which mkfs.xfs calls unsupported
    #[arg(long)]
    small: bool,
    /// Time of making, in seconds since 1970 or as 2026-01-31T12:00:00Z; with uuid=…, the same options give the
    /// same bytes (default: SOURCE_DATE_EPOCH of the environment)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<Timestamp>,
    /// Fill the volume from a directory or a tar archive; with --time, only times of content are kept. Or from another
    /// image, of which everything is kept: times, attributes, flags, projects, preallocated space
    #[arg(long, value_name = "DIR|TAR|IMAGE:/PATH")]
    from: Option<PathBuf>,
    /// Owner of all files that are filled in, as numbers (default: as in the source)
    #[arg(long, value_name = "UID[:GID]", requires = "from")]
    owner: Option<Owner>,
    #[command(flatten)]
    threads: ThreadsArg,
}

/// Makes the volume and shows it as `info` does.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let mut options = options(args, global)?;
    if let Some((offset, length)) = args.image.place(global)? {
        options = options.offset(offset).length(Some(length));
    }
    let time = args.time.map_or_else(source_date, |time| Ok(Some(time)))?;
    let source = args.from.as_deref().map(|path| Source::open(path, args, global)).transpose()?;
    if let Some(size) = source.as_ref().and_then(|source| source.size(args, global)) {
        options = options.size(size);
    }
    let unwritable = options.read_only_because();
    if source.is_some() && !unwritable.is_empty() {
        let what =
            format!("--from: volumes with {} are not written, and so not filled", unwritable.join(", "));
        return Err(Failure::new(Exit::Unsupported, what));
    }
    let exit = match source {
        Some(source) => fill(args, global, &options, source, time)?,
        None => uxfs::mkfs(&args.image.image, &options)
            .map(|()| Exit::Ok)
            .map_err(|error| explain(args, &error))?,
    };
    if !args.quiet {
        let location = &args.image;
        let volume = match Images::new(global).volume(location) {
            // The volume is made nevertheless.
            Err(failure) if failure.is_locked() => return Ok(exit),
            volume => volume?,
        };
        let mut out = Output::new(global);
        Shown::of(&volume).map_err(|error| location.failure(&error))?.print(&mut out)?;
        out.finish()?;
    }
    Ok(exit)
}

/// The source of a volume's files.
enum Source {
    Dir(PathBuf),
    Archive(Box<Reader<BufReader<Patient<File>>>>),
    Image(Box<Copied>),
}

/// A directory of another volume, copied with all metadata of its inodes.
struct Copied {
    volume: Volume,
    location: Location,
    dir: Node,
    /// Bytes of the volume.
    size: u64,
}

impl Source {
    /// Opens the source before the volume is made: a wrong name, or a file that is no archive, must not destroy
    /// the old content.
    fn open(path: &Path, args: &Args, global: &Global) -> Result<Self> {
        let location = Location::parse(path.as_os_str());
        if path.symlink_metadata().is_err() && location.image != path && location.image.exists() {
            return Copied::open(location, args, global).map(|copied| Self::Image(Box::new(copied)));
        }
        let missing = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::new(Exit::NotFound, format!("{}: no such file or directory", host_name(path)))
            }
            _ => Failure::of_host(path, error),
        };
        if path.metadata().map_err(missing)?.is_dir() {
            std::fs::read_dir(path).map_err(missing)?;
            return Ok(Self::Dir(path.to_owned()));
        }
        let file = File::open(path).map_err(missing)?;
        stream::refuse_image(&file, &host_name(path), &args.image.image)?;
        if is_volume(&file) {
            let name = host_name(path);
            let what =
                format!("{name}: an XFS volume, and no archive; to copy what is in it, write {name}:/");
            return Err(Failure::new(Exit::Usage, what));
        }
        let mut reader = Reader::new(BufReader::with_capacity(1 << 20, Patient::new(file)));
        reader.look().map_err(|failure| failure.about(path))?;
        Ok(Self::Archive(Box::new(reader)))
    }

    /// The default size of a new image: that of the copied volume.
    fn size(&self, args: &Args, global: &Global) -> Option<u64> {
        let Self::Image(copied) = self else { return None };
        let is_said = args.size.is_some()
            || global.length.is_some()
            || settings('d', &args.data).any(|setting| setting.key == "size");
        (!is_said && !args.image.image.exists()).then_some(copied.size)
    }
}

impl Copied {
    fn open(location: Location, args: &Args, global: &Global) -> Result<Self> {
        // The place of the new volume does not concern the source.
        let of_source = Global { offset: 0, length: None, ..global.clone() };
        let failure = |error: uxfs::Error| location.failure(&error);
        let start = location.place(&of_source)?.map_or(0, |(start, _)| start);
        let volume = Images::new(&of_source).volume(&location)?;
        let info = volume.info().map_err(failure)?;
        let size = info.blocks.saturating_mul(info.block_size.into());
        if overlaps(&location, start, size, args, global)? {
            let what = format!(
                "{}: is {} itself; a volume is not copied over itself",
                host_name(&location.name()),
                host_name(&args.image.name())
            );
            return Err(Failure::new(Exit::Usage, what));
        }
        let dir = volume.lookup(&location.path).map_err(failure)?;
        dir.as_dir().map_err(failure)?;
        if info.features.iter().any(|name| name == "quota") {
            let what = "note: its quotas are not copied; the new volume keeps none";
            complain(&format!("{}: {what}", host_name(&location.name())));
        }
        Ok(Self { volume, location, dir, size })
    }
}

/// Whether the new volume would overlap the copied one.
fn overlaps(source: &Location, start: u64, size: u64, args: &Args, global: &Global) -> Result<bool> {
    let (one, other) = (Identity::of_path(&source.image), Identity::of_path(&args.image.image));
    if one.is_none() || one != other {
        return Ok(false);
    }
    let said = args.size.or(global.length);
    let to = args.image.place(global)?.or(said.map(|length| (global.offset, length)));
    let (to, length) = to.unwrap_or((global.offset, u64::MAX));
    Ok(start < to.saturating_add(length) && to < start.saturating_add(size))
}

/// Makes the volume and fills it. It cannot be opened before that is done.
fn fill(
    args: &Args,
    global: &Global,
    options: &MkfsOptions,
    source: Source,
    time: Option<Timestamp>,
) -> Result<Exit> {
    let bar = progress::bytes();
    let rules = Rules {
        keep: Keep::ALL,
        keep_links: true,
        owner: args.owner.unwrap_or_default(),
        time,
        inherit: false,
        umask: 0,
        exact: matches!(source, Source::Image(_)),
        reflink: Reflink::Never,
        existing: Existing::LastCounts,
        trust: Trust::FULL,
        verbose: global.verbose,
        threads: args.threads.count_for_changes(1, global.verbose || time.is_some()),
    };
    interrupt::watch();
    let mut filler = Filler::new(rules, &bar);
    let mut problems = Problems::beside(&bar);
    // If the time is given, the result is reproducible.
    let how = global.open_options().repeatable(time).direct(false).durable_at_close(true);
    let made = uxfs::mkfs_filled(&args.image.image, options, &how, |volume| {
        let failure = |error: uxfs::Error| args.image.failure(&error);
        let root = volume.root().and_then(|root| root.as_dir()).map_err(failure)?;
        let filled = match source {
            Source::Dir(path) => {
                let target = Target { dir: root, path: Vec::new(), name: None };
                let mut links = host::Links::default();
                FromHost::new(&mut filler, &mut problems, &mut links, &args.image.image)
                    .copy(&path, target, true)
            }
            Source::Archive(reader) => FromArchive::new(&mut filler, &mut problems, root).unpack(*reader),
            Source::Image(copied) => {
                let target = Target { dir: root, path: Vec::new(), name: None };
                let Copied { volume, location, dir, .. } = &*copied;
                let mut links = image::Links::default();
                FromImage::new(&mut filler, &mut problems, &mut links, volume, location, false)
                    .copy(dir.clone(), target)
            }
        };
        // The file that was next is not to blame.
        filled.map_err(|other| volume.device_failure().map_or(other, failure))
    });
    bar.finish_and_clear();
    let ((), volume) = made.map_err(|error| explain(args, &error))?.map_err(nothing_is_left)?;
    // The caches are freed with the process.
    std::mem::forget(volume);
    say_lost(&filler);
    Ok(problems.exit())
}

/// The message after a signal: nothing is left of an incomplete volume.
fn nothing_is_left(failure: Failure) -> Failure {
    match failure.exit() {
        Exit::Interrupted => Failure::new(Exit::Interrupted, "interrupted; no volume was made"),
        _ => failure,
    }
}

/// Adds the option that helps.
fn explain(args: &Args, error: &uxfs::Error) -> Failure {
    let help = match error.kind() {
        uxfs::ErrorKind::AlreadyExists => " (-f)",
        uxfs::ErrorKind::InvalidInput if error.to_string().contains("must be asked for") => " (--small)",
        uxfs::ErrorKind::NotFound if args.size.is_none() => " (uxfs mkfs IMAGE SIZE)",
        _ => "",
    };
    Failure::new(error.kind().into(), format!("{}: {error}{help}", host_name(&args.image.name())))
}

/// A value after `key=`, of the option's type.
struct Setting<'a> {
    letter: char,
    /// All of it.
    item: &'a str,
    key: &'a str,
    value: &'a str,
}

impl Setting<'_> {
    fn wrong(&self, what: impl std::fmt::Display) -> Failure {
        Failure::new(Exit::Usage, format!("-{} {}: {what}", self.letter, self.item))
    }

    fn unknown(&self) -> Failure {
        if self.item == self.key && self.letter != 'm' && parse_size(self.key).is_ok() {
            return self.wrong(format_args!(
                "a value without its name; a size is written -{} size={}",
                self.letter, self.key
            ));
        }
        self.wrong("this option is not known, or what it does is not handled")
    }

    /// Features that volumes made here never have: only =0 is accepted.
    fn not_made(&self) -> Result<()> {
        match FeatureSupport::of_option(self.letter, self.key) {
            Some(feature) if !feature.made && self.value == "0" => Ok(()),
            Some(feature) if !feature.made => Err(self.wrong("volumes with this feature are not made")),
            _ => Err(self.unknown()),
        }
    }

    fn bytes(&self) -> Result<u64> {
        parse_size(self.value).map_err(|error| self.wrong(error))
    }

    fn small(&self) -> Result<u32> {
        u32::try_from(self.bytes()?).map_err(|_| self.wrong("that is too large"))
    }

    fn switch(&self) -> Result<bool> {
        match self.value {
            "0" => Ok(false),
            "1" | "" => Ok(true),
            _ => Err(self.wrong("it is 0 or 1")),
        }
    }

    /// Options with one possible value here, which is accepted.
    fn only(&self, right: &str) -> Result<()> {
        if self.value == right { Ok(()) } else { Err(self.unknown()) }
    }

    fn uuid(&self) -> Result<[u8; 16]> {
        let uuid = Uuid::parse_str(self.value).map_err(|error| self.wrong(error))?;
        Ok(uuid.into_bytes())
    }
}

fn settings(letter: char, list: &[String]) -> impl Iterator<Item = Setting<'_>> {
    list.iter().map(move |item| {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        Setting { letter, item, key, value }
    })
}

/// The command line as options of the library.
fn options(args: &Args, global: &Global) -> Result<MkfsOptions> {
    let mut options = MkfsOptions::new()
        .overwrite(args.force)
        .small(args.small)
        .offset(global.offset)
        .length(global.length)
        .label(args.label.as_deref().unwrap_or_default());
    if let Some(time) = args.time.map_or_else(source_date, |time| Ok(Some(time)))? {
        options = options.time(time);
    }
    if let Some(size) = args.size {
        options = options.size(size);
    }
    for setting in settings('b', &args.block) {
        options = match setting.key {
            "size" => options.block_size(setting.small()?),
            _ => return Err(setting.unknown()),
        };
    }
    for setting in settings('s', &args.sector) {
        options = match setting.key {
            "size" => options.sector_size(setting.small()?),
            _ => return Err(setting.unknown()),
        };
    }
    options = data(args, options)?;
    for setting in settings('l', &args.log) {
        match setting.key {
            "size" => options = options.log_size(setting.bytes()?),
            "internal" => setting.only("1").or_else(|_| setting.only(""))?,
            "version" => setting.only("2")?,
            "lazy-count" => setting.only("1")?,
            _ => setting.not_made()?,
        }
    }
    features(args, options)
}

fn data(args: &Args, mut options: MkfsOptions) -> Result<MkfsOptions> {
    let mut groups = None;
    for setting in settings('d', &args.data) {
        match setting.key {
            "agcount" => options = options.group_count(setting.small()?),
            "agsize" => options = options.group_size(setting.bytes()?),
            "size" if args.size.is_none() => options = options.size(setting.bytes()?),
            "size" => return Err(setting.wrong("the size was given already, behind the image")),
            "file" => {}
            _ => return Err(setting.unknown()),
        }
        if setting.key.starts_with("ag") && groups.replace(setting.key).is_some_and(|key| key != setting.key)
        {
            return Err(setting.wrong("agcount and agsize say the same in two ways; give one"));
        }
    }
    Ok(options)
}

/// Inodes, names and metadata: what is on and off, and two sizes.
fn features(args: &Args, mut options: MkfsOptions) -> Result<MkfsOptions> {
    let set = args.compat.as_deref().and_then(MkfsFeatures::of_kernel);
    let mut features = set.unwrap_or_default();
    let mut counts = None;
    for setting in settings('i', &args.inode) {
        match setting.key {
            "size" => options = options.inode_size(setting.small()?),
            "sparse" => features.sparse_inodes = setting.switch()?,
            "nrext64" => features.nrext64 = setting.switch()?,
            "exchange" => features.exchange = setting.switch()?,
            "attr" => setting.only("2")?,
            "projid32bit" => setting.only("1")?,
            _ => setting.not_made()?,
        }
    }
    for setting in settings('n', &args.naming) {
        match setting.key {
            "size" => options = options.dir_block_size(setting.small()?),
            "parent" => features.parent_pointers = setting.switch()?,
            "version" => setting.only("2")?,
            "ftype" => setting.only("1")?,
            _ => setting.not_made()?,
        }
    }
    for setting in settings('m', &args.metadata) {
        match setting.key {
            "uuid" => options = options.uuid(setting.uuid()?),
            "finobt" => features.finobt = setting.switch()?,
            "inobtcount" => counts = Some(setting.switch()?),
            "reflink" => features.reflink = setting.switch()?,
            "bigtime" => features.bigtime = setting.switch()?,
            "rmapbt" => features.rmapbt = setting.switch()?,
            "crc" => setting.only("1")?,
            _ => setting.not_made()?,
        }
    }
    // By default the counters follow the tree of free inodes.
    features.inobt_counts = counts.unwrap_or(features.inobt_counts && features.finobt);
    let options = options.features(features);
    match args.compat.as_deref().map(|kernel| (kernel, options.unknown_to(kernel).unwrap_or_default())) {
        Some((kernel, unknown)) if !unknown.is_empty() => {
            let what = format!(
                "--compat {kernel}: kernel {kernel} does not write volumes with {}",
                unknown.join(", ")
            );
            Err(Failure::new(Exit::Usage, what))
        }
        _ => Ok(options),
    }
}

fn parse_time(text: &str) -> std::result::Result<Timestamp, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Timestamp { seconds, nanoseconds: 0 });
    }
    let moment: jiff::Timestamp = text.parse().map_err(|error| format!("{error}"))?;
    // Before 1970 both parts of a time are negative.
    let nanoseconds = moment.subsec_nanosecond();
    let seconds = moment.as_second() - i64::from(nanoseconds < 0);
    let nanoseconds = nanoseconds.rem_euclid(1_000_000_000).cast_unsigned();
    Ok(Timestamp { seconds, nanoseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_or_moments() {
        let time = |seconds, nanoseconds| Ok(Timestamp { seconds, nanoseconds });
        assert_eq!(parse_time("86400"), time(86400, 0));
        assert_eq!(parse_time("-1"), time(-1, 0));
        assert_eq!(parse_time("1970-01-02T00:00:00.5Z"), time(86400, 500_000_000));
        assert_eq!(parse_time("1969-12-31T23:59:58.25Z"), time(-2, 250_000_000));
        assert!(parse_time("yesterday").is_err());
    }
}
