//! One damaged field at a time, its structure's checksum put right: does each of the two notice?
//!
//! The table is the test: a line a field, with what is done to it.

use super::atlas::{Atlas, Place};
use super::explained::{EXPLAINED, Reason};
use super::{Verdict, fill_by_kernel, ours, theirs};
use crate::fill::Sizes;
use crate::sandbox::{mkfs, scratch};
use crate::volumes::VolumeKind;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use xfs_format::checksum;

const fn kind(name: &'static str, options: &'static [&'static str]) -> VolumeKind {
    VolumeKind { name, options, v4: false, size: 400 << 20, beyond_repair: false, newer: 0 }
}

/// The volumes whose fields are damaged.
pub const KINDS: [VolumeKind; 2] =
    [kind("fields", &["-i", "nrext64=0"]), kind("fields-rmapbt", &["-m", "rmapbt=1", "-i", "nrext64=0"])];

const SIZES: Sizes = Sizes { seed: 1, inodes: 200, big_dir: 1500, extents: 700, beyond_repair: false };

/// What is done to a field.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    /// It becomes this.
    Set(u64),
    /// This is added.
    Add(i64),
    /// These bits change.
    Flip(u64),
}
use Edit::{Add, Flip, Set};

/// Structure, field, offset from the structure's base, width in bytes, and edit.
pub type Field = (&'static str, &'static str, usize, usize, Edit);

