//! Logs that the kernel and mkfs wrote, read by us and by `xfs_logprint`: same ends, same records, same
//! operations, same items.
//!
//! Needs root, `mkfs.xfs`, `xfs_logprint`, `xfs_io` and a kernel with XFS.
#![forbid(unsafe_code)]

mod image;
mod intents;
mod transactions;

use image::{Image, run};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use transactions::Transactions;
use xfs_format::log::{
    BLOCK_SIZE, Client, InodeFields, ItemType, LogDinode, LogItem, Op, OpFlags, RECORD_MAGIC, RecordOps,
    TransHeader,
};

/// An operation as `xfs_logprint` says it, with the lines that say what it holds.
#[derive(Debug)]
struct PrintedOp {
    tid: u32,
    len: usize,
    client: String,
    flags: String,
    lines: Vec<String>,
}

#[derive(Debug)]
struct PrintedRecord {
    cycle: u32,
    lsn: u64,
    tail_lsn: u64,
    len: u32,
    num_ops: u32,
    size: u32,
    ops: Vec<PrintedOp>,
}

/// What stands behind `key` in a line, up to a space or comma.
fn after<'a>(line: &'a str, key: &str) -> &'a str {
    let at = line.find(key).unwrap_or_else(|| panic!("no {key:?} in {line:?}")) + key.len();
    line[at..].trim_start().split(|c: char| c.is_whitespace()).next().unwrap()
}

fn lsn(text: &str) -> u64 {
    let (cycle, block) = text.split_once(',').unwrap();
    cycle.parse::<u64>().unwrap() << 32 | block.parse::<u64>().unwrap()
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => text.parse::<i64>().unwrap() as u64,
    }
}

/// All records that `xfs_logprint` finds, by their block; if `from` says so, those from a block on.
fn printed(image: &Path, from: Option<u32>) -> HashMap<u32, PrintedRecord> {
    // It stumbles over a record that goes round the log's end (hence -c), and its exit status says nothing of
    // use.
    let mut command = Command::new("xfs_logprint");
    command.arg("-c");
    if let Some(block) = from {
        command.args(["-s", &block.to_string()]);
    }
    let out = command.arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let mut records = HashMap::new();
    let mut current: Option<PrintedRecord> = None;
    for line in text.lines() {
        if line.starts_with("cycle: ") {
            if let Some(done) = current.take() {
                records.insert(done.lsn as u32, done);
            }
            current = Some(PrintedRecord {
                cycle: after(line, "cycle:").parse().unwrap(),
                lsn: lsn(after(line, "\tlsn:")),
                tail_lsn: lsn(after(line, "tail_lsn:")),
                len: 0,
                num_ops: 0,
                size: 0,
                ops: Vec::new(),
            });
            continue;
        }
        let Some(record) = &mut current else { continue };
        if line.starts_with("length of Log Record:") {
            record.len = after(line, "Record:").parse().unwrap();
            record.num_ops = after(line, "num ops:").parse().unwrap();
        } else if line.starts_with("h_size:") {
            record.size = after(line, "h_size:").parse().unwrap();
        } else if line.starts_with("Oper (") {
            record.ops.push(PrintedOp {
                tid: u32::from_str_radix(after(line, "tid:"), 16).unwrap(),
                len: after(line, " len:").parse().unwrap(),
                client: after(line, "clientid:").into(),
                flags: line.split_once("flags:").unwrap().1.trim().into(),
                lines: Vec::new(),
            });
        } else if let Some(op) = record.ops.last_mut() {
            op.lines.push(line.into());
        }
    }
    records.extend(current.map(|done| (done.lsn as u32, done)));
    records
}

fn flag_words(flags: OpFlags) -> String {
    let names = [
        (OpFlags::START, "START"),
        (OpFlags::COMMIT, "COMMIT"),
        (OpFlags::WAS_CONT, "WAS_CONT"),
        (OpFlags::UNMOUNT, "UNMOUNT"),
        (OpFlags::CONTINUE, "CONTINUE"),
        (OpFlags::END, "END"),
    ];
    let words: Vec<_> = names.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, n)| *n).collect();
    if words.is_empty() { "none".into() } else { words.join(" ") }
}

/// What was compared, so that a test can tell that it compared something.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    records: usize,
    ops: usize,
    transactions: usize,
    items: HashMap<&'static str, usize>,
}

