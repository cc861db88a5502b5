//! A mirror's whole life: from its two descriptors to its log.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tack_sandbox_protocol::egress::{EgressLog, Host, MIRROR_READY, Verdict};
use tack_sandbox_protocol::{Destination, DestinationError, FrameError, frame};

use crate::bounds::Bounds;
use crate::connection::{Mirror, STACK_BYTES, refuse};
use crate::log::{Log, Traffic};
use crate::relay::Budget;
use crate::request::Refusal;

/// Where the host has no thread or descriptor left, a new try at once would only be a loop.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a mirror came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// An argument is no destination.
    #[error("`{text}` is no destination")]
    Destination {
        /// The argument.
        text: String,
        /// What is wrong with it.
        source: DestinationError,
    },
    /// Standard input is no listener, or standard output no socket.
    #[error("standard input is not a listener, or standard output not a socket to the sandbox's helper")]
    Descriptors(#[source] io::Error),
    /// No thread for the listener.
    #[error("cannot start a thread that accepts connections")]
    Thread(#[source] io::Error),
    /// The helper is gone.
    #[error("cannot speak to the sandbox's helper")]
    Control(#[source] io::Error),
    /// The log does not fit a frame.
    #[error("cannot put the log into a frame")]
    Frame(#[source] FrameError),
}

/// The mirror as a program: destinations as `arguments`, the listener as standard input, the socket to the helper as
/// standard output. Called first thing in a process of its own.
#[must_use]
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let served = destinations(arguments).and_then(|destinations| {
        let (listener, control) = (io::stdin().as_fd().try_clone_to_owned(), io::stdout().as_fd().try_clone_to_owned());
        let listener = TcpListener::from(listener.map_err(MirrorError::Descriptors)?);
        let control = UnixStream::from(control.map_err(MirrorError::Descriptors)?);
        listener.local_addr().and(control.peer_addr()).map_err(MirrorError::Descriptors)?;
        serve(listener, &control, destinations, Bounds::default())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be left to tell.
            writeln!(io::stderr(), "tack-sandbox-mirror: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

fn destinations(arguments: impl Iterator<Item = OsString>) -> Result<Vec<Destination>, MirrorError> {
    arguments
        .map(|argument| {
            let text = argument.to_string_lossy();
            Destination::parse(&text)
                .map_err(|source| MirrorError::Destination { text: text.escape_debug().to_string(), source })
        })
        .collect()
}

/// Serves connections of `listener` until `control` ends; then sends the log there, as one frame. Whatever still lasts
/// is logged as it stands, and ends with the process.
///
/// # Errors
/// [`MirrorError::Thread`], [`MirrorError::Control`], [`MirrorError::Frame`].
pub fn serve(
    listener: TcpListener,
    mut control: &UnixStream,
    destinations: Vec<Destination>,
    bounds: Bounds,
) -> Result<(), MirrorError> {
    let mirror = Arc::new(Mirror { destinations, bounds, budget: Budget::new(&bounds), log: Log::default() });
    let accepting = mirror.clone();
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || accept(&listener, &accepting))
        .map_err(MirrorError::Thread)?;
    control.write_all(&[MIRROR_READY]).map_err(MirrorError::Control)?;
    // Nothing is ever said there but that it ends.
    while control.read(&mut [0; 64]).map_err(MirrorError::Control)? > 0 {}
    let mut buffer = vec![0; frame::HEADER_BYTES + EgressLog::MAX_BYTES];
    let frame = frame::encode::<EgressLog>(&mirror.log.now(), &mut buffer).map_err(MirrorError::Frame)?;
    control.write_all(frame).map_err(MirrorError::Control)
}

fn accept(listener: &TcpListener, mirror: &Arc<Mirror>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((client, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        let place = Place::take(&open, mirror.bounds.connections);
        let refused = match place {
            Some(place) => start(client, mirror, place),
            None => Some(client),
        };
        if let Some(client) = refused {
            mirror.log.refuse(Host::NONE, 0, Verdict::TooMany, &Traffic::new());
            refuse(&client, &Refusal { status: 503, reason: "too many connections at one time" }, Duration::ZERO);
        }
    }
}

/// Serves the client on a thread of its own; hands it back where there is none to be had.
fn start(client: TcpStream, mirror: &Arc<Mirror>, place: Place) -> Option<TcpStream> {
    // A second name of the socket, so that it is there to be answered if the thread is not.
    let Ok(served) = client.try_clone() else { return Some(client) };
    let mirror = mirror.clone();
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        mirror.answer(&served);
        drop(place);
    });
    thread.is_err().then_some(client)
}

/// One of the connections that there may be at one time. Dropped, it is free.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let taken = open.try_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < most).then_some(open + 1));
        taken.is_ok().then(|| Self(open.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
