"""Runs lines of the table between two hosts."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

from airdma_lab.lab import Lab
from airdma_lab.program import Outcome
from case import Tally

from programs.end import AirdmaEnd, End, Running
from programs.line import RDMA, SPINS, STAGGER_S, Line, Unavailable

ROCE_PORT = 4791
START_S = 15.0
LINGER_S = 15.0
SPIN_S = 0.2
MUST_NOT_RISE = ("drop_bad_icrc", "drop_short", "drop_truncated", "drop_oversized", "drop_malformed", "tx_errors")
"""Nothing damages packets here."""


def run(lab: Lab, tally: Tally, lines: list[Line], folder: Path) -> dict[str, bool]:
    """Runs each between the hosts of a lab, host `a` being the server; returns whether it worked,
    by name.
    """
    server, client = AirdmaEnd(lab.a, folder), AirdmaEnd(lab.b, folder)
    results = {}
    words = words_of(server, client)
    for line in lines:
        started = time.monotonic()
        try:
            complaints = complaints_of(server, client, line, words, folder)
        except Unavailable as reason:
            tally.skip(line.name, str(reason))
            continue
        tally.record(line.name, complaints, time.monotonic() - started)
        results[line.name] = not complaints
    return results


Words = tuple[dict[str, str], dict[str, str]]
"""What the names in commands stand for, at the server and at the client."""


def words_of(server: End, client: End) -> Words:
    """They do not change while a lab is there."""
    own = [dict(end.words()) for end in (server, client)]
    both = {
        "server": server.ipv4,
        "server6": server.ipv6,
        "client": client.ipv4,
        "client6": client.ipv6,
        "client_namespace": own[1]["namespace"],
        "server_namespace": own[0]["namespace"],
    }
    return {**own[0], **both}, {**own[1], **both}


def complaints_of(server: End, client: End, line: Line, words: Words, folder: Path, spoiled: bool = False) -> list[str]:
    """Runs one line. Returns what went wrong, and then all that both ends said. `spoiled`:
    something damages packets.
    """
    if line.before:
        line.before(folder)
    before = [end.counters() for end in (server, client)]
    served, clients = _run(server, client, line, words)
    grown = [_growth(old, end.counters()) for old, end in zip(before, (server, client), strict=True)]
    complaints = [f"the {end} failed" for end, outcome in _ends(served, clients) if not outcome.ok]
    if not clients:
        complaints.append("the server is not ready")
    for pattern in line.says:
        complaints += [f"the client does not say {pattern}" for end in clients if not _found(pattern, end, words[1])]
    if served:
        missing = [pattern for pattern in line.server_says if not _found(pattern, served, words[0])]
        complaints += [f"the server does not say {pattern}" for pattern in missing]
    if line.after and not complaints:
        complaints += line.after(folder)
    complaints += _counter_complaints(line, grown, spoiled)
    if complaints:
        complaints += [f"--- {end}\n{outcome.explain()}" for end, outcome in _ends(served, clients)]
        moved = [{name: rise for name, rise in host.items() if rise} for host in grown]
        complaints += [f"counters of the server's host: {moved[0]}", f"of the client's: {moved[1]}"]
    return complaints


def _ends(served: Outcome | None, clients: list[Outcome]) -> list[tuple[str, Outcome]]:
    return [*([("server", served)] if served else []), *(("client", outcome) for outcome in clients)]


def _run(server: End, client: End, line: Line, words: Words) -> tuple[Outcome | None, list[Outcome]]:
    environments = [{name: value.format(**own) for name, value in line.setup.items()} for own in words]
    program = server.start(line, _argv(line.server, words[0]), environments[0]) if line.server else None
    clients: list[Outcome] = []
    if program is None or _is_ready(program, line.ready):
        started = []
        for number in range(line.clients):
            time.sleep(STAGGER_S if number else 0)
            started.append(client.start(line, _argv(line.client, words[1]), environments[1]))
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


def _argv(command: str, words: dict[str, str]) -> list[str]:
    return shlex.split(command.format(**words))


def _is_ready(program: Running, ready: int | str) -> bool:
    if ready not in (RDMA, SPINS):
        protocol, _, port = str(ready).rpartition(" ")
        return program.wait_listening(int(port), protocol or "tcp", START_S)
    if not program.wait_listening(ROCE_PORT, "udp", START_S):
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


def _counter_complaints(line: Line, grown: list[dict[str, int]], spoiled: bool) -> list[str]:
    # Every counter is asked for by a name that must exist: one that was renamed would no longer be
    # checked.
    known = {name for host in grown for name in host}
    complaints = [f"there is no counter {name}" for name in MUST_NOT_RISE if name not in known]
    complaints += [f"{name} rose" for name in MUST_NOT_RISE if not spoiled and any(host.get(name, 0) for host in grown)]
    # Also of processes that were stopped, or ended by _exit: what they counted is there when they
    # have nothing to do.
    crossed = sum(host["rx_bytes"] for host in grown)
    if line.needs_device and crossed < line.bytes_min:
        complaints.append(f"{crossed} bytes crossed the devices, not at least {line.bytes_min}")
    return complaints
