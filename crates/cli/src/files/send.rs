//! `airdma send`.

use super::show::{End, Show, Side};
use super::stdin::{self, Source};
use super::{arrived, conclude, pin_receiver, stop, terminal};
use airdma_files::protocol::Config;
use airdma_files::session::{Code, HandshakeError, Introduction, NoCode, PublicKey, Role};
use airdma_files::walk::{Skipped, Why};
use airdma_files::{Limits, Walking, printable};
use airdma_transfer::{
    Cancel, CodeTries, Error, Event, Expected, Home, NoPeer, Peer, SendJob, Sent, Service,
};
use serde_json::json;
use std::cell::OnceCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const HELP: &str = concat!(
    "\
Examples:
  airdma send holiday.mp4 192.0.2.7      to the host at this address, on which `airdma recv` runs
  airdma send photos notes.txt anna      several, to the host of this name
  airdma send photos                     to the only one who waits on this network
  tar c . | airdma send - anna           what a program writes, once it has ended
  airdma send <(pg_dump db) anna         the same, of another program or a named pipe

",
    super::exit_status!()
);

/// Time after which a walk is reported.
const LONG_WALK: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct SendOptions {
    /// Files and directories, or `-` for standard input; last the receiver, unless it is the only
    /// one on this network
    #[arg(required = true, value_name = "PATH... [PEER]")]
    words: Vec<PathBuf>,
    /// Receiver: an address or a name, with :PORT if it is not the default
    #[arg(long, value_name = "PEER")]
    to: Option<String>,
    /// Code that the receiver shows; asked for if needed and there is a terminal. AIRDMA_CODE in
    /// the environment does the same, hidden from other users
    #[arg(long, value_parser = code)]
    code: Option<Code>,
    /// How long to retry after the connection is lost, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// How long the receiver may take to accept, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    accept_within: u64,
    /// Print one JSON object for each event on standard output, and nothing for people
    #[arg(long)]
    json: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
}

pub fn code(typed: &str) -> Result<Code, NoCode> {
    Code::parse(typed)
}

/// The code in the environment, which other users do not see.
pub fn code_of_environment() -> Result<Option<Code>, String> {
    let given = std::env::var("AIRDMA_CODE").unwrap_or_default();
    let given = (!given.is_empty()).then(|| code(&given)).transpose();
    given.map_err(|error| format!("AIRDMA_CODE: {error}"))
}

/// Meaning of the command line.
struct Wanted {
    paths: Vec<PathBuf>,
    peer: Peer,
    /// The code in the environment.
    code: Option<Code>,
}

/// Why the command line is invalid.
enum Senseless {
    Usage(String),
    Nobody(NoPeer),
}

pub fn send(options: SendOptions) -> ExitCode {
    super::take_descriptors();
    let show = Show::new(Side::Sender, options.json, options.quiet, false);
    let cancel = Cancel::default();
    if let Err(error) = stop::on_signals(&cancel) {
        return conclude(&show, Err(error.into()));
    }
    let wanted = match Wanted::read(&options) {
        Ok(wanted) => wanted,
        Err(Senseless::Nobody(nobody @ (NoPeer::Name { .. } | NoPeer::Nobody(_)))) => {
            show.error("unreachable", super::UNREACHABLE, &nobody.to_string());
            return ExitCode::from(super::UNREACHABLE);
        }
        Err(Senseless::Nobody(
            several @ (NoPeer::Several(_)
            | NoPeer::Namesakes { .. }
            | NoPeer::NoZone(_)
            | NoPeer::Zone(_)),
        )) => {
            show.error("usage", super::USAGE, &several.to_string());
            return ExitCode::from(super::USAGE);
        }
        Err(Senseless::Usage(message)) => {
            show.error("usage", super::USAGE, &message);
            return ExitCode::from(super::USAGE);
        }
    };
    match send_to(&options, &wanted, &show, &cancel) {
        // It was printed before the receiver knew of the end.
        Ok(end) => arrived(&end),
        Err(error) => conclude(&show, Err(error)),
    }
}

