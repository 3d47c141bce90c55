//! Recovery: checkpoints made of the input behind the head of a small sound volume's log, in records that pass their
//! checks, with intents of every kind about what there is in the volume; then it is opened for reading, walked, and
//! opened for writing.
//!
//! Held to: no panic, no write before everything was understood (a recovery that fails has changed nothing), and a
//! volume that was recovered has a clean log.

use crate::intents::intent;
use crate::seal::UUID;
use crate::today::Today;
use blockdev::{BlockDevice, Durability, Recorder, Rewind};
use std::sync::{Arc, OnceLock};
use witness::damage::walk::{Limits, walk};
use xfs::recovery::log_ends::log_ends;
use xfs::volume::{OpenOptions, Volume};
use xfs_format::log::{
    BLOCK_SIZE, BufFlags, BufHeader, BufType, InodeFields, InodeFormat, OpFlags, OpHeader, RecordHeader,
    TransHeader, pack,
};
use xfs_format::types::{DiskAddr, InodeNumber, Lsn};
use zerocopy::IntoBytes;

/// `h_size` of the records.
const RECORD_BYTES: u32 = 32 << 10;
/// Most bytes of regions in one checkpoint: it is a single record.
const REGIONS_BYTES: usize = 24 << 10;

struct Template {
    /// Goes back to the sound volume after each run.
    device: Arc<Rewind>,
    today: Today,
    log: u64,
    head: u32,
    cycle: u32,
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let today = Today::default();
        let device = Arc::new(Rewind::new(Arc::clone(&today.device)));
        let ends = log_ends(&*device, &today.superblock).expect("a log");
        let log = today.superblock.log_daddr().0 * 512;
        Template { device, today, log, head: ends.head, cycle: (ends.lsn.0 >> 32) as u32 }
    })
}

/// Regions of a checkpoint, each with its operation's header.
#[derive(Default)]
pub struct Regions {
    bytes: Vec<u8>,
    count: u32,
}

impl Regions {
    /// Adds one, if it fits.
    pub fn add(&mut self, region: &[u8]) {
        if self.bytes.len() + region.len() + 12 <= REGIONS_BYTES {
            self.bytes.extend_from_slice(OpHeader::transaction(1, region.len() as u32).as_bytes());
            self.bytes.extend_from_slice(region);
            self.count += 1;
        }
    }

    /// The record of a checkpoint that begins at a block of the log.
    fn record(self, block: u32, cycle: u32, tail: u32) -> Vec<u8> {
        let lsn = |block: u32| Lsn(u64::from(cycle) << 32 | u64::from(block));
        let mut data = OpHeader::transaction(1, 0).with_flags(OpFlags::START).as_bytes().to_vec();
        data.extend_from_slice(OpHeader::transaction(1, 16).as_bytes());
        data.extend_from_slice(TransHeader::checkpoint(1, self.count).as_bytes());
        data.extend_from_slice(&self.bytes);
        data.extend_from_slice(OpHeader::transaction(1, 0).with_flags(OpFlags::COMMIT).as_bytes());
        data.resize(data.len().next_multiple_of(BLOCK_SIZE), 0);
        let mut header = RecordHeader::new(UUID, lsn(block), lsn(tail), RECORD_BYTES);
        header.len.set(data.len() as u32);
        header.num_logops.set(self.count + 3);
        let mut record = header.as_bytes().to_vec();
        record.resize(BLOCK_SIZE, 0);
        record.extend_from_slice(&data);
        pack(&mut record, None).expect("a record of our own");
        record
    }
}

/// Takes so many bytes off the input; zeroes behind its end.
pub fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = N.min(data.len());
    bytes[..len].copy_from_slice(&data[..len]);
    *data = &data[len..];
    bytes
}

/// So many bytes off the input, or what is left of it.
pub fn slice<'a>(data: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (now, later) = data.split_at(len.min(data.len()));
    *data = later;
    now
}

/// One item: raw regions, a buffer with some of its chunks, an inode as it is on disk with some bytes changed, or an
/// intent.
fn item(data: &mut &[u8], template: &Template, regions: &mut Regions) {
    let [kind, a, b, c] = take::<4>(data);
    match kind % 8 {
        4.. => intent(data, &template.today, [kind, a, b, c], regions),
        0 | 1 => {
            let len = usize::from(u16::from_le_bytes([a, b]) % 600);
            regions.add(slice(data, len));
        }
        2 => buffer(data, template, [a, b, c], regions),
        _ => inode(data, template, [a, b, c], regions),
    }
}

