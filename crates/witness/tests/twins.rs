//! What the kernel maintains besides what was asked for: counters, flags, what a directory hands down, attributes that
//! a change takes away, which of the times move. Each change is made to one copy of a volume by the kernel, as root,
//! and to another through the library; then every field of every inode, of the superblock and of the group headers is
//! compared. Needs root, xfsprogs, `attr`, `acl` and loop mounts.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::{Changes, File, NewNode, Node, OpenOptions, Rename, SetXattr, Special, Volume};
use witness::command::{finish, output, run, said};
use witness::sandbox::{Mounted, copy_sparse, scratch};

const GROUPS: u32 = 4;

/// What the kernel puts into the volume first.
const SETUP: &str = r"
umask 022
for n in 1 2 3; do echo hello$n > f$n; done
dd if=/dev/urandom of=big bs=4k count=20 status=none
fallocate -n -l 65536 -o 81920 big
truncate -s 1m sparse; printf x | dd of=sparse bs=1 seek=600000 conv=notrunc status=none
mkdir d sg pr acl sub noat ext cow nosym nodefrag dax nod sync stream
chmod 2775 sg; chgrp 1234 sg
mkdir d/inner; echo x > d/inner/file
setfacl -d -m u:1000:rwx,g:5:r-x acl
setfacl -m u:1000:rw f3
xfs_io -c 'chproj 42' -c 'chattr +P' pr
xfs_io -c 'chattr +A' noat
xfs_io -c 'extsize 65536' ext
xfs_io -c 'cowextsize 65536' cow
xfs_io -c 'chattr +n' nosym
xfs_io -c 'chattr +f' nodefrag
xfs_io -c 'chattr +x' dax
xfs_io -c 'chattr +d' nod
xfs_io -c 'chattr +s' sync
xfs_io -c 'chattr +S' stream
for f in plain trunc write zero punch fresh falloc collapse insert grow; do
    head -c 100000 /dev/urandom > cap-$f; chmod 755 cap-$f
    setfattr -n security.capability -v 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA= cap-$f
done
chown 1000:1000 f2
setfattr -n user.a -v b f1
ln f1 f1link
ln -s f1 link
mkfifo fifo
";

/// One change: by a shell in the kernel's mount, and through the library.
struct Twin {
    name: &'static str,
    /// Or `rename A B`, `exchange A B`, for which a shell has no command.
    kernel: &'static str,
    uxfs: fn(&Volume) -> uxfs::Result<()>,
}

fn twin(name: &'static str, kernel: &'static str, uxfs: fn(&Volume) -> uxfs::Result<()>) -> Twin {
    Twin { name, kernel, uxfs }
}

fn new(permissions: u16) -> NewNode {
    NewNode { permissions, umask: 0o022, ..NewNode::default() }
}

fn dir(volume: &Volume, path: &str) -> uxfs::Result<uxfs::Dir> {
    volume.open_dir(path)
}

/// Makes one of each kind in a directory, as the shell's `make` does.
fn make(volume: &Volume, path: &str) -> uxfs::Result<()> {
    let dir = dir(volume, path)?;
    dir.create_file(b"new-file", &new(0o666))?;
    dir.create_dir(b"new-dir", &new(0o777))?;
    dir.create_special(b"new-fifo", Special::Fifo, &new(0o666))?;
    dir.create_special(b"new-device", Special::CharDevice(1, 3), &new(0o666))?;
    Ok(())
}

macro_rules! made_in {
    ($dir:literal) => {
        twin(
            concat!("make in ", $dir),
            concat!(
                "umask 022; cd ",
                $dir,
                "; : > new-file; mkdir new-dir; mkfifo new-fifo; mknod new-device c 1 3"
            ),
            |volume| make(volume, concat!("/", $dir)),
        )
    };
}

fn file(volume: &Volume, path: &str) -> uxfs::Result<File> {
    volume.open_file(path)
}

fn node(volume: &Volume, path: &str) -> uxfs::Result<Node> {
    volume.lookup_nofollow(path)
}

