"""What other programs are built on: UCX, Open MPI, MPICH, libfabric, uDAPL."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from programs.line import SPINS, Line

HERE = Path(__file__).resolve().parent
_UCX = "ucx-utils"
_UCX_PORT = 13337
_RC = "rc_verbs,ud_verbs:aux"
"""What follows the colon only sets up connections."""
_UCX_TESTS = {
    _RC: [
        ("tag_lat", 8, 1000, ""),
        ("tag_lat", 8, 1000, "-E sleep -I"),
        ("tag_bw", 65536, 500, ""),
        ("tag_bw", 65536, 500, "-z"),
        ("tag_bw", 65536, 100, "-T 4 -M multi"),
        ("tag_bw", 1 << 20, 100, ""),
        ("tag_sync_lat", 4096, 500, ""),
        ("stream_lat", 8, 1000, ""),
        ("stream_bw", 65536, 500, ""),
        ("ucp_am_lat", 8, 1000, ""),
        ("ucp_am_bw", 65536, 500, ""),
        ("ucp_put_lat", 8, 1000, ""),
        ("ucp_put_bw", 65536, 500, ""),
        ("ucp_get", 65536, 200, ""),
        ("ucp_add", 8, 500, ""),
        ("ucp_fadd", 8, 500, ""),
        ("ucp_swap", 8, 500, ""),
        ("ucp_cswap", 8, 500, ""),
    ],
    "ud_verbs": [
        ("tag_lat", 8, 1000, ""),
        ("tag_bw", 65536, 200, ""),
        ("stream_bw", 65536, 200, ""),
        ("ucp_am_bw", 65536, 200, ""),
        ("ucp_put_bw", 65536, 200, ""),
        ("ucp_get", 65536, 100, ""),
    ],
}
"""Transports -> test, bytes of a message, messages, options."""
_FABRIC = "libfabric-bin"
_FABRIC_PORT = 47592

TWO_HOSTS = "{client}:2,{server}:2"
_ONE_HOST = "{client}:4"
_AGENT = """#!/bin/sh
# Runs a command on the host that is namespace $1; $2 is the name by which mpirun calls it.
namespace=$1
shift 2
exec ip netns exec "$namespace" setpriv --pdeathsig KILL sh -c "$*"
"""


_MPICH_AGENT = """#!/bin/sh
# The same for mpiexec of MPICH, which calls: agent -x HOST COMMAND.
shift 2
exec ip netns exec "$PEER_NAMESPACE" setpriv --pdeathsig KILL sh -c "$*"
"""


def _ucx_info() -> Line:
    """Looks at devices through sysfs."""
    found = [rf"Transport: {transport}\n# +Device: {{device}}:1" for transport in ("rc_verbs", "ud_verbs")]
    return Line(_UCX, "", "ucx_info -d", (*found, "Connection manager: rdmacm"), needs_device=False)


def _perftest(transports: str, test: str, size: int, count: int, options: str, gid: str = "{gid}") -> Line:
    command = f"ucx_perftest -t {test} -s {size} -n {count} -w 10 -p {_UCX_PORT} {options}".strip()
    return Line(
        _UCX,
        command,
        f"{command} {{server}}",
        (r"^Final: +\d",),
        bytes_min=count * size,
        setup={"UCX_TLS": transports, "UCX_NET_DEVICES": "{device}:1", "UCX_IB_GID_INDEX": gid},
        ready=_UCX_PORT,
    )


def _io_demo(transports: str, option: str) -> Line:
    """Connects by address, through RDMA CM; -q compares what arrives."""
    command = f"io_demo -p {_UCX_PORT} -d 1:200000 -q {option}".strip()
    return Line(
        _UCX,
        command,
        f"{command} -o read,write -i 500 {{server}}",
        (r"total min:500 max:500 total:500 .* read .* write ",),
        bytes_min=10_000_000,
        setup={"UCX_TLS": transports, "UCX_NET_DEVICES": "{device}:1", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm"},
        ready=SPINS,
        stays=True,
    )


def write_open_mpi_agent(folder: Path) -> None:
    """What starts the ranks on the other host."""
    _write_agent(folder / "agent", _AGENT)


def _compile_open_mpi(folder: Path) -> None:
    write_open_mpi_agent(folder)
    _compile_mpi(folder / "mpi_check", "mpicc.openmpi")


def _write_agent(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)


def _compile_mpi(program: Path, compiler: str) -> None:
    # MPICH's MPI_STATUSES_IGNORE is no array as long as gcc wants.
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overflow"]
    argv = [compiler, *flags, "-o", str(program), str(HERE / "mpi_check.c")]
    compiled = subprocess.run(argv, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        raise RuntimeError(compiled.stderr)


def _mpi(hosts: str, options: str, **setup: str) -> Line:
    return open_mpi(hosts, options, program="{folder}/mpi_check", before=_compile_open_mpi, **setup)


def open_mpi(hosts: str, options: str, program: str, before: Callable[[Path], None], **setup: str) -> Line:
    """A program that says how many ranks exchanged what they should."""
    ranks = sum(int(host.rpartition(":")[2]) for host in hosts.split(","))
    return Line(
        "openmpi-bin",
        "",
        f"mpirun --host {hosts} --bind-to none {options} --mca plm_rsh_agent '{{folder}}/agent {{server_namespace}}'"
        f" {program}",
        (f"^{ranks} ranks exchanged what they should",),
        bytes_min=3_000_000 * ranks,
        setup={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **setup},
        before=before,
    )


def _compile_mpich(folder: Path) -> None:
    _write_agent(folder / "mpich_agent", _MPICH_AGENT)
    _compile_mpi(folder / "mpich_check", "mpicc.mpich")


def _mpich(hosts: str, transports: str) -> Line:
    """MPICH with its device for UCX."""
    ranks = sum(int(host.rpartition(":")[2]) for host in hosts.split(","))
    return Line(
        "mpich",
        "",
        f"mpiexec.mpich -hosts {hosts} -n {ranks} -localhost {{client}} -launcher-exec {{folder}}/mpich_agent"
        " {folder}/mpich_check",
        (f"^{ranks} ranks exchanged what they should",),
        bytes_min=3_000_000 * ranks,
        setup={"UCX_TLS": transports, "UCX_NET_DEVICES": "{device}:1", "PEER_NAMESPACE": "{server_namespace}"},
        before=_compile_mpich,
    )


def _mpi_ucx(hosts: str, transports: str) -> Line:
    """UCX may not use shared memory: even ranks of one host talk over the device."""
    setup = {"UCX_TLS": transports, "UCX_NET_DEVICES": "{device}:1"}
    return _mpi(hosts, "--mca pml ucx --mca osc ucx", **setup)


def _compile_reader(folder: Path) -> None:
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    source = HERE.parent / "dropin_reader.c"
    subprocess.run(["cc", *flags, "-o", str(folder / "dropin_reader"), str(source), "-ldl"], check=True)


def _reader(dropin: bool) -> Line:
    """Finds both libraries as NCCL does: dlopen(3), and each call by its version. The genuine ones
    lie beside the preload.
    """
    return Line(
        "",
        "",
        "{folder}/dropin_reader",
        ("^{device}: MTU 1024", "^opened by librdmacm: {device}", f"^files: {1 if dropin else 3}$"),
        before=_compile_reader,
        needs_device=False,
        dropin=dropin,
    )


def _write_dat_conf(folder: Path) -> None:
    (folder / "dat.conf").write_text(
        'cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "eth0 0" ""\n', encoding="utf-8"
    )


def _dapltest() -> Line:
    """uDAPL, whose endpoints are connected by RDMA CM."""
    work = "client SR 4096 server SR 4096 client RW 65536 server RR 65536"
    return Line(
        "dapl2-utils",
        "dapltest -T S -D cma",
        f"dapltest -T T -D cma -s {{server}} -i 20 -t 2 -w 2 {work}",
        ("End of Work -- Client Exiting",),
        bytes_min=5_000_000,
        setup={"DAT_OVERRIDE": "{folder}/dat.conf"},
        stays=True,
        before=_write_dat_conf,
    )


def _pingpong(provider: str, kind: str, options: str) -> Line:
    """Messages of 64 bytes to 1 MiB, datagrams of what fits; -c compares what arrives."""
    command = f"fi_pingpong -p {provider} -e {kind} -c -I 20 {options}".strip()
    last, least = ("1k", 40_000) if kind == "dgram" else ("1m", 40 << 20)
    return Line(
        _FABRIC, command, f"{command} {{server}}", (rf"^{last} +20 +=20 ",), bytes_min=least, ready=_FABRIC_PORT
    )


MIDDLEWARE = [
    _ucx_info(),
    *(_perftest(transports, *test) for transports, tests in _UCX_TESTS.items() for test in tests),
    *(_perftest("ib", test, size, 500, "", "{gid6}") for test, size in (("tag_bw", 65536), ("ucp_get", 4096))),
    _io_demo("rc_verbs", ""),
    _io_demo("rc_verbs", "-A"),
    _io_demo("ud_verbs", ""),
    # What UCX takes by itself. Two ranks of one host would take shared memory.
    _mpi("{client}:1,{server}:1", "--mca pml ucx --mca osc ucx"),
    *(_mpi_ucx(hosts, tls) for hosts in (TWO_HOSTS, _ONE_HOST) for tls in (f"{_RC},self", "ud_verbs,self")),
    _mpich(TWO_HOSTS, f"{_RC},self"),
    _mpi(TWO_HOSTS, "--mca pml cm --mca mtl ofi --mca osc pt2pt", FI_PROVIDER="verbs;ofi_rxm"),
    *(_reader(dropin) for dropin in (False, True)),
    _dapltest(),
    Line(
        _FABRIC, "", "fi_info -p verbs", ("provider: verbs", "domain: {device}", "type: FI_EP_MSG"), needs_device=False
    ),
    _pingpong("verbs", "msg", ""),
    _pingpong("verbs", "dgram", ""),
    _pingpong("'verbs;ofi_rxm'", "rdm", ""),
    _pingpong("'verbs;ofi_rxm'", "rdm", "-m tagged"),
    _pingpong("'verbs;ofi_rxd'", "rdm", ""),
]
