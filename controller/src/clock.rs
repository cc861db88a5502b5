//! Where a decision's time goes, and when it is up.

use std::fmt;
use std::time::{Duration, Instant};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tack_core::receipt::{StageTime, StageTimes};
use tack_core::{Micros, Spans, Stage};

/// What is asked for the time. It is asked from every thread of a forward pass.
pub type Now<'a> = &'a (dyn Fn() -> Instant + Sync);

/// The stages of one decision, timed, and passed on to whoever else listens; and its deadline, if there is one.
///
/// A clock starts where the time begins to count. A command starts it first of all, enters [`Stage::Read`] and
/// [`Stage::Load`] itself, and hands it to [`Controller::decide_within`](crate::Controller::decide_within), so that
/// deadline and latency are those of the whole command. One stage runs at a time; a stage may run in turns.
pub struct StageClock<'a> {
    listener: &'a mut dyn Spans,
    timer: Timer<'a>,
    running: Option<(Stage, Instant)>,
    /// In the order in which each stage first ended.
    spent: Vec<(Stage, Duration)>,
    last: Option<Stage>,
    ran_out_in: Option<Stage>,
}

/// When the time began, and how much of it there is. A copy goes into the forward pass.
#[derive(Clone, Copy)]
pub(crate) struct Timer<'a> {
    now: Now<'a>,
    started: Instant,
    deadline: Option<Micros>,
}

/// Wall time of a decision: of each stage that ran, of what lay between them, and of all together.
///
/// In JSON a map from a stage's name to whole microseconds, then `other` and `total`. The parts add up to the total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// One entry a stage that ran, in the order in which they first ended. A stage that ran in turns is one entry.
    pub stages: StageTimes,
    /// Between the stages.
    pub other: Micros,
    /// From the clock's start to the answer.
    pub total: Micros,
}

/// One last look at the clock.
pub(crate) struct TimeUp {
    pub(crate) latency: Latency,
    pub(crate) is_late: bool,
}

impl Timer<'_> {
    fn is_late_at(&self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.started);
        self.deadline.is_some_and(|deadline| elapsed >= Duration::from_micros(deadline.0))
    }

    pub(crate) fn is_late(&self) -> bool {
        self.is_late_at((self.now)())
    }
}

impl<'a> StageClock<'a> {
    /// A clock that starts now. Without a deadline it only measures.
    pub fn start(listener: &'a mut dyn Spans, deadline: Option<Micros>) -> Self {
        Self::start_on(&Instant::now, listener, deadline)
    }

    /// A clock that asks `now` for the time, and starts at its first answer.
    pub fn start_on(now: Now<'a>, listener: &'a mut dyn Spans, deadline: Option<Micros>) -> Self {
        let timer = Timer { now, started: now(), deadline };
        Self { listener, timer, running: None, spent: Vec::new(), last: None, ran_out_in: None }
    }

    /// The deadline as it was asked for.
    #[must_use]
    pub const fn deadline(&self) -> Option<Micros> {
        self.timer.deadline
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.timer.is_late()
    }

    /// The stage in which time ran out: it was running, or had just ended, when the deadline passed. As long as there
    /// is time, the stage that runs or ran last; [`Stage::Read`] before any.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let running = self.running.map(|(stage, _)| stage);
        self.ran_out_in.or(running).or(self.last).unwrap_or(Stage::Read)
    }

    /// What was measured so far.
    #[must_use]
    pub fn latency(&self) -> Latency {
        self.look().latency
    }

    /// Latency and lateness by one reading, so that a total below the deadline and an answer in time are one.
    pub(crate) fn look(&self) -> TimeUp {
        let now = (self.timer.now)();
        let total = micros(now.saturating_duration_since(self.timer.started));
        let (mut stages, mut other) = (StageTimes::new(), total);
        for &(stage, spent) in &self.spent {
            let wall = micros(spent);
            if stages.push(StageTime { stage, wall }).is_err() {
                break; // not reached: the list has room for twice the stages that there are
            }
            other.0 -= wall.0.min(other.0);
        }
        TimeUp { latency: Latency { stages, other, total }, is_late: self.timer.is_late_at(now) }
    }

    pub(crate) const fn timer(&self) -> Timer<'a> {
        self.timer
    }

    fn notice(&mut self, now: Instant, stage: Stage) {
        if self.ran_out_in.is_none() && self.timer.is_late_at(now) {
            self.ran_out_in = Some(stage);
        }
    }
}