/// All fields.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    ("superblock", "magic", 0, 4, Flip(1)),
    ("superblock", "blocksize", 4, 4, Set(8192)),
    ("superblock", "dblocks", 8, 8, Add(-1)),
    ("superblock", "uuid", 32, 1, Flip(1)),
    ("superblock", "rootino", 56, 8, Add(1)),
    ("superblock", "agblocks", 84, 4, Add(-1)),
    ("superblock", "agcount", 88, 4, Add(1)),
    ("superblock", "logblocks", 96, 4, Add(-1)),
    ("superblock", "inodesize", 104, 2, Set(1024)),
    ("superblock", "inopblock", 106, 2, Add(1)),
    ("superblock", "blocklog", 120, 1, Add(1)),
    ("superblock", "agblklog", 124, 1, Add(1)),
    ("superblock", "inprogress", 126, 1, Set(1)),
    ("superblock", "imax_pct", 127, 1, Set(101)),
    ("superblock", "icount", 128, 8, Add(64)),
    ("superblock", "ifree", 136, 8, Add(1)),
    ("superblock", "fdblocks", 144, 8, Add(1)),
    ("superblock", "uquotino", 160, 8, Set(12345)),
    ("superblock", "inoalignmt", 180, 4, Set(1 << 20)),
    ("superblock", "unit", 184, 4, Set(7)),
    ("superblock", "dirblklog", 192, 1, Set(9)),
    ("superblock", "bad_features2", 204, 4, Flip(8)),
    ("superblock", "features_incompat", 216, 4, Flip(1 << 20)),
    ("superblock", "spino_align", 228, 4, Set(3)),
    ("superblock", "behind the structure", 400, 1, Set(1)),
    ("superblock copy", "magic", 0, 4, Flip(1)),
    ("superblock copy", "blocksize", 4, 4, Set(8192)),
    ("superblock copy", "dblocks", 8, 8, Add(-1)),
    ("superblock copy", "uuid", 32, 1, Flip(1)),
    ("superblock copy", "agblocks", 84, 4, Add(-1)),
    ("superblock copy", "agcount", 88, 4, Add(1)),
    ("superblock copy", "logblocks", 96, 4, Add(-1)),
    ("superblock copy", "inodesize", 104, 2, Set(1024)),
    ("superblock copy", "dirblklog", 192, 1, Set(1)),
    ("superblock copy", "icount", 128, 8, Add(64)),
    ("AGF", "magic", 0, 4, Flip(1)),
    ("AGF", "version", 4, 4, Set(2)),
    ("AGF", "seqno", 8, 4, Add(1)),
    ("AGF", "length", 12, 4, Add(-1)),
    ("AGF", "bno_root", 16, 4, Add(1)),
    ("AGF", "cnt_root", 20, 4, Add(1)),
    ("AGF", "bno_level", 28, 4, Add(1)),
    ("AGF", "cnt_level", 32, 4, Add(1)),
    ("AGF", "flfirst", 40, 4, Add(1)),
    ("AGF", "fllast", 44, 4, Add(1)),
    ("AGF", "flcount", 48, 4, Add(1)),
    ("AGF", "freeblks", 52, 4, Add(1)),
    ("AGF", "longest", 56, 4, Add(-1)),
    ("AGF", "btreeblks", 60, 4, Add(1)),
    ("AGF", "uuid", 64, 1, Flip(1)),
    ("AGF", "refcount_blocks", 84, 4, Add(1)),
    ("AGF", "refcount_root", 88, 4, Add(1)),
    ("AGF", "refcount_level", 92, 4, Add(1)),
    ("AGI", "magic", 0, 4, Flip(1)),
    ("AGI", "seqno", 8, 4, Add(1)),
    ("AGI", "length", 12, 4, Add(-1)),
    ("AGI", "count", 16, 4, Add(64)),
    ("AGI", "root", 20, 4, Add(1)),
    ("AGI", "level", 24, 4, Add(1)),
    ("AGI", "freecount", 28, 4, Add(1)),
    ("AGI", "newino", 32, 4, Set(77)),
    ("AGI", "unlinked[0]", 40, 4, Set(128)),
    ("AGI", "uuid", 296, 1, Flip(1)),
    ("AGI", "free_root", 328, 4, Add(1)),
    ("AGI", "free_level", 332, 4, Add(1)),
    ("AGI", "iblocks", 336, 4, Add(1)),
    ("AGI", "fblocks", 340, 4, Add(1)),
    ("AGFL", "slot, a block in use", 0, 4, Set(1)),
    ("AGFL", "slot, no block", 0, 4, Set(0xfff_ffff)),
    ("bnobt", "startblock", 0, 4, Add(1)),
    ("bnobt", "blockcount", 4, 4, Add(-1)),
    ("bnobt", "blockcount, too long", 4, 4, Set(0x1000_0000)),
    ("cntbt", "startblock", 0, 4, Add(1)),
    ("cntbt", "blockcount", 4, 4, Add(1)),
    ("inobt", "startino", 0, 4, Add(64)),
    ("inobt", "holemask", 4, 2, Flip(1)),
    ("inobt", "count", 6, 1, Add(-4)),
    ("inobt", "freecount", 7, 1, Add(1)),
    ("inobt", "free", 8, 8, Flip(1 << 20)),
    ("finobt", "startino", 0, 4, Add(64)),
    ("finobt", "freecount", 7, 1, Add(1)),
    ("finobt", "free", 8, 8, Flip(1 << 20)),
    ("refcountbt", "startblock", 0, 4, Add(1)),
    ("refcountbt", "blockcount", 4, 4, Add(1)),
    ("refcountbt", "refcount", 8, 4, Add(1)),
    ("rmapbt", "startblock", 24, 4, Add(1)),
    ("rmapbt", "blockcount", 4, 4, Add(1)),
    ("rmapbt", "owner", 32, 8, Set(128)),
    ("rmapbt", "offset", 40, 8, Add(1)),
    ("file", "magic", 0, 2, Flip(1)),
    ("file", "mode, free", 2, 2, Set(0)),
    ("file", "mode, socket", 2, 2, Set(0o140_644)),
    ("file", "mode, directory", 2, 2, Set(0o040_755)),
    ("file", "version", 4, 1, Set(2)),
    ("file", "format", 5, 1, Set(1)),
    ("file", "nlink", 16, 4, Add(1)),
    ("file", "nlink, none", 16, 4, Set(0)),
    ("file", "size, negative", 56, 8, Flip(1 << 63)),
    ("file", "nblocks", 64, 8, Add(1)),
    ("file", "extsize", 72, 4, Set(5)),
    ("file", "nextents", 76, 4, Add(1)),
    ("file", "nextents, fewer", 76, 4, Add(-1)),
    ("file", "anextents", 80, 2, Set(1)),
    ("file", "forkoff", 82, 1, Set(60)),
    ("file", "aformat", 83, 1, Set(7)),
    ("file", "flags, realtime", 90, 2, Flip(1)),
    ("file", "flags, inherit extsize", 90, 2, Flip(1 << 12)),
    ("file", "next_unlinked", 96, 4, Set(5)),
    ("file", "flags2, unknown", 120, 8, Flip(1 << 40)),
    ("file", "flags2, reflink", 120, 8, Flip(2)),
    ("file", "cowextsize", 128, 4, Set(5)),
    ("file", "ino", 152, 8, Add(1)),
    ("file", "uuid", 160, 1, Flip(1)),
    ("file", "extent startblock", 184, 8, Add(1 << 21)),
    ("file", "extent blockcount", 184, 8, Add(1)),
    ("file", "extent startblock, beyond", 176, 8, Flip(0x100)),
    ("file", "extent order", 176, 8, Add(1 << 40)),
    ("shared file", "flags2, not reflink", 120, 8, Flip(2)),
    ("shared file", "extent startblock", 184, 8, Add(1 << 21)),
    ("btree file", "bmbt root level", 176, 2, Add(1)),
    ("btree file", "bmbt root numrecs", 178, 2, Set(0)),
    ("btree file", "bmbt root key", 180, 8, Add(1)),
    ("btree file", "nextents", 76, 4, Add(1)),
    ("file with attribute extents", "anextents", 80, 2, Add(1)),
    ("file with attribute extents", "nblocks", 64, 8, Add(1)),
    ("device", "size", 56, 8, Set(5)),
    ("fifo", "nlink", 16, 4, Add(1)),
    ("short symlink", "size", 56, 8, Add(-1)),
    ("short symlink", "target", 176, 1, Set(0)),
    ("remote symlink", "size", 56, 8, Add(-1)),
    ("symlink block", "offset", 4, 4, Add(1)),
    ("symlink block", "bytes", 8, 4, Add(-1)),
    ("symlink block", "owner", 32, 8, Add(1)),
    ("bmbt", "startoff", 0, 8, Add(1 << 9)),
    ("bmbt", "startblock", 8, 8, Add(1 << 21)),
    ("bmbt", "blockcount", 8, 8, Add(1)),
    ("short directory", "size", 56, 8, Add(1)),
    ("short directory", "count", 176, 1, Add(1)),
    ("short directory", "i8count", 177, 1, Add(1)),
    ("short directory", "parent", 178, 4, Add(1)),
    ("short directory", "namelen", 182, 1, Add(1)),
    ("short directory", "offset", 183, 2, Set(8)),
    ("short directory", "name", 185, 1, Set(0x2f)),
    ("directory", "nlink", 16, 4, Add(1)),
    ("directory", "size", 56, 8, Add(4096)),
    ("directory", "format", 5, 1, Set(3)),
    ("block directory", "bestfree offset", 48, 2, Add(8)),
    ("block directory", "bestfree length", 50, 2, Add(8)),
    ("block directory", "inode of .", 64, 8, Add(1)),
    ("block directory", "name of .", 73, 1, Set(0x78)),
    ("block directory", "inode of ..", 80, 8, Add(1)),
    ("block directory", "inode", 96, 8, Set(7)),
    ("block directory", "name", 105, 1, Flip(1)),
    ("block directory", "name, a slash", 105, 1, Set(0x2f)),
    ("block directory", "owner", 40, 8, Add(1)),
    ("block directory index", "hash", 8, 4, Add(1)),
    ("block directory index", "address", 12, 4, Add(1)),
    ("block directory tail", "count", 0, 4, Add(-1)),
    ("block directory tail", "stale", 4, 4, Add(1)),
    ("data block", "inode of .", 64, 8, Add(1)),
    ("data block", "inode", 96, 8, Set(7)),
    ("data block", "name", 105, 1, Flip(1)),
    ("data block", "owner", 40, 8, Add(1)),
    ("data block", "blkno", 8, 8, Add(1)),
    ("single leaf", "hash", 0, 4, Set(0)),
    ("single leaf", "address", 4, 4, Add(1)),
    ("single leaf tail", "best", 0, 2, Add(8)),
    ("single leaf tail", "count of bests", 2, 4, Add(-1)),
    ("directory leaf", "hash", 0, 4, Set(0)),
    ("directory leaf", "address", 4, 4, Add(1)),
    ("directory node", "hash", 0, 4, Add(1)),
    ("directory node", "before", 4, 4, Add(1)),
    ("free block", "first data block", 48, 4, Add(1)),
    ("free block", "nvalid", 52, 4, Add(-1)),
    ("free block", "nused", 56, 4, Add(-1)),
    ("free block", "best", 64, 2, Add(8)),
    ("short attributes", "total size", 0, 2, Add(1)),
    ("short attributes", "count", 2, 1, Add(1)),
    ("short attributes", "namelen", 4, 1, Add(1)),
    ("short attributes", "valuelen", 5, 1, Add(1)),
    ("short attributes", "flags", 6, 1, Set(0x40)),
    ("attribute leaf", "hash", 0, 4, Add(-1)),
    ("attribute leaf", "name index", 4, 2, Add(4)),
    ("attribute leaf", "flags", 6, 1, Flip(0x40)),
    ("attribute name", "name", 3, 1, Flip(1)),
    ("attribute name", "namelen", 2, 1, Add(60)),
    ("attribute node", "hash", 0, 4, Add(1)),
    ("attribute node", "before", 4, 4, Set(60000)),
    ("remote value", "offset", 4, 4, Add(1)),
    ("remote value", "bytes", 8, 4, Add(1)),
    ("remote value", "owner", 32, 8, Add(1)),
];

