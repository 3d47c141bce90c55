//! `uxfs check`: walks all metadata of a volume, and says what is wrong with it.

use crate::exit::{Exit, Result};
use crate::location::{self, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output, put_name};
use serde_json::{Value, json};
use uxfs::{CheckReport, Finding};

/// Arguments of `check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device; it should not be mounted
    #[arg(value_name = "IMAGE", value_parser = parser())]
    image: Location,
}

/// Prints what is wrong, a line each, and a summary.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let image = &args.image.image;
    location::check(image)?;
    let options = args.image.options(global)?;
    let writer = uxfs::written_by(image);
    let report = uxfs::check(image, &options).map_err(|error| args.image.failure(&error))?;
    location::warn_of_writer(&args.image, writer);
    let mut out = Output::new(global);
    if out.is_json() {
        for finding in &report.findings {
            out.object(object(finding))?;
        }
        out.object(summary(&report))?;
    } else {
        text(&report, &mut out)?;
    }
    out.finish()?;
    Ok(if report.is_clean() { Exit::Ok } else { Exit::Damaged })
}

fn object(finding: &Finding) -> Object {
    let fields = json!({
        "group": finding.group,
        "block": finding.block,
        "inode": finding.inode,
        "structure": finding.structure,
        "what": finding.what,
        "found": finding.found,
        "expected": finding.expected,
    });
    let mut object = into_object(fields);
    if let Some(name) = &finding.name {
        put_name(&mut object, "name", name);
    }
    object
}

fn summary(report: &CheckReport) -> Object {
    into_object(json!({
        "summary": {
            "clean": report.is_clean(),
            "findings": report.total,
            "findings_left_out": report.total - report.findings.len() as u64,
            "stopped": report.stopped,
            "log_clean": report.log_clean,
            "log_replayed": report.recovery.is_some(),
            "owners_known": report.owners_known,
            "names_known": report.names_known,
            "groups": report.groups,
            "inodes": report.inodes,
            "directories": report.directories,
            "names": report.names,
            "extents": report.extents,
            "attributes": report.attributes,
        }
    }))
}

fn into_object(fields: Value) -> Object {
    match fields {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

fn text(report: &CheckReport, out: &mut Output) -> Result<()> {
    for finding in &report.findings {
        out.text(format_args!("{finding}\n"))?;
    }
    let left_out = report.total - report.findings.len() as u64;
    if left_out > 0 {
        out.text(format_args!("… and {left_out} findings more\n"))?;
    }
    if report.stopped {
        out.text("too many findings: the rest was not checked\n")?;
    }
    if let Some(recovery) = &report.recovery {
        out.text(
            "the log is dirty: it was replayed in memory, and the volume was checked as it is after that\n",
        )?;
        if !recovery.unfinished.is_empty() {
            let names = recovery.unfinished.join(", ");
            out.text(format_args!(
                "recovery has work to finish, which hides some owners of blocks: {names}\n"
            ))?;
        }
    } else if !report.log_clean {
        out.text("the log is dirty and was ignored; the findings may come from that alone\n")?;
    }
    let unfinished = report.recovery.as_ref().is_some_and(|recovery| !recovery.unfinished.is_empty());
    if !report.owners_known && !unfinished {
        out.text("blocks without an owner were not looked for, as some owners cannot be read\n")?;
    }
    if !report.names_known {
        out.text("link counts were not judged, as some directories cannot be read\n")?;
    }
    out.text(format_args!(
        "{} groups, {} inodes, {} directories, {} names, {} extents, {} attributes: {}\n",
        report.groups,
        report.inodes,
        report.directories,
        report.names,
        report.extents,
        report.attributes,
        match report.total {
            0 => "clean".to_owned(),
            1 => "1 finding".to_owned(),
            total => format!("{total} findings"),
        }
    ))
}
