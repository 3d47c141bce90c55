//! Parent pointers as the kernel keeps them: the same names are made, moved and removed on two copies of a volume, by the
//! kernel on one and through the library on the other; then the attribute fork of every inode is compared as `xfs_db`
//! prints it: its form, and each attribute with its name, value and hash. Needs root, xfsprogs 7 and loop mounts.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use uxfs::{Dir, NewNode, Node, OpenOptions, Rename, SetXattr, Volume};
use witness::command::{finish, output, run, said};
use witness::sandbox::{Mounted, copy_sparse, scratch};

/// What mkfs.xfs is told: attributes in inodes, leaves and trees.
const SHAPES: [&[&str]; 2] = [&[], &["-b", "size=1024"]];

/// One change of names, or of an attribute beside them.
#[derive(Clone, Debug)]
enum Change {
    File(String),
    Dir(String),
    /// With a target of this many bytes.
    Symlink(String, usize),
    Link(String, String),
    /// Over what has the name, if there is something.
    Rename(String, String),
    Exchange(String, String),
    Unlink(String),
    Rmdir(String),
    /// A value of this many bytes.
    Attribute(String, &'static str, usize),
    NoAttribute(String, &'static str),
}

use Change::{
    Attribute, Dir as MakeDir, Exchange, File, Link, NoAttribute, Rename as Move, Rmdir, Symlink, Unlink,
};

fn by_kernel(at: &Path, change: &Change) -> Result<()> {
    let path = |name: &str| at.join(name);
    let flags = XattrFlags::empty();
    match change {
        File(name) => drop(std::fs::File::create_new(path(name))?),
        MakeDir(name) => std::fs::create_dir(path(name))?,
        Symlink(name, len) => std::os::unix::fs::symlink("t".repeat(*len), path(name))?,
        Link(old, new) => std::fs::hard_link(path(old), path(new))?,
        Move(old, new) => std::fs::rename(path(old), path(new))?,
        Exchange(one, other) => renameat_with(CWD, path(one), CWD, path(other), RenameFlags::EXCHANGE)?,
        Unlink(name) => std::fs::remove_file(path(name))?,
        Rmdir(name) => std::fs::remove_dir(path(name))?,
        Attribute(name, key, len) => rustix::fs::setxattr(path(name), *key, &vec![b'v'; *len], flags)?,
        NoAttribute(name, key) => rustix::fs::removexattr(path(name), *key)?,
    }
    Ok(())
}

fn by_uxfs(volume: &Volume, change: &Change) -> uxfs::Result<()> {
    fn within<'a>(volume: &Volume, path: &'a str) -> uxfs::Result<(Dir, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((volume.open_dir(format!("/{dir}"))?, name.as_bytes()))
    }
    let node = |path: &str| -> uxfs::Result<Node> { volume.lookup_nofollow(format!("/{path}")) };
    let rename = |old: &str, new: &str, how| {
        let ((from, old), (to, new)) = (within(volume, old)?, within(volume, new)?);
        from.rename(old, &to, new, how)
    };
    let new = NewNode { permissions: 0o644, ..NewNode::default() };
    match change {
        File(path) => within(volume, path).and_then(|(dir, name)| dir.create_file(name, &new)).map(drop),
        MakeDir(path) => within(volume, path).and_then(|(dir, name)| dir.create_dir(name, &new)).map(drop),
        Symlink(path, len) => {
            let (dir, name) = within(volume, path)?;
            dir.create_symlink(name, "t".repeat(*len).as_bytes(), &new).map(drop)
        }
        Link(old, new) => within(volume, new).and_then(|(dir, name)| dir.link(name, &node(old)?)),
        Move(old, new) => rename(old, new, Rename::Replace),
        Exchange(one, other) => rename(one, other, Rename::Exchange),
        Unlink(path) => within(volume, path).and_then(|(dir, name)| dir.remove_file(name)),
        Rmdir(path) => within(volume, path).and_then(|(dir, name)| dir.remove_dir(name)),
        Attribute(path, key, len) => {
            node(path)?.set_xattr(key.as_bytes(), &vec![b'v'; *len], SetXattr::Either)
        }
        NoAttribute(path, key) => node(path)?.remove_xattr(key.as_bytes()),
    }
}

/// A name of this many bytes.
fn named(dir: &str, letter: char, len: usize) -> String {
    format!("{dir}/{}", letter.to_string().repeat(len))
}

/// The `nth` name of one inode, of some length up to 255.
fn numbered(dir: &str, nth: usize) -> String {
    format!("{dir}/{nth:0width$}", width = 3 + nth * 37 % 253)
}

/// Changes, part by part: after each, all is compared.
fn parts() -> Vec<(&'static str, Vec<Change>)> {
    let lengths = || 1..=255;
    let every = |step: usize| (1..=255).step_by(step).chain([248, 249, 250, 251, 252, 253, 254, 255]);
    let few = || every(23).collect::<BTreeSet<usize>>().into_iter();
    vec![
        ("create", lengths().map(|len| File(named("d", 'f', len))).collect()),
        ("mkdir", few().map(|len| MakeDir(named("d", 'd', len))).collect()),
        (
            "symlink",
            few()
                .flat_map(|len| {
                    [(10, 's'), (300, 'S'), (1000, 'l')]
                        .map(|(target, letter)| Symlink(named("d", letter, len), target))
                })
                .collect(),
        ),
        ("link", lengths().map(|len| Link(named("d", 'f', len), named("e", 'f', 256 - len))).collect()),
        ("200 links", {
            let first = File("d/one".into());
            let links = (0..200).map(|nth| Link("d/one".into(), numbered(["d", "e"][nth % 2], nth)));
            [first].into_iter().chain(links).collect()
        }),
        (
            "attributes beside",
            few()
                .flat_map(|len| {
                    let path = named("d", 'f', len);
                    [Attribute(path.clone(), "user.a", len - 1), Attribute(path, "user.b", 256 - len)]
                })
                .collect(),
        ),
        (
            "rename",
            (1..=255)
                .step_by(3)
                .map(|len| Move(named("d", 'f', len), named("e", 'r', 256 - len)))
                .chain(few().map(|len| Move(named("d", 'd', len), named("e", 'm', 256 - len))))
                .chain(few().map(|len| Move(named("d", 's', len), named("d", 'z', 256 - len))))
                .collect(),
        ),
        (
            "rename over",
            (2..=255).step_by(3).map(|len| Move(named("d", 'f', len), named("e", 'f', len))).collect(),
        ),
        (
            "exchange",
            (3..=255)
                .step_by(3)
                .map(|len| Exchange(named("d", 'f', len), named("e", 'r', 258 - len)))
                .chain(few().map(|len| Exchange(named("d", 'S', len), named("e", 'm', 256 - len))))
                .collect(),
        ),
        (
            "200 links but 30",
            (0..200)
                .filter(|nth| nth % 7 != 0)
                .map(|nth| Unlink(numbered(["d", "e"][nth % 2], nth)))
                .collect(),
        ),
        (
            "one link",
            (0..200)
                .filter(|nth| nth % 7 == 0)
                .map(|nth| Unlink(numbered(["d", "e"][nth % 2], nth)))
                .collect(),
        ),
        (
            "no attributes beside",
            few()
                .filter(|len| len % 3 == 0)
                .map(|len| NoAttribute(named("e", 'r', 258 - len), "user.a"))
                .collect(),
        ),
        (
            "unlink",
            (1..=255)
                .step_by(2)
                .map(|len| Unlink(named("e", 'f', len)))
                .chain(few().map(|len| Unlink(named("d", 'l', len))))
                .chain(few().map(|len| Rmdir(named("d", 'S', len))))
                .collect(),
        ),
    ]
}

/// Where the attributes of an inode lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Inode,
    Leaf,
    Tree,
}

