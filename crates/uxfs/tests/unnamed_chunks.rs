//! Files without a name in chunks of inodes that were made for them, and a crash: each is still on a list of its group, so
//! that recovery frees it.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "this uses its part")]
mod common;

use blockdev::{BlockDevice, Fate, MemoryDevice, PowerCuts, Recorder, Rewind};
use common::devices::copy;
use common::files::image_of;
use common::{mounted, repair_finds_nothing};
use std::sync::Arc;
use uxfs::{File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

const BYTES: u64 = 64 << 20;
/// More than some chunks.
const FILES: usize = 64 * 5;

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.1").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features).small(true), true)
        .expect("a volume");
    device
}

/// What is left of a volume with open files without a name, of which all is in the log and nothing in its place.
fn crashed() -> Arc<dyn BlockDevice> {
    let device = made();
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let made = |_| root.create_unnamed(&NewNode::default()).expect("made");
    let files: Vec<File> = (0..FILES).map(made).collect();
    volume.sync().expect("synced");
    let left = copy(&*device);
    drop((files, root));
    left
}

#[test]
fn files_without_a_name_in_new_chunks_are_freed_behind_a_crash() {
    let device = crashed();
    let volume =
        Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("recovered");
    volume.close().expect("closed");
    drop(volume);
    let report = check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_kernel_frees_files_without_a_name_in_new_chunks() {
    let (_dir, image) = image_of(&*crashed());
    mounted(&image, |_| ());
    repair_finds_nothing(&image);
}

/// Files come without a name, get one, lose it, and are let go of, over chunks that come and go; then the power is cut.
#[test]
fn every_cut_leaves_all_files_without_a_name_on_a_list() {
    let seed = std::env::var("UXFS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let mut rng = fastrand::Rng::with_seed(seed);
    let base = made();
    let stage = Arc::new(Rewind::new(copy(&*base)));
    let recorder = Arc::new(Recorder::new(base));
    let volume = Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let (mut open, mut named): (Vec<(File, Option<String>)>, u32) = (Vec::new(), 0);
    let mut shrinks = false;
    for step in 0..3000 {
        shrinks = if open.len() > 500 {
            true
        } else if open.len() < 20 {
            false
        } else {
            shrinks
        };
        let weight = if shrinks { 3 } else { 8 };
        match rng.u32(..10) {
            what if what < weight => {
                let file = root.create_unnamed(&NewNode::default()).expect("made");
                if rng.u8(..) < 60 {
                    file.write_at(&[7; 5000], 0).expect("written");
                }
                open.push((file, None));
            }
            _ if open.is_empty() => {}
            what => {
                let nth = rng.usize(..open.len());
                match (what % 3, &open[nth].1) {
                    (0, None) => {
                        named += 1;
                        let name = format!("file {named}");
                        root.link(name.as_bytes(), open[nth].0.node()).expect("linked");
                        open[nth].1 = Some(name);
                    }
                    // Nobody names it again: it stays open without, for a while, or goes.
                    (1, Some(name)) if !name.is_empty() => {
                        root.remove_file(name.as_bytes()).expect("removed");
                        open[nth].1 = Some(String::new());
                    }
                    _ => drop(open.swap_remove(nth)),
                }
            }
        }
        match rng.u32(..60) {
            0 => volume.sync().expect("synced"),
            1 if step % 3 == 0 => volume.pass_idle_time().expect("idle"),
            _ => {}
        }
    }
    drop((open, root));
    drop(volume);
    let recording = recorder.recording();
    let mut cuts = PowerCuts::new(&recording, Arc::clone(&stage));
    let all = recording.cuts();
    let every = (all.len() / 60).max(1);
    println!("{} cuts", all.len());
    for (nth, cut) in all.into_iter().enumerate().filter(|(nth, _)| nth % every == 0) {
        cuts.advance(cut).expect("written");
        for part in 0..3 {
            println!("cut {nth}, part {part}, seed {seed}");
            cuts.make(|_| match if part == 2 { rng.u32(..2) } else { part } {
                0 => Fate::Dropped,
                _ => Fate::Applied,
            })
            .expect("written");
            let volume =
                Volume::open_device(stage.clone(), &OpenOptions::new().writable(true)).expect("recovered");
            volume.close().expect("closed");
            drop(volume);
            let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
            assert!(report.is_clean(), "cut {nth}: {:?}", report.findings);
            stage.rewind().expect("taken back");
        }
    }
}
