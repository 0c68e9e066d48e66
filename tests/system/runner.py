"""Runs cases in a lab and judges them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from airdma_lab.pair import run_pair
from case import Case, Tally

ROCE_PORT = 4791
CONTROL_PORT = 18515

MUST_NOT_RISE = (
    "drop_bad_icrc",
    "drop_short",
    "drop_truncated",
    "drop_oversized",
    "drop_malformed",
    "drop_unknown_opcode",
    "drop_bad_pkey",
    "drop_bad_qkey",
    "drop_bad_source",
    "invalid_requests",
    "tx_errors",
    "cq_overruns",
)
"""Nothing here corrupts packets, so these counters stand still, whatever is dropped, doubled or
overtaken.
"""


def run_case(lab: Lab, case: Case, tally: Tally) -> None:
    """Runs one case and records the result."""
    started = time.monotonic()
    complaints = _complaints(lab, case)
    tally.record(case.name, complaints, time.monotonic() - started)


def _complaints(lab: Lab, case: Case) -> list[str]:
    client, server = lab.hosts(case.swapped)
    before = devices.counters(client), devices.counters(server)
    with contextlib.ExitStack() as stack:
        for host in (client, server) if case.nft_drop_percent else ():
            stack.enter_context(host.dropping(case.nft_drop_percent, ROCE_PORT))
        pair = run_pair(
            server,
            client,
            _command(case, server),
            [*_command(case, client), server.ipv4],
            port=CONTROL_PORT,
            timeout_s=case.timeout_s,
            environment=_environment(case),
        )
    grown = [_growth(old, devices.counters(host)) for old, host in zip(before, (client, server), strict=True)]
    complaints = [] if pair.ok else ["a program failed"]
    complaints += case.check(pair)
    complaints += _counter_complaints(case, *grown)
    if complaints:
        moved = [{name: rise for name, rise in host.items() if rise} for host in grown]
        complaints += [pair.explain(), f"counters of the client's host: {moved[0]}", f"of the server's: {moved[1]}"]
    return complaints


def _environment(case: Case) -> dict[str, str]:
    environment = {"AIRDMA_IMPAIR": case.impair} if case.impair else {}
    return environment | ({"AIRDMA_MTU": str(case.port_mtu)} if case.port_mtu else {})


def _counter_complaints(case: Case, client: dict[str, int], server: dict[str, int]) -> list[str]:
    # Every counter is asked for by a name that must exist: one that was renamed is no longer
    # checked.
    complaints = [f"{name} rose" for name in MUST_NOT_RISE if client[name] or server[name]]
    if case.rises and not any(client[name] or server[name] for name in case.rises):
        complaints.append(f"{' and '.join(case.rises)} did not rise")
    # Datagrams are not answered; everything else is.
    needed = [("client", client, "tx_packets"), ("server", server, "rx_packets")]
    if not case.datagrams:
        needed += [("client", client, "rx_packets"), ("server", server, "tx_packets")]
    complaints += [f"{name} did not rise at the {side}" for side, host, name in needed if not host[name]]
    return complaints


def _growth(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    return {name: value - old[name] for name, value in new.items()}


def _command(case: Case, host: Host) -> list[str]:
    index = devices.gid_index(host, case.link.family)
    return build.with_airdma([*case.argv, case.gid_option, str(index)])


def by_link(cases: list[Case]) -> Iterator[tuple[tuple[int, bool], list[Case]]]:
    """Cases that can share a lab, together: (MTU, segment offload), cases."""
    groups: dict[tuple[int, bool], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.link.mtu, case.link.segment_offload), []).append(case)
    yield from groups.items()
