//! A recording cut down to what threads can wait for: lines that several of them touch and one of them writes, and locks.
//!
//! A lock shows in the trace by how it is taken. Whoever takes it expects a certain word, that of a free lock, and swaps it
//! without having looked (`Swap`); an atomic count, and the word of a reader-writer lock that is taken shared, have to be
//! looked at first (`Modify`, or `Load` and then `Swap`). The thread's next write to that word gives the lock back.
//! A word that is taken so by anybody is a lock; those who look first and write twice then hold it shared.
//!
//! Invariants:
//! - only the outermost lock counts: what is taken by a thread that holds one is data of that one's section;
//! - an operation that begins without a lock ends without one: what it does not give back was none.

use super::trace::{Access, Kind, LINE, Operation, Recording};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A line that several threads touch, numbered from 0.
pub(crate) type LineId = usize;
/// A lock, numbered from 0.
pub(crate) type LockId = usize;

/// What a step does to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    /// Takes it alone.
    Take(LockId),
    /// Takes it with others.
    Share(LockId),
    /// Gives it back.
    Give(LockId),
}

/// One access to a line that others touch too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// What the thread does by itself before, in nanoseconds.
    pub(crate) after_ns: f64,
    pub(crate) line: LineId,
    pub(crate) write: bool,
    pub(crate) lock: Option<Locked>,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Steps {
    pub(crate) steps: Vec<Step>,
    /// What the thread does by itself after the last step.
    pub(crate) tail_ns: f64,
}

/// What all threads do, over and over.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Program {
    pub(crate) threads: Vec<Vec<Steps>>,
    /// What the lines are, by number.
    pub(crate) lines: Vec<String>,
    /// The lines of the locks, by number.
    pub(crate) locks: Vec<LineId>,
}

/// What a thread's own work takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// One instruction.
    pub(crate) instruction_ns: f64,
    /// One line that the thread has not touched before.
    pub(crate) cold_line_ns: f64,
}

/// Makes a program of a recording.
pub(crate) fn program(recording: &Recording, pace: Pace) -> Program {
    let shared = shared_lines(recording);
    let locks = lock_words(recording, &shared);
    let lock_lines: HashSet<u64> = locks.keys().map(|(addr, _)| addr / LINE).collect();
    let numbers: HashMap<u64, LineId> = shared.iter().enumerate().map(|(id, &line)| (line, id)).collect();
    let lines = shared.iter().map(|line| line_name(*line, &lock_lines)).collect();
    let words = locks.keys().map(|(addr, _)| numbers[&(addr / LINE)]).collect();
    let mut threads = Vec::new();
    for trace in recording.threads.values() {
        let mut seen = trace.warm.clone();
        let all =
            trace.operations.iter().map(|operation| steps(operation, &numbers, &locks, &mut seen, pace));
        threads.push(all.collect());
    }
    Program { threads, lines, locks: words }
}

/// Lines that several threads touch, at least one of which writes, in order.
fn shared_lines(recording: &Recording) -> Vec<u64> {
    #[derive(Default)]
    struct Users {
        first: Option<usize>,
        several: bool,
        written: bool,
    }
    let mut lines: BTreeMap<u64, Users> = BTreeMap::new();
    for (&thread, trace) in &recording.threads {
        for access in trace.operations.iter().flat_map(|operation| &operation.accesses) {
            for line in access.lines() {
                let users = lines.entry(line).or_default();
                users.several |= *users.first.get_or_insert(thread) != thread;
                users.written |= access.kind.writes();
            }
        }
    }
    lines.into_iter().filter(|(_, users)| users.several && users.written).map(|(line, _)| line).collect()
}

/// A word of memory: where it is, and its size.
type Word = (u64, u32);

/// How a thread comes to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    Take,
    Share,
    Give,
}

/// Finds the passages of one operation: the nth of its accesses, the word, and which way.
///
/// `may_be_lock` says which words are asked about.
fn passages(operation: &Operation, may_be_lock: impl Fn(Word) -> bool) -> Vec<(usize, Word, Passage)> {
    let mut all = Vec::new();
    // Words that the thread has read or written since it last held a lock: it may know what is in them.
    let mut looked: HashSet<u64> = HashSet::new();
    let mut held: Option<Word> = None;
    for (nth, access) in operation.accesses.iter().enumerate() {
        let word = (access.addr, access.size);
        match held {
            Some(lock) if lock == word && access.kind.writes() => {
                all.push((nth, word, Passage::Give));
                held = None;
                looked.clear();
            }
            Some(_) => {}
            None => {
                let swapped = matches!(access.kind, Kind::Swap | Kind::Modify);
                let knew = access.kind == Kind::Modify || looked.contains(&access.addr);
                if swapped && may_be_lock(word) && is_given_back(&operation.accesses[nth + 1..], word) {
                    all.push((nth, word, if knew { Passage::Share } else { Passage::Take }));
                    held = Some(word);
                } else {
                    looked.insert(access.addr);
                }
            }
        }
    }
    all
}

fn is_given_back(rest: &[Access], word: Word) -> bool {
    rest.iter().any(|access| (access.addr, access.size) == word && access.kind.writes())
}

/// The words of locks, numbered: those in shared lines that somebody takes without a look.
fn lock_words(recording: &Recording, shared: &[u64]) -> BTreeMap<Word, LockId> {
    let shared: HashSet<u64> = shared.iter().copied().collect();
    let mut words: BTreeMap<Word, LockId> = BTreeMap::new();
    for operation in recording.threads.values().flat_map(|trace| &trace.operations) {
        // A count that is looked at first would hide the locks that are taken while it stands: only words that are
        // swapped without a look are asked about.
        let swapped: HashSet<Word> = bare_swaps(operation);
        let found = passages(operation, |word| shared.contains(&(word.0 / LINE)) && swapped.contains(&word));
        words.extend(found.iter().filter(|(_, _, way)| *way == Passage::Take).map(|(_, word, _)| (*word, 0)));
    }
    words.values_mut().enumerate().for_each(|(id, lock)| *lock = id);
    words
}

