//! Threads that force the log write it themselves where a flush costs nothing: beside each other and the journal's threads, on a
//! device that fails or panics, and in a panic of their own.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use blockdev::{BlockDevice, Effect, Fault, FaultDevice, Means, MemoryDevice, Op, Repeat};
use uxfs::{MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};

/// A device without a write cache, which does this at some write, and at all behind it.
fn without_cache(below: Arc<dyn BlockDevice>, fault: Option<(u64, Effect)>) -> Arc<dyn BlockDevice> {
    let plan = fault.map(|(nth, effect)| Fault { op: Op::Write, nth, effect, repeat: Repeat::Sticky });
    let device = FaultDevice::new(below, plan.into_iter().collect());
    Means { fua: true, write_cache: false }.of(Arc::new(device))
}

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).unwrap());
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).unwrap();
    device
}

fn writable() -> OpenOptions {
    OpenOptions::new().writable(true)
}

/// It was taken for one of the journal.
#[test]
fn a_panic_of_who_syncs_shuts_nothing_down() {
    struct SyncsInTheEnd(Volume);
    impl Drop for SyncsInTheEnd {
        fn drop(&mut self) {
            self.0.sync().expect("it syncs while unwinding");
        }
    }
    let volume = Volume::open_device(made(), &writable()).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let _syncs = SyncsInTheEnd(volume.clone());
        root.create_file(b"a", &NewNode::default()).unwrap();
        panic!("somebody else's");
    }));
    assert!(ended.is_err());
    root.create_file(b"b", &NewNode::default()).map(drop).expect("it works still");
    volume.close().expect("it closes");
}

/// Threads make files, few and many before each sync; some device does what it does; some rounds close the volume meanwhile.
fn round(nth: u64) {
    let below = made();
    let is_sound = nth.is_multiple_of(3);
    let panics = Effect::Torn(Arc::new(|_| panic!("the device panics")));
    let effect = if nth.is_multiple_of(2) { panics } else { Effect::Fail };
    let fault = (!is_sound).then_some((20 + (nth * 37) % 900, effect));
    let volume = Volume::open_device(without_cache(Arc::clone(&below), fault), &writable()).unwrap();
    let synced = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..6 {
            let (volume, synced) = (volume.clone(), &synced);
            scope.spawn(move || {
                let root = volume.root().and_then(|root| root.as_dir())?;
                for file in 0..30 {
                    for piece in 0..if file % 13 == 0 { 60 } else { 1 } {
                        let name = format!("t{thread}-{file}-{piece:0100}");
                        let node = root.create_file(name.as_bytes(), &NewNode::default())?;
                        node.open()?.write_at(&[1; 5000], 0)?;
                    }
                    volume.sync()?;
                    synced.fetch_add(1, Ordering::SeqCst);
                }
                uxfs::Result::Ok(())
            });
        }
        if nth % 4 == 1 {
            thread::sleep(Duration::from_millis(nth % 40));
            let _whatever_comes_of_it = volume.close();
        }
    });
    let closed = volume.close();
    drop(volume);
    if is_sound && nth % 4 != 1 {
        closed.unwrap();
        assert_eq!(synced.into_inner(), 180);
    }
    let volume = Volume::open_device(Arc::clone(&below), &writable()).expect("it is recovered");
    volume.close().unwrap();
    drop(volume);
    let report = uxfs::check_device(below, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "round {nth}: {:?}", report.findings);
}

#[test]
fn syncs_beside_failures_end_and_leave_a_sound_volume() {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || {
        for nth in 0..16 {
            round(nth);
            ends.send(nth).unwrap();
        }
    });
    for nth in 0..16 {
        assert_eq!(ended.recv_timeout(Duration::from_secs(120)), Ok(nth), "it hangs, or failed");
    }
}
