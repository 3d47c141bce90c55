//! `uxfs check` on volumes with quota, sound ones and damaged ones, beside `xfs_repair -n`. They are forged, as the kernel
//! that runs here may have no quota.
#![forbid(unsafe_code)]

mod common;

use common::forge::{DIRECTORY, Forged, REGULAR};
use common::{Image, uxfs};
use oracles::xfsprogs::Release;
use serde_json::Value;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;
use xfs_format::checksum;
use xfs_format::quota::Dquot;
use xfs_format::superblock::{RawSuperblock, Superblock};
use zerocopy::{FromZeros, IntoBytes};

const BLOCK: usize = 4096;
const PER_BLOCK: u32 = (BLOCK / size_of::<Dquot>()) as u32;
/// Where dquots and superblocks have their checksums.
const DQUOT_CRC: usize = 108;
const SUPERBLOCK_CRC: usize = 224;
/// `sb_versionnum`: there are quota inodes.
const QUOTA: u8 = 0x40;
/// `sb_qflags`: users are counted, and the counts are right.
const COUNTING: u16 = 1;
const COUNTED: u16 = 4;
/// The id that owns files, beside 0.
const USER: u32 = 1000;
/// The flag that says of a directory that it has no symbolic links.
const OF_DIRECTORIES: u8 = 0x04;
/// Fields of a v3 inode.
const LINKS: usize = 16;
const UID: usize = 8;
const SIZE: usize = 56;

/// A volume of one group with quota of users.
struct WithQuota {
    forged: Forged,
    has_metadir: bool,
    /// The quota file, one file of the user's, and the bytes of the volume as they are to be.
    file: u64,
    owned: u64,
    sound: Vec<u8>,
}

fn dquot(superblock: &Superblock, id: u32, (blocks, inodes): (u64, u64)) -> Dquot {
    let mut dquot = Dquot::new_zeroed();
    dquot.disk.magic.set(0x4451);
    dquot.disk.version = 1;
    dquot.disk.kind = 1;
    dquot.disk.id.set(id);
    dquot.disk.bcount.set(blocks);
    dquot.disk.icount.set(inodes);
    dquot.uuid = superblock.meta_uuid().0;
    dquot.crc.set(dquot.checksum());
    dquot
}

/// Blocks of the quota file that have dquots.
fn blocks_of_dquots() -> [u32; 2] {
    [0, USER / PER_BLOCK]
}

impl WithQuota {
    fn new(has_metadir: bool) -> Self {
        let meta = if has_metadir { "rmapbt=0,metadir=1,uquota" } else { "rmapbt=0" };
        // The oldest xfs_repair is to know all that it has.
        let exchange = if has_metadir { "exchange=1" } else { "exchange=0" };
        let options = ["-d", "agcount=1", "-m", meta, "-n", "parent=0", "-i", exchange, "--unsupported"];
        let image = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &options);
        let superblock = Superblock::parse(&std::fs::read(&image.path).unwrap()[..512]).unwrap();
        let mount = image.mount(&[]);
        let owned = ["one", "two"].map(|name| mount.join(name));
        for file in &owned {
            std::fs::write(file, [1; 5000]).unwrap();
            chown(file, Some(USER), None).unwrap();
        }
        drop(mount);
        let mount = image.mount(&[]);
        let blocks =
            ["one", "two"].iter().map(|name| mount.join(name).metadata().unwrap().blocks() / 8).sum();
        // The root, what becomes the quota file's directory, and two inodes for a realtime section.
        let used = [(0, (0, if has_metadir { 1 } else { 4 })), (USER, (blocks, 2))];
        std::fs::create_dir(mount.join("quota")).unwrap();
        let file = std::fs::File::create(mount.join("quota/user")).unwrap();
        for block in blocks_of_dquots() {
            let ids = block * PER_BLOCK..(block + 1) * PER_BLOCK;
            let of = |id| used.iter().find(|(of, _)| *of == id).map_or((0, 0), |(_, used)| *used);
            let dquots: Vec<u8> =
                ids.flat_map(|id| dquot(&superblock, id, of(id)).as_bytes().to_vec()).collect();
            file.write_all_at(&dquots, u64::from(block) * BLOCK as u64).unwrap();
            file.set_len(u64::from(block + 1) * BLOCK as u64).unwrap();
        }
        let ino = |name: &str| mount.join(name).metadata().unwrap().ino();
        let (one, two, dir, user) = (ino("one"), ino("two"), ino("quota"), ino("quota/user"));
        drop(file);
        drop(mount);

