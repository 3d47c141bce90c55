//! Interleavings that no test had: a request is held back on the device while others go on.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, Fault, FaultDevice, HoldDevice, MemoryDevice, Op, Repeat};
use std::sync::Arc;
use std::thread;
use uxfs::{Changes, File, MkfsOptions, NewNode, OpenOptions, SetXattr, Volume, check_device, mkfs_device};

const BYTES: u64 = 40 << 20;

fn holding(device: &Arc<dyn BlockDevice>) -> Arc<HoldDevice> {
    Arc::new(HoldDevice::new(Arc::clone(device)))
}

/// Holds the next read back, and no other.
fn hold_a_read(holds: &HoldDevice) {
    holds.hold_next(|op, _| op == Op::Read);
}

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).unwrap();
    device
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).unwrap()
}

fn file(volume: &Volume, name: &str, content: &[u8]) -> File {
    let root = volume.root().unwrap().as_dir().unwrap();
    let file = root.create_file(name.as_bytes(), &NewNode::default()).unwrap().open().unwrap();
    file.write_at(content, 0).unwrap();
    volume.sync().unwrap();
    file
}

/// A file with so many attributes that they have blocks of their own.
fn file_with_attributes(device: &Arc<dyn BlockDevice>) -> Volume {
    let volume = open(Arc::clone(device));
    let file = file(&volume, "a", &[1; 16384]);
    for nth in 0..20 {
        file.node().set_xattr(format!("user.n{nth}").as_bytes(), &[7; 200], SetXattr::Either).unwrap();
    }
    volume
}

/// What the power leaves if it goes now.
fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let to: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).unwrap();
    to.write(0, &bytes, Durability::Volatile).unwrap();
    to
}

/// Whoever opened a volume had read its superblock before they claimed the device. A writer who closed in between left
/// counters that the other did not see, and wrote over when it closed.
#[test]
fn a_volume_is_read_when_nobody_else_writes_it() {
    let device = made();
    let first = open(Arc::clone(&device));
    let held = file(&first, "a", &vec![1; 800 << 10]);
    let holds = holding(&device);
    holds.hold(|op, offset| op == Op::Read && offset == 0);
    let second = thread::spawn({
        let holds: Arc<dyn BlockDevice> = holds.clone();
        move || Volume::open_device(holds, &OpenOptions::new().writable(true))
    });
    while holds.waiting() == 0 && !second.is_finished() {
        thread::yield_now();
    }
    first.close().unwrap();
    drop((first, held));
    holds.release();
    // It may be refused; if it is let in, it has to know what the first one left.
    if let Ok(second) = second.join().unwrap() {
        let held = file(&second, "b", &[1; 4096]);
        second.close().unwrap();
        drop((second, held));
    }
    let report = check_device(Arc::clone(&device), &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// The first writer took note that there are no capabilities any more before it had looked for them: another one, who
/// believed that, changed the content for good while they were there.
#[test]
fn nobody_writes_to_a_program_that_has_its_capabilities() {
    let device = made();
    let volume = file_with_attributes(&device);
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    volume.lookup("/a").unwrap().set_xattr(b"security.capability", &value, SetXattr::Either).unwrap();
    volume.close().unwrap();
    drop(volume);
    let holds = holding(&device);
    let volume = open(holds.clone());
    let file = volume.open_file("/a").unwrap();
    hold_a_read(&holds);
    let write = |byte: u8, offset: u64| {
        let (file, volume) = (file.clone(), volume.clone());
        thread::spawn(move || {
            file.write_at(&[byte; 4096], offset).unwrap();
            volume.sync().unwrap();
        })
    };
    let slow = write(2, 4096);
    holds.wait_until_waiting();
    let other = write(9, 0);
    for _ in 0..200 {
        if other.is_finished() {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    let crashed = copy(&device);
    holds.release();
    slow.join().unwrap();
    other.join().unwrap();
    let seen = Volume::open_device(crashed, &OpenOptions::new()).unwrap().open_file("/a").unwrap();
    let mut first = [0; 4096];
    seen.read_at(&mut first, 0).unwrap();
    let privileged = seen.node().xattr(b"security.capability").unwrap().is_some();
    assert!(first[0] == 1 || !privileged, "the content is new, and may do what the old one might");
    assert_eq!(file.node().xattr(b"security.capability").unwrap(), None);
}

/// As a kernel does whoever asks, and as often as somebody gives it some.
#[test]
fn a_program_that_changes_loses_its_capabilities() {
    type Step = fn(&File) -> uxfs::Result<()>;
    let steps: [(&str, Step); 7] = [
        ("overwrite", |file| file.write_at(&[2; 4096], 0)),
        ("append", |file| file.append_at(&[2; 4096], 1 << 20)),
        ("cut", |file| file.set_len(10_000)),
        ("grow", |file| file.set_len(1 << 20)),
        ("punch", |file| file.punch_hole(0..4096)),
        ("zero", |file| file.zero_range(0..4096, false)),
        ("owner", |file| file.node().change(&Changes { uid: Some(5), ..Changes::default() })),
    ];
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let volume = open(made());
    for (what, step) in steps {
        let file = file(&volume, what, &[1; 16384]);
        for nth in 0..3 {
            file.node().set_xattr(b"security.capability", &value, SetXattr::Either).unwrap();
            step(&file).unwrap();
            assert_eq!(file.node().xattr(b"security.capability").unwrap(), None, "{what}, {nth}");
            // Now it is known to hold none.
            file.write_at(&[3; 4096], 0).unwrap();
        }
    }
}

/// A removal is committed, and its checkpoint never gets into the log. What it freed was no longer busy then, and who had
/// begun before wrote there past the log, though recovery gives it back to the file.
#[test]
fn blocks_whose_freeing_was_lost_are_not_written() {
    let device = made();
    let volume = file_with_attributes(&device);
    file(&volume, "victim", &[0xaa; 256 << 10]);
    // Nothing else is free.
    let filler = file(&volume, "filler", &[]);
    let (mut at, mut len) = (0, 1 << 20);
    while len >= 4096 {
        match filler.write_at(&vec![0xcc; len], at) {
            Ok(()) => at += len as u64,
            Err(_) => len /= 2,
        }
    }
    drop(filler);
    volume.close().unwrap();
    drop(volume);
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&device), Vec::new()));
    let holds = Arc::new(HoldDevice::new(Arc::clone(&faulty) as _));
    let volume = open(holds.clone());
    let node = volume.lookup("/a").unwrap();
    volume.root().unwrap().as_dir().unwrap().remove_file(b"victim").unwrap();
    hold_a_read(&holds);
    let sets = thread::spawn(move || node.set_xattr(b"user.large", &[0xdd; 60_000], SetXattr::Either));
    holds.wait_until_waiting();
    faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)).then(Repeat::Sticky));
    volume.sync().expect_err("nothing can be written");
    // That is told before all that was to be in the log is given up.
    thread::sleep(std::time::Duration::from_millis(100));
    faulty.heal();
    holds.release();
    sets.join().unwrap().expect_err("the volume is shut down");
    drop(volume);
    let volume = open(device);
    if let Ok(victim) = volume.open_file("/victim") {
        let mut bytes = vec![0; 256 << 10];
        victim.read_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xaa), "another file's attribute is in it");
    }
}

