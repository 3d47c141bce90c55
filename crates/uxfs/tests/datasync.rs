//! What `sync_data` and handles that sync data leave behind a power cut where what changed of the file is neither its map nor
//! its size: capabilities and names. A kernel keeps all of it (6.18, `O_DSYNC` and `fdatasync` on XFS).
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fate, Means, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::new_file;
use std::sync::Arc;
use uxfs::{
    File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, SetXattr, Syncing, Volume, mkfs_device,
};

const BYTES: u64 = 64 << 20;
const CAPABILITIES: &[u8] = b"security.capability";
const SOME: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

type Write = fn(&File);

/// The ways to have a write durable, and whether the device has durable writes.
const WAYS: [(&str, bool, Write); 3] = [
    ("a durable write", true, |file| write(&file.syncing(Syncing::Data))),
    ("a write and a flush", false, |file| write(&file.syncing(Syncing::Data))),
    ("sync_data", false, |file| {
        write(file);
        file.sync_data().expect("synced");
    }),
];

fn write(file: &File) {
    file.write_at(&[2; 4096], 0).expect("written");
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opens")
}

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"))
}

/// The volume that is there when the power fails as `work` returns, and all that was in doubt is lost.
fn cut(has_fua: bool, prepare: impl FnOnce(&Volume), work: impl FnOnce(&Volume)) -> Volume {
    let device = memory();
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    let options = MkfsOptions::new().small(true).features(features);
    mkfs_device(Arc::clone(&device), &options, true).expect("made");
    let volume = open(Arc::clone(&device));
    prepare(&volume);
    volume.close().expect("closed");
    drop(volume);
    let base = copy(&*device);
    let recorder = Arc::new(Recorder::new(Means { fua: has_fua, write_cache: true }.of(device)));
    let volume = open(recorder.clone());
    work(&volume);
    let (moment, recording) = (recorder.moment(), recorder.recording());
    drop(volume);
    let stage = Arc::new(Rewind::new(base));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    power.advance(moment).expect("written");
    power.make(|_| Fate::Dropped).expect("written");
    open(stage)
}

fn first_byte(file: &File) -> u8 {
    let mut byte = [0];
    file.read_at(&mut byte, 0).expect("read");
    byte[0]
}

/// The content was another's, and had the capabilities that were given to the old one.
#[test]
fn a_program_that_was_written_to_has_no_capabilities_behind_a_power_cut() {
    for (how, has_fua, write) in WAYS {
        let prepare = |volume: &Volume| {
            let file = new_file(volume, "program");
            file.write_at(&[1; 16384], 0).expect("written");
            file.node().set_xattr(CAPABILITIES, &SOME, SetXattr::Either).expect("given");
        };
        let volume = cut(has_fua, prepare, |volume| {
            let file = volume.open_file("program").expect("there");
            // So the map is in the log, and nothing of it changes behind this.
            file.sync_data().expect("synced");
            write(&file);
        });
        let file = volume.open_file("program").expect("there");
        assert_eq!(first_byte(&file), 2, "{how}: the data are durable");
        assert_eq!(file.node().xattr(CAPABILITIES).expect("read"), None, "{how}");
    }
}

/// Recovery freed it, with all that had been synced twice.
#[test]
fn a_file_that_got_its_first_name_before_it_was_synced_is_there() {
    for (how, has_fua, write) in WAYS {
        let volume = cut(
            has_fua,
            |_| (),
            |volume| {
                let root = volume.root().and_then(|root| root.as_dir()).expect("a root");
                let file = root.create_unnamed(&NewNode::default()).expect("made");
                file.write_at(&[7; 16384], 0).expect("written");
                file.sync_data().expect("synced");
                root.link(b"named", file.node()).expect("linked");
                write(&file);
            },
        );
        let file = volume.open_file("named").unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!((first_byte(&file), file.size()), (2, 16384), "{how}");
    }
}

/// A new version is written beside the old one and synced, takes its name, and is synced once more.
#[test]
fn a_file_that_was_renamed_before_it_was_synced_has_its_name() {
    for (how, has_fua, write) in WAYS {
        let prepare = |volume: &Volume| new_file(volume, "config").write_at(&[1; 4096], 0).expect("written");
        let volume = cut(has_fua, prepare, |volume| {
            let root = volume.root().and_then(|root| root.as_dir()).expect("a root");
            let file = new_file(volume, "config.new");
            file.write_at(&[3; 4096], 0).expect("written");
            file.sync_data().expect("synced");
            root.rename(b"config.new", &root, b"config", Rename::Replace).expect("renamed");
            write(&file);
        });
        assert_eq!(first_byte(&volume.open_file("config").expect("there")), 2, "{how}");
    }
}
