"""Several programs at once on one host and address, and programs that talk to others of their own
host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import scenarios
from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from airdma_lab.pair import run_pair
from airdma_lab.program import Outcome, Program
from case import Tally

FIRST_PORT = 18600
ROCE_PORT = 4791
_START_S = 15.0
_POLL_S = 0.01
_SETTLING_S = 0.5
_MEASURED_S = 0.5
_TIMEOUT_S = 60.0


def run(lab: Lab, tally: Tally) -> None:
    """Two servers on one host with two clients on the other, both ends on one host, one that is
    killed, and one that ends.
    """
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        ("two servers on one host, two clients on the other", lambda: _together(lab.a, lab.b, 2)),
        ("four servers on one host, four clients on the other", lambda: _together(lab.a, lab.b, 4)),
        ("servers and clients on one host and address", lambda: _together(lab.b, lab.b, 2)),
        ("one of three servers is killed", lambda: _killed(lab)),
        ("a client ends, and its DREQ is lost", lambda: _dreq_lost(lab)),
        ("another user's program says whose the address is", lambda: _other_user(lab.a)),
    ]
    for name, test in tests:
        started = time.monotonic()
        tally.record(name, test(), time.monotonic() - started)


def _programs(host: Host, port: int, number: int) -> list[str]:
    """A program that checks or measures, of another kind each time."""
    gid = str(devices.gid_index(host, 4))
    if number % 2:
        return build.with_airdma(["ibv_rc_pingpong", "-c", "-g", gid, "-n", "500", "-s", "16384", "-p", str(port)])
    return build.with_airdma(["ib_write_bw", "-F", "-x", gid, "-n", "3000", "-s", "65536", "-p", str(port)])


def _started(lab_host: Host, argvs: list[list[str]]) -> list[Program]:
    """Servers, all of which listen."""
    servers = [lab_host.start(argv) for argv in argvs]
    for number, server in enumerate(servers):
        server.wait_listening(FIRST_PORT + number, "tcp", _START_S)
    return servers


def _ended(host: Host, program: Program, timeout_s: float = _TIMEOUT_S) -> Outcome:
    outcome = program.wait(timeout_s)
    host.forget(program)
    return outcome


def _together(server_host: Host, client_host: Host, count: int) -> list[str]:
    numbers = range(count)
    servers = _started(server_host, [_programs(server_host, FIRST_PORT + n, n) for n in numbers])
    clients = [client_host.start([*_programs(client_host, FIRST_PORT + n, n), server_host.ipv4]) for n in numbers]
    outcomes = [_ended(client_host, client) for client in clients]
    outcomes += [_ended(server_host, server) for server in servers]
    return [outcome.explain() for outcome in outcomes if not outcome.ok]


def _astray(host: Host, servers: list[Program]) -> list[str]:
    """Packets that reach the wrong process, once all of them are there. While one joins a process
    that was alone, or leaves, packets are forwarded.
    """
    deadline = time.monotonic() + _START_S
    while _sockets(servers[0]) < len(servers) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    time.sleep(_SETTLING_S)
    before = devices.counters(host)
    time.sleep(_MEASURED_S)
    after = devices.counters(host)
    packets, astray = (after[name] - before[name] for name in ("rx_packets", "rx_misrouted"))
    return [f"{astray} of {packets} packets reached the wrong process"] if astray or not packets else []


def _sockets(program: Program) -> int:
    """IPv4 sockets of RoCEv2 on the program's host: each process has one."""
    rows = Path(f"/proc/{program.pid}/net/udp").read_text(encoding="ascii").splitlines()[1:]
    return sum(row.split()[1].endswith(f":{ROCE_PORT:04X}") for row in rows)


def _killed(lab: Lab) -> list[str]:
    """The others go on, and their places do not matter: the first, then one in the middle."""
    complaints = []
    for victim in (0, 1):
        gid = str(devices.gid_index(lab.a, 4)), str(devices.gid_index(lab.b, 4))
        argv = ["ib_send_bw", "-F", "-D", "3", "-s", "65536"]
        argvs = [[build.with_airdma([*argv, "-x", side, "-p", str(FIRST_PORT + n)]) for n in range(3)] for side in gid]
        servers = _started(lab.a, argvs[0])
        clients = [lab.b.start([*argv, lab.a.ipv4]) for argv in argvs[1]]
        complaints += _astray(lab.a, servers)
        servers[victim].kill()
        for number in range(3):
            if number == victim:
                # It says so in its own time: a retry count of seven.
                clients[number].stop()
                lab.b.forget(clients[number])
                lab.a.forget(servers[number])
                continue
            outcomes = [_ended(lab.b, clients[number]), _ended(lab.a, servers[number])]
            complaints += [outcome.explain() for outcome in outcomes if not outcome.ok]
    return complaints


def _dreq_lost(lab: Lab) -> list[str]:
    """rping's client says that it ends, and exits at once; its server waits for that, and for
    nothing else.
    """
    argv = build.with_airdma(["rping", "-V", "-C", "10", "-a", lab.a.ipv4])
    with lab.a.dropping_first_dreq(ROCE_PORT):
        pair = run_pair(lab.a, lab.b, [*argv, "-s"], [*argv, "-c"], port=ROCE_PORT, protocol="udp")
        lost = lab.a.dropped_packets()
    complaints = [] if lost == 1 else [f"{lost} DREQs were lost"]
    return complaints if pair.ok and not complaints else [*complaints, pair.explain()]


def _other_user(host: Host) -> list[str]:
    """Processes of one user share an address; the program of another user is told what to do."""
    if os.geteuid() != 0 or scenarios.in_user_namespace():
        return []  # there is one user only
    server = _started(host, [_programs(host, FIRST_PORT, 1)])[0]
    drop = ["setpriv", "--reuid", scenarios.NOBODY, "--regid", scenarios.NOBODY, "--clear-groups", "--"]
    outcome = host.run([*drop, *_programs(host, FIRST_PORT + 1, 1)], {"XDG_RUNTIME_DIR": "/nonexistent"})
    server.stop()
    host.forget(server)
    good = not outcome.ok and "is in use by another program" in outcome.stderr
    return [] if good else [outcome.explain()]
