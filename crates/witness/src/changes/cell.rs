//! One cell: a verb on a copy of a volume, and its judges.

use super::verbs::{On, RANDOM, Verb};
use super::volume::{Filled, script};
use super::{Args, random};
use crate::command::{finish, said};
use crate::kernel;
use crate::record::{Hash, Record};
use crate::sandbox::copy_sparse;
use anyhow::{Context, Result, ensure};
use oracles::xfsprogs::Release;
use rustix::fs::{SeekFrom, seek};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The verdict of a cell.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// Done, and right by all judges.
    Right(String),
    /// Refused with this, and not a byte has changed.
    Refused(String),
    /// `mkfs.xfs` does not make the volume.
    NotMade(String),
    /// Anything else.
    Wrong(String),
}

impl Verdict {
    pub(super) fn passes(&self) -> bool {
        !matches!(self, Self::Wrong(_))
    }

    pub(super) fn letter(&self) -> char {
        match self {
            Self::Right(_) => 'R',
            Self::Refused(_) => '-',
            Self::NotMade(_) => '.',
            Self::Wrong(_) => 'W',
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right(what) => write!(f, "right{what}"),
            Self::Refused(what) => write!(f, "refused, untouched: {what}"),
            Self::NotMade(what) => write!(f, "not made: {what}"),
            Self::Wrong(what) => write!(f, "WRONG: {what}"),
        }
    }
}

/// Where cells of one volume are done.
pub(super) struct Bench<'a> {
    filled: &'a Filled<'a>,
    program: &'a Path,
    folder: PathBuf,
    seed: u64,
    /// Whether only refusals are looked for.
    refusals: bool,
    /// The releases whose `xfs_repair` accepts the volume as it was filled: at least one.
    judges: Vec<Release>,
}

/// The kernel's final use of a volume: it writes to everything, and removes everything.
const USE: &str = r#"
    chattr -R -f -i -a . || true
    find . -type f -size -4M -print0 | head -z -n 400 | xargs -0 -r sh -c 'for f; do echo more >> "$f"; done' sh
    for d in *; do mv "./$d" "./moved-$d"; done
    seq 1 50000 > new-file; mkdir new-dir; for n in $(seq 1 200); do echo $n > new-dir/$n; done
    sync -f .
    find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +
    test -z "$(ls -A)"
    seq 1 1000 > last; sync -f last
"#;

impl<'a> Bench<'a> {
    pub(super) fn new(filled: &'a Filled<'a>, program: &'a Path, folder: &Path, args: &Args) -> Result<Self> {
        let host = folder.join("host");
        std::fs::create_dir(&host)?;
        let files =
            "seq 1 20000 > file; seq 1 200000 > large; mkdir -p tree/one/two; seq 1 500 > tree/one/two/file
            for n in $(seq 1 50); do seq 1 $((n * 100)) > tree/one/$n; done; ln -s two tree/one/link
            tar -cf tree.tar tree";
        script(&host, files, &[])?;
        let mut bench = Self {
            filled,
            program,
            folder: folder.to_owned(),
            seed: args.seed,
            refusals: args.refusals,
            judges: Vec::new(),
        };
        let mut asked = vec![Release::Unstable];
        if filled.shape.release == Release::System {
            asked.push(Release::System);
        }
        // The newest finds fault with some volumes that older releases of mkfs.xfs make, before anybody has changed them.
        let clean = filled.image(On::Clean);
        let found: Vec<Result<()>> = asked.iter().map(|release| repair(*release, &clean)).collect();
        bench.judges =
            asked.into_iter().zip(&found).filter(|(_, found)| found.is_ok()).map(|(of, _)| of).collect();
        match found.into_iter().next() {
            Some(Err(error)) if bench.judges.is_empty() => Err(error.context("as it was made")),
            _ => Ok(bench),
        }
    }

    /// The copy that is changed.
    pub(super) fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// Runs a verb, and judges the result.
    pub(super) fn judge(&self, verb: &Verb) -> Result<Verdict> {
        if let (Some(why), true) = (&self.filled.unmounted, verb.on != On::Clean) {
            let why = why.lines().next().unwrap_or_default();
            return Ok(Verdict::NotMade(format!("this kernel leaves no log in it: {why}")));
        }
        let (image, original) = (self.image(), self.filled.image(verb.on));
        copy_sparse(&original, &image)?;
        let done = if verb.name == RANDOM { self.random(&image)? } else { self.command(verb, &image)? };
        if let Ended::Broken(what) = done {
            return Ok(Verdict::Wrong(what));
        }
        if same_bytes(&original, &image)? {
            return Ok(match done {
                Ended::Refused(what) if verb.refused => Verdict::Refused(what),
                Ended::Refused(what) => match self.filled.shape.refused() {
                    Some(why) => Verdict::Refused(format!("{why}: {what}")),
                    None => {
                        Verdict::Wrong(format!("refused, though the volume is of no kind that is: {what}"))
                    }
                },
                _ => Verdict::Wrong("done, it says, and nothing has changed".to_owned()),
            });
        }
        let what = match &done {
            Ended::Whole => String::new(),
            Ended::Random(outcome) => format!(": {}", outcome.said),
            Ended::Refused(what) | Ended::Broken(what) => format!("; in part: {what}"),
        };
        // Of several operations, some may be refused.
        ensure!(!matches!(done, Ended::Refused(_)) || what.contains("exit 1:"), "refused, and changed{what}");
        if self.refusals {
            return Ok(Verdict::Right(format!("{what}, as it says")));
        }
        self.check(verb, &image, &done)?;
        Ok(Verdict::Right(what))
    }

