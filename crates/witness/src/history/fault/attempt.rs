//! One history, done over and over on a device of which each time another request fails.

use super::super::campaign::Task;
use super::super::crash::Stage;
use super::super::drive::{Actor, Observer};
use super::super::durable::{self, Clock, Durable, END};
use super::super::generator::SLOTS;
use super::super::model::{Checked, Rules};
use super::super::op::Op as Call;
use super::super::target::{Called, EngineTarget, Slots, Target, perform};
use super::super::{History, judge, means, replay};
use super::watch::Watch;
use super::{Args, Counts, Planned, Trouble, opening};
use crate::sandbox::{copy_sparse, repair_finds_nothing};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use blockdev::{
    BlockDevice, Delay, DelayDevice, FaultDevice, Op, PowerCuts, Recorder, Recording, SealDevice,
};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uxfs::{OpenOptions, Volume};

/// How many wrong attempts end a run.
const FAILURES_MAX: usize = 3;
/// How long a device lies still.
const STILL: Duration = Duration::from_secs(2);
/// Operations, at least, of a run whose volume is opened anew: with fewer there is little to recover.
const OPENED_OPS_MIN: u64 = 400;
/// Calls after the first that failed, on a volume that was shut down.
const AFTERWARDS: u32 = 30;

/// Does one history, and then again for each of its requests; and opens what it leaves, as often as that has requests.
pub fn all(task: &Task, args: &Args, watch: &Watch) -> Result<Counts> {
    let mut history = History::new(task)?;
    let image = history.image();
    // The threads' folders are there before anything fails.
    let target = EngineTarget::open(&image)?;
    history.set_out(&target)?;
    target.close()?;
    let stage = Stage::new(&image, history.geometry.sector())?;
    let attempt = Attempt { history: &history, stage: &stage, ops: args.ops };
    let mut in_turn =
        InTurn { task, args, watch, stage: &stage, counts: Counts::default(), wrong: Vec::new() };
    let requests = attempt.requests(watch, &task.label)?;
    in_turn.all("", requests, |planned, repairs, counts| attempt.one(planned, repairs, counts))?;
    let opening = {
        let _watched = watch.over(format!("{}: making a volume to open", task.label));
        opening::prepare(&history, &stage, args.ops.max(OPENED_OPS_MIN))?
    };
    in_turn.counts.unfinished += u64::from(opening.recovery.extents_freed > 0);
    in_turn.counts.nameless += u64::from(opening.recovery.inodes_freed > 0);
    in_turn.all("opening, ", opening.requests, |planned, repairs, counts| {
        opening.one(planned.alone(), repairs, counts)
    })?;
    let InTurn { counts, wrong, .. } = in_turn;
    if wrong.is_empty() { Ok(Counts { runs: 1, ..counts }) } else { bail!("{}", wrong.join("\n")) }
}

/// Faults, one after the other on one stage.
struct InTurn<'a> {
    task: &'a Task,
    args: &'a Args,
    watch: &'a Watch,
    stage: &'a Stage,
    counts: Counts,
    wrong: Vec<String>,
}

impl InTurn<'_> {
    /// Makes each of these requests fail, or every Nth.
    fn all(
        &mut self,
        what: &str,
        requests: [(Op, u64); 3],
        one: impl Fn(Planned, bool, &mut Counts) -> Result<()>,
    ) -> Result<()> {
        let Self { task, args, .. } = *self;
        let nths = |count| (task.seed % args.every..count).step_by(args.every as usize);
        let all = requests.into_iter().flat_map(|(op, count)| nths(count).map(move |nth| (op, nth)));
        for (before, (op, nth)) in (1..).zip(all) {
            let planned = Planned::new(op, nth, task.seed);
            let repairs = before % args.repair_every == 0;
            let counts = &mut self.counts;
            let tried = self
                .watch
                .attempt(format!("{}: {what}{planned}", task.label), || one(planned, repairs, counts));
            let Err(error) = tried else { continue };
            self.wrong.push(format!("{what}{planned}: {error:#}"));
            if let Some(folder) = &args.which.keep {
                std::fs::create_dir_all(folder)?;
                let what = what.trim_end_matches(", ");
                let name = format!("{}-{}-{what}{op:?}-{nth}.img", task.geometry.volume.name, task.seed);
                copy_sparse(self.stage.path(), &folder.join(name))?;
            }
            back(self.stage)?;
            if self.wrong.len() >= FAILURES_MAX {
                bail!("{}", self.wrong.join("\n"));
            }
        }
        Ok(())
    }
}

