//! `uxfs rmdir`: removes empty directories.

use crate::edit;
use crate::exit::{Exit, Result};
use crate::location::{Location, parser};
use crate::options::{Global, TIME_HELP};

/// Arguments of `rmdir`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// Empty directories
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Remove the directories above, too, from the inside out
    #[arg(short, long)]
    parents: bool,
}

/// Removes each.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    edit::change_each(global, &args.locations, |volume, location, _| {
        let mut at = location.clone();
        loop {
            let (dir, name) = edit::parent(volume, &at)?;
            edit::named(&dir, name, &at)?;
            dir.remove_dir(name).map_err(|error| edit::failure(&at, &error))?;
            let above = edit::split(&at.path).map(|(above, _)| above.to_vec()).unwrap_or_default();
            if !args.parents || edit::split(&above).is_none() {
                return Ok(());
            }
            at.path = above;
        }
    })
}
