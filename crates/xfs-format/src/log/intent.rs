//! Intents and dones: work of several transactions that recovery must finish where only its beginning is in
//! the log.
//!
//! All in the host's byte order. Invariant: an intent that parsed has all the extents it counts, and no
//! region can count more than its bytes hold.

use super::host;
use super::item::{ItemType, fixed};
use crate::error::FormatError;
use crate::types::{FileBlock, FsBlock, InodeNumber};
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What EFI, EFD, RUI, CUI and BUI begin with. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct IntentHeader {
    kind: host::U16,
    regions: host::U16,
    nextents: host::U32,
    id: host::U64,
}

/// RUD, CUD, BUD, ATTRD, XMD: an intent was carried out. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Done {
    kind: host::U16,
    regions: host::U16,
    pad: host::U32,
    /// The intent's id.
    pub intent_id: host::U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Extent64 {
    start: host::U64,
    len: host::U32,
    pad: host::U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Extent32 {
    start: host::U64,
    len: host::U32,
}

/// An extent to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub start: FsBlock,
    /// Blocks.
    pub len: u32,
}

/// The extents of an EFI or EFD, in either layout.
#[derive(Clone, Copy, Debug)]
pub struct Extents<'a>(Layout<'a>);

#[derive(Clone, Copy, Debug)]
enum Layout<'a> {
    Wide(&'a [Extent64]),
    Narrow(&'a [Extent32]),
}

impl<'a> Extents<'a> {
    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Extent> + use<'a> {
        let (wide, narrow) = match self.0 {
            Layout::Wide(wide) => (wide, Default::default()),
            Layout::Narrow(narrow) => (Default::default(), narrow),
        };
        let wide = wide.iter().map(|e| (e.start, e.len));
        let narrow = narrow.iter().map(|e| (e.start, e.len));
        wide.chain(narrow).map(|(start, len)| Extent { start: FsBlock(start.get()), len: len.get() })
    }
}

/// EFI or EFD: extents to be freed, or that were.
#[derive(Clone, Copy, Debug)]
pub struct FreeIntent<'a> {
    /// Ties intent and done together: the EFI's id in both.
    pub id: u64,
    /// The extents.
    pub extents: Extents<'a>,
}

/// The counted array behind an intent's header: all of it, or an error.
fn counted<'a, T>(name: &'static str, header: &IntentHeader, rest: &'a [u8]) -> Result<&'a [T], FormatError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let count = header.nextents.get();
    let wrong = || FormatError::value(name, "number of extents", count.into());
    if count == 0 {
        return Err(wrong());
    }
    let (extents, _) = <[T]>::ref_from_prefix_with_elems(rest, count as usize).map_err(|_| wrong())?;
    Ok(extents)
}

impl<'a> FreeIntent<'a> {
    pub(super) fn parse(name: &'static str, region: &'a [u8]) -> Result<Self, FormatError> {
        let (header, rest) = fixed::<IntentHeader>(name, region)?;
        let narrow = u64::from(header.nextents.get()) * size_of::<Extent32>() as u64;
        let layout = if rest.len() as u64 == narrow {
            Layout::Narrow(counted(name, header, rest)?)
        } else {
            Layout::Wide(counted(name, header, rest)?)
        };
        Ok(Self { id: header.id.get(), extents: Extents(layout) })
    }
}

/// Bytes of an EFI or EFD of so many extents.
pub const fn free_intent_bytes(extents: usize) -> usize {
    size_of::<IntentHeader>() + extents * size_of::<Extent64>()
}

/// Writes an EFI, or an EFD where `done`, into `to`, which is [`free_intent_bytes`] long.
pub fn encode_free_intent(done: bool, id: u64, extents: &[Extent], to: &mut [u8]) {
    let kind = if done { ItemType::Efd } else { ItemType::Efi };
    let header = IntentHeader {
        kind: (kind as u16).into(),
        regions: 1.into(),
        nextents: (extents.len() as u32).into(),
        id: id.into(),
    };
    let (head, rest) = to.split_at_mut(size_of::<IntentHeader>());
    head.copy_from_slice(header.as_bytes());
    for (to, extent) in rest.chunks_exact_mut(size_of::<Extent64>()).zip(extents) {
        let extent = Extent64 { start: extent.start.0.into(), len: extent.len.into(), pad: 0.into() };
        to.copy_from_slice(extent.as_bytes());
    }
}