/// An attribute: its name; a pointer's directory or another's number of bytes; the hash that it is filed under, if it is and
/// the directory is the same on both volumes.
type Attr = (String, String, Option<String>);

/// What is compared of an inode.
#[derive(Debug, PartialEq, Eq)]
struct Fork {
    form: Form,
    attrs: BTreeSet<Attr>,
}

/// Forks by the names of their inodes.
type Forks = BTreeMap<Vec<String>, Fork>;

/// Lines that `xfs_db` prints for each of some commands.
fn db(image: &Path, asked: &[String]) -> Result<Vec<Vec<String>>> {
    const MARK: &str = "== next";
    let mut all = Vec::new();
    for some in asked.chunks(500) {
        let mut db = Release::Unstable.tool("xfs_db")?;
        for commands in some {
            db.args(["-c", &format!("echo {MARK}")]);
            for command in commands.split(';') {
                db.args(["-c", command]);
            }
        }
        let said = output(db.arg("-r").arg(image))?;
        let parts = said.split(MARK).skip(1);
        all.extend(parts.map(|part| part.lines().map(str::to_owned).collect::<Vec<_>>()));
    }
    ensure!(all.len() == asked.len(), "xfs_db said {} of {} things", all.len(), asked.len());
    Ok(all)
}

fn value<'a>(lines: &'a [String], name: &str) -> Option<&'a str> {
    lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
}

