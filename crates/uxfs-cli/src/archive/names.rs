//! The archive's names of files with several names, kept by their parts.
//!
//! Invariant: memory grows with the number of parts, each directory once. Whole paths would take the square of the
//! depth.

use std::collections::HashMap;

/// The first name of each file, by inode number.
#[derive(Default)]
pub struct FirstNames {
    /// Each directory on one of the paths: its parent, and its own name.
    dirs: Vec<(usize, Box<[u8]>)>,
    /// The directories above the present place in the archive, as far as they are known.
    way: Vec<(Box<[u8]>, usize)>,
    files: HashMap<u64, (usize, Box<[u8]>)>,
}

/// The parent of the first directory.
const ROOT: usize = usize::MAX;

impl FirstNames {
    /// Remembers the name of a file, unless one is known.
    pub fn remember(&mut self, ino: u64, path: &[u8]) {
        if self.files.contains_key(&ino) {
            return;
        }
        let mut parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let name = parts.pop().unwrap_or_default();
        let same = self.way.iter().zip(&parts).take_while(|((known, _), part)| **known == ***part).count();
        self.way.truncate(same);
        for &part in &parts[same..] {
            let above = self.way.last().map_or(ROOT, |&(_, index)| index);
            self.dirs.push((above, part.into()));
            self.way.push((part.into(), self.dirs.len() - 1));
        }
        let dir = self.way.last().map_or(ROOT, |&(_, index)| index);
        self.files.insert(ino, (dir, name.into()));
    }

    /// The name that was remembered.
    pub fn get(&self, ino: u64) -> Option<Vec<u8>> {
        let (dir, name) = self.files.get(&ino)?;
        let mut parts: Vec<&[u8]> = vec![name];
        let mut at = *dir;
        while let Some((above, part)) = self.dirs.get(at) {
            parts.push(part);
            at = *above;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}

#[cfg(test)]
mod tests {
    use super::FirstNames;

    #[test]
    fn names_come_back_and_share_their_directories() {
        let mut names = FirstNames::default();
        let paths = ["a", "./d/e/one", "./d/e/two", "./d/three", "./x/e/four", "./d/e/five"];
        for (ino, path) in (0..).zip(paths) {
            names.remember(ino, path.as_bytes());
            names.remember(ino, b"another");
        }
        for (ino, path) in (0..).zip(paths) {
            assert_eq!(names.get(ino).as_deref(), Some(path.as_bytes()));
        }
        assert_eq!(names.get(99), None);
        // One for each directory, except for one that is left and entered again.
        assert!(names.dirs.len() <= 7, "{:?}", names.dirs);
    }
}
