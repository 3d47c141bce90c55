//! What `valgrind --tool=lackey --trace-mem=yes` says, line by line, made into operations of threads.
//!
//! The trace has no thread in it. So the program that is recorded lets one thread go on at a time and says which by
//! stores to an array of its own, the marks ([`super::pen`]): whose turn it is, where an operation begins and where it
//! ends. What lies between two operations is nobody's.
//!
//! Invariants:
//! - accesses are in the order of the program; none is left out or added, except for the marks themselves;
//! - the load and the write of one instruction to one address are one access: an atomic exchange or addition is traced as
//!   both, and waits for its line once.

use std::collections::{BTreeMap, HashSet};

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;

/// What an access does to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Load,
    Store,
    /// Both in one instruction, such as an atomic addition, which knows what is there only by looking.
    Modify,
    /// A compare-and-swap, which goes by what the program expects to be there.
    Swap,
}

impl Kind {
    pub(crate) fn writes(self) -> bool {
        self != Self::Load
    }
}

/// One access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) addr: u64,
    pub(crate) size: u32,
    pub(crate) kind: Kind,
    /// How many instructions of the operation were begun before its own was over.
    pub(crate) at: u32,
}

impl Access {
    /// The lines that it touches, by number.
    pub(crate) fn lines(&self) -> std::ops::RangeInclusive<u64> {
        self.addr / LINE..=(self.addr + u64::from(self.size.max(1)) - 1) / LINE
    }
}

/// One operation of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) accesses: Vec<Access>,
    pub(crate) instructions: u32,
}

/// What one thread did in its turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadTrace {
    /// Lines that it touched while it warmed up.
    pub(crate) warm: HashSet<u64>,
    pub(crate) operations: Vec<Operation>,
}

/// All threads of a recording, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    pub(crate) threads: BTreeMap<usize, ThreadTrace>,
}

impl Recording {
    /// Instructions of an operation, on average.
    pub(crate) fn instructions(&self) -> f64 {
        let all = self.threads.values().flat_map(|thread| &thread.operations);
        let (sum, count) =
            all.fold((0.0, 0), |(sum, count), each| (sum + f64::from(each.instructions), count + 1));
        sum / f64::from(count.max(1))
    }

    /// Lines of an operation, on average, that its thread touches for the first time.
    pub(crate) fn cold_lines(&self) -> f64 {
        let (mut cold, mut count) = (0, 0_u32);
        for thread in self.threads.values() {
            let mut seen = thread.warm.clone();
            for operation in &thread.operations {
                count += 1;
                cold += operation
                    .accesses
                    .iter()
                    .flat_map(Access::lines)
                    .filter(|line| seen.insert(*line))
                    .count();
            }
        }
        cold as f64 / f64::from(count.max(1))
    }
}

/// A mark, by its index in the array of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// An operation begins that is recorded.
    Begin,
    /// One begins that only warms up.
    Warm,
    /// An operation is over; what comes until the next mark is nobody's.
    Over,
    /// The operation that is over counts.
    End,
    /// It does, but the system's coarse clock has ticked since the one before it began.
    Ticked,
    /// This thread's turn begins.
    Turn(usize),
}

impl Mark {
    /// Marks of which there is one.
    const FIXED: usize = 5;
    /// Most threads that a recording has.
    pub(crate) const MAX_THREADS: usize = 256;
    /// How many marks there are.
    pub(crate) const COUNT: usize = Self::FIXED + Self::MAX_THREADS;

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Begin => 0,
            Self::Warm => 1,
            Self::End => 2,
            Self::Ticked => 3,
            Self::Over => 4,
            Self::Turn(thread) => Self::FIXED + thread,
        }
    }

    fn of_index(index: usize) -> Self {
        match index {
            0 => Self::Begin,
            1 => Self::Warm,
            2 => Self::End,
            3 => Self::Ticked,
            4 => Self::Over,
            turn => Self::Turn(turn - Self::FIXED),
        }
    }
}

/// Bytes of one mark.
pub(crate) const MARK_BYTES: u64 = 4;

/// Reads a trace as it comes.
#[derive(Debug)]
pub(crate) struct Parser {
    /// Where the marks lie; nothing is recorded before that is known.
    marks: u64,
    thread: usize,
    /// The operation that is under way, and whether it only warms up.
    open: Option<(Operation, bool)>,
    /// Whether that is over, and only its last mark is missing.
    is_over: bool,
    /// Operations with a tick of the clock, by thread.
    ticked: BTreeMap<usize, Vec<Operation>>,
    recording: Recording,
}

impl Parser {
    pub(crate) fn new(marks: u64) -> Self {
        Self {
            marks,
            thread: 0,
            open: None,
            is_over: false,
            ticked: BTreeMap::new(),
            recording: Recording::default(),
        }
    }

    /// Takes one line of the trace; lines of any other shape are not of the trace.
    pub(crate) fn line(&mut self, line: &[u8]) {
        let Some((kind, place)) = line.split_at_checked(3) else { return };
        let kind = match kind {
            b"I  " => None,
            b" L " => Some(Kind::Load),
            b" S " => Some(Kind::Store),
            b" M " => Some(Kind::Swap),
            _ => return,
        };
        match kind {
            None => {
                if let Some((operation, _)) = self.open.as_mut().filter(|_| !self.is_over) {
                    operation.instructions += 1;
                }
            }
            Some(kind) => {
                let Some((addr, size)) = place_of(place) else { return };
                match self.mark_at(addr) {
                    Some(mark) => self.mark(mark),
                    None => self.access(addr, size, kind),
                }
            }
        }
    }

