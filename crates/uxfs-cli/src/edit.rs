//! Volumes that a verb changes: opened for writing, changed, closed.
//!
//! Invariants: what was opened is closed, also where the change failed, so that the log is left clean; everything happens
//! when the environment says, if it does, which is known before anything is opened.

use crate::exit::{Exit, Failure, Result, host_name};
use crate::location::{Images, Location};
use crate::options::Global;
use crate::problems::{Problems, for_each};
use uxfs::{Dir, Error, ErrorKind, Node, Rename, Volume};

/// Changes the volume in one image.
pub fn change<T>(global: &Global, location: &Location, work: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
    let global = global.at_source_date()?;
    change_in(Images::writable(&global), location, work)
}

/// Changes the volume in one image by bulk work: many small writes become few large ones.
pub fn fill<T>(global: &Global, location: &Location, work: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
    let global = global.at_source_date()?;
    change_in(Images::writable(&global).gathering(), location, work)
}

fn change_in<T>(
    mut images: Images<'_>,
    location: &Location,
    work: impl FnOnce(&Volume) -> Result<T>,
) -> Result<T> {
    let done = images.volume(location).and_then(|volume| work(&volume));
    let closed = images.close();
    let done = done?;
    closed.map(|()| done)
}

/// Changes something at each location. A failure ends it where there is just one; where there are more, it is said
/// and the rest goes on.
pub fn change_each(
    global: &Global,
    locations: &[Location],
    mut work: impl FnMut(&Volume, &Location, &mut Problems) -> Result<()>,
) -> Result<Exit> {
    let global = global.at_source_date()?;
    let mut images = Images::writable(&global);
    let done = for_each(locations, &mut Problems::default(), |location, problems| {
        let volume = images.volume(location)?;
        work(&volume, location, problems)
    });
    let closed = images.close();
    let exit = done?;
    closed.map(|()| exit)
}

/// What went wrong with the change at a location: its whole path stands in front.
pub fn failure(location: &Location, error: &Error) -> Failure {
    let name = split(&location.path).map_or(&b"/"[..], |(_, name)| name);
    let exit = error.kind().into();
    match error.path() {
        Some(path) if path == location.path || path == name => refused(location, exit, error.what()),
        _ => refused(location, exit, error),
    }
}

/// A change that is not made, and why.
pub fn refused(location: &Location, exit: Exit, what: impl std::fmt::Display) -> Failure {
    let path = uxfs::printable(&location.path);
    Failure::new(exit, format!("{}: {path}: {what}", host_name(&location.name())))
}

/// A path as that of a directory and a name in it; `None` if its end is not a name.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (parent, name) = path.split_at(start);
    (!matches!(name, b"." | b"..")).then_some((parent, name))
}

/// Whether a path ends in a slash, so that it can name a directory alone.
pub fn ends_in_slash(path: &[u8]) -> bool {
    path.last() == Some(&b'/')
}

/// The directory that holds what a location names, and the name in it.
pub fn parent<'a>(volume: &Volume, location: &'a Location) -> Result<(Dir, &'a [u8])> {
    let (parent, name) = split(&location.path)
        .ok_or_else(|| refused(location, Exit::Usage, "not a name that can be made, moved or removed"))?;
    let dir = volume.open_dir(parent).map_err(|error| failure(location, &error))?;
    Ok((dir, name))
}

/// What has a name in a directory; an error if nothing has.
pub fn named(dir: &Dir, name: &[u8], location: &Location) -> Result<Node> {
    match dir.lookup(name) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(refused(location, Exit::NotFound, "no such file or directory")),
        Err(error) => Err(failure(location, &error)),
    }
}

/// What a path leads to, if it leads to something.
pub fn existing(volume: &Volume, location: &Location, follow: bool) -> Result<Option<Node>> {
    let path = &location.path;
    let node = if follow { volume.lookup(path) } else { volume.lookup_nofollow(path) };
    match node {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failure(location, &error)),
    }
}

