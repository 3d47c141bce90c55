//! Volumes whose log was zeroed or made anew, so that metadata are newer than it. Whoever goes on with such a log loses
//! changes in a crash: recovery takes them for older than what is in place. The kernel does not mount them; uxfs does not
//! open them for writing, and leaves every byte as it was.
#![forbid(unsafe_code)]

mod common;

use common::{made, mounted, open, repair_finds_nothing};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use uxfs::{CheckReport, ErrorKind, NewNode, OpenOptions, Volume, check};

/// What a command says, which must succeed.
fn said(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn db(image: &Path, commands: &[&str]) -> String {
    let mut command = Command::new("xfs_db");
    command.arg("-x");
    for line in commands {
        command.args(["-c", line]);
    }
    said(command.arg(image))
}

/// The number behind ` = ` that xfs_db prints of a field.
fn field(image: &Path, commands: &[&str]) -> u64 {
    let text = db(image, commands);
    let value = text.lines().rev().find_map(|line| line.split_once(" = ")).expect("a field").1;
    value.trim().parse().expect("a number")
}

/// A volume that the kernel has filled with files, in a directory with blocks of its own.
fn filled(dir: &Path) -> std::path::PathBuf {
    let image = made(dir, &[]);
    mounted(&image, |root| {
        std::fs::create_dir(root.join("dir")).expect("made");
        for n in 0..200 {
            std::fs::write(root.join(format!("dir/a file with some name {n}")), "content").expect("made");
        }
    });
    image
}

/// As `dd` with the log's place and size.
fn zero_the_log(image: &Path) {
    let of = |name: &str| field(image, &["sb 0", &format!("p {name}")]);
    let (block, per_group, log) = (of("agblklog"), of("agblocks"), of("logstart"));
    let at = ((log >> block) * per_group + (log & ((1 << block) - 1))) * of("blocksize");
    let zeroes = vec![0; (of("logblocks") * of("blocksize")) as usize];
    let file = std::fs::OpenOptions::new().write(true).open(image).expect("an image");
    file.write_all_at(&zeroes, at).expect("written");
}

fn the_kernel_mounts(image: &Path) -> bool {
    let at = tempfile::tempdir().expect("a mount point");
    let mut mount = Command::new("mount");
    let mounts = mount.args(["-o", "loop"]).arg(image).arg(at.path()).output().expect("run").status.success();
    if mounts {
        said(Command::new("umount").arg(at.path()));
    }
    mounts
}

fn writable(image: &Path) -> uxfs::Result<Volume> {
    Volume::open(image, &OpenOptions::new().writable(true))
}

/// Neither the kernel nor uxfs writes to it; uxfs reads it.
fn is_refused(image: &Path) {
    // Which clears some of the log before it looks at anything else.
    assert!(!the_kernel_mounts(image), "the kernel takes it");
    let before = std::fs::read(image).expect("read");
    let error = writable(image).map(|_| ()).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("the log is behind the volume"), "{error}");
    let in_memory = OpenOptions::new().writable(true).changes_in_memory(true);
    let tried = Volume::open(image, &in_memory).map(|_| ()).expect_err("refused");
    assert_eq!(tried.to_string(), error.to_string(), "tried in memory");
    let volume = Volume::open(image, &OpenOptions::new()).expect("for reading");
    assert_eq!(volume.open_dir("/dir").expect("there").entries().count(), 200);
    drop(volume);
    assert!(behind(&check(image, &OpenOptions::new()).expect("checked")), "uxfs check says nothing");
    assert!(std::fs::read(image).expect("read") == before, "the image was changed");
}

/// Whether the checker says that something is newer than the log.
fn behind(report: &CheckReport) -> bool {
    report.findings.iter().any(|finding| format!("{finding:?}").contains("behind the log's head"))
}

/// uxfs changes it, and the kernel finds that after a crash.
fn is_taken(image: &Path) {
    assert!(the_kernel_mounts(image), "the kernel refuses it");
    let volume = open(image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(b"new", &NewNode::default()).expect("made");
    volume.sync().expect("synced");
    drop(root);
    drop(volume);
    assert!(mounted(image, |root| root.join("new").exists()), "what was synced is gone");
    repair_finds_nothing(image);
    assert!(!behind(&check(image, &OpenOptions::new()).expect("checked")));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_zeroed_log_is_refused_until_it_is_repaired() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = filled(dir.path());
    zero_the_log(&image);
    is_refused(&image);
    said(Command::new("xfs_repair").arg("-L").arg(&image));
    is_taken(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_log_of_the_first_cycle_is_refused_and_one_of_a_later_cycle_is_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = filled(dir.path());
    db(&image, &["logformat -c 1"]);
    is_refused(&image);
    db(&image, &["logformat -c 5"]);
    is_taken(&image);
}

/// Nothing of a volume that was never written is newer than a log without a record.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_zeroed_log_of_a_fresh_volume_is_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = made(dir.path(), &[]);
    zero_the_log(&image);
    is_taken(&image);
}

/// Headers may be older than a block: it is found out as the block is read, before anything of it is changed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_block_or_an_inode_that_is_newer_than_the_log_is_not_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = filled(dir.path());
    let at = mounted(&image, |root| {
        use std::os::unix::fs::MetadataExt;
        let ino = |path: &str| std::fs::metadata(root.join(path)).expect("there").ino();
        [ino("dir"), ino("dir/a file with some name 7")]
    });
    let [block, inode] = at.map(|ino| format!("inode {ino}"));
    db(&image, &[&block, "dblock 0", "write dhdr.hdr.lsn 0x700000000"]);
    db(&image, &[&inode, "write v3.lsn 0x700000000"]);
    let volume = writable(&image).expect("the headers are well");
    let refused = |what: &str, got: uxfs::Result<()>| {
        let error = got.expect_err(what);
        assert!(error.kind() == ErrorKind::Damaged, "{what}: {error}");
        assert!(error.to_string().contains("behind the log's head"), "{what}: {error}");
    };
    let dir = volume.open_dir("/dir").expect("there");
    refused("the directory", dir.remove_file(b"a file with some name 0"));
    drop(dir);
    refused("the inode", volume.node(at[1]).map(|_| ()));
    drop(volume);
    let reading = Volume::open(&image, &OpenOptions::new()).expect("for reading");
    let file = reading.open_file("/dir/a file with some name 7").expect("read");
    assert_eq!(file.size(), 7);
    assert!(behind(&check(&image, &OpenOptions::new()).expect("checked")));
}
