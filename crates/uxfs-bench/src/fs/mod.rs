//! What the workloads on files and directories run on, with everything that a program does to both: a volume that
//! uxfs has open in this process, or a mounted directory by system calls.
//!
//! The loops of a workload are generic over [`FileSystem`], so that all targets run the same ones; what a target
//! does for an operation is what a program would: uxfs is called through the public library, the kernel by the one
//! system call that does it. Names are relative to open directories on both. A file, and a directory that is
//! [`reopen`](Directory::reopen)ed, belongs to one thread; threads of one process share a table of descriptors,
//! which costs the kernel a little where there are several.

mod scene;
mod sys;
mod uxfs;

pub(crate) use scene::{Scene, Site, Target};
pub(crate) use sys::SysFs;
pub(crate) use uxfs::UxfsFs;

use crate::error::Result;
use std::ops::ControlFlow;

/// The result of a stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_dir: bool,
    pub(crate) size: u64,
}

/// Files and directories below a root.
pub(crate) trait FileSystem: Send + Sync {
    type Dir: Directory;
    /// The root, which no one else uses.
    fn root(&self) -> Result<Self::Dir>;
    /// Stats a path from the root on.
    fn look(&self, path: &[u8]) -> Result<Seen>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
}

/// An open directory.
pub(crate) trait Directory: Send + Sync + Sized {
    type File: OpenFile;
    /// The same directory, opened by itself, for another thread.
    fn reopen(&self) -> Result<Self>;
    /// Makes an empty file, which is not there yet.
    fn make(&self, name: &[u8]) -> Result<()>;
    /// The same, and leaves it open.
    fn create(&self, name: &[u8]) -> Result<Self::File>;
    /// Opens a file to read and to write.
    fn open(&self, name: &[u8]) -> Result<Self::File>;
    /// Makes a directory, and opens it.
    fn make_dir(&self, name: &[u8]) -> Result<Self>;
    /// Opens a directory that is there.
    fn open_dir(&self, name: &[u8]) -> Result<Self>;
    /// Stats this name; none if it does not exist.
    fn look(&self, name: &[u8]) -> Result<Option<Seen>>;
    /// Gives the names that are in it, except for the dots, until `each` has enough.
    fn list(&self, each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<()>;
    /// Moves a name to another directory or name; an existing file there is replaced.
    fn rename(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()>;
    /// Removes a file.
    fn unlink(&self, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, name: &[u8]) -> Result<()>;
}

/// An open file.
pub(crate) trait OpenFile: Send {
    /// Fills `buf` with what is at byte `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes `buf` at byte `offset`, inside the file or past its end.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()>;
    /// Sets the file's size.
    fn set_len(&self, size: u64) -> Result<()>;
    /// Its size.
    fn size(&self) -> Result<u64>;
    /// Makes the file durable.
    fn sync(&self) -> Result<()>;
}

/// Names of a directory, all of them.
pub(crate) fn names<D: Directory>(dir: &D) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    dir.list(&mut |name| {
        names.push(name.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// How many names a directory has.
pub(crate) fn count<D: Directory>(dir: &D) -> Result<u64> {
    let mut count = 0;
    dir.list(&mut |_| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    Ok(count)
}

/// Removes all that is in a directory.
pub(crate) fn clear<D: Directory>(dir: &D) -> Result<()> {
    for name in names(dir)? {
        let Some(seen) = dir.look(&name)? else { continue };
        if seen.is_dir {
            clear(&dir.open_dir(&name)?)?;
            dir.remove_dir(&name)?;
        } else {
            dir.unlink(&name)?;
        }
    }
    Ok(())
}

/// Room for a name that is made while the clock runs, with no allocation.
pub(crate) struct NameBuf([u8; 40]);

impl NameBuf {
    pub(crate) const fn new() -> Self {
        Self([0; 40])
    }

    /// The name that `text` says.
    pub(crate) fn of(&mut self, text: std::fmt::Arguments<'_>) -> &[u8] {
        use std::io::Write;
        let room = self.0.len();
        let mut rest = &mut self.0[..];
        // A name that is too long would be cut off; no workload has one.
        let _ = rest.write_fmt(text);
        let left = rest.len();
        &self.0[..room - left]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Whatever a workload may ask of a target, on both kinds of targets.
    fn does_what_it_says<F: FileSystem>(fs: &F) {
        let root = fs.root().expect("a root");
        let dir = root.make_dir(b"dir").expect("made");
        dir.make(b"empty").expect("made");
        assert!(dir.make(b"empty").is_err(), "it is there already");
        let file = dir.create(b"file").expect("made");
        file.write(4096, &[7; 8192]).expect("written");
        assert_eq!(file.size().expect("a size"), 12288);
        let mut buf = [1; 8192];
        dir.reopen().expect("open").open(b"file").expect("open").read(0, &mut buf).expect("read");
        assert!(buf[..4096] == [0; 4096] && buf[4096..] == [7; 4096]);
        assert!(file.read(8192, &mut buf).is_err(), "the file ends inside");
        file.set_len(5).expect("cut");
        file.sync().expect("synced");
        assert_eq!(fs.look(b"dir/file").expect("there"), Seen { is_dir: false, size: 5 });
        assert_eq!(dir.look(b"none").expect("looked"), None);
        assert!(root.look(b"dir").expect("looked").is_some_and(|seen| seen.is_dir));
        dir.rename(b"file", &root, b"moved").expect("moved");
        dir.rename(b"empty", &root, b"moved").expect("replaced");
        assert_eq!(fs.look(b"moved").expect("there").size, 0);
        assert_eq!(count(&dir).expect("listed"), 0);
        let mut names = names(&root).expect("listed");
        names.sort();
        assert_eq!(names, [&b"dir"[..], b"moved"]);
        root.open_dir(b"dir").expect("open").make_dir(b"below").expect("made").make(b"x").expect("made");
        fs.sync().expect("synced");
        clear(&root).expect("cleared");
        assert_eq!(count(&root).expect("listed"), 0);
    }

    #[test]
    fn a_mounted_directory_and_a_volume_do_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        let site = SysFs::in_dir(dir.path(), "").expect("a target");
        does_what_it_says(&site.fs);
        site.finish().expect("it goes");
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
        let site =
            UxfsFs::make(&Config::default(), 1 << 30, 4, ::uxfs::Designs::default()).expect("a volume");
        does_what_it_says(&site.fs);
        site.finish().expect("it closes");
    }

    #[test]
    fn names_are_made_in_place() {
        let mut name = NameBuf::new();
        assert_eq!(name.of(format_args!("{}-{:06}", 3, 42)), b"3-000042");
        assert_eq!(name.of(format_args!("x")), b"x");
    }
}