    fn command(&self, verb: &Verb, image: &Path) -> Result<Ended> {
        let (at, host) = (format!("{}:", image.display()), self.folder.join("host"));
        let mut command = Command::new(self.program);
        for word in verb.command.split_whitespace() {
            let word = match word {
                "%" => image.display().to_string(),
                word => word.replace('@', &at).replace('^', &host.display().to_string()),
            };
            command.arg(word);
        }
        let output = finish(&mut command)?;
        let said = said(&output);
        let line = said.lines().last().unwrap_or_default().replace(&self.folder.display().to_string(), "");
        Ok(match output.status.code() {
            Some(0) => Ended::Whole,
            // Refusals have names of their own; damage and device failures are not refusals.
            Some(code @ (1 | 4 | 7 | 9 | 14)) => Ended::Refused(format!("exit {code}: {line}")),
            Some(code) => Ended::Broken(format!("exit {code}: {line}")),
            None => Ended::Broken(format!("{}: {line}", output.status)),
        })
    }

    fn random(&self, image: &Path) -> Result<Ended> {
        match random::run(image, self.seed) {
            Ok(outcome) => Ok(Ended::Random(outcome)),
            Err(random::Failure::Refused(what)) => Ok(Ended::Refused(what)),
            Err(random::Failure::Broken(what)) => Ok(Ended::Broken(what)),
        }
    }

    /// All judges of a volume that was changed.
    fn check(&self, verb: &Verb, image: &Path, done: &Ended) -> Result<()> {
        self.repair(image).context("after the change")?;
        if self.filled.unmounted.is_some() {
            return Ok(());
        }
        let mounted = self.filled.mount(image, "changed", "noatime")?;
        let now = kernel::manifest(mounted.dir(), Hash::Blake3)?;
        let before = &self.filled.seen[verb.on as usize];
        match done {
            Ended::Random(outcome) => content_is_as_it_was(before, &now, &outcome.touched)?,
            _ => others_are_as_they_were(before, &now, verb)?,
        }
        if matches!(done, Ended::Whole) {
            script(mounted.dir(), verb.after, &[("H", &self.folder.join("host"))])
                .context("what the kernel sees")?;
        }
        script(mounted.dir(), USE, &[]).context("the kernel's use of the volume")?;
        let complaints = complaints(mounted.dir())?;
        mounted.unmount()?;
        ensure!(complaints.is_empty(), "the kernel says: {complaints}");
        self.repair(image).context("after the kernel's use")
    }

    /// `xfs_repair -n`, of all releases that had nothing against the volume before.
    fn repair(&self, image: &Path) -> Result<()> {
        self.judges.iter().try_for_each(|release| repair(*release, image))
    }
}

/// `xfs_repair -n` of a release must find nothing.
fn repair(release: Release, image: &Path) -> Result<()> {
    const BESIDES: [&str; 6] =
        ["- ", "Phase", "No modify", "Cannot get host", "Repair may fail", "the image and the host"];
    let output = finish(release.tool("xfs_repair")?.arg("-n").arg(image))?;
    let text = said(&output);
    let is_finding = |line: &&str| !BESIDES.iter().any(|begin| line.starts_with(begin));
    let told: Vec<&str> = text.lines().map(str::trim).filter(is_finding).collect();
    ensure!(output.status.success(), "xfs_repair -n ({release:?}): {}", told.join(" | "));
    Ok(())
}

/// How a verb ended.
enum Ended {
    Whole,
    Random(random::ChangeOutcome),
    Refused(String),
    Broken(String),
}

