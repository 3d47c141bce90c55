use super::*;
use crate::attr::AttrFlags;
use crate::log::LogItem;
use crate::types::Uuid;
use proptest::prelude::*;
use std::fmt::Debug;

fn header(kind: ItemType, nextents: u32) -> Vec<u8> {
    let mut header = IntentHeader::new(kind, 0, 5);
    header.nextents.set(nextents);
    header.as_bytes().to_vec()
}

fn parse(region: &[u8]) -> (ItemType, u16, LogItem<'_>) {
    LogItem::parse(region).unwrap()
}

#[test]
fn extents_of_both_layouts() {
    let (mut wide, mut narrow) = (header(ItemType::Efi, 2), header(ItemType::Efi, 2));
    for n in 1..3u64 {
        let tail = (n as u32 * 10).to_le_bytes();
        wide.extend(n.to_le_bytes());
        wide.extend(tail);
        wide.extend([0; 4]);
        narrow.extend(n.to_le_bytes());
        narrow.extend(tail);
    }
    let list = |bytes: &[u8]| FreeIntent::parse("EFI", bytes).unwrap().extents.iter().collect::<Vec<_>>();
    assert_eq!(list(&wide), list(&narrow));
    assert_eq!(list(&wide)[1], Extent { start: FsBlock(2), len: 20 });
}

#[test]
fn counts_beyond_the_region_are_refused() {
    for kind in [ItemType::Efi, ItemType::Rui, ItemType::Cui, ItemType::Bui] {
        for count in [0, 1, 1 << 28, u32::MAX] {
            let error = LogItem::parse(&header(kind, count)).unwrap_err();
            assert_eq!(error.check, "number of extents", "{kind:?}");
        }
    }
}

/// An intent comes back as it went in, and its bytes are the same again; longer or shorter ones are refused.
fn round<T: Update + Debug + PartialEq>(id: u64, updates: &[T]) {
    let mut bytes = vec![0; UpdateIntent::<T>::bytes(updates.len())];
    UpdateIntent::encode(id, updates, &mut bytes);
    let intent = UpdateIntent::<T>::parse(&bytes).unwrap();
    assert_eq!((intent.id, intent.iter().collect::<Vec<_>>()), (id, updates.to_vec()));
    assert_eq!(&parse(&bytes).0, &T::INTENT);
    bytes.extend([0; 4]);
    assert_eq!(UpdateIntent::<T>::parse(&bytes).unwrap_err().check, "length");
    bytes.truncate(bytes.len() - 5);
    assert_eq!(UpdateIntent::<T>::parse(&bytes).unwrap_err().check, "number of extents");
    let mut done = [0; Done::BYTES];
    Done::new(T::DONE, id).encode(&mut done);
    let (kind, 1, LogItem::Done(done)) = parse(&done) else { panic!("no done item") };
    assert_eq!((kind, done.intent_id.get()), (T::DONE, id));
}

fn rmap() -> impl Strategy<Value = RmapUpdate> {
    let op = prop::sample::select(RmapOp::ALL);
    let place = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    (op, place, any::<[bool; 3]>()).prop_map(|(op, (owner, start, offset, len), flags)| {
        let [attr_fork, bmbt_block, unwritten] = flags;
        let (start, offset) = (FsBlock(start), FileBlock(offset));
        RmapUpdate { op, owner, start, offset, len, attr_fork, bmbt_block, unwritten }
    })
}

fn refcount() -> impl Strategy<Value = RefcountUpdate> {
    (prop::sample::select(RefcountOp::ALL), any::<u64>(), any::<u32>())
        .prop_map(|(op, start, len)| RefcountUpdate { op, start: FsBlock(start), len })
}

fn bmap() -> impl Strategy<Value = BmapUpdate> {
    let op = prop::sample::select(BmapOp::ALL);
    let place = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    (op, place, any::<[bool; 3]>()).prop_map(|(op, (ino, start, offset, len), flags)| {
        let [attr_fork, unwritten, realtime] = flags;
        let (ino, start, offset) = (InodeNumber(ino), FsBlock(start), FileBlock(offset));
        BmapUpdate { op, ino, start, offset, len, attr_fork, unwritten, realtime }
    })
}

