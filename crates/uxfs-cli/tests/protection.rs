//! What the kernel forbids or does unasked, as a guard: immutable and append-only files, rights that a change of owner
//! takes away, lists that directories hand down. The kernel does each thing first, and the command must do the same.
#![forbid(unsafe_code)]

mod common;

use common::{Image, describe, run, uxfs, uxfs_fails};
use rustix::fs::{SeekFrom, seek};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Copies an image as it is, holes as holes.
fn restore(from: &Path, to: &Path) {
    run("cp", &[&"--sparse=always", &from, &to]);
}

/// All bytes of an image, without its holes.
fn data(image: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = File::open(image).unwrap();
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        let mut run = vec![0; (at - start) as usize];
        file.read_exact_at(&mut run, start).unwrap();
        runs.push((start, run));
    }
    runs
}

/// The same directories three times: unprotected, immutable, append-only; each with a file and a directory that are
/// protected themselves in a directory that is not.
fn protect(dir: &Path) {
    for (name, flag) in [("plain", "-i"), ("fixed", "+i"), ("grows", "+a")] {
        let top = dir.join(name);
        std::fs::create_dir_all(top.join("in/sub")).unwrap();
        std::fs::write(top.join("in/file"), "content").unwrap();
        std::fs::create_dir(top.join("sub")).unwrap();
        std::fs::write(top.join("sub/inner"), "").unwrap();
        std::fs::write(top.join("file"), "content").unwrap();
        run("setfattr", &[&"-n", &"user.there", &"-v", &"1", &top.join("file")]);
        for protected in ["in", "sub", "file"] {
            run("chattr", &[&flag, &top.join(protected)]);
        }
    }
    std::fs::write(dir.join("other"), "other").unwrap();
    std::fs::create_dir(dir.join("elsewhere")).unwrap();
}

