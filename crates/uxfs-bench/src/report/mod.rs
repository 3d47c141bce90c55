//! A run as a page that a stranger can read: what was compared, tables, curves over threads, latencies, locks, the machine.
//!
//! Invariants: the page is one file that refers to nothing outside of itself, so that it works offline, and runs nothing; it
//! is well-formed XML, too. Every measurement is in it twice: as a figure of a table, and as an object among the data at
//! its end.

mod about;
mod chart;
mod machine;
mod text;

pub use machine::Machine;

use crate::lockstat::ClassReport;
use crate::measure::Measurement;
use crate::suite::Report;
use chart::Curve;
use std::fmt::Write;
use text::{escaped, figure};

const STYLE: &str = include_str!("style.css");

/// What the page says of the run as a whole.
#[derive(Clone, Debug)]
pub struct Heading {
    /// The command line.
    pub command: String,
    /// When it was done.
    pub when: String,
    /// The version of uxfs.
    pub version: String,
    /// Where.
    pub machine: Machine,
}

/// The page.
pub fn page(heading: &Heading, report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>uxfs bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>uxfs bench</h1>\n"
    );
    page += &opening(heading);
    page += &results(report);
    page += &compared(&heading.machine, report);
    for workload in distinct(report.measurements.iter().map(|line| line.workload)) {
        page += &section(workload, report);
    }
    page += &data(report);
    page += "</body>\n</html>\n";
    page
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

/// How locks were counted, where that was done in a round of its own.
const COUNTED: &str = "<p>To count locks slows whoever takes them. So they were counted behind all rounds, in a short one of \
                       uxfs alone, with as many threads as there are at most; it gave the tables of locks and nothing else.\
                       </p>\n";

/// What was run.
fn opening(heading: &Heading) -> String {
    format!(
        "<p>uxfs {} is an XFS in user space. This is what it does beside others on the same machine: the same loops, the \
         same requests, the same data.</p>\n<p><code>{}</code><br/>{}</p>\n",
        escaped(&heading.version),
        escaped(&heading.command),
        escaped(&heading.when)
    )
}

/// Which sections are about the five results; nothing where none is.
fn results(report: &Report) -> String {
    let measured = |workload: &str| report.measurements.iter().any(|line| line.workload == workload);
    let mut items = String::new();
    for (number, (says, workloads)) in (1..).zip(about::RESULTS) {
        let links: Vec<String> = workloads
            .iter()
            .filter(|workload| measured(workload))
            .map(|workload| format!("<a href=\"#{workload}\">{}</a>", about::workload(workload).title))
            .collect();
        if !links.is_empty() {
            let _ = writeln!(items, "<li value=\"{number}\">{says} {}</li>", links.join(", "));
        }
    }
    if items.is_empty() {
        return items;
    }
    format!(
        "<h2>The five results</h2>\n<p>Five ways to let many threads use a file system at once were found in work on \
         kernels. uxfs has each of them, and what was there before, so that one run shows what each is worth. All other \
         sections are there to compare.</p>\n<ol>\n{items}</ol>\n"
    )
}

/// How it was measured, where, and what is compared.
fn compared(machine: &Machine, report: &Report) -> String {
    let lines = &report.measurements;
    let rounds = lines.iter().map(|line| line.median_of).max().unwrap_or(0);
    let counted = if report.counted.is_empty() { "" } else { COUNTED };
    let mut text = format!(
        "<h2>How it was measured</h2>\n\
         <p>All that is compared took turns within each of {rounds} rounds; each figure is the median of its own line over \
         the rounds. More operations a second are better. Small figures below a number say how many times as fast \
         ours, the line in bold, was. Where it says p50, p99 and p99.9, half, 99 of 100 and 999 of 1,000 operations took \
         at most so long. To look at the clock takes time: what takes microseconds is timed one in seven or eight times, what \
         takes less one in 32 or 64 times, what waits for a device each time. Pairs of handles \
         take about as long as that look, which is in their times: they are timed for a moment after those that are counted. \
         Of locks, and where several operations are made durable together, single ones are not timed.</p>\n{counted}<h2>What was compared</h2>\n<table class=\"plain\">\n"
    );
    for (target, device) in distinct(lines.iter().map(|line| (&line.target, &line.device))) {
        let _ = writeln!(
            text,
            "<tr><th>{}</th><td>on {}</td><td>{}</td></tr>",
            escaped(target),
            escaped(device),
            escaped(about::target(target))
        );
    }
    text += "</table>\n<h2>The machine</h2>\n<table class=\"plain\">\n";
    for (name, value) in &machine.facts {
        let _ = writeln!(text, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(value));
    }
    text += "</table>\n<h2>Contents</h2>\n<ul>\n";
    for workload in distinct(lines.iter().map(|line| line.workload)) {
        let (anchor, title) = (escaped(workload), about::workload(workload).title);
        let _ = writeln!(text, "<li><a href=\"#{anchor}\">{title} <small>({anchor})</small></a></li>");
    }
    text + "</ul>\n"
}

