//! Intents and done items of every kind that a kernel logs: each is understood, and the same bytes when it is encoded
//! again.

use super::image::{Image, run};
use super::transactions::Transactions;
use oracles::xfsprogs::Release;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xfs_format::log::{
    AttrChange, AttrIntent, AttrOp, Done, ExchangeIntent, ItemType, LogItem, Update, UpdateIntent,
    encode_free_intent, free_intent_bytes,
};

/// How often what was found in logs.
pub(super) type Kinds = BTreeMap<String, usize>;

/// What must be there in the end: each kind of intent, its end, and the operations whose chains are long.
const WANTED: &[&str] = &[
    "EFI",
    "EFD",
    "RUI",
    "RUI MapShared",
    "RUI UnmapShared",
    "Rud",
    "CUI",
    "CUI Increase",
    "CUI Decrease",
    "CUI FreeCow",
    "Cud",
    "BUI",
    "BUI Map",
    "BUI Unmap",
    "Bud",
    "ATTRI",
    "ATTRI ParentSet",
    "ATTRI ParentRemove",
    "ATTRI ParentReplace",
    "Attrd",
    "XMI",
    "Xmd",
];

/// Counts an item, and compares it with what comes of it when it is encoded again. `more`: its further regions.
pub(super) fn again(regions: &[Vec<u8>], kinds: &mut Kinds) {
    let (first, more) = regions.split_first().unwrap();
    let (kind, _, item) = LogItem::parse(first).unwrap();
    let mut count = |name: String| *kinds.entry(name).or_default() += 1;
    let encoded = match item {
        LogItem::FreeIntent(intent) | LogItem::FreeDone(intent) => {
            let done = kind == ItemType::Efd;
            count(if done { "EFD" } else { "EFI" }.to_owned());
            let extents: Vec<_> = intent.extents.iter().collect();
            let mut encoded = vec![0; free_intent_bytes(extents.len())];
            encode_free_intent(done, intent.id, &extents, &mut encoded);
            encoded
        }
        LogItem::RmapIntent(intent) => updates(intent, |update| format!("{:?}", update.op), &mut count),
        LogItem::RefcountIntent(intent) => updates(intent, |update| format!("{:?}", update.op), &mut count),
        LogItem::BmapIntent(intent) => updates(intent, |update| format!("{:?}", update.op), &mut count),
        LogItem::AttrIntent(intent) => {
            count("ATTRI".to_owned());
            count(format!("ATTRI {:?}", intent.op));
            let change = AttrChange::parse(&intent, more.iter().map(Vec::as_slice)).unwrap();
            assert!(change.op != AttrOp::ParentReplace || !change.new_name.is_empty());
            for (region, again) in more.iter().zip(change.regions()) {
                assert!(region.starts_with(again) && region[again.len()..].iter().all(|&byte| byte == 0));
            }
            let mut encoded = vec![0; AttrIntent::BYTES];
            change.encode(intent.id, &mut encoded);
            encoded
        }
        LogItem::ExchangeIntent(intent) => {
            count("XMI".to_owned());
            let mut encoded = vec![0; ExchangeIntent::BYTES];
            intent.encode(&mut encoded);
            encoded
        }
        LogItem::Done(done) => {
            count(format!("{kind:?}"));
            let mut encoded = vec![0; Done::BYTES];
            Done::new(kind, done.intent_id.get()).encode(&mut encoded);
            encoded
        }
        _ => return,
    };
    assert_eq!(&encoded, first, "{item:?}");
}

fn updates<T: Update>(
    intent: UpdateIntent<'_, T>,
    name: impl Fn(&T) -> String,
    count: &mut impl FnMut(String),
) -> Vec<u8> {
    let updates: Vec<T> = intent.iter().collect();
    count(T::NAME.to_owned());
    updates.iter().for_each(|update| count(format!("{} {}", T::NAME, name(update))));
    let mut encoded = vec![0; UpdateIntent::<T>::bytes(updates.len())];
    UpdateIntent::encode(intent.id, &updates, &mut encoded);
    encoded
}