fn exchange() -> impl Strategy<Value = ExchangeIntent> {
    let ends = (any::<[u64; 2]>(), any::<[u32; 2]>(), any::<[u64; 2]>(), any::<[u64; 2]>());
    (any::<u64>(), ends, any::<u64>(), any::<u64>()).prop_map(|(id, ends, blocks, flags)| {
        let (inodes, generations, offsets, sizes) = ends;
        let exchange = Exchange {
            inodes: inodes.map(InodeNumber),
            generations,
            offsets: offsets.map(FileBlock),
            blocks,
            flags: ExchangeFlags::from_bits_truncate(flags),
            sizes,
        };
        ExchangeIntent { id, exchange }
    })
}

/// An ATTRI with all its regions, padded.
fn attr_regions(id: u64, change: &AttrChange<'_>) -> Vec<Vec<u8>> {
    let mut format = vec![0; AttrIntent::BYTES];
    change.encode(id, &mut format);
    let padded = |part: &[u8]| [part, &vec![0; part.len().next_multiple_of(4) - part.len()]].concat();
    [format].into_iter().chain(change.regions().map(padded)).collect()
}

fn attr_parse(regions: &[Vec<u8>]) -> Result<(u64, AttrChange<'_>), FormatError> {
    let (_, count, LogItem::AttrIntent(intent)) = LogItem::parse(&regions[0])? else { panic!("no ATTRI") };
    assert_eq!(usize::from(count), regions.len());
    Ok((intent.id, AttrChange::parse(&intent, regions[1..].iter().map(Vec::as_slice))?))
}

proptest! {
    #[test]
    fn updates_come_back(
        id: u64,
        rmaps in prop::collection::vec(rmap(), 1..20),
        counts in prop::collection::vec(refcount(), 1..20),
        maps in prop::collection::vec(bmap(), 1..3),
    ) {
        round(id, &rmaps);
        round(id, &counts);
        round(id, &maps);
    }

    #[test]
    fn exchanges_come_back(intent in exchange()) {
        let mut bytes = [0; ExchangeIntent::BYTES];
        intent.encode(&mut bytes);
        let (ItemType::Xmi, 1, LogItem::ExchangeIntent(again)) = parse(&bytes) else { panic!("no XMI") };
        prop_assert_eq!(again, intent);
    }

    #[test]
    fn attributes_come_back(
        id: u64,
        ino: u64,
        op in prop::sample::select(AttrOp::ALL),
        space in prop::sample::select(vec![AttrFlags::empty(), AttrFlags::ROOT, AttrFlags::SECURE]),
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..256), 2),
        value in prop::collection::vec(any::<u8>(), 0..300),
        parents: [[u8; 12]; 2],
    ) {
        let (two, parent) = (op == AttrOp::ParentReplace, op.is_parent());
        let [old_parent, new_parent] = &parents;
        let change = AttrChange {
            ino: InodeNumber(ino),
            generation: if parent { 77 } else { 0 },
            op,
            filter: if parent { AttrFlags::PARENT } else { space },
            name: &names[0],
            new_name: if two { &names[1] } else { &[] },
            value: match op {
                AttrOp::Remove => &[],
                _ if parent => old_parent,
                _ => &value,
            },
            new_value: if two { new_parent } else { &[] },
        };
        let regions = attr_regions(id, &change);
        prop_assert_eq!(attr_parse(&regions), Ok((id, change)));
        prop_assert_eq!(attr_regions(id, &attr_parse(&regions).unwrap().1), regions);
    }
}

/// One unknown bit or number at a time.
#[test]
fn what_is_not_known_is_refused_by_name() {
    fn refused<T: Update<Raw = MapExtent> + Debug>(raw: &MapExtent, check: &str) {
        let error = T::from_raw(raw).unwrap_err();
        assert_eq!((error.structure, error.check), (T::NAME, check), "{raw:?}");
    }
    let raw = |flags: u32| {
        let mut raw = MapExtent::read_from_bytes(&[0; 32]).unwrap();
        raw.flags.set(flags);
        raw
    };
    for op in [0, 9, 255] {
        refused::<RmapUpdate>(&raw(op), "operation");
    }
    for op in [0, 3, 255] {
        refused::<BmapUpdate>(&raw(op), "operation");
    }
    for bit in 8..29 {
        refused::<RmapUpdate>(&raw(1 | 1 << bit), "flags");
        refused::<BmapUpdate>(&raw(1 | 1 << bit), "flags");
    }
    for (flags, check) in [(0, "operation"), (5, "operation"), (1 | 1 << 8, "flags"), (1 | 1 << 31, "flags")]
    {
        let mut raw = RefcountUpdate { op: RefcountOp::Increase, start: FsBlock(1), len: 1 }.to_raw();
        raw.as_mut_bytes()[12..].copy_from_slice(&u32::to_le_bytes(flags));
        assert_eq!(RefcountUpdate::from_raw(&raw).unwrap_err().check, check, "{flags:#x}");
    }
    let mut xmi = [0; ExchangeIntent::BYTES];
    for (at, check) in [(4, "padding"), (64, "flags")] {
        xmi[at] = 0x20;
        assert_eq!(ExchangeIntent::parse(&xmi).unwrap_err().check, check);
        xmi[at] = 0;
    }
}

