"""Tools that the lab calls, and the Debian packages that bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

PACKAGES: dict[str, str] = {
    "ip": "iproute2",
    "nft": "nftables",
    "taskset": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "cc": "gcc",
    "make": "make",
    "iperf3": "iperf3",
    "sockperf": "sockperf",
    "ibv_devices": "ibverbs-utils",
    "ibv_asyncwatch": "ibverbs-utils",
    "ibv_devinfo": "ibverbs-utils",
    "ibv_rc_pingpong": "ibverbs-utils",
    "ibv_ud_pingpong": "ibverbs-utils",
    "ib_send_bw": "perftest",
    "ib_send_lat": "perftest",
    "ib_write_bw": "perftest",
    "ib_write_lat": "perftest",
    "ib_read_bw": "perftest",
    "ib_read_lat": "perftest",
    "ib_atomic_bw": "perftest",
    "ib_atomic_lat": "perftest",
    "perf": "linux-perf",
    "cmtime": "rdmacm-utils",
    "rping": "rdmacm-utils",
    "rstream": "rdmacm-utils",
    "ucx_info": "ucx-utils",
    "ucx_perftest": "ucx-utils",
    "qperf": "qperf",
    "fio": "fio",
    "fi_pingpong": "libfabric-bin",
    "mpirun": "openmpi-bin",
    "mpicc": "libopenmpi-dev",
    "mpicc.openmpi": "libopenmpi-dev",
    "mpicc.mpich": "libmpich-dev",
    "mpiexec.mpich": "mpich",
    "dapltest": "dapl2-utils",
    "pip": "python3-pip",
    "tgtd": "tgt",
    "iscsi-test-cu": "libiscsi-bin",
    "qemu-system-x86_64": "qemu-system-x86",
    "mkfs.ext4": "e2fsprogs",
    "depmod": "kmod",
    "dpkg-deb": "dpkg",
    "dumpcap": "wireshark-common",
    "tshark": "tshark",
    "valgrind": "valgrind",
    "objdump": "binutils",
    "strace": "strace",
    "mkfs.exfat": "exfatprogs",
    "mount.exfat-fuse": "exfat-fuse",
    "ntfs-3g": "ntfs-3g",
    "bindfs": "bindfs",
}
"""Program -> package, for everything that anything under tools/ or tests/ starts."""

HEADERS = {"/usr/include/infiniband/verbs.h": "libibverbs-dev", "/usr/include/rdma/rdma_cma.h": "librdmacm-dev"}
PYVERBS = {"/usr/lib/python3/dist-packages/pyverbs": "python3-pyverbs"}

LAB_TOOLS = ["ip", "taskset", "setpriv", "unshare", "mount"]
PERFTEST_TOOLS = [tool for tool, package in PACKAGES.items() if package == "perftest"]
PROGRAMS = [
    "ucx_info",
    "ucx_perftest",
    "rping",
    "qperf",
    "fio",
    "fi_pingpong",
    "mpirun",
    "mpicc.openmpi",
    "mpiexec.mpich",
    "mpicc.mpich",
]
PROGRAMS += ["qemu-system-x86_64", "dapltest", "tgtd", "iscsi-test-cu", "pip"]
"""One of each package whose programs docs/programs.md names, besides perftest and the ping-pongs.
"""
INTEROP_TOOLS = ["qemu-system-x86_64", "mkfs.ext4", "depmod", "dpkg-deb", "dumpcap", "tshark", "cc"]
PINGPONG_TOOLS = [tool for tool, package in PACKAGES.items() if package == "ibverbs-utils"]


def ensure(tools: Iterable[str]) -> None:
    """Returns when all `tools` can be run. Root gets missing ones by apt; others get their names
    and exit code 2.
    """
    _bring({tool: PACKAGES[tool] for tool in tools}, _can_run)


def missing(tools: Iterable[str]) -> list[str]:
    """Those that cannot be run."""
    return [tool for tool in tools if not _can_run(tool)]


def ensure_headers() -> None:
    """The same for what C programs of the tests include."""
    _bring(HEADERS, lambda header: Path(header).exists())


def ensure_pyverbs() -> None:
    """The same for rdma-core's tests and the module they call, both of one package, for Debian's
    own interpreter.
    """
    _bring(PYVERBS, lambda folder: Path(folder).exists())


def _bring(packages: dict[str, str], is_there: Callable[[str], bool]) -> None:
    missing = [thing for thing in packages if not is_there(thing)]
    if not missing:
        return
    install = [
        "apt-get",
        "install",
        "--yes",
        "--no-install-recommends",
        *sorted({packages[thing] for thing in missing}),
    ]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"{', '.join(missing)} missing: {' '.join(install)}", flush=True)
        _apt(["apt-get", "update"])
        _apt(install)
        missing = [thing for thing in missing if not is_there(thing)]
    if missing:
        print(f"Missing: {', '.join(missing)}. Install them with: sudo {' '.join(install)}", file=sys.stderr)
        sys.exit(2)


def _can_run(tool: str) -> bool:
    # A user's PATH often lacks the sbin folders, where Debian keeps ip and nft.
    if "/usr/sbin" not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return shutil.which(tool) is not None


def _apt(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"{' '.join(command)} failed:\n{result.stderr.strip()}", file=sys.stderr)
