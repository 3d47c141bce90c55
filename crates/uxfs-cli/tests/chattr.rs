//! `uxfs chattr` sets and clears what the kernel's `chattr` does, on the same files, with the same outcome.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, uxfs, uxfs_fails, uxfs_ok};
use std::path::Path;

const FILES: [&str; 3] = ["file", "dir", "dir/in"];

fn image() -> Image {
    let image = Image::new(&[]);
    let mount = image.mount(&[]);
    std::fs::write(mount.dir().join("file"), "text").unwrap();
    std::fs::create_dir(mount.dir().join("dir")).unwrap();
    std::fs::write(mount.dir().join("dir/in"), "text").unwrap();
    std::os::unix::fs::symlink("file", mount.dir().join("link")).unwrap();
    drop(mount);
    image
}

/// What the kernel says of the flags of each file.
fn flags(image: &Image) -> String {
    let mount = image.mount(&["ro"]);
    let paths = FILES.map(|name| mount.dir().join(name));
    let said = run("lsattr", &[&"-d", &paths[0], &paths[1], &paths[2]]);
    let said = String::from_utf8(said).unwrap();
    said.lines().map(|line| line.split(' ').next().unwrap().to_owned() + "\n").collect()
}

/// The letters that `uxfs stat` has behind the flags.
fn shown(image: &Image, name: &str) -> String {
    let said = String::from_utf8(uxfs_ok(&[&"stat", &image.at(&format!("/{name}"))])).unwrap();
    let (_, flags) = said.lines().find_map(|line| line.split_once("Flags: ")).unwrap();
    flags.split_once(' ').map_or("", |(_, letters)| letters).to_owned()
}

fn copy(from: &Path, to: &Path) {
    run("cp", &[&"--sparse=always", &from, &to]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn flags_are_set_and_cleared_as_the_kernel_has_them() {
    let image = image();
    let before = image.dir.path().join("before");
    for changes in
        [&["+i"][..], &["+a"], &["+ia", "-i"], &["+SdA", "=d"], &["+i", "-iaSdA"], &["=iaSdA", "-a", "+d"]]
    {
        copy(&image.path, &before);
        {
            let mount = image.mount(&[]);
            for change in changes {
                // What is within goes first: an immutable directory keeps nobody from it, but so it is one order.
                run("chattr", &[change, &mount.dir().join("file"), &mount.dir().join("dir")]);
                run("chattr", &[change, &mount.dir().join("dir/in")]);
            }
        }
        let wanted = flags(&image);
        copy(&before, &image.path);
        for change in changes {
            uxfs_ok(&[&"chattr", change, &image.at("/file"), &image.at("/dir"), &image.at("/dir/in")]);
        }
        assert_eq!(flags(&image), wanted, "{changes:?}");
        let letters: String = wanted.lines().next().unwrap().chars().filter(|c| *c != '-').collect();
        assert_eq!(shown(&image, "file"), letters, "{changes:?}");
        run("xfs_repair", &[&"-n", &image.path]);
        copy(&before, &image.path);
    }
}

/// Nothing else takes the flag off that keeps a file from being removed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn who_was_refused_takes_the_flag_off() {
    let image = image();
    uxfs_ok(&[&"chattr", &"-R", &"+i", &image.at("/")]);
    uxfs_fails(&[&"rm", &image.at("/dir/in")], 14, "is immutable: take the flag off first (chattr)");
    {
        let mount = image.mount(&[]);
        assert!(std::fs::remove_file(mount.dir().join("dir/in")).is_err());
        assert!(std::fs::write(mount.dir().join("new"), "").is_err());
    }
    uxfs_ok(&[&"chattr", &"-R", &"-i", &image.at("/")]);
    uxfs_ok(&[&"rm", &image.at("/dir/in")]);
    run("xfs_repair", &[&"-n", &image.path]);
    std::fs::remove_dir(image.mount(&[]).dir().join("dir")).unwrap();
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_xfs_does_not_keep_is_refused_by_its_name() {
    let image = image();
    let before = std::fs::read(&image.path).unwrap();
    for (flags, why) in [
        ("+s", "s (secure deletion) is no flag that XFS keeps"),
        ("+ie", "e (extents) is no flag that XFS keeps"),
        ("=C", "C (no copy on write) is no flag that XFS keeps"),
        ("-x", "x (direct access to memory) is no flag that XFS keeps"),
        ("+q", "q is no flag"),
        ("i", "a change begins with +, - or ="),
    ] {
        let output = uxfs(&[&"chattr", &flags, &image.at("/file")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{flags}: {said}");
    }
    uxfs_fails(
        &[&"chattr", &"+P", &image.at("/file")],
        3,
        "only a directory has this flag: project inherited",
    );
    uxfs_fails(&[&"chattr", &"+i", &image.at("/link")], 3, "a symbolic link has no flags");
    assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");
    // The kernel refuses them as well.
    let mount = image.mount(&[]);
    for flags in ["+s", "+C"] {
        let kernel = std::process::Command::new("chattr").arg(flags).arg(mount.dir().join("file")).output();
        assert!(!kernel.unwrap().status.success(), "{flags}");
    }
}
