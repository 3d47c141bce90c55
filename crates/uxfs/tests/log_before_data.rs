//! The log is written out just before each write of data: what it says of the bytes by then must not be said too early.
//! A crash behind it leaves what was there or zeroes, never what the blocks had before.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{
    BlockDevice, DeviceError, Durability, Fate, Layer, Means, MemoryDevice, PowerCuts, Recorder, Rewind,
};
use common::files::new_file;
use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use uxfs::{Changes, File, MkfsFeatures, MkfsOptions, OpenOptions, Timestamp, Volume, mkfs_device};

const BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
/// What the device has before the volume is made: no file has it.
const FILLER: u8 = 0xee;
const OLD: u8 = 1;
const NEW: u8 = 2;

thread_local! {
    /// Whether this thread writes data.
    static WRITES_DATA: Cell<bool> = const { Cell::new(false) };
}

/// Has somebody else write the log out before each write of a thread that writes data.
#[derive(Debug)]
struct LogFirst {
    below: Arc<dyn BlockDevice>,
    asks: Mutex<Option<Sender<Sender<()>>>>,
}

impl Layer for LogFirst {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let asks = self.asks.lock().expect("no panic").clone();
        if let (true, Some(asks)) = (WRITES_DATA.get(), asks) {
            let (done, is_done) = channel();
            asks.send(done).expect("somebody is there");
            // It ends when it was done.
            let _ = is_done.recv();
        }
        self.below.write(offset, buf, durability)
    }
}

/// Writes the log out for whoever asks: a change of its own is in the checkpoint that is open.
fn write_log_out(volume: &Volume, asked: &Receiver<Sender<()>>) {
    let beside = volume.open_file("beside").expect("there");
    for (nth, done) in asked.iter().enumerate() {
        let mtime = Some(Timestamp { seconds: nth as i64, nanoseconds: 0 });
        beside.node().change(&Changes { mtime, ..Changes::default() }).expect("changed");
        beside.sync().expect("synced");
        drop(done);
    }
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
    bytes
}

/// Its name, and what it does to a file.
type Way = (&'static str, fn(&File));

/// What is done to files that have four blocks, an unwritten one and a hole, each by handles past the pages and through them.
const WAYS: [Way; 7] = [
    ("over shared blocks", |file| file.write_at(&[NEW; 2 * BLOCK as usize], BLOCK).expect("written")),
    ("over a part of one", |file| file.write_at(&[NEW; 700], 100).expect("written")),
    ("what was set aside", |file| file.write_at(&[NEW; BLOCK as usize], 4 * BLOCK).expect("written")),
    ("a hole", |file| file.write_at(&[NEW; BLOCK as usize], 5 * BLOCK).expect("written")),
    ("behind the end", |file| file.write_at(&[NEW; 3 * BLOCK as usize], 8 * BLOCK).expect("written")),
    ("at the end", |file| assert_eq!(file.append(&[NEW; 5000]).expect("appended"), 7 * BLOCK)),
    // Which is written back in several runs.
    ("much", |file| assert_eq!(file.append(&vec![NEW; 5 << 19]).expect("appended"), 7 * BLOCK)),
];

fn name(how: &str, is_buffered: bool) -> String {
    format!("{how}, buffered {is_buffered}")
}

fn prepare(volume: &Volume) {
    let golden = new_file(volume, "golden");
    golden.write_at(&[OLD; 4 * BLOCK as usize], 0).expect("written");
    new_file(volume, "beside");
    for (how, _) in WAYS {
        for is_buffered in [false, true] {
            let file = new_file(volume, &name(how, is_buffered));
            golden.clone_range(0, &file, 0, 0).expect("cloned");
            file.allocate(4 * BLOCK..5 * BLOCK, false).expect("set aside");
            file.set_len(7 * BLOCK).expect("longer");
        }
    }
}

/// Whether a file may be like this: what it had, zeroes or what is new, with the last of what is new where it is longer.
fn may_be(found: &[u8]) -> bool {
    let is_own = |(at, byte): (usize, &u8)| match at as u64 / BLOCK {
        0..4 => [OLD, NEW].contains(byte),
        _ => [0, NEW].contains(byte),
    };
    let is_grown = found.len() as u64 > 7 * BLOCK;
    found.iter().enumerate().all(is_own) && (!is_grown || found.last() == Some(&NEW))
}

#[test]
fn the_log_says_nothing_of_data_before_they_are_there() {
    let new = || Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let device: Arc<dyn BlockDevice> = new();
    device.write(0, &vec![FILLER; BYTES as usize], Durability::Volatile).expect("written");
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).features(features), false)
        .expect("made");
    let open = |device| Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opens");
    let volume = open(Arc::clone(&device));
    prepare(&volume);
    volume.close().expect("closed");
    drop(volume);
    let base = new();
    let mut all = vec![0; BYTES as usize];
    device.read(0, &mut all).expect("read");
    base.write(0, &all, Durability::Volatile).expect("written");

    let recorder = Arc::new(Recorder::new(Means { fua: true, write_cache: true }.of(device)));
    let layer = Arc::new(LogFirst { below: recorder.clone(), asks: Mutex::new(None) });
    let volume = open(layer.clone());
    let (asks, asked) = channel();
    std::thread::scope(|scope| {
        let for_log = &volume;
        scope.spawn(move || write_log_out(for_log, &asked));
        *layer.asks.lock().expect("no panic") = Some(asks);
        WRITES_DATA.set(true);
        for (how, write) in WAYS {
            for is_buffered in [false, true] {
                let file = volume.open_file(name(how, is_buffered)).expect("there");
                let file = if is_buffered { file.buffered() } else { file };
                write(&file);
                file.sync().expect("synced");
            }
        }
        WRITES_DATA.set(false);
        *layer.asks.lock().expect("no panic") = None;
    });
    drop(volume);

    let recording = recorder.recording();
    let stage = Arc::new(Rewind::new(base));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let mut grown = 0;
    for cut in recording.cuts() {
        power.advance(cut).expect("written");
        power.make(|_| Fate::Dropped).expect("written");
        let volume = open(stage.clone());
        for (how, is_buffered) in WAYS.iter().flat_map(|(how, _)| [(how, false), (how, true)]) {
            let found = bytes(&volume.open_file(name(how, is_buffered)).expect("there"));
            assert!(may_be(&found), "cut at {cut} of {}: {}", recording.end(), name(how, is_buffered));
            grown += u64::from(found.len() as u64 > 7 * BLOCK);
        }
        drop(volume);
        stage.rewind().expect("taken back");
    }
    assert!(grown > 0, "no file was longer at a cut");
}
