//! What an observation says, and what the end of a stage means for the outcome.

use crate::closed_enum::closed_enum;
use crate::outcome::{Outcome, OutcomeUnavailable, Verdict};

closed_enum! {
    /// The status of one observation (article, "Repair is hypothesis testing by intervention").
    ///
    /// A failing command is not automatically evidence against the patch: the environment may be unhealthy, and so
    /// may the verifier.
    pub enum ObservationStatus {
        /// The check ran on the candidate in a healthy environment, and the candidate passed.
        Passed = "passed",
        /// The check ran on the candidate in a healthy environment, and the candidate failed.
        CandidateFailed = "candidate_failed",
        /// The environment could not answer.
        InfrastructureUnknown = "infrastructure_unknown",
        /// The check itself was tampered with, or is wrong.
        VerifierInvalid = "verifier_invalid",
    }
}

closed_enum! {
    /// How one stage of an executed action ended. Variants are only ever appended.
    pub enum Ending {
        /// Set-up: the environment could not be readied.
        SetUpFailed = "set_up_failed",
        /// Set-up: the base commit or the patch could not be restored exactly.
        RestoreFailed = "restore_failed",
        /// Pretest: every selected test passed.
        PretestPassed = "pretest_passed",
        /// Pretest: a selected test failed, or was not run to its end.
        PretestFailed = "pretest_failed",
        /// Pretest: its 300 s were used up.
        PretestTimedOut = "pretest_timed_out",
        /// Pretest: the runner or the sandbox could not run it.
        PretestNotRun = "pretest_not_run",
        /// Repair: the agent handed its patch in.
        RepairSubmitted = "repair_submitted",
        /// Repair: tokens or tool calls were used up.
        RepairSpent = "repair_spent",
        /// Repair: the agent's 1,200 s were used up.
        AgentTimedOut = "agent_timed_out",
        /// Repair: the model's provider, or the way to it, failed.
        TransportFailed = "transport_failed",
        /// Grading: every expected test was found and passed.
        GradePassed = "grade_passed",
        /// Grading: an expected test failed.
        GradeFailed = "grade_failed",
        /// Grading: the run ended well, but an expected test is missing from its report.
        ExpectedTestsMissing = "expected_tests_missing",
        /// Grading: the candidate's code broke a limit of the sandbox (wall, memory, processes, output).
        CandidateOverLimit = "candidate_over_limit",
        /// Grading: the candidate could not be compiled or imported.
        CandidateDoesNotLoad = "candidate_does_not_load",
        /// Grading: the grader as a whole ran out of time.
        GraderTimedOut = "grader_timed_out",
        /// Grading: the grader broke, or its sandbox did.
        GraderFailed = "grader_failed",
        /// Grading: the verifier's files are not what they were.
        VerifierChanged = "verifier_changed",
    }
}

/// What follows from the end of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consequence {
    /// The observation goes into the history, its elapsed time is charged, and the repair goes on.
    RepairGoesOn,
    /// The patch is graded as it stands.
    GradeAsItStands,
    /// The action is over.
    Ends(Outcome),
}

/// The status of what was observed, where there was an observation, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meaning {
    /// `None` where the stage ended without a check having been made.
    pub status: Option<ObservationStatus>,
    /// What follows.
    pub consequence: Consequence,
}

