//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Counts bytes; hidden if standard error is no terminal.
pub fn bytes() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    // The template is a constant; if it were wrong, the plain style would do.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bytes} {binary_bytes_per_sec} {wide_msg}") {
        bar.set_style(style);
    }
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

/// Shows the current file.
pub fn name(bar: &ProgressBar, path: &[u8]) {
    if !bar.is_hidden() {
        bar.set_message(uxfs::printable(path));
    }
}
