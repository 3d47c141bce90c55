//! `uxfs cp`: copies files and trees out of an image, into one, or from one place in images to another.

mod into;
mod out;

use crate::exit::{Exit, Failure, Result, host_name};
use crate::host::attributes::Keep;
use crate::location::Location;
use crate::mode::Owner;
use crate::options::Global;
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Arguments of `cp`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to copy: files of this machine, or IMAGE:/PATH
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<OsString>,
    /// Where to, on this machine or as IMAGE:/PATH: a directory to copy into, or the name of the copy
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Copy directories with all that is in them; symbolic links as links
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Whose the copies in an image are, in numbers (as in the source if it is not said)
    #[arg(long, value_name = "UID[:GID]")]
    owner: Option<Owner>,
    /// Don't keep these (all of them if none is named)
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = "all")]
    no_preserve: Vec<Attribute>,
}

/// Something that is kept, unless it is not wanted.
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
    fn keeps(&self, what: Attribute) -> bool {
        !self.no_preserve.contains(&what) && !self.no_preserve.contains(&Attribute::All)
    }

    fn keep(&self) -> Keep {
        Keep {
            mode: self.keeps(Attribute::Mode),
            ownership: self.keeps(Attribute::Ownership),
            timestamps: self.keeps(Attribute::Timestamps),
            xattrs: self.keeps(Attribute::Xattr),
        }
    }
}

/// Copies each source.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let destination = Path::new(&args.destination);
    let location = Location::parse(&args.destination);
    // A host's directory of such a name comes first; an image without a path is a file of the host.
    if !destination.exists() && location.image != destination && is_image(&location.image) {
        return into::run(args, &location, global);
    }
    if args.owner.is_some() {
        let what = "--owner is for copies into an image";
        return Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(destination))));
    }
    out::run(args, global)
}

/// Whether this may be an image: a file or a block device.
fn is_image(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
}
