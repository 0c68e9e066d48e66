"""Unmodified programs of one host, in one network namespace and in two, whose packets go through
memory (AIRDMA_LOCAL); what ends, and what must not share memory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import scenarios
from airdma_lab import build, devices, perftest
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome
from case import Tally

LOCAL = {"AIRDMA_LOCAL": "1"}
_READY_S = 10.0
_LIMIT_S = 30.0
_MANY = 1000
"""Packets through memory that show that a program sends there."""
_STOPPED_S = 0.3
"""Shorter than seven retries take."""
_END_S = 20.0
"""Longest time for a program to find out that its peer was killed: a retry count of seven."""


@dataclass(frozen=True)
class Run:
    """A program at both ends, which meet over TCP (perftest) or by rdma_cm."""

    argv: list[str]
    by_address: bool = False


BULK = Run(["ib_send_bw", "-e", "-s", "65536", "-n", "2000"])
DATAGRAMS = Run(["ibv_ud_pingpong", "-c", "-n", "10000", "-s", "1024"])
BY_ADDRESS = Run(["rping", "-C", "1000", "-S", "4096", "-V"], by_address=True)
"""RDMA READ and WRITE, and connection management."""
BRIEF = Run(["ibv_ud_pingpong", "-c", "-n", "3000", "-s", "1024"])
"""Several times as long as a ring takes to be there, where none may be."""


def run(lab: Lab, tally: Tally) -> None:
    """The ends of a pair; then programs between two network namespaces, and at one address."""
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        # First: the others find the names that a killed process leaves behind.
        ("an end stands still, goes on, and is killed", lambda: _ends(lab)),
    ]
    tests += [
        (f"two namespaces: {' '.join(one.argv)}", partial(_through_memory, lab.b, lab.a, one))
        for one in (BULK, DATAGRAMS, BY_ADDRESS)
    ]
    tests += [
        (f"one address: {' '.join(BY_ADDRESS.argv)}", lambda: _through_memory(lab.b, lab.b, BY_ADDRESS)),
        ("one end only wants it", lambda: _by_network(lab, LOCAL, {})),
        ("two users", lambda: _two_users(lab)),
    ]
    for name, test in tests:
        started = time.monotonic()
        tally.record(name, test(), time.monotonic() - started)


def _grown(hosts: list[Host], before: list[dict[str, int]], name: str) -> list[int]:
    return [devices.counters(host)[name] - then[name] for host, then in zip(hosts, before, strict=True)]


def _through_memory(server_host: Host, client_host: Host, one: Run) -> list[str]:
    """Both ends send nearly all that they send through memory."""
    hosts = [server_host, client_host]
    before = [devices.counters(host) for host in hosts]
    outcomes = _both(server_host, client_host, one, LOCAL, LOCAL)
    if not all(outcome.ok for outcome in outcomes):
        return [outcome.explain() for outcome in outcomes]
    local = _grown(hosts, before, "tx_local")
    lost = _grown(hosts, before, "tx_local_full")
    network = [all_of - of_memory for all_of, of_memory in zip(_grown(hosts, before, "tx_packets"), local, strict=True)]
    good = all(memory > 3 * other for memory, other in zip(local, network, strict=True))
    complaints = [] if good else [f"packets through memory {local}, through the network {network}"]
    return complaints + ([f"packets lost in full rings: {lost}"] if any(lost) else [])


def _by_network(lab: Lab, ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    before = [devices.counters(host) for host in (lab.a, lab.b)]
    outcomes = _both(lab.b, lab.a, BRIEF, ours, theirs)
    local = _grown([lab.a, lab.b], before, "tx_local")
    complaints = [outcome.explain() for outcome in outcomes if not outcome.ok]
    return complaints + ([f"packets through memory: {local}"] if any(local) else [])


def _two_users(lab: Lab) -> list[str]:
    """Processes of two users share no memory."""
    if os.geteuid() != 0 or scenarios.in_user_namespace():
        return []  # there is one user only
    before = devices.counters(lab.a)
    server = lab.b.start(_server(lab.b, BRIEF), LOCAL)
    if not server.wait_listening(perftest.PORT, "tcp", _READY_S):
        return [server.stop().explain()]
    drop = ["setpriv", "--reuid", scenarios.NOBODY, "--regid", scenarios.NOBODY, "--clear-groups", "--"]
    asked = lab.a.run([*drop, *_client(lab.a, lab.b, BRIEF)], {**LOCAL, "XDG_RUNTIME_DIR": "/nonexistent"}, _LIMIT_S)
    served = server.wait(10)
    lab.b.forget(server)
    local = devices.counters(lab.b)["tx_local"] and devices.counters(lab.a)["tx_local"] - before["tx_local"]
    complaints = [outcome.explain() for outcome in (asked, served) if not outcome.ok]
    return complaints + ([f"{local} packets through memory"] if local else [])


def _ends(lab: Lab) -> list[str]:
    """A stopped process takes nothing out of its ring, and both ends go on when it does. The peer
    of a process that is killed gets an error in its time.
    """
    one = Run(["ib_write_bw", "-s", "65536", "-D", "10"])
    server = lab.b.start(_server(lab.b, one), LOCAL)
    if not server.wait_listening(perftest.PORT, "tcp", _READY_S):
        return [server.stop().explain()]
    before = devices.counters(lab.a)
    client = lab.a.start(_client(lab.a, lab.b, one), LOCAL)
    complaints = _wait_for_memory(lab.a, before)
    lost = _grown([lab.a], [before], "tx_local_full")
    complaints += [f"packets lost in full rings: {lost}"] if any(lost) else []
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(_STOPPED_S)
    stopped = devices.counters(lab.a)
    os.kill(server.pid, signal.SIGCONT)
    complaints += _wait_for_memory(lab.a, stopped)
    server.kill()
    outcome = client.wait(_END_S)
    lab.a.forget(client)
    lab.b.forget(server)
    return complaints + ([outcome.explain()] if outcome.ok or outcome.timed_out else [])


def _wait_for_memory(host: Host, before: dict[str, int]) -> list[str]:
    """Waits until the host sends through memory."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if _grown([host], [before], "tx_local")[0] > _MANY:
            return []
        time.sleep(0.05)
    return ["nothing went through memory"]