/// The directory that a path leads to; `None` if it leads to something else, or nowhere, as a link does whose text is no
/// path of anything.
pub fn directory(volume: &Volume, location: &Location) -> Result<Option<Dir>> {
    use ErrorKind as K;
    let dir = volume.lookup(&location.path).and_then(|node| node.as_dir());
    match dir {
        Ok(dir) => Ok(Some(dir)),
        Err(error) => match error.kind() {
            K::NotFound | K::NotADirectory | K::TooManySymlinks | K::NameTooLong | K::InvalidPath => Ok(None),
            _ => Err(failure(location, &error)),
        },
    }
}

/// Where a file is made that a path leads to: behind links that lead to nothing yet.
pub fn new_place(volume: &Volume, location: &Location) -> Result<(Dir, Vec<u8>)> {
    let mut at = location.clone();
    for _ in 0..=uxfs::MAX_SYMLINKS {
        if ends_in_slash(&at.path) {
            return Err(refused(location, Exit::NotFound, "no such directory"));
        }
        let (dir, name) = parent(volume, &at)?;
        let there = dir.lookup(name).map_err(|error| failure(location, &error))?;
        let Some(link) = there.filter(|node| node.file_type().is_symlink()) else {
            return Ok((dir, name.to_vec()));
        };
        let target = link.read_link().map_err(|error| failure(location, &error))?;
        let above = split(&at.path).map_or(&b""[..], |(above, _)| above);
        at.path = if target.starts_with(b"/") { target } else { [above, &target].concat() };
    }
    Err(refused(location, Exit::NotFound, "too many symbolic links on the way"))
}

/// The name of something new: its own, or, while something else has that, another one that it is moved from in one step.
/// What cannot be made, or cannot take that place, leaves what is there as it is.
#[must_use]
pub struct NewName<'n> {
    name: &'n [u8],
    temporary: Option<Vec<u8>>,
}

impl<'n> NewName<'n> {
    /// What names begin with that something has until it gets its own.
    pub const TEMPORARY: &'static [u8] = b".uxfs-new-";

    /// Makes something under its name; `None` if something else has it.
    pub fn make<T>(
        name: &'n [u8],
        make: impl FnOnce(&[u8]) -> uxfs::Result<T>,
    ) -> uxfs::Result<Option<(T, Self)>> {
        match make(name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            made => Ok(Some((made?, Self { name, temporary: None }))),
        }
    }

    /// Makes something beside what has its name.
    pub fn make_beside<T>(
        name: &'n [u8],
        make: impl Fn(&[u8]) -> uxfs::Result<T>,
    ) -> uxfs::Result<(T, Self)> {
        let mut number = 0_u64;
        loop {
            let temporary = [Self::TEMPORARY, number.to_string().as_bytes()].concat();
            match make(&temporary) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                // The other name means nothing to who asked.
                Err(error) if error.path() == Some(&temporary) => return Err(error.of_path(name)),
                made => return Ok((made?, Self { name, temporary: Some(temporary) })),
            }
        }
    }

    /// Lets it take the place of what has its name.
    pub fn publish(&self, dir: &Dir) -> uxfs::Result<()> {
        match &self.temporary {
            Some(temporary) => dir.rename(temporary, dir, self.name, Rename::Replace),
            None => Ok(()),
        }
    }

    /// Removes it again, since something went wrong with it. That is what is said, and not what goes wrong here.
    pub fn take_back(&self, dir: &Dir) {
        let _ = dir.remove_file(self.temporary.as_deref().unwrap_or(self.name));
    }
}

/// Takes from a file what it may do beyond the rights of who runs it, as the kernel does where owner or content change.
pub fn drop_capabilities(node: &Node) -> uxfs::Result<()> {
    match node.remove_xattr(b"security.capability") {
        Err(error) if error.kind() == ErrorKind::NoAttribute => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        assert_eq!(split(b"/a/b"), Some((&b"/a/"[..], &b"b"[..])));
        assert_eq!(split(b"/a//"), Some((&b"/"[..], &b"a"[..])));
        assert_eq!(split(b"a"), Some((&b""[..], &b"a"[..])));
        for path in [&b""[..], b"/", b"//", b"/a/.", b"/a/../"] {
            assert_eq!(split(path), None);
        }
    }
}
