//! One run, watched by the helper: from the request to the receipt.

mod live;
mod output;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use std::{mem, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, read, write};
use tack_sandbox_protocol::{
    Cause, EgressRecord, End, Figure, Layer, LayerState, Layers, Reason, Receipt, Reply, RunLimits, RunRequest,
    SetUpFailure, Stage, Stream, StreamSummary, Times, Usage,
};

use crate::group::{CpuTime, Groups, Reserved};
use crate::launch::id_map::map_payload;
use crate::launch::plan::{Plan, Source as Shown};
use crate::launch::progress::{At, Record, failure};
use crate::launch::{Sandbox, landlock};
use crate::mirror::{Mirror, Mirrors};
use crate::run::live::Live;
use crate::run::output::Output;
use crate::sys::process::{CpuUsage, Waited, wait4};

/// A launch takes a few milliseconds; one that takes this long hangs on something of the host's, and is given up.
const SET_UP_BOUND: Duration = Duration::from_secs(10);

/// How often the limits that the kernel does not enforce by itself are looked at: CPU time of all processes together,
/// and whether the kernel has killed one for memory.
const TICK: Duration = Duration::from_millis(20);

/// The streams end when their last writer does, which is before pid 1 can be waited for. Reading on for longer than
/// this would be waiting for nothing.
const DRAIN_BOUND: Duration = Duration::from_secs(5);

/// What is left to be sent when a run is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) receipt: Receipt,
    /// Head and tail of each stream, by [`Stream`]'s order.
    pub(crate) kept: [(Vec<u8>, Vec<u8>); Stream::COUNT],
    /// Frames of output that the client has not taken yet: they come before everything else.
    pub(crate) untaken: Vec<u8>,
    /// Removed when dropped, which may wait until the client has its answer.
    pub(crate) groups: Option<Groups>,
}

/// Runs `request`, whose mounts show `sources`, and returns when no process of it is left. The run is
/// cancelled when `client` goes away.
pub(crate) fn run(request: &RunRequest<'_>, sources: Vec<Shown>, mirrors: &Mirrors, client: &UnixStream) -> Finished {
    let asked = Instant::now();
    let planned = Plan::new(request, &sources, mirrors);
    // What was opened outside has served its purpose: nothing of the sandbox may hold it.
    drop(sources);
    let launched = planned.and_then(|mut plan| {
        let (policy_digest, host_id, all_owned) = (plan.policy_digest, plan.host_id, plan.all_owned);
        let children = mem::take(&mut plan.children);
        let mut stage_us = [0; Stage::COUNT];
        stage_us[Stage::Prepare as usize] = micros(asked.elapsed());
        let (reserved, seats) = Reserved::new();
        let sandbox = Sandbox::start(plan, seats, asked)?;
        let mut watch = Watch::new(sandbox, request.limits, asked, stage_us);
        watch.live = request.live.then(Live::default);
        watch.children = children;
        let making = Instant::now();
        let groups = Groups::make(&reserved, &request.limits, watch.sandbox.pid1);
        watch.stage_us[Stage::Groups as usize] = micros(making.elapsed());
        // It fails only where pid 1 has ended already, and why that was comes up `set_up`.
        watch.go().ok();
        Ok((watch, groups, policy_digest, host_id, all_owned))
    });
    let (mut watch, mut groups, policy_digest, host_id, all_owned) = match launched {
        Ok(launched) => launched,
        Err(failure) => return never_started(failure, asked),
    };
    watch.until_gone(&mut groups, host_id, client);
    let mounts = match (request.mounts.as_slice().is_empty(), all_owned) {
        (true, _) => LayerState::Inactive(Reason::NotAsked),
        (false, true) => LayerState::Active,
        (false, false) => LayerState::Inactive(Reason::FilesystemUnsupported),
    };
    watch.finish(groups, mounts, policy_digest)
}

