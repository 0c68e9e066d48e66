//! `airdma doctor`: whether this host suits airdma, and what to change, each with the command.

use std::io::{self, Write};
use std::process::ExitCode;

use airdma_engine::selftest;
use anyhow::Result;
use serde_json::{Value, json};

mod firewall;
mod kernel;
mod network;

pub const HELP: &str = "\
Each line has a state: `ok`, `hint` (works, and could be better), `bad` (will not work), or
`skip` (cannot be seen from here). What to change stands behind an arrow. Nothing is changed.

Exits with 0 if no line is bad, with 1 if one is.";

/// What a check says of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// It works, and could be better.
    Hint,
    /// It will not work.
    Bad,
    /// It cannot be seen from here.
    Skip,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    check: &'static str,
    state: State,
    says: String,
    /// What to change, with the command.
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(check, State::Ok, says.into(), None)
    }

    fn skip(check: &'static str, says: impl Into<String>) -> Finding {
        Finding::new(check, State::Skip, says.into(), None)
    }

    fn hint(check: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(check, State::Hint, says.into(), Some(remedy.into()))
    }

    fn bad(check: &'static str, says: impl Into<String>, remedy: Option<String>) -> Finding {
        Finding::new(check, State::Bad, says.into(), remedy)
    }

    fn new(check: &'static str, state: State, says: String, remedy: Option<String>) -> Finding {
        Finding {
            check,
            state,
            says,
            remedy,
        }
    }

    fn line(&self) -> String {
        let (state, check) = (self.state.word(), self.check);
        let mut line = format!("{state:STATE_LEN$}{check:CHECK_LEN$}{}", self.says);
        if let Some(remedy) = &self.remedy {
            line.push_str(" -> ");
            line.push_str(remedy);
        }
        line
    }

    fn document(&self) -> Value {
        json!({
            "check": self.check,
            "state": self.state.word(),
            "message": self.says,
            "remedy": self.remedy,
        })
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Hint => "hint",
            State::Bad => "bad",
            State::Skip => "skip",
        }
    }
}

/// Prints the findings. Exits with 1 if one of them is bad.
pub fn print(as_json: bool) -> Result<ExitCode> {
    // It forks; this process has not started a thread yet.
    let self_test = kernel::self_test(&selftest::run());
    let mut findings = network::findings();
    findings.push(firewall::look());
    findings.push(self_test);
    findings.extend(kernel::findings());
    let mut out = io::stdout().lock();
    if as_json {
        let all = findings.iter().map(Finding::document).collect();
        writeln!(out, "{:#}", Value::Array(all))?;
    } else {
        for finding in &findings {
            writeln!(out, "{}", finding.line())?;
        }
    }
    out.flush()?;
    let bad = findings.iter().any(|finding| finding.state == State::Bad);
    Ok(if bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

const STATE_LEN: usize = 6;
const CHECK_LEN: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_state_the_check_and_what_to_do() {
        let finding = Finding::hint("buffers", "208 KiB", "`sysctl x`");
        assert_eq!(finding.line(), "hint  buffers    208 KiB -> `sysctl x`");
        assert_eq!(finding.document()["remedy"], "`sysctl x`");
        assert_eq!(Finding::ok("mtu", "1500").document()["remedy"], Value::Null);
    }
}
