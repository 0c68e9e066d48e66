//! Wrappers: commands that start another one, such as `env -i CMD`, `nice CMD`, `sudo CMD`.
//!
//! The program behind them matters, and some remove `LD_PRELOAD` from its environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The program that a command starts in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started<'a> {
    /// The program behind the wrappers, with its arguments; a wrapper itself if its program cannot
    /// be seen.
    pub command: &'a [OsString],
    /// Why the library will not be in the program, and what to do.
    pub lost: Option<String>,
}

/// Most nested wrappers.
const WRAPPERS_MAX: usize = 8;

/// Finds the program behind the wrappers of a command.
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

/// A command that executes the one behind its own arguments.
struct Wrapper {
    name: &'static str,
    /// Options with a value: letters, and long names.
    with_value: (&'static str, &'static [&'static str]),
    /// Number of words between the options and the command.
    positional: usize,
    /// Whether `NAME=VALUE` may precede the command.
    assigns: bool,
}

/// An option of a wrapper, and its value if that is a separate word.
struct Given<'a> {
    option: &'a [u8],
    value: Option<&'a [u8]>,
}

impl Wrapper {
    /// The wrapper's own options, and their number of words.
    fn options<'a>(&self, arguments: &'a [OsString]) -> (Vec<Given<'a>>, usize) {
        let mut options = Vec::new();
        let mut at = 0;
        while let Some(word) = arguments.get(at).map(|word| word.as_bytes()) {
            let has_value = match word {
                b"--" => return (options, at + 1),
                [b'-', b'-', long @ ..] => {
                    self.with_value.1.iter().any(|name| name.as_bytes() == long)
                }
                b"-" => false,
                // The rest of the word behind the letter is the value.
                [b'-', flags @ .., last] => {
                    let takes = |letter: &u8| self.with_value.0.as_bytes().contains(letter);
                    takes(last) && !flags.iter().any(takes)
                }
                _ => break,
            };
            at += 1 + usize::from(has_value);
            let value = has_value.then(|| arguments.get(at - 1)).flatten();
            options.push(Given {
                option: word,
                value: value.map(|value| value.as_bytes()),
            });
        }
        (options, at)
    }

    /// The command behind a wrapper's own arguments.
    fn behind<'a>(&self, arguments: &'a [OsString]) -> Option<&'a [OsString]> {
        let (_, mut at) = self.options(arguments);
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

const fn wrapper(
    name: &'static str,
    letters: &'static str,
    long: &'static [&'static str],
    positional: usize,
) -> Wrapper {
    Wrapper {
        name,
        with_value: (letters, long),
        positional,
        assigns: false,
    }
}

const ENV: Wrapper = Wrapper {
    name: "env",
    with_value: ("uC", &["unset", "chdir"]),
    positional: 0,
    assigns: true,
};

/// `su` and `runuser`, whose command is not a word of its own.
const SU: Wrapper = wrapper(
    "su",
    "cgGsuTw",
    &["command", "group", "supp-group", "shell", "user"],
    0,
);

const WRAPPERS: [Wrapper; 9] = [
    ENV,
    wrapper("nice", "n", &["adjustment"], 0),
    wrapper("timeout", "sk", &["signal", "kill-after"], 1),
    wrapper("stdbuf", "ioe", &["input", "output", "error"], 0),
    wrapper("ionice", "cnpPu", &["class", "classdata", "pid"], 0),
    wrapper("nohup", "", &[], 0),
    wrapper("setsid", "", &[], 0),
    wrapper("taskset", "", &[], 1),
    wrapper(
        "numactl",
        "iNmCpwP",
        &[
            "interleave",
            "cpunodebind",
            "physcpubind",
            "membind",
            "preferred",
            "preferred-many",
            "weighted-interleave",
        ],
        0,
    ),
];