impl Seen {
    fn item(&mut self, name: &'static str) {
        *self.items.entry(name).or_default() += 1;
    }

    fn items_of(&self, name: &str) -> usize {
        self.items.get(name).copied().unwrap_or(0)
    }
}

/// Compares the item that begins with this operation, where logprint names its fields.
fn compare_item(op: &Op<'_>, printed: &PrintedOp, seen: &mut Seen) {
    let text = printed.lines.join(" ");
    let Some(first) = printed.lines.first() else { return };
    let field = |key: &str| number(after(&text, key).trim_end_matches(','));
    if first.starts_with("TRAN:") {
        let header = TransHeader::parse(op.data).unwrap();
        assert_eq!(u64::from(header.num_items.get()), field("num_items:"));
        return;
    }
    let parsed = || LogItem::parse(op.data).unwrap_or_else(|e| panic!("{printed:?}: {e}"));
    if first.starts_with("BUF:") {
        let (ItemType::Buf, regions, LogItem::Buf(buf)) = parsed() else { panic!("{printed:?}") };
        assert_eq!(u64::from(regions), field("#regs:"));
        assert_eq!(buf.daddr.0, field("start blkno:"));
        assert_eq!(u64::from(buf.len), field(" len:"));
        assert_eq!(buf.map_words() as u64, field("bmap size:"));
        assert!(!buf.flags.is_empty() || buf.runs().count() > 0, "{buf:?}");
        seen.item("BUF");
    } else if first.starts_with("INODE:") {
        let (ItemType::Inode, regions, LogItem::Inode(inode)) = parsed() else { panic!("{printed:?}") };
        assert_eq!(u64::from(regions), field("#regs:"));
        assert_eq!(inode.ino.0, field("ino:"));
        assert_eq!(u64::from(inode.fields.bits()), field("flags:"));
        assert_eq!(u64::from(inode.dsize), field("dsize:"));
        assert_eq!(inode.daddr.0, field("blkno:"));
        assert_eq!(u64::from(inode.len), field(" len:"));
        assert_eq!(u64::from(inode.offset), field("boff:"));
        assert!(inode.fields.contains(InodeFields::CORE));
        seen.item("INODE");
    } else if first.starts_with("INODE CORE") {
        let core = LogDinode::parse(op.data).unwrap();
        assert_eq!(format!("{:o}", core.mode.get()), after(&text, "mode 0"));
        assert_eq!(u64::from(core.nlink.get()), field("nlink "));
        assert_eq!(u64::from(core.uid.get()), field("uid "));
        assert_eq!(core.size.get(), field("size "));
        assert_eq!(core.nblocks.get(), field("nblocks "));
        assert_eq!(u64::from(core.forkoff), field("forkoff "));
        assert_eq!(u64::from(core.gen_.get()), field("gen "));
        assert_eq!(u64::from(core.format), field("format "));
        seen.item("INODE CORE");
    } else if first.starts_with("ICR:") {
        let (ItemType::InodeCreate, 1, LogItem::InodeCreate(chunk)) = parsed() else { panic!("{printed:?}") };
        assert_eq!(u64::from(chunk.ag().0), field("#ag:"));
        assert_eq!(u64::from(chunk.agbno().0), field("agbno:"));
        assert_eq!(u64::from(chunk.count.get()), field("cnt:"));
        assert_eq!(u64::from(chunk.isize.get()), field("isize:"));
        assert_eq!(u64::from(chunk.gen_.get()), field("gen:"));
        seen.item("ICR");
    } else if first.starts_with("EFI:") {
        let (ItemType::Efi, 1, LogItem::FreeIntent(efi)) = parsed() else { panic!("{printed:?}") };
        assert_eq!(efi.id, field("id:"));
        let list: String =
            efi.extents.iter().map(|e| format!("(s: {:#x}, l: {}) ", e.start.0, e.len)).collect();
        assert!(text.contains(list.trim()), "{list} is not in {text}");
        seen.item("EFI");
    } else if first.starts_with("EFD:") {
        let (ItemType::Efd, 1, LogItem::FreeDone(efd)) = parsed() else { panic!("{printed:?}") };
        assert_eq!(efd.id, field("id:"));
        assert_eq!(efd.extents.iter().count() as u64, field("num_extents:"));
        seen.item("EFD");
    } else if ["RUI:", "CUI:", "BUI:"].iter().any(|name| first.starts_with(name)) {
        let (name, id, extents) = match parsed() {
            (ItemType::Rui, 1, LogItem::RmapIntent(i)) => ("RUI", i.id, i.iter().count()),
            (ItemType::Cui, 1, LogItem::RefcountIntent(i)) => ("CUI", i.id, i.iter().count()),
            (ItemType::Bui, 1, LogItem::BmapIntent(i)) => ("BUI", i.id, i.iter().count()),
            other => panic!("{printed:?} {other:?}"),
        };
        assert!(first.starts_with(name));
        assert_eq!(extents as u64, field("num_extents:"));
        assert_eq!(id, field("id:"));
        seen.item(name);
    } else if ["RUD:", "CUD:", "BUD:"].iter().any(|name| first.starts_with(name)) {
        let (_, 1, LogItem::Done(done)) = parsed() else { panic!("{printed:?}") };
        assert_eq!(done.intent_id.get(), field("id:"));
        seen.item("done");
    }
}

