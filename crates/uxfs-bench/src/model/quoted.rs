//! Figures reported for other machines when kernels got these lockings, to compare with predictions.
//!
//! Invariant: nothing here has a part in a prediction. Figures are given as they were reported, and how many times as much
//! they are as with the fewest threads is compared, since another machine has another speed.

use super::Prediction;
use serde::Serialize;

/// If a reported ratio differs from the prediction by more than this factor, the model does not explain it.
const TOLERANCE: f64 = 1.5;

/// Pages that all threads together went over in what was reported of `overwrite` in seconds.
const PAGES: f64 = 262_144.0;

/// A figure that was reported of another machine, beside what is predicted.
#[derive(Clone, Debug, Serialize)]
pub struct Quoted {
    /// What was measured, and on what.
    pub source: &'static str,
    /// Processors of that machine.
    pub processors: usize,
    /// The figure.
    pub figure: f64,
    /// What it counts.
    pub unit: &'static str,
    /// Threads of the figure that ratios are to; none where there is one figure alone, and ratios are to that.
    pub base_threads: Option<usize>,
    /// How many times as much the figure is as that one.
    pub ratio: f64,
    /// The same of the predictions.
    pub predicted_ratio: f64,
    /// The same if a thread that releases a lock may take it again at once.
    pub greedy_ratio: f64,
    /// Whether the two agree; none if another workload was measured, of which this is a part.
    pub agrees: Option<bool>,
}

/// Figures of one design.
struct Series {
    workload: &'static str,
    op: &'static str,
    locking: Option<&'static str>,
    source: &'static str,
    processors: usize,
    unit: &'static str,
    /// Threads, and the figure.
    figures: &'static [(usize, f64)],
    /// Whether the workload is the one that is predicted.
    is_same: bool,
}

const OVERWRITE: Series = Series {
    workload: "overwrite",
    op: "read",
    locking: Some("shared"),
    source: "XFS, RAM disk, VM, direct reads",
    processors: 8,
    unit: "operations a second",
    figures: &[(1, PAGES / 0.88), (2, PAGES / 0.54), (4, PAGES / 0.31), (8, PAGES / 0.27)],
    is_same: true,
};
const DIRECT: Series = Series {
    workload: "randrw",
    op: "mixed",
    locking: Some("shared"),
    source: "XFS, direct, depth 128, rwsem",
    processors: 16,
    unit: "operations a second, each way",
    figures: &[(1, 78e3), (2, 131e3), (4, 267e3), (8, 372e3), (16, 315e3)],
    is_same: true,
};
const BUFFERED: Series = Series {
    workload: "randrw-buffered",
    locking: Some("exclusive"),
    source: "XFS, buffered, rwsem",
    figures: &[(1, 57e3), (2, 61e3), (4, 61e3), (8, 55e3), (16, 15e3)],
    ..DIRECT
};
const PAIRS: Series = Series {
    workload: "rangelock",
    op: "all-held",
    locking: Some("btree"),
    source: "user space, 100 ranges a thread, B-tree under a mutex",
    unit: "pairs a second",
    figures: &[(1, 5.24e6), (2, 1.01e6), (4, 0.99e6), (8, 0.73e6), (16, 0.65e6)],
    ..DIRECT
};
const DBENCH: Series = Series {
    workload: "handles",
    op: "start/stop",
    locking: Some("handles=locked"),
    source: "dbench, of which handles are a part, two global locks a handle",
    processors: 8,
    unit: "MB/s",
    figures: &[(1, 411.0), (2, 714.0), (4, 1113.0), (8, 806.0)],
    is_same: false,
};

