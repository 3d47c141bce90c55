//! Where `uxfs check` and `xfs_repair -n` differ, and why: each reason holds for some fields, and for one kind of damage
//! to them. In all of these, what uxfs says is right.

use super::campaign::CaseOutcome;
use super::specimens::KINDS;
use oracles::xfsprogs::Release;

/// Why uxfs finds what `xfs_repair` does not: 6.1, or that of today where a volume has what 6.1 does not know.
#[derive(Debug)]
pub struct Reason {
    /// The structures that it holds for; all, if there are none.
    structures: &'static [&'static str],
    /// Their fields.
    fields: &'static [&'static str],
    /// Which damage to them.
    when: fn(&CaseOutcome) -> bool,
    /// In words.
    pub why: &'static str,
}

const fn always(_: &CaseOutcome) -> bool {
    true
}

/// The bit of `features2` for types in directory entries.
const FTYPE: u64 = 0x200;

/// Whether the system's `xfs_repair` judged: 6.1.
fn judged_by_old(outcome: &CaseOutcome) -> bool {
    KINDS.iter().any(|kind| kind.name == outcome.volume && kind.release() == Release::System)
}

/// The owner that the reverse map gives the trees of free space, and the blocks that wait to be used for them.
const OWN_TREES: u64 = (-5_i64).cast_unsigned();

