//! Splits a list of tasks over threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::network::{ForwardError, Stop};

/// How many threads run one pass, and what ends it early.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub(crate) threads: NonZeroUsize,
    pub(crate) stop: Stop<'a>,
}

impl Pool<'_> {
    /// Runs `work` once on each task; which thread takes which is chance, so a task must own all that it writes.
    ///
    /// # Errors
    /// [`ForwardError::Stopped`] if the stop was requested; then some tasks were left out.
    pub(crate) fn run<T: Send>(&self, tasks: Vec<T>, work: impl Fn(T) + Sync) -> Result<(), ForwardError> {
        let helpers = self.threads.get().min(tasks.len()).saturating_sub(1);
        let stopped = AtomicBool::new(false);
        let tasks = Mutex::new(tasks.into_iter());
        let take_turns = || {
            // A thread that panicked held no task half taken, and its panic is passed on by the scope.
            while let Some(task) = { tasks.lock().unwrap_or_else(PoisonError::into_inner).next() } {
                if stopped.load(Ordering::Relaxed) || self.stop.requested() {
                    stopped.store(true, Ordering::Relaxed);
                    return;
                }
                work(task);
            }
        };
        thread::scope(|scope| {
            for _ in 0..helpers {
                // A thread that cannot be had is not missed: this one takes its turns.
                if thread::Builder::new().spawn_scoped(scope, take_turns).is_err() {
                    break;
                }
            }
            take_turns();
        });
        if stopped.into_inner() { Err(ForwardError::Stopped) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 16] {
            for count in [0, 1, 2, 100] {
                let mut seen = vec![0_u32; count];
                let pool = Pool { threads: NonZeroUsize::new(threads).unwrap(), stop: Stop::never() };
                pool.run(seen.iter_mut().collect(), |cell| *cell += 1).unwrap();
                assert!(seen.iter().all(|&times| times == 1), "{threads} threads, {count} tasks");
            }
        }
    }

    #[test]
    fn a_stop_leaves_out_what_has_not_begun() {
        for threads in [1, 2, 4] {
            let done = AtomicUsize::new(0);
            let enough = || done.load(Ordering::SeqCst) >= 3;
            let pool = Pool { threads: NonZeroUsize::new(threads).unwrap(), stop: Stop::when(&enough) };
            let result = pool.run(vec![(); 1000], |()| {
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(result, Err(ForwardError::Stopped));
            assert!(done.into_inner() <= 3 + threads);
        }
    }
}
