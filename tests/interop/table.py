"""What runs between airdma and the kernel's rxe: every line with airdma at either end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from programs.line import RDMA, Line
from stand import name_of

if TYPE_CHECKING:
    from stand import Stand

DIRECTIONS = ("airdma -> rxe", "rxe -> airdma")
"""Client and server."""
CONTROL_PORT = 18515
CHECK_S = 120.0
"""rxe without acceleration moves 20 to 60 MB/s."""


@dataclass(frozen=True)
class Scenario:
    """A line on the wire."""

    line: Line
    mtu: int = 1500
    netem: str = ""
    """What the guest's kernel does to packets of both directions: arguments of tc's netem."""
    quick: bool = False
    """Among those of `make test`."""
    kernels: tuple[str, ...] = ("6.1", "6.12")
    """Those with an rxe that has what it needs."""

    @property
    def where(self) -> str:
        """What is special about the wire."""
        mtu = [f"mtu{self.mtu}"] if self.mtu != 1500 else []
        return ", ".join([*mtu, *([f"netem {self.netem}"] if self.netem else [])])

    def run(self, direction: str, stand: Stand) -> None:
        """Runs it with airdma at one end."""
        stand.set_mtu(self.mtu)
        stand.run_line(stand.wire(), self.line, direction, self.where, self.netem)


def _verbs(program: str, says: str, *, bytes_min: int = 1000, timeout_s: float = CHECK_S) -> Line:
    server = f"{{folder}}/{program}"
    client = f"{server} {{server}}"
    return Line("", server, client, (says,), (says,), ready=CONTROL_PORT, bytes_min=bytes_min, timeout_s=timeout_s)


def _stock(
    package: str, command: str, says: str, *, ready: int | str = CONTROL_PORT, timeout_s: float = CHECK_S
) -> Line:
    return Line(package, command, f"{command} {{server}}", (says,), ready=ready, timeout_s=timeout_s)


def _perftest(command: str, row: str) -> Line:
    return _stock("perftest", f"{command} -d {{device}} -x {{gid}} -F", rf"^ *{row} ")


def _pingpong(command: str, iterations: int) -> Line:
    return _stock("ibverbs-utils", f"{command} -d {{device}} -g {{gid}} -n {iterations}", f"{iterations} iters in")


_RC = _verbs("verbs_check -d {device} -g {gid}", "bytes intact", bytes_min=50_000_000)
_RC6 = _verbs("verbs_check -d {device} -g {gid6}", "bytes intact", bytes_min=50_000_000)

DATA = [
    Scenario(_RC, quick=True),
    Scenario(_RC6, quick=True),
    Scenario(_verbs("verbs_check -d {device} -g {gid} -m 256", "bytes intact")),
    Scenario(_verbs("verbs_check -d {device} -g {gid} -m 512", "bytes intact")),
    Scenario(_verbs("verbs_check -d {device} -g {gid} -m 2048", "bytes intact"), mtu=4200),
    Scenario(_verbs("verbs_check -d {device} -g {gid} -m 4096", "bytes intact"), mtu=4200, quick=True),
    Scenario(_verbs("verbs_check -d {device} -g {gid6} -m 4096", "bytes intact"), mtu=4200),
    Scenario(_verbs("verbs_check -d {device} -g {gid} -u", "datagrams of 0 to 1024 bytes intact"), quick=True),
    Scenario(_verbs("verbs_check -d {device} -g {gid6} -u", "datagrams of 0 to 1024 bytes intact"), quick=True),
    Scenario(_verbs("verbs_check -d {device} -g {gid} -e", "faults refused"), quick=True),
    *(
        Scenario(_verbs(f"verbs_services -d {{device}} -g {{{gid}}} atomic", "^[0-9]+ good"), kernels=("6.12",))
        for gid in ("gid", "gid6")
    ),
    *(
        Scenario(_verbs(f"verbs_services -d {{device}} -g {{{gid}}} {mode}", "^[0-9]+ good"), quick=True)
        for mode in ("uc", "shared", "many", "patient", "inline", "refusals")
        for gid in ("gid", "gid6")
    ),
    *(
        Scenario(_verbs(f"verbs_services -d {{device}} -g {{{gid}}} records", "^[0-9]+ good"), quick=gid == "gid")
        for gid in ("gid", "gid6")
    ),
]
"""Every byte is compared at both ends."""

STOCK = [
    Scenario(_pingpong("ibv_rc_pingpong", 1000), quick=True),
    Scenario(_pingpong("ibv_rc_pingpong -e", 500)),
    Scenario(_pingpong("ibv_uc_pingpong", 500), quick=True),
    Scenario(_pingpong("ibv_ud_pingpong -s 1024", 500), quick=True),
    Scenario(_pingpong("ibv_srq_pingpong -q 4", 500), quick=True),
    Scenario(_stock("ibverbs-utils", "ibv_rc_pingpong -d {device} -g {gid6} -n 500", "500 iters in")),
    Scenario(_perftest("ib_send_bw -n 200", "65536 +200"), quick=True),
    Scenario(_perftest("ib_send_bw -a -n 5", "8388608 +5")),
    Scenario(_perftest("ib_write_bw -n 200", "65536 +200"), quick=True),
    Scenario(_perftest("ib_write_bw -a -n 5", "8388608 +5")),
    Scenario(_perftest("ib_read_bw -n 200", "65536 +200"), quick=True),
    Scenario(_perftest("ib_read_bw -a -n 5", "8388608 +5")),
    Scenario(_perftest("ib_send_bw -b -n 200", "65536 +200")),
    Scenario(_perftest("ib_write_bw -b -n 200", "65536 +200")),
    Scenario(_perftest("ib_read_bw -b -n 200", "65536 +200")),
    Scenario(_perftest("ib_write_bw -q 64 -n 50 -s 4096", "4096 +3200")),
    Scenario(_perftest("ib_read_bw -q 64 -n 50 -s 4096", "4096 +3200")),
    Scenario(_perftest("ib_atomic_bw -n 500", "8 +500")),
    Scenario(_perftest("ib_atomic_bw -A CMP_AND_SWAP -n 500", "8 +500")),
    Scenario(_perftest("ib_send_lat -a -n 5", "8388608 +5")),
    Scenario(_perftest("ib_write_lat -a -n 5", "8388608 +5")),
    Scenario(_perftest("ib_read_lat -a -n 5", "8388608 +5")),
    Scenario(_perftest("ib_send_lat -n 500", "2 +500"), quick=True),
    Scenario(_perftest("ib_write_lat -n 500", "2 +500"), quick=True),
    Scenario(_perftest("ib_read_lat -n 500", "2 +500"), quick=True),
    Scenario(_perftest("ib_atomic_lat -n 300", "8 +300"), quick=True),
    Scenario(_perftest("ib_send_bw -c UD -s 1024 -n 400", "1024 +400")),
    Scenario(_perftest("ib_send_lat -c UD -n 300", "2 +300")),
    Scenario(_perftest("ib_write_bw -c UC -s 4096 -n 200", "4096 +200")),
    Scenario(_perftest("ib_send_lat -c UC -n 300", "2 +300")),
    Scenario(_perftest("ib_send_bw --use-srq -n 200", "65536 +200")),
]
"""Programs as Debian ships them."""

_CM = "rdmacm-utils"


def rping(address: str, options: str) -> Line:
    server = f"rping -s -a {{{address}}} -V {options}"
    return Line(_CM, server, f"rping -c -a {{{address}}} -V -v {options}", ("ping data: rdma-ping-19",))


CONNECTIONS = [
    Scenario(rping("server", "-C 20"), quick=True),
    Scenario(rping("server6", "-C 20"), quick=True),
    Scenario(rping("server", "-C 20 -S 30000")),
    Scenario(
        Line(
            _CM, "ucmatose -c 4 -C 20 -S 3000", "ucmatose -s {server} -c 4 -C 20 -S 3000", ("data transfers complete",)
        ),
        quick=True,
    ),
    Scenario(
        Line(_CM, "udaddy -c 2 -C 20 -S 900", "udaddy -s {server} -c 2 -C 20 -S 900", ("data transfers complete",)),
        quick=True,
    ),
    Scenario(Line(_CM, "ucmatose -b {server6}", "ucmatose -s {server6} -f ipv6", ("data transfers complete",))),
    Scenario(Line(_CM, "rdma_server", "rdma_client -s {server}", ("end 0",), server_says=("end 0",)), quick=True),
    Scenario(
        Line(
            _CM, "cmtime -c 500", "cmtime -s {server} -c 500", ("connect", "disconnect"), stays=True, timeout_s=CHECK_S
        ),
        quick=True,
    ),
    *(
        Scenario(
            Line(
                "",
                f"{{folder}}/cm_check {{{server}}}",
                f"{{folder}}/cm_check -c {{{server}}}",
                ("^refused, accepted, ended",),
                ("^refused, accepted, ended",),
                bytes_min=500,
            ),
            quick=True,
        )
        for server in ("server", "server6")
    ),
    Scenario(
        Line(
            "perftest", "ib_write_bw -R -F -n 200", "ib_write_bw -R -F -n 200 {server}", ("^ 65536 +200 ",), ready=RDMA
        )
    ),
]
"""By RDMA CM."""

# At 5 %, rxe gets some 20 packets of a READ for each timeout of 67 ms, and so 8 MiB in half a
# minute.
_PATIENT_RC = _verbs("verbs_check -w 200 -d {device} -g {gid}", "bytes intact", bytes_min=50_000_000, timeout_s=600)
# The kernel says DREQ once when the client's process ends at once, as rping's does: where that is
# lost, the server is never told.
_LONG_RPING = replace(rping("server", "-C 20 -S 8000"), timeout_s=CHECK_S, stays=True)
# "reorder 5%": one of twenty overtakes those that are delayed. With jitter, or 75 %, hardly two
# packets stay in order, and going back to the first that is missing, which is all that rxe can do,
# moves a packet or two in each round trip.
_TROUBLES = ("loss 0.1%", "loss 1%", "loss 5%", "duplicate 2%", "delay 2ms reorder 5%", "delay 5ms", "corrupt 1%")

TROUBLED = [
    *(
        Scenario(line, netem=netem, quick=netem == "loss 1%" and line is not _LONG_RPING)
        for netem in _TROUBLES
        for line in (
            _PATIENT_RC,
            replace(_perftest("ib_write_bw -n 100", "65536 +100"), timeout_s=300),
            _LONG_RPING,
        )
    ),
    Scenario(_verbs("verbs_services -d {device} -g {gid} many", "^[0-9]+ good"), netem="loss 5%", quick=True),
    Scenario(_verbs("verbs_services -d {device} -g {gid} patient", "^[0-9]+ good"), netem="loss 5%", quick=True),
]
"""On a wire that loses, repeats, delays, disorders and damages packets."""

SCENARIOS = [*DATA, *STOCK, *CONNECTIONS, *TROUBLED]


def work(quick: bool, kernel: str) -> list[tuple[str, Callable[[Stand], None]]]:
    """Each in both directions, by name; grouped by MTU, since a change takes the devices down."""
    chosen = [scenario for scenario in SCENARIOS if (scenario.quick or not quick) and kernel in scenario.kernels]
    return [
        (name_of(scenario.line, direction, scenario.where), partial(scenario.run, direction))
        for scenario in sorted(chosen, key=lambda scenario: scenario.mtu)
        for direction in DIRECTIONS
    ]