/// Attributes of a list, whose items are called `list`, with what `hash` knows of each.
fn attrs(
    lines: &[String],
    list: &str,
    hash: &dyn Fn(usize) -> Option<String>,
    dirs: &Dirs,
) -> Result<Vec<Attr>> {
    let mut found = Vec::new();
    for nth in 0.. {
        let field = |name: &str| value(lines, &format!("{list}[{nth}].{name}"));
        let Some(name) = field("name") else { break };
        let (what, hash) = match (field("parent_dir.inumber"), field("parent_dir.gen")) {
            (Some(ino), Some(generation)) => {
                let dir = dirs.get(ino).with_context(|| format!("a pointer to {ino}"))?;
                ensure!(dir.generation == generation, "generation {generation} of {}", dir.path);
                (dir.path.clone(), hash(nth).filter(|_| dir.is_old))
            }
            _ => (field("valuelen").context("a length")?.to_owned(), hash(nth)),
        };
        found.push((name.to_owned(), what, hash));
    }
    Ok(found)
}

struct DirSeen {
    path: String,
    generation: String,
    /// Whether it was there before the two copies parted.
    is_old: bool,
}

type Dirs = BTreeMap<String, DirSeen>;

fn see(image: &Path, mount: &Path) -> Result<Forks> {
    let mounted = Mounted::new(image, mount, true)?;
    let listed = output(Command::new("find").args([".", "-printf", "%i %y %p\n"]).current_dir(mount))?;
    mounted.unmount()?;
    let (mut names, mut paths) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
    for line in listed.lines() {
        let [ino, kind, path] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { continue };
        names.entry(ino.to_owned()).or_default().push(path.to_owned());
        if kind == "d" {
            paths.push((ino.to_owned(), path.to_owned()));
        }
    }
    let asked: Vec<String> = paths.iter().map(|(ino, _)| format!("inode {ino};print core.gen")).collect();
    let mut dirs = Dirs::new();
    for ((ino, path), lines) in paths.into_iter().zip(db(image, &asked)?) {
        let generation = value(&lines, "core.gen").context("a generation")?.to_owned();
        let is_old = [".", "./d", "./e"].contains(&&*path);
        dirs.insert(ino, DirSeen { path, generation, is_old });
    }
    names.retain(|_, paths| paths.first().is_some_and(|path| path != "."));
    let asked: Vec<String> =
        names.keys().map(|ino| format!("inode {ino};print core.aformat core.naextents a")).collect();
    let mut forks = Forks::new();
    for ((ino, mut paths), lines) in names.into_iter().zip(db(image, &asked)?) {
        paths.sort();
        let fork = fork(image, &ino, &lines, &dirs).with_context(|| format!("inode {ino}: {paths:?}"))?;
        forks.insert(paths, fork);
    }
    Ok(forks)
}

