//! The volumes: what newer releases of `mkfs.xfs` make, whole and with a log that is soon full.

use crate::command;
use crate::history::geometry::Geometry;
use crate::volumes::VolumeKind;
use anyhow::{Context, Result};
use oracles::xfsprogs::Release;
use std::fs::File;
use std::path::Path;

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    name: &'static str,
    /// The release whose `mkfs.xfs` makes it.
    release: Release,
    options: &'static [&'static str],
    /// Whether `xfs_repair` 6.1 knows all of it.
    old: bool,
}

const BYTES: u64 = 768 << 20;

/// The smallest log that a kernel mounts with all of these features, and some more.
const SMALL: &str = "size=24m";

const ALL: [Shape; 9] = [
    Shape { name: "stable", release: Release::Stable, options: &[], old: true },
    Shape {
        name: "stable-small-log",
        release: Release::Stable,
        options: &["--unsupported", "-l", SMALL],
        old: true,
    },
    Shape {
        name: "stable-b1024",
        release: Release::Stable,
        options: &["--unsupported", "-b", "size=1024", "-l", SMALL],
        old: true,
    },
    Shape { name: "unstable", release: Release::Unstable, options: &[], old: false },
    Shape {
        name: "unstable-small-log",
        release: Release::Unstable,
        options: &["--unsupported", "-l", SMALL],
        old: false,
    },
    Shape {
        name: "unstable-b1024",
        release: Release::Unstable,
        options: &["--unsupported", "-b", "size=1024", "-l", SMALL],
        old: false,
    },
    Shape {
        name: "exchange",
        release: Release::Unstable,
        options: &["--unsupported", "-n", "parent=0", "-d", "agcount=3", "-l", SMALL],
        old: false,
    },
    Shape {
        name: "exchange-no-rmapbt",
        release: Release::Unstable,
        options: &["--unsupported", "-m", "rmapbt=0", "-n", "parent=0", "-l", SMALL],
        old: false,
    },
    Shape {
        name: "system-rmapbt",
        release: Release::System,
        options: &["--unsupported", "-m", "rmapbt=1", "-l", SMALL],
        old: true,
    },
];

/// All of them, for a campaign.
pub(super) fn geometries() -> Vec<Geometry> {
    let of = |shape: &Shape| {
        let Shape { name, options, .. } = *shape;
        let volume = VolumeKind {
            name,
            options,
            v4: false,
            size: BYTES,
            beyond_repair: false,
            newer: 0,
            defaults_of: Release::System,
        };
        Geometry { volume, tight: false }
    };
    ALL.iter().map(of).collect()
}

/// The one of that name.
pub(super) fn named(name: &str) -> Result<Shape> {
    ALL.into_iter().find(|shape| shape.name == name).with_context(|| format!("no volume is called {name}"))
}

impl Shape {
    /// Makes one in a new sparse file.
    pub(super) fn mkfs(&self, image: &Path) -> Result<()> {
        File::create(image)?.set_len(BYTES)?;
        command::run(self.release.tool("mkfs.xfs")?.arg("-q").args(self.options).arg(image))
    }

    /// The judges: the newest `xfs_repair`, and the system's if it knows all features.
    pub(super) fn repairs(&self) -> &'static [Release] {
        if self.old { &[Release::Unstable, Release::System] } else { &[Release::Unstable] }
    }
}
