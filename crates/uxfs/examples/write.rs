//! Makes a volume in a file, writes a tree, clones a file, and reads all of it back.
//!
//! ```text
//! cargo run -p uxfs --example write -- new.img
//! ```
//! The README quotes everything below; `ci/documents` holds the two together.
#![forbid(unsafe_code)]

use uxfs::{MkfsOptions, NewNode, OpenOptions, Volume};

fn main() -> Result<(), uxfs::Error> {
    let image = std::env::args_os().nth(1).unwrap_or_else(|| "new.img".into());
    uxfs::mkfs(&image, &MkfsOptions::new().size(1 << 30).label("data"))?;

    let volume = Volume::open(&image, &OpenOptions::new().writable(true))?;
    let for_dirs = NewNode { permissions: 0o755, ..NewNode::default() };
    let for_files = NewNode::default();
    let logs = volume.root()?.as_dir()?.create_dir(b"logs", &for_dirs)?.as_dir()?;
    let today = logs.create_file(b"today", &for_files)?.open()?;
    today.write_at(b"one line\n", 0)?;
    today.append(b"and another\n")?;

    // A clone shares blocks until one of the two files changes.
    let before = logs.create_file(b"before", &for_files)?.open()?;
    today.clone_range(0, &before, 0, 0)?;
    today.overwrite_at(b"ONE", 0)?;
    // Durable from here, as with fsync.
    today.sync()?;

    for entry in logs.entries() {
        let entry = entry?;
        println!("{} {}", entry.file_type.letter(), uxfs::printable(&entry.name));
    }
    for path in ["/logs/before", "/logs/today"] {
        let file = volume.open_file(path)?;
        let mut text = vec![0; 1024];
        let read = file.read_at(&mut text, 0)?;
        print!("{path}: {}", String::from_utf8_lossy(&text[..read]));
    }

    // Leaves a clean log.
    volume.close()
}
