//! The workload `dbench`: clients of a file server, each of which works through errands in a directory of its own.
//!
//! What an errand asks for has the proportions of what the program dbench reports of a client: to 100 opens about 50
//! writes, 160 reads, 110 looks at a file, 35 listings of a directory, 20 removals, 7 flushes and 4 renames. Here an
//! errand
//!
//! - makes a folder, and in it twenty files, one after the other, of which it first finds that they are not there;
//! - writes each in two pieces, one after the other, and every other one over in a part; pieces have from 520 bytes to
//!   64 KiB, most of them no whole blocks; every third file is flushed (`fsync`) before it is closed;
//! - between two new files opens four files that are there, reads two pieces of each, looks at their size, lists the
//!   folder up to twice, and gives every fifth file another name;
//! - removes all files, and then the folder.
//!
//! Opening counts as an operation, closing does not. Errands are the same for all clients, all targets and all rounds
//! (they follow from the seed), and clients begin no new one when the time is over.
//!
//! Journals of older designs can be measured beside today's ([`Designs`](::uxfs::Designs)); all take turns, round by round.
//!
//! Invariant: what a look, a listing and a read give is compared with what the errand knows must be there; the loop
//! allocates and locks nothing itself while the clock runs.

mod client;
mod errand;

use crate::config::{Config, Workload};
use crate::error::{Error, Result};
use crate::fs::{Directory, FileSystem, Scene, Site, Target, count};
use crate::fsmark::together;
use crate::lockstat::{Tracker, shared_first};
use crate::measure::{Collector, Sample, Series};
use crate::suite::{Observer, Report};
use crate::work::Tally;
use client::Client;
use errand::Errand;
use std::time::Duration;

/// The name of the workload in reports.
pub(crate) const NAME: &str = "dbench";

/// Bytes of the volumes for each client: what an errand writes, and what was freed but is not yet free.
const BYTES_A_CLIENT: u64 = 64 << 20;

/// One operation in so many is timed. It divides no errand, so that each step of it has its turn.
const TIMED: u32 = 7;

/// Measures one number of clients once; gives what operations they did, and in what time. `begin` is called just
/// before the first, `end` after the last.
fn measure<F: FileSystem>(
    site: &Site<F>,
    errand: &Errand,
    (clients, limit): (usize, Duration),
    begin: impl FnOnce(),
    end: impl FnOnce(),
) -> Result<(Tally, Duration)> {
    let root = site.fs.root()?;
    let names: Vec<String> = (0..clients).map(|client| format!("client-{client}")).collect();
    let dirs: Result<Vec<F::Dir>> = names.iter().map(|name| root.make_dir(name.as_bytes())).collect();
    let mut clients: Vec<Client<F::Dir>> =
        dirs?.into_iter().enumerate().map(|(client, dir)| Client::new(client, dir)).collect();
    site.fs.sync()?;
    begin();
    let timed = together(clients.iter_mut(), TIMED, |client, timer| client.work(errand, limit, timer));
    end();
    let timed = timed.map_err(|error| match error {
        Error::Result(what) => Error::Result(format!("{}: {what}", site.label)),
        other => other,
    })?;
    for client in clients {
        match count(client.dir())? {
            0 => {}
            left => return Err(Error::Result(format!("{}: {left} names are left", site.label))),
        }
    }
    names.iter().try_for_each(|name| root.remove_dir(name.as_bytes()))?;
    site.fs.sync()?;
    Ok(timed)
}

/// Measures all numbers of clients on all targets, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer, report: &mut Report) -> Result<()> {
    let most = config.clients.iter().copied().max().unwrap_or(1);
    let scene = Scene::set(config, Workload::Dbench, most as u64 * BYTES_A_CLIENT, most, observer)?;
    observer.start(NAME, (config.rounds * config.clients.len() * scene.targets.len()) as u64);
    let errand = Errand::new(config.seed);
    let mut collector = Collector::default();
    let mut locks = config.lockstat.then(Tracker::start);
    for _ in 0..config.rounds {
        for &clients in &config.clients {
            for target in &scene.targets {
                let name = format!("{} × {clients}", target.label());
                observer.step(&name);
                let timed = one(target, &errand, (clients, config.min_time), locks.as_mut(), &name)?;
                add(&mut collector, target, &errand, clients, timed);
            }
        }
    }
    report.measurements.extend(collector.finish());
    report.locks.extend(locks.map(|locks| shared_first(locks.finish(NAME))).unwrap_or_default());
    scene.finish(observer)
}

/// One measurement, on whatever kind of target.
fn one(
    target: &Target,
    errand: &Errand,
    plan: (usize, Duration),
    locks: Option<&mut Tracker>,
    name: &str,
) -> Result<(Tally, Duration)> {
    let locks = std::cell::RefCell::new(locks);
    let begin = || {
        if let Some(locks) = locks.borrow_mut().as_mut() {
            locks.skip();
        }
    };
    let end = || {
        if let Some(locks) = locks.borrow_mut().as_mut() {
            locks.attribute(name);
        }
    };
    match target {
        Target::Uxfs(site) => measure(site, errand, plan, begin, end),
        Target::Sys(site) => measure(site, errand, plan, begin, end),
    }
}

/// A line of operations, and one of MiB that they moved.
fn add(
    collector: &mut Collector,
    target: &Target,
    errand: &Errand,
    clients: usize,
    (tally, wall): (Tally, Duration),
) {
    let mix = Sample::of(&tally, wall);
    let mib_an_op = errand.bytes() as f64 / errand.ops() as f64 / f64::from(1 << 20);
    let mib = Sample { ops_per_s: mix.ops_per_s * mib_an_op, ..Sample::default() };
    let mean = (errand.bytes() + errand.ops() / 2) / errand.ops();
    for (op, bytes, sample) in [("mix", mean, mix), ("MiB", 1 << 20, mib)] {
        let line = Series {
            workload: NAME,
            label: target.label().clone(),
            op,
            threads: clients,
            depth: 1,
            bytes,
            samples: Vec::new(),
        };
        collector.add(line, sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{SysFs, UxfsFs};

    #[test]
    fn each_step_has_its_turn_to_be_timed() {
        for seed in 0..100 {
            assert!(!Errand::new(seed).ops().is_multiple_of(TIMED.into()), "seed {seed}");
        }
    }

    fn works<F: FileSystem>(site: &Site<F>) {
        let errand = Errand::new(7);
        let (mut begun, mut ended) = (false, false);
        let (tally, wall) =
            measure(site, &errand, (3, Duration::ZERO), || begun = true, || ended = true).expect("measured");
        // An errand each, as the time was over at once.
        assert_eq!(tally.ops, 3 * errand.ops(), "{}", site.label);
        assert_eq!(tally.latency.len(), 3 * errand.ops().div_ceil(TIMED.into()), "{}", site.label);
        assert!(wall > Duration::ZERO && begun && ended);
        assert_eq!(count(&site.fs.root().expect("a root")).expect("listed"), 0);
    }

    #[test]
    fn clients_leave_nothing_on_either_target() {
        let dir = tempfile::tempdir().expect("a directory");
        let site = SysFs::in_dir(dir.path(), "").expect("a target");
        works(&site);
        site.finish().expect("it goes");
        let site =
            UxfsFs::make(&Config::default(), 1 << 30, 4, ::uxfs::Designs::default()).expect("a volume");
        works(&site);
        site.finish().expect("it closes");
    }
}
