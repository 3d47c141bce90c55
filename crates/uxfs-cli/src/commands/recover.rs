//! `uxfs recover`: replays the log of a volume that was not unmounted cleanly, and says what was in it.

use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::location::{self, Location, parser};
use crate::options::Global;
use crate::output::{Object, Output};
use serde_json::{Value, json};
use uxfs::{Recovery, Volume};

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
    let options = args.image.options(global)?.writable(!args.dry_run);
    let writer = args.dry_run.then(|| uxfs::written_by(image)).flatten();
    if !args.dry_run {
        interrupt::watch();
    }
    let volume = Volume::open(image, &options).map_err(failure)?;
    location::warn_of_writer(&args.image, writer);
    let (recovery, copies_settled) = (volume.recovery(), volume.copies_settled());
    if !args.dry_run {
        volume.close().map_err(failure)?;
    }
    let mut out = Output::new(global);
    if out.is_json() {
        let mut object = object(recovery.as_ref());
        object.insert("superblock_copies_updated".to_owned(), copies_settled.into());
        out.object(object)?;
    } else {
        text(recovery.as_ref(), &mut out)?;
        if copies_settled {
            out.text("copies of the superblock brought up to date: a change of size, label, UUID or features was cut short\n")?;
        }
    }
    out.finish()?;
    // A dry run reports the failure that a real one would have.
    let stuck = recovery.is_some_and(|recovery| recovery.obstacle.is_some());
    Ok(if stuck { Exit::DirtyLog } else { Exit::Ok })
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
