//! A new file in a directory of the host. It has no name, or a private one, until it is complete.
//!
//! Invariants: a file that is dropped before it is published leaves nothing; publishing under a free name never
//! replaces another file; what is made by name is made under a private one, so that nothing is removed by a name that
//! others know; attributes are set on the file that was made, not on whatever has its name: if it had to be made by name,
//! it is opened without following links, and must have the right type and owner and no other name.

use super::Identity;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new file, open for writing.
pub struct NewFile {
    fd: OwnedFd,
    /// Its directory and its private name, if it could not be made without one.
    named: Option<(OwnedFd, Vec<u8>)>,
}

impl NewFile {
    /// A file in `dir` with these permissions, less the umask, or as the directory's default list says. A file that
    /// will get another owner is private until then.
    pub fn create(dir: &OwnedFd, mode: Mode, owned: bool) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        if proc_is_there() {
            match rustix::fs::openat(dir, ".", flags, mode) {
                Ok(fd) => return Ok(Self { fd, named: None }),
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if owned { Mode::RUSR | Mode::WUSR } else { mode };
        let (name, fd) = under_private_name(|name| rustix::fs::openat(dir, name, flags, mode))?;
        let dir = dir.try_clone()?;
        Ok(Self { fd, named: Some((dir, name)) })
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives it its name; `replace`: even if that is taken.
    pub fn publish(&mut self, dir: &OwnedFd, name: &[u8], replace: bool) -> io::Result<()> {
        if let Some((_, private)) = &self.named {
            rename(dir, private, name, replace)?;
            self.named = None;
            return Ok(());
        }
        let itself = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let link = |name: &[u8]| rustix::fs::linkat(CWD, itself.as_str(), dir, name, AtFlags::SYMLINK_FOLLOW);
        if !replace {
            return Ok(link(name)?);
        }
        PrivateName::make(dir, link)?.rename(name, true)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((dir, name)) = &self.named {
            let _ = rustix::fs::unlinkat(dir, name.as_slice(), AtFlags::empty());
        }
    }
}

/// What was made under a private name, which goes when it is dropped.
pub struct PrivateName<'d> {
    dir: &'d OwnedFd,
    name: Vec<u8>,
    is_gone: bool,
}

impl<'d> PrivateName<'d> {
    /// Makes something in `dir`.
    pub fn make(dir: &'d OwnedFd, make: impl Fn(&[u8]) -> rustix::io::Result<()>) -> io::Result<Self> {
        let (name, ()) = under_private_name(make)?;
        Ok(Self { dir, name, is_gone: false })
    }

    /// The private name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Gives it its final name; `replace`: even if that is taken.
    pub fn rename(&mut self, name: &[u8], replace: bool) -> io::Result<()> {
        rename(self.dir, &self.name, name, replace)?;
        // Another process may have made something of its own under it since, if it has this one's number elsewhere.
        self.is_gone = true;
        #[cfg(test)]
        tests::interleave();
        Ok(())
    }

    /// As [`rename`](Self::rename) of a link to a file. Where the name has become another one of that file, a rename does
    /// nothing, and the private name is still there.
    pub fn rename_link(&mut self, identity: Identity, name: &[u8], replace: bool) -> io::Result<()> {
        self.rename(name, replace)?;
        let look = || rustix::fs::statat(self.dir, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        self.is_gone = !replace || look().map_or(true, |there| Identity::of(&there) != identity);
        Ok(())
    }
}

impl Drop for PrivateName<'_> {
    fn drop(&mut self) {
        if !self.is_gone {
            let _ = rustix::fs::unlinkat(self.dir, self.name.as_slice(), AtFlags::empty());
        }
    }
}

/// Renames the private name to the final one.
pub fn rename(dir: impl AsFd, private: &[u8], name: &[u8], replace: bool) -> io::Result<()> {
    if replace {
        return Ok(rustix::fs::renameat(&dir, private, &dir, name)?);
    }
    match rustix::fs::renameat_with(&dir, private, &dir, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => rename_unchecked(dir, private, name),
        other => Ok(other?),
    }
}

/// The same on a file system that does not check whether a name is free. A link never replaces; where there are none, the
/// name was free a moment ago.
fn rename_unchecked(dir: impl AsFd, private: &[u8], name: &[u8]) -> io::Result<()> {
    match rustix::fs::linkat(&dir, private, &dir, name, AtFlags::empty()) {
        Ok(()) => return Ok(rustix::fs::unlinkat(&dir, private, AtFlags::empty())?),
        Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
        Err(_) => {}
    }
    match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(rustix::fs::renameat(&dir, private, &dir, name)?),
        Ok(_) => Err(Errno::EXIST.into()),
        Err(error) => Err(error.into()),
    }
}

