//! `uxfs bench` as a command: what it prints, how it ends, and that it cleans up when it is interrupted.
#![forbid(unsafe_code)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn uxfs(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    uxfs(args).output().expect("the command starts")
}

const SMALL: [&str; 9] = [
    "--size=4M",
    "--pages=1024",
    "--files=100",
    "--threads=1,2",
    "--rounds=1",
    "--min-time=1",
    "--seed=7",
    "--raw",
    "--memcpy",
];

#[test]
fn json_lines_have_all_fields_and_a_page_has_all_lines() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    std::fs::write(&page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\nof another run").expect("room");
    let report = format!("--report={}", page.display());
    let output = output(
        &[
            &["--json", "bench", "all", "--locking=range", "--lockstat", "--flush-ms=0,0.2"],
            &SMALL[..],
            &[&report],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (locks, lines): (Vec<Value>, Vec<Value>) =
        lines.into_iter().partition(|line| line.get("class").is_some());
    assert!(!locks.is_empty(), "{text}");
    for line in &lines {
        for field in ["workload", "target", "device", "op"] {
            assert!(line[field].is_string(), "{field}: {line}");
        }
        for field in ["threads", "depth", "ops_per_s", "median_of"] {
            assert!(line[field].as_f64().is_some_and(|n| n > 0.0), "{field}: {line}");
        }
        for field in ["locking", "bytes", "mib_per_s", "p50_us", "p99_us", "p999_us"] {
            assert!(line.get(field).is_some(), "{field}: {line}");
        }
    }
    for workload in ["overwrite", "randrw", "seq", "rangelock", "fsmark", "handles", "fxmark", "osync", "cow"]
    {
        assert!(lines.iter().any(|line| line["workload"] == workload), "{workload}: {text}");
    }
    for target in ["uxfs", "raw", "memcpy"] {
        assert!(lines.iter().any(|line| line["target"] == target), "{target}: {text}");
    }
    check_page(&std::fs::read_to_string(&page).expect("a page"), &lines, &locks);
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 1, "the page alone");
}

/// The page needs nothing but itself, runs nothing, and shows all that was measured.
fn check_page(page: &str, lines: &[Value], locks: &[Value]) {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(page, options).expect("well-formed");
    let all = |name: &'static str| page.descendants().filter(move |node| node.has_tag_name(name));
    let text = |node: roxmltree::Node<'_, '_>| -> String {
        node.descendants().filter_map(|part| part.text().filter(|_| part.is_text())).collect()
    };
    for node in page.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        assert!(
            !["link", "img", "iframe", "object", "embed", "use", "image", "base"].contains(&name),
            "{name}"
        );
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!name.starts_with("on") && !["src", "srcset", "style"].contains(&name), "{name}={value}");
            assert!(!value.contains("//") && !value.contains("url("), "{name}={value}");
            if name == "href" {
                let target = value.strip_prefix('#').expect("a place in the page");
                assert!(page.descendants().any(|node| node.attribute("id") == Some(target)), "{target}");
            }
        }
    }
    for style in all("style") {
        assert!(!text(style).contains("url(") && !text(style).contains("@import"));
    }
    // The only script is data, and these are the lines that were printed.
    let scripts: Vec<_> = all("script").collect();
    assert_eq!(scripts.len(), 1);
    assert_eq!(scripts[0].attribute("type"), Some("application/json"));
    let data: Vec<Value> = serde_json::from_str(&text(scripts[0])).expect("JSON");
    assert_eq!(data, lines);
    // Each is a figure of a table and a point of a curve; what was timed is a point of another one.
    let rates = all("table").filter(|table| text(*table).trim_start().starts_with("operations a second"));
    let figures = rates.flat_map(|table| {
        let rows = table.children().filter(|row| row.has_tag_name("tr"));
        // The last column is no measurement.
        rows.flat_map(|row| {
            let cells: Vec<_> = row.children().filter(|cell| cell.has_tag_name("td")).collect();
            let filled = cells.iter().rev().skip(1).filter(|cell| !text(**cell).is_empty()).count();
            std::iter::repeat_n((), filled)
        })
    });
    assert_eq!(figures.count(), lines.len());
    let timed = lines.iter().filter(|line| line["p99_us"].is_number()).count();
    assert!(timed > 0);
    assert_eq!(all("circle").count(), lines.len() + timed);
    let whole = text(page.root());
    for line in lines.iter().chain(locks) {
        for field in ["workload", "target"] {
            assert!(whole.contains(line[field].as_str().expect("text")), "{line}");
        }
    }
    let headings: Vec<String> = all("h2").map(text).collect();
    for heading in ["How it was measured", "What was compared", "The machine"] {
        assert!(headings.iter().any(|found| found == heading), "{heading}: {headings:?}");
    }
    let locks_shown = all("h3").filter(|heading| text(*heading) == "Locks").count();
    assert!(locks_shown > 0);
    assert!(
        whole.contains("Processor") && whole.contains("Linux ") && whole.contains("uxfs --json bench all")
    );
}

