//! Images that were made to do harm, with all checksums right: each verb comes to an end, and says what is wrong.
#![forbid(unsafe_code)]

mod common;

use common::forge::{DIRECTORY, Forged, REGULAR, extent};
use common::{scratch, uxfs_fails, uxfs_heeding_signals, uxfs_ok};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// Starts the command.
fn start(args: &[&dyn AsRef<OsStr>]) -> Child {
    let mut command = uxfs_heeding_signals();
    command.args(args.iter().map(|arg| arg.as_ref()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for what must come to an end. The limit is no measure: it is there so that a test that fails ends as well.
fn ended(mut child: Child) -> Output {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("it does not come to an end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_name_of_an_inode_that_is_free_stays_and_is_said_once() {
    let tree = scratch();
    for name in ["d", "d/e"] {
        std::fs::create_dir(tree.path().join(name)).unwrap();
    }
    for name in ["d/a", "d/c", "free"] {
        std::fs::write(tree.path().join(name), "x").unwrap();
    }
    let image = Forged::of("16M", tree.path());
    let (root, dir, free) = (image.ino("/"), image.ino("/d"), image.ino("/free"));
    let (a, c) = (image.ino("/d/a"), image.ino("/d/c"));
    uxfs_ok(&[&"rm", &image.at("/free")]);
    image.entries(dir, root, &[(b"a", REGULAR, a), (b"b", REGULAR, free), (b"c", REGULAR, c)]);

    for verb in [&["rm"][..], &["rm", "-r"], &["mv"]] {
        let path = image.at(if verb.len() == 2 { "/d" } else { "/d/b" });
        let mut args: Vec<&dyn AsRef<OsStr>> = verb.iter().map(|arg| arg as &dyn AsRef<OsStr>).collect();
        let target = image.at("/d/new");
        args.push(&path);
        if verb[0] == "mv" {
            args.push(&target);
        }
        let output = ended(start(&args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 5)), "{verb:?}: {:?} {said}", output.status);
        assert!(said.contains("damaged") || said.contains("not in use"), "{verb:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{verb:?}: {said}");
    }
    // What could be removed is.
    assert_eq!(uxfs_ok(&[&"ls", &image.at("/d")]), b"b\n");
}

#[test]
fn a_circle_of_directories_stays_and_is_said() {
    let tree = scratch();
    std::fs::create_dir_all(tree.path().join("d/e/f")).unwrap();
    std::fs::write(tree.path().join("d/a"), "x").unwrap();
    let image = Forged::of("16M", tree.path());
    let (dir, inner) = (image.ino("/d"), image.ino("/d/e"));
    image.entries(inner, dir, &[(b"f", DIRECTORY, dir)]);

    let output = ended(start(&[&"rm", &"-r", &image.at("/d")]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let what = format!(": /d/e/f: damaged: directory inode {dir} is reached a second time\n");
    assert!(said.ends_with(&what), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(uxfs_ok(&[&"ls", &image.at("/d")]), b"e\n");
}

#[test]
fn a_signal_ends_a_verb_that_waits_for_its_input_and_the_volume_is_closed() {
    let image = Forged::new("16M");
    for which in [Signal::INT, Signal::TERM] {
        let mut child = start(&[&"untar", &"-v", &image.path]);
        let mut input = child.stdin.take().unwrap();
        for name in ["first", "second"] {
            let mut header = tar::Header::new_ustar();
            header.set_path(name).unwrap();
            header.set_size(0);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_cksum();
            input.write_all(header.as_bytes()).unwrap();
        }
        // A name is said when the one before is done.
        let mut said = BufReader::new(child.stderr.take().unwrap());
        for name in ["first", "second"] {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert_eq!(line, format!("uxfs: {name}\n"));
        }
        signal(&child, which);
        let output = ended(child);
        drop(input);
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(output.status.code(), Some(11), "{rest}");
        assert!(rest.ends_with("interrupted; what is done is whole\n"), "{rest}");
        assert_eq!(rest.lines().count(), 1, "{rest}");
        let checked = uxfs_ok(&[&"check", &"--json", &image.path]);
        let checked = String::from_utf8_lossy(&checked);
        assert!(checked.contains("\"log_clean\":true"), "{checked}");
        assert!(checked.contains("\"log_replayed\":false"), "{checked}");
        assert!(uxfs_ok(&[&"ls", &image.path]).starts_with(b"first\n"));
    }
}

#[test]
fn a_signal_ends_a_verb_whose_output_nobody_takes() {
    let tree = scratch();
    std::fs::write(tree.path().join("file"), vec![7; 4 << 20]).unwrap();
    let names = tree.path().join("names");
    std::fs::create_dir(&names).unwrap();
    for number in 0..1000 {
        std::fs::write(names.join(format!("{number}-{}", "n".repeat(200))), "").unwrap();
    }
    let image = Forged::of("32M", tree.path());
    let verbs: [&[&str]; 6] = [
        &["cat", "/file"],
        &["tar", "/"],
        &["find", "/"],
        &["ls", "/names"],
        &["tree", "/"],
        &["du", "-a", "/"],
    ];
    for verb in verbs {
        let (path, options) = verb.split_last().unwrap();
        let path = image.at(path);
        let mut args: Vec<&dyn AsRef<OsStr>> = options.iter().map(|arg| arg as &dyn AsRef<OsStr>).collect();
        args.push(&path);
        let mut child = start(&args);
        // It has begun to write, and there is more than a pipe holds.
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap();
        signal(&child, Signal::TERM);
        let ended = ended(child);
        drop(output);
        assert_eq!(ended.status.code(), Some(11), "{verb:?}");
    }
}

/// What is met in the middle of a change is damage as well, and says so with the code that is promised for it.
#[test]
fn damage_has_its_exit_code_wherever_it_is_met() {
    let tree = scratch();
    std::fs::create_dir(tree.path().join("d")).unwrap();
    for name in ["d/one", "d/two", "three"] {
        std::fs::write(tree.path().join(name), vec![1; 4096]).unwrap();
    }
    let image = Forged::of("16M", tree.path());
    // Blocks that are free: found out when they are to be freed, in the second transaction.
    for name in ["/d/one", "/d/two", "/three"] {
        let ino = image.ino(name);
        image.inode(ino, |inode| inode[176..192].copy_from_slice(&extent(0, 3000, 1)));
    }
    let before = std::fs::read(&image.path).unwrap();
    for (verb, path) in [(&["rm"][..], "/three"), (&["rm", "-r"], "/d"), (&["truncate", "-s", "0"], "/three")]
    {
        std::fs::write(&image.path, &before).unwrap();
        let path = image.at(path);
        let mut args: Vec<&dyn AsRef<OsStr>> = verb.iter().map(|arg| arg as &dyn AsRef<OsStr>).collect();
        args.push(&path);
        let output = ended(start(&args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{verb:?}: {said}");
        assert!(said.contains("damage"), "{verb:?}: {said}");
    }
    uxfs_fails(&[&"rm", &image.at("/d/nothing")], 3, "no such file");
}

/// Names with what a terminal obeys: escapes of seven and of eight bits, and characters that turn the direction.
#[test]
fn names_are_escaped_wherever_they_are_written() {
    let tree = scratch();
    std::fs::write(tree.path().join("f"), "").unwrap();
    std::fs::create_dir(tree.path().join("d")).unwrap();
    let image = Forged::of("16M", tree.path());
    let [root, d, f] = ["/", "/d", "/f"].map(|path| image.ino(path));
    let names: [&[u8]; 5] =
        [b"\x1b[31m", b"raw\x9b31m", "c1\u{9b}31m".as_bytes(), "\u{202e}gpj".as_bytes(), b"a\\b"];
    let entries = names.map(|name| (name, REGULAR, f));
    image.entries(d, root, &entries);
    let obeyed =
        |out: &[u8]| names[..4].iter().any(|name| out.windows(name.len()).any(|window| window == *name));
    for verb in [
        "ls",
        "find",
        "tree",
        "ls --json",
        "find --json",
        "tree --json",
        "ls -l",
        "du -a",
        "du -a --json",
        "rm -rv",
    ] {
        let mut words = verb.split(' ');
        let path = image.at(if verb.starts_with("rm") { "/d/../d" } else { "/d" });
        let mut args: Vec<&dyn AsRef<OsStr>> = Vec::new();
        let words: Vec<&str> = words.by_ref().collect();
        args.extend(words.iter().map(|word| word as &dyn AsRef<OsStr>));
        args.push(&path);
        let output = ended(start(&args));
        let all = [output.stdout, output.stderr].concat();
        assert!(all.len() > 20, "{verb}");
        assert!(!obeyed(&all), "{verb}: {}", String::from_utf8_lossy(&all).escape_debug());
        if verb == "ls" {
            assert!(String::from_utf8_lossy(&all).contains("a\\b\n"), "what is harmless is as it is");
            let raw = uxfs_ok(&[&"ls", &"--raw", &path]);
            assert!(names.iter().all(|name| raw.windows(name.len()).any(|window| window == *name)));
        }
    }
}
