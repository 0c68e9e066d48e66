"""`airdma serve` and `airdma queue`: jobs that are sent between two hosts, one after the other,
whatever happens to the service.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airdma_lab import build
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome, Program
from case import NotRunError, Tally
from failing_disks import failing
from file_transfer import resident_bytes

CODE = "lusab-babad"
REFUSED, USAGE, NO_SERVICE, NO_JOB, OVER, FAILED = 1, 2, 3, 4, 5, 8
SLOW_MBIT = 160
"""Slow enough that something can happen in the middle, also on a busy machine."""
SLOW_BYTES = 40_000_000
LONG_BYTES = 100_000_000
GROWTH_BYTES_MAX = 20_000_000
_TIMEOUT_S = 60.0
_POLL_S = 0.05
UNITS = ["packaging/systemd/airdma-serve.service", "packaging/systemd/user/airdma-serve.service"]


class Bench:
    """A service on one host, and a user who receives on the other."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.source, self.out = folder / "in", folder / "out"
        self.source.mkdir(parents=True)
        self.out.mkdir()
        self.socket = folder / "queue.sock"
        self.nobody = lab.b.ipv4.rpartition(".")[0] + ".77"
        """An address on the link that is no host's."""
        self._state = folder / "state"
        self._folder = folder
        self._running: list[tuple[Host, Program]] = []
        self.service = self.serve()

    def serve(self, *before: str) -> Program:
        """Starts a service (behind other words), and waits until it answers."""
        argv = [*before, str(build.binary()), "serve", "--state", str(self._state), "--socket", str(self.socket)]
        program = self._start(self.lab.a, argv, "home-a")
        deadline = time.monotonic() + _TIMEOUT_S
        while self.queue("list").returncode != 0:
            assert time.monotonic() < deadline, "the service does not answer"
            time.sleep(_POLL_S)
        return program

    def receive(self, times: int = 1, *words: str) -> Program:
        """Receives jobs `times` times, each with a new `airdma recv`."""
        options = [*words, *([] if "--no-code" in words else ["--code", CODE])]
        argv = [str(build.binary()), "recv", "--yes", "--if-exists", "overwrite", *options, str(self.out)]
        script = f"for turn in $(seq {times}); do {shlex.join(argv)} || echo ended with $?; done"
        program = self._start(self.lab.b, ["sh", "-c", script], "home-b")
        assert program.wait_listening(4791, "udp", _TIMEOUT_S), "no receiver listens"
        return program

    def write(self, name: str, size: int) -> Path:
        path = self.source / name
        path.write_bytes(random.Random(size).randbytes(size))
        return path

    def queue(self, *words: str | Path, timeout_s: float = _TIMEOUT_S) -> Outcome:
        argv = [str(build.binary()), "queue", "--socket", str(self.socket), *map(str, words)]
        return self.lab.a.run(argv, {"AIRDMA_CODE": ""}, timeout_s)

    def add(self, path: Path, *words: str, to: str = "") -> int:
        outcome = self.queue("add", path, to or self.lab.b.ipv4, *words)
        assert outcome.ok, outcome.explain()
        return int(outcome.stdout)

    def job(self, number: int) -> dict[str, Any]:
        outcome = self.queue("status", str(number), "--json")
        assert outcome.ok, outcome.explain()
        job: dict[str, Any] = json.loads(outcome.stdout)
        return job

    def wait_for(self, number: int, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            job = self.job(number)
            if is_so(job):
                return job
            time.sleep(_POLL_S)
        raise AssertionError(f"job {number} stays {self.job(number)}")

    def wait_state(self, number: int, state: str) -> dict[str, Any]:
        return self.wait_for(number, lambda job: job["state"] == state)

    def differences(self, *paths: Path) -> list[str]:
        there = [self.out / path.name for path in paths]
        wrong = [
            path.name
            for path, copy in zip(paths, there, strict=True)
            if not copy.exists() or copy.read_bytes() != path.read_bytes()
        ]
        return [f"not as they were sent: {wrong}"] if wrong else []

    def close(self) -> None:
        for host, program in self._running:
            host.forget(program)

    def _start(self, host: Host, argv: list[str], user: str) -> Program:
        # A directory for each user, beside which nothing of the host's is read.
        environment = {"AIRDMA_HOME": str(self._folder / user), "AIRDMA_CODE": ""}
        program = host.start(argv, environment)
        self._running.append((host, program))
        return program


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    tests: list[tuple[str, Callable[[Bench], list[str]]]] = [
        ("jobs by a code, by the key from then on, and in their order", _order),
        ("the service is killed while a job runs, and the job goes on", _killed),
        ("a job is cancelled while it runs, and the next one has its turn", _cancelled),
        ("a receiver that is away is waited for, and delays no other", _away),
        ("what cannot be is refused, with an exit status", _refused),
        ("a disk that cannot make sure: no job is taken", _unsure),
        ("garbage on the socket", _garbage),
        ("a host that was met takes the name of another: nothing goes there", _impostor),
        ("a host that sent files here takes the name of a receiver: nothing goes there", _former_sender),
        ("SIGTERM ends it although the name of its socket is gone, or another's", _nameless),
    ]
    for number, (name, test) in enumerate(tests):
        started = time.monotonic()
        bench = Bench(lab, folder / f"queue-{number}")
        try:
            complaints = test(bench)
        except AssertionError as error:
            complaints = [str(error)]
        bench.close()
        tally.record(f"airdma serve: {name}", complaints, time.monotonic() - started)
    tally.attempt("airdma serve: the units for systemd", lambda: _units(folder))


def _order(bench: Bench) -> list[str]:
    first, second, third, urgent = (bench.write(f"file {number}", 100_000 + number) for number in range(4))
    receiver = bench.receive(4)
    waited = bench.queue("add", first, "--to", bench.lab.b.ipv4, "--code", CODE, "--wait")
    complaints = [] if waited.ok and "job 1 is done" in waited.stdout else [waited.explain()]
    with _held(bench) as blocker:
        jobs = [bench.add(second), bench.add(third), bench.add(urgent, "--priority", "100")]
        listed = bench.queue("list").stdout
        complaints += [] if listed.count("queued") == 3 else [f"not three that wait: {listed}"]
    done = [bench.wait_state(job, "done") for job in jobs]
    bench.wait_state(blocker, "cancelled")
    order = [job["id"] for job in sorted(done, key=lambda job: (job["started"], job["ended"]))]
    urgent_first = done[2]["started"] <= min(done[0]["started"], done[1]["started"])
    complaints += [] if urgent_first else [f"they ran as {order}"]
    complaints += [] if receiver.wait(_TIMEOUT_S).ok else ["the receiver did not get four"]
    if "lusab" in bench.queue("list", "--all", "--json").stdout:
        complaints.append("a code is shown")
    return complaints + bench.differences(first, second, third, urgent)


@contextmanager
def _held(bench: Bench) -> Iterator[int]:
    """Nothing else runs meanwhile: a job whose receiver is nowhere."""
    blocker = bench.add(bench.source, "--priority", "100", "--code", CODE, to=bench.nobody)
    bench.wait_state(blocker, "running")
    yield blocker
    bench.queue("cancel", str(blocker))


def _killed(bench: Bench) -> list[str]:
    large, small = bench.write("large", LONG_BYTES), bench.write("small", 1)
    receiver = bench.receive(2)
    with bench.lab.a.slowed(SLOW_MBIT):
        jobs = [bench.add(large, "--code", CODE), bench.add(small)]
        reached = bench.wait_for(jobs[0], lambda job: job["bytes"] > LONG_BYTES * 85 // 100)["bytes"]
        os.kill(bench.service.pid, signal.SIGKILL)
        bench.service.wait(_TIMEOUT_S)
        bench.service = bench.serve()
        job = bench.wait_for(jobs[0], lambda job: job["attempts"] == 2 and job["bytes"] > 0)
    done = [bench.wait_state(job, "done") for job in jobs]
    # What was on its way, and not yet for good on the receiver's disk, is sent again.
    complaints = [] if job["bytes"] > LONG_BYTES // 10 else [f"at {job['bytes']} bytes after {reached}"]
    complaints += [] if done[0]["files"] == done[1]["files"] == 1 else [f"other files arrived: {done}"]
    complaints += [] if receiver.wait(_TIMEOUT_S).ok else ["the receiver did not get two"]
    return complaints + bench.differences(large, small)


def _cancelled(bench: Bench) -> list[str]:
    large, small = bench.write("large", SLOW_BYTES), bench.write("small", 1)
    bench.receive(2)
    with bench.lab.a.slowed(SLOW_MBIT):
        jobs = [bench.add(large, "--code", CODE), bench.add(small)]
        bench.wait_for(jobs[0], lambda job: job["bytes"] > SLOW_BYTES // 10)
        cancelled = bench.queue("cancel", str(jobs[0]))
        bench.wait_state(jobs[0], "cancelled")
    bench.wait_state(jobs[1], "done")
    complaints = [] if cancelled.ok else [cancelled.explain()]
    complaints += ["what was cancelled has its name"] if (bench.out / "large").exists() else []
    again = bench.queue("cancel", str(jobs[0]))
    complaints += [] if again.returncode == OVER else [again.explain()]
    waited = bench.queue("wait", str(jobs[0]))
    complaints += [] if waited.returncode == FAILED else [waited.explain()]
    return complaints + bench.differences(small)


def _away(bench: Bench) -> list[str]:
    first, second = bench.write("first", 1000), bench.write("second", 1001)
    bench.receive()
    away = bench.add(first, "--code", CODE, to=bench.nobody)
    there = bench.add(second, "--code", CODE)
    bench.wait_state(there, "done")
    job = bench.wait_for(away, lambda job: job["state"] == "queued")
    complaints = [] if job["trouble"]["kind"] == "unreachable" else [f"another trouble: {job}"]
    listed = bench.queue("list").stdout
    complaints += [] if "again in" in listed else [f"it is not said that it waits: {listed}"]
    stopped = bench.service.stop()
    complaints += [] if stopped.returncode == 0 else [stopped.explain()]
    complaints += ["the socket is left behind"] if bench.socket.exists() else []
    bench.service = bench.serve()
    job = bench.wait_for(away, lambda job: job["attempts"] >= 2)
    return complaints + bench.differences(second)


def _refused(bench: Bench) -> list[str]:
    path = bench.write("file", 1)
    here = bench.lab.b.ipv4
    complaints = []
    for status, words in (
        (USAGE, ["add", "/no/such/file", here]),
        (USAGE, ["add", str(path)]),
        (USAGE, ["add", str(path), str(path)]),
        (USAGE, ["add", "-", here]),
        (USAGE, ["add", str(path), here, "--priority", "101"]),
        (USAGE, ["add", str(path), here, "--code", "nonsense"]),
        (NO_JOB, ["status", "7"]),
        (NO_JOB, ["cancel", "7"]),
        (NO_SERVICE, ["list", "--socket", "/no/such.sock"]),
    ):
        outcome = bench.queue(*words)
        if outcome.returncode != status or not outcome.stderr:
            complaints.append(f"{status} is wanted: {outcome.explain()}")
    unknown = bench.queue("add", path, here, "--wait")
    if unknown.returncode != FAILED or "not known yet" not in unknown.stdout:
        complaints.append(f"without a code: {unknown.explain()}")
    second = bench.lab.a.run(
        [str(build.binary()), "serve", "--state", str(bench.socket) + "2", "--socket", str(bench.socket)]
    )
    if second.returncode != 1 or "another `airdma serve` listens" not in second.stderr:
        complaints.append(f"a second one: {second.explain()}")
    return complaints


def _unsure(bench: Bench) -> list[str]:
    """`queued` is reliable: it is reported after the journal was synced, and not if that failed."""
    path = bench.write("file", 1)
    bench.service.stop()
    # The first one of each thread is well: the service starts, and the first request of a
    # connection is taken.
    bench.service = bench.serve(*failing("fdatasync", "EIO", "2+"))
    order = {"add": {"paths": [str(path)], "to": bench.nobody}}
    taken, refused = _asked(bench.socket, order, order)
    complaints = [] if "job" in taken else [f"the first one is not taken: {taken}"]
    message = refused.get("error", {}).get("message", "")
    complaints += [] if "could not be written down" in message else [f"the answer is {refused}"]
    for _ in range(2):
        (listed,) = _asked(bench.socket, {"list": {}})
        numbers = [job["id"] for job in listed["jobs"]]
        complaints += [] if numbers == [1] else [f"known are {numbers}"]
        os.kill(bench.service.pid, signal.SIGKILL)
        bench.service.wait(_TIMEOUT_S)
        bench.service = bench.serve()
    return complaints


def _asked(path: Path, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers to requests on one connection."""
    with socket.socket(socket.AF_UNIX) as stream, stream.makefile("rw", encoding="utf-8") as lines:
        stream.settimeout(_TIMEOUT_S)
        stream.connect(str(path))
        answers = []
        for request in requests:
            print(json.dumps(request), file=lines, flush=True)
            answers.append(json.loads(lines.readline()))
        return answers


def _garbage(bench: Bench) -> list[str]:
    complaints = []
    before = resident_bytes(bench.service)
    huge = b"x" * 50_000_000
    for _ in range(3):
        for garbage in (b"\0\xff\n", b"{}\n" * 1000, b"[" * 1_000_000, huge, b'{"status":{"id":1}'):
            complaints += _told(bench.socket, garbage)
    grown = resident_bytes(bench.service) - before
    complaints += [f"it grew by {grown} bytes"] if grown > GROWTH_BYTES_MAX else []
    mode = bench.socket.stat().st_mode & 0o777
    complaints += [f"the socket has mode {mode:o}"] if mode != 0o600 else []
    return complaints + ([] if bench.queue("list").ok else ["the service answers no more"])


def _told(path: Path, garbage: bytes) -> list[str]:
    """Complaints unless it is told that this is no request."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(_TIMEOUT_S)
        stream.connect(str(path))
        try:
            stream.sendall(garbage)
            stream.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass  # It has read enough.
        try:
            told = stream.recv(1 << 20)
        except ConnectionResetError:
            return [f"no answer to {garbage[:20]!r}"]
    return [] if b'"malformed"' in told else [f"{told!r} is the answer to {garbage[:20]!r}"]


OTHER_CODE = "zuzuz-babad"
"""That of the receiver that is meant, and is not there."""


def _impostor(bench: Bench) -> list[str]:
    """The key of the host was met under its address. It announces another name, and the job has the
    code of the receiver that has this name.
    """
    first, secret = bench.write("first", 1000), bench.write("secret", 1001)
    met = bench.receive()
    by_code = bench.queue("add", first, "--to", bench.lab.b.ipv4, "--code", CODE, "--wait")
    complaints = [] if by_code.ok and met.wait(_TIMEOUT_S).ok else [by_code.explain()]
    return complaints + _nothing_goes(bench, secret, "no receiver is known as")


def _former_sender(bench: Bench) -> list[str]:
    """The key of the host was met when it sent files here."""
    first, secret = bench.write("first", 1000), bench.write("secret", 1001)
    inbox = bench.out.with_name("inbox")
    inbox.mkdir()
    recv = [str(build.binary()), "recv", "--yes", "--no-name", "--code", CODE, str(inbox)]
    receiver = bench._start(bench.lab.a, recv, "home-a")
    assert receiver.wait_listening(4791, "udp", _TIMEOUT_S), "no receiver listens"
    send = [str(build.binary()), "send", "--code", CODE, str(first), bench.lab.a.ipv4]
    sender = bench._start(bench.lab.b, send, "home-b")
    sent = sender.wait(_TIMEOUT_S)
    complaints = [] if sent.ok and receiver.wait(_TIMEOUT_S).ok else [sent.explain()]
    return complaints + _nothing_goes(bench, secret, "not known yet")


def _nothing_goes(bench: Bench, secret: Path, why: str) -> list[str]:
    """A receiver that was met announces the name `anna`: jobs for `anna` fail, with the right code
    and without any.
    """
    receiver = bench.receive(1, "--name", "anna", "--no-code")
    complaints = []
    for words, said in ((["--code", OTHER_CODE], "takes no code now"), ([], why)):
        waited = bench.queue("add", secret, "--to", "anna", *words, "--wait")
        if waited.returncode != FAILED or said not in waited.stdout:
            complaints.append(f"{words}: {waited.explain()}")
    if (bench.out / secret.name).exists():
        complaints.append("the file is at the host that took the name")
    receiver.stop()
    return complaints


def _nameless(bench: Bench) -> list[str]:
    complaints = []
    for number, taken in ((signal.SIGTERM, False), (signal.SIGINT, True)):
        bench.socket.unlink()
        if taken:
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(bench.socket))
        os.kill(bench.service.pid, number)
        ended = bench.service.wait(_TIMEOUT_S / 4)
        complaints += [] if ended.returncode == 0 else [f"{number.name}: {ended.explain()}"]
        complaints += ["what another one made is gone"] if bench.socket.exists() != taken else []
        bench.service = bench.serve()
    return complaints


def _units(folder: Path) -> list[str]:
    """What systemd says of the units."""
    if not shutil.which("systemd-analyze"):
        msg = "there is no systemd-analyze"
        raise NotRunError(msg)
    complaints = []
    for unit in UNITS:
        text = (build.ROOT / unit).read_text(encoding="utf-8")
        copy = folder / unit.replace("/", "-") / "airdma-serve.service"
        copy.parent.mkdir()
        # Where it is installed is not where it was built.
        copy.write_text(text.replace("/usr/bin/airdma", str(build.binary())), encoding="utf-8")
        user = ["--user"] if "/user/" in unit else []
        argv = ["systemd-analyze", *user, "verify", "--man=no", "--recursive-errors=no", str(copy)]
        # A manager of a user's looks for its sockets there.
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        if result.returncode or "airdma-serve" in result.stderr:
            complaints.append(f"{unit}: {result.stderr}")
    return complaints