/// Where threads were more than processors there is nothing to compare: the model has a processor for each.
const REPORTED: &[Series] = &[
    OVERWRITE,
    // Reads take the lock of the whole file shared in both.
    Series { locking: Some("exclusive"), ..OVERWRITE },
    Series {
        op: "write",
        locking: Some("exclusive"),
        source: "XFS, RAM disk, VM, direct writes before: exclusive",
        figures: &[(1, PAGES / 0.85), (2, PAGES / 1.20), (4, PAGES / 1.23), (8, PAGES / 1.40)],
        ..OVERWRITE
    },
    Series {
        op: "write",
        source: "XFS, RAM disk, VM, direct writes after: shared",
        figures: &[(1, PAGES / 0.93), (2, PAGES / 0.58), (4, PAGES / 0.32), (8, PAGES / 0.27)],
        ..OVERWRITE
    },
    DIRECT,
    Series {
        locking: Some("interval-tree"),
        source: "XFS, direct, depth 128, interval tree",
        figures: &[(1, 75e3), (2, 123e3), (4, 183e3), (8, 177e3), (16, 135e3)],
        ..DIRECT
    },
    Series {
        locking: Some("btree"),
        source: "XFS, direct, depth 128, B-tree lock",
        figures: &[(1, 74e3), (2, 134e3), (4, 246e3), (8, 306e3), (16, 240e3)],
        ..DIRECT
    },
    BUFFERED,
    Series {
        locking: Some("interval-tree"),
        source: "XFS, buffered, interval tree",
        figures: &[(1, 64e3), (2, 111e3), (4, 228e3), (8, 195e3), (16, 40e3)],
        ..BUFFERED
    },
    PAIRS,
    Series {
        op: "shared, one-held",
        locking: Some("shared"),
        source: "one file's rwsem, about",
        processors: 32,
        figures: &[(32, 1.6e6)],
        ..PAIRS
    },
    DBENCH,
    Series {
        locking: None,
        source: "dbench, of which handles are a part, atomics and VFS scaling",
        figures: &[(1, 408.0), (2, 745.0), (4, 1266.0), (8, 1263.0)],
        ..DBENCH
    },
];

impl Series {
    fn is_of(&self, line: &Prediction) -> bool {
        // The queues that were measured were as deep as those that are predicted unasked.
        let depth = if self.workload == DIRECT.workload { 128 } else { 1 };
        (self.workload, self.op, self.locking, depth)
            == (line.workload, line.op, line.locking.as_deref(), line.depth)
    }

    fn figure(&self, threads: usize) -> Option<f64> {
        self.figures.iter().find(|&&(of, _)| of == threads).map(|&(_, figure)| figure)
    }

    /// Adds the reported figures to each prediction.
    fn hold_against(&self, lines: &mut [Prediction]) {
        let mut of: Vec<(f64, &mut Prediction)> = lines
            .iter_mut()
            .filter(|line| self.is_of(line))
            .filter_map(|line| Some((self.figure(line.threads)?, line)))
            .collect();
        of.sort_by_key(|(_, line)| line.threads);
        let lone = self.figures.len() == 1;
        let Some((figure, line)) = of.first() else { return };
        let (base, threads) = ((*figure, line.ops_per_s, line.greedy_ops_per_s), line.threads);
        for (figure, line) in of.into_iter().skip(usize::from(!lone)) {
            let (ratio, predicted_ratio, greedy_ratio) = if lone {
                (1.0, line.ops_per_s / figure, line.greedy_ops_per_s / figure)
            } else {
                (figure / base.0, line.ops_per_s / base.1, line.greedy_ops_per_s / base.2)
            };
            line.quoted = Some(Quoted {
                source: self.source,
                processors: self.processors,
                figure,
                unit: self.unit,
                base_threads: (!lone).then_some(threads),
                ratio,
                predicted_ratio,
                greedy_ratio,
                agrees: self.is_same.then(|| agree(ratio, predicted_ratio, greedy_ratio)),
            });
        }
    }
}

/// Whether a reported ratio lies about where the two predictions do, or between them.
fn agree(reported: f64, fair: f64, greedy: f64) -> bool {
    (fair.min(greedy) / TOLERANCE..=fair.max(greedy) * TOLERANCE).contains(&reported)
}

