//! Volumes that a verb changes: they are opened for writing, changed, and closed.
//!
//! Invariants: a volume is closed even if the change failed, so that its log is clean; if the environment sets a time,
//! all changes have it, and it is read before anything is opened.

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

/// Changes the volume in one image in bulk: small writes are gathered into large ones.
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

/// Changes something at each location. A failure ends the verb if there is just one location. Otherwise it is
/// reported and the rest goes on.
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

/// The failure of a change at a location, with the whole path.
pub fn failure(location: &Location, error: &Error) -> Failure {
    let name = split(&location.path).map_or(&b"/"[..], |(_, name)| name);
    let exit = error.kind().into();
    match error.path() {
        Some(path) if path == location.path || path == name => refused(location, exit, error.what()),
        _ => refused(location, exit, error),
    }
}

/// A refused change, and why.
pub fn refused(location: &Location, exit: Exit, what: impl std::fmt::Display) -> Failure {
    let path = uxfs::printable(&location.path);
    Failure::new(exit, format!("{}: {path}: {what}", host_name(&location.name())))
}

/// Splits a path into directory and name; `None` if it does not end in a name.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (parent, name) = path.split_at(start);
    (!matches!(name, b"." | b"..")).then_some((parent, name))
}

/// Whether a path ends in a slash, so that it can only name a directory.
pub fn ends_in_slash(path: &[u8]) -> bool {
    path.last() == Some(&b'/')
}

/// The directory of a location, and the name in it.
pub fn parent<'a>(volume: &Volume, location: &'a Location) -> Result<(Dir, &'a [u8])> {
    let (parent, name) = split(&location.path)
        .ok_or_else(|| refused(location, Exit::Usage, "not a name that can be made, moved or removed"))?;
    let dir = volume.open_dir(parent).map_err(|error| failure(location, &error))?;
    Ok((dir, name))
}

/// The node of a name in a directory; an error if there is none.
pub fn named(dir: &Dir, name: &[u8], location: &Location) -> Result<Node> {
    match dir.lookup(name) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(refused(location, Exit::NotFound, "no such file or directory")),
        Err(error) => Err(failure(location, &error)),
    }
}

/// The node of a path, if it exists.
pub fn existing(volume: &Volume, location: &Location, follow: bool) -> Result<Option<Node>> {
    let path = &location.path;
    let node = if follow { volume.lookup(path) } else { volume.lookup_nofollow(path) };
    match node {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failure(location, &error)),
    }
}

/// The directory of a path; `None` if it is something else, or does not exist, also for a broken link.
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

/// Where to make the file of a path: broken links are followed to their targets.
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

/// The name of something new: its own, or, if that is taken, a temporary one from which it is moved in one step. If it
/// cannot be made or moved, the old file stays.
#[must_use]
pub struct NewName<'n> {
    name: &'n [u8],
    temporary: Option<Vec<u8>>,
}

impl<'n> NewName<'n> {
    /// The prefix of temporary names.
    pub const TEMPORARY: &'static [u8] = b".uxfs-new-";

    /// Makes something under its name; `None` if that is taken.
    pub fn make<T>(
        name: &'n [u8],
        make: impl FnOnce(&[u8]) -> uxfs::Result<T>,
    ) -> uxfs::Result<Option<(T, Self)>> {
        match make(name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            made => Ok(Some((made?, Self { name, temporary: None }))),
        }
    }

    /// Makes something under a temporary name.
    pub fn make_beside<T>(
        name: &'n [u8],
        make: impl Fn(&[u8]) -> uxfs::Result<T>,
    ) -> uxfs::Result<(T, Self)> {
        let mut number = 0_u64;
        loop {
            let temporary = [Self::TEMPORARY, number.to_string().as_bytes()].concat();
            match make(&temporary) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                // The temporary name means nothing to the user.
                Err(error) if error.path() == Some(&temporary) => return Err(error.of_path(name)),
                made => return Ok((made?, Self { name, temporary: Some(temporary) })),
            }
        }
    }

    /// Moves it to its name, replacing what has it.
    pub fn publish(&self, dir: &Dir) -> uxfs::Result<()> {
        match &self.temporary {
            Some(temporary) => dir.rename(temporary, dir, self.name, Rename::Replace),
            None => Ok(()),
        }
    }

    /// Removes it after a failure. That failure is reported, and not one that happens here.
    pub fn take_back(&self, dir: &Dir) {
        let _ = dir.remove_file(self.temporary.as_deref().unwrap_or(self.name));
    }
}

/// Removes set-user-id, set-group-id and capabilities, as the kernel does when owner or content change.
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
