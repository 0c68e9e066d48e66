"""`airdma send` and `airdma recv`: files between two hosts, and every interruption."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airdma_lab import build
from airdma_lab.lab import INTERFACE, Host, Lab
from airdma_lab.program import Outcome, Program
from case import Tally

CODE = "lusab-babad"
OK, USAGE, UNREACHABLE, UNKNOWN, REFUSED, FILES, FLAWED, INTERRUPTED, PROTOCOL = 0, 2, 3, 4, 5, 6, 7, 8, 9
SLOW_MBIT = 160
"""Slow enough that something can happen in the middle, also on a busy machine."""
SLOW_BYTES = 50_000_000
WINDOW_BYTES = 33 << 20
"""What may be on its way, or wait for the receiver's disk: 32 slots of 1 MiB, and what is being
written.
"""
_TIMEOUT_S = 60.0
_POLL_S = 0.02

Event = dict[str, Any]


class Side:
    """One of the two commands, and what it tells."""

    def __init__(self, host: Host, log: Path, command: str, environment: dict[str, str]) -> None:
        self._host = host
        self.log = log
        log.touch()
        self.program: Program = host.start(["sh", "-c", f"{{ {command}; }} > {shlex.quote(str(log))}"], environment)

    def events(self, name: str = "") -> list[Event]:
        lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if name in ("", event["event"])]

    def wait_event(self, name: str, least_bytes: int = 0, number: int = 1, of: str = "bytes") -> Event:
        """Event `number` of this name with at least `least_bytes` of that."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline and not self.has_exited():
            found = [event for event in self.events(name) if event.get(of, 0) >= least_bytes]
            if len(found) >= number:
                return found[number - 1]
            time.sleep(_POLL_S)
        why = f"{self.end(0).explain()}{self.log.read_text(encoding='utf-8')}"
        raise AssertionError(f"no {name} with {least_bytes} bytes (the {number}. of them):\n{why}")

    def has_exited(self) -> bool:
        return self.program.has_exited()

    def signal(self, number: int) -> Outcome:
        os.kill(self.program.pid, number)
        return self.end()

    def end(self, timeout_s: float = _TIMEOUT_S) -> Outcome:
        outcome = self.program.wait(timeout_s)
        self._host.forget(self.program)
        return outcome

    def said(self) -> str:
        return "".join(event.get("message", "") for event in self.events())


