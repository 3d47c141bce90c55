//! The verbs, a file each, with its `Args` and its `run`, which gives the exit code or the failure.

pub mod bench;
pub mod cat;
pub mod chattr;
pub mod check;
pub mod chmod;
pub mod cp;
pub mod demo;
pub mod du;
pub mod find;
pub mod grow;
pub mod info;
pub mod label;
pub mod ln;
pub mod ls;
pub mod mkdir;
pub mod mkfs;
pub mod mv;
pub mod recover;
pub mod rm;
pub mod rmdir;
pub mod stat;
pub mod tar;
pub mod tree;
pub mod truncate;
pub mod untar;
pub mod upgrade;
pub mod uuid;
pub mod xattr;

use crate::exit::{Exit, Result};
use crate::interrupt;
use crate::options::Global;
use clap::Subcommand;

/// A verb and its arguments.
#[derive(Subcommand)]
pub enum Command {
    /// Show shape, features and free space of a volume
    Info(info::Args),
    /// List directories
    Ls(ls::Args),
    /// Show all metadata of a file
    Stat(stat::Args),
    /// Write files to standard output
    Cat(cat::Args),
    /// Draw a directory tree
    Tree(tree::Args),
    /// Find files by name, type, size, …
    Find(Box<find::Args>),
    /// Sum up the space that files take
    Du(du::Args),
    /// Copy files and trees out of an image, or into one
    Cp(cp::Args),
    /// Make directories
    Mkdir(mkdir::Args),
    /// Remove files and trees
    Rm(rm::Args),
    /// Remove empty directories
    Rmdir(rmdir::Args),
    /// Move and rename within an image
    Mv(mv::Args),
    /// Make hard and symbolic links
    Ln(ln::Args),
    /// Change permissions
    Chmod(chmod::Args),
    /// Change owners
    Chown(chmod::OwnerArgs),
    /// Set and clear flags of files: immutable, append-only, …
    Chattr(chattr::Args),
    /// Shrink or extend files
    Truncate(truncate::Args),
    /// Show and change extended attributes
    Xattr(xattr::Args),
    /// Write a tree of an image as an archive
    Tar(tar::Args),
    /// Unpack an archive into an image
    Untar(untar::Args),
    /// Check all metadata of a volume and report what is wrong; nothing is written
    Check(check::Args),
    /// Replay the log of a volume that was not unmounted cleanly
    Recover(recover::Args),
    /// Make a volume in a file or on a block device
    Mkfs(Box<mkfs::Args>),
    /// Show or set the label of a volume
    Label(label::Args),
    /// Show or set the UUID of a volume
    Uuid(uuid::Args),
    /// Make a volume larger
    Grow(grow::Args),
    /// Switch on features of a volume in place
    Upgrade(upgrade::Args),
    /// Demonstrate uxfs, in under a minute
    Demo(demo::Args),
    /// Measure file I/O: in process, on mounted directories, on raw devices
    Bench(Box<bench::Args>),
}

/// Runs a verb.
pub fn run(command: &Command, global: &Global) -> Result<Exit> {
    interrupt::survive_size_limits();
    if !matches!(command, Command::Demo(_) | Command::Bench(_)) {
        // These two clean up after themselves.
        interrupt::start();
    }
    match command {
        Command::Info(args) => info::run(args, global),
        Command::Ls(args) => ls::run(args, global),
        Command::Stat(args) => stat::run(args, global),
        Command::Cat(args) => cat::run(args, global),
        Command::Tree(args) => tree::run(args, global),
        Command::Find(args) => find::run(args, global),
        Command::Du(args) => du::run(args, global),
        Command::Cp(args) => cp::run(args, global),
        Command::Mkdir(args) => mkdir::run(args, global),
        Command::Rm(args) => rm::run(args, global),
        Command::Rmdir(args) => rmdir::run(args, global),
        Command::Mv(args) => mv::run(args, global),
        Command::Ln(args) => ln::run(args, global),
        Command::Chmod(args) => chmod::run(args, global),
        Command::Chown(args) => chmod::run_owner(args, global),
        Command::Chattr(args) => chattr::run(args, global),
        Command::Truncate(args) => truncate::run(args, global),
        Command::Xattr(args) => xattr::run(args, global),
        Command::Tar(args) => tar::run(args, global),
        Command::Untar(args) => untar::run(args, global),
        Command::Check(args) => check::run(args, global),
        Command::Recover(args) => recover::run(args, global),
        Command::Mkfs(args) => mkfs::run(args, global),
        Command::Label(args) => label::run(args, global),
        Command::Uuid(args) => uuid::run(args, global),
        Command::Grow(args) => grow::run(args, global),
        Command::Upgrade(args) => upgrade::run(args, global),
        Command::Demo(args) => demo::run(args, global),
        Command::Bench(args) => bench::run(args, global),
    }
}
