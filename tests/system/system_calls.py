"""System calls by message, as `strace -c` counts them: packets leave and come in bursts, and
nothing else is asked of the kernel.

What a program does to start and to end is left out: each runs twice, with few messages and with
more, and the difference counts. Polls that find nothing are system calls too, but follow time, not
messages; so do the looks at what the kernel has dropped, a hundred a second, and the helper's naps.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import build, devices, perftest
from airdma_lab.lab import Lab
from airdma_lab.pair import run_pair
from case import Tally

FEW, MORE = 1600, 4800
"""Messages of the two runs."""
PATIENT = ["-F", "-u", "18"]
"""A second for each try: half of one for all of them is too short for a program under strace on a
busy machine.
"""
FEW_CONNECTIONS, MORE_CONNECTIONS = 50, 250
CONNECTION_MAX = {"socket": 3, "getpid": 10}
"""Calls of a client for one connection of many to the same host: what the kernel says of the path
counts for a while, and the way by which a process is told from its child takes no call.
"""
BY_TIME = {"ppoll", "poll", "getsockopt", "clock_nanosleep", "sched_yield"}
"""Calls that follow time."""
STRAY_MAX = 16
"""Other calls, all together, that the longer run may make beyond the shorter: a signal, a restart,
perftest's own.
"""


@dataclass(frozen=True)
class Traffic:
    """A program, and what the design allows its ends for one message."""

    argv: list[str]
    sends: float
    """Calls of `sendmmsg`: requests and data at one end, acknowledgements at the other."""
    receives: float
    """Calls of `recvmmsg` that found something."""
    why: str


TRAFFIC = [
    Traffic(["ib_write_bw", "-s", "65536"], 4, 4, "64 packets of 1 KiB are at most four bursts"),
    Traffic(["ib_read_bw", "-s", "65536"], 4, 4, "64 packets of 1 KiB are at most four bursts"),
    Traffic(["ib_write_bw", "-s", "64", "-l", "16"], 2 / 16, 2 / 16, "a list of 16 is at most two bursts"),
    Traffic(["ib_send_lat", "-s", "64"], 2.25, 2.25, "a message there and one back, and their acknowledgements"),
]
"""Round trips may lose a quarter of a call to what strace itself delays."""


LISTENER = """
import ctypes, socket, struct, sys
rdmacm = ctypes.CDLL(None)
rdmacm.rdma_create_event_channel.restype = ctypes.c_void_p
channel = ctypes.c_void_p(rdmacm.rdma_create_event_channel())
for port in range(7000, 7000 + int(sys.argv[1])):
    identifier = ctypes.c_void_p()
    assert rdmacm.rdma_create_id(channel, ctypes.byref(identifier), None, 0x106) == 0
    everywhere = struct.pack("=HH12x", socket.AF_INET, socket.htons(port))
    assert rdmacm.rdma_bind_addr(identifier, everywhere) == 0
    assert rdmacm.rdma_listen(identifier, 1) == 0
    assert rdmacm.rdma_destroy_id(identifier) == 0
