//! Any test that opens its volume by [`open`] can be rerun under power cuts: `UXFS_CRASH=SEED cargo test`.
//!
//! Then all that the volume writes is recorded. When the test lets go of it, the power is cut at every flush: with what
//! was not flushed lost, kept, and in part, by the seed. uxfs recovers each image, and it and `xfs_repair -n` must find
//! nothing. What must be there, a test says itself: here, no volume may be damaged.

use super::repair_finds_nothing;
use blockdev::{Fate, FileOptions, PowerCuts, Recorder, Rewind, WriteRecord};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uxfs::{OpenOptions, Volume, check_device};

/// A volume that is open for writing.
#[derive(Debug)]
pub struct Opened {
    volume: Volume,
    cuts: Option<Cuts>,
}

/// Opens a volume for writing.
pub fn open(image: &Path) -> Opened {
    let cuts = std::env::var("UXFS_CRASH").ok().map(|seed| Cuts::new(image, &seed));
    let options = OpenOptions::new().writable(true);
    let volume = match &cuts {
        None => Volume::open(image, &options),
        // An odd seed has small writes gathered.
        Some(cuts) => Volume::open_device(cuts.recorder.clone(), &options.gather_writes(cuts.seed % 2 == 1)),
    };
    Opened { volume: volume.expect("a clean volume"), cuts }
}

impl Deref for Opened {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(cuts) = self.cuts.take().filter(|_| !std::thread::panicking()) {
            cuts.all();
        }
    }
}

#[derive(Debug)]
struct Cuts {
    seed: u64,
    recorder: Arc<Recorder>,
    /// The volume as it was at first.
    base: PathBuf,
}

impl Cuts {
    fn new(image: &Path, seed: &str) -> Self {
        let seed = seed.parse().expect("UXFS_CRASH is a number");
        let base = image.with_extension("base");
        super::run(Command::new("cp").arg("--sparse=always").args([image, &base]));
        let device = FileOptions::new().write(true).open(image).expect("an image");
        Self { seed, recorder: Arc::new(Recorder::new(Arc::new(device))), base }
    }

    fn all(&self) {
        let recording = self.recorder.recording();
        let device = FileOptions::in_memory().write(true).open(&self.base).expect("the volume as it was");
        let stage = Arc::new(Rewind::new(Arc::new(device)));
        let mut cuts = PowerCuts::new(&recording, Arc::clone(&stage));
        let mut rng = fastrand::Rng::with_seed(self.seed);
        for (nth, cut) in recording.cuts().into_iter().enumerate() {
            cuts.advance(cut).expect("written");
            let chosen = |part: &str, choose: &mut dyn FnMut(&WriteRecord) -> Fate| {
                cuts.make(choose).expect("written");
                let seed = self.seed;
                recovers(&stage, &self.base, &format!("cut at flush {nth}, in doubt {part}, seed {seed}"));
                stage.rewind().expect("taken back");
            };
            chosen("and lost", &mut |_| Fate::Dropped);
            chosen("and kept", &mut |_| Fate::Applied);
            chosen("and kept in part", &mut |write| match rng.u32(..3) {
                0 => Fate::Dropped,
                1 => Fate::Applied,
                _ => Fate::Torn((0..write.data.len() / 512).map(|_| rng.bool()).collect()),
            });
        }
    }
}

fn recovers(stage: &Arc<Rewind>, image: &Path, what: &str) {
    // Shown if the test fails.
    println!("{what}");
    let volume = Volume::open_device(stage.clone(), &OpenOptions::new().writable(true)).expect("recovered");
    volume.close().expect("closed");
    drop(volume);
    let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    repair_finds_nothing(image);
}
