//! While one process has an image open for writing, no other gets it, and is told so; when the first has died, however
//! that was, the next one gets it at once, with all that was durable.

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const LOCKED: i32 = 8;
const WHAT_TO_DO: &str = "wait until that is done, or end it";

/// A process that has the image open for writing as long as it waits for the rest of its archive.
fn holder(image: &Image) -> Child {
    let dir = scratch();
    std::fs::write(dir.path().join("first"), "text").unwrap();
    std::fs::write(dir.path().join("second"), vec![7; 1 << 20]).unwrap();
    let archive = run("tar", &[&"-C", &dir.path(), &"-c", &"first", &"second"]);
    let mut untar = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    untar.args(["-v", "untar"]).arg(&image.path).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut untar = untar.spawn().unwrap();
    untar.stdin.as_mut().unwrap().write_all(&archive[..archive.len() / 2]).unwrap();
    // It has said a name, hence opened the volume.
    let mut said = String::new();
    BufReader::new(untar.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("first"), "{said}");
    untar
}

#[test]
fn a_second_opener_is_refused_and_let_in_when_the_first_is_killed() {
    let image = Image::new(&[]);
    let file = image.dir.path().join("file");
    std::fs::write(&file, "text\n").unwrap();
    let mut first = holder(&image);
    uxfs_fails(&[&"mkdir", &image.at("/dir")], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"cp", &file, &image.at("/file")], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"recover", &image.path], LOCKED, WHAT_TO_DO);
    uxfs_fails(&[&"mkfs", &"-f", &image.path], LOCKED, WHAT_TO_DO);
    assert_eq!(first.try_wait().unwrap(), None, "the first lives on");
    first.kill().unwrap();
    first.wait().unwrap();
    for verb in [&["mkdir"][..], &["chmod", "700"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
        let output = command.args(verb).arg(image.at("/dir")).output().unwrap();
        assert!(output.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image.path]);
    assert!(uxfs(&[&"stat", &image.at("/dir")]).status.success());
}
