"""Two hosts joined by one cable: network namespaces and a veth pair."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from .program import Outcome, Program

INTERFACE = "eth0"
_NAME = re.compile(r"airdma-(\d+)-\w+")
_NETNS = Path("/run/netns")


class LabError(RuntimeError):
    """The lab could not be set up; the text says which command failed and why."""


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

    def start(self, argv: list[str], environment: dict[str, str] | None = None, *, own_session: bool = True) -> Program:
        """Starts a program on this host, on its core, in a session of its own or in ours."""
        # setpriv ties the program's life to ours: even SIGKILL of this script leaves nothing
        # running.
        launcher = ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL"]
        launcher += ["taskset", "--cpu-list", str(self.core)]
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
        tc = ["ip", "netns", "exec", self.namespace, "tc", "qdisc"]
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
        _run(["ip", "netns", "exec", self.namespace, "nft", rules])
        try:
            yield
        finally:
            _run(["ip", "netns", "exec", self.namespace, "nft", "delete table netdev airdma"])

    def dropped_packets(self) -> int:
        """What is dropped on purpose, so far."""
        listing = _run(["ip", "netns", "exec", self.namespace, "nft", "list table netdev airdma"])
        found = re.search(r"counter packets (\d+)", listing)
        return int(found.group(1)) if found else 0


class Lab:
    """Context manager: hosts `a` and `b` exist inside the `with` block and leave nothing behind,
    Ctrl-C included.
    """

    def __init__(self, mtu: int = 1500, segment_offload: bool = True) -> None:
        """`segment_offload=False`: the veth takes no segmented (GSO) packets, so each packet
        crosses it alone.
        """
        self.mtu = mtu
        self._segment_offload = segment_offload
        cores = sorted(os.sched_getaffinity(0))
        self._programs: list[Program] = []
        self._runtime = tempfile.TemporaryDirectory(prefix=f"airdma-{os.getpid()}-")
        self.a = self._host("a", 1, cores[0])
        self.b = self._host("b", 2, cores[1 % len(cores)])
        self._closed = False

    def __enter__(self) -> Self:
        _exit_on_signals()
        _remove_abandoned()
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
        """Ends what runs in the hosts and removes them. A second Ctrl-C does not stop this
        half-way.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        for program in self._programs:
            program.kill()
        self._programs.clear()
        for host in (self.a, self.b):
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True, check=False)
        self._runtime.cleanup()
        for number, handler in before.items():
            signal.signal(number, handler)

    def hosts(self, swapped: bool = False) -> tuple[Host, Host]:
        """(client's host, server's host): (a, b), or (b, a) when swapped."""
        return (self.b, self.a) if swapped else (self.a, self.b)

    def _host(self, side: str, number: int, core: int) -> Host:
        return Host(
            namespace=f"airdma-{os.getpid()}-{side}",
            ipv4=f"10.77.0.{number}",
            ipv6=f"fd77::{number}",
            core=core,
            runtime=Path(self._runtime.name),
            _programs=self._programs,
        )

    def _set_up(self) -> None:
        for host in (self.a, self.b):
            _run(["ip", "netns", "add", host.namespace])
            # Without this the link-local addresses would be unusable for the first second or two.
            no_dad = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad"
            _run(["ip", "netns", "exec", host.namespace, "sh", "-c", no_dad])
        ends = ["netns", self.a.namespace, "type", "veth", "peer", "name", INTERFACE, "netns", self.b.namespace]
        _run(["ip", "link", "add", INTERFACE, *ends])
        for host in (self.a, self.b):
            ip = ["ip", "-n", host.namespace]
            _run([*ip, "address", "add", f"{host.ipv4}/24", "dev", INTERFACE])
            _run([*ip, "address", "add", f"{host.ipv6}/64", "dev", INTERFACE, "nodad"])
            _run([*ip, "link", "set", INTERFACE, "mtu", str(self.mtu)])
            if not self._segment_offload:
                _run([*ip, "link", "set", INTERFACE, "gso_max_segs", "1"])
            _run([*ip, "link", "set", "lo", "up"])
            _run([*ip, "link", "set", INTERFACE, "up"])
        for host in (self.a, self.b):
            _wait_up(host)


def _wait_up(host: Host) -> None:
    # The kernel tells interfaces at most once a second that their carrier changed. Until then the
    # port is down.
    deadline = time.monotonic() + _UP_S
    while "state UP" not in _run(["ip", "-n", host.namespace, "link", "show", INTERFACE]):
        if time.monotonic() > deadline:
            raise LabError(f"{INTERFACE} in {host.namespace} does not come up")
        time.sleep(_POLL_S)


_UP_S = 10.0
_POLL_S = 0.02
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _exit_on_signals() -> None:
    """Turns a signal into SystemExit, which unwinds every `with` on its way out."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in _SIGNALS:
        signal.signal(number, leave)


def _remove_abandoned() -> None:
    """Removes what labs left whose script is gone, which only SIGKILL can do."""
    for entry in _NETNS.glob("airdma-*"):
        if _is_abandoned(entry):
            subprocess.run(["ip", "netns", "delete", entry.name], capture_output=True, check=False)
    for entry in Path(tempfile.gettempdir()).glob("airdma-*"):
        if _is_abandoned(entry) and entry.stat().st_uid == os.geteuid():
            shutil.rmtree(entry, ignore_errors=True)


def _is_abandoned(entry: Path) -> bool:
    match = _NAME.fullmatch(entry.name)
    return match is not None and not Path("/proc", match.group(1)).exists()


def _run(argv: list[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {result.stderr.strip()}")
    return result.stdout
