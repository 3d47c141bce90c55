//! The workloads, the targets that they run on, and the measurements that they give.
#![forbid(unsafe_code)]
