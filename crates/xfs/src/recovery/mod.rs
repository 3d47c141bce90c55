//! The log as a volume that is being opened sees it. For now: whether anything in it waits to be replayed.

pub mod clean;
