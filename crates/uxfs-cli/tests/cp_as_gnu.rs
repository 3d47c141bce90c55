//! `cp` does to an image, and from one to the host, what GNU `cp` does as root on a mounted volume: the same commands are
//! given to both, and the same trees must come of it. Needs root, xfsprogs, loop mounts, GNU coreutils and ACL tools.
#![forbid(unsafe_code)]

mod common;

use common::{Image, describe, found, run, scratch, twins, uxfs};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command: options, sources, destination. `S/` is where sources are, `D/` what is copied to.
struct Case(&'static [&'static str], &'static [&'static str], &'static str);

/// What both do alike, into an image and out of one.
const CASES: &[Case] = &[
    Case(&[], &["S/file"], "D/new"),
    Case(&[], &["S/suid"], "D/new"),
    Case(&[], &["S/file"], "D/existing"),
    Case(&[], &["S/empty"], "D/existing"),
    Case(&[], &["S/suid"], "D/existing"),
    Case(&[], &["S/file"], "D/capable"),
    Case(&[], &["S/empty"], "D/capable"),
    Case(&[], &["S/file"], "D/link"),
    Case(&[], &["S/file"], "D/dangling"),
    Case(&[], &["S/file"], "D/dir"),
    Case(&[], &["S/file", "S/suid"], "D/dir"),
    Case(&[], &["S/file", "S/suid"], "D/existing"),
    Case(&[], &["S/file"], "D/fileisdir"),
    Case(&[], &["S/other/file", "S/file"], "D/dir"),
    Case(&[], &["S/symlink"], "D/new"),
    Case(&[], &["S/tree"], "D/new"),
    Case(&["-p"], &["S/suid"], "D/new"),
    Case(&["-p"], &["S/listed"], "D/new"),
    Case(&["-p"], &["S/listed"], "D/existing"),
    Case(&["-p"], &["S/file"], "D/existing"),
    Case(&["-p"], &["S/file"], "D/listed"),
    Case(&["-p"], &["S/file"], "D/link"),
    Case(&["--preserve=mode"], &["S/file"], "D/alone"),
    Case(&["--preserve=mode"], &["S/suid"], "D/new"),
    Case(&["-a", "--no-preserve=ownership"], &["S/tree"], "D/new"),
    Case(&["--no-preserve=mode"], &["S/suid"], "D/new"),
    Case(&["--no-preserve=mode"], &["S/file"], "D/handsdown"),
    Case(&["-r", "--no-preserve=mode"], &["S/tree"], "D/handsdown"),
    Case(&["--preserve=ownership"], &["S/suid"], "D/new"),
    Case(&["--preserve=ownership"], &["S/suid"], "D/alone"),
    Case(&["--preserve=timestamps"], &["S/file"], "D/existing"),
    Case(&["--preserve=xattr"], &["S/colored"], "D/existing"),
    Case(&["--preserve"], &["S/colored"], "D/new"),
    Case(&["--preserve=xattr,mode"], &["S/listed"], "D/new"),
    Case(&["-r"], &["S/tree"], "D/new"),
    Case(&["-r"], &["S/tree"], "D"),
    Case(&["-r"], &["S/tree"], "D/existing"),
    Case(&["-r"], &["S/tree/."], "D"),
    Case(&["-r"], &["S/symlink"], "D/new"),
    Case(&["-r"], &["S/symlink"], "D/existing"),
    Case(&["-r"], &["S/symlink"], "D/dangling"),
    Case(&["-r"], &["S/modes"], "D"),
    Case(&["-r"], &["S/file"], "D/link"),
    Case(&["-rp"], &["S/tree"], "D/new"),
    Case(&["-rp"], &["S/tree"], "D"),
    Case(&["-rp"], &["S/modes"], "D"),
    Case(&["-r", "--preserve=links"], &["S/tree"], "D"),
    Case(&["-a"], &["S/tree"], "D/new"),
    Case(&["-a"], &["S/tree"], "D"),
    Case(&["-a"], &["S/modes"], "D"),
    Case(&["-a"], &["S/file"], "D/hard"),
    Case(&["-a"], &["S/devices"], "D"),
    Case(&["-a", "--no-preserve=mode"], &["S/tree"], "D/new"),
    Case(&["-a", "--no-preserve=xattr"], &["S/colored"], "D/new"),
    Case(&[], &["S/file"], "D/handsdown"),
    Case(&["-r"], &["S/tree"], "D/handsdown"),
    Case(&["-rp"], &["S/tree"], "D/handsdown"),
    Case(&["-a"], &["S/tree"], "D/handsdown"),
    Case(&[], &["S/file"], "D/group"),
    Case(&["-r"], &["S/tree"], "D/group"),
    Case(&["--replace"], &["S/file"], "D/existing"),
    Case(&["--replace"], &["S/file"], "D/link"),
    Case(&["--replace"], &["S/file"], "D/dangling"),
    Case(&["-p", "--replace"], &["S/suid"], "D/existing"),
    Case(&["-a", "--replace"], &["S/tree"], "D"),
    // Two names of one file, as sources of their own and in a tree.
    Case(&["-a"], &["S/pair/a", "S/pair/b"], "D/dir"),
    Case(&["-p"], &["S/pair/a", "S/pair/b"], "D/dir"),
    Case(&["--preserve=links"], &["S/pair/b", "S/pair/a"], "D/dir"),
    Case(&["-a"], &["S/pair/a", "S/pair", "S/tree/one", "S/tree"], "D/dir"),
    Case(&["-a"], &["S/tree", "S/tree/inner/one"], "D/dir"),
    Case(&["-a"], &["S/pair/linked", "S/pair/again"], "D/dir"),
    Case(&["-a"], &["S/pair/a", "S/other/a", "S/pair/b"], "D/dir"),
    Case(&["-a"], &["S/pair/a", "S/pair/existing"], "D"),
];