/// All of one workload.
fn section(workload: &str, report: &Report) -> String {
    let about = about::workload(workload);
    let anchor = escaped(workload);
    let mut text = format!(
        "<h2 id=\"{anchor}\">{} <small>({anchor})</small></h2>\n<p>{}</p>\n",
        about.title, about.what
    );
    if let Some(reported) = about.reported {
        let _ = writeln!(text, "<p class=\"reported\">Reported of kernels: {reported}</p>");
    }
    let lines: Vec<&Measurement> =
        report.measurements.iter().filter(|line| line.workload == workload).collect();
    for group in groups(&lines) {
        text += &group.html();
    }
    text + &locks(workload, report)
}

/// Lines that are compared: of one operation, in as many requests in flight, on devices that are alike.
struct Group<'a> {
    title: String,
    rows: Vec<Row<'a>>,
    threads: Vec<usize>,
}

/// A line of a table: what was measured, at each thread count.
struct Row<'a> {
    name: String,
    cells: Vec<Option<&'a Measurement>>,
}

/// What a line's device does otherwise than a real one; only such lines are compared with each other.
pub(crate) fn modelled(line: &Measurement) -> Option<&str> {
    line.device.split_once(", ").map(|(_, model)| model).filter(|model| model.starts_with("flush "))
}

fn groups<'a>(lines: &[&'a Measurement]) -> Vec<Group<'a>> {
    // Plain copies have no queue, and are shown beside all that have one.
    let depths = distinct(lines.iter().filter(|line| line.target != "memcpy").map(|line| line.depth));
    let is_in = |line: &Measurement, depth: u32| {
        line.depth == depth || line.target == "memcpy" && depths.first() == Some(&depth)
    };
    let keys = distinct(lines.iter().map(|line| {
        let depth = depths.iter().copied().find(|&depth| is_in(line, depth)).unwrap_or(line.depth);
        (line.op, depth, modelled(line))
    }));
    let one_depth =
        distinct(keys.iter().map(|&(_, depth, _)| depth)).len() == 1 && depths.first() == Some(&1);
    let is_modelled = lines.iter().any(|line| modelled(line).is_some());
    keys.into_iter()
        .map(|(op, depth, model)| {
            let of_group: Vec<&'a Measurement> = lines
                .iter()
                .copied()
                .filter(|line| line.op == op && is_in(line, depth) && modelled(line) == model)
                .collect();
            let mut title = op.to_owned();
            if !one_depth {
                let _ = write!(title, ", {depth} in flight a thread");
            }
            match model {
                Some(model) => title.extend([", ", model]),
                None if is_modelled => title += ", flush as each device has it",
                None => {}
            }
            let threads = {
                let mut threads = distinct(of_group.iter().map(|line| line.threads));
                threads.sort_unstable();
                threads
            };
            let rows = distinct(of_group.iter().map(|line| (&line.target, &line.locking, &line.device)))
                .into_iter()
                .map(|id| {
                    let is_of = |line: &&Measurement| (&line.target, &line.locking, &line.device) == id;
                    let cell = |&threads: &usize| {
                        of_group.iter().copied().find(|line| is_of(line) && line.threads == threads)
                    };
                    let mut name = row_name(id.0, id.1.as_deref());
                    // Two mounted directories of one kind.
                    if of_group
                        .iter()
                        .any(|line| (&line.target, &line.locking) == (id.0, id.1) && line.device != *id.2)
                    {
                        let _ = write!(name, " on {}", id.2);
                    }
                    Row { name, cells: threads.iter().map(cell).collect() }
                })
                .collect();
            Group { title, rows, threads }
        })
        .collect()
}

fn row_name(target: &str, locking: Option<&str>) -> String {
    locking.map_or_else(|| target.to_owned(), |locking| format!("{target} {locking}"))
}

/// The lockings, and the way to flush, that are ours.
const OURS: [&str; 2] = ["range", "shared-flush"];

impl Row<'_> {
    fn is_ours(&self) -> bool {
        self.cells.iter().flatten().any(|line| match line.locking.as_deref() {
            Some(locking) => OURS.contains(&locking),
            None => line.target == "uxfs",
        })
    }

    fn curve(&self, value: fn(&Measurement) -> Option<f64>) -> Curve {
        Curve {
            name: self.name.clone(),
            values: self.cells.iter().map(|cell| cell.and_then(value)).collect(),
        }
    }
}