/// The answer to a request that no process was made for.
fn never_started(failure: SetUpFailure, asked: Instant) -> Finished {
    let nothing = Figure::Unavailable(Reason::NotReached);
    let (summary, ..) = Output::new(0).finish();
    let receipt = Receipt {
        cause: Cause::SetUp(failure),
        end: None,
        usage: Usage {
            wall_us: 0,
            cpu_us: nothing,
            user_us: nothing,
            system_us: nothing,
            memory_peak_bytes: nothing,
            max_rss_bytes: nothing,
            processes_peak: nothing,
            forks_refused: nothing,
            oom_kills: nothing,
        },
        streams: [summary; Stream::COUNT],
        times: Times { stage_us: [0; Stage::COUNT], set_up_us: micros(asked.elapsed()).into(), tear_down_us: 0 },
        layers: Layers::all(LayerState::Inactive(Reason::NotReached)),
        landlock_abi: 0,
        policy_digest: [0; 32],
        egress: EgressRecord::None,
    };
    Finished { receipt, kept: Default::default(), untaken: Vec::new(), groups: None }
}

/// What the helper knows of a run while it lasts.
struct Watch {
    sandbox: Sandbox,
    /// Other children of ours, which have ended by the time the run has.
    children: Vec<Pid>,
    limits: RunLimits,
    asked: Instant,
    /// When the program was about to be executed.
    executing: Option<Instant>,
    /// The same, once it is known that it was.
    executed: Option<Instant>,
    /// When the payload ended, or was ended.
    ended: Option<Instant>,
    /// Why it was ended from outside, or never began.
    cause: Option<Cause>,
    status: Option<i32>,
    stage_us: [u32; Stage::COUNT],
    last_stage: Option<Stage>,
    /// What pid 1 had used before the payload was forked: the launch's, not the run's.
    launch_usage: Option<CpuUsage>,
    outputs: [Output; Stream::COUNT],
    /// Where the client wants output as it comes.
    live: Option<Live>,
    /// When the payload was last heard of.
    heard: Instant,
    set_up_open: bool,
    buffer: Vec<u8>,
}

/// What a poll was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Client,
    Taker,
    Pid1,
    SetUp,
    End,
    Stream(Stream),
}

impl Watch {
    fn new(sandbox: Sandbox, limits: RunLimits, asked: Instant, stage_us: [u32; Stage::COUNT]) -> Self {
        Self {
            sandbox,
            children: Vec::new(),
            limits,
            asked,
            executing: None,
            executed: None,
            ended: None,
            cause: None,
            status: None,
            stage_us,
            last_stage: None,
            launch_usage: None,
            outputs: std::array::from_fn(|_| Output::new(limits.kept_bytes)),
            live: None,
            heard: asked,
            set_up_open: true,
            buffer: vec![0; Reply::OUTPUT_CHUNK_BYTES],
        }
    }

    /// Watches until pid 1 has ended and every stream is drained.
    fn until_gone(&mut self, groups: &mut Groups, host_id: u32, client: &UnixStream) {
        let mut next_tick = Instant::now() + TICK;
        let mut pid1_ended: Option<Instant> = None;
        loop {
            let streams_open = self.sandbox.streams.iter().any(Option::is_some);
            let now = Instant::now();
            let deadline = match (pid1_ended, self.executed) {
                (Some(_), _) if !streams_open => return,
                (Some(ended), _) => ended + DRAIN_BOUND,
                // It has been killed, and is ending.
                _ if self.cause.is_some() => now + DRAIN_BOUND,
                (None, None) => self.asked + SET_UP_BOUND,
                (None, Some(executed)) => {
                    let idle = self.limits.idle_us.map(|it| self.heard.max(executed) + Duration::from_micros(it));
                    let wall = executed + Duration::from_micros(self.limits.wall_us);
                    idle.map_or(wall, |it| it.min(wall))
                }
            };
            if now >= deadline {
                match (pid1_ended, self.executed) {
                    (Some(_), _) => return,
                    (None, None) => self.end(Cause::SetUp(failure(self.next_stage(), Errno::ETIMEDOUT))),
                    (None, Some(executed)) => {
                        let wall = now >= executed + Duration::from_micros(self.limits.wall_us);
                        self.end(if wall { Cause::Wall } else { Cause::Idle });
                    }
                }
                continue;
            }
            if now >= next_tick {
                next_tick = now + TICK;
                self.check_limits(groups);
            }
            let wait = deadline.min(next_tick).saturating_duration_since(now);
            for source in self.wait_for(wait, client, pid1_ended.is_none()) {
                match source {
                    Source::Client => self.end(Cause::Cancelled),
                    Source::Taker => self.live.iter_mut().for_each(|it| it.offer(client)),
                    Source::Pid1 => {
                        self.read_end();
                        // Its writers are gone, so it has an end, and all before it was written.
                        while self.set_up_open {
                            self.read_set_up(groups, host_id);
                        }
                        self.ended.get_or_insert_with(Instant::now);
                        pid1_ended = Some(Instant::now());
                    }
                    Source::SetUp => self.read_set_up(groups, host_id),
                    Source::End => self.read_end(),
                    Source::Stream(stream) => self.drain(stream),
                }
            }
        }
    }