/// Within one image.
const WITHIN: &[Case] = &[
    Case(&[], &["D/existing"], "D/new"),
    Case(&[], &["D/existing"], "D/capable"),
    Case(&[], &["D/existing"], "D/existing"),
    Case(&[], &["D/existing"], "D/hard"),
    Case(&[], &["D/existing"], "D/link"),
    Case(&["-a"], &["D/listed"], "D/existing"),
    Case(&["-r"], &["D/tree"], "D/dir"),
    Case(&["-a"], &["D/tree"], "D/dir"),
    Case(&["-a"], &["D/existing", "D/hard"], "D/dir"),
    Case(&["-a"], &["D/twin", "D/twins/other"], "D/twins"),
    Case(&["-a"], &["D/twin", "D/twins"], "D/dir"),
    // A link in the place of what it leads to would be all that is left.
    Case(&["-a"], &["D/link"], "D/existing"),
    Case(&["-r"], &["D/link"], "D/existing"),
    Case(&["-a"], &["D/link"], "D/hard"),
    Case(&["-a"], &["D/link"], "D/link"),
    Case(&["-a"], &["D/link"], "D/listed"),
    Case(&["-a"], &["D/dangling"], "D/existing"),
    Case(&["-a"], &["D/links/."], "D"),
    Case(&["-a"], &["D/links/existing", "D/links/listed"], "D"),
    Case(&["-r", "--replace"], &["D/link"], "D/existing"),
];

/// Files that are copied. Their times are long past.
fn sources(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let write = |name: &str, text: &str, mode: u32, owner: (u32, u32)| {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), text).unwrap();
        chown(at(name), Some(owner.0), Some(owner.1)).unwrap();
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    write("file", "file\n", 0o664, (1001, 1002));
    write("other/file", "the other\n", 0o600, (0, 0));
    write("empty", "", 0o640, (7, 8));
    write("suid", "program", 0o6755, (1003, 1004));
    write("colored", "colored", 0o644, (0, 0));
    write("listed", "listed", 0o640, (9, 9));
    run("setfacl", &[&"-m", &"u:1234:rwx,g:99:r", &at("listed")]);
    run("setfattr", &[&"-n", &"user.color", &"-v", &"red", &at("colored")]);
    run("setfattr", &[&"-n", &"trusted.kept", &"-v", &"yes", &at("colored")]);
    symlink("file", at("symlink")).unwrap();
    write("pair/a", "a pair", 0o640, (3, 4));
    for other in ["pair/b", "pair/existing"] {
        std::fs::hard_link(at("pair/a"), at(other)).unwrap();
    }
    write("other/a", "no pair", 0o640, (3, 4));
    symlink("nowhere", at("pair/linked")).unwrap();
    std::fs::hard_link(at("pair/linked"), at("pair/again")).unwrap();
    write("tree/one", "one", 0o666, (11, 12));
    write("tree/two", "two", 0o4711, (13, 14));
    write("tree/able", "able", 0o755, (0, 0));
    run("setcap", &[&"cap_chown+ep", &at("tree/able")]);
    write("tree/inner/three", "three", 0o600, (15, 16));
    write("tree/inner/file", "in the way", 0o644, (17, 18));
    std::fs::hard_link(at("tree/one"), at("tree/inner/one")).unwrap();
    symlink("../two", at("tree/inner/link")).unwrap();
    run("mkfifo", &[&"-m", &"646", &at("tree/pipe")]);
    run("setfacl", &[&"-m", &"u:5:rwx,d:u:5:rwx", &at("tree/inner")]);
    run("setfattr", &[&"-n", &"user.of", &"-v", &"a directory", &at("tree/inner")]);
    chown(at("tree"), Some(21), Some(22)).unwrap();
    for (nth, mode) in [0o777, 0o1777, 0o2775, 0o500, 0o700, 0o6733].into_iter().enumerate() {
        std::fs::create_dir_all(at(&format!("modes/{nth}"))).unwrap();
        std::fs::set_permissions(at(&format!("modes/{nth}")), PermissionsExt::from_mode(mode)).unwrap();
        write(&format!("modes/f{nth}"), "", mode, (0, 0));
    }
    std::fs::create_dir(at("devices")).unwrap();
    run("mknod", &[&"-m", &"666", &at("devices/null"), &"c", &"1", &"3"]);
    run("mknod", &[&"-m", &"640", &at("devices/disk"), &"b", &"259", &"7"]);
    run("find", &[&dir, &"-depth", &"-exec", &"touch", &"-hd", &"2001-02-03 04:05:06.789 UTC", &"{}", &"+"]);
}

