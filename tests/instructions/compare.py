"""What has changed since the numbers were kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from callgrind import SIDES
from record import OVER_SOCKETS, Record, locked, total

TOLERANCE = 0.02
"""Another place in the program, or other things inlined around it, change a scenario by up to 1 %.
"""
SMALLEST = 4.0
"""Growth in instructions below which no change is reported."""
FLAT = {"idle_256": "idle_1", "idle_4096": "idle_1", "busy_256": "busy_16", "busy_4096": "busy_16"}
"""Scenarios with many queue pairs, and that with few which they cost as much as."""
FLAT_TOLERANCE = 0.01
LOCKED_TOLERANCE = 0.05
"""Atomic instructions are few: a new one for each message is one too many."""
LOCKED_PER_PACKET = {OVER_SOCKETS: 1.0, "udp_batch_1k": 0.0}
"""A lock for each packet would be two at least, at either end."""
ALLOCATOR_SHARE = 0.001
"""Largest share of the allocator in all instructions: the wire in memory grows with a window. An
allocation for each packet would be 2 %.
"""
NAMED = 5
"""Functions that a complaint names, in either direction."""


@dataclass
class Verdict:
    """What a comparison says."""

    grown: list[str]
    shrunk: list[str]
    other: list[str]
    """Scenarios that are new, or gone."""


def compare(kept: Record, now: Record) -> Verdict:
    """Each side of each scenario by itself."""
    verdict = Verdict([], [], [])
    before, after = kept["scenarios"], now["scenarios"]
    for name, scenario in after.items():
        if name not in before:
            verdict.other.append(f"{name} is new: it has no number yet")
            continue
        old = before[name]
        signs = {_sign(old[side], scenario[side]) for side in SIDES}
        changes = (_change(side, old[side], scenario[side]) for side in SIDES if scenario[side] or old[side])
        line = f"{name}: {', '.join(changes)}"
        if 1 in signs:
            verdict.grown += [line, *_functions(old, scenario)]
        elif -1 in signs:
            verdict.shrunk.append(line)
        _compare_locked(name, old, scenario, verdict)
    verdict.other += [f"{name} is gone" for name in before.keys() - after.keys()]
    return verdict


def _sign(old: float, new: float) -> int:
    """1 for more, -1 for less, 0 for about the same."""
    if abs(new - old) <= max(TOLERANCE * old, SMALLEST):
        return 0
    return 1 if new > old else -1


def _change(side: str, old: float, new: float) -> str:
    return f"{_SIDES[side]} {old:,.0f} -> {new:,.0f} ({new / max(old, 1) - 1:+.1%})"


def _compare_locked(name: str, old: Record, new: Record, verdict: Verdict) -> None:
    change = locked(new) - locked(old)
    if abs(change) <= max(TOLERANCE * locked(old), LOCKED_TOLERANCE):
        return
    changes = {key: new["locked"].get(key, 0.0) - old["locked"].get(key, 0.0) for key in new["locked"] | old["locked"]}
    lines = [f"{name}: {locked(old):.2f} -> {locked(new):.2f} atomic instructions"]
    lines += [f"    {value:+10.2f}  {key}" for key, value in changes.items() if value * change > 0]
    (verdict.grown if change > 0 else verdict.shrunk).extend(lines)


_SIDES = {"near": "asking", "far": "serving"}


def _functions(old: Record, new: Record) -> Iterable[str]:
    """Those that changed most, both sides together. What is inlined now and was not, or the other
    way round, shows as two of them.
    """
    before, after = old["functions"], new["functions"]
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in before.keys() | after.keys()}
    ordered = sorted(changes.items(), key=lambda change: -change[1])
    more = [change for change in ordered[:NAMED] if change[1] >= 1]
    less = [change for change in ordered[-NAMED:] if change[1] <= -1]
    return [f"    {change:+10,.1f}  {name}" for name, change in more + less]


def locks_per_packet(now: Record) -> list[str]:
    """Scenarios that take a lock for each packet. True of any compiler."""
    complaints = []
    for name, most in LOCKED_PER_PACKET.items():
        scenario = now["scenarios"].get(name)
        if scenario and locked(scenario) / scenario["packets"] > most:
            complaints.append(
                f"{name}: {locked(scenario) / scenario['packets']:.2f} atomic instructions a packet, {most:g} at most"
            )
            complaints += [f"    {value:10.2f}  {function}" for function, value in scenario["locked"].items()]
    return complaints


def allocations(now: Record) -> list[str]:
    """Scenarios that call the allocator although they are warm. True of any compiler."""
    return [
        f"{name}: {scenario['allocator']:,.2f} instructions in the allocator"
        for name, scenario in now["scenarios"].items()
        if scenario["allocator"] > ALLOCATOR_SHARE * total(scenario)
    ]


def not_flat(now: Record) -> list[str]:
    """Scenarios that cost more beside many queue pairs than beside few. True of any compiler."""
    complaints = []
    scenarios = now["scenarios"]
    for many, few in FLAT.items():
        if many not in scenarios or few not in scenarios:
            continue
        old, new = total(scenarios[few]), total(scenarios[many])
        if new > old * (1 + FLAT_TOLERANCE):
            complaints += [f"{many} takes {new:,.0f} instructions, {few} takes {old:,.0f}"]
            complaints += _functions(scenarios[few], scenarios[many])
    return complaints
