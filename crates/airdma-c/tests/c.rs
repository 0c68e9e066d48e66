//! The C API as C programs use it: installed, found by pkg-config, compiled, and run, also under
//! valgrind.
#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;

use isolated::isolated;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Where the library is installed for these tests. Cargo does not build a package's `cdylib` for
/// its tests, so this calls it.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let prefix = profile.join("north-c");
        // A test that re-runs itself in a namespace finds it there.
        if std::env::var_os("AIRDMA_TEST_INSIDE").is_some() {
            return prefix;
        }
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--offline", "--lib", "--manifest-path"]);
        build.arg(Path::new(HERE).join("Cargo.toml"));
        build.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        let mut install = Command::new(Path::new(HERE).join("install.sh"));
        assert!(
            install
                .arg(&prefix)
                .arg(profile)
                .status()
                .unwrap()
                .success()
        );
        prefix
    })
}

/// Output of pkg-config, in words.
fn flags(what: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(what).arg("airdma");
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program against the shared library.
fn program(source: &str) -> PathBuf {
    let name = Path::new(source).file_stem().unwrap();
    let program = prefix().join(name);
    if std::env::var_os("AIRDMA_TEST_INSIDE").is_none() {
        let mut compile = Command::new("cc");
        compile.args([
            "-std=c11",
            "-D_POSIX_C_SOURCE=200809L",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ]);
        compile.arg(&program).arg(Path::new(HERE).join(source));
        compile.args(flags(&["--cflags", "--libs"]));
        compile.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display()));
        assert!(compile.status().unwrap().success(), "{source}");
    }
    program
}

/// How programs are run.
#[derive(Clone, Copy)]
enum Under {
    Nothing,
    Valgrind,
}

fn run(program: &Path, under: Under, arguments: &[&str]) -> Command {
    let mut command = match under {
        Under::Nothing => Command::new(program),
        Under::Valgrind => {
            let mut command = Command::new("valgrind");
            command.args([
                "--quiet",
                "--fair-sched=yes",
                "--error-exitcode=9",
                "--leak-check=full",
                "--errors-for-leak-kinds=definite",
            ]);
            command.arg(program);
            command
        }
    };
    command.args(arguments);
    command
}

fn has_valgrind() -> bool {
    let found = Command::new("valgrind").arg("--version").output().is_ok();
    if !found {
        isolated::skipped("no valgrind");
    }
    found
}

/// Starts a program, and returns it when it listens. A thread reads its standard error.
fn start(mut command: Command) -> (Child, std::thread::JoinHandle<String>) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("listening") {
        line.clear();
        assert!(
            errors.read_line(&mut line).unwrap() > 0,
            "it ended before it listened"
        );
    }
    let rest = std::thread::spawn(move || std::io::read_to_string(errors).unwrap());
    (child, rest)
}

