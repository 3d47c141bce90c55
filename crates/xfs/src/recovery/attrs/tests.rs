//! Every operation of an attribute intent, with the attribute in every state in which a kernel may have left it, in
//! every form.

use super::*;
use crate::attr::edit::SetXattr;
use crate::attr::{self, Namespace, ParentRecord};
use crate::check::{CheckOptions, check};
use crate::fork::{Fork, ForkMut};
use crate::mkfs::{Before, Options, format, plan};
use crate::namespace::{self, NewInode, XattrChange};
use crate::recovery::finish::finish_item;
use crate::setattr;
use crate::trans::Work;
use crate::trans::reservation::ReservationBuilder;
use crate::volume::{InodeHandle, OpenOptions, Volume};
use blockdev::{BlockDevice, Durability, MemoryDevice};
use xfs_format::attr::{AttrFlags, AttrLeaf, INDEX};
use xfs_format::log::{AttrChange, AttrOp};
use xfs_format::timestamp::Timestamp;
use xfs_format::types::{FileBlock, InodeNumber, Uuid};

const BYTES: u64 = 32 << 20;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const NAME: &[u8] = b"the-attribute";

/// The state of the attribute that an intent is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Old,
    /// Marked as incomplete. Its remote value, if any, is gone.
    Half,
    New,
}

/// Other attributes beside it.
#[derive(Clone, Copy, Debug)]
enum Form {
    Short,
    Leaf,
    Tree,
}

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
}

fn made(parent_pointers: bool) -> Arc<dyn BlockDevice> {
    let mut new = Options { small: true, ..Options::new(Uuid([7; 16]), NOW) };
    new.features.parent_pointers = parent_pointers;
    let device = memory();
    format(&*device, &plan(&new, BYTES).unwrap(), Before::Zeroes).unwrap();
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Volume> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    Volume::open(Arc::clone(device), &options).unwrap()
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let to = memory();
    let mut bytes = vec![0; 1 << 20];
    for at in (0..BYTES).step_by(bytes.len()) {
        device.read(at, &mut bytes).unwrap();
        if bytes.iter().any(|&byte| byte != 0) {
            to.write(at, &bytes, Durability::Volatile).unwrap();
        }
    }
    to
}

fn file(volume: &Arc<Volume>) -> InodeHandle {
    let root = volume.handle(volume.geometry().root).unwrap();
    namespace::create(volume, &root, b"file", &NewInode::for_tests(0o100_644, NOW)).unwrap()
}

fn set(volume: &Arc<Volume>, file: &InodeHandle, name: &[u8], value: &[u8]) {
    let change = XattrChange::Set(value, SetXattr::Either);
    setattr::change_xattr(volume, file, Namespace::User, name, change, NOW).unwrap();
}

fn fill(volume: &Arc<Volume>, file: &InodeHandle, form: Form) {
    let count = match form {
        Form::Short => 1,
        Form::Leaf => 10,
        Form::Tree => 300,
    };
    (0..count).for_each(|nth| set(volume, file, format!("other-{nth}").as_bytes(), &[b'o'; 50]));
}

/// Marks an attribute as incomplete, as a kernel does before it sets or removes it.
fn make_half(volume: &Arc<Volume>, file: &InodeHandle) {
    let need = ReservationBuilder::new(volume.geometry()).inodes(1).attr_change(0);
    let mut trans = Trans::start(volume, need.build()).unwrap();
    trans.join_inode(Arc::clone(file.entry()), file.entry().ilock()).unwrap();
    let mut fork = TransFork::new(&mut trans, file.ino(), ForkKind::Attr);
    let mut at = Some(FileBlock(0));
    let mut marked = false;
    while let Some(block) = at {
        let buf = fork.read(block, 1, &INDEX);
        if let Ok(buf) = buf
            && let Ok(leaf) = AttrLeaf::parse(&buf, true)
            && let Some(slot) =
                leaf.entries.iter().position(|entry| leaf.attr(entry).is_ok_and(|attr| attr.name == NAME))
        {
            let entry = &leaf.entries[slot];
            let (name, remote) = (entry.name_index(), leaf.attr(entry).unwrap().value);
            let flags = 80 + 8 * slot + 6;
            let mut bytes = buf.to_vec();
            bytes[flags] |= AttrFlags::INCOMPLETE.bits();
            let mut changed = std::iter::once(flags..flags + 1).collect::<Vec<_>>();
            if let xfs_format::attr::AttrValue::Remote { .. } = remote {
                bytes[name..name + 8].fill(0);
                changed.push(name..name + 8);
            }
            let buf = fork.read_buf(block, 1, &INDEX).unwrap();
            fork.log_buf(buf, bytes.into(), &changed).unwrap();
            marked = true;
            break;
        }
        at = fork.next_mapped(FileBlock(block.0 + 1)).unwrap();
    }
    assert!(marked, "only what lies in a leaf is ever incomplete");
    trans.commit().unwrap();
}

