//! Each workload on both kinds of targets: what there is before and behind it, file by file.

use super::*;
use crate::fs::{OpenFile, SysFs, UxfsFs};
use crate::timer::EACH;
use std::collections::BTreeMap;
use std::path::Path;

const FILES: u64 = 37;
const THREADS: usize = 3;

/// Files and their sizes, by path, except for the tree of paths.
type Files = BTreeMap<String, u64>;

fn walk<D: Directory>(dir: &D, path: &str, files: &mut Files) {
    for name in names_of(dir).expect("listed") {
        if path.is_empty() && lookups::is_tree(&name) {
            continue;
        }
        let here = format!("{path}/{}", String::from_utf8(name.clone()).expect("a plain name"));
        match dir.look(&name).expect("looked").expect("there") {
            seen if seen.is_dir => walk(&dir.open_dir(&name).expect("open"), &here, files),
            seen => drop(files.insert(here, seen.size)),
        }
    }
}

fn files<F: FileSystem>(fs: &F) -> Files {
    let mut files = Files::new();
    walk(&fs.root().expect("a root"), "", &mut files);
    files
}

fn plan(serial: u64) -> Plan {
    Plan { threads: THREADS, files: FILES, limit: Duration::from_millis(2), serial }
}

/// `of(thread)` and `size` for each file of each thread.
fn each(mut of: impl FnMut(usize, u64) -> String, count: u64, size: u64) -> Files {
    (0..THREADS).flat_map(|thread| (0..count).map(move |nth| (thread, nth))).fold(
        Files::new(),
        |mut files, (thread, nth)| {
            files.insert(of(thread, nth), size);
            files
        },
    )
}

fn own(thread: usize, nth: u64) -> String {
    format!("/thread-{thread}/file-{thread}-{nth}")
}

fn shared(thread: usize, nth: u64) -> String {
    format!("/shared/file-{thread}-{nth}")
}

fn data(thread: usize, _nth: u64) -> String {
    format!("/thread-{thread}/data")
}

fn one(path: &str, size: u64) -> Files {
    Files::from([(path.to_owned(), size)])
}

/// What there is before the clock starts, what behind it, and how many operations there are where that is known.
fn expected(which: FxMark) -> (Files, Files, Option<u64>) {
    use FxMark as X;
    let region = THREADS as u64 * (8 << 20);
    let all = Some(FILES * THREADS as u64);
    let same = |files: Files| (files.clone(), files, None);
    match which {
        X::DRBL | X::DWOL | X::DWSL => same(each(data, 1, 4096)),
        X::DRBM | X::DWOM => same(one("/shared/data", region)),
        X::DRBH => same(one("/shared/data", 4096)),
        X::DWAL => (each(data, 1, 0), each(data, 1, FILES * 4096), all),
        X::DWTL => (each(data, 1, (FILES + 1) * 4096), each(data, 1, 4096), all),
        X::MRPL => same(each(|thread, _| format!("/thread-{thread}/0/0/0/0"), 1, 0)),
        X::MRPM | X::MRPH => same(Files::new()),
        X::MRDL => same(each(own, FILES, 0)),
        X::MRDM => same(each(shared, FILES, 0)),
        X::MWCL => (Files::new(), each(own, FILES, 0), all),
        X::MWCM => (Files::new(), each(shared, FILES, 4096), all),
        X::MWUL => (each(own, FILES, 0), Files::new(), all),
        X::MWUM => (each(shared, FILES, 0), Files::new(), all),
        // Of its one file, the name follows from how often it was renamed.
        X::MWRL => (each(own, 1, 0), Files::new(), None),
        X::MWRM => (each(own, FILES, 0), each(shared, FILES, 0), all),
    }
}

fn does_what_it_says<F: FileSystem>(site: &Site<F>, which: FxMark) {
    let (fs, plan) = (&site.fs, plan(which as u64 + 1));
    let name = format!("{} {}", site.label, which.name());
    let (before, after, known) = expected(which);
    let mut stage = set(fs, which, plan).expect("set");
    assert_eq!(stage.hands.len(), THREADS, "{name}");
    assert_eq!(files(fs), before, "{name}: before");
    let counts: Vec<u64> = stage
        .hands
        .iter_mut()
        .map(|hand| {
            let tally = together([hand].into_iter(), EACH, |hand, timer| hand.work(plan, timer));
            let tally = tally.expect("works").0;
            assert_eq!(tally.latency.len(), tally.ops, "{name}: each operation is timed");
            tally.ops
        })
        .collect();
    let ops: u64 = counts.iter().sum();
    assert!(counts.iter().all(|&count| count > 0), "{name}: {counts:?}");
    if let Some(known) = known {
        assert_eq!(ops, known, "{name}");
    }
    let found = files(fs);
    if which == FxMark::MWRL {
        let renamed = counts.iter().enumerate().map(|(thread, &count)| (own(thread, count), 0)).collect();
        assert_eq!(found, renamed, "{name}");
    } else {
        assert_eq!(found, after, "{name}: after");
    }
    if matches!(which, FxMark::MRDL | FxMark::MRDM) {
        let pass = if which == FxMark::MRDL { FILES } else { FILES * THREADS as u64 };
        assert!(counts.iter().all(|count| count.is_multiple_of(pass)), "{name}: whole listings: {counts:?}");
    }
    check(&stage).expect("all is there");
    drop(stage);
    // At once, this time; and nothing is left behind.
    clean(fs).expect("cleaned");
    let (mut begun, mut ended) = (false, false);
    let (tally, wall) = measure(site, which, plan, || begun = true, || ended = true).expect("measured");
    assert!(tally.ops > 0 && wall > Duration::ZERO && begun && ended, "{name}");
    assert!(known.is_none_or(|known| known == tally.ops), "{name}");
    let (timed, each) = (tally.latency.len(), tally.ops / u64::from(which.timed()));
    assert!((each..=each + THREADS as u64).contains(&timed), "{name}: {timed} of {} are timed", tally.ops);
    assert_eq!(files(fs), Files::new(), "{name}");
}

