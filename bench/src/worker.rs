//! An implementation of the forward pass in a process of its own: asked by a line, answered by a line.
//!
//! Ours and the peers alike, so that memory and processor time are each one's own. While one is measured the others are
//! stopped, so that no thread of theirs that waits awake takes the processor.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// What a benchmark passes on.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A process that answers; stopped except while it does.
#[derive(Debug)]
pub struct Worker {
    /// What it calls itself: product, version, precision.
    pub name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What one pass took and gave.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Seconds on the wall.
    pub wall_s: f64,
    /// Seconds of processor time, of all threads.
    pub cpu_s: f64,
    /// The hidden state of each sequence.
    pub hidden: Vec<Vec<f64>>,
}

impl Worker {
    /// Starts `command` and waits until it has loaded.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it is ready.
    pub fn start(command: &mut Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a pipe was asked for".into());
        };
        let mut worker = Self { name: String::new(), child, requests, answers: BufReader::new(answers) };
        let ready = worker.read_line()?;
        worker.name = ready["ready"].as_str().ok_or("the first line is not `ready`")?.into();
        worker.signal(Signal::SIGSTOP)?;
        Ok(worker)
    }

    /// One pass over `states` after `prefix`; `None`, with the reason printed, where the implementation has no way to.
    ///
    /// # Errors
    /// If the process has ended, or answers something else.
    pub fn pass(&mut self, prefix: &[u32], states: &[Vec<u32>]) -> Outcome<Result<Answer, String>> {
        self.signal(Signal::SIGCONT)?;
        writeln!(self.requests, "{}", json!({"prefix": prefix, "states": states}))?;
        self.requests.flush()?;
        let answer = self.read_line()?;
        self.signal(Signal::SIGSTOP)?;
        if let Some(error) = answer["error"].as_str() {
            return Ok(Err(error.to_owned()));
        }
        let number = |key: &str| answer[key].as_f64().ok_or_else(|| format!("{}: no `{key}`", self.name));
        let hidden: Vec<Vec<f64>> = serde_json::from_value(answer["hidden"].clone())?;
        Ok(Ok(Answer { wall_s: number("wall_s")?, cpu_s: number("cpu_s")?, hidden }))
    }

    /// Megabytes of `/proc/PID/status`, by its own names.
    #[must_use]
    pub fn memory_mb(&self, name: &str) -> f64 {
        memory_mb(&self.child.id().to_string(), name)
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    fn read_line(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(format!("{} ended: {}", self.name, self.child.wait()?).into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A stopped process ends by SIGKILL alone.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Megabytes of `/proc/ID/status`, by its own names; `self` is this process.
#[must_use]
pub fn memory_mb(id: &str, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|line| line.trim_matches(|it: char| !it.is_ascii_digit()).parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1024.0
}
