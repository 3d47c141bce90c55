//! Directories with many names of one hash, which have no order among them: what is done to all of them does not take
//! the square of their number.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, uxfs, uxfs_fails, uxfs_ok};

/// What is said twice, 32 bytes apart, cancels itself out in the hash.
fn name(nth: usize) -> String {
    format!("{nth:032}{nth:032}")
}

/// A directory of so many names of one hash and one file, made by the kernel.
fn crowded(names: usize) -> Image {
    let image = Image::new(&[]);
    let mount = image.mount(&[]);
    let dir = mount.dir().join("crowd");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(mount.dir().join("file"), "text").unwrap();
    for nth in 0..names {
        std::fs::hard_link(mount.dir().join("file"), dir.join(name(nth))).unwrap();
    }
    drop(mount);
    image
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_crowded_directory_is_removed_and_gets_no_more_names() {
    let image = crowded(2500);
    let before = std::fs::read(&image.path).unwrap();
    let new = image.at(&format!("/crowd/{}", name(2500)));
    let why = "has 2048 names of this one's hash already";
    uxfs_fails(&[&"mkdir", &new], 10, why);
    uxfs_fails(&[&"ln", &image.at("/file"), &new], 10, why);
    uxfs_fails(&[&"mv", &image.at("/file"), &new], 10, why);
    assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");
    // Names of other hashes are added, and one of this hash is found and replaced.
    uxfs_ok(&[&"mkdir", &image.at("/crowd/other")]);
    uxfs_ok(&[&"rm", &image.at(&format!("/crowd/{}", name(1711)))]);
    uxfs_ok(&[&"rm", &"-r", &image.at("/crowd")]);
    run("xfs_repair", &[&"-n", &image.path]);
    let mount = image.mount(&[]);
    let left: Vec<_> =
        std::fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"]);
}

/// Where all stay, each would be compared with those that stay: it ends.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_stays_of_a_crowded_directory_is_not_tried_for_ever() {
    let image = crowded(3000);
    run("chattr", &[&"+i", &image.mount(&[]).dir().join("file")]);
    let output = uxfs(&[&"rm", &"-r", &image.at("/crowd")]);
    assert!(!output.status.success());
    run("xfs_repair", &[&"-n", &image.path]);
    assert_eq!(std::fs::read_dir(image.mount(&[]).dir().join("crowd")).unwrap().count(), 3000);
}
