//! What a campaign comes to: how often the two agree, and what they differ about.

use super::PANIC;
use super::campaign::CaseOutcome;
use std::collections::{BTreeMap, BTreeSet};

/// The numbers of a campaign.
struct Tally {
    damaged: usize,
    clean: usize,
    ours: usize,
    theirs: usize,
    unexplained: usize,
    panics: usize,
}

impl Tally {
    fn of(outcomes: &[CaseOutcome]) -> Self {
        let count = |what: &dyn Fn(&CaseOutcome) -> bool| outcomes.iter().filter(|it| what(it)).count();
        Self {
            damaged: count(&|it| it.ours.is_some() && it.theirs.is_some()),
            clean: count(&|it| it.ours.is_none() && it.theirs.is_none()),
            ours: count(&|it| it.ours.is_some() && it.theirs.is_none()),
            theirs: count(&|it| it.ours.is_none() && it.theirs.is_some()),
            unexplained: count(&|it| it.differs() && it.reason().is_none()),
            panics: count(&|it| it.said(PANIC)),
        }
    }
}

/// Whether both say the same of all, except for what is explained, and none panicked.
pub fn right(outcomes: &[CaseOutcome]) -> bool {
    let tally = Tally::of(outcomes);
    tally.unexplained == 0 && tally.panics == 0
}

/// Prints the sum of all cases; gives the share, in percent, about which both say the same.
pub fn print(outcomes: &[CaseOutcome]) -> f64 {
    let Tally { damaged, clean, ours, theirs, unexplained, panics } = Tally::of(outcomes);
    let all = outcomes.len();
    let percent = if all == 0 { 0.0 } else { (damaged + clean) as f64 * 100.0 / all as f64 };
    let fields: BTreeSet<_> = outcomes.iter().map(|outcome| (&outcome.structure, &outcome.field)).collect();
    let structures: BTreeSet<_> = outcomes.iter().map(|outcome| &outcome.structure).collect();
    println!(
        "check: {all} damaged fields ({} different ones of {} structures): {percent:.2} % agree",
        fields.len(),
        structures.len()
    );
    println!(
        "check: damaged for both {damaged}, clean for both {clean}, damaged for uxfs alone {ours}, \
         for xfs_repair alone {theirs}; {unexplained} without a reason; {panics} panics"
    );
    list("explained", outcomes, &|outcome| outcome.reason().map(|reason| reason.why));
    list("NOT EXPLAINED", outcomes, &|outcome| {
        (outcome.differs() && outcome.reason().is_none()).then_some("no reason is known")
    });
    percent
}

/// Lists the differences by what is said of them and by field.
fn list(title: &str, outcomes: &[CaseOutcome], why: &dyn Fn(&CaseOutcome) -> Option<&'static str>) {
    let mut reasons: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    for outcome in outcomes {
        if let Some(why) = why(outcome) {
            let who = if outcome.ours.is_some() { "uxfs" } else { "xfs_repair" };
            let field = format!("{}, {}: damaged for {who} alone", outcome.structure, outcome.field);
            *reasons.entry(why).or_default().entry(field).or_default() += 1;
        }
    }
    for (why, fields) in reasons {
        println!("{title}: {why}");
        for (field, count) in fields {
            println!("  {count:4} {field}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::campaign::Edit;
    use super::*;

    fn outcome(ours: Option<&str>, theirs: Option<&str>) -> CaseOutcome {
        CaseOutcome {
            case: 0,
            volume: String::new(),
            structure: "bnobt leaf".to_owned(),
            field: "numrecs".to_owned(),
            at: 0,
            bit: 0,
            bits: 16,
            edit: Edit::More,
            old: 1,
            new: 2,
            ours: ours.map(str::to_owned),
            theirs: theirs.map(str::to_owned),
        }
    }

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn a_difference_needs_a_reason_and_a_panic_has_none() {
        let (clean, damaged) = (outcome(None, None), outcome(Some("a"), Some("b")));
        assert!(right(&[clean.clone(), damaged.clone()]));
        assert!((print(&[clean, damaged.clone(), outcome(None, Some("b")), damaged]) - 75.0).abs() < 1e-9);
        let (alone, missed) = (outcome(Some("a"), None), outcome(None, Some("b")));
        assert!(!right(std::slice::from_ref(&alone)) && !right(std::slice::from_ref(&missed)));
        // One for siblings, and that for what uxfs finds alone.
        let sibling = |outcome| CaseOutcome { field: "leftsib".to_owned(), ..outcome };
        assert!(right(&[sibling(alone)]) && !right(&[sibling(missed)]));
        assert!(!right(&[outcome(Some(PANIC), Some("b"))]));
    }
}
