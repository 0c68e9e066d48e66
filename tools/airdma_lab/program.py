"""One running program, and what became of it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

_POLL_S = 0.002
_TCP_LISTEN = "0A"
_IDLE_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """How a program ended, what it printed and what it cost."""

    argv: tuple[str, ...]
    returncode: int
    """Exit status; minus the signal's number if a signal ended it."""
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    """User plus system time of the process and its children."""
    timed_out: bool

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out

    def explain(self) -> str:
        """Everything a reader of a failed test wants to see."""
        end = "still running, killed" if self.timed_out else f"exit status {self.returncode}"
        return f"$ {' '.join(self.argv)}\n{end} after {self.wall_s:.1f} s\n{self.stdout}{self.stderr}"


class Program:
    """A child process whose output goes to files, so that it can never block on us."""

    def __init__(
        self,
        argv: list[str],
        *,
        launcher: list[str],
        environment: dict[str, str],
        namespace: Path,
        own_session: bool = True,
    ) -> None:
        """Starts `launcher + argv`. Each part of the launcher must exec the next, so that our child
        is the program.

        The launcher enters the network namespace whose file is `namespace`.
        """
        self.argv = tuple(argv)
        self._namespace = namespace
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _contents)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _contents)
        self._started = time.monotonic()
        self._child = subprocess.Popen(
            [*launcher, *argv],
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env={**os.environ, **environment},
            # A session of its own, and so a scheduling group of its own (sched_autogroup): two
            # hosts do not share one weight, as a client that spins on one core and a server that
            # sleeps on the other otherwise would; the server would then wait hundreds of
            # milliseconds for any third program on its core.
            start_new_session=own_session,
        )
        self._exit = os.pidfd_open(self._child.pid)
        self._outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_listening(self, port: int, protocol: str, timeout_s: float) -> bool:
        """Waits for a listener in the program's namespace; false if it ends or the time is up
        first.

        `protocol` is "tcp" or "udp".
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._has_exited(0):
            # Before the launcher has entered the namespace, /proc/PID/net still shows the one we
            # came from.
            if _in_namespace(self.pid, self._namespace) and _is_bound(self.pid, port, protocol):
                return True
            time.sleep(_POLL_S)
        return False

    def wait_capturing(self, timeout_s: float) -> bool:
        """Waits for a packet socket in the program's namespace, which has none else; false if it
        ends or the time is up first. A program that starts on a busy machine may seem idle before.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._has_exited(0):
            if _in_namespace(self.pid, self._namespace) and _captures(self.pid):
                return True
            time.sleep(_POLL_S)
        return False

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until all threads of the program have slept for a tenth of a second, without using
        the CPU; false if it ends or the time is up first.
        """
        deadline = time.monotonic() + timeout_s
        idle_since, used = time.monotonic(), -1
        while time.monotonic() < deadline and not self._has_exited(0):
            is_there = _in_namespace(self.pid, self._namespace)
            now_used = _cpu_ticks_if_asleep(self.pid) if is_there else None
            if now_used is None or now_used != used:
                idle_since, used = time.monotonic(), -1 if now_used is None else now_used
            elif time.monotonic() - idle_since > _IDLE_S:
                return True
            time.sleep(_IDLE_S / 10)
        return False

    def wait(self, timeout_s: float) -> Outcome:
        """Waits for the end, kills at the deadline, returns the outcome. May be called again."""
        if self._outcome is None:
            timed_out = not self._has_exited(timeout_s)
            if timed_out:
                self._child.send_signal(signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self._child.returncode = os.waitstatus_to_exitcode(status)
            self._outcome = Outcome(
                argv=self.argv,
                returncode=self._child.returncode,
                stdout=_contents(self._stdout),
                stderr=_contents(self._stderr),
                wall_s=time.monotonic() - self._started,
                cpu_s=usage.ru_utime + usage.ru_stime,
                timed_out=timed_out,
            )
            os.close(self._exit)
        return self._outcome

    def stop(self, timeout_s: float = 5) -> Outcome:
        """Asks the program to end (SIGTERM, then SIGKILL). One that obeys counts as having ended
        well.
        """
        if not self._has_exited(0):
            self._child.send_signal(signal.SIGTERM)
            outcome = self.wait(timeout_s)
            if outcome.returncode == -signal.SIGTERM:
                self._outcome = replace(outcome, returncode=0)
        return self.wait(0)

    def kill(self) -> None:
        """Ends the program if it still runs."""
        self.wait(0)

    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self._outcome is not None or self._has_exited(0)

    def _has_exited(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._exit, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


def _in_namespace(pid: int, namespace: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == namespace.stat().st_ino
    except OSError:
        return False


def _cpu_ticks_if_asleep(pid: int) -> int | None:
    """CPU ticks that the program has used; None if one of its threads runs, or if it is gone."""
    try:
        stats = [task.joinpath("stat").read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return None
    # After the name, which may hold anything: the state, ten other things, user time, system time.
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return sum(int(of[11]) + int(of[12]) for of in fields) if all(of[0] == "S" for of in fields) else None


def _captures(pid: int) -> bool:
    try:
        rows = Path(f"/proc/{pid}/net/packet").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return False
    # The interface, 0 before bind(2).
    return any(row.split()[4] != "0" for row in rows)


def _is_bound(pid: int, port: int, protocol: str) -> bool:
    suffix = f":{port:04X}"
    for table in (protocol, f"{protocol}6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state = line.split()[:4]
            if local.endswith(suffix) and (protocol == "udp" or state == _TCP_LISTEN):
                return True
    return False


def _contents(file: IO[bytes]) -> str:
    with file as stream:
        stream.seek(0)
        return stream.read().decode(errors="replace")