class Bench:
    """Two users on two hosts, with a directory each."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.source, self.out = folder / "in", folder / "out"
        self.source.mkdir(parents=True)
        self.out.mkdir()
        self._count = 0

    def write(self, name: str, size: int) -> Path:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(size).randbytes(size))
        return path

    def recv(self, *words: str, before: str = "exec", after: str = "", yes: bool = True, home: str = "") -> Side:
        """Waits until it listens."""
        options = ["--json", "--code", CODE, *(["--yes"] if yes else []), *words]
        argv = shlex.join([str(build.binary()), "recv", *options, str(self.out)])
        side = self.start(self.lab.b, f"{before} {argv}", after, home)
        side.wait_event("listening")
        return side

    def send(self, *words: str | Path, code: str = CODE, to: str = "", home: str = "") -> Side:
        options = ["--json", *(["--code", code] if code else [])]
        argv = [str(build.binary()), "send", *options, *map(str, words), to or self.lab.b.ipv4]
        return self.start(self.lab.a, f"exec {shlex.join(argv)}", home=home)

    def start(self, host: Host, command: str, after: str = "", home: str = "") -> Side:
        self._count += 1
        # A directory for each user, beside which nothing of the host's is read.
        user = self.folder / (home or f"home-{host.namespace[-1]}")
        environment = {"AIRDMA_HOME": str(user), "AIRDMA_CODE": ""}
        return Side(host, self.folder / f"{self._count}.json", command + after, environment)

    def once(self, *words: str | Path, recv: tuple[str, ...] = (), code: str = CODE, to: str = "") -> list[str]:
        """A transfer that goes well."""
        receiver = self.recv(*recv)
        sender = self.send(*words, code=code, to=to)
        return ended(sender, OK) + ended(receiver, OK)


def run(lab: Lab, tally: Tally, kills: int = 1, seed: int | None = None) -> None:
    """All of it; `kills`: how many random moments each side is killed at."""
    with tempfile.TemporaryDirectory(prefix="airdma-files-", dir=memory()) as folder:
        _run(lab, tally, Path(folder), kills, seed)


def memory() -> Path | None:
    """Where files are made in memory: the disk of a test machine has its own moods, and ten
    thousand files are soon made and removed.
    """
    place = Path("/dev/shm")
    return place if os.access(place, os.W_OK) else None


def _run(lab: Lab, tally: Tally, folder: Path, kills: int, seed: int | None) -> None:
    seed = random.randrange(1 << 32) if seed is None else seed
    tests: list[tuple[str, Callable[[Bench], list[str]]]] = [
        ("a file by a code, and by the keys from then on", _file),
        ("receivers by their names", _names),
        ("a name that was met has another key", _another_key),
        ("a tree with all that belongs to it", _tree),
        ("the receiver's umask", _umask),
        ("10,000 small files", _small),
        ("from a pipe into a pipe", _pipes),
        ("the code is wrong three times", _wrong_code),
        ("no receiver is there", _nobody),
        ("names that exist", _clash),
        ("a receiver that never accepts", _never),
        ("a name with characters that are not seen", _hidden),
        ("two senders at once", _two),
        ("one offer after the other", _keep),
        ("a file that changes meanwhile", _changes),
        ("a full disk", _full),
        ("a read-only directory", _read_only),
        ("a directory that is not there", _no_directory),
        ("Ctrl-C, and on", _interrupted),
        ("the link is down for a while", _down),
        ("the sender is killed, and has another address", _moved),
        (f"each side is killed at random moments (seed {seed})", lambda bench: _killed(bench, kills, seed)),
    ]
    for number, (name, test) in enumerate(tests):
        started = time.monotonic()
        try:
            complaints = test(Bench(lab, folder / f"files-{number}"))
        except AssertionError as error:
            complaints = [str(error)]
        tally.record(f"airdma send: {name}", complaints, time.monotonic() - started)


def ended(side: Side, status: int, *words: str) -> list[str]:
    """Complaints unless it ends with this status, and says these words."""
    outcome = side.end()
    said = side.said() + outcome.stderr
    complaints = [f"exit status {outcome.returncode} in place of {status}"] if outcome.returncode != status else []
    complaints += [f"not said: {word}" for word in words if word not in said]
    return [*complaints, outcome.explain(), str(side.events())] if complaints else []


def _file(bench: Bench) -> list[str]:
    first, second = bench.write("first", 3_000_000), bench.write("second", 1)
    complaints = bench.once(first)
    # A receiver that was met before needs no code, at another address of the same name either.
    complaints += bench.once(second, code="", to=bench.lab.b.ipv4)
    complaints += differences(bench)
    by_six = bench.write("third", 70_000)
    return complaints + bench.once(by_six, to=bench.lab.b.ipv6) + differences(bench)


def _names(bench: Bench) -> list[str]:
    """By multicast, which also tells whose key is expected."""
    first, second, third = (bench.write(name, 1000) for name in ("first", "second", "third"))
    complaints = bench.once(first, recv=("--name", "Anna's desk"), to="anna's desk")
    # The same receiver under another name is another one, unless a person says that it is meant.
    receiver = bench.recv("--name", "Elsewhere")
    complaints += ended(bench.send(second, to="elsewhere", code=""), UNKNOWN, "no receiver is known as", "anna's desk")
    complaints += _answered(
        bench, "n\n" + CODE[1:] + "\n\x04", second, "elsewhere", None, "Is that the one", "two words"
    )
    complaints += _answered(
        bench, "y\n", second, "elsewhere", OK, "Is that the one that is meant?", "key of anna's desk"
    )
    complaints += ended(receiver, OK)
    complaints += bench.once(second, recv=("--name", "Elsewhere", "--if-exists", "overwrite"), to="elsewhere", code="")
    receiver = bench.recv("--name", "Anna's desk")
    complaints += ended(bench.send(third, to="nobody"), UNREACHABLE, "no receiver is called")
    complaints += ended(bench.send(third, to="--quiet"), OK) + ended(receiver, OK)
    complaints += ended(bench.send(third, to="--quiet"), UNREACHABLE, "waits on this network")
    return complaints + differences(bench)


def _another_key(bench: Bench) -> list[str]:
    """A name that was met shows up with another key, which was met under another name."""
    first, second = bench.write("first", 1000), bench.write("second", 1001)
    name = ("--name", "Anna")
    complaints = bench.once(first, recv=name, to="anna")
    receiver = bench.recv("--name", "Ben", home="home-c")
    complaints += ended(bench.send(first, to="ben"), FILES) + ended(receiver, FILES)
    receiver = bench.recv(*name, home="home-c")
    complaints += ended(bench.send(second, to="anna", code=""), UNKNOWN, "its key is")
    said = (
        "has not the key that was met",
        "(known here as anna)",
        "(known here as ben)",
        "code that the receiver shows",
    )
    complaints += _answered(bench, "\x04", second, "anna", None, *said)
    complaints += ["it was sent"] if (bench.out / second.name).exists() else []
    complaints += _answered(bench, CODE + "\n", second, "anna", OK, *said, "The former one is forgotten")
    complaints += ended(receiver, OK)
    return complaints + differences(bench)


def _answered(bench: Bench, typed: str, path: Path, to: str, status: int | None, *words: str) -> list[str]:
    """Complaints unless `airdma send` at a terminal, where this is typed, says these words and ends
    so (none: it fails).
    """
    argv = [sys.executable, "-c", _AT_A_TERMINAL, typed, str(build.binary()), "send", str(path), to]
    side = bench.start(bench.lab.a, f"exec {shlex.join(argv)}")
    outcome = side.end()
    said = side.log.read_text(encoding="utf-8", errors="replace")
    complaints = [f"not said: {word}" for word in words if word not in said]
    is_wrong = outcome.returncode == OK if status is None else outcome.returncode != status
    complaints += [f"exit status {outcome.returncode}"] if is_wrong else []
    return [*complaints, outcome.explain(), said] if complaints else []


_AT_A_TERMINAL = """
import os, pty, sys
typed, argv = sys.argv[1].encode(), sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execv(argv[0], argv)
said = b""
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError:
        break
    said += piece
    # A line for each question.
    if typed and said.rstrip().endswith((b"[y/N]", b"shows:")):
        line, _, typed = typed.partition(b"\\n")
        said = b""
        os.write(terminal, line if line == b"\\x04" else line + b"\\n")
    sys.stdout.buffer.write(piece)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _tree(bench: Bench) -> list[str]:
    tree = bench.source / "tree"
    bench.write("tree/deep/er/file", 100_000).chmod(0o750)
    bench.write("tree/a\nname \x1b[31m", 10)
    bench.write("tree/empty", 0)
    (tree / "nothing").mkdir(mode=0o700)
    (tree / "link").symlink_to("deep/er/file")
    with (tree / "sparse").open("wb") as sparse:
        sparse.truncate(300_000_000)
        sparse.seek(200_000_000)
        sparse.write(b"island")
    os.utime(tree / "empty", (1, 1_000_000_000.5))
    complaints = bench.once(tree) + differences(bench)
    if (bench.out / "tree/sparse").stat().st_blocks > 10_000:
        complaints.append("the holes were filled")
    return complaints


