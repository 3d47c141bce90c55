//! `uxfs bench trees`: this command's verbs on whole trees, beside the kernel's tools.

use super::{Progress, failure, json_line};
use crate::exit::{Exit, Failure, Result};
use crate::options::Global;
use comfy_table::{CellAlignment, Table, presets};
use std::io::Write;
use std::path::Path;
use uxfs_bench::{Config, TreeTimes};

/// Measures, and prints.
pub fn run(config: &Config, source: Option<&Path>, global: &Global) -> Result<Exit> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Io, format!("bench: where is this program? {error}")))?;
    let mut progress = Progress::new();
    let times = uxfs_bench::trees(config, &program, source, &mut progress).map_err(failure);
    progress.clear();
    let times = times?;
    let mut out = std::io::stdout().lock();
    if global.json {
        times.iter().try_for_each(|line| json_line(&mut out, line))?;
    } else if let Some(first) = times.first() {
        writeln!(
            out,
            "\ntrees: {} names, images in {}; seconds, medians of {} (what makes it durable included: of uxfs the close, \
             of the kernel mount and unmount)\n{}",
            first.names,
            first.device,
            first.median_of,
            table(&times)
        )?;
    }
    out.flush()?;
    Ok(Exit::Ok)
}

/// A row for each step.
fn table(times: &[TreeTimes]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["", "uxfs", "kernel", "uxfs ÷ kernel", "most memory of uxfs"]);
    for line in times {
        table.add_row([
            line.op.to_owned(),
            format!("{:.2}", line.uxfs_s),
            format!("{:.2}", line.kernel_s),
            format!("{:.2}", line.ratio),
            format!("{:.0} MiB", line.peak_mib),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
