//! Every sentence that README, SECURITY and the help of the verbs say of what is refused, kept or guaranteed stands in
//! `promises.txt` beside the tests that hold it. So whoever changes a sentence sees its test, and whoever writes a
//! new one owes a test.
//!
//! The list: a sentence a line, and below it, indented, its tests: `FILE::TEST`, or a line of `ci/test`.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIST: &str = include_str!("promises.txt");

/// Words that make a sentence a promise.
const WORDS: [&str; 28] = [
    "refuse",
    "refuses",
    "refused",
    "keep",
    "keeps",
    "kept",
    "lost",
    "loses",
    "never",
    "not",
    "nothing",
    "nobody",
    "only",
    "alone",
    "guarantee",
    "guaranteed",
    "always",
    "same",
    "exact",
    "exactly",
    "cannot",
    "must",
    "whole",
    "durable",
    "untouched",
    "unchanged",
    "closed",
    "wrong",
];

/// Documents that speak to users.
const DOCUMENTS: [&str; 2] = ["README.md", "SECURITY.md"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(repository().join(path)).ok()
}

/// One line of text as the list has it.
fn plain(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .trim_matches(|c: char| "|-#> ".contains(c))
        .to_owned()
}

/// Splits prose where sentences end.
fn sentences(text: &str) -> Vec<String> {
    let (mut all, mut rest) = (Vec::new(), text);
    while let Some(end) = rest.find([' ', '\n']).and_then(|_| {
        rest.char_indices().zip(rest.chars().skip(1)).position(|((_, a), b)| ".!?".contains(a) && b == ' ')
    }) {
        let at = rest.char_indices().nth(end + 1).map_or(rest.len(), |(at, _)| at);
        all.push(plain(&rest[..at]));
        rest = &rest[at..];
    }
    all.push(plain(rest));
    all.retain(|sentence| !sentence.is_empty());
    all
}

/// Sentences of a document: its prose, the cells of its tables, the comments beside its commands.
fn of_document(text: &str) -> Vec<String> {
    let (mut all, mut paragraph, mut in_code) = (Vec::new(), String::new(), false);
    let flush = |paragraph: &mut String, all: &mut Vec<String>| {
        all.extend(sentences(&std::mem::take(paragraph)));
    };
    for line in text.lines().chain([""]) {
        if line.trim_start().starts_with("```") {
            flush(&mut paragraph, &mut all);
            in_code = !in_code;
        } else if in_code {
            all.extend(line.split_once(" # ").or(line.split_once("# ")).map(|(_, said)| plain(said)));
        } else if line.trim_start().starts_with('|') {
            flush(&mut paragraph, &mut all);
            line.split('|').for_each(|cell| all.extend(sentences(cell)));
        } else {
            if line.trim().is_empty() || line.trim_start().starts_with(['-', '#']) {
                flush(&mut paragraph, &mut all);
            }
            let _ = write!(paragraph, "{line} ");
        }
    }
    flush(&mut paragraph, &mut all);
    all
}

fn help(verb: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_uxfs")).args(verb).arg("--help").output().expect("it starts");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Verbs that a help names.
fn verbs(help: &str) -> Vec<&str> {
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = commands.take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").collect()
}

/// Sentences of a help: what stands beside each option, and its prose, whose lines belong together.
fn of_help(text: &str) -> Vec<String> {
    let (mut all, mut paragraph) = (Vec::new(), String::new());
    for line in text.lines().chain([""]) {
        if line.is_empty() || line.starts_with(' ') {
            all.extend(sentences(&std::mem::take(&mut paragraph)));
        }
        // Two spaces part an option from what is said of it.
        match line.trim_start().split_once("  ") {
            Some((_, said)) if line.starts_with(' ') => all.extend(sentences(said)),
            None if line.trim_start().starts_with(['-', '<']) => {}
            _ => {
                let _ = write!(paragraph, "{line} ");
            }
        }
    }
    all
}

/// Whether a sentence promises something.
fn is_promise(sentence: &str) -> bool {
    let lower = sentence.to_lowercase();
    let mut words = lower.split(|c: char| !c.is_alphanumeric());
    // One or two words are a heading.
    sentence.split(' ').count() > 2 && words.any(|word| WORDS.contains(&word))
}

/// All that is promised, and where.
fn promised() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for document in DOCUMENTS {
        for sentence in read(document).iter().flat_map(|text| of_document(text)) {
            all.insert(sentence, document.to_owned());
        }
    }
    let mut todo = vec![Vec::new()];
    while let Some(verb) = todo.pop() {
        let words: Vec<&str> = verb.iter().map(String::as_str).collect();
        let text = help(&words);
        for below in verbs(&text) {
            todo.push([verb.clone(), vec![below.to_owned()]].concat());
        }
        for sentence in of_help(&text) {
            all.entry(sentence).or_insert_with(|| format!("uxfs {} --help", words.join(" ")));
        }
    }
    all.retain(|sentence, _| is_promise(sentence));
    all
}

/// The list: sentences and their tests.
fn held() -> BTreeMap<&'static str, Vec<&'static str>> {
    let (mut all, mut last) = (BTreeMap::<_, Vec<_>>::new(), "");
    for line in LIST.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if line.starts_with(' ') {
            all.entry(last).or_default().push(line.trim());
        } else {
            last = line.trim();
            assert!(all.insert(last, Vec::new()).is_none(), "promises.txt has this twice: {last}");
        }
    }
    all
}

/// Whether a reference leads to a test.
fn exists(reference: &str) -> bool {
    let Some((file, name)) = reference.split_once("::") else {
        return read("ci/test").is_some_and(|text| text.lines().any(|line| line.trim() == reference));
    };
    let Some(text) = read(file) else { return false };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let named = lines.iter().position(|line| line.starts_with(&format!("fn {name}(")));
    named.is_some_and(|at| lines[at.saturating_sub(4)..at].iter().any(|line| line.starts_with("#[test")))
}

#[test]
fn every_promise_has_a_test() {
    let (promised, held) = (promised(), held());
    let mut wrong = String::new();
    for (sentence, place) in &promised {
        if held.get(sentence.as_str()).is_none_or(Vec::is_empty) {
            let _ = writeln!(wrong, "no test ({place}): {sentence}");
        }
    }
    for sentence in held.keys().filter(|sentence| !promised.contains_key(**sentence)) {
        let _ = writeln!(wrong, "nobody says this any more: {sentence}");
    }
    let references: BTreeSet<_> = held.values().flatten().collect();
    for reference in references.into_iter().filter(|reference| !exists(reference)) {
        let _ = writeln!(wrong, "no such test: {reference}");
    }
    assert!(wrong.is_empty(), "promises.txt and what is promised differ:\n{wrong}");
}

#[test]
fn sentences_are_found_where_they_end() {
    assert_eq!(sentences("It is 6.1. So it is! Or? yes"), ["It is 6.1.", "So it is!", "Or?", "yes"]);
    let help = "Prose over\nlines. More\n\nOptions:\n  -x, --xx <Y>  Keeps it. Always\n  --long <Y>\n          Below it\n";
    assert_eq!(of_help(help), ["Prose over lines.", "More", "Options:", "Keeps it.", "Always", "Below it"]);
    let document = "# Title\nSome prose\nover lines. More\n\n| a | b. c |\n```sh\ncmd # never lost\n```\n";
    assert_eq!(of_document(document), ["Title Some prose over lines.", "More", "a", "b.", "c", "never lost"]);
    assert!(is_promise("It is never lost.") && !is_promise("Another notion of noise"));
}