/// Words that are swapped before anything else is done to them.
fn bare_swaps(operation: &Operation) -> HashSet<Word> {
    let mut looked = HashSet::new();
    let first = operation.accesses.iter().filter(|access| looked.insert(access.addr));
    first.filter(|access| access.kind == Kind::Swap).map(|access| (access.addr, access.size)).collect()
}

fn line_name(line: u64, lock_lines: &HashSet<u64>) -> String {
    if lock_lines.contains(&line) {
        return format!("{:#x}, with a lock's word", line * LINE);
    }
    let near = (1..=4).find(|by| lock_lines.contains(&line.wrapping_sub(*by)));
    match near {
        Some(by) => format!("{:#x}, {} bytes behind a lock's word's", line * LINE, by * LINE),
        None => format!("{:#x}", line * LINE),
    }
}

fn steps(
    operation: &Operation,
    numbers: &HashMap<u64, LineId>,
    locks: &BTreeMap<Word, LockId>,
    seen: &mut HashSet<u64>,
    pace: Pace,
) -> Steps {
    let mut all = Steps::default();
    let mut passages = passages(operation, |word| locks.contains_key(&word)).into_iter().peekable();
    let (mut instructions, mut cold) = (0, 0_u32);
    let mut own_ns = |until: u32, cold: &mut u32| {
        let after = until.saturating_sub(std::mem::replace(&mut instructions, until));
        f64::from(after) * pace.instruction_ns + f64::from(std::mem::take(cold)) * pace.cold_line_ns
    };
    for (nth, access) in operation.accesses.iter().enumerate() {
        let passage = passages.next_if(|(at, _, _)| *at == nth);
        let mut lock = passage.and_then(|(_, word, way)| {
            let id = *locks.get(&word)?;
            Some(match way {
                Passage::Take => Locked::Take(id),
                Passage::Share => Locked::Share(id),
                Passage::Give => Locked::Give(id),
            })
        });
        for line in access.lines() {
            cold += u32::from(seen.insert(line));
            let Some(&line) = numbers.get(&line) else { continue };
            let after_ns = own_ns(access.at, &mut cold);
            all.steps.push(Step { after_ns, line, write: access.kind.writes(), lock: lock.take() });
        }
    }
    all.tail_ns = own_ns(operation.instructions, &mut cold);
    all
}

#[cfg(test)]
mod tests {
    use super::super::trace::ThreadTrace;
    use super::*;

    const PACE: Pace = Pace { instruction_ns: 1.0, cold_line_ns: 0.0 };
    /// Words in lines of their own.
    const LOCK: u64 = 0x1000;
    const DATA: u64 = 0x2000;
    const COUNT: u64 = 0x3000;

    /// Threads that each do the operations, an access every ten instructions.
    fn recording(threads: usize, operations: &[&[(u64, Kind)]]) -> Recording {
        let operation = |accesses: &&[(u64, Kind)]| Operation {
            accesses: accesses
                .iter()
                .zip(1..)
                .map(|(&(addr, kind), nth)| Access { addr, size: 4, kind, at: 10 * nth })
                .collect(),
            instructions: 10 * accesses.len() as u32 + 5,
        };
        let trace =
            ThreadTrace { operations: operations.iter().map(operation).collect(), ..Default::default() };
        Recording { threads: (0..threads).map(|thread| (thread, trace.clone())).collect() }
    }

    fn ways(operation: &Steps) -> Vec<Option<Locked>> {
        operation.steps.iter().map(|step| step.lock).collect()
    }

    #[test]
    fn a_word_swapped_unseen_and_written_again_is_a_lock() {
        use Kind::{Load, Modify, Store, Swap};
        let spin: &[(u64, Kind)] =
            &[(COUNT, Modify), (LOCK, Swap), (DATA, Swap), (DATA, Store), (LOCK, Store)];
        let program = program(&recording(2, &[spin]), PACE);
        let taken = [None, Some(Locked::Take(0)), None, None, Some(Locked::Give(0))];
        assert_eq!(ways(&program.threads[0][0]), taken, "the count is none, nor what the lock guards");
        assert_eq!(program.threads[0][0].steps[1].after_ns, 10.0);
        assert_eq!(program.threads[0][0].tail_ns, 5.0);
        assert_eq!((program.lines.len(), program.locks.len()), (3, 1));
        // Taken shared by those who look first, where others take it alone.
        let read: &[(u64, Kind)] = &[(LOCK, Load), (LOCK, Swap), (DATA, Load), (LOCK, Modify)];
        let both = super::program(&recording(2, &[spin, read]), PACE);
        assert_eq!(ways(&both.threads[1][1]), [None, Some(Locked::Share(0)), None, Some(Locked::Give(0))]);
        let readers = super::program(&recording(2, &[read]), PACE);
        assert!(readers.locks.is_empty(), "nobody excludes anybody");
    }

    #[test]
    fn what_one_thread_has_alone_and_what_nobody_writes_is_left_out() {
        let mut recording = recording(2, &[&[(DATA, Kind::Load), (COUNT, Kind::Store)]]);
        for (thread, trace) in &mut recording.threads {
            trace.operations[0].accesses[1].addr += 64 * *thread as u64;
        }
        let program = program(&recording, PACE);
        assert!(program.lines.is_empty() && program.threads[0][0].steps.is_empty());
        assert_eq!(program.threads[0][0].tail_ns, 25.0);
    }
}