/// Compares all that can be compared.
fn compare(image: &Image) -> Seen {
    let (path, log) = (image.path(), image.log());
    let ends = log.ends();
    let summary = run("xfs_logprint", &["-t", path.to_str().unwrap()]);
    let line = summary.lines().find(|line| line.contains("log tail:")).unwrap();
    let state = if ends.clean { "<CLEAN>" } else { "<DIRTY>" };
    let tail = if ends.clean { ends.head } else { ends.tail.0 as u32 };
    assert_eq!(
        (after(line, "head:"), after(line, "tail:"), after(line, "state:")),
        (ends.head.to_string().as_str(), tail.to_string().as_str(), state)
    );

    let mut seen = Seen::default();
    let mut known = printed(&path, None);
    let mut transactions = Transactions::default();
    for block in log.live_records(&ends) {
        let (header, data) = log.record(block);
        transactions.feed_record(&header, &data);
        if known.get(&block).is_none_or(|theirs| theirs.ops.is_empty()) {
            // Behind a record that goes round it counts blocks wrong, and may take its leave before the last record:
            // it knows that one if it is asked for it.
            known.extend(printed(&path, Some(block)).remove_entry(&block));
        }
        let Some(theirs) = known.get(&block).filter(|theirs| !theirs.ops.is_empty()) else {
            let over_the_end = block + header.total_blocks() > log.blocks();
            assert!(over_the_end, "xfs_logprint has no record at {block}");
            continue;
        };
        assert_eq!(header.lsn().0, theirs.lsn);
        assert_eq!(header.tail_lsn().0, theirs.tail_lsn);
        assert_eq!(header.cycle.get(), theirs.cycle);
        assert_eq!(header.len.get(), theirs.len);
        assert_eq!(header.size.get(), theirs.size);
        assert_eq!(header.num_logops.get(), theirs.num_ops);
        seen.records += 1;
        let ops: Vec<_> = RecordOps::new(&data, header.num_logops.get()).map(Result::unwrap).collect();
        assert_eq!(ops.len(), theirs.ops.len(), "record at {block}");
        for (ours, theirs) in ops.iter().zip(&theirs.ops) {
            assert_eq!((ours.tid, ours.data.len()), (theirs.tid, theirs.len));
            let client = if ours.client == Client::Log { "LOG" } else { "TRANS" };
            assert_eq!(client, theirs.client);
            assert_eq!(flag_words(ours.flags), theirs.flags);
            if !ours.flags.intersects(OpFlags::CONTINUE | OpFlags::WAS_CONT) {
                compare_item(ours, theirs, &mut seen);
            }
            seen.ops += 1;
        }
    }
    seen.transactions = transactions.count;
    println!("{ends:?} {seen:?}");
    seen
}

