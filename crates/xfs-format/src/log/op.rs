//! Operations, of which a record's data consists, and the headers of transactions.
//!
//! Invariant: [`RecordOps`] yields at most as many operations as the record says and as its bytes hold, and
//! nothing after the first error.

use super::host;
use crate::error::FormatError;
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian as be};

const OPERATION: &str = "log operation";

bitflags::bitflags! {
    /// `oh_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpFlags: u8 {
        /// Starts a transaction; no data.
        const START = 0x01;
        /// Commits a transaction; no data.
        const COMMIT = 0x02;
        /// The region goes on in the next record.
        const CONTINUE = 0x04;
        /// The region began in an earlier record.
        const WAS_CONT = 0x08;
        /// Last piece of a continued region.
        const END = 0x10;
        /// The volume was unmounted cleanly.
        const UNMOUNT = 0x20;
    }
}

/// [`Client::Log`] on disk.
const LOG_CLIENT: u8 = 0xaa;

/// Who wrote an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A transaction.
    Transaction,
    /// The volume (never seen in practice).
    Volume,
    /// The log itself: the unmount record.
    Log,
}

impl Client {
    fn from_disk(id: u8) -> Option<Self> {
        match id {
            0x69 => Some(Self::Transaction),
            0x02 => Some(Self::Volume),
            LOG_CLIENT => Some(Self::Log),
            _ => None,
        }
    }
}

/// `xlog_op_header`. Big-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct OpHeader {
    /// The transaction's number: ties operations of several records together.
    pub tid: be::U32,
    /// Bytes of data behind this header.
    pub len: be::U32,
    /// See [`Client`].
    pub clientid: u8,
    /// See [`OpFlags`].
    pub flags: u8,
    /// Padding.
    pub res2: be::U16,
}

impl OpHeader {
    /// An operation of a transaction, with `len` bytes of data and no flags.
    pub const fn transaction(tid: u32, len: u32) -> Self {
        Self {
            tid: be::U32::new(tid),
            len: be::U32::new(len),
            clientid: 0x69,
            flags: 0,
            res2: be::U16::new(0),
        }
    }

    /// The same operation with these flags.
    pub const fn with_flags(self, flags: OpFlags) -> Self {
        Self { flags: flags.bits(), ..self }
    }
}

/// `xfs_trans_header`: first region of each transaction. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct TransHeader {
    /// [`TransHeader::MAGIC`].
    pub magic: host::U32,
    /// Kind of transaction; a checkpoint (42) since delayed logging.
    pub kind: host::U32,
    /// The transaction's number again; no rule ties it to `oh_tid`.
    pub tid: host::I32,
    /// Regions behind this one, without the commit.
    pub num_items: host::U32,
}

/// Body of the unmount record. In the host's byte order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct UnmountBody {
    magic: host::U16,
    pad1: host::U16,
    pad2: host::U32,
}

/// `Un`.
const UNMOUNT_MAGIC: u16 = 0x556e;

const _: () = {
    assert!(size_of::<OpHeader>() == 12);
    assert!(size_of::<TransHeader>() == 16);
    assert!(size_of::<UnmountBody>() == 8);
};

impl TransHeader {
    /// `TRAN`.
    pub const MAGIC: u32 = 0x5452_414e;
    /// The kind of all transactions since delayed logging.
    const CHECKPOINT: u32 = 42;

    /// The header of a checkpoint with so many regions behind it.
    pub const fn checkpoint(tid: u32, regions: u32) -> Self {
        Self {
            magic: host::U32::new(Self::MAGIC),
            kind: host::U32::new(Self::CHECKPOINT),
            tid: host::I32::new(tid.cast_signed()),
            num_items: host::U32::new(regions),
        }
    }

    /// The transaction header at the start of a region.
    pub fn parse(region: &[u8]) -> Result<&Self, FormatError> {
        const NAME: &str = "transaction header";
        let (header, _) =
            Self::ref_from_prefix(region).map_err(|_| FormatError::new(NAME, "truncated structure"))?;
        if header.magic.get() != Self::MAGIC {
            return Err(FormatError::mismatch(NAME, "magic", header.magic.get().into(), Self::MAGIC.into()));
        }
        Ok(header)
    }
}

/// The operation that marks a clean unmount, header and body.
pub fn unmount_op(tid: u32) -> [u8; 20] {
    let header = OpHeader {
        tid: tid.into(),
        len: (size_of::<UnmountBody>() as u32).into(),
        clientid: LOG_CLIENT,
        flags: OpFlags::UNMOUNT.bits(),
        res2: 0.into(),
    };
    let body = UnmountBody { magic: UNMOUNT_MAGIC.into(), pad1: 0.into(), pad2: 0.into() };
    let mut op = [0; 20];
    op[..12].copy_from_slice(header.as_bytes());
    op[12..].copy_from_slice(body.as_bytes());
    op
}