/// Fields at offsets before the base: of the headers of blocks whose records or entries the base is at.
#[rustfmt::skip]
const HEADERS: &[Field] = &[
    ("bnobt", "level", 4, 2, Add(1)),
    ("bnobt", "numrecs", 6, 2, Add(-1)),
    ("bnobt", "leftsib", 8, 4, Set(9)),
    ("bnobt", "rightsib", 12, 4, Set(9)),
    ("bnobt", "blkno", 16, 8, Add(8)),
    ("bnobt", "owner", 48, 4, Add(1)),
    ("inobt", "numrecs", 6, 2, Add(-1)),
    ("inobt", "owner", 48, 4, Add(1)),
    ("refcountbt", "numrecs", 6, 2, Add(-1)),
    ("rmapbt", "numrecs", 6, 2, Add(-1)),
    ("bmbt", "level", 4, 2, Add(1)),
    ("bmbt", "numrecs", 6, 2, Add(-1)),
    ("bmbt", "leftsib", 8, 8, Set(9)),
    ("bmbt", "rightsib", 16, 8, Set(9)),
    ("bmbt", "owner", 56, 8, Add(1)),
    ("AGFL", "magic", 0, 4, Flip(1)),
    ("AGFL", "seqno", 4, 4, Add(1)),
    ("single leaf", "count", 56, 2, Add(-1)),
    ("single leaf", "stale", 58, 2, Add(1)),
    ("single leaf", "owner", 48, 8, Add(1)),
    ("directory leaf", "forw", 0, 4, Add(1)),
    ("directory leaf", "back", 4, 4, Add(1)),
    ("directory leaf", "count", 56, 2, Add(-1)),
    ("directory leaf", "stale", 58, 2, Add(1)),
    ("directory node", "count", 56, 2, Add(-1)),
    ("directory node", "level", 58, 2, Add(1)),
    ("attribute leaf", "count", 56, 2, Add(-1)),
    ("attribute leaf", "used bytes", 58, 2, Add(4)),
    ("attribute leaf", "first used", 60, 2, Add(8)),
    ("attribute leaf", "forw", 0, 4, Add(1)),
    ("attribute leaf", "owner", 48, 8, Add(1)),
    ("attribute node", "level", 58, 2, Add(1)),
];