/// Whether a command removes the variables for its program: why, and what to do.
fn takes_away(name: &OsStr, arguments: &[OsString]) -> Option<String> {
    let name = name.to_str()?;
    let again = |start: &str| format!("let it start airdma itself: {start} airdma run -- CMD");
    let reason = match name {
        "sudo" | "doas" | "pkexec" => format!(
            "{name} takes LD_PRELOAD away from what it starts; {}",
            again(name)
        ),
        "su" | "runuser" if is_login(arguments) => format!(
            "{name} - gives what it starts an environment of its own, without LD_PRELOAD; write `airdma run -- CMD` in its command"
        ),
        "ssh" | "systemd-run" => elsewhere(name),
        // Their other commands start no program.
        "docker" | "podman"
            if arguments
                .iter()
                .any(|word| word == "run" || word == "exec" || word == "create") =>
        {
            elsewhere(name)
        }
        "env" if env_drops(arguments) => format!(
            "env takes LD_PRELOAD away from what it starts; {}",
            again("env ...")
        ),
        _ => return None,
    };
    (!starts_airdma(arguments)).then_some(reason)
}

fn elsewhere(name: &str) -> String {
    format!(
        "{name} starts its program elsewhere, without these variables; let that be `airdma run -- CMD`"
    )
}

/// Whether the words start airdma themselves, as messages here propose: `sudo airdma run -- CMD`,
/// `su - -c "airdma run -- CMD"`.
fn starts_airdma(arguments: &[OsString]) -> bool {
    let words = arguments
        .iter()
        .flat_map(|word| word.as_bytes().split(u8::is_ascii_whitespace));
    let words: Vec<&[u8]> = words.collect();
    words.windows(2).any(|words| {
        let program = Path::new(OsStr::from_bytes(words[0])).file_name();
        program == Some(OsStr::new("airdma")) && words[1] == b"run"
    })
}

fn is_login(arguments: &[OsString]) -> bool {
    let (options, at) = SU.options(arguments);
    let lone = (arguments.get(at)).is_some_and(|word| word == "-");
    lone || options.iter().any(|given| {
        let option = given.option;
        option == b"-" || option == b"--login" || is_short(option, b'l')
    })
}

/// Whether `env` removes the preload.
fn env_drops(arguments: &[OsString]) -> bool {
    const NAME: &[u8] = b"LD_PRELOAD";
    let (options, at) = ENV.options(arguments);
    let drops = options.iter().any(|given| match given.option {
        b"-" | b"--ignore-environment" | b"--unset=LD_PRELOAD" | b"-uLD_PRELOAD" => true,
        option if given.value.is_none() => is_short(option, b'i'),
        [b'-', .., b'u'] | b"--unset" => given.value == Some(NAME),
        _ => false,
    });
    let assigned = arguments.iter().skip(at).map(|word| word.as_bytes());
    drops
        || assigned
            .take_while(|word| word.contains(&b'='))
            .any(|word| {
                word.strip_prefix(NAME)
                    .is_some_and(|rest| rest.starts_with(b"="))
            })
}

/// Whether a word of single-letter options has this one.
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
            ("numactl --cpunodebind 0 rping", "rping"),
            ("numactl --membind=0 rping", "rping"),
            ("ionice --class 2 rping", "rping"),
            ("ionice -c2 -n 3 rping", "rping"),
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
            "env -u HOME -i rping",
            "env -u DISPLAY -u LD_PRELOAD rping",
            "env -C /tmp -i A=b rping",
            "env -u HOME A=b LD_PRELOAD=/x.so rping",
            "su -l ben -c rping",
            "runuser -l ben -c rping",
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
            "env -u HOME rping -i",
            "env -C /tmp A=b rping LD_PRELOAD=x",
            "runuser -u ben -- ls -l",
            "su ben -c x -- -l",
            "docker ps -a",
            "sudo airdma run -- rping",
            "ssh host airdma run -- rping",
            "env -i /usr/bin/airdma run -- rping",
        ] {
            assert_eq!(look_through(&words(line)).lost, None, "{line}");
        }
    }
}
