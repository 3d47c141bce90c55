//! One device is open for writing once within a process, through whatever wrappers and handles it is reached.

use blockdev::{BlockDevice, Counter, Deferred, MemoryDevice, Window};
use std::sync::Arc;
use uxfs::{ErrorKind, MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};

const SIZE: u64 = 64 << 20;

fn made(device: &Arc<dyn BlockDevice>, options: &MkfsOptions) {
    mkfs_device(Arc::clone(device), &options.clone().small(true), true).expect("made");
}

fn writable() -> OpenOptions {
    OpenOptions::new().writable(true)
}

fn refused(device: Arc<dyn BlockDevice>, options: &OpenOptions) {
    let error = Volume::open_device(device, options).map(drop).expect_err("it has a writer");
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.to_string().contains("this process has it open for writing already"), "{error}");
}

fn add(volume: &Volume, name: &str) {
    let root = volume.open_dir("/").expect("the root");
    root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
}

#[test]
fn a_device_has_one_writer() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    made(&device, &MkfsOptions::new());
    let first = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
    add(&first, "one");
    refused(Arc::clone(&device), &writable());
    refused(Arc::new(Counter::new(Arc::clone(&device))), &writable());
    refused(Arc::new(Deferred::new(Arc::clone(&device))), &writable());
    refused(Arc::new(Window::new(Arc::clone(&device), 0, None).expect("a window")), &writable());
    refused(Arc::clone(&device), &writable().length(Some(SIZE)));
    refused(Arc::clone(&device), &writable().durable_at_close(true));
    let error = mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).overwrite(true), false);
    assert_eq!(error.expect_err("it has a writer").kind(), ErrorKind::Locked);
    // Readers see what is on the device.
    Volume::open_device(Arc::clone(&device), &OpenOptions::new()).expect("reading");
    add(&first, "two");
    first.close().expect("closed");
    // Closed is enough: a handle may live on.
    let second = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
    add(&second, "three");
    refused(Arc::clone(&device), &writable());
    // So is dropped.
    drop(second);
    let third = Volume::open_device(Arc::clone(&device), &writable()).expect("open");
    assert!(third.lookup("one").is_ok() && third.lookup("two").is_ok());
    third.close().expect("closed");
}

#[test]
fn two_parts_of_a_device_have_a_writer_each() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(3 * SIZE).expect("memory"));
    let part = |start: u64| writable().offset(start).length(Some(SIZE));
    for start in [SIZE, 2 * SIZE] {
        made(&device, &MkfsOptions::new().offset(start).length(Some(SIZE)));
    }
    let first = Volume::open_device(Arc::clone(&device), &part(SIZE)).expect("open");
    let second = Volume::open_device(Arc::clone(&device), &part(2 * SIZE)).expect("open");
    refused(Arc::clone(&device), &writable().offset(SIZE));
    refused(Arc::clone(&device), &part(SIZE));
    first.close().expect("closed");
    second.close().expect("closed");
}
