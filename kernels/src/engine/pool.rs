//! The threads of an engine: they spin for the next phase, then park.
//!
//! A forward pass is some hundred short phases with a barrier after each, most of them under a millisecond, so threads are
//! started once and wait awake for a moment between phases. Which thread takes which item is chance; every item owns all
//! that it writes and computes it alone, so no result depends on that, nor on the number of threads.
#![allow(unsafe_code)]

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How often a thread looks for work before it parks: about 20 microseconds, the length of a short phase. Waking a
/// parked thread costs about as much.
const SPINS: u32 = 2_000;

/// Some threads that wait for phases, and for each of them a scratch space of its own.
pub(crate) struct Pool<S> {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// One for each thread, the caller's first. A thread holds its own for the length of a phase.
    scratch: Vec<Mutex<S>>,
}

/// What the caller and the helpers both see.
struct Shared {
    /// The number of the current phase, and what it runs.
    phase: Mutex<Phase>,
    /// Mirrors `phase.number`, to look at without the lock.
    number: AtomicUsize,
    started: Condvar,
    /// Helpers that have not finished the current phase.
    running: AtomicUsize,
    finished: Condvar,
    /// The first panic of a helper in the current phase.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Phase {
    number: usize,
    work: Option<Work>,
    closing: bool,
}

/// The function of a phase, which takes the number of its thread. It lives on the stack of [`Pool::run`], which does not
/// return before every helper is done with it.
#[derive(Clone, Copy)]
struct Work(&'static (dyn Fn(usize) + Sync));

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half done under any of these locks, and a panic of a phase is passed on by `run`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Default + Send> Pool<S> {
    /// Starts all but one of `threads`; the caller of a phase is the last. Fewer if the system has no more to give.
    pub(crate) fn new(threads: NonZeroUsize) -> Self {
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase { number: 0, work: None, closing: false }),
            number: AtomicUsize::new(0),
            started: Condvar::new(),
            running: AtomicUsize::new(0),
            finished: Condvar::new(),
            panic: Mutex::new(None),
        });
        let start = |index| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("tack-engine-{index}")).spawn(move || shared.help(index)).ok()
        };
        let helpers: Vec<_> = (1..threads.get()).map_while(start).collect();
        let scratch = (0..=helpers.len()).map(|_| Mutex::default()).collect();
        Self { shared, helpers, scratch }
    }

    /// Threads of a phase, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.scratch.len()
    }

    /// Runs `work` once on each item, on all threads; returns when all are done.
    ///
    /// `stop` is asked before each item; once it says so, no further item is begun. Returns whether all were.
    pub(crate) fn for_each<T: Send>(
        &self,
        items: impl IntoIterator<Item = T, IntoIter: Send>,
        stop: &(dyn Fn() -> bool + Sync),
        work: impl Fn(&mut S, T) + Sync,
    ) -> bool {
        let items = Mutex::new(items.into_iter());
        let stopped = AtomicBool::new(false);
        self.run(&|thread| {
            let mut scratch = lock(&self.scratch[thread]);
            while let Some(item) = { lock(&items).next() } {
                if stopped.load(Ordering::Relaxed) || stop() {
                    stopped.store(true, Ordering::Relaxed);
                    return;
                }
                work(&mut scratch, item);
            }
        });
        !stopped.into_inner()
    }

    /// Runs `work` once on every thread.
    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if self.helpers.is_empty() {
            return work(0);
        }
        // SAFETY: only the lifetime changes. No helper holds `work` after it has counted itself out of `running`, this
        // function takes it back out of `phase` and does not return, by panic neither, before `running` is zero.
        let lasting = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        shared.running.store(self.helpers.len(), Ordering::Relaxed);
        {
            let mut phase = lock(&shared.phase);
            phase.number = phase.number.wrapping_add(1);
            phase.work = Some(Work(lasting));
            shared.number.store(phase.number, Ordering::Release);
            shared.started.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        shared.wait_for_helpers();
        lock(&shared.phase).work = None;
        let theirs = lock(&shared.panic).take();
        if let Err(panic) = own.and_then(|()| theirs.map_or(Ok(()), Err)) {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    /// The life of a helper.
    fn help(&self, index: usize) {
        let mut seen = 0;
        loop {
            let Some((number, Work(work))) = self.next_phase(seen) else { return };
            seen = number;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(index))) {
                lock(&self.panic).get_or_insert(panic);
            }
            // Release: what this phase wrote is seen by whoever reads zero.
            if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Under the lock, so that it cannot fall between the caller's last look and its sleep.
                let _phase = lock(&self.phase);
                self.finished.notify_one();
            }
        }
    }

    /// Waits for a phase after `seen`; `None` when the pool closes.
    fn next_phase(&self, seen: usize) -> Option<(usize, Work)> {
        for _ in 0..SPINS {
            if self.number.load(Ordering::Acquire) != seen {
                break;
            }
            std::hint::spin_loop();
        }
        let mut phase = lock(&self.phase);
        loop {
            if phase.closing {
                return None;
            }
            if let Some(work) = phase.work.filter(|_| phase.number != seen) {
                return Some((phase.number, work));
            }
            phase = self.started.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wait_for_helpers(&self) {
        for _ in 0..SPINS {
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut phase = lock(&self.phase);
        while self.running.load(Ordering::Acquire) != 0 {
            phase = self.finished.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<S> Drop for Pool<S> {
    fn drop(&mut self) {
        {
            let mut phase = lock(&self.shared.phase);
            phase.closing = true;
            phase.number = phase.number.wrapping_add(1);
            self.shared.number.store(phase.number, Ordering::Release);
            self.shared.started.notify_all();
        }
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of its phases, so it ends well.
            drop(helper.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool<u64> {
        Pool::new(NonZeroUsize::new(threads).unwrap())
    }

    #[test]
    fn every_item_runs_once_in_every_phase() {
        for threads in [1, 2, 3, 8] {
            let pool = pool(threads);
            assert_eq!(pool.threads(), threads);
            for count in [0, 1, 2, 100] {
                let mut cells = vec![0_u32; count];
                for _ in 0..50 {
                    assert!(pool.for_each(cells.iter_mut(), &|| false, |scratch, cell| {
                        *scratch += 1;
                        *cell += 1;
                    }));
                }
                assert!(cells.iter().all(|&times| times == 50), "{threads} threads, {count} items");
            }
            let ran: u64 = pool.scratch.iter().map(|scratch| *lock(scratch)).sum();
            assert_eq!(ran, 50 * 103);
        }
    }

    #[test]
    fn parked_threads_wake() {
        let pool = pool(4);
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(20));
            let mut cells = [0; 64];
            pool.for_each(cells.iter_mut(), &|| false, |_, cell| *cell += 1);
            assert_eq!(cells, [1; 64]);
        }
    }

    #[test]
    fn a_stop_leaves_out_what_has_not_begun() {
        for threads in [1, 2, 4] {
            let done = AtomicUsize::new(0);
            let all = pool(threads).for_each(0..1000, &|| done.load(Ordering::SeqCst) >= 3, |_, _| {
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert!(!all && done.into_inner() <= 3 + threads);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = pool(3);
        for culprit in 0..8 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.for_each(0..8, &|| false, |_, item| assert_ne!(item, culprit, "on purpose"));
            }));
            assert!(caught.is_err());
            assert!(pool.for_each(0..8, &|| false, |_, _| {}));
        }
    }
}