/// A history, and the volume that it begins with.
struct Attempt<'a> {
    history: &'a History,
    stage: &'a Stage,
    ops: u64,
}

/// How a thread's part of a history ended.
struct Ended {
    actor: Actor,
    durable: Durable,
    /// The call that failed because of the device, if one did.
    failed: Option<(Call, Errno)>,
    /// Whether it had succeeded, and only the look at it failed: the model has it.
    is_done: bool,
    /// What was not as it must be.
    wrong: Option<Wrong>,
}

/// What was not as it must be.
struct Wrong {
    what: String,
    /// Whether it is what a file held: that may be lost, if somebody is told.
    is_content: bool,
}

/// What a fault has done.
struct Damage {
    /// The volume was shut down.
    is_down: bool,
    /// What was in memory could not be written back, and a sync said so.
    is_lost: bool,
}

/// A device with everything that is put around it.
struct Devices {
    recorder: Arc<Recorder>,
    /// Nobody writes behind a close.
    seal: Arc<SealDevice>,
    fault: Arc<FaultDevice>,
    delay: Arc<DelayDevice>,
}

impl Attempt<'_> {
    fn devices(&self) -> Devices {
        let recorder = Arc::new(Recorder::new(self.stage.device().clone()));
        let seal = Arc::new(SealDevice::new(recorder.clone()));
        let fault = Arc::new(FaultDevice::new(seal.clone(), Vec::new()));
        let delay = Arc::new(DelayDevice::new(fault.clone()));
        Devices { recorder, seal, fault, delay }
    }

    /// How many requests of each kind a run has in which nothing fails.
    fn requests(&self, watch: &Watch, label: &str) -> Result<[(Op, u64); 3]> {
        let _watched = watch.over(label.to_owned());
        self.stage.device().mark();
        let devices = self.devices();
        let (target, threads) = self.open(&devices)?;
        let before = [Op::Write, Op::Flush, Op::Read].map(|op| devices.fault.seen(op));
        for ended in self.threads(&target, threads) {
            if let Some(wrong) = ended.wrong {
                bail!("without any fault: {}", wrong.what);
            }
            ensure!(ended.failed.is_none(), "without any fault: {:?}", ended.failed);
        }
        target.close()?;
        let [writes, flushes, reads] = before;
        let requests = [(Op::Write, writes), (Op::Flush, flushes), (Op::Read, reads)];
        let requests = requests.map(|(op, before)| (op, devices.fault.seen(op) - before));
        self.stage.device().rewind()?;
        Ok(requests)
    }

    fn open(&self, devices: &Devices) -> Result<(EngineTarget, Vec<Durable>)> {
        let means = means::of(self.history.seed ^ self.history.geometry.salt());
        let device = means.of(devices.delay.clone());
        let target = EngineTarget::open_device(device, &OpenOptions::new())?.by(self.history.io);
        let now = devices.recorder.clone();
        let threads = replay::watchers(self.history, &target, &Clock::new(move || now.moment()))?;
        Ok((target, threads))
    }

    /// Does the history with one fault, and judges what is left. The stage is as before then.
    fn one(&self, planned: Planned, repairs: bool, counts: &mut Counts) -> Result<()> {
        self.stage.device().mark();
        let devices = self.devices();
        let (target, threads) = self.open(&devices)?;
        let seen = devices.fault.seen(planned.op);
        planned.fault(seen).into_iter().for_each(|fault| devices.fault.add(fault));
        if planned.trouble == Trouble::Still {
            devices.delay.set(planned.op, Delay::Held);
            let device = devices.delay.clone();
            std::thread::spawn(move || {
                device.wait_until_waiting(planned.op, 1);
                std::thread::sleep(STILL);
                device.set(planned.op, Delay::None);
            });
        }
        let (mut ended, closed_beside) = self.threads_beside(&target, threads, &devices, planned, seen);
        let Damage { is_down, is_lost } = self.afterwards(&target, &mut ended)?;
        let closed = closed_beside.unwrap_or_else(|| target.close());
        closed.is_ok().then(|| devices.seal.seal());
        let faulty = !matches!(planned.trouble, Trouble::Still | Trouble::Closed);
        let struck = faulty && devices.fault.seen(planned.op) > seen + planned.nth;
        let is_beside = planned.trouble == Trouble::Closed;
        // Whoever waits for a request that never came waits no more.
        devices.delay.set(planned.op, Delay::None);
        let recording = devices.recorder.recording();
        counts.shut_down += u64::from(is_down);
        match (planned.op, struck) {
            (Op::Write, true) => counts.writes += 1,
            (Op::Flush, true) => counts.flushes += 1,
            (Op::Read, true) => counts.reads += 1,
            _ => counts.missed += 1,
        }
        for (thread, ended) in ended.iter().enumerate() {
            match &ended.wrong {
                Some(wrong) if !(wrong.is_content && is_lost) => bail!("thread {thread}: {}", wrong.what),
                _ => {}
            }
            match &ended.failed {
                Some((_, Errno::SHUTDOWN)) if is_beside => {}
                Some((call, error)) if !struck => {
                    bail!("thread {thread}: {call:?}: {error} before anything failed");
                }
                _ => {}
            }
        }
        if !struck {
            closed.as_ref().map_err(|error| anyhow!("closing, and nothing had failed: {error:#}"))?;
        }
        let is_lie = is_down && closed.is_ok() && !is_beside;
        ensure!(!is_lie, "a volume that was shut down says that it closed cleanly");
        if closed.is_ok() {
            ended.iter_mut().for_each(|ended| ended.durable.all_durable());
        }
        ensure!(struck || !is_lost, "a sync fails before anything failed");
        if is_lost {
            ended.iter_mut().for_each(|ended| ended.durable.forget_content());
        }
        ensure!(devices.seal.broken().is_empty(), "behind the close came {:?}", devices.seal.broken());
        let cut = planned.cut && closed.is_err();
        if cut {
            self.stage.device().rewind()?;
            self.power_cut(&recording)?;
        }
        match (closed.is_ok(), cut) {
            (true, _) => counts.closed += 1,
            (false, true) => counts.cut += 1,
            (false, false) => counts.recovered += 1,
        }
        counts.repaired += u64::from(repairs);
        self.judge(ended, closed.is_ok(), repairs)?;
        back(self.stage)
    }

    /// Leaves on the stage what a device has that lost all that was not made durable.
    fn power_cut(&self, recording: &Recording) -> Result<()> {
        let mut cuts = PowerCuts::new(recording, Arc::clone(self.stage.device()));
        // What is durable goes to the device for good: a mark keeps it apart.
        self.stage.device().mark();
        cuts.advance(END)?;
        cuts.make(|_| blockdev::Fate::Dropped).map_err(Error::from)
    }

    /// Lets every thread do its operations until one of them fails because of the device.
    fn threads(&self, target: &EngineTarget, threads: Vec<Durable>) -> Vec<Ended> {
        let each = (self.ops / threads.len() as u64).max(1);
        let rules = Rules { tight: self.history.geometry.tight, strict: EngineTarget::STRICT };
        std::thread::scope(|scope| {
            let start = |(durable, actor): (Durable, &Actor)| {
                let ended =
                    Ended { actor: actor.clone(), durable, failed: None, is_done: false, wrong: None };
                scope.spawn(move || thread(target, ended, each, rules))
            };
            let handles: Vec<_> = threads.into_iter().zip(&self.history.actors).map(start).collect();
            let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            handles.into_iter().map(join).collect()
        })
    }

    /// As [`threads`](Self::threads), while another closes the volume if that is planned: once it has made so many
    /// requests, or nobody uses it any more. Gives how that went.
    fn threads_beside(
        &self,
        target: &EngineTarget,
        threads: Vec<Durable>,
        devices: &Devices,
        planned: Planned,
        seen: u64,
    ) -> (Vec<Ended>, Option<Result<()>>) {
        if planned.trouble != Trouble::Closed {
            return (self.threads(target, threads), None);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let closes = scope.spawn(|| {
                while devices.fault.seen(planned.op) <= seen + planned.nth && !over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let closed = target.close_beside();
                closed.is_ok().then(|| devices.seal.seal());
                closed
            });
            let ended = self.threads(target, threads);
            over.store(true, Ordering::Relaxed);
            (ended, Some(closes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
        })
    }

    /// Goes on after the fault. A volume that was shut down must say so to everyone who would change something.
    fn afterwards(&self, target: &EngineTarget, ended: &mut [Ended]) -> Result<Damage> {
        let synced = target.sync();
        let is_down = synced == Err(Errno::SHUTDOWN)
            || ended.iter().any(|ended| matches!(ended.failed, Some((_, Errno::SHUTDOWN))));
        let was_told =
            |ended: &Ended| matches!(ended.failed, Some((Call::Sync | Call::FsyncDir { .. }, Errno::IO)));
        let is_lost = synced == Err(Errno::IO) || ended.iter().any(was_told);
        if !is_down {
            return Ok(Damage { is_down, is_lost });
        }
        ensure!(target.sync().is_err(), "a sync succeeds on a volume that was shut down");
        for ended in ended {
            let mut slots = Slots::new(SLOTS);
            for _ in 0..AFTERWARDS {
                let call = ended.actor.generator.next(&ended.actor.model);
                if !ended.actor.model.predictable(&call) || matches!(call, Call::Close { .. }) {
                    continue;
                }
                // A call may well fail for another reason, or have nothing to do.
                let got = perform(target, &mut slots, &call);
                let is_change = matches!(
                    call,
                    Call::Mkdir { .. }
                        | Call::Write { .. }
                        | Call::Fsync { .. }
                        | Call::Sync
                        | Call::Chmod { .. }
                );
                if let (true, Ok(_)) = (is_change, &got) {
                    bail!("{call:?} succeeds on a volume that was shut down");
                }
                ensure!(
                    got != Err(Errno::UCLEAN),
                    "{call:?} says that a volume that was shut down is damaged"
                );
            }
        }
        Ok(Damage { is_down, is_lost })
    }

    /// Judges the volume on the stage.
    fn judge(&self, ended: Vec<Ended>, closed: bool, repairs: bool) -> Result<()> {
        if !closed {
            let device: Arc<dyn BlockDevice> = self.stage.device().clone();
            let volume =
                Volume::open_device(device, &OpenOptions::new().writable(true)).context("recovery")?;
            volume.close().context("closing after the recovery")?;
        }
        judge::checker_finds_nothing(self.stage.device().clone())?;
        if repairs {
            repair_finds_nothing(self.stage.path())?;
        }
        let records = judge::by_uxfs_on(self.stage.device().clone())?;
        let mut threads = Vec::new();
        for mut ended in ended {
            if let Some((call, _)) = &ended.failed {
                // From here on the model is as if the call had been done.
                if !ended.is_done {
                    let _ = ended.actor.model.apply(call);
                }
                ended.durable.unfinished(&ended.actor.model, call, &records);
            }
            threads.push(ended.durable);
        }
        durable::judge(&threads, END, &records).map(drop).map_err(Error::msg)
    }
}

