//! Block maps of forks: changing where a fork's blocks lie.

pub mod edit;
mod file;
mod fork;

pub use file::FileMap;
pub use fork::InodeFork;
