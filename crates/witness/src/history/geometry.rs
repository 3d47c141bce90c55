//! The volumes that histories run on: those where code takes another way.

use crate::volumes::VolumeKind;
use anyhow::{Result, ensure};
use oracles::xfsprogs::Release;

const MIB: u64 = 1 << 20;

/// Bytes of an inode's core.
const CORE_BYTES: usize = 176;

/// A volume for histories.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// What is asked of `mkfs.xfs`.
    pub volume: VolumeKind,
    /// Small enough to run out of space now and then.
    pub tight: bool,
}

impl Geometry {
    /// Bytes a block.
    pub fn block(&self) -> u64 {
        let sizes = [("size=1024", 1024), ("size=65536", 65536)];
        let said = self.volume.options.windows(2).find(|pair| pair[0] == "-b").map(|pair| pair[1]);
        sizes.iter().find(|(word, _)| said == Some(*word)).map_or(4096, |(_, bytes)| *bytes)
    }

    /// Bytes of an inode behind its core.
    pub fn literal(&self) -> usize {
        let bytes =
            if self.volume.options.iter().any(|word| word.starts_with("size=2048")) { 2048 } else { 512 };
        bytes - CORE_BYTES
    }

    /// How much larger than usual the files of a history are.
    pub fn appetite(&self) -> u64 {
        if self.tight { 8 } else { 1 }
    }

    /// Whether its histories have files share blocks: where there are reference counts.
    pub fn shares(&self) -> bool {
        !self.volume.v4 && !self.has("reflink=0")
    }

    /// Whether its histories have files exchange what they have: the newest `mkfs.xfs` lets them, unasked.
    pub fn exchanges(&self) -> bool {
        self.volume.release() == Release::Unstable && !self.has("exchange=0")
    }

    fn has(&self, word: &str) -> bool {
        self.volume.options.iter().any(|option| option.split(',').any(|part| part == word))
    }

    /// Bytes that a device of the volume writes as a whole.
    pub fn sector(&self) -> u32 {
        if self.volume.options.contains(&"-s") { 4096 } else { 512 }
    }

