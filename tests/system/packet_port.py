"""Programs whose packets leave and arrive as whole Ethernet frames (`AIRDMA_PORT=packet`): both
ends, or one of them with the usual sockets at the other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from airdma_lab import build, devices, perftest
from airdma_lab.lab import Host, Lab
from case import Tally
from runner import MUST_NOT_RISE

PACKET, UDP = "packet", "udp"

EXACT = ("rx_id_recovered", "tx_segmented_sends", "drop_bad_frame", "drop_fragment")
"""Counters that stand still at an end with the packet port."""


@dataclass(frozen=True)
class Run:
    """A program, the ports of its server and its client, and the IP between them."""

    argv: tuple[str, ...]
    server: str
    client: str
    family: int = 4

    @property
    def by_address(self) -> bool:
        """Whether the ends find each other by rdma_cm, and not over TCP."""
        return self.argv[0] == "rping"

    @property
    def name(self) -> str:
        return f"{' '.join(self.argv)} [{self.client} -> {self.server}, IPv{self.family}]"


PINGPONG = ("ibv_rc_pingpong", "-c", "-n", "200")
DATAGRAMS = ("ibv_ud_pingpong", "-c", "-n", "200", "-s", "1024")
WRITE = ("ib_write_bw", "-F", "-n", "200", "-s", "65536")
READ = ("ib_read_bw", "-F", "-n", "200", "-s", "65536")
RPING = ("rping", "-C", "20", "-V", "-S", "4000")

RUNS = [
    Run(PINGPONG, PACKET, PACKET),
    Run(DATAGRAMS, PACKET, PACKET, 6),
    Run(WRITE, PACKET, PACKET, 6),
    Run(RPING, PACKET, PACKET),
    # The kernel of the sockets leaves the segmentation to the device, and a veth leaves it undone.
    Run(WRITE, PACKET, UDP),
    Run(READ, UDP, PACKET),
    Run(RPING, UDP, PACKET, 6),
]


def run(lab: Lab, tally: Tally) -> None:
    """Each of them between host a, the client, and host b."""
    for one in RUNS:
        started = time.monotonic()
        tally.record(one.name, _complaints(lab, one), time.monotonic() - started)
    started = time.monotonic()
    name = "without CAP_NET_RAW the program is told so"
    tally.record(name, _without_capability(lab.a), time.monotonic() - started)


def _complaints(lab: Lab, one: Run) -> list[str]:
    hosts = (lab.a, lab.b)
    before = [devices.counters(host) for host in hosts]
    role = ["-s"] if one.by_address else []
    server = lab.b.start([*_argv(lab.b, one), *role], {"AIRDMA_PORT": one.server})
    # A program that listens by rdma_cm has no socket of its own.
    ready = server.wait_idle(10) if one.by_address else server.wait_listening(perftest.PORT, "tcp", 10)
    client = lab.a.run([*_argv(lab.a, one), *_to(lab.b, one)], {"AIRDMA_PORT": one.client}) if ready else None
    served = server.wait(10 if client and client.ok else 0)
    lab.b.forget(server)
    grown = [
        {name: value - old[name] for name, value in devices.counters(host).items()}
        for host, old in zip(hosts, before, strict=True)
    ]
    complaints = [] if client and client.ok and served.ok else ["a program failed"]
    for host, port, rose in zip(hosts, (one.client, one.server), grown, strict=True):
        standing = MUST_NOT_RISE if port == UDP else (*MUST_NOT_RISE, *EXACT)
        complaints += [f"{name} rose at {host.namespace}" for name in standing if rose[name]]
        needed = ("rx_packets", "tx_packets")
        complaints += [f"{name} did not rise at {host.namespace}" for name in needed if not rose[name]]
    if complaints:
        complaints += [each.explain() for each in (served, client) if each]
        moved = [{name: rise for name, rise in rose.items() if rise} for rose in grown]
        complaints.append(f"counters of the client's host: {moved[0]}, of the server's: {moved[1]}")
    return complaints


def _argv(host: Host, one: Run) -> list[str]:
    if one.by_address:
        return build.with_airdma(list(one.argv))
    option = "-g" if one.argv[0].startswith("ibv_") else "-x"
    return build.with_airdma([*one.argv, option, str(devices.gid_index(host, one.family))])


def _to(server: Host, one: Run) -> list[str]:
    return ["-c", "-a", server.address(one.family)] if one.by_address else [server.ipv4]


def _without_capability(host: Host) -> list[str]:
    drop = ["setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw"]
    argv = build.with_airdma(["ibv_rc_pingpong", "-g", str(devices.gid_index(host, 4))])
    said = host.run([*drop, *argv], {"AIRDMA_PORT": PACKET}, 10)
    text = said.stdout + said.stderr
    return [] if not said.ok and "CAP_NET_RAW" in text else [said.explain()]
