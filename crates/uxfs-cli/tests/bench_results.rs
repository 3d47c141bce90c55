//! `uxfs bench all` shows the five results, each with its newer and its older designs and beside the kernel; and the commands
//! that the README has for `bench` run. Needs root, xfsprogs, e2fsprogs and valgrind.
#![forbid(unsafe_code)]

use roxmltree::Node;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The smallest sizes.
const SMALL: [&str; 7] =
    ["--size=4M", "--pages=256", "--files=20", "--rounds=1", "--min-time=1", "--clones=2", "--seed=7"];

/// Of FxMark some.
const FEW: &str = "--workload=DRBL,DWSL,MRDL,MWCM";

fn uxfs(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Of one of the five results, a workload that shows it.
struct Shown {
    workload: &'static str,
    target: &'static str,
    ops: &'static [&'static str],
    newer: &'static str,
    older: &'static [&'static str],
    /// Whether the kernel can do the same.
    has_kernel: bool,
}

const fn shown(
    workload: &'static str,
    ops: &'static [&'static str],
    newer: &'static str,
    older: &'static [&'static str],
) -> Shown {
    Shown { workload, target: "uxfs", ops, newer, older, has_kernel: true }
}

/// All of them, by result.
const FIVE: [&[Shown]; 5] = [
    &[shown("overwrite", &["read", "write"], "range", &["exclusive"])],
    &[
        shown("osync", &["file write"], "shared-flush", &["serialized", "concurrent"]),
        Shown {
            target: "device",
            has_kernel: false,
            ..shown("osync", &["device write"], "shared-flush", &["serialized", "concurrent"])
        },
    ],
    &[shown(
        "fsmark",
        &["create", "create + sync", "walk", "unlink", "unlink + sync"],
        "",
        &["cil=single-lock", "vectors=at-commit", "cil=single-lock vectors=at-commit"],
    )],
    &[
        shown("randrw", &["read", "write"], "range", &["shared", "interval-tree", "btree"]),
        shown("randrw-buffered", &["read", "write"], "range", &["exclusive", "interval-tree", "btree"]),
        Shown {
            target: "rangelock",
            has_kernel: false,
            ..shown("rangelock", &["one-held", "all-held"], "range", &["interval-tree", "btree"])
        },
    ],
    &[
        shown("dbench", &["mix", "MiB"], "", &["handles=locked"]),
        Shown { has_kernel: false, ..shown("handles", &["start/stop", "inode"], "", &["handles=locked"]) },
    ],
];

/// The fields of a line of comma-separated values.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            letter => all.last_mut().expect("one at least").push(letter),
        }
    }
    all
}

#[test]
fn all_has_each_of_the_five_results_with_newer_and_older_designs() {
    let dir = tempfile::tempdir().expect("a directory");
    let args =
        [&["bench", "all", "--csv", "--threads=1,2", "--clients=1,2", "--flush-ms=0.1", FEW], &SMALL[..]]
            .concat();
    let text = String::from_utf8(uxfs(&args, dir.path()).stdout).expect("text");
    let mut lines = text.split_terminator("\r\n").map(fields);
    let columns = lines.next().expect("columns");
    let lines: Vec<Vec<String>> = lines.collect();
    let column = |name: &str| columns.iter().position(|column| column == name).expect("a column");
    let [workload, target, locking, op, threads, rate, p99] =
        ["workload", "target", "locking", "op", "threads", "ops_per_s", "p99_us"].map(column);
    for shown in FIVE.into_iter().flatten() {
        for design in [shown.newer].iter().chain(shown.older) {
            for wanted in shown.ops {
                let is_of = |line: &&Vec<String>| {
                    (&*line[workload], &*line[target], &*line[locking], &*line[op])
                        == (shown.workload, shown.target, design, wanted)
                };
                let of: Vec<&Vec<String>> = lines.iter().filter(is_of).collect();
                let at: Vec<&str> = of.iter().map(|line| &*line[threads]).collect();
                assert_eq!(at, ["1", "2"], "{} {design} {wanted}: {text}", shown.workload);
                // What is made durable together is no single operation, nor is a MiB; locks are left out.
                let is_timed =
                    !wanted.ends_with("+ sync") && *wanted != "MiB" && shown.workload != "rangelock";
                for line in of {
                    assert!(line[rate].parse::<f64>().expect("a rate") > 0.0, "{line:?}");
                    assert_eq!(line[p99].parse::<f64>().is_ok_and(|p99| p99 > 0.0), is_timed, "{line:?}");
                }
            }
        }
    }
}

/// All text of an element.
fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|part| part.text().filter(|_| part.is_text())).collect()
}