"""
"""A program that listens at all addresses as often as it is told, one after the other."""


def run(lab: Lab, tally: Tally) -> None:
    started = time.monotonic()
    tally.record("listening again looks at no interface", _listening(lab), time.monotonic() - started)
    started = time.monotonic()
    complaints, figures = _connecting(lab)
    tally.record(f"system calls of a connection: {figures}", complaints, time.monotonic() - started)
    for traffic in TRAFFIC:
        started = time.monotonic()
        complaints, figures = _measure(lab, traffic)
        tally.record(f"system calls of {' '.join(traffic.argv)}: {figures}", complaints, time.monotonic() - started)


def _measure(lab: Lab, traffic: Traffic) -> tuple[list[str], str]:
    """Complaints, and the figures in words."""
    runs = []
    for messages in (FEW, MORE):
        counted = _run(lab, [*traffic.argv, *PATIENT, "-n", str(messages)])
        if isinstance(counted, str):
            return [counted], "not run"
        runs.append(counted)
    complaints, figures = [], []
    for end, few, more in zip(("server", "client"), *runs, strict=True):
        calls = {name: (more[name] - few[name]) / (MORE - FEW) for name in more | few}
        sends, receives = calls.pop("sendmmsg", 0.0), calls.pop("recvmmsg", 0.0)
        figures.append(f"{end} sends {sends:.3f} and receives {receives:.3f} times a message")
        if not 0 < sends <= traffic.sends or not 0 < receives <= traffic.receives:
            complaints.append(
                f"the {end} sends {sends:.3f} times a message and receives {receives:.3f} times; "
                f"{traffic.why}, so at most {traffic.sends:g} and {traffic.receives:g}"
            )
        stray = {
            name: round(value * (MORE - FEW)) for name, value in calls.items() if value > 0 and name not in BY_TIME
        }
        if sum(stray.values()) > STRAY_MAX:
            complaints.append(f"the {end} asks for more in {MORE - FEW} more messages: {stray}")
    return complaints, ", ".join(figures)


def _listening(lab: Lab) -> list[str]:
    """The moment between a program's word that it will listen and its listening is one in which its
    peers are refused.
    """
    looks = []
    for times in (2, 10):
        with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder:
            out = Path(folder, "calls")
            program = build.with_airdma([sys.executable, "-c", LISTENER, str(times)])
            outcome = lab.a.run(["strace", "--follow-forks", "--trace=sendto", f"--output={out}", *program])
            if not outcome.ok:
                return [outcome.explain()]
            looks.append(out.read_text(encoding="utf-8").count("RTM_GETLINK"))
    return [] if 0 < looks[0] == looks[1] else [f"interfaces were looked at {looks[0]} times, and {looks[1]} times"]


def _connecting(lab: Lab) -> tuple[list[str], str]:
    """Complaints about the client of a connection, and the figures in words."""
    counts = []
    for connections in (FEW_CONNECTIONS, MORE_CONNECTIONS):
        argv = ["cmtime", "-c", str(connections)]
        with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder:
            out = Path(folder, "calls")
            server = lab.b.start(build.with_airdma(argv))
            server.wait_idle(15)
            client = [*_strace(out), "--seccomp-bpf", f"--trace={','.join(CONNECTION_MAX)}"]
            outcome = lab.a.run([*client, *build.with_airdma([*argv, "-s", lab.b.ipv4])], timeout_s=60)
            lab.b.forget(server)
            if not outcome.ok:
                return [outcome.explain()], "not run"
            counts.append(succeeded(out.read_text(encoding="ascii")))
    few, more = counts
    calls = {name: (more[name] - few[name]) / (MORE_CONNECTIONS - FEW_CONNECTIONS) for name in CONNECTION_MAX}
    complaints = [
        f"a connection takes {calls[name]:.1f} calls of {name}, and {most} are enough"
        for name, most in CONNECTION_MAX.items()
        if calls[name] > most
    ]
    return complaints, ", ".join(f"{name} {count:.1f}" for name, count in calls.items())


def _run(lab: Lab, argv: list[str]) -> tuple[Counter[str], Counter[str]] | str:
    """Calls that succeeded at the server and at the client, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder:
        outs = [Path(folder, end) for end in ("server", "client")]
        server, client = (
            [*_strace(out), *build.with_airdma([*argv, "-x", str(devices.gid_index(host, 4))])]
            for out, host in zip(outs, (lab.b, lab.a), strict=True)
        )
        pair = run_pair(lab.b, lab.a, server, [*client, lab.b.ipv4], port=perftest.PORT, timeout_s=120)
        if not pair.ok:
            return pair.explain()
        server_calls, client_calls = (succeeded(out.read_text(encoding="ascii")) for out in outs)
        return server_calls, client_calls


def _strace(out: Path) -> list[str]:
    return ["strace", "--follow-forks", "--summary-only", "--summary-columns=calls,errors,name", f"--output={out}"]


def succeeded(summary: str) -> Counter[str]:
    """Calls by name that did not fail, from a summary of calls, errors and names."""
    found: Counter[str] = Counter()
    for fields in map(str.split, summary.splitlines()):
        if fields and fields[0].isdigit() and fields[-1] != "total":
            # strace has no name but "???(" for a call that it was not there to see begin.
            errors = int(fields[1]) if len(fields) > 2 and fields[1].isdigit() else 0
            found[fields[-1]] += int(fields[0]) - errors
    return found