const BLOCK: usize = 4096;
/// Extents of a file: what is done to it takes as many transactions, and any checkpoint between them has intents.
const EXTENTS: u64 = 1500;

/// A file of that many extents.
fn scattered(path: &Path) -> File {
    let file = File::create(path).unwrap();
    (0..EXTENTS).for_each(|n| file.write_all_at(&[7; BLOCK], n * 2 * BLOCK as u64).unwrap());
    file.set_len(EXTENTS * 2 * BLOCK as u64).unwrap();
    file.sync_all().unwrap();
    file
}

/// Chains of every kind, and checkpoints all the time.
fn chains(dir: &Path, time: Duration) {
    let (path, over) = (|name: &str| dir.join(name), AtomicBool::new(false));
    let [one, other, names] = ["one", "other", "names"].map(path);
    drop((scattered(&one), scattered(&other)));
    File::create(&names).unwrap();
    let xfs_io = Release::Unstable.path("xfs_io").unwrap();
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (over, pulse) = (&over, dir.join(format!("pulse{n}")));
            scope.spawn(move || {
                let file = File::create(pulse).unwrap();
                for mode in [0o600, 0o700].into_iter().cycle() {
                    file.set_permissions(Permissions::from_mode(mode)).unwrap();
                    file.sync_all().unwrap();
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        // Shared extents: made, written to, cut off.
        let clones = scope.spawn(|| {
            for n in 0.. {
                let clone = path(&format!("clone{}", n % 3));
                run("cp", &["--reflink=always", one.to_str().unwrap(), clone.to_str().unwrap()]);
                // Each block that is written to has space staged for it alone.
                run("xfs_io", &["-c", "cowextsize 4096", clone.to_str().unwrap()]);
                let file = File::options().write(true).open(&clone).unwrap();
                (0..200).for_each(|n| file.write_all_at(&[9; BLOCK], n * 4 * BLOCK as u64).unwrap());
                file.sync_all().unwrap();
                file.set_len(EXTENTS * BLOCK as u64).unwrap();
                fs::remove_file(&clone).unwrap();
                if Instant::now() > until {
                    break;
                }
            }
        });
        let exchanges = scope.spawn(|| {
            while Instant::now() < until {
                let exchange = format!("exchangerange {}", one.to_str().unwrap());
                run(xfs_io.to_str().unwrap(), &["-c", &exchange, other.to_str().unwrap()]);
            }
        });
        // More parent pointers than fit into the inode.
        let links = scope.spawn(|| {
            let name = |n: usize, of: &str| path(&format!("{of}{n}{}", "x".repeat(100)));
            for n in 0.. {
                fs::hard_link(&names, name(n, "link")).unwrap();
                fs::rename(name(n, "link"), name(n, "renamed")).unwrap();
                if n >= 20 {
                    fs::remove_file(name(n - 20, "renamed")).unwrap();
                }
                if Instant::now() > until {
                    break;
                }
            }
        });
        let all = [clones.join(), exchanges.join(), links.join()];
        over.store(true, Ordering::Relaxed);
        all.into_iter().for_each(Result::unwrap);
    });
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn intents_of_every_kind_are_what_the_kernel_wrote() {
    let options = "-m rmapbt=1,reflink=1 -n parent=1 -i exchange=1 -l size=64m";
    let mut kinds = Kinds::new();
    for round in 1..=12 {
        let image = Image::made_by(Release::Unstable, 512, options);
        image.mounted("logbsize=32k", true, |dir| chains(dir, Duration::from_secs(3)));
        let (log, mut transactions) = (image.log(), Transactions::default());
        let ends = log.ends();
        for block in log.live_records(&ends) {
            let (header, data) = log.record(block);
            transactions.feed_record(&header, &data);
        }
        for (kind, count) in transactions.kinds {
            *kinds.entry(kind).or_default() += count;
        }
        println!("round {round}: {kinds:?}");
        if WANTED.iter().all(|kind| kinds.contains_key(*kind)) {
            return;
        }
    }
    let missing: Vec<_> = WANTED.iter().filter(|kind| !kinds.contains_key(**kind)).collect();
    panic!("no log has {missing:?}");
}
