//! `airdma serve`: the queue of `airdma-queue`, with transfers by `airdma-transfer`.

use crate::files::{GREW, pin_receiver, stop, take_descriptors, word};
use crate::warn;
use airdma_files::protocol::{Config, Failure, Reason};
use airdma_files::session::{Code, HandshakeError, Introduction};
use airdma_files::walk::{Skipped, Why};
use airdma_files::{Limits, Walking, printable};
use airdma_queue::socket::Socket;
use airdma_queue::{
    Arrived, Carrier, Flaw, News, Order, Outcome, Progress, Service, Stop, Trouble,
};
use airdma_transfer::{Cancel, CodeTries, Error, Event, Expected, Home, Kind, Peer, SendJob};
use anyhow::{Context, Result};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub const HELP: &str = "\
Examples:
  airdma serve                                    in a terminal, until Ctrl-C
  systemctl --user enable --now airdma-serve      with packaging/systemd/user/airdma-serve.service installed
  airdma queue add holiday.mp4 anna               a program, or you

Exit status: 0 after SIGTERM, SIGINT or SIGHUP; 1 if it cannot serve (another one does, no room for the journal).";

/// How long one attempt retries after a lost connection.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Options {
    /// Socket to listen on, for this user only [default: $AIRDMA_QUEUE,
    /// $XDG_RUNTIME_DIR/airdma-queue.sock, or queue.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory of the jobs [default: $STATE_DIRECTORY, $XDG_STATE_HOME/airdma or
    /// ~/.local/state/airdma]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// How long a receiver may take to accept, in seconds; other jobs wait meanwhile
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    accept_within: u64,
}

