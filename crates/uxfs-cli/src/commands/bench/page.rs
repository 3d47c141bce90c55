//! The report of a run. It has another name until it is complete.

use crate::exit::{Exit, Failure, Result, host_name};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use uxfs_bench::{Heading, Machine, Report, page};

/// The first bytes of a report.
const START: &[u8] = b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n";

/// A report to be made. The old one stays until then.
pub struct Page {
    file: NamedTempFile,
    path: PathBuf,
}

impl Page {
    /// Checks before the measurements whether it can be made.
    pub fn create(path: &Path) -> Result<Self> {
        check_place(path)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".uxfs-bench-").tempfile_in(dir).map_err(failed(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Makes the report.
    pub fn write(mut self, report: &Report) -> Result<()> {
        check_place(&self.path)?;
        let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
        let words: Vec<String> = std::iter::once("uxfs".to_owned()).chain(words).collect();
        let heading = Heading {
            command: words.join(" "),
            when: jiff::Zoned::now().strftime("%Y-%m-%d %H:%M %Z").to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::this(),
        };
        self.file.write_all(page(&heading, report).as_bytes()).map_err(failed(&self.path))?;
        set_readable(&self.file).map_err(failed(&self.path))?;
        self.file.persist(&self.path).map_err(|error| failed(&self.path)(error.error))?;
        Ok(())
    }
}

/// Refuses to replace anything except a report or an empty file.
fn check_place(path: &Path) -> Result<()> {
    if path.as_os_str() == "-" {
        return Err(Failure::new(Exit::Usage, "--report -: a page is a file; name one"));
    }
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed(path))?,
    };
    let is_page = || -> std::io::Result<bool> {
        let mut start = vec![0; START.len()];
        let len = std::fs::File::open(path)?.read(&mut start)?;
        Ok(start[..len].eq_ignore_ascii_case(START))
    };
    if found.is_file() && (found.len() == 0 || is_page().map_err(failed(path))?) {
        return Ok(());
    }
    let what = "is there already, and no page that could be replaced; name a new file";
    Err(Failure::new(Exit::AlreadyExists, format!("{}: {what}", host_name(path))))
}

/// Permissions by the umask; a temporary file is only for its owner.
fn set_readable(file: &NamedTempFile) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    let mode = 0o666 & !umask.bits();
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_=,./:@+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let path = host_name(path).to_string();
    move |error| Failure::new(Exit::of_source(&error), format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_see_more_in_them() {
        for (word, expected) in
            [("--vs=/mnt/a", "--vs=/mnt/a"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