/// Recovers a log that has this intent and nothing done of it.
fn recovered(device: &Arc<dyn BlockDevice>, volume: Arc<Volume>, change: &AttrChange<'_>) -> Arc<Volume> {
    let work = AttrWork::from(change);
    let need = work.reservation(ReservationBuilder::new(volume.geometry())).bytes(256 << 10);
    let mut trans = Trans::start(&volume, need.build()).unwrap();
    trans.set_aside_for_intents(256 << 10);
    trans.defer(Work::Attr(Box::new(work)), finish_item);
    trans.roll().unwrap();
    volume.sync().unwrap();
    let crashed = copy(device);
    drop(trans);
    drop(volume);
    let volume = open(&crashed);
    let report = volume.recovery().expect("the log was dirty");
    assert!(report.unfinished.iter().any(|what| what.contains("ATTRI")), "{report:?}");
    volume.close().unwrap();
    drop(volume);
    let report = check(Arc::clone(&crashed), &CheckOptions::default()).unwrap();
    // On volumes with parent pointers, these were not changed along with the names.
    let findings: Vec<_> =
        report.findings().iter().filter(|finding| finding.structure() != "parent pointers").collect();
    assert!(findings.is_empty() && report.log_clean, "{findings:?}");
    open(&crashed)
}

#[test]
fn attributes_become_what_was_promised_in_whatever_state_they_are() {
    let mut tried = 0;
    for form in [Form::Short, Form::Leaf, Form::Tree] {
        for (old, new) in [(10, 5000), (60_000, 65_536)] {
            for state in [State::Absent, State::Old, State::Half, State::New] {
                for op in [AttrOp::Set, AttrOp::Remove, AttrOp::Replace] {
                    if matches!((state, form), (State::Half, Form::Short)) {
                        continue; // nothing is incomplete within an inode
                    }
                    let (old, new) = (vec![b'1'; old], vec![b'2'; new]);
                    let device = made(false);
                    let volume = open(&device);
                    let file = file(&volume);
                    let ino = file.ino();
                    fill(&volume, &file, form);
                    match state {
                        State::Absent => {}
                        State::Old | State::Half => set(&volume, &file, NAME, &old),
                        State::New => set(&volume, &file, NAME, &new),
                    }
                    if state == State::Half {
                        make_half(&volume, &file);
                    }
                    drop(file);
                    let value = if op == AttrOp::Remove { &[][..] } else { &new };
                    let (filter, generation) = (AttrFlags::empty(), 0);
                    let (new_name, new_value) = (&[][..], &[][..]);
                    let change =
                        AttrChange { ino, generation, op, filter, name: NAME, new_name, value, new_value };
                    let volume = recovered(&device, volume, &change);
                    let handle = volume.handle(ino).unwrap();
                    let (_shared, inode) = handle.ilock_shared().unwrap();
                    let fork = volume.fork(&inode, ForkKind::Attr).unwrap();
                    let found = attr::get(&*fork, Namespace::User, NAME).unwrap();
                    let expected = (op != AttrOp::Remove).then_some(new);
                    assert!(found == expected, "{form:?} {state:?} {op:?}");
                    assert!(attr::get(&*fork, Namespace::User, b"other-0").unwrap().is_some());
                    tried += 1;
                }
            }
        }
    }
    assert_eq!(tried, 3 * 2 * 4 * 3 - 2 * 3);
}

#[test]
fn parent_pointers_become_what_was_promised() {
    let long = [b'n'; 255];
    for form in [Form::Short, Form::Leaf, Form::Tree] {
        for op in [AttrOp::ParentSet, AttrOp::ParentRemove, AttrOp::ParentReplace] {
            for (has_old, has_new) in [(false, false), (true, false), (false, true), (true, true)] {
                let device = made(true);
                let volume = open(&device);
                let file = file(&volume);
                let ino = file.ino();
                let (generation, root) = (
                    file.entry().snapshot().core().generation,
                    volume.handle(volume.geometry().root).unwrap(),
                );
                let at = |dir| ParentRecord { dir: InodeNumber(dir), generation: 7 };
                let (old, new) = ((NAME, at(root.ino().0)), (&long[..], at(0x1_0000_0080)));
                fill(&volume, &file, form);
                for (name, record) in
                    [(has_old, old), (has_new, new)].into_iter().filter_map(|(has, what)| has.then_some(what))
                {
                    let need = ReservationBuilder::new(volume.geometry()).inodes(1).parent_changes(1);
                    let mut trans = Trans::start(&volume, need.build()).unwrap();
                    trans.join_inode(Arc::clone(file.entry()), file.entry().ilock()).unwrap();
                    let mut fork = TransFork::attr(&mut trans, ino).unwrap();
                    crate::attr::edit::add_parent(&mut fork, name, record).unwrap();
                    trans.commit().unwrap();
                }
                drop((file, root));
                let (from, to) = (old.1.to_bytes(), new.1.to_bytes());
                let filter = AttrFlags::PARENT;
                let change = AttrChange {
                    ino,
                    generation,
                    op,
                    filter,
                    name: NAME,
                    new_name: &[],
                    value: &from,
                    new_value: &[],
                };
                let change = if op == AttrOp::ParentReplace {
                    AttrChange { new_name: &long, new_value: &to, ..change }
                } else {
                    change
                };
                let volume = recovered(&device, volume, &change);
                let handle = volume.handle(ino).unwrap();
                let (_shared, inode) = handle.ilock_shared().unwrap();
                let found = attr::parents(&*volume.fork(&inode, ForkKind::Attr).unwrap()).unwrap();
                let has = |(name, record): (&[u8], ParentRecord)| {
                    found.iter().filter(|(found, of)| found == name && *of == record).count()
                };
                let expected = match op {
                    AttrOp::ParentSet => (1, usize::from(has_new)),
                    AttrOp::ParentRemove => (0, usize::from(has_new)),
                    _ => (0, 1),
                };
                assert_eq!((has(old), has(new)), expected, "{form:?} {op:?} {has_old} {has_new}");
            }
        }
    }
}
