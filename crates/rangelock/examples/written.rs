//! Which lines of a cache a pair of lock and unlock writes, and how many of 64 threads write them too.
//!
//! ```text
//! cargo run --release -p rangelock --example written
//! ```
//! It runs itself under valgrind, whose tool `lackey` lists each store. Threads come one after the other, so that none
//! of them meets another; what they hold meanwhile stays held. Stacks and what belongs to a thread alone do not count.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rangelock::{Mode, RangeLock, RangeToken};

const THREADS: u64 = 64;
const PAIRS: u64 = 4;
const HELD: u64 = 128;
const STACK: usize = 256 << 10;
/// Processors fetch lines of 64 bytes in pairs.
const LINE: u64 = 128;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Stored to before and after each pair.
static MARK: AtomicU64 = AtomicU64::new(0);

struct Case {
    name: &'static str,
    make: fn() -> RangeLock,
    /// Ranges that each thread holds all the time.
    held: u64,
    /// The range of this number, of this thread.
    range: fn(u64, u64) -> Range<u64>,
    mode: Mode,
}

fn page(thread: u64, nth: u64) -> Range<u64> {
    let page = thread * 2 * HELD + nth;
    page * PAGE..(page + 1) * PAGE
}

fn mebibyte(thread: u64, nth: u64) -> Range<u64> {
    let start = (thread * 2 * HELD + nth) * MIB;
    start..start + MIB
}

const CASES: [Case; 9] = [
    Case { name: "4 KiB", make: RangeLock::new, held: 0, range: page, mode: Mode::Exclusive },
    Case {
        name: "4 KiB, of a file created empty",
        make: || RangeLock::for_size(0),
        held: 0,
        range: page,
        mode: Mode::Exclusive,
    },
    Case {
        name: "the same, beside 64 x 128 held",
        make: || RangeLock::for_size(0),
        held: HELD,
        range: page,
        mode: Mode::Exclusive,
    },
    Case {
        name: "4 KiB across a border",
        make: RangeLock::new,
        held: 0,
        range: |thread, nth| {
            (16 * (thread * HELD + nth) + 15) * 1024..(16 * (thread * HELD + nth) + 19) * 1024
        },
        mode: Mode::Exclusive,
    },
    Case { name: "1 MiB", make: RangeLock::new, held: 0, range: mebibyte, mode: Mode::Exclusive },
    Case {
        name: "1 MiB, beside 64 x 32 held",
        make: RangeLock::new,
        held: 32,
        range: mebibyte,
        mode: Mode::Exclusive,
    },
    Case {
        name: "1 MiB across a border",
        make: RangeLock::new,
        held: 0,
        range: |thread, nth| mebibyte(thread, nth).start + PAGE..mebibyte(thread, nth).end + PAGE,
        mode: Mode::Exclusive,
    },
    Case {
        name: "the whole file, to read",
        make: RangeLock::new,
        held: 0,
        range: |_, _| 0..u64::MAX,
        mode: Mode::Shared,
    },
    Case {
        name: "the whole file",
        make: RangeLock::new,
        held: 0,
        range: |_, _| 0..u64::MAX,
        mode: Mode::Exclusive,
    },
];

/// Runs `work` in a thread that has ended when this returns; tells where its stack is.
fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).expect("a thread");
        thread.join().expect("no panic")
    })
}

/// What is listed: all cases, thread by thread.
fn listed() {
    println!("mark {}", std::ptr::from_ref(&MARK).addr());
    // Until it is known where the mark is.
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    for case in &CASES {
        let lock = (case.make)();
        let hold = |thread| (0..case.held).map(move |nth| (case.range)(thread, HELD + nth));
        let mut held: Vec<RangeToken> = Vec::new();
        for thread in 0..THREADS {
            held.extend(hold(thread).map(|range| lock.acquire(range, case.mode)));
        }
        // As long as a table moves.
        for thread in 0..2 * THREADS {
            drop(lock.lock((case.range)(thread % THREADS, 0), case.mode));
        }
        for thread in 0..THREADS {
            alone(|| pairs(case, &lock, thread));
        }
        held.into_iter().for_each(|token| lock.release(token));
    }
}