    /// Which descriptors have something to say. An interrupted wait says nothing.
    fn wait_for(&self, wait: Duration, client: &UnixStream, pid1_lives: bool) -> Vec<Source> {
        let mut sources = Vec::with_capacity(8);
        let mut fds = Vec::with_capacity(8);
        let mut add = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::new(fd, flags));
        };
        // Processes that have been killed need no reader: what they have written waits in the pipes, and no more comes.
        let dying = self.cause.is_some() && pid1_lives;
        for (stream, fd) in Stream::ALL.iter().zip(&self.sandbox.streams) {
            if let Some(fd) = fd.as_ref().filter(|_| !dying) {
                add(Source::Stream(*stream), fd.as_fd(), PollFlags::POLLIN);
            }
        }
        if pid1_lives {
            if self.set_up_open {
                add(Source::SetUp, self.sandbox.set_up.as_fd(), PollFlags::POLLIN);
            }
            if self.status.is_none() {
                add(Source::End, self.sandbox.end.as_fd(), PollFlags::POLLIN);
            }
            if self.cause != Some(Cause::Cancelled) {
                // Its going away is told unasked.
                add(Source::Client, client.as_fd(), PollFlags::empty());
                if self.live.as_ref().is_some_and(Live::waits) {
                    add(Source::Taker, client.as_fd(), PollFlags::POLLOUT);
                }
            }
            add(Source::Pid1, self.sandbox.pidfd.as_fd(), PollFlags::POLLIN);
        }
        // Rounded up, so that a deadline is not polled for in a loop.
        let wait_ms = u16::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u16::MAX);
        match poll(&mut fds, PollTimeout::from(wait_ms)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Vec::new(),
            Err(_) => {
                // The kernel is out of memory: the limits are looked at all the same, and not in a loop.
                thread::sleep(TICK);
                return Vec::new();
            }
        }
        let ready = fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        sources.into_iter().zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect()
    }

    /// Ends the run from outside; the first cause counts.
    fn end(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
        self.ended.get_or_insert_with(Instant::now);
        self.sandbox.kill();
    }

    fn check_limits(&mut self, groups: &Groups) {
        if let Some(cause) = groups.killed_for_memory() {
            self.end(cause);
        } else if self.executed.is_some()
            && groups.cpu_us(CpuTime::Total).value().is_some_and(|us| us > self.limits.cpu_us)
        {
            self.end(Cause::Cpu);
        }
    }

    /// Reads the launch's records. Writes of records are whole, so reads are too.
    fn read_set_up(&mut self, groups: &mut Groups, host_id: u32) {
        let mut bytes = [0; 4_096];
        let count = match read(&self.sandbox.set_up, &mut bytes) {
            Err(Errno::EINTR | Errno::EAGAIN) => return,
            Err(_) => 0,
            Ok(count) => count,
        };
        if count == 0 {
            self.set_up_open = false;
            // Every copy of the write end closed without a failure: the program was executed, if it came to that.
            if self.cause.is_none() {
                self.executed = self.executing;
            }
        }
        for record in bytes[..count].as_chunks::<{ Record::BYTES }>().0 {
            match Record::from_bytes(record) {
                Some(Record::Took { stage, us }) => {
                    self.stage_us[stage as usize] = us;
                    self.last_stage = Some(stage);
                }
                Some(Record::Joined(taken)) => groups.joined(taken),
                Some(Record::AwaitingMaps) => {
                    groups.start_counting();
                    let mirror_ready = || self.sandbox.mirror.as_ref().map_or(Ok(()), Mirror::await_ready);
                    let mapped = map_payload(self.sandbox.pid1, host_id).and_then(|()| mirror_ready());
                    if let Err(failure) = mapped.and_then(|()| self.go()) {
                        self.end(Cause::SetUp(failure));
                    }
                }
                Some(Record::Forking { user_us, system_us }) => {
                    self.launch_usage = Some(CpuUsage { user_us, system_us });
                }
                Some(Record::Executing { at_us }) => self.executing = Some(self.at(at_us)),
                Some(Record::Failed(failure)) => self.end(not_executed(failure)),
                Some(Record::Ended { .. }) | None => self.end(Cause::SetUp(failure(Stage::Fork, Errno::EPROTO))),
            }
        }
    }

    /// A time that came over a pipe, on the clock that all forks of the helper share.
    fn at(&self, at_us: u64) -> Instant {
        self.asked.checked_add(Duration::from_micros(at_us)).unwrap_or_else(Instant::now)
    }

    fn go(&self) -> Result<(), SetUpFailure> {
        write(&self.sandbox.go, &[1]).map(drop).at(Stage::UserNamespace)
    }

    fn read_end(&mut self) {
        let mut bytes = [0; Record::BYTES];
        if self.status.is_none()
            && read(&self.sandbox.end, &mut bytes) == Ok(Record::BYTES)
            && let Some(Record::Ended { status, at_us }) = Record::from_bytes(&bytes)
        {
            self.status = Some(status);
            let at = self.at(at_us);
            self.ended.get_or_insert(at);
        }
    }

    /// Reads once from a stream, and closes it at its end.
    fn drain(&mut self, stream: Stream) {
        let Some(fd) = &self.sandbox.streams[stream as usize] else { return };
        match read(fd, &mut self.buffer) {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(0) | Err(_) => self.sandbox.streams[stream as usize] = None,
            Ok(count) => {
                self.heard = Instant::now();
                let output = &mut self.outputs[stream as usize];
                output.push(&self.buffer[..count]);
                // The report is a record, which is read when it is whole.
                if let Some(live) = self.live.as_mut().filter(|_| stream != Stream::Report) {
                    live.push(stream, &self.buffer[..count]);
                }
                if output.bytes_total() > self.limits.output_bytes {
                    self.end(Cause::OutputLimit(stream));
                }
            }
        }
    }

    /// The step that is under way, as far as the helper has heard.
    fn next_stage(&self) -> Stage {
        let next = self.last_stage.map_or(Stage::Fork as usize, |stage| stage as usize + 1);
        Stage::ALL.get(next).copied().unwrap_or(Stage::Exec)
    }

    fn finish(mut self, groups: Groups, mounts: LayerState, policy_digest: [u8; 32]) -> Finished {
        let waited = self.sandbox.wait();
        let gone = Instant::now();
        for child in mem::take(&mut self.children) {
            // It has nothing to report.
            wait4(Some(child)).ok();
        }
        let ended = self.ended.unwrap_or(gone);
        let cause = self.final_cause(&groups);
        let executed = self.executed.filter(|_| !matches!(cause, Cause::SetUp(_)));
        let end = match (executed, self.status) {
            (None, _) => None,
            (Some(_), Some(status)) => Some(as_end(status)),
            // Pid 1 was killed, and the kernel killed the rest with it.
            (Some(_), None) => Some(End::Signalled { signal: 9 }),
        };
        let mut layers = Layers::all(LayerState::Inactive(Reason::NotReached));
        let abi = landlock::abi().filter(|_| executed.is_some());
        if let Some(abi) = abi {
            layers = Layers::all(LayerState::Active);
            layers.set(Layer::OwnedMounts, mounts);
            if !landlock::has_scopes(abi) {
                layers.set(Layer::LandlockScopes, LayerState::Inactive(Reason::KernelTooOld));
            }
            groups.report(&mut layers);
        }
        let usage = self.usage(executed.map(|executed| ended.saturating_duration_since(executed)), &groups, waited);
        let mut kept: [(Vec<u8>, Vec<u8>); Stream::COUNT] = Default::default();
        let mut streams = [StreamSummary::default(); Stream::COUNT];
        for ((output, kept), summary) in self.outputs.into_iter().zip(&mut kept).zip(&mut streams) {
            let (counted, head, tail) = output.finish();
            *summary = counted;
            *kept = (head, tail);
        }
        let launched = executed.unwrap_or(ended);
        let times = Times {
            stage_us: self.stage_us,
            set_up_us: micros(launched.saturating_duration_since(self.asked)).into(),
            tear_down_us: micros(gone.saturating_duration_since(ended)).into(),
        };
        let landlock_abi = abi.map_or(0, landlock::number);
        let egress = self.sandbox.mirror.take().map_or(EgressRecord::None, Mirror::finish);
        let receipt = Receipt { cause, end, usage, streams, times, layers, landlock_abi, policy_digest, egress };
        let untaken = self.live.map(Live::rest).unwrap_or_default();
        Finished { receipt, kept, untaken, groups: Some(groups) }
    }

    fn final_cause(&self, groups: &Groups) -> Cause {
        // The kernel may have killed between the last look and the end: a run that lost a process to the memory limit
        // has that cause, whatever its payload made of it.
        match (self.cause.or_else(|| groups.killed_for_memory()), self.executed, self.status) {
            (Some(cause), ..) => cause,
            (None, None, _) => Cause::SetUp(failure(self.next_stage(), Errno::ECHILD)),
            (None, Some(_), Some(status)) if libc::WIFEXITED(status) => Cause::Exited,
            (None, Some(_), Some(status)) if libc::WTERMSIG(status) == libc::SIGSYS => Cause::SeccompKill,
            (None, Some(_), Some(_)) => Cause::Signalled,
            // Nothing inside can end pid 1, and it would have told of the payload's end.
            (None, Some(_), None) => Cause::Killed,
        }
    }

    fn usage(&self, wall: Option<Duration>, groups: &Groups, waited: nix::Result<Waited>) -> Usage {
        // Pid 1 has waited for what ended by itself. What was killed with it has left no trace in its `rusage`.
        let by_rusage = |pick: fn(&Waited, CpuUsage) -> u64| match (&waited, self.launch_usage, self.status) {
            (Ok(waited), Some(launch), Some(_)) => Figure::Sampled(pick(waited, launch)),
            (Err(errno), ..) => Figure::Unavailable(Reason::Unreadable { errno: *errno as i32 }),
            (_, None, _) => Figure::Unavailable(Reason::NotReached),
            (_, _, None) => Figure::Unavailable(Reason::Killed),
        };
        let by_group_or = |time, rusage| match groups.cpu_us(time) {
            Figure::Unavailable(_) => rusage,
            counted => counted,
        };
        let user = by_rusage(|waited, launch| waited.usage.user_us.saturating_sub(launch.user_us));
        let system = by_rusage(|waited, launch| waited.usage.system_us.saturating_sub(launch.system_us));
        Usage {
            wall_us: wall.map_or(0, |wall| u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)),
            cpu_us: groups.cpu_us(CpuTime::Total),
            user_us: by_group_or(CpuTime::User, user),
            system_us: by_group_or(CpuTime::System, system),
            memory_peak_bytes: groups.memory_peak_bytes(),
            max_rss_bytes: by_rusage(|waited, _| waited.max_rss_bytes),
            processes_peak: groups.processes_peak(),
            forks_refused: groups.forks_refused(),
            oom_kills: groups.oom_kills(),
        }
    }
}

/// What a failed launch is called: a program that is not there, or cannot run, is the caller's to mend, not ours.
fn not_executed(failure: SetUpFailure) -> Cause {
    if failure.stage != Stage::Exec {
        return Cause::SetUp(failure);
    }
    match Errno::from_raw(failure.errno) {
        Errno::ENOENT | Errno::ENOTDIR => Cause::CommandNotFound,
        // Too many arguments or too little memory say nothing of the program.
        Errno::E2BIG | Errno::ENOMEM | Errno::EAGAIN | Errno::EPIPE => Cause::SetUp(failure),
        errno => Cause::CommandNotExecutable { errno: errno as i32 },
    }
}

fn as_end(status: i32) -> End {
    if libc::WIFEXITED(status) {
        // An exit status has eight bits.
        End::Exited { status: libc::WEXITSTATUS(status).to_le_bytes()[0] }
    } else {
        End::Signalled { signal: libc::WTERMSIG(status).to_le_bytes()[0] }
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
