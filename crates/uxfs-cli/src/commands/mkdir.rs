//! `uxfs mkdir`: makes directories.

use crate::edit;
use crate::exit::{Exit, Result};
use crate::location::{Location, parser};
use crate::mode::{ModeChange, Owner, umask};
use crate::options::{Global, TIME_HELP};
use uxfs::{Dir, ErrorKind, NewNode, Node, Volume};

/// Arguments of `mkdir`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// Directories to make
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Make missing parent directories, too; an existing directory is no failure
    #[arg(short, long)]
    parents: bool,
    /// Permissions, octal or as u=rwx,go=rx (default: by the umask)
    #[arg(short, long, value_name = "MODE")]
    mode: Option<ModeChange>,
    /// Owner of the directories, as numbers
    #[arg(long, value_name = "UID[:GID]", default_value = "0:0")]
    owner: Owner,
}

/// Makes each directory.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let umask = umask();
    edit::change_each(global, &args.locations, |volume, location, _| {
        if args.parents { parents(args, volume, location, umask) } else { one(args, volume, location, umask) }
    })
}

fn one(args: &Args, volume: &Volume, location: &Location, umask: u16) -> Result<()> {
    if edit::split(&location.path).is_none() {
        return Err(edit::refused(location, Exit::AlreadyExists, "is there already"));
    }
    let (dir, name) = edit::parent(volume, location)?;
    make(args, &dir, name, true, umask).map(|_| ()).map_err(|error| edit::failure(location, &error))
}

/// Makes the missing directories of a path.
fn parents(args: &Args, volume: &Volume, location: &Location, umask: u16) -> Result<()> {
    let failure = |error| edit::failure(location, &error);
    let path = &location.path;
    let ends =
        (1..=path.len()).filter(|&end| path[end - 1] != b'/' && path.get(end).is_none_or(|&b| b == b'/'));
    let ends: Vec<usize> = ends.collect();
    for (nth, &end) in ends.iter().enumerate() {
        let so_far = &path[..end];
        match volume.lookup(so_far) {
            Ok(node) if node.file_type().is_dir() => continue,
            Ok(node) => {
                let what = format!("{} is a {}", uxfs::printable(so_far), node.file_type());
                return Err(edit::refused(location, Exit::AlreadyExists, what));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failure(error)),
        }
        let Some((parent, name)) = edit::split(so_far) else { continue };
        let dir = volume.open_dir(parent).map_err(failure)?;
        make(args, &dir, name, nth + 1 == ends.len(), umask).map_err(failure)?;
    }
    Ok(())
}

/// Makes one directory. Its owner can always enter and fill the ones above, whatever the umask.
fn make(args: &Args, dir: &Dir, name: &[u8], last: bool, umask: u16) -> uxfs::Result<Node> {
    // A given mode is final. Otherwise the directory's default access control list decides, or else the umask.
    let (permissions, umask) = match &args.mode {
        Some(mode) if last => (mode.apply(0o777, true, umask), 0),
        _ if last => (0o777, umask),
        _ => (0o777, umask & !0o300),
    };
    let new = NewNode {
        permissions,
        umask,
        uid: args.owner.uid.unwrap_or_default(),
        gid: args.owner.gid.unwrap_or_default(),
        ..NewNode::default()
    };
    let made = dir.create_dir(name, &new)?;
    if last && args.mode.is_some() {
        let kept = made.metadata()?.permissions() & 0o2000;
        made.change(&uxfs::Changes { permissions: Some(permissions | kept), ..uxfs::Changes::default() })?;
    }
    Ok(made)
}
