//! Intents of the input's making, about inodes and blocks that there are, or nearly: they pass the checks of a parser
//! and get as far as those who carry them out.

use crate::recovery::{Regions, slice, take};
use crate::today::{Mapped, Today};
use xfs_format::attr::AttrFlags;
use xfs_format::log::{
    AttrChange, AttrIntent, AttrOp, BmapOp, BmapUpdate, Done, Exchange, ExchangeFlags, ExchangeIntent,
    Extent, ItemType, RefcountOp, RefcountUpdate, RmapOp, RmapUpdate, Update, UpdateIntent,
    encode_free_intent, free_intent_bytes,
};
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

/// Most updates of one intent.
const UPDATES_MAX: u8 = 5;
const DONES: [ItemType; 6] =
    [ItemType::Rud, ItemType::Cud, ItemType::Bud, ItemType::Attrd, ItemType::Xmd, ItemType::Efd];

/// An intent, or the end of one. `kind`: which, and how far it keeps to what is there.
pub fn intent(data: &mut &[u8], today: &Today, [kind, id, count, what]: [u8; 4], regions: &mut Regions) {
    let id = u64::from(id % 8);
    let count = 1 + count % UPDATES_MAX;
    let is_near = kind & 0x80 != 0;
    match kind >> 3 & 7 {
        0 => updates(id, count, regions, || rmap(data, today, is_near)),
        1 => updates(id, count, regions, || refcount(data, today, is_near)),
        2 => updates(id, count, regions, || bmap(data, today, is_near)),
        3 => attribute(data, today, id, what, regions),
        4 => exchange(data, today, id, what, regions),
        5 => free(data, today, id, count, what, regions),
        _ => {
            let mut bytes = [0; Done::BYTES];
            Done::new(DONES[usize::from(what) % DONES.len()], id).encode(&mut bytes);
            regions.add(&bytes);
        }
    }
}

fn updates<T: Update>(id: u64, count: u8, regions: &mut Regions, mut each: impl FnMut() -> T) {
    let updates: Vec<T> = (0..count).map(|_| each()).collect();
    let mut bytes = vec![0; UpdateIntent::<T>::bytes(updates.len())];
    UpdateIntent::encode(id, &updates, &mut bytes);
    regions.add(&bytes);
}

fn pick<T: Copy>(of: &[T], nth: u8) -> T {
    of[usize::from(nth) % of.len()]
}

/// A part of a mapping that there is; `is_near`: or something beside it.
fn mapped(data: &mut &[u8], today: &Today, is_near: bool) -> Mapped {
    let [nth, high, from, len] = take::<4>(data);
    let nth = usize::from(u16::from_le_bytes([nth, high])) % today.mapped.len();
    let whole = today.mapped[nth];
    let from = u32::from(from) % if is_near { 64 } else { whole.len };
    let most = if is_near { 64 } else { whole.len - from };
    let len = u32::from(len) % most + 1;
    Mapped {
        start: FsBlock(whole.start.0 + u64::from(from)),
        offset: whole.offset + u64::from(from),
        len: if from == 0 && len == most { whole.len } else { len },
        ..whole
    }
}

fn rmap(data: &mut &[u8], today: &Today, is_near: bool) -> RmapUpdate {
    let Mapped { ino, start, offset, len } = mapped(data, today, is_near);
    let [op, flags, owner] = take::<3>(data);
    let other = owner.checked_sub(200).map(|number| (-i64::from(number % 10)).cast_unsigned());
    RmapUpdate {
        op: pick(RmapOp::ALL, op),
        owner: other.unwrap_or(if owner < 100 { ino.0 } else { pick(&today.inodes, owner).0.0 }),
        start,
        offset: FileBlock(if flags & 8 == 0 { offset } else { 0 }),
        len,
        attr_fork: flags & 0x11 == 1,
        bmbt_block: flags & 0x12 == 2,
        unwritten: flags & 4 != 0,
    }
}

fn refcount(data: &mut &[u8], today: &Today, is_near: bool) -> RefcountUpdate {
    let Mapped { start, len, .. } = mapped(data, today, is_near);
    let [op] = take::<1>(data);
    RefcountUpdate { op: pick(RefcountOp::ALL, op), start, len }
}

