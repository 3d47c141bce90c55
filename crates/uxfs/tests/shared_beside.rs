//! Each change of a file beside each other change of it, at each point where one can come between, in each state that its blocks
//! can be in for who asks whether they are shared.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{closes_well, new_file};
use fileio::testing::{CHANGE, STAGED, at_each};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use uxfs::{ExchangeOptions, File, MkfsFeatures, MkfsOptions, OpenOptions, Result, Volume, mkfs_device};

const BLOCK: u64 = 4096;
/// What changes write to blocks 1 to 6, of 16.
static WRITTEN: [u8; 6 * BLOCK as usize] = [8; 6 * BLOCK as usize];
/// How often the other change is made at most.
const STEPS: u64 = 11;

#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// They were shared before the file was emptied, which took the flag for that off, and came back as free ones.
    CameBack,
    /// The other owner gave them up.
    GivenUp,
    /// The same, and it is in no log yet.
    LatelyGivenUp,
    Shared,
}

/// The file that is changed, one that has its blocks too or had them, and a third.
struct Site {
    device: Arc<dyn BlockDevice>,
    volume: Volume,
    one: File,
    other: File,
    third: File,
}

fn content() -> Vec<u8> {
    (0..16 * BLOCK).map(|at| (at / BLOCK) as u8 + 100).collect()
}

impl Site {
    fn new(blocks: Blocks) -> Self {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
        let features = MkfsFeatures::of_kernel("6.18").expect("known");
        mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features).small(true), true)
            .expect("a volume");
        let volume =
            Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
        let [one, other, third] = ["one", "other", "third"].map(|name| new_file(&volume, name));
        let site = Self { device, volume, one, other, third };
        site.one.write_at(&content(), 0).expect("written");
        site.third.write_at(&vec![77; 24 * BLOCK as usize], 0).expect("written");
        site.one.clone_range(0, &site.other, 0, 0).expect("a clone");
        site.prepare(blocks).expect("prepared");
        site
    }

    fn prepare(&self, blocks: Blocks) -> Result<()> {
        match blocks {
            Blocks::CameBack => {
                self.one.set_len(0)?;
                self.other.set_len(0)?;
                self.volume.sync()?;
                self.one.write_at(&content(), 0)
            }
            Blocks::GivenUp => {
                self.one.overwrite_at(&content()[15 * BLOCK as usize..], 15 * BLOCK)?;
                self.other.set_len(0)?;
                self.volume.sync()
            }
            Blocks::LatelyGivenUp => {
                self.volume.sync()?;
                self.other.set_len(0)
            }
            Blocks::Shared => Ok(()),
        }
    }

    /// What `change` did not change is as it was, and so are other files, except for what was to become of them.
    fn judge(self, what: &str, blocks: Blocks) {
        let (found, old, block) = (all(&self.one), content(), BLOCK as usize);
        assert!(found[..block] == old[..block], "{what}: before it");
        assert!(found[7 * block..9 * block] == old[7 * block..9 * block], "{what}: behind it");
        assert!(!all(&self.third).contains(&8), "{what}: in a third file");
        if matches!(blocks, Blocks::Shared) {
            assert!(all(&self.other) == old, "{what}: the other owner has something else");
        }
        drop((self.one, self.other, self.third));
        closes_well(&self.device, self.volume);
    }
}

fn all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

type Change = fn(&File) -> Result<()>;
type Step = fn(&Volume, [&File; 2], u64) -> Result<()>;

const CHANGES: [(&str, Change); 7] = [
    ("an overwrite", |file| file.overwrite_at(&WRITTEN, BLOCK)),
    ("a write of parts of blocks", |file| file.write_at(&WRITTEN[..5 * BLOCK as usize], BLOCK + 700)),
    ("a write to the cache", |file| {
        let buffered = file.buffered();
        buffered.write_at(&WRITTEN, BLOCK)?;
        buffered.sync()
    }),
    ("writes of parts of blocks to the cache", |file| {
        let buffered = file.buffered();
        buffered.write_at(&WRITTEN[..3000], BLOCK + 700)?;
        buffered.write_at(&WRITTEN[..3000], 4 * BLOCK + 700)?;
        buffered.sync()
    }),
    ("zeroes", |file| file.zero_range(BLOCK + 10..6 * BLOCK + 10, true)),
    ("a hole", |file| file.punch_hole(BLOCK + 10..6 * BLOCK + 10)),
    ("a write to the cache, over a hole too", |file| {
        file.punch_hole(2 * BLOCK..4 * BLOCK)?;
        let buffered = file.buffered();
        buffered.write_at(&WRITTEN, BLOCK)?;
        buffered.sync()
    }),
];

const STEPS_BESIDE: [(&str, Step); 8] = [
    ("a clone of it", |_, [one, third], nth| one.clone_range(10 * BLOCK, third, nth % 20 * BLOCK, 2 * BLOCK)),
    ("a clone to it", |_, [one, third], nth| third.clone_range(nth % 4 * BLOCK, one, 12 * BLOCK, 2 * BLOCK)),
    ("a clone within it", |_, [one, _], nth| one.clone_range(9 * BLOCK, one, (11 + nth % 3) * BLOCK, BLOCK)),
    ("an exchange", |_, [one, third], nth| {
        let (at, how) = (nth % 4 * BLOCK, ExchangeOptions::new());
        one.exchange_range(10 * BLOCK, third, at, Some(2 * BLOCK), how)
    }),
    ("a handle of it", |volume, _, _| volume.open_file("/one").map(drop)),
    ("a sync and a look at its extents", |volume, [one, _], _| {
        volume.sync()?;
        one.extents().try_for_each(|extent| extent.map(|_| ()))
    }),
    ("a write to it", |_, [one, _], nth| one.write_at(&[nth as u8 + 20; 2000], 14 * BLOCK + 5)),
    ("blocks that others give up", |volume, [_, third], nth| {
        third.clone_range(0, third, 22 * BLOCK, BLOCK)?;
        third.punch_hole(nth % 22 * BLOCK..(nth % 22 + 1) * BLOCK)?;
        volume.sync()
    }),
];

/// The change is made, and nothing else happens to the file, nor to others.
#[test]
fn a_change_is_made_whatever_comes_between() {
    let mut steps = 0;
    for blocks in [Blocks::CameBack, Blocks::GivenUp, Blocks::LatelyGivenUp, Blocks::Shared] {
        for (change_is, change) in CHANGES {
            for (step_is, step) in STEPS_BESIDE {
                for place in [CHANGE, STAGED] {
                    let what = format!("{change_is}, {blocks:?}; beside it, where {place}: {step_is}");
                    let site = Site::new(blocks);
                    let nth = Rc::new(Cell::new(0));
                    let (volume, one, third) = (site.volume.clone(), site.one.clone(), site.third.clone());
                    let (count, whole) = (Rc::clone(&nth), what.clone());
                    let beside = move || {
                        count.set(count.get() + 1);
                        if count.get() <= STEPS {
                            let done = step(&volume, [&one, &third], count.get());
                            done.unwrap_or_else(|error| panic!("{whole}: {error}"));
                        }
                    };
                    at_each(place, beside, || change(&site.one))
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    steps += nth.get();
                    site.judge(&what, blocks);
                }
            }
        }
    }
    assert!(steps > 500, "{steps} steps came between");
}
