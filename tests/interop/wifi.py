"""The same over simulated radios in the guest: airdma at one end or at both, on interfaces whose queue is `noqueue`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airdma_lab import build
from stand import Link
from ends import AirdmaGuestEnd, RxeEnd
from guest import HOST_FOLDER, GuestError
from programs.line import Line
from table import DIRECTIONS, SCENARIOS

if TYPE_CHECKING:
    from stand import Stand

MODES = {"ap": "access point and station, WPA2", "ibss": "ad hoc", "p2p": "Wi-Fi Direct"}
HERE_IPV4, HERE_IPV6 = "10.78.0.1", "fd78::1"
THERE_IPV4, THERE_IPV6 = "10.78.0.2", "fd78::2"
SET_UP_S = 180.0
LINES: list[Line] = [
    replace(scenario.line, timeout_s=300)
    for scenario in SCENARIOS
    if scenario.quick and not scenario.netem and scenario.mtu == 1500 and not re.search("services.*gid6", scenario.line.client)
]
"""Those of `make test` on a clean wire of the usual MTU; the services over one family of addresses only."""


def work() -> list[tuple[str, Callable[[Stand], None]]]:
    """Each mode, by name."""
    return [(f"Wi-Fi: {what}", partial(_run, mode)) for mode, what in MODES.items()]


@contextmanager
def _radios(stand: Stand, mode: str) -> Iterator[tuple[str, str]]:
    """Two radios that are connected; the names of their interfaces."""
    try:
        here, there = stand.guest.script(f"wifi {mode}", SET_UP_S).split()[-2:]
        yield here, there
    finally:
        with suppress(GuestError):
            stand.guest.script("wifi down || true", SET_UP_S)


def _run(mode: str, stand: Stand) -> None:
    stand.set_mtu(1500)
    for name in ("airdma", "libairdma.so"):
        shutil.copy(build.binary().with_name(name), stand.guest.folder / "bin")
    stand.rxe.tear_down()
    try:
        _run_between_radios(mode, stand)
    finally:
        with suppress(GuestError):
            stand.rxe.set_up()


def _run_between_radios(mode: str, stand: Stand) -> None:
    with _radios(stand, mode) as (here, there):
        capture = partial(stand.guest.capture_inside, here)
        airdma = AirdmaGuestEnd(stand.guest, there, THERE_IPV4, THERE_IPV6, "w1")
        other = AirdmaGuestEnd(stand.guest, here, HERE_IPV4, HERE_IPV6)
        both = Link({"airdma": airdma, "airdma here": other}, (THERE_IPV4, THERE_IPV6, HERE_IPV4, HERE_IPV6), capture)
        stand.judge(both, f"the queue of {here} is noqueue [Wi-Fi {mode}]", lambda: _link(stand, here))
        for line in LINES:
            stand.run_line(both, line, "airdma -> airdma here", f"Wi-Fi {mode}")
        rxe = RxeEnd(stand.guest, here, HERE_IPV4, HERE_IPV6)
        rxe.set_up()
        mixed = Link({"airdma": airdma, "rxe": rxe}, (THERE_IPV4, THERE_IPV6), capture)
        for line in LINES:
            for direction in DIRECTIONS:
                stand.run_line(mixed, line, direction, f"Wi-Fi {mode}")
        rxe.tear_down()


def _link(stand: Stand, interface: str) -> list[str]:
    """Whether `airdma devices -v` says of a radio what `tc` and `iw` say."""
    queue = stand.guest.script(f"tc qdisc show dev {interface}")
    printed = stand.guest.script(f"iw dev {interface} info; iw dev {interface} station dump")
    said = stand.guest.script(f"{HOST_FOLDER}/bin/airdma devices -v")
    channel = re.search(r"channel (\d+) \((\d+) MHz\), width: (\d+) MHz", printed)
    stations = re.findall(r"^Station (\S+)", printed, re.MULTILINE)
    signals = re.findall(r"signal:\s+(\S+) dBm", printed)
    if not re.search(r"^qdisc noqueue", queue) or channel is None or not stations:
        return [f"no radio as it should be: {queue}{printed}"]
    wanted = ["noqueue", "{} ({} MHz), {} MHz wide".format(*channel.groups())]
    wanted += [f"station {mac}:  {signal} dBm" for mac, signal in zip(stations, signals, strict=True)]
    return [f"airdma devices -v lacks {words!r}: {said}" for words in wanted if words not in said]