    fn mark_at(&self, addr: u64) -> Option<Mark> {
        let offset = addr.checked_sub(self.marks)?;
        let index = usize::try_from(offset / MARK_BYTES).ok()?;
        (index < Mark::COUNT).then(|| Mark::of_index(index))
    }

    fn mark(&mut self, mark: Mark) {
        match mark {
            Mark::Turn(thread) => self.thread = thread,
            Mark::Begin | Mark::Warm => {
                self.open = Some((Operation::default(), mark == Mark::Warm));
                self.is_over = false;
            }
            Mark::Over => self.is_over = true,
            Mark::End | Mark::Ticked => {
                let Some((mut operation, warm)) = self.open.take() else { return };
                // The store that ended it.
                operation.instructions = operation.instructions.saturating_sub(1);
                let thread = self.recording.threads.entry(self.thread).or_default();
                if warm {
                    thread.warm.extend(operation.accesses.iter().flat_map(Access::lines));
                } else if mark == Mark::Ticked {
                    self.ticked.entry(self.thread).or_default().push(operation);
                } else {
                    thread.operations.push(operation);
                }
            }
        }
    }

    fn access(&mut self, addr: u64, size: u32, kind: Kind) {
        let Some((operation, _)) = self.open.as_mut().filter(|_| !self.is_over) else { return };
        let at = operation.instructions;
        if let Some(last) = operation.accesses.last_mut()
            && kind.writes()
            && *last == (Access { addr, size, kind: Kind::Load, at })
        {
            last.kind = Kind::Modify;
            return;
        }
        operation.accesses.push(Access { addr, size, kind, at });
    }

    /// The recording. What a thread does at a tick of the clock is as good as never done, except for the recorder,
    /// which slows all down: it is left out, unless the thread has done nothing else.
    pub(crate) fn finish(mut self) -> Recording {
        for (thread, ticked) in self.ticked {
            let thread = self.recording.threads.entry(thread).or_default();
            if thread.operations.is_empty() {
                thread.operations = ticked;
            }
        }
        self.recording
    }
}

/// `0015dcc4,4`: an address in hexadecimal digits, and a number of bytes.
fn place_of(text: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    let (addr, size) = text.split_once(',')?;
    Some((u64::from_str_radix(addr, 16).ok()?, size.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Recording {
        let mut parser = Parser::new(0x1000);
        lines.lines().for_each(|line| parser.line(line.as_bytes()));
        parser.finish()
    }

    #[test]
    fn marks_say_whose_an_access_is_and_where_operations_end() {
        // Turn of thread 1; an operation that warms up, one that counts; turn of thread 0, one that counts.
        let recording = parse(
            "==12== not of the trace\n\
             I  0400,4\n S 00001018,4\n L 00009000,8\n\
             I  0404,4\n S 00001004,4\nI  0408,4\n L 00002000,8\nI  040c,4\n S 00001010,4\n L 00009000,8\n S 00001008,4\n\
             I  0404,4\n S 00001000,4\nI  0408,4\n L 00002040,8\nI  040c,4\n S 0000207c,8\nI  0410,4\n S 00001010,4\n L 00009000,8\n S 00001008,4\n\
             I  0414,4\n L 00009000,8\n S 00001014,4\n\
             I  0404,4\n S 00001000,4\nI  0408,4\n M 00003000,1\nI  0410,4\n S 00001010,4\n L 00009000,8\n S 00001008,4\n",
        );
        assert_eq!(recording.threads.len(), 2);
        let one = &recording.threads[&1];
        assert_eq!(one.warm, HashSet::from([0x2000 / 64]));
        assert_eq!(one.operations.len(), 1);
        assert_eq!(one.operations[0].instructions, 2);
        let lines: Vec<u64> = one.operations[0].accesses.iter().flat_map(Access::lines).collect();
        assert_eq!(lines, [0x81, 0x81, 0x82], "a store over the edge of a line touches both");
        let zero = &recording.threads[&0].operations[0];
        assert_eq!(zero.accesses, [Access { addr: 0x3000, size: 1, kind: Kind::Swap, at: 1 }]);
        assert_eq!(recording.cold_lines(), 1.5, "two of thread 1, one of thread 0");
    }

    #[test]
    fn what_is_done_at_a_tick_is_left_out_unless_there_is_nothing_else() {
        let ticked = "I  0400,4\n S 00001000,4\n S 00003000,8\nI  0410,4\n S 00001010,4\n S 0000100c,4\n";
        let plain = "I  0400,4\n S 00001000,4\n L 00003000,8\nI  0410,4\n S 00001010,4\n L 00009000,8\n S 00001008,4\n";
        let kinds = |lines: &str| -> Vec<Kind> {
            parse(lines).threads[&0].operations.iter().map(|operation| operation.accesses[0].kind).collect()
        };
        assert_eq!(kinds(&[ticked, plain, ticked].concat()), [Kind::Load]);
        assert_eq!(kinds(&[ticked, ticked].concat()), [Kind::Store; 2]);
    }

    #[test]
    fn a_load_and_a_write_of_one_instruction_are_one_access() {
        let recording = parse(
            "I  0400,4\n S 00001000,4\n\
             I  0404,4\n L 00003000,4\n M 00003000,4\nI  0408,4\n L 00003000,4\nI  040c,4\n M 00003000,4\n\
             I  0410,4\n S 00001010,4\n L 00009000,8\n S 00001008,4\n",
        );
        let kinds: Vec<Kind> =
            recording.threads[&0].operations[0].accesses.iter().map(|access| access.kind).collect();
        assert_eq!(kinds, [Kind::Modify, Kind::Load, Kind::Swap]);
    }
}
