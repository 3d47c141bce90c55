//! Records a program of ours under `valgrind`, as the lines that its threads touch.
//!
//! `lackey` writes every access to memory, of every thread, into one stream; valgrind has one thread run at a time. The
//! stream comes through a pipe and is read as it comes: it is many times as long as what is kept of it. The program says
//! on standard error where its marks are, and goes on when it has been heard, so that no mark is missed.

use super::patient::Patient;
use super::pen::HELLO;
use super::trace::{Parser, Recording};
use crate::config::Workload;
use crate::error::{Error, Result};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The program that is recorded with.
const VALGRIND: &str = "valgrind";

/// How to record something: a program, and its arguments for calling [`record`](crate::record()).
#[derive(Clone, Debug)]
pub struct Recorder {
    /// The program; usually the present one.
    pub program: PathBuf,
    /// Its arguments, before those of the subject.
    pub args: Vec<OsString>,
}

/// What is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) workload: Workload,
    /// The subject's key.
    pub(crate) key: String,
    pub(crate) threads: usize,
    /// The volume that it works on.
    pub(crate) image: Option<PathBuf>,
}

impl Request {
    fn args(&self) -> impl Iterator<Item = OsString> {
        let plain = [self.workload.name().to_owned(), self.key.clone(), self.threads.to_string()];
        plain.into_iter().map(OsString::from).chain(self.image.clone().map(OsString::from))
    }

    pub(crate) fn of_args(mut args: impl Iterator<Item = OsString>) -> Result<Self> {
        let wrong =
            || Error::Usage("what is to be recorded is a workload, its subject, and threads".to_owned());
        let mut text = || args.next().and_then(|arg| arg.into_string().ok()).ok_or_else(wrong);
        let (name, key, threads) = (text()?, text()?, text()?);
        let workload = Workload::MODELLED.into_iter().find(|workload| workload.name() == name);
        Ok(Self {
            workload: workload.ok_or_else(wrong)?,
            key,
            threads: threads.parse().map_err(|_| wrong())?,
            image: args.next().map(PathBuf::from),
        })
    }
}

impl Recorder {
    pub(crate) fn record(&self, request: &Request) -> Result<Recording> {
        record(Command::new(&self.program).args(self.args.iter().cloned().chain(request.args())))
    }
}

/// Fails without valgrind.
pub(crate) fn find_valgrind() -> Result<()> {
    let found = Command::new(VALGRIND).arg("--version").stdin(Stdio::null()).output();
    found.map(drop).map_err(missing)
}

fn missing(error: std::io::Error) -> Error {
    failed(match error.kind() {
        std::io::ErrorKind::NotFound => {
            "not found; install the package valgrind (for example: apt-get install valgrind)".to_owned()
        }
        _ => error.to_string(),
    })
}

/// Records what `program` marks.
pub(crate) fn record(program: &Command) -> Result<Recording> {
    let mut command = Command::new(VALGRIND);
    command
        .args(["-q", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--log-fd=1"])
        .arg("--")
        .arg(program.get_program())
        .args(program.get_args())
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(missing)?;
    let mut child = Ended(child);
    let recording = read(&mut child.0)?;
    let status = child.0.wait().map_err(|error| failed(error.to_string()))?;
    match (status.success(), recording) {
        (true, (Some(recording), _)) if !recording.threads.is_empty() => Ok(recording),
        (true, _) => Err(failed("the program marked nothing".to_owned())),
        (false, (_, said)) => Err(failed(format!("{status}: {}", said.trim()))),
    }
}

/// The program does not outlive its recording, however that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(message: String) -> Error {
    Error::Program { program: VALGRIND, message }
}

/// What a child marks, unless it ends before it can; and all else that it says on standard error.
fn read(child: &mut Child) -> Result<(Option<Recording>, String)> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(trace), Some(said)) = pipes else {
        return Err(failed("it has no pipes".to_owned()));
    };
    let (tell, told) = std::sync::mpsc::channel::<u64>();
    std::thread::scope(|scope| {
        let said = scope.spawn(move || {
            let mut other = String::new();
            for line in BufReader::new(said).lines().map_while(|line| line.ok()) {
                match line.strip_prefix(HELLO).and_then(|addr| addr.strip_prefix("0x")) {
                    Some(addr) => {
                        // The reader of the trace looks for this before each piece that it reads, and the program
                        // makes no mark until it gets its line.
                        if let Ok(addr) = u64::from_str_radix(addr, 16) {
                            let _ = tell.send(addr);
                        }
                        let _ = stdin.write_all(b"\n");
                    }
                    None => other = other + &line + "\n",
                }
            }
            other
        });
        let recording = follow(BufReader::with_capacity(1 << 20, Patient(trace)), || told.try_recv().ok());
        let said = said.join().unwrap_or_default();
        Ok((recording.map_err(|error| failed(error.to_string()))?, said))
    })
}

