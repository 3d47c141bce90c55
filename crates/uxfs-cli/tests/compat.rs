//! Volumes for each kernel: the sets that `mkfs --compat` makes beside those of `mkfs.xfs`, what `info` says of kernels
//! and quota, and the table of volumes that other tools make: each is read, written and recovered. Needs root, releases of
//! xfsprogs, and loop mounts.
#![forbid(unsafe_code)]

mod common;

use common::{Image, manifest, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use oracles::xfsprogs::Release;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xfs_format::error::FormatError;
use xfs_format::log::{LogIdentity, find_ends};
use xfs_format::superblock::Superblock;

const KERNELS: [&str; 8] = ["4.19", "5.4", "5.10", "5.15", "6.1", "6.6", "6.12", "6.18"];

fn info(image: &Path) -> Value {
    serde_json::from_slice(&uxfs_ok(&[&"info", &"--json", &image])).expect("one object")
}

/// The configuration file of a kernel, as the newest release has it.
fn configuration(kernel: &str) -> PathBuf {
    let name = format!("lts_{kernel}.conf");
    let all = Release::Unstable.configurations().expect("installed");
    all.into_iter().find(|path| path.ends_with(&name)).unwrap_or_else(|| panic!("no {name}"))
}

/// What `mkfs.xfs` wants to be told so that it takes a file.
fn option_of(configuration: &Path) -> String {
    format!("options={}", configuration.display())
}

fn repaired(release: Release, image: &Path) {
    run(release.path("xfs_repair").unwrap().to_str().unwrap(), &[&"-n", &image]);
}

/// All that must have nothing against a volume: the newest `xfs_repair`, the system's if it knows the features, and our own.
fn sound(image: &Path) {
    repaired(Release::Unstable, image);
    let features = info(image)["features"].to_string();
    if !["exchange", "parent"].iter().any(|name| features.contains(name)) {
        repaired(Release::System, image);
    }
    uxfs_ok(&[&"check", &image]);
}

/// The kernel makes, changes and removes things in a volume.
fn let_the_kernel_work(image: &Image) {
    let mount = image.mount(&[]);
    let work = "cd \"$0\" && mkdir kernel && for n in $(seq 300); do seq $n > kernel/$n; done &&
        mv kernel/7 kernel/moved && ln kernel/8 kernel/hard && ln -s 9 kernel/soft && rm kernel/1* &&
        cp -r kernel again && rm -r kernel && mv again kernel && setfattr -n user.a -v b kernel/20";
    run("sh", &[&"-c", &work, &mount.dir()]);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_set_of_each_kernel_is_that_of_mkfs_xfs() {
    let words = |image: &Path| -> Vec<String> {
        let print = "p features2 features_compat features_ro_compat features_incompat logblocks";
        let xfs_db = Release::Unstable.path("xfs_db").unwrap();
        let said = run(xfs_db.to_str().unwrap(), &[&"-r", &"-c", &"sb 0", &"-c", &print, &image]);
        String::from_utf8(said).unwrap().lines().map(str::to_owned).collect()
    };
    for kernel in KERNELS {
        let option = option_of(&configuration(kernel));
        let theirs = Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &["-c", &option]);
        let dir = scratch();
        let ours = Image { path: dir.path().join("volume.img"), dir };
        uxfs_ok(&[&"mkfs", &"-q", &ours.path, &"400M", &"--compat", &kernel]);
        assert_eq!(words(&ours.path), words(&theirs.path), "{kernel}");
        // The files for older kernels say that nobody checks the volume unasked: a property of its root, and no feature.
        let named = |image: &Path| -> Vec<Value> {
            let all = info(image)["features"].as_array().unwrap().clone();
            all.into_iter().filter(|name| name != "autofsck").collect()
        };
        assert_eq!(named(&ours.path), named(&theirs.path), "{kernel}");
        sound(&ours.path);
        let_the_kernel_work(&ours);
        sound(&ours.path);
        // The kernel that it is for mounts it, and writes it.
        let since = info(&ours.path)["kernels"]["written"].as_str().unwrap().to_owned();
        let number = |name: &str| -> Vec<u16> { name.split('.').map(|part| part.parse().unwrap()).collect() };
        assert!(number(&since) <= number(kernel), "{since} {kernel}");
    }
}

#[test]
fn the_same_set_gives_the_same_bytes() {
    let dir = scratch();
    for kernel in KERNELS {
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        for image in [&one, &two] {
            let uuid = "uuid=3e3a4f8c-7a52-4a5e-9f0e-0f6d1b3c5a77";
            uxfs_ok(&[
                &"mkfs",
                &"-qf",
                &"--small",
                &image,
                &"48M",
                &"--compat",
                &kernel,
                &"-m",
                &uuid,
                &"--time",
                &"86400",
            ]);
        }
        run("cmp", &[&one, &two]);
    }
}

#[test]
fn options_beside_a_set_win_unless_its_kernel_does_not_know_them() {
    let dir = scratch();
    let image = dir.path().join("image");
    let made = |args: &[&str]| {
        let fixed: [&dyn AsRef<OsStr>; 4] = [&"mkfs", &"-qf", &image, &"400M"];
        let args = args.iter().map(|arg| arg as &dyn AsRef<OsStr>);
        uxfs_ok(&fixed.into_iter().chain(args).collect::<Vec<_>>());
        let features = info(&image)["features"].as_array().unwrap().clone();
        move |name: &str| features.contains(&json!(name))
    };
    // Known to the kernel, and no part of its set.
    let has = made(&["--compat", "5.4", "-m", "rmapbt=1"]);
    assert!(has("rmapbt") && has("reflink") && !has("bigtime"));
    let has = made(&["--compat", "6.12", "-m", "rmapbt=0,finobt=0", "-i", "nrext64=0,sparse=0"]);
    assert!(has("reflink") && has("bigtime"));
    assert!(!["rmapbt", "finobt", "inobtcount", "nrext64", "spinodes"].iter().any(|name| has(name)));
    let has = made(&["--compat", "6.12", "-i", "exchange=1", "-n", "parent=1"]);
    assert!(has("exchange") && has("parent"));
    let has = made(&["--compat", "6.18", "-i", "exchange=0", "-n", "parent=0"]);
    assert!(!has("exchange") && !has("parent") && has("rmapbt"));
    std::fs::remove_file(&image).unwrap();
    for (kernel, option, unknown) in [
        ("4.19", ["-m", "bigtime=1"], "bigtime"),
        ("5.4", ["-m", "inobtcount=1,bigtime=1"], "inobtcount, bigtime"),
        ("5.15", ["-i", "nrext64"], "nrext64"),
        ("6.6", ["-n", "parent=1"], "parent"),
        ("6.6", ["-i", "exchange=1"], "exchange"),
    ] {
        let said = format!("--compat {kernel}: kernel {kernel} does not write volumes with {unknown}");
        uxfs_fails(&[&"mkfs", &image, &"400M", &"--compat", &kernel, &option[0], &option[1]], 2, &said);
        assert!(!image.exists());
    }
    let wrong = uxfs(&[&"mkfs", &image, &"400M", &"--compat", &"6.2"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("4.19, 5.4, 5.10, 5.15, 6.1, 6.6, 6.12, 6.18"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn info_says_which_kernels_mount_a_volume() {
    let dir = scratch();
    let image = dir.path().join("image");
    for (args, read, written, text) in [
        (
            &["--compat", "4.19"][..],
            "4.2",
            "4.2",
            "mounted since 4.2 (spinodes), for writing since 4.2 (spinodes)",
        ),
        (&["--compat", "4.19", "-m", "rmapbt=1"], "4.2", "4.8", "for writing since 4.8 (rmapbt)"),
        (&["--compat", "6.1"], "5.10", "5.10", "for writing since 5.10 (inobtcount, bigtime)"),
        (&["--compat", "6.12"], "5.19", "5.19", "mounted since 5.19 (nrext64)"),
        (&["--compat", "6.18"], "6.10", "6.10", "mounted since 6.10 (exchange, parent)"),
        (
            &["--compat", "6.1", "-b", "size=16k"],
            "6.12",
            "6.12",
            "mounted since 6.12 (blocks larger than pages)",
        ),
    ] {
        let fixed: [&dyn AsRef<OsStr>; 4] = [&"mkfs", &"-qf", &image, &"400M"];
        let args = args.iter().map(|arg| arg as &dyn AsRef<OsStr>);
        uxfs_ok(&fixed.into_iter().chain(args).collect::<Vec<_>>());
        let kernels = &info(&image)["kernels"];
        assert_eq!((&kernels["read"], &kernels["written"]), (&json!(read), &json!(written)));
        let shown = String::from_utf8(uxfs_ok(&[&"info", &image])).unwrap();
        let line = shown.lines().find(|line| line.starts_with("kernels     ")).expect("a line");
        assert!(line.contains(text), "{line}");
    }
    for (args, option) in
        [(&["-m", "crc=0"][..], "XFS_SUPPORT_V4"), (&["-n", "version=ci"], "XFS_SUPPORT_ASCII_CI")]
    {
        let old = Image::new(args);
        assert_eq!(info(&old.path)["kernels"]["build_options"], json!([option]));
        let shown = String::from_utf8(uxfs_ok(&[&"info", &old.path])).unwrap();
        assert!(shown.contains(&format!("; recent ones if built with {option}\n")), "{shown}");
    }
    assert_eq!(info(&image)["kernels"]["build_options"], json!([]));
    // A volume that a kernel flagged is mounted by each, and written by none.
    run("xfs_db", &[&"-x", &"-c", &"sb 0", &"-c", &"write flags 0x80", &image]);
    let kernels = &info(&image)["kernels"];
    assert_eq!(
        (&kernels["written"], &kernels["written_because"]),
        (&Value::Null, &json!(["read-only flag"]))
    );
}

/// The kernel counts anew if no mark says that counts are right; the first change takes the marks back.
#[test]
#[ignore = "needs root and xfsprogs"]
fn info_says_what_becomes_of_quota() {
    for release in [Release::System, Release::Unstable] {
        let image = Image::made_by(&release.path("mkfs.xfs").unwrap(), &[]);
        assert_eq!(info(&image.path)["quota"], Value::Null);
        let path = release.path("xfs_db").unwrap();
        let xfs_db = path.to_str().unwrap();
        // Users and projects: counted, with limits, checked; groups counted alone.
        let write = ["sb 0", "write versionnum 0xb4f5", "write qflags 0x64f"];
        run(xfs_db, &[&"-x", &"-c", &write[0], &"-c", &write[1], &"-c", &write[2], &image.path]);
        let text = || String::from_utf8(uxfs_ok(&[&"info", &image.path])).unwrap();
        let kinds = json!(["user", "group", "project"]);
        let quota = json!({ "kinds": kinds, "counted": ["user", "project"], "limits_enforced": false });
        assert_eq!(info(&image.path)["quota"], quota);
        let line = "\nquota       user, group, project: limits are not enforced by uxfs; once it has written, the \
                    next kernel counts anew\n";
        assert!(text().contains(line), "{}", text());
        uxfs_ok(&[&"mkdir", &image.at("/made")]);
        assert_eq!(info(&image.path)["quota"]["counted"], json!([]));
        let anew = "limits are not enforced by uxfs; the next kernel counts anew\n";
        assert!(text().contains(anew), "{}", text());
        let said = run(xfs_db, &[&"-r", &"-c", &"sb 0", &"-c", &"p qflags", &image.path]);
        assert_eq!(String::from_utf8(said).unwrap().trim(), "qflags = 0x24b");
    }
}

/// A volume of the table: who makes it, and with what.
struct Row {
    name: String,
    release: Release,
    configuration: Option<PathBuf>,
}

/// The defaults of each release, and the newest release's file for each kernel.
fn rows() -> Vec<Row> {
    let row = |name: &str, release| Row { name: name.to_owned(), release, configuration: None };
    let mut rows = vec![
        row("defaults of `mkfs.xfs` 6.1", Release::System),
        row("defaults of `mkfs.xfs` 6.13, as those of 6.6 and 6.15", Release::Stable),
        row("defaults of `mkfs.xfs` 7.2, as those of 6.18", Release::Unstable),
    ];
    rows.extend(KERNELS.map(|kernel| Row {
        name: format!("`lts_{kernel}.conf`"),
        release: Release::Unstable,
        configuration: Some(configuration(kernel)),
    }));
    rows
}

impl Row {
    fn image(&self) -> Image {
        let option = self.configuration.as_deref().map(option_of);
        let options: Vec<&str> = option.iter().flat_map(|option| ["-c", option]).collect();
        Image::made_by(&self.release.path("mkfs.xfs").unwrap(), &options)
    }

    /// uxfs shows what the kernel sees.
    fn read(&self) {
        let image = self.image();
        let mount = image.mount(&[]);
        common::fill(mount.dir());
        let there = manifest(mount.dir());
        drop(mount);
        let out = image.dir.path().join("out");
        uxfs_ok(&[&"cp", &"-a", &image.at("/."), &out]);
        assert_eq!(manifest(&out), there, "{}", self.name);
    }

    /// uxfs writes beside what the kernel wrote, and the kernel goes on.
    fn written(&self) {
        let image = self.image();
        let host = image.dir.path().join("host");
        std::fs::create_dir(&host).unwrap();
        common::fill(&host);
        let_the_kernel_work(&image);
        uxfs_ok(&[&"cp", &"-a", &host, &image.at("/host")]);
        sound(&image.path);
        uxfs_ok(&[&"rm", &"-r", &image.at("/host/many")]);
        uxfs_ok(&[&"mv", &image.at("/host/docs"), &image.at("/kernel")]);
        uxfs_ok(&[&"truncate", &"-s", &"5000", &image.at("/kernel/docs/large.bin")]);
        uxfs_ok(&[&"ln", &image.at("/kernel/300"), &image.at("/host/three")]);
        uxfs_ok(&[&"xattr", &"set", &image.at("/kernel/300"), &"user.colour", &"red"]);
        sound(&image.path);
        let mount = image.mount(&[]);
        for (name, there) in [("links", "links"), ("deep", "deep"), ("bytes", "bytes")] {
            let (ours, theirs) = (mount.dir().join("host").join(name), host.join(there));
            run("diff", &[&"-r", &"--no-dereference", &theirs, &ours]);
        }
        run("cp", &[&"-a", &mount.dir().join("kernel"), &mount.dir().join("copy")]);
        run("rm", &[&"-r", &mount.dir().join("host"), &mount.dir().join("kernel")]);
        drop(mount);
        sound(&image.path);
    }

    /// What the kernel left in the log is finished as the kernel finishes it.
    fn recovered(&self) {
        let image = self.image();
        let mount = image.mount(&[]);
        let crash = "cd \"$0\" && for n in $(seq 200); do mkdir d$n; seq $n > d$n/file; done && sync -f . &&
            for n in $(seq 1 3 200); do mv d$n/file d$((n + 1))/moved; rm -r d$n; done &&
            cp --reflink=auto d200/file d198/clone && seq 9999 > d200/file && sync -f . &&
            exec 3>held && dd if=/dev/zero bs=64k count=9 status=none >&3 && rm held &&
            setfattr -n user.late -v value d200 && xfs_io -x -c 'shutdown -f' .";
        run("sh", &[&"-c", &crash, &mount.dir()]);
        drop(mount);
        assert_eq!(info(&image.path)["log_clean"], false, "{}", self.name);
        let copy = Image { path: image.dir.path().join("copy.img"), dir: scratch() };
        run("cp", &[&"--sparse=always", &image.path, &copy.path]);
        let in_memory = uxfs_ok(&[&"recover", &"--dry-run", &"--json", &image.path]);
        run("cmp", &[&copy.path, &image.path]);
        let said = uxfs(&[&"recover", &"--json", &image.path]);
        assert!(said.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&said.stderr));
        let [mut in_memory, done]: [Value; 2] =
            [in_memory, said.stdout].map(|text| serde_json::from_slice(&text).expect("an object"));
        assert_eq!(in_memory["written"].take(), false);
        in_memory["written"] = true.into();
        assert_eq!(in_memory, done, "{}: what a dry run says", self.name);
        sound(&image.path);
        assert_eq!(manifest(image.mount(&[]).dir()), manifest(copy.mount(&[]).dir()), "{}", self.name);
        let_the_kernel_work(&image);
        sound(&image.path);
    }
}

/// The table of docs/testing.md.
#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_of_every_release_are_read_written_and_recovered() {
    let table = include_str!("../../../docs/testing.md");
    let rows = rows();
    assert_eq!(rows.len(), KERNELS.len() + 3);
    for row in &rows {
        let line = format!("| {} | yes | yes | yes |", row.name);
        assert!(table.lines().any(|found| found == line), "no line {line}");
        assert_eq!(info(&row.image().path)["read_only_because"], json!([]), "{}", row.name);
        row.read();
        row.written();
        row.recovered();
    }
}

/// Releases between those that are asked have the features on that one of these has.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_defaults_of_6_6_to_6_15_are_those_of_6_13() {
    let features = |image: Image| info(&image.path)["features"].clone();
    let of_stable = features(Image::made_by(&Release::Stable.path("mkfs.xfs").unwrap(), &[]));
    for kernel in ["6.6", "6.12"] {
        let option = option_of(&configuration(kernel));
        let mut found =
            features(Image::made_by(&Release::Unstable.path("mkfs.xfs").unwrap(), &["-c", &option]));
        found.as_array_mut().unwrap().retain(|name| name != "autofsck");
        assert_eq!(found, of_stable, "{kernel}");
    }
}

/// Records of any size that a kernel can be asked for fit the log of the smallest volumes.
#[test]
#[ignore = "needs root and xfsprogs"]
fn kernels_with_large_records_mount_the_smallest_volumes() {
    for kernel in ["4.19", "6.12", "6.18"] {
        let dir = scratch();
        let image = Image { path: dir.path().join("volume.img"), dir };
        uxfs_ok(&[&"mkfs", &"-q", &"--small", &image.path, &"48M", &"--compat", &kernel]);
        for records in ["logbsize=256k,logbufs=8", "logbsize=32k"] {
            let mount = image.mount(&[records]);
            std::fs::write(mount.dir().join("file"), records).unwrap();
        }
    }
}

/// Regression: a bad record that the newest one did not need any more, but that a crash could have torn, cut off all that
/// was synced after it. The kernel looks at none before the tail.
#[test]
#[ignore = "needs root and xfsprogs"]
fn damage_to_what_a_log_no_longer_needs_changes_nothing() {
    let image = Image::new(&[]);
    let names = {
        let mount = image.mount(&[]);
        let make = |dir: &str, count: usize| {
            std::fs::create_dir(mount.dir().join(dir)).unwrap();
            (0..count)
                .for_each(|nth| std::fs::write(mount.dir().join(dir).join(nth.to_string()), dir).unwrap());
            run("sync", &[&"-f", &mount.dir()]);
        };
        // The log is written back, so that its tail moves on.
        make("first", 150);
        run("xfs_freeze", &[&"-f", &mount.dir()]);
        run("xfs_freeze", &[&"-u", &mount.dir()]);
        make("second", 150);
        run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
        1 + 2 * (1 + 150)
    };
    let bytes = std::fs::read(&image.path).unwrap();
    let superblock = Superblock::parse(&bytes[..512]).unwrap();
    let identity = LogIdentity { v5: true, uuid: superblock.uuid() };
    let start = superblock.log_daddr().0 as usize * 512;
    let ends = find_ends::<FormatError, _>((superblock.log_bytes() / 512) as u32, &identity, |block, buf| {
        buf.copy_from_slice(&bytes[start + block as usize * 512..][..buf.len()]);
        Ok(())
    })
    .unwrap();
    let (tail, head) = (ends.tail.0 as u32, ends.head);
    assert!(8 < tail && tail < head && !ends.clean, "or nothing is tested: {tail} to {head}");
    let found = |path: &Path| uxfs_ok(&[&"find", &path]).split(|&byte| byte == b'\n').count() - 1;
    for block in [1, 3, tail / 4, tail / 2, tail * 3 / 4, tail - 3, tail - 1] {
        let damaged = image.dir.path().join("damaged.img");
        let mut bytes = bytes.clone();
        bytes[start + block as usize * 512 + 256] ^= 1;
        std::fs::write(&damaged, &bytes).unwrap();
        assert_eq!(found(&damaged), names, "block {block} of {tail} to {head}, as it is read");
        uxfs_ok(&[&"recover", &"--dry-run", &damaged]);
        uxfs_ok(&[&"recover", &damaged]);
        assert_eq!(found(&damaged), names, "block {block} of {tail} to {head}");
        sound(&damaged);
    }
}
