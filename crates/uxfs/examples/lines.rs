//! Which lines of a cache an operation on a volume writes, and how many of eight threads use them too.
//!
//! ```text
//! cargo run --release -p uxfs --example lines
//! ```
//! It runs itself under valgrind, whose tool `lackey` lists each access. Threads take turns, so that none of them meets
//! another in the midst of an operation. Stacks and what belongs to a thread alone do not count. A figure is the median
//! over all operations of a kind: where the journal's threads come in between, most operations are still seen alone.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;

use uxfs::{
    AlignedBuf, BlockDevice, Dir, File, MemoryDevice, MkfsOptions, NewNode, OpenOptions, Rename, Volume,
};

/// As the command has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 8;
/// Operations of a kind that each thread does first, and then those that count.
const WARM: u64 = 3;
const COUNTED: u64 = 5;
const STACK: usize = 1 << 20;
const LINE: u64 = 64;
const PAGE: u64 = 4096;
/// Pages of the file that all threads share: each has as many for itself as it does operations, and more.
const PAGES: u64 = 16;

/// Stored to before and after each operation that counts.
static MARK: AtomicU64 = AtomicU64::new(0);

type Result<T> = std::result::Result<T, uxfs::Error>;

/// What a thread works with.
struct Desk {
    volume: Volume,
    thread: usize,
    /// A directory of its own, and one that all have.
    own: Dir,
    shared: Dir,
    /// A file of its own, and one that all have, past the cache and through it.
    own_file: File,
    file: File,
    cached: File,
    page: AlignedBuf,
}

impl Desk {
    fn new(volume: &Volume, thread: usize) -> Result<Self> {
        let own = volume.open_dir(format!("/d{thread}"))?;
        let own_file = volume.open_file(format!("/d{thread}/file"))?;
        let file = volume.open_file("/file")?;
        let mut page = AlignedBuf::zeroed(PAGE as usize);
        page.fill(1);
        Ok(Self {
            volume: volume.clone(),
            thread,
            own,
            shared: volume.open_dir("/shared")?,
            own_file,
            cached: file.buffered(),
            file,
            page,
        })
    }

    fn name(&self, nth: u64) -> Vec<u8> {
        format!("n{}-{nth}", self.thread).into_bytes()
    }

    /// Where this thread's page of this number begins in the file that all have.
    fn at(&self, nth: u64) -> u64 {
        (self.thread as u64 * PAGES + nth) * PAGE
    }
}

type Operation = fn(&mut Desk, u64) -> Result<()>;

/// In this order, as some work on what those before them left.
const OPERATIONS: &[(&str, Operation)] = &[
    ("a page overwritten, direct", |desk, nth| desk.file.overwrite_at(&desk.page, desk.at(nth))),
    ("a page read, direct", |desk, nth| {
        let at = desk.at(nth);
        desk.file.read_at(&mut desk.page, at).map(drop)
    }),
    ("a page overwritten, cached", |desk, nth| desk.cached.overwrite_at(&desk.page, desk.at(nth))),
    ("a page read, cached", |desk, nth| {
        let at = desk.at(nth);
        desk.cached.read_at(&mut desk.page, at).map(drop)
    }),
    ("the same page read by all, cached", |desk, _| desk.cached.read_at(&mut desk.page, 0).map(drop)),
    ("a page appended to a file of its own", |desk, _| desk.own_file.append(&desk.page).map(drop)),
    ("a file of its own cut by a page", |desk, _| desk.own_file.set_len(desk.own_file.size() - PAGE)),
    ("a file made", |desk, nth| desk.own.create_file(&desk.name(nth), &NewNode::default()).map(drop)),
    ("a name looked up in a directory", |desk, nth| desk.own.lookup(&desk.name(nth)).map(drop)),
    ("a path looked at for the first time", |desk, nth| {
        desk.volume.metadata(format!("/d{0}/n{0}-{nth}", desk.thread)).map(drop)
    }),
    ("a path of its own looked at again", |desk, _| {
        desk.volume.metadata(format!("/d{0}/n{0}-1", desk.thread)).map(drop)
    }),
    ("the same path looked at by all", |desk, _| desk.volume.metadata("/shared/deep/file").map(drop)),
    ("a file of its own opened and closed", |desk, _| {
        desk.volume.open_file(format!("/d{0}/n{0}-1", desk.thread)).map(drop)
    }),
    ("the same file opened and closed by all", |desk, _| {
        desk.volume.open_file("/shared/deep/file").map(drop)
    }),
    ("a directory of its own listed", |desk, _| desk.own.entries().try_for_each(|entry| entry.map(drop))),
    ("the same directory listed by all", |desk, _| {
        desk.shared.entries().try_for_each(|entry| entry.map(drop))
    }),
    ("a file renamed in its directory", |desk, nth| {
        desk.own.rename(&desk.name(nth), &desk.own, &desk.name(100 + nth), Rename::Replace)
    }),
    ("a file removed", |desk, nth| desk.own.remove_file(&desk.name(100 + nth))),
    ("a file made in one directory for all", |desk, nth| {
        desk.shared.create_file(&desk.name(nth), &NewNode::default()).map(drop)
    }),
    ("a file removed there", |desk, nth| desk.shared.remove_file(&desk.name(nth))),
    ("a page overwritten, and the file synced", |desk, nth| {
        desk.file.overwrite_at(&desk.page, desk.at(nth))?;
        desk.file.sync_data()
    }),
];

