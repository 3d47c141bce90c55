//! `uxfs mv`: moves and renames within an image.

use crate::edit;
use crate::exit::{Exit, Failure, Result, host_name};
use crate::location::{Location, parser};
use crate::options::{Global, TIME_HELP};
use crate::problems::{Problems, for_each};
use crate::walk::InodeSet;
use uxfs::{Dir, ErrorKind, Rename, Volume};

/// Arguments of `mv`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// What to move
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    sources: Vec<Location>,
    /// Where to, in the same image: a directory to move into, or the new name
    #[arg(value_name = "IMAGE:/DST", value_parser = parser())]
    destination: Location,
    /// Do not replace what has the new name
    #[arg(short, long)]
    no_clobber: bool,
    /// Exchange the two
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// The destination is the new name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

/// Moves each.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    for source in &args.sources {
        if !source.shares_volume(&args.destination) {
            let what = "another image; copy it (uxfs cp -r) and remove it";
            return Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(&source.name()))));
        }
    }
    edit::change(global, &args.destination, |volume| {
        let into = match args.no_target_directory || args.exchange {
            true => None,
            false => edit::directory(volume, &args.destination)?,
        };
        if into.is_none() && args.sources.len() > 1 {
            let what = "not a directory; several things are moved into one";
            return Err(edit::refused(&args.destination, Exit::Usage, what));
        }
        let mut moved = InodeSet::default();
        for_each(&args.sources, &mut Problems::default(), |source, _| {
            one(args, volume, source, into.as_ref(), &mut moved)
        })
    })
}

/// Moves one. `moved`: what the same command has moved before and must not be replaced.
fn one(
    args: &Args,
    volume: &Volume,
    source: &Location,
    into: Option<&Dir>,
    moved: &mut InodeSet,
) -> Result<()> {
    let (from, name) = edit::parent(volume, source)?;
    let node = edit::named(&from, name, source)?;
    let is_dir = node.file_type().is_dir();
    let (to, new_name) = match into {
        Some(dir) => (dir.clone(), name),
        None => edit::parent(volume, &args.destination)?,
    };
    let only_dir = [source, &args.destination].iter().any(|at| edit::ends_in_slash(&at.path));
    if !is_dir && into.is_none() && only_dir {
        return Err(edit::refused(source, Exit::Usage, "not a directory"));
    }
    let there = to.lookup(new_name).map_err(|error| edit::failure(&args.destination, &error))?;
    if let Some(there) = &there {
        if there.ino() == node.ino() && from.node().ino() == to.node().ino() && name == new_name {
            return Err(edit::refused(source, Exit::Usage, "this is the same file"));
        }
        if args.no_clobber {
            return Ok(());
        }
        if moved.contains(there.ino()) {
            let what = "something else was moved to this name just now, and is left as it is";
            return Err(edit::refused(source, Exit::AlreadyExists, what));
        }
    }
    if let Some(there) = &there
        && there.ino() == node.ino()
        && !args.exchange
    {
        // Two names of one file, which a rename would leave as they are.
        return Err(edit::refused(source, Exit::Usage, "this is the same file"));
    }
    let how = match (args.exchange, args.no_clobber) {
        (true, _) => Rename::Exchange,
        (_, true) => Rename::NoReplace,
        _ => Rename::Replace,
    };
    from.rename(name, &to, new_name, how).map_err(|error| match error.kind() {
        ErrorKind::IntoItself => {
            edit::refused(source, Exit::Usage, "a directory cannot be moved into itself")
        }
        ErrorKind::OtherProject => {
            let what =
                "the destination belongs to another project's tree; copy it (uxfs cp -a) and remove it";
            edit::refused(source, Exit::Usage, what)
        }
        // The error about the file with that name, which would be lost.
        ErrorKind::Shared => {
            let mut path = args.destination.path.clone();
            if into.is_some() {
                path = [path.strip_suffix(b"/").unwrap_or(&path), b"/", name].concat();
            }
            edit::failure(&Location { path, ..args.destination.clone() }, &error)
        }
        _ => edit::failure(source, &error),
    })?;
    moved.insert(node.ino());
    Ok(())
}
