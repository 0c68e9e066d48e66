"""One system test: a pair of programs on a link, and what must be true afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from airdma_lab.pair import Pair

SLOWEST_MAX = 10
"""Tests that the end of a run lists by how long they took."""

Check = Callable[[Pair], list[str]]
"""Looks at what the programs printed; returns complaints, none if all is well."""


@dataclass(frozen=True)
class Link:
    """What lies between the hosts."""

    mtu: int = 1500
    family: int = 4
    """4 or 6: which address the RDMA traffic uses. The programs' own TCP connection always uses
    IPv4.
    """
    segment_offload: bool = True
    """False: packets cross the link one by one, segmented by the kernel, so IPv4 identifications
    count up.
    """

    def __str__(self) -> str:
        plain = "" if self.segment_offload else " no-gso"
        return f"mtu{self.mtu} ipv{self.family}{plain}"


@dataclass(frozen=True)
class Case:
    """Runs `argv` as server on one host and `argv HOST` as client on the other."""

    argv: list[str]
    check: Check
    gid_option: str
    """The program's option for the GID index."""
    link: Link = Link()
    swapped: bool = False
    """False: client in host a, server in host b."""
    impair: str = ""
    """AIRDMA_IMPAIR for both ends: what their ports do to packets."""
    port_mtu: int | None = None
    """AIRDMA_MTU for both ends: the path MTU of their ports, whatever fits the interface."""
    nft_drop_percent: int = 0
    """Packets that the kernel drops at both ends, before any socket sees them."""
    rises: tuple[str, ...] = ()
    """Counters of which at least one must have grown, at either host."""
    timeout_s: float = 60

    @property
    def datagrams(self) -> bool:
        """Whether it runs over a service whose packets are not acknowledged."""
        programs = {"ibv_ud_pingpong", "ibv_uc_pingpong"}
        return not {"UD", "UC", "-u", *programs}.isdisjoint(self.argv)

    @property
    def name(self) -> str:
        direction = "b->a" if self.swapped else "a->b"
        troubles = [self.impair] if self.impair else []
        troubles += [f"nft-drop={self.nft_drop_percent}%"] if self.nft_drop_percent else []
        program = self.argv[0].rsplit("/", 1)[-1]
        return f"{' '.join([program, *self.argv[1:]])} [{' '.join([str(self.link), direction, *troubles])}]"


class NotRunError(Exception):
    """Why this machine cannot run a test."""


@dataclass
class Tally:
    """Results so far."""

    passed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """What this machine cannot run, and why."""
    parts: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Tests of each part, and how long it took."""
    seconds: list[tuple[float, str]] = field(default_factory=list)
    """How long each test took."""

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is recorded in it is a part of its own in the summary."""
        before, started = self._recorded(), time.monotonic()
        yield
        tests, seconds = self.parts.get(name, (0, 0.0))
        self.parts[name] = (tests + self._recorded() - before, seconds + time.monotonic() - started)

    def _recorded(self) -> int:
        return self.passed + len(self.failures)

    def summary(self) -> str:
        """A line for each part, the longest first."""
        rows = sorted(self.parts.items(), key=lambda row: -row[1][1])
        return "\n".join(f"{name:<20} {tests:>4} tests {seconds:>5.0f} s" for name, (tests, seconds) in rows)

    def slowest(self) -> str:
        """A line for each of the `SLOWEST_MAX` tests that took longest."""
        rows = sorted(self.seconds, reverse=True)[:SLOWEST_MAX]
        return "\n".join(f"{seconds:>7.1f} s  {name}" for seconds, name in rows)

    def record(self, name: str, complaints: list[str], seconds: float) -> None:
        self.seconds.append((seconds, name))
        if complaints:
            self.failures[name] = "\n".join(complaints)
        else:
            self.passed += 1
        print(f"{'FAIL' if complaints else 'ok  '} {name} ({seconds:.1f} s)", flush=True)

    def attempt(self, name: str, test: Callable[[], list[str]]) -> None:
        """Runs a test and records it; one that raises `NotRunError` is skipped."""
        started = time.monotonic()
        try:
            complaints = test()
        except NotRunError as reason:
            self.skip(name, str(reason))
        else:
            self.record(name, complaints, time.monotonic() - started)

    def skip(self, name: str, reason: str) -> None:
        self.skipped[name] = reason
        print(f"skip {name}: {reason}", flush=True)

    def closing_line(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"{self.passed} passed, {len(self.failures)} failed{skipped}"