impl Ending {
    /// The one table from endings to statuses and outcomes.
    ///
    /// Three time-outs, three meanings: the agent's ends the repair and the patch is graded as it stands; the
    /// pretest's is an observation, and the repair goes on; the grader's leaves the outcome unavailable.
    #[must_use]
    pub const fn meaning(self) -> Meaning {
        use Consequence::{GradeAsItStands, RepairGoesOn};
        use ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed, VerifierInvalid};
        const SOLVED: Consequence = Consequence::Ends(Outcome::Judged(Verdict::Solved));
        const NOT_SOLVED: Consequence = Consequence::Ends(Outcome::Judged(Verdict::NotSolved));
        const fn unavailable(reason: OutcomeUnavailable) -> Consequence {
            Consequence::Ends(Outcome::Unavailable(reason))
        }
        let (status, consequence) = match self {
            Self::SetUpFailed => (Some(InfrastructureUnknown), unavailable(OutcomeUnavailable::SetUp)),
            Self::RestoreFailed => (Some(InfrastructureUnknown), unavailable(OutcomeUnavailable::Restore)),
            Self::PretestPassed => (Some(Passed), RepairGoesOn),
            // The sandbox was healthy and the limit was the declared one, so a test that hangs is the candidate's.
            Self::PretestFailed | Self::PretestTimedOut => (Some(CandidateFailed), RepairGoesOn),
            Self::PretestNotRun => (Some(InfrastructureUnknown), unavailable(OutcomeUnavailable::PretestNotRun)),
            Self::RepairSubmitted | Self::RepairSpent | Self::AgentTimedOut => (None, GradeAsItStands),
            Self::TransportFailed => (Some(InfrastructureUnknown), unavailable(OutcomeUnavailable::Transport)),
            Self::GradePassed => (Some(Passed), SOLVED),
            Self::GradeFailed | Self::ExpectedTestsMissing | Self::CandidateOverLimit | Self::CandidateDoesNotLoad => {
                (Some(CandidateFailed), NOT_SOLVED)
            }
            Self::GraderTimedOut => (Some(InfrastructureUnknown), unavailable(OutcomeUnavailable::GraderTimeOut)),
            Self::GraderFailed => (Some(InfrastructureUnknown), unavailable(OutcomeUnavailable::Grading)),
            Self::VerifierChanged => (Some(VerifierInvalid), unavailable(OutcomeUnavailable::VerifierInvalid)),
        };
        Meaning { status, consequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_row_by_row() {
        use Consequence::{Ends, GradeAsItStands, RepairGoesOn};
        use Ending as E;
        use ObservationStatus::{CandidateFailed, InfrastructureUnknown, Passed, VerifierInvalid};
        use OutcomeUnavailable as U;
        let judged = |verdict| Ends(Outcome::Judged(verdict));
        let unavailable = |reason| Ends(Outcome::Unavailable(reason));
        #[rustfmt::skip]
        let table = [ // ending           status                       what follows
            (E::SetUpFailed,              Some(InfrastructureUnknown), unavailable(U::SetUp)),
            (E::RestoreFailed,            Some(InfrastructureUnknown), unavailable(U::Restore)),
            (E::PretestPassed,            Some(Passed),                RepairGoesOn),
            (E::PretestFailed,            Some(CandidateFailed),       RepairGoesOn),
            (E::PretestTimedOut,          Some(CandidateFailed),       RepairGoesOn),    // the pretest's time-out
            (E::PretestNotRun,            Some(InfrastructureUnknown), unavailable(U::PretestNotRun)),
            (E::RepairSubmitted,          None,                        GradeAsItStands),
            (E::RepairSpent,              None,                        GradeAsItStands),
            (E::AgentTimedOut,            None,                        GradeAsItStands), // the agent's time-out
            (E::TransportFailed,          Some(InfrastructureUnknown), unavailable(U::Transport)),
            (E::GradePassed,              Some(Passed),                judged(Verdict::Solved)),
            (E::GradeFailed,              Some(CandidateFailed),       judged(Verdict::NotSolved)),
            (E::ExpectedTestsMissing,     Some(CandidateFailed),       judged(Verdict::NotSolved)),
            (E::CandidateOverLimit,       Some(CandidateFailed),       judged(Verdict::NotSolved)),
            (E::CandidateDoesNotLoad,     Some(CandidateFailed),       judged(Verdict::NotSolved)),
            (E::GraderTimedOut,           Some(InfrastructureUnknown), unavailable(U::GraderTimeOut)), // the grader's
            (E::GraderFailed,             Some(InfrastructureUnknown), unavailable(U::Grading)),
            (E::VerifierChanged,          Some(VerifierInvalid),       unavailable(U::VerifierInvalid)),
        ];
        assert_eq!(table.map(|row| row.0), Ending::ALL, "one row an ending, in order");
        for (ending, status, consequence) in table {
            assert_eq!(ending.meaning(), Meaning { status, consequence }, "{ending}");
        }
    }

    #[test]
    fn only_an_answer_about_the_candidate_judges_it() {
        for ending in Ending::ALL {
            let Meaning { status, consequence } = ending.meaning();
            if let Consequence::Ends(outcome) = consequence {
                let judged = matches!(outcome, Outcome::Judged(_));
                let answered = matches!(status, Some(ObservationStatus::Passed | ObservationStatus::CandidateFailed));
                assert_eq!(judged, answered, "{ending}");
            }
        }
    }
}