/// The blocks before an inserted range were not held: a write to them, between the cut there and the move of what lies
/// behind, made one extent of both sides, and nothing was moved.
#[test]
fn a_write_before_an_inserted_range_does_not_keep_what_lies_behind_from_moving() {
    const BLOCK: u64 = 4096;
    let device = made();
    let volume = open(Arc::clone(&device));
    let held = file(&volume, "a", &[]);
    held.allocate(0..8 * BLOCK, false).unwrap();
    held.write_at(&[5; 4 * BLOCK as usize], 4 * BLOCK).unwrap();
    let writer = std::rc::Rc::new(std::cell::RefCell::new(None));
    let step = {
        let (held, writer) = (held.clone(), std::rc::Rc::clone(&writer));
        move || {
            if writer.borrow().is_some() {
                return;
            }
            let (over, is_over) = std::sync::mpsc::channel();
            let held = held.clone();
            let write = thread::spawn(move || {
                held.write_at(&[3; BLOCK as usize], 3 * BLOCK).unwrap();
                let _nobody_waits = over.send(());
            });
            // It waits for the insertion, or is done in no time.
            let _waits = is_over.recv_timeout(std::time::Duration::from_secs(1));
            *writer.borrow_mut() = Some(write);
        }
    };
    fileio::testing::behind_commits(step, || held.insert_range(4 * BLOCK..5 * BLOCK)).unwrap();
    writer.take().expect("an insertion commits").join().unwrap();
    let mut content = vec![9; 9 * BLOCK as usize];
    held.read_at(&mut content, 0).unwrap();
    let blocks: Vec<u8> = content.chunks(BLOCK as usize).map(|block| block[0]).collect();
    assert_eq!(blocks, [0, 0, 0, 3, 0, 5, 5, 5, 5]);
    volume.close().unwrap();
    drop(held);
    drop(volume);
    let report = check_device(device, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