pub fn serve(options: &Options) -> Result<ExitCode> {
    take_descriptors();
    let state = options.state.clone().or_else(state_directory);
    let state = state.context("no place for the jobs: set HOME, or give --state")?;
    let socket = options.socket.clone().or_else(socket_path);
    let socket = socket.context("no place for the socket: set HOME, or give --socket")?;
    let carrier = Transfers {
        accept_within: Duration::from_secs(options.accept_within),
        code_tries: Mutex::default(),
    };
    let service = Service::open(&state, carrier, warn);
    let service = service.with_context(|| {
        format!(
            "jobs cannot be kept in {}, and --state DIR names another place",
            state.display()
        )
    })?;
    let service = Arc::new(service);
    let listening = Socket::bind(&socket)?;
    let (stopped, wake) = (Arc::clone(&service), listening.waker());
    stop::then(move || {
        tell_systemd("STOPPING=1");
        stopped.stop();
        wake();
    })?;
    let runs = Arc::clone(&service);
    let runner = std::thread::Builder::new()
        .name("airdma-jobs".into())
        .spawn(move || runs.run())?;
    warn(&format!("serves at {}", socket.display()));
    tell_systemd("READY=1");
    listening.serve(&service)?;
    if runner.join().is_err() {
        warn("the jobs ended with a panic: they are kept, and go on with the next service");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Default socket of a service.
pub fn socket_path() -> Option<PathBuf> {
    let runtime = || Some(set("XDG_RUNTIME_DIR")?.join("airdma-queue.sock"));
    let in_state = || Some(state_directory()?.join("queue.sock"));
    set("AIRDMA_QUEUE").or_else(runtime).or_else(in_state)
}

fn state_directory() -> Option<PathBuf> {
    let home = || Some(set("HOME")?.join(".local/state"));
    let users = || Some(set("XDG_STATE_HOME").or_else(home)?.join("airdma"));
    set("STATE_DIRECTORY").or_else(users)
}

fn set(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Notifies systemd of the state of a service of `Type=notify` (sd_notify(3)). Without systemd
/// nothing happens.
fn tell_systemd(state: &str) {
    let Some(name) = set("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let told = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = told {
        warn(&format!("systemd does not hear of {state}: {error}"));
    }
}

/// Transfers orders as `airdma send` does, without a user to ask.
struct Transfers {
    accept_within: Duration,
    /// Tries of the codes of jobs that are not done.
    code_tries: Mutex<HashMap<String, Arc<CodeTries>>>,
}

impl Carrier for Transfers {
    fn carry(&self, order: &Order, tell: &dyn Fn(News), stop: &Stop) -> Outcome {
        let cancel = Cancel::default();
        let cancelled = cancel.clone();
        stop.then(move || cancelled.cancel());
        let peer = match Peer::find(airdma_transfer::Service::Files, &order.to) {
            Ok(peer) => peer,
            Err(error) => {
                return Outcome::Later(Trouble {
                    kind: "unreachable".into(),
                    message: error.to_string(),
                });
            }
        };
        let outcome = match self.send(order, &peer, tell, &cancel) {
            Ok(arrived) => Outcome::Arrived(arrived),
            Err(error) => outcome_of(&error),
        };
        if !matches!(outcome, Outcome::Later(_)) {
            self.forget_tries(order);
        }
        outcome
    }
}

impl Transfers {
    /// Tries of an order's code, counted over all attempts of its job.
    fn code_tries(&self, order: &Order) -> Arc<CodeTries> {
        let mut tries = self
            .code_tries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &order.code {
            Some(code) => Arc::clone(tries.entry(code.clone()).or_default()),
            None => Arc::default(),
        }
    }

    fn forget_tries(&self, order: &Order) {
        let mut tries = self
            .code_tries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = &order.code {
            tries.remove(code);
        }
    }

    fn send(
        &self,
        order: &Order,
        peer: &Peer,
        tell: &dyn Fn(News),
        cancel: &Cancel,
    ) -> std::result::Result<Arrived, Error> {
        // Other programs may add peers, too.
        let home = Home::open()?;
        if let Some(warning) = home.warning() {
            warn(warning);
        }
        let paths: Vec<_> = order.paths.iter().map(|path| &path.0).collect();
        let walking = Walking::start(&paths, Limits::default())?;
        let left_out = OnceCell::new();
        let watch = |event| {
            if let Event::Walked(skipped) = &event {
                left_out.get_or_init(|| skipped.iter().map(flaw_of).collect::<Vec<_>>());
            }
            watched(event, peer, &home, tell);
        };
        let job = SendJob {
            walking: &walking,
            identity: home.identity(),
            to: &peer.addresses,
            introduction: introduction(order, peer, &home)?,
            code_tries: &self.code_tries(order),
            patience: PATIENCE,
            config: Config {
                accept_within: self.accept_within,
                ..Config::default()
            },
        };
        let sent = airdma_transfer::send(&job, &watch, cancel)?;
        let arrived = sent.flaws.into_iter().map(|(path, flaw)| Flaw {
            path,
            why: flaw.to_string(),
        });
        let grown = sent.grown.into_iter().map(|path| Flaw {
            path,
            why: GREW.to_owned(),
        });
        Ok(Arrived {
            files: sent.files,
            bytes: sent.bytes,
            flaws: left_out
                .into_inner()
                .into_iter()
                .flatten()
                .chain(arrived)
                .chain(grown)
                .collect(),
        })
    }
}

/// How the receiver of an order is identified.
///
/// By the job's code or key; else by the keys that are known under the name. An announced key never
/// counts: no user can confirm it.
fn introduction(
    order: &Order,
    peer: &Peer,
    home: &Home,
) -> std::result::Result<Introduction, Error> {
    if let Some(code) = &order.code {
        let code = Code::parse(code).map_err(|_| Error::Unfit("the code of the job is invalid"))?;
        return Ok(Introduction::Code(code));
    }
    if let Some(key) = &order.key {
        let key = key.parse();
        let key = key.map_err(|_| Error::Unfit("the key of the job is invalid"))?;
        return Ok(Introduction::Known(vec![key]));
    }
    match peer.expected(home) {
        Expected::Met(keys) => Ok(Introduction::Known(keys)),
        Expected::Announced { key, met_as } => Err(Error::OtherName {
            name: printable(peer.name.as_bytes()),
            met_as: printable(met_as.as_bytes()),
            key,
        }),
        Expected::Unknown => Err(Error::NoCode),
    }
}

fn watched(event: Event, peer: &Peer, home: &Home, tell: &dyn Fn(News)) {
    match event {
        Event::Met {
            peer: key,
            by_code: true,
            ..
        } => {
            tell(News::Met(key.to_string()));
            for line in pin_receiver(home, peer, key) {
                warn(&line);
            }
        }
        Event::Accepted(progress) | Event::Progress(progress) => tell(News::Progress(Progress {
            bytes: progress.bytes,
            bytes_total: progress.bytes_total,
        })),
        Event::Lost(why) => warn(&format!("connection lost ({why}); trying again")),
        Event::Met { .. }
        | Event::Walked(_)
        | Event::Turned(_)
        | Event::Arrived(_)
        | Event::Remains(_)
        | Event::Doors { .. }
        | Event::Hindered(_)
        | Event::Listening { .. } => {}
    }
}

fn flaw_of(skipped: &Skipped) -> Flaw {
    Flaw {
        path: printable(&skipped.path),
        why: match &skipped.why {
            Why::Special => "neither file, directory nor symbolic link".to_owned(),
            Why::Unfinished => "an unfinished transfer of airdma's".to_owned(),
            Why::Problem(problem) => problem.to_string(),
        },
    }
}

const OTHER_KEY: &str = "; queue the job again with it (--code)";
const NO_CODE: &str = "this receiver is not known yet: queue the job with the code that it shows (--code), or meet it once with `airdma send`";

/// Whether a retry may succeed.
fn outcome_of(error: &Error) -> Outcome {
    let is_stranger = matches!(
        error,
        Error::Handshake(HandshakeError::NotKnown(_) | HandshakeError::NotKnownThere)
    );
    let message = if matches!(error, Error::NoCode) {
        NO_CODE.into()
    } else if is_stranger {
        format!("{error}{OTHER_KEY}")
    } else {
        error.to_string()
    };
    let kind = word(error).into();
    let trouble = Trouble { kind, message };
    // The receiver is busy with another sender, or the interface is down or has no route: both are
    // temporary.
    let passes = matches!(
        error,
        Error::Rdma(_)
            | Error::Failure(Failure::Peer {
                reason: Reason::Busy,
                ..
            })
    );
    match error.kind() {
        Kind::Cancelled => Outcome::Stopped,
        Kind::Unreachable | Kind::Interrupted => Outcome::Later(trouble),
        Kind::Refused | Kind::System if passes => Outcome::Later(trouble),
        Kind::Refused | Kind::Unknown | Kind::Files | Kind::Protocol | Kind::System => {
            Outcome::Failed(trouble)
        }
    }
}
