//! The journal: records, their operations and items, the log's ends, dquots.

use crate::seal::{UUID, put};
use xfs_format::error::FormatError;
use xfs_format::log::{
    AttrChange, AttrIntent, BLOCK_SIZE, ExchangeIntent, LogDinode, LogIdentity, LogItem, RECORD_MAGIC,
    RecordHeader, RecordOps, TransHeader, Update, UpdateIntent, find_ends, is_unmount_op, is_unmount_record,
    pack, unpack, verify_checksum,
};
use xfs_format::quota::{DiskDquot, Dquot};

/// First byte: which structure, and whether records are put right. The rest: its bytes.
pub fn run(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let identity = LogIdentity { v5: flags & 4 != 0, uuid: UUID };
    let sealed = flags & 8 != 0;
    match flags & 3 {
        0 => record(rest, &identity, sealed),
        1 => region(rest),
        2 => ends(rest, &identity, sealed),
        _ => dquot(rest),
    }
}

/// Gives the header at the start of `bytes` what a record of this volume must have.
fn seal_header(bytes: &mut [u8]) {
    put(bytes, 0, &RECORD_MAGIC.to_be_bytes());
    if let Some(cycle) = bytes.get(4..8).map(<[u8]>::to_vec) {
        put(bytes, 16, &cycle);
    }
    put(bytes, 300, &1u32.to_be_bytes());
    put(bytes, 304, &UUID.0);
}

fn record(rest: &[u8], identity: &LogIdentity, sealed: bool) {
    let mut bytes = rest.to_vec();
    if sealed {
        seal_header(&mut bytes);
    }
    let Ok(header) = RecordHeader::check(&bytes, identity).copied() else { return };
    assert!(header.total_blocks() <= 520);
    bytes.resize(header.total_blocks() as usize * BLOCK_SIZE, 0);
    if sealed {
        pack(&mut bytes, None).expect("the header was checked and the bytes are there");
        verify_checksum(&header_of(&bytes), &bytes, identity).expect("it was just written");
    }
    let header = header_of(&bytes);
    let _ = verify_checksum(&header, &bytes, identity);
    let first_data = header.header_blocks() as usize * BLOCK_SIZE;
    let _ = is_unmount_record(&header, bytes.get(first_data..).unwrap_or_default());
    let Ok(data) = unpack(&header, &mut bytes) else { return };
    assert_eq!(data.len(), header.len.get() as usize);
    let mut operations = 0;
    for op in RecordOps::new(data, header.num_logops.get()) {
        operations += 1;
        let Ok(op) = op else { break };
        let _ = is_unmount_op(&op);
        region(op.data);
    }
    assert!(operations <= data.len() / 12 + 1, "more operations than bytes");
}

fn header_of(bytes: &[u8]) -> RecordHeader {
    use zerocopy::FromBytes;
    RecordHeader::read_from_prefix(bytes).expect("the header was checked").0
}

/// All that the first region of an item, or a further one, may be taken for.
fn region(bytes: &[u8]) {
    let _ = TransHeader::parse(bytes);
    if let Ok(core) = LogDinode::parse(bytes) {
        let _ = (core.atime.legacy(), core.crtime.bigtime(), core.uuid());
    }
    let Ok((_, regions, item)) = LogItem::parse(bytes) else { return };
    assert!(regions > 0);
    match item {
        LogItem::Buf(buf) => {
            let mut end = 0;
            for run in buf.runs() {
                assert!(run.len > 0 && (end == 0 || run.offset > end));
                end = run.offset + run.len;
            }
            assert!(end <= usize::from(buf.len) * 512);
        }
        LogItem::FreeIntent(intent) | LogItem::FreeDone(intent) => {
            assert!(intent.extents.iter().count() * 12 <= bytes.len());
        }
        LogItem::RmapIntent(intent) => again(bytes, intent),
        LogItem::RefcountIntent(intent) => again(bytes, intent),
        LogItem::BmapIntent(intent) => again(bytes, intent),
        LogItem::ExchangeIntent(intent) => {
            let mut encoded = [0; ExchangeIntent::BYTES];
            intent.encode(&mut encoded);
            let parsed = LogItem::parse(&encoded).map(|(_, _, item)| item);
            assert!(matches!(parsed, Ok(LogItem::ExchangeIntent(same)) if same == intent));
        }
        LogItem::AttrIntent(intent) => attribute(&intent, bytes),
        _ => {}
    }
}

