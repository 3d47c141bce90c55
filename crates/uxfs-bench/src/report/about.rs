//! Explains workloads and targets to readers who do not know them.

/// A workload: what it does, and, if it is one of the five results, what was reported of kernels.
pub(super) struct About {
    pub(super) title: &'static str,
    pub(super) what: &'static str,
    pub(super) reported: Option<&'static str>,
}

/// The five results, in this order: what each says, and the workloads that show it.
pub(super) const RESULTS: [(&str, &[&str]); 5] = [
    (
        "A write locks the bytes that it writes and not the whole file, so that more threads write more.",
        &["overwrite"],
    ),
    ("Threads that wait for their writes to be durable share one flush of the device.", &["osync"]),
    (
        "A change holds the lock of the journal for a shorter time, so that files are made and removed faster.",
        &["fsmark"],
    ),
    (
        "Threads read and write one file at once, each under a lock of its range, which costs no more than one lock for \
         the whole file.",
        &["randrw", "randrw-buffered", "rangelock"],
    ),
    (
        "Threads start and stop changes of the file system without waiting for each other.",
        &["handles", "dbench"],
    ),
];

/// Describes a workload.
pub(super) fn workload(name: &str) -> About {
    let (title, what, reported) = match name {
        "overwrite" => (
            "Overwrites of one file",
            "Threads read, then overwrite, random pages of 4 KiB of one large file, past every cache. With the \
             exclusive locking each write takes the whole file's lock for itself; the range lock has it take the bytes \
             that it writes, and no more.",
            Some(
                "Kernel XFS on 8 processors and a RAM disk, seconds at 1, 2, 4, 8, 16 threads: writes under the exclusive \
                 lock 0.85 1.20 1.23 1.40 2.36, under a shared one 0.93 0.58 0.32 0.27 0.23. Under the exclusive lock more \
                 threads made it slower.",
            ),
        ),
        "osync" => (
            "Synchronous writes",
            "Threads write 64 KiB to regions of their own, over and over, each write durable before the next. Serialized, \
             each has the device flushed for itself, one after the other; concurrent, each for itself at once; with a \
             shared flush, one flush serves everyone who waits. Beside a bare device stands what one flush a round for \
             all gives: all threads write, one flushes, and all go on. A device in memory flushes as long as is said, \
             one flush at a time.",
            Some(
                "64 threads on a volume of three disks: 17 MB/s with the flush under a lock, 68 MB/s without.",
            ),
        ),
        "fsmark" => (
            "Files made, looked at, removed",
            "Threads make empty files in directories of their own, list and look at all of them, and remove them. Nothing \
             is made durable by itself; “+ sync” is the same over the time of the phase and of one sync behind it. A line with a \
             name and “=” is a journal of an older design: with cil=single-lock all changes join one list under one \
             lock, with vectors=at-commit each commit copies all that the log is to have of what it changed.",
            Some(
                "Kernel XFS, 8 threads: a shorter critical section of commits took creates from 105,000–109,000 to \
                 117,000–122,000 a second, and removing all from 959 to 889 seconds.",
            ),
        ),
        "randrw" => (
            "Reads and writes mixed",
            "Threads read and overwrite random pages of 4 KiB of one file at once, half and half, with many requests in \
             flight each.",
            Some(
                "Kernels on 16 processors, operations a second each way at 1, 2, 4, 8, 16 threads. Direct: reader-writer lock \
                 78k 131k 267k 372k 315k, interval tree 75k 123k 183k 177k 135k, B-tree 74k 134k 246k 306k 240k. Buffered: \
                 reader-writer lock 57k 61k 61k 55k 15k, interval tree 64k 111k 228k 195k 40k.",
            ),
        ),
        "randrw-buffered" => (
            "Reads and writes mixed, through page caches",
            "The same one request at a time, of a file that page caches hold: no byte goes to the device before it is \
             written back.",
            Some("See the one before."),
        ),
        "seq" => (
            "One file in order, through page caches",
            "Threads read, then overwrite, each a part of one file, from its beginning to its end, in requests that are all of \
             one size; page caches hold the file.",
            None,
        ),
        "rangelock" => (
            "Range locks alone",
            "Threads lock and unlock 100 ranges of their own of one lock, and there is no file.",
            Some(
                "In user space, pairs a second at 1, 2, 4, 8, 16 threads: B-tree under a mutex 5.24M 1.01M 0.99M 0.73M 0.65M, \
                 an optimistic B-tree 0.95M 1.40M 2.41M 3.29M 2.81M.",
            ),
        ),
        "handles" => (
            "Journal handles",
            "Threads start and stop journal handles, with more room asked for, with a new transaction, and with a barrier \
             that waits for all; and transactions that change one inode. A line with a name and “=” is a journal of an older \
             design: with handles=locked open handles are counted under one lock, with reservation=locked log space is.",
            Some(
                "A dbench load on 8 processors, MB/s with 1, 2, 4, 8 clients: 411 714 1113 806 with the counts of a handle \
                 under one lock, 408 745 1266 1263 with counts in atomics.",
            ),
        ),
        "cow" => (
            "Files that share blocks",
            "A file is cloned, and random pages of 4 KiB that it shares with the clone are overwritten, and once more when \
             they are its own.",
            None,
        ),
        "fxmark" => (
            "FxMark",
            "The 19 small loops of FxMark (USENIX ATC 2016), each of which has all threads use one part of a file system, in \
             files and directories of their own or in shared ones.",
            None,
        ),
        "dbench" => (
            "A file server's mix",
            "Clients make, read, write, rename, look at and remove files, each in a directory of its own. With \
             handles=locked the journal counts open handles under one lock, as older ones did.",
            Some("See journal handles."),
        ),
        _ => ("Other measurements", "", None),
    };
    About { title, what, reported }
}

/// Describes a target.
pub(super) fn target(name: &str) -> &'static str {
    match name {
        "uxfs" => {
            "a volume that uxfs has open in this process; no kernel is asked for anything but the device's bytes"
        }
        "device" => "the device that uxfs would use, with no file system",
        "raw" => "the same bytes of the device, with no file system",
        "memcpy" => {
            "plain copies in memory by as many threads: what the machine gives with no file and no lock"
        }
        "rangelock" => "a range lock of uxfs, or an older design in its place",
        "parking_lot" => "the reader-writer lock of the Rust library parking_lot",
        name if name.starts_with("kernel-") => {
            "a file system that the kernel has mounted, by system calls; -loop: on a loop device over a file in memory"
        }
        _ => "",
    }
}
