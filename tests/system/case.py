"""One system test: a pair of programs on a link, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airdma_lab.pair import Pair

Check = Callable[[Pair], list[str]]
"""Looks at what the programs printed; returns complaints, none if all is well."""


@dataclass(frozen=True)
class Link:
    """What lies between the hosts."""

    mtu: int = 1500
    family: int = 4
    """4 or 6: which address the RDMA traffic uses. The programs' own TCP connection always uses IPv4."""
    segment_offload: bool = True
    """False: packets cross the link one by one, segmented by the kernel, so IPv4 identifications count up."""

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
        """Does it run over a service that is not answered?"""
        programs = {"ibv_ud_pingpong", "ibv_uc_pingpong"}
        return not {"UD", "UC", "-u", *programs}.isdisjoint(self.argv)

    @property
    def name(self) -> str:
        direction = "b->a" if self.swapped else "a->b"
        troubles = [self.impair] if self.impair else []
        troubles += [f"nft-drop={self.nft_drop_percent}%"] if self.nft_drop_percent else []
        program = self.argv[0].rsplit("/", 1)[-1]
        return f"{' '.join([program, *self.argv[1:]])} [{' '.join([str(self.link), direction, *troubles])}]"


@dataclass
class Tally:
    """Results so far."""

    passed: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def record(self, name: str, complaints: list[str], seconds: float) -> None:
        if complaints:
            self.failures[name] = "\n".join(complaints)
        else:
            self.passed += 1
        print(f"{'FAIL' if complaints else 'ok  '} {name} ({seconds:.1f} s)", flush=True)

    def closing_line(self) -> str:
        return f"{self.passed} passed, {len(self.failures)} failed"