fn send_to(
    options: &SendOptions,
    wanted: &Wanted,
    show: &Show,
    cancel: &Cancel,
) -> Result<End, Error> {
    let home = super::home(show)?;
    let sources = wanted.paths.iter();
    let sources: Vec<Source> = sources
        .map(|path| Source::of(path, cancel))
        .collect::<Result<_, _>>()?;
    let named = sources.iter().map(Source::named).collect();
    let walking = Walking::start_named(named, Limits::default())?;
    let unread = OnceCell::new();
    let end_of = |sent| end_of(sent, unread.get().map_or(&[], Vec::as_slice));
    let watch = |event| {
        if let Event::Walked(skipped) = &event {
            unread.get_or_init(|| tell_skipped(skipped, show));
        }
        if let Event::Arrived(sent) = &event {
            show.end(&end_of(sent.clone()));
        }
        tell(event, wanted, &home, show);
    };
    let is_ready = || ready(&walking, &wanted.peer, show, cancel);
    let code = options.code.as_ref().or(wanted.code.as_ref());
    let asking = (terminal_of(options), cancel);
    let mut introduction = introduction(code, &wanted.peer, &home, asking, is_ready)?;
    loop {
        // A code that is asked for is a new one.
        let code_tries = CodeTries::default();
        let job = SendJob {
            code_tries: &code_tries,
            walking: &walking,
            identity: home.identity(),
            to: &wanted.peer.addresses,
            introduction: introduction.clone(),
            patience: Duration::from_secs(options.patience),
            config: Config {
                accept_within: Duration::from_secs(options.accept_within),
                ..Config::default()
            },
        };
        match airdma_transfer::send(&job, &watch, cancel) {
            Ok(sent) => return Ok(end_of(sent)),
            // One of the two has lost the other's key, or another host has its name.
            Err(Error::Handshake(
                error @ (HandshakeError::NotKnown(_) | HandshakeError::NotKnownThere),
            )) if matches!(introduction, Introduction::Known(_)) => {
                // Without a terminal this is the final error.
                let Some(terminal) = terminal_of(options) else {
                    return Err(error.into());
                };
                let text = other_key_warning(error, &introduction, &wanted.peer, &home);
                introduction = Introduction::Code(ask_code(terminal, &text, cancel)?);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Note on a file that grew, such as a log.
pub const GREW: &str =
    "it grew while it was sent: what arrived ends where it ended when it was offered";

/// The result, with paths that could not be offered.
fn end_of(sent: Sent, unread: &[(String, String)]) -> End {
    let flaws = sent.flaws.into_iter();
    let flaws = flaws.map(|(path, flaw)| (path, flaw.to_string()));
    let grown = sent.grown.into_iter();
    let grown = grown.map(|path| (path, GREW.to_owned()));
    End {
        files: sent.files,
        bytes: sent.bytes,
        flaws: unread.iter().cloned().chain(flaws).chain(grown).collect(),
        notes: Vec::new(),
        reconnects: sent.reconnects,
    }
}

/// How the receiver is identified.
///
/// By the given code; else by a key that is known under the name, or that the user confirms; else
/// by a code.
pub fn introduction(
    code: Option<&Code>,
    peer: &Peer,
    home: &Home,
    (mut terminal, cancel): (Option<File>, &Cancel),
    is_ready: impl FnOnce() -> Result<(), Error>,
) -> Result<Introduction, Error> {
    if let Some(code) = code {
        return Ok(Introduction::Code(code.clone()));
    }
    let expected = peer.expected(home);
    if let Expected::Met(keys) = expected {
        return Ok(Introduction::Known(keys));
    }
    if let Expected::Announced { key, met_as } = expected {
        let name = printable(peer.name.as_bytes());
        let met_as = printable(met_as.as_bytes());
        let Some(terminal) = &mut terminal else {
            return Err(Error::OtherName { name, met_as, key });
        };
        let question = format!(
            "No receiver was ever met under the name {name}. What announces it has the key of {met_as}:\n  {key}\nIs that the one that is meant? [y/N] "
        );
        let answer = terminal::ask(terminal, &question, &[cancel]).ok_or(Error::Cancelled)?;
        if matches!(&*answer.trim().to_lowercase(), "y" | "yes") {
            return Ok(Introduction::Known(vec![key]));
        }
    }
    let terminal = terminal.ok_or(Error::NoCode)?;
    is_ready()?;
    Ok(Introduction::Code(ask_code(terminal, "", cancel)?))
}

/// Checks, before the user is asked for the code, that the files can be offered and the receiver is
/// there.
fn ready(walking: &Walking, peer: &Peer, show: &Show, cancel: &Cancel) -> Result<(), Error> {
    let mut is_told = false;
    let found = loop {
        if let Some(found) = walking.wait(LONG_WALK) {
            break found;
        }
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if !std::mem::replace(&mut is_told, true) {
            show.line("reading directories");
        }
    };
    found?;
    airdma_transfer::contact(&peer.addresses, cancel)
}

/// The terminal for questions, if there is one.
fn terminal_of(options: &SendOptions) -> Option<File> {
    let is_data = options.words.iter().any(|word| stdin::is_meant(word));
    terminal::open(is_data)
}

/// Warning about a receiver that is not the known one, before the user types the code that it
/// shows.
fn other_key_warning(
    error: HandshakeError,
    introduction: &Introduction,
    peer: &Peer,
    home: &Home,
) -> String {
    let name = printable(peer.name.as_bytes());
    let HandshakeError::NotKnown(found) = error else {
        return format!("airdma: {name} does not know this host any more, or not as a sender\n");
    };
    let described = |key: &PublicKey| match home.name(key, &[Role::Receiver, Role::Sender]) {
        Some(name) => format!("{key} (known here as {})", printable(name.as_bytes())),
        None => format!("{key} (unknown)"),
    };
    let mut text = format!("airdma: {name} has not the key that was met under this name");
    if let Introduction::Known(keys) = introduction {
        for key in keys {
            text += &format!("\n  met: {}", described(key));
        }
    }
    text += &format!("\n  now: {}", described(&found));
    text + "\nThat is a new installation, another host with the name, or an attack. The code that the receiver which is meant shows decides.\n"
}

/// Prints `before`, and asks for the code.
fn ask_code(mut terminal: File, before: &str, cancel: &Cancel) -> Result<Code, Error> {
    let mut question = format!("{before}code that the receiver shows: ");
    loop {
        let Some(typed) = terminal::ask(&mut terminal, &question, &[cancel]) else {
            return Err(Error::Cancelled);
        };
        if let Ok(code) = code(&typed) {
            return Ok(code);
        }
        question = "two words of five letters; code that the receiver shows: ".to_owned();
    }
}

fn tell(event: Event, wanted: &Wanted, home: &Home, show: &Show) {
    match event {
        Event::Met {
            peer,
            address,
            interface,
            by_code,
        } => {
            show.over(&interface);
            show.object(&json!({
                "event": "met",
                "peer": peer.to_string(),
                "address": address.to_string(),
                "by_code": by_code,
            }));
            let expected = wanted.peer.expected(home);
            let is_new = !matches!(expected, Expected::Met(keys) if keys.contains(&peer));
            // By a code, or by the user's confirmation of another name.
            if by_code || is_new {
                for line in pin_receiver(home, &wanted.peer, peer) {
                    show.must(&format!("airdma: {line}"));
                }
            }
            show.line("connected; the receiver is asked");
        }
        Event::Accepted(progress) => show.accepted(&progress),
        Event::Progress(progress) => show.progress(&progress),
        Event::Lost(why) => {
            show.object(&json!({"event": "lost", "message": why}));
            show.line(&format!("connection lost ({why}); trying again"));
        }
        Event::Walked(_)
        | Event::Arrived(_)
        | Event::Turned(_)
        | Event::Remains(_)
        | Event::Doors { .. }
        | Event::Hindered(_)
        | Event::Listening { .. } => {}
    }
}

/// Prints what is not offered; returns unreadable paths, and why.
fn tell_skipped(skipped: &[Skipped], show: &Show) -> Vec<(String, String)> {
    let mut unread = Vec::new();
    for skipped in skipped {
        let path = printable(&skipped.path);
        let why = match &skipped.why {
            Why::Special => "neither file, directory nor symbolic link".to_owned(),
            Why::Unfinished => "an unfinished transfer of airdma's".to_owned(),
            Why::Problem(problem) => problem.to_string(),
        };
        show.object(&json!({"event": "skipped", "path": path, "message": why}));
        show.must(&format!("airdma: {path} is left out: {why}"));
        if matches!(skipped.why, Why::Problem(_)) {
            unread.push((path, why));
        }
    }
    unread
}

impl Wanted {
    /// Interprets the command line.
    ///
    /// The last word is the receiver unless it is a file, or an option names the receiver. Without
    /// one, it is the only receiver that waits.
    fn read(options: &SendOptions) -> Result<Self, Senseless> {
        let code = code_of_environment().map_err(Senseless::Usage)?;
        let mut paths = options.words.clone();
        let typed = match &options.to {
            Some(to) => Some(to.clone()),
            None => {
                let last = paths.pop_if(|last| !is_here(last));
                last.map(|last| last.to_string_lossy().into_owned())
            }
        };
        let peer = match &typed {
            Some(typed) if paths.is_empty() => {
                let message = format!("there is no {typed} here to be sent");
                return Err(Senseless::Usage(message));
            }
            Some(typed) => Peer::find(Service::Files, typed),
            None => Peer::only(Service::Files),
        };
        let peer = peer.map_err(Senseless::Nobody)?;
        Ok(Self { paths, peer, code })
    }
}

fn is_here(path: &Path) -> bool {
    stdin::is_meant(path) || std::fs::symlink_metadata(path).is_ok()
}