/// Adds the reported figures to the prediction.
pub(super) fn hold_against(lines: &mut [Prediction]) {
    REPORTED.iter().for_each(|series| series.hold_against(lines));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Workload;
    use crate::fsmark::named;
    use crate::handles::Op;
    use crate::locks::CASES;
    use crate::work;
    use uxfs::{Designs, HandleCounts, Locking};

    fn line(threads: usize, ops_per_s: f64, greedy_ops_per_s: f64) -> Prediction {
        Prediction {
            predicted: true,
            workload: "overwrite",
            target: "uxfs".to_owned(),
            device: "memory".to_owned(),
            locking: Some("exclusive".to_owned()),
            op: "write",
            threads,
            depth: 1,
            ops_per_s,
            greedy_ops_per_s,
            limit_ops_per_s: 1e9,
            alone_ns: 100.0,
            instructions: 300.0,
            moved_lines: 1.0,
            moved_line_ns: 50.0,
            serial_ns: 10.0,
            serial: None,
            worst: Vec::new(),
            quoted: None,
        }
    }

    #[test]
    fn what_was_reported_stands_beside_the_prediction_of_the_same() {
        let mut lines = [line(8, 1.2e6, 1.4e6), line(1, 2e6, 2e6), line(16, 1e6, 1e6), line(3, 1e6, 1e6)];
        hold_against(&mut lines);
        let [eight, one, sixteen, three] = &lines;
        // All ratios are to one thread; there were eight processors, and three threads were not measured.
        assert!(one.quoted.is_none() && sixteen.quoted.is_none() && three.quoted.is_none());
        let quoted = eight.quoted.as_ref().expect("eight were measured");
        assert_eq!((quoted.processors, quoted.base_threads, quoted.agrees), (8, Some(1), Some(true)));
        assert!((quoted.ratio - 0.85 / 1.40).abs() < 1e-9 && (quoted.figure * 1.40 - PAGES).abs() < 1e-6);
        assert!((quoted.predicted_ratio - 0.6).abs() < 1e-9 && (quoted.greedy_ratio - 0.7).abs() < 1e-9);
    }

    #[test]
    fn what_does_not_fit_is_not_said_to() {
        let mut lines = [line(1, 2e6, 2e6), line(8, 16e6, 16e6)];
        hold_against(&mut lines);
        assert_eq!(lines[1].quoted.as_ref().expect("measured").agrees, Some(false));
        for (reported, fair, greedy, expected) in [
            (1.0, 1.0, 1.0, true),
            (0.5, 0.1, 0.9, true),
            (0.5, 0.9, 0.1, true),
            (0.6, 1.0, 1.0, false),
            (1.6, 1.0, 1.0, false),
        ] {
            assert_eq!(agree(reported, fair, greedy), expected, "{reported} {fair} {greedy}");
        }
    }

    #[test]
    fn one_figure_alone_is_compared_itself_and_another_workload_is_not_judged() {
        let pairs = |threads| Prediction {
            workload: "rangelock",
            op: "shared, one-held",
            locking: Some("shared".to_owned()),
            ..line(threads, 16e6, 32e6)
        };
        let handles = |threads| Prediction {
            workload: "handles",
            op: "start/stop",
            locking: None,
            ..line(threads, 1e6 * threads as f64, 1e6 * threads as f64)
        };
        let mut lines = [pairs(1), pairs(32), handles(1), handles(8)];
        hold_against(&mut lines);
        let [one, many, _, eight] = lines.map(|line| line.quoted);
        assert!(one.is_none());
        let many = many.expect("32 were measured");
        assert_eq!((many.base_threads, many.predicted_ratio, many.agrees), (None, 10.0, Some(false)));
        assert_eq!(eight.expect("eight were measured").agrees, None);
    }

    #[test]
    fn figures_are_of_what_there_is_a_model_of() {
        let older_handles = named(Designs { handles: HandleCounts::Locked, ..Designs::default() });
        for series in REPORTED {
            let modelled = Workload::MODELLED.iter().any(|workload| workload.name() == series.workload);
            let is_design = series.locking.is_none_or(|locking| {
                locking.parse::<Locking>().is_ok() || Some(locking) == older_handles.as_deref()
            });
            let is_op = match series.workload {
                "handles" => series.op == Op::StartStop.name(),
                "rangelock" => CASES.iter().any(|case| case.op == series.op),
                _ => {
                    [work::Op::Read, work::Op::Write, work::Op::Mixed].iter().any(|op| op.name() == series.op)
                }
            };
            assert!(modelled && is_design && is_op, "{}", series.source);
        }
    }

    /// Ratios need a first figure, and nobody has more threads than processors.
    #[test]
    fn figures_are_in_order_and_of_a_processor_each() {
        for series in REPORTED {
            assert!(series.figures.is_sorted_by(|a, b| a.0 < b.0), "{}", series.source);
            assert!(series.figures.iter().all(|&(threads, _)| threads <= series.processors));
        }
    }
}
