//! What RUI, CUI and BUI have in common: a header, and updates of one size behind it.

use super::{IntentHeader, OPERATION, counted};
use crate::error::FormatError;
use crate::log::item::{ItemType, fixed};
use std::marker::PhantomData;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An update, of which an intent of its kind has any number.
pub trait Update: Sized + Copy + sealed::Sealed {
    /// The intent's kind.
    const INTENT: ItemType;
    /// The done item's kind.
    const DONE: ItemType;
    /// The intent's name.
    const NAME: &'static str;
    /// As it lies in the log.
    type Raw: Copy + FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + std::fmt::Debug;

    /// The update, if all of it is known.
    fn from_raw(raw: &Self::Raw) -> Result<Self, FormatError>;
    /// As it lies in the log.
    fn to_raw(&self) -> Self::Raw;
}

pub(super) mod sealed {
    /// Only kinds of intents that a log can hold.
    pub trait Sealed {}
}

/// RUI, CUI or BUI: updates to be made, all of them known.
#[derive(Clone, Copy, Debug)]
pub struct UpdateIntent<'a, T: Update> {
    /// The intent's id.
    pub id: u64,
    raw: &'a [T::Raw],
    updates: PhantomData<T>,
}

impl<'a, T: Update> UpdateIntent<'a, T> {
    pub(in crate::log) fn parse(region: &'a [u8]) -> Result<Self, FormatError> {
        let (header, rest) = fixed::<IntentHeader>(T::NAME, region)?;
        let (raw, behind) = counted::<T::Raw>(T::NAME, header, rest)?;
        if !behind.is_empty() {
            return Err(FormatError::mismatch(
                T::NAME,
                "length",
                region.len() as u64,
                Self::bytes(raw.len()) as u64,
            ));
        }
        raw.iter().try_for_each(|raw| T::from_raw(raw).map(|_| ()))?;
        Ok(Self { id: header.id.get(), raw, updates: PhantomData })
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = T> + use<'a, T> {
        self.raw.iter().filter_map(|raw| T::from_raw(raw).ok())
    }

    /// Bytes of an intent of this many updates.
    pub const fn bytes(updates: usize) -> usize {
        size_of::<IntentHeader>() + updates * size_of::<T::Raw>()
    }

    /// Writes an intent into `to`, which is [`bytes`](Self::bytes) long.
    pub fn encode(id: u64, updates: &[T], to: &mut [u8]) {
        let (head, rest) = to.split_at_mut(size_of::<IntentHeader>());
        head.copy_from_slice(IntentHeader::new(T::INTENT, updates.len(), id).as_bytes());
        for (to, update) in rest.chunks_exact_mut(size_of::<T::Raw>()).zip(updates) {
            to.copy_from_slice(update.to_raw().as_bytes());
        }
    }
}

/// The operation of an update, and its flags, if there are none but `known`.
pub(super) fn split_flags<O>(
    name: &'static str,
    flags: u32,
    known: u32,
    operation: impl FnOnce(u8) -> Option<O>,
) -> Result<(O, u32), FormatError> {
    let op = operation((flags & OPERATION) as u8)
        .ok_or_else(|| FormatError::value(name, "operation", (flags & OPERATION).into()))?;
    let flags = flags & !OPERATION;
    if flags & !known != 0 {
        return Err(FormatError::mismatch(name, "flags", flags.into(), known.into()));
    }
    Ok((op, flags))
}

macro_rules! operations {
    ($(#[$doc:meta])* $type:ident { $($(#[$each:meta])* $name:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $type { $($(#[$each])* $name = $value,)* }

        impl $type {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The one that a number in the log stands for.
            pub const fn from_disk(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}
pub(super) use operations;