fn pairs(case: &Case, lock: &RangeLock, thread: u64) {
    let here = 0u8;
    println!("stack {}", std::ptr::from_ref(black_box(&here)).addr());
    for nth in 0..PAIRS {
        let range = (case.range)(thread, nth);
        // Once, lest memory that is kept from then on counts.
        drop(lock.lock(range.clone(), case.mode));
        MARK.store(nth, Ordering::SeqCst);
        drop(lock.lock(range, case.mode));
        MARK.store(nth, Ordering::SeqCst);
    }
}

/// The address of a store, of a line such as ` S 1ffefff8c8,8`.
fn store(line: &str) -> Option<u64> {
    let line = line.strip_prefix(" S ").or_else(|| line.strip_prefix(" M "))?;
    u64::from_str_radix(line.split(',').next()?, 16).ok()
}

/// What each pair wrote.
fn written() -> Result<Vec<Vec<u64>>, Box<dyn Error>> {
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(std::env::current_exe()?)
        .arg("listed")
        // One heap, far from stacks.
        .envs([("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "1073741824")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (mut input, said) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mark = OnceLock::new();
    let (mut all, stacks) = thread::scope(|scope| {
        let stacks = scope.spawn(|| {
            let mut stacks = Vec::new();
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                match line.split_once(' ').and_then(|(what, at)| Some((what, at.parse::<u64>().ok()?))) {
                    Some(("mark", at)) => {
                        mark.get_or_init(|| at);
                        writeln!(input).expect("it waits for this line");
                    }
                    Some(("stack", at)) => stacks.push(at),
                    _ => panic!("not expected: {line}"),
                }
            }
            stacks
        });
        let trace = BufReader::new(child.stderr.take().expect("piped"));
        (between_marks(trace, &mark), stacks.join().expect("no panic"))
    });
    if !child.wait()?.success() {
        return Err("valgrind failed".into());
    }
    for (pairs, stack) in all.chunks_mut(PAIRS as usize).zip(stacks) {
        pairs.iter_mut().for_each(|pair| pair.retain(|at| at.abs_diff(stack) > STACK as u64));
    }
    Ok(all)
}

/// The addresses of stores between each two of those to the mark.
fn between_marks(trace: impl BufRead, mark: &OnceLock<u64>) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    let mut current: Option<Vec<u64>> = None;
    for line in trace.lines().map_while(Result::ok) {
        let (Some(at), Some(mark)) = (store(&line), mark.get()) else { continue };
        if at == *mark {
            match current.take() {
                Some(pair) => all.push(pair),
                None => current = Some(Vec::new()),
            }
        } else if let Some(pair) = &mut current {
            pair.push(at);
        }
    }
    all
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).is_some_and(|word| word == "listed") {
        listed();
        return Ok(());
    }
    let all = written()?;
    println!("{:<36}{:>14}{:>26}", "pair", "lines written", "threads that write each");
    for (case, pairs) in CASES.iter().zip(all.chunks((THREADS * PAIRS) as usize)) {
        let mut writers: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        for (thread, pairs) in pairs.chunks(PAIRS as usize).enumerate() {
            pairs.iter().flatten().for_each(|at| {
                writers.entry(at / LINE).or_default().insert(thread);
            });
        }
        let each: Vec<BTreeSet<u64>> =
            pairs.iter().map(|pair| pair.iter().map(|at| at / LINE).collect()).collect();
        let lines: usize = each.iter().map(BTreeSet::len).sum();
        let by: usize = each.iter().flatten().map(|line| writers[line].len()).sum();
        let (lines, by) = (lines as f64 / each.len() as f64, by as f64 / lines as f64);
        let most = writers.values().map(BTreeSet::len).max().unwrap_or(0);
        println!("{:<36}{lines:>14.1}{by:>15.1}, at most {most}", case.name);
    }
    Ok(())
}