/// A volume in memory with what the operations need.
fn volume() -> Result<Volume> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(2 << 30)?);
    // A group for each directory, so that what is shared is not shared by chance.
    let options = MkfsOptions::new().group_count(2 * THREADS as u32);
    uxfs::mkfs_device(Arc::clone(&device), &options, true)?;
    let volume = Volume::open_device(device, &OpenOptions::new().writable(true))?;
    let root = volume.root()?.as_dir()?;
    let new = NewNode::default();
    let page = AlignedBuf::zeroed(PAGE as usize);
    let filled = |file: File, pages| (0..pages).try_for_each(|_| file.append(&page).map(drop));
    filled(root.create_file(b"file", &new)?.open()?, THREADS as u64 * PAGES)?;
    for thread in 0..THREADS {
        let own = root.create_dir(format!("d{thread}").as_bytes(), &new)?.as_dir()?;
        filled(own.create_file(b"file", &new)?.open()?, WARM + COUNTED)?;
    }
    let deep = root.create_dir(b"shared", &new)?.as_dir()?.create_dir(b"deep", &new)?.as_dir()?;
    deep.create_file(b"file", &new)?;
    volume.sync()?;
    Ok(volume)
}

/// What is listed: kind by kind, thread by thread.
fn listed() -> Result<()> {
    println!("mark {}", std::ptr::from_ref(&MARK).addr());
    // Until it is known where the mark is.
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let volume = volume()?;
    let turns = Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (volume, turns) = (&volume, &turns);
                thread::Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, move || work(volume, thread, turns))
                    .expect("a thread")
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    volume.close()
}

/// What one thread does, while the others wait for their turns.
fn work(volume: &Volume, thread: usize, turns: &Barrier) -> Result<()> {
    let mut desk = None;
    in_turn(thread, turns, || {
        let here = 0u8;
        println!("stack {}", std::ptr::from_ref(black_box(&here)).addr());
        desk = Some(Desk::new(volume, thread)?);
        Ok(())
    })?;
    let desk = desk.as_mut().expect("it is made");
    for (_, operation) in OPERATIONS {
        in_turn(thread, turns, || (0..WARM).try_for_each(|nth| operation(desk, nth)))?;
        in_turn(thread, turns, || {
            (WARM..WARM + COUNTED).try_for_each(|nth| {
                MARK.store(nth, Ordering::SeqCst);
                let done = operation(desk, nth);
                MARK.store(nth, Ordering::SeqCst);
                done
            })
        })?;
    }
    Ok(())
}

