"""The drop-in directory: libibverbs.so.1 and librdmacm.so.1 for LD_LIBRARY_PATH, on hosts with
rdma-core and without; programs that ask for symbol versions; and what `airdma run` picks.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import version_nodes
from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from airdma_lab.pair import run_pair
from case import NotRunError, Tally
from output_checks import rounds_of

PORT = 18515
ROCE_PORT = 4791
ROUNDS = 20
HERE = Path(__file__).resolve().parent
SYSTEM_LIBRARIES = Path("/usr/lib")


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs all of them; `folder` takes what is compiled."""
    reader = _compiled(folder, "dropin_reader", ["-ldl"])
    linked = _compiled(folder, "dropin_linked", ["-lrdmacm", "-libverbs"])
    empty = folder / "empty"
    empty.touch()
    files = folder / "hidden"
    files.mkdir()
    hidden = _without_rdma_core(empty, files)
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        # The genuine libraries are there as well under the preload; the drop-in is one file, under
        # however many names.
        ("the drop-in's symbols have their versions", lambda: _reads(lab, _dropin([reader]), 1)),
        ("a drop-in that is preloaded too is there once", lambda: _reads(lab, _both([reader]), 1)),
        ("a program of each version node, on both artefacts", lambda: version_nodes.check(lab.a, folder)),
        ("ibv_rc_pingpong on the drop-in", lambda: _pingpong(lab)),
        ("perftest loads with the drop-in", lambda: _loads(lab)),
        ("rping on the drop-in", lambda: _rping(lab, _dropin)),
        ("a program linked with both libraries, on the drop-in", lambda: _linked(lab.a, _dropin([linked]))),
        ("rsockets are refused by the drop-in", lambda: _rsockets(lab.a)),
        ("librspreload on the drop-in uses the kernel's sockets", lambda: _rspreload(lab.a)),
        ("the libraries can be hidden", lambda: _fails_to_load(lab.a, [*hidden, linked, lab.a.ipv4])),
        ("without rdma-core: linked program", lambda: _linked(lab.a, [*hidden, *_dropin([linked])])),
        ("without rdma-core: airdma run", lambda: _linked(lab.a, [*hidden, *build.with_airdma([linked])])),
        ("without rdma-core: dlopen and dlvsym", lambda: _reads(lab, [*hidden, *build.with_airdma([reader])], 1)),
        ("without rdma-core: rping", lambda: _rping(lab, lambda argv: [*hidden, *_dropin(argv)])),
        (
            "without rdma-core: rping and airdma run",
            lambda: _rping(lab, lambda argv: [*hidden, *build.with_airdma(argv)]),
        ),
    ]
    for name, test in tests:
        tally.attempt(name, test)


def _compiled(folder: Path, name: str, libraries: list[str]) -> str:
    program = str(folder / name)
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", program, str(HERE / f"{name}.c"), *libraries], check=True)
    return program


def _dropin(argv: list[str]) -> list[str]:
    return ["env", f"LD_LIBRARY_PATH={build.dropin()}", *argv]


def _both(argv: list[str]) -> list[str]:
    return ["env", f"LD_PRELOAD={build.dropin()}/libibverbs.so.1", *_dropin(argv)]


def _without_rdma_core(empty: Path, folder: Path) -> list[str]:
    """The prefix that runs a command on a host without rdma-core's libraries: empty files and
    folders hide them.
    """
    names = ["libibverbs.so*", "librdmacm.so*", "libibverbs", "libmlx?.so*", "rsocket"]
    found = [path for name in names for path in SYSTEM_LIBRARIES.glob(f"*/{name}")]
    script = "".join(
        f"mount --bind '{folder if path.is_dir() else empty}' '{path.resolve()}'\n"
        for path in {p.resolve() for p in found}
    )
    return ["unshare", "--mount", "sh", "-ec", f'{script}exec "$@"', "sh"]


def _reads(lab: Lab, argv: list[str], files: int) -> list[str]:
    outcome = lab.a.run(argv)
    lines = [f"{devices.DEVICE}: MTU 1024", f"opened by librdmacm: {devices.DEVICE}", f"files: {files}"]
    found = outcome.ok and outcome.stdout.splitlines() == lines
    return [] if found else [outcome.explain()]


def _pingpong(lab: Lab) -> list[str]:
    argv = _dropin(["ibv_rc_pingpong", "-c", "-n", "500", "-g", str(devices.gid_index(lab.a, 4))])
    pair = run_pair(lab.a, lab.b, argv, [*argv, lab.a.ipv4], port=PORT, timeout_s=30)
    complaints = rounds_of(500)(pair)
    return [*complaints, pair.explain()] if complaints else []


def _loads(lab: Lab) -> list[str]:
    """perftest links hardware providers, which want symbols that only they use."""
    outcome = lab.a.run(_dropin(["ib_write_bw", "--version"]))
    return [] if "Version" in outcome.stdout else [outcome.explain()]


def _rping(lab: Lab, prefix: Callable[[list[str]], list[str]]) -> list[str]:
    """rping imports a call of rsockets and links both libraries; -V compares what came back."""
    argv = prefix(["rping", "-V", "-v", "-C", str(ROUNDS), "-a", lab.b.ipv4])
    pair = run_pair(lab.b, lab.a, [*argv, "-s"], [*argv, "-c"], port=ROCE_PORT, protocol="udp", timeout_s=30)
    done = pair.client is not None and pair.client.ok and f"rdma-ping-{ROUNDS - 1}:" in pair.client.stdout
    return [] if done else [pair.explain()]


def _linked(host: Host, argv: list[str]) -> list[str]:
    outcome = host.run([*argv, host.ipv4])
    found = outcome.ok and outcome.stdout == f"{devices.DEVICE}: active\n"
    return [] if found else [outcome.explain()]


def _fails_to_load(host: Host, argv: list[str]) -> list[str]:
    outcome = host.run(argv)
    return [] if outcome.returncode == 127 and "shared libraries" in outcome.stderr else [outcome.explain()]


def _rsockets(host: Host) -> list[str]:
    """rsockets are rdma-core's: programs are loaded, and told."""
    outcome = host.run(_dropin(["rstream", "-s", host.ipv4]))
    said = outcome.stdout + outcome.stderr
    return [] if not outcome.ok and "Operation not supported" in said else [outcome.explain()]


def _rspreload(host: Host) -> list[str]:
    library = next(SYSTEM_LIBRARIES.glob("*/rsocket/librspreload.so"), None)
    if library is None:
        msg = f"no librspreload.so in {SYSTEM_LIBRARIES}"
        raise NotRunError(msg)
    echo = (
        "import socket; listener = socket.create_server(('127.0.0.1', 0)); "
        "client = socket.create_connection(listener.getsockname()); client.send(b'hello'); "
        "print(listener.accept()[0].recv(5).decode())"
    )
    outcome = host.run(["env", f"LD_PRELOAD={library}", *_dropin(["python3", "-c", echo])])
    return [] if outcome.ok and outcome.stdout == "hello\n" else [outcome.explain()]