impl fmt::Debug for StageClock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageClock").field("deadline", &self.timer.deadline).field("spent", &self.spent).finish()
    }
}

/// Whole microseconds, rounded down.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

impl Spans for StageClock<'_> {
    fn enter(&mut self, stage: Stage) {
        let now = (self.timer.now)();
        self.notice(now, self.last.unwrap_or(stage));
        self.listener.enter(stage);
        self.running = Some((stage, now));
    }

    fn exit(&mut self, stage: Stage) {
        let now = (self.timer.now)();
        if let Some((_, entered)) = self.running.take_if(|(running, _)| *running == stage) {
            let turn = now.saturating_duration_since(entered);
            // Turns are summed before they are rounded.
            match self.spent.iter_mut().find(|(known, _)| *known == stage) {
                Some((_, spent)) => *spent += turn,
                None => self.spent.push((stage, turn)),
            }
        }
        self.notice(now, stage);
        self.last = Some(stage);
        self.listener.exit(stage);
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.stages.len() + 2))?;
        for StageTime { stage, wall } in self.stages.iter() {
            map.serialize_entry(stage.name(), wall)?;
        }
        map.serialize_entry("other", &self.other)?;
        map.serialize_entry("total", &self.total)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn stages_and_the_rest_add_up_and_the_deadline_passes_in_one_of_them() {
        use Stage::{Cut, Digest, Load, Read, Tokenize};
        // What happens when, in microseconds: 0 between, then 10 of each stage in turn.
        let walk = [Read, Load, Digest, Cut, Tokenize, Cut, Tokenize];
        #[rustfmt::skip]
        let cases = [ // deadline   late   in stage
            (None,                  false, Tokenize),
            (Some(0),               true,  Read),
            (Some(5),               true,  Read),     // one between, then ten in `read`
            (Some(11),              true,  Read),
            (Some(12),              true,  Read),     // just ended
            (Some(13),              true,  Load),
            (Some(40),              true,  Cut),
            (Some(77),              true,  Tokenize),
            (Some(78),              false, Tokenize),
            (Some(u64::MAX),        false, Tokenize),
        ];
        for (deadline, late, stage) in cases {
            let (started, time) = (Instant::now(), AtomicU64::new(0));
            let now = || started + Duration::from_micros(time.load(Ordering::Relaxed));
            let pass = |us| time.fetch_add(us, Ordering::Relaxed);
            let mut listener = ();
            let mut clock = StageClock::start_on(&now, &mut listener, deadline.map(Micros));
            for stage in walk {
                pass(1);
                clock.enter(stage);
                pass(10);
                clock.exit(stage);
            }
            let TimeUp { latency, is_late } = clock.look();
            assert_eq!((is_late, clock.stage()), (late, stage), "{deadline:?}");
            assert_eq!(clock.is_late(), is_late);
            let stages: Vec<_> = latency.stages.iter().map(|it| (it.stage, it.wall.0)).collect();
            assert_eq!(stages, [(Read, 10), (Load, 10), (Digest, 10), (Cut, 20), (Tokenize, 20)]);
            assert_eq!((latency.other, latency.total), (Micros(7), Micros(77)));
            let json = serde_json::to_string(&latency).unwrap();
            assert_eq!(json, r#"{"read":10,"load":10,"digest":10,"cut":20,"tokenize":20,"other":7,"total":77}"#);
        }
    }
}
