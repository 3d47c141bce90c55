//! What a client does, step by step, decided before the clock starts.

/// Files of an errand.
pub(super) const FILES: usize = 20;

/// Bytes of pieces that are written and read: multiples of 8, most of them no whole blocks.
const PIECES: [u32; 6] = [520, 1496, 4096, 10_000, 16_384, 65_536];
/// The largest of them.
pub(super) const PIECE_MAX: usize = 65_536;

/// A file of the errand; its name follows from its index and from how often it was renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileOf {
    pub(super) index: u8,
    pub(super) renamed: u8,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    MakeDir,
    /// Looks up a missing file.
    Miss(FileOf),
    /// Makes a file and opens it.
    Create(FileOf),
    /// Opens a file instead of the open one.
    Open(FileOf),
    /// Writes to the file that is open.
    Write {
        at: u32,
        len: u32,
    },
    /// Reads from the file that is open.
    Read {
        at: u32,
        len: u32,
    },
    /// Makes the file that is open durable.
    Flush,
    /// Closes it; no operation.
    Close,
    /// Stats a file, which has this size.
    Look {
        file: FileOf,
        size: u32,
    },
    /// Lists the folder, which has so many names.
    List {
        names: u8,
    },
    /// Renames a file to its next name.
    Rename(FileOf),
    Unlink(FileOf),
    RemoveDir,
}

impl Step {
    /// Bytes of data that it moves.
    const fn bytes(self) -> u64 {
        match self {
            Self::Write { len, .. } | Self::Read { len, .. } => len as u64,
            _ => 0,
        }
    }
}

/// All steps of an errand.
#[derive(Debug)]
pub(super) struct Errand {
    steps: Vec<Step>,
    ops: u64,
    bytes: u64,
}

/// A file as the errand knows it.
#[derive(Clone, Copy)]
struct KnownFile {
    file: FileOf,
    size: u32,
}

/// An errand that is being composed.
struct Draft {
    rng: fastrand::Rng,
    steps: Vec<Step>,
    files: Vec<KnownFile>,
}

impl Errand {
    /// The errand that follows from a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut draft =
            Draft { rng: fastrand::Rng::with_seed(seed), steps: vec![Step::MakeDir], files: Vec::new() };
        for index in 0..FILES {
            draft.make(index);
            for _ in 0..4 {
                draft.visit();
            }
            for _ in 0..1 + index % 4 / 3 + index % 2 {
                draft.steps.push(Step::List { names: draft.files.len() as u8 });
            }
            if index % 5 == 4 {
                draft.rename();
            }
        }
        draft.rng.shuffle(&mut draft.files);
        draft.steps.extend(draft.files.iter().map(|known| Step::Unlink(known.file)));
        draft.steps.push(Step::RemoveDir);
        let ops = draft.steps.iter().filter(|&&step| step != Step::Close).count() as u64;
        let bytes = draft.steps.iter().map(|step| step.bytes()).sum();
        Self { steps: draft.steps, ops, bytes }
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How many operations it is.
    pub(super) const fn ops(&self) -> u64 {
        self.ops
    }

    /// How many bytes it writes and reads.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Draft {
    fn piece(&mut self) -> u32 {
        PIECES[self.rng.usize(..PIECES.len())]
    }

    /// A piece inside of a file: as long as fits, from a multiple of 8 on.
    fn part(&mut self, size: u32) -> (u32, u32) {
        let len = self.piece().min(size);
        (self.rng.u32(0..=(size - len) / 8) * 8, len)
    }

    /// A new file.
    fn make(&mut self, index: usize) {
        let file = FileOf { index: index as u8, renamed: 0 };
        let (first, second) = (self.piece(), self.piece());
        self.steps.extend([
            Step::Miss(file),
            Step::Create(file),
            Step::Write { at: 0, len: first },
            Step::Write { at: first, len: second },
        ]);
        let size = first + second;
        if index.is_multiple_of(2) {
            let (at, len) = self.part(size);
            self.steps.push(Step::Write { at, len });
        }
        if index.is_multiple_of(3) {
            self.steps.push(Step::Flush);
        }
        self.steps.push(Step::Close);
        self.files.push(KnownFile { file, size });
    }

