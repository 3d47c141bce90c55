//! `uxfs ln`: gives files more names, and makes symbolic links.

use crate::edit::{self, NewName};
use crate::exit::{Exit, Failure, Result, host_name};
use crate::location::{Location, parser};
use crate::mode::Owner;
use crate::options::{Global, TIME_HELP};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uxfs::{Dir, NewNode, Volume};

/// Arguments of `ln`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    /// The file that gets another name (IMAGE:/PATH); with -s, the text of the link
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new name, or a directory for it
    #[arg(value_name = "IMAGE:/NAME", value_parser = parser())]
    link: Location,
    /// Make a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what has the new name, unless it is a directory; if the link cannot be made, the old file stays
    #[arg(short, long)]
    force: bool,
    /// Owner of a symbolic link, as numbers
    #[arg(long, value_name = "UID[:GID]", default_value = "0:0")]
    owner: Owner,
}

/// Makes the link.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let target = Location::parse(&args.target);
    if !args.symbolic && !target.shares_volume(&args.link) {
        let what = "not in the image of the new name; the file is written IMAGE:/PATH";
        return Err(Failure::new(Exit::Usage, format!("{}: {what}", host_name(&target.name()))));
    }
    edit::change(global, &args.link, |volume| {
        let base = if args.symbolic { args.target.as_bytes() } else { &target.path };
        let (dir, name) = place(volume, &args.link, base)?;
        let failure = |error: uxfs::Error| edit::failure(&args.link, &error);
        let node = if args.symbolic {
            None
        } else {
            let node = volume.lookup_nofollow(&target.path).map_err(|error| target.failure(&error))?;
            if node.file_type().is_dir() {
                return Err(edit::refused(&target, Exit::Usage, "a directory has one name only"));
            }
            Some(node)
        };
        let new = NewNode {
            uid: args.owner.uid.unwrap_or_default(),
            gid: args.owner.gid.unwrap_or_default(),
            ..NewNode::default()
        };
        let make = |name: &[u8]| match &node {
            Some(node) => dir.link(name, node),
            None => dir.create_symlink(name, args.target.as_bytes(), &new).map(drop),
        };
        if args.force
            && let Some(there) = dir.lookup(&name).map_err(failure)?
        {
            if node.as_ref().is_some_and(|node| node.ino() == there.ino()) {
                if is_itself(volume, &target, &dir, &name)? {
                    return Err(edit::refused(&target, Exit::Usage, "this is the same file"));
                }
                return Ok(Exit::Ok);
            }
            if there.file_type().is_dir() {
                let what = "a directory has that name, and is left as it is";
                return Err(edit::refused(&args.link, Exit::AlreadyExists, what));
            }
            let (_, new) = NewName::make_beside(&name, make).map_err(failure)?;
            new.publish(&dir).inspect_err(|_| new.take_back(&dir)).map_err(failure)?;
            return Ok(Exit::Ok);
        }
        make(&name).map_err(failure)?;
        Ok(Exit::Ok)
    })
}

/// Whether a name is the target itself, and not another name of the same file.
fn is_itself(volume: &Volume, target: &Location, dir: &Dir, name: &[u8]) -> Result<bool> {
    let (parent, target_name) = edit::parent(volume, target)?;
    Ok(parent.node().ino() == dir.node().ino() && target_name == name)
}

/// The directory and the name of the new link. If only a directory is given, it is the target's
/// name.
fn place(volume: &Volume, link: &Location, target: &[u8]) -> Result<(Dir, Vec<u8>)> {
    if let Some(dir) = edit::directory(volume, link)? {
        let name = edit::split(target).map(|(_, name)| name.to_vec());
        let name =
            name.ok_or_else(|| edit::refused(link, Exit::AlreadyExists, "is a directory; name the link"))?;
        return Ok((dir, name));
    }
    edit::parent(volume, link).map(|(dir, name)| (dir, name.to_vec()))
}
