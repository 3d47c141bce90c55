//! The checker against `xfs_repair -n`. Needs root, xfsprogs and loop mounts.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, MemoryOptions};
use fastrand::Rng;
use std::sync::Arc;
use witness::check::campaign::{self, Draw, Plan};
use witness::check::{specimens, tally};
use witness::damage::layout::targets;
use witness::damage::mutate::{Menu, damage};
use witness::damage::overlay::Overlay;
use witness::sandbox;
use xfs::check::{CheckOptions, check};

/// Small volumes with every structure, a field of which is damaged at a time: both notice the same, except for what is
/// explained, and that is little. Half as many cases as there are different fields.
#[test]
#[ignore = "needs root and xfsprogs"]
fn one_damaged_field_gets_the_same_verdict_from_both() {
    let plan = Plan {
        seed: 1,
        draw: Draw::Fields,
        cases: 350,
        jobs: 2,
        folder: None,
        case: None,
        field: None,
        volumes: Vec::new(),
    };
    let outcomes = campaign::run(&plan, &|outcome| {
        if outcome.differs() {
            println!("{}: {}", outcome.what(), outcome.verdicts());
        }
    });
    let outcomes = outcomes.unwrap();
    assert_eq!(outcomes.len(), 350);
    assert!(tally::right(&outcomes), "a difference without an explanation");
}

/// Random damage, some of it behind right checksums: the checker comes to an end, finds most of it, and keeps to the
/// bounds of its report. `CHECK_SEED` replays a run, `CHECK_IMAGES` makes it longer.
#[test]
#[ignore = "needs root and xfsprogs"]
fn random_damage_ends_in_findings() {
    let folder = sandbox::scratch().unwrap();
    let image = folder.path().join("image");
    let kind =
        specimens::KINDS.iter().find(|kind| kind.name == "rmapbt").expect("a volume with a reverse map");
    sandbox::mkfs(&image, kind).unwrap();
    specimens::fill(&image, kind, folder.path()).unwrap();
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryOptions::new().copy_of(&image).unwrap());
    // Metadata are all over the image; what mkfs left as holes reads as zeroes, in which nothing is found.
    let whole = 0..usize::try_from(base.size()).unwrap();
    let menu = Menu::new(&targets(&*base, &[whole]).unwrap());
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, images) = (number("CHECK_SEED", fastrand::u64(..)), number("CHECK_IMAGES", 60));
    println!("CHECK_SEED={seed}");
    let options = CheckOptions { norecovery: true, keep: 500, stop: 5_000 };
    assert!(check(Arc::clone(&base), &options).unwrap().is_clean());
    let mut found = 0;
    for nth in 0..images {
        let mut device = Overlay::new(Arc::clone(&base));
        let story = damage(&menu, &mut Rng::with_seed(seed ^ nth), &mut device);
        // Shown if the checker panics.
        println!("{nth}: {}", story.join("; "));
        match check(Arc::new(device), &options) {
            Ok(report) => {
                found += u64::from(!report.is_clean());
                assert!(report.findings().len() <= 500);
                report.findings().iter().for_each(|finding| assert!(!finding.to_string().is_empty()));
            }
            Err(_) => found += 1,
        }
    }
    println!("{found} of {images} images were found to be damaged");
    assert!(found > images / 2);
}
