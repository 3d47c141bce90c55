//! `cp` and `tar`: what comes out of an image is what the kernel shows in it.
#![forbid(unsafe_code)]

mod common;

use common::{Image, assert_same, blocks, describe, run, scratch, uxfs, uxfs_fails, uxfs_ok};

#[test]
#[ignore = "needs root and xfsprogs"]
fn cp_gives_the_kernels_tree() {
    let image = Image::filled(&[]);
    let out = scratch();
    uxfs_ok(&[&"cp", &"-a", &image.path, &out.path()]);
    let mount = image.mount(&["ro"]);
    assert_same(mount.dir(), out.path());
    for name in ["ends-in-hole", "ends-in-data", "all-hole", "runs"] {
        let path = out.path().join("sparse").join(name);
        let kernel = blocks(&mount.dir().join("sparse").join(name));
        assert!(blocks(&path) <= kernel, "{name}: holes were filled");
    }
    // Links among what is copied are links to one file.
    use std::os::unix::fs::MetadataExt;
    let ino = |name: &str| out.path().join(name).metadata().unwrap().ino();
    assert_eq!(ino("docs/small.txt"), ino("links/hard-one"));
    assert_eq!(ino("docs/small.txt"), ino("links/hard-two"));
}

/// Inode numbers of one image say nothing of another's.
#[test]
#[ignore = "needs root and xfsprogs"]
fn links_among_several_sources_stay_links() {
    let [one, two, to] = [Image::new(&[]), Image::new(&[]), Image::new(&[])];
    for (image, names) in [(&one, ["a", "b"]), (&two, ["c", "d"])] {
        let host = scratch();
        std::fs::write(host.path().join(names[0]), names[0]).unwrap();
        std::fs::hard_link(host.path().join(names[0]), host.path().join(names[1])).unwrap();
        uxfs_ok(&[&"cp", &"-a", &host.path().join(names[0]), &host.path().join(names[1]), &image.at("/")]);
    }
    uxfs_ok(&[&"cp", &"-a", &one.at("/a"), &two.at("/c"), &two.at("/d"), &one.at("/b"), &to.at("/")]);
    run("xfs_repair", &[&"-n", &"-f", &to.path]);
    let mount = to.mount(&[]);
    for (name, text) in [("a", "a"), ("b", "a"), ("c", "c"), ("d", "c")] {
        let path = mount.dir().join(name);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{name}");
        assert!(describe(&path).contains("nlink=2"), "{name}: {}", describe(&path));
    }
    std::fs::remove_file(mount.dir().join("a")).unwrap();
    std::fs::write(mount.dir().join("d"), "the kernel writes on").unwrap();
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn cp_knows_its_destinations() {
    let image = Image::filled(&[]);
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let kernel = image.mount(&["ro"]);

    uxfs_ok(&[&"cp", &image.at("/docs/small.txt"), &at("named")]);
    assert_eq!(std::fs::read(at("named")).unwrap(), b"a few bytes\n");
    uxfs_ok(&[&"cp", &image.at("/docs/small.txt"), &image.at("/docs/empty"), &out.path()]);
    assert_eq!(std::fs::read(at("small.txt")).unwrap(), b"a few bytes\n");
    assert!(at("empty").exists());
    uxfs_ok(&[&"cp", &"-a", &image.at("/docs"), &at("tree")]);
    assert_eq!(describe(&at("tree")), describe(&kernel.dir().join("docs")));
    // A link is followed without -r, and copied with it.
    uxfs_ok(&[&"cp", &image.at("/links/relative"), &at("followed")]);
    assert!(at("followed").symlink_metadata().unwrap().is_file());
    uxfs_ok(&[&"cp", &"-r", &image.at("/links/dangling"), &at("link")]);
    assert!(at("link").symlink_metadata().unwrap().is_symlink());
    // An existing file is written into, where a link leads as well, unless it is to be replaced.
    std::os::unix::fs::symlink(at("named"), at("through")).unwrap();
    uxfs_ok(&[&"cp", &"--replace", &image.at("/docs/large.bin"), &at("through")]);
    assert_eq!(std::fs::read(at("named")).unwrap(), b"a few bytes\n");
    std::os::unix::fs::symlink(at("named"), at("follow")).unwrap();
    uxfs_ok(&[&"cp", &image.at("/docs/empty"), &at("follow")]);
    assert_eq!(std::fs::read(at("named")).unwrap(), b"");

    uxfs_ok(&[&"cp", &"-a", &"--no-preserve", &image.at("/docs/small.txt"), &at("plain")]);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(at("plain").metadata().unwrap().mode() & 0o7111, 0);
    assert!(common::xattrs(&at("plain")).is_empty());

    uxfs_fails(&[&"cp", &image.at("/docs"), &at("x")], 3, "give -r");
    uxfs_fails(&[&"cp", &image.at("/nope"), &at("x")], 3, "no such file");
    uxfs_fails(&[&"cp", &image.at("/docs"), &image.at("/many"), &at("named")], 2, "not a directory");
    uxfs_fails(&[&"cp", &"--owner", &"1", &image.at("/docs/empty"), &at("x")], 2, "into an image");
    uxfs_fails(&[&"cp", &image.at("/docs/empty"), &at("x/")], 2, "not a directory");
    uxfs_fails(&[&"cp", &"-r", &image.at("/docs"), &at("named")], 2, "not a directory");
    assert!(!at("x").exists());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn gnu_tar_unpacks_the_kernels_tree() {
    for options in [&[][..], &["-b", "size=1024"]] {
        let image = Image::filled(options);
        let out = scratch();
        let archive = image.dir.path().join("archive.tar");
        uxfs_ok(&[&"tar", &image.path, &"-o", &archive]);
        run("tar", &[&"-C", &out.path(), &"--xattrs", &"--xattrs-include=*", &"--acls", &"-xpf", &archive]);
        let mount = image.mount(&["ro"]);
        assert_same(mount.dir(), out.path());
        for name in ["ends-in-hole", "ends-in-data", "all-hole", "runs"] {
            // The host's blocks may be larger than the volume's.
            let path = out.path().join("sparse").join(name);
            assert!(blocks(&path) * 1024 < path.metadata().unwrap().len(), "{name}: holes were filled");
        }
        // Standard output gives the same bytes.
        assert!(uxfs_ok(&[&"tar", &image.path, &"-o", &"-"]) == std::fs::read(&archive).unwrap());
        assert!(uxfs_ok(&[&"tar", &image.path]) == std::fs::read(&archive).unwrap());
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn tar_without_sparse_files_and_attributes_is_plain() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        std::fs::write(mount.dir().join("file"), "text").unwrap();
        let hole = std::fs::File::create(mount.dir().join("hole")).unwrap();
        hole.set_len(100_000).unwrap();
    }
    let out = scratch();
    let archive = image.dir.path().join("archive.tar");
    uxfs_ok(&[&"tar", &"--no-sparse", &"--no-xattrs", &image.path, &"-o", &archive]);
    run("tar", &[&"-C", &out.path(), &"-xf", &archive]);
    assert_eq!(std::fs::read(out.path().join("hole")).unwrap(), vec![0; 100_000]);
    assert_eq!(std::fs::metadata(&archive).unwrap().len() % 10_240, 0);
    let listed = run("tar", &[&"-tf", &archive]);
    assert_eq!(String::from_utf8(listed).unwrap(), "./\n./file\n./hole\n");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_socket_is_copied_and_left_out_of_an_archive() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        // Binding leaves the socket behind.
        drop(std::os::unix::net::UnixListener::bind(mount.dir().join("socket")).unwrap());
        std::fs::write(mount.dir().join("zfile"), "text").unwrap();
    }
    let out = scratch();
    uxfs_ok(&[&"cp", &"-r", &image.path, &out.path()]);
    use std::os::unix::fs::FileTypeExt;
    assert!(out.path().join("socket").symlink_metadata().unwrap().file_type().is_socket());
    let archive = out.path().join("archive.tar");
    let output = uxfs(&[&"tar", &image.path, &"-o", &archive]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("socket"));
    assert_eq!(String::from_utf8(run("tar", &[&"-tf", &archive])).unwrap(), "./\n./zfile\n");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_hostile_image_stays_below_the_destination() {
    // Two entries of one name: a link that leads out, then a directory.
    let image = Image::of_prototype(
        "up d--755 0 0\nUP_AND_AWAY_1 ---644 0 0 $DIR/text\n$\n\
         dir d--755 0 0\ngood ---644 0 0 $DIR/text\nTWICE_NAMED_A l--777 0 0 ../../outside\n\
         TWICE_NAMED_B d--755 0 0\nfile ---644 0 0 $DIR/text\n$\n$",
    );
    image.patch(b"UP_AND_AWAY_1", b"../../escaped");
    image.patch(b"TWICE_NAMED_B", b"TWICE_NAMED_A");
    let top = scratch();
    let (out, outside) = (top.path().join("a/out"), top.path().join("outside"));
    std::fs::create_dir_all(&out).unwrap();
    std::fs::create_dir(&outside).unwrap();
    let output = uxfs(&[&"cp", &"-r", &image.path, &out]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(std::fs::read(out.join("dir/good")).unwrap(), b"text\n");
    let names: Vec<_> =
        std::fs::read_dir(top.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(!top.path().join("a/escaped").exists());
}

#[test]
fn who_names_no_image_is_told_how_one_is_written() {
    let dir = scratch();
    let (small, large) = (dir.path().join("small"), dir.path().join("large"));
    std::fs::write(&small, "few").unwrap();
    std::fs::write(&large, [1; 8192]).unwrap();
    for file in [&small, &large] {
        uxfs_fails(&[&"cp", file, &dir.path().join("copy")], 4, "a file in an image is written IMAGE:/PATH");
    }
    assert!(!dir.path().join("copy").exists());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_replaces_neither_its_image_nor_a_device() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let image = Image::new(&[]);
    std::fs::write(image.mount(&[]).dir().join("volume.img"), "text").unwrap();
    let identity = || image.path.metadata().map(|of| (of.ino(), of.len())).unwrap();
    let before = identity();
    let other = image.dir.path().join("other.img");
    std::fs::hard_link(&image.path, &other).unwrap();
    uxfs_fails(&[&"cp", &image.at("/volume.img"), &image.path], 9, "the image that is read");
    uxfs_fails(&[&"cp", &image.at("/volume.img"), &image.dir.path()], 9, "the image that is read");
    uxfs_fails(&[&"cp", &image.at("/volume.img"), &other], 9, "the image that is read");
    assert_eq!(uxfs(&[&"cp", &"-r", &image.path, &image.dir.path()]).status.code(), Some(1));
    uxfs_fails(&[&"tar", &image.path, &"-o", &image.path], 2, "the image that is read");
    uxfs_fails(&[&"tar", &image.path, &"-o", &other], 2, "the image that is read");
    assert_eq!(identity(), before);
    uxfs_ok(&[&"ls", &image.path]);

    let pipe = image.dir.path().join("pipe");
    run("mkfifo", &[&pipe]);
    let named = scratch();
    run("mkfifo", &[&named.path().join("volume.img")]);
    uxfs_fails(&[&"cp", &image.at("/volume.img"), &named.path()], 6, "a named pipe has the name");
    for pipe in [pipe, named.path().join("volume.img")] {
        assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo());
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_inherits_no_access_control_list() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        std::fs::create_dir(mount.dir().join("dir")).unwrap();
        std::fs::write(mount.dir().join("dir/file"), "text").unwrap();
        run("chmod", &[&"640", &mount.dir().join("dir/file")]);
    }
    let out = scratch();
    run("setfacl", &[&"-m", &"d:u:1234:rwx", &out.path()]);
    uxfs_ok(&[&"cp", &"-rp", &image.at("/dir"), &out.path()]);
    uxfs_ok(&[&"cp", &"-p", &image.at("/dir/file"), &out.path()]);
    for name in ["dir", "dir/file", "file"] {
        let kept = common::xattrs(&out.path().join(name));
        assert!(kept.is_empty(), "{name}: {kept:?}");
    }
    use std::os::unix::fs::MetadataExt;
    assert_eq!(out.path().join("dir/file").metadata().unwrap().mode() & 0o7777, 0o640);
}

/// The kernel says of files in `/proc` that they have no bytes, and of those in `/sys` that they have a page.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_copied_in_is_what_a_reader_gets() {
    let image = Image::new(&[]);
    let sys = std::path::Path::new("/sys/kernel/mm/transparent_hugepage");
    let enabled = sys.join("enabled");
    for from in ["/proc/filesystems".as_ref(), enabled.as_path()] {
        let content = std::fs::read(from).unwrap();
        assert_ne!(content.len() as u64, from.metadata().unwrap().len());
        for options in ["--no-preserve", "-r", "-a"] {
            uxfs_ok(&[&"cp", &options, &"--replace", &from, &image.at("/copy")]);
            assert_eq!(uxfs_ok(&[&"cat", &image.at("/copy")]), content, "{options} {}", from.display());
        }
    }
    let content = std::fs::read(&enabled).unwrap();
    uxfs_ok(&[&"cp", &"-r", &sys, &image.at("/tree")]);
    assert_eq!(uxfs_ok(&[&"cat", &image.at("/tree/enabled")]), content);
    let made = image.dir.path().join("made.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &"--from", &sys, &made, &"64M"]);
    let mut copy = made.into_os_string();
    copy.push(":/enabled");
    assert_eq!(uxfs_ok(&[&"cat", &copy]), content);
}