/// Percentiles of lines that have some, and whether each has.
fn assert_timed(lines: &[Value], is_timed: impl Fn(&Value) -> bool) {
    for line in lines {
        let [p50, p99, p999] = ["p50_us", "p99_us", "p999_us"].map(|field| line[field].as_f64());
        if is_timed(line) {
            assert!(Some(0.0) < p50 && p50 <= p99 && p99 <= p999, "{line}");
        } else {
            assert!(p50.or(p99).or(p999).is_none(), "{line}");
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn single_operations_are_timed_and_shown_if_asked() {
    let page = tempfile::NamedTempFile::new().expect("a file");
    let report = format!("--report={}", page.path().display());
    let dir = tempfile::tempdir().expect("a directory");
    let vs = &*format!("--vs={}", dir.path().display());
    let runs: [(&str, &[&str]); 7] = [
        ("fsmark", &[vs]),
        ("fsmark", &[vs, "--fsync=4K"]),
        ("fxmark", &[vs]),
        ("dbench", &[vs, "--clients=2"]),
        ("rangelock", &[]),
        ("handles", &["--handles=locked,atomic"]),
        ("cow", &["--vs=kernel-xfs", "--clones=2"]),
    ];
    for (workload, more) in runs {
        let args = [&["--json", "bench", workload, &report], more, &SMALL].concat();
        let out = output(&args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).expect("text");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(!lines.is_empty());
        // What is made durable together is no single operation, nor is a MiB; locks are left out.
        let is_timed = |line: &Value| {
            let op = line["op"].as_str().expect("an operation");
            workload != "rangelock" && op != "MiB" && !op.ends_with("+ sync")
        };
        assert_timed(&lines, is_timed);
        let page = std::fs::read_to_string(page.path()).expect("a page");
        assert_eq!(page.contains("p50 / p99 / p99.9, µs"), workload != "rangelock", "{workload}");
        let is_of_five = !["fxmark", "cow"].contains(&workload);
        assert_eq!(page.contains("The five results"), is_of_five, "{workload}");
    }
    for (verbose, is_shown) in [(&["-v"][..], true), (&[], false)] {
        let out =
            output(&[verbose, &["bench", "dbench", "--clients=1", "--rounds=1", "--min-time=1"]].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(String::from_utf8_lossy(&out.stdout).contains(" µs"), is_shown);
    }
    let help = String::from_utf8(output(&["bench", "--help"]).stdout).expect("text");
    assert!(help.contains("With --verbose"), "{help}");
}

/// A page shows locks also where nothing that was measured was slowed by counting them.
#[test]
fn a_page_has_locks_that_were_counted_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("page.html");
    let report = format!("--report={}", path.display());
    for (lockstat, when) in [
        (&[][..], "Counted in a short round of its own"),
        (&["--lockstat"], "Counted while it was measured, which slows it"),
    ] {
        let out = output(&[&["--json", "bench", "fsmark", &report], &SMALL[..], lockstat].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let page = std::fs::read_to_string(&path).expect("a page");
        assert!(
            page.contains(when) && page.contains("uxfs create × 2") && page.contains("cil shard"),
            "{page}"
        );
        assert_eq!(page.contains("they were counted behind all rounds"), lockstat.is_empty(), "{page}");
        // What is printed has what was asked for alone.
        let text = String::from_utf8_lossy(&out.stdout);
        assert_eq!(text.contains("\"class\""), !lockstat.is_empty(), "{text}");
    }
}

#[test]
fn a_table_is_printed_otherwise() {
    let output = output(&[&["bench", "overwrite", "--lockstat"], &SMALL[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    for part in ["uxfs exclusive", "uxfs range", "range ÷ memcpy", "range ÷ its reads", "locks, worst first"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn handles_that_change_nothing_take_no_lock() {
    let args = ["--json", "bench", "handles", "--threads=1,2", "--rounds=1", "--min-time=20", "--lockstat"];
    let output = output(&[&args[..], &["--handles=locked,atomic", "--reservation=atomic,locked"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for op in ["start/stop", "extend", "roll", "barrier", "inode"] {
        let of_op =
            |line: &&Value| line["workload"] == "handles" && line["op"] == op && line["locking"].is_null();
        let threads: Vec<_> = lines.iter().filter(of_op).map(|line| line["threads"].as_u64()).collect();
        assert_eq!(threads, [Some(1), Some(2)], "{op}: {text}");
    }
    let locks =
        |target: &str| -> Vec<&Value> { lines.iter().filter(|line| line["target"] == target).collect() };
    let count = |line: &Value, field: &str| line[field].as_u64().expect("a count");
    let gate = |target: &str| {
        let found = locks(target).into_iter().find(|line| line["class"] == "transaction gate");
        count(found.unwrap_or_else(|| panic!("{target}: {text}")), "shared")
    };
    for target in ["uxfs start/stop × 1", "uxfs start/stop × 2", "uxfs extend × 2", "uxfs roll × 2"] {
        let pairs = gate(target);
        for class in locks(target) {
            // The journals' own threads may be about to come to rest.
            assert!(count(class, "exclusive") * 1000 <= pairs, "{pairs} pairs: {class}");
            assert_eq!(count(class, "between"), 0, "{class}");
        }
    }
    // The older designs take their locks, of each other, as often as they say.
    for (design, class, pair) in [
        ("handles=locked", "handles", 3),
        ("reservation=locked", "log space lock", 2),
        ("handles=locked reservation=locked", "handles", 2),
    ] {
        let target = format!("uxfs {design} start/stop × 2");
        let pairs = gate(&target);
        let lock = locks(&target).into_iter().find(|line| line["class"] == class).expect(class);
        assert!(
            count(lock, "exclusive").abs_diff(pair * pairs) * 100 <= pair * pairs,
            "{pairs} pairs: {lock}"
        );
        assert!(count(lock, "between") > 0, "{lock}");
    }
    // The same figures are not always nothing.
    let shard =
        locks("uxfs inode × 2").into_iter().find(|line| line["class"] == "cil shard").expect("commits");
    assert!(count(shard, "exclusive") >= gate("uxfs inode × 2"), "{shard}");
}

#[test]
fn fxmark_measures_what_is_asked_for_on_both_sides() {
    let dir = tempfile::tempdir().expect("a directory");
    let vs = format!("--vs={}", dir.path().display());
    let output = output(&[&["--json", "bench", "fxmark", "--workload=DWAL,mwrm", &vs], &SMALL[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // Two workloads, two thread counts, two targets.
    assert_eq!(lines.len(), 8, "{text}");
    for op in ["DWAL", "MWRM"] {
        let of_op: Vec<&Value> = lines.iter().filter(|line| line["op"] == op).collect();
        assert_eq!(of_op.len(), 4, "{op}: {text}");
        assert_eq!(of_op.iter().filter(|line| line["target"] == "uxfs").count(), 2, "{op}: {text}");
        assert!(
            of_op
                .iter()
                .all(|line| line["workload"] == "fxmark" && line["mib_per_s"].is_number() == (op == "DWAL"))
        );
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 0);
}

/// Each thread has a group, and a group has to have room for the log.
#[test]
fn many_threads_have_volumes_that_are_large_enough() {
    for what in [
        &["fsmark", "--threads=64", "--files=1"][..],
        &["fxmark", "--workload=MWCL", "--threads=64", "--files=1", "--min-time=1"],
        &["dbench", "--clients=64", "--min-time=1"],
    ] {
        let output = output(&[&["--json", "bench"], what, &["--rounds=1"]].concat());
        assert!(output.status.success(), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn dbench_gives_operations_and_bytes_of_each_number_of_clients() {
    let dir = tempfile::tempdir().expect("a directory");
    let vs = format!("--vs={}", dir.path().display());
    let args = ["--json", "bench", "dbench", "--clients=1,3", "--rounds=1", "--min-time=1", &vs];
    let output = output(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for target in ["uxfs", "kernel-"] {
        for clients in [1, 3] {
            let of = |op: &str| {
                let mut fits = lines.iter().filter(|line| {
                    line["op"] == op
                        && line["threads"] == clients
                        && line["target"].as_str().is_some_and(|name| name.starts_with(target))
                        && line["locking"].is_null()
                });
                let line = fits.next().unwrap_or_else(|| panic!("{target} {op} × {clients}: {text}"));
                assert!(fits.next().is_none(), "{target} {op} × {clients}: {text}");
                (line["ops_per_s"].as_f64().expect("a rate"), line["mib_per_s"].as_f64().expect("a rate"))
            };
            let ((mix, moved), (mib, same)) = (of("mix"), of("MiB"));
            assert_eq!(mib, same);
            // An operation moves 7 KiB in the mean, which is told in whole bytes.
            assert!(mix > mib && (moved / mib - 1.0).abs() < 0.001, "{moved} {mib}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 0);
}

#[test]
fn random_reads_and_writes_go_through_page_caches_or_past_them() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let vs = format!("--vs={}", dir.path().display());
    let small = ["--size=4M", "--pages=256", "--threads=2", "--rounds=1", "--min-time=0", "--json", &vs];
    for (more, name) in [(&[][..], "randrw-buffered"), (&["--direct"][..], "randrw")] {
        let out = output(&[&["bench", "randrw"], more, &small].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).expect("text");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(lines.iter().all(|line| line["workload"] == name), "{text}");
        // Each way: four lockings, memory, the directory.
        assert_eq!(lines.len(), 12, "{text}");
        for locking in ["interval-tree", "btree", "range"] {
            assert_eq!(lines.iter().filter(|line| line["locking"] == locking).count(), 2, "{text}");
        }
    }
}

#[test]
fn one_file_is_read_and_written_in_order_by_requests_of_a_size() {
    let small = ["--size=4M", "--threads=1,2", "--locking=range", "--rounds=1", "--min-time=0"];
    for (block, said) in [("4K", "4 KiB a request"), ("1M", "1024 KiB a request")] {
        let block = format!("--block={block}");
        let out = output(&[&["bench", "seq", &block], &small[..]].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).expect("text");
        for part in [said, "range ÷ memcpy", "range ÷ its reads"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn wrong_command_lines_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("device");
    let precious = b"precious".repeat(512);
    std::fs::write(&file, &precious).expect("room");
    let device = format!("--device={}", file.display());
    let cases: [(&[&str], &str); 22] = [
        (&["bench", "osync", &device], "--force"),
        (&["bench", "osync", "--force", &device], "has 4096 bytes"),
        (&["bench", "osync", "--sync=jbd"], "no way to flush is called"),
        (&["bench", "osync", "--flush-ms=-1"], "--flush-ms"),
        (&["bench", "osync", "--flush-ms=100000"], "a flush takes from 0 to"),
        (&["bench", "overwrite", "--locking=none"], "no locking is called"),
        (&["bench", "overwrite", "--threads=0"], "thread counts"),
        (&["bench", "overwrite", "--size=4095"], "multiple of 4096"),
        (&["bench", "seq", "--block=6K"], "a multiple of 4096"),
        (&["bench", "seq", "--block=2M", "--size=1M"], "a block is larger"),
        (&["bench", "fsmark", "--files=0"], "from 1 to"),
        (&["bench", "fsmark", "--fsync=2M"], "from 0 to 1048576 bytes"),
        (&["bench", "osync", "--fsync=4K"], "--fsync: only fsmark"),
        (&["bench", "fxmark", "--workload=DRBL,DRXL"], "no workload of FxMark is called DRXL"),
        (&["bench", "dbench", "--clients=1,0"], "numbers of clients"),
        (&["bench", "fsmark", "--workload=DRBL"], "--workload: only fxmark"),
        (&["bench", "overwrite", "--size=1T"], "one group"),
        (&["bench", "nonsense"], "nonsense"),
        (&["bench", "fsmark", "--model"], "no model of fsmark"),
        (&["bench", "all", "--model"], "name one workload"),
        (&["bench", "rangelock", "--model", "--threads=257"], "from 1 to 256 threads"),
        (&["bench", "rangelock", "--model", "--moved-ns=-1"], "--moved-ns"),
    ];
    for (args, message) in cases {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(message), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    assert!(std::fs::read(&file).expect("still there") == precious);
}

#[test]
fn durable_writes_are_compared_with_one_flush_a_round_for_each_latency() {
    let output = output(&[&["bench", "osync", "--device=mem", "--flush-ms=0.1,0.5"], &SMALL[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "each write durable before the next; flush 0.1 ms",
        "each write durable before the next; flush 0.5 ms",
        "device serialized",
        "uxfs concurrent",
        "shared-flush ÷ serialized",
        "shared-flush ÷ one-flush-a-round",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn kernel_xfs_without_root_says_so() {
    const NOBODY: u32 = 65534;
    // Nobody may not look into every place where this was built.
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("uxfs");
    std::fs::copy(env!("CARGO_BIN_EXE_uxfs"), &program).expect("a copy");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("a place for everyone");
    for args in [&["overwrite", "--vs=kernel-xfs"][..], &["trees"]] {
        let mut command = Command::new(&program);
        command.arg("bench").args(args).args(SMALL).stdin(Stdio::null());
        if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().expect("the command starts");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("only root may"), "{said}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn an_interrupted_run_unmounts_what_it_mounted() {
    let dir = tempfile::tempdir().expect("a directory");
    let marker = dir.path().to_str().expect("a plain name").to_owned();
    let mounted = || {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts");
        mounts.lines().any(|line| line.contains(&marker))
    };
    let mut child = uxfs(&["bench", "overwrite", "--vs=kernel-xfs", "--size=64M", "--rounds=10000"])
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let until = Instant::now() + Duration::from_secs(60);
    while !mounted() {
        assert!(Instant::now() < until, "nothing was mounted");
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(11));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert!(!mounted());
    assert_eq!(std::fs::read_dir(dir.path()).expect("still there").count(), 0);
}

#[test]
fn values_separated_by_commas_are_those_of_the_run() {
    let output =
        output(&[&["bench", "osync", "--csv", "--sync=shared-flush", "--flush-ms=0.1"], &SMALL[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines = text.split_terminator("\r\n");
    let columns: Vec<&str> = lines.next().expect("columns").split(',').collect();
    assert!(
        ["workload", "threads", "ops_per_s", "p999_us"].iter().all(|name| columns.contains(name)),
        "{text}"
    );
    let lines: Vec<&str> = lines.collect();
    // Two thread counts of: the device shared, one flush a round, and a volume's file.
    assert_eq!(lines.len(), 6, "{text}");
    for line in lines {
        assert!(line.starts_with("osync,") && line.contains(",\"memory, flush 0.1 ms\","), "{line}");
        // The quoted field has a comma.
        assert_eq!(line.split(',').count(), columns.len() + 1, "{line}");
    }
}

#[test]
fn a_page_that_cannot_be_made_is_told_before_anything_is_measured() {
    let output = output(&["bench", "overwrite", "--rounds=1000000", "--report=/nowhere/page.html"]);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/page.html"), "{said}");
}

#[test]
fn ext4_is_no_place_for_files_that_share_blocks() {
    let output = output(&["bench", "cow", "--vs=kernel-ext4"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("share blocks"));
}

#[test]
fn a_file_that_is_there_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let keep = dir.path().join("keep");
    std::fs::write(&keep, "precious").unwrap();
    let output = output(&["bench", "overwrite", "--keep", keep.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(9));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        format!("uxfs: {}: is there already; name a new file to keep the volume in\n", keep.display())
    );
    assert_eq!(std::fs::read(&keep).unwrap(), b"precious");
}

#[test]
fn what_leaves_no_volume_keeps_none() {
    let dir = tempfile::tempdir().unwrap();
    let keep = dir.path().join("keep");
    for workload in ["cow", "dbench", "fxmark", "handles", "osync", "rangelock"] {
        let output = output(&["bench", workload, "--keep", keep.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, "uxfs: --keep: this workload leaves no volume that could be kept\n");
        assert!(!keep.exists());
    }
}

/// Predictions as JSON Lines.
fn predictions(args: &[&str]) -> Vec<Value> {
    let output = output(&[&["--json", "bench", "--model", "--moved-ns=50"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_prediction_says_that_it_is_one_and_what_it_is_made_of() {
    let lines = predictions(&["rangelock", "--threads=1,2", "--locking=exclusive,range"]);
    // Two thread counts of one operation of the one locking, and of three of the other.
    assert_eq!(lines.len(), 8);
    let number =
        |line: &Value, field: &str| line[field].as_f64().unwrap_or_else(|| panic!("{field}: {line}"));
    for line in &lines {
        assert_eq!((&line["predicted"], &line["moved_line_ns"]), (&Value::Bool(true), &Value::from(50.0)));
        for field in ["ops_per_s", "greedy_ops_per_s", "limit_ops_per_s", "alone_ns", "instructions"] {
            assert!(number(line, field) > 0.0, "{field}: {line}");
        }
        let (moved, serial) = (number(line, "moved_lines"), number(line, "serial_ns"));
        // Threads whose ranges lie elsewhere share nothing in one design, and a lock in the other.
        let shares = line["threads"] == 2 && line["locking"] == "exclusive";
        assert_eq!((moved > 0.0, serial > 0.0), (shares, shares), "{line}");
        assert_eq!(
            line["serial"].as_str().is_some_and(|serial| serial.contains("the lock")),
            shares,
            "{line}"
        );
        assert_eq!(line["worst"].as_array().is_some_and(|worst| !worst.is_empty()), shares, "{line}");
    }
    for pair in lines.chunks(2) {
        let gain = number(&pair[1], "ops_per_s") / number(&pair[0], "ops_per_s");
        let scales = pair[0]["locking"] == "range";
        assert!(if scales { (1.99..2.01).contains(&gain) } else { gain < 1.0 }, "{gain}: {pair:?}");
    }
    let output = output(&["bench", "rangelock", "--model", "--threads=1", "--locking=shared"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("a PREDICTION, not a measurement") && text.contains("serial ns"), "{text}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn requests_on_files_and_journal_handles_are_predicted_too() {
    let small = ["--size=256K", "--pages=64"];
    for (args, ops) in [
        (&["overwrite", "--locking=range", "--threads=1"][..], 2),
        (&["randrw", "--direct", "--depth=4", "--locking=range", "--threads=1"], 1),
        (&["randrw", "--locking=range", "--threads=1"], 1),
        (&["handles", "--handles=locked", "--threads=1"], 3),
    ] {
        let lines = predictions(&[args, &small].concat());
        assert_eq!(lines.len(), ops, "{args:?}");
        for line in lines {
            assert!(line["predicted"] == true && line["ops_per_s"].as_f64() > Some(0.0), "{line}");
        }
    }
}

/// Designs that figures were reported of, at two thread counts of these.
#[test]
#[ignore = "needs root and xfsprogs"]
fn predictions_are_held_against_what_was_reported_of_other_machines() {
    let small = ["--size=256K", "--pages=64", "--threads=1,2"];
    for (args, reported) in [
        (&["overwrite", "--locking=exclusive"][..], &[("read", "exclusive"), ("write", "exclusive")][..]),
        (&["rangelock", "--locking=btree"], &[("all-held", "btree")]),
        (&["handles", "--handles=locked"], &[("start/stop", "handles=locked")]),
    ] {
        let lines = predictions(&[args, &small].concat());
        let found: Vec<(&str, &str)> = lines
            .iter()
            .filter(|line| line["quoted"].is_object())
            .map(|line| {
                (line["op"].as_str().expect("an operation"), line["locking"].as_str().expect("a design"))
            })
            .collect();
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, reported, "{args:?}");
        for line in lines.iter().filter(|line| line["quoted"].is_object()) {
            assert_eq!((&line["threads"], &line["quoted"]["base_threads"]), (&2.into(), &1.into()), "{line}");
            assert!(line["quoted"]["ratio"].as_f64() > Some(0.0), "{line}");
            assert_eq!(line["quoted"]["agrees"].is_null(), args[0] == "handles", "{line}");
        }
    }
    let output =
        output(&["bench", "rangelock", "--model", "--moved-ns=50", "--threads=1,2", "--locking=btree"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("reported of ANOTHER machine") && text.contains("0.19× to 1 thread"), "{text}");
    assert!(text.contains("agrees") || text.contains("DISAGREES"), "{text}");
    assert!(text.contains("(16 processors; pairs a second)"), "{text}");
}

#[test]
fn what_has_no_model_is_said() {
    for args in [&["bench", "osync", "--model"][..], &["bench", "fsmark", "--model"]] {
        let output = output(args);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("there is no model of"), "{said}");
    }
}

#[test]
fn a_prediction_without_valgrind_says_what_to_install() {
    let nothing = tempfile::tempdir().expect("a directory");
    let mut command = uxfs(&["bench", "rangelock", "--model"]);
    let output = command.env("PATH", nothing.path()).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(6));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("install the package valgrind"), "{said}");
    assert!(output.stdout.is_empty());
}

/// Each step leaves on both sides what it should: the run itself looks.
#[test]
#[ignore = "needs root and xfsprogs"]
fn whole_trees_come_in_and_out_beside_the_kernels_tools() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    let images = dir.path().join("images");
    std::fs::create_dir_all(tree.join("below"))
        .and_then(|()| std::fs::create_dir(&images))
        .expect("directories");
    for nth in 0..50 {
        std::fs::write(tree.join(format!("below/file{nth}")), vec![7; 1000 * nth]).expect("room");
    }
    std::fs::hard_link(tree.join("below/file1"), tree.join("again")).expect("room");
    let archive = dir.path().join("tree.tar.gz");
    let packed = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&tree).arg(".").status();
    assert!(packed.expect("tar runs").success());
    for (source, place) in [(&tree, images.to_str().expect("text")), (&archive, "shm")] {
        let (source, place) = (format!("--source={}", source.display()), format!("--device={place}"));
        let output = output(&["--json", "bench", "trees", &source, &place, "--rounds=2"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let ops: Vec<&str> = lines.iter().map(|line| line["op"].as_str().expect("a step")).collect();
        assert_eq!(ops, ["untar", "tar", "find", "rm -r", "cp -r"]);
        for line in &lines {
            // The tree, a directory in it, and fifty files, one of which has two names.
            assert_eq!((&line["names"], &line["median_of"]), (&53.into(), &2.into()), "{line}");
            for field in ["uxfs_s", "kernel_s", "ratio", "peak_mib"] {
                assert!(line[field].as_f64() > Some(0.0), "{field}: {line}");
            }
        }
        assert_eq!(std::fs::read_dir(&images).expect("still there").count(), 0);
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(images.to_str().expect("text")));
    }
    for args in [&["bench", "trees", "--csv"][..], &["bench", "overwrite", "--source=/tmp"]] {
        assert_eq!(output(args).status.code(), Some(2), "{args:?}");
    }
}

/// A page took the place of whatever had its name: of a volume, a device, a file of another kind.
#[test]
fn a_page_takes_the_place_of_a_page_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let args =
        ["bench", "rangelock", "--rounds=1", "--min-time=1", "--size=1M", "--pages=100", "--threads=1"];
    let report = |path: &Path| output(&[&args[..], &[&format!("--report={}", path.display())]].concat());
    assert!(output(&["mkfs", "-q", "--small", path("volume").to_str().unwrap(), "20M"]).status.success());
    std::fs::write(path("text"), "text").unwrap();
    std::os::unix::fs::symlink("text", path("link")).unwrap();
    std::fs::create_dir(path("dir")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let before = |name: &str| {
        let found = path(name).symlink_metadata().unwrap();
        (found.file_type(), found.len(), found.is_file().then(|| std::fs::read(path(name)).unwrap()))
    };
    for name in ["volume", "text", "link", "dir", "fifo"] {
        let was = before(name);
        let output = report(&path(name));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(9), "{name}: {said}");
        assert!(said.contains(name) && said.contains("name a new file"), "{said}");
        assert!(output.stdout.is_empty() && before(name) == was, "{name}");
    }
    assert_eq!(report(Path::new("-")).status.code(), Some(2));
    // A new one, and the same again.
    for _ in 0..2 {
        assert!(report(&path("page.html")).status.success());
        assert!(std::fs::read_to_string(path("page.html")).unwrap().contains("<title>uxfs bench</title>"));
    }
}

/// What means nothing to a workload was taken without a word, and who asked for it could believe that it was measured.
#[test]
fn options_that_mean_nothing_to_a_workload_are_refused() {
    for (workload, option) in [
        ("overwrite", "--direct"),
        ("overwrite", "--block=64K"),
        ("rangelock", "--dirs=3"),
        ("dbench", "--sync=serialized"),
        ("seq", "--force"),
        ("osync", "--compat=6.1"),
        ("overwrite", "--handles=locked"),
        ("cow", "--reservation=locked"),
        ("fxmark", "--cil=single-lock"),
        ("randrw", "--vectors=at-commit"),
        ("rangelock", "--vs=/tmp"),
        ("handles", "--fsync=1K"),
        ("fsmark", "--workload=DRBL"),
        ("all", "--source=/tmp"),
        ("trees", "--direct"),
    ] {
        let output = output(&["bench", workload, option]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{workload} {option}: {said}");
        let name = option.split('=').next().unwrap();
        assert!(said.starts_with(&format!("uxfs: {name}: ")) && output.stdout.is_empty(), "{said}");
    }
}
