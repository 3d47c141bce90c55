//! `uxfs cp --reflink`: copies within one image share blocks with their source, as GNU `cp` of a mounted volume has it;
//! the kernel says what is shared, and goes on with it. Needs root, xfsprogs, loop mounts, GNU coreutils.
#![forbid(unsafe_code)]

mod common;

use common::{Image, found, run, scratch, twins, uxfs, uxfs_fails, uxfs_ok};
use oracles::xfsprogs::Release;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

fn assert_sound(image: &Path) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image]);
    assert_newest_is_content(image);
}

fn assert_newest_is_content(image: &Path) {
    let newest = Release::Unstable.path("xfs_repair").unwrap();
    run(newest.to_str().unwrap(), &[&"-n", &"-f", &"-o", &"force_geometry", &image]);
    uxfs_ok(&[&"check", &image]);
}

/// Units of 512 bytes of a file that are shared, and all that it has, as the kernel says.
fn shared(path: &Path) -> (u64, u64) {
    let said = String::from_utf8(run("xfs_io", &[&"-r", &"-c", &"fiemap -v", &path])).unwrap();
    let (mut shared, mut all) = (0, 0);
    for line in said.lines().skip(2).filter(|line| !line.contains("hole")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let length: u64 = words[3].parse().unwrap();
        all += length;
        if u64::from_str_radix(words[4].trim_start_matches("0x"), 16).unwrap() & 0x2000 != 0 {
            shared += length;
        }
    }
    (shared, all)
}

fn is_shared(path: &Path) -> bool {
    let (shared, all) = shared(path);
    assert!(shared == 0 || shared == all, "{} in part: {shared} of {all}", path.display());
    shared > 0
}

fn io(path: &Path, commands: &[&str]) {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"-f"];
    for command in commands {
        args.extend([&"-c" as &dyn AsRef<OsStr>, command]);
    }
    args.push(&path);
    run("xfs_io", &args);
}

/// Files that are copied, in `S`, and a directory to copy to, `D`, with files that are there.
fn fill(dir: &Path) {
    for sub in ["S/tree/inner", "D/dir"] {
        std::fs::create_dir_all(dir.join(sub)).unwrap();
    }
    let numbers: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(dir.join("S/file"), &numbers).unwrap();
    std::fs::write(dir.join("S/small"), "a few bytes").unwrap();
    std::fs::write(dir.join("S/empty"), "").unwrap();
    std::fs::write(dir.join("S/tree/one"), &numbers[..100_000]).unwrap();
    std::fs::write(dir.join("S/tree/inner/two"), &numbers[..5000]).unwrap();
    std::fs::hard_link(dir.join("S/tree/one"), dir.join("S/tree/inner/one-more")).unwrap();
    symlink("one", dir.join("S/tree/link")).unwrap();
    io(&dir.join("S/sparse"), &["pwrite -q 1m 70000", "pwrite -q 5m 1", "truncate 9m"]);
    io(&dir.join("S/all-hole"), &["truncate 3m"]);
    io(&dir.join("S/prealloc"), &["falloc 0 1m", "pwrite -q 64k 64k"]);
    io(&dir.join("S/behind-end"), &["falloc -k 0 2m", "pwrite -q 0 5000"]);
    std::fs::write(dir.join("S/program"), &numbers[..9000]).unwrap();
    run("setcap", &[&"cap_net_raw=ep", &dir.join("S/program")]);
    std::fs::write(dir.join("D/existing"), &numbers[7..]).unwrap();
    std::fs::write(dir.join("D/longer"), numbers.repeat(2)).unwrap();
    std::fs::write(dir.join("D/short"), "short").unwrap();
    symlink("short", dir.join("D/link")).unwrap();
    std::fs::hard_link(dir.join("D/existing"), dir.join("D/other-name")).unwrap();
    run("find", &[&dir, &"-mindepth", &"1", &"-exec", &"touch", &"-h", &"-d", &"@1000000000", &"{}", &"+"]);
}

