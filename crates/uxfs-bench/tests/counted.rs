//! Locks that are counted for a page are counted behind all rounds that are measured. The only test of its process, as locks
//! that count do so for as long as the process lives.
#![forbid(unsafe_code)]

use std::time::Duration;
use uxfs_bench::{Config, Observer, Workload, run};

/// Remembers what ran before locks counted, and what since.
#[derive(Default)]
struct Steps {
    uncounted: Vec<String>,
    counted: Vec<String>,
}

impl Observer for Steps {
    fn start(&mut self, _workload: &str, _steps: u64) {}

    fn step(&mut self, what: &str) {
        let steps = if lockstat::is_enabled() { &mut self.counted } else { &mut self.uncounted };
        steps.push(what.to_owned());
    }

    fn note(&mut self, _what: &str) {}
}

#[test]
fn locks_are_counted_behind_what_is_measured() {
    let config = Config {
        threads: vec![1, 2],
        clients: vec![1, 2],
        osync_threads: vec![1, 2],
        flush_latencies: vec![Duration::ZERO],
        size: 4 << 20,
        pages: 256,
        files: 50,
        rounds: 2,
        min_time: Duration::from_millis(1),
        count_locks: true,
        ..Config::default()
    };
    use Workload::{Dbench, FsMark, Handles, OSync, Overwrite, RangeLock};
    let workloads = [Overwrite, OSync, FsMark, RangeLock, Handles, Dbench];
    let mut steps = Steps::default();
    let report = run(&config, &workloads, &mut steps).expect("it runs");
    assert!(report.locks.is_empty());
    // All rounds come first, and all that is measured is theirs.
    assert!(report.measurements.iter().all(|line| line.median_of == 2), "{:?}", report.measurements);
    let count = |steps: &[String], what: &str| steps.iter().filter(|step| *step == what).count();
    for (what, times) in [
        ("uxfs range write × 2", 1),
        // Of two workloads.
        ("uxfs × 2", 2),
        ("uxfs cil=single-lock × 2", 1),
        ("uxfs handles=locked × 2", 1),
        ("uxfs start/stop × 2", 1),
    ] {
        assert_eq!(count(&steps.counted, what), times, "{what}: {:?}", steps.counted);
        assert_eq!(count(&steps.uncounted, what), 2 * times, "{what}: {:?}", steps.uncounted);
    }
    assert!(!steps.counted.is_empty() && steps.counted.iter().all(|step| !step.ends_with("× 1")));
    for workload in workloads {
        let found: Vec<_> = report.counted.iter().filter(|class| class.workload == workload.name()).collect();
        assert_eq!(found.is_empty(), workload == RangeLock, "{workload:?}");
        // What was held as counting began has been given back at least.
        let taken =
            |class: &&&uxfs_bench::ClassReport| class.shared + class.exclusive > 0 || class.hold_ms > 0.0;
        assert_eq!(found.iter().filter(taken).count(), found.len(), "{found:?}");
    }
    // Older designs have locks of theirs.
    let between = |target: &str| {
        let of = |class: &&uxfs_bench::ClassReport| class.target == target && class.class == "handles";
        report.counted.iter().find(of).map_or(0, |class| class.between)
    };
    assert!(between("uxfs handles=locked start/stop × 2") > 0);
    assert_eq!(between("uxfs start/stop × 2"), 0);
}
