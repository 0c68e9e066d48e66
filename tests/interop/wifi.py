"""The same over simulated radios in the guest: airdma at one end or at both, with and without air
mode, on interfaces whose queue is `noqueue`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airdma_lab import build
from ends import AirdmaGuestEnd, RxeEnd
from guest import HOST_FOLDER, GuestError
from programs.line import Line
from stand import Link, short_name
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
    if scenario.quick
    and not scenario.netem
    and scenario.mtu == 1500
    and not re.search("services.*gid6", scenario.line.client)
]
"""Those of `make test` on a clean wire of the usual MTU; the services over one family of addresses
only.
"""
_RELIABLE = (
    r"verbs_check( IPv6)?|verbs_services (shared|many|inline)|ibv_(rc|srq)_pingpong .*|ib_(send|write|read)_bw .*"
)
AIR_LINES = [line for line in LINES if re.fullmatch(_RELIABLE, short_name(line))]
"""The lines that move data over reliable connections, in air mode, which a radio turns on.
"""
WITHOUT_AIR = [replace(line, setup={"AIRDMA_AIR": "0"}) for line in LINES]
AIR_LINES_QUICK = [
    replace(
        line,
        client=line.client.replace("-n 200", "-n 40"),
        server=line.server.replace("-n 200", "-n 40"),
        says=("65536 +40 ",),
    )
    for line in AIR_LINES
    if short_name(line).startswith("ib_write_bw")
]
"""Short: the radios' cipher is computed by an emulated CPU."""
AIR_COUNTERS = ("air_agreed", "air_reports_sent", "air_reports_received")
"""They rise at both ends if each has found the other, and uses what they agreed on."""


def work(quick: bool) -> list[tuple[str, Callable[[Stand], None]]]:
    """Each mode, by name: in air mode, then without it and beside rxe."""
    air: list[tuple[str, Callable[[Stand], None]]] = [
        (f"Wi-Fi: {what}: air mode", partial(_run, partial(_in_air_mode, quick), mode)) for mode, what in MODES.items()
    ]
    plain = [(f"Wi-Fi: {what}", partial(_run, _plain, mode)) for mode, what in MODES.items()]
    return air if quick else [*air, *plain]


@contextmanager
def _radios(stand: Stand, mode: str) -> Iterator[tuple[str, str]]:
    """Two radios that are connected; the names of their interfaces."""
    try:
        here, there = stand.guest.script(f"wifi {mode}", SET_UP_S).split()[-2:]
        yield here, there
    finally:
        with suppress(GuestError):
            stand.guest.script("wifi down || true", SET_UP_S)


Between = Callable[["Stand", str, str, str], None]
"""What is run between two radios: the stand, the mode, the interface of either side."""


def _run(between: Between, mode: str, stand: Stand) -> None:
    stand.set_mtu(1500)
    for name in ("airdma", "libairdma.so"):
        shutil.copy(build.binary().with_name(name), stand.guest.folder / "bin")
    stand.rxe.tear_down()
    try:
        with _radios(stand, mode) as (here, there):
            between(stand, mode, here, there)
    finally:
        with suppress(GuestError):
            stand.rxe.set_up()


def _both(stand: Stand, here: str, there: str) -> Link:
    airdma = AirdmaGuestEnd(stand.guest, there, THERE_IPV4, THERE_IPV6, "w1")
    other = AirdmaGuestEnd(stand.guest, here, HERE_IPV4, HERE_IPV6)
    ours = (THERE_IPV4, THERE_IPV6, HERE_IPV4, HERE_IPV6)
    return Link({"airdma": airdma, "airdma here": other}, ours, partial(stand.guest.capture_inside, here))


def _in_air_mode(quick: bool, stand: Stand, mode: str, here: str, there: str) -> None:
    both = _both(stand, here, there)
    for line in AIR_LINES_QUICK if quick else AIR_LINES:
        stand.run_line(both, line, "airdma -> airdma here", f"Wi-Fi {mode}, air mode", rises=AIR_COUNTERS)
    stand.judge(both, f"what the radios say of each other [Wi-Fi {mode}]", lambda: _stations(stand, here, there))


def _plain(stand: Stand, mode: str, here: str, there: str) -> None:
    both = _both(stand, here, there)
    stand.judge(both, f"the queue of {here} is noqueue [Wi-Fi {mode}]", lambda: _link(stand, here))
    for line in WITHOUT_AIR:
        stand.run_line(both, line, "airdma -> airdma here", f"Wi-Fi {mode}")
    rxe = RxeEnd(stand.guest, here, HERE_IPV4, HERE_IPV6)
    rxe.set_up()
    mixed = replace(both, ends={"airdma": both.ends["airdma"], "rxe": rxe}, ours=(THERE_IPV4, THERE_IPV6))
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


def _stations(stand: Stand, here: str, there: str) -> list[str]:
    """Complaints unless `airdma devices -v` shows the other radio's bit rates, at either end."""
    complaints = []
    for interface, within in ((here, ""), (there, "ip netns exec w1 ")):
        printed = stand.guest.script(f"{within}iw dev {interface} station dump")
        said = stand.guest.script(f"{within}{HOST_FOLDER}/bin/airdma devices -v")
        stations = re.findall(r"^Station (\S+)", printed, re.MULTILINE)
        # They move on between the two looks, so they are not compared.
        rates = r"sends [1-9][\d.]* Mb/s.*, receives [1-9][\d.]* Mb/s"
        wrong = [mac for mac in stations if not re.search(rf"station {mac}: .*{rates}", said)]
        if wrong or not stations:
            complaints.append(f"{interface}: airdma devices -v lacks rates of {wrong}: {said}\n{printed}")
    return complaints