/// All of them.
const REASONS: &[Reason] = &[
    Reason {
        structures: &[
            "bnobt leaf",
            "bnobt node",
            "cntbt leaf",
            "cntbt node",
            "inobt leaf",
            "inobt node",
            "finobt leaf",
            "finobt node",
            "refcountbt leaf",
            "refcountbt node",
            "rmapbt leaf",
            "rmapbt node",
        ],
        fields: &["leftsib", "rightsib"],
        when: always,
        why: "xfs_repair goes down the trees of a group from their roots and does not follow siblings",
    },
    Reason {
        structures: &["bnobt node", "cntbt node", "inobt node", "finobt node", "refcountbt node"],
        fields: &["key startblock", "key blockcount", "key startino"],
        when: always,
        why: "xfs_repair goes by the pointers of inner blocks and does not look at their keys",
    },
    Reason {
        structures: &["rmapbt node"],
        fields: &["low key startblock", "low key owner", "low key offset"],
        when: always,
        why: "xfs_repair does not compare a low key of the reverse map with the block that it is of",
    },
    Reason {
        structures: &["rmapbt node"],
        fields: &["high key startblock", "high key owner", "high key offset"],
        when: |outcome| outcome.new > outcome.old,
        why: "xfs_repair asks of a high key of the reverse map that it is not too low, and lets it be too high",
    },
    Reason {
        structures: &["rmapbt leaf"],
        fields: &["blockcount"],
        when: |outcome| outcome.new > outcome.old,
        why: "xfs_repair asks that each extent lies in a record of the reverse map, and lets the record be longer",
    },
    Reason {
        structures: &["rmapbt leaf"],
        fields: &["startblock", "blockcount", "owner", "offset"],
        when: |outcome| outcome.old == OWN_TREES || outcome.said("rmapbt block: record that no owner has"),
        why: "xfs_repair asks of the reverse map what it knows of, and lets records be that nothing is known of",
    },
    Reason {
        structures: &[],
        fields: &["lsn"],
        when: |outcome| outcome.new >> 32 == 0 && outcome.new != 0,
        why: "an LSN without a cycle, which no log gives, is old for xfs_repair",
    },
    Reason {
        structures: &[],
        fields: &["lsn"],
        when: |outcome| outcome.new >> 63 == 1 || outcome.new >> 31 & 1 == 1,
        why: "xfs_repair takes cycle and block of an LSN for numbers with a sign: one that is so large is old",
    },
    Reason {
        structures: &["attribute leaf"],
        fields: &["count"],
        when: |outcome| outcome.new == 0,
        why: "xfs_repair lets a leaf without entries be, whatever its header says",
    },
    Reason {
        structures: &["attribute leaf", "attribute node"],
        fields: &["owner"],
        when: always,
        why: "xfs_repair checks owners of directory blocks, not of attribute blocks",
    },
    Reason {
        structures: &["attribute node", "directory node"],
        fields: &["back"],
        when: always,
        why: "xfs_repair does not look at what the first node of a level has to its left",
    },
    Reason {
        structures: &["attribute leaf"],
        fields: &[
            "freemap base",
            "freemap size",
            "freemap 2 base",
            "freemap 2 size",
            "freemap 3 base",
            "freemap 3 size",
        ],
        when: |outcome| outcome.said("attribute leaf block: free map"),
        why: "xfs_repair asks that the free map lies within the leaf, not that nothing lies in what it calls free",
    },
    Reason {
        structures: &["attribute leaf"],
        fields: &["holes"],
        when: |outcome| outcome.said("holes between the names that the header denies"),
        why: "xfs_repair asks of a leaf without holes where its names begin, not that nothing is free behind there",
    },
    Reason {
        structures: &["attribute leaf", "short attributes"],
        fields: &["flags"],
        when: |outcome| outcome.said("attribute flags"),
        why: "xfs_repair knows no flag that an attribute must not have",
    },
    Reason {
        structures: &["remote value"],
        fields: &["offset", "bytes", "owner"],
        when: always,
        why: "xfs_repair checks of a remote block that it is one, not which piece of whose value",
    },
    Reason {
        structures: &["remote attribute"],
        fields: &["valueblk", "valuelen"],
        when: |outcome| outcome.said("remote attribute block") || outcome.said("value length"),
        why: "xfs_repair goes by the blocks that a remote value has, not by the length that its name gives",
    },
    Reason {
        structures: &["superblock copy"],
        fields: &["uuid"],
        when: always,
        why: "xfs_repair compares the shape that the copies describe, not their UUIDs",
    },
    Reason {
        structures: &["superblock"],
        fields: &["features_log_incompat"],
        when: always,
        why: "xfs_repair leaves features of the log to whoever replays it, and uxfs refuses what it does not know",
    },
    Reason {
        structures: &["superblock"],
        fields: &["bad_features2"],
        when: |outcome| outcome.new == 0,
        why: "xfs_repair takes the second place of features2 for one that is not in use if it is 0",
    },
    Reason {
        structures: &["superblock copy"],
        fields: &["dirblklog"],
        when: always,
        why: "xfs_repair leaves it out of the shape that copies must agree on",
    },
    Reason {
        structures: &["superblock copy"],
        fields: &["features_log_incompat"],
        when: judged_by_old,
        why: "xfs_repair 6.1 does not compare features of the log with those of copies; later ones do",
    },
    Reason {
        structures: &["superblock"],
        fields: &["features_log_incompat"],
        when: judged_by_old,
        why: "xfs_repair 6.1 does not compare features of the log with those of copies; later ones do",
    },
    Reason {
        structures: &["free inode"],
        fields: &["nblocks", "onlink"],
        when: judged_by_old,
        why: "xfs_repair 6.1 lets a free inode have blocks and an old link count; later ones do not",
    },
    Reason {
        structures: &["superblock"],
        fields: &["uquotino", "gquotino", "pquotino"],
        when: |outcome| outcome.new >> 40 != 0,
        why: "xfs_repair 7 takes the number of a quota inode that no volume can have for none",
    },
    Reason {
        structures: &["refcountbt leaf"],
        fields: &["numrecs"],
        when: |outcome| outcome.said("order of records") && outcome.new == outcome.old + 1,
        why: "xfs_repair lets the first record of a leaf stand at the end of the leaf before it, too",
    },
    Reason {
        structures: &["refcountbt leaf"],
        fields: &["startblock"],
        when: |outcome| outcome.said("order of records"),
        why: "xfs_repair does not ask that what is staged comes behind what is shared",
    },
    Reason {
        structures: &["bmbt node"],
        fields: &["rightsib"],
        when: |outcome| outcome.said("right sibling of the last block"),
        why: "xfs_repair does not look at what the last inner block of a map has to its right",
    },
    Reason {
        structures: &["superblock copy"],
        fields: &["features2"],
        when: |outcome| (outcome.old ^ outcome.new) & !FTYPE == 0,
        why: "xfs_repair lets copies of version 5 have the bit that says of version 4 that entries have types",
    },
    Reason {
        structures: &["AGFL"],
        fields: &["bno"],
        when: |outcome| outcome.said("blocks that have another owner"),
        why: "xfs_repair takes the blocks of this list for free, whatever else it saw in them",
    },
    Reason {
        structures: &[
            "file extents",
            "directory extents",
            "symlink extents",
            "attribute extents",
            "bmbt leaf",
        ],
        fields: &["startblock"],
        when: |outcome| (outcome.old ^ outcome.new).trailing_zeros() >= 44,
        why: "xfs_repair cuts the number of a group to 32 bits before it looks at it",
    },
    Reason {
        structures: &["directory"],
        fields: &["size"],
        when: |outcome| outcome.said("size of a directory"),
        why: "xfs_repair asks for a size below the hash index, the kernel for where the data end",
    },
];

/// The reason why the two differ about a case.
pub fn reason(outcome: &CaseOutcome) -> Option<&'static Reason> {
    // Without a finding of uxfs's there is nothing that these could explain.
    outcome.ours.as_ref()?;
    REASONS.iter().find(|reason| {
        (reason.structures.is_empty() || reason.structures.contains(&outcome.structure.as_str()))
            && reason.fields.contains(&outcome.field.as_str())
            && (reason.when)(outcome)
    })
}
