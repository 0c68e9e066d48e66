#!/usr/bin/env python3
"""Our library and the kernel's rxe beside each other: the same programs, on the same veth pair, in
the same guest.

  python3 tests/interop/beside.py [--seconds 3] [--mtu 1500 4200] [--write]

Both are measured in turns, `--rounds` times, and the median is shown; TCP (iperf3) runs on the same
pair. The guest is emulated, so only the ratios mean something, and they favour neither side: user
space and the CRC instructions of today's CPUs cost more there than they do on a CPU. `--write`
keeps the table in docs/interop.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/system"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import document
import image
import prepare
from airdma_lab import build, perftest, privileges
from airdma_lab.lab import Lab, LabError
from guest import HOST_FOLDER, Guest, GuestError

SERVER = "10.79.0.2"
CLIENT = "10.79.0.1"
PORT = 18515
BANDWIDTH = [
    (program, size) for program in ("ib_write_bw", "ib_send_bw", "ib_read_bw") for size in (1024, 8192, 65536, 1 << 20)
]
LATENCY = [(program, 64) for program in ("ib_write_lat", "ib_send_lat", "ib_read_lat")]


@dataclass(frozen=True)
class Stack:
    """How the same program is run on one of the two."""

    name: str
    prefix: str
    client_device: str
    server_device: str
    gid: int


RXE = Stack("rxe", "", "rxa", "rxb", 1)
AIRDMA = Stack("airdma", f"{HOST_FOLDER}/bin/airdma run -- ", "airdma_va", "airdma_vb", 0)


@dataclass(frozen=True)
class Measured:
    """One run."""

    value: float
    """MB/s (10^6 bytes), or microseconds."""
    cpu: float
    """CPU seconds of the whole guest for each GB, or for each second of a latency test."""


def measure(guest: Guest, stack: Stack, program: str, size: int, seconds: int) -> Measured:
    """Runs a program of perftest over the pair."""
    options = f"-x {stack.gid} -F -s {size} -D {seconds}"
    server = guest.start_script(f"exec {stack.prefix}{program} -d {stack.server_device} {options}")
    if not server.wait_listening(PORT, "tcp", 30):
        raise GuestError(server.wait(0).explain())
    with _busy(guest) as busy:
        client = guest.start_script(f"exec {stack.prefix}{program} -d {stack.client_device} {options} {SERVER}")
        outcome = client.wait(60 + seconds)
    server.wait(10)
    rows = perftest.parse(outcome.stdout)
    if not outcome.ok or len(rows) != 1:
        raise GuestError(outcome.explain())
    if "lat" in program:
        return Measured(rows[0]["t_avg[usec]"], busy[0] / seconds)
    # perftest's MB are 2^20 bytes.
    rate = rows[0]["BW average[MB/sec]"] * (1 << 20) / 1e6
    return Measured(rate, busy[0] / (rate * seconds / 1e3) if rate else 0.0)


def measure_tcp(guest: Guest, size: int, seconds: int) -> Measured:
    """The same bytes over TCP, written `size` at a time."""
    server = guest.start_script(f"exec iperf3 -s -1 -B {SERVER}")
    if not server.wait_listening(5201, "tcp", 30):
        raise GuestError(server.wait(0).explain())
    with _busy(guest) as busy:
        outcome = guest.start_script(f"exec iperf3 -c {SERVER} -B {CLIENT} -t {seconds} -l {size} -N -J").wait(
            60 + seconds
        )
    server.wait(10)
    if not outcome.ok:
        raise GuestError(outcome.explain())
    rate = json.loads(outcome.stdout)["end"]["sum_received"]["bits_per_second"] / 8e6
    return Measured(rate, busy[0] / (rate * seconds / 1e3))


@contextmanager
def _busy(guest: Guest) -> Iterator[list[float]]:
    """CPU seconds that the guest used meanwhile, programs and kernel together; the list has them
    afterwards.
    """
    used: list[float] = []
    before = _cpu(guest)
    yield used
    used.append(_cpu(guest) - before)


def _cpu(guest: Guest) -> float:
    user, nice, system, _, _, irq, softirq = map(int, re.findall(r"\d+", guest.script("head -n 1 /proc/stat"))[:7])
    return (user + nice + system + irq + softirq) / 100


@contextmanager
def _on(guest: Guest, stack: Stack) -> Iterator[None]:
    if stack is AIRDMA:
        yield
        return
    guest.script(
        "modprobe -a rdma_rxe ib_uverbs\nrdma link add rxa type rxe netdev va\nrdma link add rxb type rxe netdev vb\n"
        "until [ $(rdma link | grep -c ACTIVE) = 2 ]; do sleep 0.05; done"
    )
    try:
        yield
    finally:
        guest.script("rdma link delete rxa; rdma link delete rxb; modprobe -r rdma_rxe")


def compare(guest: Guest, mtu: int, seconds: int, rounds: int) -> list[dict[str, object]]:
    """Measures everything on a pair of that MTU."""
    guest.script(f"veth-pair {mtu}")
    runs: dict[tuple[str, int, str], list[Measured]] = {}
    for _ in range(rounds):
        for stack in (RXE, AIRDMA):
            with _on(guest, stack):
                for program, size in [*BANDWIDTH, *LATENCY]:
                    found = measure(guest, stack, program, size, seconds)
                    runs.setdefault((program, size, stack.name), []).append(found)
                    print(f"mtu {mtu} {program} {size} {stack.name}: {found.value:.1f}", flush=True)
        for size in dict.fromkeys(size for _, size in BANDWIDTH):
            runs.setdefault(("tcp", size, "tcp"), []).append(measure_tcp(guest, size, seconds))

    def median(program: str, size: int, stack: str) -> Measured:
        of = runs[program, size, stack]
        return Measured(statistics.median(run.value for run in of), statistics.median(run.cpu for run in of))

    rows: list[dict[str, object]] = []
    for program, size in [*BANDWIDTH, *LATENCY]:
        latency = "lat" in program
        ours, theirs = median(program, size, "airdma"), median(program, size, "rxe")
        tcp = None if latency else median("tcp", size, "tcp")
        rows.append(
            {
                "mtu": mtu,
                "program": program,
                "size": size,
                "unit": "us" if latency else "MB/s",
                **{name: round(of.value, 1) for name, of in (("airdma", ours), ("rxe", theirs))},
                **{f"{name}_cpu": round(of.cpu, 2) for name, of in (("airdma", ours), ("rxe", theirs))},
                "tcp": round(tcp.value, 1) if tcp else None,
                "tcp_cpu": round(tcp.cpu, 2) if tcp else None,
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", choices=list(image.KERNELS), default="6.1")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mtu", type=int, nargs="+", default=[1500, 4200])
    parser.add_argument("--write", action="store_true", help="keep the table in docs/interop.md")
    options = parser.parse_args()
    try:
        kernel = prepare.image_of(options.kernel)
    except prepare.Missing as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2
    privileges.enter()
    with tempfile.TemporaryDirectory(prefix="airdma-tests-"), Lab() as lab, Guest(lab, kernel) as guest:
        programs = guest.folder / "bin"
        programs.mkdir()
        for name in ("airdma", "libairdma.so"):
            shutil.copy(build.binary().with_name(name), programs)
        rows = [row for mtu in options.mtu for row in compare(guest, mtu, options.seconds, options.rounds)]
    print(document.beside_table(rows))
    if options.write:
        document.write_beside(kernel.release, options.rounds, options.seconds, rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, GuestError) as error:
        print(f"interop: {error}", file=sys.stderr)
        sys.exit(1)