fn in_turn(thread: usize, turns: &Barrier, what: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut what = Some(what);
    (0..THREADS).try_for_each(|turn| {
        turns.wait();
        if turn == thread { what.take().expect("one turn each")() } else { Ok(()) }
    })
}

/// The lines that an operation touched, and whether it wrote them.
type Touched = BTreeMap<u64, bool>;

/// The address and length of an access, and whether it stores, of a line such as ` S 1ffefff8c8,8`.
fn access(line: &str) -> Option<(u64, u64, bool)> {
    let (kind, place) = line.strip_prefix(' ')?.split_once(' ')?;
    let (at, len) = place.split_once(',')?;
    let writes = match kind {
        "L" => false,
        "S" | "M" => true,
        _ => return None,
    };
    Some((u64::from_str_radix(at, 16).ok()?, len.parse().ok()?, writes))
}

/// What each operation touched.
fn touched() -> std::result::Result<Vec<Touched>, Box<dyn Error>> {
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(std::env::current_exe()?)
        .arg("listed")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (mut input, said) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mark = OnceLock::new();
    let (mut all, stacks) = thread::scope(|scope| {
        let stacks = scope.spawn(|| {
            let mut stacks = Vec::new();
            for line in BufReader::new(said).lines().map_while(std::result::Result::ok) {
                match line.split_once(' ').and_then(|(what, at)| Some((what, at.parse::<u64>().ok()?))) {
                    Some(("mark", at)) => {
                        mark.get_or_init(|| at);
                        writeln!(input).expect("it waits for this line");
                    }
                    Some(("stack", at)) => stacks.push(at / LINE),
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
    let of_a_thread = all.chunks_mut(COUNTED as usize);
    for (operations, stack) in of_a_thread.zip(stacks.iter().cycle()) {
        for touched in operations {
            touched.retain(|line, _| line.abs_diff(*stack) > STACK as u64 / LINE);
        }
    }
    Ok(all)
}

/// What is touched between each two stores to the mark.
fn between_marks(trace: impl BufRead, mark: &OnceLock<u64>) -> Vec<Touched> {
    let mut all = Vec::new();
    let mut current: Option<Touched> = None;
    for line in trace.lines().map_while(std::result::Result::ok) {
        let (Some((at, len, writes)), Some(mark)) = (access(&line), mark.get()) else { continue };
        if at == *mark && writes {
            match current.take() {
                Some(touched) => all.push(touched),
                None => current = Some(Touched::new()),
            }
        } else if let Some(touched) = &mut current {
            for line in at / LINE..=(at + len.max(1) - 1) / LINE {
                *touched.entry(line).or_default() |= writes;
            }
        }
    }
    all
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).is_some_and(|word| word == "listed") {
        return Ok(listed()?);
    }
    let all = touched()?;
    println!(
        "{:<42}{:>14}{:>24}{:>18}",
        "operation", "lines written", "that others use too", "threads a line"
    );
    for ((name, _), operations) in OPERATIONS.iter().zip(all.chunks(THREADS * COUNTED as usize)) {
        let mut users: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        for (thread, operations) in operations.chunks(COUNTED as usize).enumerate() {
            operations.iter().flat_map(BTreeMap::keys).for_each(|line| {
                users.entry(*line).or_default().insert(thread);
            });
        }
        let written = |touched: &Touched| -> Vec<usize> {
            touched.iter().filter(|(_, writes)| **writes).map(|(line, _)| users[line].len()).collect()
        };
        let lines: Vec<Vec<usize>> = operations.iter().map(written).collect();
        let of_others =
            |lines: &Vec<usize>| -> Vec<usize> { lines.iter().copied().filter(|by| *by > 1).collect() };
        let all_lines = median(lines.iter().map(|lines| lines.len() as f64).collect());
        let shared = median(lines.iter().map(|lines| of_others(lines).len() as f64).collect());
        let by: Vec<usize> = lines.iter().flat_map(of_others).collect();
        let by = by.iter().sum::<usize>() as f64 / by.len().max(1) as f64;
        println!("{name:<42}{all_lines:>14.0}{shared:>24.0}{by:>18.1}");
    }
    Ok(())
}