fn on_both(mut work: impl FnMut(&Site<SysFs>), mut own: impl FnMut(&Site<UxfsFs>)) {
    let shm = Path::new("/dev/shm");
    let passing = std::env::temp_dir();
    let site = SysFs::in_dir(if shm.is_dir() { shm } else { &passing }, "").expect("a directory");
    work(&site);
    site.finish().expect("it goes");
    let site = UxfsFs::make(&Config::default(), 1 << 30, 4, ::uxfs::Designs::default()).expect("a volume");
    own(&site);
    site.finish().expect("it closes");
}

#[test]
fn each_does_what_it_says_on_both() {
    on_both(
        |site| FxMark::ALL.into_iter().for_each(|which| does_what_it_says(site, which)),
        |site| FxMark::ALL.into_iter().for_each(|which| does_what_it_says(site, which)),
    );
}

/// Lost, kept or changed files are noticed: after the work, each file in turn is spoilt.
fn spoilt_is_noticed<F: FileSystem>(site: &Site<F>, which: FxMark) {
    let (fs, plan) = (&site.fs, plan(100 + which as u64));
    let mut stage = set(fs, which, plan).expect("set");
    let reads = matches!(which, FxMark::DRBL | FxMark::DRBM | FxMark::DRBH);
    let spoil = || {
        let dir = if matches!(which, FxMark::DRBM | FxMark::DRBH | FxMark::DWOM)
            || expected(which).1.keys().any(|path| path.starts_with("/shared"))
            || which == FxMark::MWUM
        {
            "shared"
        } else {
            "thread-1"
        };
        let dir = fs.root().expect("a root").open_dir(dir.as_bytes()).expect("there");
        let names = names_of(&dir).expect("listed");
        match names.first() {
            Some(name) if name == b"data" => {
                dir.open(name).expect("open").write(0, &[0; 8]).expect("written")
            }
            Some(name) => dir.unlink(name).expect("removed"),
            None => dir.make(b"one more").expect("made"),
        }
    };
    if reads {
        spoil();
    }
    for hand in &mut stage.hands {
        hand.work(plan, &mut Timer::new(EACH)).expect("works");
    }
    if !reads {
        check(&stage).expect("all is there");
        spoil();
    }
    let error = check(&stage).expect_err("it is spoilt");
    assert!(matches!(error, Error::Result(_)), "{} {}: {error}", site.label, which.name());
    drop(stage);
    clean(fs).expect("cleaned");
}

#[test]
fn what_is_lost_or_changed_is_noticed() {
    use FxMark as X;
    let kinds = [
        X::DRBL,
        X::DRBM,
        X::DRBH,
        X::DWOL,
        X::DWOM,
        X::DWAL,
        X::DWTL,
        X::DWSL,
        X::MRDM,
        X::MWCL,
        X::MWCM,
        X::MWUL,
        X::MWUM,
        X::MWRL,
        X::MWRM,
    ];
    on_both(
        |site| kinds.into_iter().for_each(|which| spoilt_is_noticed(site, which)),
        |site| kinds.into_iter().for_each(|which| spoilt_is_noticed(site, which)),
    );
}

#[test]
fn names_are_known_in_either_case() {
    for which in FxMark::ALL {
        assert_eq!(which.name().parse(), Ok(which));
        assert_eq!(which.name().to_lowercase().parse(), Ok(which));
    }
    let error = "DRBX".parse::<FxMark>().expect_err("there is none");
    assert!(error.contains("DRBX") && error.contains("MWRM"), "{error}");
}

#[test]
fn what_is_repeated_ends_and_is_counted() {
    let mut calls = 0;
    let ops = repeat(Duration::ZERO, &mut Timer::new(EACH), || {
        calls += 1;
        Ok(())
    });
    assert_eq!(ops.expect("it ends"), calls);
    assert_eq!(calls, 1);
    let mut calls = 0;
    let ops = repeat(Duration::from_millis(3), &mut Timer::new(EACH), || {
        calls += 1;
        Ok(())
    });
    assert_eq!(ops.expect("it ends"), calls);
    assert!(repeat(Duration::MAX, &mut Timer::new(EACH), || Err(wrong("at once"))).is_err());
}
