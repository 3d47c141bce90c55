//! `uxfs bench --model`: predictions, with their components, clearly marked as predictions.

use super::table::rate;
use super::{Progress, failure, json_line};
use crate::exit::{Exit, Failure, Result};
use crate::options::Global;
use comfy_table::{CellAlignment, Table, presets};
use std::io::Write;
use uxfs_bench::{Config, Prediction, Quoted, Recorder, Workload};

/// The hidden verb with which the recorder runs this command. It bypasses the command line's parser, which takes longer
/// under a recorder than most of what is recorded.
const RECORD: &str = "bench-record";

/// Runs the recorder's request, if the recorder started this process.
pub fn recorded() -> Option<Result<Exit>> {
    let mut args = std::env::args_os().skip(1);
    let is_recorded = args.next().is_some_and(|verb| verb == RECORD);
    is_recorded.then(|| uxfs_bench::record(args).map(|()| Exit::Ok).map_err(failure))
}

/// Predicts, and prints.
pub fn run(config: &Config, workloads: &[Workload], moved_ns: Option<f64>, global: &Global) -> Result<Exit> {
    let &[workload] = workloads else {
        return Err(Failure::new(Exit::Usage, "--model: name one workload"));
    };
    if moved_ns.is_some_and(|ns| !(0.0..=1e6).contains(&ns)) {
        return Err(Failure::new(Exit::Usage, "--moved-ns: a moved line costs from 0 to 1,000,000 ns"));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Io, format!("bench: where is this program? {error}")))?;
    let recorder = Recorder { program, args: vec![RECORD.into()] };
    let mut progress = Progress::new();
    let predictions = uxfs_bench::predict(config, workload, &recorder, moved_ns, &mut progress);
    progress.clear();
    let predictions = predictions.map_err(failure)?;
    let mut out = std::io::stdout().lock();
    if global.json {
        predictions.iter().try_for_each(|line| json_line(&mut out, line))?;
    } else {
        print(&mut out, &predictions, global.verbose)?;
    }
    out.flush()?;
    Ok(Exit::Ok)
}

/// Prints tables: the predictions, their components, and figures reported for other machines.
fn print(out: &mut impl Write, lines: &[Prediction], verbose: bool) -> Result<()> {
    let Some(first) = lines.first() else { return Ok(()) };
    writeln!(
        out,
        "\n{}: a PREDICTION, not a measurement (operations a second; each thread on a processor of its own, a \
         moved line {:.1} ns)\n{}",
        first.workload,
        first.moved_line_ns,
        predicted(lines)
    )?;
    writeln!(
        out,
        "\nwhat it is made of, for one operation (greedy: where who gave a lock back may take it again first)\n{}",
        parts(lines, verbose)
    )?;
    if lines.iter().any(|line| line.quoted.is_some()) {
        writeln!(
            out,
            "\nheld against figures that were reported of ANOTHER machine and system, with other processors and another \
             speed: of these and of the prediction, how many times as much as with fewer threads (disagrees: one lies more \
             than 1.5 times beyond the other; the model is not fitted to them)\n{}",
            reported(lines)
        )?;
    }
    Ok(())
}

fn name(line: &Prediction) -> String {
    line.locking.iter().fold(line.target.clone(), |name, locking| name + " " + locking)
}

/// A row for each design, a column for each thread count.
fn predicted(lines: &[Prediction]) -> Table {
    let mut threads: Vec<usize> = lines.iter().map(|line| line.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    let counts = threads.iter().map(|&n| if n == 1 { "1 thread".to_owned() } else { n.to_string() });
    table
        .set_header(["".to_owned(), "".to_owned()].into_iter().chain(counts).chain(["last÷best".to_owned()]));
    for row in lines.chunk_by(|a, b| (a.op, name(a)) == (b.op, name(b))) {
        let Some(line) = row.first() else { continue };
        let of = |n: &usize| row.iter().find(|line| line.threads == *n).map(|line| line.ops_per_s);
        let ops: Vec<Option<f64>> = threads.iter().map(of).collect();
        let best = ops.iter().flatten().copied().fold(0.0, f64::max);
        let last = ops.last().copied().flatten().unwrap_or_default();
        let cells = ops.into_iter().map(|ops| ops.map_or_else(String::new, rate));
        let ends = [format!("{:.2}×", last / best.max(1e-9))];
        table.add_row([line.op.to_owned(), name(line)].into_iter().chain(cells).chain(ends));
    }
    align(&mut table, 2..threads.len() + 3);
    table
}

/// A row for each prediction.
fn parts(lines: &[Prediction], verbose: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "",
        "",
        "threads",
        "instructions",
        "alone ns",
        "lines moved",
        "serial ns",
        "predicted",
        "greedy",
        "at most",
        if verbose { "what is serial; what moves" } else { "what is serial" },
    ]);
    for line in lines {
        let mut what = line.serial.clone().unwrap_or_else(|| "nothing".to_owned());
        if verbose {
            line.worst.iter().for_each(|worst| what += &format!("\n{:.2} × {}", worst.moves, worst.line));
        }
        table.add_row([
            line.op.to_owned(),
            name(line),
            line.threads.to_string(),
            format!("{:.0}", line.instructions),
            format!("{:.1}", line.alone_ns),
            format!("{:.2}", line.moved_lines),
            format!("{:.1}", line.serial_ns),
            rate(line.ops_per_s),
            rate(line.greedy_ops_per_s),
            rate(line.limit_ops_per_s),
            what,
        ]);
    }
    align(&mut table, 2..10);
    table
}

/// A row for each reported figure that can be compared.
fn reported(lines: &[Prediction]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "",
        "",
        "threads",
        "reported",
        "as a ratio",
        "predicted",
        "greedy",
        "",
        "what was measured there",
    ]);
    for (line, quoted) in lines.iter().filter_map(|line| line.quoted.as_ref().map(|quoted| (line, quoted))) {
        let base = match quoted.base_threads {
            Some(threads) => format!("to {threads} thread{}", if threads == 1 { "" } else { "s" }),
            None => "to that figure".to_owned(),
        };
        table.add_row([
            line.op.to_owned(),
            name(line),
            line.threads.to_string(),
            rate(quoted.figure),
            format!("{:.2}× {base}", quoted.ratio),
            format!("{:.2}×", quoted.predicted_ratio),
            format!("{:.2}×", quoted.greedy_ratio),
            verdict(quoted).to_owned(),
            format!("{} ({} processors; {})", quoted.source, quoted.processors, quoted.unit),
        ]);
    }
    align(&mut table, 2..7);
    table
}

fn verdict(quoted: &Quoted) -> &'static str {
    match quoted.agrees {
        Some(true) => "agrees",
        Some(false) => "DISAGREES",
        None => "another workload",
    }
}

fn align(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in table.column_iter_mut().skip(columns.start).take(columns.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
