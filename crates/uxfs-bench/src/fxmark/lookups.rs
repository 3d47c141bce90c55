//! Paths that are looked up, and directories that are listed.

use super::names::{NameOf, make_files};
use super::{FxMark, Hand, Plan, SHARED, Stage, own_dir, repeat, repeat_untimed, wrong};
use crate::error::Result;
use crate::fs::{Directory, FileSystem};
use crate::timer::Timer;
use std::ops::ControlFlow;

/// Names in each directory of the tree of paths, the digits from 0 on.
const BRANCHES: u8 = 8;
/// Parts of a path.
const PARTS: usize = 5;
/// Bytes of a path: a digit each part, and slashes between.
const PATH_BYTES: usize = 2 * PARTS - 1;

/// Whether a name of the root is of the tree of paths.
pub(super) fn is_tree(name: &[u8]) -> bool {
    matches!(name, [digit] if digit.is_ascii_digit())
}

/// Makes what the workload looks at.
pub(super) fn set<F: FileSystem>(fs: &F, which: FxMark, plan: Plan) -> Result<Stage<'_, F::Dir>> {
    let mut stage = Stage { hands: Vec::new(), left: Vec::new() };
    match which {
        FxMark::MRDL | FxMark::MRDM => lists(fs, which, plan, &mut stage)?,
        FxMark::MRPL => {
            for thread in 0..plan.threads {
                own_path(&own_dir(fs, thread)?)?;
                let path = format!("thread-{thread}/0/0/0/0").into_bytes();
                stage.hands.push(Box::new(LooksAtOne { fs, path }));
            }
        }
        _ => {
            let root = fs.root()?;
            if root.look(b"0")?.is_none() {
                grow(&root, PARTS)?;
            }
            for thread in 0..plan.threads {
                stage.hands.push(if which == FxMark::MRPH {
                    Box::new(LooksAtOne { fs, path: b"0/0/0/0/0".to_vec() })
                } else {
                    let rng = fastrand::Rng::with_seed(plan.serial << 16 | thread as u64);
                    Box::new(LooksAtAny { fs, rng })
                });
            }
        }
    }
    Ok(stage)
}

/// The rest of a thread's path below its directory.
fn own_path<D: Directory>(own: &D) -> Result<()> {
    let mut dir = own.make_dir(b"0")?;
    for _ in 0..PARTS - 3 {
        dir = dir.make_dir(b"0")?;
    }
    dir.make(b"0")
}

/// The tree of paths: directories of directories, and files in the last ones.
fn grow<D: Directory>(dir: &D, parts: usize) -> Result<()> {
    for digit in b'0'..b'0' + BRANCHES {
        if parts == 1 {
            dir.make(&[digit])?;
        } else {
            grow(&dir.make_dir(&[digit])?, parts - 1)?;
        }
    }
    Ok(())
}

/// Directories with files in them, each thread's own or one for all.
fn lists<'a, F: FileSystem>(
    fs: &'a F,
    which: FxMark,
    plan: Plan,
    stage: &mut Stage<'a, F::Dir>,
) -> Result<()> {
    let shared = match which {
        FxMark::MRDM => Some(fs.root()?.make_dir(SHARED)?),
        _ => None,
    };
    for thread in 0..plan.threads {
        let dir = match &shared {
            Some(dir) => dir.reopen()?,
            None => own_dir(fs, thread)?,
        };
        make_files(&dir, NameOf(thread), plan.files)?;
        let expected = if shared.is_some() { plan.files * plan.threads as u64 } else { plan.files };
        // It checks what it finds by itself. The count of one directory shows that nothing is lost.
        stage.hands.push(Box::new(Lists { dir, expected }));
    }
    if let Some(dir) = shared {
        stage.left.push((dir, plan.files * plan.threads as u64));
    }
    Ok(())
}

/// Stats one file, by its path.
struct LooksAtOne<'a, F> {
    fs: &'a F,
    path: Vec<u8>,
}

/// Stats a file, or fails if there is none.
fn look<F: FileSystem>(fs: &F, path: &[u8]) -> Result<()> {
    match fs.look(path)? {
        seen if seen.is_dir || seen.size != 0 => {
            Err(wrong(format!("{} is no empty file", String::from_utf8_lossy(path))))
        }
        _ => Ok(()),
    }
}

impl<F: FileSystem> Hand for LooksAtOne<'_, F> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        repeat(plan.limit, timer, || look(self.fs, &self.path))
    }

    fn check(&self) -> Result<()> {
        look(self.fs, &self.path)
    }
}

/// Stats files in random order, by their paths.
struct LooksAtAny<'a, F> {
    fs: &'a F,
    rng: fastrand::Rng,
}

impl<F: FileSystem> Hand for LooksAtAny<'_, F> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        let mut path = [b'/'; PATH_BYTES];
        repeat(plan.limit, timer, || {
            let mut dice = self.rng.u32(..);
            for digit in path.iter_mut().step_by(2) {
                *digit = b'0' + (dice % u32::from(BRANCHES)) as u8;
                dice /= u32::from(BRANCHES);
            }
            look(self.fs, &path)
        })
    }

    fn check(&self) -> Result<()> {
        look(self.fs, b"7/7/7/7/7")
    }
}

/// Lists a directory over and over.
struct Lists<D> {
    dir: D,
    expected: u64,
}

impl<D: Directory> Hand for Lists<D> {
    fn work(&mut self, plan: Plan, timer: &mut Timer) -> Result<u64> {
        let mut all = 0;
        repeat_untimed(plan.limit, || {
            let mut entries = 0;
            // From one entry to the next.
            timer.begin();
            self.dir.list(&mut |name| {
                timer.end();
                entries += u64::from(!name.is_empty());
                timer.begin();
                ControlFlow::Continue(())
            })?;
            timer.abandon();
            all += entries;
            if entries == self.expected { Ok(()) } else { Err(wrong(format!("{entries} names were listed"))) }
        })?;
        Ok(all)
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
