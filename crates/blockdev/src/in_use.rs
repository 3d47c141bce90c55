//! Whether the kernel has an image file, or what a block device holds, attached as a loop device.
//!
//! The kernel takes no lock on it. What it caches of a mounted volume would be lost, or would overwrite our changes.
//! Loop devices belong to the whole machine, so one that is mounted in another mount namespace is found too: by the
//! device and inode number of its file, or, without the permission to ask for these, by the file's name.
//!
//! Not found: a loop device that is made later, or whose file lies behind another file system (`elsewhere` sees it if
//! it writes). Of a block device the kernel keeps a claim of its own
//! (`O_EXCL`), which a loop device does not take of what it lies on: the layers below a device, and loop devices that
//! share bytes with it, are looked at here.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Opcode, ioctl};

use crate::layers::{self, Layer};
use crate::{DeviceError, Storage};

/// The kernel detaches a loop device some time after it was unmounted.
const DETACH_RETRIES: u32 = 50;
const DETACH_PAUSE: Duration = Duration::from_millis(10);
/// The file is detached at the last close of the device.
const AUTOCLEAR: u32 = 4;

/// `struct loop_info64`.
#[repr(C)]
struct LoopStatus {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopStatus>() == 232);

/// `LOOP_GET_STATUS64`.
const GET_STATUS: Opcode = 0x4c05;

/// A loop device that has the file.
struct Attached {
    /// `loop7`
    name: String,
    flags: u32,
}

/// Refuses a regular file that the kernel has attached as a loop device.
pub(crate) fn refuse_attached(file: &File, path: &Path) -> Result<(), DeviceError> {
    refuse_while(|| attached(file, path))
}

/// Refuses a block device that shares bytes with a loop device not below it, or that lies on a device in use.
pub(crate) fn refuse_layered(number: u64) -> Result<(), DeviceError> {
    let own = layers::of_disk(number);
    if let Some(busy) = own.iter().skip(1).find_map(in_use) {
        let what =
            format!("the device lies on {busy}, which is mounted or otherwise in use: unmount it first");
        return Err(DeviceError::Attached(what));
    }
    refuse_while(|| sharing(&own))
}

/// A loop device, other than these layers, that shares bytes with them.
fn sharing(own: &[Layer]) -> Option<Attached> {
    let is_own = |number| own.iter().any(|layer| layer.place.storage == Storage::Disk(number));
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        if !entry.path().join("loop").exists() {
            return None;
        }
        let number = layers::number(&entry.path()).filter(|&number| !is_own(number))?;
        let its = layers::of_disk(number);
        let meets = |one: &Layer| own.iter().any(|layer| layer.place.meets(&one.place));
        its.iter().any(meets).then(|| Attached { flags: flags_of(&name), name })
    })
}

/// The name of a disk that is mounted or claimed.
fn in_use(layer: &Layer) -> Option<String> {
    let name = layer.name.as_deref()?;
    let path = Path::new("/dev").join(name);
    let claimed = is_device(&path, name) && {
        let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::EXCL).bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(&path);
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
    };
    (claimed || mount_place(name).is_some()).then(|| path.display().to_string())
}

/// The loop device that has a file and may write it, and where it is mounted; and whether it is about to be let go of.
pub(crate) fn writing(file: &File, path: &Path) -> Option<(String, bool)> {
    let found = attached(file, path)?;
    let read_only = fs::read_to_string(format!("/sys/block/{}/ro", found.name));
    if read_only.is_ok_and(|text| text.trim_end() == "1") {
        return None;
    }
    let place = mount_place(&found.name);
    let is_going = place.is_none() && found.flags & AUTOCLEAR != 0;
    let at = place.map(|place| format!(", mounted at {place}")).unwrap_or_default();
    Some((format!("/dev/{}{at}", found.name), is_going))
}

/// Whether a block device is mounted, as far as this process can see: a closer check would keep others out
/// meanwhile.
pub(crate) fn mounted(number: u64) -> Option<String> {
    let own = layers::of_disk(number);
    let place = mount_place(own.first()?.name.as_deref()?)?;
    Some(format!("the kernel, mounted at {place}"))
}

/// Refuses a file that is attached, unless it is about to be detached.
fn refuse_while(attached: impl Fn() -> Option<Attached>) -> Result<(), DeviceError> {
    for _ in 0..DETACH_RETRIES {
        let Some(attached) = attached() else { return Ok(()) };
        let place = mount_place(&attached.name);
        if place.is_some() || attached.flags & AUTOCLEAR == 0 {
            return Err(refusal(&attached.name, place.as_deref()));
        }
        std::thread::sleep(DETACH_PAUSE);
    }
    attached().map_or(Ok(()), |attached| Err(refusal(&attached.name, None)))
}