/// Takes everything back that was done to the stage, whatever marks there are.
pub fn back(stage: &Stage) -> Result<()> {
    const MARKS_MAX: u32 = 3;
    (0..MARKS_MAX).try_for_each(|_| stage.device().rewind()).map_err(Error::from)
}

/// One thread's operations.
fn thread(target: &EngineTarget, mut ended: Ended, ops: u64, rules: Rules) -> Ended {
    let mut slots = Slots::new(SLOTS);
    for _ in 0..ops {
        let call = ended.actor.generator.next(&ended.actor.model);
        if !ended.actor.model.predictable(&call) {
            continue;
        }
        Observer::<EngineTarget>::begins(&mut ended.durable);
        let got = perform(target, &mut slots, &call);
        if let Err(error @ (Errno::IO | Errno::SHUTDOWN)) = got {
            ended.failed = Some((call, error));
            return ended;
        }
        let is_ok = got.is_ok();
        match ended.actor.model.check(&call, &got, rules) {
            Ok(Checked::NoSpace) => ended.actor.generator.no_space(),
            Ok(_) => {}
            Err(what) => {
                let is_content = matches!(call, Call::Read { .. } | Call::Dedupe { .. });
                ended.wrong = Some(Wrong { what: format!("{call:?}: {what}"), is_content });
                return ended;
            }
        }
        if let Err(error) = learn(target, &slots, &mut ended, &call, is_ok) {
            (ended.failed, ended.is_done) = (Some((call, error)), true);
            return ended;
        }
    }
    ended
}

/// Has the watcher look at what was done.
fn learn(
    target: &EngineTarget,
    slots: &Slots<EngineTarget>,
    ended: &mut Ended,
    call: &Call,
    ok: bool,
) -> Called<()> {
    ended.durable.done(target, slots, &ended.actor, call, ok)
}