fn said(mut command: Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

fn end_of((child, errors): (Child, std::thread::JoinHandle<String>)) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        errors.join().unwrap()
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Builds everything before the test enters its namespace, which has no network.
fn prepared(name: &str, sources: &[&str], body: impl FnOnce()) {
    sources.iter().for_each(|source| drop(program(source)));
    isolated(name, "", body);
}

#[test]
fn hello_is_answered_with_welcome() {
    let name = "hello_is_answered_with_welcome";
    prepared(name, &["examples/hello.c"], || {
        let hello = program("examples/hello.c");
        let listening = start(run(&hello, Under::Nothing, &["listen", "127.0.0.1"]));
        let greeted = said(run(&hello, Under::Nothing, &["greet", "127.0.0.1:7471"]));
        assert_eq!(
            greeted,
            "the peer says: welcome
"
        );
        assert_eq!(
            end_of(listening),
            "the peer says: hello
"
        );
    });
}

#[test]
fn several_programs_add_to_one_counter() {
    prepared(
        "several_programs_add_to_one_counter",
        &["examples/counter.c"],
        || {
            let counter = program("examples/counter.c");
            let owner = start(run(&counter, Under::Nothing, &["own", "127.0.0.1", "2"]));
            let add = |times| run(&counter, Under::Nothing, &["add", "127.0.0.1:7473", times]);
            let mut first = add("150").spawn().unwrap();
            said(add("77"));
            assert!(first.wait().unwrap().success());
            assert_eq!(end_of(owner), "227\n");
        },
    );
}

#[test]
fn one_thread_serves_several_peers_from_an_event_loop() {
    let name = "one_thread_serves_several_peers_from_an_event_loop";
    prepared(name, &["examples/echo.c"], || {
        let echo = program("examples/echo.c");
        let server = start(run(&echo, Under::Nothing, &["127.0.0.1", "3"]));
        let device = airdma::Device::open("127.0.0.1").unwrap();
        let connect = || device.connect("127.0.0.1:7474").wait().unwrap();
        let peers = [connect(), connect(), connect()];
        for round in 0..20u8 {
            for (number, peer) in (0..).zip(&peers) {
                let said = [round, number];
                let mut region = device.allocate(4096).unwrap();
                region[..2].copy_from_slice(&said);
                let region = peer.send(region, ..2).wait().unwrap();
                let answer = peer.recv(region, ..).wait().unwrap();
                assert_eq!(answer[..], said);
            }
        }
        for peer in peers {
            peer.close().wait().unwrap();
        }
        assert_eq!(end_of(server), "");
    });
}

#[test]
fn ping_pong_measures() {
    prepared("ping_pong_measures", &["examples/ping_pong.c"], || {
        let ping_pong = program("examples/ping_pong.c");
        let listening = start(run(&ping_pong, Under::Nothing, &["listen", "127.0.0.1"]));
        let line = said(run(
            &ping_pong,
            Under::Nothing,
            &["measure", "127.0.0.1:7472", "64", "200"],
        ));
        assert!(
            line.lines().nth(1).unwrap().starts_with("64 200 "),
            "{line}"
        );
        end_of(listening);
    });
}

#[test]
fn a_buffer_that_is_full_stops_the_peer_until_there_is_room() {
    let name = "a_buffer_that_is_full_stops_the_peer_until_there_is_room";
    prepared(name, &["tests/buffer.c"], || {
        let mut buffer = run(&program("tests/buffer.c"), Under::Nothing, &[]);
        buffer.env("AIRDMA_AIR", "1");
        said(buffer);
    });
}

#[test]
fn misuse_is_reported_and_touches_no_invalid_memory() {
    let name = "misuse_is_reported_and_touches_no_invalid_memory";
    prepared(name, &["tests/misuse.c"], || {
        let misuse = program("tests/misuse.c");
        said(run(&misuse, Under::Nothing, &[]));
        if has_valgrind() {
            said(run(&misuse, Under::Valgrind, &[]));
        }
    });
}

#[test]
fn what_a_call_fills_in_is_defined_whatever_becomes_of_the_call() {
    let name = "what_a_call_fills_in_is_defined_whatever_becomes_of_the_call";
    prepared(name, &["tests/outcomes.c"], || {
        let outcomes = program("tests/outcomes.c");
        said(run(&outcomes, Under::Nothing, &[]));
        if has_valgrind() {
            said(run(&outcomes, Under::Valgrind, &[]));
        }
    });
}

#[test]
fn records_tell_what_arrived_and_misuse_is_reported() {
    let name = "records_tell_what_arrived_and_misuse_is_reported";
    prepared(name, &["tests/records.c"], || {
        let records = program("tests/records.c");
        said(run(&records, Under::Nothing, &[]));
        if has_valgrind() {
            said(run(&records, Under::Valgrind, &[]));
        }
    });
}

#[test]
fn reads_groups_and_arriving_records_work_from_c() {
    let name = "reads_groups_and_arriving_records_work_from_c";
    let source = "tests/record_calls.c";
    drop(program(source));
    isolated(name, "ip route add 239.0.0.0/8 dev lo", || {
        let calls = program(source);
        said(run(&calls, Under::Nothing, &[]));
        let mut lossy = run(&calls, Under::Nothing, &["lossy"]);
        lossy.env("AIRDMA_IMPAIR", "drop=2%,seed=3");
        said(lossy);
        if has_valgrind() {
            said(run(&calls, Under::Valgrind, &[]));
        }
    });
}

#[test]
fn a_market_data_feed_names_the_quotes_it_lost() {
    let name = "a_market_data_feed_names_the_quotes_it_lost";
    prepared(name, &["examples/feed.c"], || {
        let feed = program("examples/feed.c");
        for drops in ["0%", "20%"] {
            let subscriber = start(run(&feed, Under::Nothing, &["subscribe", "127.0.0.1"]));
            let mut publisher = run(&feed, Under::Nothing, &["publish", "127.0.0.1:7476", "500"]);
            publisher.env("AIRDMA_IMPAIR", format!("drop={drops},seed=3"));
            assert_eq!(said(publisher), "500 quotes published\n");
            let told = end_of(subscriber);
            // Each number is told once, as quoted or as lost.
            let mut numbers: Vec<u32> = Vec::new();
            let mut lost = 0;
            for line in told.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    [first, _, bid, ask] => {
                        assert!(bid.parse::<u32>().unwrap() < ask.parse().unwrap(), "{line}");
                        numbers.push(first.parse().unwrap());
                    }
                    ["lost", number] => {
                        lost += 1;
                        numbers.push(number.parse().unwrap());
                    }
                    _ => panic!("{line}"),
                }
            }
            numbers.sort_unstable();
            assert_eq!(numbers, (0..500).collect::<Vec<_>>(), "{told}");
            assert_eq!(lost == 0, drops == "0%", "{lost} lost");
        }
    });
}

#[test]
fn the_header_and_the_library_have_the_same_calls() {
    let library = prefix().join("lib/libairdma_north.so");
    let listed = said({
        let mut command = Command::new("nm");
        command
            .args(["-D", "--defined-only", "--format=just-symbols"])
            .arg(library);
        command
    });
    let exported: BTreeSet<&str> = listed
        .lines()
        .filter(|name| name.starts_with("airdma_"))
        .collect();
    let header = include_str!("../include/airdma.h");
    let calls = header
        .lines()
        .filter(|line| !line.starts_with(" *") && !line.starts_with("/*"));
    let called = |line: &'static str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("airdma_").then_some(name)
    };
    let declared: BTreeSet<&str> = calls.filter_map(called).collect();
    assert!(declared.len() > 25, "{declared:?}");
    assert_eq!(declared, exported);
}
