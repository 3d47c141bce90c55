//! `uxfs truncate`: sets the size of files.

use crate::edit;
use crate::exit::{Exit, Result};
use crate::location::{Location, parser};
use crate::mode::umask;
use crate::options::{Global, TIME_HELP, parse_size};
use std::str::FromStr;
use uxfs::NewNode;

/// Arguments of `truncate`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// Regular files; a missing one is created
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// The new size, with a suffix: K, M, G, T; +SIZE and -SIZE change it by that much
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    size: NewSize,
    /// Skip missing files
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// A size, or a change of it.
#[derive(Clone, Copy, Debug)]
enum NewSize {
    To(u64),
    More(u64),
    Less(u64),
}

impl FromStr for NewSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.as_bytes().first() {
            Some(b'+') => parse_size(&text[1..]).map(Self::More),
            Some(b'-') => parse_size(&text[1..]).map(Self::Less),
            _ => parse_size(text).map(Self::To),
        }
    }
}

/// Changes each file's size.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let umask = umask();
    edit::change_each(global, &args.locations, |volume, location, _| {
        let failure = |error: uxfs::Error| edit::failure(location, &error);
        let node = match edit::existing(volume, location, true)? {
            Some(node) => node,
            None if args.no_create => return Ok(()),
            None => {
                let (dir, name) = edit::new_place(volume, location)?;
                let new = NewNode { permissions: 0o666, umask, ..NewNode::default() };
                dir.create_file(&name, &new).map_err(failure)?
            }
        };
        let file = node.open().map_err(failure)?;
        let size = match args.size {
            NewSize::To(size) => size,
            // The library refuses what is too large.
            NewSize::More(more) => file.size().saturating_add(more),
            NewSize::Less(less) => file.size().saturating_sub(less),
        };
        file.set_len(size).map_err(failure)?;
        edit::drop_capabilities(&node).map_err(failure)
    })
}