        let forged = Forged::from(image);
        let (root, metadir) = (superblock.raw().rootino.get(), superblock.raw().metadirino.get());
        forged.inode(user, |inode| inode[SIZE..SIZE + 8].fill(0));
        if has_metadir {
            // As the directory that mkfs makes, which the file and its directory move to.
            let rtgroups = metadir + 1;
            forged.entries(root, root, &[(b"one", REGULAR, one), (b"two", REGULAR, two)]);
            forged.entries(
                metadir,
                metadir,
                &[(b"rtgroups", DIRECTORY, rtgroups), (b"quota", DIRECTORY, dir)],
            );
            forged.entries(dir, metadir, &[(b"user", REGULAR, user)]);
            forged.inode(root, |inode| inode[LINKS + 3] -= 1);
            forged.inode(metadir, |inode| inode[LINKS + 3] += 1);
            let bytes = std::fs::read(&forged.path).unwrap();
            let like = &bytes[rtgroups as usize * 512..][..512];
            for (ino, kind, metatype) in [(dir, 0x40, 1), (user, 0x80, 2)] {
                forged.inode(ino, |inode| {
                    inode[2..4].copy_from_slice(&[kind, 0]);
                    inode[6..8].copy_from_slice(&[0, metatype]);
                    // Flags, and those of version 3.
                    inode[90..92].copy_from_slice(&like[90..92]);
                    inode[120..128].copy_from_slice(&like[120..128]);
                    if ino == user {
                        inode[90] &= !OF_DIRECTORIES;
                    }
                });
            }
        } else {
            forged.entries(dir, root, &[]);
        }
        forged.sealed(0, 512, SUPERBLOCK_CRC, |superblock| {
            superblock[offset_of!(RawSuperblock, versionnum) + 1] |= QUOTA;
            let flags = offset_of!(RawSuperblock, qflags);
            superblock[flags..flags + 2].copy_from_slice(&(COUNTING | COUNTED).to_be_bytes());
            let (user_file, none) = (offset_of!(RawSuperblock, uquotino), [0xff; 8]);
            if !has_metadir {
                superblock[user_file..user_file + 8].copy_from_slice(&user.to_be_bytes());
                superblock[user_file + 8..user_file + 16].copy_from_slice(&none);
            }
        });
        let sound = std::fs::read(&forged.path).unwrap();
        Self { forged, has_metadir, file: user, owned: one, sound }
    }

    /// What `uxfs check` finds: what, of which id, found and expected. `xfs_repair -n` must find something, or nothing,
    /// as it does.
    fn findings(&self) -> Vec<(String, Value, Value, Value)> {
        let path: &Path = &self.forged.path;
        let output = uxfs(&[&"check", &"--json", &path]);
        let said = String::from_utf8(output.stdout).unwrap();
        let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let found = lines.filter(|line| line.get("summary").is_none());
        let found: Vec<_> = found
            .map(|line| {
                let what =
                    format!("{}: {}", line["structure"].as_str().unwrap(), line["what"].as_str().unwrap());
                (what, line["name"].clone(), line["found"].clone(), line["expected"].clone())
            })
            .collect();
        assert_eq!(output.status.code(), Some(if found.is_empty() { 0 } else { 5 }), "{said}");
        let releases: &[Release] =
            if self.has_metadir { &[Release::Unstable] } else { &[Release::System, Release::Unstable] };
        for release in releases {
            let mut repair = release.tool("xfs_repair").unwrap();
            let output = repair.args(["-n", "-o", "force_geometry"]).arg(path).output().unwrap();
            let code = i32::from(!found.is_empty());
            let repair = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{release:?}: {found:?}\n{repair}");
        }
        found
    }

    /// Changes a dquot; without its checksum, if that is not wanted.
    fn change(&self, id: u32, seal: bool, change: impl FnOnce(&mut Dquot)) {
        let mut bytes = self.sound.clone();
        let magic = [&0x4451_0101_u32.to_be_bytes()[..], &id.to_be_bytes()].concat();
        let at = (0..bytes.len())
            .step_by(BLOCK)
            .map(|at| at + (id % PER_BLOCK) as usize * size_of::<Dquot>())
            .find(|&at| bytes[at..at + 8] == magic)
            .expect("a dquot of this id");
        let place = &mut bytes[at..at + size_of::<Dquot>()];
        let mut dquot = Dquot::new_zeroed();
        dquot.as_mut_bytes().copy_from_slice(place);
        change(&mut dquot);
        place.copy_from_slice(dquot.as_bytes());
        if seal {
            assert!(checksum::store(place, DQUOT_CRC));
        }
        std::fs::write(&self.forged.path, bytes).unwrap();
    }

    fn restore(&self) {
        std::fs::write(&self.forged.path, &self.sound).unwrap();
    }
}