/// Makes something under a free name; gives the name.
pub fn under_private_name<T>(make: impl Fn(&[u8]) -> rustix::io::Result<T>) -> io::Result<(Vec<u8>, T)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".uxfs-{}-{number}", std::process::id()).into_bytes();
        match make(&name) {
            Err(Errno::EXIST) => {}
            other => return Ok((name, other?)),
        }
    }
}

fn proc_is_there() -> bool {
    static THERE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *THERE.get_or_init(|| std::path::Path::new("/proc/self/fd").is_dir())
}

/// A handle of what was just made at `name`, if it is still that.
pub fn handle_of_made(dir: &OwnedFd, name: &[u8], kind: FileType, device: u64) -> io::Result<OwnedFd> {
    #[cfg(test)]
    tests::interleave();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&handle)?;
    if !is_ours(&found, kind, device) {
        return Err(io::Error::other("something else took its name while it was made"));
    }
    Ok(handle)
}

fn is_ours(found: &Stat, kind: FileType, device: u64) -> bool {
    FileType::from_raw_mode(found.st_mode) == kind
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1
        && found.st_rdev == device
}

/// The identity of a handle's file.
pub fn identity(fd: impl AsFd) -> io::Result<Identity> {
    Ok(Identity::of(&rustix::fs::fstat(fd)?))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static HOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// Another process acts after something was made and before it is opened.
    pub fn once_made(hook: impl FnOnce() + 'static) {
        HOOK.set(Some(Box::new(hook)));
    }

    pub fn interleave() {
        if let Some(hook) = HOOK.take() {
            hook();
        }
    }

    #[test]
    fn a_file_that_is_not_published_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        drop(NewFile::create(&fd, Mode::RUSR, false).unwrap());
        assert_eq!(names(), 0);
        let (name, made) = under_private_name(|name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            rustix::fs::openat(&fd, name, flags, Mode::RUSR)
        })
        .unwrap();
        assert_eq!(names(), 1);
        drop(NewFile { fd: made, named: Some((fd.try_clone().unwrap(), name)) });
        assert_eq!(names(), 0);
    }

    /// As on a file system that cannot check in a rename whether the name is free.
    #[test]
    fn a_private_name_takes_no_place_unasked_where_nothing_checks_it() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let (private, name) = (dir.path().join("private"), dir.path().join("name"));
        std::fs::write(&private, "new").unwrap();
        std::fs::write(&name, "old").unwrap();
        let taken = rename_unchecked(&fd, b"private", b"name").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&name).unwrap(), b"old");
        std::fs::remove_file(&name).unwrap();
        rename_unchecked(&fd, b"private", b"name").unwrap();
        assert_eq!(std::fs::read(&name).unwrap(), b"new");
        assert!(!private.exists());
    }

    /// Processes of two containers may have the same number, and so the same private names.
    #[test]
    fn a_private_name_that_is_free_again_is_of_somebody_else() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        std::fs::write(dir.path().join("old"), "old").unwrap();
        let link = |name: &[u8]| rustix::fs::symlinkat("anywhere", &fd, name);
        let mut made = PrivateName::make(&fd, link).unwrap();
        let private = dir.path().join(std::str::from_utf8(made.name()).unwrap());
        once_made({
            let private = private.clone();
            move || std::fs::write(private, "theirs").unwrap()
        });
        made.rename(b"old", true).unwrap();
        drop(made);
        assert_eq!(std::fs::read(private).unwrap(), b"theirs");
        assert!(dir.path().join("old").is_symlink());
    }

    #[test]
    fn a_new_file_takes_no_place_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let file = dir.path().join("file");
        std::fs::write(&file, "old").unwrap();
        let new = || NewFile::create(&fd, Mode::RUSR | Mode::WUSR, false).unwrap();
        assert_eq!(new().publish(&fd, b"file", false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let named = |name: &[u8]| rename(&fd, name, b"file", false).unwrap_err().kind();
        std::fs::write(dir.path().join("other"), "other").unwrap();
        assert_eq!(named(b"other"), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&file).unwrap(), b"old");
        new().publish(&fd, b"file", true).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