fn twins() -> Vec<Twin> {
    vec![
        made_in!("."),
        made_in!("sg"),
        made_in!("acl"),
        made_in!("pr"),
        made_in!("noat"),
        made_in!("ext"),
        made_in!("cow"),
        made_in!("nosym"),
        made_in!("nodefrag"),
        made_in!("dax"),
        made_in!("nod"),
        made_in!("sync"),
        made_in!("stream"),
        twin("symlink", "ln -s target new", |volume| {
            dir(volume, "/")?.create_symlink(b"new", b"target", &new(0o777)).map(drop)
        }),
        twin("symlink below an extent size hint", "ln -s target ext/new", |volume| {
            dir(volume, "/ext")?.create_symlink(b"new", b"target", &new(0o777)).map(drop)
        }),
        twin("symlink where none may be", "! ln -s target nosym/new 2>/dev/null", |volume| {
            match dir(volume, "/nosym")?.create_symlink(b"new", b"target", &new(0o777)) {
                Err(error) if error.to_string().contains("no symbolic links") => Ok(()),
                done => done.map(drop),
            }
        }),
        twin("link", "ln f2 f2b", |volume| dir(volume, "/")?.link(b"f2b", &node(volume, "/f2")?)),
        twin("rename", "mv f2 d/f2", |volume| {
            dir(volume, "/")?.rename(b"f2", &dir(volume, "/d")?, b"f2", Rename::Replace)
        }),
        twin("rename over a file", "mv f2 f3", |volume| {
            dir(volume, "/")?.rename(b"f2", &dir(volume, "/")?, b"f3", Rename::Replace)
        }),
        twin("rename onto a link to itself", "rename f1 f1link", |volume| {
            dir(volume, "/")?.rename(b"f1", &dir(volume, "/")?, b"f1link", Rename::Replace)
        }),
        twin("rename a directory", "mv d/inner sub/inner", |volume| {
            dir(volume, "/d")?.rename(b"inner", &dir(volume, "/sub")?, b"inner", Rename::Replace)
        }),
        twin("rename a directory over an empty one", "rename d/inner sub", |volume| {
            dir(volume, "/d")?.rename(b"inner", &dir(volume, "/")?, b"sub", Rename::Replace)
        }),
        twin("exchange of a file and a directory", "exchange f1 d/inner", |volume| {
            dir(volume, "/")?.rename(b"f1", &dir(volume, "/d")?, b"inner", Rename::Exchange)
        }),
        twin("remove", "rm f2", |volume| dir(volume, "/")?.remove_file(b"f2")),
        twin("remove one of two names", "rm f1link", |volume| dir(volume, "/")?.remove_file(b"f1link")),
        twin("remove a file with blocks and preallocated ones", "rm big", |volume| {
            dir(volume, "/")?.remove_file(b"big")
        }),
        twin("remove a directory", "rmdir sub", |volume| dir(volume, "/")?.remove_dir(b"sub")),
        twin("permissions", "chmod 600 f2", |volume| {
            node(volume, "/f2")?.change(&Changes { permissions: Some(0o600), ..Changes::default() })
        }),
        twin("permissions beside an access control list", "chmod 640 f3", |volume| {
            node(volume, "/f3")?.change(&Changes { permissions: Some(0o640), ..Changes::default() })
        }),
        twin("owner", "chown 5:6 f2", |volume| {
            node(volume, "/f2")?.change(&Changes { uid: Some(5), gid: Some(6), ..Changes::default() })
        }),
        twin("owner of a file with capabilities", "chown 5 cap-plain", |volume| {
            node(volume, "/cap-plain")?.change(&Changes { uid: Some(5), ..Changes::default() })
        }),
        twin("times", "touch -d @1000000000.5 f2", |volume| {
            let time = Some(uxfs::Timestamp { seconds: 1_000_000_000, nanoseconds: 500_000_000 });
            node(volume, "/f2")?.change(&Changes { atime: time, mtime: time, ..Changes::default() })
        }),
        twin("truncate", "truncate -s 5000 big", |volume| file(volume, "/big")?.set_len(5000)),
        twin("truncate to nothing", "truncate -s 0 f2", |volume| file(volume, "/f2")?.set_len(0)),
        twin("truncate to the same size", "truncate -s 7 f2", |volume| file(volume, "/f2")?.set_len(7)),
        twin("truncate to a larger size", "truncate -s 100000 f2", |volume| {
            file(volume, "/f2")?.set_len(100_000)
        }),
        twin("truncate a file with capabilities", "truncate -s 100 cap-trunc", |volume| {
            file(volume, "/cap-trunc")?.set_len(100)
        }),
        twin("lengthen a file with capabilities", "truncate -s 200000 cap-grow", |volume| {
            file(volume, "/cap-grow")?.set_len(200_000)
        }),
        twin(
            "overwrite a file with capabilities",
            "printf hello | dd of=cap-write conv=notrunc status=none",
            |volume| file(volume, "/cap-write")?.overwrite_at(b"hello", 0),
        ),
        twin(
            "write behind the end of a file with capabilities",
            "printf hello | dd of=cap-fresh bs=1 seek=200000 conv=notrunc status=none",
            |volume| file(volume, "/cap-fresh")?.write_at(b"hello", 200_000),
        ),
        twin("zero a range of a file with capabilities", "xfs_io -c 'fzero 4096 8192' cap-zero", |volume| {
            file(volume, "/cap-zero")?.zero_range(4096..12288, false)
        }),
        twin(
            "punch a hole into a file with capabilities",
            "xfs_io -c 'fpunch 4096 8192' cap-punch",
            |volume| file(volume, "/cap-punch")?.punch_hole(4096..12288),
        ),
        twin(
            "allocate space for a file with capabilities",
            "xfs_io -c 'falloc 200000 8192' cap-falloc",
            |volume| file(volume, "/cap-falloc")?.allocate(200_000..208_192, false),
        ),
        twin(
            "collapse a range of a file with capabilities",
            "xfs_io -c 'fcollapse 4096 8192' cap-collapse",
            |volume| file(volume, "/cap-collapse")?.collapse_range(4096..12288),
        ),
        twin(
            "insert a range into a file with capabilities",
            "xfs_io -c 'finsert 4096 8192' cap-insert",
            |volume| file(volume, "/cap-insert")?.insert_range(4096..12288),
        ),
        twin("allocate", "xfs_io -c 'falloc 0 65536' f2", |volume| {
            file(volume, "/f2")?.allocate(0..65536, false)
        }),
        twin("allocate and keep the size", "xfs_io -c 'falloc -k 0 65536' f2", |volume| {
            file(volume, "/f2")?.allocate(0..65536, true)
        }),
        twin("punch", "xfs_io -c 'fpunch 4096 8192' big", |volume| {
            file(volume, "/big")?.punch_hole(4096..12288)
        }),
        twin("punch where there is a hole", "xfs_io -c 'fpunch 0 8192' sparse", |volume| {
            file(volume, "/sparse")?.punch_hole(0..8192)
        }),
        twin("overwrite", "printf hello | dd of=big conv=notrunc status=none", |volume| {
            file(volume, "/big")?.overwrite_at(b"hello", 0)
        }),
        twin("set an attribute", "setfattr -n user.z -v 1 f2", |volume| {
            node(volume, "/f2")?.set_xattr(b"user.z", b"1", SetXattr::Either)
        }),
        twin("set an attribute to what it is", "setfattr -n user.a -v b f1", |volume| {
            node(volume, "/f1")?.set_xattr(b"user.a", b"b", SetXattr::Either)
        }),
        twin("remove an attribute", "setfattr -x user.a f1", |volume| {
            node(volume, "/f1")?.remove_xattr(b"user.a")
        }),
        twin("remove an access control list", "setfattr -x system.posix_acl_access f3", |volume| {
            node(volume, "/f3")?.remove_xattr(b"system.posix_acl_access")
        }),
    ]
}

