//! Dquots of an image, as `xfs_db` shows them.

use super::plan::Kind;
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The content of a dquot, by field name. What only says how it was written (LSN, checksum) is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dquot(BTreeMap<String, String>);

/// All dquots of one kind that a run may have changed. `None` if there is none for that id.
pub(super) type Dquots = BTreeMap<u32, Option<Dquot>>;

impl Dquot {
    /// A number.
    pub(super) fn get(&self, field: &str) -> Result<u64> {
        number(self.0.get(field).with_context(|| format!("xfs_db shows no {field} in a dquot"))?)
    }

    /// The same without the fields that depend on usage.
    pub(super) fn without_use(&self) -> Self {
        let used = |name: &str| ["count", "timer", "warns"].iter().any(|end| name.ends_with(end));
        Self(self.0.iter().filter(|(name, _)| !used(name)).map(|(n, v)| (n.clone(), v.clone())).collect())
    }

    /// The differences from another one.
    pub(super) fn differences(&self, other: &Self) -> String {
        let all = self.0.iter().filter(|(name, value)| other.0.get(*name) != Some(value));
        let told = all.map(|(name, value)| format!("{name} {value} and {:?}", other.0.get(name)));
        told.collect::<Vec<_>>().join(", ")
    }
}

/// Precedes the id that the next lines are about.
const MARK: &str = "@id:";

/// The superblock's quota flags.
pub(super) fn flags(image: &Path) -> Result<u64> {
    let text = output(Command::new("xfs_db").args(["-r", "-c", "sb 0", "-c", "p qflags"]).arg(image))?;
    number(text.trim().strip_prefix("qflags = ").context("xfs_db shows no qflags")?)
}

/// The dquots of a kind.
pub(super) fn read(image: &Path, kind: Kind) -> Result<Dquots> {
    let mut command = Command::new("xfs_db");
    command.arg("-r");
    for id in kind.ids() {
        // If there is none, the last position stays. The mark and the id tell.
        let look = format!("dquot -{} {id}", kind.letter());
        command.args(["-c", &format!("echo {MARK}{id}"), "-c", &look, "-c", "p diskdq"]);
    }
    let text = output(command.arg(image))?;
    let mut found = Dquots::new();
    for part in text.split(MARK).skip(1) {
        let mut lines = part.lines();
        let id: u32 = lines.next().context("an id")?.trim().parse()?;
        let fields = lines.filter_map(|line| line.strip_prefix("diskdq.")?.split_once(" = "));
        let dquot = Dquot(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
        // Ids are shown with a sign.
        let shown = dquot.0.get("id").and_then(|shown| shown.parse::<i64>().ok());
        let own = shown.is_some_and(|shown| shown as u32 == id) && dquot.0.contains_key("bcount");
        found.insert(id, own.then_some(dquot));
    }
    ensure!(found.len() == kind.ids().len(), "xfs_db shows {} dquots:\n{text}", found.len());
    Ok(found)
}

/// A number as `xfs_db` shows it.
fn number(text: &str) -> Result<u64> {
    let word = text.split_whitespace().next().unwrap_or_default();
    let parsed = word.strip_prefix("0x").map_or_else(|| word.parse(), |hex| u64::from_str_radix(hex, 16));
    parsed.with_context(|| format!("a number: {text}"))
}
