//! `uxfs xattr`: shows and changes extended attributes, access control lists among them.

use crate::edit;
use crate::exit::{Exit, Failure, Result};
use crate::location::{Images, Location, parser};
use crate::options::{Global, TIME_HELP};
use crate::output::{Object, Output, hex, put_name};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use uxfs::{Node, SetXattr, Volume};

/// Arguments of `xattr`.
#[derive(clap::Args, Debug)]
#[command(after_help = TIME_HELP)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Take symbolic links themselves, not their targets
    #[arg(short = 'H', long, global = true)]
    no_dereference: bool,
}

/// The operation.
#[derive(clap::Subcommand, Debug)]
enum What {
    /// List names
    List {
        /// A file of any type
        #[arg(value_name = "IMAGE:/PATH", value_parser = parser())]
        location: Location,
    },
    /// Write a value to standard output
    Get {
        /// A file of any type
        #[arg(value_name = "IMAGE:/PATH", value_parser = parser())]
        location: Location,
        /// Its name, as user.color
        name: OsString,
    },
    /// Set a value
    Set {
        /// A file of any type
        #[arg(value_name = "IMAGE:/PATH", value_parser = parser())]
        location: Location,
        /// Its name, as user.color
        name: OsString,
        /// The value; `-` reads it from standard input, 0x… gives bytes in hexadecimal
        value: OsString,
        /// The attribute must not exist yet
        #[arg(long)]
        create: bool,
        /// The attribute must exist
        #[arg(long, conflicts_with = "create")]
        replace: bool,
    },
    /// Remove one
    Rm {
        /// A file of any type
        #[arg(value_name = "IMAGE:/PATH", value_parser = parser())]
        location: Location,
        /// Its name, as user.color
        name: OsString,
    },
}

/// Shows or changes.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    match &args.what {
        What::List { location } => {
            let node = find(args, &Images::new(global).volume(location)?, location)?;
            let names = node.xattr_names().map_err(|error| edit::failure(location, &error))?;
            let mut out = Output::new(global);
            for name in names {
                if out.is_json() {
                    let mut object = Object::new();
                    put_name(&mut object, "name", &name);
                    out.object(object)?;
                } else {
                    out.name(&name)?;
                    out.text("\n")?;
                }
            }
            out.finish()?;
        }
        What::Get { location, name } => {
            let node = find(args, &Images::new(global).volume(location)?, location)?;
            let value = node.xattr(name.as_bytes()).map_err(|error| edit::failure(location, &error))?;
            let value = value.ok_or_else(|| {
                let what = format!("no attribute {}", uxfs::printable(name.as_bytes()));
                edit::refused(location, Exit::NotFound, what)
            })?;
            let mut out = Output::new(global);
            if out.is_json() {
                let mut object = Object::new();
                put_name(&mut object, "name", name.as_bytes());
                object.insert("value_bytes".to_owned(), hex(&value).into());
                out.object(object)?;
            } else {
                out.bytes(&value)?;
            }
            out.finish()?;
        }
        What::Set { location, name, value, create, replace } => {
            let value = bytes(value)?;
            let how = match (create, replace) {
                (true, _) => SetXattr::Create,
                (_, true) => SetXattr::Replace,
                _ => SetXattr::Either,
            };
            change(args, global, location, |node| node.set_xattr(name.as_bytes(), &value, how))?;
        }
        What::Rm { location, name } => {
            change(args, global, location, |node| node.remove_xattr(name.as_bytes()))?;
        }
    }
    Ok(Exit::Ok)
}

fn find(args: &Args, volume: &Volume, location: &Location) -> Result<Node> {
    let path = &location.path;
    let node = if args.no_dereference { volume.lookup_nofollow(path) } else { volume.lookup(path) };
    node.map_err(|error| edit::failure(location, &error))
}

fn change(
    args: &Args,
    global: &Global,
    location: &Location,
    work: impl FnOnce(&Node) -> uxfs::Result<()>,
) -> Result<()> {
    edit::change(global, location, |volume| {
        let node = find(args, volume, location)?;
        work(&node).map_err(|error| edit::failure(location, &error))
    })
}

/// The bytes of a value.
fn bytes(value: &OsString) -> Result<Vec<u8>> {
    /// The longest value.
    const MAX: u64 = 1 << 16;
    let value = value.as_bytes();
    if value == b"-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().take(MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::new(Exit::Io, format!("standard input: {error}")))?;
        return Ok(bytes);
    }
    let Some(digits) = value.strip_prefix(b"0x") else { return Ok(value.to_vec()) };
    let wrong = || Failure::new(Exit::Usage, format!("`{}` is not hexadecimal", uxfs::printable(value)));
    if digits.len() % 2 != 0 {
        return Err(wrong());
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(|pair| byte(pair).ok_or_else(wrong)).collect()
}