/// Work that makes log items of many kinds.
fn varied(dir: &Path) {
    for i in 0..200 {
        let sub = dir.join(format!("d{i}"));
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("file with a name of some length"), vec![i as u8; i * 40]).unwrap();
        fs::hard_link(sub.join("file with a name of some length"), sub.join("link")).unwrap();
        std::os::unix::fs::symlink("x".repeat(i * 4 + 1), sub.join("symlink")).unwrap();
    }
    let big = dir.join("big");
    fs::write(&big, vec![7; 4 << 20]).unwrap();
    run("sync", &[]);
    let mut punch = vec!["-c".to_owned(), "fsync".to_owned()];
    for i in 0..100 {
        punch.extend(["-c".to_owned(), format!("fpunch {} 4096", i * 16384)]);
    }
    punch.push(big.to_str().unwrap().to_owned());
    run("xfs_io", &punch.iter().map(String::as_str).collect::<Vec<_>>());
    for i in (0..200).step_by(3) {
        fs::remove_dir_all(dir.join(format!("d{i}"))).unwrap();
    }
    run("xfs_io", &["-c", "fsync", big.to_str().unwrap()]);
}

/// Writes the log round: makes and removes files until it is.
fn churn(dir: &Path, rounds: usize) {
    for round in 0..rounds {
        for i in 0..1500 {
            fs::write(dir.join(format!("{round}-{i}")), b"").unwrap();
        }
        run("sync", &["-f", dir.to_str().unwrap()]);
        for i in 0..1500 {
            fs::remove_file(dir.join(format!("{round}-{i}"))).unwrap();
        }
        run("sync", &["-f", dir.to_str().unwrap()]);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_fresh_log_of_every_shape_is_clean() {
    for mkfs in [
        "",
        "-b size=1024",
        "-d su=64k,sw=1",
        "-m crc=0 -l version=1",
        "-m crc=0 -l version=2",
        "-s size=4096",
        "-m rmapbt=1 -i size=2048",
    ] {
        let image = Image::new(64, mkfs);
        assert!(image.log().ends().clean, "{mkfs}");
        assert_eq!(compare(&image).records, 1, "{mkfs}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_crash_with_large_log_buffers() {
    let image = Image::new(128, "-m rmapbt=0,reflink=0");
    image.mounted("logbsize=256k", true, varied);
    let seen = compare(&image);
    for (item, least) in [("BUF", 20), ("INODE", 200), ("INODE CORE", 200), ("ICR", 2)] {
        assert!(seen.items_of(item) >= least, "{item}: {seen:?}");
    }
    assert!(seen.transactions >= 2, "{seen:?}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_crash_with_small_log_buffers_continues_regions_over_records() {
    let image = Image::new(128, "-m rmapbt=1,reflink=1 -l size=20m");
    image.mounted("logbsize=16k", true, |dir| {
        varied(dir);
        let from = dir.join("big");
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                for i in 0..40 {
                    let to = dir.join(format!("shared{i}"));
                    run("cp", &["--reflink=always", from.to_str().unwrap(), to.to_str().unwrap()]);
                    fs::write(&to, vec![9; 64 << 10]).unwrap();
                }
            });
            while !work.is_finished() {
                run("xfs_io", &["-c", "fsync", from.to_str().unwrap()]);
            }
        });
    });
    let seen = compare(&image);
    // Intents are in the log only where a checkpoint came between them and their dones; they were compared if
    // so.
    assert!(seen.records > 5, "{seen:?}");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn logs_written_round() {
    for mkfs in
        ["-l size=7m", "-b size=1024 -l size=5m", "-d su=64k,sw=1 -l size=9m", "-s size=4096 -l size=7m"]
    {
        let image = Image::new(128, mkfs);
        image.mounted("logbsize=64k", true, |dir| churn(dir, 14));
        let seen = compare(&image);
        assert!(image.log().ends().lsn.0 >> 32 > 1, "{mkfs}: the log was not written round: {seen:?}");
        // The kernel replays it, and leaves a clean log of many cycles.
        image.mounted("logbsize=64k", false, |dir| churn(dir, 1));
        assert!(image.log().ends().clean, "{mkfs}");
        compare(&image);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn records_are_found_by_their_magic_and_nothing_else_has_it() {
    let image = Image::new(64, "");
    image.mounted("logbsize=32k", true, varied);
    let log = image.log();
    let live = log.live_records(&log.ends());
    let by_magic = |block: &u32| {
        let at = *block as usize * BLOCK_SIZE;
        log.bytes[at..].starts_with(&RECORD_MAGIC.to_be_bytes())
    };
    let headers: Vec<u32> = (0..log.blocks())
        .filter(by_magic)
        .filter(|&b| log.bytes[b as usize * 512 + 12..][..4] != [0; 4])
        .collect();
    assert!(live.len() > 2);
    assert!(live.iter().all(|block| headers.contains(block)));
}