fn bmap(data: &mut &[u8], today: &Today, is_near: bool) -> BmapUpdate {
    let Mapped { ino, start, offset, len } = mapped(data, today, is_near);
    let [op, flags, owner, at] = take::<4>(data);
    BmapUpdate {
        op: pick(BmapOp::ALL, op),
        ino: if owner < 128 { ino } else { pick(&today.inodes, owner).0 },
        start,
        offset: FileBlock(if flags & 4 == 0 { offset } else { at.into() }),
        len,
        attr_fork: flags & 9 == 1,
        unwritten: flags & 2 != 0,
        realtime: flags == 0xff,
    }
}

fn attribute(data: &mut &[u8], today: &Today, id: u64, op: u8, regions: &mut Regions) {
    const NAMES: [&[u8]; 6] = [b"0", b"7", b"remote", b"node", b"short", b"leaf-has-a-name-of-some-length-3"];
    let op = pick(AttrOp::ALL, op);
    let [inode, flags, name, new_name, len, high, dir, generation] = take::<8>(data);
    let (ino, own) = pick(&today.inodes, inode);
    let (dir, of_dir) = pick(&today.inodes, dir);
    let parent = [&dir.0.to_be_bytes()[..], &of_dir.to_be_bytes()[..]].concat();
    let free = slice(data, usize::from(name / 8)).to_vec();
    let name = if name & 1 == 0 { pick(&NAMES, name / 2) } else { &free[..] };
    let len = usize::from(u16::from_le_bytes([len, high])) % 3000;
    let value: Vec<u8> = match op {
        AttrOp::Remove => Vec::new(),
        _ if op.is_parent() => parent.clone(),
        _ => (0..len).map(|nth| nth as u8).collect(),
    };
    let is_replaced = op == AttrOp::ParentReplace;
    let filter = if op.is_parent() { AttrFlags::PARENT } else { AttrFlags::empty() };
    let change = AttrChange {
        ino,
        generation: if generation == 0xff {
            own ^ 1
        } else if op.is_parent() {
            own
        } else {
            0
        },
        op,
        filter: filter | AttrFlags::from_bits_truncate(flags & 6 & 0u8.wrapping_sub(flags >> 7)),
        name: if name.is_empty() { b"x" } else { name },
        new_name: if is_replaced { pick(&NAMES, new_name) } else { &[] },
        value: &value,
        new_value: if is_replaced { &parent } else { &[] },
    };
    let mut bytes = [0; AttrIntent::BYTES];
    change.encode(id, &mut bytes);
    regions.add(&bytes);
    change.regions().for_each(|region| {
        let mut padded = region.to_vec();
        padded.resize(region.len().next_multiple_of(4), 0);
        regions.add(&padded);
    });
}

fn exchange(data: &mut &[u8], today: &Today, id: u64, flags: u8, regions: &mut Regions) {
    let [one, other, at, from, blocks, generation, size, sizes] = take::<8>(data);
    let pair = [pick(&today.inodes, one), pick(&today.inodes, other)];
    let exchange = Exchange {
        inodes: pair.map(|(ino, _): (InodeNumber, u32)| ino),
        generations: pair.map(|(_, of)| if generation == 0xff { of ^ 1 } else { of }),
        offsets: [FileBlock(u64::from(at) * 2), FileBlock(u64::from(from) * 2)],
        blocks: u64::from(blocks) * 3,
        flags: ExchangeFlags::from_bits_truncate(flags.into()),
        sizes: [u64::from(size) << (sizes & 15), u64::from(sizes) << (size & 15)],
    };
    let mut bytes = [0; ExchangeIntent::BYTES];
    ExchangeIntent { id, exchange }.encode(&mut bytes);
    regions.add(&bytes);
}

fn free(data: &mut &[u8], today: &Today, id: u64, count: u8, is_done: u8, regions: &mut Regions) {
    let each = |_| {
        let Mapped { start, len, .. } = mapped(data, today, is_done & 2 != 0);
        Extent { start, len }
    };
    let extents: Vec<Extent> = (0..count).map(each).collect();
    let mut bytes = vec![0; free_intent_bytes(extents.len())];
    encode_free_intent(is_done & 1 != 0, id, &extents, &mut bytes);
    regions.add(&bytes);
}
