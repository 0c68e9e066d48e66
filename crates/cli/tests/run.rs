//! `airdma run` from the outside: environment, exit status, messages.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A shared object that surely exists and is harmless when preloaded again: the C library.
fn some_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .split_whitespace()
        .find(|word| word.starts_with('/') && word.contains("libc.so"));
    PathBuf::from(path.unwrap())
}

fn airdma() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_airdma"));
    command
        .env_remove("LD_PRELOAD")
        .env("AIRDMA_LIB", some_library());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Copies the program under test by a separate process.
///
/// A descriptor of this process, open for writing, would be inherited by a child that another test
/// forks at that moment, and the copy could not be started (ETXTBSY).
fn copy_program(to: &Path) {
    let mut copy = Command::new("cp");
    let status = copy.arg(env!("CARGO_BIN_EXE_airdma")).arg(to).status();
    assert!(status.unwrap().success());
}

/// A new folder that is removed with its guard.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("airdma-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// musl's loader would end it: `Error relocating ...: symbol not found`, exit status 127.
#[test]
fn a_program_for_musl_runs_without_the_library_and_is_told_of() {
    let folder = Folder::new("musl");
    // The loader is glibc's here, so that the program can tell what it was given.
    let (loader, source) = (folder.0.join("ld-musl-here.so.1"), folder.0.join("p.c"));
    let program = folder.0.join("program");
    let ours = fs::read_to_string("/proc/self/maps").unwrap();
    let theirs = ours
        .split_whitespace()
        .find(|word| word.starts_with('/') && word.contains("/ld-linux"));
    std::os::unix::fs::symlink(theirs.unwrap(), &loader).unwrap();
    let text = "#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { puts(getenv(\"LD_PRELOAD\") ? getenv(\"LD_PRELOAD\") : \"none\"); return 3; }\n";
    fs::write(&source, text).unwrap();
    let named = format!("-Wl,--dynamic-linker={}", loader.display());
    let mut compiler = Command::new("cc");
    let compiled = compiler.arg("-o").arg(&program).arg(&source).arg(named);
    assert!(compiled.status().unwrap().success());
    for how in ["run", "sockets"] {
        let mut command = airdma();
        command.env("AIRDMA_SOCKETS_LIB", some_library());
        let output = command.args([how, "--"]).arg(&program).output().unwrap();
        let said = stderr(&output);
        assert_eq!(stdout(&output), "none\n", "{how}: {said}");
        assert_eq!(output.status.code(), Some(3), "{said}");
        let told = "is linked with musl, and the library with glibc: it runs without";
        assert_eq!(said.matches(told).count(), 1, "{said}");
    }
}

