//! The checker against `xfs_repair -n`. Needs root, xfsprogs and loop mounts.

use blockdev::{BlockDevice, MemoryOptions};
use fastrand::Rng;
use std::sync::Arc;
use witness::check::fields;
use witness::damage::layout::targets;
use witness::damage::mutate::{Menu, damage};
use witness::damage::overlay::Overlay;
use witness::fill::{Sizes, fill};
use witness::sandbox;
use xfs::check::{CheckOptions, check};

/// A volume with every structure, each of whose fields is damaged in turn: both notice the same ones, but for those
/// that are explained.
#[test]
fn one_damaged_field_gets_the_same_verdict_from_both() {
    let kind =
        fields::KINDS.iter().find(|kind| kind.name == "fields-rmapbt").expect("the volume is in the table");
    let mut fields = 0;
    let right = fields::run(kind, &mut |outcome| {
        fields += 1;
        if outcome.differs() {
            println!("{outcome}");
        }
    });
    assert!(right.unwrap(), "a difference without an explanation, or an explanation without a difference");
    assert!(fields >= 200, "only {fields} fields were damaged");
}

/// Random damage, some of it behind right checksums: the checker comes to an end, finds most of it, and keeps to the
/// bounds of its report. `CHECK_SEED` replays a run, `CHECK_IMAGES` makes it longer.
#[test]
fn random_damage_ends_in_findings() {
    let folder = sandbox::scratch().unwrap();
    let image = folder.path().join("image");
    sandbox::mkfs(&image, &fields::KINDS[1]).unwrap();
    let mounted = sandbox::Mounted::new(&image, &folder.path().join("mnt"), false).unwrap();
    let sizes = Sizes { seed: 2, inodes: 200, big_dir: 1500, extents: 700, beyond_repair: true };
    fill(mounted.dir(), &sizes, &mut |_| {}).unwrap();
    mounted.unmount().unwrap();
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryOptions::new().write(false).map_file(&image).unwrap());
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