def _umask(bench: Bench) -> list[str]:
    """What others may not do with new files of the receiver they may not do with those that arrive;
    unless it asks for that.
    """
    modes = {"tree": 0o777, "tree/open": 0o666, "tree/closed": 0o400, "tree/program": 0o775, "tree/d": 0o577}
    modes |= {f"tree/small/{number}": 0o666 for number in range(100)}
    (bench.source / "tree/d").mkdir(parents=True)
    for name, mode in modes.items():
        path = bench.source / name
        if not path.exists():
            bench.write(name, 2_000_000 if name == "tree/open" else 100)
        path.chmod(mode)
    alone = bench.write("alone", 100)
    alone.chmod(0o666)
    complaints = []
    for options, umask, kept in (
        ((), 0o077, 0o700),
        ((), 0o027, 0o750),
        (("--preserve-permissions",), 0o077, 0o777),
    ):
        receiver = bench.recv(*options, before=f"umask {umask:o}; exec")
        complaints += ended(bench.send(bench.source / "tree", alone), OK) + ended(receiver, OK)
        for name, mode in {**modes, "alone": 0o666}.items():
            found = (bench.out / name).stat().st_mode & 0o7777
            if found != mode & kept:
                complaints.append(f"{name} has {found:o} with umask {umask:o} {options}")
        shutil.rmtree(bench.out)
        bench.out.mkdir()
    return complaints