/// The tables of operations a second of a workload's section: the title of each, and the names of its rows.
fn tables(page: &roxmltree::Document<'_>, workload: &str) -> Vec<(String, BTreeSet<String>)> {
    let section = page.descendants().find(|node| node.attribute("id") == Some(workload)).expect("a section");
    let (mut title, mut all) = (String::new(), Vec::new());
    for node in section.next_siblings().skip(1).take_while(|node| !node.has_tag_name("h2")) {
        if node.has_tag_name("h3") {
            title = text(node);
        }
        if node.has_tag_name("table") && text(node).trim_start().starts_with("operations a second") {
            let rows = node.children().filter(|row| row.has_tag_name("tr")).skip(1);
            let name = |row: Node<'_, '_>| row.children().find(|cell| cell.has_tag_name("th")).map(text);
            all.push((title.clone(), rows.filter_map(name).collect()));
        }
    }
    all
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_stands_beside_ours_in_each_table_of_the_five() {
    let dir = tempfile::tempdir().expect("a directory");
    let kernel = "kernel-xfs-loop";
    let args = ["bench", "all", "--vs", kernel, "--threads=2", "--clients=2", "--flush-ms=0.1", FEW];
    uxfs(&[&args, &["--report=page.html"][..], &SMALL].concat(), dir.path());
    let page = std::fs::read_to_string(dir.path().join("page.html")).expect("a page");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&page, options).expect("well-formed");
    for shown in FIVE.into_iter().flatten().filter(|shown| shown.has_kernel) {
        let tables = tables(&page, shown.workload);
        for op in shown.ops {
            let is_of = |title: &str| {
                title.strip_prefix(op).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
            };
            let of: Vec<_> =
                tables.iter().filter(|(title, rows)| is_of(title) && rows.contains(kernel)).collect();
            let [(title, rows)] = &of[..] else { panic!("{} {op}: {tables:?}", shown.workload) };
            for design in [shown.newer].iter().chain(shown.older) {
                let name = format!("{} {design}", shown.target);
                assert!(rows.contains(name.trim_end()), "{name} in {title}: {rows:?}");
            }
        }
    }
    // The five results come first, each with links to its sections.
    let heading = page.descendants().find(|node| node.has_tag_name("h2")).expect("a heading");
    assert_eq!(text(heading), "The five results");
    let list = heading.next_siblings().find(|node| node.has_tag_name("ol")).expect("a list");
    let items: Vec<Node<'_, '_>> = list.children().filter(|item| item.has_tag_name("li")).collect();
    assert_eq!(items.len(), FIVE.len());
    for ((nth, item), five) in (1..).zip(items).zip(FIVE) {
        assert_eq!(item.attribute("value"), Some(&*format!("{nth}")));
        let links = item.descendants().filter_map(|node| node.attribute("href")?.strip_prefix('#'));
        let wanted: BTreeSet<&str> = five.iter().map(|shown| shown.workload).collect();
        assert_eq!(links.collect::<BTreeSet<&str>>(), wanted);
    }
    // What has a modelled flush stands alone, and what has not says so.
    let titles: Vec<String> = tables(&page, "osync").into_iter().map(|(title, _)| title).collect();
    for wanted in ["file write, flush 0.1 ms", "file write, flush as each device has it"] {
        assert!(titles.iter().any(|title| title == wanted), "{titles:?}");
    }
}

/// The commands for `bench` in the README, word by word, with the smallest sizes.
fn readme() -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let text = text.expect("a README");
    let commands = text.lines().filter_map(|line| line.strip_prefix("$ uxfs bench "));
    commands
        .map(|command| {
            let (command, _comment) = command.split_once('#').unwrap_or((command, ""));
            let mut words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            for option in ["--threads", "--clients"] {
                match words.iter().position(|word| word == option) {
                    Some(at) => words[at + 1] = "2".to_owned(),
                    None => words.extend([option.to_owned(), "2".to_owned()]),
                }
            }
            // A recording takes a while.
            if words.iter().any(|word| word == "--model") {
                words.push("--locking=range".to_owned());
            }
            if ["all", "fxmark"].contains(&&*words[0]) {
                words.push(FEW.to_owned());
            }
            words.extend(SMALL.map(str::to_owned));
            words
        })
        .collect()
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_commands_of_the_readme_run() {
    let commands = readme();
    assert!(commands.len() >= 8, "{commands:?}");
    let mut all = 0;
    for words in commands {
        let dir = tempfile::tempdir().expect("a directory");
        let args: Vec<&str> = std::iter::once("bench").chain(words.iter().map(String::as_str)).collect();
        let text = String::from_utf8(uxfs(&args, dir.path()).stdout).expect("text");
        let asked = &*words[0];
        let expected = match asked {
            "all" => ["overwrite:", "osync:", "fsmark:", "randrw:", "handles:", "dbench:", "fxmark:", "cow:"]
                .to_vec(),
            asked => vec![asked],
        };
        assert!(expected.iter().all(|name| text.contains(name)), "{args:?}: {text}");
        let kernels: Vec<&String> = words.iter().filter(|word| word.starts_with("kernel-")).collect();
        assert!(kernels.iter().all(|kernel| text.contains(*kernel)), "{args:?}: {text}");
        let pages = usize::from(words.iter().any(|word| word == "--report"));
        assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), pages, "{args:?}");
        all += usize::from(asked == "all");
    }
    assert_eq!(all, 1, "one of them is of all");
}
