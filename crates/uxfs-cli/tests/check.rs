//! `uxfs check`: exit codes and output, on volumes that the kernel filled and on damaged ones.

mod common;

use common::{Image, uxfs, uxfs_fails};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;

fn lines(output: &[u8]) -> Vec<Value> {
    output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(json).collect()
}

fn json(line: &[u8]) -> Value {
    serde_json::from_slice(line).expect("a JSON object a line")
}

#[test]
fn a_filled_volume_is_clean() {
    let image = Image::filled(&[]);
    let output = uxfs(&[&"check", &image.path]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.trim_end().ends_with(": clean") && said.lines().count() == 1, "{said}");

    let output = uxfs(&[&"check", &"--json", &image.path]);
    let lines = lines(&output.stdout);
    let summary = &lines[0]["summary"];
    assert_eq!((lines.len(), &summary["clean"], &summary["findings"]), (1, &true.into(), &0.into()));
    assert!(summary["names"].as_u64() > Some(10) && summary["log_clean"] == true, "{summary}");
}

#[test]
fn damage_is_said_finding_by_finding() {
    let image = Image::new(&[]);
    // A byte of the AGI's counters in the second group: its checksum is wrong then.
    let agi = (400 << 20) / 4 + 2 * 512;
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    file.write_all_at(&[0x55], agi + 19).unwrap();
    let output = uxfs(&[&"check", &image.path]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.starts_with("group 1: AGI: checksum"), "{said}");

    let output = uxfs(&[&"check", &"--json", &image.path]);
    let lines = lines(&output.stdout);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(
        (&lines[0]["group"], &lines[0]["structure"], &lines[0]["what"]),
        (&1.into(), &"AGI".into(), &"checksum".into())
    );
    assert_eq!(lines.last().unwrap()["summary"]["clean"], false);

    file.set_len(100 << 20).unwrap();
    uxfs_fails(&[&"check", &image.path], 5, "truncated");
    file.write_all_at(b"none", 0).unwrap();
    uxfs_fails(&[&"check", &image.path], 4, "not an XFS volume");
}
