#!/usr/bin/env python3
"""Does the net catch fish? Runs the tests against each mutant that cargo-mutants lists
(`.cargo/mutants.toml` says of which files), and writes docs/reliability/mutants.md.

  python3 tests/mutants/run.py                  those that have no outcome yet, then the report
  python3 tests/mutants/run.py --again          those that survived, once more: after a test was added
  python3 tests/mutants/run.py --only REGEX     those whose name matches
  python3 tests/mutants/run.py --alone --only X built one by one, as cargo-mutants does: for few of them
  python3 tests/mutants/run.py --report         the report alone
  python3 tests/mutants/run.py --check          the report alone, compared with what is committed

cargo-mutants would build the tests anew for each. Here all mutants of a function are bodies of it,
in one build (`plant.py`). Those for which that cannot be, in constants and in functions that
constants call, are built by themselves, at the end. An outcome is kept, in
target/mutants/outcomes.jsonl, until the mutant's file changes; so a run that was stopped goes on
where it was. The order is random and always the same: a part is a fair sample.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
from plant import SWITCH, SWITCH_CODE, Mutant, Planted, alone, plant

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
FOLDERS = ("crates", "testing", "bench")
TREE = TARGET / "tree"
OUTCOMES = TARGET / "outcomes.jsonl"
LEFT_OUT = TARGET / "left_out.json"  # what does not compile with the others
SWITCHED = "crates/transport/src/lib.rs"  # where `planted` goes
MEMORY_MAX = 3 << 30
SECONDS_UNKNOWN = 10.0  # of a stage that was not measured


@dataclass(frozen=True)
class Stage:
    """Tests of one executable."""

    name: str
    target: str  # of cargo: package/target
    build: tuple[str, ...]
    arguments: tuple[str, ...] = ()


TRANSPORT = ("test", "--no-run", "-p", "airdma-transport", "--lib", "--test", "trace")
ENGINE = ("test", "--no-run", "-p", "airdma-engine", "--lib")
PAIR = ("test", "--no-run", "-p", "airdma-sim", "--test", "pair")
CLI = ("build", "-p", "airdma-cli")


def worlds(count: int, first: int) -> tuple[str, ...]:
    return ("sim", "--threads", "1", "--worlds", str(count), "--first", str(first))


# The cheapest first: most mutants do not get far.
STAGES = (
    Stage("packet traces", "airdma-transport/trace", TRANSPORT),
    Stage("unit tests", "airdma-transport/airdma_transport", TRANSPORT),
    Stage("unit tests", "airdma-engine/airdma_engine", ENGINE, ("memory::",)),
    Stage("100 worlds", "airdma-cli/airdma", CLI, worlds(100, 1_000_000)),
    Stage("simulated pairs", "airdma-sim/pair", PAIR),
    Stage("1,000 worlds", "airdma-cli/airdma", CLI, worlds(1000, 0)),
)
CHECK = ("check", "-p", "airdma-engine", "-p", "airdma-cli", "-p", "airdma-sim")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--again", action="store_true", help="run those that survived once more")
    parser.add_argument("--only", metavar="REGEX", help="run those whose name matches")
    parser.add_argument("--alone", action="store_true", help="build each by itself")
    parser.add_argument("--hours", type=float, help="begin no more after this time")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that run at a time")
    parser.add_argument("--report", action="store_true", help="write the report from what is there")
    parser.add_argument("--check", action="store_true", help="compare the report with what is committed")
    options = parser.parse_args()
    if subprocess.run(("cargo", "mutants", "--version"), capture_output=True, check=False).returncode:
        print("mutants: cargo install cargo-mutants", file=sys.stderr)
        return 2
    mutants = listed()
    outcomes = known(mutants)
    if not (options.report or options.check):
        chosen = [
            mutant
            for mutant in mutants
            if re.search(options.only or "", mutant.name)
            and (
                mutant.name not in outcomes
                or options.only
                or (options.again and outcomes[mutant.name]["outcome"] == "missed")
            )
        ]
        until = time.monotonic() + options.hours * 3600 if options.hours else None
        work = Run(mutants, until, options.jobs)
        if options.alone:
            work.each_alone(chosen)
        else:
            work.all(chosen)
        outcomes = known(mutants)
    return report.write(mutants, outcomes, check=options.check)


def listed() -> list[Mutant]:
    """All mutants, in an order that is random and always the same."""
    listing = subprocess.run(
        ("cargo", "mutants", "--list", "--json"), cwd=ROOT, check=True, capture_output=True, text=True
    )
    entries = json.loads(listing.stdout)
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {entry["file"] for entry in entries}}
    mutants = [Mutant.of(number, entry, texts[entry["file"]]) for number, entry in enumerate(entries, 1)]
    return sorted(mutants, key=lambda mutant: hashlib.sha256(mutant.name.encode()).digest())


def known(mutants: list[Mutant]) -> dict[str, dict[str, Any]]:
    """Outcomes of mutants of files that are what they were."""
    if not OUTCOMES.exists():
        return {}
    hashes = {file: source_hash(file) for file in {mutant.file for mutant in mutants}}
    names = {mutant.name for mutant in mutants}
    outcomes = (json.loads(line) for line in OUTCOMES.read_text(encoding="utf-8").splitlines())
    return {one["name"]: one for one in outcomes if one["name"] in names and hashes[one["file"]] == one["source"]}


def source_hash(file: str) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


class Run:
    """One run: the tree with mutants in it, and the executables made of it."""

    def __init__(self, mutants: list[Mutant], until: float | None, jobs: int) -> None:
        self.mutants = mutants
        self.until = until
        self.jobs = jobs
        kept = json.loads(LEFT_OUT.read_text(encoding="utf-8")) if LEFT_OUT.exists() else {}
        self.constant: set[str] = set(kept.get("constant", ()))
        self.refused = {mutant.number for mutant in mutants if mutant.name in kept.get("refused", ())}
        self.seconds: dict[Stage, float] = {}

    def all(self, chosen: list[Mutant]) -> None:
        if not chosen:
            return
        copy_tree({mutant.file for mutant in self.mutants} | {SWITCHED})
        left_out = self.build_all()
        self.measure()
        together = [mutant for mutant in chosen if mutant.number not in left_out]
        by_themselves = [mutant for mutant in chosen if mutant.number in left_out]
        print(f"mutants: {len(together)} of one build, {len(by_themselves)} by themselves", flush=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(self.one, together))
        # Those that may not compile at all first: they take the least time.
        for mutant in sorted(by_themselves, key=lambda mutant: mutant.number not in self.refused):
            self.alone(mutant)

    def each_alone(self, chosen: list[Mutant]) -> None:
        copy_tree(set())
        for mutant in chosen:
            self.alone(mutant)

    def build_all(self) -> set[int]:
        """Builds the tree with all mutants but those that do not compile in it, and returns the
        latter.
        """
        while True:
            planted = self.plant()
            errors = build(CHECK) or build(TRANSPORT) or build(ENGINE) or build(PAIR) or build(CLI)
            if not errors:
                names = [mutant.name for mutant in self.mutants if mutant.number in self.refused]
                LEFT_OUT.write_text(json.dumps({"constant": sorted(self.constant), "refused": names}), encoding="utf-8")
                return {mutant.number for file in planted.values() for mutant in file.left_out} | self.refused
            before = len(self.constant), len(self.refused)
            for error in errors:
                self.blame(error, planted)
            if (len(self.constant), len(self.refused)) == before:
                sys.exit("mutants: the tree does not build\n" + "\n".join(error["rendered"] for error in errors[:5]))

    def plant(self) -> dict[str, Planted]:
        planted = {}
        for file in sorted({mutant.file for mutant in self.mutants}):
            path = "crate::planted" if file.startswith("crates/transport/") else "airdma_transport::planted"
            of_file = [mutant for mutant in self.mutants if mutant.file == file and mutant.number not in self.refused]
            HASHES[file] = source_hash(file)
            planted[file] = plant(original(file), of_file, path, self.constant)
            put(file, planted[file].text)
        put(SWITCHED, original(SWITCHED) + SWITCH_CODE)
        return planted

    def blame(self, error: dict[str, Any], planted: dict[str, Planted]) -> None:
        called = re.search(r"cannot call non-const .*`(?:[^`]*::)?(\w+)(?:::<[^`]*>)?`", error["message"])
        if called:
            self.constant.add(called[1])
            return
        for span in error["spans"]:
            mutant = planted[span["file_name"]].at(span["line_start"]) if span["file_name"] in planted else None
            if mutant:
                self.refused.add(mutant.number)

    def measure(self) -> None:
        """What each stage takes without a mutant, in seconds of the processor."""
        for stage in STAGES:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            if run(stage, 0, None) != "passed":
                sys.exit(f"mutants: {stage.name} ({stage.target}) fails without a mutant")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.seconds[stage] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def one(self, mutant: Mutant, by_itself: bool = False) -> None:
        if self.until and time.monotonic() > self.until:
            return
        outcome, by = "missed", None
        for stage in STAGES:
            if by_itself:
                build(stage.build)
            result = run(
                stage, 0 if by_itself else mutant.number, int(3 + 4 * self.seconds.get(stage, SECONDS_UNKNOWN))
            )
            if result != "passed":
                outcome, by = ("timeout" if result == "timeout" else "caught"), stage.name
                break
        keep(mutant, outcome, by)

    def alone(self, mutant: Mutant) -> None:
        """Builds it as cargo-mutants does."""
        if self.until and time.monotonic() > self.until:
            return
        for file in {other.file for other in self.mutants} | {SWITCHED}:
            put(file, original(file))
        HASHES[mutant.file] = source_hash(mutant.file)
        put(mutant.file, alone(original(mutant.file), mutant))
        if build(CHECK):
            keep(mutant, "unviable", None)
            return
        self.one(mutant, by_itself=True)


HASHES: dict[str, str] = {}  # of the files as they were planted


def keep(mutant: Mutant, outcome: str, by: str | None) -> None:
    one = {"name": mutant.name, "file": mutant.file, "source": HASHES[mutant.file], "outcome": outcome, "by": by}
    with OUTCOMES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(one) + "\n")
    if outcome == "missed":
        print(f"missed {mutant.name}", flush=True)


def original(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def put(file: str, text: str) -> None:
    """Writes a file of the tree unless it is that already: what is unchanged is not built again."""
    path = TREE / file
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def copy_tree(but: set[str]) -> None:
    """Brings the tree up to date, but for files that others are written for."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "Cargo.*", *FOLDERS, "fuzz")
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    for file in listing:
        source, copy = ROOT / file, TREE / file
        if file not in but and source.is_file() and not (copy.exists() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    wanted = set(listing)
    for path in [path for folder in FOLDERS for path in (TREE / folder).rglob("*") if path.is_file()]:
        if str(path.relative_to(TREE)) not in wanted:
            path.unlink()


EXECUTABLES: dict[str, tuple[str, str]] = {}  # by target: the file, and the folder to run it in


def build(arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """Runs cargo on the tree, and remembers the executables. Returns the compiler's errors."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET / "build"), "RUSTFLAGS": "--cap-lints=allow"}
    command = ("cargo", *arguments, "--profile", "mutants", "--message-format", "json")
    done = subprocess.run(command, cwd=TREE, env=environment, check=False, capture_output=True, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [
        message["message"]
        for message in messages
        if message["reason"] == "compiler-message"
        and message["message"]["level"] == "error"
        and message["message"]["spans"]
    ]
    if errors:
        return errors
    if done.returncode:
        sys.exit(f"mutants: {' '.join(command)}\n{done.stderr}")
    for message in messages:
        if message["reason"] == "compiler-artifact" and message["executable"]:
            package = Path(message["manifest_path"]).parent
            target = f"airdma-{package.name}/{message['target']['name']}"
            EXECUTABLES[target] = (message["executable"], str(package))
    return []


def run(stage: Stage, number: int, limit: int | None) -> str:
    """Runs a stage with this mutant for `limit` seconds of the processor at most: "passed",
    "failed" or "timeout".
    """
    executable, folder = EXECUTABLES[stage.target]

    process = subprocess.Popen(
        (executable, *stage.arguments),
        cwd=folder,
        env=os.environ | {SWITCH: str(number), "RUST_BACKTRACE": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limits = [(resource.RLIMIT_AS, MEMORY_MAX), (resource.RLIMIT_CORE, 0)] + (
        [(resource.RLIMIT_CPU, limit)] if limit else []
    )
    for which, value in limits:
        with contextlib.suppress(ProcessLookupError):  # it was quick
            resource.prlimit(process.pid, which, (value, value))
    try:
        code = process.wait(limit * 10 if limit else None)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "timeout"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout"
    return "failed" if code else "passed"


if __name__ == "__main__":
    sys.exit(main())
