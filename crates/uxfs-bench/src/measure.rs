//! Measurements: lines of a report, and how several rounds become one line.

use crate::target::Label;
use crate::work::{Tally, WorkOutcome};
use serde::Serialize;
use std::time::Duration;

/// One line of a report: an object of JSON Lines, a cell of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// `overwrite`, `randrw`, `rangelock`.
    pub workload: &'static str,
    /// What was measured: `uxfs`, `raw`, `memcpy`, `kernel-xfs`, …
    pub target: String,
    /// Where the bytes lie.
    pub device: String,
    /// The locking, where it can be chosen.
    pub locking: Option<String>,
    /// `read`, `write`; for locks, what is held.
    pub op: &'static str,
    /// Threads.
    pub threads: usize,
    /// Requests that each thread keeps in flight.
    pub depth: u32,
    /// Bytes that one operation moves; none for locks.
    pub bytes: Option<u64>,
    /// Operations a second, all threads together.
    pub ops_per_s: f64,
    /// The same in MiB/s; none for locks.
    pub mib_per_s: Option<f64>,
    /// Half of the requests take at most this, in microseconds; none where single ones are not timed.
    pub p50_us: Option<f64>,
    /// 99 of 100 requests take at most this.
    pub p99_us: Option<f64>,
    /// 999 of 1,000 requests take at most this.
    pub p999_us: Option<f64>,
    /// The figures are medians over this many rounds.
    pub median_of: usize,
}

/// The result of one round for one line of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) ops_per_s: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
}

impl Sample {
    /// One way of a run.
    pub(crate) fn new(outcome: &WorkOutcome, tally: &Tally) -> Self {
        Self::of(tally, outcome.wall)
    }

    /// What was done in `wall`.
    pub(crate) fn of(tally: &Tally, wall: Duration) -> Self {
        let us = |quantile| {
            (!tally.latency.is_empty()).then(|| tally.latency.value_at_quantile(quantile) as f64 / 1000.0)
        };
        let ops_per_s = tally.ops as f64 / wall.as_secs_f64().max(1e-9);
        Self { ops_per_s, p50_us: us(0.5), p99_us: us(0.99), p999_us: us(0.999) }
    }
}

/// The identity of a line of a report, and what its rounds gave.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) workload: &'static str,
    pub(crate) label: Label,
    pub(crate) op: &'static str,
    pub(crate) threads: usize,
    pub(crate) depth: u32,
    /// Bytes that one operation moves; 0 for locks.
    pub(crate) bytes: u64,
    pub(crate) samples: Vec<Sample>,
}

impl Series {
    /// The medians, each of its own column.
    pub(crate) fn measurement(&self) -> Measurement {
        let of =
            |column: fn(&Sample) -> Option<f64>| median(self.samples.iter().filter_map(column).collect());
        let ops_per_s = of(|sample| Some(sample.ops_per_s)).unwrap_or_default();
        Measurement {
            workload: self.workload,
            target: self.label.target.clone(),
            device: self.label.device.clone(),
            locking: self.label.locking.clone(),
            op: self.op,
            threads: self.threads,
            depth: self.depth,
            bytes: (self.bytes > 0).then_some(self.bytes),
            ops_per_s,
            mib_per_s: (self.bytes > 0).then(|| ops_per_s * self.bytes as f64 / f64::from(1 << 20)),
            p50_us: of(|sample| sample.p50_us),
            p99_us: of(|sample| sample.p99_us),
            p999_us: of(|sample| sample.p999_us),
            median_of: self.samples.len(),
        }
    }
}

/// The median; the mean of the middle two of an even number.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// All the lines of a report while its rounds are running.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    series: Vec<Series>,
}

impl Collector {
    /// Adds a round's sample to its line, which is made if it is the first.
    pub(crate) fn add(&mut self, line: Series, sample: Sample) {
        let found = self.series.iter_mut().find(|other| {
            (other.workload, other.op, other.threads, other.depth)
                == (line.workload, line.op, line.threads, line.depth)
                && other.label == line.label
        });
        match found {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series { samples: vec![sample], ..line }),
        }
    }

    /// The lines, in the order of their first samples.
    pub(crate) fn finish(&self) -> Vec<Measurement> {
        self.series.iter().map(Series::measurement).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_do_not_follow_outliers() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9e9, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn rounds_of_one_line_become_one_object() {
        let label = Label { target: "uxfs".into(), device: "memory".into(), locking: Some("range".into()) };
        let line = |threads| Series {
            workload: "overwrite",
            label: label.clone(),
            op: "read",
            threads,
            depth: 1,
            bytes: 4096,
            samples: vec![],
        };
        let mut collector = Collector::default();
        for ops_per_s in [256.0, 512.0, 1024.0] {
            collector.add(line(1), Sample { ops_per_s, p50_us: Some(1.0), ..Sample::default() });
            collector.add(line(2), Sample { ops_per_s: 2.0 * ops_per_s, ..Sample::default() });
        }
        let lines = collector.finish();
        assert_eq!(lines.len(), 2);
        let json = serde_json::to_value(&lines[0]).expect("plain data");
        let expected = serde_json::json!({
            "workload": "overwrite", "target": "uxfs", "device": "memory", "locking": "range", "op": "read",
            "threads": 1, "depth": 1, "bytes": 4096, "ops_per_s": 512.0, "mib_per_s": 2.0, "p50_us": 1.0, "p99_us": null,
            "p999_us": null, "median_of": 3,
        });
        assert_eq!(json, expected);
        assert_eq!(lines[1].ops_per_s, 1024.0);
    }
}
