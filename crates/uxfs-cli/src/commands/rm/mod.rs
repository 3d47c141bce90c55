//! `uxfs rm`: removes files and trees.

mod tree;

use crate::edit;
use crate::exit::{Exit, Result};
use crate::location::{Location, parser};
use crate::options::{Global, TIME_HELP, ThreadsArg};
use crate::problems::{Problems, complain};
use uxfs::Volume;

/// Arguments of `rm`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// What to remove; links are removed, not their targets
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Remove directories recursively
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    threads: ThreadsArg,
}

/// Removes each.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let global = &global.at_source_date()?;
    edit::change_each(global, &args.locations, |volume, location, problems| {
        match one(args, global, volume, location, problems) {
            Err(failure) if args.force && failure.exit() == Exit::NotFound => Ok(()),
            other => other,
        }
    })
}

fn one(
    args: &Args,
    global: &Global,
    volume: &Volume,
    location: &Location,
    problems: &mut Problems,
) -> Result<()> {
    let (dir, name) = edit::parent(volume, location)?;
    let node = edit::named(&dir, name, location)?;
    let failure = |error: uxfs::Error| edit::failure(location, &error);
    if !node.file_type().is_dir() {
        if edit::ends_in_slash(&location.path) {
            return Err(edit::refused(location, Exit::Usage, "not a directory"));
        }
        say(global.verbose, &location.path);
        return dir.remove_file(name).map_err(failure);
    }
    if !args.recursive {
        // Not the exit code for a missing file: `-f` does not apply here.
        let what = "is a directory; give -r to remove it with all that is in it";
        return Err(edit::refused(location, Exit::Usage, what));
    }
    // Two for each processor, as some wait for the device.
    let threads = args.threads.count_for_changes(2, global.is_ordered());
    tree::remove(tree::Root { volume, location, dir, name, node: &node }, problems, global.verbose, threads)
}

fn say(verbose: bool, path: &[u8]) {
    if verbose {
        complain(&format!("removed {}", uxfs::printable(path)));
    }
}
