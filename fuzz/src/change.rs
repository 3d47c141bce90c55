//! Changes of a damaged volume with today's features: metadata of a small sound one with bytes of the input in them,
//! checksums put right; then it is checked, and cloned, exchanged, overwritten, punched, renamed and removed in.
//!
//! Held to: no panic, whatever the trees of owners and counts say, and no endless loop; who is refused is told.

use crate::recovery::{slice, take};
use crate::today::{BLOCK, Today, writable};
use blockdev::{BlockDevice, Durability, Rewind};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use uxfs::{ExchangeOptions, File, NewNode, Rename, SetXattr, Volume};
use witness::damage::layout::{Kind, Target, targets};
use xfs::check::{CheckOptions, check};
use xfs_format::checksum;

/// Most places that are damaged, and most changes behind that.
const DAMAGE_MAX: u8 = 6;
const CHANGES_MAX: u8 = 12;
const FILES: [&str; 5] = ["/base", "/clone", "/other", "/third", "/plain"];
const NAMES: [&str; 6] =
    ["base", "clone", "dir/short", "dir/leaf", "dir/node", "dir/node-has-a-name-of-some-length-7"];

struct Template {
    device: Arc<Rewind>,
    targets: Vec<Target>,
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let today = Today::default();
        let device = Arc::new(Rewind::new(Arc::clone(&today.device)));
        let whole: Range<usize> = 0..crate::today::BYTES as usize;
        let mut targets = targets(&*device, std::slice::from_ref(&whole)).expect("the template can be read");
        targets.retain(|target| target.kind != Kind::Log);
        Template { device, targets }
    })
}

/// Which places are damaged and how, and what is changed then.
pub fn run(mut data: &[u8]) {
    let template = template();
    let device = &template.device;
    device.mark();
    let [places] = take::<1>(&mut data);
    for _ in 0..places % (DAMAGE_MAX + 1) {
        damage(&mut data, template);
    }
    if places & 0x80 != 0 {
        let _ = check(Arc::clone(device) as _, &CheckOptions::default());
    }
    if let Ok(volume) = Volume::open_device(Arc::clone(device) as _, &writable()) {
        let [count] = take::<1>(&mut data);
        for _ in 0..count % CHANGES_MAX {
            let _ = change(&mut data, &volume);
        }
        let _ = volume.close();
    }
    device.rewind().expect("taken back");
}

/// Some bytes of one structure become others.
fn damage(data: &mut &[u8], template: &Template) {
    let [low, high, at, far, count, how] = take::<6>(data);
    let nth = usize::from(u16::from_le_bytes([low, high])) % template.targets.len();
    let target = template.targets[nth];
    let sectors = target.at / 512 * 512..(target.at + target.len).next_multiple_of(512);
    let mut bytes = vec![0; sectors.len()];
    template.device.read(sectors.start as u64, &mut bytes).expect("read");
    let from = target.at - sectors.start;
    let Some(structure) = bytes.get_mut(from..from + target.len) else { return };
    let at = usize::from(u16::from_le_bytes([at, far])) % structure.len();
    for (to, new) in structure.iter_mut().skip(at).zip(slice(data, usize::from(count % 8) + 1)) {
        *to = match how % 3 {
            0 => *new,
            1 => to.wrapping_add(*new),
            _ => *to ^ *new,
        };
    }
    if let Some(crc) = target.crc {
        checksum::store(structure, crc);
    }
    template.device.write(sectors.start as u64, &bytes, Durability::Volatile).expect("written");
}

fn file(volume: &Volume, nth: u8) -> uxfs::Result<File> {
    volume.open_file(FILES[usize::from(nth) % FILES.len()])
}

/// One change of content, mappings, names or attributes.
fn change(data: &mut &[u8], volume: &Volume) -> uxfs::Result<()> {
    let [what, one, two, at, from, len] = take::<6>(data);
    let (at, from, len) = (u64::from(at) * 2 * BLOCK, u64::from(from) * 2 * BLOCK, u64::from(len) * BLOCK);
    let name = |nth: u8| NAMES[usize::from(nth) % NAMES.len()];
    let root = volume.open_dir("/")?;
    match what % 12 {
        0 => file(volume, one)?.clone_range(from, &file(volume, two)?, at, len),
        1 => file(volume, one)?.write_at(&vec![7; len as usize / 4 + 1], at + u64::from(two)),
        2 => file(volume, one)?.punch_hole(at..at + len + 1),
        3 => {
            let other = file(volume, two)?;
            file(volume, one)?.exchange_range(at, &other, from, Some(len), ExchangeOptions::new())
        }
        4 => file(volume, one)?.exchange_range(0, &file(volume, two)?, 0, None, ExchangeOptions::new()),
        5 => file(volume, one)?.set_len(at),
        6 => file(volume, one)?.dedupe_range(at, &file(volume, two)?, from, len).map(drop),
        7 => file(volume, one)?.collapse_range(at..at + len),
        8 => {
            let (dir, leaf) = name(one).rsplit_once('/').unwrap_or(("/", name(one)));
            volume.open_dir(dir)?.remove_file(leaf.as_bytes())
        }
        9 => {
            let (dir, leaf) = name(one).rsplit_once('/').unwrap_or(("/", name(one)));
            volume.open_dir(dir)?.rename(leaf.as_bytes(), &root, name(two).as_bytes(), Rename::Replace)
        }
        10 => {
            let node = volume.lookup(format!("/{}", name(one)))?;
            node.set_xattr(format!("user.{two}").as_bytes(), &vec![2; len as usize / 32], SetXattr::Either)?;
            root.link(format!("another name, {at}").as_bytes(), &node)
        }
        _ => {
            root.create_file(format!("new {at}").as_bytes(), &NewNode::default())?;
            volume.sync()
        }
    }
}