/// `xfs_map_extent`: one mapping of a RUI or BUI. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct MapExtent {
    /// The owner (RUI), or the inode (BUI).
    pub owner: host::U64,
    startblock: host::U64,
    startoff: host::U64,
    /// Blocks.
    pub len: host::U32,
    /// Low byte: what to do; high bits: attribute fork, tree block, unwritten.
    pub flags: host::U32,
}

impl MapExtent {
    /// First block.
    pub fn start(&self) -> FsBlock {
        FsBlock(self.startblock.get())
    }

    /// First block in the file.
    pub fn offset(&self) -> FileBlock {
        FileBlock(self.startoff.get())
    }

    /// The operation, without flags.
    pub fn operation(&self) -> u8 {
        self.flags.get() as u8
    }
}

/// RUI or BUI: mappings to be changed.
#[derive(Clone, Copy, Debug)]
pub struct MapIntent<'a> {
    /// The intent's id.
    pub id: u64,
    /// The mappings.
    pub extents: &'a [MapExtent],
}

impl<'a> MapIntent<'a> {
    pub(super) fn parse(name: &'static str, region: &'a [u8]) -> Result<Self, FormatError> {
        let (header, rest) = fixed::<IntentHeader>(name, region)?;
        Ok(Self { id: header.id.get(), extents: counted(name, header, rest)? })
    }
}

/// `xfs_phys_extent`: one extent of a CUI. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct PhysExtent {
    startblock: host::U64,
    /// Blocks.
    pub len: host::U32,
    /// Low byte: what to do.
    pub flags: host::U32,
}

impl PhysExtent {
    /// First block.
    pub fn start(&self) -> FsBlock {
        FsBlock(self.startblock.get())
    }
}

/// CUI: reference counts to be changed.
#[derive(Clone, Copy, Debug)]
pub struct PhysIntent<'a> {
    /// The intent's id.
    pub id: u64,
    /// The extents.
    pub extents: &'a [PhysExtent],
}

impl<'a> PhysIntent<'a> {
    pub(super) fn parse(name: &'static str, region: &'a [u8]) -> Result<Self, FormatError> {
        let (header, rest) = fixed::<IntentHeader>(name, region)?;
        Ok(Self { id: header.id.get(), extents: counted(name, header, rest)? })
    }
}

impl Done {
    pub(super) fn parse<'a>(name: &'static str, region: &'a [u8]) -> Result<&'a Self, FormatError> {
        fixed::<Self>(name, region).map(|(done, _)| done)
    }
}

/// What an ATTRI asks for: the low byte of `alfi_op_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrOp {
    /// Set an attribute.
    Set,
    /// Remove an attribute.
    Remove,
    /// Replace an attribute.
    Replace,
    /// Set a parent pointer.
    ParentSet,
    /// Remove a parent pointer.
    ParentRemove,
    /// Replace a parent pointer by one of another name.
    ParentReplace,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct AttriFixed {
    kind: host::U16,
    regions: host::U16,
    igen: host::U32,
    id: host::U64,
    ino: host::U64,
    op_flags: host::U32,
    name_len: host::U32,
    value_len: host::U32,
    attr_filter: host::U32,
}

/// ATTRI: an attribute to be changed. Its further regions are name, new name, value, new value: those that
/// have a length here, each padded to a multiple of 4 bytes.
#[derive(Clone, Copy, Debug)]
pub struct AttrIntent {
    /// The intent's id.
    pub id: u64,
    /// The inode.
    pub ino: InodeNumber,
    /// Generation of the inode, for parent pointers.
    pub generation: u32,
    /// What to do.
    pub op: AttrOp,
    /// Bytes of the name (of the old one, where there are two).
    pub name_len: u32,
    /// Bytes of the new name; 0 where there is just one.
    pub new_name_len: u32,
    /// Bytes of the value.
    pub value_len: u32,
    /// The name's space and state, as in an attribute entry.
    pub filter: u32,
}

