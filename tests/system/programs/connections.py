"""What connects by address, through librdmacm: its own programs, and perftest."""

from __future__ import annotations

from programs.line import Line

_RDMACM = "rdmacm-utils"

CONNECTIONS = [
    Line(
        _RDMACM,
        "rping -s -a {server} -V -C 20 -S 4000",
        "rping -c -a {server} -V -v -C 20 -S 4000",
        ("ping data: rdma-ping-19",),
        bytes_min=160_000,
    ),
    Line(_RDMACM, "rping -s -a {server6} -V -C 20", "rping -c -a {server6} -V -v -C 20", ("ping data: rdma-ping-19",)),
    Line(
        _RDMACM, "rping -s -q -a {server} -V -C 20", "rping -c -q -a {server} -V -v -C 20", ("ping data: rdma-ping-19",)
    ),
    Line(
        _RDMACM,
        "rping -s -P -a {server} -V",
        "rping -c -a {server} -V -v -C 3000",
        ("ping data: rdma-ping-2999",),
        clients=4,
        stays=True,
    ),
    Line(
        _RDMACM,
        "ucmatose -c 4 -C 20 -S 3000",
        "ucmatose -s {server} -c 4 -C 20 -S 3000",
        ("data transfers complete", "return status 0"),
        bytes_min=240_000,
    ),
    Line(_RDMACM, "ucmatose -m", "ucmatose -s {server} -m", ("data transfers complete", "return status 0")),
    Line(
        _RDMACM,
        "ucmatose -b {server6}",
        "ucmatose -s {server6} -f ipv6",
        ("data transfers complete", "return status 0"),
    ),
    Line(
        _RDMACM,
        "udaddy -c 2 -C 20 -S 900",
        "udaddy -s {server} -c 2 -C 20 -S 900",
        ("data transfers complete", "return status 0"),
        bytes_min=36_000,
    ),
    Line(
        _RDMACM,
        "mckey -m 239.1.1.1 -b {server} -C 20",
        "mckey -m 239.1.1.1 -b {client} -s -C 20",
        ("data transfers complete", "return status 0"),
        server_says=("data transfers complete",),
    ),
    Line(
        _RDMACM, "cmtime -c 500", "cmtime -s {server} -c 500", ("connect", "disconnect"), stays=True, bytes_min=300_000
    ),
    Line(_RDMACM, "rdma_server", "rdma_client -s {server}", ("end 0",), server_says=("end 0",)),
    Line(_RDMACM, "rdma_xserver", "rdma_xclient -s {server}", ("end 0",), server_says=("end 0",)),
    Line(_RDMACM, "rdma_xserver -c x", "rdma_xclient -s {server} -c x", ("end 0",), server_says=("end 0",)),
    Line(
        "perftest",
        "ib_write_bw -R -F -n 500",
        "ib_write_bw -R -F -n 500 {server}",
        (r"^ 65536 +500 ",),
        bytes_min=500 * 65536,
    ),
    Line(
        "perftest",
        "ib_send_bw -R -F -n 500 -q 4",
        "ib_send_bw -R -F -n 500 -q 4 {server}",
        (r"^ 65536 +2000 ",),
        bytes_min=2000 * 65536,
    ),
    Line(
        "perftest",
        "ib_read_bw -R -F -n 500",
        "ib_read_bw -R -F -n 500 {server}",
        (r"^ 65536 +1000 |^ 65536 +500 ",),
        bytes_min=500 * 65536,
    ),
    Line(
        "perftest",
        "ib_send_bw -R -F -n 500 -c UD",
        "ib_send_bw -R -F -n 500 -c UD {server}",
        (r"^ 1024 +500 ",),
        bytes_min=400 * 1024,
    ),
    Line("perftest", "ib_send_lat -R -F -n 500 -c UD", "ib_send_lat -R -F -n 500 -c UD {server}", (r"^ 2 +500 ",)),
    Line("perftest", "ib_atomic_lat -R -F -n 500", "ib_atomic_lat -R -F -n 500 {server}", (r"^ 8 +500 ",)),
]