fn fork(image: &Path, ino: &str, lines: &[String], dirs: &Dirs) -> Result<Fork> {
    let format = value(lines, "core.aformat").context("a format")?;
    if format.starts_with('1') {
        let attrs = attrs(lines, "a.sfattr.list", &|_| None, dirs)?.into_iter().collect();
        return Ok(Fork { form: Form::Inode, attrs });
    }
    ensure!(format.starts_with('2'), "a fork whose extents lie in the inode: {format}");
    let extents = lines.iter().flat_map(|line| line.split_whitespace()).filter_map(|word| {
        let (_, fields) = word.split_once(":[")?;
        let numbers: Vec<u64> =
            fields.trim_end_matches(']').split(',').map_while(|one| one.parse().ok()).collect();
        (numbers.len() == 4).then(|| numbers[0]..numbers[0] + numbers[2])
    });
    let asked: Vec<String> = extents.flatten().map(|at| format!("inode {ino};ablock {at};print")).collect();
    let (mut form, mut all) = (Form::Leaf, BTreeSet::new());
    for lines in db(image, &asked)? {
        if value(&lines, "hdr.info.hdr.magic") != Some("0x3bee") {
            form = Form::Tree;
            continue;
        }
        let entries: Vec<&str> = lines
            .iter()
            .flat_map(|line| line.split_whitespace())
            .filter_map(|word| word.split_once(":[0x"))
            .filter_map(|(_, fields)| fields.split(',').next())
            .collect();
        let hash = |nth: usize| entries.get(nth).map(|hash| (*hash).to_owned());
        let found = attrs(&lines, "nvlist", &hash, dirs)?;
        ensure!(Some(&*found.len().to_string()) == value(&lines, "hdr.count"), "all entries are printed");
        all.extend(found);
    }
    if asked.len() > 1 {
        form = Form::Tree;
    }
    Ok(Fork { form, attrs: all })
}

/// What differs, in words.
fn differences(theirs: &Forks, ours: &Forks) -> Vec<String> {
    let mut all = Vec::new();
    for (paths, fork) in theirs {
        let name = paths[0].chars().take(12).collect::<String>();
        match ours.get(paths) {
            None => all.push(format!("{name} is not there")),
            Some(found) if found.form != fork.form => {
                let lengths: Vec<usize> = fork.attrs.iter().map(|(name, ..)| name.len() - 2).collect();
                all.push(format!("{name}: {:?} is {:?}; names of {lengths:?}", fork.form, found.form));
            }
            Some(found) if found != fork => {
                let lost: Vec<_> = fork.attrs.difference(&found.attrs).take(3).collect();
                let gained: Vec<_> = found.attrs.difference(&fork.attrs).take(3).collect();
                all.push(format!("{name}: {lost:?} became {gained:?}"));
            }
            Some(_) => {}
        }
    }
    let more = ours.keys().filter(|paths| !theirs.contains_key(*paths));
    all.extend(more.map(|paths| format!("{paths:?} is too much")));
    all
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn parent_pointers_are_those_of_the_kernel() -> Result<()> {
    for shape in SHAPES {
        let folder = scratch()?;
        let dir = folder.path();
        let (theirs, ours, mount) = (dir.join("theirs"), dir.join("ours"), dir.join("mnt"));
        std::fs::File::create(&theirs)?.set_len(400 << 20)?;
        run(Release::Unstable.tool("mkfs.xfs")?.arg("-q").args(shape).arg(&theirs))?;
        let mounted = Mounted::new(&theirs, &mount, false)?;
        ["d", "e"].iter().try_for_each(|name| std::fs::create_dir(mount.join(name)))?;
        mounted.unmount()?;
        copy_sparse(&theirs, &ours)?;
        let mut seen = BTreeMap::new();
        for (name, changes) in parts() {
            ensure!(!changes.is_empty(), "{name} changes nothing");
            let mounted = Mounted::new(&theirs, &mount, false)?;
            for change in &changes {
                by_kernel(&mount, change).with_context(|| format!("{name}: the kernel: {change:?}"))?;
            }
            mounted.unmount()?;
            let volume = Volume::open(&ours, &OpenOptions::new().writable(true))?;
            for change in &changes {
                by_uxfs(&volume, change).with_context(|| format!("{name}: uxfs: {change:?}"))?;
            }
            volume.close()?;
            drop(volume);
            let (theirs, found) = (see(&theirs, &mount)?, see(&ours, &mount)?);
            let different = differences(&theirs, &found);
            let shown = different.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
            ensure!(different.is_empty(), "{shape:?}, {name}: {} differ:\n{shown}", different.len());
            let repair = finish(Release::Unstable.tool("xfs_repair")?.arg("-n").arg(&ours))?;
            ensure!(repair.status.success(), "{name}: xfs_repair -n: {}", said(&repair));
            found.values().for_each(|fork| *seen.entry(fork.form).or_insert(0) += fork.attrs.len());
        }
        println!("{shape:?}: attributes seen by form: {seen:?}");
        ensure!(seen.len() == 3, "each form is seen");
    }
    Ok(())
}
