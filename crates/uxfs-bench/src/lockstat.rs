//! Lock classes and their counts, worst first.
//!
//! Classes count as long as the process lives; a [`Tracker`] tells apart which target made them count, since
//! targets are measured one after the other.

use ::lockstat::{COMMIT_CLASS, ClassCounts};
use serde::Serialize;

/// What was counted of one class of locks.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    /// The workload that it was counted in.
    pub workload: &'static str,
    /// Name of the target.
    pub target: String,
    /// Name of the class.
    pub class: &'static str,
    /// Acquisitions in shared mode.
    pub shared: u64,
    /// Acquisitions in exclusive mode.
    pub exclusive: u64,
    /// Of these, acquisitions of a lock that several threads used in the measurement.
    pub between: u64,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Time that was waited, in milliseconds, all threads together.
    pub wait_ms: f64,
    /// Time that it was held, in milliseconds, all holders together.
    pub hold_ms: f64,
    /// Exclusive acquisitions for each transaction that was committed; none where there were no transactions.
    pub per_commit: Option<f64>,
    /// As `per_commit`, of `between`.
    pub between_per_commit: Option<f64>,
}

/// What has been counted, by target and class.
#[derive(Debug)]
pub(crate) struct Tracker {
    seen: Vec<(&'static str, ClassCounts)>,
    sums: Vec<(String, &'static str, ClassCounts)>,
}

impl Tracker {
    /// Takes note of what was counted before.
    pub(crate) fn start() -> Self {
        Self { seen: ::lockstat::report(), sums: Vec::new() }
    }

    /// Ignores what was counted since the last call, and who used which lock.
    pub(crate) fn skip(&mut self) {
        ::lockstat::forget_users();
        self.seen = ::lockstat::report();
    }

    /// Assigns what was counted since the last call to a target.
    pub(crate) fn attribute(&mut self, target: &str) {
        let now = ::lockstat::report();
        for &(class, stats) in &now {
            let before = self
                .seen
                .iter()
                .find(|(name, _)| *name == class)
                .map_or_else(Default::default, |seen| seen.1);
            let delta = minus(stats, before);
            if delta == ClassCounts::default() {
                continue;
            }
            match self.sums.iter_mut().find(|(name, of, _)| name == target && *of == class) {
                Some((.., sum)) => *sum = plus(*sum, delta),
                None => self.sums.push((target.to_owned(), class, delta)),
            }
        }
        self.seen = now;
    }

    /// The classes, worst first.
    pub(crate) fn finish(self, workload: &'static str) -> Vec<ClassReport> {
        let commits = |target: &str| {
            let sum = self.sums.iter().find(|(of, class, _)| of == target && *class == COMMIT_CLASS);
            sum.map_or(0, |(.., stats)| stats.shared)
        };
        let mut classes: Vec<ClassReport> = self
            .sums
            .iter()
            .map(|(target, class, stats)| {
                ClassReport::new(workload, target.clone(), class, *stats).per_commit(commits(target))
            })
            .collect();
        ClassReport::worst_first(&mut classes);
        classes
    }
}

/// Applies `f` to each counter of two snapshots.
fn zip(a: ClassCounts, b: ClassCounts, f: fn(u64, u64) -> u64) -> ClassCounts {
    ClassCounts {
        shared: f(a.shared, b.shared),
        exclusive: f(a.exclusive, b.exclusive),
        between: f(a.between, b.between),
        contended: f(a.contended, b.contended),
        wait_ns: f(a.wait_ns, b.wait_ns),
        hold_ns: f(a.hold_ns, b.hold_ns),
    }
}

fn minus(a: ClassCounts, b: ClassCounts) -> ClassCounts {
    zip(a, b, u64::saturating_sub)
}

fn plus(a: ClassCounts, b: ClassCounts) -> ClassCounts {
    zip(a, b, u64::saturating_add)
}

impl ClassReport {
    /// A class and its sums.
    fn new(workload: &'static str, target: String, class: &'static str, stats: ClassCounts) -> Self {
        let ms = |ns: u64| ns as f64 / 1e6;
        Self {
            workload,
            target,
            class,
            shared: stats.shared,
            exclusive: stats.exclusive,
            between: stats.between,
            contended: stats.contended,
            wait_ms: ms(stats.wait_ns),
            hold_ms: ms(stats.hold_ns),
            per_commit: None,
            between_per_commit: None,
        }
    }

    /// The same with its figures for each of this many transactions.
    fn per_commit(self, commits: u64) -> Self {
        let each = |count: u64| (commits > 0).then(|| count as f64 / commits as f64);
        Self { per_commit: each(self.exclusive), between_per_commit: each(self.between), ..self }
    }

    /// Puts the class that was waited for longest first; where none was, the one that was held longest.
    fn worst_first(classes: &mut [Self]) {
        classes.sort_by(|a, b| {
            b.wait_ms
                .total_cmp(&a.wait_ms)
                .then(b.contended.cmp(&a.contended))
                .then(b.hold_ms.total_cmp(&a.hold_ms))
        });
    }
}

/// By target, and of each first what threads took turns at.
pub(crate) fn shared_first(mut classes: Vec<ClassReport>) -> Vec<ClassReport> {
    let order: Vec<String> = classes.iter().fold(Vec::new(), |mut seen, class| {
        if !seen.contains(&class.target) {
            seen.push(class.target.clone());
        }
        seen
    });
    classes.sort_by_key(|class| {
        (order.iter().position(|target| *target == class.target), std::cmp::Reverse(class.between))
    });
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_that_was_waited_for_comes_first() {
        let class = |name: &'static str, wait_ns, hold_ns| {
            let stats = ClassCounts { wait_ns, hold_ns, ..ClassCounts::default() };
            ClassReport::new("overwrite", "uxfs".into(), name, stats)
        };
        let mut classes = [class("held", 0, 9), class("waited", 5, 1), class("idle", 0, 0)];
        ClassReport::worst_first(&mut classes);
        assert_eq!(classes.map(|class| class.class), ["waited", "held", "idle"]);
    }
}