/// One operation of a record.
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    /// The transaction's number.
    pub tid: u32,
    /// Who wrote it.
    pub client: Client,
    /// What it begins, ends or continues.
    pub flags: OpFlags,
    /// Its region, or the piece of it that lies in this record.
    pub data: &'a [u8],
}

/// Whether an operation is the mark of a clean unmount. Its body is right, or there is none: recent kernels
/// (seen: 6.18) write it, but count it as 0 bytes.
pub fn is_unmount_op(op: &Op<'_>) -> bool {
    let body_is_right =
        || UnmountBody::ref_from_prefix(op.data).is_ok_and(|(body, _)| body.magic.get() == UNMOUNT_MAGIC);
    op.flags.contains(OpFlags::UNMOUNT) && (op.data.is_empty() || body_is_right())
}

/// The operations of one record, in order, without a copy.
#[derive(Clone, Debug)]
pub struct RecordOps<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> RecordOps<'a> {
    /// The `num_logops` operations of a record's data, which was unpacked.
    pub const fn new(data: &'a [u8], num_logops: u32) -> Self {
        Self { rest: data, left: num_logops }
    }

    fn take(&mut self) -> Result<Op<'a>, FormatError> {
        let (header, rest) = OpHeader::ref_from_prefix(self.rest)
            .map_err(|_| FormatError::value(OPERATION, "number of operations", self.left.into()))?;
        let client = Client::from_disk(header.clientid).ok_or(FormatError::value(
            OPERATION,
            "client",
            header.clientid.into(),
        ))?;
        let flags = OpFlags::from_bits(header.flags).ok_or(FormatError::value(
            OPERATION,
            "flags",
            header.flags.into(),
        ))?;
        let len = header.len.get();
        let split = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
        let (data, rest) =
            split.ok_or(FormatError::mismatch(OPERATION, "length", len.into(), rest.len() as u64))?;
        self.rest = rest;
        Ok(Op { tid: header.tid.get(), client, flags, data })
    }
}

impl<'a> Iterator for RecordOps<'a> {
    type Item = Result<Op<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let op = self.take();
        if op.is_err() {
            self.left = 0;
        }
        Some(op)
    }
}

impl std::iter::FusedIterator for RecordOps<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(tid: u32, len: u32, clientid: u8, flags: u8) -> Vec<u8> {
        let header = OpHeader { tid: tid.into(), len: len.into(), clientid, flags, res2: be::U16::new(0) };
        header.as_bytes().to_vec()
    }

    #[test]
    fn what_is_written_is_read() {
        let header = TransHeader::checkpoint(7, 3);
        assert_eq!(TransHeader::parse(header.as_bytes()).unwrap().num_items.get(), 3);
        let start = OpHeader::transaction(9, 0).with_flags(OpFlags::START);
        let op = RecordOps::new(start.as_bytes(), 1).next().unwrap().unwrap();
        assert_eq!((op.tid, op.client, op.flags), (9, Client::Transaction, OpFlags::START));
    }

    #[test]
    fn operations_end_at_the_count_and_padding_stays() {
        let mut data = op(9, 0, 0x69, 1);
        data.extend(op(9, 3, 0x69, 0));
        data.extend([1, 2, 3]);
        data.extend([0; 100]);
        let ops: Vec<_> = RecordOps::new(&data, 2).collect::<Result<_, _>>().unwrap();
        assert_eq!(ops.len(), 2);
        assert_eq!(ops[0].flags, OpFlags::START);
        assert_eq!(ops[1].data, [1, 2, 3]);
    }

    #[test]
    fn a_length_behind_the_record_is_an_error_and_the_end() {
        let data = op(9, u32::MAX, 0x69, 0);
        let mut ops = RecordOps::new(&data, u32::MAX);
        assert_eq!(ops.next().unwrap().unwrap_err().check, "length");
        assert!(ops.next().is_none());
    }

    #[test]
    fn more_operations_than_bytes_are_an_error() {
        let data = op(9, 0, 0x69, 0);
        let results: Vec<_> = RecordOps::new(&data, u32::MAX).collect();
        assert_eq!(results.len(), 2);
        assert_eq!(results[1].as_ref().unwrap_err().check, "number of operations");
    }

    #[test]
    fn the_mark_of_an_unmount_is_known_again() {
        let bytes = unmount_op(7);
        let op = RecordOps::new(&bytes, 1).next().unwrap().unwrap();
        assert!(is_unmount_op(&op) && op.tid == 7 && op.client == Client::Log && op.data.len() == 8);
    }

    #[test]
    fn an_unknown_client_is_an_error() {
        assert_eq!(RecordOps::new(&op(9, 0, 0x55, 0), 1).next().unwrap().unwrap_err().check, "client");
    }
}
