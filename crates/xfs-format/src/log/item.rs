//! Log items: what the first region of an item says it is.
//!
//! A transaction's regions, in order, are its header and then its items; an item's first region is a format
//! structure that begins with its type and the number of the item's regions (itself included). The format
//! structure says what the further regions hold. Regions are given whole: pieces from several records are
//! joined first.

use super::buffer::BufFormat;
use super::host;
use super::inode::{InodeCreate, InodeFormat};
use super::intent::{AttrIntent, BmapIntent, Done, ExchangeIntent, FreeIntent, RefcountIntent, RmapIntent};
use super::quota::{DquotFormat, QuotaOff};
use crate::error::FormatError;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

macro_rules! item_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// The kinds of log items.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ItemType { $($(#[$doc])* $name = $value,)* }

        impl ItemType {
            /// The kind that a number on disk stands for.
            pub const fn from_disk(value: u16) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

item_types! {
    /// Extents to be freed.
    Efi = 0x1236,
    /// Extents were freed.
    Efd = 0x1237,
    /// Changes of an inode.
    Inode = 0x123b,
    /// Changes of a metadata buffer.
    Buf = 0x123c,
    /// Changes of a dquot.
    Dquot = 0x123d,
    /// Quota is switched off.
    QuotaOff = 0x123e,
    /// A chunk of inodes is made.
    InodeCreate = 0x123f,
    /// Reverse mappings to be changed.
    Rui = 0x1240,
    /// Reverse mappings were changed.
    Rud = 0x1241,
    /// Reference counts to be changed.
    Cui = 0x1242,
    /// Reference counts were changed.
    Cud = 0x1243,
    /// A block map to be changed.
    Bui = 0x1244,
    /// A block map was changed.
    Bud = 0x1245,
    /// An attribute to be changed.
    Attri = 0x1246,
    /// An attribute was changed.
    Attrd = 0x1247,
    /// Mappings of two files to be exchanged.
    Xmi = 0x1248,
    /// Mappings of two files were exchanged.
    Xmd = 0x1249,
    /// Realtime extents to be freed.
    EfiRt = 0x124a,
    /// Realtime extents were freed.
    EfdRt = 0x124b,
    /// Realtime reverse mappings to be changed.
    RuiRt = 0x124c,
    /// Realtime reverse mappings were changed.
    RudRt = 0x124d,
    /// Realtime reference counts to be changed.
    CuiRt = 0x124e,
    /// Realtime reference counts were changed.
    CudRt = 0x124f,
}

/// What every format structure begins with. In the host's byte order.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct ItemHeader {
    kind: host::U16,
    regions: host::U16,
}

/// An item by its format structure, checked.
#[derive(Clone, Copy, Debug)]
pub enum LogItem<'a> {
    /// Extents to be freed (EFI).
    FreeIntent(FreeIntent<'a>),
    /// Extents were freed (EFD).
    FreeDone(FreeIntent<'a>),
    /// Changes of an inode.
    Inode(InodeFormat),
    /// Changes of a metadata buffer.
    Buf(BufFormat<'a>),
    /// Changes of a dquot.
    Dquot(&'a DquotFormat),
    /// Quota is switched off.
    QuotaOff(&'a QuotaOff),
    /// A chunk of inodes is made.
    InodeCreate(&'a InodeCreate),
    /// Reverse mappings to be changed (RUI).
    RmapIntent(RmapIntent<'a>),
    /// Reference counts to be changed (CUI).
    RefcountIntent(RefcountIntent<'a>),
    /// A block map to be changed (BUI).
    BmapIntent(BmapIntent<'a>),
    /// An attribute to be changed (ATTRI).
    AttrIntent(AttrIntent),
    /// Mappings of two files to be exchanged (XMI).
    ExchangeIntent(ExchangeIntent),
    /// The change of another intent was made: RUD, CUD, BUD, ATTRD or XMD, as the [`ItemType`] says.
    Done(&'a Done),
}

impl<'a> LogItem<'a> {
    /// The item that begins with `region`: its kind, how many regions it has with this one, and its format
    /// structure.
    pub fn parse(region: &'a [u8]) -> Result<(ItemType, u16, Self), FormatError> {
        const NAME: &str = "log item";
        let (header, _) =
            ItemHeader::ref_from_prefix(region).map_err(|_| FormatError::new(NAME, "truncated structure"))?;
        let kind = ItemType::from_disk(header.kind.get()).ok_or(FormatError::value(
            NAME,
            "type",
            header.kind.get().into(),
        ))?;
        let regions = header.regions.get();
        if regions == 0 {
            return Err(FormatError::new(NAME, "number of regions"));
        }
        Ok((kind, regions, Self::parse_as(kind, region)?))
    }

    fn parse_as(kind: ItemType, region: &'a [u8]) -> Result<Self, FormatError> {
        use ItemType as T;
        Ok(match kind {
            T::Efi | T::EfiRt => Self::FreeIntent(FreeIntent::parse("EFI", region)?),
            T::Efd | T::EfdRt => Self::FreeDone(FreeIntent::parse("EFD", region)?),
            T::Inode => Self::Inode(InodeFormat::parse(region)?),
            T::Buf => Self::Buf(BufFormat::parse(region)?),
            T::Dquot => Self::Dquot(DquotFormat::parse(region)?),
            T::QuotaOff => Self::QuotaOff(QuotaOff::parse(region)?),
            T::InodeCreate => Self::InodeCreate(InodeCreate::parse(region)?),
            T::Rui | T::RuiRt => Self::RmapIntent(RmapIntent::parse(region)?),
            T::Cui | T::CuiRt => Self::RefcountIntent(RefcountIntent::parse(region)?),
            T::Bui => Self::BmapIntent(BmapIntent::parse(region)?),
            T::Attri => Self::AttrIntent(AttrIntent::parse(region)?),
            T::Xmi => Self::ExchangeIntent(ExchangeIntent::parse(region)?),
            T::Rud | T::RudRt => Self::Done(Done::parse("RUD", region)?),
            T::Cud | T::CudRt => Self::Done(Done::parse("CUD", region)?),
            T::Bud => Self::Done(Done::parse("BUD", region)?),
            T::Attrd => Self::Done(Done::parse("ATTRD", region)?),
            T::Xmd => Self::Done(Done::parse("XMD", region)?),
        })
    }
}

/// A structure of fixed size at the start of a region.
pub(super) fn fixed<'a, T>(name: &'static str, region: &'a [u8]) -> Result<(&'a T, &'a [u8]), FormatError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(region).map_err(|_| FormatError::value(name, "length", region.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_of_item_minds_any_length() {
        for kind in 0x1230..0x1255u16 {
            for len in 0..200 {
                for fill in [0, 1, 0x7f, 0xff] {
                    let mut region = vec![fill; len];
                    for (to, from) in region.iter_mut().zip(kind.to_le_bytes()) {
                        *to = from;
                    }
                    let _ = LogItem::parse(&region);
                }
            }
        }
    }
}
