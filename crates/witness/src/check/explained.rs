//! Where `uxfs check` and `xfs_repair -n` differ, and why. In all of these it is `xfs_repair` 6.1 that finds nothing.

/// Structure, field, and why the verdicts differ.
pub type Reason = (&'static str, &'static str, &'static str);

/// All of them.
pub const EXPLAINED: &[Reason] = &[
    ("superblock copy", "uuid", "xfs_repair compares the shape that the copies describe, not their UUIDs"),
    ("superblock copy", "dirblklog", "xfs_repair leaves it out of the shape that copies must agree on"),
    (
        "file",
        "extent startblock, beyond",
        "xfs_repair cuts the number of a group to 32 bits before it looks at it",
    ),
    (
        "directory",
        "size",
        "xfs_repair asks for a size below the hash index, the kernel for where the data end",
    ),
    (
        "directory leaf",
        "hash",
        "xfs_repair looks at the order of hashes within a leaf, not from leaf to leaf",
    ),
    ("attribute leaf", "flags", "xfs_repair knows no flag that an entry must not have"),
    (
        "remote value",
        "offset",
        "xfs_repair checks of a remote block that it is one, not which piece of whose value",
    ),
    (
        "remote value",
        "bytes",
        "xfs_repair checks of a remote block that it is one, not which piece of whose value",
    ),
    (
        "remote value",
        "owner",
        "xfs_repair checks of a remote block that it is one, not which piece of whose value",
    ),
    ("bnobt", "leftsib", "xfs_repair builds the trees of a group anew and does not follow siblings"),
    ("bnobt", "rightsib", "xfs_repair builds the trees of a group anew and does not follow siblings"),
    ("AGFL", "magic", "xfs_repair says so and calls the volume clean all the same: it makes the list anew"),
    ("AGFL", "seqno", "xfs_repair says so and calls the volume clean all the same: it makes the list anew"),
    ("attribute leaf", "owner", "xfs_repair checks owners of directory blocks, not of attribute blocks"),
];
