//! `uxfs recover`: replays the log of a volume that was not unmounted cleanly, and says what was in it.

use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::location::{self, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output};
use serde_json::{Value, json};
use uxfs::{OpenOptions, Recovery, Volume};

/// Arguments of `recover`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image file or block device; it must not be mounted
    #[arg(value_name = "IMAGE", value_parser = parser())]
    image: Location,
    /// Replay only in memory, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Recovers, and prints a summary.
pub fn run(args: &Args, global: &Global) -> Result<Exit> {
    let image = &args.image.image;
    if global.norecovery {
        let what = "recover: --norecovery leaves the log as it is, and there is nothing else to do";
        return Err(Failure::new(Exit::Usage, what));
    }
    location::check(image)?;
    let failure = |error| args.image.failure(&error);
    let options = args.image.options(global)?;
    if args.dry_run {
        return dry_run(args, &options, global);
    }
    interrupt::watch();
    let volume = Volume::open(image, &options.writable(true)).map_err(failure)?;
    volume.close().map_err(failure)?;
    say(&Found::of(&volume), false, global)?;
    Ok(Exit::Ok)
}

/// Recovers in memory. What a recovery of the image would fail with is the failure of this one, after what a reader
/// finds in the log.
fn dry_run(args: &Args, options: &OpenOptions, global: &Global) -> Result<Exit> {
    let image = &args.image.image;
    let writer = uxfs::written_by(image);
    let in_memory = options.clone().writable(true).changes_in_memory(true);
    let tried = Volume::open(image, &in_memory).and_then(|volume| {
        let found = Found::of(&volume);
        volume.close().map(|()| found)
    });
    let failure = |error| args.image.failure(&error);
    let (mut found, refused) = match tried {
        Ok(found) => (found, None),
        Err(error) => (Found::of(&Volume::open(image, options).map_err(failure)?), Some(error)),
    };
    if let Some(recovery) = &mut found.recovery {
        recovery.written = false;
    }
    location::warn_of_writer(&args.image, writer);
    say(&found, true, global)?;
    refused.map_or(Ok(Exit::Ok), |error| Err(failure(error)))
}

/// What was found, and done about it.
struct Found {
    recovery: Option<Recovery>,
    copies_settled: bool,
    log_traces_cleared: bool,
}

impl Found {
    fn of(volume: &Volume) -> Self {
        let (copies_settled, log_traces_cleared) = (volume.copies_settled(), volume.log_traces_cleared());
        Self { recovery: volume.recovery(), copies_settled, log_traces_cleared }
    }
}

/// Prints what recovery found.
fn say(found: &Found, is_dry_run: bool, global: &Global) -> Result<()> {
    let mut out = Output::new(global);
    let recovery = found.recovery.as_ref();
    if out.is_json() {
        let mut object = object(recovery);
        if recovery.is_none() {
            let does_write = found.copies_settled || found.log_traces_cleared;
            object.insert("written".to_owned(), (does_write && !is_dry_run).into());
        }
        object.insert("superblock_copies_updated".to_owned(), found.copies_settled.into());
        object.insert("log_end_cleared".to_owned(), found.log_traces_cleared.into());
        out.object(object)?;
    } else {
        text(recovery, &mut out)?;
        // After a recovery that goes without saying.
        if recovery.is_none() && found.log_traces_cleared {
            out.text("cleared what a crash or a repair had left behind the end of the log\n")?;
        }
        if found.copies_settled {
            out.text("copies of the superblock brought up to date: a change of size, label, UUID or features was cut short\n")?;
        }
    }
    out.finish()
}

fn object(recovery: Option<&Recovery>) -> Object {
    let fields = match recovery {
        None => json!({ "was_clean": true }),
        Some(found) => json!({
            "was_clean": false,
            "tail_cycle": found.tail.0,
            "tail_block": found.tail.1,
            "last_cycle": found.last.0,
            "last_block": found.last.1,
            "log_bytes": found.log_bytes,
            "records": found.records,
            "transactions": found.transactions,
            "transactions_dropped": found.dropped,
            "items": found.items,
            "items_replayed": found.replayed,
            "items_newer_on_disk": found.newer,
            "items_of_freed_blocks": found.cancelled,
            "bytes_changed": found.bytes_changed,
            "unfinished": found.unfinished,
            "obstacle": found.obstacle,
            "extents_freed": found.extents_freed,
            "inodes_freed": found.inodes_freed,
            "written": found.written,
        }),
    };
    match fields {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

fn text(recovery: Option<&Recovery>, out: &mut Output) -> Result<()> {
    let Some(found) = recovery else { return out.text("the log is clean: nothing to recover\n") };
    out.text(format_args!(
        "log from {}:{} to {}:{} (cycle:block), {} bytes in {} records\n",
        found.tail.0, found.tail.1, found.last.0, found.last.1, found.log_bytes, found.records
    ))?;
    out.text(format_args!(
        "{} transactions with {} items; {} never committed\n",
        found.transactions, found.items, found.dropped
    ))?;
    out.text(format_args!(
        "{} items replayed, {} older than what is on disk, {} of blocks that were freed; {} bytes of metadata changed\n",
        found.replayed, found.newer, found.cancelled, found.bytes_changed
    ))?;
    for what in &found.unfinished {
        out.text(format_args!("unfinished: {what}\n"))?;
    }
    if let Some(obstacle) = &found.obstacle {
        return out.text(format_args!("{obstacle}\n"));
    }
    if !found.written {
        return out.text("nothing was written\n");
    }
    out.text(format_args!(
        "{} extents freed to finish what was begun, {} inodes without a name freed; the log is clean\n",
        found.extents_freed, found.inodes_freed
    ))
}
