//! Measurements as tables: a column for each thread count, a row for each target, and the ratios that matter.

use crate::exit::Result;
use comfy_table::{CellAlignment, Table, presets};
use std::io::Write;
use uxfs_bench::{ClassReport, Measurement};

/// The lockings and the way to flush that are compared with all others, if they were measured.
const OURS: [&str; 2] = ["range", "shared-flush"];
/// Our row if there is no choice of locking.
const UXFS: &str = "uxfs";

/// Prints a table for each workload, queue depth and modelled device.
pub fn print_measurements(out: &mut impl Write, lines: &[Measurement], verbose: bool) -> Result<()> {
    for (workload, depth, model) in distinct(lines.iter().map(|line| key(lines, line))) {
        let of_table: Vec<&Measurement> =
            lines.iter().filter(|line| key(lines, line) == (workload, depth, model)).collect();
        let others = || lines.iter().any(|line| line.workload == workload && modelled(line).is_some());
        let model = match model {
            Some(model) => format!("; {model}"),
            None if others() => "; flush as each device has it".to_owned(),
            None => String::new(),
        };
        let bytes = of_table.iter().find_map(|line| line.bytes).unwrap_or(0);
        writeln!(out, "\n{}", title(&format!("{}{model}", subject(workload, depth, bytes)), &of_table))?;
        writeln!(out, "{}", table(&of_table, verbose))?;
    }
    Ok(())
}

/// The properties that rows of one table share.
fn key<'a>(lines: &[Measurement], line: &'a Measurement) -> (&'static str, u32, Option<&'a str>) {
    (line.workload, group_depth(lines, line), modelled(line))
}

/// How a row's device differs from a real one. Only rows with the same difference are compared.
fn modelled(line: &Measurement) -> Option<&str> {
    line.device.split_once(", ").map(|(_, model)| model).filter(|model| model.starts_with("flush "))
}

/// The queue depth of a row's table: a target without a queue is shown beside those with one.
fn group_depth(lines: &[Measurement], line: &Measurement) -> u32 {
    let same = |other: &&Measurement| other.workload == line.workload;
    let has_queue = |other: &Measurement| other.target != "memcpy";
    if has_queue(line) {
        return line.depth;
    }
    lines
        .iter()
        .filter(same)
        .filter(|other| has_queue(other))
        .map(|other| other.depth)
        .min()
        .unwrap_or(line.depth)
}

fn title(what: &str, lines: &[&Measurement]) -> String {
    let rounds = lines.first().map_or(0, |line| line.median_of);
    format!("{what} (operations a second, medians of {rounds})")
}

/// Describes a workload with requests of this many bytes.
fn subject(workload: &str, depth: u32, bytes: u64) -> String {
    match workload {
        "overwrite" => {
            format!("overwrite: random 4 KiB pages of one file, direct, {depth} in flight per thread")
        }
        "randrw" => {
            format!("randrw: 50/50 random 4 KiB pages of one file, direct, {depth} in flight per thread")
        }
        "randrw-buffered" => {
            "randrw: 50/50 random 4 KiB pages of one file, through page caches that hold it".to_owned()
        }
        "seq" => {
            let kib = bytes >> 10;
            format!("seq: one file in order, {kib} KiB a request, through page caches that hold it")
        }
        "rangelock" => "rangelock: lock and unlock pairs, each thread on 100 ranges of its own".to_owned(),
        "fsmark" => {
            "fsmark: empty files in directories of each thread's own: made, looked at, removed".to_owned()
        }
        "handles" => {
            "handles: journal handles started and stopped; transactions that change one inode".to_owned()
        }
        "fxmark" => {
            "fxmark: 4 KiB blocks of files, paths and names; data or metadata, read or written, little or \
                     much of it shared"
                .to_owned()
        }
        "dbench" => {
            "dbench: clients of a file server, in directories of their own; operations of their mix, and MiB \
                     that they write and read"
                .to_owned()
        }
        "cow" => format!(
            "cow: a file cloned, random 4 KiB pages that it shares overwritten, and once more; direct, \
             {depth} in flight per thread"
        ),
        "osync" => {
            "osync: 64 KiB written to regions of each thread's own, over and over, each write durable \
                    before the next"
                .to_owned()
        }
        other => other.to_owned(),
    }
}

/// The name of a row.
fn row_name(line: &Measurement) -> String {
    match &line.locking {
        Some(locking) => format!("{} {locking}", line.target),
        None => line.target.clone(),
    }
}