#[test]
fn sockets_preload_a_library_of_their_own() {
    let library = some_library();
    let shown = |arguments: &[&str]| {
        let mut command = airdma();
        command.env("AIRDMA_SOCKETS_LIB", &library).args(arguments);
        let output = command.output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let words = ["--", "sh", "-c", "echo $LD_PRELOAD; exit 3"];
    let (status, said, _) = shown(&[&["sockets"], &words[..]].concat());
    let path = library.to_str().unwrap();
    assert_eq!((status, said.trim_end()), (Some(3), path));
    // Behind libairdma.so, which is the same file here.
    let (status, said, said_of) = shown(&[&["run", "--sockets"], &words[..]].concat());
    assert_eq!(status, Some(3), "{said_of}");
    assert_eq!(said.trim_end(), format!("{path}:{path}"));

    let (status, said, _) = shown(&["sockets", "--explain", "--", "sh"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(path), "{said}");
    let (status, said, _) = shown(&["sockets", "--explain", "--", "no-such-program"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no-such-program"), "{said}");
}

#[test]
fn a_policy_of_sockets_is_checked_and_reaches_the_program() {
    let folder = Folder::new("run-policy");
    let file = folder.0.join("policy");
    let shown = |text: &str, words: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let mut command = airdma();
        command.env("AIRDMA_SOCKETS_LIB", some_library());
        command.args(["sockets", "--policy"]).arg(&file).args(words);
        let output = command.output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let print = ["--", "sh", "-c", "echo \"$AIRDMA_SOCKETS_RULES\""];
    let rules = "lane 10.0.0.0/8 any\nkernel any any\n";
    let (status, said) = shown(rules, &print);
    assert_eq!((status, said.trim_end()), (Some(0), rules.trim_end()));
    let (status, said) = shown(rules, &["--explain", "--", "sh"]);
    assert_eq!(status, Some(0));
    assert!(said.contains("that the policy allows"), "{said}");

    let (status, said) = shown("kernel any any\nlane any\n", &print);
    assert_eq!(status, Some(2));
    let fault = format!("{}: line 2: \"lane any\"", file.display());
    assert!(said.contains(&fault), "{said}");
    let (status, said) = shown(&"#".repeat(1 << 17), &print);
    assert_eq!(status, Some(2), "{said}");
    std::fs::remove_file(&file).unwrap();
    let mut command = airdma();
    command.args(["sockets", "--policy"]).arg(&file).args(print);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("policy: No such file"),
        "{output:?}"
    );
}

#[test]
fn sockets_without_their_library_start_nothing() {
    for (given, word) in [("/no/such/file", "No such file"), ("/tmp", "not a file")] {
        for arguments in [&["sockets"][..], &["run", "--sockets"]] {
            let mut command = airdma();
            command.env("AIRDMA_SOCKETS_LIB", given).args(arguments);
            let output = command.args(["--", "echo", "started"]).output().unwrap();
            assert_eq!(output.status.code(), Some(127), "{arguments:?}");
            assert_eq!(stdout(&output), "");
            let said = stderr(&output);
            let named = format!("AIRDMA_SOCKETS_LIB={given}");
            assert!(said.contains(&named) && said.contains(word), "{said}");
        }
    }
}

#[test]
fn run_preloads_the_library_and_returns_the_program_status() {
    let output = airdma()
        .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(
        Path::new(stdout(&output).trim()),
        some_library().canonicalize().unwrap()
    );
}

#[test]
fn options_of_the_program_need_no_separator() {
    let output = airdma()
        .args(["run", "echo", "-n", "--x"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "--x");
}

#[test]
fn a_preload_that_was_there_stays() {
    let library = some_library();
    let output = airdma()
        .env("LD_PRELOAD", &library)
        .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    let ours = library.canonicalize().unwrap();
    assert_eq!(
        stdout(&output).trim(),
        format!("{}:{}", ours.display(), library.display())
    );
}

#[test]
fn a_missing_program_is_127() {
    let output = airdma()
        .args(["run", "--", "no-such-program-anywhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("no-such-program-anywhere"));
}

#[test]
fn a_program_that_may_not_be_executed_is_126() {
    let folder = Folder::new("run-126");
    let program = folder.0.join("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    let output = airdma().args(["run", "--"]).arg(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
}

#[test]
fn a_missing_library_is_127_and_says_where_it_was_looked_for() {
    let output = airdma()
        .env("AIRDMA_LIB", "/nonexistent/libairdma.so")
        .args(["run", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("/nonexistent/libairdma.so"));

    let folder = Folder::new("run-alone");
    let alone = folder.0.join("airdma");
    copy_program(&alone);
    let output = Command::new(&alone)
        .env_remove("AIRDMA_LIB")
        .args(["run", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(
        stderr(&output).contains("AIRDMA_LIB"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_library_of_an_installed_tree_is_found() {
    let folder = Folder::new("run-tree");
    let (bin, lib) = (folder.0.join("bin"), folder.0.join("lib/airdma"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    copy_program(&bin.join("airdma"));
    fs::copy(some_library(), lib.join("libairdma.so")).unwrap();
    let output = Command::new(bin.join("airdma"))
        .env_remove("AIRDMA_LIB")
        .env_remove("LD_PRELOAD")
        .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).trim().ends_with("/lib/airdma/libairdma.so"));
}

/// An installed tree with dummies for both artefacts; returns the environment that `sh` prints in
/// it.
fn in_installed_tree(name: &str, arguments: &[&str], path: Option<&str>) -> Output {
    let folder = Folder::new(name);
    let (bin, lib) = (folder.0.join("bin"), folder.0.join("lib/airdma"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(lib.join("dropin")).unwrap();
    copy_program(&bin.join("airdma"));
    for library in ["libairdma.so", "dropin/libibverbs.so.1"] {
        fs::copy(some_library(), lib.join(library)).unwrap();
    }
    let mut command = Command::new(bin.join("airdma"));
    command
        .env_remove("AIRDMA_LIB")
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH");
    if let Some(path) = path {
        command.env("LD_LIBRARY_PATH", path);
    }
    let show = "echo $LD_PRELOAD; echo $LD_LIBRARY_PATH";
    command
        .arg("run")
        .args(arguments)
        .args(["--", "sh", "-c", show])
        .output()
        .unwrap()
}

#[test]
fn the_drop_in_directory_is_preloaded_and_searched_first() {
    let output = in_installed_tree("run-dropin", &["--dropin"], Some("/elsewhere"));
    let said = stdout(&output);
    let (preload, path) = said.trim().split_once('\n').unwrap();
    assert!(preload.ends_with("/lib/airdma/dropin/libibverbs.so.1"));
    assert!(path.ends_with("/lib/airdma/dropin:/elsewhere"), "{path}");
}

#[test]
fn a_host_has_the_libraries_that_its_search_path_has() {
    let host = Folder::new("run-host");
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        fs::copy(some_library(), host.0.join(library)).unwrap();
    }
    let path = host.0.to_str().unwrap();
    let output = in_installed_tree("run-host-tree", &[], Some(path));
    let said = stdout(&output);
    let (preload, rest) = said.trim().split_once('\n').unwrap();
    assert!(preload.ends_with("/lib/airdma/libairdma.so"), "{said}");
    assert_eq!(rest, path);
}

#[test]
fn a_drop_in_directory_that_is_not_there_is_said() {
    let output = airdma().args(["run", "--dropin", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    let said = stderr(&output);
    // An installed airdma has no Makefile: the message says which one, and where the folder goes.
    let folder = format!(
        "{}/dropin",
        some_library()
            .canonicalize()
            .unwrap()
            .parent()
            .unwrap()
            .display()
    );
    for words in [folder.as_str(), "`make dropin` in airdma's source tree"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Output and exit status of `airdma run --explain` for a command.
fn explained(command: &[&str]) -> (String, Option<i32>) {
    let output = airdma()
        .env("AIRDMA_LOOPBACK", "1")
        .args(["run", "--explain", "--"])
        .args(command)
        .output()
        .unwrap();
    assert_eq!(stderr(&output), "");
    (stdout(&output), output.status.code())
}

#[test]
fn an_explanation_says_what_would_be_done_and_does_nothing() {
    let folder = Folder::new("run-explain");
    let file = folder.0.join("file");
    let touch = format!("touch {}", file.display());
    let (said, _) = explained(&["sh", "-c", &touch]);
    assert!(!file.exists());
    for words in [
        "program   ",
        "sets      LD_PRELOAD=",
        "because   ",
        "device    airdma_lo up 127.0.0.1",
        "variable  AIRDMA_LIB=",
        "\nresult    it will ",
    ] {
        assert!(said.contains(words), "{words:?} in {said}");
    }
}

#[test]
fn an_explanation_of_what_cannot_work_says_what_to_do_and_is_1() {
    let folder = Folder::new("run-explain-bad");
    let script = folder.0.join("script");
    fs::write(&script, "#!/nonexistent/interpreter\n").unwrap();
    let path = script.to_str().unwrap();
    for (command, problem) in [
        ("no-such-program-anywhere", "not found in PATH"),
        (path, "chmod +x"),
    ] {
        let (said, status) = explained(&[command]);
        assert_eq!(status, Some(1), "{said}");
        let expected = said
            .lines()
            .any(|line| line.starts_with("problem   ") && line.contains(problem));
        assert!(expected, "{said}");
        assert!(said.ends_with("result    it will not work\n"), "{said}");
    }
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (said, status) = explained(&[path]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("/nonexistent/interpreter"), "{said}");
}

/// Compiles C text with options.
fn compile(folder: &Path, name: &str, text: &str, options: &[&str]) -> PathBuf {
    let (source, output) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .current_dir(folder)
        .arg("-o")
        .args([&output, &source]);
    assert!(compiler.args(options).status().unwrap().success());
    output
}

/// A library of verbs in the folder `lib` that is newer than any host's: it has IBVERBS_1.99.
fn newer_verbs(folder: &Path) {
    let lib = folder.join("lib");
    fs::create_dir_all(&lib).unwrap();
    fs::write(
        lib.join("map"),
        "IBVERBS_1.99 { global: ibv_query_future; local: *; };\n",
    )
    .unwrap();
    let text = "int ibv_query_future(void) { return 0; }\n";
    let options = [
        "-shared",
        "-fPIC",
        "-Wl,-soname,libibverbs.so.1",
        "-Wl,--version-script=lib/map",
    ];
    let built = compile(folder, "verbs", text, &options);
    fs::rename(built, lib.join("libibverbs.so.1")).unwrap();
}

const CALLS: &str = "int ibv_query_future(void);\nint main(void) { return ibv_query_future(); }\n";
const RPATH: &str = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib";
const RUNPATH: &str = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib";
const REFUSED: &str = "so that the loader will not start the program";

#[test]
fn the_search_path_of_a_program_itself_is_that_of_the_loader() {
    let folder = Folder::new("run-rpath");
    newer_verbs(&folder.0);
    let newer = folder.0.join("lib/libibverbs.so.1").display().to_string();
    for (name, path) in [("rpath", RPATH), ("runpath", RUNPATH)] {
        let options = [path, "-Llib", "-l:libibverbs.so.1"];
        let program = compile(&folder.0, name, CALLS, &options);
        assert!(Command::new(&program).status().unwrap().success());
        let (said, _) = explained(&[program.to_str().unwrap()]);
        assert!(!said.contains(REFUSED), "{name}: {said}");
        assert!(said.contains(&newer), "{name}: {said}");
    }
}

#[test]
fn a_programs_rpath_is_searched_for_its_libraries_too() {
    let folder = Folder::new("run-rpath-inherited");
    newer_verbs(&folder.0);
    let text = "int ibv_query_future(void);\nint middle(void) { return ibv_query_future(); }\n";
    let options = ["-shared", "-fPIC", "-Llib", "-l:libibverbs.so.1"];
    compile(&folder.0, "lib/libmiddle.so", text, &options);
    let text = "int middle(void);\nint main(void) { return middle(); }\n";
    for (path, starts) in [(RPATH, true), (RUNPATH, false)] {
        let options = [path, "-Llib", "-lmiddle", "-Wl,--allow-shlib-undefined"];
        let program = compile(&folder.0, "program", text, &options);
        let outcome = Command::new(&program).output().unwrap();
        assert_eq!(outcome.status.success(), starts, "{}", stderr(&outcome));
        let (said, _) = explained(&[program.to_str().unwrap()]);
        let newer = folder.0.join("lib/libibverbs.so.1").display().to_string();
        assert_eq!(said.contains(&newer), starts, "{path}: {said}");
        assert!(!starts || !said.contains(REFUSED), "{path}: {said}");
    }
}

/// A program that starts a shell, and says what it said.
const STARTS: &str =
    "#include <stdlib.h>\nint main(void) { return system(\"echo $LD_PRELOAD\"); }\n";

#[test]
fn a_sanitizer_stays_in_the_program_that_was_built_with_it() {
    for kind in ["address", "thread"] {
        let folder = Folder::new(&format!("run-sanitizer-{kind}"));
        let sanitizer = format!("-fsanitize={kind}");
        let program = compile(&folder.0, "program", STARTS, &[&sanitizer]);
        let mut command = airdma();
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        let output = command.args(["run", "--"]).arg(&program).output().unwrap();
        assert!(output.status.success(), "{kind}: {}", stderr(&output));
        let preloaded = stdout(&output);
        let ours = some_library().canonicalize().unwrap();
        assert_eq!(Path::new(preloaded.trim()), ours, "{kind}");
    }
}

#[test]
fn a_library_that_wraps_verbs_is_found_by_its_short_name() {
    let folder = Folder::new("run-wrapper");
    let text = "void *ibv_open_device(void) { return 0; }\n";
    compile(&folder.0, "libwrapper.so", text, &["-shared", "-fPIC"]);
    let output = airdma()
        .env("LD_PRELOAD", "libwrapper.so")
        .env("LD_LIBRARY_PATH", &folder.0)
        .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    let ours = some_library().canonicalize().unwrap();
    let wanted = format!("libwrapper.so:{}", ours.display());
    assert_eq!(stdout(&output).trim(), wanted);
}

#[test]
fn without_a_command_the_usage_is_shown() {
    let output = airdma().arg("run").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Usage"));
}

#[test]
fn the_version_is_the_crates() {
    let output = airdma().arg("--version").output().unwrap();
    assert_eq!(
        stdout(&output).trim(),
        concat!("airdma ", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn verbose_says_what_the_self_test_found_and_quiet_says_nothing() {
    let run = |arguments: &[&str]| airdma().arg("run").args(arguments).output().unwrap();
    let output = run(&["--verbose", "--", "true"]);
    let said = stderr(&output);
    for finding in ["identification 0", "segments of one send", "LD_PRELOAD="] {
        assert!(said.contains(finding), "{said}");
    }
    // A kernel that breaks the rule would cause a warning; no kernel of the test machines does.
    assert_eq!(stderr(&run(&["--", "true"])), "");
}