def _small(bench: Bench) -> list[str]:
    for number in range(10_000):
        path = bench.source / f"many/{number % 100}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * 400)
    return bench.once(bench.source / "many") + differences(bench)


def _pipes(bench: Bench) -> list[str]:
    content = bench.write("content", 5_000_000)
    binary, told = shlex.quote(str(build.binary())), bench.folder / "told"
    receiver = bench.start(bench.lab.b, f"{binary} recv --yes --json --code {CODE} - 2> {told} | cat")
    _wait_until(lambda: told.exists() and "listening" in told.read_text())
    sending = f"cat {content} | {binary} send --json --code {CODE} - {bench.lab.b.ipv4}"
    complaints = ended(bench.start(bench.lab.a, sending), OK)
    outcome = receiver.end()
    if outcome.returncode != OK or receiver.log.read_bytes() != content.read_bytes():
        complaints.append(f"what came out is not what went in: {outcome.explain()}")
    return complaints + _stopped_reader(bench)


def _stopped_reader(bench: Bench) -> list[str]:
    """The receiver can be stopped though its output is not read; what was read of standard input
    before is not sent.
    """
    content = bench.write("long", 5_000_000)
    binary = shlex.quote(str(build.binary()))
    pid, status, told = (bench.folder / name for name in ("pid", "status", "told-2"))
    reader = bench.folder / "reader"
    command = f"{binary} recv --yes --json --code {CODE} - 2> {told} & echo $! > {pid}; wait $!; echo $? > {status}"
    receiver = bench.start(bench.lab.b, f"{{ {command}; }} | sh -c 'echo $$ > {reader}; exec sleep 600'")
    _wait_until(lambda: told.exists() and "listening" in told.read_text())
    sending = f"{{ head -c 1000000 > /dev/null; {binary} send --json --code {CODE} - {bench.lab.b.ipv4}; }} < {content}"
    sender = bench.start(bench.lab.a, sending)
    offered = sender.wait_event("start")["bytes_total"]
    time.sleep(1)
    os.kill(int(pid.read_text()), signal.SIGTERM)
    _wait_until(lambda: status.exists() and status.read_text() != "")
    complaints = ended(sender, INTERRUPTED)
    if not status.exists() or status.read_text().strip() != str(128 + signal.SIGTERM):
        complaints.append("the receiver did not end")
    if offered > 4_500_000:
        complaints.append(f"{offered} bytes were offered, though the first were read before")
    os.kill(int(reader.read_text()), signal.SIGKILL)
    receiver.end()
    return complaints


def _wrong_code(bench: Bench) -> list[str]:
    path = bench.write("file", 10)
    receiver = bench.recv()
    complaints = []
    for words in (["the code is wrong"], ["the code is wrong"], ["three times"]):
        complaints += ended(bench.send(path, code="babad-babad"), UNKNOWN, *words)
    complaints += ended(receiver, UNKNOWN, "three times")
    return complaints + is_empty(bench)


