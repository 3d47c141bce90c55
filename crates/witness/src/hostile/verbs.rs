//! The verbs with their arguments: paths that the tree has, and some that it does not have.

use super::GUARD;
use super::bases::SIZE;
use fastrand::Rng;
use std::ffi::OsString;
use std::path::Path;

/// One call of the command.
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// The arguments of `uxfs`.
    pub args: Vec<OsString>,
}

impl Verb {
    /// Whether it changes nothing of the volume.
    pub fn only_reads(&self) -> bool {
        ["cp out", "tar", "mkfs --from", "check", "find", "ls", "tree", "du", "cat", "stat"]
            .contains(&self.name)
    }
}

/// Paths of the tree.
const PATHS: [&str; 19] = [
    "/",
    "/dirs",
    "/dirs/short",
    "/dirs/block",
    "/dirs/leaf",
    "/dirs/node",
    "/dirs/block/entry-0007-nnnnnnn",
    "/deep",
    "/files",
    "/files/large",
    "/files/holes",
    "/files/linked",
    "/files/long-link",
    "/files/many",
    "/files/wide",
    "/base",
    "/clone",
    "/third",
    "/nothing",
];

/// Calls: `@` is a path of the image, `%` the folder of the run, `#` the image alone.
const VERBS: [(&str, &str); 52] = [
    ("rm", "rm @"),
    ("rm -r", "rm -r @"),
    ("rm -r", "rm -rf #:/dirs"),
    ("rm -r", "rm -r #:/files"),
    ("rm -r", "rm -rf #:/dirs/crowd"),
    ("chattr", "chattr -R +iad @"),
    ("rmdir", "rmdir @"),
    ("mv", "mv @ #:/moved"),
    ("mv", "mv @ @"),
    ("ln", "ln @ #:/dirs/leaf/new"),
    ("ln", "ln -s target @"),
    ("cp in", "cp %/archive @"),
    ("cp in", "cp -r %/out #:/dirs"),
    ("cp in", "cp %/guard #:/files/holes"),
    ("cp within", "cp -a @ #:/copy"),
    ("clone", "cp --reflink=always @ #:/cloned"),
    ("clone", "cp -r --reflink=auto @ #:/cloned"),
    ("clone", "cp --reflink=always #:/clone #:/base"),
    ("rm", "rm #:/clone #:/base #:/third"),
    ("truncate", "truncate -s 5000 #:/clone"),
    ("cp in", "cp %/archive #:/third"),
    ("stat", "stat @"),
    ("label", "label # new"),
    ("uuid", "uuid # generate"),
    ("upgrade", "upgrade -O bigtime,inobtcount,nrext64 #"),
    ("cp out", "cp -a @ %/out/copy"),
    ("cp out", "cp -r @ %/out/copy"),
    ("cp out", "cp -r --untrusted #:/. %/out"),
    ("cp out", "cp @ %/out"),
    ("tar", "tar @"),
    ("tar", "tar --untrusted # -o %/out/archive"),
    ("tar", "tar --no-sparse --max-size 100M #"),
    ("untar", "untar -i %/archive @"),
    ("untar", "untar -i %/archive #:/dirs"),
    ("untar", "untar -i %/archive #"),
    ("truncate", "truncate -s 0 @"),
    ("truncate", "truncate -s 1000 @"),
    ("truncate", "truncate -s +3M @"),
    ("chmod", "chmod -R 700 @"),
    ("chown", "chown -R 5:6 @"),
    ("xattr set", "xattr set @ user.new value"),
    ("xattr rm", "xattr rm @ user.0"),
    ("mkdir", "mkdir -p #:/dirs/node/a/b"),
    ("mkdir", "mkdir #:/dirs/leaf/new"),
    ("recover", "recover #"),
    ("mkfs --from", "mkfs -q --small --from %/archive %/out/made 24M"),
    ("check", "check #"),
    ("find", "find #"),
    ("ls", "ls -laR @"),
    ("tree", "tree @"),
    ("du", "du -a @"),
    ("cat", "cat @"),
];

/// Chooses one.
pub fn choose(rng: &mut Rng, dir: &Path) -> Verb {
    let (name, call) = *rng.choice(&VERBS).unwrap_or(&VERBS[0]);
    let image = dir.join("image").to_string_lossy().into_owned();
    let folder = dir.to_string_lossy();
    let mut args: Vec<OsString> = call
        .split(' ')
        .map(|word| match word {
            "@" => format!("{image}:{}", rng.choice(PATHS).unwrap_or("/")).into(),
            word => word.replace('#', &image).replace('%', &folder).into(),
        })
        .collect();
    if name != "mkfs --from" {
        args.extend([
            "--offset".into(),
            GUARD.to_string().into(),
            "--length".into(),
            SIZE.to_string().into(),
        ]);
    }
    Verb { name, args }
}