type Fields = BTreeMap<String, String>;

/// What is on a volume, by `xfs_db` and by the kernel's mount.
struct Seen {
    /// Fields of inodes, by path.
    inodes: BTreeMap<String, Fields>,
    headers: Fields,
    /// Attributes as the mount shows them.
    attributes: BTreeSet<String>,
}

/// The fields that `xfs_db` prints of each of `structures`.
fn fields(release: Release, image: &Path, structures: &[String]) -> Result<Vec<Fields>> {
    let mut db = release.tool("xfs_db")?;
    for structure in structures {
        db.args(["-c", structure, "-c", "print"]);
    }
    let said = output(db.arg("-r").arg(image))?;
    let mut all: Vec<Fields> = Vec::new();
    for (name, value) in said.lines().filter_map(|line| line.split_once(" = ")) {
        if ["core.magic", "magicnum"].contains(&name) {
            all.push(Fields::new());
        }
        all.last_mut().context("a magic number comes first")?.insert(name.into(), value.into());
    }
    ensure!(all.len() == structures.len(), "xfs_db printed {} of {} structures", all.len(), structures.len());
    Ok(all)
}

fn see(release: Release, image: &Path, mount: &Path) -> Result<Seen> {
    let mounted = Mounted::new(image, mount, true)?;
    let paths = output(Command::new("find").args([".", "-printf", "%i %p\n"]).current_dir(mount))?;
    let shell = "find . -exec getfattr -h -d -m - -e hex {} +";
    let attributes = output(Command::new("sh").args(["-c", shell]).current_dir(mount))?;
    mounted.unmount()?;
    let (mut seen, mut path) = (BTreeSet::new(), String::new());
    for line in attributes.lines() {
        match line.strip_prefix("# file: ") {
            Some(name) => path = name.to_owned(),
            None if !line.is_empty() => drop(seen.insert(format!("{path}: {line}"))),
            None => {}
        }
    }
    let (mut numbers, mut names) = (Vec::new(), Vec::new());
    for line in paths.lines() {
        let (ino, path) = line.split_once(' ').context("number and path")?;
        numbers.push(format!("inode {ino}"));
        names.push(path.to_owned());
    }
    let inodes = names.into_iter().zip(fields(release, image, &numbers)?).collect();
    let groups = (0..GROUPS).flat_map(|group| [format!("agf {group}"), format!("agi {group}")]);
    let wanted: Vec<String> = ["sb 0".to_owned()].into_iter().chain(groups).collect();
    let mut headers = Fields::new();
    for (header, of) in wanted.iter().zip(fields(release, image, &wanted)?) {
        headers.extend(of.into_iter().map(|(name, value)| (format!("{header} {name}"), value)));
    }
    Ok(Seen { inodes, headers, attributes: seen })
}