const FILES: [&str; 8] =
    ["file", "small", "empty", "sparse", "all-hole", "prealloc", "behind-end", "program"];

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_shares_blocks_until_one_of_the_two_changes() {
    for made_by in [Release::System, Release::Unstable] {
        let image = Image::made_by(&made_by.path("mkfs.xfs").unwrap(), &[]);
        // The system's knows nothing of what the newest makes.
        let sound = if made_by == Release::System { assert_sound } else { assert_newest_is_content };
        fill(image.mount(&[]).dir());
        for name in FILES {
            for how in
                [&[][..], &[&"--reflink" as &dyn AsRef<OsStr>], &[&"--reflink=auto"], &[&"--reflink=never"]]
            {
                let copy = format!(
                    "/D/{name}{}",
                    how.len()
                        + usize::from(
                            how.first().is_some_and(|how| { how.as_ref() == OsStr::new("--reflink=never") })
                        )
                );
                let (from, to) = (image.at(&format!("/S/{name}")), image.at(&copy));
                uxfs_ok(&[&[&"cp" as &dyn AsRef<OsStr>], how, &[&from, &to]].concat());
            }
        }
        sound(&image.path);
        let mount = image.mount(&[]);
        let read = |path: &str| std::fs::read(mount.join(path)).unwrap();
        for name in FILES {
            let has_data = !["empty", "all-hole"].contains(&name);
            for copy in ["0", "1", "2"] {
                let path = format!("D/{name}{copy}");
                assert!(read(&path) == read(&format!("S/{name}")), "{path}");
                // Nothing was ever written to what was never copied.
                assert_eq!(shared(&mount.join(&path)).0 > 0, has_data && copy != "2", "{path}");
            }
        }
        // The kernel overwrites the copies, and then the sources.
        for (changed, kept) in [("D", "S"), ("S", "D")] {
            for name in FILES {
                let path = |of: &str| if of == "D" { format!("D/{name}0") } else { format!("S/{name}") };
                let before = read(&path(kept));
                let changed = std::fs::File::options().write(true).open(mount.join(path(changed))).unwrap();
                changed.write_all_at(b"changed", 3).unwrap();
                changed.write_all_at(&[7; 10_000], 66_000).unwrap();
                changed.sync_all().unwrap();
                assert!(read(&path(kept)) == before, "{name}");
            }
        }
        drop(mount);
        sound(&image.path);
    }
}