def _both(
    server_host: Host, client_host: Host, one: Run, ours: dict[str, str], theirs: dict[str, str]
) -> tuple[Outcome, Outcome]:
    """What became of the server, and of the client, which has `theirs`."""
    server = server_host.start(_server(server_host, one), ours)
    port = 18515 if one.argv[0] != "rping" else 4791
    protocol = "udp" if one.by_address else "tcp"
    is_ready = server.wait_listening(port, protocol, _READY_S) and (not one.by_address or server.wait_idle(_READY_S))
    asked = client_host.run(_client(client_host, server_host, one), theirs, _LIMIT_S) if is_ready else server.stop()
    served = server.wait(10 if asked.ok else 1)
    server_host.forget(server)
    return served, asked


def _server(host: Host, one: Run) -> list[str]:
    if one.argv[0] == "rping":
        return build.with_airdma([*one.argv, "-s", "-a", host.ipv4])
    gid = str(devices.gid_index(host, 4))
    if one.argv[0] == "ibv_ud_pingpong":
        return build.with_airdma([*one.argv, "-d", devices.DEVICE, "-g", gid])
    return build.with_airdma([*one.argv, "-F", "-d", devices.DEVICE, "-x", gid])


def _client(host: Host, server_host: Host, one: Run) -> list[str]:
    if one.argv[0] == "rping":
        return build.with_airdma([*one.argv, "-c", "-a", server_host.ipv4])
    return [*_server(host, one), server_host.ipv4]
