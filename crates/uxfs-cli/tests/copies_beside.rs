//! Two processes copy trees of the same names to one place of the host, beside each other. Neither removes what the other
//! has made, and no name gets the content of another file.
#![forbid(unsafe_code)]

mod common;

use common::{scratch, uxfs_ok};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NAMES: usize = 500;
const ROUNDS: usize = 20;

/// A volume with what `make` makes for each number.
fn volume(dir: &Path, name: &str, make: impl Fn(&Path, usize)) -> PathBuf {
    let source = dir.join(format!("{name}.d"));
    std::fs::create_dir_all(source.join("t")).unwrap();
    (0..NAMES).for_each(|nth| make(&source.join("t"), nth));
    let image = dir.join(format!("{name}.img"));
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    uxfs_ok(&[&"mkfs", &"--small", &"--from", &source, &image]);
    image
}

/// Copies all of both to `out` at once, over each other.
fn copy_both(images: [&Path; 2], option: &str, out: &Path) -> [Output; 2] {
    let _ = std::fs::remove_dir_all(out);
    std::fs::create_dir(out).unwrap();
    let copy = |image: &Path| {
        let mut from = image.as_os_str().to_owned();
        from.push(":/t");
        Command::new(env!("CARGO_BIN_EXE_uxfs"))
            .args(["cp", option, "--replace"])
            .arg(from)
            .arg(out)
            .output()
            .unwrap()
    };
    std::thread::scope(|scope| {
        let copies = images.map(|image| scope.spawn(move || copy(image)));
        copies.map(|copy| copy.join().unwrap())
    })
}

#[test]
fn no_name_is_lost() {
    let dir = scratch();
    let make = |first: usize| {
        move |dir: &Path, nth: usize| {
            let name = dir.join(format!("n{nth}"));
            match (nth + first) % 3 {
                0 => symlink(format!("target{first}"), name).unwrap(),
                1 => rustix::fs::mknodat(
                    rustix::fs::CWD,
                    name,
                    rustix::fs::FileType::Fifo,
                    rustix::fs::Mode::RUSR,
                    0,
                )
                .unwrap(),
                _ => symlink(format!("other{first}"), name).unwrap(),
            }
        }
    };
    let (one, two) = (volume(dir.path(), "one", make(0)), volume(dir.path(), "two", make(1)));
    let out = dir.path().join("out");
    for round in 0..ROUNDS {
        let outputs = copy_both([&one, &two], "-r", &out);
        let is_public = |name: &std::ffi::OsStr| !name.as_encoded_bytes().starts_with(b".");
        let names = std::fs::read_dir(out.join("t")).unwrap().map(|entry| entry.unwrap().file_name());
        let (public, private): (Vec<_>, Vec<_>) = names.partition(|name| is_public(name));
        assert_eq!((public.len(), private), (NAMES, Vec::new()), "round {round}: {outputs:?}");
    }
}

#[test]
fn no_second_name_is_of_the_file_of_the_other() {
    let dir = scratch();
    let ours = |dir: &Path, nth: usize| {
        std::fs::write(dir.join(format!("n{nth}a")), "ours").unwrap();
        std::fs::hard_link(dir.join(format!("n{nth}a")), dir.join(format!("n{nth}b"))).unwrap();
    };
    let theirs = |dir: &Path, nth: usize| std::fs::write(dir.join(format!("n{nth}a")), "theirs").unwrap();
    let (one, two) = (volume(dir.path(), "one", ours), volume(dir.path(), "two", theirs));
    let out = dir.path().join("out");
    for round in 0..ROUNDS {
        let outputs = copy_both([&one, &two], "-a", &out);
        for nth in 0..NAMES {
            let text = std::fs::read(out.join(format!("t/n{nth}b"))).unwrap();
            assert_eq!(text, b"ours", "round {round}, {nth}: {outputs:?}");
        }
    }
}