/// A buffer near the start of a group. Its logged chunk is as it is on disk, but for bytes of the input.
fn buffer(data: &mut &[u8], template: &Template, [place, flags, chunk]: [u8; 3], regions: &mut Regions) {
    let group =
        u64::from(template.today.geometry.ag_blocks) * u64::from(template.today.geometry.block_size) / 512;
    let (daddr, len) = match place % 64 {
        sector @ 0..4 => (u64::from(sector), 1),
        block => (u64::from(block - 3) * 8, if flags & 0x40 == 0 { 8 } else { 32 }),
    };
    let daddr = daddr + if place & 0x80 == 0 { 0 } else { group };
    let chunk = usize::from(chunk) % (len * 4);
    let mut map = vec![0_u32; BufHeader::map_words(len * 512)];
    map[chunk / 32] = 1 << (chunk % 32);
    let header = BufHeader {
        daddr: DiskAddr(daddr),
        len: len as u16,
        flags: BufFlags::from_bits_truncate(u16::from(flags & 0x1f)),
        buf_type: BufType::Unknown,
        regions: 2,
        map: &map,
    };
    let mut bytes = vec![0; BufHeader::bytes(map.len())];
    header.encode(&mut bytes);
    regions.add(&bytes);
    let mut content = [0; 512];
    let at = daddr * 512 + chunk as u64 * 128;
    let _ = template.device.read(at - at % 512, &mut content);
    let mut content = content[(at % 512) as usize..][..128].to_vec();
    let [from, count] = take::<2>(data);
    for (to, from) in content.iter_mut().skip(usize::from(from) % 128).zip(slice(data, (count % 32).into())) {
        *to = *from;
    }
    regions.add(&content);
}

/// One of the first inodes, with a core and forks of the input's bytes.
fn inode(data: &mut &[u8], template: &Template, [number, low, high]: [u8; 3], regions: &mut Regions) {
    let root = template.today.geometry.root.0;
    let ino = root + u64::from(number % 64);
    let per_cluster = u64::from(template.today.geometry.inodes_per_cluster());
    let size = u64::from(template.today.geometry.inode_size);
    let at = ino * size;
    let cluster = (ino - ino % per_cluster) * size;
    let fields = InodeFields::from_bits_truncate(u32::from(u16::from_le_bytes([low, high])) & 0x1ff | 1);
    let format = InodeFormat {
        regions: 4,
        fields,
        asize: 0,
        dsize: 0,
        ino: InodeNumber(ino),
        rdev: 7,
        daddr: DiskAddr(cluster / 512),
        len: (per_cluster * size / 512) as u32,
        offset: (at - cluster) as u32,
    };
    let mut bytes = [0; InodeFormat::BYTES];
    format.encode(&mut bytes);
    regions.add(&bytes);
    let mut core = [0_u8; 176];
    core[..2].copy_from_slice(&0x494e_u16.to_le_bytes());
    core[2..4].copy_from_slice(&0o100_644_u16.to_le_bytes());
    (core[4], core[5], core[16]) = (3, 2, 1);
    core[152..160].copy_from_slice(&ino.to_le_bytes());
    core[160..176].copy_from_slice(&UUID.0);
    for _ in 0..take::<1>(data)[0] % 12 {
        let [place, value] = take::<2>(data);
        core[usize::from(place) % 152] = value;
    }
    regions.add(&core);
    for _ in 0..2 {
        let [len, _] = take::<2>(data);
        regions.add(slice(data, len.into()));
    }
}

/// Up to four checkpoints. First byte of each: how many items.
pub fn run(mut data: &[u8]) {
    let template = template();
    let mut log = Vec::new();
    let first = template.head;
    let mut block = first;
    for _ in 0..4 {
        if data.is_empty() {
            break;
        }
        let mut regions = Regions::default();
        for _ in 0..take::<1>(&mut data)[0] % 16 {
            item(&mut data, template, &mut regions);
        }
        let record = regions.record(block, template.cycle, first);
        block += (record.len() / BLOCK_SIZE) as u32;
        log.extend(record);
    }
    let device = &template.device;
    device.mark();
    let at = template.log + u64::from(first) * BLOCK_SIZE as u64;
    device.write(at, &log, Durability::Volatile).expect("written");
    walk(Arc::clone(device) as _, &Limits::QUICK);
    recover(device);
    device.rewind().expect("taken back");
}

/// Opens the volume for reading, and for writing.
fn recover(device: &Arc<Rewind>) {
    let recorder = Arc::new(Recorder::new(Arc::clone(device) as _));
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let reading = Volume::open(Arc::clone(device) as _, &OpenOptions::default());
    let writing = Volume::open(Arc::clone(&recorder) as _, &options);
    if reading.is_err() {
        assert!(writing.is_err(), "what cannot be read was recovered");
        assert!(recorder.recording().writes().is_empty(), "a recovery that fails has written");
    }
    if let Ok(volume) = writing
        && volume.close().is_ok()
    {
        drop(volume);
        let again = Volume::open(Arc::clone(device) as _, &OpenOptions::default());
        assert!(again.expect("a volume that was closed").log_is_clean());
    }
}
