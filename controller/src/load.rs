//! Where the time of a start goes.

use std::time::Instant;

use serde::Serialize;
use tack_core::Micros;
use tack_kernels::engine::LoadPhase;

use crate::clock::micros;

/// Wall time of each phase of opening a bundle, in the order in which they ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct LoadTimes {
    phases: Vec<PhaseTime>,
    #[serde(skip)]
    running: Option<Instant>,
}

/// One phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseTime {
    /// Which.
    pub phase: &'static str,
    /// Its wall time, in microseconds.
    pub wall: Micros,
}

impl LoadTimes {
    /// Begins with the record and the tokenizer.
    pub(crate) fn start() -> Self {
        let mut times = Self { phases: Vec::new(), running: None };
        times.enter("tokenizer");
        times
    }

    /// Ends the phase that runs, and begins another.
    pub(crate) fn enter(&mut self, phase: &'static str) {
        self.end();
        self.phases.push(PhaseTime { phase, wall: Micros(0) });
        self.running = Some(Instant::now());
    }

    /// Ends the phase that runs.
    pub(crate) fn end(&mut self) {
        if let (Some(phase), Some(begun)) = (self.phases.last_mut(), self.running.take()) {
            phase.wall = micros(begun.elapsed());
        }
    }

    /// The phases.
    #[must_use]
    pub fn phases(&self) -> &[PhaseTime] {
        &self.phases
    }

    /// All of them together.
    #[must_use]
    pub fn total(&self) -> Micros {
        Micros(self.phases.iter().map(|phase| phase.wall.0).sum())
    }
}

/// The name of an engine's phase in reports. The one after the last is what the controller does with the network.
pub(crate) const fn phase_name(phase: LoadPhase) -> &'static str {
    match phase {
        LoadPhase::Read => "read",
        LoadPhase::Identify => "identify",
        LoadPhase::OpenPack => "open_pack",
        LoadPhase::Check => "check",
        LoadPhase::Pack => "pack",
        LoadPhase::WritePack { .. } => "write_pack",
        LoadPhase::Ready => "fit",
    }
}