    /// What sets the history of a seed on this volume apart from that on others.
    pub fn salt(&self) -> u64 {
        let name = self.volume.name.bytes();
        name.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Bytes that a history may keep in files before it rather frees some.
    pub fn budget(&self) -> u64 {
        // A tight volume never gets there: it is full before.
        if self.tight { self.volume.size * 2 } else { self.volume.size / 4 }
    }
}

const fn roomy(name: &'static str, options: &'static [&'static str]) -> Geometry {
    Geometry { volume: volume(name, options, 512), tight: false }
}

/// What the newest `mkfs.xfs` makes by default, except for what is said.
const fn today(name: &'static str, options: &'static [&'static str]) -> Geometry {
    let volume = VolumeKind { defaults_of: Release::Unstable, ..volume(name, options, 512) };
    Geometry { volume, tight: false }
}

/// What Debian 13's `mkfs.xfs` makes by default, except for what is said.
const fn stable(name: &'static str, options: &'static [&'static str]) -> Geometry {
    let volume = VolumeKind { defaults_of: Release::Stable, ..volume(name, options, 512) };
    Geometry { volume, tight: false }
}

/// The same as [`today`], small enough to run out of space.
const fn tight_today(name: &'static str, options: &'static [&'static str], mib: u64) -> Geometry {
    let volume = VolumeKind { defaults_of: Release::Unstable, ..volume(name, options, mib) };
    Geometry { volume, tight: true }
}

const fn tight(name: &'static str, options: &'static [&'static str], mib: u64) -> Geometry {
    Geometry { volume: volume(name, options, mib), tight: true }
}

const fn volume(name: &'static str, options: &'static [&'static str], mib: u64) -> VolumeKind {
    VolumeKind {
        name,
        options,
        v4: false,
        size: mib * MIB,
        beyond_repair: false,
        newer: 0,
        defaults_of: Release::System,
    }
}

/// All of them. `--unsupported` lets `mkfs.xfs` make small volumes and small logs.
pub const ALL: [Geometry; 28] = [
    roomy("default", &["-b", "size=4096"]),
    roomy("b1024", &["-b", "size=1024"]),
    roomy("i2048", &["-i", "size=2048"]),
    roomy("s4096", &["-s", "size=4096"]),
    roomy("b65536", &["-b", "size=65536"]),
    roomy("nrext64", &["-i", "nrext64=1"]),
    roomy("b1024-nrext64", &["-b", "size=1024", "-i", "nrext64=1"]),
    roomy("many-groups", &["-d", "agcount=16", "--unsupported"]),
    roomy("n65536", &["-n", "size=65536"]),
    // The smallest logs that are allowed, so that they wrap often.
    roomy("small-log", &["-b", "size=4096", "-l", "size=1368b", "--unsupported"]),
    roomy("small-log-b1024", &["-b", "size=1024", "-l", "size=3527b", "--unsupported"]),
    // With a reverse map: its own intents, and blocks of the AGFL that change hands.
    roomy("rmapbt", &["-m", "rmapbt=1"]),
    roomy("rmapbt-b1024", &["-b", "size=1024", "-m", "rmapbt=1", "-d", "agcount=8", "--unsupported"]),
    // With parent pointers: each name is an attribute too, beside those of users, in leaves and trees of many links.
    roomy("parent", &["-b", "size=4096", "-n", "parent=1"]),
    roomy("parent-b1024", &["-b", "size=1024", "-n", "parent=1", "-m", "rmapbt=1", "-i", "nrext64=1"]),
    roomy("parent-small-log", &["-b", "size=4096", "-n", "parent=1", "-l", "size=1568b", "--unsupported"]),
    // All that is made today: the reverse map, parent pointers, exchange of mappings, large counts of extents.
    today("today", &[]),
    today("today-small-log", &["-b", "size=4096", "-l", "size=10m", "--unsupported"]),
    today("today-b1024", &["-b", "size=1024", "-d", "agcount=8", "--unsupported"]),
    today("today-b65536", &["-b", "size=65536"]),
    today("today-i2048", &["-i", "size=2048", "-s", "size=4096"]),
    // As 6.13 makes them: no parent pointers, and nothing is exchanged.
    stable("stable", &["-d", "agcount=3", "--unsupported"]),
    // Nothing is shared, and no map is kept of who owns what.
    roomy("no-reflink", &["-b", "size=4096", "-m", "reflink=0"]),
    tight("tight", &["-b", "size=4096", "-d", "agcount=2", "--unsupported"], 32),
    tight("tight-b1024", &["-b", "size=1024", "-d", "agcount=2", "--unsupported"], 32),
    tight("tight-rmapbt", &["-b", "size=1024", "-m", "rmapbt=1", "-d", "agcount=2", "--unsupported"], 64),
    tight_today(
        "tight-today",
        &["-b", "size=1024", "-d", "agcount=2", "-l", "size=10m", "--unsupported"],
        64,
    ),
    tight("tight-parent", &["-b", "size=1024", "-n", "parent=1", "-d", "agcount=2", "--unsupported"], 32),
];

/// Those of these names; all if none is given.
pub fn chosen(all: &[Geometry], names: &[String]) -> Result<Vec<Geometry>> {
    for name in names {
        let known: Vec<&str> = all.iter().map(|geometry| geometry.volume.name).collect();
        ensure!(
            known.contains(&name.as_str()),
            "no geometry is named {name}; there are {}",
            known.join(", ")
        );
    }
    let wanted = |geometry: &&Geometry| names.is_empty() || names.iter().any(|n| n == geometry.volume.name);
    Ok(all.iter().filter(wanted).copied().collect())
}
