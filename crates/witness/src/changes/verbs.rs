//! The verbs: what is done to a volume, and what the kernel must see of it.

/// A verb that changes, with all that it needs.
pub(super) struct Verb {
    /// Its name in the table.
    pub(super) name: &'static str,
    /// The command, without its name: `@` is the image with a colon, `%` the image, `^` a folder of the host with files to
    /// copy in.
    pub(super) command: &'static str,
    /// What the kernel must find if it was done, as a script of the shell at the volume's root.
    pub(super) after: &'static str,
    /// Paths that it may change, with all that is below them. The directory above each may change as well.
    pub(super) touches: &'static [&'static str],
    /// On which volume.
    pub(super) on: On,
    /// Refused on every volume, as it is asked for something that it must not do.
    pub(super) refused: bool,
}

/// Which volume a verb is done on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// One that the kernel unmounted.
    Clean,
    /// One whose log the kernel left dirty, with an inode to free.
    Crashed,
    /// One whose log the kernel left dirty, with an inode to free whose blocks another file has.
    CrashedClone,
}

const fn verb(
    name: &'static str,
    command: &'static str,
    after: &'static str,
    touches: &'static [&'static str],
) -> Verb {
    Verb { name, command, after, touches, on: On::Clean, refused: false }
}

/// The name of the cell that does random operations through the library.
pub(super) const RANDOM: &str = "random operations";