/// The different values, in order of appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

/// One row: its measurements by thread count.
struct Row<'a> {
    name: String,
    cells: Vec<Option<&'a Measurement>>,
}

impl Row<'_> {
    fn ops(&self, column: usize) -> Option<f64> {
        self.cells.get(column).copied().flatten().map(|line| line.ops_per_s)
    }

    /// The figure of the last thread count, relative to the best one.
    fn last_of_best(&self) -> Option<f64> {
        let figures: Vec<f64> = self.cells.iter().flatten().map(|line| line.ops_per_s).collect();
        let best = figures.iter().copied().fold(0.0, f64::max);
        (figures.len() > 1 && best > 0.0).then(|| figures.last().copied().unwrap_or(0.0) / best)
    }
}

fn table(lines: &[&Measurement], verbose: bool) -> Table {
    let threads = distinct(lines.iter().map(|line| line.threads));
    let ops = distinct(lines.iter().map(|line| line.op));
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    let mut header = vec!["".to_owned(), "".to_owned()];
    header.extend(threads.iter().map(|&n| if n == 1 { "1 thread".to_owned() } else { n.to_string() }));
    header.extend((threads.len() > 1).then(|| "last÷best".to_owned()));
    table.set_header(header);

    let mut reads: Vec<Row<'_>> = Vec::new();
    for op in ops {
        let rows: Vec<Row<'_>> =
            distinct(lines.iter().filter(|line| line.op == op).map(|line| (row_name(line), &line.device)))
                .into_iter()
                .map(|(name, device)| {
                    let cell = |&n: &usize| {
                        lines.iter().copied().find(|line| {
                            line.op == op
                                && line.threads == n
                                && row_name(line) == name
                                && line.device == *device
                        })
                    };
                    Row { cells: threads.iter().map(cell).collect(), name }
                })
                .collect();
        for row in &rows {
            let mut cells = vec![op.to_owned(), row.name.clone()];
            cells.extend(
                row.cells.iter().map(|line| line.map_or_else(String::new, |line| figure(line, verbose))),
            );
            cells.extend((threads.len() > 1).then(|| ratio(row.last_of_best())));
            table.add_row(cells);
        }
        for (name, values) in ratios(&rows, &reads, threads.len()) {
            let mut cells = vec![op.to_owned(), name];
            cells.extend(values.into_iter().map(ratio));
            cells.extend((threads.len() > 1).then(String::new));
            table.add_row(cells);
        }
        if op == "read" {
            reads = rows;
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The ratios: our row to each of the others, and to its own reads.
fn ratios(rows: &[Row<'_>], reads: &[Row<'_>], columns: usize) -> Vec<(String, Vec<Option<f64>>)> {
    let our = |row: &Row<'_>| OURS.into_iter().find(|ours| row.name.split(' ').nth(1) == Some(ours));
    let is_ours = |row: &&Row<'_>| row.name == UXFS || our(row).is_some();
    let Some(ours) = rows.iter().find(is_ours) else { return Vec::new() };
    let our_name = our(ours).unwrap_or(UXFS);
    let against = |other: &Row<'_>| {
        (0..columns).map(|column| Some(ours.ops(column)? / other.ops(column)?)).collect::<Vec<Option<f64>>>()
    };
    let mut all: Vec<_> = rows
        .iter()
        .filter(|row| row.name != ours.name)
        .map(|row| (format!("  {our_name} ÷ {}", short(&row.name)), against(row)))
        .collect();
    if let Some(read) = reads.iter().find(is_ours) {
        all.push((format!("  {our_name} ÷ its reads"), against(read)));
    }
    all
}

/// A row's name without the part that all of ours share.
fn short(name: &str) -> &str {
    ["uxfs ", "rangelock ", "device "].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// A number of operations a second.
pub fn rate(ops: f64) -> String {
    match ops {
        ops if ops >= 10e6 => format!("{:.1}M", ops / 1e6),
        ops if ops >= 1e6 => format!("{:.2}M", ops / 1e6),
        ops if ops >= 10e3 => format!("{:.0}k", ops / 1e3),
        ops if ops >= 1e3 => format!("{:.1}k", ops / 1e3),
        ops => format!("{ops:.0}"),
    }
}

/// The time of an operation in microseconds, with more digits if it is less than one.
fn micros(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

/// Operations a second of a measurement, with its latencies if requested.
fn figure(line: &Measurement, verbose: bool) -> String {
    let ops = rate(line.ops_per_s);
    match (verbose, line.p50_us, line.p99_us, line.p999_us) {
        (true, Some(p50), Some(p99), Some(p999)) => {
            let [p50, p99, p999] = [p50, p99, p999].map(micros);
            format!("{ops}\n{p50} / {p99} / {p999} µs")
        }
        _ => ops,
    }
}

fn ratio(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 9.95 => format!("{value:.0}×"),
        Some(value) => format!("{value:.2}×"),
        None => String::new(),
    }
}

/// Prints the lock classes, the worst first.
pub fn print_locks(out: &mut impl Write, classes: &[ClassReport]) -> Result<()> {
    if classes.is_empty() {
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "workload",
        "target",
        "lock class",
        "shared",
        "exclusive",
        "of several",
        "contended",
        "waited ms",
        "held ms",
        "excl./commit",
        "of several",
    ]);
    let each = |figure: Option<f64>| figure.map_or_else(String::new, |figure| format!("{figure:.2}"));
    for class in classes {
        table.add_row([
            class.workload.to_owned(),
            class.target.clone(),
            class.class.to_owned(),
            class.shared.to_string(),
            class.exclusive.to_string(),
            class.between.to_string(),
            class.contended.to_string(),
            format!("{:.1}", class.wait_ms),
            format!("{:.1}", class.hold_ms),
            each(class.per_commit),
            each(class.between_per_commit),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(
        out,
        "\nlocks, worst first (of several: taken exclusively where several threads use the lock)\n{table}"
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(
        target: &str,
        locking: Option<&str>,
        op: &'static str,
        threads: usize,
        ops_per_s: f64,
    ) -> Measurement {
        Measurement {
            workload: "overwrite",
            target: target.into(),
            device: "memory".into(),
            locking: locking.map(Into::into),
            op,
            threads,
            depth: 1,
            bytes: Some(4096),
            ops_per_s,
            mib_per_s: None,
            p50_us: Some(0.25),
            p99_us: Some(1.5),
            p999_us: Some(9.5),
            median_of: 3,
        }
    }

    #[test]
    fn tables_show_figures_and_ratios() {
        let lines = [
            line("uxfs", Some("exclusive"), "read", 1, 1e6),
            line("uxfs", Some("range"), "read", 1, 2e6),
            line("uxfs", Some("range"), "read", 2, 4e6),
            line("kernel-xfs", None, "read", 1, 400e3),
            line("uxfs", Some("range"), "write", 1, 1.9e6),
        ];
        let mut out = Vec::new();
        print_measurements(&mut out, &lines, true).expect("a vector takes all");
        let text = String::from_utf8(out).expect("text");
        let row = |name: &str| {
            text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {text}"))
        };
        assert!(row("uxfs range").contains("2.00M") && row("uxfs range").contains("4.00M"), "{text}");
        assert!(row("uxfs range").contains("1.00×"), "{text}");
        assert!(row("range ÷ exclusive").contains("2.00×"), "{text}");
        assert!(row("range ÷ kernel-xfs").contains("5.00×"), "{text}");
        assert!(row("range ÷ its reads").contains("0.95×"), "{text}");
        assert!(text.contains("0.250 / 1.5 / 9.5 µs"), "{text}");
        assert!(text.contains("medians of 3"), "{text}");
    }

    #[test]
    fn uxfs_is_compared_where_there_is_no_choice_of_locking() {
        let lines = [line("uxfs", None, "create", 1, 90e3), line("kernel-xfs", None, "create", 1, 30e3)];
        let mut out = Vec::new();
        print_measurements(&mut out, &lines, false).expect("a vector takes all");
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("uxfs ÷ kernel-xfs") && text.contains("3.00×"), "{text}");
    }

    #[test]
    fn memcpy_is_shown_beside_the_smallest_depth() {
        let mut queue = line("uxfs", Some("range"), "read", 1, 1e6);
        queue.depth = 128;
        let lines = [queue, line("memcpy", None, "read", 1, 2e6)];
        let mut out = Vec::new();
        print_measurements(&mut out, &lines, false).expect("a vector takes all");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text.matches("overwrite:").count(), 1, "{text}");
        assert!(text.contains("range ÷ memcpy"), "{text}");
    }
}
