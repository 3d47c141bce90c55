//! A progress bar for runs, if standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use uxfs_bench::Observer;

/// Shows the progress of a run. `indicatif` shows nothing if standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
    started: bool,
}

impl Progress {
    /// A bar that shows nothing yet.
    pub fn new() -> Self {
        Self { bar: ProgressBar::hidden(), started: false }
    }

    /// Removes the bar from the screen.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn start(&mut self, workload: &str, steps: u64) {
        self.bar.finish_and_clear();
        self.bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg:36} {eta:>5}");
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_prefix(workload.to_owned());
        self.started = false;
    }

    fn step(&mut self, what: &str) {
        if self.started {
            self.bar.inc(1);
        }
        self.started = true;
        self.bar.set_message(what.to_owned());
        // No ticker during measurements: its thread would take time from the measured ones.
        self.bar.tick();
    }

    fn note(&mut self, what: &str) {
        self.bar.finish_and_clear();
        self.bar = ProgressBar::new_spinner();
        self.bar.set_message(what.to_owned());
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }
}
