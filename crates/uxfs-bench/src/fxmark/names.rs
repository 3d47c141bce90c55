//! Names that are made, removed and moved.

use super::{FxMark, Hand, Plan, SHARED, Stage, own_dir, repeat, wrong};
use crate::error::Result;
use crate::fs::{Directory, FileSystem, NameBuf, OpenFile};
use crate::timer::Timer;
use blockdev::AlignedBuf;

/// Bytes that `MWCM` writes to each file.
const BLOCK: usize = 4096;

/// The names of one thread's files, wherever they are.
#[derive(Clone, Copy)]
pub(super) struct NameOf(pub(super) usize);

impl NameOf {
    fn nth(self, room: &mut NameBuf, nth: u64) -> &[u8] {
        room.of(format_args!("file-{}-{nth}", self.0))
    }
}

/// Makes one thread's files.
pub(super) fn make_files<D: Directory>(dir: &D, name: NameOf, files: u64) -> Result<()> {
    let mut room = NameBuf::new();
    (0..files).try_for_each(|nth| dir.make(name.nth(&mut room, nth)))
}

/// Makes the initial files of the workload.
pub(super) fn set<F: FileSystem>(fs: &F, which: FxMark, plan: Plan) -> Result<Stage<'_, F::Dir>> {
    use FxMark::{MWCL, MWCM, MWRL, MWRM, MWUM};
    let shared = match which {
        MWCM | MWUM | MWRM => Some(fs.root()?.make_dir(SHARED)?),
        _ => None,
    };
    let (mut hands, mut left): (Vec<Box<dyn Hand + '_>>, _) = (Vec::new(), Vec::new());
    for thread in 0..plan.threads {
        let name = NameOf(thread);
        let own = match which {
            MWCM | MWUM => None,
            _ => Some(own_dir(fs, thread)?),
        };
        // Where its files are.
        let dir = match (&own, &shared) {
            (Some(dir), _) | (None, Some(dir)) => dir.reopen()?,
            (None, None) => return Err(wrong("no directory for a thread")),
        };
        let before = match which {
            MWCL | MWCM => 0,
            MWRL => 1,
            _ => plan.files,
        };
        make_files(&dir, name, before)?;
        let after = match which {
            MWCL => plan.files,
            MWRL => 1,
            _ => 0,
        };
        left.extend(own.map(|dir| (dir, after)));
        hands.push(match which {
            MWCL => Box::new(Makes { dir, name, files: plan.files }),
            MWCM => {
                let block = AlignedBuf::zeroed(BLOCK);
                Box::new(Fills { dir, name, files: plan.files, block })
            }
            MWRL => Box::new(Renames { dir, name, nth: 0 }),
            MWRM => {
                let to = match &shared {
                    Some(dir) => dir.reopen()?,
                    None => return Err(wrong("no directory to move to")),
                };
                Box::new(Moves { dir, to, name, files: plan.files })
            }
            // `MWUL` and `MWUM`.
            _ => Box::new(Removes { dir, name, files: plan.files }),
        });
    }
    let all = if which == MWUM { 0 } else { plan.files * plan.threads as u64 };
    left.extend(shared.map(|dir| (dir, all)));
    Ok(Stage { hands, left })
}

/// An error if one of a thread's files has another size.
fn expect<D: Directory>(dir: &D, name: NameOf, nth: u64, size: u64) -> Result<()> {
    let mut room = NameBuf::new();
    let name = name.nth(&mut room, nth);
    match dir.look(name)? {
        Some(seen) if !seen.is_dir && seen.size == size => Ok(()),
        other => Err(wrong(format!("{}: {other:?}, not {size} bytes", String::from_utf8_lossy(name)))),
    }
}

/// Makes empty files.
struct Makes<D> {
    dir: D,
    name: NameOf,
    files: u64,
}

impl<D: Directory> Hand for Makes<D> {
    fn work(&mut self, _plan: Plan, timer: &mut Timer) -> Result<u64> {
        let (mut room, dir) = (NameBuf::new(), &self.dir);
        for nth in 0..self.files {
            let name = self.name.nth(&mut room, nth);
            timer.of(|| dir.make(name))?;
        }
        Ok(self.files)
    }

    fn check(&self) -> Result<()> {
        expect(&self.dir, self.name, 0, 0)?;
        expect(&self.dir, self.name, self.files - 1, 0)
    }
}

/// Makes files of one block.
struct Fills<D> {
    dir: D,
    name: NameOf,
    files: u64,
    block: AlignedBuf,
}

impl<D: Directory> Hand for Fills<D> {
    fn work(&mut self, _plan: Plan, timer: &mut Timer) -> Result<u64> {
        let mut room = NameBuf::new();
        for nth in 0..self.files {
            let name = self.name.nth(&mut room, nth);
            timer.of(|| self.dir.create(name)?.write(0, &self.block))?;
        }
        Ok(self.files)
    }

    fn check(&self) -> Result<()> {
        expect(&self.dir, self.name, 0, BLOCK as u64)?;
        expect(&self.dir, self.name, self.files - 1, BLOCK as u64)
    }
}

/// Removes files.
struct Removes<D> {
    dir: D,
    name: NameOf,
    files: u64,
}

impl<D: Directory> Hand for Removes<D> {
    fn work(&mut self, _plan: Plan, timer: &mut Timer) -> Result<u64> {
        let mut room = NameBuf::new();
        for nth in 0..self.files {
            let name = self.name.nth(&mut room, nth);
            timer.of(|| self.dir.unlink(name))?;
        }
        Ok(self.files)
    }

    fn check(&self) -> Result<()> {
        // What is left is counted, in the directory.
        Ok(())
    }
}

/// Renames one file over and over.
struct Renames<D> {
    dir: D,
    name: NameOf,
    /// Number of the name that it has.
    nth: u64,
}

impl<D: Directory> Hand for Renames<D> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        let Self { dir, name, nth } = self;
        let (mut old, mut new) = (NameBuf::new(), NameBuf::new());
        repeat(plan.limit, timer, || {
            dir.rename(name.nth(&mut old, *nth), dir, name.nth(&mut new, *nth + 1))?;
            *nth += 1;
            Ok(())
        })
    }

    fn check(&self) -> Result<()> {
        expect(&self.dir, self.name, self.nth, 0)
    }
}

/// Moves files to another directory.
struct Moves<D> {
    dir: D,
    to: D,
    name: NameOf,
    files: u64,
}

impl<D: Directory> Hand for Moves<D> {
    fn work(&mut self, _plan: Plan, timer: &mut Timer) -> Result<u64> {
        let mut room = NameBuf::new();
        for nth in 0..self.files {
            let name = self.name.nth(&mut room, nth);
            timer.of(|| self.dir.rename(name, &self.to, name))?;
        }
        Ok(self.files)
    }

    fn check(&self) -> Result<()> {
        expect(&self.to, self.name, 0, 0)?;
        expect(&self.to, self.name, self.files - 1, 0)
    }
}
