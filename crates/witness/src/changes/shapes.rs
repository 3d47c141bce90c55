//! The kinds of volumes: what each release of `mkfs.xfs` makes by default and for each long-term kernel, and what
//! differs from that in a single option.

use anyhow::{Context, Result};
use oracles::xfsprogs::Release;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kind of volume.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Release and difference.
    pub(super) name: String,
    /// The release whose `mkfs.xfs` makes it.
    pub(super) release: Release,
    /// Its options.
    pub(super) options: Vec<String>,
    /// A configuration file that comes with it.
    pub(super) config: Option<PathBuf>,
    /// Whether a kernel has counted quota.
    pub(super) quota: bool,
    /// Of version 4: this kernel does not mount it.
    pub(super) v4: bool,
}

/// Single differences from what the system's `mkfs.xfs` makes.
const SYSTEM: [(&str, &str); 24] = [
    ("no-reflink", "-m reflink=0"),
    ("no-finobt", "-m finobt=0,inobtcount=0"),
    ("no-inobtcount", "-m inobtcount=0"),
    ("no-bigtime", "-m bigtime=0"),
    ("no-sparse", "-i sparse=0"),
    ("plain", "-m reflink=0,finobt=0,bigtime=0,inobtcount=0 -i sparse=0"),
    ("rmapbt", "-m rmapbt=1"),
    ("nrext64", "-i nrext64=1"),
    ("b1024", "-b size=1024"),
    ("b2048", "-b size=2048"),
    ("b8192", "-b size=8192"),
    ("b65536", "-b size=65536"),
    ("s4096", "-s size=4096"),
    ("i1024", "-i size=1024"),
    ("i2048", "-i size=2048"),
    ("n8192", "-n size=8192"),
    ("n65536", "-n size=65536"),
    ("ascii-ci", "-n version=ci"),
    ("2-groups", "-d agcount=2"),
    ("8-groups", "-d agcount=8"),
    ("stripes", "-d su=64k,sw=4"),
    ("log-stripes", "-l su=32k"),
    ("b1024-n4096-rmapbt", "-b size=1024 -n size=4096 -m rmapbt=1"),
    ("projid-inherited", "-d projinherit=42"),
];

/// Single differences from what the newest release makes, and from that without what is not written.
const UNSTABLE: [(&str, &str); 10] = [
    ("no-parent", "-n parent=0"),
    ("no-exchange", "-n parent=0 -i exchange=0"),
    ("no-rmapbt", "-m rmapbt=0"),
    ("no-autofsck", "-m autofsck=0"),
    ("written", "-m rmapbt=0,autofsck=0 -n parent=0 -i exchange=0"),
    ("written-b1024", "-b size=1024 -m rmapbt=0,autofsck=0 -n parent=0 -i exchange=0"),
    ("parent-alone", "-m rmapbt=0,autofsck=0 -n parent=1 -i exchange=0"),
    ("exchange-alone", "-m rmapbt=0,autofsck=0 -n parent=0 -i exchange=1"),
    ("metadir", "-m metadir=1"),
    ("zoned", "-m metadir=1 -r zoned=1"),
];

/// All of them.
pub(super) fn all() -> Result<Vec<Shape>> {
    let mut shapes = Vec::new();
    let words = |options: &str| options.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for (release, tag) in [(Release::System, "system"), (Release::Stable, "6.13"), (Release::Unstable, "7.2")]
    {
        let shape = |name: &str, options: Vec<String>| Shape {
            name: format!("{tag}:{name}"),
            release,
            options,
            config: None,
            quota: false,
            v4: false,
        };
        shapes.push(shape("default", Vec::new()));
        for path in release.configurations()? {
            let name = path.file_stem().context("a name")?.to_string_lossy().into_owned();
            shapes.push(Shape { config: Some(path), ..shape(&name, Vec::new()) });
        }
        match release {
            Release::System => {
                shapes.extend(SYSTEM.map(|(name, options)| shape(name, words(options))));
                shapes.push(Shape { quota: true, ..shape("quota", Vec::new()) });
                let v4 = [
                    ("v4", "-m crc=0"),
                    ("v4-b1024", "-m crc=0 -b size=1024"),
                    ("v4-ci", "-m crc=0 -n version=ci"),
                ];
                shapes.extend(v4.map(|(name, options)| Shape { v4: true, ..shape(name, words(options)) }));
            }
            Release::Stable => shapes.push(shape("no-rmapbt", words("-m rmapbt=0"))),
            Release::Unstable => shapes.extend(UNSTABLE.map(|(name, options)| shape(name, words(options)))),
        }
    }
    Ok(shapes)
}

impl Shape {
    /// Why its volumes are not written, if they are not: nothing else may be refused.
    pub(super) fn refused(&self) -> Option<&'static str> {
        let says = |word: &str| self.options.iter().any(|option| option.split(',').any(|part| part == word));
        match () {
            () if self.v4 => Some("version 4"),
            () if says("version=ci") => Some("ASCII-ci"),
            () if self.options.iter().any(|option| option == "-r") => Some("a realtime section"),
            () => None,
        }
    }

    /// The call that makes it, without the image; `folder` is for what it needs.
    pub(super) fn mkfs(&self, folder: &Path) -> Result<Command> {
        let mut mkfs = self.release.tool("mkfs.xfs")?;
        mkfs.arg("-q").arg("-f").args(&self.options);
        if let Some(config) = &self.config {
            let text = std::fs::read_to_string(config)?;
            // 6.1 has the option among those of metadata, where it is none, in all of its files; off it is anyway.
            let misplaced = |line: &&str| self.release == Release::System && line.starts_with("nrext64=0");
            let lines: Vec<&str> = text.lines().filter(|line| !misplaced(line)).collect();
            let copy = folder.join("mkfs.conf");
            std::fs::write(&copy, lines.join("\n") + "\n")?;
            mkfs.arg("-c").arg(format!("options={}", copy.display()));
        }
        Ok(mkfs)
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let config = self.config.iter().map(|path| format!("-c options={}", path.display()));
        let words: Vec<String> = self.options.iter().cloned().chain(config).collect();
        format!("mkfs.xfs {}", words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn few_kinds_are_refused() {
        let shapes = all().expect("configurations");
        let refused: Vec<&str> =
            shapes.iter().filter(|shape| shape.refused().is_some()).map(|shape| &*shape.name).collect();
        assert_eq!(refused, ["system:ascii-ci", "system:v4", "system:v4-b1024", "system:v4-ci", "7.2:zoned"]);
    }
}
