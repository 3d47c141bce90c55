//! A client: does errands in its directory.

use super::errand::{Errand, FileOf, PIECE_MAX, Step};
use crate::error::{Error, Result};
use crate::fs::{Directory, NameBuf, OpenFile};
use crate::timer::Timer;
use blockdev::AlignedBuf;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A client and its directory.
pub(super) struct Client<D> {
    dir: D,
    /// The word that its files are full of.
    word: [u8; 8],
    piece: AlignedBuf,
    buf: AlignedBuf,
    errands: u64,
}

/// The name of a file.
fn name_of(file: FileOf, room: &mut NameBuf) -> &[u8] {
    room.of(format_args!("document-{}-{}", file.index, file.renamed))
}

fn wrong(what: String) -> Error {
    Error::Result(what)
}

impl<D: Directory> Client<D> {
    /// The client with this number, before its first errand.
    pub(super) fn new(number: usize, dir: D) -> Self {
        let word = (number as u64 + 1).wrapping_mul(0x0101_0101_0101_0101).to_le_bytes();
        let mut piece = AlignedBuf::zeroed(PIECE_MAX);
        for eight in piece.chunks_exact_mut(8) {
            eight.copy_from_slice(&word);
        }
        Self { dir, word, piece, buf: AlignedBuf::zeroed(PIECE_MAX), errands: 0 }
    }

    pub(super) fn dir(&self) -> &D {
        &self.dir
    }

    /// Does errands until the time is over, one at least; gives how many operations those were.
    pub(super) fn work(&mut self, errand: &Errand, limit: Duration, timer: &mut Timer) -> Result<u64> {
        let (start, before) = (Instant::now(), self.errands);
        loop {
            self.go(errand, timer)?;
            self.errands += 1;
            if start.elapsed() >= limit {
                return Ok((self.errands - before) * errand.ops());
            }
        }
    }

    /// Does one errand.
    fn go(&mut self, errand: &Errand, timer: &mut Timer) -> Result<()> {
        let mut room = NameBuf::new();
        let folder_name = room.of(format_args!("folder-{}", self.errands));
        let mut name = NameBuf::new();
        let (mut folder, mut open) = (None, None);
        for &step in errand.steps() {
            if step == Step::Close {
                open = None;
                continue;
            }
            timer.of(|| {
                match step {
                    Step::MakeDir => folder = Some(self.dir.make_dir(folder_name)?),
                    Step::RemoveDir => {
                        folder = None;
                        self.dir.remove_dir(folder_name)?;
                    }
                    Step::Write { .. } | Step::Read { .. } | Step::Flush => match &open {
                        Some(file) => self.on_file(step, file)?,
                        None => return Err(wrong(format!("{step:?} with no file open"))),
                    },
                    Step::Create(file) => open = Some(in_folder(&folder)?.create(name_of(file, &mut name))?),
                    Step::Open(file) => open = Some(in_folder(&folder)?.open(name_of(file, &mut name))?),
                    _ => on_names(step, in_folder(&folder)?, &mut name)?,
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A step on the file that is open.
    fn on_file(&mut self, step: Step, file: &D::File) -> Result<()> {
        match step {
            Step::Write { at, len } => file.write(at.into(), &self.piece[..len as usize]),
            Step::Read { at, len } => {
                let buf = &mut self.buf[..len as usize];
                file.read(at.into(), buf)?;
                if buf.first_chunk() == Some(&self.word) && buf.last_chunk() == Some(&self.word) {
                    return Ok(());
                }
                Err(wrong(format!("{len} bytes from {at} on are not what was written")))
            }
            _ => file.sync(),
        }
    }
}

fn in_folder<D>(folder: &Option<D>) -> Result<&D> {
    folder.as_ref().ok_or_else(|| wrong("there is no folder".to_owned()))
}

/// A step on names of the folder.
fn on_names<D: Directory>(step: Step, folder: &D, room: &mut NameBuf) -> Result<()> {
    match step {
        Step::Miss(file) => match folder.look(name_of(file, room))? {
            None => Ok(()),
            seen => Err(wrong(format!("{step:?}: {seen:?}"))),
        },
        Step::Look { file, size } => match folder.look(name_of(file, room))? {
            Some(seen) if !seen.is_dir && seen.size == u64::from(size) => Ok(()),
            seen => Err(wrong(format!("{step:?}: {seen:?}"))),
        },
        Step::List { names: expected } => {
            let mut found = 0;
            folder.list(&mut |_| {
                found += 1;
                ControlFlow::Continue(())
            })?;
            if found == expected { Ok(()) } else { Err(wrong(format!("{found} names, not {expected}"))) }
        }
        Step::Rename(file) => {
            let mut new = NameBuf::new();
            let next = FileOf { renamed: file.renamed + 1, ..file };
            folder.rename(name_of(file, room), folder, name_of(next, &mut new))
        }
        Step::Unlink(file) => folder.unlink(name_of(file, room)),
        other => Err(wrong(format!("{other:?} is no step of names"))),
    }
}
