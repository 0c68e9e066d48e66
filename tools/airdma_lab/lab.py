"""Two hosts joined by one cable.

`airdma lab hold` makes them (crate `lab`: network namespaces and a veth pair) and `airdma lab exec`
runs programs on them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Self

from . import build
from .program import Outcome, Program

INTERFACE = "eth0"
_NETNS = Path("/run/netns")


class LabError(RuntimeError):
    """The lab could not be set up; the text says what failed and why."""


@dataclass(frozen=True)
class Host:
    """One of the two machines of a lab."""

    namespace: str
    ipv4: str
    ipv6: str
    core: int
    runtime: Path
    """Where programs keep what must outlive them (XDG_RUNTIME_DIR): airdma its counters."""
    _programs: list[Program]

    def inside(self, *options: str) -> list[str]:
        """The command that runs another on this host; that ends with this process."""
        return [str(build.binary()), "lab", "exec", self.namespace, *options, "--"]

    def start(self, argv: list[str], environment: dict[str, str] | None = None, *, own_session: bool = True) -> Program:
        """Starts a program on this host, on its core, in a session of its own or in ours."""
        launcher = self.inside("--core", str(self.core))
        environment = {"XDG_RUNTIME_DIR": str(self.runtime), **(environment or {})}
        program = Program(
            argv,
            launcher=launcher,
            environment=environment,
            namespace=self.namespace_path,
            own_session=own_session,
        )
        self._programs.append(program)
        return program

    def run(self, argv: list[str], environment: dict[str, str] | None = None, timeout_s: float = 30) -> Outcome:
        """Runs a program on this host to its end."""
        program = self.start(argv, environment)
        outcome = program.wait(timeout_s)
        self.forget(program)
        return outcome

    def forget(self, program: Program) -> None:
        """Ends a program, if it still runs, and drops it from those that the lab ends at last."""
        program.kill()
        self._programs.remove(program)

    @contextlib.contextmanager
    def slowed(self, mbit: int) -> Iterator[None]:
        """The host's interface sends no faster than that."""
        tc = [*self.inside(), "tc", "qdisc"]
        shaped = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "limit", "1mb"]
        subprocess.run([*tc, "add", "dev", INTERFACE, *shaped], check=True)
        try:
            yield
        finally:
            subprocess.run([*tc, "del", "dev", INTERFACE, "root"], check=True)

    @property
    def namespace_path(self) -> Path:
        return _NETNS / self.namespace

    def address(self, family: int) -> str:
        """The host's address on the link; `family` is 4 or 6."""
        return self.ipv4 if family == 4 else self.ipv6

    @contextlib.contextmanager
    def dropping(self, percent: int, udp_port: int) -> Iterator[None]:
        """The host's interface loses `percent` of the arriving packets to `udp_port`, at random
        (nftables).
        """
        with self._dropped(f"udp dport {udp_port} numgen random mod 100 < {percent}"):
            yield

    @contextlib.contextmanager
    def cut(self, udp_port: int | None = None) -> Iterator[None]:
        """Nothing of IP arrives at the host's interface, or nothing at a UDP port."""
        with self._dropped("meta protocol { ip, ip6 }" if udp_port is None else f"udp dport {udp_port}"):
            yield

    @contextlib.contextmanager
    def dropping_first_dreq(self, udp_port: int) -> Iterator[None]:
        """The host's interface loses the first DREQ that arrives: 308 bytes, with 0x15 at byte 36
        behind the UDP header.
        """
        with self._dropped(f"udp dport {udp_port} @th,352,16 0x15 quota until 400 bytes"):
            yield

    @contextlib.contextmanager
    def _dropped(self, match: str) -> Iterator[None]:
        rules = (
            "table netdev airdma { chain loss { "
            f"type filter hook ingress device {INTERFACE} priority 0; {match} counter drop\n}}\n}}\n"
        )
        _run([*self.inside(), "nft", rules])
        try:
            yield
        finally:
            _run([*self.inside(), "nft", "delete table netdev airdma"])

    def dropped_packets(self) -> int:
        """What is dropped on purpose, so far."""
        listing = _run([*self.inside(), "nft", "list table netdev airdma"])
        found = re.search(r"counter packets (\d+)", listing)
        return int(found.group(1)) if found else 0


class Lab:
    """Context manager: hosts `a` and `b` exist inside the `with` block, and are removed at its end.

    Ctrl-C ends the block. The process that holds the hosts removes them when this one ends, even by
    SIGKILL; programs end with this process as well.
    """

    a: Host
    b: Host

    def __init__(self, mtu: int = 1500, segment_offload: bool = True) -> None:
        """`segment_offload=False`: the veth takes no segmented (GSO) packets, so each packet
        crosses it alone.
        """
        self.mtu = mtu
        self._segment_offload = segment_offload
        self._programs: list[Program] = []
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        _exit_on_signals()
        atexit.register(self.close)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what runs on the hosts and removes them. A second Ctrl-C does not interrupt this."""
        holder, self._holder = self._holder, None
        if holder is None:
            return
        atexit.unregister(self.close)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        for program in self._programs:
            program.kill()
        self._programs.clear()
        holder.communicate()
        for number, handler in before.items():
            signal.signal(number, handler)

    def hosts(self, swapped: bool = False) -> tuple[Host, Host]:
        """(client's host, server's host): (a, b), or (b, a) when swapped."""
        return (self.b, self.a) if swapped else (self.a, self.b)

    def _set_up(self) -> None:
        options = ["--mtu", str(self.mtu), *([] if self._segment_offload else ["--no-segmentation"])]
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for this process, which ends the holder last.
        self._holder = subprocess.Popen(
            [str(build.binary()), "lab", "hold", *options],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        ready = _first_line(self._holder.stdout)
        if not ready:
            raise LabError(self._holder.communicate()[1].strip())
        made = json.loads(ready)
        self.a, self.b = (
            Host(**host, runtime=Path(made["runtime"]), _programs=self._programs) for host in made["hosts"]
        )


def _first_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _exit_on_signals() -> None:
    """Turns a signal into SystemExit, which unwinds every `with` on its way out."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in _SIGNALS:
        signal.signal(number, leave)


def _run(argv: list[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {result.stderr.strip()}")
    return result.stdout