/// All of them.
pub(super) const VERBS: [Verb; 54] = [
    verb("cp in", "cp ^/file @/v/new", "cmp v/new $H/file", &["/v/new"]),
    verb("cp in, large", "cp ^/large @/v/new", "cmp v/new $H/large", &["/v/new"]),
    verb("cp -r in", "cp -r ^/tree @/v/copied", "diff -r v/copied $H/tree", &["/v/copied"]),
    verb("cp onto", "cp ^/file @/v/plain", "cmp v/plain $H/file", &["/v/plain", "/v/hard"]),
    verb("cp onto, longer", "cp ^/large @/v/plain", "cmp v/plain $H/large", &["/v/plain", "/v/hard"]),
    verb("cp onto a clone", "cp ^/file @/v/a", "cmp v/a $H/file", &["/v/a"]),
    verb("cp onto a link", "cp ^/file @/v/soft", "", &["/v/plain", "/v/hard", "/v/soft"]),
    verb("cp within", "cp -r @/v/tree @/v/again", "diff -r v/tree/sub/deep v/again/sub/deep", &["/v/again"]),
    verb("cp of a clone", "cp @/v/a @/v/new", "cmp v/new v/b", &["/v/new"]),
    verb("mkdir", "mkdir @/v/made", "test -d v/made", &["/v/made"]),
    verb("mkdir -p", "mkdir -p @/v/tree/x/y/z", "test -d v/tree/x/y/z", &["/v/tree"]),
    verb("rm", "rm @/v/reserved", "! test -e v/reserved", &["/v/reserved"]),
    verb("rm of a link", "rm @/v/soft", "! test -L v/soft", &["/v/soft"]),
    verb("rm of one of two names", "rm @/v/hard", "test -e v/plain", &["/v/plain", "/v/hard"]),
    verb("rm of a clone", "rm @/v/a", "! test -e v/a", &["/v/a"]),
    verb("rm of half a clone", "rm @/v/part", "! test -e v/part", &["/v/part"]),
    verb("rm of a self-sharer", "rm @/v/self", "! test -e v/self", &["/v/self"]),
    verb("rm of deduplicated", "rm @/v/same", "! test -e v/same", &["/v/same"]),
    Verb { refused: true, ..verb("rm of a fixed file", "rm @/v/fixed", "false", &["/v/fixed"]) },
    verb("rm -r", "rm -r @/v/tree", "! test -e v/tree", &["/v/tree"]),
    verb("rm -r with clones", "rm -r @/v/mixed", "", &["/v/mixed"]),
    verb("rm -r of names", "rm -r @/names", "! test -e names", &["/names"]),
    verb("rm -r of data", "rm -r @/data", "! test -e data", &["/data"]),
    verb("rm -r of dirs", "rm -r @/dirs", "! test -e dirs", &["/dirs"]),
    verb("rm -r of many", "rm -r @/big", "! test -e big", &["/big"]),
    verb("rm -r of clones", "rm -r @/clones", "", &["/clones"]),
    verb("rm -r of attrs", "rm -r @/attrs", "! test -e attrs", &["/attrs"]),
    verb("rm -r of special", "rm -r @/special", "! test -e special", &["/special"]),
    verb("rmdir", "rmdir @/v/empty", "! test -e v/empty", &["/v/empty"]),
    verb("mv", "mv @/v/plain @/v/tree/moved", "test -e v/tree/moved", &["/v/plain", "/v/hard", "/v/tree"]),
    verb(
        "mv over",
        "mv @/v/plain @/v/reserved",
        "! test -e v/plain",
        &["/v/plain", "/v/hard", "/v/reserved"],
    ),
    verb("mv over a clone", "mv @/v/plain @/v/a", "! test -e v/plain", &["/v/plain", "/v/hard", "/v/a"]),
    verb("mv of a clone", "mv @/v/a @/v/c", "cmp v/c v/b", &["/v/a", "/v/c"]),
    verb("mv of a directory", "mv @/v/tree/sub @/v/empty", "test -d v/empty/sub", &["/v/tree", "/v/empty"]),
    verb("ln", "ln @/v/reserved @/v/other", "test v/other -ef v/reserved", &["/v/reserved", "/v/other"]),
    verb("ln -s", "ln -s somewhere @/v/other", "test -L v/other", &["/v/other"]),
    verb("chmod", "chmod 600 @/v/plain", "test $(stat -c %a v/plain) = 600", &["/v/plain", "/v/hard"]),
    verb("chmod under a list", "chmod 640 @/v/listed", "test -e v/listed", &["/v/listed"]),
    verb("chown", "chown 7:8 @/v/plain", "test $(stat -c %u v/plain) = 7", &["/v/plain", "/v/hard"]),
    verb("truncate to nothing", "truncate -s 0 @/v/frayed", "test ! -s v/frayed", &["/v/frayed"]),
    verb("truncate", "truncate -s 100000 @/v/frayed", "test $(stat -c %s v/frayed) = 100000", &["/v/frayed"]),
    verb("truncate, longer", "truncate -s +1M @/v/plain", "", &["/v/plain", "/v/hard"]),
    verb("truncate a clone", "truncate -s 5000 @/v/a", "", &["/v/a"]),
    verb("truncate half a clone", "truncate -s 200k @/v/part", "", &["/v/part"]),
    verb(
        "xattr set",
        "xattr set @/v/plain user.new value",
        "getfattr -n user.new v/plain",
        &["/v/plain", "/v/hard"],
    ),
    verb(
        "xattr rm",
        "xattr rm @/v/plain user.old",
        "! getfattr -n user.old v/plain",
        &["/v/plain", "/v/hard"],
    ),
    verb("untar", "untar -i ^/tree.tar @/v/empty", "diff -r v/empty/tree $H/tree", &["/v/empty"]),
    Verb { refused: true, ..verb("mkfs", "mkfs %", "", &[]) },
    verb("label", "label % new", "xfs_io -r -c label . | grep -qx 'label = \"new\"'", &[]),
    verb("uuid", "uuid % generate", "", &[]),
    verb("grow", "grow % 1500M", "test $(($(stat -f -c '%b * %S' .))) -gt $((1300 << 20))", &[]),
    verb(RANDOM, "", "", &["/"]),
    Verb { on: On::Crashed, ..verb("recover", "recover %", "", &[]) },
    Verb { on: On::CrashedClone, ..verb("recover a clone", "recover %", "", &[]) },
];
