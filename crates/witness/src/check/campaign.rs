//! The campaign: thousands of volumes, each with one damaged field, judged by both.
//!
//! Invariants: a case follows from seed and number alone, given the volumes; no two are the same; whatever a case
//! changes is put back before the next; a case is in the results once both have judged it.

use super::chart::{Chart, Name, Piece, Spot};
use super::explained::{self, Reason};
use super::specimens::{self, KINDS};
use super::{Verdict, ours, theirs};
use crate::sandbox::{mkfs, scratch};
use crate::volumes::VolumeKind;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use xfs_format::checksum;

/// How a new value is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edit {
    /// All bits 0.
    Zero,
    /// All bits 1.
    Ones,
    /// One more.
    More,
    /// One less.
    Less,
    /// Any value.
    Random,
    /// A small one.
    Small,
    /// One bit is flipped.
    Flip,
    /// The value that this field has somewhere else.
    Borrowed,
}

const EDITS: [Edit; 8] =
    [Edit::Zero, Edit::Ones, Edit::More, Edit::Less, Edit::Random, Edit::Small, Edit::Flip, Edit::Borrowed];

/// One field of one volume, and its new value.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its number; with the seed, what it is.
    pub number: u64,
    volume: usize,
    /// The structure's name and the field's.
    pub name: Name,
    spot: Spot,
    piece: Piece,
    edit: Edit,
    /// What the field was.
    pub old: u64,
    /// What it becomes.
    pub new: u64,
}

/// The result of a case; a line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseOutcome {
    /// The case's number.
    pub case: u64,
    /// The volume.
    pub volume: String,
    /// The structure.
    pub structure: String,
    /// The field.
    pub field: String,
    /// The byte of the image that the structure begins with.
    pub at: u64,
    /// The field's first bit, counted from there.
    pub bit: u32,
    /// How many bits it has.
    pub bits: u32,
    /// How the new value came about.
    pub edit: Edit,
    /// What the field was.
    pub old: u64,
    /// What it became.
    pub new: u64,
    /// What `uxfs check` said first.
    pub ours: Option<String>,
    /// What `xfs_repair -n` said first.
    pub theirs: Option<String>,
}

impl CaseOutcome {
    /// Whether one says damaged, and the other clean.
    pub fn differs(&self) -> bool {
        self.ours.is_some() != self.theirs.is_some()
    }

    /// Whether uxfs said this.
    pub fn said(&self, what: &str) -> bool {
        self.ours.as_ref().is_some_and(|said| said.contains(what))
    }

    /// Why they differ, if it is known.
    pub fn reason(&self) -> Option<&'static Reason> {
        if self.differs() { explained::reason(self) } else { None }
    }

    /// What was done, in one line.
    pub fn what(&self) -> String {
        let Self { case, volume, structure, field, at, bit, old, new, edit, .. } = self;
        let byte = at + u64::from(bit / 8);
        format!(
            "case {case}: {volume}: {structure}, {field} (byte {byte}): {old:#x} became {new:#x} ({edit:?})"
        )
    }

    /// What both said.
    pub fn verdicts(&self) -> String {
        let show = |said: &Option<String>| said.clone().unwrap_or_else(|| "clean".to_owned());
        format!("uxfs: {}; xfs_repair: {}", show(&self.ours), show(&self.theirs))
    }
}

/// Which fields are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Draw {
    /// Each field of each structure as often as any other, however many of the structure there are.
    Fields,
    /// Each field of each piece of metadata as often as any other: what there is much of comes often.
    Places,
}

impl Draw {
    const fn name(self) -> &'static str {
        match self {
            Self::Fields => "fields",
            Self::Places => "places",
        }
    }
}

/// The plan of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all cases.
    pub seed: u64,
    /// How they are drawn.
    pub draw: Draw,
    /// How many cases.
    pub cases: u64,
    /// How many at once.
    pub jobs: usize,
    /// The folder of volumes and results; an earlier run in it is continued.
    pub folder: Option<PathBuf>,
    /// Only this case.
    pub case: Option<u64>,
    /// Only fields whose structure's or own name holds this.
    pub field: Option<String>,
    /// Only volumes of these names; all, if there are none.
    pub volumes: Vec<String>,
}

impl Plan {
    fn wants(&self, kind: &VolumeKind) -> bool {
        self.volumes.is_empty() || self.volumes.iter().any(|name| name == kind.name)
    }

