//! The checker against `xfs_repair -n`. Needs root, xfsprogs and loop mounts.

use witness::check::fields;

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