/// Longest name of an attribute.
const ATTR_NAME_MAX: u32 = 255;
/// Longest value of an attribute.
const ATTR_VALUE_MAX: u32 = 65536;

impl AttrIntent {
    pub(super) fn parse(region: &[u8]) -> Result<Self, FormatError> {
        const NAME: &str = "ATTRI";
        let (fixed, _) = fixed::<AttriFixed>(NAME, region)?;
        let op = match fixed.op_flags.get() {
            1 => AttrOp::Set,
            2 => AttrOp::Remove,
            3 => AttrOp::Replace,
            4 => AttrOp::ParentSet,
            5 => AttrOp::ParentRemove,
            6 => AttrOp::ParentReplace,
            other => return Err(FormatError::value(NAME, "operation", other.into())),
        };
        let raw = fixed.name_len.get();
        // Two 16-bit lengths share the word where there are two names: the old one's comes first in memory.
        let (name_len, new_name_len) =
            if op == AttrOp::ParentReplace { (raw & 0xffff, raw >> 16) } else { (raw, 0) };
        if name_len == 0 || name_len > ATTR_NAME_MAX || new_name_len > ATTR_NAME_MAX {
            return Err(FormatError::value(NAME, "name length", raw.into()));
        }
        let value_len = fixed.value_len.get();
        if value_len > ATTR_VALUE_MAX {
            return Err(FormatError::mismatch(NAME, "value length", value_len.into(), ATTR_VALUE_MAX.into()));
        }
        Ok(Self {
            id: fixed.id.get(),
            ino: InodeNumber(fixed.ino.get()),
            generation: fixed.igen.get(),
            op,
            name_len,
            new_name_len,
            value_len,
            filter: fixed.attr_filter.get(),
        })
    }
}

/// XMI: mappings of two files to be exchanged. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct ExchangeIntent {
    kind: host::U16,
    regions: host::U16,
    pad: host::U32,
    /// The intent's id.
    pub id: host::U64,
    /// The two inodes.
    pub inodes: [host::U64; 2],
    /// Their generations.
    pub generations: [host::U32; 2],
    /// First block in either file.
    pub offsets: [host::U64; 2],
    /// Blocks.
    pub blocks: host::U64,
    /// Which fork, and whether sizes are exchanged too.
    pub flags: host::U64,
    /// Sizes that the files end with.
    pub sizes: [host::I64; 2],
}

impl ExchangeIntent {
    pub(super) fn parse(region: &[u8]) -> Result<&Self, FormatError> {
        fixed::<Self>("XMI", region).map(|(item, _)| item)
    }
}

const _: () = {
    assert!(size_of::<IntentHeader>() == 16);
    assert!(size_of::<Extent64>() == 16);
    assert!(size_of::<Extent32>() == 12);
    assert!(size_of::<Done>() == 16);
    assert!(size_of::<MapExtent>() == 32);
    assert!(size_of::<PhysExtent>() == 16);
    assert!(size_of::<AttriFixed>() == 40);
    assert!(size_of::<ExchangeIntent>() == 88);
};

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn header(nextents: u32) -> Vec<u8> {
        IntentHeader { kind: 0x1236.into(), regions: 1.into(), nextents: nextents.into(), id: 5.into() }
            .as_bytes()
            .to_vec()
    }

    #[test]
    fn extents_of_both_layouts() {
        let mut wide = header(2);
        let mut narrow = header(2);
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
        for count in [0, 1, 1 << 28, u32::MAX] {
            assert!(FreeIntent::parse("EFI", &header(count)).is_err());
            assert!(MapIntent::parse("RUI", &header(count)).is_err());
            assert!(PhysIntent::parse("CUI", &header(count)).is_err());
        }
    }

    #[test]
    fn two_names_share_one_length_word() {
        let mut fixed = AttriFixed::new_zeroed();
        fixed.op_flags.set(6);
        fixed.name_len.set(9 << 16 | 4);
        let item = AttrIntent::parse(fixed.as_bytes()).unwrap();
        assert_eq!((item.name_len, item.new_name_len), (4, 9));
        fixed.op_flags.set(1);
        assert!(AttrIntent::parse(fixed.as_bytes()).is_err(), "one name of that length there cannot be");
    }
}
