//! Where a decision's time goes.

use std::time::{Duration, Instant};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tack_core::receipt::{StageTime, StageTimes};
use tack_core::{Micros, Spans, Stage};

/// The stages of one decision, timed, and passed on to whoever else listens.
pub(crate) struct StageClock<'a> {
    listener: &'a mut dyn Spans,
    started: Instant,
    entered: [Option<Instant>; Stage::ALL.len()],
    spent: [Option<Duration>; Stage::ALL.len()],
}

/// Wall time of a decision: of each stage that ran, and of all together, which is a little more.
///
/// In JSON a map from a stage's name to whole microseconds, and `total`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// One entry a stage that ran, in the order of [`Stage::ALL`]. A stage that ran in turns is one entry.
    pub stages: StageTimes,
    /// From the call to the answer; also digests and checks.
    pub total: Micros,
}

impl<'a> StageClock<'a> {
    pub(crate) fn start(listener: &'a mut dyn Spans) -> Self {
        let none = [None; Stage::ALL.len()];
        Self { listener, started: Instant::now(), entered: none, spent: [None; Stage::ALL.len()] }
    }

    pub(crate) fn elapsed(&self) -> Micros {
        micros(self.started.elapsed())
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn latency(&self) -> Latency {
        let mut stages = StageTimes::new();
        for stage in Stage::ALL {
            let Some(spent) = self.spent[stage as usize] else { continue };
            if stages.push(StageTime { stage, wall: micros(spent) }).is_err() {
                break; // not reached: the list has room for twice the stages that there are
            }
        }
        Latency { stages, total: self.elapsed() }
    }
}

/// Whole microseconds, rounded down.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

impl Spans for StageClock<'_> {
    fn enter(&mut self, stage: Stage) {
        self.listener.enter(stage);
        self.entered[stage as usize] = Some(Instant::now());
    }

    fn exit(&mut self, stage: Stage) {
        if let Some(entered) = self.entered[stage as usize].take() {
            // Turns are summed before they are rounded.
            *self.spent[stage as usize].get_or_insert_default() += entered.elapsed();
        }
        self.listener.exit(stage);
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.stages.len() + 1))?;
        for StageTime { stage, wall } in self.stages.iter() {
            map.serialize_entry(stage.name(), wall)?;
        }
        map.serialize_entry("total", &self.total)?;
        map.end()
    }
}