def _nobody(bench: Bench) -> list[str]:
    receiver = bench.recv("--port", "7000")
    complaints = ended(bench.send(bench.write("file", 10)), UNREACHABLE, "no program listens at")
    stopped = receiver.signal(signal.SIGTERM)
    return complaints + ([] if stopped.returncode == 128 + signal.SIGTERM else [stopped.explain()])


def _clash(bench: Bench) -> list[str]:
    path = bench.write("file.txt", 10)
    there = bench.out / "file.txt"
    there.write_text("mine")
    receiver = bench.recv()
    complaints = ended(bench.send(path), FILES, "exists") + ended(receiver, FILES, "exists")
    complaints += bench.once(path, recv=("--if-exists", "rename"))
    if there.read_text() != "mine" or (bench.out / "file (1).txt").read_bytes() != path.read_bytes():
        complaints.append(f"there is {sorted(bench.out.iterdir())}")
    complaints += bench.once(path, recv=("--if-exists", "overwrite"))
    if there.read_bytes() != path.read_bytes():
        complaints.append("it was not overwritten")
    return complaints


def _never(bench: Bench) -> list[str]:
    # The question goes to a terminal that is not read.
    terminal = "exec python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])'"
    argv = shlex.join([str(build.binary()), "recv", "--code", CODE, str(bench.out)])
    receiver = bench.start(bench.lab.b, f"{terminal} {argv}")
    _wait_until(lambda: CODE in receiver.log.read_text())
    sender = bench.send("--accept-within", "2", bench.write("file", 10))
    complaints = ended(sender, REFUSED, "was not accepted in time")
    # It is the child of who made the terminal.
    children = Path(f"/proc/{receiver.program.pid}/task/{receiver.program.pid}/children").read_text(encoding="ascii")
    os.kill(int(children.split()[0]), signal.SIGINT)
    receiver.end()
    if "Accept? [Y/n]" not in receiver.log.read_text():
        complaints.append(f"the question was not asked: {receiver.log.read_text()}")
    return complaints + is_empty(bench)


HIDDEN = "a\u200bb\u202ecod\u00ad\U000e0041.exe"
"""A name with characters that are not seen."""


def _hidden(bench: Bench) -> list[str]:
    terminal = "exec python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])'"
    argv = shlex.join([str(build.binary()), "recv", "--code", CODE, "--name", "a\u200bb", str(bench.out)])
    receiver = bench.start(bench.lab.b, f"{terminal} {argv}")
    _wait_until(lambda: CODE in receiver.log.read_text())
    sender = bench.send("--accept-within", "2", bench.write(HIDDEN, 10))
    complaints = ended(sender, REFUSED, "was not accepted in time")
    children = Path(f"/proc/{receiver.program.pid}/task/{receiver.program.pid}/children").read_text(encoding="ascii")
    os.kill(int(children.split()[0]), signal.SIGINT)
    receiver.end()
    shown = receiver.log.read_text()
    complaints += [f"shown: {character!r}" for character in "\u200b\u202e\u00ad\U000e0041" if character in shown]
    escaped = "a\\u{200b}b\\u{202e}cod\\u{ad}\\u{e0041}.exe"
    complaints += [] if escaped in shown else [f"not shown: {escaped}"]
    return [*complaints, shown] if complaints else []


