//! Block maps of forks.