impl Group<'_> {
    fn html(&self) -> String {
        let mut text = format!("<h3>{}</h3>\n<div class=\"charts\">\n", escaped(&self.title));
        let curves = |value| self.rows.iter().map(|row| row.curve(value)).collect::<Vec<Curve>>();
        let rates = curves(|line| Some(line.ops_per_s));
        text += &chart::curves(&self.title, &self.threads, "operations a second", &rates);
        let mut late = curves(|line| line.p99_us);
        late.retain(|curve| curve.values.iter().any(Option::is_some));
        if !late.is_empty() {
            let title = format!("{}: 99 of 100 took at most", self.title);
            text += &chart::curves(&title, &self.threads, "microseconds", &late);
        }
        text += "</div>\n";
        text + &self.rates() + &self.latencies()
    }

    fn head(&self, first: &str) -> String {
        let mut text = format!("<table>\n<tr><th>{first}</th>");
        for &threads in &self.threads {
            let what = if threads == 1 { "1 thread".to_owned() } else { threads.to_string() };
            let _ = write!(text, "<th>{what}</th>");
        }
        text
    }

    /// Operations a second, and how ours compares.
    fn rates(&self) -> String {
        let ours = self.rows.iter().find(|row| row.is_ours());
        let mut text = self.head("operations a second") + "<th>last ÷ best</th></tr>\n";
        for row in &self.rows {
            let is_ours = ours.is_some_and(|ours| std::ptr::eq(ours, row));
            let class = if is_ours { " class=\"ours\"" } else { "" };
            let _ = write!(text, "<tr{class}><th>{}</th>", escaped(&row.name));
            for (at, cell) in row.cells.iter().enumerate() {
                let Some(line) = cell else {
                    text += "<td></td>";
                    continue;
                };
                let _ = write!(text, "<td>{}", figure(line.ops_per_s));
                let of_ours = ours.filter(|_| !is_ours).and_then(|ours| ours.cells[at]);
                if let Some(ours) = of_ours.filter(|_| line.ops_per_s > 0.0) {
                    let _ = write!(text, "<br/><small>{:.2}×</small>", ours.ops_per_s / line.ops_per_s);
                }
                if let Some(mib) = line.mib_per_s.filter(|_| is_ours) {
                    let _ = write!(text, "<br/><small>{} MiB/s</small>", figure(mib));
                }
                text += "</td>";
            }
            let rates: Vec<f64> = row.cells.iter().flatten().map(|line| line.ops_per_s).collect();
            let best = rates.iter().copied().fold(0.0, f64::max);
            let last = rates.last().filter(|_| rates.len() > 1 && best > 0.0);
            let _ = writeln!(
                text,
                "<td>{}</td></tr>",
                last.map(|last| format!("{:.2}", last / best)).unwrap_or_default()
            );
        }
        text + "</table>\n"
    }

    /// What requests took, where they were timed.
    fn latencies(&self) -> String {
        let timed: Vec<&Row<'_>> = self
            .rows
            .iter()
            .filter(|row| row.cells.iter().flatten().any(|line| line.p50_us.is_some()))
            .collect();
        if timed.is_empty() {
            return String::new();
        }
        let mut text = self.head("p50 / p99 / p99.9, µs") + "</tr>\n";
        for row in timed {
            let class = if row.is_ours() { " class=\"ours\"" } else { "" };
            let _ = write!(text, "<tr{class}><th>{}</th>", escaped(&row.name));
            for cell in &row.cells {
                let of = |value: fn(&Measurement) -> Option<f64>| {
                    cell.and_then(value).map_or_else(|| "–".to_owned(), figure)
                };
                let (p50, p99, p999) =
                    (of(|line| line.p50_us), of(|line| line.p99_us), of(|line| line.p999_us));
                let _ = write!(text, "<td>{p50} / {p99} / {p999}</td>");
            }
            text += "</tr>\n";
        }
        text + "</table>\n"
    }
}

/// What was counted of locks: while it was measured, or in a round of its own.
fn locks(workload: &str, report: &Report) -> String {
    let (all, when) = if report.locks.is_empty() {
        (&report.counted, "Counted in a short round of its own, of which no other figure of this page is")
    } else {
        (&report.locks, "Counted while it was measured, which slows it")
    };
    let classes: Vec<&ClassReport> = all.iter().filter(|class| class.workload == workload).collect();
    if classes.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "<h3>Locks</h3>\n<p>{when}. “While” says what ran, and with how many threads; “of several”, how often a lock was \
         taken exclusively that several threads use.</p>\n<table>\n<tr><th>while</th><th>lock</th><th>shared</th>\
         <th>exclusive</th><th>of several</th><th>contended</th><th>waited, ms</th><th>held, ms</th></tr>\n"
    );
    for class in classes {
        let _ = writeln!(
            text,
            "<tr><th>{}</th><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td></tr>",
            escaped(&class.target),
            escaped(class.class),
            class.shared,
            class.exclusive,
            class.between,
            class.contended,
            class.wait_ms,
            class.hold_ms
        );
    }
    text + "</table>\n"
}

/// All measurements, for programs.
fn data(report: &Report) -> String {
    let mut text = "<script type=\"application/json\" id=\"measurements\">[\n".to_owned();
    let lines: Vec<String> = report
        .measurements
        .iter()
        .map(|line| {
            let json = serde_json::to_string(line).unwrap_or_default();
            // Nothing in it can end the element.
            json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
        })
        .collect();
    text += &lines.join(",\n");
    text + "\n]</script>\n"
}