/// What came of one field.
#[derive(Debug)]
pub struct Outcome {
    structure: &'static str,
    field: &'static str,
    ours: Verdict,
    theirs: Verdict,
    reason: Option<&'static Reason>,
}

impl Outcome {
    /// Whether the two differ.
    pub fn differs(&self) -> bool {
        self.ours.is_ok() != self.theirs.is_ok()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |verdict: &Verdict| match verdict {
            Ok(()) => "clean".to_owned(),
            Err(what) => what.clone(),
        };
        write!(
            f,
            "{}.{}: uxfs: {}; xfs_repair: {}",
            self.structure,
            self.field,
            show(&self.ours),
            show(&self.theirs)
        )?;
        match (self.differs(), self.reason) {
            (true, Some(reason)) => write!(f, " (explained: {})", reason.2),
            (true, None) => f.write_str(" (NOT EXPLAINED)"),
            (false, _) => Ok(()),
        }
    }
}

/// Damages all fields of a volume, one after the other; `each` gets what came of it. `Ok(false)`: the two differ
/// without an explanation, or agree where one is given.
pub fn run(kind: &VolumeKind, each: &mut dyn FnMut(&Outcome)) -> Result<bool> {
    let folder = scratch()?;
    let image = folder.path().join("image");
    mkfs(&image, kind)?;
    fill_by_kernel(&image, &SIZES, folder.path())?;
    ensure!(ours(&image)?.is_ok() && theirs(&image)?.is_ok(), "the sound volume is not clean");
    let atlas = Atlas::of(&image)?;
    let file = File::options().read(true).write(true).open(&image)?;
    let (mut count, mut agreed, mut right) = (0, 0, true);
    let mut missing = BTreeSet::new();
    for (field, from_base) in
        FIELDS.iter().map(|field| (field, true)).chain(HEADERS.iter().map(|field| (field, false)))
    {
        let &(structure, name, offset, width, edit) = field;
        let Some(place) = atlas.get(structure) else {
            missing.insert(structure);
            continue;
        };
        let at = if from_base { place.base + offset } else { offset };
        let Some(outcome) = one(&image, &file, place, (at, width), edit, (structure, name))? else {
            continue;
        };
        count += 1;
        agreed += u32::from(!outcome.differs());
        if outcome.differs() != outcome.reason.is_some() {
            right = false;
            if !outcome.differs() {
                println!("check: {structure}.{name}: they agree; the explanation is no longer needed");
            }
        }
        each(&outcome);
    }
    println!(
        "check: {}: {count} fields, {agreed} verdicts agree; not in this volume: {missing:?}",
        kind.name
    );
    ensure!(ours(&image)?.is_ok(), "a field was not put back");
    Ok(right)
}

