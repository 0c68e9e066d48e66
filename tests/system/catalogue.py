"""The suites of the system tests, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import ModuleType

import benchmark
import controller_box
import daemon
import dropin
import explain
import failing_disks
import file_transfer
import host_programs
import interface_changes
import ip_layer
import live_view
import matrix
import narrow_path
import odd_disks
import one_host
import packet_port
import planted_journal
import processes
import queue_service
import records
import replayed_packets
import scenarios
import sealed
import streams
import system_calls
import traffic_class
import wireless_link
from airdma_lab.lab import Lab
from case import Tally
from programs import running, table


class Net(Enum):
    """The network that a suite runs on. Suites of one of the labs share it."""

    LINKS = auto()
    """A lab for each kind of link of the pairs that were chosen."""
    PROGRAMS = auto()
    FILES = auto()
    OWN = auto()
    """Networks that the suite makes itself."""


Run = Callable[[Lab, Tally, Path], object]
"""Runs a suite on a lab, with a folder for its files, and records the results."""
OwnRun = Callable[[Tally, Path], object]


@dataclass(frozen=True)
class Suite:
    """Tests that can be run by their name."""

    name: str
    about: ModuleType
    """The module whose text says what is tested."""
    net: Net
    run: Run | None = None
    """None for suites that need no lab or more than one: `LINKS` and `OWN`."""
    own_run: OwnRun | None = None

    @property
    def summary(self) -> str:
        """The first paragraph of its module, on one line."""
        return " ".join((self.about.__doc__ or "").partition("\n\n")[0].split())


def _on(net: Net, module: ModuleType, run: Run) -> Suite:
    return Suite(module.__name__, module, net, run=run)


def _own(module: ModuleType, run: OwnRun) -> Suite:
    return Suite(module.__name__, module, Net.OWN, own_run=run)


HOST_PROGRAMS = Suite("host_programs", host_programs, Net.LINKS)
PAIRS = Suite("pairs", matrix, Net.LINKS)
SUITES = (
    HOST_PROGRAMS,
    PAIRS,
    _on(Net.PROGRAMS, processes, lambda lab, tally, _: processes.run(lab, tally)),
    _on(Net.PROGRAMS, dropin, dropin.run),
    _on(Net.PROGRAMS, explain, explain.run),
    _on(Net.PROGRAMS, ip_layer, lambda lab, tally, _: ip_layer.run(lab, tally)),
    _on(Net.PROGRAMS, system_calls, lambda lab, tally, _: system_calls.run(lab, tally)),
    _on(Net.PROGRAMS, traffic_class, lambda lab, tally, _: traffic_class.run(lab, tally)),
    _on(Net.PROGRAMS, sealed, sealed.run),
    _on(Net.PROGRAMS, daemon, daemon.run),
    _on(Net.PROGRAMS, one_host, lambda lab, tally, _: one_host.run(lab, tally)),
    _on(Net.PROGRAMS, records, records.run),
    _on(Net.PROGRAMS, live_view, live_view.run),
    _on(Net.PROGRAMS, packet_port, lambda lab, tally, _: packet_port.run(lab, tally)),
    Suite("programs", table, Net.PROGRAMS, lambda lab, tally, at: running.run(lab, tally, table.ready_lines(), at)),
    _on(Net.FILES, file_transfer, lambda lab, tally, _: file_transfer.run(lab, tally)),
    _on(Net.FILES, failing_disks, lambda lab, tally, _: failing_disks.run(lab, tally)),
    _on(Net.FILES, odd_disks, lambda lab, tally, _: odd_disks.run(lab, tally)),
    _on(Net.FILES, planted_journal, lambda lab, tally, _: planted_journal.run(lab, tally)),
    _on(Net.FILES, replayed_packets, lambda lab, tally, _: replayed_packets.run(lab, tally)),
    _on(Net.FILES, queue_service, queue_service.run),
    _on(Net.FILES, streams, streams.run),
    _own(benchmark, benchmark.run),
    _own(wireless_link, wireless_link.run),
    _own(controller_box, controller_box.run),
    _own(interface_changes, lambda tally, _: interface_changes.run(tally)),
    _own(narrow_path, lambda tally, _: narrow_path.run(tally)),
    _own(scenarios, lambda tally, _: scenarios.run(tally)),
)


class UnknownSuiteError(Exception):
    """A name that no suite has."""

    def __init__(self, name: str) -> None:
        names = ", ".join(suite.name for suite in SUITES)
        super().__init__(f"there is no suite {name!r}; the suites are {names}")


def chosen(names: str) -> list[Suite]:
    """The suites with these names, separated by commas, in the order of `SUITES`; all if empty."""
    wanted = {name.strip() for name in names.split(",")} - {""}
    known = {suite.name for suite in SUITES}
    for name in sorted(wanted - known):
        raise UnknownSuiteError(name)
    return [suite for suite in SUITES if not wanted or suite.name in wanted]


def listing(suites: Iterable[Suite]) -> str:
    """A line for each suite: its name, and what it tests."""
    return "\n".join(f"{suite.name:<20} {suite.summary}" for suite in suites)
