//! The workload `osync`: threads that write to regions of their own of one device or file, over and over, each write durable
//! before the next.
//!
//! On a bare device, and on a file of a volume of uxfs's own, a write is durable when it returns, and how those who wait share
//! the device's flush can be chosen; beside the device stands what one flush a round for all would give. Through system
//! calls the same is a direct write to what is open with `O_DSYNC`: a file in a mounted directory, or the device itself. A
//! device in memory has flushes that take as long as is asked for, one after the other, as those of disks do; beside what the
//! kernel has mounted, which lies on a device as it is, there is one more whose flushes take nothing.
//!
//! Invariant: after each measurement every region holds what was written to it last.

mod device;
mod drive;
mod held;
mod sys;
mod uxfs;

use crate::config::{Config, VolumePlace};
use crate::error::{Error, Result};
use crate::fsmark::make_device;
use crate::lockstat::Tracker;
use crate::measure::{Collector, Series};
use crate::setup::{Compared, Shape};
use crate::suite::{Observer, Report};
use crate::volume::place_dir;
use blockdev::{BlockDevice, FileDevice, MemoryOptions};
use device::{BareDevice, Rounds, SlowFlush};
use drive::Target;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use sys::SysFile;
use tempfile::TempDir;
use uxfs::VolumeFile;

/// The name of the workload in reports.
const NAME: &str = "osync";

/// Bytes of a write.
const WRITE_BYTES: usize = 64 << 10;
/// Writes that a region has room for.
const WRITES: u64 = 16;
const REGION_BYTES: u64 = WRITES * WRITE_BYTES as u64;

/// Least bytes of a volume; what the file takes comes to it.
const VOLUME_BYTES_MIN: u64 = 512 << 20;

/// All targets, and what they lie on. Dropped in this order.
struct Scene {
    targets: Vec<Box<dyn Target>>,
    _compared: Vec<Compared>,
    _dirs: Vec<TempDir>,
}

impl Scene {
    fn set(config: &Config, observer: &mut dyn Observer) -> Result<Self> {
        let most = config.osync_threads.iter().copied().max().unwrap_or(1);
        let mut scene = Self { targets: Vec::new(), _compared: Vec::new(), _dirs: Vec::new() };
        observer.note("making devices and volumes");
        match &config.place {
            VolumePlace::Memory => {
                for latency in config.flush_latencies() {
                    scene.in_memory(config, latency, drive::bytes(most))?;
                }
            }
            VolumePlace::Shm => scene.in_dir(config, Path::new("/dev/shm"), drive::bytes(most))?,
            VolumePlace::Dir(path) if path.is_dir() => scene.in_dir(config, path, drive::bytes(most))?,
            VolumePlace::Dir(path) => scene.on(config, path, drive::bytes(most))?,
        }
        for versus in &config.versus {
            let bytes = drive::bytes(most);
            let shape = Shape { bytes: VOLUME_BYTES_MIN + 2 * bytes, groups: None };
            let compared = Compared::set(config, versus, shape, observer)?;
            scene.targets.push(Box::new(SysFile::in_dir(compared.dir(), compared.suffix(), bytes)?));
            scene._compared.push(compared);
        }
        Ok(scene)
    }

    /// A device in memory, and volumes on others.
    fn in_memory(&mut self, config: &Config, latency: Duration, bytes: u64) -> Result<()> {
        let name = match latency {
            Duration::ZERO => "memory".to_owned(),
            latency => format!("memory, flush {} ms", latency.as_secs_f64() * 1000.0),
        };
        let slow = |device: Arc<dyn BlockDevice>| match latency {
            Duration::ZERO => device,
            latency => Arc::new(SlowFlush::new(device, latency)),
        };
        let device = slow(Arc::new(MemoryOptions::new().huge_pages(true).anonymous(bytes)?));
        self.bare(config, &device, &name, None)?;
        self.files(config, &name, bytes, slow)
    }

