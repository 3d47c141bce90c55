//! The judges of a volume after a history: `xfs_repair`, the kernel's view, uxfs's view, and the models.
//!
//! Invariant: every name, object and byte that a model knows is compared, and nothing that it doesn't know may be
//! there.

use super::HASH;
use super::bulkstat;
use super::generator::{SHARED, STRIPED};
use super::model::{Id, Kind, Model, Node, Time};
use super::op::{Name, NodeKind};
use crate::compare::compare;
use crate::record::{Bytes, FileType, Inode, Record, escape};
use crate::sandbox::{Mounted, repair_finds_nothing};
use crate::{engine, kernel};
use anyhow::{Context, Result, bail, ensure};
use blockdev::{BlockDevice, FileDevice};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use xfs::check::{CheckOptions, check};

/// How many differences are shown.
const SHOWN: usize = 20;

/// Judges the volume in `image`, which nobody has open. `since`: when the history began.
pub fn judge(image: &Path, mnt: &Path, models: &[&Model], since: SystemTime) -> Result<()> {
    is_sound(image)?;
    let compared = |theirs: &[Record]| {
        none("the kernel's view differs from the model", &differences(models, theirs, since)?)
    };
    views_agree(image, mnt, compared).map(drop)
}

/// Neither `xfs_repair` nor our own checker finds anything.
pub fn is_sound(image: &Path) -> Result<()> {
    repair_finds_nothing(image)?;
    checker_finds_nothing(Arc::new(FileDevice::open(image)?))
}

/// The kernel's view of a volume. `first` judges it, and then uxfs's view must agree.
pub fn views_agree(
    image: &Path,
    mnt: &Path,
    first: impl FnOnce(&[Record]) -> Result<()>,
) -> Result<Vec<Record>> {
    let theirs = by_kernel(image, mnt)?;
    first(&theirs)?;
    let ours = by_uxfs(image).context("uxfs")?;
    let outcome = compare(&theirs, &ours)?;
    none("uxfs's view differs from the kernel's", &outcome.differences)?;
    ensure!(outcome.one_sided.is_empty(), "uxfs does not say everything: {:?}", outcome.one_sided);
    Ok(theirs)
}

/// The judge of our own house: `uxfs check`.
pub fn checker_finds_nothing(device: Arc<dyn BlockDevice>) -> Result<()> {
    let report = check(device, &CheckOptions::default())?;
    ensure!(report.log_clean, "uxfs check: the log is not clean");
    let findings: Vec<String> = report.findings().iter().map(|finding| format!("{finding:?}")).collect();
    none("uxfs check finds damage", &findings)
}

/// The kernel's manifest of an image, mounted read-only.
pub(crate) fn by_kernel(image: &Path, mnt: &Path) -> Result<Vec<Record>> {
    by_mount(Mounted::new(image, mnt, true).context("the kernel's mount")?)
}

/// The same of an image whose log it has to recover.
pub(super) fn by_kernel_after_recovery(image: &Path, mnt: &Path) -> Result<Vec<Record>> {
    let seen = by_mount(Mounted::new(image, mnt, false).context("recovery by the kernel")?)?;
    repair_finds_nothing(image).context("after recovery by the kernel")?;
    Ok(seen)
}

fn by_mount(mounted: Mounted) -> Result<Vec<Record>> {
    let mut manifest = kernel::manifest(mounted.dir(), HASH)?;
    bulkstat::add_by_kernel(&mut manifest, mounted.dir())?;
    mounted.unmount()?;
    Ok(manifest)
}

/// uxfs's manifest of an image, open for reading.
pub(crate) fn by_uxfs(image: &Path) -> Result<Vec<Record>> {
    by_uxfs_on(Arc::new(FileDevice::open(image)?))
}

/// The same of a device.
pub(super) fn by_uxfs_on(device: Arc<dyn BlockDevice>) -> Result<Vec<Record>> {
    let mut manifest = engine::manifest_of(Arc::clone(&device), HASH)?;
    bulkstat::add_by_uxfs(&mut manifest, device)?;
    Ok(manifest)
}

pub(super) fn none(what: &str, differences: &[String]) -> Result<()> {
    if differences.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = differences.iter().take(SHOWN).map(String::as_str).collect();
    bail!("{what} ({} differences):\n{}", differences.len(), shown.join("\n"))
}

/// Which object of which model; what threads share is the first model's.
type Which = (usize, Id);