def _two(bench: Bench) -> list[str]:
    path, other = bench.write("file", SLOW_BYTES // 4), bench.write("other", 10)
    with bench.lab.a.slowed(SLOW_MBIT):
        receiver = bench.recv()
        first = bench.send(path)
        first.wait_event("start")
        complaints = ended(bench.send(other, code=""), REFUSED, "another transfer")
        # Another user, who would need the code: it is the first one's.
        complaints += ended(bench.send(other, home="other"), UNKNOWN)
        complaints += ended(first, OK) + ended(receiver, OK)
    other.unlink()
    return complaints + differences(bench)


def _keep(bench: Bench) -> list[str]:
    """`--keep` receives until it is stopped: an offer's end does not end it, and it is never away
    between two.
    """
    first, second, third = (bench.write(name, 100_000) for name in ("first", "second", "third"))
    receiver = bench.recv("--keep")
    complaints = ended(bench.send(first), OK)
    complaints += ended(bench.send(first, code=""), FILES, "exists")
    complaints += ended(bench.send(second, code=""), OK)
    # Another user: a code is good for one sender of each offer.
    complaints += ended(bench.send(third, home="other"), OK)
    stopped = receiver.signal(signal.SIGTERM)
    complaints += [] if stopped.returncode == 128 + signal.SIGTERM else [stopped.explain()]
    told = [event["event"] for event in receiver.events() if event["event"] in ("end", "error")]
    if told != ["end", "error", "end", "end", "error"]:
        complaints.append(f"it tells {receiver.events()}")
    output = bench.start(bench.lab.b, f"exec {build.binary()} recv --keep --yes -")
    return complaints + ended(output, USAGE, "wants a directory") + differences(bench)


def _changes(bench: Bench) -> list[str]:
    # More than the sender reads ahead: it has not read all of it when it has started.
    changing = bench.write("tree/changing", SLOW_BYTES)
    bench.write("tree/other", 10)
    with bench.lab.a.slowed(SLOW_MBIT):
        receiver = bench.recv()
        sender = bench.send(changing.parent)
        sender.wait_event("start")
        with changing.open("r+b") as file:
            file.write(b"else")
        complaints = ended(sender, FLAWED) + ended(receiver, FLAWED)
    return complaints + differences(bench, but=frozenset({"tree/changing"}))


def _full(bench: Bench) -> list[str]:
    return _in_tmpfs(bench, "size=8m", "no space left")


def _no_directory(bench: Bench) -> list[str]:
    command = f"exec {build.binary()} recv --yes --json {bench.out}/nowhere"
    return ended(bench.start(bench.lab.b, command), FILES, "make it first")


def _read_only(bench: Bench) -> list[str]:
    return _in_tmpfs(bench, "ro", "read-only")


def _in_tmpfs(bench: Bench, options: str, words: str) -> list[str]:
    """Receives where there is no room; the mount goes with the command."""
    path = bench.write("file", 20_000_000)
    listing = bench.folder / "listing"
    mount = f"mount -t tmpfs -o {options} tmpfs {bench.out} &&"
    receiver = bench.recv(before=mount, after=f"; status=$?; ls -A {bench.out} > {listing}; (exit $status)")
    complaints = ended(bench.send(path), FILES, words)
    # The redirection belongs to the last command of the list.
    outcome = receiver.end()
    if outcome.returncode != FILES:
        complaints.append(outcome.explain())
    if path.name in listing.read_text().split():
        complaints.append("a file that is not whole has its name")
    return complaints


def _interrupted(bench: Bench) -> list[str]:
    path = bench.write("file", SLOW_BYTES // 2)
    with bench.lab.a.slowed(SLOW_MBIT):
        receiver, sender = bench.recv(), bench.send(path)
        reached = sender.wait_event("progress", 1 << 20)["bytes"]
        stopped = sender.signal(signal.SIGINT)
        complaints = [] if stopped.returncode == 128 + signal.SIGINT else [stopped.explain()]
        complaints += ended(receiver, INTERRUPTED, "the other end was stopped")
        receiver, sender = bench.recv(), bench.send(path)
        complaints += _goes_on(sender.wait_event("start"), reached, 0)
        complaints += ended(sender, OK) + ended(receiver, OK)
    return complaints + differences(bench)


def _down(bench: Bench) -> list[str]:
    path = bench.write("file", SLOW_BYTES // 2)
    with bench.lab.a.slowed(SLOW_MBIT):
        receiver, sender = bench.recv(), bench.send(path)
        sender.wait_event("progress", 4 << 20)
        _ip(bench.lab.a, "link", "set", INTERFACE, "down")
        sender.wait_event("lost")
        _ip(bench.lab.a, "link", "set", INTERFACE, "up")
        complaints = ended(sender, OK) + ended(receiver, OK)
    started = sender.events("start")
    if len(started) < 2 or started[-1]["bytes"] == 0:
        complaints.append(f"it did not go on: {started}")
    return complaints + differences(bench)


def _moved(bench: Bench) -> list[str]:
    path = bench.write("file", SLOW_BYTES // 2)
    elsewhere = "10.77.0.99/24"
    with bench.lab.a.slowed(SLOW_MBIT):
        receiver, sender = bench.recv(), bench.send(path)
        reached = sender.wait_event("progress", 1 << 20)["bytes"]
        sender.signal(signal.SIGKILL)
        _ip(bench.lab.a, "address", "del", f"{bench.lab.a.ipv4}/24", "dev", INTERFACE)
        _ip(bench.lab.a, "address", "add", elsewhere, "dev", INTERFACE)
        try:
            sender = bench.send(path, code="")
            complaints = _goes_on(sender.wait_event("start"), reached, 0)
            complaints += ended(sender, OK) + ended(receiver, OK)
        finally:
            _ip(bench.lab.a, "address", "del", elsewhere, "dev", INTERFACE)
            _ip(bench.lab.a, "address", "add", f"{bench.lab.a.ipv4}/24", "dev", INTERFACE)
    return complaints + differences(bench)


def _killed(bench: Bench, kills: int, seed: int) -> list[str]:
    """The receiver has made durable what it had a second before, the sender loses nothing but what
    was on its way.
    """
    chance = random.Random(seed)
    complaints = []
    with bench.lab.a.slowed(SLOW_MBIT):
        for number in range(kills):
            for victim in ("sender", "receiver"):
                path = bench.write(f"file-{number}-{victim}", SLOW_BYTES + number)
                receiver, sender = bench.recv(), bench.send(path)
                at = chance.randrange(1, SLOW_BYTES * 3 // 4)
                reached = sender.wait_event("progress", at)["bytes"]
                if victim == "sender":
                    sender.signal(signal.SIGKILL)
                    sender = bench.send(path)
                    found = _goes_on(sender.wait_event("start"), reached, 0)
                else:
                    # The sender runs on, and comes again.
                    receiver.signal(signal.SIGKILL)
                    receiver = bench.recv()
                    found = _goes_on(sender.wait_event("start", number=2), reached, SLOW_MBIT * 125_000 * 2)
                found += ended(sender, OK) + ended(receiver, OK)
                complaints += [f"{victim} killed at {reached}: {complaint}" for complaint in found]
    return complaints + differences(bench)


def _goes_on(start: Event, reached: int, beside: int) -> list[str]:
    """Nothing was sent again but what was on its way, and what the disk had not made durable
    (`beside`).
    """
    lost = reached - start["bytes"]
    return [f"{lost} bytes are sent again"] if lost > WINDOW_BYTES + beside else []


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and not is_so():
        time.sleep(_POLL_S)


def _ip(host: Host, *words: str) -> None:
    subprocess.run(["ip", "-n", host.namespace, *words], check=True)


def differences(bench: Bench, but: frozenset[str] = frozenset(), ours: bool = False) -> list[str]:
    """What is not at the receiver as it is at the sender, and what is there beside it, unless it is
    `ours`; `but` must not be there.
    """
    there, here = _described(bench.out), _described(bench.source)
    there = {name: what for name, what in there.items() if not (ours and name.startswith(".airdma-"))}
    here = {name: what for name, what in here.items() if name not in but}
    wrong = [name for name in here.keys() | there.keys() if here.get(name) != there.get(name)]
    return [f"not as they were sent: {sorted(wrong)[:5]}"] if wrong else []


def _described(top: Path) -> dict[str, tuple[object, ...]]:
    described: dict[str, tuple[object, ...]] = {}
    for path in top.rglob("*"):
        stat = path.lstat()
        content: object = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        described[str(path.relative_to(top))] = (stat.st_mode, stat.st_mtime_ns, content)
    return described


def is_empty(bench: Bench) -> list[str]:
    found = sorted(path.name for path in bench.out.iterdir())
    return [f"there is {found}, though nothing was accepted"] if found else []


def resident_bytes(program: Program) -> int:
    pages = int(Path(f"/proc/{program.pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