    /// Where the results are: a part of the volumes has numbers of its own.
    fn results(&self) -> String {
        let of: String = self.volumes.iter().map(|name| format!("-{name}")).collect();
        format!("{}-{}{of}.jsonl", self.draw.name(), self.seed)
    }
}

/// The volumes, whole.
struct Volumes {
    folder: PathBuf,
    charts: Vec<Chart>,
}

impl Volumes {
    /// Makes the missing ones.
    fn new(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut charts = Vec::new();
        for kind in &KINDS {
            let image = image(folder, kind);
            if !image.exists() {
                let half = folder.join("unfinished");
                mkfs(&half, kind)?;
                specimens::fill(&half, kind, folder)?;
                std::fs::rename(&half, &image)?;
            }
            for verdict in [ours(&image)?, theirs(kind.release(), &image)?] {
                ensure!(verdict.is_ok(), "{} is not clean: {verdict:?}", kind.name);
            }
            charts.push(Chart::of(&image).with_context(|| kind.name.to_owned())?);
        }
        Ok(Self { folder: folder.to_owned(), charts })
    }

    /// The cases, all different.
    fn cases(&self, plan: &Plan) -> Result<Vec<Case>> {
        let mut names: BTreeMap<Name, Vec<usize>> = BTreeMap::new();
        let wanted = |(index, _): &(usize, &Chart)| plan.wants(&KINDS[*index]);
        for (index, chart) in self.charts.iter().enumerate().filter(wanted) {
            chart.names().for_each(|name| names.entry(name).or_default().push(index));
        }
        let wanted = |name: &Name| match &plan.field {
            Some(part) => format!("{}, {}", name.0, name.1).contains(part),
            None => true,
        };
        let names: Vec<(Name, Vec<usize>)> = names.into_iter().filter(|(name, _)| wanted(name)).collect();
        ensure!(!names.is_empty(), "no such field, or no such volume");
        let files: Vec<File> =
            KINDS.iter().map(|kind| Ok(File::open(image(&self.folder, kind))?)).collect::<Result<_>>()?;
        let mut rng = Rng::with_seed(plan.seed);
        let (mut cases, mut seen, mut order) = (Vec::new(), BTreeSet::new(), Vec::new());
        // Few fields have few values: a bound on how often there is nothing new.
        let mut tries = plan.cases * 20;
        while (cases.len() as u64) < plan.cases && tries > 0 {
            tries -= 1;
            let (name, volume) = match plan.draw {
                Draw::Fields => {
                    if order.is_empty() {
                        order = (0..names.len()).collect();
                        rng.shuffle(&mut order);
                    }
                    let (name, volumes) = &names[order.pop().context("a field")?];
                    (*name, volumes[rng.usize(..volumes.len())])
                }
                Draw::Places => self.place(&mut rng, &names, plan),
            };
            if let Some(case) = self.draw(&mut rng, name, volume, &files[volume])?
                && seen.insert((volume, case.piece.at, case.spot.bit(), case.new))
            {
                cases.push(Case { number: cases.len() as u64, ..case });
            }
        }
        Ok(cases)
    }

    /// The field at any place of any volume.
    fn place(&self, rng: &mut Rng, names: &[(Name, Vec<usize>)], plan: &Plan) -> (Name, usize) {
        loop {
            let volume = rng.usize(..self.charts.len());
            if !plan.wants(&KINDS[volume]) {
                continue;
            }
            let places = |name: Name| self.charts[volume].spots(name).len();
            let all: usize = names.iter().map(|(name, _)| places(*name)).sum();
            let mut nth = rng.usize(..all.max(1));
            for (name, _) in names {
                match nth.checked_sub(places(*name)) {
                    Some(left) => nth = left,
                    None => return (*name, volume),
                }
            }
        }
    }

    /// A case about a field. `None`: its value would be as it was.
    fn draw(&self, rng: &mut Rng, name: Name, volume: usize, file: &File) -> Result<Option<Case>> {
        let chart = &self.charts[volume];
        let spots = chart.spots(name);
        let value = |spot: Spot| -> Result<u64> {
            let piece = chart.piece(spot);
            let mut bytes = vec![0; piece.len];
            file.read_exact_at(&mut bytes, piece.at)?;
            Ok(spot.get(&bytes))
        };
        let spot = spots[rng.usize(..spots.len())];
        let old = value(spot)?;
        let edit = EDITS[rng.usize(..EDITS.len())];
        let new = match edit {
            Edit::Zero => 0,
            Edit::Ones => u64::MAX,
            Edit::More => old.wrapping_add(1),
            Edit::Less => old.wrapping_sub(1),
            Edit::Random => rng.u64(..),
            Edit::Small => rng.u64(..24),
            Edit::Flip => old ^ 1 << rng.u32(..spot.bits),
            Edit::Borrowed => value(spots[rng.usize(..spots.len())])?,
        } & spot.most();
        let case = Case { number: 0, volume, name, spot, piece: chart.piece(spot), edit, old, new };
        Ok((new != old).then_some(case))
    }
}

