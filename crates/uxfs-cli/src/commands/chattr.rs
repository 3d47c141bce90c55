//! `uxfs chattr`: sets and clears the flags of files: immutable, append-only, …

use super::chmod::each;
use crate::edit;
use crate::exit::{Exit, Result};
use crate::flags::FlagChange;
use crate::location::{Location, parser};
use crate::options::{Global, TIME_HELP};
use uxfs::{ErrorKind, FileType};

/// Arguments of `chattr`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// Flags, as +i, -a or =dA: a append-only, A no access time, d no dump, i immutable, P inherit the directory's
    /// project, S synchronous; XFS keeps no others
    #[arg(value_name = "FLAGS", allow_hyphen_values = true)]
    flags: FlagChange,
    /// Files of any type but symbolic links, which have no flags
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Changes flags.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    edit::change_each(global, &args.locations, |volume, location, problems| {
        let node = volume.lookup_nofollow(&location.path).map_err(|error| edit::failure(location, &error))?;
        let wrong = |what: &str| Err(edit::refused(location, ErrorKind::WrongType.into(), what));
        match args.flags.of_dirs_alone() {
            _ if node.file_type() == FileType::Symlink => return wrong("a symbolic link has no flags"),
            Some(flag) if node.file_type() != FileType::Directory => {
                return wrong(&format!("only a directory has this flag: {flag}"));
            }
            _ => {}
        }
        each(volume, location, problems, args.recursive, false, |node| {
            let of = node.metadata()?;
            match args.flags.of(&of) {
                Some(changes) if !of.is_symlink() => node.change(&changes),
                _ => Ok(()),
            }
        })
    })
}
