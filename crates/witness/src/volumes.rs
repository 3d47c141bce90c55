//! The volumes that uxfs is judged by: what `mkfs.xfs` is asked for. Every feature is pinned, because what is on
//! by default differs between versions.

use oracles::xfsprogs::Release;

/// A volume to make.
#[derive(Clone, Copy, Debug)]
pub struct VolumeKind {
    /// Short name, for `--only` and tables.
    pub name: &'static str,
    /// What sets it apart, for `mkfs.xfs`.
    pub options: &'static [&'static str],
    /// Whether only a kernel that still has v4 mounts it.
    pub v4: bool,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Filled with what `xfs_repair` wrongly calls damaged, and so not checked by it.
    pub beyond_repair: bool,
    /// Incompatible feature bits that `mkfs.xfs` 6.1 does not know and this kernel does: set in the superblock once
    /// the volume is made, which is not checked by `xfs_repair` then, as that knows them no better.
    pub newer: u32,
    /// The release with its defaults. Those of the system's `mkfs.xfs` are given as options; those of a newer one are
    /// the point of the kind.
    pub defaults_of: Release,
}

const GIB: u64 = 1 << 30;

/// Everything that `mkfs.xfs` 6.1 turns on by default, said aloud.
const PINNED: [(&str, &[(&str, &str)]); 2] = [
    (
        "-m",
        &[
            ("crc", "1"),
            ("finobt", "1"),
            ("rmapbt", "0"),
            ("reflink", "1"),
            ("bigtime", "1"),
            ("inobtcount", "1"),
        ],
    ),
    ("-i", &[("sparse", "1"), ("nrext64", "0")]),
];

const fn v5(name: &'static str, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind {
        name,
        options,
        v4: false,
        size: 6 * GIB,
        beyond_repair: false,
        newer: 0,
        defaults_of: Release::System,
    }
}

/// A volume that ignores the case of names. The kernel cannot fill one with any names but ASCII ones: up to 6.3 it
/// folded bytes above 127 too, which xfsprogs never did, and they call each other's volumes damaged.
pub const IGNORING_CASE: VolumeKind = v4("v4-ci", &["-m", "crc=0", "-n", "version=ci"]);

const fn v4(name: &'static str, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind {
        name,
        options,
        v4: true,
        size: 6 * GIB,
        beyond_repair: false,
        newer: 0,
        defaults_of: Release::System,
    }
}

/// File content may be exchanged between inodes (kernel 6.10).
const EXCHRANGE: u32 = 1 << 6;
/// Inodes say where their names are (kernel 6.10).
const PARENT: u32 = 1 << 7;

/// How many at the head of [`ALL`] every change is judged by.
pub const JUDGED: usize = 10;

/// All of them: first those that every change is judged by, then those that reach further corners.
pub const ALL: [VolumeKind; 23] = [
    v5("default", &[]),
    v5("b1024", &["-b", "size=1024"]),
    v5("n65536", &["-b", "size=4096", "-n", "size=65536"]),
    v5("i2048", &["-i", "size=2048"]),
    v5("rmapbt", &["-m", "rmapbt=1"]),
    v5("plain", &["-m", "reflink=0,finobt=0,bigtime=0,inobtcount=0", "-i", "sparse=0"]),
    v5("nrext64", &["-i", "nrext64=1"]),
    v5("s4096", &["-s", "size=4096"]),
    v4("v4", &["-m", "crc=0"]),
    VolumeKind { beyond_repair: true, ..v5("one-hash", &["-b", "size=1024", "-n", "size=4096"]) },
    v5("b2048", &["-b", "size=2048", "-i", "size=1024"]),
    v5("b1024-n4096", &["-b", "size=1024", "-n", "size=4096", "-m", "rmapbt=1", "-i", "nrext64=1"]),
    v5("b16384", &["-b", "size=16384"]),
    VolumeKind { size: 16 * GIB, ..v5("b65536", &["-b", "size=65536"]) },
    v5("all", &["-m", "rmapbt=1", "-i", "nrext64=1,size=1024", "-s", "size=4096", "-n", "size=8192"]),
    v5("two-groups", &["-d", "agcount=2"]),
    v5("many-groups", &["-d", "agcount=61"]),
    v5("old-times", &["-m", "bigtime=0"]),
    VolumeKind { newer: EXCHRANGE | PARENT, ..v5("parent", &["-i", "nrext64=1"]) },
    v4("v4-b512", &["-m", "crc=0", "-b", "size=512", "-i", "size=256"]),
    v4("v4-ftype", &["-m", "crc=0", "-n", "ftype=1,size=16384", "-i", "size=1024"]),
    v4("v4-attr1", &["-m", "crc=0", "-i", "attr=1,projid32bit=0", "-n", "ftype=0"]),
    v4("v4-s4096", &["-m", "crc=0", "-s", "size=4096", "-l", "version=2,su=32768"]),
];

impl VolumeKind {
    /// The release whose `mkfs.xfs` knows all of its options, and gives the root directory no
    /// attribute by default.
    pub fn release(&self) -> Release {
        if self.defaults_of == Release::System && self.says("-n", "parent") {
            return Release::Stable;
        }
        self.defaults_of
    }

    /// The arguments of `mkfs.xfs` ahead of the image's name.
    pub fn mkfs_arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self.options.iter().map(|&word| word.to_owned()).collect();
        for (option, pins) in PINNED {
            let is_pinned = !self.v4 && self.defaults_of == Release::System;
            let open = pins.iter().filter(|(key, _)| is_pinned && !self.says(option, key));
            let pins: Vec<String> = open.map(|(key, value)| format!("{key}={value}")).collect();
            if !pins.is_empty() {
                arguments.extend([option.to_owned(), pins.join(",")]);
            }
        }
        arguments
    }

    /// Whether the options set `key` of `option` themselves.
    fn says(&self, option: &str, key: &str) -> bool {
        self.options.chunks_exact(2).any(|pair| {
            pair[0] == option && pair[1].split(',').any(|item| item.split('=').next() == Some(key))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn what_a_volume_says_itself_is_not_pinned_again() {
        let plain = ALL.iter().find(|kind| kind.name == "plain").unwrap().mkfs_arguments().join(" ");
        assert_eq!(plain.matches("reflink=").count(), 1);
        assert_eq!(plain.matches("sparse=").count(), 1);
        assert!(plain.contains("crc=1,rmapbt=0") && plain.contains("nrext64=0"), "{plain}");
        assert!(!ALL.iter().any(|kind| kind.v4 && kind.mkfs_arguments().join(" ").contains("bigtime")));
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
