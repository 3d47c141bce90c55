//! What becomes of ACLs and permission bits, against what the kernel makes of them on a mounted volume.
//! One test alone: the umask belongs to the whole process.
#![forbid(unsafe_code)]

mod samples;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use samples::{Image, seed};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use xfs::attr::acl::{equivalent_mode, follow_mode, inherit};
use xfs_format::acl::{AclEntry, AclTag, encode, from_linux, is_valid, to_linux};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn kernel_attr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0u8; 8192];
    match rustix::fs::lgetxattr(path, name, &mut value) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

fn mode_of(path: &Path) -> u16 {
    std::fs::symlink_metadata(path).unwrap().mode() as u16
}

fn random_acl(rng: &mut fastrand::Rng) -> Vec<AclEntry> {
    let mut acl = Vec::new();
    let users = rng.usize(0..3);
    let groups = rng.usize(0..3);
    let mut add = |tag, permissions| acl.push(AclEntry { tag, permissions });
    add(AclTag::UserObj, rng.u16(0..8));
    (0..users).for_each(|nth| add(AclTag::User(nth as u32 * 1000), rng.u16(0..8)));
    add(AclTag::GroupObj, rng.u16(0..8));
    (0..groups).for_each(|nth| add(AclTag::Group(nth as u32 * 70_000), rng.u16(0..8)));
    if users + groups > 0 || rng.bool() {
        add(AclTag::Mask, rng.u16(0..8));
    }
    add(AclTag::Other, rng.u16(0..8));
    acl
}

/// Compares mode and ACLs of what the kernel made with what should be.
fn compare(path: &Path, mode: u16, access: Option<&[AclEntry]>, default: Option<&[AclEntry]>, what: &str) {
    assert_eq!(format!("{:o}", mode_of(path)), format!("{mode:o}"), "{what}");
    assert_eq!(kernel_attr(path, ACCESS), access.map(to_linux), "access ACL, {what}");
    assert_eq!(kernel_attr(path, DEFAULT), default.map(to_linux), "default ACL, {what}");
    let disk = access.map(|acl| encode(acl, true).unwrap());
    assert_eq!(kernel_attr(path, "trusted.SGI_ACL_FILE"), disk, "on disk, {what}");
}

fn inheritance(rng: &mut fastrand::Rng, root: &Path, nth: usize) {
    let dir = root.join(format!("dir{nth}"));
    std::fs::create_dir(&dir).unwrap();
    let default = rng.bool().then(|| random_acl(rng));
    if let Some(default) = &default {
        rustix::fs::lsetxattr(&dir, DEFAULT, &to_linux(default), XattrFlags::empty()).unwrap();
    }
    for inner in 0..4 {
        let (permissions, umask) = (rng.u16(0..0o1000), rng.u16(0..0o1000));
        let what = format!("{default:?}, mode {permissions:o}, umask {umask:o}");
        let before = rustix::process::umask(Mode::from_raw_mode(umask.into()));
        let (file, sub, link) = (
            dir.join(format!("file{inner}")),
            dir.join(format!("sub{inner}")),
            dir.join(format!("link{inner}")),
        );
        let raw = Mode::from_raw_mode(permissions.into());
        rustix::fs::open(&file, OFlags::CREATE | OFlags::WRONLY, raw).unwrap();
        rustix::fs::mkdir(&sub, raw).unwrap();
        std::os::unix::fs::symlink("target", &link).unwrap();
        rustix::process::umask(before);
        let ours = inherit(default.as_deref(), 0o100_000 | permissions, umask).unwrap();
        compare(&file, ours.mode, ours.access.as_deref(), ours.default.as_deref(), &what);
        assert_eq!(ours.default, None);
        let ours = inherit(default.as_deref(), 0o040_000 | permissions, umask).unwrap();
        compare(&sub, ours.mode, ours.access.as_deref(), ours.default.as_deref(), &what);
        let ours = inherit(default.as_deref(), 0o120_777, umask).unwrap();
        assert_eq!((mode_of(&link), ours.access, ours.default), (ours.mode, None, None));
    }
}

fn changes_of_mode(rng: &mut fastrand::Rng, root: &Path, nth: usize) {
    let file = root.join(format!("chmod{nth}"));
    std::fs::File::create(&file).unwrap();
    let first = rng.u16(0..0o10_000);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(first.into())).unwrap();
    let mut acl = random_acl(rng);
    rustix::fs::lsetxattr(&file, ACCESS, &to_linux(&acl), XattrFlags::empty()).unwrap();
    let (mode, equivalent) = equivalent_mode(&acl, 0o100_000 | first);
    let kept = (!equivalent).then_some(&*acl);
    compare(&file, mode, kept, None, &format!("{acl:?} on mode {first:o}"));
    let new = rng.u16(0..0o10_000);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(new.into())).unwrap();
    let what = format!("{acl:?}, then chmod {new:o}");
    if equivalent {
        return compare(&file, 0o100_000 | new, None, None, &what);
    }
    follow_mode(&mut acl, new).unwrap();
    assert_eq!(equivalent_mode(&acl, 0o100_000 | new), (0o100_000 | new, false));
    compare(&file, 0o100_000 | new, Some(&acl), None, &what);
}

/// Entries in any order and number: the kernel takes what we take.
fn validity(rng: &mut fastrand::Rng, root: &Path) -> bool {
    let file = root.join("validity");
    std::fs::write(&file, b"").unwrap();
    let mut acl = random_acl(rng);
    for _ in 0..rng.usize(0..3) {
        let at = rng.usize(0..acl.len());
        match rng.u32(0..4) {
            0 => drop(acl.remove(at)),
            1 => acl.insert(at, acl[at]),
            2 => acl[at].permissions = rng.u16(0..10),
            _ => acl.swap(at, 0),
        }
        if acl.is_empty() {
            break;
        }
    }
    let mut bytes = to_linux(&acl);
    if rng.u32(0..20) == 0 {
        bytes.truncate(rng.usize(0..bytes.len()));
    }
    let kernel = rustix::fs::lsetxattr(&file, ACCESS, &bytes, XattrFlags::empty());
    // The kernel takes no bytes at all as a wish to remove the ACL: that is the caller's, not the format's.
    if !bytes.is_empty() {
        assert_eq!(from_linux(&bytes).is_ok(), kernel.is_ok(), "{acl:?} {bytes:?}: {kernel:?}");
    }
    is_valid(&acl)
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_agrees() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let image = Image::mkfs(&[]);
    image.mounted(|root| {
        for nth in 0..150 {
            inheritance(&mut rng, root, nth);
            changes_of_mode(&mut rng, root, nth);
        }
        let valid = (0..1000).filter(|_| validity(&mut rng, root)).count();
        assert!((100..900).contains(&valid), "{valid} of 1000 are valid");
    });
}
