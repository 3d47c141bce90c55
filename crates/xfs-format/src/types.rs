//! Kinds of addresses and counts, one type each, so that none can stand in for another.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Number of an allocation group.
    AgNumber(u32)
}
number! {
    /// A block within its allocation group.
    AgBlock(u32)
}
number! {
    /// A block of the volume, as stored on disk: group number in the high bits, block within it in the low ones.
    FsBlock(u64)
}
number! {
    /// A place on the device in units of 512 bytes, whatever the sector size.
    DiskAddr(u64)
}
number! {
    /// A block of a file or of a fork: logical offset in units of the volume's block size.
    FileBlock(u64)
}
number! {
    /// An inode number of the volume: group number in the high bits, inode within it in the low ones.
    InodeNumber(u64)
}
number! {
    /// An inode within its allocation group.
    AgInode(u32)
}
number! {
    /// A log sequence number: cycle in the high 32 bits, 512-byte block of the log in the low ones.
    Lsn(u64)
}

/// A volume's or a structure's UUID.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