/// Fields that two writers may set in their own ways: places, random numbers, what a change is counted by.
fn is_own(field: &str) -> bool {
    // Names of a short directory and inline attributes are compared through the mount.
    const OWN: [&str; 12] = [
        "v3.crc",
        "v3.lsn",
        "v3.inumber",
        "v3.change_count",
        "core.gen",
        "next_unlinked",
        "u3.bmx",
        "u3.sfdir3",
        "a.",
        "core.flushiter",
        "u.bmx",
        "u3.bmbt",
    ];
    OWN.iter().any(|own| field.starts_with(own))
        || field == "a"
        || field == "core.forkoff"
        || field == "core.aformat"
}

/// Fields of headers that follow from where things were put.
fn is_place(field: &str) -> bool {
    ["lsn", "crc", "newino", "bnoroot", "cntroot", "flfirst", "fllast", "longest"]
        .iter()
        .any(|own| field.contains(own))
}

/// A time as the test compares it: whether it moved, or where it was set to.
fn time(fields: &Fields, before: Option<&Fields>, name: &str) -> String {
    let half = |fields: &Fields, half| fields.get(&format!("{name}.{half}")).cloned();
    let now = (half(fields, "sec"), half(fields, "nsec"));
    let moved = before.is_none_or(|before| (half(before, "sec"), half(before, "nsec")) != now);
    match now {
        _ if !moved => "as before".into(),
        // The volume and its changes are of today: what is as old as this was set.
        (Some(sec), Some(nsec)) if sec.contains(" 2001") => format!("{sec} {nsec}"),
        _ => "moved".into(),
    }
}

