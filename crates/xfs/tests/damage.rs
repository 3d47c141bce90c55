//! Damaged trees, inodes and group headers, with their checksums made right again: errors, never a panic or a hang.
//!
//! `DAMAGE_SEED` replays a run, `DAMAGE_ROUNDS` makes it longer.
#![forbid(unsafe_code)]

mod common;

use common::Image;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use xfs::iomap;
use xfs::volume::{ForkKind, OpenOptions, Volume};
use xfs_format::checksum;
use zerocopy::IntoBytes;

/// A structure that can be damaged: where it lies, its length, and where its checksum is.
#[derive(Clone, Copy, Debug)]
struct Target {
    offset: u64,
    len: usize,
    crc: usize,
}

/// Everything in the image that begins like a structure of the engine.
fn targets(bytes: &[u8]) -> Vec<Target> {
    let mut targets = Vec::new();
    for (index, sector) in bytes.chunks_exact(512).enumerate() {
        let (len, crc) = match &sector[..4] {
            b"XAGF" => (512, 216),
            b"XAGI" => (512, 312),
            b"IAB3" | b"R3FC" => (4096, 52),
            b"BMA3" => (4096, 64),
            [b'I', b'N', mode @ ..] if mode != [0, 0] => (512, 100),
            _ => continue,
        };
        targets.push(Target { offset: index as u64 * 512, len, crc });
    }
    targets
}

/// Looks at everything; gives the number of errors.
fn walk(image: &Image) -> u32 {
    let mut errors = 0;
    let options = OpenOptions { cache_size: 4 << 20, norecovery: true, ..OpenOptions::default() };
    let Ok(volume) = Volume::open(image.device(), &options) else { return 1 };
    let mut count = 0_u64;
    let walked = volume.for_each_inode(&mut |ino| {
        count += 1;
        assert!(count < 1 << 20, "more inodes than the volume has room for");
        match volume.inode(ino) {
            Ok(inode) => {
                for kind in [ForkKind::Data, ForkKind::Attr] {
                    errors += u32::from(volume.extents(&inode, kind).is_err());
                }
                if inode.is_file()
                    && let Ok(map) = iomap::file_map(&volume, &inode)
                {
                    let mut at = 0;
                    for _ in 0..2000 {
                        match fileio::FileMapping::lookup(&map, at) {
                            Ok(found) if at < map.map_end() => at = found.extent.offset + found.extent.len,
                            Ok(_) => break,
                            Err(_) => {
                                errors += 1;
                                break;
                            }
                        }
                    }
                }
            }
            Err(_) => errors += 1,
        }
        ControlFlow::Continue(())
    });
    assert!(volume.cache_weight() <= 4 << 20);
    errors += u32::from(walked.is_err());
    errors + u32::from(volume.stat().is_err())
}

/// A directory that maps one block many times had millions of entries; all maps but those of files that share blocks
/// have each block once.
#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_that_a_fork_maps_twice_are_damage() {
    use std::os::unix::fs::MetadataExt;
    let image = Image::mkfs(300 << 20, &[]);
    let mount = image.mount("");
    std::fs::create_dir(mount.join("dir")).unwrap();
    for n in 0..400 {
        std::fs::write(mount.join(format!("dir/a-name-that-takes-room-{n}")), "").unwrap();
    }
    let file = File::create(mount.join("file")).unwrap();
    for n in 0..3_u64 {
        file.write_all_at(&[1; 4096], n * 8192).unwrap();
    }
    drop(file);
    let path = mount.join("file");
    let (dir, file) = (mount.join("dir").metadata().unwrap().ino(), path.metadata().unwrap().ino());
    mount.unmount();
    let before = std::fs::read(image.path()).unwrap();
    for ino in [dir, file] {
        let load = || {
            let volume = image.open().unwrap();
            let inode = volume.inode(xfs_format::types::InodeNumber(ino)).unwrap();
            volume.extents(&inode, ForkKind::Data)
        };
        let records: Vec<_> = load().unwrap().records().take(2).collect();
        let [first, second] = records[..] else { panic!("inode {ino} has {records:?}") };
        let twice = xfs_format::bmbt::Extent { startblock: first.unpack().startblock, ..second.unpack() };
        // The two records lie in the inode, one after the other; and in the log.
        let wanted = records.as_bytes();
        let is_it = |at: &usize| before[*at..].starts_with(wanted) && before[at & !511..].starts_with(b"IN");
        let at =
            (0..before.len()).step_by(8).find(is_it).unwrap_or_else(|| panic!("inode {ino}: {records:?}"));
        let inode = at & !511;
        let mut bytes = before[inode..inode + 512].to_vec();
        bytes[at - inode + 16..][..16].copy_from_slice(twice.pack().as_bytes());
        assert!(bytes.starts_with(b"IN") && checksum::store(&mut bytes, 100));
        image.patch(inode as u64, &bytes);
        let error = load().unwrap_err().to_string();
        assert!(error.contains("mapped twice"), "{error}");
        image.patch(inode as u64, &before[inode..inode + 512]);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn random_damage() {
    let image = Image::mkfs(300 << 20, &["-m", "reflink=1"]);
    let mount = image.mount("");
    let fragments = File::create(mount.join("fragments")).unwrap();
    for n in 0..1500_u64 {
        fragments.write_all_at(&[1; 4096], n * 8192).unwrap();
    }
    drop(fragments);
    let (from, to) = (mount.join("fragments"), mount.join("clone"));
    common::run("cp", &["--reflink=always", from.to_str().unwrap(), to.to_str().unwrap()]);
    for n in 0..300 {
        std::fs::write(mount.join(format!("f{n}")), b"x").unwrap();
    }
    mount.unmount();
    assert_eq!(walk(&image), 0);

    let bytes = std::fs::read(image.path()).unwrap();
    let targets = targets(&bytes);
    assert!(targets.iter().any(|target| target.crc == 64) && targets.len() > 300);
    let seed = std::env::var("DAMAGE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let rounds = std::env::var("DAMAGE_ROUNDS").map_or(150, |rounds| rounds.parse().unwrap());
    println!("DAMAGE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noticed = 0;
    for _ in 0..rounds {
        // Trees and headers as often as the many inodes.
        let wanted = random.choice([100, 64, 52, 216, 312]).unwrap();
        let kind: Vec<_> = targets.iter().filter(|target| target.crc == wanted).collect();
        let target = *random.choice(kind).unwrap();
        let range = usize::try_from(target.offset).unwrap()..;
        let sound = &bytes[range][..target.len];
        let mut damaged = sound.to_vec();
        for _ in 0..random.usize(1..4) {
            let near = if random.bool() { target.len } else { 200 };
            let values = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)];
            damaged[random.usize(..near)] = values[random.usize(..values.len())];
        }
        assert!(checksum::store(&mut damaged, target.crc));
        image.patch(target.offset, &damaged);
        noticed += u32::from(walk(&image) > 0);
        image.patch(target.offset, sound);
    }
    assert_eq!(walk(&image), 0);
    assert!(noticed > rounds / 10, "{noticed} of {rounds} noticed");
}
