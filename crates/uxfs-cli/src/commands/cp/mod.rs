//! `uxfs cp`: copies files and trees out of an image, into one, or from one place in images to another.

mod into;
mod out;

use crate::exit::{Exit, Failure, Result, host_name};
use crate::fill::{Existing, Reflink};
use crate::host::attributes::Keep;
use crate::host::stream;
use crate::interrupt::wait_for_input;
use crate::location::{Location, before_colon, check};
use crate::mode::Owner;
use crate::options::{Global, ThreadsArg};
use crate::trust::{Devices, Trust, TrustArgs};
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Arguments of `cp`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub struct Args {
    /// What to copy: files of this machine, IMAGE:/PATH, or `-` for standard input
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<OsString>,
    /// Where to, on this machine or as IMAGE:/PATH: a directory to copy into, or the name of the copy; `-` is standard
    /// output
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Copy directories recursively; symbolic links, named pipes and sockets are copied as such
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Archive: -r --preserve=all --devices
    #[arg(short, long)]
    archive: bool,
    /// Keep permissions (with access control lists), owners and times: --preserve without a list
    #[arg(short = 'p')]
    keep: bool,
    /// Keep these (default: mode, ownership, timestamps)
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "mode,ownership,timestamps")]
    preserve: Vec<Attribute>,
    /// Don't keep these, despite other options (default: all of them)
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "all")]
    no_preserve: Vec<Attribute>,
    /// Replace an existing file by a new one, in one step, when that is whole
    #[arg(long)]
    replace: bool,
    /// Whether a copy within one image shares blocks with its source: auto, if that is possible; always, or fail
    /// without a copy (also without =WHEN); never
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true, default_value = "auto",
          default_missing_value = "always", hide_possible_values = true, hide_default_value = true)]
    reflink: Reflink,
    /// Make device nodes when copying directories
    #[arg(long)]
    devices: bool,
    /// Owner of copies in an image, as numbers (default: root, or with -p as in the source)
    #[arg(long, value_name = "UID[:GID]")]
    owner: Option<Owner>,
    #[command(flatten)]
    threads: ThreadsArg,
    #[command(flatten)]
    trust: TrustArgs,
}

const HELP: &str = "\
An existing file is overwritten in place and keeps its owner, permissions, attributes and other names, also through \
a symbolic link; --replace puts a new file in its place, as do -a and --preserve=links if it has other names, which \
keep the old file. No link of this machine is followed below a directory that is copied.

As with `cp`, a new file gets the permissions of its source without set-user-id and set-group-id, less the umask; \
owners, times, attributes, hard links and devices need -p, --preserve or -a. Holes stay holes.

A new file appears under its name when it is whole: nothing is left of a copy that fails or is interrupted. \
A file that is written into is left in part then; --replace leaves the old one.

With SOURCE_DATE_EPOCH in the environment (seconds since 1970), everything in an image changes at that time, and \
copies in it were last read then; times of content are the source's if times are kept.";

/// Something that can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Attribute {
    Mode,
    Ownership,
    Timestamps,
    Xattr,
    Links,
    All,
}

impl Args {
    fn recursive(&self) -> bool {
        self.recursive || self.archive
    }

    fn keeps(&self, what: Attribute) -> bool {
        use Attribute::{All, Mode, Ownership, Timestamps};
        let unwanted = self.no_preserve.contains(&what) || self.no_preserve.contains(&All);
        let by_p = self.keep && matches!(what, Mode | Ownership | Timestamps);
        let wanted = self.archive || by_p || self.preserve.contains(&what) || self.preserve.contains(&All);
        wanted && !unwanted
    }

    fn keep(&self) -> Keep {
        Keep {
            mode: self.keeps(Attribute::Mode),
            similar_mode: !self
                .no_preserve
                .iter()
                .any(|what| matches!(what, Attribute::Mode | Attribute::All)),
            ownership: self.keeps(Attribute::Ownership),
            timestamps: self.keeps(Attribute::Timestamps),
            xattrs: self.keeps(Attribute::Xattr),
        }
    }

    fn trust(&self) -> Trust {
        let made = self.archive || self.devices;
        self.trust.trust(if made { Devices::Made } else { Devices::Refused })
    }

    fn existing(&self) -> Existing {
        if self.replace { Existing::Replaced } else { Existing::Kept }
    }
}

/// The message for a source whose blocks cannot be shared.
fn not_shared(source: &str) -> Failure {
    let what = "--reflink=always: only files of one volume can share blocks";
    Failure::new(Exit::Usage, format!("{source}: {what}"))
}

/// Copies each source.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let destination = Path::new(&args.destination);
    let location = Location::parse(&args.destination);
    // A directory of the host with this name comes first. An image without a path is a file of the
    // host.
    if !destination.exists() && location.image != destination && is_image(&location.image) {
        prepare_input(args, &location.image)?;
        return into::run(args, &location, global);
    }
    if !destination.exists() && location.image != destination && !has_host_dir(&location) {
        // The image is what was meant, even if it cannot be opened.
        check(&location.image)?;
    }
    if destination.symlink_metadata().is_err() && before_colon(destination).is_some() {
        // A file of the host called `IMAGE:` is not what was meant.
        check(destination)?;
    }
    if args.owner.is_some() {
        let what = "--owner is for copies into an image";
        return Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(destination))));
    }
    if args.reflink == Reflink::Always {
        return Err(not_shared(&host_name(Path::new(&args.sources[0]))));
    }
    out::run(args, global)
}

/// Whether the host has a directory `IMAGE:`, so that this can be a path of the host.
fn has_host_dir(location: &Location) -> bool {
    let mut dir = location.name().into_os_string();
    dir.push(":");
    Path::new(&dir).is_dir()
}

/// Refuses to copy an image into itself by standard input. Otherwise waits for input before the image is opened: the
/// program at the other end may have to read the same image first.
fn prepare_input(args: &Args, image: &Path) -> Result<()> {
    if args.sources.iter().any(|source| source == "-") {
        stream::refuse_image(std::io::stdin(), "standard input", image)?;
        wait_for_input(std::io::stdin())
            .map_err(|error| Failure::of_host(Path::new("standard input"), error))?;
    }
    Ok(())
}

/// Whether this may be an image: a file or a block device.
fn is_image(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
}
