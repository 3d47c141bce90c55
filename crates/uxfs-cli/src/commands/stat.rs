//! `uxfs stat`: shows all metadata of a file.

use crate::exit::{Exit, Result};
use crate::flags::letters;
use crate::location::{Images, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, full_time, hex, mode_text, put_metadata, put_name};
use crate::problems::Problems;
use crate::problems::for_each;
use serde_json::{Value, json};
use uxfs::{Extent, Metadata, Node, ParentPointer};

/// Arguments of `stat`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files of any type
    #[arg(value_name = "IMAGE:/PATH", required = true, value_parser = parser())]
    locations: Vec<Location>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show extended attributes, access control lists among them
    #[arg(short, long)]
    xattrs: bool,
    /// Show where a regular file's bytes lie
    #[arg(short, long)]
    extents: bool,
}

/// The information about one file.
struct Shown<'a> {
    path: &'a [u8],
    metadata: Metadata,
    target: Option<Vec<u8>>,
    /// All its names, if the volume has parent pointers.
    names: Option<Vec<ParentPointer>>,
    xattrs: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    extents: Option<Vec<Extent>>,
}

/// Shows each file.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let mut images = Images::new(global);
    let mut out = Output::new(global);
    let exit = for_each(&args.locations, &mut Problems::default(), |location, _| {
        let volume = images.volume(location)?;
        let path = &location.path;
        let node = if args.dereference { volume.lookup(path) } else { volume.lookup_nofollow(path) };
        let shown =
            node.and_then(|node| look(args, path, &node)).map_err(|error| location.failure(&error))?;
        if out.is_json() { out.object(object(&shown)) } else { text(&shown, &mut out) }
    })?;
    out.finish()?;
    Ok(exit)
}

fn look<'a>(args: &Args, path: &'a [u8], node: &Node) -> uxfs::Result<Shown<'a>> {
    let metadata = node.metadata()?;
    let target = metadata.is_symlink().then(|| node.read_link()).transpose()?;
    let names = node.names()?;
    let xattrs = args.xattrs.then(|| xattrs(node)).transpose()?;
    let extents = (args.extents && metadata.is_file())
        .then(|| node.open()?.extents().collect::<uxfs::Result<Vec<_>>>())
        .transpose()?;
    Ok(Shown { path, metadata, target, names, xattrs, extents })
}

fn xattrs(node: &Node) -> uxfs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = node.xattr_names()?;
    let values = names.into_iter().map(|name| Ok(node.xattr(&name)?.map(|value| (name, value))));
    values.filter_map(uxfs::Result::transpose).collect()
}

fn object(shown: &Shown<'_>) -> Object {
    let mut object = Object::new();
    put_name(&mut object, "path", shown.path);
    put_metadata(&mut object, &shown.metadata);
    if let Some(target) = &shown.target {
        put_name(&mut object, "target", target);
    }
    if let Some(names) = &shown.names {
        let list = names.iter().map(|name| {
            let mut object = Object::new();
            if let Some(path) = &name.path {
                put_name(&mut object, "path", path);
            }
            put_name(&mut object, "name", &name.name);
            object.insert("directory".to_owned(), name.directory.into());
            Value::Object(object)
        });
        object.insert("names".to_owned(), list.collect());
    }
    if let Some(xattrs) = &shown.xattrs {
        let list = xattrs.iter().map(|(name, value)| {
            let mut xattr = Object::new();
            put_name(&mut xattr, "name", name);
            xattr.insert("value_bytes".to_owned(), hex(value).into());
            Value::Object(xattr)
        });
        object.insert("xattrs".to_owned(), list.collect());
    }
    if let Some(extents) = &shown.extents {
        let list = extents.iter().map(|extent| {
            json!({
                "logical": extent.logical,
                "physical": extent.physical,
                "length": extent.length,
                "unwritten": extent.unwritten,
                "shared": extent.shared,
            })
        });
        object.insert("extent_list".to_owned(), list.collect());
    }
    object
}

fn text(shown: &Shown<'_>, out: &mut Output) -> Result<()> {
    let of = &shown.metadata;
    out.text("    File: ")?;
    out.name(shown.path)?;
    if let Some(target) = &shown.target {
        out.text(" -> ")?;
        out.name(target)?;
    }
    out.text(format_args!("\n    Type: {}\n", of.file_type))?;
    if let Some(rdev) = of.rdev {
        out.text(format_args!("  Device: {}, {}\n", rdev.major, rdev.minor))?;
    }
    out.text(format_args!(
        "    Size: {}  Blocks: {} of 512 bytes  Extents: {}\n",
        of.size, of.blocks, of.extents
    ))?;
    out.text(format_args!("   Inode: {}  Generation: {}  Links: {}\n", of.ino, of.generation, of.nlink))?;
    let flags = letters(of);
    out.text(format_args!(
        "    Mode: {:04o} ({})  Uid: {}  Gid: {}  Project: {}  Flags: {:#x}{}{}\n",
        of.permissions(),
        mode_text(of),
        of.uid,
        of.gid,
        of.project_id,
        of.xflags,
        if flags.is_empty() { "" } else { " " },
        flags
    ))?;
    for (name, time) in [
        ("Accessed", Some(of.atime)),
        ("Modified", Some(of.mtime)),
        ("Changed", Some(of.ctime)),
        ("Born", of.btime),
    ] {
        if let Some(time) = time {
            out.text(format_args!("{name:>8}: {}\n", full_time(time)))?;
        }
    }
    for name in shown.names.iter().flatten() {
        out.text("    Name: ")?;
        match &name.path {
            Some(path) => out.name(path)?,
            None => {
                out.name(&name.name)?;
                out.text(format_args!(" in inode {}", name.directory))?;
            }
        }
        out.text("\n")?;
    }
    for (name, value) in shown.xattrs.iter().flatten() {
        out.text("   Xattr: ")?;
        out.name(name)?;
        out.text(format_args!(" = {}\n", uxfs::printable(value)))?;
    }
    for extent in shown.extents.iter().flatten() {
        out.text(format_args!(
            "  Extent: {} at {}, {} bytes{}{}\n",
            extent.logical,
            extent.physical,
            extent.length,
            if extent.unwritten { ", unwritten" } else { "" },
            if extent.shared { ", shared" } else { "" }
        ))?;
    }
    Ok(())
}
