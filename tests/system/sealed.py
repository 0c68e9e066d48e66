"""Unmodified programs over sealed connections (AIRDMA_SECRET), and what hosts without the secret
reach.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from airdma_lab import build, devices, perftest
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome
from case import Tally
from traffic_class import CAPTURE

SEALED = 0xDA
"""Opcode of packets between hosts that have the secret (docs/protocol.md)."""


@dataclass(frozen=True)
class Run:
    """A program at both ends, which meet over TCP (perftest) or by rdma_cm."""

    argv: list[str]
    by_address: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environment), *self.argv])


RUNS = [
    Run(["ib_write_bw", "-s", "65536", "-n", "500"]),
    Run(["ib_read_lat", "-s", "64", "-n", "500"]),
    Run(["ib_atomic_bw", "-n", "500"]),
    Run(["ib_send_bw", "-c", "UC", "-s", "8192", "-n", "500"]),
    Run(["ib_send_lat", "-R", "-s", "512", "-n", "500"], by_address=True),
    Run(["ib_send_lat", "-c", "UD", "-s", "512", "-n", "500"]),
    Run(["ibv_ud_pingpong", "-c", "-n", "500", "-s", "1024"]),
    Run(["udaddy", "-C", "50", "-S", "1000"], by_address=True),
    Run(["rping", "-C", "200", "-S", "4096", "-V"], by_address=True),
    Run(["ib_write_bw", "-s", "65536", "-n", "500"], environment=(("AIRDMA_AIR", "1"),)),
    Run(
        ["ib_write_bw", "-s", "65536", "-n", "500"],
        environment=(("AIRDMA_AIR", "1"), ("AIRDMA_IMPAIR", "drop=1%,seed=7")),
    ),
]


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """All of them with one secret, while the packets at host a are looked at; then some with two,
    and with one at one end.
    """
    secrets = []
    for name, content in (("secret", b"0123456789abcdef" * 2), ("another", b"fedcba9876543210" * 2)):
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        secrets.append({"AIRDMA_SECRET": str(path)})
    for one in RUNS:
        _record(tally, f"sealed: {one.name}", partial(_is_sealed, lab, one, secrets[0]))
    for what, other in (("another secret", secrets[1]), ("no secret", {})):
        for one in (RUNS[0], next(run for run in RUNS if run.argv[0] == "rping")):
            _record(
                tally,
                f"{what} reaches nothing: {one.name}",
                partial(_is_refused, lab, one, secrets[0], other),
            )
    readable = folder / "readable"
    readable.write_bytes(b"0123456789abcdef")
    readable.chmod(0o644)
    _record(tally, "a secret that others can read is refused", lambda: _is_no_secret(lab, readable))


def _record(tally: Tally, name: str, check: Callable[[], list[str]]) -> None:
    started = time.monotonic()
    tally.record(name, check(), time.monotonic() - started)


def _is_sealed(lab: Lab, one: Run, secret: dict[str, str]) -> list[str]:
    capture = lab.a.start(["python3", "-c", CAPTURE])
    if not capture.wait_capturing(10):
        return [capture.stop().explain()]
    before = devices.counters(lab.a)
    ended = both(lab, one, secret, secret, 30)
    said = capture.stop()
    lab.a.forget(capture)
    if not all(outcome.ok for outcome in (*ended, said)):
        return [outcome.explain() for outcome in (*ended, said)]
    opcodes = {opcode for _, opcode, is_management, _ in json.loads(said.stdout) if not is_management}
    complaints = [] if opcodes == {SEALED} else [f"packets with opcodes {sorted(opcodes)}"]
    agreed = devices.counters(lab.a)["seals_agreed"] - before.get("seals_agreed", 0)
    return complaints + ([] if agreed >= 1 else ["no keys were agreed on"])


def _is_refused(lab: Lab, one: Run, ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    # rdma_cm asks a peer that does not answer for a minute; nothing has come of it until then.
    served, asked = both(lab, one, ours, theirs, 5 if one.by_address else 20)
    complaints = [] if asked.returncode != 0 and asked.timed_out == one.by_address else [asked.explain()]
    return complaints + ([] if served.returncode != 0 else [served.explain()])


def _is_no_secret(lab: Lab, path: Path) -> list[str]:
    outcome = lab.a.run(build.with_airdma(["ibv_devinfo"]), {"AIRDMA_SECRET": str(path)})
    is_told = "AIRDMA_SECRET" in outcome.stdout + outcome.stderr and "chmod 600" in outcome.stdout + outcome.stderr
    return [] if outcome.returncode != 0 and is_told else [outcome.explain()]


def both(lab: Lab, one: Run, ours: dict[str, str], theirs: dict[str, str], limit_s: float) -> tuple[Outcome, Outcome]:
    """What became of the server at host b, and of the client at host a, which has `theirs`."""
    environment = dict(one.environment)
    serving = lab.b.start(server(lab.b, one), {**environment, **ours})
    is_ready = serving.wait_idle(10) if one.by_address else serving.wait_listening(perftest.PORT, "tcp", 10)
    asked = lab.a.run(client(lab, one), {**environment, **theirs}, limit_s) if is_ready else serving.stop()
    # One whose client failed may wait for ever.
    served = serving.wait(10 if asked.ok else 1)
    lab.b.forget(serving)
    return served, asked


def server(host: Host, one: Run) -> list[str]:
    """The program at the host that is asked."""
    if one.argv[0] == "rping":
        return build.with_airdma([*one.argv, "-s", "-a", host.ipv4])
    if one.argv[0] in ("udaddy", "ucmatose"):
        return build.with_airdma([*one.argv, "-b", host.ipv4])
    if one.argv[0].startswith("ibv_"):
        return build.with_airdma([*one.argv, "-d", devices.DEVICE, "-g", str(devices.gid_index(host, 4))])
    return build.with_airdma([*one.argv, "-F", "-d", devices.DEVICE, "-x", str(devices.gid_index(host, 4))])


def client(lab: Lab, one: Run) -> list[str]:
    """The program at host a, which asks host b."""
    if one.argv[0] == "rping":
        return build.with_airdma([*one.argv, "-c", "-a", lab.b.ipv4])
    if one.argv[0] in ("udaddy", "ucmatose"):
        return [*server(lab.a, one), "-s", lab.b.ipv4]
    return [*server(lab.a, one), lab.b.ipv4]
