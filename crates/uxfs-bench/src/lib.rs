//! The workloads, the targets that they run on, and the measurements that they give.
//!
//! [`run`] measures what a [`Config`] asks for. A workload on files is one loop (`Work` says what it does),
//! which runs on uxfs in process, on any mounted directory by system calls, on a raw device and on plain memory;
//! `osync` writes and makes durable, over and over, on a device or a file;
//! `fsmark` (directories and files, no content), `fxmark` and `dbench` (both) do so too, except for the raw device and
//! plain memory; `rangelock` measures the range locks alone, `handles` the journal. [`trees`] times the command's verbs
//! on whole trees beside the kernel's tools. [`page`] makes a page of it; other printing is left to the caller.
#![forbid(unsafe_code)]

mod config;
mod content;
mod cow;
mod dbench;
mod drive;
mod error;
mod fs;
mod fsmark;
mod fxmark;
mod handles;
mod interrupt;
mod locks;
mod lockstat;
mod measure;
mod model;
mod osync;
mod report;
mod setup;
mod suite;
mod target;
mod timer;
mod together;
mod trees;
mod volume;
mod work;

pub use self::lockstat::ClassReport;
pub use config::{Config, DesignLists, Versus, VolumePlace, Workload};
pub use content::{Content, PAGE};
pub use error::{Error, Result};
pub use fileio::Flushing;
pub use fxmark::FxMark;
pub use measure::Measurement;
pub use model::{MovedLine, Prediction, Quoted, Recorder, predict, record};
pub use report::{Heading, Machine, page};
pub use setup::{FILE_NAME, make_image};
pub use suite::{Observer, Report, Silent, run};
pub use trees::{TreeTimes, trees};
pub use uxfs::{CilLocks, HandleCounts, Locking, Reservations, Vectors};