/// What GNU `cp` makes of the same on a mounted volume.
#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_within_an_image_are_those_of_gnu() {
    const CASES: &[(&[&str], &[&str], &str)] = &[
        (&[], &["S/file"], "D/new"),
        (&[], &["S/empty"], "D/new"),
        (&[], &["S/sparse"], "D/new"),
        (&[], &["S/file"], "D/existing"),
        (&[], &["S/small"], "D/existing"),
        (&[], &["S/empty"], "D/existing"),
        (&[], &["S/sparse"], "D/longer"),
        (&[], &["S/file"], "D/longer"),
        (&[], &["S/all-hole"], "D/longer"),
        (&[], &["S/file"], "D/link"),
        (&[], &["S/file", "S/sparse", "S/program"], "D/dir"),
        (&["-p"], &["S/program"], "D/new"),
        (&["-a"], &["S/program"], "D/short"),
        (&["-r"], &["S/tree"], "D/new"),
        (&["-a"], &["S/tree"], "D"),
        (&["-a"], &["S/."], "D"),
        (&["-a"], &["S/file"], "D/existing"),
        (&["--reflink"], &["S/file"], "D/new"),
        (&["--reflink=always"], &["S/file"], "D/longer"),
        (&["--reflink=always", "-a"], &["S/."], "D"),
        (&["--reflink=always"], &["S/empty", "S/all-hole"], "D/dir"),
        (&["--reflink=never"], &["S/file"], "D/existing"),
        (&["--reflink=never", "-a"], &["S/tree"], "D/dir"),
    ];
    let (ours, theirs) = twins(fill);
    let kept: Vec<OsString> = [&ours, &theirs].map(|image| image.path.with_extension("kept").into()).to_vec();
    for (image, kept) in [&ours, &theirs].into_iter().zip(&kept) {
        run("cp", &[&"--sparse=always", &image.path, kept]);
    }
    for (options, from, to) in CASES {
        for (image, kept) in [&ours, &theirs].into_iter().zip(&kept) {
            run("cp", &[&"--sparse=always", kept, &image.path]);
        }
        let case = format!("cp {options:?} {from:?} {to}");
        let mut args: Vec<OsString> = vec!["cp".into()];
        args.extend(options.iter().map(OsString::from));
        args.extend(from.iter().chain([to]).map(|path| ours.at(&format!("/{path}"))));
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|arg| arg as _).collect();
        let output = uxfs(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let their_mount = theirs.mount(&[]);
        let gnu =
            Command::new("cp").args(*options).args(*from).arg(to).current_dir(their_mount.dir()).output();
        let gnu = gnu.unwrap();
        assert_eq!(output.status.success(), gnu.status.success(), "{case}: {said}");
        assert!(output.status.success(), "{case}: {said}");
        assert_sound(&ours.path);
        let our_mount = ours.mount(&[]);
        let (left, right) = (found(our_mount.dir()), found(their_mount.dir()));
        for (path, description) in &right {
            assert_eq!(left.get(path), Some(description), "{case}: {}", String::from_utf8_lossy(path));
            let path = Path::new(std::str::from_utf8(path).unwrap());
            if our_mount.join(path).symlink_metadata().unwrap().is_file() {
                let (ours, theirs) = (shared(&our_mount.join(path)), shared(&their_mount.join(path)));
                assert_eq!(ours.0 > 0, theirs.0 > 0, "{case}: {}: shared", path.display());
            }
        }
        assert_eq!(left.len(), right.len(), "{case}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_cannot_be_shared_is_refused_where_it_must_be() {
    let (image, other) = (Image::new(&[]), Image::new(&[]));
    let plain = Image::new(&["-m", "reflink=0"]);
    for image in [&image, &other, &plain] {
        fill(image.mount(&[]).dir());
    }
    let host = scratch();
    let text = host.path().join("text");
    std::fs::write(&text, "text").unwrap();
    let of_all = || [&image, &other, &plain].map(|image| std::fs::read(&image.path).unwrap());
    let before = of_all();
    let always = |from: &dyn AsRef<OsStr>, to: &dyn AsRef<OsStr>, code, said: &str| {
        uxfs_fails(&[&"cp", &"--reflink=always", from, to], code, said);
        assert!(of_all() == before, "bytes have changed: {said}");
    };
    let one_volume = "--reflink=always: only files of one volume can share blocks";
    for to in ["/new", "/D/existing", "/D"] {
        always(&other.at("/S/file"), &image.at(to), 2, one_volume);
        always(&text, &image.at(to), 2, one_volume);
        let never = "--reflink=always: files of a volume without reflink cannot share blocks";
        always(&plain.at("/S/file"), &plain.at(to), 4, never);
    }
    always(&image.at("/S/file"), &host.path().join("new"), 2, one_volume);
    assert_eq!(std::fs::read_dir(host.path()).unwrap().count(), 1);
    assert_eq!(uxfs(&[&"cp", &"--reflink=sometimes", &text, &image.at("/new")]).status.code(), Some(2));
    // Where it need not be, bytes are copied.
    for (from, to) in [(other.at("/S/sparse"), image.at("/new")), (plain.at("/S/sparse"), plain.at("/new"))] {
        uxfs_ok(&[&"cp", &"--reflink=auto", &from, &to]);
        assert!(uxfs_ok(&[&"cat", &from]) == uxfs_ok(&[&"cat", &to]));
    }
    uxfs_ok(&[&"cp", &"--reflink=auto", &image.at("/S/small"), &host.path().join("new")]);
    uxfs_ok(&[&"cp", &"--reflink=never", &text, &image.at("/text")]);
    assert!(!is_shared(&plain.mount(&[]).join("new")));
    for image in [&image, &other, &plain] {
        assert_sound(&image.path);
    }
}

/// Nothing but metadata is written where a large file is cloned: the image takes no more of the host.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_gibibyte_is_cloned_without_a_byte_of_it_copied() {
    let dir = scratch();
    let image = Image { path: dir.path().join("image"), dir };
    std::fs::File::create(&image.path).unwrap().set_len(4 << 30).unwrap();
    run("mkfs.xfs", &[&"-q", &image.path]);
    io(&image.mount(&[]).join("large"), &["pwrite -q -b 1m -S 0x5a 0 1g"]);
    let taken = || std::fs::metadata(&image.path).unwrap().blocks() * 512;
    let before = taken();
    uxfs_ok(&[&"cp", &image.at("/large"), &image.at("/clone")]);
    let written = taken() - before;
    assert!(written < 1 << 20, "{written} bytes");
    let mount = image.mount(&["ro"]);
    run("cmp", &[&mount.join("large"), &mount.join("clone")]);
    assert!(is_shared(&mount.join("clone")) && is_shared(&mount.join("large")));
    drop(mount);
    assert_sound(&image.path);
}