    /// A file in a directory in place of a device, and volumes in others.
    fn in_dir(&mut self, config: &Config, place: &Path, bytes: u64) -> Result<()> {
        let dir = place_dir(place)?;
        let image = dir.path().join("device");
        // Written, so that no file system has anything to allocate while the clock runs.
        let made =
            std::fs::write(&image, vec![0; bytes as usize]).and_then(|()| File::open(&image)?.sync_all());
        made.map_err(Error::host(format!("cannot make {}", image.display())))?;
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_writable(&image)?);
        let name = place.display().to_string();
        self.bare(config, &device, &name, Some(&image))?;
        self._dirs.push(dir);
        self.files(config, &name, bytes, |device| device)
    }

    /// A device or a file that is there.
    fn on(&mut self, config: &Config, path: &PathBuf, bytes: u64) -> Result<()> {
        let shown = path.display();
        if !config.overwrite {
            return Err(Error::Usage(format!(
                "{shown} is no directory: osync would write all over it, which has to be asked for (--force)"
            )));
        }
        let device = FileDevice::open_writable(path)?;
        if device.size() < bytes {
            let has = device.size();
            return Err(Error::Usage(format!("{shown} has {has} bytes, and {bytes} are written to")));
        }
        self.bare(config, &(Arc::new(device) as Arc<dyn BlockDevice>), &shown.to_string(), Some(path))
    }

    /// All ways to write to a device without a file system; `path` is where system calls find it.
    fn bare(
        &mut self,
        config: &Config,
        device: &Arc<dyn BlockDevice>,
        name: &str,
        path: Option<&Path>,
    ) -> Result<()> {
        let held = Arc::default();
        for flushing in config.flushings() {
            self.targets.push(Box::new(BareDevice::new(device, name, flushing, &held)));
        }
        self.targets.push(Box::new(Rounds::new(device, name, &held)));
        if let Some(path) = path {
            self.targets.push(Box::new(SysFile::raw(path, name, &held)?));
        }
        Ok(())
    }

    /// A file of a volume, for each way to share flushes.
    fn files(
        &mut self,
        config: &Config,
        name: &str,
        bytes: u64,
        on: impl Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>,
    ) -> Result<()> {
        for flushing in config.flushings() {
            let (device, _, dir) = make_device(config, VOLUME_BYTES_MIN + 2 * bytes)?;
            uxfs::format(&device, bytes)?;
            self.targets.push(Box::new(VolumeFile::open(&on(device), name, flushing)?));
            self._dirs.extend(dir);
        }
        Ok(())
    }
}

/// Measures all targets, round by round.
pub(crate) fn run(config: &Config, observer: &mut dyn Observer, report: &mut Report) -> Result<()> {
    let scene = Scene::set(config, observer)?;
    observer.start(NAME, (config.rounds * config.osync_threads.len() * scene.targets.len()) as u64);
    let mut collector = Collector::default();
    let mut locks = config.lockstat.then(Tracker::start);
    for _ in 0..config.rounds {
        for &threads in &config.osync_threads {
            for target in &scene.targets {
                let label = target.label();
                observer.step(&format!("{label} × {threads}"));
                locks.iter_mut().for_each(Tracker::skip);
                let sample = drive::measure(&**target, threads, config.min_time)?;
                if let Some(locks) = &mut locks {
                    locks.attribute(&format!("{label}, {} × {threads}", label.device));
                }
                let line = Series {
                    workload: NAME,
                    label: label.clone(),
                    op: target.op(),
                    threads,
                    depth: 1,
                    bytes: WRITE_BYTES as u64,
                    samples: Vec::new(),
                };
                collector.add(line, sample);
            }
        }
    }
    report.measurements.extend(collector.finish());
    report.locks.extend(locks.map(|locks| locks.finish(NAME)).unwrap_or_default());
    Ok(())
}