/// Reads the trace to its end. Until the place of the marks is known there is nothing to look for.
fn follow(
    mut trace: BufReader<impl Read>,
    mut marks: impl FnMut() -> Option<u64>,
) -> std::io::Result<Option<Recording>> {
    let mut parser = None;
    let mut line = Vec::new();
    loop {
        // The piece that is read next may be the first with marks in it.
        let filled = !trace.fill_buf()?.is_empty();
        if parser.is_none() {
            parser = marks().map(Parser::new);
        }
        line.clear();
        if !filled || trace.read_until(b'\n', &mut line)? == 0 {
            return Ok(parser.map(Parser::finish));
        }
        if let Some(parser) = &mut parser {
            parser.line(line.trim_ascii_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pen::{Pen, Script, introduce, take_turns};
    use super::super::trace::{Access, Kind};
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Lines that the child below touches; each thread's own part is 16 of them.
    #[repr(align(4096))]
    struct Area([AtomicU64; 512]);
    static AREA: Area = Area([const { AtomicU64::new(0) }; 512]);
    /// Where a child writes down what it touched.
    const NOTES: &str = "UXFS_MODEL_TEST_NOTES";

    /// Touches lines that are known: two accesses to a thread's own part and one to the part that all have, an operation.
    struct KnownAccesses;

    /// The lines that are touched, by word.
    fn known(thread: usize, nth: usize) -> [(usize, Kind); 4] {
        let own = 128 * (thread + 1) + 8 * (2 * nth);
        [(own, Kind::Load), (own + 8, Kind::Store), (nth, Kind::Modify), (own + 9, Kind::Swap)]
    }

    impl Script for KnownAccesses {
        type Part = usize;
        type Stand = ();
        fn part(&self, thread: usize) -> Result<usize> {
            Ok(thread)
        }
        fn stand(&self, _: &mut usize) -> Result<()> {
            Ok(())
        }
        fn leave(&self, _: &mut usize, (): ()) -> Result<()> {
            Ok(())
        }
        fn cycle(&self, part: &mut usize, pen: &Pen) -> Result<()> {
            for nth in 0..3 {
                let touched = known(*part, nth).map(|(word, _)| &AREA.0[word]);
                pen.op(|| {
                    std::hint::black_box(touched[0].load(Ordering::Relaxed));
                    touched[1].store(7, Ordering::Relaxed);
                    touched[2].fetch_add(1, Ordering::Relaxed);
                    let _ = touched[3].compare_exchange(5, 6, Ordering::Relaxed, Ordering::Relaxed);
                });
                // Nobody's: between two operations.
                AREA.0[511].store(nth as u64, Ordering::Relaxed);
            }
            Ok(())
        }
    }

    /// The recording of the test below; nothing without a request for it.
    #[test]
    fn known_lines_child() {
        let Some(notes) = std::env::var_os(NOTES) else { return };
        std::fs::write(notes, std::ptr::from_ref(&AREA).addr().to_string()).expect("room");
        introduce().expect("somebody listens");
        take_turns(&KnownAccesses, 3).expect("nothing fails");
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn a_recording_has_exactly_what_was_touched() {
        let dir = tempfile::tempdir().expect("a directory");
        let notes = dir.path().join("notes");
        let mut program = Command::new(std::env::current_exe().expect("a program"));
        program.env(NOTES, &notes);
        program.args(["--exact", "--nocapture", "model::record::tests::known_lines_child"]);
        let recording = record(&program).expect("valgrind is there");
        let area: u64 = std::fs::read_to_string(&notes).expect("written").parse().expect("a number");
        assert_eq!(recording.threads.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        for (&thread, trace) in &recording.threads {
            assert_eq!(trace.operations.len(), 3, "thread {thread}");
            for (nth, operation) in trace.operations.iter().enumerate() {
                let in_area = |access: &&Access| (area..area + 4096).contains(&access.addr);
                let found: Vec<(u64, u32, Kind)> = operation
                    .accesses
                    .iter()
                    .filter(in_area)
                    .map(|access| (access.addr, access.size, access.kind))
                    .collect();
                let expected = known(thread, nth).map(|(word, kind)| (area + 8 * word as u64, 8, kind));
                assert_eq!(found, expected, "thread {thread}, operation {nth}");
                assert!(operation.instructions >= 4);
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_what_is_understood() {
        for image in [None, Some(PathBuf::from("/some where/image"))] {
            let key = "rangelock btree one-held".to_owned();
            let request = Request { workload: Workload::RangeLock, key, threads: 8, image };
            assert_eq!(Request::of_args(request.args()).expect("complete"), request);
        }
        for args in [vec!["rangelock", "k"], vec!["cow", "k", "1"], vec!["rangelock", "k", "one"]] {
            assert!(Request::of_args(args.into_iter().map(OsString::from)).is_err());
        }
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn a_program_that_fails_says_why() {
        let mut program = Command::new("sh");
        program.args(["-c", "echo no luck >&2; exit 3"]);
        let error = record(&program).expect_err("it fails").to_string();
        assert!(error.contains("no luck") && error.contains('3'), "{error}");
        let error = record(&Command::new("true")).expect_err("there is nothing in it").to_string();
        assert!(error.contains("marked nothing"), "{error}");
    }
}
