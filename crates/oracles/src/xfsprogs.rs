//! Releases of xfsprogs newer than the system's, which know features that it does not: `ci/xfsprogs` installs them.
//!
//! A test that needs one and cannot have it fails: see [`Release::path`].

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Whose tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// The system's own: 6.1 on Debian 12. It knows neither parent pointers nor the exchange of mappings.
    System,
    /// 6.13: the reverse map and large extent counts are defaults.
    Stable,
    /// 7 and later: parent pointers, exchange of mappings and `autofsck` are defaults.
    Unstable,
}

impl Release {
    /// The path of a tool of this release, such as `mkfs.xfs`. The newer releases are installed by the first who asks.
    pub fn path(self, name: &str) -> Result<PathBuf> {
        Ok(match self {
            Self::System => PathBuf::from(name),
            Self::Stable => installed()?.join("stable/bin").join(name),
            Self::Unstable => installed()?.join("unstable/bin").join(name),
        })
    }

    /// A command that runs a tool of this release.
    pub fn tool(self, name: &str) -> Result<Command> {
        self.path(name).map(Command::new)
    }

    /// The configuration files that come with `mkfs.xfs`, one for each long-term kernel: their paths, by name.
    pub fn configurations(self) -> Result<Vec<PathBuf>> {
        let folder = match self {
            Self::System => PathBuf::from("/usr/share/xfsprogs/mkfs"),
            Self::Stable => installed()?.join("stable/root/usr/share/xfsprogs/mkfs"),
            Self::Unstable => installed()?.join("unstable/root/usr/share/xfsprogs/mkfs"),
        };
        let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        paths.sort();
        ensure!(!paths.is_empty(), "no configuration file in {}", folder.display());
        Ok(paths)
    }
}

/// Where the newer releases are.
fn installed() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| install().map_err(|error| format!("{error:#}")));
    folder.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn install() -> Result<PathBuf> {
    let folder = std::env::var_os("UXFS_ORACLES").unwrap_or_else(|| "/var/cache/uxfs/xfsprogs".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/xfsprogs");
    let output = Command::new("bash").arg(script).arg(&folder).output().context("ci/xfsprogs")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(folder.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn newer_releases_are_there_and_know_what_the_system_does_not() {
        for (release, option) in [(Release::Stable, "parent=1"), (Release::Unstable, "parent=1")] {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            file.as_file().set_len(512 << 20).expect("room");
            let mut mkfs = release.tool("mkfs.xfs").expect("installed");
            let made = mkfs.args(["-q", "-n", option]).arg(file.path()).output().expect("it runs");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let mut repair = release.tool("xfs_repair").expect("installed");
            assert!(repair.arg("-n").arg(file.path()).output().expect("it runs").status.success());
            let names = release.configurations().expect("they come with it");
            assert!(names.iter().any(|path| path.ends_with("lts_6.6.conf")), "{names:?}");
        }
    }
}
