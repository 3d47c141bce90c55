//! `uxfs mkfs --from IMAGE:/`: the matrix's volumes, filled by a kernel, are copied to new ones, in which this kernel must
//! see all that was seen in the old.
//!
//! Invariants:
//! - what the old volume holds is told by the kernel that filled it: of a v4 volume, Debian's in a virtual machine;
//! - no byte of the old volume changes; a second copy has the same bytes.

use super::WorkFolder;
use super::view::whole_volume;
use crate::compare::compare;
use crate::fill::{Sizes, fill};
use crate::kernel;
use crate::record::{Hash, Record};
use crate::sandbox::{Mounted, mkfs, repair_findings_by, repair_finds_nothing};
use crate::v4;
use crate::vm::{Boot, DebianKernel, run_guest};
use crate::volumes::{ALL, VolumeKind};
use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use std::path::Path;
use std::time::Instant;

/// Least bytes a block of a new volume.
const BLOCK_MIN: u64 = 1024;

impl WorkFolder {
    /// Copies volumes of the kinds that these names begin with. `Ok(true)`: all were right.
    pub(super) fn copy_volumes(&self, names: &[String], sizes: &Sizes) -> Result<bool> {
        let mut right = true;
        for name in names {
            let kinds: Vec<&VolumeKind> = ALL.iter().filter(|kind| kind.name.starts_with(name)).collect();
            ensure!(!kinds.is_empty(), "no volume has a name that begins with {name}");
            for kind in kinds {
                right &= self.copy_volume(kind, sizes).with_context(|| kind.name)?;
            }
        }
        Ok(right)
    }

    fn copy_volume(&self, kind: &VolumeKind, sizes: &Sizes) -> Result<bool> {
        let old = self.path("old");
        mkfs(&old, kind)?;
        let theirs = self.filled(&old, kind, sizes)?;
        // The user who makes the copy may only read it.
        let before = fingerprint(&old)?;
        let start = Instant::now();
        let mut from = old.clone().into_os_string();
        from.push(":/");
        let block = block_size(kind);
        let shape = format!("-b size={}", block.max(BLOCK_MIN));
        let new = self.twice(Path::new(&from), &shape, kind.size)?;
        ensure!(fingerprint(&old)? == before, "the old volume was written");
        repair_finds_nothing(&new)?;
        let findings = repair_findings_by(Release::Unstable, &new)?;
        ensure!(findings.is_empty(), "xfs_repair -n of the newest release: {}", findings.join("\n"));
        let mounted = Mounted::new(&new, &self.path("mnt"), true)?;
        let ours = kernel::manifest(mounted.dir(), Hash::Sha256)?;
        mounted.unmount()?;
        let same_blocks = block >= BLOCK_MIN;
        let outcome = compare(&whole_volume(theirs, same_blocks), &whole_volume(ours, same_blocks))?;
        outcome.print(20);
        let right = outcome.differences.is_empty() && outcome.objects >= sizes.inodes;
        let verdict = if right { "right" } else { "WRONG" };
        println!("from: {}: {verdict}, in {:.1} s", kind.name, start.elapsed().as_secs_f64());
        std::fs::remove_file(old)?;
        Ok(right)
    }

    /// Fills a volume; gives what the kernel that did it sees then.
    fn filled(&self, image: &Path, kind: &VolumeKind, sizes: &Sizes) -> Result<Vec<Record>> {
        let sizes = Sizes { beyond_repair: kind.beyond_repair, ..*sizes };
        if kind.v4 {
            let kernel = DebianKernel::at(&DebianKernel::default_dir()?)?;
            let boot = Boot { image, fill: Some(sizes), limit: v4::LIMIT };
            return run_guest(&kernel, &boot, self.folder.path());
        }
        let dir = self.path("mnt");
        let mounted = Mounted::new(image, &dir, false)?;
        fill(mounted.dir(), &sizes, &mut |_| {})?;
        mounted.unmount()?;
        let mounted = Mounted::new(image, &dir, true)?;
        let manifest = kernel::manifest(mounted.dir(), Hash::Sha256)?;
        mounted.unmount()?;
        Ok(manifest)
    }
}

/// Bytes a block, as its options say.
fn block_size(kind: &VolumeKind) -> u64 {
    let said = kind.options.chunks_exact(2).filter(|pair| pair[0] == "-b");
    said.filter_map(|pair| pair[1].strip_prefix("size=")?.parse().ok()).next().unwrap_or(4096)
}

/// What an image holds, its holes left out.
fn fingerprint(image: &Path) -> Result<String> {
    let mut sum = std::process::Command::new("sha256sum");
    crate::command::output(sum.arg(image))
}