/// Changes, as the shell and as the command have them: `%` is the directory.
const CHANGES: [(&str, &[&str]); 19] = [
    ("rm -f %/file", &["rm", "%/file"]),
    ("rm -f %/in/file", &["rm", "%/in/file"]),
    ("rm -f %/sub/inner", &["rm", "%/sub/inner"]),
    ("rmdir %/in/sub", &["rmdir", "%/in/sub"]),
    ("mv -T %/file %/new", &["mv", "%/file", "%/new"]),
    ("mv -T %/in/file %/../elsewhere/moved", &["mv", "%/in/file", "%/../elsewhere/moved"]),
    ("mv -T %/../other %/in/moved", &["mv", "%/../other", "%/in/moved"]),
    ("mv -fT %/../other %/file", &["mv", "%/../other", "%/file"]),
    ("ln %/file %/linked", &["ln", "%/file", "%/linked"]),
    ("ln %/../other %/in/linked", &["ln", "%/../other", "%/in/linked"]),
    ("ln -s x %/in/symlink", &["ln", "-s", "x", "%/in/symlink"]),
    ("mkdir %/in/new", &["mkdir", "%/in/new"]),
    ("truncate -s 3 %/file", &["truncate", "-s", "3", "%/file"]),
    ("truncate -s 100 %/file", &["truncate", "-s", "100", "%/file"]),
    ("truncate -s 0 %/in/made", &["truncate", "-s", "0", "%/in/made"]),
    ("chmod 600 %/file", &["chmod", "600", "%/file"]),
    ("chown 5:6 %/sub", &["chown", "5:6", "%/sub"]),
    ("setfattr -n user.new -v 1 %/file", &["xattr", "set", "%/file", "user.new", "1"]),
    ("setfattr -x user.there %/file", &["xattr", "rm", "%/file", "user.there"]),
];

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_protected_changes_as_far_as_the_kernel_lets_it() {
    let image = Image::new(&["-m", "reflink=0"]);
    protect(image.mount(&[]).dir());
    let before = image.dir.path().join("before");
    restore(&image.path, &before);
    let mut refused = 0;
    for (shell, ours) in CHANGES {
        for dir in ["plain", "fixed", "grows"] {
            restore(&before, &image.path);
            let allowed = {
                let mount = image.mount(&[]);
                let shell = shell.replace('%', mount.dir().join(dir).to_str().unwrap());
                Command::new("sh").args(["-c", &shell]).output().unwrap().status.success()
            };
            restore(&before, &image.path);
            let args: Vec<OsString> = ours
                .iter()
                .map(|arg| match arg.strip_prefix('%') {
                    Some(path) => image.at(&format!("/{dir}{path}")),
                    None => arg.into(),
                })
                .collect();
            let args: Vec<&dyn AsRef<std::ffi::OsStr>> = args.iter().map(|arg| arg as _).collect();
            if allowed {
                let output = uxfs(&args);
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{ours:?} in {dir}: {said}");
            } else {
                uxfs_fails(&args, 14, if dir == "fixed" { "is immutable" } else { "is append-only" });
                assert!(data(&image.path) == data(&before), "{ours:?} in {dir}: the image has changed");
                refused += 1;
            }
        }
    }
    // In `plain` all is allowed; what is protected is so against most of it.
    assert_eq!(refused, 33);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_change_of_owner_or_content_takes_rights_away() {
    let image = Image::new(&["-m", "reflink=0"]);
    {
        let mount = image.mount(&[]);
        for name in ["owner", "content"] {
            for mode in ["4755", "2755", "2745", "6711"] {
                let path = mount.dir().join(format!("{name}-{mode}"));
                std::fs::write(&path, "content").unwrap();
                run("chmod", &[&mode, &path]);
                let value = "0x0100000200200000000000000000000000000000";
                run("setfattr", &[&"-n", &"security.capability", &"-v", &value, &path]);
            }
        }
    }
    let before = image.dir.path().join("before");
    restore(&image.path, &before);
    let kernel = |dir: &Path| -> Vec<String> {
        let names = ["owner-4755", "owner-2755", "owner-2745", "owner-6711", "content-4755", "content-2745"];
        // Times differ.
        let text = |name: &&str| describe(&dir.join(name));
        names
            .iter()
            .map(text)
            .map(|text| text.split(" mtime=").map(str::to_owned).collect::<Vec<_>>())
            .map(|parts| format!("{} {}", parts[0], parts[1].split_once(' ').unwrap().1))
            .collect()
    };
    let wanted = {
        let mount = image.mount(&[]);
        for mode in ["4755", "2755", "2745", "6711"] {
            run("chown", &[&"5:6", &mount.dir().join(format!("owner-{mode}"))]);
            run("truncate", &[&"-s", &"3", &mount.dir().join(format!("content-{mode}"))]);
        }
        kernel(mount.dir())
    };
    assert!(wanted.iter().all(|text| !text.contains("capability")));
    restore(&before, &image.path);
    for mode in ["4755", "2755", "2745", "6711"] {
        common::uxfs_ok(&[&"chown", &"5:6", &image.at(&format!("/owner-{mode}"))]);
        common::uxfs_ok(&[&"truncate", &"-s", &"3", &image.at(&format!("/content-{mode}"))]);
    }
    assert_eq!(kernel(image.mount(&["ro"]).dir()), wanted);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_directory_with_a_default_list_has_no_umask() {
    let image = Image::new(&["-m", "reflink=0"]);
    {
        let mount = image.mount(&[]);
        for name in ["kernel", "ours"] {
            let dir = mount.dir().join(name);
            std::fs::create_dir(&dir).unwrap();
            run("setfacl", &[&"-d", &"-m", &"u::rwx,g::rwx,o::r-x,u:1234:rwx", &dir]);
        }
        let dir = mount.dir().join("kernel");
        run("sh", &[&"-c", &format!("umask 077; cd {}; mkdir new; mkdir -p a/b", dir.display())]);
    }
    let command = |umask: &str, args: &str, path: &str| {
        let place = image.at(path).into_string().unwrap();
        let text = format!("umask {umask}; {} mkdir {args} {place}", env!("CARGO_BIN_EXE_uxfs"));
        run("sh", &[&"-c", &text]);
    };
    command("077", "", "/ours/new");
    command("077", "-p", "/ours/a/b");
    command("077", "-p", "/plain/b");
    // Nobody but root could fill the directory above.
    command("0377", "-p", "/plain-closed/b");
    let mount = image.mount(&[]);
    let at = mount.dir().display();
    let text = format!("cd {at}; umask 077; mkdir -p like/b; umask 0377; mkdir -p like-closed/b");
    run("sh", &[&"-c", &text]);
    let facts = |path: &str| {
        let text = describe(&mount.dir().join(path));
        let (head, rest) = text.split_once(" mtime=").unwrap();
        format!("{head} {}", rest.split_once(' ').unwrap().1)
    };
    for path in ["new", "a", "a/b"] {
        assert_eq!(facts(&format!("ours/{path}")), facts(&format!("kernel/{path}")), "{path}");
    }
    for path in ["", "/b", "-closed", "-closed/b"] {
        assert_eq!(facts(&format!("plain{path}")), facts(&format!("like{path}")), "{path}");
    }
}