/// What differs between a manifest and the models.
pub fn differences(models: &[&Model], records: &[Record], since: SystemTime) -> Result<Vec<String>> {
    let expected = names(models);
    let mut found = Vec::new();
    let mut inodes: HashMap<u64, Which> = HashMap::new();
    let mut numbers: HashMap<Which, u64> = HashMap::new();
    let mut seen = 0;
    let window = Window::since(since)?;
    for record in records {
        let Some(&which) = expected.get(&record.path) else {
            found.push(format!("{}: must not be there", record.path));
            continue;
        };
        seen += 1;
        let node = models[which.0].node(which.1);
        let same = *inodes.entry(record.ino).or_insert(which) == which
            && *numbers.entry(which).or_insert(record.ino) == record.ino;
        if !same {
            found.push(format!("{}: is not the object that has the other names of its", record.path));
        }
        if record.path != "/" && record.entry_type != Some(file_type(node)) {
            found.push(format!("{}: the entry's type is {:?}", record.path, record.entry_type));
        }
        if let Some(inode) = &record.inode {
            let mut differ = |what: String| found.push(format!("{}: {what}", record.path));
            if node.foreign {
                shared(models, which.1, inode, &mut differ);
            } else {
                object(node, inode, window, &mut differ);
            }
        }
    }
    if seen != expected.len() {
        let there: std::collections::HashSet<&str> =
            records.iter().map(|record| record.path.as_str()).collect();
        let missing = expected.keys().filter(|path| !there.contains(path.as_str()));
        found.extend(missing.take(SHOWN).map(|path| format!("{path}: is not there")));
    }
    Ok(found)
}

/// Every path that must be there, as manifests write it.
fn names(models: &[&Model]) -> BTreeMap<String, Which> {
    let mut names = BTreeMap::new();
    names.insert("/".to_owned(), (0, Model::ROOT));
    for (thread, model) in models.iter().enumerate() {
        let mut stack = vec![(String::new(), Model::ROOT)];
        while let Some((path, dir)) = stack.pop() {
            for (name, &id) in model.entries(dir).into_iter().flatten() {
                let path = format!("{path}/{}", escape(&name.0));
                let which = if model.node(id).foreign { (0, id) } else { (thread, id) };
                if matches!(model.node(id).kind, Kind::Dir(_)) {
                    stack.push((path.clone(), id));
                }
                names.insert(path, which);
            }
        }
    }
    names
}

/// When the moments of a history's operations were, in nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Window(i128, i128);

impl Window {
    /// The clock of a file system is coarse.
    const SLACK: Duration = Duration::from_secs(2);

    fn since(since: SystemTime) -> Result<Self> {
        let ns = |time: SystemTime| -> Result<i128> {
            Ok(time.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as i128)
        };
        Ok(Self(ns(since - Self::SLACK)?, ns(SystemTime::now() + Self::SLACK)?))
    }

    fn allows(self, expected: Time, found: i128) -> bool {
        match expected {
            Time::Unknown => true,
            Time::Set(moment) => moment.nanoseconds() == found,
            Time::Running => self.0 <= found && found <= self.1,
        }
    }
}

pub(super) fn file_type(node: &Node) -> FileType {
    match &node.kind {
        Kind::File(_) | Kind::Special(NodeKind::Regular) => FileType::Regular,
        Kind::Dir(_) => FileType::Directory,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Special(NodeKind::Fifo) => FileType::Fifo,
        Kind::Special(NodeKind::Socket) => FileType::Socket,
        Kind::Special(NodeKind::CharDevice(..)) => FileType::CharDevice,
        Kind::Special(NodeKind::BlockDevice(..)) => FileType::BlockDevice,
    }
}

/// Compares an object that is one thread's own.
fn object(node: &Node, inode: &Inode, window: Window, differ: &mut dyn FnMut(String)) {
    base(node, inode, differ);
    if inode.nlink != node.nlink {
        differ(format!("nlink {} instead of {}", inode.nlink, node.nlink));
    }
    for (name, expected, found) in [("atime", node.atime, inode.atime), ("mtime", node.mtime, inode.mtime)] {
        if !window.allows(expected, found) {
            differ(format!("{name} {found} instead of {expected:?}"));
        }
    }
    content(node, inode, differ);
}