fn refusal(name: &str, place: Option<&str>) -> DeviceError {
    DeviceError::Attached(match place {
        Some(place) => format!("the image is mounted by the kernel, at {place}: unmount it first"),
        None => format!(
            "the kernel has the image attached as /dev/{name}, perhaps mounted where this process cannot see it: \
             unmount and detach it first"
        ),
    })
}

fn attached(file: &File, path: &Path) -> Option<Attached> {
    let own = file.metadata().ok()?;
    let full = fs::canonicalize(path).ok();
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Only an attached loop device has this file.
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let backing = Path::new(backing.trim_end_matches('\n'));
        let (is_it, flags) = match status(&name) {
            Some(status) => ((status.device, status.inode) == (own.dev(), own.ino()), status.flags),
            None => {
                let same = |of: fs::Metadata| (of.dev(), of.ino()) == (own.dev(), own.ino());
                (fs::metadata(backing).is_ok_and(same) || full.as_deref() == Some(backing), flags_of(&name))
            }
        };
        if is_it {
            return Some(Attached { name, flags });
        }
    }
    None
}

/// What the kernel says of a loop device; `None`: this process may not ask.
fn status(name: &str) -> Option<LoopStatus> {
    let path = Path::new("/dev").join(name);
    if !is_device(&path, name) {
        return None;
    }
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed();
    let device = File::options().read(true).custom_flags(flags).open(path).ok()?;
    // SAFETY: the kernel fills a `loop_info64` for this number, which `LoopStatus` is to the byte, and any bytes are
    // valid in it.
    unsafe { ioctl(&device, Getter::<GET_STATUS, LoopStatus>::new()) }.ok()
}

/// Whether the path is the disk of this name: anything else is not opened.
fn is_device(path: &Path, name: &str) -> bool {
    let number = layers::number(&Path::new("/sys/class/block").join(name));
    let found = fs::metadata(path).ok().filter(|found| found.file_type().is_block_device());
    found.is_some_and(|found| Some(found.rdev()) == number)
}

/// The device and inode numbers of files that the kernel has attached as loop devices, as far as this process can see.
pub fn attached_files() -> Vec<(u64, u64)> {
    let Ok(disks) = fs::read_dir("/sys/block") else { return Vec::new() };
    let names = disks.flatten().filter_map(|disk| disk.file_name().into_string().ok());
    let files = names.filter_map(|name| match backing(&name)? {
        Storage::File(device, inode) => Some((device, inode)),
        _ => None,
    });
    files.collect()
}

/// What a loop device lies on: a file, or another block device.
pub(crate) fn backing(name: &str) -> Option<Storage> {
    let path = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    let of = |device, inode, disk| if disk == 0 { Storage::File(device, inode) } else { Storage::Disk(disk) };
    if let Some(status) = status(name) {
        return Some(of(status.device, status.inode, status.rdevice));
    }
    let found = fs::metadata(path.trim_end_matches('\n')).ok()?;
    Some(of(found.dev(), found.ino(), found.rdev()))
}

/// The one flag that anyone can read in `/sys`.
fn flags_of(name: &str) -> u32 {
    let autoclear = fs::read_to_string(format!("/sys/block/{name}/loop/autoclear"));
    if autoclear.is_ok_and(|text| text.trim_end() == "1") { AUTOCLEAR } else { 0 }
}

/// Where a loop device, or a partition of it, is mounted, as far as this process can see.
fn mount_place(name: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let is_it = |source: &str| {
        let rest = source.strip_prefix("/dev/").and_then(|source| source.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
    };
    let mut mounts = mounts.lines().filter_map(source_and_place);
    mounts.find(|(source, _)| is_it(source)).map(|(_, place)| place.to_owned())
}

/// What is mounted and where, from a line of `mountinfo`: the place is the fifth word, the source comes second behind
/// a lone dash.
fn source_and_place(line: &str) -> Option<(&str, &str)> {
    let (mount, source) = line.split_once(" - ")?;
    Some((source.split(' ').nth(1)?, mount.split(' ').nth(4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_line_of_mountinfo() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - xfs /dev/loop7 rw,errors=continue";
        assert_eq!(source_and_place(line), Some(("/dev/loop7", "/mnt2")));
        assert_eq!(source_and_place("nonsense"), None);
    }
}
