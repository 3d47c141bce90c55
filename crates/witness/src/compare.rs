//! Compares two manifests, object by object.
//!
//! Invariant: an object that only one side has, and a field that both sides have with different values, are always
//! reported. A field that is absent on one side is not compared, unless the tables say that it must be there. The
//! outcome counts the skipped fields, so that nothing goes unnoticed.

use crate::record::{self, Record};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Compares two manifests; succeeds only if they are equal.
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// One manifest.
    a: PathBuf,
    /// The other.
    b: PathBuf,
    /// How many differences to print.
    #[arg(long, default_value_t = 50)]
    show: usize,
}

/// What a comparison found.
#[derive(Debug, Default)]
pub struct CompareOutcome {
    /// Objects that both sides have.
    pub objects: u64,
    /// Differences, as lines to print.
    pub differences: Vec<String>,
    /// Fields that only one side had, by name, and how often.
    pub one_sided: BTreeMap<String, u64>,
}

/// Fields that not every source has.
const OPTIONAL: [&str; 1] = ["inode.content.extents"];

/// Runs the command. `Ok(true)`: the manifests are equal.
pub fn run(args: &Args) -> Result<bool> {
    let outcome = compare(&load(&args.a)?, &load(&args.b)?)?;
    outcome.print(args.show);
    Ok(outcome.differences.is_empty())
}

/// Reads the manifest in a file.
pub fn load(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    record::read(&mut BufReader::new(file)).with_context(|| path.display().to_string())
}

impl CompareOutcome {
    /// Prints the differences, `show` at most, and a closing line.
    pub fn print(&self, show: usize) {
        for line in self.differences.iter().take(show) {
            println!("{line}");
        }
        if self.differences.len() > show {
            println!("… and {} more", self.differences.len() - show);
        }
        for (field, count) in &self.one_sided {
            println!("{field}: not compared for {count} objects (one side does not say it)");
        }
        println!("{} objects compared, {} differences", self.objects, self.differences.len());
    }
}

/// Compares two sorted manifests.
pub fn compare(a: &[Record], b: &[Record]) -> Result<CompareOutcome> {
    let mut outcome = CompareOutcome::default();
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return Ok(outcome),
            (Some(x), Some(y)) if x.path == y.path => {
                outcome.objects += 1;
                if x != y {
                    let (x, y) = (serde_json::to_value(x)?, serde_json::to_value(y)?);
                    let path = x["path"].as_str().unwrap_or_default().to_owned();
                    fields(&path, "", Some(&x), Some(&y), &mut outcome);
                }
                left.next();
                right.next();
            }
            (Some(x), y) if y.is_none_or(|y| x.path < y.path) => {
                outcome.differences.push(format!("{}: only in the first", x.path));
                left.next();
            }
            (_, Some(y)) => {
                outcome.differences.push(format!("{}: only in the second", y.path));
                right.next();
            }
            (Some(_), None) => unreachable!("the arm before takes it"),
        }
    }
}

/// Compares two values, field by field.
fn fields(path: &str, name: &str, a: Option<&Value>, b: Option<&Value>, outcome: &mut CompareOutcome) {
    match (a, b) {
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            let mut keys: Vec<&String> = x.keys().chain(y.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let inner = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                fields(path, &inner, x.get(key), y.get(key), outcome);
            }
        }
        (Some(Value::Array(x)), Some(Value::Array(y))) if x != y => {
            let at = x.iter().zip(y).take_while(|(p, q)| p == q).count();
            outcome.differences.push(format!(
                "{path}: {name} ({} and {} elements): at {at}: {} / {}",
                x.len(),
                y.len(),
                shown(x.get(at)),
                shown(y.get(at))
            ));
        }
        (None, Some(_)) | (Some(_), None) if OPTIONAL.contains(&name) => {
            *outcome.one_sided.entry(name.to_owned()).or_default() += 1;
        }
        (x, y) if x != y => {
            outcome.differences.push(format!("{path}: {name}: {} / {}", shown(x), shown(y)));
        }
        _ => {}
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Content, Inode, MapRun, RunState};

    fn sample() -> Vec<Record> {
        let content = Content {
            hash: "00".into(),
            data: vec![(0, 5)],
            extents: Some(vec![MapRun(0, 4096, 5, RunState::Written)]),
        };
        let inode = Inode { size: 5, content: Some(content), ..Inode::default() };
        vec![
            Record { path: "/".into(), ino: 64, ..Record::default() },
            Record { path: "/a".into(), ino: 65, inode: Some(inode), ..Record::default() },
            Record { path: "/b".into(), ino: 66, ..Record::default() },
        ]
    }

    /// A manifest with one thing changed.
    fn changed(change: impl Fn(&mut Vec<Record>)) -> usize {
        let mut other = sample();
        change(&mut other);
        let there = compare(&sample(), &other).unwrap().differences.len();
        let back = compare(&other, &sample()).unwrap().differences.len();
        assert_eq!(there, back);
        there
    }

    #[test]
    fn equal_manifests_have_no_difference() {
        let outcome = compare(&sample(), &sample()).unwrap();
        assert_eq!((outcome.objects, outcome.differences.len()), (3, 0));
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        assert_eq!(changed(|m| drop(m.remove(0))), 1);
        assert_eq!(changed(|m| drop(m.remove(1))), 1);
        assert_eq!(changed(|m| drop(m.pop())), 1);
        assert_eq!(changed(|m| m[2].ino = 7), 1);
        assert_eq!(changed(|m| m[1].inode.as_mut().unwrap().mtime = 7), 1);
        assert_eq!(changed(|m| m[1].inode = None), 1);
        assert_eq!(changed(|m| m[1].inode.as_mut().unwrap().btime = Some(7)), 1);
        let data = |m: &mut Vec<Record>| m[1].inode.as_mut().unwrap().content.as_mut().unwrap().data[0].1 = 4;
        assert_eq!(changed(data), 1);
        let state = |m: &mut Vec<Record>| {
            let content = m[1].inode.as_mut().unwrap().content.as_mut().unwrap();
            content.extents.as_mut().unwrap()[0].3 = RunState::Shared;
        };
        assert_eq!(changed(state), 1);
    }

    #[test]
    fn a_field_that_may_be_absent_is_counted() {
        let mut other = sample();
        other[1].inode.as_mut().unwrap().content.as_mut().unwrap().extents = None;
        let outcome = compare(&sample(), &other).unwrap();
        assert!(outcome.differences.is_empty());
        assert_eq!(outcome.one_sided["inode.content.extents"], 1);
    }
}
