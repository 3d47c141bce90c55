//! Every design against the plainest model: a list of what is held.
#![forbid(unsafe_code)]
#![cfg(not(loom))]

mod common;

use proptest::prelude::*;
use rangelock::{ByteRangeLock, Mode};

#[derive(Clone, Debug)]
enum Step {
    Try(u64, u64, Mode),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)];
    let len = prop_oneof![6 => 1u64..20, 1 => 1u64..400, 1 => Just(u64::MAX)];
    prop_oneof![
        3 => (0u64..200, len, mode).prop_map(|(start, len, mode)| Step::Try(start, start.saturating_add(len), mode)),
        2 => any::<usize>().prop_map(Step::Release),
    ]
}

fn run<L: ByteRangeLock>(lock: &L, whole_file: bool, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut held = Vec::new();
    for step in steps {
        match step {
            Step::Try(start, end, mode) => {
                let free = held.iter().all(|&(other_start, other_end, other_mode, _)| {
                    let overlaps = whole_file || (start < other_end && other_start < end);
                    !overlaps || (mode == Mode::Shared && other_mode == Mode::Shared)
                });
                let token = lock.try_acquire(start..end, mode);
                prop_assert_eq!(token.is_some(), free, "{}..{} {:?}", start, end, mode);
                held.extend(token.map(|token| (start, end, mode, token)));
            }
            Step::Release(which) if !held.is_empty() => {
                let which = which % held.len();
                lock.release(held.swap_remove(which).3);
            }
            Step::Release(_) => {}
        }
    }
    held.into_iter().for_each(|(_, _, _, token)| lock.release(token));
    prop_assert!(lock.try_acquire(0..u64::MAX, Mode::Exclusive).is_some());
    Ok(())
}

fn agrees<L: ByteRangeLock>(make: impl Fn() -> L) {
    let whole_file = std::any::type_name::<L>().ends_with("WholeFileLock");
    proptest!(|(steps in prop::collection::vec(step(), 1..120))| run(&make(), whole_file, steps)?);
}

for_every_design!(agrees);
