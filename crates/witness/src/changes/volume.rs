//! A volume that the kernel has filled, as it was unmounted and as crashes leave it.

use super::shapes::Shape;
use super::verbs::On;
use crate::command::{finish, run, said};
use crate::fill::{Sizes, fill};
use crate::kernel;
use crate::quota;
use crate::record::{Hash, Record};
use crate::sandbox::{Mounted, copy_sparse};
use anyhow::{Result, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: u64 = 1 << 30;

/// What the kernel makes beside [`fill`], for the verbs.
const MORE: &str = r#"
    mkdir v; cd v
    seq 1 30000 > plain; seq 1 60000 > b; ln plain hard; ln -s plain soft; mkdir empty mixed
    clone() { cp --reflink=auto "$1" "$2"; }
    clone b a; clone b mixed/clone; clone a mixed/other; seq 5 5000 > mixed/own
    xfs_io -f -c 'pwrite -q -S 1 0 1m' part-of
    xfs_io -f -c 'pwrite -q -S 2 0 1m' part
    xfs_io -f -c 'pwrite -q -S 3 0 256k' same
    xfs_io -f -c 'pwrite -q -S 3 0 256k' same-too
    xfs_io -f -c 'pwrite -q -S 4 0 128k' self
    sync
    xfs_io -c 'reflink part-of 256k 256k 256k' part >/dev/null 2>&1 || true
    xfs_io -c 'dedupe same 0 0 256k' same-too >/dev/null 2>&1 || true
    xfs_io -c 'reflink self 0 256k 128k' self >/dev/null 2>&1 || true
    for n in $(seq 0 3 120); do xfs_io -f -c "pwrite -q $((n * 64))k 64k" frayed; done
    xfs_io -f -c 'falloc 0 2m' -c 'falloc -k 2m 1m' -c 'pwrite -q 64k 64k' reserved
    mkdir -p tree/sub/deep
    for n in $(seq 1 60); do echo $n > tree/file-with-a-name-of-some-length-$n; done
    seq 1 9999 > tree/sub/deep/file; ln -s file tree/sub/deep/link; mkfifo tree/sub/pipe
    setfattr -n user.old -v value plain
    for n in $(seq 1 40); do setfattr -n user.number-$n -v "$(seq 1 $((n * 5)))" tree/sub/deep/file; done
    echo x > listed; setfacl -m u:1234:rw,g:99:r listed; setfacl -d -m u:1234:rwx tree/sub
    xfs_io -c 'chproj 42' plain; mkdir project; xfs_io -c 'chproj 7' -c 'chattr +P' project; echo x > project/file
    xfs_io -f -c 'extsize 64k' -c 'pwrite -q 0 10000' hinted
    echo x > fixed; chattr +i fixed; echo x > appended; chattr +a appended
"#;

/// Leaves a dirty log, with an inode that lost its last name while somebody had it open.
const CRASH: &str = r#"
    cd "$1"; shift
    echo x > v/before-the-crash; sync; rm v/before-the-crash; echo y > v/behind
    exec 9< "$1"; rm "$1"
    cd /; xfs_io -x -c 'shutdown -f' "$2"; exec 9<&-
"#;

/// A filled volume.
pub(super) struct Filled<'a> {
    pub(super) shape: &'a Shape,
    folder: PathBuf,
    /// Why the kernel did not fill it, if it cannot mount it.
    pub(super) unmounted: Option<String>,
    /// The kernel's view of it, after each kind of end.
    pub(super) seen: [Vec<Record>; 3],
}

