//! `OpenOptions::changes_in_memory`: what is changed through a volume stays in memory, and what changes an image by its path
//! refuses it, with not a byte changed.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use uxfs::{ErrorKind, MkfsOptions, NewUuid, OpenOptions, Upgrade, Volume};

const SIZE: u64 = 64 << 20;

fn made(dir: &Path) -> PathBuf {
    let image = dir.join("image");
    std::fs::File::create(&image).expect("a file").set_len(SIZE).expect("longer");
    uxfs::mkfs(&image, &MkfsOptions::new().small(true)).expect("a volume");
    image
}

fn in_memory() -> OpenOptions {
    OpenOptions::new().writable(true).changes_in_memory(true)
}

#[test]
fn changes_stay_in_memory() {
    let dir = tempfile::tempdir().expect("a place");
    let image = made(dir.path());
    let before = std::fs::read(&image).expect("read");
    let volume = Volume::open(&image, &in_memory()).expect("it opens");
    volume.set_label(b"tried").expect("set");
    volume.open_dir("/").expect("a root").create_dir(b"d", &Default::default()).expect("made");
    volume.sync().expect("synced");
    assert_eq!(volume.info().expect("known").label, b"tried");
    volume.close().expect("closed");
    assert!(std::fs::read(&image).expect("read") == before);
}

#[test]
fn what_changes_an_image_by_its_path_refuses_it() {
    let dir = tempfile::tempdir().expect("a place");
    let image = made(dir.path());
    let before = std::fs::read(&image).expect("read");
    let refused = [
        uxfs::set_uuid(&image, NewUuid::Random, &in_memory()).map(drop),
        uxfs::upgrade(&image, &[Upgrade::Bigtime], &in_memory()).map(drop),
        uxfs::grow(&image, Some(2 * SIZE), &in_memory()).map(drop),
        uxfs::grow(&image, None, &in_memory()).map(drop),
    ];
    for refused in refused {
        let error = refused.expect_err("it would change the image");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("in memory"), "{error}");
    }
    assert!(std::fs::read(&image).expect("read") == before);
}