fn finding(
    what: &str,
    id: Option<u32>,
    found: Option<u64>,
    expected: Option<u64>,
) -> (String, Value, Value, Value) {
    (what.to_owned(), id.map(|id| id.to_string()).into(), found.into(), expected.into())
}

fn counts_are_compared(has_metadir: bool) {
    let volume = WithQuota::new(has_metadir);
    assert_eq!(volume.findings(), []);
    let blocks = 2 * 5000_u64.div_ceil(BLOCK as u64);
    let only = |found: &[_], what: &str, id, has, expected| {
        assert_eq!(found, [finding(what, Some(id), Some(has), Some(expected))]);
    };
    volume.change(USER, true, |dquot| dquot.disk.bcount.set(blocks + 1));
    only(&volume.findings(), "user dquot: block count", USER, blocks + 1, blocks);
    volume.change(USER, true, |dquot| dquot.disk.icount.set(0));
    only(&volume.findings(), "user dquot: inode count", USER, 0, 2);
    volume.change(USER, true, |dquot| dquot.disk.rtbcount.set(7));
    only(&volume.findings(), "user dquot: realtime block count", USER, 7, 0);
    volume.change(USER + 1, true, |dquot| dquot.disk.bcount.set(1));
    only(&volume.findings(), "user dquot: block count", USER + 1, 1, 0);
    // Limits and timers are the administrator's.
    volume.change(USER, true, |dquot| dquot.disk.blk_hardlimit.set(1 << 30));
    assert_eq!(volume.findings(), []);

    volume.change(USER, true, |dquot| dquot.disk.kind = 4);
    only(&volume.findings(), "user dquot: type", USER, 4, 1);
    volume.change(USER, false, |dquot| dquot.disk.bcount.set(0));
    assert_eq!(volume.findings()[0].0, "dquot: checksum");

    volume.restore();
    volume.forged.inode(volume.file, |inode| inode[SIZE + 6] = 16);
    assert_eq!(volume.findings(), [finding("inode: size of a quota inode", None, Some(4096), Some(0))]);

    // A file's owner has no dquot, and the one that it seems to have had counts one file too many.
    volume.restore();
    volume.forged.inode(volume.owned, |inode| inode[UID..UID + 4].copy_from_slice(&5000_u32.to_be_bytes()));
    let found = volume.findings();
    let expected = [
        finding("user dquot: block count", Some(USER), Some(blocks), Some(blocks / 2)),
        finding("user dquot: inode count", Some(USER), Some(2), Some(1)),
        finding("user dquot: none, of an id that owns inodes", Some(5000), Some(1), None),
    ];
    assert_eq!(found, expected);
    // Counts that nobody says are right are counted anew by whoever mounts it.
    volume.forged.sealed(0, 512, SUPERBLOCK_CRC, |superblock| {
        let flags = offset_of!(RawSuperblock, qflags);
        superblock[flags..flags + 2].copy_from_slice(&COUNTING.to_be_bytes());
    });
    assert_eq!(volume.findings(), []);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn dquots_are_compared_with_what_inodes_use() {
    counts_are_compared(false);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn dquots_in_a_tree_of_metadata_are_compared_with_what_inodes_use() {
    counts_are_compared(true);
}
