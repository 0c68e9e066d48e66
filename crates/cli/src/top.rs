//! `airdma top`: what the devices and the programs on them do, while they do it.

use crate::files::stop;
use crate::words::json_line;
use anyhow::{Context, Result, anyhow};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sample::{Looker, Picture, Sample};
use screen::Look;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

mod sample;
mod screen;
mod svg;
mod table;

pub const HELP: &str = "\
Keys: q quits, the arrows choose a row, d shows one device after the other.

Examples:
  airdma top                     devices, processes and queue pairs, each second
  airdma top --once              the same as text, after a second
  airdma top --once --json       the same as JSON

Rates are of UDP payload, ICRC included. Those of queue pairs are packets, as counted by sequence
numbers. Processes of this user are shown; root sees those of all users.";

/// Columns of a table that is not for a terminal, and of a picture.
const WIDTH: u16 = 120;
const HEIGHT: u16 = 22;
/// How often keys and signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Options {
    /// Seconds between two looks, 0.1 to 10
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Show this device only, by its name or its interface's
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Print what happened in one interval as text, and end
    #[arg(long)]
    once: bool,
    /// Print an object for each interval, one in each line
    #[arg(long)]
    json: bool,
    /// With --once: print the screen as SVG
    #[arg(long, requires = "once", conflicts_with = "json")]
    svg: bool,
}

/// Sequence numbers of 24 bits do not wrap within ten seconds.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=10.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("0.1 to 10".into())
    }
}

pub fn top(options: &Options) -> Result<ExitCode> {
    let every = Duration::from_secs_f64(options.interval);
    let mut looker = Looker::default();
    if !options.once && !options.json {
        return watch(&mut looker, options, every);
    }
    let mut before = look(&mut looker)?;
    check_device(options, &before)?;
    loop {
        thread::sleep(every);
        let after = look(&mut looker)?;
        let picture = Picture::between(&before, &after, options.device.as_deref());
        print(&picture, options)?;
        if options.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = after;
    }
}

fn look(looker: &mut Looker) -> Result<Sample> {
    looker
        .look()
        .context("cannot look at the devices of this host")
}

fn check_device(options: &Options, sample: &Sample) -> Result<()> {
    match &options.device {
        Some(name) if !sample.has(name) => Err(anyhow!(
            "no device is called {name}: `airdma devices` lists them"
        )),
        Some(_) | None => Ok(()),
    }
}

fn print(picture: &Picture, options: &Options) -> Result<()> {
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", json_line(&serde_json::to_value(picture)?))?;
    } else if options.svg {
        write!(out, "{}", picture_of(picture, options)?)?;
    } else {
        write!(out, "{}", table::text(picture, WIDTH))?;
    }
    Ok(out.flush()?)
}

fn picture_of(picture: &Picture, options: &Options) -> Result<String> {
    let look = Look {
        has_colour: true,
        chosen: 1,
        device: options.device.clone(),
        every_s: options.interval,
    };
    let mut terminal = Terminal::new(TestBackend::new(WIDTH, HEIGHT))?;
    terminal.draw(|frame| screen::draw(frame, picture, &look))?;
    Ok(svg::svg(terminal.backend().buffer()))
}

/// Shows the screen until a key or a signal ends it.
fn watch(looker: &mut Looker, options: &Options, every: Duration) -> Result<ExitCode> {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || is_dumb {
        return Err(anyhow!(
            "this is not a terminal with a screen: `airdma top --once` prints the same once, \
             and `airdma top --json` an object for each interval"
        ));
    }
    let mut before = look(looker)?;
    check_device(options, &before)?;
    stop::then(|| ())?;
    let mut shown = Look {
        has_colour: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        chosen: 0,
        device: options.device.clone(),
        every_s: options.interval,
    };
    // Restored when this function returns, and in a panic.
    let mut terminal = ratatui::try_init()?;
    let _restored = Restored;
    let mut picture = Picture::between(&before, &before, shown.device.as_deref());
    // The sample before the last: rates are those of the interval between both.
    let mut earlier = None;
    let mut next = Instant::now() + every;
    loop {
        terminal.draw(|frame| screen::draw(frame, &picture, &shown))?;
        match wait(next, &mut shown, &before)? {
            Next::Quit => return Ok(ExitCode::SUCCESS),
            Next::Stopped => return Ok(ExitCode::from(stop::status())),
            Next::Draw => {}
            Next::Look => {
                let after = look(looker)?;
                earlier = Some(std::mem::replace(&mut before, after));
                next = Instant::now() + every;
            }
        }
        let since = earlier.as_ref().unwrap_or(&before);
        picture = Picture::between(since, &before, shown.device.as_deref());
        shown.chosen = shown.chosen.min(picture.rows().saturating_sub(1));
    }
}

/// Restores the terminal when it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What ended a wait.
enum Next {
    Quit,
    Stopped,
    Draw,
    Look,
}

fn wait(until: Instant, look: &mut Look, sample: &Sample) -> Result<Next> {
    loop {
        if stop::has_come() {
            return Ok(Next::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Next::Look);
        }
        if !event::poll(left.min(LOOK_EVERY))? {
            continue;
        }
        let event = event::read()?;
        if matches!(event, Event::Resize(..)) {
            return Ok(Next::Draw);
        }
        if let Event::Key(key) = event
            && key.kind != KeyEventKind::Release
            && let Some(next) = press(key, look, sample)
        {
            return Ok(next);
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "all other keys do nothing")]
fn press(key: KeyEvent, look: &mut Look, sample: &Sample) -> Option<Next> {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Some(Next::Quit),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            return Some(Next::Quit);
        }
        KeyCode::Up | KeyCode::Char('k') => look.chosen = look.chosen.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => {
            look.chosen += 1;
        }
        KeyCode::Home => look.chosen = 0,
        KeyCode::Char('d') => {
            look.device = sample.device_after(look.device.as_deref());
            look.chosen = 0;
        }
        _ => return None,
    }
    Some(Next::Draw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_bounded() {
        for (text, is_good) in [
            ("1", true),
            ("0.1", true),
            ("10", true),
            ("0", false),
            ("11", false),
            ("nan", false),
            ("x", false),
        ] {
            assert_eq!(interval(text).is_ok(), is_good, "{text}");
        }
    }
}
