"""Runs lines of the table between two hosts."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome, Program
from case import Tally
from programs.line import RDMA, SPINS, STAGGER_S, Line

ROCE_PORT = 4791
START_S = 15.0
LINGER_S = 15.0
SPIN_S = 0.2
MUST_NOT_RISE = ("drop_bad_icrc", "drop_short", "drop_truncated", "drop_oversized", "drop_malformed", "tx_errors")
"""Nothing damages packets here."""


def run(lab: Lab, tally: Tally, lines: list[Line], folder: Path) -> dict[str, bool]:
    """Runs each; returns whether it worked, by name."""
    results = {}
    words = _words(lab, folder)
    for line in lines:
        started = time.monotonic()
        complaints = _complaints(lab, line, words, folder)
        tally.record(line.name, complaints, time.monotonic() - started)
        results[line.name] = not complaints
    return results


def _words(lab: Lab, folder: Path) -> dict[str, str]:
    server, client = lab.a, lab.b
    return {
        "server": server.ipv4,
        "server6": server.ipv6,
        "client": client.ipv4,
        "client6": client.ipv6,
        "device": devices.DEVICE,
        "gid": str(devices.gid_index(server, 4)),
        "gid6": str(devices.gid_index(server, 6)),
        "folder": str(folder),
        "client_namespace": client.namespace,
        "server_namespace": server.namespace,
        "rspreload": str(next(Path("/usr/lib").glob("*/rsocket/librspreload.so"), "")),
    }


def _complaints(lab: Lab, line: Line, words: dict[str, str], folder: Path) -> list[str]:
    server, client = lab.a, lab.b
    if line.before:
        line.before(folder)
    before = [devices.counters(host) for host in (server, client)]
    served, clients = _run(server, client, line, words)
    grown = [_growth(old, devices.counters(host)) for old, host in zip(before, (server, client), strict=True)]
    complaints = [f"the {end} failed" for end, outcome in _ends(served, clients) if not outcome.ok]
    if not clients:
        complaints.append("the server is not ready")
    for pattern in line.says:
        complaints += [f"the client does not say {pattern}" for end in clients if not _found(pattern, end, words)]
    for pattern in line.server_says if served else ():
        complaints += [] if _found(pattern, served, words) else [f"the server does not say {pattern}"]
    if line.after and not complaints:
        complaints += line.after(folder)
    complaints += _counter_complaints(line, grown)
    if complaints:
        complaints += [f"--- {end}\n{outcome.explain()}" for end, outcome in _ends(served, clients)]
        moved = [{name: rise for name, rise in host.items() if rise} for host in grown]
        complaints += [f"counters of the server's host: {moved[0]}", f"of the client's: {moved[1]}"]
    return complaints


def _ends(served: Outcome | None, clients: list[Outcome]) -> list[tuple[str, Outcome]]:
    return [*([("server", served)] if served else []), *(("client", outcome) for outcome in clients)]


def _run(server: Host, client: Host, line: Line, words: dict[str, str]) -> tuple[Outcome | None, list[Outcome]]:
    environment = {name: value.format(**words) for name, value in line.setup.items()}
    program = server.start(_argv(line, line.server, words), environment) if line.server else None
    clients: list[Outcome] = []
    if program is None or _is_ready(program, server, line.ready):
        started = []
        for number in range(line.clients):
            time.sleep(STAGGER_S if number else 0)
            started.append(client.start(_argv(line, line.client, words), environment))
        deadline = time.monotonic() + line.timeout_s
        for end in started:
            clients.append(end.wait(max(deadline - time.monotonic(), 0.0)))
            client.forget(end)
    if program is None:
        return None, clients
    well = bool(clients) and all(end.ok for end in clients)
    served = program.stop() if line.stays else program.wait(LINGER_S if well else 1.0)
    server.forget(program)
    return served, clients


def _argv(line: Line, command: str, words: dict[str, str]) -> list[str]:
    argv = shlex.split(command.format(**words))
    return [str(build.binary()), "run", "--dropin", "--", *argv] if line.dropin else build.with_airdma(argv)


def _is_ready(program: Program, host: Host, ready: int | str) -> bool:
    if ready not in (RDMA, SPINS):
        protocol, _, port = str(ready).rpartition(" ")
        return program.wait_listening(int(port), protocol or "tcp", host.namespace_path, START_S)
    if not program.wait_listening(ROCE_PORT, "udp", host.namespace_path, START_S):
        return False
    # It listens a moment after its library has bound the port.
    if ready == RDMA:
        return program.wait_idle(START_S)
    time.sleep(SPIN_S)
    return True


def _found(pattern: str, outcome: Outcome, words: dict[str, str]) -> bool:
    for name, word in words.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(word))
    return re.search(pattern, outcome.stdout + outcome.stderr, re.MULTILINE) is not None


def _growth(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    return {name: value - old[name] for name, value in new.items()}


def _counter_complaints(line: Line, grown: list[dict[str, int]]) -> list[str]:
    complaints = [f"{name} rose" for name in MUST_NOT_RISE if any(host[name] for host in grown)]
    # Also of processes that were stopped, or ended by _exit: what they counted is there when they have nothing to do.
    crossed = sum(host["rx_bytes"] for host in grown)
    if line.needs_device and crossed < line.bytes_min:
        complaints.append(f"{crossed} bytes crossed the devices, not at least {line.bytes_min}")
    return complaints
