"""The programs that must run, and on what.

UD appears on clean links only: it has no recovery, and none of the stock UD programs finishes when
a datagram is lost or doubled, on any device. UD bandwidth runs fit the receive queue, since a
datagram without a posted receive is lost by specification. perftest has no events (`-e`) for WRITE,
and its bidirectional SEND of many queue pairs gives up on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from case import Case, Link
from output_checks import ALL_SIZES, client_says, rounds_of, says, table_of

LINKS = [Link(1500, 4), Link(4200, 4), Link(1500, 6)]
FULL_LINKS = [*LINKS, Link(4200, 6), Link(9000, 4)]
PLAIN = Link(1500, 4)
SERVICE_LINKS = [PLAIN, Link(4200, 6)]
"""What services beyond RC and UD run on: nothing in them depends on the link that RC does not try.
"""
UNSEGMENTED = [Link(1500, 4, segment_offload=False), Link(4200, 6, segment_offload=False)]
MULTICAST_GID = {
    4: ":".join(map(str, [0] * 10 + [255, 255, 239, 7, 7, 7])),
    6: ":".join(map(str, [255, 21] + [0] * 12 + [7, 7])),
}
"""By address family: ::ffff:239.7.7.7 and ff15::707, as perftest wants them."""
IMPAIRMENTS = ["drop=1%", "dup=1%", "reorder=1%"]


def cases(verbs_check: str, full: bool) -> Iterator[Case]:
    """All cases, grouped by link. `verbs_check` is the path of the built data checker."""
    for link in FULL_LINKS if full else LINKS:
        for number, case in enumerate(_clean(verbs_check, link)):
            # perftest measures the CPU's clock for 0.2 s before each line of a table: 5 s for all
            # sizes.
            is_slow = "-a" in case.argv
            if full or link == PLAIN:
                yield replace(case, link=link)
                if full or not is_slow:
                    yield replace(case, link=link, swapped=True)
            elif not (is_slow and case.argv[0].endswith("_lat")):
                # The hosts are alike: one direction, in turns.
                yield replace(case, link=link, swapped=number % 2 == 1)
    for link in FULL_LINKS if full else SERVICE_LINKS:
        for case in [*_services(link), *_depths(), _check(verbs_check, ["-l"], "limits reached")]:
            yield replace(case, link=link)
            if full:
                yield replace(case, link=link, swapped=True)
    for link in UNSEGMENTED:
        for case in _unsegmented(verbs_check):
            yield replace(case, link=link)
            yield replace(case, link=link, nft_drop_percent=1, rises=("retransmits",))
    for link in FULL_LINKS if full else [PLAIN]:
        for impairment in IMPAIRMENTS:
            for case in _impaired(verbs_check):
                impaired = replace(case, link=link, impair=impairment, rises=_rising(impairment, case))
                yield impaired
                if full:
                    yield replace(impaired, swapped=True)


def _clean(verbs_check: str, link: Link) -> Iterator[Case]:
    path_mtu = 1024 if link.mtu == 1500 else 4096
    yield _pingpong("ibv_rc_pingpong", [])
    yield _pingpong("ibv_rc_pingpong", ["-e"])
    yield _pingpong("ibv_rc_pingpong", ["-s", "1048576"], iterations=50)
    # Any path MTU of the port works on any interface: what does not fit leaves in fragments.
    yield _pingpong("ibv_rc_pingpong", ["-s", "1048576", "-m", "256"], iterations=20)
    too_big = ("tx_fragmented",) if link.mtu == 1500 else ()
    yield replace(
        _pingpong("ibv_rc_pingpong", ["-s", "1048576", "-m", "4096"], iterations=20), port_mtu=4096, rises=too_big
    )
    yield _pingpong("ibv_ud_pingpong", ["-s", str(path_mtu)])
    yield _pingpong("ibv_ud_pingpong", ["-s", "64", "-e"])
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        yield _perftest(program, [])
        yield _perftest(program, ["-a"], iterations=20)
        yield _perftest(program, ["-q", "16"])
        yield _perftest(program, ["-b"])
        yield _perftest(program, ["-q", "16", "-b"])
        if program != "ib_write_bw":
            yield _perftest(program, ["-e"])
    for kind in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
        yield _perftest("ib_atomic_bw", ["-A", kind])
        yield _perftest("ib_atomic_lat", ["-A", kind])
    for option in (["-q", "16"], ["-b"], ["-e"]):
        yield _perftest("ib_atomic_bw", option)
    yield _perftest("ib_atomic_lat", ["-e"])
    for program in ("ib_send_lat", "ib_write_lat", "ib_read_lat"):
        yield _perftest(program, [])
        yield _perftest(program, ["-a"], iterations=10)
        if program != "ib_write_lat":
            yield _perftest(program, ["-e"])
    yield _perftest("ib_send_bw", ["-c", "UD"], iterations=400)
    yield _perftest("ib_send_bw", ["-c", "UD", "-a"], iterations=400, largest=path_mtu)
    yield _perftest("ib_send_bw", ["-c", "UD", "-e"], iterations=400)
    yield _perftest("ib_send_bw", ["-c", "UD", "-q", "16"], iterations=100)
    yield _perftest("ib_send_bw", ["-c", "UD", "-b"], iterations=400)
    yield _perftest("ib_send_bw", ["-c", "UD", "-g", "-M", MULTICAST_GID[link.family]], iterations=400)
    yield _perftest("ib_send_lat", ["-c", "UD", "-g", "-M", MULTICAST_GID[link.family]])
    yield _perftest("ib_send_lat", ["-c", "UD"])
    yield _perftest("ib_send_lat", ["-c", "UD", "-a"], iterations=20, largest=path_mtu)
    yield _perftest("ib_send_lat", ["-c", "UD", "-e"])
    yield _check(verbs_check, [], "bytes intact")
    yield _check(verbs_check, ["-u"], "bytes intact")
    yield replace(_check(verbs_check, ["-e"], "faults refused"), rises=("remote_access_errors", "rnr_naks_sent"))


def _services(link: Link) -> Iterator[Case]:
    """Unreliable and extended connections, shared receive queues, and the other interfaces of
    rdma-core's examples.
    """
    path_mtu = 1024 if link.mtu == 1500 else 4096
    yield _pingpong("ibv_uc_pingpong", [])
    yield _pingpong("ibv_uc_pingpong", ["-e"])
    yield _pingpong("ibv_srq_pingpong", [])
    yield _pingpong("ibv_srq_pingpong", ["-e", "-q", "4"])
    yield Case(["ibv_xsrq_pingpong", "-n", "100"], client_says("success"), gid_option="-g")
    # On-demand paging, with prefetch; device memory; the new way to post; timestamps. Not
    # timestamps with events: it gives up when two completions came by one event, as may happen on
    # any device.
    for option in (["-o"], ["-o", "-P"], ["-j"], ["-N"], ["-N", "-e"], ["-t"], ["-t", "-N"]):
        yield _pingpong("ibv_rc_pingpong", option)
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"):
        yield _perftest(program, ["-c", "XRC"])
        yield _perftest(program, ["-c", "XRC", "-q", "4"], iterations=200)
    for program in ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"):
        yield _perftest(program, ["-c", "XRC"])
    # As with datagrams, what finds no receive, or no room in a socket, is lost: SEND fits the
    # receive queue.
    yield _perftest("ib_write_bw", ["-c", "UC"])
    yield _perftest("ib_write_lat", ["-c", "UC"])
    yield _perftest("ib_send_lat", ["-c", "UC"])
    yield _perftest("ib_send_lat", ["-c", "UC", "-e"])
    yield replace(
        _perftest("ib_send_bw", ["-c", "UC", "-s", str(path_mtu)], iterations=100), check=table_of([path_mtu])
    )
    yield _perftest("ib_send_bw", ["--use-srq"])
    yield _perftest("ib_send_bw", ["--use-srq", "-q", "8", "-b"])
    yield _perftest("ib_send_lat", ["--use-srq"])
    yield _perftest("ib_send_bw", ["--use-srq", "-c", "UD"], iterations=400)


def _depths() -> Iterator[Case]:
    """Many queue pairs, shallow and deep queues, inline data, a given time."""
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        yield _perftest(program, ["-q", "64"], iterations=100)
        yield _perftest(program, ["-t", "1"], iterations=100)
        yield _perftest(program, ["-t", "4096"], iterations=5000)
        yield Case([program, "-F", "-D", "1", "-s", "4096"], table_of([4096]), gid_option="-x")
    yield _perftest("ib_send_bw", ["-t", "1", "-r", "1"], iterations=100)
    yield _perftest("ib_send_bw", ["-r", "4096"], iterations=5000)
    for program in ("ib_send_lat", "ib_write_lat"):
        for inline in ("64", "512"):
            argv = [program, "-F", "-n", "300", "-s", inline, "-I", inline]
            yield Case(argv, table_of([int(inline)]), gid_option="-x")


def _unsegmented(verbs_check: str) -> Iterator[Case]:
    yield _pingpong("ibv_rc_pingpong", ["-s", "65536"], iterations=100)
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        yield _perftest(program, [])
    yield _check(verbs_check, [], "bytes intact")


def _impaired(verbs_check: str) -> Iterator[Case]:
    yield _pingpong("ibv_rc_pingpong", ["-s", "65536"], iterations=200)
    yield _pingpong("ibv_rc_pingpong", ["-e"], iterations=200)
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        yield _perftest(program, [], iterations=500)
        yield _perftest(program, ["-a"], iterations=5)
        yield _perftest(program, ["-q", "16"], iterations=100)
        yield _perftest(program, ["-b"], iterations=300)
    yield _perftest("ib_atomic_bw", [])
    for program in ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"):
        yield _perftest(program, [], iterations=300)
    yield _check(verbs_check, ["-r", "2"], "bytes intact")


def _rising(impairment: str, case: Case) -> tuple[str, ...]:
    if impairment == "reorder=1%" and case.argv[0].endswith("_lat"):
        return ()  # one packet in flight has none to overtake
    return {
        "drop=1%": ("retransmits",),
        "dup=1%": ("duplicates",),
        "reorder=1%": ("out_of_order", "implied_naks"),
    }[impairment]


def _pingpong(program: str, options: list[str], iterations: int = 500) -> Case:
    return Case([program, "-c", "-n", str(iterations), *options], rounds_of(iterations), gid_option="-g")


def _perftest(program: str, options: list[str], iterations: int = 500, largest: int | None = None) -> Case:
    default = 8 if "atomic" in program else 2 if program.endswith("_lat") else 65536
    if "UD" in options:
        default = 2 if program.endswith("_lat") else 1024
    sizes = ALL_SIZES if "-a" in options else [default]
    size = [] if "-a" in options or "atomic" in program else ["-s", str(default)]
    argv = [program, "-F", "-n", str(iterations), *size, *options]
    return Case(argv, table_of(sizes, largest=largest), gid_option="-x")


def _check(verbs_check: str, options: list[str], text: str) -> Case:
    return Case([verbs_check, *options], says(text), gid_option="-g")