/// The format structure of an attribute `x` that is set, with these fields otherwise.
fn attri(fields: &[(usize, u32)]) -> Result<AttrIntent, FormatError> {
    let change = AttrChange {
        ino: InodeNumber(128),
        generation: 0,
        op: AttrOp::Set,
        filter: AttrFlags::empty(),
        name: b"x",
        new_name: b"",
        value: b"value",
        new_value: b"",
    };
    let mut bytes = attr_regions(1, &change).swap_remove(0);
    for &(at, value) in fields {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    AttrIntent::parse(&bytes)
}

#[test]
fn attributes_that_cannot_be_are_refused() {
    const OP: usize = 24;
    const NAMES: usize = 28;
    const VALUE: usize = 32;
    const FILTER: usize = 36;
    const PARENT: u32 = 8;
    let kind = |regions: u32| (0, ItemType::Attri as u32 | regions << 16);
    assert!(attri(&[]).is_ok());
    let two = attri(&[(OP, 6), (NAMES, 9 << 16 | 4), (VALUE, 12), (FILTER, PARENT), kind(5)]).unwrap();
    assert_eq!((two.name_len, two.new_name_len), (4, 9));
    let cases: &[(&[(usize, u32)], &str)] = &[
        (&[(OP, 0)], "operation"),
        (&[(OP, 7)], "operation"),
        (&[(OP, 1 | 1 << 8)], "operation"),
        (&[(NAMES, 0)], "name length"),
        (&[(NAMES, 256)], "name length"),
        (&[(NAMES, 9 << 16 | 4)], "name length"),
        (&[(OP, 6), (NAMES, 4), (VALUE, 12), (FILTER, PARENT), kind(5)], "name length"),
        (&[(VALUE, 65537)], "value length"),
        (&[(OP, 2)], "value length"),
        (&[(OP, 4), (FILTER, PARENT)], "value length"),
        (&[(FILTER, 1)], "filter"),
        (&[(FILTER, 6)], "filter"),
        (&[(FILTER, 1 << 8)], "filter"),
        (&[(FILTER, PARENT)], "filter"),
        (&[(OP, 4), (VALUE, 12)], "filter"),
        (&[(VALUE, 0)], "number of regions"),
        (&[kind(2)], "number of regions"),
    ];
    for (fields, check) in cases {
        assert_eq!(attri(fields).unwrap_err().check, *check, "{fields:?}");
    }
    let intent = attri(&[]).unwrap();
    let regions = |regions: &[&'static [u8]]| AttrChange::parse(&intent, regions.iter().copied()).map(|_| ());
    assert_eq!(regions(&[b"x\0\0\0", b"value\0\0\0"]), Ok(()));
    for wrong in [&[&b"x\0\0\0"[..]][..], &[b"x\0\0\0", b"value"], &[b"x\0\0\0", b"value\0\0\0", b""]] {
        assert!(regions(wrong).is_err(), "{wrong:?}");
    }
}

/// Two groups of 1,000 and 900 blocks.
fn geometry() -> Geometry {
    Geometry {
        v5: true,
        meta_uuid: Uuid([1; 16]),
        uuid: Uuid([1; 16]),
        block_size: 4096,
        block_log: 12,
        sector_size: 512,
        inode_size: 512,
        inodes_per_block_log: 3,
        dir_block_log: 0,
        size: crate::geometry::DataBlocks::new(1900),
        ag_blocks: 1000,
        ag_block_log: 10,
        root: InodeNumber(128),
        metadir_root: None,
        inode_align: 8,
        sparse_inode_align: 0,
        max_inode_percent: 25,
        log: (FsBlock(500), 100),
        ftype: true,
        sparse_inodes: false,
        bigtime: true,
        nrext64: true,
        finobt: true,
        inobt_counts: true,
        rmapbt: true,
        reflink: true,
        parent_pointers: true,
        ascii_ci: false,
    }
}

#[test]
fn places_outside_of_the_volume_are_refused() {
    let geometry = geometry();
    let at = |ag: u64, block: u64| FsBlock(ag << 10 | block);
    let extents = [
        (at(0, 1), 999, true),
        (at(1, 1), 899, true),
        (at(0, 1), 0, false),
        (at(0, 0), 1, false),
        (at(0, 999), 2, false),
        (at(1, 1), 900, false),
        (at(1, 900), 1, false),
        (at(2, 1), 1, false),
        (at(0, 1), u32::MAX, false),
    ];
    let map = RmapUpdate {
        op: RmapOp::Map,
        owner: 128,
        start: at(0, 1),
        offset: FileBlock(0),
        len: 1,
        attr_fork: false,
        bmbt_block: false,
        unwritten: false,
    };
    let bmap = BmapUpdate {
        op: BmapOp::Map,
        ino: InodeNumber(128),
        start: at(0, 1),
        offset: FileBlock(0),
        len: 1,
        attr_fork: false,
        unwritten: false,
        realtime: false,
    };
    for (start, len, right) in extents {
        assert_eq!(Extent { start, len }.check(&geometry).is_ok(), right, "{start:?} {len}");
        assert_eq!(RmapUpdate { start, len, ..map }.check(&geometry).is_ok(), right, "{start:?} {len}");
        assert_eq!(BmapUpdate { start, len, ..bmap }.check(&geometry).is_ok(), right, "{start:?} {len}");
        let count = RefcountUpdate { op: RefcountOp::Increase, start, len };
        assert_eq!(count.check(&geometry).is_ok(), right, "{start:?} {len}");
    }
    // Metadata own blocks although they are not a file.
    for (op, owner, right) in [
        (RmapOp::Map, -9, false),
        (RmapOp::UnmapShared, -5, false),
        (RmapOp::Alloc, -9, true),
        (RmapOp::Free, -3, true),
        (RmapOp::Free, -2, false),
        (RmapOp::Free, -10, false),
        (RmapOp::Free, 128, true),
        (RmapOp::Map, 2 << 13, false),
    ] {
        let update = RmapUpdate { op, owner: owner as u64, ..map };
        assert_eq!(update.check(&geometry).is_ok(), right, "{update:?}");
    }
    assert!(BmapUpdate { ino: InodeNumber(2 << 13), ..bmap }.check(&geometry).is_err());
    assert!(BmapUpdate { realtime: true, ..bmap }.check(&geometry).is_err());
    assert!(BmapUpdate { offset: FileBlock((1 << 54) - 1), ..bmap }.check(&geometry).is_ok());
    assert!(BmapUpdate { offset: FileBlock(1 << 54), ..bmap }.check(&geometry).is_err());
    assert!(BmapUpdate { offset: FileBlock(u64::MAX), ..bmap }.check(&geometry).is_err());
}

#[test]
fn exchanges_that_cannot_be_are_refused() {
    let exchange = |inodes: [u64; 2], offsets: [u64; 2], blocks: u64, size: u64| Exchange {
        inodes: inodes.map(InodeNumber),
        generations: [1, 2],
        offsets: offsets.map(FileBlock),
        blocks,
        flags: ExchangeFlags::SET_SIZES,
        sizes: [0, size],
    };
    for (exchange, right) in [
        (exchange([128, 129], [0, 0], 10, 1), true),
        (exchange([128, 2 << 13], [0, 0], 10, 1), false),
        (exchange([128, 128], [0, 10], 10, 1), true),
        (exchange([128, 128], [10, 0], 10, 1), true),
        (exchange([128, 128], [0, 9], 10, 1), false),
        (exchange([128, 129], [0, 0], 0, 1), false),
        (exchange([128, 129], [0, 1 << 54], 1, 1), false),
        (exchange([128, 129], [0, 0], u64::MAX, 1), false),
        (exchange([128, 129], [0, 0], 1, 1 << 63), false),
    ] {
        assert_eq!(exchange.check(&geometry()).is_ok(), right, "{exchange:?}");
    }
    let unsized_one =
        Exchange { flags: ExchangeFlags::empty(), ..exchange([128, 129], [0, 0], 10, u64::MAX) };
    assert!(unsized_one.check(&geometry()).is_ok(), "no size is set");
}
