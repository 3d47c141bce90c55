//! Journal handles, as the workload `handles` has them, for a recording: those that change nothing.
//!
//! Whole transactions are not in it: they need threads of the journal's own beside them, which a recording by turns cannot
//! tell from the thread whose turn it is.

use super::pen::{Bare, Pen, introduce, take_turns};
use super::{Scene, Subject, no_subject};
use crate::config::{Config, DesignLists, Workload};
use crate::error::{Error, Result};
use crate::fsmark::named;
use crate::handles::{Handles, Op, VOLUME_BYTES, cycle};
use crate::setup::mkfs_options;
use crate::target::Label;
use blockdev::{BlockDevice, FileDevice, MemoryOptions};
use std::path::Path;
use std::sync::Arc;
use uxfs::{CilLocks, Designs, HandleCounts, Reservations, Vectors};
use xfs::volume::{OpenOptions, Volume};

/// What is recorded.
const OPS: [Op; 3] = [Op::StartStop, Op::Extend, Op::Roll];
/// Pairs in a cycle.
const PAIRS: usize = 50;

/// The journals and operations that the model can be asked for.
pub(crate) fn scene(config: &Config) -> Result<Scene<'_>> {
    let mut subjects = Vec::new();
    for designs in config.designs(Workload::Handles) {
        // Handles that change nothing are never committed.
        let today = Designs::default();
        let (handles, reservation) = (today.handles, today.reservation);
        if designs != today && designs == (Designs { handles, reservation, ..designs }) {
            continue;
        }
        let (handles, device) = Handles::make(config, designs)?;
        let handles = Arc::new(handles);
        let label = Label { target: "uxfs".to_owned(), device, locking: named(designs) };
        for op in OPS {
            let handles = Arc::clone(&handles);
            subjects.push(Subject {
                label: label.clone(),
                op: op.name(),
                depth: 1,
                each: 1,
                key: key(designs, op),
                slices: super::SLICES,
                alone: Box::new(move || Ok(handles.measure(op, 1, config.min_time)?.ops_per_s)),
            });
        }
    }
    Ok(Scene { subjects, instruction_ns: None, image: Some(make_image) })
}

fn key(designs: Designs, op: Op) -> String {
    format!("{designs} {}", op.name()).trim_start().to_owned()
}

/// A volume of uxfs's own that is not there yet.
fn make_image(config: &Config, path: &Path) -> Result<()> {
    let made = std::fs::File::create(path).and_then(|file| file.set_len(VOLUME_BYTES));
    made.map_err(Error::host(format!("cannot make {}", path.display())))?;
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_writable(path)?);
    ::uxfs::mkfs_device(device, &mkfs_options(config, 4)?, true).map_err(Error::volume)
}

/// Runs the recorded operations.
pub(crate) fn record(wanted: &str, image: &Path, threads: usize) -> Result<()> {
    let every = DesignLists {
        handles: HandleCounts::ALL.to_vec(),
        reservation: Reservations::ALL.to_vec(),
        cil: CilLocks::ALL.to_vec(),
        vectors: Vectors::ALL.to_vec(),
    };
    let designs = Config { designs: every, ..Config::default() }.designs(Workload::Handles);
    let mut all = designs.into_iter().flat_map(|designs| OPS.map(|op| (designs, op)));
    let (designs, op) =
        all.find(|&(designs, op)| key(designs, op) == wanted).ok_or_else(|| no_subject(wanted))?;
    let options = OpenOptions { writable: true, designs, ..OpenOptions::default() };
    let device = MemoryOptions::new().copy_of(image)?;
    let volume = Volume::open(Arc::new(device), &options).map_err(Error::volume)?;
    introduce()?;
    let journal = &**volume.journal().map_err(Error::volume)?;
    let one = cycle(op);
    let pairs = |pen: &Pen| (0..PAIRS).try_for_each(|_| pen.op(|| one(journal)).map_err(Error::volume));
    take_turns(&Bare(pairs), threads)?;
    volume.close().map_err(Error::volume)
}
