//! Commands that start another one: `env -i CMD`, `nice CMD`, `sudo CMD`. The program that matters is the one behind them, and some
//! take `LD_PRELOAD` away from it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a command starts in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started<'a> {
    /// The program behind the wrappers, and its arguments. Of a wrapper that starts its program out of sight, itself.
    pub command: &'a [OsString],
    /// Why the library will not be in the program, and what to do.
    pub lost: Option<String>,
}

/// Commands in front of each other that are looked through.
const WRAPPERS_MAX: usize = 8;

/// Looks through the wrappers of a command.
pub fn look_through(command: &[OsString]) -> Started<'_> {
    let mut rest = command;
    for _ in 0..WRAPPERS_MAX {
        let Some((name, arguments)) = rest.split_first() else {
            break;
        };
        let name = Path::new(name).file_name().unwrap_or_default();
        if let Some(reason) = takes_away(name, arguments) {
            return Started {
                command: rest,
                lost: Some(reason),
            };
        }
        let Some(wrapper) = WRAPPERS.iter().find(|wrapper| name == wrapper.name) else {
            break;
        };
        match wrapper.behind(arguments) {
            Some(behind) if !behind.is_empty() => rest = behind,
            _ => break,
        }
    }
    Started {
        command: rest,
        lost: None,
    }
}

/// A command that becomes, or runs, the one behind its own arguments.
struct Wrapper {
    name: &'static str,
    /// Letters of options with a value, and their long names.
    with_value: (&'static str, &'static [&'static str]),
    /// Words between the options and the command.
    positional: usize,
    /// `NAME=VALUE` may stand before the command.
    assigns: bool,
}

impl Wrapper {
    /// The command behind a wrapper's own arguments.
    fn behind<'a>(&self, arguments: &'a [OsString]) -> Option<&'a [OsString]> {
        let mut at = 0;
        while let Some(word) = arguments.get(at).map(|word| word.as_bytes()) {
            match word {
                b"--" => {
                    at += 1;
                    break;
                }
                [b'-', b'-', long @ ..] => {
                    let has_value = self.with_value.1.iter().any(|name| name.as_bytes() == long);
                    at += 1 + usize::from(has_value);
                }
                [b'-', short @ ..] => {
                    let has_value =
                        matches!(short, [letter] if self.with_value.0.as_bytes().contains(letter));
                    at += 1 + usize::from(has_value);
                }
                _ => break,
            }
        }
        while self.assigns
            && arguments
                .get(at)
                .is_some_and(|word| word.as_bytes().contains(&b'='))
        {
            at += 1;
        }
        arguments.get(at + self.positional..)
    }
}

const fn plain(name: &'static str, letters: &'static str, positional: usize) -> Wrapper {
    Wrapper {
        name,
        with_value: (letters, &[]),
        positional,
        assigns: false,
    }
}

const WRAPPERS: [Wrapper; 9] = [
    Wrapper {
        name: "env",
        with_value: ("uC", &["unset", "chdir"]),
        positional: 0,
        assigns: true,
    },
    Wrapper {
        name: "nice",
        with_value: ("n", &["adjustment"]),
        positional: 0,
        assigns: false,
    },
    Wrapper {
        name: "timeout",
        with_value: ("sk", &["signal", "kill-after"]),
        positional: 1,
        assigns: false,
    },
    Wrapper {
        name: "stdbuf",
        with_value: ("ioe", &["input", "output", "error"]),
        positional: 0,
        assigns: false,
    },
    plain("ionice", "cnp", 0),
    plain("nohup", "", 0),
    plain("setsid", "", 0),
    plain("taskset", "", 1),
    plain("numactl", "iNmCpP", 0),
];

/// Whether a command keeps the variables from what it starts: why, and what to do.
fn takes_away(name: &OsStr, arguments: &[OsString]) -> Option<String> {
    let name = name.to_str()?;
    let options = arguments.iter().map(|word| word.as_bytes());
    let mut options = options.take_while(|word| word.starts_with(b"-") || word.contains(&b'='));
    let again = |start: &str| format!("let it start airdma itself: {start} airdma run -- CMD");
    match name {
        "sudo" | "doas" | "pkexec" => Some(format!(
            "{name} takes LD_PRELOAD away from what it starts; {}",
            again(name)
        )),
        "su" | "runuser"
            if arguments
                .iter()
                .any(|word| word == "-" || word == "-l" || word == "--login") =>
        {
            Some(format!(
                "{name} - gives what it starts an environment of its own, without LD_PRELOAD; write `airdma run -- CMD` in its command"
            ))
        }
        "ssh" | "docker" | "podman" | "systemd-run" => Some(format!(
            "{name} starts its program elsewhere, without these variables; let that be `airdma run -- CMD`"
        )),
        "env" => {
            let ignored = |word: &[u8]| {
                matches!(
                    word,
                    b"-" | b"--ignore-environment" | b"--unset=LD_PRELOAD" | b"-uLD_PRELOAD"
                ) || is_short(word, b'i')
                    || word.starts_with(b"LD_PRELOAD=")
            };
            let words = arguments.windows(2);
            let unset = words
                .take_while(|words| words[0].as_bytes().starts_with(b"-"))
                .any(|words| {
                    (words[0] == "-u" || words[0] == "--unset") && words[1] == "LD_PRELOAD"
                });
            (options.any(ignored) || unset).then(|| {
                format!(
                    "env takes LD_PRELOAD away from what it starts; {}",
                    again("env ...")
                )
            })
        }
        _ => None,
    }
}

/// Whether a word of single letters has this one.
fn is_short(word: &[u8], letter: u8) -> bool {
    matches!(word, [b'-', letters @ ..] if letters.iter().all(u8::is_ascii_alphabetic) && letters.contains(&letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_program_behind_wrappers_is_the_one_that_matters() {
        for (line, program) in [
            ("ib_write_bw -d x", "ib_write_bw"),
            ("env A=b C=d rping -s", "rping"),
            ("env -u HOME -C /tmp A=b rping", "rping"),
            ("/usr/bin/env -- rping", "rping"),
            ("nice -n 10 timeout -s INT 5 rping", "rping"),
            ("nice rping", "rping"),
            ("taskset -c 0,1 rping", "rping"),
            ("timeout --signal=KILL 1 nohup rping", "rping"),
            ("numactl -N 0 -m 0 rping", "rping"),
            ("env", "env"),
            ("nice -n 10", "nice"),
        ] {
            let words = words(line);
            let started = look_through(&words);
            assert_eq!(started.command[0], program, "{line}");
            assert_eq!(started.lost, None, "{line}");
        }
    }

    #[test]
    fn wrappers_that_take_the_preload_away_are_told_with_what_to_do() {
        for line in [
            "env -i rping",
            "env - rping",
            "env -u LD_PRELOAD rping",
            "env -vi A=b rping",
            "env --unset=LD_PRELOAD rping",
            "env LD_PRELOAD=/x.so rping",
            "nice -n 5 sudo -u root rping",
            "sudo rping",
            "su - ben -c rping",
            "docker run image rping",
        ] {
            let words = words(line);
            let lost = look_through(&words).lost;
            assert!(
                lost.is_some_and(|text| text.contains("airdma run -- CMD")),
                "{line}"
            );
        }
        for line in [
            "env -u HOME rping",
            "su ben -c rping",
            "rping -i",
            "env rping -i",
        ] {
            assert_eq!(look_through(&words(line)).lost, None, "{line}");
        }
    }
}
