"""What keeps programs from running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from airdma_lab.lab import Lab
from airdma_lab.program import Program

_CPU_V1 = Path("/sys/fs/cgroup/cpu")
_CPU_V2 = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_BUSY = "while :; do :; done"
STARVED_S = 10
"""Longer than any of the programs waits for a peer that is silent."""
LONG_STOP_S = 10
"""Longer than any of them waits for a peer of which nothing is known."""


class Hardship:
    """None at all."""

    name = "none"
    strikes = False
    """It comes in the middle of a run, which has to be long enough."""
    of_a_kind = 1
    """Hardships that differ by a detail, and so share the runs of their kind."""

    def impossible(self) -> str:
        """Why this machine cannot have it; "" if it can."""
        return ""

    @contextlib.contextmanager
    def imposed(self, _: Lab) -> Iterator[None]:
        """It lasts as long as the context."""
        yield

    def wrap(self, argv: list[str], _side: str) -> list[str]:
        """The command of the program on host `_side` ("a", the client's, or "b") under it."""
        return argv

    def admit(self, program: Program, _side: str) -> None:
        """The program of host `_side` has started."""

    def strike(self, server: Program, client: Program, after_s: float) -> None:
        """Both run."""


class _Loops(Hardship):
    """Busy loops in the session of the programs, which have less weight, on one core or on all."""

    def __init__(self, loops: int, nice: int, core: int | None) -> None:
        where = "" if core is None else ", all on one core"
        self.name = f"nice {nice} beside {loops} loops{where}" if nice else f"beside {loops} loops{where}"
        self._loops, self._nice, self._core = loops, nice, core
        self._started: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def imposed(self, _: Lab) -> Iterator[None]:
        pinned = [] if self._core is None else ["taskset", "--cpu-list", str(self._core)]
        self._started = [_start([*pinned, "sh", "-c", _BUSY]) for _ in range(self._loops)]
        try:
            yield
        finally:
            _end(self._started)

    def wrap(self, argv: list[str], _side: str) -> list[str]:
        pinned = [] if self._core is None else ["taskset", "--cpu-list", str(self._core)]
        return [*pinned, "nice", "-n", str(self._nice), *argv]


class _LoopsForAWhile(_Loops):
    """The loops run in the middle of a run only: with a share of 1 / 1,093 the start of a program
    alone takes minutes.
    """

    strikes = True

    def __init__(self, loops: int, nice: int, seconds: float) -> None:
        super().__init__(loops, nice, None)
        self.name += f" for {seconds} s"
        self._seconds = seconds

    @contextlib.contextmanager
    def imposed(self, lab: Lab) -> Iterator[None]:
        with super().imposed(lab):
            self._signal(signal.SIGSTOP)
            yield

    def strike(self, _server: Program, _client: Program, after_s: float) -> None:
        time.sleep(after_s)
        self._signal(signal.SIGCONT)
        time.sleep(self._seconds)
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for loop in self._started:
            os.killpg(loop.pid, number)


class _Quota(Hardship):
    """A control group for each host, with a quota of each 100 ms."""

    def __init__(self, percent: int) -> None:
        self.name = f"a quota of {percent} % of a core"
        self._percent = percent
        self._groups: dict[str, Path] = {}

    def impossible(self) -> str:
        try:
            for group in self._make().values():
                group.rmdir()
        except OSError as error:
            return f"no control group for it ({error})"
        return ""

    def _make(self) -> dict[str, Path]:
        groups = {}
        for side in "ab":
            is_v1 = _CPU_V1.is_dir()
            group = (_CPU_V1 if is_v1 else _CPU_V2) / f"airdma-starve-{os.getpid()}-{side}"
            group.mkdir()
            groups[side] = group
            quota_us = _PERIOD_US * self._percent // 100
            if is_v1:
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US), encoding="ascii")
                (group / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
            else:
                (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}", encoding="ascii")
        return groups

    @contextlib.contextmanager
    def imposed(self, _: Lab) -> Iterator[None]:
        self._groups = self._make()
        try:
            yield
        finally:
            for group in self._groups.values():
                _remove(group)

    def admit(self, program: Program, side: str) -> None:
        # From here: a host of the lab has a /sys of its own, without control groups.
        (self._groups[side] / "cgroup.procs").write_text(str(program.pid), encoding="ascii")


class _Build(Hardship):
    """Compilers and writers of files, as beside a build."""

    name = "beside a build of 8 jobs and writes to the disk"

    @contextlib.contextmanager
    def imposed(self, _: Lab) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="airdma-starve-") as folder:
            source = Path(folder, "all.c")
            functions = "".join(
                f"double f{n}(double x) {{ for (int i = 0; i < {n}; i++) x = x * x + i; return x; }}\n"
                for n in range(600)
            )
            source.write_text(functions, encoding="ascii")
            compile_ = f"while :; do cc -O2 -c {source} -o {folder}/$$.o; done"
            write = (
                f"while :; do dd if=/dev/zero of={folder}/$$.bin bs=1M count=200 conv=fsync 2> {folder}/$$.log; done"
            )
            jobs = [_start(["sh", "-c", command]) for command in [compile_] * 8 + [write] * 2]
            try:
                yield
            finally:
                _end(jobs)


class _Stopped(Hardship):
    """One end is stopped for a while, as by a debugger, `docker pause` or a frozen cgroup."""

    strikes = True

    def __init__(self, end: str, seconds: float, of_a_kind: int) -> None:
        self.name = f"{end} stopped for {seconds} s"
        self.of_a_kind = of_a_kind
        self._end, self._seconds = end, seconds

    def strike(self, server: Program, client: Program, after_s: float) -> None:
        time.sleep(after_s)
        pid = (server if self._end == "server" else client).pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._seconds)
            os.kill(pid, signal.SIGCONT)


def all_of(short: bool) -> list[Hardship]:
    """In the order of the report; of each kind one if `short`."""
    core = min(os.sched_getaffinity(0))
    if short:
        return [_Loops(8, 10, None), _Stopped("server", LONG_STOP_S, of_a_kind=1)]
    stops = [_Stopped(end, seconds, of_a_kind=8) for end in ("server", "client") for seconds in (0.3, 0.6, 1, 2)]
    long_stops = [_Stopped(end, LONG_STOP_S, of_a_kind=20) for end in ("server", "client")]
    return [_LoopsForAWhile(16, 19, STARVED_S), _Loops(8, 0, core), _Quota(5), _Build(), *stops, *long_stops]


def _start(argv: list[str]) -> subprocess.Popen[bytes]:
    # A group of its own, so that what it starts ends with it; not a session of its own, which would
    # be another scheduling group.
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv], process_group=0)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _remove(group: Path) -> None:
    """The last of its programs may be on its way out."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