    /// Reads a file that is there, and looks at it.
    fn visit(&mut self) {
        let KnownFile { file, size } = self.files[self.rng.usize(..self.files.len())];
        self.steps.push(Step::Open(file));
        for _ in 0..2 {
            let (at, len) = self.part(size);
            self.steps.push(Step::Read { at, len });
        }
        self.steps.extend([Step::Close, Step::Look { file, size }]);
    }

    fn rename(&mut self) {
        let nth = self.rng.usize(..self.files.len());
        let known = &mut self.files[nth];
        self.steps.push(Step::Rename(known.file));
        known.file.renamed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Checks the steps with a map of names and sizes: each step is possible and expects the right result.
    #[test]
    fn each_step_fits_those_before() {
        for seed in 0..100 {
            let errand = Errand::new(seed);
            let (mut files, mut open, mut steps) = (BTreeMap::new(), None, errand.steps().iter());
            assert_eq!(steps.next(), Some(&Step::MakeDir));
            for step in steps {
                match *step {
                    Step::Miss(file) => assert!(!files.contains_key(&file)),
                    Step::Create(file) => {
                        assert!(open.replace(file).is_none() && files.insert(file, 0).is_none());
                    }
                    Step::Open(file) => assert!(open.replace(file).is_none() && files.contains_key(&file)),
                    Step::Write { at, len } => {
                        assert!(at % 8 == 0 && len % 8 == 0 && len as usize <= PIECE_MAX);
                        let size: &mut u32 = files.get_mut(&open.expect("a file")).expect("there");
                        assert!(at <= *size, "no hole");
                        *size = (*size).max(at + len);
                    }
                    Step::Read { at, len } => {
                        assert!(at % 8 == 0 && at + len <= files[&open.expect("a file")])
                    }
                    Step::Flush => assert!(open.is_some()),
                    Step::Close => assert!(open.take().is_some()),
                    Step::Look { file, size } => assert_eq!(files[&file], size),
                    Step::List { names } => assert_eq!(files.len(), names as usize),
                    Step::Rename(file) => {
                        let size = files.remove(&file).expect("there");
                        let to = FileOf { renamed: file.renamed + 1, ..file };
                        assert!(files.insert(to, size).is_none());
                    }
                    Step::Unlink(file) => assert!(files.remove(&file).is_some()),
                    Step::RemoveDir => assert!(files.is_empty() && open.is_none()),
                    Step::MakeDir => panic!("it is there already"),
                }
            }
            assert!(files.is_empty() && open.is_none());
            assert_eq!(errand.steps().last(), Some(&Step::RemoveDir));
        }
    }

    #[test]
    fn the_mix_is_the_one_that_is_described() {
        let errand = Errand::new(1);
        let count = |of: fn(&Step) -> bool| errand.steps().iter().filter(|step| of(step)).count();
        assert_eq!(count(|step| matches!(step, Step::Create(_) | Step::Open(_))), 100);
        assert_eq!(count(|step| matches!(step, Step::Write { .. })), 50);
        assert_eq!(count(|step| matches!(step, Step::Read { .. })), 160);
        assert_eq!(count(|step| matches!(step, Step::Look { .. } | Step::Miss(_))), 100);
        assert_eq!(count(|step| matches!(step, Step::List { .. })), 35);
        assert_eq!(count(|step| matches!(step, Step::Unlink(_))), 20);
        assert_eq!(count(|step| matches!(step, Step::Flush)), 7);
        assert_eq!(count(|step| matches!(step, Step::Rename(_))), 4);
        assert_eq!(errand.ops(), 478);
        assert_eq!(Errand::new(1).steps(), errand.steps());
        assert_ne!(Errand::new(2).steps(), errand.steps());
    }
}
