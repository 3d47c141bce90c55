//! Lock classes and what was counted of each, worst first.

use rangelock::StatsSnapshot;
use serde::Serialize;

/// What was counted of one class of locks.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    /// The workload that it was counted in.
    pub workload: &'static str,
    /// Name of the class.
    pub class: String,
    /// Acquisitions in shared mode.
    pub shared: u64,
    /// Acquisitions in exclusive mode.
    pub exclusive: u64,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Time that was waited, in milliseconds, all threads together.
    pub wait_ms: f64,
    /// Time that it was held, in milliseconds, all holders together.
    pub hold_ms: f64,
}

impl ClassReport {
    /// A class and its sums.
    pub(crate) fn new(workload: &'static str, class: String, stats: StatsSnapshot) -> Self {
        let ms = |ns: u64| ns as f64 / 1e6;
        Self {
            workload,
            class,
            shared: stats.shared,
            exclusive: stats.exclusive,
            contended: stats.contended,
            wait_ms: ms(stats.wait_ns),
            hold_ms: ms(stats.hold_ns),
        }
    }

    /// Puts the class that was waited for longest first; where none was, the one that was held longest.
    pub fn worst_first(classes: &mut [Self]) {
        classes.sort_by(|a, b| {
            b.wait_ms
                .total_cmp(&a.wait_ms)
                .then(b.contended.cmp(&a.contended))
                .then(b.hold_ms.total_cmp(&a.hold_ms))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_that_was_waited_for_comes_first() {
        let class = |name: &str, wait_ns, hold_ns| {
            ClassReport::new(
                "overwrite",
                name.into(),
                StatsSnapshot { wait_ns, hold_ns, ..Default::default() },
            )
        };
        let mut classes = [class("held", 0, 9), class("waited", 5, 1), class("idle", 0, 0)];
        ClassReport::worst_first(&mut classes);
        assert_eq!(classes.map(|class| class.class), ["waited", "held", "idle"]);
    }
}