/// What was parsed of an intent says the same when it is encoded again.
fn again<T: Update + PartialEq + std::fmt::Debug>(bytes: &[u8], intent: UpdateIntent<'_, T>) {
    let updates: Vec<T> = intent.iter().collect();
    assert_eq!(UpdateIntent::<T>::bytes(updates.len()), bytes.len(), "each was found to be known");
    let mut encoded = vec![0; bytes.len()];
    UpdateIntent::encode(intent.id, &updates, &mut encoded);
    // All but the number of regions, and the kinds that are the same for the realtime section.
    assert_eq!(encoded.get(4..), bytes.get(4..));
}

/// An ATTRI with regions of the lengths that it tells, taken from its own bytes over and over.
fn attribute(intent: &AttrIntent, bytes: &[u8]) {
    let new_value = if intent.new_name_len > 0 { intent.value_len } else { 0 };
    let lens = [intent.name_len, intent.new_name_len, intent.value_len, new_value];
    let lens = lens.iter().filter(|&&len| len > 0).map(|&len| (len as usize).next_multiple_of(4));
    let regions: Vec<Vec<u8>> = lens.map(|len| bytes.iter().copied().cycle().take(len).collect()).collect();
    let change = AttrChange::parse(intent, regions.iter().map(Vec::as_slice)).expect("lengths are right");
    let mut encoded = [0; AttrIntent::BYTES];
    change.encode(intent.id, &mut encoded);
    assert_eq!(LogItem::parse(&encoded).map(|(_, regions, _)| regions), Ok(1 + regions.len() as u16));
    assert!(AttrChange::parse(intent, regions.iter().skip(1).map(Vec::as_slice)).is_err());
}

/// A whole log of up to 2,048 blocks. Where it is put right, each record header and the blocks behind it are.
fn ends(rest: &[u8], identity: &LogIdentity, sealed: bool) {
    let blocks = (rest.len() / BLOCK_SIZE).min(2048);
    let mut log = rest.get(..blocks * BLOCK_SIZE).unwrap_or_default().to_vec();
    for block in 0..if sealed { blocks } else { 0 } {
        let at = block * BLOCK_SIZE;
        if !log.get(at..).is_some_and(|bytes| bytes.starts_with(&RECORD_MAGIC.to_be_bytes())) {
            continue;
        }
        seal_header(log.get_mut(at..).unwrap_or_default());
        let Ok(header) = RecordHeader::check(&log[at..], identity).copied() else { continue };
        if let Some(whole) = log.get_mut(at..at + header.total_blocks() as usize * BLOCK_SIZE) {
            let _ = pack(whole, None);
        }
    }
    let mut read = 0usize;
    let found = find_ends::<FormatError, _>(blocks as u32, identity, |block, buf| {
        read += buf.len();
        let at = block as usize * BLOCK_SIZE;
        buf.copy_from_slice(log.get(at..at + buf.len()).expect("nothing is read behind the log"));
        Ok(())
    });
    assert!(read <= 64 << 20, "{read} bytes were read to find the log's ends");
    if let Ok(ends) = found {
        assert!((ends.head as usize) < blocks);
        assert!(ends.last_record.is_none_or(|block| (block as usize) < blocks));
    }
}

fn dquot(rest: &[u8]) {
    let id = rest.get(4..8).and_then(|id| id.try_into().ok()).map_or(0, u32::from_be_bytes);
    let _ = DiskDquot::check(rest, id);
    let _ = Dquot::check(rest, id, None);
    let mut bytes = rest.to_vec();
    put(&mut bytes, 120, &UUID.0);
    if let Ok(crc) = Dquot::check(&bytes, id, None).map(Dquot::checksum) {
        put(&mut bytes, 108, &crc.to_le_bytes());
        Dquot::check(&bytes, id, Some(UUID)).expect("its checksum was put right");
    }
}