/// What is there already where copies go.
fn destination(dir: &Path) {
    let at = |name: &str| dir.join(name);
    std::fs::create_dir_all(at("tree/inner")).unwrap();
    for (name, mode) in [("existing", 0o4640), ("capable", 0o755), ("listed", 0o640), ("alone", 0o600)] {
        std::fs::write(at(name), "a longer text than any of those that come to its place").unwrap();
        chown(at(name), Some(31), Some(32)).unwrap();
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::hard_link(at("existing"), at("hard")).unwrap();
    std::fs::create_dir(at("twins")).unwrap();
    std::fs::write(at("twin"), "has another name").unwrap();
    std::fs::hard_link(at("twin"), at("twins/other")).unwrap();
    run("setfattr", &[&"-n", &"user.stays", &"-v", &"1", &at("existing")]);
    run("setfacl", &[&"-m", &"u:77:rw", &at("listed")]);
    run("setcap", &[&"cap_net_raw+ep", &at("capable")]);
    symlink("./existing", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    std::fs::create_dir(at("links")).unwrap();
    symlink("../existing", at("links/existing")).unwrap();
    symlink("../alone", at("links/listed")).unwrap();
    for name in ["dir/file-is-a-dir", "fileisdir/file", "handsdown", "group"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    run("setfacl", &[&"-m", &"d:u:1234:rwx,d:g::r-x,d:o::---", &at("handsdown")]);
    chown(at("group"), Some(41), Some(42)).unwrap();
    std::fs::set_permissions(at("group"), PermissionsExt::from_mode(0o2775)).unwrap();
    std::fs::write(at("tree/inner/file"), "is there").unwrap();
    std::fs::write(at("tree/inner/one"), "is there as well").unwrap();
    std::fs::hard_link(at("tree/inner/one"), at("tree/inner/uno")).unwrap();
    chown(at("tree/inner"), Some(51), Some(52)).unwrap();
    std::fs::set_permissions(at("tree"), PermissionsExt::from_mode(0o751)).unwrap();
    std::fs::set_permissions(at("tree/inner"), PermissionsExt::from_mode(0o770)).unwrap();
    run("find", &[&dir, &"-depth", &"-exec", &"touch", &"-hd", &"2010-10-10 10:10:10.5 UTC", &"{}", &"+"]);
}

/// GNU `cp`; its own word for `--replace`. Whether it did all of it.
fn gnu(case: &Case, from: &Path, to: &Path) -> bool {
    let Case(options, sources, target) = case;
    let mut cp = Command::new("cp");
    cp.args(
        options.iter().map(|&option| if option == "--replace" { "--remove-destination" } else { option }),
    );
    let place = |name: &str| match name.split_at(1) {
        ("S", rest) => from.as_os_str().to_str().unwrap().to_owned() + rest,
        (_, rest) => to.as_os_str().to_str().unwrap().to_owned() + rest,
    };
    cp.args(sources.iter().map(|name| place(name))).arg(place(target));
    cp.output().expect("cp is there").status.success()
}

/// `uxfs cp`.
fn ours(case: &Case, from: &OsStr, to: &OsStr) -> (bool, String) {
    let Case(options, sources, target) = case;
    let place = |name: &str| {
        let (which, rest) = name.split_at(1);
        let mut place = if which == "S" { from } else { to }.to_owned();
        place.push(rest);
        place
    };
    let mut args: Vec<OsString> = vec!["cp".into()];
    args.extend(options.iter().map(OsString::from));
    args.extend(sources.iter().map(|name| place(name)));
    args.push(place(target));
    let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|arg| arg as &dyn AsRef<OsStr>).collect();
    let output = uxfs(&args);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Where both should have done the same, they have.
fn compare(cases: &[Case], theirs: &Path, ours: &Path, outcomes: &[(bool, (bool, String))]) {
    let mut wrong = String::new();
    for (nth, (case, (gnu, (ok, said)))) in cases.iter().zip(outcomes).enumerate() {
        let name = format!("{:?} {:?} {}", case.0, case.1, case.2);
        if gnu != ok {
            wrong += &format!("{name}: GNU {gnu}, uxfs {ok}: {said}\n");
        }
        let (theirs, ours) = (found(&theirs.join(nth.to_string())), found(&ours.join(nth.to_string())));
        for path in theirs.keys().chain(ours.keys().filter(|path| !theirs.contains_key(*path))) {
            if theirs.get(path) != ours.get(path) {
                let (path, gnu, ours) = (String::from_utf8_lossy(path), theirs.get(path), ours.get(path));
                wrong += &format!("{name}: {path}: {said}\n  GNU  {gnu:?}\n  uxfs {ours:?}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn directories(below: &Path, number: usize) {
    for nth in 0..number {
        std::fs::create_dir(below.join(nth.to_string())).unwrap();
        destination(&below.join(nth.to_string()));
    }
}

fn sound(image: &Image) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image.path]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_into_an_image_are_those_of_gnu() {
    let host = scratch();
    sources(host.path());
    let (theirs, image) = twins(|dir| directories(dir, CASES.len()));
    let kernel = theirs.mount(&[]);
    let outcomes: Vec<_> = CASES
        .iter()
        .enumerate()
        .map(|(nth, case)| {
            let done = gnu(case, host.path(), &kernel.dir().join(nth.to_string()));
            (done, ours(case, host.path().as_os_str(), &image.at(&format!("/{nth}"))))
        })
        .collect();
    sound(&image);
    compare(CASES, kernel.dir(), image.mount(&["ro"]).dir(), &outcomes);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_out_of_an_image_are_those_of_gnu() {
    let (image, _) = twins(|dir| {
        std::fs::create_dir(dir.join("s")).unwrap();
        sources(&dir.join("s"));
    });
    let [theirs, host] = [scratch(), scratch()];
    directories(theirs.path(), CASES.len());
    directories(host.path(), CASES.len());
    let kernel = image.mount(&["ro"]);
    let outcomes: Vec<_> = CASES
        .iter()
        .enumerate()
        .map(|(nth, case)| {
            let nth = nth.to_string();
            let done = gnu(case, &kernel.dir().join("s"), &theirs.path().join(&nth));
            (done, ours(case, &image.at("/s"), host.path().join(&nth).as_os_str()))
        })
        .collect();
    compare(CASES, theirs.path(), host.path(), &outcomes);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_within_an_image_are_those_of_gnu() {
    let (theirs, image) = twins(|dir| directories(dir, WITHIN.len()));
    let kernel = theirs.mount(&[]);
    let outcomes: Vec<_> = WITHIN
        .iter()
        .enumerate()
        .map(|(nth, case)| {
            let nowhere = PathBuf::from("/nowhere");
            let done = gnu(case, &nowhere, &kernel.dir().join(nth.to_string()));
            (done, ours(case, nowhere.as_os_str(), &image.at(&format!("/{nth}"))))
        })
        .collect();
    sound(&image);
    compare(WITHIN, kernel.dir(), image.mount(&["ro"]).dir(), &outcomes);
}

/// `/etc/shadow` is the user's own after an edit: what was found.
#[test]
#[ignore = "needs root and xfsprogs"]
fn an_edited_file_keeps_what_it_is() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        let shadow = mount.dir().join("shadow");
        std::fs::write(&shadow, "root:old").unwrap();
        chown(&shadow, Some(0), Some(42)).unwrap();
        std::fs::set_permissions(&shadow, PermissionsExt::from_mode(0o640)).unwrap();
        run("setfattr", &[&"-n", &"user.a", &"-v", &"b", &shadow]);
        std::fs::hard_link(&shadow, mount.dir().join("backup")).unwrap();
    }
    let host = scratch();
    let edited = host.path().join("shadow");
    std::fs::write(&edited, "root:new").unwrap();
    chown(&edited, Some(1001), Some(1001)).unwrap();
    common::uxfs_ok(&[&"cp", &edited, &image.at("/shadow")]);
    sound(&image);
    let mount = image.mount(&[]);
    let shadow = mount.dir().join("shadow");
    assert!(describe(&shadow).contains("mode=640 uid=0 gid=42 size=8 nlink=2"), "{}", describe(&shadow));
    assert_eq!(common::xattrs(&shadow)[&b"user.a"[..]], b"b");
    assert_eq!(std::fs::read(mount.dir().join("backup")).unwrap(), b"root:new");
    std::fs::write(&shadow, "the kernel writes on").unwrap();
}