/// Everything that the verb did not concern must be unchanged: content, blocks, attributes, times.
fn others_are_as_they_were(before: &[Record], now: &[Record], verb: &Verb) -> Result<()> {
    let now: BTreeMap<&str, &Record> = now.iter().map(|record| (&*record.path, record)).collect();
    let is_touched = |path: &str| {
        verb.touches.iter().any(|touched| {
            let below = |path: &str, above: &str| {
                path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            below(path, touched)
                || touched
                    .rsplit_once('/')
                    .is_some_and(|(parent, _)| path == parent || (parent.is_empty() && path == "/"))
        })
    };
    for record in before.iter().filter(|record| !is_touched(&record.path)) {
        let found = now.get(&*record.path);
        let is_same = found.is_some_and(|found| found.by_place() == record.by_place());
        ensure!(is_same, "{} was {record:?} and is {found:?}", record.path);
    }
    let known: BTreeMap<&str, ()> = before.iter().map(|record| (&*record.path, ())).collect();
    for path in now.keys().filter(|path| !is_touched(path)) {
        ensure!(known.contains_key(path), "{path} is new");
    }
    Ok(())
}

/// Files that no operation changed have the same content, whatever their names are now.
fn content_is_as_it_was(before: &[Record], now: &[Record], touched: &BTreeSet<u64>) -> Result<()> {
    let hash = |record: &Record| -> Option<(u64, String)> {
        let content = record.inode.as_ref()?.content.as_ref()?;
        Some((record.ino, content.hash.clone()))
    };
    let now: BTreeMap<u64, String> = now.iter().filter_map(hash).collect();
    for record in before.iter().filter(|record| !touched.contains(&record.ino)) {
        if let Some((ino, hash)) = hash(record) {
            ensure!(now.get(&ino) == Some(&hash), "the content of {} (inode {ino}) has changed", record.path);
        }
    }
    Ok(())
}

/// The kernel's messages about a mounted volume since it was mounted.
fn complaints(dir: &Path) -> Result<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let of_dir = mounts.lines().rev().find(|line| line.split(' ').nth(1) == dir.to_str());
    let device = of_dir.and_then(|line| line.split(' ').next()).context("the mount's device")?;
    let name = format!("XFS ({}): ", device.trim_start_matches("/dev/"));
    let log = finish(&mut Command::new("dmesg"))?;
    ensure!(log.status.success(), "dmesg: {}", said(&log));
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&name)).collect();
    let since = lines.iter().rposition(|line| line.contains("Mounting V5")).map_or(0, |at| at + 1);
    let quiet = [
        "Ending clean mount",
        "Quotacheck",
        "EXPERIMENTAL",
        "Starting recovery",
        "Ending recovery",
        "deprecated",
        "resetting quota flags",
    ];
    let told =
        lines[since.min(lines.len())..].iter().filter(|line| !quiet.iter().any(|word| line.contains(word)));
    Ok(told.copied().collect::<Vec<_>>().join(" | "))
}

/// Whether two images have the same bytes; holes are zeroes.
fn same_bytes(one: &Path, other: &Path) -> Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut here, mut there) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for data_of in [&one, &other] {
        let mut at = 0;
        while let Ok(start) = seek(data_of, SeekFrom::Data(at)) {
            at = seek(data_of, SeekFrom::Hole(start))?;
            let mut from = start;
            while from < at {
                let len = (at - from).min(1 << 20) as usize;
                one.read_exact_at(&mut here[..len], from)?;
                other.read_exact_at(&mut there[..len], from)?;
                if here[..len] != there[..len] {
                    return Ok(false);
                }
                from += len as u64;
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::verbs::VERBS;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_a_verb_is_not_about_is_watched() {
        let record = |path: &str, ino| Record { path: path.to_owned(), ino, ..Record::default() };
        let before = ["/", "/v", "/v/a", "/v/b", "/v/ab", "/w"].map(|path| record(path, 1));
        let verb = VERBS.iter().find(|verb| verb.touches == ["/v/a"]).expect("one about a file");
        for (path, allowed) in
            [("/v/a", true), ("/v", true), ("/v/b", false), ("/v/ab", false), ("/w", false), ("/", false)]
        {
            let change = |of: &Record| if of.path == path { record(path, 2) } else { of.clone() };
            let now: Vec<Record> = before.iter().map(change).collect();
            assert_eq!(others_are_as_they_were(&before, &now, verb).is_ok(), allowed, "{path}");
        }
        let fewer: Vec<Record> = before.iter().filter(|of| of.path != "/w").cloned().collect();
        assert!(others_are_as_they_were(&before, &fewer, verb).is_err(), "one is gone");
        assert!(others_are_as_they_were(&fewer, &before, verb).is_err(), "one is new");
        assert!(content_is_as_it_was(&before, &before, &BTreeSet::new()).is_ok());
    }

    #[test]
    fn a_byte_behind_a_hole_is_seen() {
        let files = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a file"));
        let [one, other] = &files;
        for file in &files {
            file.as_file().set_len(9 << 20).expect("room");
        }
        assert!(same_bytes(one.path(), other.path()).expect("read"));
        other.as_file().write_all_at(&[0; 4096], 5 << 20).expect("zeroes");
        assert!(same_bytes(one.path(), other.path()).expect("read"));
        other.as_file().write_all_at(&[1], (9 << 20) - 1).expect("a byte");
        assert!(!same_bytes(one.path(), other.path()).expect("read"));
        assert!(!same_bytes(other.path(), one.path()).expect("read"));
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn names_are_unique() {
        let verbs: BTreeSet<_> = VERBS.iter().map(|verb| verb.name).collect();
        assert_eq!(verbs.len(), VERBS.len());
        let shapes = super::super::shapes::all().expect("all releases are there");
        let names: BTreeSet<_> = shapes.iter().map(|shape| shape.name.clone()).collect();
        assert!(names.len() == shapes.len() && names.len() > 60);
    }
}