/// Damages one field, asks both, and puts it back. `None`: the edit changes nothing.
fn one(
    image: &Path,
    file: &File,
    place: Place,
    (at, width): (usize, usize),
    edit: Edit,
    (structure, field): (&'static str, &'static str),
) -> Result<Option<Outcome>> {
    let mut sound = vec![0; place.len];
    file.read_exact_at(&mut sound, place.at)?;
    let mut damaged = sound.clone();
    let bytes =
        damaged.get_mut(at..at + width).with_context(|| format!("{structure}.{field} lies outside"))?;
    let old = bytes.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    let new = match edit {
        Set(value) => value,
        Add(step) => old.wrapping_add_signed(step),
        Flip(bits) => old ^ bits,
    };
    bytes.copy_from_slice(&new.to_be_bytes()[8 - width..]);
    if damaged == sound {
        return Ok(None);
    }
    ensure!(checksum::store(&mut damaged, place.crc), "{structure} has a checksum");
    file.write_all_at(&damaged, place.at)?;
    let verdicts = ours(image).and_then(|ours| Ok((ours, theirs(image)?)));
    file.write_all_at(&sound, place.at)?;
    let (ours, theirs) = verdicts?;
    let reason = EXPLAINED.iter().find(|reason| (reason.0, reason.1) == (structure, field));
    Ok(Some(Outcome { structure, field, ours, theirs, reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_enough_fields_and_none_twice() {
        let all: Vec<_> = FIELDS.iter().chain(HEADERS).map(|field| (field.0, field.1)).collect();
        let different: BTreeSet<_> = all.iter().collect();
        assert_eq!(all.len(), different.len());
        assert!(different.len() >= 150);
        assert!(EXPLAINED.iter().all(|reason| different.contains(&(reason.0, reason.1))));
    }
}