impl<'a> Filled<'a> {
    /// Makes a volume in a folder, and lets the kernel fill it and leave it as requested.
    pub(super) fn new(shape: &'a Shape, seed: u64, folder: &Path, wanted: &[On]) -> Result<Self> {
        let mut filled =
            Self { shape, folder: folder.to_owned(), unmounted: None, seen: [const { Vec::new() }; 3] };
        let image = filled.image(On::Clean);
        File::create(&image)?.set_len(BYTES)?;
        let mut mkfs = shape.mkfs(folder)?;
        if shape.v4 {
            mkfs.arg("-p").arg(prototype(folder)?);
        }
        let made = finish(mkfs.arg(&image))?;
        ensure!(made.status.success(), "mkfs.xfs: {}", said(&made).lines().next().unwrap_or_default());
        let mounted = match filled.mount(&image, "mnt", "noatime") {
            Ok(mounted) => mounted,
            Err(error) => {
                filled.unmounted = Some(format!("{error:#}"));
                return Ok(filled);
            }
        };
        let sizes = Sizes { seed, inodes: 300, big_dir: 1_500, extents: 400, beyond_repair: false };
        // Such a volume takes names apart by case alone as one.
        if !shape.name.ends_with("-ci") {
            fill(mounted.dir(), &sizes, &mut |_| {})?;
        }
        script(mounted.dir(), MORE, &[])?;
        mounted.unmount()?;
        if shape.quota {
            quota::count(&image, folder)?;
        }
        let crashes = [(On::Crashed, "v/reserved"), (On::CrashedClone, "v/a")];
        for (on, gone) in crashes.into_iter().filter(|(on, _)| wanted.contains(on)) {
            let crashed = filled.image(on);
            copy_sparse(&image, &crashed)?;
            let mounted = filled.mount(&crashed, "mnt", "noatime")?;
            let dir = mounted.dir().display().to_string();
            run(Command::new("bash").args(["-euc", CRASH, "bash", &dir, gone, &dir]))?;
            mounted.unmount()?;
        }
        for &on in wanted {
            let copy = folder.join("seen");
            copy_sparse(&filled.image(on), &copy)?;
            let mounted = filled.mount(&copy, "mnt", "noatime")?;
            filled.seen[on as usize] = kernel::manifest(mounted.dir(), Hash::Blake3)?;
            mounted.unmount()?;
        }
        Ok(filled)
    }

    /// The volume, not to be changed.
    pub(super) fn image(&self, on: On) -> PathBuf {
        self.folder.join(match on {
            On::Clean => "clean",
            On::Crashed => "crashed",
            On::CrashedClone => "crashed-clone",
        })
    }

    /// Has the kernel mount an image of this kind.
    pub(super) fn mount(&self, image: &Path, at: &str, options: &str) -> Result<Mounted> {
        ensure!(!self.shape.v4, "this kernel mounts no volume of version 4");
        Mounted::with_options(image, &self.folder.join(at), &format!("loop,nodev,nouuid,{options}"))
    }
}

/// Runs a script at the root of a mounted volume.
pub(super) fn script(dir: &Path, text: &str, environment: &[(&str, &Path)]) -> Result<()> {
    let mut bash = Command::new("bash");
    bash.args(["-euc", text]).current_dir(dir).envs(environment.iter().copied());
    let output = finish(&mut bash)?;
    ensure!(output.status.success(), "the script ends with {}: {}", output.status, said(&output));
    Ok(())
}

/// What `mkfs.xfs` puts into a volume that the kernel does not mount.
fn prototype(folder: &Path) -> Result<PathBuf> {
    let (text, path) = (folder.join("text"), folder.join("proto"));
    std::fs::write(&text, "content\n".repeat(9999))?;
    let file = |name: &str| format!("{name} ---644 0 0 {}\n", text.display());
    let names = ["plain", "reserved", "a", "b", "part", "same", "self", "frayed", "listed", "fixed"];
    let files: String = names.iter().map(|name| file(name)).collect();
    let tree = "empty d--755 0 0\n$\nmixed d--755 0 0\n$\ntree d--755 0 0\nsub d--755 0 0\n$\n$\n";
    let soft = "soft l--777 0 0 plain\n";
    let all = format!("/boot\n0 0\nd--755 0 0\nv d--755 0 0\n{files}{tree}{soft}$\n$\n");
    std::fs::write(&path, all)?;
    Ok(path)
}
