//! Block maps of forks: changing where a fork's blocks lie.

pub mod edit;