fn image(folder: &Path, kind: &VolumeKind) -> PathBuf {
    folder.join(format!("{}.img", kind.name))
}

/// Copies of the volumes that one thread damages.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(volumes: &Volumes) -> Result<Self> {
        let folder = scratch()?;
        for kind in &KINDS {
            let (from, to) = (image(&volumes.folder, kind), image(folder.path(), kind));
            crate::sandbox::copy_sparse(&from, &to)?;
        }
        Ok(Self { folder })
    }

    /// Damages a field, asks both, and puts it back.
    fn judge(&self, case: &Case) -> Result<CaseOutcome> {
        let kind = &KINDS[case.volume];
        let path = image(self.folder.path(), kind);
        let file = File::options().read(true).write(true).open(&path)?;
        let mut sound = vec![0; case.piece.len];
        file.read_exact_at(&mut sound, case.piece.at)?;
        let mut damaged = sound.clone();
        case.spot.set(&mut damaged, case.new);
        ensure!(checksum::store(&mut damaged, case.piece.crc), "{:?} has a checksum", case.name);
        file.write_all_at(&damaged, case.piece.at)?;
        let verdicts = ours(&path).and_then(|ours| Ok((ours, theirs(kind.release(), &path)?)));
        file.write_all_at(&sound, case.piece.at)?;
        let (ours, theirs) = verdicts.with_context(|| format!("{case:?}"))?;
        Ok(outcome(case, ours, theirs))
    }
}

fn outcome(case: &Case, ours: Verdict, theirs: Verdict) -> CaseOutcome {
    CaseOutcome {
        case: case.number,
        volume: KINDS[case.volume].name.to_owned(),
        structure: case.name.0.to_owned(),
        field: case.name.1.to_owned(),
        at: case.piece.at,
        bit: case.spot.bit(),
        bits: case.spot.bits,
        edit: case.edit,
        old: case.old,
        new: case.new,
        ours: ours.err(),
        theirs: theirs.err(),
    }
}

/// Runs the campaign; `each` gets what came of every case. Gives all of it, that of earlier runs included.
pub fn run(plan: &Plan, each: &(dyn Fn(&CaseOutcome) + Sync)) -> Result<Vec<CaseOutcome>> {
    let temporary = if plan.folder.is_none() { Some(scratch()?) } else { None };
    let folder = match (&plan.folder, &temporary) {
        (Some(folder), _) => folder.clone(),
        (None, Some(folder)) => folder.path().to_owned(),
        (None, None) => unreachable!("one of the two is there"),
    };
    let volumes = Volumes::new(&folder)?;
    let mut cases = volumes.cases(plan)?;
    if let Some(number) = plan.case {
        cases.retain(|case| case.number == number);
    }
    let results = folder.join(plan.results());
    // A part of the fields has numbers of its own, and a single case is one that is to be looked at again.
    let noted = plan.folder.is_some() && plan.case.is_none() && plan.field.is_none();
    let mut outcomes = if noted { done_before(&results)? } else { Vec::new() };
    let done: BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.case).collect();
    outcomes.retain(|outcome| outcome.case < plan.cases);
    cases.retain(|case| !done.contains(&case.number));
    let mut file = if noted { Some(File::options().create(true).append(true).open(&results)?) } else { None };
    let todo = Mutex::new(cases.into_iter());
    let shared = Mutex::new((&mut outcomes, &mut file));
    let work = || -> Result<()> {
        let bench = Bench::new(&volumes)?;
        loop {
            let Some(case) = todo.lock().expect("no panic").next() else { return Ok(()) };
            let outcome = bench.judge(&case)?;
            each(&outcome);
            let mut shared = shared.lock().expect("no panic");
            if let Some(file) = &mut shared.1 {
                writeln!(file, "{}", serde_json::to_string(&outcome)?)?;
            }
            shared.0.push(outcome);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    outcomes.sort_by_key(|outcome| outcome.case);
    Ok(outcomes)
}

fn done_before(path: &Path) -> Result<Vec<CaseOutcome>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let lines = BufReader::new(File::open(path)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
