//! What `check` says of a volume whose log ends in the midst of chains of deferred work: nothing, as recovery does the rest.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::new_file;
use fileio::testing::part_by_part;
use std::sync::Arc;
use uxfs::{MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

const BYTES: u64 = 96 << 20;
const BLOCK: usize = 1024;
const LINKS: usize = 60;
const BLOCKS: u64 = 80;
const ENOUGH: u64 = 20;

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let options = MkfsOptions::new().small(true).block_size(BLOCK as u32);
    mkfs_device(Arc::clone(&device), &options.features(MkfsFeatures::of_kernel("6.1").unwrap()), true)
        .unwrap();
    device
}

#[test]
fn what_recovery_will_finish_is_no_damage() {
    let device = made();
    let options = OpenOptions::new().writable(true);
    let volume = Volume::open_device(Arc::clone(&device), &options).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    for nth in 0..LINKS {
        let target = format!("{nth}/{}", "a-long-target/".repeat(70));
        root.create_symlink(format!("link{nth}").as_bytes(), target.as_bytes(), &NewNode::default()).unwrap();
    }
    let file = new_file(&volume, "file");
    file.write_at(&vec![1; BLOCKS as usize * BLOCK], 0).unwrap();
    let clone = new_file(&volume, "clone");
    file.clone_range(0, &clone, 0, BLOCKS * BLOCK as u64).unwrap();
    drop((root, file, clone));
    volume.close().unwrap();
    drop(volume);

    let before = copy(&*device);
    let recorder = Arc::new(Recorder::new(device));
    let volume = Volume::open_device(recorder.clone(), &options).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    let file = volume.open_file("file").unwrap();
    // Checkpoints end between any two parts.
    part_by_part(|| {
        for nth in 0..LINKS.max(BLOCKS as usize / 2) {
            if nth < LINKS {
                root.remove_file(format!("link{nth}").as_bytes()).unwrap();
            }
            if 2 * (nth as u64) < BLOCKS {
                file.write_at(&[2; BLOCK], 2 * nth as u64 * BLOCK as u64).unwrap();
            }
        }
    });
    drop((root, file));
    let recording = recorder.recording();
    drop(volume);

    let rewind = Arc::new(Rewind::new(before));
    let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
    let mut unfinished = 0_u64;
    for write in recording.writes().iter().filter(|write| write.durability == Durability::Fua) {
        power.advance(write.completed.unwrap() + 1).unwrap();
        power.make(|_| Fate::Applied).unwrap();
        let report = check_device(rewind.clone(), &OpenOptions::new()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        unfinished += u64::from(!report.owners_known);
        rewind.rewind().unwrap();
    }
    assert!(unfinished >= ENOUGH, "only {unfinished} checkpoints end in the midst of something");
}
