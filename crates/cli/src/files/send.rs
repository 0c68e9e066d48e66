//! `airdma send`.

use super::show::{End, Show, Side};
use super::{arrived, conclude, stdin, stop, terminal};
use airdma_files::protocol::Config;
use airdma_files::session::{Code, HandshakeError, Introduction, NoCode};
use airdma_files::walk::{Skipped, Why};
use airdma_files::{Limits, Walking, printable};
use airdma_transfer::{Cancel, Error, Event, Home, NoPeer, Peer, SendJob, Sent};
use serde_json::json;
use std::cell::OnceCell;
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

",
    super::exit_status!()
);

#[derive(clap::Args)]
pub struct SendOptions {
    /// Files and directories, `-` for standard input; and last whom to send them to, if that is not the only one who waits on
    /// this network.
    #[arg(required = true, value_name = "PATH... [PEER]")]
    words: Vec<PathBuf>,
    /// Whom to send to: an address or a name, with a port behind a colon if it is another one.
    #[arg(long, value_name = "PEER")]
    to: Option<String>,
    /// The code that the receiver shows; asked for where it is needed and there is a terminal.
    /// AIRDMA_CODE in the environment says the same, and other users do not see it.
    #[arg(long, value_parser = code)]
    code: Option<Code>,
    /// How long to try again when the connection is lost, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// How long the receiver may take to accept, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    accept_within: u64,
    /// One JSON object for each event on standard output, and nothing for people.
    #[arg(long)]
    json: bool,
    /// Say nothing but what went wrong.
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn code(typed: &str) -> Result<Code, NoCode> {
    Code::parse(typed)
}

/// What the words of the command line mean.
struct Wanted {
    paths: Vec<PathBuf>,
    peer: Peer,
    /// The code of the environment.
    code: Option<Code>,
}

/// Why the words of the command line mean nothing.
enum Senseless {
    Usage(String),
    Nobody(NoPeer),
}

pub fn send(options: SendOptions) -> ExitCode {
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
        Err(Senseless::Nobody(several @ NoPeer::Several(_))) => {
            show.error("usage", super::USAGE, &several.to_string());
            return ExitCode::from(super::USAGE);
        }
        Err(Senseless::Usage(message)) => {
            show.error("usage", super::USAGE, &message);
            return ExitCode::from(super::USAGE);
        }
    };
    match send_to(&options, &wanted, &show, &cancel) {
        // It was shown before the receiver heard of it.
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
    let home = Home::open()?;
    let paths = wanted.paths.iter();
    let paths: Vec<PathBuf> = paths
        .map(|path| {
            if stdin::is_meant(path) {
                stdin::as_file(cancel)
            } else {
                Ok(path.clone())
            }
        })
        .collect::<Result<_, _>>()?;
    let walking = Walking::start(&paths, Limits::default())?;
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
    let mut introduction = introduction(options, wanted, &home, show, cancel)?;
    loop {
        let job = SendJob {
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
            // One of the two has forgotten the other.
            Err(Error::Handshake(HandshakeError::NotKnown | HandshakeError::NotKnownThere))
                if matches!(introduction, Introduction::Known(_)) =>
            {
                show.line(
                    "the other end is not the one that was met, or does not know this one any more",
                );
                introduction = Introduction::Code(ask_code(options, wanted, cancel)?);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What came of it, with what could not be read to be offered.
fn end_of(sent: Sent, unread: &[(String, String)]) -> End {
    let flaws = sent.flaws.into_iter();
    let flaws = flaws.map(|(path, flaw)| (path, flaw.to_string()));
    End {
        files: sent.files,
        bytes: sent.bytes,
        flaws: unread.iter().cloned().chain(flaws).collect(),
        reconnects: sent.reconnects,
    }
}

/// By a key, if any is known; else by a code.
fn introduction(
    options: &SendOptions,
    wanted: &Wanted,
    home: &Home,
    show: &Show,
    cancel: &Cancel,
) -> Result<Introduction, Error> {
    let peer = &wanted.peer;
    let keys = peer.expected(home);
    if keys.is_empty() || options.code.is_some() {
        return Ok(Introduction::Code(ask_code(options, wanted, cancel)?));
    }
    // Several were met under its name. One may have been met under another.
    if let [key] = &keys[..] {
        let met_as = home.name(key).unwrap_or_default();
        if !met_as.eq_ignore_ascii_case(&peer.name) {
            let text = format!("{} is known here as {met_as}", peer.name);
            show.object(&json!({"event": "known", "name": met_as, "message": text}));
            show.must(&format!("airdma: {text}"));
        }
    }
    Ok(Introduction::Known(keys))
}

fn ask_code(options: &SendOptions, wanted: &Wanted, cancel: &Cancel) -> Result<Code, Error> {
    if let Some(code) = options.code.as_ref().or(wanted.code.as_ref()) {
        return Ok(code.clone());
    }
    let is_data = options.words.iter().any(|word| stdin::is_meant(word));
    let Some(mut terminal) = terminal::open(is_data) else {
        return Err(Error::NoCode);
    };
    loop {
        let asked = "code that the receiver shows: ";
        let Some(typed) = terminal::ask(&mut terminal, asked, &[cancel]) else {
            return Err(Error::Cancelled);
        };
        if let Ok(code) = code(&typed) {
            return Ok(code);
        }
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
            if by_code && let Err(error) = home.pin(peer, &wanted.peer.name, true) {
                show.must(&format!("airdma: a code will be needed again: {error}"));
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
        | Event::Listening { .. } => {}
    }
}

/// Says what is not offered, and gives what should have been: paths that cannot be read, and why.
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
    /// The last word is the peer unless it is a file, or an option says who that is. Without any it is the only one who waits.
    fn read(options: &SendOptions) -> Result<Self, Senseless> {
        let given = std::env::var("AIRDMA_CODE").unwrap_or_default();
        let given = (!given.is_empty()).then(|| code(&given)).transpose();
        let code = given.map_err(|error| Senseless::Usage(format!("AIRDMA_CODE: {error}")))?;
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
            Some(typed) => Peer::find(typed),
            None => Peer::only(),
        };
        let peer = peer.map_err(Senseless::Nobody)?;
        Ok(Self { paths, peer, code })
    }
}

fn is_here(path: &Path) -> bool {
    stdin::is_meant(path) || std::fs::symlink_metadata(path).is_ok()
}
