//! The root of the virtual machine: this program as `init`, other programs, their libraries, and modules.

use crate::command::output;
use anyhow::{Context, Result};
use cpio::newc::{Builder, ModeFileType, trailer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where modules lie in it. Their names sort in loading order.
pub(super) const MODULES: &str = "/modules";

/// Where its other programs lie: in the default search path.
const PROGRAMS: &str = "/bin";
/// Where they are copied from.
const PLACES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Writes an archive that the kernel unpacks as its root.
pub(super) fn write(out: &mut dyn Write, programs: &[&str], modules: &[PathBuf]) -> Result<()> {
    let mut archive = Archive { out, dirs: BTreeSet::new(), inode: 0 };
    for dir in ["/proc", "/dev", "/sys", "/mnt", "/tmp"] {
        archive.dir(dir)?;
    }
    let mut files = BTreeMap::from([("/init".to_owned(), std::env::current_exe()?)]);
    for name in programs {
        let found = PLACES.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
        let found = found.with_context(|| format!("no program {name} (ci/test installs what is needed)"))?;
        files.insert(format!("{PROGRAMS}/{name}"), found);
    }
    let all: Vec<PathBuf> = files.values().cloned().collect();
    for program in &all {
        for library in libraries(program)? {
            files.insert(library.to_str().context("library path")?.to_owned(), library);
        }
    }
    files.extend((0..).zip(modules).map(|(index, module)| (format!("{MODULES}/{index:03}"), module.clone())));
    for (name, from) in files {
        archive.file(&name, &from)?;
    }
    trailer(out)?;
    Ok(())
}

/// The dynamic linker and all libraries of `program`.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = output(Command::new("ldd").arg(program))?;
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

struct Archive<'a> {
    out: &'a mut dyn Write,
    dirs: BTreeSet<String>,
    inode: u32,
}

impl Archive<'_> {
    fn dir(&mut self, path: &str) -> Result<()> {
        if path.is_empty() || !self.dirs.insert(path.to_owned()) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent)?;
        }
        self.entry(path, ModeFileType::Directory, &[])
    }

    fn file(&mut self, path: &str, from: &Path) -> Result<()> {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent)?;
        }
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        self.entry(path, ModeFileType::Regular, &bytes)
    }

    fn entry(&mut self, path: &str, file_type: ModeFileType, bytes: &[u8]) -> Result<()> {
        self.inode += 1;
        let entry = Builder::new(path.trim_start_matches('/')).ino(self.inode).mode(0o755);
        let len = u32::try_from(bytes.len())?;
        let mut writer = entry.set_mode_file_type(file_type).write(&mut *self.out, len);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    }
}