/// Says in which fields two copies of a volume differ that was `before`.
fn differences(before: &Seen, kernel: &Seen, ours: &Seen) -> String {
    const TIMES: [&str; 4] = ["core.atime", "core.mtime", "core.ctime", "v3.crtime"];
    let mut said = String::new();
    let paths: BTreeSet<_> = kernel.inodes.keys().chain(ours.inodes.keys()).collect();
    for path in paths {
        let (Some(theirs), Some(own)) = (kernel.inodes.get(path), ours.inodes.get(path)) else {
            let by = if kernel.inodes.contains_key(path) { "the kernel" } else { "uxfs" };
            let _ = writeln!(said, "  {path}: only where {by} made the change");
            continue;
        };
        let names: BTreeSet<_> = theirs.keys().chain(own.keys()).collect();
        for name in names {
            if is_own(name)
                || TIMES.iter().any(|time| name.starts_with(time))
                || theirs.get(name) == own.get(name)
            {
                continue;
            }
            let _ = writeln!(
                said,
                "  {path}: {name}: {:?} by the kernel, {:?} by uxfs",
                theirs.get(name),
                own.get(name)
            );
        }
        for name in TIMES {
            let (theirs, own) =
                (time(theirs, before.inodes.get(path), name), time(own, before.inodes.get(path), name));
            if theirs != own {
                let _ = writeln!(said, "  {path}: {name}: {theirs} by the kernel, {own} by uxfs");
            }
        }
    }
    for (name, value) in &kernel.headers {
        if !is_place(name) && ours.headers.get(name) != Some(value) {
            let _ = writeln!(said, "  {name}: {value} by the kernel, {:?} by uxfs", ours.headers.get(name));
        }
    }
    for line in kernel.attributes.symmetric_difference(&ours.attributes) {
        let by = if kernel.attributes.contains(line) { "the kernel" } else { "uxfs" };
        let _ = writeln!(said, "  only where {by} made the change: {line}");
    }
    said
}

fn shell(mount: &Path, script: &str) -> Result<()> {
    if let [how @ ("rename" | "exchange"), from, to] = script.split(' ').collect::<Vec<_>>()[..] {
        let flags = if how == "rename" { RenameFlags::empty() } else { RenameFlags::EXCHANGE };
        return Ok(renameat_with(CWD, mount.join(from), CWD, mount.join(to), flags)?);
    }
    let done = finish(Command::new("bash").args(["-c", &format!("set -e; {script}")]).current_dir(mount))?;
    ensure!(done.status.success(), "{script}: {}", said(&done));
    Ok(())
}

fn filled(release: Release, options: &[&str], setup: &str, folder: &Path) -> Result<PathBuf> {
    let image = folder.join("base.img");
    std::fs::File::create(&image)?.set_len(400 << 20)?;
    run(release
        .tool("mkfs.xfs")?
        .args(["-q", "-f", "-d", &format!("agcount={GROUPS}")])
        .args(options)
        .arg(&image))?;
    let mounted = Mounted::new(&image, &folder.join("mount"), false)?;
    shell(mounted.dir(), setup)?;
    mounted.unmount()?;
    Ok(image)
}

/// Makes every change twice, and compares.
fn compare(release: Release, options: &[&str], setup: &str, twins: Vec<Twin>) {
    let folder = scratch().unwrap();
    let (mount, kernel, ours) =
        (folder.path().join("mount"), folder.path().join("kernel.img"), folder.path().join("ours.img"));
    let base = filled(release, options, setup, folder.path()).unwrap();
    let before = see(release, &base, &mount).unwrap();
    let mut wrong = String::new();
    for twin in twins {
        let differ = (|| {
            copy_sparse(&base, &kernel)?;
            copy_sparse(&base, &ours)?;
            let mounted = Mounted::with_options(&kernel, &mount, "loop")?;
            shell(mounted.dir(), twin.kernel)?;
            mounted.unmount()?;
            let volume = Volume::open(&ours, &OpenOptions::new().writable(true))?;
            (twin.uxfs)(&volume)?;
            volume.close()?;
            drop(volume);
            let repair = finish(release.tool("xfs_repair")?.arg("-n").arg(&ours))?;
            ensure!(repair.status.success(), "xfs_repair -n: {}", said(&repair));
            Ok(differences(&before, &see(release, &kernel, &mount)?, &see(release, &ours, &mount)?))
        })();
        let differ = differ.unwrap_or_else(|error: anyhow::Error| format!("  {error:#}\n"));
        if !differ.is_empty() {
            let _ = write!(wrong, "{}:\n{differ}", twin.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_maintains_no_more_than_we_do() {
    compare(Release::System, &[], SETUP, twins());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn nor_on_volumes_with_large_extent_counts() {
    compare(Release::Stable, &["-m", "rmapbt=0", "-i", "nrext64=1"], SETUP, twins());
}

/// The superblock says that there are attributes from the first one on.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_s_first_attribute() {
    let first = Twin {
        name: "first attribute",
        kernel: "setfattr -n user.a -v b file",
        uxfs: |volume| node(volume, "/file")?.set_xattr(b"user.a", b"b", SetXattr::Either),
    };
    compare(Release::System, &[], ": > file", vec![first]);
}