/// Type, mode, owner, attributes, target, device.
fn base(node: &Node, inode: &Inode, differ: &mut dyn FnMut(String)) {
    if inode.file_type != file_type(node) {
        differ(format!("type {:?} instead of {:?}", inode.file_type, file_type(node)));
    }
    let mode = format!("{:04o}", node.mode);
    if inode.mode != mode {
        differ(format!("mode {} instead of {mode}", inode.mode));
    }
    if (inode.uid, inode.gid) != (node.uid, node.gid) {
        differ(format!("owner {}:{} instead of {}:{}", inode.uid, inode.gid, node.uid, node.gid));
    }
    if inode.project != Some(node.project) {
        differ(format!("project {:?} instead of {:?}", inode.project, node.project));
    }
    if inode.hints != Some(node.hints) {
        differ(format!("hints {:?} instead of {:?}", inode.hints, node.hints));
    }
    let (expected, found) = (attributes(node), listed(inode));
    if expected != found {
        let odd = expected.iter().find(|(name, value)| found.get(*name) != Some(value));
        let odd = odd.or_else(|| found.iter().find(|(name, _)| !expected.contains_key(*name)));
        differ(format!("{} attributes instead of {}, {odd:?} among them", found.len(), expected.len()));
    }
    match &node.kind {
        Kind::Symlink(target) if inode.target != Some(escape(&target.0)) => {
            differ(format!("target {:?} instead of {target:?}", inode.target));
        }
        Kind::Special(NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor))
            if inode.rdev != Some((*major, *minor)) =>
        {
            differ(format!("device {:?} instead of {major}:{minor}", inode.rdev));
        }
        _ => {}
    }
}

fn content(node: &Node, inode: &Inode, differ: &mut dyn FnMut(String)) {
    let Kind::File(content) = &node.kind else { return };
    if inode.size != content.size() {
        differ(format!("size {} instead of {}", inode.size, content.size()));
        return;
    }
    match &inode.content {
        Some(found) => content.difference(found).into_iter().for_each(differ),
        None => differ("no content is described".to_owned()),
    }
}

/// Compares what threads share: the two directories, and the striped file.
fn shared(models: &[&Model], id: Id, inode: &Inode, differ: &mut dyn FnMut(String)) {
    base(models[0].node(id), inode, differ);
    match &models[0].node(id).kind {
        Kind::Dir(_) => {
            let below = |model: &&Model| {
                let entries = model.entries(id).into_iter().flatten();
                let dirs = entries.filter(|(_, child)| matches!(model.node(**child).kind, Kind::Dir(_)));
                dirs.map(|(name, _)| name.clone()).collect::<Vec<Name>>()
            };
            let mut dirs: Vec<Name> = models.iter().flat_map(below).collect();
            dirs.sort();
            dirs.dedup();
            let nlink = 2 + dirs.len() as u32;
            if inode.nlink != nlink {
                differ(format!("nlink {} instead of {nlink}", inode.nlink));
            }
        }
        Kind::File(first) => {
            let mut all = first.clone();
            models[1..].iter().filter_map(|model| model.content(id)).for_each(|content| all.merge(content));
            let whole = Node { kind: Kind::File(all), ..models[0].node(id).clone() };
            content(&whole, inode, differ);
        }
        _ => differ(format!("is neither {} nor {}", escape(SHARED), escape(STRIPED))),
    }
}

pub(super) fn attributes(node: &Node) -> BTreeMap<String, Bytes> {
    let plain = node.xattrs.iter().map(|(name, value)| (escape(&name.0), Bytes::of(&value.bytes())));
    let lists = [("access", &node.acl), ("default", &node.default_acl)];
    let lists = lists.into_iter().filter_map(|(kind, list)| {
        let list = list.as_ref()?;
        Some((format!("system.posix_acl_{kind}"), Bytes::of(&list.to_linux())))
    });
    plain.chain(lists).collect()
}

/// What a manifest has, without the second names of access control lists.
pub(super) fn listed(inode: &Inode) -> BTreeMap<String, Bytes> {
    // Lists are told by other names; what is about the whole volume is of its root from the start.
    let besides = ["trusted.SGI_ACL_", "trusted.xfs:"];
    let all = inode.xattrs.iter().filter(|(name, _)| !besides.iter().any(|begin| name.starts_with(begin)));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Hints, Project};

    #[test]
    fn every_difference_of_projects_and_hints_is_found() {
        let project = Project { id: 7, inherit: true };
        let hints = Hints { no_dump: true, extent_blocks: 3, ..Hints::default() };
        let node = Node { project, hints, ..Node::new(Kind::Dir(BTreeMap::new()), 0o755, 0) };
        let found = |project, hints| {
            let mode = "0755".to_owned();
            let inode = Inode { file_type: FileType::Directory, mode, project, hints, ..Inode::default() };
            let mut differences = Vec::new();
            base(&node, &inode, &mut |what| differences.push(what));
            differences.len()
        };
        let right = (Some(project), Some(hints));
        assert_eq!(found(right.0, right.1), 0);
        assert_eq!(found(Some(Project { id: 8, ..project }), right.1), 1);
        assert_eq!(found(Some(Project { inherit: false, ..project }), right.1), 1);
        assert_eq!(found(right.0, Some(Hints { no_dump: false, ..hints })), 1);
        assert_eq!(found(right.0, Some(Hints { extent_blocks: 4, ..hints })), 1);
        assert_eq!(found(None, None), 2, "nobody asked");
    }
}
