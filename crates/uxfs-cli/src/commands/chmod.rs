//! `uxfs chmod` and `uxfs chown`: change permissions and owners.

use crate::edit;
use crate::exit::{Exit, Result};
use crate::interrupt;
use crate::location::{Location, parser};
use crate::mode::{ModeChange, Owner, umask};
use crate::options::{Global, TIME_HELP};
use crate::problems::Problems;
use crate::walk::{EntryOrder, Step, Walk};
use uxfs::{Changes, Node, Volume};

/// Arguments of `chmod`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// Permissions: octal, or as u+x,go=r
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    mode: ModeChange,
    /// Files of any type; symbolic links are followed
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Arguments of `chown`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP, disable_help_flag = true)]
pub struct OwnerArgs {
    /// Owner and group, in numbers
    #[arg(value_name = "UID[:GID]")]
    owner: Owner,
    /// Files of any type; symbolic links are followed, but with -R they are changed themselves
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links, not their targets
    #[arg(short = 'h', short_alias = 'H', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Changes permissions.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let umask = umask();
    edit::change_each(global, &args.locations, |volume, location, problems| {
        each(volume, location, problems, args.recursive, true, |node| {
            let of = node.metadata()?;
            if of.is_symlink() {
                // Permissions of a link have no meaning, and no system changes them.
                return Ok(());
            }
            let permissions = args.mode.apply(of.permissions(), of.is_dir(), umask);
            node.change(&Changes { permissions: Some(permissions), ..Changes::default() })
        })
    })
}

/// Changes owners.
pub fn run_owner(args: &OwnerArgs, global: &Global) -> Result<Exit> {
    edit::change_each(global, &args.locations, |volume, location, problems| {
        let follow = !args.no_dereference && !args.recursive;
        each(volume, location, problems, args.recursive, follow, |node| {
            let of = node.metadata()?;
            // A set-user-id program must not run as another user after the change.
            let ids = if of.permissions() & 0o010 != 0 { 0o6000 } else { 0o4000 };
            let cleared = of.permissions() & !ids;
            if !of.is_dir() {
                edit::drop_capabilities(node)?;
            }
            node.change(&Changes {
                uid: args.owner.uid,
                gid: args.owner.gid,
                permissions: (!of.is_dir() && cleared != of.permissions()).then_some(cleared),
                ..Changes::default()
            })
        })
    })
}

/// Does something to a location, and to everything below it.
pub(super) fn each(
    volume: &Volume,
    location: &Location,
    problems: &mut Problems,
    recursive: bool,
    follow: bool,
    change: impl Fn(&Node) -> uxfs::Result<()>,
) -> Result<()> {
    let path = &location.path;
    let node = if follow { volume.lookup(path) } else { volume.lookup_nofollow(path) };
    let node = node.map_err(|error| edit::failure(location, &error))?;
    if !recursive || !node.file_type().is_dir() {
        return change(&node).map_err(|error| edit::failure(location, &error));
    }
    let mut walk = Walk::new(volume, node, path, EntryOrder::Stored).with_inodes();
    while let Some(step) = walk.next() {
        interrupt::check()?;
        let done = match step {
            Step::Enter(_) => Ok(()),
            Step::Leave(node) => change(&node),
            Step::Leaf(leaf) => leaf.node(volume).and_then(|node| change(&node)),
            Step::Failed(error) => Err(error),
            Step::Damaged(what) => {
                problems.at(&location.image, walk.path(), what);
                Ok(())
            }
        };
        if let Err(error) = done {
            problems.at(&location.image, walk.path(), error);
        }
    }
    Ok(())
}
